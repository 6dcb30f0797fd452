#include "host/bounds.h"

bool ek_find_outside(const ek_tensor *index, int64_t size, int64_t *position, int64_t *value)
{
    const int64_t *data = ek_tensor_address(index);
    int64_t count = ek_count(index);
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = 0, rest = i;
        for (int d = index->ndim - 1; d >= 0; d--) {
            offset += rest % index->shape[d] * index->stride[d];
            rest /= index->shape[d];
        }
        *position = i;
        *value = data[offset];
        if (*value < 0 || *value >= size)
            return true;
    }
    return false;
}

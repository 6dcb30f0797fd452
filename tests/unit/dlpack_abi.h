/* dlpack_abi.h: DLPack's structs as its own dlpack.h has them, for programs that include it beside
 * Evenkeel's headers. */
#ifndef EK_TESTS_DLPACK_ABI_H
#define EK_TESTS_DLPACK_ABI_H

#include <stdint.h>

typedef struct DLDevice {
    int32_t device_type, device_id;
} DLDevice;
typedef struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
typedef struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#endif

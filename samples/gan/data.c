#include "gan/data.h"

#include <evenkeel/ops.h>
#include <evenkeel/status.h>
#include <stdlib.h>
#include <string.h>

#include "common/pictures.h"
#include "gan/network.h"

enum { BORDER = (SIDE - PICTURE) / 2 };

int data_open(picture_data *data, const char *directory)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *pictures = pictures_read(directory, "train");
    int rc = pictures ? 0 : ek_error_status();

    *data = (picture_data){0};
    if (rc == 0) {
        size_t nbytes = (size_t)ek_tensor_count(pictures);
        data->count = ek_tensor_size(pictures, 0);
        data->pixels = malloc(nbytes);
        rc = data->pixels
                 ? ek_to_data(pictures, data->pixels, nbytes)
                 : ek_error(EK_E_NO_MEMORY, "no memory for %lld pictures", (long long)data->count);
    }
    ek_scope_end(&scope);
    return rc;
}

void data_close(picture_data *data)
{
    free(data->pixels);
    *data = (picture_data){0};
}

ek_tensor *data_batch(const picture_data *data, const int64_t *order, int64_t count, ek_dtype dtype)
{
    ek_tensor *batch = ek_full(-1, EK_SHAPE(count, 1, SIDE, SIDE));
    float *to = batch ? ek_tensor_data(batch) : NULL;

    if (!to)
        return NULL;
    for (int64_t i = 0; i < count; i++, to += SIDE * SIDE) {
        const uint8_t *from = data->pixels + order[i] * PICTURE * PICTURE;
        for (int y = 0; y < PICTURE; y++)
            for (int x = 0; x < PICTURE; x++)
                to[(y + BORDER) * SIDE + x + BORDER] = (float)from[y * PICTURE + x] / 127.5F - 1;
    }
    ek_tensor_touch(batch);
    return ek_to_dtype(batch, dtype);
}

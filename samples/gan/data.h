/* data.h: the pictures that the critic calls real. */
#ifndef GAN_DATA_H
#define GAN_DATA_H

#include <evenkeel/tensor.h>

typedef struct picture_data {
    int64_t count;
    uint8_t *pixels; /* count x 28 x 28, brightness */
} picture_data;

/* Fashion-MNIST's training pictures from `directory`. Returns 0 or a negative status. */
int data_open(picture_data *data, const char *directory);
void data_close(picture_data *data);

/* The pictures order[0..count-1] as a tensor on cpu, (count, 1, 32, 32) in [-1, 1]: two dark pixels
 * are added on each side. */
ek_tensor *data_batch(const picture_data *data, const int64_t *order, int64_t count,
                      ek_dtype dtype);

#endif

/* image.c: images from tensors. */
#include "cuda/image.h"

#include "core/tensor.h"

ek_cuda_image ek_cuda_image_of(const ek_tensor *tensor)
{
    ek_cuda_image image = {.data = ek_tensor_address(tensor),
                           .dtype = tensor->dtype,
                           .count = ek_count(tensor),
                           .plane = 1,
                           .samples = tensor->shape[0],
                           .channels = tensor->shape[1],
                           .by_sample = tensor->stride[0],
                           .by_channel = tensor->stride[1],
                           .per_channels = ek_cuda_divider_of(tensor->shape[1])};
    double reach = 0;
    for (int d = 0; d < tensor->ndim; d++)
        reach += (double)tensor->stride[d] * (double)tensor->shape[d];
    image.wide = reach >= INT32_MAX || (double)image.count >= INT32_MAX;
    int missing = 3 - (tensor->ndim - 2);
    for (int i = 0; i < 3; i++) {
        int d = i - missing + 2;
        image.size[i] = i < missing ? 1 : tensor->shape[d];
        image.step[i] = i < missing ? 0 : tensor->stride[d];
        image.per_size[i] = ek_cuda_divider_of(image.size[i]);
        image.plane *= image.size[i];
    }
    /* The innermost dimension in space that is one. */
    int inner = 2;
    while (inner > missing && image.size[inner] == 1)
        inner--;
    image.last =
        image.channels > 1 && (image.size[inner] == 1 || image.by_channel < image.step[inner]);
    image.even = true;
    int64_t step = image.step[2];
    for (int i = 2; i >= 0; step *= image.size[i], i--)
        image.even = image.even && (image.size[i] == 1 || image.step[i] == step);
    return image;
}

/* image.cuh: positions in images. I is the type of positions and offsets: int32_t, or int64_t for
 * images that need more than 31 bits. */
#ifndef EK_CUDA_IMAGE_CUH
#define EK_CUDA_IMAGE_CUH

#include "cuda/launch.cuh"

EK_DEVICE int32_t ek_divide(int32_t n, const ek_cuda_divider &by)
{
    return (int32_t)ek_cuda_divide(by.narrow, (uint32_t)n);
}
EK_DEVICE int64_t ek_divide(int64_t n, const ek_cuda_divider &by)
{
    return n / by.by;
}

/* ---- channels in vectors: for memory with channels innermost ---- */

/* Returns true if the channels of every position are whole vectors of `count` elements of `size`
 * bytes, aligned to the vectors' size. */
static inline bool ek_image_has_vectors(const ek_cuda_image &image, int count, size_t size)
{
    bool fits = image.last && image.by_channel == 1 && image.channels % count == 0 &&
                (uintptr_t)image.data % (size * (size_t)count) == 0 &&
                (image.samples == 1 || image.by_sample % count == 0);
    for (int d = 0; d < 3; d++)
        fits = fits && (image.size[d] == 1 || image.step[d] % count == 0);
    return fits;
}

/* Returns the image with vectors of `count` channels as its channels. Strides and offsets still
 * count elements. */
static inline ek_cuda_image ek_image_by_vectors(const ek_cuda_image &image, int count)
{
    ek_cuda_image result = image;
    result.count /= count;
    result.channels /= count;
    result.by_channel *= count;
    result.per_channels = ek_cuda_divider_of(result.channels);
    return result;
}

/* ---- indices ---- */

template <typename I> struct ek_index {
    I sample, channel, at[3];
};

/* Splits a position into its coordinates in a plane. Returns the number of the plane. */
template <typename I> EK_DEVICE I ek_split_position(const ek_cuda_image &image, I position, I at[3])
{
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        I rest = ek_divide(position, image.per_size[d]);
        at[d] = position - rest * (I)image.size[d];
        position = rest;
    }
    return position;
}

/* Returns the index of element i. Elements are numbered in the order of memory as far as possible:
 * fastest along the channels, or along the positions. */
template <typename I> EK_DEVICE ek_index<I> ek_index_of(const ek_cuda_image &image, I i)
{
    ek_index<I> index;
    I channels = (I)image.channels;
    if (image.last) {
        I rest = ek_divide(i, image.per_channels);
        index.channel = i - rest * channels;
        i = rest;
    }
    i = ek_split_position(image, i, index.at);
    if (!image.last) {
        I rest = ek_divide(i, image.per_channels);
        index.channel = i - rest * channels;
        i = rest;
    }
    index.sample = i;
    return index;
}

/* Return the offset of a plane, of a position within its plane, and of an element, which is the sum
 * of both. */
template <typename I> EK_DEVICE I ek_plane_offset(const ek_cuda_image &image, I sample, I channel)
{
    return sample * (I)image.by_sample + channel * (I)image.by_channel;
}
template <typename I> EK_DEVICE I ek_offset_within(const ek_cuda_image &image, const I at[3])
{
    return at[0] * (I)image.step[0] + at[1] * (I)image.step[1] + at[2] * (I)image.step[2];
}
template <typename I> EK_DEVICE I ek_offset_of(const ek_cuda_image &image, const ek_index<I> &index)
{
    return ek_plane_offset(image, index.sample, index.channel) + ek_offset_within(image, index.at);
}

/* Returns the offset within its plane of the position of this number. */
template <typename I> EK_DEVICE I ek_position_offset(const ek_cuda_image &image, I position)
{
    if (image.even)
        return position * (I)image.step[2];
    I at[3];
    ek_split_position(image, position, at);
    return ek_offset_within(image, at);
}

#endif

// device_radix_sort.cuh: cub::DeviceRadixSort. A kernel of one thread sorts. As on a GPU, the
// number of passes decides in which buffer the result lies. The other buffer and the temporary
// storage are overwritten.
#ifndef EK_EMULATOR_CUB_DEVICE_RADIX_SORT_CUH
#define EK_EMULATOR_CUB_DEVICE_RADIX_SORT_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace cub
{

template <typename T> struct DoubleBuffer {
    T *d_buffers[2];
    int selector = 0;

    DoubleBuffer(T *current, T *alternate) : d_buffers{current, alternate}
    {
    }
    T *Current()
    {
        return d_buffers[selector];
    }
    T *Alternate()
    {
        return d_buffers[selector ^ 1];
    }
};

struct DeviceRadixSort {
    // Sorts by the bits [begin_bit, end_bit) of unsigned keys.
    template <typename KeyT, typename ValueT, typename NumItemsT>
    static cudaError_t SortPairs(void *storage, size_t &nbytes, DoubleBuffer<KeyT> &keys,
                                 DoubleBuffer<ValueT> &values, NumItemsT count, int begin_bit = 0,
                                 int end_bit = 8 * sizeof(KeyT), cudaStream_t stream = nullptr)
    {
        const int bits_of_a_pass = 8;
        const size_t needed = 4096 + (size_t)count / 4;
        if (!storage) {
            nbytes = needed;
            return cudaSuccess;
        }
        if (nbytes < needed || begin_bit < 0 || end_bit > (int)(8 * sizeof(KeyT)))
            return cudaErrorInvalidValue;
        const int passes = (end_bit - begin_bit + bits_of_a_pass - 1) / bits_of_a_pass;
        const int to = passes % 2;
        cudaLaunchConfig_t config = {};
        config.gridDim = config.blockDim = dim3(1);
        config.stream = stream;
        cudaError_t error =
            cudaLaunchKernelEx(&config, sort<KeyT, ValueT>, keys.Current(), keys.Alternate(),
                               values.Current(), values.Alternate(), to, (size_t)count, begin_bit,
                               end_bit, storage, needed);
        keys.selector ^= to;
        values.selector ^= to;
        return error;
    }

  private:
    template <typename KeyT, typename ValueT>
    static void sort(KeyT *keys, KeyT *other_keys, ValueT *values, ValueT *other_values, int to,
                     size_t count, int begin_bit, int end_bit, void *storage, size_t nbytes)
    {
        const int bits = end_bit - begin_bit, width = 8 * sizeof(KeyT);
        const KeyT mask = bits == 0 ? 0 : (KeyT) ~(KeyT)0 >> (width - bits) << begin_bit;
        std::vector<std::pair<KeyT, ValueT>> pairs(count);
        for (size_t i = 0; i < count; i++)
            pairs[i] = {keys[i], values[i]};
        std::stable_sort(pairs.begin(), pairs.end(), [mask](const auto &a, const auto &b) {
            return (a.first & mask) < (b.first & mask);
        });
        memset(to ? keys : other_keys, 0xa5, count * sizeof *keys);
        memset(to ? values : other_values, 0xa5, count * sizeof *values);
        memset(storage, 0xa5, nbytes);
        for (size_t i = 0; i < count; i++) {
            (to ? other_keys : keys)[i] = pairs[i].first;
            (to ? other_values : values)[i] = pairs[i].second;
        }
    }
};

} // namespace cub

#endif

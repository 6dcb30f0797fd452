// block_merge_sort.cuh: cub::BlockMergeSort, which is stable.
#ifndef EK_EMULATOR_CUB_BLOCK_MERGE_SORT_CUH
#define EK_EMULATOR_CUB_BLOCK_MERGE_SORT_CUH

#include <algorithm>

namespace cub
{

template <typename KeyT, int BLOCK_DIM_X, int ITEMS_PER_THREAD> class BlockMergeSort
{
  public:
    struct TempStorage {
        KeyT keys[BLOCK_DIM_X * ITEMS_PER_THREAD];
    };

    explicit BlockMergeSort(TempStorage &storage) : room(storage)
    {
    }

    template <typename CompareOp> void Sort(KeyT (&keys)[ITEMS_PER_THREAD], CompareOp is_less)
    {
        KeyT *own = room.keys + threadIdx.x * ITEMS_PER_THREAD;
        std::copy(keys, keys + ITEMS_PER_THREAD, own);
        __syncthreads();
        if (threadIdx.x == 0)
            std::stable_sort(room.keys, room.keys + BLOCK_DIM_X * ITEMS_PER_THREAD, is_less);
        __syncthreads();
        std::copy(own, own + ITEMS_PER_THREAD, keys);
    }

  private:
    TempStorage &room;
};

} // namespace cub

#endif

// block_exchange.cuh: cub::BlockExchange. A thread holds each BLOCK_DIM_X-th of a block's elements
// (striped), or neighbouring elements (blocked).
#ifndef EK_EMULATOR_CUB_BLOCK_EXCHANGE_CUH
#define EK_EMULATOR_CUB_BLOCK_EXCHANGE_CUH

namespace cub
{

template <typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD> class BlockExchange
{
  public:
    struct TempStorage {
        T items[BLOCK_DIM_X * ITEMS_PER_THREAD];
    };

    explicit BlockExchange(TempStorage &storage) : room(storage)
    {
    }

    void StripedToBlocked(const T (&in)[ITEMS_PER_THREAD], T (&out)[ITEMS_PER_THREAD])
    {
        for (int j = 0; j < ITEMS_PER_THREAD; j++)
            room.items[j * BLOCK_DIM_X + (int)threadIdx.x] = in[j];
        __syncthreads();
        for (int j = 0; j < ITEMS_PER_THREAD; j++)
            out[j] = room.items[(int)threadIdx.x * ITEMS_PER_THREAD + j];
    }

    void BlockedToStriped(const T (&in)[ITEMS_PER_THREAD], T (&out)[ITEMS_PER_THREAD])
    {
        for (int j = 0; j < ITEMS_PER_THREAD; j++)
            room.items[(int)threadIdx.x * ITEMS_PER_THREAD + j] = in[j];
        __syncthreads();
        for (int j = 0; j < ITEMS_PER_THREAD; j++)
            out[j] = room.items[j * BLOCK_DIM_X + (int)threadIdx.x];
    }

  private:
    TempStorage &room;
};

} // namespace cub

#endif

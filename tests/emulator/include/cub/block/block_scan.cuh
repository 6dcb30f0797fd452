// block_scan.cuh: cub::BlockScan. As on a GPU, a thread joins its own elements first, and threads'
// results are joined in their order.
#ifndef EK_EMULATOR_CUB_BLOCK_SCAN_CUH
#define EK_EMULATOR_CUB_BLOCK_SCAN_CUH

namespace cub
{

template <typename T, int BLOCK_DIM_X> class BlockScan
{
  public:
    struct TempStorage {
        T joined[BLOCK_DIM_X];
    };

    explicit BlockScan(TempStorage &storage) : room(storage)
    {
    }

    template <int ITEMS_PER_THREAD, typename ScanOp>
    void InclusiveScan(T (&in)[ITEMS_PER_THREAD], T (&out)[ITEMS_PER_THREAD], ScanOp join, T &all)
    {
        const int thread = (int)threadIdx.x;
        T own = in[0];
        for (int j = 1; j < ITEMS_PER_THREAD; j++)
            own = join(own, in[j]);
        room.joined[thread] = own;
        __syncthreads();
        for (int i = 1; thread == 0 && i < BLOCK_DIM_X; i++)
            room.joined[i] = join(room.joined[i - 1], room.joined[i]);
        __syncthreads();
        out[0] = thread > 0 ? join(room.joined[thread - 1], in[0]) : in[0];
        for (int j = 1; j < ITEMS_PER_THREAD; j++)
            out[j] = join(out[j - 1], in[j]);
        all = room.joined[BLOCK_DIM_X - 1];
    }

  private:
    TempStorage &room;
};

} // namespace cub

#endif

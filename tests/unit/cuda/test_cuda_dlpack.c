/* Memory of GPUs that is lent and borrowed by DLPack: its place, and the order between our streams
 * and a stranger's. */
#include <cuda_runtime_api.h>

#include "cuda_setup.h"
#include "dlpack_abi.h"

/* Devices 0 and 1 on one GPU, 2 on the other. */
static const char devices[] = "0,0,1";

enum { COUNT = 1 << 20 }; /* elements of u8 */

#define CUDA_OK(call) ck_assert_int_eq((int)(call), (int)cudaSuccess)

/* A stranger's stream: one of CUDA's default ones, or a stream that waits for no other. */
static cudaStream_t stream_of_kind(int kind)
{
    cudaStream_t stream = (cudaStream_t)(intptr_t)kind;
    CUDA_OK(cudaSetDevice(0));
    if (kind == 3)
        CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void stream_end(int kind, cudaStream_t stream)
{
    if (kind == 3)
        CUDA_OK(cudaStreamDestroy(stream));
}

static ek_tensor *bytes_on(int index)
{
    ek_tensor *x = ek_empty(EK_SHAPE(COUNT), EK_U8, .device = ek_cuda(index));
    assert_made(x);
    return x;
}

/* Every byte of our memory becomes 0, in our stream. */
static void zero(ek_tensor *x)
{
    assert_ok(ek_dev_zero(ek_tensor_dev(x), ek_tensor_address(x), COUNT));
}

static unsigned char host[COUNT];

static void assert_bytes(int wanted)
{
    for (int i = 0; i < COUNT; i++)
        if (host[i] != wanted)
            ck_abort_msg("byte %d is %d, not %d", i, host[i], wanted);
}

/* What a stranger reads in its stream is what we wrote before we lent it; what we write in the same
 * memory once it is given back doesn't disturb the reading. */
TEST_LOOP(strangers_read_after_us_and_we_write_after_them, 0, 4)
{
    open_cuda(devices);
    cudaStream_t stream = stream_of_kind(_i);
    unsigned char *theirs;
    CUDA_OK(cudaMalloc((void **)&theirs, COUNT));
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = bytes_on(0);
    memset(host, 7, COUNT);
    assert_ok(ek_set_data(x, host, COUNT));
    zero(x);
    DLManagedTensorVersioned *lent = ek_to_dlpack(x, stream);
    assert_made(lent);
    ck_assert_int_eq(lent->dl_tensor.device.device_type, 2);
    ck_assert_int_eq(lent->dl_tensor.device.device_id, 0);
    CUDA_OK(cudaMemcpyAsync(theirs, lent->dl_tensor.data, COUNT, cudaMemcpyDeviceToDevice, stream));
    lent->deleter(lent);
    memset(host, 9, COUNT);
    assert_ok(ek_set_data(x, host, COUNT));
    assert_ok(ek_synchronize(ek_cuda(0)));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaMemcpy(host, theirs, COUNT, cudaMemcpyDeviceToHost));
    assert_bytes(0);
    ek_scope_end(&scope);
    CUDA_OK(cudaFree(theirs));
    stream_end(_i, stream);
    close_cuda();
}

static struct {
    cudaStream_t stream;
    int calls;
} stranger;

/* The stranger writes again in its stream. */
static void take_back(DLManagedTensorVersioned *self)
{
    stranger.calls++;
    ck_assert_int_eq(cudaMemsetAsync(self->dl_tensor.data, 5, COUNT, stranger.stream), 0);
}

/* We read what a stranger wrote in its stream before, and our writes come before those that follow
 * the deleter. */
TEST_LOOP(we_read_after_strangers_and_they_write_after_us, 0, 4)
{
    open_cuda(devices);
    stranger.stream = stream_of_kind(_i);
    stranger.calls = 0;
    unsigned char *theirs;
    CUDA_OK(cudaMalloc((void **)&theirs, COUNT));
    CUDA_OK(cudaMemsetAsync(theirs, 1, COUNT, NULL));
    CUDA_OK(cudaDeviceSynchronize());
    int64_t shape[] = {COUNT};
    DLManagedTensorVersioned lent = {
        {1, 1}, NULL, take_back, 0, {theirs, {2, 0}, 1, {1, 8, 1}, shape, NULL, 0}};
    CUDA_OK(cudaMemsetAsync(theirs, 3, COUNT, stranger.stream));
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_from_dlpack(&lent, ek_cpu(), stranger.stream);
    assert_on(x, ek_cuda(0));
    ck_assert_ptr_eq(ek_tensor_address(x), theirs);
    assert_ok(ek_to_data(x, host, COUNT));
    assert_bytes(3);
    zero(x);
    ek_scope_end(&scope);
    ck_assert_int_eq(stranger.calls, 1);
    CUDA_OK(cudaStreamSynchronize(stranger.stream));
    assert_ok(ek_synchronize(ek_cuda(0)));
    CUDA_OK(cudaMemcpy(host, theirs, COUNT, cudaMemcpyDeviceToHost));
    assert_bytes(5);
    CUDA_OK(cudaFree(theirs));
    stream_end(_i, stranger.stream);
    close_cuda();
}

/* Logical devices of one GPU share its memory; others cannot have it. */
TEST(borrowed_memory_lies_on_its_gpu)
{
    open_cuda(devices);
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = bytes_on(1);
    assert_on(ek_from_dlpack(ek_to_dlpack(x, NULL), ek_cpu(), NULL), ek_cuda(0));
    assert_on(ek_from_dlpack(ek_to_dlpack(x, NULL), ek_cuda(1), NULL), ek_cuda(1));
    assert_on(ek_from_dlpack_unversioned(ek_to_dlpack_unversioned(x, NULL), ek_cuda(1), NULL),
              ek_cuda(1));
    assert_refused(ek_from_dlpack(ek_to_dlpack(x, NULL), ek_host(0), NULL), EK_E_DEVICE,
                   "the memory is a GPU's, and host:0 cannot use it");
    if (ek_dev_hardware(ek_cuda(2)) == 1) {
        assert_refused(ek_from_dlpack(ek_to_dlpack(x, NULL), ek_cuda(2), NULL), EK_E_DEVICE,
                       "the memory is on GPU 0, where the wanted device does not lie");
        assert_on(ek_from_dlpack(ek_to_dlpack(bytes_on(2), NULL), ek_cpu(), NULL), ek_cuda(2));
    }
    assert_refused(ek_from_dlpack(ek_to_dlpack(x, NULL), ek_cuda(9), NULL), EK_E_DEVICE, "GPU 0");
    ek_scope_end(&scope);
    close_cuda();
}

/* Read-only memory of a GPU is copied. */
TEST(read_only_memory_of_a_gpu_is_copied)
{
    open_cuda(devices);
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = bytes_on(0);
    zero(x);
    DLManagedTensorVersioned *lent = ek_to_dlpack(x, NULL);
    lent->flags = 1;
    ek_tensor *y = ek_from_dlpack(lent, ek_cuda(0), NULL);
    assert_on(y, ek_cuda(0));
    ck_assert_ptr_ne(ek_tensor_address(y), ek_tensor_address(x));
    assert_ok(ek_to_data(y, host, COUNT));
    assert_bytes(0);
    ek_scope_end(&scope);
    close_cuda();
}

/* The library's use of a GPU leaves the caller's CUDA as it was: another GPU current, or none. */
#include <pthread.h>

#include "cuda/nccl.h"
#include "cuda/runtime.h"
#include "cuda/stream.h"
#include "cuda_setup.h"

static int current_now(void)
{
    int now = -1;
    ck_assert_int_eq(cudaGetDevice(&now), cudaSuccess);
    return now;
}

TEST(turns_nest)
{
    int count, outer, inner;
    emulator_set("DEVICES", "2");
    ck_assert_int_eq(cudaGetDeviceCount(&count), cudaSuccess);
    int other = count > 1;
    ck_assert_int_eq(cudaSetDevice(0), cudaSuccess);
    ck_assert_int_eq(ek_cuda_guard_enter(other, &outer), 0);
    ck_assert_int_eq(current_now(), other);
    ck_assert_int_eq(ek_cuda_guard_enter(0, &inner), 0);
    ck_assert_int_eq(current_now(), 0);
    ck_assert_int_eq(ek_cuda_guard_leave(0, inner), 0);
    ck_assert_int_eq(current_now(), other);
    ck_assert_int_eq(ek_cuda_guard_leave(other, outer), 0);
    ck_assert_int_eq(current_now(), 0);
}

#ifdef EK_CUDA_EMULATED

static void use_device(ek_dev *dev)
{
    void *memory;
    unsigned char bytes[64] = {1};
    assert_ok(ek_dev_alloc(dev, sizeof bytes, EK_MEMORY_ACTIVATION, &memory));
    assert_ok(ek_dev_copy(dev, memory, cpu_dev(), bytes, sizeof bytes));
    assert_ok(ek_dev_zero(dev, memory, sizeof bytes));
    assert_ok(ek_dev_copy(cpu_dev(), bytes, dev, memory, sizeof bytes));
    ck_assert_int_eq(bytes[0], 0);
    ek_dev_free(dev, memory, sizeof bytes, EK_MEMORY_ACTIVATION);
}

/* A thread that never used CUDA would begin with GPU 0: that it still does, and nothing has made a
 * context there, which takes hundreds of megabytes of a GPU nobody asked for. */
static void *use_gpu_1(void *user)
{
    use_device(cuda_dev(0));
    assert_ok(ek_synchronize(ek_cuda(0)));
    ck_assert_int_eq(current_now(), 0);
    ck_assert(ek_emulator_has_context(1));
    ck_assert(!ek_emulator_has_context(0));
    return NULL;
}

TEST(a_gpu_that_is_not_used_gets_no_context)
{
    pthread_t thread;
    emulator_set("DEVICES", "2");
    assert_ok(ek_cuda_devices_configure("1"));
    use_gpu_1(NULL);
    ck_assert_int_eq(pthread_create(&thread, NULL, use_gpu_1, NULL), 0);
    pthread_join(thread, NULL);
    close_cuda();
    ck_assert_int_eq(current_now(), 0);
}

/* Whether GPUs reach each other is tried out between the two of a pair, and nowhere else; nor do
 * their collectives need another. */
TEST(a_pair_of_gpus_does_without_a_third)
{
    emulator_set("DEVICES", "3");
    assert_ok(ek_cuda_devices_configure("1,2"));
    ek_dev *devs[] = {cuda_dev(0), cuda_dev(1)};
    void *data[2];
    ck_assert(ek_dev_reaches(devs[0], devs[1]));
    for (int i = 0; i < 2; i++)
        assert_ok(ek_dev_alloc(devs[i], 64, EK_MEMORY_ACTIVATION, &data[i]));
    ck_assert_int_gt(ek_dev_collective(devs, 2), EK_COLLECTIVE_NONE);
    assert_ok(ek_dev_broadcast(devs, 2, data, 64));
    for (int i = 0; i < 2; i++)
        ek_dev_free(devs[i], data[i], 64, EK_MEMORY_ACTIVATION);
    ck_assert_int_eq(current_now(), 0);
    ck_assert(ek_emulator_has_context(1) && ek_emulator_has_context(2));
    close_cuda();
    ck_assert(!ek_emulator_has_context(0));
}

#endif

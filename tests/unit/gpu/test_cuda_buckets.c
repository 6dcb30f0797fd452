/* What several GPUs of one process send by NCCL: a batch, parameters, and gradients. */
#include "cuda/runtime.h"
#include "held_stream.h"
#ifdef EK_CUDA_EMULATED
#include <emulator.h>
#endif

BEFORE_ALL(skip_without_gpu)
#ifdef EK_CUDA_EMULATED
OWN_PROCESSES /* the emulator is set up once */

    enum {
        DEVICES = 2
    };

static void open_gpus(void)
{
    setenv("EK_EMULATOR_DEVICES", "4", 1);
    assert_ok(ek_cuda_devices_configure("0,1,2,3"));
}

/* Chunks of a batch of the host go straight to their GPUs. */
TEST(a_batch_of_the_host_passes_no_other_gpu)
{
    enum { ROWS = 512, COLUMNS = 1000 };
    ek_emulator_counters counters;
    open_gpus();
    ek_tensor *x = ek_reshape(ek_arange(ROWS * COLUMNS, EK_F32, ek_cpu()), EK_SHAPE(ROWS, COLUMNS));
    ek_tensor *chunks[DEVICES];
    ek_device_list devices = ek_devices(EK_CUDA, DEVICES);
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_synchronize(ek_cuda(d)));
    ek_emulator_reset_counters();
    ck_assert_int_eq(ek_scatter(x, &devices, NULL, 0, chunks), DEVICES);
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.host_to_device, 4 * ROWS * COLUMNS);
    ck_assert_uint_eq(counters.peer + counters.sent, 0);
    for (int d = 0; d < DEVICES; d++) {
        ck_assert_int_eq(ek_tensor_device(chunks[d]).index, d);
        const float *values = ek_tensor_data(ek_to_device(chunks[d], ek_cpu()));
        for (int i = 0; i < ROWS / DEVICES * COLUMNS; i++)
            ck_assert_double_eq(values[i], d * ROWS / DEVICES * COLUMNS + i);
    }
}

/* Tensors of one bucket, which lie apart, are packed. Each GPU has one group of NCCL for their
 * terms and a kernel that packs. Of more than two GPUs each has one more group, for sums, and a
 * kernel that adds. The first GPU also copies its slice to the others, and all of them to their
 * memory. */
TEST_LOOP(a_bucket_has_two_groups, 2, 5)
{
    enum { COUNT = 40, SIZE = 1001, MOST = 4 };
    const int gpus = _i;
    ek_emulator_counters counters;
    ek_tensor *inputs[MOST * COUNT], *added[COUNT];
    open_gpus();
    for (int k = 0; k < gpus * COUNT; k++)
        assert_made(inputs[k] =
                        ek_add_scalar(ek_zeros(EK_SHAPE(SIZE), .device = ek_cuda(k / COUNT)), k));
    for (int d = 0; d < gpus; d++)
        assert_ok(ek_synchronize(ek_cuda(d)));
    ek_emulator_reset_counters();
    assert_ok(ek_reduce_add_coalesced(inputs, gpus, COUNT, ek_cuda(0), 25 << 20, added));
    for (int d = 0; d < gpus; d++)
        assert_ok(ek_synchronize(ek_cuda(d)));
    ek_emulator_count(&counters);
    ck_assert_uint_eq(counters.groups, (gpus > 2 ? 2 : 1) * gpus);
    ck_assert_uint_eq(counters.kernels, gpus + (gpus > 2 ? gpus : 1) + 2);
    ck_assert_uint_eq(counters.copies, 0);
    for (int i = 0; i < COUNT; i++) {
        const float *sum = ek_tensor_data(ek_to_device(added[i], ek_cpu()));
        ck_assert_double_eq(sum[0], gpus * i + COUNT * gpus * (gpus - 1) / 2);
        ck_assert_double_eq(sum[SIZE - 1], gpus * i + COUNT * gpus * (gpus - 1) / 2);
    }
}

#endif

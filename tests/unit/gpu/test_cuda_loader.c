/* Batches for GPUs are on their way before they are asked for, beside what the GPUs compute. */
#include "cuda/cuda_setup.h"
#include "held_stream.h"
#include "kit/devices.h"

enum { BATCH = 6, COLUMNS = 4992, SAMPLES = 10 * BATCH, PATIENCE = 2 };
enum { ROW = COLUMNS * sizeof(float), PART = BATCH / 2 * ROW };

static atomic_int samples_read;

/* Sample i: a row of i, i + 1, ... */
static int64_t rows_length(ek_dataset *dataset)
{
    return SAMPLES;
}

static ek_value rows_get(ek_dataset *dataset, int64_t index)
{
    float row[COLUMNS];
    atomic_fetch_add(&samples_read, 1);
    for (int i = 0; i < COLUMNS; i++)
        row[i] = (float)(index + i);
    return ek_value_of_tensor(ek_from_data(row, EK_SHAPE(COLUMNS), EK_F32));
}

static const ek_dataset_type rows_type = {.name = "rows",
                                          .size = sizeof(ek_dataset),
                                          .length = rows_length,
                                          .get = rows_get};

static ek_loader *open_loader(int workers, bool send_ahead)
{
    ek_loader *loader =
        ek_data_loader(ek_dataset_new(&rows_type), .batch_size = BATCH, .workers = workers,
                       .prefetch = SAMPLES / BATCH, .send_ahead = send_ahead,
                       .device_ids = EK_DEVICES(ek_cuda(0), ek_cuda(1)));
    assert_made(loader);
    return loader;
}

static const struct timespec moment = {0, 20000000};

/* Asks for batches until one is ahead of the one that was given. */
static void ask_until_ahead(ek_loader *loader, ek_batch *batch)
{
    for (int i = 0; i < SAMPLES / BATCH - 2; i++) {
        ck_assert_int_eq(ek_loader_next(loader, batch), 1);
        if (bytes_in_use(ek_cuda(0)) == 2 * PART && bytes_in_use(ek_cuda(1)) == 2 * PART)
            return;
        nanosleep(&moment, NULL);
    }
    ck_abort_msg("no batch is sent ahead");
}

static const float *part_of(const ek_batch *batch, int device)
{
    return ek_tensor_address(ek_value_tensor(ek_value_at(batch->data, device)));
}

/* Read by a stream that waits for nothing. */
static float first_of(const float *data)
{
    float value = -1;
    cudaStream_t stream;
    ck_assert_int_eq((int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), 0);
    ck_assert_int_eq((int)cudaMemcpyAsync(&value, data, sizeof value, cudaMemcpyDeviceToHost,
                                          stream),
                     0);
    ck_assert_int_eq((int)cudaStreamSynchronize(stream), 0);
    ck_assert_int_eq((int)cudaStreamDestroy(stream), 0);
    return value;
}

TEST(the_next_batch_arrives_while_a_step_computes)
{
    hold h = {.patience = PATIENCE};
    ek_batch batch;
    open_cuda("0,0");
    ek_loader *loader = open_loader(1, true);
    ask_until_ahead(loader, &batch);
    while (atomic_load(&samples_read) < SAMPLES) /* who still made some might ask for the GPU */
        nanosleep(&moment, NULL);
    nanosleep(&moment, NULL);
    for (int d = 0; d < 2; d++) /* once before: what is first used may wait for the whole GPU */
        (void)first_of(part_of(&batch, d));
    for (int d = 0; d < 2; d++)
        hold_compute(cuda_dev(d), &h); /* a step with this batch */
    for (int d = 0; d < 2; d++)
        ck_assert_int_eq((int)cudaStreamSynchronize(ek_cuda_of(cuda_dev(d))->upload), 0);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    for (int d = 0; d < 2; d++)
        ck_assert_float_eq(first_of(part_of(&batch, d)), (float)batch.indices[d * BATCH / 2]);
    ck_assert_msg(!atomic_load(&h.gave_up), "a batch waited for a step");
    atomic_store(&h.released, true);
    ek_loader_free(loader);
    close_cuda();
}

/* Copies of all batches, made late, while later batches take the memory of earlier ones. */
TEST_LOOP(steps_see_their_own_batches, 0, 7)
{
    enum { BATCHES = SAMPLES / BATCH };
    ek_tensor *copies[2][BATCHES];
    char order[32];
    int count = 0;
    if (_i > 0) {
        snprintf(order, sizeof order, "random:%d", _i);
        emulator_set("ORDER", order);
    }
    open_cuda("0,1");
    ek_loader *loader = open_loader(_i % 3, _i % 2 ? true : false);
    for (ek_batch batch; ek_loader_next(loader, &batch) > 0; count++) {
        for (int d = 0; d < 2; d++) {
            copies[d][count] = ek_clone(ek_value_tensor(ek_value_at(batch.data, d)));
            assert_made(copies[d][count]);
            ck_assert_int_eq((int)cudaStreamSynchronize(ek_cuda_of(cuda_dev(d))->upload), 0);
        }
    }
    ck_assert_int_eq(count, BATCHES);
    for (int b = 0; b < BATCHES; b++)
        for (int d = 0; d < 2; d++)
            for (int i = 0; i < BATCH / 2; i++) {
                ek_scope scope = ek_scope_begin();
                const float *row =
                    ek_tensor_data(ek_to_device(ek_select(copies[d][b], 0, i), ek_cpu()));
                int64_t sample = (int64_t)b * BATCH + d * BATCH / 2 + i;
                for (int c = 0; c < COLUMNS; c++)
                    if (!(row[c] == (float)(sample + c)))
                        ck_abort_msg("batch %d, sample %lld is %g", b, (long long)sample, row[c]);
                ek_scope_end(&scope);
            }
    ek_loader_free(loader);
    close_cuda();
}

TEST(one_batch_is_ahead_and_no_more)
{
    ek_batch batch;
    open_cuda("0,0");
    ek_loader *loader = open_loader(2, true);
    ask_until_ahead(loader, &batch);
    for (int i = 0; i < 2 * SAMPLES / BATCH; i++) {
        ck_assert_int_ge(ek_loader_next(loader, &batch), 0);
        ck_assert_uint_le(bytes_in_use(ek_cuda(0)), 2 * PART);
        nanosleep(&moment, NULL);
    }
    assert_ok(ek_loader_reset(loader));
    ck_assert_uint_eq(bytes_in_use(ek_cuda(0)) + bytes_in_use(ek_cuda(1)), 0);
    ask_until_ahead(loader, &batch);
    ek_loader_free(loader);
    ck_assert_uint_eq(bytes_in_use(ek_cuda(0)) + bytes_in_use(ek_cuda(1)), 0);
    loader = open_loader(2, false);
    while (ek_loader_next(loader, &batch) > 0) {
        nanosleep(&moment, NULL);
        ck_assert_uint_le(bytes_in_use(ek_cuda(0)), PART);
    }
    ek_loader_free(loader);
    close_cuda();
}

/* What has no room ahead comes when it is asked for, and doesn't ask for room again. */
TEST(where_one_batch_fits_none_is_ahead)
{
    ek_memory_stats stats;
    ek_batch batch;
    int count = 0, rc;
    open_cuda("0,0");
    assert_ok(ek_memory_set_capacity(ek_cuda(1), PART + PART / 2));
    ek_loader *loader = open_loader(1, true);
    for (; (rc = ek_loader_next(loader, &batch)) > 0; count++) {
        ck_assert_float_eq(element(ek_value_tensor(ek_value_at(batch.data, 1)), 0),
                           (double)batch.indices[BATCH / 2]);
        nanosleep(&moment, NULL);
    }
    assert_ok(rc);
    ck_assert_int_eq(count, SAMPLES / BATCH);
    assert_ok(ek_memory_get_stats(ek_cuda(1), &stats));
    ck_assert_uint_eq(stats.failures, 1);
    ek_loader_free(loader);
    close_cuda();
}

/* A batch on the host is cut for devices that compute, and arrives meanwhile: chunks of more than
 * one buffer, or of less. */
TEST_LOOP(scattering_waits_for_no_kernel, 0, 2)
{
    const int64_t rows = 12, columns = _i ? 1 << 18 : 100;
    const ek_device_list devices = EK_DEVICES(ek_cuda(0), ek_cuda(1), ek_cuda(2));
    hold h = {.patience = PATIENCE};
    ek_tensor *out[3];
    open_cuda("0,0,1");
    ek_tensor *batch = ek_zeros(EK_SHAPE(rows, columns));
    float *data = ek_tensor_data(batch);
    for (int64_t i = 0; i < rows; i++)
        data[i * columns] = (float)(1 + i);
    for (int round = 0; round < 2; round++) { /* the first makes what a step makes once */
        ek_scope scope = ek_scope_begin();
        for (int d = 0; d < 3 && round; d++)
            hold_compute(cuda_dev(d), &h);
        ck_assert_int_eq(ek_scatter(batch, &devices, NULL, 0, out), 3);
        ek_tensor *moved = ek_to_device(batch, ek_cuda(1));
        assert_made(moved);
        for (int d = 0; d < 3; d++) {
            ck_assert_int_eq((int)cudaStreamSynchronize(ek_cuda_of(cuda_dev(d))->upload), 0);
            ck_assert_float_eq(first_of(ek_tensor_address(out[d])), (float)(1 + d * rows / 3));
        }
        ck_assert_float_eq(first_of(ek_tensor_address(moved)), 1);
        ck_assert_msg(!atomic_load(&h.gave_up), "the batch waited for a kernel");
        atomic_store(&h.released, round > 0);
        for (int d = 0; d < 3; d++)
            assert_close(ek_to_device(out[d], ek_cpu()), ek_slice(batch, 0, d * 4, d * 4 + 4, 1), 0,
                         0);
        ek_scope_end(&scope);
    }
    close_cuda();
}

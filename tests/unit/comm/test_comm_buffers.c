/* Sums, gathers and copies need no room for several copies of anything where they end. */
#include "comm_setup.h"
#include "core/device.h"
#include "kit/combined.h"
#include "kit/remote.h"

NAMES_DEVICES
COST(10)

static uint64_t growth(int device, uint64_t before)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_host(device), &stats));
    return stats.peak - before;
}

enum { ROWS = 1500, COLUMNS = 4096, NBYTES = ROWS * COLUMNS * 4 }; /* 23 MiB */

static ek_tensor *large(int device, int64_t rows, int64_t columns, bool transposed)
{
    ek_generator *generator = ek_generator_new(17 + (uint64_t)device);
    ek_tensor *x = transposed ? ek_empty(EK_SHAPE(columns, rows), .device = ek_host(device))
                              : ek_empty(EK_SHAPE(rows, columns), .device = ek_host(device));
    assert_made(x);
    assert_ok(ek_uniform_(x, -1, 1, generator));
    ek_generator_free(generator);
    return transposed ? ek_permute(x, EK_SHAPE(1, 0)) : x;
}

/* Every element is the sum in f32 in the fixed order, to the bit. */
static void assert_summed(const ek_tensor *sum, ek_tensor *const *parts, int count)
{
    const float *result =
        ek_tensor_data(ek_contiguous(ek_to_device((ek_tensor *)sum, ek_cpu()), EK_CONTIGUOUS));
    const float *of[DEVICES];
    for (int d = 0; d < count; d++)
        of[d] = ek_tensor_data(ek_contiguous(ek_to_device(parts[d], ek_cpu()), EK_CONTIGUOUS));
    for (int64_t i = 0; i < ek_tensor_count(sum); i++) {
        float terms[DEVICES];
        for (int d = 0; d < count; d++)
            terms[d] = of[d][i];
        float expected = combined_f32(terms, count);
        if (!(result[i] == expected))
            ck_abort_msg("element %lld is %.9g, not %.9g", (long long)i, (double)result[i],
                         (double)expected);
    }
}

static void check_sum(bool apart, bool transposed, int64_t rows, int64_t columns)
{
    ek_tensor *parts[DEVICES];
    ek_scope scope = ek_scope_begin();
    for (int d = 0; d < DEVICES; d++)
        parts[d] = large(d, rows, columns, transposed && d % 2);
    if (apart)
        make_remote(DEVICES, EK_COLLECTIVE_NONE);
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    uint64_t before = bytes_in_use(ek_host(0));
    ek_tensor *sum = ek_reduce_add(parts, DEVICES, ek_host(0));
    assert_made(sum);
    uint64_t nbytes = ((uint64_t)(rows * columns) * 4 + 63) / 64 * 64;
    ck_assert_uint_le(growth(0, before), nbytes + 2 * EK_COMM_BUFFER_BYTES);
    ck_assert_uint_eq(bytes_in_use(ek_host(0)) - before, nbytes);
    assert_summed(sum, parts, DEVICES);
    ek_scope_end(&scope);
}

TEST_LOOP(a_sum_is_added_slice_by_slice, 0, 4)
{
    check_sum(_i & 1, _i & 2, ROWS, COLUMNS);
}

/* One row that is larger than a buffer, and a size that nothing divides. */
TEST_LOOP(few_rows_are_sliced_too, 0, 4)
{
    check_sum(_i & 1, _i & 2, 1, 5000011);
    check_sum(_i & 1, _i & 2, 2, 2500007);
}

/* bf16 adds up in f32 and rounds once: so it does in slices. Integers are added in turn. */
TEST_LOOP(slices_round_as_the_whole, 0, 2)
{
    ek_tensor *near[DEVICES], *far[DEVICES];
    ek_dtype dtype = _i ? EK_BF16 : EK_I64;
    int64_t n = _i ? 3000001 : 700001;
    for (int d = 0; d < DEVICES; d++)
        near[d] = far[d] = ek_to_dtype(ek_mul_scalar(large(d, 1, n, false), 1000), dtype);
    ek_tensor *whole = ek_clone(ek_reduce_add(near, DEVICES, ek_host(0)));
    assert_made(whole);
    make_remote(DEVICES, EK_COLLECTIVE_NONE);
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    uint64_t before = bytes_in_use(ek_host(0));
    ek_tensor *sum = ek_reduce_add(far, DEVICES, ek_host(0));
    assert_made(sum);
    ck_assert_uint_le(growth(0, before),
                      (uint64_t)n * ek_dtype_size(dtype) + 2 * EK_COMM_BUFFER_BYTES);
    assert_close(ek_to_device(sum, ek_cpu()), ek_to_device(whole, ek_cpu()), 0, 0);
}

/* A list of many tensors goes in groups, each in one copy. */
TEST_LOOP(a_list_goes_in_groups, 0, 2)
{
    enum { COUNT = 40 };
    ek_tensor *inputs[DEVICES * COUNT], *out[COUNT];
    for (int d = 0; d < DEVICES; d++)
        for (int i = 0; i < COUNT; i++)
            inputs[d * COUNT + i] = large(d, 1 + i % 3, 150000, false);
    if (_i)
        make_remote(DEVICES, EK_COLLECTIVE_NONE);
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    uint64_t before = bytes_in_use(ek_host(0));
    assert_ok(ek_reduce_add_coalesced(inputs, DEVICES, COUNT, ek_host(0), (size_t)1 << 30, out));
    uint64_t nbytes = 0;
    for (int i = 0; i < COUNT; i++) {
        ek_tensor *parts[DEVICES];
        for (int d = 0; d < DEVICES; d++)
            parts[d] = inputs[d * COUNT + i];
        nbytes += (uint64_t)(1 + i % 3) * 150000 * 4;
        assert_summed(out[i], parts, DEVICES);
    }
    ck_assert_uint_le(growth(0, before), nbytes + 64 * COUNT + 2 * EK_COMM_BUFFER_BYTES);
}

TEST_LOOP(a_gather_writes_into_the_result, 0, 4)
{
    ek_tensor *parts[DEVICES];
    int dim = _i >> 1;
    for (int d = 0; d < DEVICES; d++)
        parts[d] = large(d, ROWS, COLUMNS, false);
    if (_i & 1)
        make_remote(DEVICES, EK_COLLECTIVE_NONE);
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    uint64_t before = bytes_in_use(ek_host(0));
    ek_tensor *whole = ek_gather(parts, DEVICES, ek_host(0), dim);
    assert_made(whole);
    ck_assert_uint_le(growth(0, before), (uint64_t)DEVICES * NBYTES + 2 * EK_COMM_BUFFER_BYTES);
    for (int d = 0; d < DEVICES; d++) {
        ek_tensor *part = ek_narrow(whole, dim, d * (dim ? COLUMNS : ROWS), dim ? COLUMNS : ROWS);
        assert_summed(ek_contiguous(part, EK_CONTIGUOUS), &parts[d], 1);
    }
}

TEST_LOOP(a_scatter_needs_no_copy_of_all, 0, 4)
{
    ek_tensor *chunks[DEVICES];
    int dim = _i >> 1;
    ek_tensor *whole = large(0, ROWS, COLUMNS, false);
    ek_device_list devices = ek_devices(EK_HOST, DEVICES);
    if (_i & 1)
        make_remote(DEVICES, EK_COLLECTIVE_NONE);
    uint64_t before[DEVICES];
    for (int d = 0; d < DEVICES; d++) {
        assert_ok(ek_memory_reset_peak(ek_host(d)));
        before[d] = bytes_in_use(ek_host(d));
    }
    ck_assert_int_eq(ek_scatter(whole, &devices, NULL, dim, chunks), DEVICES);
    for (int d = 0; d < DEVICES; d++) {
        ck_assert_uint_le(growth(d, before[d]),
                          (d ? NBYTES / DEVICES : 0) + 2 * EK_COMM_BUFFER_BYTES);
        ek_tensor *part = ek_narrow(whole, dim, d * (dim ? COLUMNS : ROWS) / DEVICES,
                                    (dim ? COLUMNS : ROWS) / DEVICES);
        part = ek_contiguous(part, EK_CONTIGUOUS);
        assert_summed(chunks[d], &part, 1);
    }
}

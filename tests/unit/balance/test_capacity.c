/* Capacity is honoured to the byte: a training step runs with just its peak, and fails with less.
 */
#include "step_setup.h"

NAMES_DEVICES

enum { BATCH = 12, USED = 3, STEPS = 2 };

typedef struct outcome {
    int status;
    uint64_t peaks[USED];
} outcome;

static int train(const job *j, int64_t batch)
{
    int rc = 0;
    for (int step = 0; step < STEPS && rc >= 0; step++) {
        ek_scope scope = ek_scope_begin();
        rc = train_job(NULL, j, .input = EK_VALUE(make_inputs((int)batch)),
                       .target = EK_VALUE(make_targets((int)batch, 2, 5)));
        ek_scope_end(&scope);
    }
    return rc;
}

/* From devices that hold nothing, with this capacity of one of them (0: none). */
static outcome fresh_run(way how, int device, uint64_t capacity)
{
    outcome o;
    for (int d = 0; d < USED; d++) {
        assert_ok(ek_memory_trim(test_device(d)));
        assert_ok(ek_memory_reset_peak(test_device(d)));
    }
    job j = make_job(how, CROSS_ENTROPY, EK_F64);
    assert_ok(ek_memory_set_capacity(test_device(device), capacity));
    o.status = train(&j, BATCH);
    for (int d = 0; d < USED; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        o.peaks[d] = stats.peak;
    }
    if (o.status < 0) {
        /* All is usable: smaller batches run, and this one if there is room. */
        assert_error(EK_E_OUT_OF_MEMORY, "is out of memory");
        assert_ok(train(&j, BATCH / 2));
        assert_ok(ek_memory_set_capacity(test_device(device), 0));
        assert_ok(train(&j, BATCH));
    }
    assert_ok(ek_memory_set_capacity(test_device(device), 0));
    free_job(&j);
    return o;
}

TEST_LOOP(the_peak_is_enough_and_needed, (USED * CLASSIC), (USED * SHARDED))
{
    way how = (way)(_i / USED);
    int device = _i % USED;
    uint64_t peak = fresh_run(how, device, 0).peaks[device];
    for (int again = 0; again < 5; again++)
        ck_assert_uint_eq(fresh_run(how, device, 0).peaks[device], peak);
    outcome enough = fresh_run(how, device, peak);
    ck_assert_int_eq(enough.status, 0);
    ck_assert_uint_eq(enough.peaks[device], peak);
    ck_assert_int_eq(fresh_run(how, device, peak - 64).status, EK_E_OUT_OF_MEMORY);
}

/* A sharded gradient is released by the thread of the shard's owner, so that a device's peak
 * depends a little on who is first. */
TEST_LOOP(a_little_more_than_the_peak_is_enough, 0, USED)
{
    uint64_t peak = fresh_run(SHARDED, _i, 0).peaks[_i];
    for (int again = 0; again < 5; again++) {
        uint64_t other = fresh_run(SHARDED, _i, 0).peaks[_i];
        ck_assert_uint_le(other, peak + peak / 8);
        ck_assert_uint_ge(other, peak - peak / 8);
    }
    ck_assert_int_eq(fresh_run(SHARDED, _i, peak + peak / 8).status, 0);
    ck_assert_int_eq(fresh_run(SHARDED, _i, peak - peak / 4).status, EK_E_OUT_OF_MEMORY);
}

/* The activations of a part are gone before the next: the step takes less memory in more parts. */
TEST_LOOP(more_parts_take_less, ONE_DEVICE, WAYS)
{
    enum { SAMPLES = 48 };
    uint64_t last = UINT64_MAX;
    for (int parts = 1; parts <= 8; parts *= 2) {
        job j = make_job((way)_i, CROSS_ENTROPY, EK_F64);
        ek_memory_stats stats;
        for (int step = 0; step < STEPS; step++) {
            ek_scope scope = ek_scope_begin();
            assert_ok(ek_memory_reset_peak(test_device(0)));
            assert_ok(train_job(NULL, &j, .input = EK_VALUE(make_inputs(SAMPLES)),
                                .target = EK_VALUE(make_targets(SAMPLES, 2, 5)),
                                .micro_batches = parts));
            ek_scope_end(&scope);
        }
        assert_ok(ek_memory_get_stats(test_device(0), &stats));
        ck_assert_uint_lt(stats.peak, last - last / 10);
        last = stats.peak;
        free_job(&j);
    }
}

/* A batch that is too large fails in its first part; cut finer, it goes through with the same job.
 */
TEST_LOOP(a_smaller_part_fits, ONE_DEVICE, WAYS)
{
    enum { SAMPLES = 48 };
    char before[65], after[65];
    ek_scope scope = ek_scope_begin();
    job j = make_job((way)_i, CROSS_ENTROPY, EK_F64);
    ek_value x = EK_VALUE(make_inputs(SAMPLES)), y = EK_VALUE(make_targets(SAMPLES, 2, 5));
    assert_ok(train(&j, 6));
    assert_ok(ek_module_sha256(j.net, before));
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_device(0), &stats));
    assert_ok(ek_memory_set_capacity(test_device(0), 4 * stats.peak / 3));
    double loss;
    int rc = 0, parts = 1;
    for (; parts <= SAMPLES; parts++) {
        rc = train_job(&loss, &j, .input = x, .target = y, .micro_batches = parts);
        if (rc >= 0)
            break;
        assert_error(EK_E_OUT_OF_MEMORY, "train_step: ");
        assert_ok(ek_module_sha256(j.net, after));
        ck_assert_str_eq(before, after);
        for (int p = 0; p < 4; p++)
            ck_assert_ptr_null(ek_gather_grad(ek_module_tensor(j.net, scorer_paths[p])));
    }
    assert_ok(rc);
    ck_assert_int_gt(parts, 2);
    assert_ok(ek_module_sha256(j.net, after));
    ck_assert_str_ne(before, after);
    ek_scope_end(&scope);
    assert_ok(ek_memory_set_capacity(test_device(0), 0));
    free_job(&j);
}

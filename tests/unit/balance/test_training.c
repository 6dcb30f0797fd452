/* Training, end to end: the three modes agree, memory does not grow, too little of it is survived.
 */
#include "kit/devices.h"
#include "kit/segmentation.h"

enum { DEVICES = 4, STEPS = 50 };

/* The same batch comes again after five. */
static int step_count(void)
{
    return test_is_short() ? 6 : STEPS;
}

FIXTURE(four_devices, NULL)

static void train(train_mode mode, bool batch_norm, ek_dtype dtype, int64_t batch,
                  ignored_pixels ignoring, int steps, double *losses)
{
    trainer t = make_trainer(mode, make_net(batch_norm, dtype), DEVICES, EK_EXACT);
    for (int step = 0; step < steps; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *images, *target;
        make_batch(batch, (batch + DEVICES - 1) / DEVICES, ignoring, dtype,
                   100 + (uint64_t)(step % 5), &images, &target);
        assert_ok(train_step(&t, images, target, &losses[step]));
        ek_release(images);
        ek_release(target);
        ek_scope_end(&scope);
    }
    free_trainer(&t);
}

static void assert_curves(const double *a, const double *b, int steps, double relative)
{
    for (int i = 0; i < steps; i++)
        if (!(fabs(a[i] - b[i]) <= relative * fabs(b[i])))
            ck_abort_msg("step %d: loss %.17g, wanted %.17g (relative %.3g)", i, a[i], b[i],
                         fabs(a[i] - b[i]) / fabs(b[i]));
    ck_assert_msg(b[steps - 1] < b[0], "the loss does not fall: %g to %g", b[0], b[steps - 1]);
}

static const struct {
    int64_t batch;
    ignored_pixels ignoring;
} cases[] = {{8, NONE_IGNORED},     {10, NONE_IGNORED},        {10, UNEVENLY_IGNORED},
             {3, UNEVENLY_IGNORED}, {8, FIRST_DEVICE_IGNORED}, {9, FIRST_DEVICE_IGNORED}};

TEST_LOOP(modes_agree_in_f64, 0, sizeof cases / sizeof *cases)
{
    double losses[MODES][STEPS];
    for (train_mode mode = SINGLE; mode < MODES; mode++)
        train(mode, false, EK_F64, cases[_i].batch, cases[_i].ignoring, step_count(), losses[mode]);
    assert_curves(losses[CLASSIC], losses[SINGLE], step_count(), 1e-12);
    assert_curves(losses[BALANCED], losses[SINGLE], step_count(), 1e-12);
}

TEST_LOOP(modes_agree_in_f32, 0, sizeof cases / sizeof *cases)
{
    double losses[MODES][STEPS];
    for (train_mode mode = SINGLE; mode < MODES; mode++)
        train(mode, false, EK_F32, cases[_i].batch, cases[_i].ignoring, step_count(), losses[mode]);
    assert_curves(losses[CLASSIC], losses[SINGLE], step_count(), 1e-5);
    assert_curves(losses[BALANCED], losses[SINGLE], step_count(), 1e-5);
}

TEST_LOOP(classic_and_balanced_agree_with_batch_norm, 0, sizeof cases / sizeof *cases)
{
    double losses[MODES][STEPS];
    for (int dtype = EK_F32; dtype <= EK_F64; dtype++) {
        for (train_mode mode = CLASSIC; mode < MODES; mode++)
            train(mode, true, (ek_dtype)dtype, cases[_i].batch, cases[_i].ignoring, step_count(),
                  losses[mode]);
        assert_curves(losses[BALANCED], losses[CLASSIC], step_count(),
                      dtype == EK_F64 ? 1e-12 : 1e-5);
    }
}

TEST_LOOP(runs_are_equal_to_the_bit, 0, MODES)
{
    char digests[2][65];
    ek_use_deterministic_algorithms(true); /* other sums of convolutions on GPUs may differ */
    for (int run = 0; run < 2; run++) {
        trainer t = make_trainer((train_mode)_i, make_net(true, EK_F32), DEVICES, EK_EXACT);
        for (int step = 0; step < 10; step++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *images, *target;
            double loss;
            make_batch(10, 3, UNEVENLY_IGNORED, EK_F32, (uint64_t)step, &images, &target);
            assert_ok(train_step(&t, images, target, &loss));
            ek_release(images);
            ek_release(target);
            ek_scope_end(&scope);
        }
        assert_ok(ek_module_sha256(t.model, digests[run]));
        free_trainer(&t);
    }
    ek_use_deterministic_algorithms(false);
    ck_assert_str_eq(digests[0], digests[1]);
}

TEST_LOOP(memory_does_not_grow, 0, MODES)
{
    trainer t = make_trainer((train_mode)_i, make_net(true, EK_F32), DEVICES, EK_EXACT);
    ek_tensor *images, *target;
    make_batch(10, 3, UNEVENLY_IGNORED, EK_F32, 1, &images, &target);
    uint64_t after_warm_up[DEVICES + 1] = {0};
    for (int step = 0; step < (test_is_short() ? 20 : 200); step++) {
        double loss;
        assert_ok(train_step(&t, images, target, &loss));
        for (int d = 0; d <= DEVICES; d++) {
            if (step < 2)
                after_warm_up[d] = bytes_in_use(d < DEVICES ? test_device(d) : ek_cpu());
            ck_assert_msg(bytes_in_use(d < DEVICES ? test_device(d) : ek_cpu()) == after_warm_up[d],
                          "step %d, device %d: %llu bytes, %llu before", step, d,
                          (unsigned long long)bytes_in_use(d < DEVICES ? test_device(d) : ek_cpu()),
                          (unsigned long long)after_warm_up[d]);
        }
    }
    ek_release(images);
    ek_release(target);
    free_trainer(&t);
}

TEST_LOOP(out_of_memory_is_survived, 0, MODES)
{
    trainer t = make_trainer((train_mode)_i, make_net(true, EK_F32), DEVICES, EK_EXACT);
    ek_tensor *small[2], *large[2];
    make_batch(4, 1, NONE_IGNORED, EK_F32, 1, &small[0], &small[1]);
    make_batch(64, 16, NONE_IGNORED, EK_F32, 1, &large[0], &large[1]);
    double loss, again;
    assert_ok(train_step(&t, small[0], small[1], &loss));
    uint64_t before[DEVICES];
    for (int d = 0; d < DEVICES; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        before[d] = stats.in_use;
        /* More than the small batch needs. The peak may have been that of a library's workspace. */
        assert_ok(ek_memory_set_capacity(test_device(d), stats.in_use + stats.in_use / 4 + 250000));
    }
    char digest[2][65];
    assert_ok(ek_module_sha256(t.model, digest[0]));
    ck_assert_int_eq(train_step(&t, large[0], large[1], &again), EK_E_OUT_OF_MEMORY);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "requested for"));
    assert_error(EK_E_OUT_OF_MEMORY, "is out of memory");
    assert_ok(ek_module_sha256(t.model, digest[1]));
    ck_assert_str_eq(digest[0], digest[1]);
    for (int i = 0; i < 3; i++)
        assert_ok(train_step(&t, small[0], small[1], &again));
    ck_assert(again < loss);
    for (int d = 0; d < DEVICES; d++) {
        ck_assert_uint_eq(bytes_in_use(test_device(d)), before[d]);
    }
    for (int i = 0; i < 2; i++) {
        ek_release(small[i]);
        ek_release(large[i]);
    }
    free_trainer(&t);
}

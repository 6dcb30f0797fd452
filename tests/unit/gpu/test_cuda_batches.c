/* Training with batches of several sizes takes no more memory of a GPU than the largest batch, and
 * asks the system for none after the second step. */
#include "cuda/cuda_setup.h"

enum { CHANNELS = 32, SIDE = 24, LARGEST = 32, STEPS = 8, USED = 2 };

typedef struct job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
} job;

static job open_job(void)
{
    ek_device_list devices = ek_devices(EK_CUDA, USED);
    ek_module *net =
        ek_sequential(ek_conv2d(3, CHANNELS, 1, .bias = false), ek_batch_norm2d(CHANNELS),
                      ek_relu(), ek_conv2d(CHANNELS, CHANNELS, 1), ek_relu(),
                      ek_adaptive_avg_pool2d(1, 1), ek_flatten(1, -1), ek_linear(CHANNELS, 10));
    job j = {.model = ek_data_parallel_model(net, .device_ids = devices),
             .criterion =
                 ek_data_parallel_criterion(ek_cross_entropy_loss(), .device_ids = devices)};
    j.optimizer = ek_sgd(j.model, .lr = 0.01, .momentum = 0.9);
    ck_assert(j.model && j.criterion && j.optimizer);
    return j;
}

static void step(const job *j, int64_t batch)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_randn(EK_SHAPE(batch, 3, SIDE, SIDE));
    ek_tensor *y = ek_randint(0, 10, EK_SHAPE(batch));
    assert_ok(ek_train_step(NULL, .model = j->model, .criterion = j->criterion,
                            .optimizer = j->optimizer, .input = EK_VALUE(x),
                            .target = EK_VALUE(y)));
    ek_scope_end(&scope);
}

typedef struct figures {
    uint64_t reserved[USED]; /* at the peak */
} figures;

static figures train(const int64_t *batches)
{
    figures f;
    uint64_t early[USED] = {0};
    emulator_set("KIND", "1"); /* workspaces of a convolution don't depend on the batch at random */
    open_cuda("0,1");
    job j = open_job();
    for (int i = 0; i < STEPS; i++) {
        step(&j, batches[i]);
        for (int d = 0; d < USED; d++) {
            ek_memory_stats stats;
            assert_ok(ek_memory_get_stats(ek_cuda(d), &stats));
            if (i >= 2 && stats.system_allocations != early[d])
                ck_abort_msg("step %d: %d allocations on cuda:%d, %d before", i + 1,
                             (int)stats.system_allocations, d, (int)early[d]);
            early[d] = stats.system_allocations;
            f.reserved[d] = stats.reserved_peak;
            ck_assert_uint_eq(stats.dropped, 0);
            ck_assert_uint_gt(stats.reserved_peak, 8 << 20);
        }
    }
    ek_optimizer_free(j.optimizer);
    ek_module_free(j.criterion);
    ek_module_free(j.model);
    close_cuda();
    return f;
}

TEST(batches_of_all_sizes_share_memory)
{
    static const int64_t largest[STEPS] = {LARGEST, LARGEST, LARGEST, LARGEST,
                                           LARGEST, LARGEST, LARGEST, LARGEST};
    static const int64_t several[STEPS] = {LARGEST, LARGEST, 7, LARGEST, 19, LARGEST, 3, 26};
    setenv("EVENKEEL_SEGMENTS", "1", 1);
    figures whole = train(largest), mixed = train(several);
    for (int d = 0; d < USED; d++)
        ck_assert_uint_le(mixed.reserved[d], whole.reserved[d] + whole.reserved[d] / 20);
}

#ifdef EK_CUDA_EMULATED

/* Modules and communicators, which the first step makes. */
TEST(a_report_knows_what_the_ledger_cannot_see)
{
    emulator_set("CONTEXT", "100M");
    emulator_set("LATER", "10M");
    open_cuda("0,1");
    job j = open_job();
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_CUDA, USED));
    assert_made(report);
    step(&j, LARGEST);
    assert_ok(ek_report_step(report));
    for (int d = 0; d < USED; d++) {
        ek_device_report device;
        assert_ok(ek_report_get_device(report, d, &device));
        ck_assert_uint_eq(device.system, 120 << 20);
    }
    ek_report_free(report);
    ek_optimizer_free(j.optimizer);
    ek_module_free(j.criterion);
    ek_module_free(j.model);
    close_cuda();
}

#endif

/* test_fit_of_ranks.c: ranks whose devices differ choose one training, which fits on all of them;
 * if there is none, all ranks say so; ranks that are unlike are refused. */
#include <stdio.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

#include "job.h"

enum { WIDTH = 24, BLOCKS = 4, CLASSES = 3, BATCH = 120, STEPS = 3 };

static ek_module *make_net(void)
{
    ek_manual_seed(3);
    ek_module *net = ek_sequential_of(NULL, 0);
    for (int b = 0; b < BLOCKS; b++)
        ek_module_list_append(net, ek_sequential(ek_linear(WIDTH, WIDTH), ek_tanh(),
                                                 ek_linear(WIDTH, WIDTH), ek_tanh()));
    ek_module_list_append(net, ek_linear(WIDTH, CLASSES));
    return net;
}

static ek_optimizer *make_adam(ek_module *model, void *user)
{
    (void)user;
    return ek_adam(model);
}

static int find(ek_fit_result *fit, int64_t batch)
{
    ek_module *net = make_net(), *criterion = ek_cross_entropy_loss();
    ek_scope scope = ek_scope_begin();
    int rc = ek_fit(fit, .module = net, .criterion = criterion, .optimizer = make_adam,
                    .input = EK_VALUE(ek_randn(EK_SHAPE(batch, WIDTH))),
                    .target = EK_VALUE(ek_randint(0, CLASSES, EK_SHAPE(batch))),
                    .device_ids = ek_devices(EK_HOST, 1), .headroom = 0);
    ek_scope_end(&scope);
    ek_module_free(net);
    ek_module_free(criterion);
    return rc;
}

/* Trains as was chosen, and returns this rank's peak. */
static uint64_t train(const ek_fit_result *fit)
{
    ek_memory_stats stats;
    ek_module *model = ek_fit_model(fit, make_net());
    ek_module *criterion = ek_fit_criterion(fit, ek_cross_entropy_loss());
    ek_optimizer *optimizer = model ? make_adam(model, NULL) : NULL;
    CHECK(model && criterion && optimizer, "%s", ek_error_message());
    CHECK_OK(ek_memory_reset_peak(ek_host(0)));
    for (int step = 0; step < STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        CHECK_OK(ek_train_step(NULL, .model = model, .criterion = criterion, .optimizer = optimizer,
                               .input = EK_VALUE(ek_randn(EK_SHAPE(BATCH, WIDTH))),
                               .target = EK_VALUE(ek_randint(0, CLASSES, EK_SHAPE(BATCH))),
                               .micro_batches = fit->micro_batches));
        ek_scope_end(&scope);
    }
    CHECK_OK(ek_memory_get_stats(ek_host(0), &stats));
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_module_free(criterion);
    return stats.peak;
}

/* Checks that a number is the same on all ranks. */
static void check_same(const char *what, int64_t number)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *all = ek_dist_sum(ek_scalar((double)number, EK_F64, ek_cpu()), NULL);
    double sum = 0;
    CHECK(all, "%s", ek_error_message());
    CHECK_OK(ek_item(all, &sum));
    CHECK(sum == (double)number * job_size, "%s is %d here, %g in all", what, (int)number, sum);
    ek_scope_end(&scope);
}

int main(void)
{
    ek_fit_result fit;
    CHECK_OK(ek_host_devices_configure("1"));
    CHECK_OK(ek_dist_init_process_group());
    job_rank = ek_dist_get_rank(NULL);
    job_size = ek_dist_get_world_size(NULL);
    CHECK_OK(find(&fit, BATCH));
    CHECK(fit.ranks == job_size, "%d", fit.ranks);
    uint64_t plain = train(&fit);
    CHECK(plain > 0, "no peak");
    /* The last rank has less memory: all save it. */
    uint64_t capacity = job_rank == job_size - 1 ? plain * 3 / 4 : plain * 2;
    CHECK_OK(ek_memory_set_capacity(ek_host(0), capacity));
    CHECK_OK(find(&fit, BATCH));
    check_same("shard", fit.wrapper.shard);
    check_same("offload", fit.wrapper.offload);
    check_same("micro_batches", fit.micro_batches);
    check_same("checkpointed", fit.checkpointed_count);
    CHECK(fit.wrapper.shard || fit.wrapper.offload || fit.micro_batches > 1 ||
              fit.checkpointed_count > 0,
          "nothing was saved");
    CHECK(train(&fit) <= capacity, "the capacity is %d", (int)capacity);

    CHECK_OK(ek_memory_set_capacity(ek_host(0), job_rank == 0 ? 4096 : 0));
    int rc = find(&fit, BATCH);
    CHECK(rc == EK_E_OUT_OF_MEMORY && strstr(ek_error_message(), "lacks"), "%d: %s", rc,
          ek_error_message());
    ek_error_clear();
    CHECK_OK(ek_memory_set_capacity(ek_host(0), 0));

    rc = find(&fit, BATCH + job_rank);
    CHECK(rc == EK_E_INVALID && strstr(ek_error_message(), "ranks have from 120"), "%d: %s", rc,
          ek_error_message());
    ek_error_clear();
    CHECK_OK(ek_shutdown());
    if (job_rank == 0)
        printf("%d ranks: all is well\n", job_size);
    return 0;
}

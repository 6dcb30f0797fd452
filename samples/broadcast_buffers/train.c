#include "broadcast_buffers/train.h"

#include <string.h>

const char *const policy_names[POLICIES + 2] = {"broadcast", "kept", "synchronised",
                                                "extra",     "all",  NULL};

const char *const policy_lines[POLICIES] = {
    "buffers of device 0 are sent at every forward (the default)",
    "each device keeps its own buffers (.broadcast_buffers = EK_OFF)",
    "statistics of the whole batch (ek_convert_sync_batch_norm)",
    "buffers are sent, and an extra forward that nobody uses runs before backward",
};

typedef struct training {
    buffer_view view;
    ek_module *model; /* data parallel over DEVICES devices */
    ek_optimizer *optimizer;
    ek_tensor *batch; /* first half zeros, second half ones */
    train_result *result;
} training;

static int begin(training *run, buffer_policy policy, const ek_device_list *devices, uint64_t seed)
{
    const ek_shape half = EK_SHAPE(7, 3, 5, 5);

    ek_manual_seed(seed);
    ek_module *network = observed_network(&run->view);
    if (network && policy == POLICY_SYNCHRONISED && !ek_convert_sync_batch_norm(network)) {
        ek_module_free(network);
        network = NULL;
    }
    run->model = ek_data_parallel(network, *devices,
                                  .broadcast_buffers = policy == POLICY_KEPT ? EK_OFF : EK_DEFAULT);
    run->optimizer = run->model ? ek_adam(run->model, .lr = 1e-3) : NULL;
    run->batch = ek_cat((ek_tensor *const[]){ek_zeros(half), ek_ones(half)}, 2, 0);
    if (!run->optimizer || !run->batch)
        return ek_error_status();
    return ek_patch_replication_callback(run->model);
}

/* The next look's moment, and its means where they are still to be read. */
static channel_means *look(training *run, const char *moment)
{
    run->result->moments[run->result->looks] = moment;
    return run->result->means[run->result->looks++];
}

/* The mean of the squared sums; looks inside the forward and after it. */
static ek_tensor *forward(training *run, const char *inside)
{
    ek_tensor *sums = ek_apply(run->model, run->batch); /* one per device */

    memcpy(look(run, inside), run->view.inside, sizeof(run->view.inside));
    if (!sums || buffer_view_read(&run->view, look(run, "after it")) < 0)
        return NULL;
    return ek_mean(ek_square(sums));
}

static int train(training *run, buffer_policy policy)
{
    ek_tensor *loss = forward(run, "inside the first forward");

    if (policy == POLICY_EXTRA)
        forward(run, "inside the extra forward");
    ek_zero_grad(run->optimizer);
    if (ek_backward(loss) < 0 || ek_step(run->optimizer) < 0 ||
        ek_item(loss, &run->result->loss) < 0 ||
        buffer_view_read(&run->view, look(run, "after backward and step")) < 0)
        return ek_error_status();
    forward(run, policy == POLICY_EXTRA ? "inside the next forward" : "inside the second forward");
    memcpy(run->result->batch_mean, run->view.batch_mean, sizeof(run->view.batch_mean));
    return ek_error_status();
}

int train_twice(buffer_policy policy, const ek_device_list *devices, uint64_t seed,
                train_result *result)
{
    ek_scope scope = ek_scope_begin();
    training run = {.result = result};

    *result = (train_result){0};
    int rc = begin(&run, policy, devices, seed);
    if (rc == 0)
        rc = train(&run, policy);
    ek_optimizer_free(run.optimizer);
    ek_module_free(run.model);
    buffer_view_clear(&run.view);
    ek_scope_end(&scope);
    return rc;
}

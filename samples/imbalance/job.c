#include "imbalance/job.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/devices.h"
#include "imbalance/network.h"

/* Fresh devices; of a single one a number means one that computes with all cores, as one GPU of
 * several would not, and a list means its first. */
static int open_devices(train_job *job, const run_settings *settings)
{
    bool single = job->mode == MODE_SINGLE;
    bool counted = devices_text_count(settings->device_text) > 0;

    job->devices =
        devices_open_text(settings->kind, single && counted ? "1" : settings->device_text);
    if (single && job->devices.count > 1)
        job->devices.count = 1;
    for (int i = 0; i < job->devices.count && settings->capacity; i++)
        ek_memory_set_capacity(job->devices.devices[i], settings->capacity);
    return ek_error_status();
}

/* The ways to train differ in these lines only. */
static void make_model(train_job *job, const run_settings *settings)
{
    ek_module *criterion = criterion_ce(.ignore_index = IGNORED);

    job->criterion = criterion;
    switch (job->mode) {
    case MODE_BALANCED:
        job->model = ek_data_parallel_model(job->network, job->devices);
        break;
    case MODE_AUTO:
        job->model =
            settings->plan
                ? ek_data_parallel_model(job->network, job->devices, .plan = settings->plan)
                : ek_data_parallel_model(job->network, job->devices, .split = EK_SPLIT_AUTO,
                                         .goal = settings->goal);
        break;
    case MODE_SHARDED:
        job->model =
            ek_data_parallel_model(job->network, job->devices, .shard = EK_SHARD_OPTIMIZER);
        break;
    default:
        job->model = ek_data_parallel(job->network, job->devices);
        return;
    }
    job->criterion = ek_data_parallel_criterion(criterion, job->devices);
}

int job_open(train_job *job, const run_settings *settings, train_mode mode)
{
    *job = (train_job){.mode = mode};
    int rc = open_devices(job, settings);
    if (rc < 0)
        return rc;

    ek_manual_seed((uint64_t)settings->seed);
    job->network = segmentation_network((int)settings->width);
    make_model(job, settings);
    if (settings->adam)
        job->optimizer = ek_adam(job->model, .lr = settings->lr);
    else
        job->optimizer = ek_sgd(job->model, .lr = settings->lr, .momentum = settings->momentum);
    return ek_error_status();
}

static bool is_balanced(train_mode mode)
{
    return mode != MODE_SINGLE && mode != MODE_CLASSIC;
}

int job_step(train_job *job, ek_tensor *images, ek_tensor *labels, double *loss)
{
    ek_scope step = ek_scope_begin();
    ek_value output = ek_forward(job->model, images);
    /* The balanced criterion scatters the target itself; elsewhere it meets the output on device 0.
     */
    ek_tensor *target =
        is_balanced(job->mode) ? labels : ek_to_device(labels, job->devices.devices[0]);
    ek_tensor *l = ek_loss(job->criterion, output, target);

    ek_zero_grad(job->optimizer);
    int rc = ek_backward(l);
    if (rc == 0)
        rc = ek_step(job->optimizer);
    if (rc == 0)
        rc = ek_item(l, loss);
    ek_scope_end(&step);
    return rc;
}

int job_close(train_job *job)
{
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->criterion);
    ek_module_free(job->model);
    *job = (train_job){0};
    return ek_shutdown();
}

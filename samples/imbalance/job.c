#include "imbalance/job.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/devices.h"
#include "imbalance/network.h"

/* `count` fresh devices. A single device computes with all cores, as one GPU of several would not.
 */
static int open_devices(train_job *job, const run_settings *settings, int count)
{
    job->devices = devices_open(settings->kind, count);
    for (int i = 0; i < job->devices.count && settings->capacity; i++)
        ek_memory_set_capacity(job->devices.devices[i], settings->capacity);
    return ek_error_status();
}

int job_open(train_job *job, const run_settings *settings, train_mode mode)
{
    *job = (train_job){.mode = mode};
    int rc = open_devices(job, settings, mode == MODE_SINGLE ? 1 : (int)settings->devices);
    if (rc < 0)
        return rc;

    ek_manual_seed((uint64_t)settings->seed);
    job->network = segmentation_network((int)settings->width);
    ek_module *criterion = criterion_ce(.ignore_index = IGNORED);
    if (mode == MODE_BALANCED) {
        job->model = ek_data_parallel_model(job->network, .device_ids = job->devices);
        job->criterion = ek_data_parallel_criterion(criterion, .device_ids = job->devices);
    } else {
        job->model = ek_data_parallel(job->network, .device_ids = job->devices);
        job->criterion = criterion;
    }
    if (settings->adam)
        job->optimizer = ek_adam(job->model, .lr = settings->lr > 0 ? settings->lr : EK_ZERO);
    else
        job->optimizer = ek_sgd(job->model, .lr = settings->lr > 0 ? settings->lr : EK_ZERO,
                                .momentum = settings->momentum);
    return ek_error_status();
}

int job_step(train_job *job, ek_tensor *images, ek_tensor *labels, double *loss)
{
    ek_scope step = ek_scope_begin();
    ek_value output = ek_forward(job->model, images);
    /* The balanced criterion scatters the target itself; the other ones meet the output on device
     * 0. */
    ek_tensor *target =
        job->mode == MODE_BALANCED ? labels : ek_to_device(labels, job->devices.devices[0]);
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

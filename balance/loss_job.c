/* loss_job.c: one criterion call on all devices. */
#include "balance/loss_job.h"

#include "comm/nest.h"
#include "core/tensor.h"
#include "core/worker.h"
#include "evenkeel/autograd.h"

typedef struct call {
    loss_job *job;
    ek_module *const *modules;
} call;

bool ek_loss_is_scalar(ek_value loss)
{
    return loss.kind == EK_VALUE_TENSOR && ek_tensor_ndim(loss.as.tensor) == 0;
}

/* What the mean divides by; without a slot for it, the samples stay. */
static int ask_denominator(ek_module *module, loss_job *job, int index)
{
    if (!module->type->denominator)
        return 0;
    bool enabled = ek_set_grad_enabled(false);
    ek_tensor *tensor = module->type->denominator(module, &job->args[index]);
    int rc = tensor ? 0 : ek_error_pending();
    if (rc >= 0 && ek_dev_is_host(ek_tensor_dev(tensor)))
        rc = ek_item(tensor, &job->denominators[index]);
    else if (rc >= 0)
        job->counted[index] = ek_keep(tensor);
    ek_set_grad_enabled(enabled);
    return rc;
}

static bool is_sum(ek_module *module)
{
    return module->type->is_sum && module->type->is_sum(module);
}

static int run_part(void *user, int index)
{
    const call *c = user;
    loss_job *job = c->job;
    ek_module *module = c->modules[index];
    ek_value loss = ek_module_forward(module, &job->args[index]);
    if (loss.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    if (job->weigh && ek_loss_is_scalar(loss) && !is_sum(module))
        EK_TRY(ask_denominator(module, job, index));
    job->losses[index] = ek_value_keep(loss); /* last: after an error nothing is kept */
    return 0;
}

int ek_loss_job_run(loss_job *job, ek_module *const *modules, ek_dev *const *devs)
{
    call c = {job, modules};
    job->is_sum = is_sum(modules[0]);
    for (int i = 0; i < job->parts; i++)
        job->losses[i] = ek_value_none();
    int rc = ek_gang_run(devs, job->parts, run_part, &c, "replica");
    for (int i = 0; i < job->parts; i++) {
        ek_value loss = job->losses[i];
        if (rc >= 0 && ek_nest_adopt(loss).kind == EK_VALUE_ERROR)
            rc = ek_error_pending();
        ek_value_release(loss);
        if (job->counted[i] && !(job->counted[i] = ek_scope_adopt(job->counted[i])))
            rc = ek_error_pending();
    }
    return rc;
}

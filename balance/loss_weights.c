/* loss_weights.c: weighing the devices' losses.
 *
 * A device without anything to average has a loss of 0 / 0: it is cut off, so that it adds zero and
 * gets no gradient. Where all have nothing, nothing is cut off and the loss is NaN, as on one
 * device. */
#include "balance/loss_weights.h"

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/comm.h"
#include "evenkeel/ops.h"

/* ---- denominators that the host knows ---- */

static ek_tensor *weighted_term(ek_tensor *loss, double factor)
{
    if (factor == 0)
        return ek_scalar(0, ek_tensor_dtype(loss), ek_tensor_device(loss));
    return factor == 1 ? loss : ek_mul_scalar(loss, factor);
}

static int terms_by_numbers(const loss_job *job, bool exact, ek_tensor **terms)
{
    double total = 0;
    bool any = false;
    for (int i = 0; i < job->parts; i++) {
        total += job->denominators[i];
        any = any || job->denominators[i] != 0;
    }
    for (int i = 0; i < job->parts; i++) {
        double factor = exact && any ? job->denominators[i] / total : 1.0 / job->parts;
        if (job->is_sum)
            factor = exact ? 1 : 1.0 / job->parts;
        terms[i] = weighted_term(job->losses[i].as.tensor, factor);
        if (!terms[i])
            return ek_error_pending();
    }
    return 0;
}

/* ---- denominators that lie on devices: nobody waits for them ---- */

/* share = denominator / total is 0 only where the device has nothing and another has something. */
static ek_tensor *shared_term(ek_tensor *loss, ek_tensor *share)
{
    share = ek_to_dtype(share, loss->dtype);
    ek_tensor *zero = ek_scalar(0, loss->dtype, ek_tensor_device(loss));
    return ek_where(ek_ne(share, zero), ek_mul(loss, share), zero);
}

/* In the caller's scope: counts[i] on device i, and their sum on the first. */
static ek_tensor *count_all(const loss_job *job, ek_tensor **counts)
{
    for (int i = 0; i < job->parts; i++) {
        ek_tensor *loss = job->losses[i].as.tensor;
        counts[i] = job->counted[i]
                        ? job->counted[i]
                        : ek_scalar(job->denominators[i], EK_F64, loss->storage->dev->id);
        counts[i] = ek_to_dtype(counts[i], EK_F64);
    }
    return ek_reduce(counts, job->parts);
}

/* In the caller's scope: shares[i] on device i. */
static int make_shares(const loss_job *job, ek_tensor **shares)
{
    ek_tensor *counts[EK_MAX_DEVICES];
    ek_tensor *total = count_all(job, counts);
    for (int i = 0; i < job->parts && total; i++) {
        shares[i] = ek_div(counts[i], ek_to_device(total, ek_tensor_device(counts[i])));
        if (!shares[i])
            return ek_error_pending();
    }
    return total ? 0 : ek_error_pending();
}

static int terms_by_tensors(const loss_job *job, ek_tensor **terms)
{
    ek_tensor *shares[EK_MAX_DEVICES];
    bool enabled = ek_set_grad_enabled(false);
    int rc = make_shares(job, shares);
    ek_set_grad_enabled(enabled);
    EK_TRY(rc);
    for (int i = 0; i < job->parts; i++) {
        terms[i] = shared_term(job->losses[i].as.tensor, shares[i]);
        if (!terms[i])
            return ek_error_pending();
    }
    return 0;
}

static bool any_counted(const loss_job *job)
{
    for (int i = 0; i < job->parts; i++)
        if (job->counted[i])
            return true;
    return false;
}

ek_tensor *ek_weigh_losses(const loss_job *job, bool exact)
{
    ek_tensor *terms[EK_MAX_DEVICES];
    int rc = exact && !job->is_sum && any_counted(job) ? terms_by_tensors(job, terms)
                                                       : terms_by_numbers(job, exact, terms);
    return rc < 0 ? NULL : ek_reduce(terms, job->parts);
}

int ek_total_weight(const loss_job *job, ek_loss_weight *weight)
{
    *weight = (ek_loss_weight){.is_sum = job->is_sum};
    for (int i = 0; i < job->parts; i++) {
        if (!ek_loss_is_scalar(job->losses[i]))
            return 0; /* whoever asked has no use for such a loss */
        weight->number += job->denominators[i];
    }
    if (job->is_sum || !any_counted(job))
        return 0;
    ek_tensor *counts[EK_MAX_DEVICES];
    bool enabled = ek_set_grad_enabled(false);
    weight->counted = ek_keep(count_all(job, counts));
    ek_set_grad_enabled(enabled);
    return weight->counted ? 0 : ek_error_pending();
}

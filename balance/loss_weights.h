/* loss_weights.h: the losses of all devices as one. */
#ifndef EK_BALANCE_LOSS_WEIGHTS_H
#define EK_BALANCE_LOSS_WEIGHTS_H

#include "balance/loss_job.h"
#include "balance/loss_weight.h"

/* The sum over devices of the job's scalar losses, each weighted: exact, by its denominator over
 * that of all; else by one over the number of devices. Sums are not weighted when exact. */
ek_tensor *ek_weigh_losses(const loss_job *job, bool exact);

/* What the losses of all devices together divide by. */
int ek_total_weight(const loss_job *job, ek_loss_weight *weight);

#endif

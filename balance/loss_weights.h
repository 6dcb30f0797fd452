/* loss_weights.h: the losses of all devices as one. */
#ifndef EK_BALANCE_LOSS_WEIGHTS_H
#define EK_BALANCE_LOSS_WEIGHTS_H

#include "balance/loss_job.h"

/* The sum over devices of the job's scalar losses, each weighted: exact, by its denominator over
 * that of all; else by one over the number of devices. Sums are not weighted when exact. */
ek_tensor *ek_weigh_losses(const loss_job *job, bool exact);

#endif

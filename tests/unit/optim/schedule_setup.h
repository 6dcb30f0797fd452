/* schedule_setup.h: an optimizer with two groups of different rates. */
#ifndef EK_TESTS_SCHEDULE_SETUP_H
#define EK_TESTS_SCHEDULE_SETUP_H

#include "evenkeel/optim.h"
#include "kit/optimizers.h"
#include "unit.h"

static inline ek_optimizer *with_two_groups(ek_optimizer *optimizer)
{
    ek_tensor *p = ek_zeros(EK_SHAPE(1), .requires_grad = true);
    ek_tensor *q = ek_zeros(EK_SHAPE(1), .requires_grad = true);
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    assert_ok(add_group_with(optimizer, &q, 1, "lr", 0.7));
    return optimizer;
}

static inline ek_optimizer *two_groups(void)
{
    return with_two_groups(ek_sgd(.lr = 0.3));
}

#endif

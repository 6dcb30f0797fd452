/* sharded.h: what tests of sharded optimizers share: devices, and owners by turns. */
#ifndef EK_TESTS_SHARDED_H
#define EK_TESTS_SHARDED_H

#include "autograd/shards.h"
#include "kit/devices.h"
#include "kit/same.h"

static void six_devices(void)
{
    assert_ok(test_devices_configure("6"));
}

FIXTURE(six_devices, shut_down)

/* The setting with the owners of turn i: three devices of one process, two ranks, or three ranks.
 * In turns 3 to 5, 9 to 11, ... a rank has two devices. */
static inline same_setting anyone(int i, same_setting s)
{
    s.ranks = i % 3 ? 1 + i % 3 : 0;
    s.devices = s.ranks ? i / 3 % 2 * 2 : 3;
    s.balanced = !s.ranks && i / 3 % 2;
    s.dtype = i % 2 ? EK_F32 : EK_F64;
    s.algorithm = i % 2 ? ADAM : MOMENTUM;
    s.cap = i / 2 % 2 ? 0.001 : 25;
    return s;
}

#endif

/* auto.c: plans from what forwards have shown. */
#include "plan/auto.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "plan/split.h"

struct ek_auto {
    const char *what;
    ek_plan_goal goal;
    ek_plans *plans;
};

ek_auto *ek_auto_new(const char *what, ek_plan_goal goal, ek_plans *plans)
{
    ek_auto *automatic = ek_calloc(1, sizeof *automatic);
    if (automatic)
        *automatic = (ek_auto){.what = what, .goal = goal, .plans = plans};
    return automatic;
}

void ek_auto_free(ek_auto *automatic)
{
    free(automatic);
}

/* Before anything is known: by capacity where all devices have one, by speed where time is the
 * goal, else even. */
static void guess(const ek_auto *automatic, ek_dev *const *devs, int64_t batch, int64_t *sizes)
{
    const int devices = automatic->plans->devices;
    double weights[EK_MAX_DEVICES];
    bool limited = automatic->goal == EK_GOAL_MEMORY;
    for (int i = 0; i < devices; i++) {
        ek_memory_stats stats;
        ek_memory_get(devs[i]->id, &stats);
        weights[i] = (double)stats.capacity;
        limited = limited && stats.capacity > 0;
    }
    for (int i = 0; i < devices && !limited; i++)
        weights[i] = automatic->goal == EK_GOAL_TIME ? devs[i]->speed : 1;
    ek_split_weights(batch, devices, weights, sizes);
}

int ek_auto_begin(ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                  int64_t *sizes)
{
    guess(automatic, devs, batch, sizes);
    if (automatic->plans->count == 0)
        return ek_plans_add(automatic->plans, forward, sizes);
    return 0;
}

int ek_auto_peek(ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                 int64_t *sizes)
{
    (void)forward;
    guess(automatic, devs, batch, sizes);
    return 0;
}

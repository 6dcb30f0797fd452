/* auto.h: EK_SPLIT_AUTO: makes plans from the memory and time of earlier forwards. */
#ifndef EK_PLAN_AUTO_H
#define EK_PLAN_AUTO_H

#include "core/device.h"
#include "plan/plan_text.h"

typedef struct ek_auto ek_auto;

/* Makes a planner that writes each new plan to *plans, which is borrowed. If *plans has an entry,
 * it continues from that plan. */
ek_auto *ek_auto_new(const char *what, ek_plan_goal goal, ek_plans *plans);
void ek_auto_free(ek_auto *automatic);

/* As ek_planner_begin, for the forward with this number. */
int ek_auto_begin(ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                  int64_t *sizes);
/* As ek_planner_peek. */
int ek_auto_peek(const ek_auto *automatic, ek_dev *const *devs, int64_t forward, int64_t batch,
                 int64_t *sizes);
/* As ek_planner_disturb. */
void ek_auto_disturb(ek_auto *automatic);
/* As ek_planner_hold. */
int ek_auto_hold(ek_auto *automatic, ek_dev *const *devs, int64_t batch, int64_t *sizes);

#endif

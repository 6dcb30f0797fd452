/* plan_text.h: which plan holds from which forward on, as a list and as text (evenkeel/plan.h). */
#ifndef EK_PLAN_PLAN_TEXT_H
#define EK_PLAN_PLAN_TEXT_H

#include "evenkeel/plan.h"

typedef struct ek_plans {
    int devices, count, capacity;
    int64_t *forwards; /* in ascending order; the first of a parsed text is 0 */
    int64_t *sizes;    /* [count][devices] */
} ek_plans;

/* Reads a text. EK_E_INVALID with the position in the text; *plans is empty then. */
int ek_plans_parse(ek_plans *plans, const char *text, int devices);
void ek_plans_free(ek_plans *plans);

/* Adds a plan that holds from `forward` on. No entry may begin later; one that begins at `forward`
 * is replaced. */
int ek_plans_add(ek_plans *plans, int64_t forward, const int64_t *sizes);

/* Returns the plan that holds at this forward; NULL if there is none yet. */
const int64_t *ek_plans_at(const ek_plans *plans, int64_t forward);

/* Writes at most `room` bytes with the NUL; returns the text's length, as snprintf. */
size_t ek_plans_write(const ek_plans *plans, char *text, size_t room);

#endif

/* plan_text.h: plans, each with the forward from which it holds, as a list and as text
 * (evenkeel/plan.h). */
#ifndef EK_PLAN_PLAN_TEXT_H
#define EK_PLAN_PLAN_TEXT_H

#include "evenkeel/plan.h"

typedef struct ek_plans {
    int devices, count, capacity;
    int64_t *forwards; /* ascending; the first of a parsed text is 0 */
    int64_t *sizes;    /* [count][devices] */
} ek_plans;

/* Reads a text. If the text is invalid, fails with EK_E_INVALID and names the position in the text.
 * After an error *plans is empty. */
int ek_plans_parse(ek_plans *plans, const char *text, int devices);
void ek_plans_free(ek_plans *plans);

/* Adds a plan that holds from `forward` on. No entry may begin later; an entry that begins at
 * `forward` is replaced. */
int ek_plans_add(ek_plans *plans, int64_t forward, const int64_t *sizes);

/* Returns the plan that holds at this forward; NULL if no plan holds yet. */
const int64_t *ek_plans_at(const ek_plans *plans, int64_t forward);

/* Writes at most `room` bytes with the NUL. Returns the length of the whole text, as snprintf
 * does. */
size_t ek_plans_write(const ek_plans *plans, char *text, size_t room);

#endif

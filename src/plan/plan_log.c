/* plan_log.c: plans as log lines. */
#include "plan/plan_log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/locale.h"
#include "core/thread.h"

/* Many devices may have more to say than a log line holds. */
typedef struct line {
    char text[900];
    size_t used;
} line;

static void put(line *l, const char *format, ...) EK_PRINTF(2, 3);

static void put(line *l, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof l->text - l->used - 1;
    size_t wanted = ek_format_list(l->text + l->used, room + 1, format, arguments);
    va_end(arguments);
    l->used += wanted < room ? wanted : room;
}

static void put_cost(line *l, const ek_proposal *proposal, int i, bool share)
{
    const ek_cost *cost =
        proposal->goal == EK_GOAL_TIME ? &proposal->time[i] : &proposal->memory[i];
    double amount = cost->fixed + cost->per_sample * (double)proposal->sizes[i];
    if (proposal->sizes[i] == 0)
        put(l, "nothing");
    else if (proposal->goal == EK_GOAL_TIME)
        put(l, "%.3g ms", amount * 1e-6);
    else if (share)
        put(l, "%.1f %%", 100 * amount / proposal->capacity[i]);
    else
        put(l, "%.1f MiB", amount * 0x1p-20);
}

void ek_plan_log(const char *what, int64_t forward, int64_t batch, ek_dev *const *devs, int devices,
                 const int64_t *sizes, const ek_proposal *proposal)
{
    line l = {.used = 0};
    put(&l, "%s: plan of forward %" PRId64 ", batch %" PRId64 ": ", what, forward, batch);
    for (int i = 0; i < devices; i++)
        put(&l, "%s%s %" PRId64, i ? ", " : "", devs[i]->name, sizes[i]);
    if (proposal) {
        bool share = proposal->goal == EK_GOAL_MEMORY && proposal->capacity[0] > 1;
        put(&l, " (levels %s: ", proposal->goal == EK_GOAL_TIME ? "time" : "memory");
        for (int i = 0; i < devices; i++) {
            put(&l, "%s", i ? ", " : "");
            put_cost(&l, proposal, i, share);
        }
        put(&l, "%s)", share ? " of capacity" : "");
    } else {
        put(&l, " (to measure)");
    }
    ek_log_line(proposal ? EK_LOG_INFO : EK_LOG_DEBUG, "%s", l.text);
}

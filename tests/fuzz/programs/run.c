/* run.c: see run.h. */
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "faults.h"
#include "record.h"
#include "steps.h"

/* ---- work that may fail ---- */

/* Something that leaves all as it was where it fails. */
typedef int work(runner *r, const step *s, int number);

static bool is_known_limit(const char *sentence)
{
    return strstr(sentence, "xpected more than 1 value") || strstr(sentence, "not finite") ||
           strstr(sentence, "there is only one") || strstr(sentence, "cannot be scaled");
}

/* One device can't do it either, or it is an error out of nothing. */
static int report_error(runner *r, const char *what, int number)
{
    ek_error_record e;
    ek_error_take(&e);
    if (is_known_limit(e.message))
        return found(r->found, FOUND_NO_PROGRAM, "%s", e.message);
    return found(r->found, FOUND_ERROR, "%s%s, step %d%s: %s: %s",
                 r->options->one_device ? "on one device, " : "", what, number,
                 r->failed ? " (after a failure)" : "", ek_status_name(e.status),
                 e.message[0] ? e.message : "no sentence");
}

static int check_failure(runner *r, const step *s, const char *before)
{
    ek_error_record e;
    char after[65];
    ek_error_take(&e);
    if (ek_module_sha256(r->t.model, after) < 0)
        return report_error(r, "a digest after a failure", r->number);
    if (is_known_limit(e.message))
        return found(r->found, FOUND_NO_PROGRAM, "%s", e.message);
    if (e.status >= 0 || !e.message[0])
        return found(r->found, FOUND_SENTENCE, "step %d failed without a sentence (%s)", r->number,
                     fault_word(s->fault));
    if (!fault_explains(s->fault, e.status))
        return found(r->found, FOUND_SENTENCE, "step %d: the fault '%s' became %s: %s", r->number,
                     fault_word(s->fault), ek_status_name(e.status), e.message);
    if (strcmp(before, after) != 0)
        return found(r->found, FOUND_STATE, "step %d failed, but parameters have changed: %s",
                     r->number, e.message);
    return 0;
}

/* With the step's fault. 1: it went well all the same; 0: it failed as it should. */
static int try_with_fault(runner *r, work *f, const step *s)
{
    char before[65];
    const way *w = r->t.w;
    if (ek_module_sha256(r->t.model, before) < 0)
        return report_error(r, "a digest", r->number);
    r->counts->faults++;
    r->failed = true;
    fault_arm(s->fault, ek_host(w->on[s->at % w->count]), s->at);
    int rc = f(r, s, r->number);
    fault_disarm();
    if (rc < 0) {
        r->counts->faults_hit++;
        return check_failure(r, s, before);
    }
    if (ek_error_status())
        return found(r->found, FOUND_PENDING, "step %d went well, but pending is: %s", r->number,
                     ek_error_message());
    return 1;
}

static int attempt(runner *r, const char *what, work *f, const step *s, int during)
{
    bool faulty = r->options->faults && s->fault != FAULT_NONE && s->during == during;
    int done = faulty ? try_with_fault(r, f, s) : 0;
    if (done != 0)
        return done < 0 ? -1 : 0;
    fault_count();
    int rc = f(r, s, r->number);
    fault_counted();
    if (rc < 0)
        return report_error(r, what, r->number);
    if (ek_error_status())
        return found(r->found, FOUND_PENDING, "%s, step %d: pending is: %s", what, r->number,
                     ek_error_message());
    return 0;
}

/* ---- steps ---- */

/* If a part of the batch gives other numbers than the batch, one device cuts it too. */
static int micro_batches(const runner *r)
{
    const way *w = &r->p->ways[r->way];
    return r->options->one_device && !program_sees_batch(r->p) ? 0 : w->micro;
}

static int work_step(runner *r, const step *s, int number)
{
    int micro = micro_batches(r);
    r->cut = r->cut || (r->p->ways[r->way].micro > 1 && !program_sees_batch(r->p));
    return step_do(&r->t, s, number, micro, &r->loss);
}

/* Buffers equal those of one device only if no step failed, no batch was cut, and replicas kept
 * none of their own. */
static bool buffers_differ(const runner *r)
{
    return r->failed || r->cut || r->p->ways[0].own || r->p->ways[1].own;
}

static int record_step(runner *r)
{
    tape_begin(r->numbers, TAPE_LOSS, r->number, isnan(r->loss) && r->failed);
    tape_add(r->numbers, &r->loss, 1);
    if (record_gradients(r->numbers, r->number, r->t.model) < 0 ||
        record_parameters(r->numbers, r->number, r->t.model) < 0 ||
        record_buffers(r->numbers, r->number, r->t.model, buffers_differ(r)) < 0)
        return report_error(r, "reading numbers", r->number);
    return 0;
}

static int after_step(runner *r)
{
    if (r->t.schedule && ek_schedule_step(r->t.schedule) < 0)
        return report_error(r, "the schedule", r->number);
    int rc = r->t.report ? ek_report_step(r->t.report) : 0;
    if (rc == EK_E_NO_MEMORY && r->failed) /* of a call that failed its times are incomplete */
        ek_error_clear();
    else if (rc < 0)
        return report_error(r, "the report", r->number);
    return 0;
}

static int evaluation(runner *r, const step *s, int number)
{
    return event_evaluate(r, s, number);
}

static int do_event(runner *r, const step *s)
{
    static const struct {
        const char *name;
        work *f;
    } events[EVENT_COUNT] = {[EVENT_EVALUATE] = {"evaluation", evaluation},
                             [EVENT_CHECKPOINT] = {"a checkpoint", event_checkpoint},
                             [EVENT_REPORT] = {"a report", event_report},
                             [EVENT_FORWARD] = {"a forward", event_forward},
                             [EVENT_FIND_BATCH] = {"find_batch", event_find_batch},
                             [EVENT_RATE] = {"a rate", event_rate},
                             [EVENT_HOLD] = {"a forward to hold", event_hold},
                             [EVENT_TOUCH] = {"a write", event_touch}};
    if (s->event == EVENT_NONE)
        return 0;
    if (attempt(r, events[s->event].name, events[s->event].f, s, DURING_EVENT) < 0)
        return -1;
    if (s->event == EVENT_EVALUATE) {
        tape_begin(r->numbers, TAPE_OUTPUTS, r->number, buffers_differ(r));
        tape_add(r->numbers, &r->output, 1);
    }
    return 0;
}

static int do_step(runner *r, const step *s)
{
    r->loss = NAN;
    if (attempt(r, step_word(s->how), work_step, s, DURING_STEP) < 0)
        return -1;
    r->counts->steps++;
    if (record_step(r) < 0 || after_step(r) < 0)
        return -1;
    return do_event(r, s);
}

/* ---- all of it ---- */

static int open_with_fault(runner *r, const way *w)
{
    ek_error_record e;
    r->counts->faults++;
    fault_arm(FAULT_ALLOCATION, ek_host(0), r->p->build_fault);
    int rc = trainer_open(&r->t, r->p, w);
    fault_disarm();
    ek_error_take(&e);
    if (rc >= 0) {
        trainer_close(&r->t, r->p->order);
        return e.status ? found(r->found, FOUND_PENDING, "built, but pending is: %s", e.message)
                        : 0;
    }
    r->counts->faults_hit++;
    if (!fault_explains(FAULT_ALLOCATION, e.status) || !e.message[0])
        return found(r->found, FOUND_SENTENCE, "building without memory became %s: %s",
                     ek_status_name(e.status), e.message);
    return 0;
}

static int run(runner *r)
{
    const way *w = r->options->one_device ? &one_device : &r->p->ways[0];
    if (r->options->faults && r->p->build_fault && open_with_fault(r, w) < 0)
        return -1;
    if (trainer_open(&r->t, r->p, w) < 0)
        return report_error(r, "building", 0);
    if (r->options->perturbation > 0 && event_perturb(r) < 0)
        return report_error(r, "a perturbation", 0);
    for (int i = 0; i < r->p->step_count; i++) {
        r->number = i;
        if (do_step(r, &r->p->steps[i]) < 0)
            return -1;
    }
    return 0;
}

int program_run(const program *p, const run_options *options, tape *numbers, finding *f,
                run_counts *counts)
{
    runner *r = calloc(1, sizeof *r);
    if (!r)
        return found(f, FOUND_ERROR, "the fuzzer is out of memory");
    r->p = p;
    r->options = options;
    r->numbers = numbers;
    r->found = f;
    r->counts = counts;
    int rc = run(r);
    trainer_close(&r->t, p->order);
    ek_error_clear();
    free(r);
    return rc;
}

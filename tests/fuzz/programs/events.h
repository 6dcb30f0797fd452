/* events.h: what happens between the steps of a run. */
#ifndef EK_TESTS_FUZZ_EVENTS_H
#define EK_TESTS_FUZZ_EVENTS_H

#include "build.h"
#include "run.h"

/* A run under way. */
typedef struct runner {
    const program *p;
    const run_options *options;
    tape *numbers;
    finding *found;
    run_counts *counts;
    trainer t;
    int way;    /* which of the program's, also while one device stands in for it */
    int number; /* of the step */
    double loss, output;
    bool failed, cut; /* so far */
} runner;

/* Each returns 0 or a negative status. One that fails leaves parameters as they were and can be
 * done again. */

/* The sum of squares of the outputs of the step's batch in evaluation mode, into r->output. */
int event_evaluate(runner *r, const step *s, int number);
/* Saves all, and goes on with what was loaded into a trainer of the other way. */
int event_checkpoint(runner *r, const step *s, int number);
/* Starts a report, or ends one. */
int event_report(runner *r, const step *s, int number);
/* A forward whose graph is thrown away, every second one without a graph. */
int event_forward(runner *r, const step *s, int number);
/* One that is kept until the end. */
int event_hold(runner *r, const step *s, int number);
int event_find_batch(runner *r, const step *s, int number);
int event_rate(runner *r, const step *s, int number);
/* Parameters change by other means than the optimizer's. */
int event_touch(runner *r, const step *s, int number);

/* Multiplies parameters by up to 1 + the run's perturbation. */
int event_perturb(runner *r);

#endif

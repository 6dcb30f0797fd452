/* run.h: what the samples' longer runs share: ways to train, steps with their progress and Ctrl-C,
 * series of numbers, checkpoints. */
#ifndef SAMPLES_RUN_H
#define SAMPLES_RUN_H

#include <evenkeel/evenkeel.h>
#include <signal.h>

#include "args.h"

double seconds_now(void);

/* ---- pictures ---- */

/* Takes over `pictures` and returns them if they are of these sizes, else NULL with EK_E_SHAPE;
 * `directory` is for the sentence. */
ek_dataset *pictures_checked(ek_dataset *pictures, const char *directory, ek_shape wanted);
/* 0, ..., count - 1 in an order of its own in each pass, one permutation of the generator's a pass.
 */
ek_sampler *shuffled_sampler(int64_t count, ek_generator *generator);
/* The next batch of a loader without an end: a new pass begins behind the last batch of one. */
int loader_next(ek_loader *loader, ek_batch *batch);
/* Complains that --data must hold Fashion-MNIST's files, and says where they come from. */
void pictures_explain(const char *directory);

/* ---- ways to train ---- */

typedef enum train_mode {
    MODE_SINGLE,
    MODE_CLASSIC,  /* outputs and loss on device 0 */
    MODE_BALANCED, /* the loss where the outputs are */
    MODE_AUTO,     /* balanced, each device's share of the batch by measurement */
    MODE_SHARDED,  /* balanced, gradients and the optimizer's state divided */
    MODES
} train_mode;
extern const char *const mode_names[MODES + 1]; /* NULL ends them */

/* A network with all that trains it. */
typedef struct train_job {
    train_mode mode;
    ek_device_list devices;
    ek_module *network; /* owned by the model */
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_schedule *schedule; /* NULL: the rate stays */
} train_job;

/* Makes job->model and job->criterion of a network and a criterion, which they own. MODE_AUTO
 * follows the plan, or measures for the goal (an ek_plan_goal) if that is NULL. */
void job_wrap(train_job *job, ek_module *network, ek_module *criterion, const char *plan, int goal);
/* One training step; for `loss` see ek_train_step. 0 or a negative status. */
int job_step(train_job *job, ek_value input, ek_value target, double *loss);
void job_free(train_job *job);

/* ---- steps, with one line of progress that is redrawn on a terminal, a few plain ones elsewhere
 * ---- */

typedef struct progress_bar {
    const char *name;
    int64_t first;           /* steps that an earlier run has done */
    int64_t total, per_step; /* steps; samples per step */
    bool terminal;
    double start, redrawn; /* when, in seconds */
} progress_bar;

/* `done` steps are finished; `note` is short text behind the numbers. */
void progress_show(progress_bar *progress, int64_t done, const char *note);
/* Removes the line from a terminal, so that a message can follow. */
void progress_end(const progress_bar *progress);

typedef struct run_steps_options {
    const char *name;
    const int64_t *step; /* finished steps */
    int64_t last, per_step;
    int (*take)(void *user);                     /* a step, which it counts */
    void (*show)(progress_bar *bar, void *user); /* progress after it */
    int (*write)(void *user);                    /* files; NULL: none */
    int64_t every[2];                            /* > 0: at multiples of these */
    void *user;
} run_steps_options;
/* Steps until the last is finished, or until *stopped after the step at hand. What was not written
 * by then is written at the end. */
int run_steps(const run_steps_options *options, const volatile sig_atomic_t *stopped);

/* ---- Ctrl-C and kill ---- */

/* From now on the first SIGINT or SIGTERM writes its number to what this points to, for the loop to
 * look at after each step; the second ends the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);
/* The exit status of a run that was stopped, as shells say it: 130 for SIGINT, 143 for SIGTERM. */
int interrupt_status(void);
/* Prints the same command with --resume FILE, for a shell; with NULL, that nothing was kept.
 * Returns interrupt_status(). */
int interrupt_explain(int64_t step, const char *file, int argc, char **argv);

/* ---- series: a number per step, or per whatever else ---- */

typedef struct series {
    const char *name;
    double *values; /* owned */
    int64_t count;
} series;
int series_add(series *to, double value); /* 0 or EK_E_NO_MEMORY */
void series_free(series *list, int count);
/* Of values[0..count-1], which stay as they are; 0 if there are none. */
double median_of(const double *values, int64_t count);

/* ---- checkpoints: all that a run needs to go on as if it had not been stopped ----
 *
 * A program lists its state once, by the functions below; the list is put into an archive
 * (evenkeel/archive.h), or loaded from one. The settings that decide the run's numbers are in the
 * archive too, as texts "<prefix><option>". */

typedef struct checkpoint {
    ek_archive *archive;
    const char *path; /* of what is read; NULL: it is written */
} checkpoint;

typedef struct checkpoint_kind {
    const char *format, *prefix;
    const arg_spec *args;
    const char *deciding; /* names of options, with blanks between them: "seed lr" */
    void (*list)(const checkpoint *file, void *user);
} checkpoint_kind;

/* Writes the file whole or not at all. */
int checkpoint_save(const checkpoint_kind *kind, const char *path, void *user);
/* NULL if it can't be read, is of another program (EK_E_FORMAT), or is of a run with other settings
 * (EK_E_INVALID names the first). */
ek_archive *checkpoint_open(const checkpoint_kind *kind, const char *path);
int checkpoint_load(const checkpoint_kind *kind, ek_archive *from, const char *path, void *user);

/* *step, which is to be in [0, last]. */
int checkpoint_step(const checkpoint *file, int64_t *step, int64_t last);
void checkpoint_module(const checkpoint *file, const char *name, ek_module *module);
void checkpoint_optimizer(const checkpoint *file, const char *name, ek_optimizer *optimizer,
                          ek_module *module);
void checkpoint_schedule(const checkpoint *file, const char *name, ek_schedule *schedule);
void checkpoint_loader(const checkpoint *file, const char *name, ek_loader *loader);
/* All generators of the library, or one of the caller's. */
void checkpoint_random(const checkpoint *file, const char *name, ek_generator *generator);
void checkpoint_numbers(const checkpoint *file, const char *name, double *values, ek_shape shape);
/* Replaces what is in the series. */
void checkpoint_series(const checkpoint *file, const char *name, series *numbers);

#endif

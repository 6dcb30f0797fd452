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
    MODE_SHARDED,  /* balanced, gradients and the optimizer's state sharded */
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

/* ---- steps, with a line of progress: redrawn on a terminal, a few plain ones elsewhere ---- */

typedef struct run_plan {
    const char *name;
    const int64_t *step; /* finished steps */
    int64_t last, batch; /* at which the run ends; samples per step */
    int64_t every[2];    /* > 0: `write` at multiples of these */
    /* A step, which it counts. */
    int (*take)(void *user);
    /* What to say after it: behind the numbers, or if it returns true, as a line that stays. */
    bool (*note)(char note[128], void *user);
    int (*write)(void *user); /* files; NULL: none */
    void *user;
} run_plan;
/* Steps until the last is finished, or until *stopped after the step at hand. What was not written
 * by then is written at the end. */
int run_steps(const run_plan *plan, const volatile sig_atomic_t *stopped);

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

/* "DIRECTORY/NAME" in `path`, which it returns; NULL without a directory. */
char *run_path(const char *directory, const char *name, char path[4096]);

/* ---- checkpoints: all that a run needs to go on as if it had not been stopped ----
 *
 * A program lists its state once, by the functions below; the list is put into an archive
 * (evenkeel/archive.h), or loaded from one. The settings that decide the run's numbers are in the
 * archive too, as texts "settings.<option>". */

typedef struct checkpoint {
    ek_archive *archive;
    const char *path; /* the file that is read; NULL: a file is written */
} checkpoint;

typedef struct checkpoint_kind {
    const char *format;
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
/* checkpoint_part(file, module, "critic", g->critic): ek_archive_put_module, or load. In the same
 * way: optimizer, schedule, random, generator. */
#define checkpoint_part(file, kind, ...)                                 \
    ((file)->path ? ek_archive_load_##kind((file)->archive, __VA_ARGS__) \
                  : ek_archive_put_##kind((file)->archive, __VA_ARGS__))
void checkpoint_loader(const checkpoint *file, const char *name, ek_loader *loader);
void checkpoint_numbers(const checkpoint *file, const char *name, double *values, ek_shape shape);
/* Replaces what is in the series. */
void checkpoint_series(const checkpoint *file, const char *name, series *numbers);

#endif

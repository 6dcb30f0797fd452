/* run.h: what the samples' longer runs share: ways to train, steps with their progress and Ctrl-C,
 * checkpoints, and a whole program made of these. */
#ifndef SAMPLES_RUN_H
#define SAMPLES_RUN_H

#include <signal.h>

#include "results.h"
#include "world.h"

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
/* Calls `take` for each batch of one pass, in a scope of its own, with the network in evaluation
 * mode and without gradients. Afterwards the network is in training mode. 0 or a negative status.
 */
int loader_evaluate(ek_loader *loader, ek_module *network,
                    int (*take)(ek_module *network, const ek_batch *batch, void *user), void *user);
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
    ek_module *network;  /* owned by the model; NULL without one */
    ek_module *parallel; /* goes over this process's devices: the model, or owned by it */
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_schedule *schedule; /* NULL: the rate stays */
    double max_norm;       /* > 0: gradients are clipped to it */
    bool bf16;             /* forward and loss under autocast */
} train_job;

/* devices_check for a mode; a plan (NULL: none) is for MODE_AUTO, and one for the whole run. */
int job_check_devices(train_mode mode, int kind, const char *device_text, const char *plan);
/* Makes job->model and job->criterion of a network and a criterion, which they own. MODE_AUTO
 * follows the plan, or measures for the goal (an ek_plan_goal) if that is NULL. */
void job_wrap(train_job *job, ek_module *network, ek_module *criterion, const char *plan, int goal);
/* A criterion for what that model gives, which owns `criterion`: for a loss of several terms, each
 * with a denominator of its own. */
ek_module *job_criterion(const train_job *job, ek_module *criterion);
/* This rank's rows of a batch of all ranks, a tensor or a list; a batch as it is, cut for devices
 * or not, if there is one rank. */
ek_value job_rows(ek_value batch);
/* One training step on the batch of all ranks; for `loss` see ek_train_step. If it is asked for, it
 * has to be finite. 0 or a negative status. */
int job_step(train_job *job, ek_value input, ek_value target, double *loss);
/* Writes each device's share of a batch to `plan`, "40,30,30", as a job of MODE_AUTO without a plan
 * measures it, and frees that job. A run that measures before its first step cuts all batches
 * alike, so that one that is stopped anywhere and gone on with is the same to the bit. `step` takes
 * one on a batch of this size. 0 or a negative status. */
int job_measure_plan(train_job *trial, int64_t batch, ek_batch_function *step, void *user,
                     char plan[1024]);
/* The shares that a run of the trial's mode begins with, "" in other modes than MODE_AUTO: those
 * that are `given` (NULL: none), those of the checkpoint `from` (NULL: none) if it is for so many
 * devices, or measured ones. For these `make` fills `trial`, which has mode and devices and whose
 * memory is else zero, with all that a step needs; see job_measure_plan, which frees it. Both
 * functions get `user`. 0 or a negative status. */
int job_find_plan(train_job *trial, const char *given, const ek_archive *from, int64_t batch,
                  int (*make)(void *user), ek_batch_function *step, void *user, char plan[1024]);
/* A loss that is not finite ends a run: EK_E_INVALID, else 0. */
int loss_check(double loss);
void job_free(train_job *job);

/* ---- Ctrl-C and kill ---- */

/* From now on the first SIGINT or SIGTERM writes its number to what this points to, for the loop to
 * look at after each step; the second ends the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);
/* What a signal has written on any rank: 0 or its number, on all ranks, which all call this. Or a
 * negative status. */
int interrupt_agree(const volatile sig_atomic_t *stopped);
/* The exit status of a run that was stopped, as shells say it: 130 for SIGINT, 143 for SIGTERM. */
int interrupt_status(void);

/* ---- checkpoints: all that a run needs to go on as if it had not been stopped ----
 *
 * A program lists its state once, by the functions below; the list is put into an archive
 * (evenkeel/archive.h), or loaded from one. The settings that decide the run's numbers are in the
 * archive too, as texts "settings.<option>". */

typedef struct checkpoint {
    ek_archive *archive;
    const char *path; /* the file that is read; NULL: a file is written */
} checkpoint;

/* checkpoint_part(file, module, "critic", g->critic): ek_archive_put_module, or load. In the same
 * way: optimizer, schedule, random, generator. */
#define checkpoint_part(file, kind, ...)                                 \
    ((file)->path ? ek_archive_load_##kind((file)->archive, __VA_ARGS__) \
                  : ek_archive_put_##kind((file)->archive, __VA_ARGS__))
void checkpoint_loader(const checkpoint *file, const char *name, ek_loader *loader);
void checkpoint_numbers(const checkpoint *file, const char *name, double *values, ek_shape shape);
/* Replaces what is in the series. */
void checkpoint_series(const checkpoint *file, const char *name, series *numbers);
/* "records.<name>" for each of the series. */
void checkpoint_records(const checkpoint *file, series *list, int count);
/* A sum of the data that a run is trained on. EK_E_INVALID if that of the file is another one:
 * `what` says whose, "text" and the path of --data. */
void checkpoint_digest(const checkpoint *file, const char *name, const void *data, size_t nbytes,
                       const char *what, const char *path);
/* A plan to go on from: NULL if the archive (NULL: none) has none, or one for another number of
 * devices. */
const char *checkpoint_plan(const ek_archive *archive, const char *name, int devices);

/* ---- runs ---- */

/* A run under way: the first member of a program's own struct. */
typedef struct run_state {
    const char *name;   /* for the line of progress */
    int64_t step, last; /* finished steps; at which the run ends */
    int64_t batch;      /* samples per step */
    int64_t every[2];   /* > 0: files are written at multiples of these */
    bool unread;        /* the files of --data could not be read */
} run_state;

/* Files of the options --out (a directory), --json and --resume; NULL: not given. */
typedef struct run_files {
    const char *out, *json, *resume;
} run_files;

/* A program that trains. Functions return 0 or a negative status. */
typedef struct run_kind {
    size_t size; /* of the program's own struct */
    const char *about;
    const arg_spec *args;
    const run_files *files;
    const char *format;   /* of checkpoints */
    const char *deciding; /* options that a checkpoint holds, with blanks between: "seed lr" */
    /* Checks and completes what args_read took; negative after a complaint. */
    int (*check)(void);
    /* Makes the run, whose memory is zero; `from` is the checkpoint to go on from, or NULL. */
    int (*open)(run_state *run, const ek_archive *from);
    void (*explain)(void);         /* says which files --data must hold */
    void (*close)(run_state *run); /* called in any case, also if `open` failed or was not called */
    int (*take)(run_state *run);   /* a step, which it counts */
    /* What to say after it: behind the numbers, or if it returns true, as a line that stays. */
    bool (*note)(const run_state *run, char note[128]);
    int (*draw)(run_state *run);   /* writes files beside the checkpoint; NULL: none */
    int (*finish)(run_state *run); /* called when the last step is finished; NULL: nothing */
    /* What a checkpoint holds, `step` excepted; by the functions above. */
    void (*list)(run_state *run, const checkpoint *file);
    /* Called on all ranks: */
    int (*results)(const run_state *run, json_writer *json); /* writes the members of --json */
    void (*print)(const run_state *run); /* says what a finished run has come to */
} run_kind;

/* Steps until the last is finished, or until *stopped after the step at hand. What was not written
 * by then is written at the end. */
int run_steps(const run_kind *kind, run_state *run, const volatile sig_atomic_t *stopped);
/* Opens the run, from the checkpoint of --resume if there is one. Close it anyway. */
int run_open(const run_kind *kind, run_state *run);
/* Writes the file whole or not at all. */
int run_save(const run_kind *kind, run_state *run, const char *path);
/* "DIRECTORY/NAME" in `path`, which it returns; NULL without a directory. */
char *run_path(const char *directory, const char *name, char path[4096]);
/* The program: from the command line to the exit status. */
int run_main(const run_kind *kind, run_state *run, int argc, char **argv);

#endif

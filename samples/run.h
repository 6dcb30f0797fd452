/* run.h: what the samples' longer runs share: Ctrl-C and a whole program of steps with their
 * progress (run.c), and checkpoints (checkpoint.c). */
#ifndef SAMPLES_RUN_H
#define SAMPLES_RUN_H

#include <signal.h>

#include "job.h"

double seconds_now(void);

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
/* The model, its optimizer and schedule, and the plan that it follows. */
void checkpoint_job(const checkpoint *file, const train_job *job);
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

/* Rows of a table of options (args.h), for `options` with members files and every: the help of
 * --out, the standard of --every (NULL: none) and its help. */
/* clang-format off */
#define run_args(options, out_help, standard, every_help) \
    arg_text("out", &(options).files.out, NULL, "DIR", out_help), \
    arg_int("every", &(options).every, standard, 1, 1 << 20, every_help), \
    arg_text("resume", &(options).files.resume, NULL, "FILE", "go on from this checkpoint"), \
    arg_text("json", &(options).files.json, NULL, "FILE", "write the results there")
/* clang-format on */

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
    void (*explain)(void);         /* says which files --data must hold; NULL: Fashion-MNIST's */
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
    const char *written; /* names the files of --out in the last line; NULL: no such line */
} run_kind;

/* Steps until the last is finished, or until *stopped after the step at hand. What was not written
 * by then is written at the end. */
int run_steps(const run_kind *kind, run_state *run, const volatile sig_atomic_t *stopped);
/* Opens the run, from the checkpoint of --resume if there is one. Close it anyway. */
int run_open(const run_kind *kind, run_state *run);
/* Writes the file whole or not at all. */
int run_save(const run_kind *kind, run_state *run, const char *path);
/* At which step a run of `whole` steps ends: before, if `stop` isn't 0. */
int64_t run_last(int64_t whole, int64_t stop);
/* "DIRECTORY/NAME" in `path`, which it returns; NULL without a directory. */
char *run_path(const char *directory, const char *name, char path[4096]);
/* "DIRECTORY/NAME-000012.png" after step 12. */
char *run_picture_path(const char *directory, const char *name, const run_state *run,
                       char path[4096]);
/* The program: from the command line to the exit status. */
int run_main(const run_kind *kind, run_state *run, int argc, char **argv);

#endif

/* run.h: a training program from its command line to its exit status, around a loop of its own:
 *
 *     static run r = {.about = about, .args = option_table, ...};
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (!run_begin(&r, argc, argv, check))
 *             return run_end(&r);
 *         ... data, network, optimizer ...
 *         run_keep(&r, "", (ek_training_state){.model = network, .optimizer = optimizer});
 *         while (run_next(&r)) {
 *             ... a step ...
 *             run_note(&r, "loss %.4f", loss);
 *             if (run_draws(&r))
 *                 ... pictures ...
 *         }
 *         if (run_judges(&r))
 *             ... a last test ...
 *         json_writer *json = run_json(&r, &job);
 *         if (json)
 *             ... results ...
 *         if (run_prints(&r))
 *             ... results ...
 *         ... free ...
 *         return run_end(&r);
 *     }
 *
 * Between two steps run_next looks for errors, writes the checkpoint, draws the line of progress
 * and looks for Ctrl-C. So nothing in the loop has to: the library's first error stays pending, and
 * what is called after it does nothing. */
#ifndef SAMPLES_RUN_H
#define SAMPLES_RUN_H

#include <signal.h>

#include "job.h"

double seconds_now(void);

/* ---- Ctrl-C and kill ---- */

/* From now on the first SIGINT or SIGTERM writes its number to what this points to; the second ends
 * the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);
/* What a signal has written on any rank: 0 or its number, on all ranks, which all call this. Or a
 * negative status. */
int interrupt_agree(const volatile sig_atomic_t *stopped);
/* The exit status of a run that was stopped, as shells say it: 130 for SIGINT, 143 for SIGTERM. */
int interrupt_status(void);

/* ---- runs ---- */

/* Rows of options (args.h) that all runs have: the help of --out, the standard of --every (NULL:
 * none) and its help. */
#define RUN_OPTIONS(ROW, out_help, standard, every_help)          \
    ROW(text, out, NULL, "DIR", out_help)                         \
    ROW(int, every, standard, 1, 1 << 20, every_help)             \
    ROW(text, resume, NULL, "FILE", "go on from this checkpoint") \
    ROW(text, json, NULL, "FILE", "write the results there")

enum { RUN_PARTS = 8, RUN_SERIES = 8 };

/* Something that a checkpoint holds under a name: one of these. */
typedef struct run_part {
    const char *name;
    ek_training_state state;
    ek_module *planned; /* the data-parallel wrapper whose plan is kept */
    double *numbers;
    int count;       /* how many numbers */
    char digest[64]; /* the digest that data outside of the file must have */
    const char *what, *path;
} run_part;

typedef struct run {
    /* Given at once. A loop alone, without run_begin needs none of these. */
    const char *about;
    arg_spec *args;
    const char *format;   /* of checkpoints */
    const char *deciding; /* options that a checkpoint holds, with blanks between: "seed lr" */
    const char *written;  /* names the files of --out in the last line; NULL: no such line */
    /* Given before the first step. */
    const char *name;                     /* for the line of progress */
    int64_t last;                         /* the step at which the run ends */
    int64_t batch;                        /* samples per step */
    int64_t epoch, every;                 /* > 0: files are written at multiples of these */
    const volatile sig_atomic_t *stopped; /* set by a signal; NULL: by none */
    /* What programs read. */
    int64_t step; /* the step at hand, from 1 on; outside of the loop the last finished one */
    series series[RUN_SERIES];
    ek_archive *from; /* the checkpoint of a resumed run, until its first step; else NULL */
    /* The run's own. */
    const char *out, *resume, *json_path; /* the options --out, --resume, --json; NULL: not given */
    int argc, status;
    char **argv, hint[512], note[128];
    run_part parts[RUN_PARTS];
    int part_count, series_count;
    bool begun, failed, finished; /* finished: with the last step, and printed */
    bool agreed;                  /* `signal` is of the step at hand */
    bool said;                    /* a line that stays was printed in this step */
    int signal;                   /* the signal that ends the run; 0: none (interrupt_agree) */
    int64_t first, drawn;         /* the step that the run began at; the last with drawn files */
    double start, redrawn;        /* when, in seconds */
    ek_scope scope;               /* owns what the present step makes */
    json_writer json;
    FILE *page; /* writes to `html` */
    char *html; /* owned */
    size_t html_size;
} run;

/* Joins the ranks and reads the options, which `check` checks and completes: it is negative after a
 * complaint. False: nothing is to be done but run_end. */
bool run_begin(run *r, int argc, char **argv, int (*check)(void));
/* With an error pending, says this behind its sentence: which files --data must hold. */
void run_hint(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says so of Fashion-MNIST's. */
void run_hint_pictures(run *r, const char *directory);

/* Names the series that steps and tests measure. Checkpoints hold them. */
void run_series(run *r, const char *const *names, int count);
/* Adds a number to series `which`. */
void run_add(run *r, int which, double value);
/* What a checkpoint holds besides: the state of a training under that name; the plan of a
 * data-parallel wrapper, which job_saved_plan reads; numbers; a digest of the data that the run is
 * trained on. A checkpoint with another digest is EK_E_INVALID: `what` says whose, "text" and the
 * path of --data. */
void run_keep(run *r, const char *name, ek_training_state state);
void run_keep_plan(run *r, const char *name, ek_module *parallel);
void run_keep_numbers(run *r, const char *name, double *numbers, int count);
void run_keep_digest(run *r, const char *name, const void *data, size_t nbytes, const char *what,
                     const char *path);
/* The network, optimizer and schedule of a job, with its plan, the loader and all generators. */
void run_keep_job(run *r, const train_job *job, ek_loader *loader);

/* Begins the next step, in a scope of its own; first of all goes on from the checkpoint of
 * --resume. False: the last step is finished, there was an error, or the run was stopped. Without
 * run_begin the error stays pending, otherwise it was printed. */
bool run_next(run *r);
/* What the line of progress says behind its numbers. */
void run_note(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line that stays, in place of that of progress. */
void run_say(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* At the end of a step: whether this process is to write files beside the step's checkpoint. Behind
 * the loop, too, for a run that was finished before: true once for each step. */
bool run_draws(run *r);
/* "DIRECTORY/NAME" in --out, in `path`, which it returns. NULL without --out. */
char *run_path(const run *r, const char *name, char path[4096]);
/* "DIRECTORY/NAME-000012.png" in step 12. */
char *run_picture_path(const run *r, const char *name, char path[4096]);
/* Begins a page of the library's report. Charts and HTML are written to the stream. NULL after an
 * error. */
FILE *run_page(run *r);
/* Writes the page to "DIRECTORY/NAME" in --out, with a title and, smaller, what `format` says and
 * the step. */
void run_page_end(run *r, const char *name, const char *title, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* After the loop: whether all steps are finished, and what they came to is to be found out. */
bool run_judges(run *r);
/* Begins --json's file with the settings, the finished steps and the job's devices. All ranks write
 * the same. NULL without that option or after an error. */
json_writer *run_json(run *r, const train_job *job);
/* Whether the run is finished, and is to be printed. If it was stopped, says how to go on. */
bool run_prints(run *r);
/* Says what went wrong. The exit status. */
int run_end(run *r);

/* Parts of run_begin and run_next (checkpoint.c): opens the file of --resume as r->from, if it is
 * one of this program with these settings; loads it; writes a checkpoint to `path`, whole or not at
 * all. 0 or a negative status. */
int run_open(run *r);
int run_load(run *r);
int run_save(run *r, const char *path);

/* At which step a run of `whole` steps ends: before, if `stop` isn't 0. */
int64_t run_last(int64_t whole, int64_t stop);

#endif

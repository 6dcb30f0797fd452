/* run.h: a training program from its command line to its exit status, around the program's loop:
 *
 *     int main(int argc, char **argv)
 *     {
 *         run r = {.about = about, .args = option_table, .draw = draw, ...};
 *         if (!run_begin(&r, argc, argv, check))
 *             return run_end(&r);
 *         ... data, network, optimizer ...
 *         run_keep(&r, "", (ek_training_state){.model = network, .optimizer = optimizer});
 *         while (run_next(&r)) {
 *             ... a step ...
 *             ek_progress_step(r.progress, 1, "loss %.4f", loss);
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
 * Between two steps run_next looks for errors and for Ctrl-C, has the program write pictures and
 * pages (`draw`), writes the checkpoint, and logs the series. The loop need not look for
 * errors: the library's first error stays pending, and functions called after it do nothing. */
#ifndef SAMPLES_RUN_H
#define SAMPLES_RUN_H

#include <signal.h>

#include "job.h"

double seconds_now(void);

/* ---- Ctrl-C and kill ---- */

/* Catches SIGINT and SIGTERM. The first signal writes its number to what the returned pointer
 * points to. The second ends the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);
/* Returns the number of a signal that any rank has caught, 0 without one, or a negative status. All
 * ranks call this and get one answer. */
int interrupt_agree(const volatile sig_atomic_t *stopped);
/* Returns the exit status of a stopped run, as shells have it: 130 for SIGINT, 143 for SIGTERM. */
int interrupt_status(void);

/* ---- runs ---- */

/* Rows of options (args.h) that all runs have. The arguments are the help of --out, the default of
 * --every (NULL: none) and the help of --every. */
#define RUN_OPTIONS(ROW, out_help, standard, every_help)                                  \
    ROW(text, out, NULL, "DIR", out_help)                                                 \
    ROW(int, every, standard, 1, 1 << 20, every_help)                                     \
    ROW(text, resume, NULL, "FILE", "go on from this checkpoint")                         \
    ROW(text, log, NULL, "DIR", "log the run there: for TensorBoard, as CSV and as JSON") \
    ROW(text, json, NULL, "FILE", "write the results there")

enum { RUN_PARTS = 8, RUN_SERIES = 8 };

/* A part of a checkpoint: a name and one of the other members. */
typedef struct run_part {
    const char *name;
    ek_training_state state;
    ek_module *planned; /* a data-parallel wrapper, whose plan is kept */
    double *numbers;
    int count;       /* how many numbers */
    char digest[64]; /* the digest of data outside of the file */
    const char *what, *path;
} run_part;

typedef struct run {
    /* Set in the initialiser. A loop without run_begin needs none of these. */
    const char *about;
    arg_spec *args;
    const char *format;   /* the name of the checkpoints' format */
    const char *deciding; /* options that a resumed run must repeat: "seed lr" */
    const char *written;  /* names the files of --out in the last line; NULL: no last line */
    /* Writes the files of --out that belong to the step's checkpoint. Only rank 0 calls this. NULL:
     * there are none. `of` is the program's. */
    void (*draw)(void *of, struct run *r);
    void *of;
    /* Set before the first step. run_begin sets the first two to --mode and --batch. */
    const char *name;                     /* for the line of progress */
    int64_t batch;                        /* samples per step */
    int64_t last;                         /* the step at which the run ends */
    int64_t epoch, every;                 /* > 0: files are written at multiples of these */
    const volatile sig_atomic_t *stopped; /* set by a signal; NULL: by none */
    /* What programs read. */
    int64_t step; /* the step at hand, from 1 on; outside of the loop the last finished one */
    series series[RUN_SERIES];
    ek_progress *progress; /* the loop's line of progress */
    ek_archive *from;      /* the checkpoint of a resumed run, until its first step; else NULL */
    /* Private. */
    const char *out, *resume, *log_path, *json_path; /* the options; NULL: not given */
    char restarted_from[4096];                       /* the checkpoint of a restarted run */
    ek_run_log *log;                                 /* The log of --log; NULL: none */
    int64_t logged[RUN_SERIES];                      /* how many numbers of a series the log has */
    int argc, status;
    char **argv, hint[512];
    run_part parts[RUN_PARTS];
    int part_count, series_count;
    bool begun, failed, finished; /* finished: with the last step, and printed */
    int signal;                   /* the signal that ends the run; 0: none (interrupt_agree) */
    int64_t first;                /* the step that the run began at */
    double began;                 /* when the step began, in seconds */
    ek_scope scope;               /* owns what the present step makes */
    json_writer json;
    FILE *page; /* writes to `html` */
    char *html; /* owned */
    size_t html_size;
} run;

/* Joins the ranks and reads the options. `check` checks and completes them; it returns a negative
 * number after a complaint. If run_begin returns false, the program calls run_end and nothing else.
 */
bool run_begin(run *r, int argc, char **argv, int (*check)(void));
/* If an error is pending, prints this sentence after the error's: which files --data must hold. */
void run_hint(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Names the series that steps and tests measure. Checkpoints hold the series. */
void run_series(run *r, const char *const *names, int count);
/* Adds a number to series `which`. After the step --log gets the mean of what the step added. */
void run_add(run *r, int which, double value);
/* Add a part to the checkpoint: the state of a training; the plan of a data-parallel wrapper, which
 * job_saved_plan reads; numbers; a digest of the data that the run trains on. If a checkpoint has
 * another digest, run_load fails with EK_E_INVALID; the sentence names the data by `what`, as in
 * "text", and by the path of --data. */
void run_keep(run *r, const char *name, ek_training_state state);
void run_keep_plan(run *r, const char *name, ek_module *parallel);
void run_keep_numbers(run *r, const char *name, double *numbers, int count);
void run_keep_digest(run *r, const char *name, const void *data, size_t nbytes, const char *what,
                     const char *path);
/* Adds the network, optimizer, schedule, loader and plan of a job, and the default generators. */
void run_keep_job(run *r, const train_job *job);

/* Begins the next step, in a separate scope. The first call loads the checkpoint of --resume.
 * Returns false if the last step is finished, if there was an error, or if the run was stopped. The
 * error has been printed; without run_begin it stays pending. */
bool run_next(run *r);
/* Returns the seconds since the step began. */
double run_seconds(const run *r);
/* Writes "DIRECTORY/NAME" in --out to `path` and returns `path`. NULL without --out. */
char *run_path(const run *r, const char *name, char path[4096]);
/* Writes a grid of pictures to "DIRECTORY/NAME-000012.png" in --out, in step 12, and to --log. */
void run_picture(run *r, const char *name, ek_grid_options grid);
/* Begins a page of the library's report. The program writes charts and HTML to the stream. NULL
 * after an error. */
FILE *run_page(run *r);
/* Writes the page to "DIRECTORY/NAME" in --out, below a title and a smaller line: `format`'s text,
 * the mode, the job's devices, --batch, --seed and the step. */
void run_page_end(run *r, const train_job *job, const char *name, const char *title,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Tells after the loop whether all steps are finished, so that a last test is due. */
bool run_judges(run *r);
/* Begins --json's file with the settings, the finished steps and the job's devices. All ranks write
 * the same. NULL without that option or after an error. */
json_writer *run_json(run *r, const train_job *job);
/* Tells whether the run is finished, so that its results are to be printed. If the run was stopped,
 * prints the command that resumes it. */
bool run_prints(run *r);
/* Ends the library's use and returns the exit status. */
int run_end(run *r);

/* checkpoint.c's part of run_begin and run_next. run_open opens the file of --resume as r->from, if
 * this program wrote it with these settings. run_load loads it. run_save writes a checkpoint to
 * `path`, whole or not at all. All return 0 or a negative status. */
int run_open(run *r);
int run_load(run *r);
int run_save(run *r, const char *path);

/* Returns the step at which a run of `whole` steps ends: `stop` if that is earlier and not 0. */
int64_t run_last(int64_t whole, int64_t stop);

#endif

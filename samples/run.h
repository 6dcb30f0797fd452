/* run.h: what the samples' longer runs share: the order of samples, progress, Ctrl-C, settings in
 * checkpoints, results as JSON, curves as a page. */
#ifndef SAMPLES_RUN_H
#define SAMPLES_RUN_H

#include <evenkeel/evenkeel.h>
#include <signal.h>

#include "args.h"

double seconds_now(void);
/* Of values[0..count-1], which stay as they are; 0 if there are none. */
double median_of(const double *values, int64_t count);

/* A line with each device's peak. */
void print_peaks(const ek_device_list *devices);

/* ---- pictures ---- */

/* 0 if the set's samples are pictures of these sizes, else EK_E_SHAPE; `directory` is for the
 * sentence. */
int pictures_check(ek_dataset *pictures, const char *directory, ek_shape wanted);
/* Complains that --data must hold Fashion-MNIST's files, and says where they come from. */
void pictures_explain(const char *directory);

/* Endless passes over a data set, each shuffled anew: the same seed gives the same order. */
typedef struct sample_order {
    ek_generator *generator; /* owned */
    int64_t *order;          /* owned */
    int64_t count, next;
} sample_order;
/* 0 or EK_E_NO_MEMORY; close it anyway. */
int order_open(sample_order *order, int64_t count, int64_t seed);
void order_close(sample_order *order);
/* The next at most `batch` samples of this pass, NULL on an error; *taken says how many. */
const int64_t *order_take(sample_order *order, int64_t batch, int64_t *taken);

/* ---- progress: one line that is redrawn on a terminal, a few plain lines elsewhere ---- */

typedef struct progress_bar {
    const char *name;
    int64_t first;           /* steps that an earlier run has done */
    int64_t total, per_step; /* steps; samples per step */
    bool terminal;
    double start, redrawn; /* when, in seconds */
} progress_bar;

progress_bar progress_begin(const char *name, int64_t first, int64_t total, int64_t per_step);
/* `done` steps are finished; `note` is short text behind the numbers. */
void progress_show(progress_bar *progress, int64_t done, const char *note);
/* Removes the line from a terminal, so that a message can follow. */
void progress_end(const progress_bar *progress);

/* ---- Ctrl-C and kill ---- */

/* From now on the first SIGINT or SIGTERM writes its number to what this points to, for the loop to
 * look at after each step; the second ends the program at once. */
const volatile sig_atomic_t *interrupt_catch(void);
/* The exit status of a run that was stopped, as shells say it: 130 for SIGINT, 143 for SIGTERM. */
int interrupt_status(void);
/* Prints the same command with --resume CHECKPOINT, for a shell; with NULL, that nothing was kept.
 * Returns interrupt_status(). */
int interrupt_explain(int64_t step, const char *checkpoint, int argc, char **argv);

/* ---- the settings that decide a run's numbers, as a checkpoint's texts "<prefix><option>" ----
 *
 * `names` are the options', with blanks between them: "seed lr". */

/* Puts them and the text "format". 0 or a negative status. */
int settings_put(ek_archive *archive, const char *format, const char *prefix, const arg_spec *args,
                 const char *names);
/* EK_E_INVALID names the first option that was another one; EK_E_FORMAT if "format" is another one
 * or an option is missing. `path` is for sentences. */
int settings_check(const ek_archive *archive, const char *path, const char *format,
                   const char *prefix, const arg_spec *args, const char *names);

/* ---- JSON: commas and indents come by themselves; the key is NULL inside an array ---- */

typedef struct json_writer {
    FILE *stream;
    int depth;
    bool follows; /* a value stands before the next at this depth */
    bool flat;    /* within an array of numbers: on one line */
} json_writer;

/* Begins the file's one object; 0 or EK_E_IO. */
int json_open(json_writer *json, const char *path);
/* Ends it: `rc` if that is an error, else 0 or EK_E_IO. */
int json_close(json_writer *json, const char *path, int rc);
void json_begin(json_writer *json, const char *key, char bracket); /* '{' or '[' */
void json_end(json_writer *json, char bracket);                    /* '}' or ']' */
void json_text(json_writer *json, const char *key, const char *text);
void json_integer(json_writer *json, const char *key, int64_t value);
void json_real(json_writer *json, const char *key, double value); /* null if not finite */
void json_reals(json_writer *json, const char *key, const double *values, int64_t count);
/* These options (`names` as above) as members: "critic_norm" for --critic-norm. */
void json_settings(json_writer *json, const arg_spec *args, const char *names);
/* Bytes by category, as an object "categories". */
void json_categories(json_writer *json, const uint64_t *nbytes);
/* An array "devices": names, peaks and what these were used for. 0 or a negative status. */
int json_devices(json_writer *json, const ek_device_list *devices);
/* An object: the number of parameters and their hash. 0 or a negative status. */
int json_network(json_writer *json, const char *key, ek_module *network);

/* ---- curves ---- */

typedef struct page_curve {
    const char *name;
    const double *values;
    int64_t count;
} page_curve;
/* A chart on a page of the library's (ek_report_page.more): curves over their values' numbers,
 * which count `x`s. Names hold no '<'. */
void page_curves(FILE *page, const char *title, const char *x, const page_curve *curves, int count);

#endif

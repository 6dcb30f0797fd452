/* results.h: numbers of a run, one after the other, and results as JSON, as lines for a terminal,
 * and as curves on a page. */
#ifndef SAMPLES_RESULTS_H
#define SAMPLES_RESULTS_H

#include <evenkeel/evenkeel.h>

#include "args.h"

/* ---- series: a number per step, or per whatever else ---- */

typedef struct series {
    const char *name;
    double *values; /* owned */
    int64_t count;
} series;
void series_name(series *list, const char *const *names, int count);
int series_add(series *to, double value); /* 0 or EK_E_NO_MEMORY */
void series_free(series *list, int count);
double series_median(const series *numbers); /* 0 if there are none */
double series_last(const series *numbers);   /* 0 if there are none */
/* The mean of those from number `first` on. */
double series_mean(const series *numbers, int64_t first);
/* The sum of those from number `first` to before `end`. */
double series_sum(const series *numbers, int64_t first, int64_t end);

/* ---- JSON: commas and indents come by themselves ---- */

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
/* Writes what `format` lists, with blanks between: brackets as they are, and values, each behind
 * its name if it is a member: %s (text), %jd (int64_t), %g (double, null if not finite).
 *
 *     json_write(&json, "test { samples %jd loss %g }", count, loss);
 */
void json_write(json_writer *json, const char *format, ...) __attribute__((format(printf, 2, 3)));
void json_series(json_writer *json, const char *key, const series *numbers);
/* Each under its name. */
void json_records(json_writer *json, const series *list, int count);
/* An object "settings" of the options before --out: "critic_norm" for --critic-norm. For --devices
 * the number of `devices`, and for --plan `plan`, are written; a text that is not given is not. */
void json_settings(json_writer *json, const arg_spec *args, int devices, const char *plan);
/* Bytes by category, as an object "categories". */
void json_categories(json_writer *json, const uint64_t *nbytes);
/* An array "devices" of those of all ranks, which all call this: names, peaks and what these were
 * used for. 0 or a negative status. */
int json_devices(json_writer *json, const ek_device_list *devices);
/* An object: the number of parameters and their hash. 0 or a negative status. */
int json_network(json_writer *json, const char *key, ek_module *network);

/* ---- for a terminal and for a page ---- */

/* "host:0"; "rank 1 host:0" if there are several ranks. Returns `text`. */
char *device_label(int rank, ek_device device, char text[40]);
/* A line with the peak of each device of all ranks, which all call this. */
void print_peaks(const ek_device_list *devices);
/* A chart on a page of the library's report: curves over their values' numbers,
 * which count `x`s. Names hold no '<'. */
void page_curves(FILE *page, const char *title, const char *x, const series *curves, int count);
#endif

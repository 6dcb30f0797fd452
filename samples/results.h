/* results.h: series of numbers; results as JSON, as lines for a terminal, as curves on a page. */
#ifndef SAMPLES_RESULTS_H
#define SAMPLES_RESULTS_H

#include <evenkeel/evenkeel.h>

#include "args.h"

/* ---- series: a number per step, or per epoch ---- */

typedef struct series {
    const char *name;
    double *values; /* owned */
    int64_t count;
} series;
int series_add(series *to, double value); /* 0 or EK_E_NO_MEMORY */
void series_free(series *list, int count);
double series_median(const series *numbers); /* 0 of no numbers */
double series_last(const series *numbers);   /* 0 of no numbers */
/* The mean from number `first` on. */
double series_mean(const series *numbers, int64_t first);
/* The sum from number `first` to number `end` - 1. */
double series_sum(const series *numbers, int64_t first, int64_t end);

/* ---- JSON: the writer sets commas and indents ---- */

typedef struct json_writer {
    FILE *stream;
    int depth;
    bool follows; /* the next value at this depth is not the first */
    bool flat;    /* within an array of numbers, which is written on one line */
} json_writer;

/* Opens the file and begins its object. 0 or EK_E_IO. */
int json_open(json_writer *json, const char *path);
/* Ends the object and the file. Returns `rc` if that is an error, else 0 or EK_E_IO. */
int json_close(json_writer *json, const char *path, int rc);
/* Writes the words of `format`: brackets, members' names, and values: %s (text), %jd (int64_t), %g
 * (double, null if not finite).
 *
 *     json_write(&json, "test { samples %jd loss %g }", count, loss);
 */
void json_write(json_writer *json, const char *format, ...) __attribute__((format(printf, 2, 3)));
void json_series(json_writer *json, const char *key, const series *numbers);
/* Writes each series under its name. */
void json_records(json_writer *json, const series *list, int count);
/* Writes an object "settings" of the options before --out: "critic_norm" for --critic-norm.
 * --devices becomes the number `devices`, and --plan becomes `plan`. A text that was not given is
 * left out. */
void json_settings(json_writer *json, const arg_spec *args, int devices, const char *plan);
/* Writes bytes by category, as an object "categories". */
void json_categories(json_writer *json, const uint64_t *nbytes);
/* Writes an array "devices" of the devices of all ranks: names, peaks, and peaks by category. All
 * ranks call it. 0 or a negative status. */
int json_devices(json_writer *json, const ek_device_list *devices);
/* Writes an object: the number of parameters and their hash. 0 or a negative status. */
int json_network(json_writer *json, const char *key, ek_module *network);

/* ---- for a terminal and for a page ---- */

/* Writes "host:0", or with several ranks "rank 1 host:0". Returns `text`. */
char *device_label(int rank, ek_device device, char text[40]);
/* Prints a line with the peak of each device of all ranks. All ranks call it. */
void print_peaks(const ek_device_list *devices);
/* Writes a chart on a page of the library's report: curves over the numbers of their values. `x`
 * says what the numbers count. Names hold no '<'. */
void page_curves(FILE *page, const char *title, const char *x, const series *curves, int count);
#endif

/* results.h: results of the samples as JSON, as lines for a terminal, and as curves on a page. */
#ifndef SAMPLES_RESULTS_H
#define SAMPLES_RESULTS_H

#include "run.h"

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
void json_series(json_writer *json, const char *key, const series *numbers);
/* These options (names with blanks between them) as members: "critic_norm" for --critic-norm. */
void json_settings(json_writer *json, const arg_spec *args, const char *names);
/* Bytes by category, as an object "categories". */
void json_categories(json_writer *json, const uint64_t *nbytes);
/* An array "devices": names, peaks and what these were used for. 0 or a negative status. */
int json_devices(json_writer *json, const ek_device_list *devices);
/* An object: the number of parameters and their hash. 0 or a negative status. */
int json_network(json_writer *json, const char *key, ek_module *network);

/* ---- for a terminal and for a page ---- */

/* A line with each device's peak. */
void print_peaks(const ek_device_list *devices);
/* A chart on a page of the library's (ek_report_page.more): curves over their values' numbers,
 * which count `x`s. Names hold no '<'. */
void page_curves(FILE *page, const char *title, const char *x, const series *curves, int count);

#endif

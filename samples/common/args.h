/* args.h: command-line options from a table. */
#ifndef COMMON_ARGS_H
#define COMMON_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum arg_kind {
    ARG_INT,    /* int64_t *value, within [low, high] */
    ARG_REAL,   /* double *value, within [low, high]; below that at first: no default to show */
    ARG_BYTES,  /* uint64_t *value: 4096, 512M, 1.5G */
    ARG_TEXT,   /* const char **value: points into argv */
    ARG_SWITCH, /* bool *value: takes nothing */
} arg_kind;

typedef struct arg_spec {
    const char *name; /* without the dashes */
    arg_kind kind;
    void *value; /* holds the default */
    double low, high;
    const char *placeholder; /* "N", for the help */
    const char *help;
} arg_spec;

enum { ARGS_HELP = 1 };

/* Takes --name value and --name=value. Returns 0, ARGS_HELP where --help is asked for, or -1 with a
 * sentence in `error` that says what is wrong and what would be right. */
int args_parse(int argc, char **argv, const arg_spec *args, size_t count, char *error,
               size_t error_nbytes);

/* One line per option, its default included. */
void args_help(FILE *stream, const arg_spec *args, size_t count);

#endif

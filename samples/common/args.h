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
    ARG_CHOICE, /* arg_choice *value: one of some words */
} arg_kind;

typedef struct arg_choice {
    const char *const *words; /* NULL at the end */
    int chosen;               /* its position */
} arg_choice;

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
/* Is --help among the arguments? Asked before args_parse, since the help shows defaults. */
bool args_want_help(int argc, char **argv);

/* Prints "program: sentence" to standard error; returns -1. */
int args_complain(const char *program, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A file that will be written at the end can be: said now, not after minutes of work. NULL is well.
 * Returns 0, or -1 after a complaint. */
int args_check_output(const char *program, const char *option, const char *path);

/* Whether --out can write to the directory `path`, which is made where it is missing; NULL is none.
 * 0, or -1 after a complaint. */
int args_check_directory(const char *program, const char *path);

#endif

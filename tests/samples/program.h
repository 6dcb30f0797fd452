/* program.h: a sample run as a user runs it, by its main, and what it wrote. It is included behind
 * the sample's file, which has the options `opt`. */
#ifndef EK_TESTS_SAMPLES_PROGRAM_H
#define EK_TESTS_SAMPLES_PROGRAM_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/archive.h"
#include "unit.h"

/* As --device takes it. */
static inline const char *program_device(void)
{
    return args_device_words[test_kind()];
}

/* Runs the program with options that hold no blanks. Returns its exit status. */
static inline int program_run(int (*program)(int argc, char **argv), const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline int program_run(int (*program)(int argc, char **argv), const char *format, ...)
{
    enum { MOST_WORDS = 100 };
    static char line[4096];
    char name[] = "program", *argv[MOST_WORDS + 1] = {name};
    int argc = 1;
    va_list values;
    memset(&opt, 0, sizeof opt); /* of an earlier run */
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    for (char *at = strtok(line, " "); at && argc < MOST_WORDS; at = strtok(NULL, " "))
        argv[argc++] = at;
    return program(argc, argv);
}

/* The file's lines that hold the key, one after the other; the caller frees them. */
static inline char *program_lines(const char *json, const char *key)
{
    char *lines = calloc(1, 1), *line = NULL, quoted[64];
    size_t length = 0, room = 0;
    ssize_t more;
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    FILE *file = fopen(json, "r");
    ck_assert(file && lines);
    while ((more = getline(&line, &room, file)) > 0) {
        if (!strstr(line, quoted))
            continue;
        lines = realloc(lines, length + (size_t)more + 1);
        ck_assert_ptr_nonnull(lines);
        memcpy(lines + length, line, (size_t)more + 1);
        length += (size_t)more;
    }
    fclose(file);
    free(line);
    ck_assert_msg(length > 0, "%s: no \"%s\"", json, key);
    return lines;
}

/* Numbers of that name in a checkpoint. Returns how many there are, up to `most`. */
static inline int program_saved(const char *checkpoint, const char *name, double *numbers, int most)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *archive = ek_archive_open(checkpoint);
    ek_tensor *stored = ek_to_dtype(ek_value_tensor(ek_archive_get(archive, name)), EK_F64);
    assert_made(stored);
    const int count = (int)ek_tensor_count(stored);
    for (int i = 0; i < count && i < most; i++)
        numbers[i] = element(stored, i);
    ek_archive_free(archive);
    ek_scope_end(&scope);
    return count < most ? count : most;
}

/* Each value is within `limit` of the wanted one, relative to what is larger than 1. */
static inline void assert_numbers(const char *what, const double *values, int64_t count,
                                  const double *wanted, double limit)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(values[i] - wanted[i]) <= limit * fmax(1, fabs(wanted[i]))))
            ck_abort_msg("%s: number %d is %.17g instead of %.17g", what, (int)i, values[i],
                         wanted[i]);
}

#endif

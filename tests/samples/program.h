/* program.h: a sample run as a user runs it, by its main, and what it wrote. It is included behind
 * the sample's file, which has the options `opt`. */
#ifndef EK_TESTS_SAMPLES_PROGRAM_H
#define EK_TESTS_SAMPLES_PROGRAM_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/archive.h"
#include "unit.h"

/* For FIXTURE: a folder for what runs write. */
static char program_folder[32];

static inline void program_folder_make(void)
{
    strcpy(program_folder, "/tmp/test_sample_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(program_folder));
}

static inline void program_folder_remove(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", program_folder);
    ck_assert_int_eq(system(command), 0);
}

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

/* Numbers of the key's array in the file. Returns how many there are, up to `most`. */
static inline int program_numbers(const char *json, const char *key, double *numbers, int most)
{
    char *lines = program_lines(json, key), *at = strchr(lines, '[');
    int count = 0;
    while (at && *at != ']' && count < most)
        numbers[count++] = strtod(at + 1, &at);
    free(lines);
    return count;
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

/* A run that is stopped and gone on with is the one that was not: `whole` and `rest` have the same
 * values of these keys. */
static inline void assert_same_results(const char *whole, const char *rest, const char *const *keys)
{
    for (; *keys; keys++) {
        char *wanted = program_lines(whole, *keys), *found = program_lines(rest, *keys);
        ck_assert_str_eq(found, wanted);
        free(wanted);
        free(found);
    }
}

/* Runs the program whole, up to a stop, and on from there, by the same options, with files in
 * `folder`: to the bit as if not stopped. */
static inline void assert_resumes(int (*program)(int argc, char **argv), const char *folder,
                                  const char *options, const char *stop, const char *const *keys)
{
    char whole[128], rest[128];
    snprintf(whole, sizeof whole, "%s/whole.json", folder);
    snprintf(rest, sizeof rest, "%s/rest.json", folder);
    ck_assert_int_eq(program_run(program, "%s --json %s", options, whole), 0);
    ck_assert_int_eq(program_run(program, "%s %s --out %s/half", options, stop, folder), 0);
    ck_assert_int_eq(program_run(program, "%s --resume %s/half/checkpoint.safetensors --json %s",
                                 options, folder, rest),
                     0);
    assert_same_results(whole, rest, keys);
}

#endif

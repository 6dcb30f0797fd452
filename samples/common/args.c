#include "common/args.h"

#include <errno.h>
#include <evenkeel/device.h>
#include <evenkeel/status.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int parse_int(const arg_spec *arg, const char *text, char *error, size_t nbytes)
{
    char *end;

    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < arg->low || (double)value > arg->high) {
        snprintf(error, nbytes, "--%s %s: a whole number from %.0f to %.0f is needed", arg->name,
                 text, arg->low, arg->high);
        return -1;
    }
    *(int64_t *)arg->value = value;
    return 0;
}

static int parse_real(const arg_spec *arg, const char *text, char *error, size_t nbytes)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value >= arg->low && value <= arg->high)) {
        snprintf(error, nbytes, "--%s %s: a number from %g to %g is needed", arg->name, text,
                 arg->low, arg->high);
        return -1;
    }
    *(double *)arg->value = value;
    return 0;
}

/* "a, b or c" */
static void list_words(const char *const *words, char *text, size_t nbytes)
{
    size_t length = 0;

    text[0] = '\0';
    for (int i = 0; words[i] && length < nbytes; i++) {
        const char *before = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        length += (size_t)snprintf(text + length, nbytes - length, "%s%s", before, words[i]);
    }
}

static int parse_choice(const arg_spec *arg, const char *text, char *error, size_t nbytes)
{
    arg_choice *choice = arg->value;
    char words[256];

    for (int i = 0; choice->words[i]; i++) {
        if (strcmp(choice->words[i], text) == 0) {
            choice->chosen = i;
            return 0;
        }
    }
    list_words(choice->words, words, sizeof(words));
    snprintf(error, nbytes, "--%s %s: %s is needed", arg->name, text, words);
    return -1;
}

static int parse_value(const arg_spec *arg, const char *text, char *error, size_t nbytes)
{
    switch (arg->kind) {
    case ARG_INT:
        return parse_int(arg, text, error, nbytes);
    case ARG_REAL:
        return parse_real(arg, text, error, nbytes);
    case ARG_BYTES:
        if (ek_parse_bytes(text, arg->value) == 0)
            return 0;
        ek_error_clear();
        snprintf(error, nbytes, "--%s %s: bytes are needed, as in 67108864, 64M or 1.5G", arg->name,
                 text);
        return -1;
    case ARG_TEXT:
        *(const char **)arg->value = text;
        return 0;
    case ARG_CHOICE:
        return parse_choice(arg, text, error, nbytes);
    case ARG_SWITCH:
        break;
    }
    *(bool *)arg->value = true;
    return 0;
}

/* The option that `text` (after the dashes, `length` long) names. */
static const arg_spec *find(const arg_spec *args, size_t count, const char *text, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(args[i].name) == length && strncmp(args[i].name, text, length) == 0)
            return &args[i];
    return NULL;
}

/* How many letters must change to make `a`, `length` long, into `b`; as in Levenshtein's distance,
 * one row at a time. */
static size_t distance(const char *a, size_t length, const char *b)
{
    size_t row[64], columns = strlen(b);

    if (columns >= sizeof(row) / sizeof(row[0]))
        return SIZE_MAX;
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; i <= length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            size_t inserted = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
            diagonal = row[j];
            row[j] = replaced < inserted ? replaced : inserted;
        }
    }
    return row[columns];
}

/* The sentence for an option that there is not, with the one that may have been meant. */
static void say_unknown(const arg_spec *args, size_t count, const char *text, size_t length,
                        char *error, size_t nbytes)
{
    size_t best = 0;

    for (size_t i = 1; i < count; i++)
        if (distance(text + 2, length, args[i].name) < distance(text + 2, length, args[best].name))
            best = i;
    if (distance(text + 2, length, args[best].name) <= 2)
        snprintf(error, nbytes, "%s: there is no such option; is --%s meant? --help lists them",
                 text, args[best].name);
    else
        snprintf(error, nbytes, "%s: there is no such option; --help lists them", text);
}

int args_parse(int argc, char **argv, const arg_spec *args, size_t count, char *error,
               size_t nbytes)
{
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0)
            return ARGS_HELP;
        if (strncmp(text, "--", 2) != 0) {
            snprintf(error, nbytes, "%s: only options (--name value) are taken; --help lists them",
                     text);
            return -1;
        }
        const char *equals = strchr(text, '=');
        size_t length = equals ? (size_t)(equals - text) - 2 : strlen(text) - 2;
        const arg_spec *arg = find(args, count, text + 2, length);
        if (!arg) {
            say_unknown(args, count, text, length, error, nbytes);
            return -1;
        }
        const char *value = equals ? equals + 1 : NULL;
        if (arg->kind == ARG_SWITCH) {
            if (value) {
                snprintf(error, nbytes, "%s: --%s takes no value", text, arg->name);
                return -1;
            }
        } else if (!value) {
            if (i + 1 == argc) {
                snprintf(error, nbytes, "--%s: its value (%s) is missing", arg->name,
                         arg->placeholder);
                return -1;
            }
            value = argv[++i];
        }
        if (parse_value(arg, value, error, nbytes) < 0)
            return -1;
    }
    return 0;
}

static void print_default(FILE *stream, const arg_spec *arg)
{
    const arg_choice *choice = arg->value;

    switch (arg->kind) {
    case ARG_INT:
        if (*(int64_t *)arg->value)
            fprintf(stream, " (%" PRId64 ")", *(int64_t *)arg->value);
        break;
    case ARG_REAL:
        if (*(double *)arg->value >= arg->low)
            fprintf(stream, " (%g)", *(double *)arg->value);
        break;
    case ARG_TEXT:
        if (*(const char **)arg->value)
            fprintf(stream, " (%s)", *(const char **)arg->value);
        break;
    case ARG_CHOICE:
        fprintf(stream, " (%s)", choice->words[choice->chosen]);
        break;
    case ARG_BYTES:
    case ARG_SWITCH:
        break;
    }
}

void args_help(FILE *stream, const arg_spec *args, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char left[64];
        snprintf(left, sizeof(left), "--%s %s", args[i].name,
                 args[i].kind == ARG_SWITCH ? "" : args[i].placeholder);
        fprintf(stream, "  %-20s %s", left, args[i].help);
        if (args[i].kind == ARG_CHOICE) {
            char words[256];
            list_words(((const arg_choice *)args[i].value)->words, words, sizeof(words));
            fprintf(stream, ": %s", words);
        }
        print_default(stream, &args[i]);
        fputc('\n', stream);
    }
    fprintf(stream, "  %-20s %s\n", "--help", "this text");
}

bool args_want_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* ---- complaints ---- */

int args_complain(const char *program, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return -1;
}

int args_check_output(const char *program, const char *option, const char *path)
{
    struct stat status;
    bool writable = false;

    if (!path)
        return 0;
    if (stat(path, &status) == 0) {
        writable = !S_ISDIR(status.st_mode) && access(path, W_OK) == 0;
    } else {
        const char *slash = strrchr(path, '/');
        char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
        writable = directory && *path && !(slash && !slash[1]) && access(directory, W_OK) == 0;
        free(directory);
    }
    if (!writable)
        return args_complain(program,
                             "--%s %s: a file in a directory that exists and can be written is "
                             "needed",
                             option, path);
    return 0;
}

int args_check_directory(const char *program, const char *path)
{
    struct stat status;

    if (!path)
        return 0;
    if (stat(path, &status) < 0 && mkdir(path, 0777) < 0)
        return args_complain(program, "--out %s: it cannot be made: %s", path, strerror(errno));
    if ((stat(path, &status) == 0 && !S_ISDIR(status.st_mode)) || access(path, W_OK) < 0)
        return args_complain(program, "--out %s: a directory that can be written is needed", path);
    return 0;
}

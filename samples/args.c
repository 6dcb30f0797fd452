#include "args.h"

#include <errno.h>
#include <evenkeel/plan.h>
#include <evenkeel/status.h>
#include <evenkeel/tensor.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool args_quiet;
static const char *args_program = "sample";

const char *const args_device_words[] = {"cpu", "host", "cuda", NULL};
const char *const args_dtype_words[] = {[EK_F32] = "f32", [EK_F64] = "f64", NULL};
const char *const args_goal_words[] = {"memory", "time", NULL};

/* "a, b or c" */
static char *arg_list_words(const arg_spec *arg, char *text, size_t nbytes)
{
    const char *const *words = arg->words + (arg->kind == ARG_DEVICE); /* cpu can't be chosen */
    size_t length = 0;
    for (int i = 0; words[i] && length < nbytes; i++) {
        const char *before = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        length += (size_t)snprintf(text + length, nbytes - length, "%s%s", before, words[i]);
    }
    return text;
}

char *arg_value_text(const arg_spec *arg, char text[64])
{
    const void *value = arg->value;
    if (arg->kind == ARG_INT)
        snprintf(text, 64, "%" PRId64, *(const int64_t *)value);
    else if (arg->kind == ARG_REAL)
        snprintf(text, 64, "%.17g", *(const double *)value);
    else if (arg->kind == ARG_BYTES)
        snprintf(text, 64, "%" PRIu64, *(const uint64_t *)value);
    else if (arg->kind == ARG_TEXT || arg->kind == ARG_FOLDER)
        snprintf(text, 64, "%s", *(char *const *)value ? *(char *const *)value : "");
    else if (arg->kind == ARG_SWITCH)
        snprintf(text, 64, "%s", *(const bool *)value ? "on" : "off");
    else
        snprintf(text, 64, "%s", arg->words[*(const int *)value]);
    return text;
}

/* NULL if there is no such option. */
static const arg_spec *arg_find(const arg_spec *args, const char *name, size_t length)
{
    while (*args->name && (strlen(args->name) != length || strncmp(args->name, name, length) != 0))
        args++;
    return *args->name ? args : NULL;
}

const arg_spec *args_next(const arg_spec *args, const char **names)
{
    const char *name = *names + strspn(*names, " ");
    size_t length = strcspn(name, " ");
    *names = name + length;
    return length > 0 ? arg_find(args, name, length) : NULL;
}

/* ---- reading ---- */

const char *args_pictures(void)
{
    const char *given = getenv("EVENKEEL_FASHION_MNIST");
    return given && *given ? given : "/usr/share/datasets/fashion-mnist";
}

static int arg_parse(const arg_spec *arg, const char *text)
{
    char *end, words[256];
    const char *shown = text && !*text ? "\"\"" : text;
    errno = 0;
    switch (arg->kind) {
    case ARG_INT: {
        long long value = strtoll(text, &end, 10);
        /* As whole numbers: a double may be the limit where the number is beyond it. */
        if (end == text || *end || errno || value < (long long)arg->low ||
            value > (long long)arg->high)
            return args_complain("--%s %s: a whole number from %.0f to %.0f is needed", arg->name,
                                 shown, arg->low, arg->high);
        *(int64_t *)arg->value = value;
        return 0;
    }
    case ARG_REAL: {
        double value = strtod(text, &end);
        if (end == text || *end || !(value >= arg->low && value <= arg->high))
            return args_complain("--%s %s: a number from %g to %g is needed", arg->name, shown,
                                 arg->low, arg->high);
        *(double *)arg->value = value;
        return 0;
    }
    case ARG_BYTES:
        if (ek_parse_bytes(text, arg->value) == 0)
            return 0;
        ek_error_clear();
        return args_complain("--%s %s: bytes are needed, as in 67108864, 64M or 1.5G", arg->name,
                             shown);
    case ARG_TEXT:
    case ARG_FOLDER:
        *(const char **)arg->value = text;
        return 0;
    case ARG_WORD:
    case ARG_DEVICE:
        for (int i = arg->kind == ARG_DEVICE; arg->words[i]; i++)
            if (strcmp(arg->words[i], text) == 0) {
                *(int *)arg->value = i;
                return 0;
            }
        return args_complain("--%s %s: %s is needed", arg->name, shown,
                             arg_list_words(arg, words, sizeof words));
    case ARG_SWITCH:
        break;
    }
    *(bool *)arg->value = true;
    return 0;
}

/* Levenshtein's distance, one row at a time: how many letters must change to make `a`, `length`
 * long, into `b`. */
static size_t arg_distance(const char *a, size_t length, const char *b)
{
    size_t row[64], columns = strlen(b);
    if (columns >= sizeof row / sizeof row[0])
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

/* Complains about an option that there is not, and names the one that may have been meant. */
static int arg_complain_unknown(const arg_spec *args, const char *text, size_t length)
{
    const arg_spec *best = args;
    for (const arg_spec *arg = args; *arg->name; arg++)
        if (arg_distance(text + 2, length, arg->name) < arg_distance(text + 2, length, best->name))
            best = arg;
    if (arg_distance(text + 2, length, best->name) <= 2)
        return args_complain("%s: there is no such option; is --%s meant? --help lists them", text,
                             best->name);
    return args_complain("%s: there is no such option; --help lists them", text);
}

static void args_help(const char *about, const arg_spec *args)
{
    char text[256], left[64];
    printf("usage: %s [option...]\n\n%sOptions (and defaults):\n", args_program, about);
    for (const arg_spec *arg = args; *arg->name; arg++) {
        snprintf(left, sizeof left, "--%s %s", arg->name, arg->placeholder);
        printf("  %-20s %s", left, arg->help);
        if (arg->words)
            printf(": %s", arg_list_words(arg, text, sizeof text));
        const char *standard = arg->kind == ARG_DEVICE   ? arg->words[*(int *)arg->value]
                               : arg->kind == ARG_FOLDER ? args_pictures()
                                                         : arg->standard;
        if (standard)
            printf(" (%s)", standard);
        putchar('\n');
    }
    printf("  %-20s %s\n", "--help", "this text");
}

int args_read(int argc, char **argv, const char *about, arg_spec *args)
{
    args_program = argv[0];
    for (arg_spec *arg = args; *arg->name; arg++) {
        for (char *at = arg->name; (at = strchr(at, '_'));)
            *at = at[1] ? '-' : '\0';
        if (arg->kind == ARG_DEVICE)
            *(int *)arg->value = ek_default_device_kind();
        else if (arg->kind == ARG_FOLDER)
            arg_parse(arg, args_pictures());
        else if (arg->standard)
            arg_parse(arg, arg->standard);
    }
    for (int i = 1; i < argc; i++) /* before any is parsed: the help shows defaults */
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            args_help(about, args);
            return ARGS_HELP;
        }
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i], *equals = strchr(text, '=');
        if (strncmp(text, "--", 2) != 0)
            return args_complain("%s: only options (--name value) are taken; --help lists them",
                                 text);
        size_t length = (equals ? (size_t)(equals - text) : strlen(text)) - 2;
        const arg_spec *arg = arg_find(args, text + 2, length);
        if (!arg)
            return arg_complain_unknown(args, text, length);
        if (arg->kind == ARG_SWITCH && equals)
            return args_complain("%s: --%s takes no value", text, arg->name);
        if (arg->kind != ARG_SWITCH && !equals && i + 1 == argc)
            return args_complain("--%s: its value (%s) is missing", arg->name, arg->placeholder);
        const char *value = equals ? equals + 1 : arg->kind == ARG_SWITCH ? NULL : argv[++i];
        if (arg_parse(arg, value) < 0)
            return -1;
    }
    return 0;
}

/* ---- complaints ---- */

static char args_kept[2048];

int args_complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (args_quiet) {
        vsnprintf(args_kept, sizeof args_kept, format, arguments);
    } else {
        fprintf(stderr, "%s: ", args_program);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
    }
    va_end(arguments);
    return -1;
}

void args_complain_late(void)
{
    if (args_kept[0])
        fprintf(stderr, "%s: %s\n", args_program, args_kept);
    args_kept[0] = '\0';
}

/* The pending error behind the option at fault: "program: --plan 3,4: sentence". Clears it. */
static int args_complain_error(const char *option, const char *text)
{
    args_complain("--%s %s: %s", option, text, ek_error_message());
    ek_error_clear();
    return -1;
}

int args_fail(int status)
{
    args_complain("%s", ek_error_message());
    ek_error_clear();
    return status;
}

int args_check_output(const char *option, const char *path)
{
    if (args_quiet)
        return 0;
    bool existed = path && access(path, F_OK) == 0;
    FILE *file = path ? fopen(path, "a") : NULL;
    if (path && !file)
        return args_complain("--%s %s: a file in a directory that exists and can be written is "
                             "needed",
                             option, path);
    if (file)
        fclose(file);
    if (file && !existed)
        unlink(path);
    return 0;
}

/* ---- devices ---- */

/* Four on one GPU are "0,0,0,0", on two "0,1,0,1". */
static int devices_configure(int kind, int count)
{
    static int gpus;
    char text[8 * EK_MAX_DEVICES] = "";
    if (kind == EK_HOST) {
        snprintf(text, sizeof text, "%d", count);
        return ek_host_devices_configure(text);
    }
    if (!gpus)
        gpus = ek_device_count(EK_CUDA);
    if (gpus <= 0)
        return gpus;
    for (int i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? "," : "", i % gpus);
    return ek_cuda_devices_configure(text);
}

ek_device_list devices_open(int kind, int count)
{
    const ek_device_list none = {.count = -1};
    const char *given = getenv(kind == EK_CUDA ? "EVENKEEL_CUDA_DEVICES" : "EVENKEEL_HOST_DEVICES");
    if (!(given && *given) && count > 0 && devices_configure(kind, count) < 0)
        return none;
    return ek_devices((ek_device_kind)kind, count);
}

int devices_text_count(const char *text)
{
    if (!*text || strspn(text, "0123456789") != strlen(text))
        return 0;
    long count = strtol(text, NULL, 10);
    return count >= 1 && count <= EK_MAX_DEVICES
               ? (int)count
               : args_complain("--devices %s: a whole number from 1 to %d is needed, or a list",
                               text, EK_MAX_DEVICES);
}

ek_device_list devices_chosen(int kind, const char *text, bool single)
{
    const ek_device_list none = {.count = -1};
    int count = text ? devices_text_count(text) : single;
    if (!text || count > 0)
        return devices_open(kind, count);
    int rc = kind == EK_CUDA ? ek_cuda_devices_configure(text) : ek_host_devices_configure(text);
    return rc < 0 ? none : ek_devices((ek_device_kind)kind, 0);
}

int devices_check(int kind, const char *text, bool single, const char *plan)
{
    if (text && devices_text_count(text) < 0)
        return -1;
    int count = devices_chosen(kind, text, single).count;
    if (count < 1)
        return text ? args_complain_error("devices", text) : args_fail(-1);
    if (single && count > 1)
        return args_complain("--devices %s: --mode single trains on one device; another mode is "
                             "needed for more",
                             text);
    return plan && ek_plan_check(plan, count) < 0 ? args_complain_error("plan", plan) : count;
}

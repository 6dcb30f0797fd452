#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int median_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(const double *values, int64_t count)
{
    double *sorted = malloc((size_t)(count + 1) * sizeof *sorted), median = 0;
    if (sorted && count > 0) {
        memcpy(sorted, values, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, median_compare);
        median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    }
    free(sorted);
    return median;
}

void print_peaks(const ek_device_list *devices)
{
    for (int d = 0; d < devices->count; d++) {
        ek_memory_stats stats;
        char name[16];
        if (ek_memory_get_stats(devices->devices[d], &stats) == 0)
            printf("%s%s %.1f MiB",
                   d ? ", " : "Peak memory: ", ek_device_name(devices->devices[d], name),
                   (double)stats.peak / (1 << 20));
    }
    putchar('\n');
}

/* ---- pictures ---- */

int pictures_check(ek_dataset *pictures, const char *directory, ek_shape wanted)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *first = ek_value_tensor(ek_value_at(ek_dataset_get(pictures, 0), 0));
    int rc = ek_error_status();
    if (first) {
        ek_shape shape = ek_tensor_shape(first);
        char text[160], wanted_text[160];
        if (!ek_shape_equal(&shape, &wanted))
            rc = ek_error(EK_E_SHAPE, "%s: pictures are %s; %s are wanted", directory,
                          ek_shape_text(&shape, text), ek_shape_text(&wanted, wanted_text));
    }
    ek_scope_end(&scope);
    return rc;
}

void pictures_explain(const char *directory)
{
    args_complain("--data %s must hold Fashion-MNIST's four files; Debian's package "
                  "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist",
                  directory);
}

int order_open(sample_order *order, int64_t count, int64_t seed)
{
    *order = (sample_order){ek_generator_new((uint64_t)seed),
                            malloc((size_t)count * sizeof *order->order), count, count};
    return order->generator && order->order
               ? 0
               : ek_error(EK_E_NO_MEMORY, "no memory for the order of %lld samples",
                          (long long)count);
}

void order_close(sample_order *order)
{
    ek_generator_free(order->generator);
    free(order->order);
    *order = (sample_order){0};
}

const int64_t *order_take(sample_order *order, int64_t batch, int64_t *taken)
{
    if (order->next == order->count) {
        if (ek_randperm(order->count, order->order, order->generator) < 0)
            return NULL;
        order->next = 0;
    }
    const int64_t *first = order->order + order->next;
    *taken = batch < order->count - order->next ? batch : order->count - order->next;
    order->next += *taken;
    return first;
}

/* ---- progress ---- */

progress_bar progress_begin(const char *name, int64_t first, int64_t total, int64_t per_step)
{
    return (progress_bar){name, first, total, per_step, isatty(STDOUT_FILENO), seconds_now(), 0};
}

void progress_show(progress_bar *progress, int64_t done, const char *note)
{
    enum { PLAIN_LINES = 5 };
    const int64_t total = progress->total;
    const int64_t every = total > PLAIN_LINES ? total / PLAIN_LINES : 1;
    double now = seconds_now(), elapsed = now - progress->start;
    double rate = elapsed > 0 ? (double)(done - progress->first) / elapsed : 0;
    int left = rate > 0 ? (int)((double)(total - done) / rate + 0.5) : 0;
    bool due = progress->terminal ? now - progress->redrawn >= 0.1 : done % every == 0;
    if (!due && done < total)
        return;
    progress->redrawn = now;
    printf("%s%-9s step %" PRId64 " of %" PRId64 ", %.0f samples/s, %d:%02d left, %s%s",
           progress->terminal ? "\r\033[K" : "", progress->name, done, total,
           rate * (double)progress->per_step, left / 60, left % 60, note,
           progress->terminal ? "" : "\n");
    fflush(stdout);
}

void progress_end(const progress_bar *progress)
{
    if (progress->terminal) {
        printf("\r\033[K");
        fflush(stdout);
    }
}

/* ---- Ctrl-C and kill ---- */

static volatile sig_atomic_t interrupt_stopped;

/* Two signals may come to two threads at a time: one of them is the second all the same. */
static void interrupt_note(int signal_number)
{
    static atomic_int caught;
    if (!interrupt_stopped)
        interrupt_stopped = signal_number;
    if (atomic_exchange(&caught, 1) == 0)
        return;
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* takes effect when this function has returned */
}

const volatile sig_atomic_t *interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = interrupt_note, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask); /* while one is handled, the other waits */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &interrupt_stopped;
}

int interrupt_status(void)
{
    return 128 + (interrupt_stopped ? (int)interrupt_stopped : SIGINT);
}

/* Quotes the word if a shell would read it otherwise. */
static void interrupt_print_word(const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+";
    putchar(' ');
    if (*word && strspn(word, plain) == strlen(word)) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, stdout);
    putchar('\'');
}

int interrupt_explain(int64_t step, const char *checkpoint, int argc, char **argv)
{
    if (!checkpoint) {
        printf("Stopped after step %" PRId64 ". Nothing was kept: --out DIR writes checkpoints\n",
               step);
        return interrupt_status();
    }
    printf("Stopped after step %" PRId64 ". To go on:\n   ", step);
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--resume") == 0)
            i++; /* and its value */
        else if (strncmp(argv[i], "--resume=", 9) != 0)
            interrupt_print_word(argv[i]);
    }
    fputs(" --resume", stdout);
    interrupt_print_word(checkpoint);
    putchar('\n');
    return interrupt_status();
}

/* ---- settings in checkpoints ---- */

/* The option that *names begins with, which moves on to the next; NULL at the end. */
static const arg_spec *settings_next(const arg_spec *args, const char **names)
{
    const char *name = *names + strspn(*names, " ");
    size_t length = strcspn(name, " ");
    *names = name + length;
    while (length > 0 && (strlen(args->name) != length || strncmp(args->name, name, length) != 0))
        args++;
    return length > 0 ? args : NULL;
}

int settings_put(ek_archive *archive, const char *format, const char *prefix, const arg_spec *args,
                 const char *names)
{
    int rc = ek_archive_put_text(archive, "format", format);
    for (const arg_spec *arg; rc == 0 && (arg = settings_next(args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "%s%s", prefix, arg->name);
        rc = ek_archive_put_text(archive, key, arg_value_text(arg, text));
    }
    return rc;
}

int settings_check(const ek_archive *archive, const char *path, const char *format,
                   const char *prefix, const arg_spec *args, const char *names)
{
    const char *found = ek_archive_get_text(archive, "format");
    if (!found || strcmp(found, format) != 0)
        return ek_error(EK_E_FORMAT,
                        "%s: its format is \"%s\"; a checkpoint of this program (%s) is needed",
                        path, found ? found : "", format);
    for (const arg_spec *arg; (arg = settings_next(args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "%s%s", prefix, arg->name);
        found = ek_archive_get_text(archive, key);
        if (!found)
            return ek_error(EK_E_FORMAT,
                            "%s: no \"%s\" in it; a checkpoint of this program is needed", path,
                            key);
        if (strcmp(found, arg_value_text(arg, text)) != 0)
            return ek_error(EK_E_INVALID,
                            "%s was made with --%s %s, not %s; it goes on with that only", path,
                            arg->name, found, text);
    }
    return 0;
}

/* ---- JSON ---- */

static void json_quote(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(stream, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(stream, "\\u%04x", *c);
        else
            fputc(*c, stream);
    }
    fputc('"', stream);
}

/* What stands before a value: comma, line and key. */
static void json_lead(json_writer *json, const char *key)
{
    if (json->follows)
        fputs(json->flat ? ", " : ",", json->stream);
    if (!json->flat && json->depth > 0)
        fprintf(json->stream, "\n%*s", 2 * json->depth, "");
    json->follows = true;
    if (key) {
        json_quote(json->stream, key);
        fputs(": ", json->stream);
    }
}

int json_open(json_writer *json, const char *path)
{
    *json = (json_writer){.stream = fopen(path, "w")};
    if (!json->stream)
        return ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    json_begin(json, NULL, '{');
    return 0;
}

int json_close(json_writer *json, const char *path, int rc)
{
    json_end(json, '}');
    int failed = ferror(json->stream);
    failed = fclose(json->stream) != 0 || failed;
    return rc == 0 && failed ? ek_error(EK_E_IO, "%s: %s", path, strerror(errno)) : rc;
}

void json_begin(json_writer *json, const char *key, char bracket)
{
    json_lead(json, key);
    fputc(bracket, json->stream);
    json->depth++;
    json->follows = false;
}

void json_end(json_writer *json, char bracket)
{
    json->depth--;
    if (!json->flat)
        fprintf(json->stream, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->stream);
    json->flat = false;
    json->follows = true;
    if (json->depth == 0)
        fputc('\n', json->stream);
}

void json_text(json_writer *json, const char *key, const char *text)
{
    json_lead(json, key);
    json_quote(json->stream, text);
}

void json_integer(json_writer *json, const char *key, int64_t value)
{
    json_lead(json, key);
    fprintf(json->stream, "%" PRId64, value);
}

void json_real(json_writer *json, const char *key, double value)
{
    json_lead(json, key);
    if (isfinite(value))
        fprintf(json->stream, "%.17g", value);
    else
        fputs("null", json->stream);
}

void json_reals(json_writer *json, const char *key, const double *values, int64_t count)
{
    json_begin(json, key, '[');
    json->flat = true;
    for (int64_t i = 0; i < count; i++)
        json_real(json, NULL, values[i]);
    json_end(json, ']');
}

void json_settings(json_writer *json, const arg_spec *args, const char *names)
{
    for (const arg_spec *arg; (arg = settings_next(args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "%s", arg->name);
        for (char *dash = key; (dash = strchr(dash, '-'));)
            *dash = '_';
        if (arg->kind == ARG_INT)
            json_integer(json, key, *(int64_t *)arg->value);
        else if (arg->kind == ARG_REAL)
            json_real(json, key, *(double *)arg->value);
        else
            json_text(json, key, arg_value_text(arg, text));
    }
}

void json_categories(json_writer *json, const uint64_t *nbytes)
{
    json_begin(json, "categories", '{');
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        json_integer(json, ek_memory_category_name((ek_memory_category)c), (int64_t)nbytes[c]);
    json_end(json, '}');
}

int json_devices(json_writer *json, const ek_device_list *devices)
{
    ek_memory_stats stats;
    char name[16];
    int rc = 0;
    json_begin(json, "devices", '[');
    for (int d = 0; d < devices->count && rc == 0; d++) {
        rc = ek_memory_get_stats(devices->devices[d], &stats);
        if (rc < 0)
            break;
        json_begin(json, NULL, '{');
        json_text(json, "name", ek_device_name(devices->devices[d], name));
        json_integer(json, "peak_bytes", (int64_t)stats.peak);
        json_categories(json, stats.at_peak);
        json_end(json, '}');
    }
    json_end(json, ']');
    return rc;
}

int json_network(json_writer *json, const char *key, ek_module *network)
{
    char sha256[65];
    int rc = ek_module_sha256(network, sha256);
    if (rc < 0)
        return rc;
    json_begin(json, key, '{');
    json_integer(json, "parameters", ek_module_numel(network));
    json_text(json, "parameters_sha256", sha256);
    json_end(json, '}');
    return 0;
}

/* ---- curves ---- */

void page_curves(FILE *page, const char *title, const char *x, const page_curve *curves, int count)
{
    json_writer json = {.stream = page};
    fputs("<script type=\"application/json\" class=\"chart\">", page);
    json_begin(&json, NULL, '{');
    json_text(&json, "title", title);
    json_text(&json, "unit", x);
    json_begin(&json, "series", '[');
    for (int i = 0; i < count; i++) {
        json_begin(&json, NULL, '{');
        json_text(&json, "name", curves[i].name);
        json_reals(&json, "values", curves[i].values, curves[i].count);
        json_end(&json, '}');
    }
    json_end(&json, ']');
    json_end(&json, '}');
    fputs("</script>\n", page);
}

/* results.c: series, JSON, lines and curves. */
#include "results.h"
#include "world.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- series ---- */

int series_add(series *to, double value)
{
    if ((to->count & (to->count - 1)) == 0) { /* no room is left at powers of two */
        size_t room = to->count ? 2 * (size_t)to->count : 1;
        double *values = realloc(to->values, room * sizeof *values);
        if (!values)
            return ek_error(EK_E_NO_MEMORY, "no memory for %zu numbers", room);
        to->values = values;
    }
    to->values[to->count++] = value;
    return 0;
}

void series_free(series *list, int count)
{
    for (int i = 0; i < count; i++) {
        free(list[i].values);
        list[i] = (series){.name = list[i].name};
    }
}

static int median_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double series_median(const series *numbers)
{
    const size_t count = (size_t)numbers->count;
    double *sorted = malloc((count + 1) * sizeof *sorted), median = 0;
    if (sorted && count > 0) {
        memcpy(sorted, numbers->values, count * sizeof *sorted);
        qsort(sorted, count, sizeof *sorted, median_compare);
        median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    }
    free(sorted);
    return median;
}

double series_last(const series *numbers)
{
    return numbers->count > 0 ? numbers->values[numbers->count - 1] : 0;
}

double series_sum(const series *numbers, int64_t first, int64_t end)
{
    double sum = 0;
    for (int64_t i = first; i < end && i < numbers->count; i++)
        sum += numbers->values[i];
    return sum;
}

double series_mean(const series *numbers, int64_t first)
{
    return series_sum(numbers, first, numbers->count) / (double)(numbers->count - first);
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

/* Writes what precedes a value: comma, line and key. */
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

static void json_begin(json_writer *json, const char *key, char bracket)
{
    json_lead(json, key);
    fputc(bracket, json->stream);
    json->depth++;
    json->follows = false;
}

static void json_end(json_writer *json, char bracket)
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

static void json_real(json_writer *json, const char *key, double value)
{
    json_lead(json, key);
    if (isfinite(value))
        fprintf(json->stream, "%.17g", value);
    else
        fputs("null", json->stream);
}

void json_write(json_writer *json, const char *format, ...)
{
    va_list values;
    char name[64];
    const char *key = NULL;
    va_start(values, format);
    for (; *format; format += strspn(format, " ")) {
        size_t length = strcspn(format, " ");
        const char kind = *format == '%' ? format[length - 1] : *format;
        if (kind == '{' || kind == '[') {
            json_begin(json, key, kind);
        } else if (kind == '}' || kind == ']') {
            json_end(json, kind);
        } else if (*format != '%') {
            snprintf(name, sizeof name, "%.*s", (int)length, format);
        } else if (kind == 'g') {
            json_real(json, key, va_arg(values, double));
        } else {
            json_lead(json, key);
            if (kind == 's')
                json_quote(json->stream, va_arg(values, const char *));
            else
                fprintf(json->stream, "%jd", va_arg(values, intmax_t));
        }
        key = strchr("{}[]%", *format) ? NULL : name;
        format += length;
    }
    va_end(values);
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

void json_series(json_writer *json, const char *key, const series *numbers)
{
    json_begin(json, key, '[');
    json->flat = true;
    for (int64_t i = 0; i < numbers->count; i++)
        json_real(json, NULL, numbers->values[i]);
    json_end(json, ']');
}

void json_records(json_writer *json, const series *list, int count)
{
    for (int i = 0; i < count; i++)
        json_series(json, list[i].name, &list[i]);
}

static void json_setting(json_writer *json, const arg_spec *arg)
{
    char key[sizeof arg->name], text[64];
    snprintf(key, sizeof key, "%s", arg->name);
    for (char *dash = key; (dash = strchr(dash, '-'));)
        *dash = '_';
    arg_value_text(arg, text);
    json_lead(json, key);
    if (arg->kind == ARG_INT || arg->kind == ARG_REAL)
        fputs(text, json->stream);
    else
        json_quote(json->stream, text);
}

void json_settings(json_writer *json, const arg_spec *args, int devices, const char *plan)
{
    json_write(json, "settings {");
    for (const arg_spec *arg = args; *arg->name && strcmp(arg->name, "out") != 0; arg++) {
        const bool text = arg->kind == ARG_TEXT || arg->kind == ARG_FOLDER;
        if (strcmp(arg->name, "devices") != 0 && strcmp(arg->name, "plan") != 0 &&
            (!text || *(const char *const *)arg->value))
            json_setting(json, arg);
    }
    json_write(json, "devices %jd", (int64_t)devices);
    if (plan[0])
        json_write(json, "plan %s", plan);
    json_write(json, "}");
}

void json_categories(json_writer *json, const uint64_t *nbytes)
{
    json_begin(json, "categories", '{');
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
        json_lead(json, ek_memory_category_name((ek_memory_category)c));
        fprintf(json->stream, "%" PRIu64, nbytes[c]);
    }
    json_end(json, '}');
}

/* A device's peak as numbers, since ranks send each other tensors. */
typedef struct device_peak {
    int64_t rank, kind, index;
    uint64_t nbytes, categories[EK_MEMORY_CATEGORIES];
} device_peak;
enum { PEAK_NUMBERS = sizeof(device_peak) / sizeof(int64_t) };

/* Returns the peaks of all ranks' devices, which the caller frees. NULL on an error. */
static device_peak *peaks_of_all(const ek_device_list *devices, int64_t *count)
{
    device_peak own[EK_MAX_DEVICES] = {{0}}, *all = NULL;
    for (int d = 0; d < devices->count; d++) {
        const ek_device device = devices->devices[d];
        ek_memory_stats stats = {0};
        ek_memory_get_stats(device, &stats);
        own[d] = (device_peak){ek_dist_get_rank(NULL), device.kind, device.index, stats.peak, {0}};
        memcpy(own[d].categories, stats.at_peak, sizeof stats.at_peak);
    }
    ek_scope scope = ek_scope_begin();
    ek_tensor *gathered =
        world_all(ek_from_data(own, EK_SHAPE(devices->count, PEAK_NUMBERS), EK_I64));
    *count = gathered ? ek_tensor_size(gathered, 0) : 0;
    const size_t nbytes = (size_t)*count * sizeof *all;
    all = gathered ? malloc(nbytes) : NULL;
    if (all)
        ek_to_data(gathered, all, nbytes);
    else if (gathered)
        ek_error(EK_E_NO_MEMORY, "no memory for the peaks of %lld devices", (long long)*count);
    ek_scope_end(&scope);
    return all;
}

char *device_label(int rank, ek_device device, char text[40])
{
    char name[16];
    ek_device_name(device, name);
    if (world_size() == 1)
        snprintf(text, 40, "%s", name);
    else
        snprintf(text, 40, "rank %d %s", rank, name);
    return text;
}

static char *peak_name(const device_peak *peak, char text[40])
{
    const ek_device device = {(ek_device_kind)peak->kind, (int)peak->index};
    return device_label((int)peak->rank, device, text);
}

int json_devices(json_writer *json, const ek_device_list *devices)
{
    int64_t count;
    device_peak *peaks = peaks_of_all(devices, &count);
    json_begin(json, "devices", '[');
    for (int64_t i = 0; peaks && i < count; i++) {
        char name[40];
        json_write(json, "{ name %s peak_bytes %jd", peak_name(&peaks[i], name),
                   (int64_t)peaks[i].nbytes);
        json_categories(json, peaks[i].categories);
        json_end(json, '}');
    }
    json_end(json, ']');
    free(peaks);
    return ek_error_status();
}

int json_network(json_writer *json, const char *key, ek_module *network)
{
    char sha256[65];
    int rc = ek_module_sha256(network, sha256);
    if (rc < 0)
        return rc;
    json_begin(json, key, '{');
    json_write(json, "parameters %jd parameters_sha256 %s }", ek_module_numel(network), sha256);
    return 0;
}

/* ---- for a terminal and for a page ---- */

void print_peaks(const ek_device_list *devices)
{
    int64_t count;
    device_peak *peaks = peaks_of_all(devices, &count);
    for (int64_t i = 0; peaks && i < count; i++) {
        char name[40];
        printf("%s%s %.1f MiB", i ? ", " : "Peak memory: ", peak_name(&peaks[i], name),
               (double)peaks[i].nbytes / (1 << 20));
    }
    free(peaks);
    putchar('\n');
}

void page_curves(FILE *page, const char *title, const char *x, const series *curves, int count)
{
    json_writer json = {.stream = page};
    fputs("<script type=\"application/json\" class=\"chart\">", page);
    json_write(&json, "{ title %s unit %s series [", title, x);
    for (int i = 0; i < count; i++) {
        json_write(&json, "{ name %s", curves[i].name);
        json_series(&json, "values", &curves[i]);
        json_end(&json, '}');
    }
    json_write(&json, "] }");
    fputs("</script>\n", page);
}

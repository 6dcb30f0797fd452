/* fit_text.c: trainings and results of ek_fit in words. */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "balance/fit.h"
#include "core/error.h"

/* ---- pieces ---- */

char *ek_fit_bytes(uint64_t nbytes, char text[24])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    double number = (double)nbytes;
    int unit = 0;
    for (; number >= 1024 && unit < 3; unit++)
        number /= 1024;
    snprintf(text, 24, unit ? "%.2f %s" : "%.0f %s", number, units[unit]);
    return text;
}

/* Appends to a text as snprintf does, after a comma if the text isn't empty. */
static void text_add(char *text, size_t room, const char *format, ...) EK_PRINTF(3, 4);
static void text_add(char *text, size_t room, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    if (length + 3 > room)
        return;
    if (length > 0) {
        strcpy(text + length, ", ");
        length += 2;
    }
    va_start(arguments, format);
    vsnprintf(text + length, room - length, format, arguments);
    va_end(arguments);
}

/* Writes samples per device: "6,6,5,5". */
static void text_add_sizes(char *text, size_t room, const int64_t *sizes, int devices)
{
    char list[200] = "";
    size_t length = 0;
    for (int d = 0; d < devices && length < sizeof list; d++)
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%" PRId64, d ? "," : "",
                                   sizes[d]);
    text_add(text, room, "%s", list);
}

/* Appends the name of one means, if the training has it. */
static void text_add_means(const ek_fit_result *result, ek_fit_factor factor, char *text,
                           size_t room)
{
    switch (factor) {
    case EK_FIT_CHECKPOINTS:
        if (result->checkpointed_count > 0)
            text_add(text, room, "%d checkpointed module%s", result->checkpointed_count,
                     result->checkpointed_count > 1 ? "s" : "");
        break;
    case EK_FIT_SHARD:
        if (result->wrapper.shard != EK_SHARD_NONE)
            text_add(text, room, "sharded %s",
                     result->wrapper.shard == EK_SHARD_OPTIMIZER ? "optimizer" : "parameters");
        break;
    case EK_FIT_OFFLOAD:
        if (result->wrapper.offload != EK_OFFLOAD_NONE)
            text_add(text, room, "optimizer on cpu");
        break;
    case EK_FIT_AUTOCAST:
        if (result->autocast == EK_BF16)
            text_add(text, room, "autocast to bf16");
        break;
    case EK_FIT_PARTS:
        if (result->micro_batches > 1)
            text_add(text, room, "%d micro-batches", result->micro_batches);
        break;
    default:
        text_add_sizes(text, room, result->wrapper.chunks, result->wrapper.device_ids.count);
    }
}

static void text_add_all(const ek_fit_result *result, char *text, size_t room)
{
    text[0] = 0;
    for (int f = 0; f < EK_FIT_FACTORS; f++)
        text_add_means(result, (ek_fit_factor)f, text, room);
    if (!text[0])
        text_add(text, room, "no means to save memory");
}

void ek_fit_describe(const ek_fit_search *search, const ek_fit_training *training, char *text,
                     size_t room)
{
    ek_fit_result result;
    ek_fit_apply(search, training, &result);
    text_add_all(&result, text, room);
    text_add_sizes(text, room, training->sizes, search->devices.count);
}

void ek_fit_name_means(const ek_fit_search *search, const ek_fit_training *training,
                       ek_fit_factor factor, char *text, size_t room)
{
    ek_fit_result result;
    ek_fit_apply(search, training, &result);
    text[0] = 0;
    if (factor == EK_FIT_FACTORS)
        text_add(text, room, "uneven cut");
    else
        text_add_means(&result, factor, text, room);
}

/* ---- a result ---- */

static void text_print_means(const ek_expected_means *means, FILE *stream)
{
    char bytes[24];
    const bool less = means->saved < 0, faster = means->seconds < 0;
    const int64_t saved = less ? -means->saved : means->saved;
    fprintf(stream, "%s: %s %s on the fullest device, and a step takes %.3g ms %s.\n", means->name,
            less ? "takes" : "saves", ek_fit_bytes((uint64_t)saved, bytes),
            1000 * (faster ? -means->seconds : means->seconds), faster ? "less" : "more");
}

static void text_print_larger(const ek_fit_larger *larger, FILE *stream)
{
    char name[16], bytes[24];
    ek_device_name(larger->device, name);
    fprintf(stream, "A batch of %" PRId64 " would ", larger->batch);
    if (!larger->fits) {
        fprintf(stream, "not fit: %s would lack %" PRIu64 " bytes (%s).\n", name, larger->missing,
                ek_fit_bytes(larger->missing, bytes));
        return;
    }
    fprintf(stream, "take about %.4g s per step", larger->step_seconds);
    if (larger->micro_batches > 1)
        fprintf(stream, " in %d micro-batches", larger->micro_batches);
    fprintf(stream, ", and %s on %s.\n", ek_fit_bytes(larger->peak, bytes), name);
}

int ek_fit_print(const ek_fit_result *result, FILE *stream)
{
    EK_TRY(ek_check_pointer("fit_print", "the result", result));
    EK_TRY(ek_check_pointer("fit_print", "the stream", stream));
    const ek_expectation *expected = &result->expected;
    char text[400], name[16], bytes[24];
    text_add_all(result, text, sizeof text);
    fprintf(stream, "A batch of %" PRId64 " fits with %s", expected->batch, text);
    text[0] = 0;
    text_add_sizes(text, sizeof text, result->wrapper.chunks, result->wrapper.device_ids.count);
    fprintf(stream, "; devices get %s samples%s.\n", text,
            result->micro_batches > 1 ? " of a micro-batch" : "");
    if (result->checkpointed_count > 0)
        fprintf(stream, "Checkpointed: %s.\n", result->checkpointed);
    fprintf(stream, "Expected: %.4g s per step; peaks:", expected->step_seconds);
    for (int d = 0; d < expected->device_count; d++)
        fprintf(stream, "%s %s %s", d ? "," : "", ek_device_name(expected->devices[d].device, name),
                ek_fit_bytes(expected->devices[d].peak, bytes));
    fputs(".\n", stream);
    for (int m = 0; m < expected->means_count; m++)
        text_print_means(&expected->means[m], stream);
    for (int l = 0; l < EK_FIT_LARGER; l++)
        text_print_larger(&result->larger[l], stream);
    if (ferror(stream))
        return EK_FAIL(EK_E_IO, "fit_print: the stream can't be written");
    return 0;
}

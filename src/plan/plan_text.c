/* plan_text.c: reads and writes plans as text. */
#include "plan/plan_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

/* The largest size of one device, so small that the sum over all devices stays far from
 * overflow. */
static const int64_t largest_size = INT64_C(1000000000000000);
static const int64_t largest_forward = INT64_C(1000000000000000000);

void ek_plans_free(ek_plans *plans)
{
    free(plans->forwards);
    free(plans->sizes);
    *plans = (ek_plans){.devices = plans->devices};
}

static int plans_make_room(ek_plans *plans)
{
    if (plans->count < plans->capacity)
        return 0;
    size_t capacity = plans->capacity ? (size_t)plans->capacity * 2 : 8;
    size_t row = (size_t)plans->devices * sizeof *plans->sizes;
    int64_t *forwards = ek_realloc(plans->forwards, capacity * sizeof *forwards);
    if (!forwards)
        return ek_error_pending();
    plans->forwards = forwards;
    int64_t *sizes = ek_realloc(plans->sizes, capacity * row);
    if (!sizes)
        return ek_error_pending();
    plans->sizes = sizes;
    plans->capacity = (int)capacity;
    return 0;
}

int ek_plans_add(ek_plans *plans, int64_t forward, const int64_t *sizes)
{
    if (plans->count == 0 || plans->forwards[plans->count - 1] != forward) {
        EK_TRY(plans_make_room(plans));
        plans->forwards[plans->count++] = forward;
    }
    memcpy(plans->sizes + (size_t)(plans->count - 1) * (size_t)plans->devices, sizes,
           (size_t)plans->devices * sizeof *sizes);
    return 0;
}

const int64_t *ek_plans_at(const ek_plans *plans, int64_t forward)
{
    int low = 0, high = plans->count; /* all entries before `low` begin at `forward` or earlier */
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (plans->forwards[middle] <= forward)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? plans->sizes + (size_t)(low - 1) * (size_t)plans->devices : NULL;
}

/* ---- reading ---- */

typedef struct reader {
    const char *text, *at;
    int devices;
} reader;

static int plans_fault(const reader *r, const char *wanted)
{
    return EK_FAIL(EK_E_INVALID,
                   "plan \"%.80s\": %s wanted at position %zu (\"%.20s\"); write for example "
                   "\"12,20,20\" or \"16,16,16; 4: 22,13,13\"",
                   r->text, wanted, (size_t)(r->at - r->text) + 1, r->at);
}

static void plans_skip_space(reader *r)
{
    r->at += strspn(r->at, " \t\r\n");
}

/* Reads a whole number from 0 to `largest`, and skips white space before and after it. */
static int plans_read_number(reader *r, int64_t largest, const char *wanted, int64_t *number)
{
    plans_skip_space(r);
    const char *at = r->at;
    int64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        int64_t digit = *at - '0';
        if (value > (largest - digit) / 10)
            return EK_FAIL(
                EK_E_INVALID,
                "plan \"%.80s\": the number at position %zu (\"%.20s\") is above %" PRId64
                ", the largest one possible",
                r->text, (size_t)(r->at - r->text) + 1, r->at, largest);
        value = value * 10 + digit;
    }
    if (at == r->at)
        return plans_fault(r, wanted);
    *number = value;
    r->at = at;
    plans_skip_space(r);
    return 0;
}

/* Reads the number of a forward, as in "4:". The first entry may lack this number, and then begins
 * at forward 0. */
static int plans_read_forward(reader *r, const ek_plans *plans, int64_t *forward)
{
    reader ahead = *r;
    plans_skip_space(&ahead);
    ahead.at += strspn(ahead.at, "0123456789");
    plans_skip_space(&ahead);
    if (*ahead.at != ':') {
        *forward = 0;
        return plans->count ? plans_fault(r, "the number of a forward and a colon") : 0;
    }
    plans_skip_space(r);
    const char *began = r->at;
    EK_TRY(plans_read_number(r, largest_forward, "the number of a forward", forward));
    r->at++;
    int64_t before = plans->count ? plans->forwards[plans->count - 1] : -1;
    if (plans->count ? *forward > before : *forward == 0)
        return 0;
    if (!plans->count)
        return EK_FAIL(EK_E_INVALID,
                       "plan \"%.80s\": the first entry, at position %zu, is for forward %" PRId64
                       "; it must be for forward 0, the first",
                       r->text, (size_t)(began - r->text) + 1, *forward);
    return EK_FAIL(EK_E_INVALID,
                   "plan \"%.80s\": the entry at position %zu is for forward %" PRId64
                   ", the one before it for %" PRId64 "; they must be in ascending order",
                   r->text, (size_t)(began - r->text) + 1, *forward, before);
}

static int plans_read_sizes(reader *r, int64_t *sizes)
{
    int64_t sum = 0;
    plans_skip_space(r);
    const char *began = r->at;
    for (int i = 0; i < r->devices; i++) {
        if (i > 0) {
            if (*r->at != ',')
                return EK_FAIL(EK_E_INVALID,
                               "plan \"%.80s\": the entry at position %zu has %d size%s, but there "
                               "are %d devices; a comma is wanted at position %zu (\"%.20s\")",
                               r->text, (size_t)(began - r->text) + 1, i, i > 1 ? "s" : "",
                               r->devices, (size_t)(r->at - r->text) + 1, r->at);
            r->at++;
        }
        EK_TRY(plans_read_number(r, largest_size, "a number of samples", &sizes[i]));
        sum += sizes[i];
    }
    if (*r->at == ',')
        return EK_FAIL(EK_E_INVALID,
                       "plan \"%.80s\": the entry at position %zu has more than %d sizes, one for "
                       "each device",
                       r->text, (size_t)(began - r->text) + 1, r->devices);
    if (sum == 0)
        return EK_FAIL(EK_E_INVALID,
                       "plan \"%.80s\": the entry at position %zu gives no device a sample",
                       r->text, (size_t)(began - r->text) + 1);
    return 0;
}

static int plans_read_entries(reader *r, ek_plans *plans)
{
    int64_t forward, sizes[EK_MAX_DEVICES];
    for (;;) {
        EK_TRY(plans_read_forward(r, plans, &forward));
        EK_TRY(plans_read_sizes(r, sizes));
        EK_TRY(ek_plans_add(plans, forward, sizes));
        if (!*r->at)
            return 0;
        if (*r->at != ';')
            return plans_fault(r, "a semicolon or the end");
        r->at++;
    }
}

int ek_plans_parse(ek_plans *plans, const char *text, int devices)
{
    *plans = (ek_plans){.devices = devices};
    if (devices < 1 || devices > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_INVALID, "a plan is for between 1 and %d devices, not for %d",
                       EK_MAX_DEVICES, devices);
    if (!text)
        return EK_FAIL(EK_E_INVALID, "the plan is NULL; write for example \"12,20,20\"");
    reader r = {text, text, devices};
    int rc = plans_read_entries(&r, plans);
    if (rc < 0)
        ek_plans_free(plans);
    return rc;
}

int ek_plan_check(const char *text, int devices)
{
    ek_plans plans;
    EK_TRY(ek_plans_parse(&plans, text, devices));
    ek_plans_free(&plans);
    return 0;
}

/* ---- writing ---- */

typedef struct writer {
    char *text;
    size_t room, length;
} writer;

static void plans_put(writer *w, const char *part)
{
    size_t length = strlen(part);
    if (w->length < w->room) {
        size_t fits = w->room - w->length - 1;
        fits = length < fits ? length : fits;
        memcpy(w->text + w->length, part, fits);
        w->text[w->length + fits] = '\0';
    }
    w->length += length;
}

size_t ek_plans_write(const ek_plans *plans, char *text, size_t room)
{
    writer w = {text, room, 0};
    char part[40];
    plans_put(&w, "");
    for (int i = 0; i < plans->count; i++) {
        const int64_t *sizes = plans->sizes + (size_t)i * (size_t)plans->devices;
        if (i > 0) {
            snprintf(part, sizeof part, "; %" PRId64 ": ", plans->forwards[i]);
            plans_put(&w, part);
        }
        for (int j = 0; j < plans->devices; j++) {
            snprintf(part, sizeof part, "%s%" PRId64, j ? "," : "", sizes[j]);
            plans_put(&w, part);
        }
    }
    return w.length;
}

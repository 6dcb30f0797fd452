/* html_layout.c: which boxes show a step: thousands of spans are more than a screen has pixels, so
 * that neighbours too narrow to be seen become one box; and their sums by label. */
#include "report/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

/* Lanes and rows that are drawn, and boxes of one step, which keeps a page small. */
enum { LANES = 64, DEPTHS = 6, BOXES = 3000 };

static bool usable(const ek_report_span *span)
{
    return isfinite(span->begin) && isfinite(span->end) && span->end >= span->begin &&
           span->depth >= 0;
}

/* By device, thread, begin; outer ones first. */
static int compare_spans(const void *left, const void *right)
{
    const ek_report_span *a = *(const ek_report_span *const *)left,
                         *b = *(const ek_report_span *const *)right;

    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->thread != b->thread)
        return a->thread < b->thread ? -1 : 1;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->depth != b->depth ? (a->depth < b->depth ? -1 : 1) : 0;
}

/* The usable ones in that order; the caller frees. */
static const ek_report_span **sorted(const ek_html_run *run, int *count)
{
    const ek_report_span **spans = ek_calloc((size_t)run->span_count + 1, sizeof(*spans));

    *count = 0;
    for (int i = 0; spans && i < run->span_count; i++)
        if (usable(&run->spans[i]))
            spans[(*count)++] = &run->spans[i];
    if (spans)
        qsort(spans, (size_t)*count, sizeof(*spans), compare_spans);
    return spans;
}

static bool same_lane(const ek_report_span *a, const ek_report_span *b)
{
    return a->device == b->device && a->thread == b->thread;
}

/* Each span's time less that of those directly within it. */
static void read_selves(const ek_report_span **spans, int count, double *selves)
{
    enum { DEEPEST = 64 };
    int outer[DEEPEST];

    for (int i = 0; i < count; i++) {
        int depth = spans[i]->depth;
        selves[i] = spans[i]->end - spans[i]->begin;
        if (i == 0 || !same_lane(spans[i], spans[i - 1]))
            for (int d = 0; d < DEEPEST; d++)
                outer[d] = -1;
        if (depth >= DEEPEST)
            continue;
        outer[depth] = i;
        if (depth > 0 && outer[depth - 1] >= 0 && spans[outer[depth - 1]]->end >= spans[i]->end)
            selves[outer[depth - 1]] -= selves[i];
    }
}

/* ---- boxes ---- */

/* A row of a lane while it is laid out. */
typedef struct box_row {
    ek_html_box box;
    double times[EK_SPAN_KINDS], longest;
    bool open;
} box_row;

typedef struct box_list {
    ek_html_box *boxes; /* NULL: only counted */
    int count, merged;
} box_list;

static void close_box(box_row *row, box_list *list)
{
    if (!row->open)
        return;
    for (int k = 0; k < EK_SPAN_KINDS; k++)
        if (row->times[k] > row->times[row->box.kind])
            row->box.kind = (ek_span_kind)k;
    if (row->box.spans > 1) {
        list->merged += row->box.spans;
        row->box.frame = false;
    }
    if (list->boxes)
        list->boxes[list->count] = row->box;
    list->count++;
    row->open = false;
}

/* A box takes another span while it is narrower than `width` itself, and its neighbour too. */
static bool joins(const box_row *row, const ek_report_span *span, double width)
{
    return row->open && row->box.end - row->box.begin < width && span->end - span->begin < width &&
           span->begin - row->box.end < width;
}

static void add_span(box_row *row, const ek_report_span *span, double self, int lane, double width,
                     box_list *list)
{
    double time = span->end - span->begin;

    if (!joins(row, span, width)) {
        close_box(row, list);
        *row = (box_row){.box = {.lane = lane,
                                 .depth = span->depth,
                                 .kind = span->kind,
                                 .frame = self < time / 2,
                                 .begin = span->begin,
                                 .end = span->end},
                         .longest = -1,
                         .open = true};
    }
    row->box.spans++;
    row->box.end = fmax(row->box.end, span->end);
    row->times[span->kind] += time;
    if (time > row->longest) {
        row->longest = time;
        row->box.label = span->label;
    }
}

static void place_spans(const ek_report_span **spans, const double *selves, int count, double width,
                        box_list *list)
{
    box_row rows[DEPTHS] = {0};
    int lane = -1;

    for (int i = 0; i < count; i++) {
        if (i == 0 || !same_lane(spans[i], spans[i - 1])) {
            for (int d = 0; d < DEPTHS; d++)
                close_box(&rows[d], list);
            if (++lane == LANES)
                return;
        }
        if (spans[i]->depth < DEPTHS)
            add_span(&rows[spans[i]->depth], spans[i], selves[i], lane, width, list);
    }
    for (int d = 0; d < DEPTHS; d++)
        close_box(&rows[d], list);
}

/* ---- lanes ---- */

static void find_lanes(const ek_report_span **spans, int count, ek_html_layout *layout)
{
    ek_html_lane *lane = NULL;

    for (int i = 0; i < count; i++) {
        if (i == 0 || !same_lane(spans[i], spans[i - 1])) {
            if (layout->lane_count == LANES) {
                layout->hidden += count - i;
                return;
            }
            lane = &layout->lanes[layout->lane_count++];
            *lane = (ek_html_lane){spans[i]->device, spans[i]->thread, 0, true};
            if (lane > layout->lanes && lane[-1].device == lane->device)
                lane->alone = lane[-1].alone = false;
        }
        if (spans[i]->depth >= DEPTHS)
            layout->hidden++;
        else if (spans[i]->depth >= lane->depth)
            lane->depth = spans[i]->depth + 1;
    }
}

static int place(const ek_report_span **spans, const double *selves, int count, double seconds,
                 ek_html_layout *layout)
{
    double width = seconds * 1.5 / 1400;
    box_list list = {0};

    place_spans(spans, selves, count, width, &list);
    while (list.count > BOXES && width < seconds) {
        width *= 1.5;
        list = (box_list){0};
        place_spans(spans, selves, count, width, &list);
    }
    layout->boxes = ek_calloc((size_t)list.count + 1, sizeof *layout->boxes);
    if (!layout->boxes)
        return EK_E_NO_MEMORY;
    list = (box_list){.boxes = layout->boxes};
    place_spans(spans, selves, count, width, &list);
    layout->box_count = list.count;
    layout->merged = list.merged;
    return 0;
}

int ek_html_lay_out(const ek_html_run *run, double seconds, ek_html_layout *layout)
{
    int count, rc = EK_E_NO_MEMORY;
    const ek_report_span **spans = sorted(run, &count);
    double *selves = ek_calloc((size_t)count + 1, sizeof *selves);

    *layout = (ek_html_layout){.lanes = ek_calloc(LANES, sizeof *layout->lanes)};
    if (spans && selves && layout->lanes) {
        read_selves(spans, count, selves);
        find_lanes(spans, count, layout);
        rc = place(spans, selves, count, seconds, layout);
    }
    free(selves);
    free(spans);
    if (rc < 0)
        ek_html_layout_free(layout);
    return rc;
}

void ek_html_layout_free(ek_html_layout *layout)
{
    free(layout->boxes);
    free(layout->lanes);
    *layout = (ek_html_layout){0};
}

/* ---- sums ---- */

static int compare_labels(const void *left, const void *right)
{
    const ek_html_sum *a = left, *b = right;
    int order = strcmp(a->label, b->label);

    return order ? order : a->kind != b->kind ? (a->kind < b->kind ? -1 : 1) : 0;
}

static int compare_seconds(const void *left, const void *right)
{
    const ek_html_sum *a = left, *b = right;

    if (a->seconds != b->seconds)
        return a->seconds > b->seconds ? -1 : 1;
    return compare_labels(left, right);
}

int ek_html_sums(const ek_html_run *run, ek_html_sum **sums, int *count)
{
    int spans_count;
    const ek_report_span **spans = sorted(run, &spans_count);

    *count = 0;
    *sums = ek_calloc((size_t)spans_count + 1, sizeof **sums);
    double *selves = ek_calloc((size_t)spans_count + 1, sizeof *selves);
    if (!spans || !*sums || !selves) {
        free(selves);
        free(spans);
        free(*sums);
        *sums = NULL;
        return EK_E_NO_MEMORY;
    }
    read_selves(spans, spans_count, selves);
    for (int i = 0; i < spans_count; i++)
        (*sums)[i] = (ek_html_sum){spans[i]->label, spans[i]->kind, 1, selves[i]};
    free(selves);
    free(spans);
    qsort(*sums, (size_t)spans_count, sizeof **sums, compare_labels);
    for (int i = 0; i < spans_count; i++) {
        ek_html_sum *one = &(*sums)[i];
        if (*count > 0 && compare_labels(&(*sums)[*count - 1], one) == 0) {
            (*sums)[*count - 1].count += one->count;
            (*sums)[*count - 1].seconds += one->seconds;
        } else {
            (*sums)[(*count)++] = *one;
        }
    }
    qsort(*sums, (size_t)*count, sizeof **sums, compare_seconds);
    return 0;
}

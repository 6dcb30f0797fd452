/* log.c: spans of one thread. */
#include "report/log.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

ek_log *ek_log_new(int thread)
{
    ek_log *log = calloc(1, sizeof *log); /* no sentence: the thread's work has not failed */
    if (!log)
        return NULL;
    log->thread = thread;
    pthread_mutex_init(&log->lock, NULL);
    return log;
}

void ek_log_free(ek_log *log)
{
    if (!log)
        return;
    pthread_mutex_destroy(&log->lock);
    free(log->pages[0].spans);
    free(log->pages[1].spans);
    free(log);
}

/* ---- labels ---- */

static size_t append(char *label, size_t used, size_t room, const char *text)
{
    while (*text && used + 1 < room)
        label[used++] = *text++;
    label[used] = '\0';
    return used;
}

/* Where a letter of several bytes was perhaps cut, it goes. */
static void drop_cut_letter(char *label, size_t used)
{
    while (used > 0 && ((unsigned char)label[used - 1] & 0xC0) == 0x80)
        used--;
    if (used > 0 && (unsigned char)label[used - 1] >= 0xC0)
        used--;
    label[used] = '\0';
}

void ek_span_label(const ek_span *span, char label[96])
{
    size_t used = 0;
    label[0] = '\0';
    if (span && span->what)
        used = append(label, used, 96, span->what);
    if (span && span->what && span->name)
        used = append(label, used, 96, " ");
    if (span && span->name)
        used = append(label, used, 96, span->name);
    if (used == 95)
        drop_cut_letter(label, used);
}

/* ---- spans ---- */

/* Room for one more; NULL where it is not kept. */
static ek_log_span *next_span(ek_log_page *page)
{
    enum { FIRST = 256 };
    if (page->count == page->room && page->room < EK_LOG_SPANS) {
        const int room = page->room ? 2 * page->room : FIRST;
        ek_log_span *grown = realloc(page->spans, (size_t)room * sizeof *grown);
        if (grown) {
            page->spans = grown;
            page->room = room;
        }
    }
    if (page->count < page->room)
        return &page->spans[page->count++];
    page->dropped++;
    return NULL;
}

/* Within how many of the thread's spans for the same device it lies. */
static int depth_of(const ek_span *span)
{
    int depth = 0;
    for (const ek_span *outer = span->outer; outer; outer = outer->outer)
        depth += outer->dev == span->dev;
    return depth;
}

void ek_log_add(ek_log *log, const ek_span *span, int device, uint64_t ended, uint64_t self)
{
    ek_lock(&log->lock);
    if (span->kind == EK_SPAN_COMPUTE)
        log->busy[device].computing += self;
    else if (span->kind == EK_SPAN_COMMUNICATE)
        log->busy[device].communicating += self;
    ek_log_span *kept = next_span(&log->pages[log->current]);
    if (kept) {
        kept->begin = span->began;
        kept->end = ended;
        kept->device = (int16_t)device;
        kept->depth = (int16_t)depth_of(span);
        kept->kind = span->kind;
        ek_span_label(span, kept->label);
    }
    ek_unlock(&log->lock);
}

void ek_log_turn(ek_log *log, int devices, ek_busy *busy)
{
    ek_lock(&log->lock);
    for (int d = 0; d < devices; d++) {
        busy[d].computing += log->busy[d].computing;
        busy[d].communicating += log->busy[d].communicating;
        log->busy[d] = (ek_busy){0, 0};
    }
    log->current = !log->current;
    log->pages[log->current].count = 0;
    log->pages[log->current].dropped = 0;
    ek_unlock(&log->lock);
}

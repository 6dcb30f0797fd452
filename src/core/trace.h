/* trace.h: reports to a tracer what the library does, when, and on which device.
 *
 * Code that computes, moves data or waits puts a span around it:
 *
 *     ek_span span;
 *     ek_span_begin(&span, EK_SPAN_COMPUTE, "backward of", node->operation->name, dev);
 *     ...
 *     ek_span_end(&span);
 *
 * Spans of one thread nest, and time counts for the innermost span. Without a tracer a span costs
 * one relaxed load. The allocator also reports every change of a device's memory, with the thread's
 * innermost span, which tells what requested the memory. */
#ifndef EK_CORE_TRACE_H
#define EK_CORE_TRACE_H

#include <stdatomic.h>

#include "core/holders.h"

typedef struct ek_dev ek_dev;

typedef enum ek_span_kind {
    EK_SPAN_COMPUTE,
    EK_SPAN_COMMUNICATE,
    EK_SPAN_WAIT,
    EK_SPAN_KINDS
} ek_span_kind;

typedef struct ek_span {
    const char *what, *name; /* either may be NULL; borrowed until the span has ended */
    const char *path;        /* The module that the span works for (path.h) */
    ek_dev *dev;
    uint64_t began, inner; /* nanoseconds: when the span began; how long the spans within it took */
    struct ek_span *outer; /* the enclosing span, on the same thread */
    ek_span_kind kind;
    bool open;
} ek_span;

/* The tracer. It is called on any thread with locks held: it must not allocate device memory, begin
 * spans, or wait for a thread that does. */
typedef struct ek_tracer {
    void (*span)(const ek_span *span, uint64_t ended, void *user); /* the span ended at `ended` */
    /* The memory of a device has changed. `span` is the thread's innermost span, or NULL. `left`
     * held a block that is free, or counted otherwise, from now on; NULL: there is no such block.
     * The lock of the device's allocator is held. */
    void (*memory)(const ek_dev *dev, const ek_memory_stats *stats, const ek_span *span,
                   const ek_held *left, void *user);
    /* Optional: a request found no memory. The lock of the device's allocator is held. */
    void (*shortage)(const ek_dev *dev, const ek_shortage *lack, const ek_span *span, void *user);
    void *user;
} ek_tracer;

/* Sets the tracer (copied); fails with EK_E_STATE if there is one already. NULL removes the tracer
 * and waits until its calls have ended. */
int ek_trace_set(const ek_tracer *tracer);

extern atomic_bool ek_trace_on;

/* ---- slow paths ---- */

void ek_span_open(ek_span *span);
void ek_span_close(ek_span *span);
void ek_trace_tell_memory(const ek_dev *dev, const ek_memory_stats *stats, const ek_held *left);
void ek_trace_shortage(const ek_dev *dev, const ek_shortage *lack);

/* Begins a span. On a worker the span belongs to the worker's device, whatever span_dev is. On
 * another thread a NULL span_dev means the device of the enclosing span; if there is no such span,
 * the device for which the thread works. The struct must not move until ek_span_end: spans are
 * linked by address. */
#define ek_span_begin(span, span_kind, span_what, span_name, span_dev)  \
    do {                                                                \
        (span)->open = false;                                           \
        if (atomic_load_explicit(&ek_trace_on, memory_order_relaxed)) { \
            *(span) = (ek_span){.kind = (span_kind),                    \
                                .what = (span_what),                    \
                                .name = (span_name),                    \
                                .dev = (span_dev)};                     \
            ek_span_open(span);                                         \
        }                                                               \
    } while (0)

static inline void ek_span_end(ek_span *span)
{
    if (span->open)
        ek_span_close(span);
}

/* Reports a change of memory. For the allocator, with its lock held. */
static inline void ek_trace_memory(const ek_dev *dev, const ek_memory_stats *stats,
                                   const ek_held *left)
{
    if (atomic_load_explicit(&ek_trace_on, memory_order_relaxed))
        ek_trace_tell_memory(dev, stats, left);
}

#endif

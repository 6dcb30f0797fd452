/* trace.h: what happens when and where, for whoever collects it.
 *
 * Code that computes, moves data or waits says so with a span around it:
 *
 *     ek_span span;
 *     ek_span_begin(&span, EK_SPAN_COMPUTE, "backward of", node->operation->name, dev);
 *     ...
 *     ek_span_end(&span);
 *
 * Spans nest per thread, and a device's time goes to the innermost. While nobody collects, a span
 * costs one relaxed load. The allocator reports every change of a device's memory the same way; the
 * innermost span of the thread says what asked for it. */
#ifndef EK_CORE_TRACE_H
#define EK_CORE_TRACE_H

#include <stdatomic.h>

#include "evenkeel/device.h"

typedef struct ek_dev ek_dev;

typedef enum ek_span_kind {
    EK_SPAN_COMPUTE,
    EK_SPAN_COMMUNICATE,
    EK_SPAN_WAIT,
    EK_SPAN_KINDS
} ek_span_kind;

typedef struct ek_span {
    const char *what, *name; /* either may be NULL; they live until the span has ended */
    ek_dev *dev;
    uint64_t began, inner; /* nanoseconds; those of the spans within it */
    struct ek_span *outer; /* of the same thread */
    ek_span_kind kind;
    bool open;
} ek_span;

/* Whoever collects. Called from any thread, with locks held: must neither allocate device memory
 * nor begin spans, and waits for nobody who does. */
typedef struct ek_tracer {
    void (*span)(const ek_span *span, uint64_t ended, void *user); /* has ended */
    /* A device's memory has changed; `span` is the calling thread's innermost one or NULL. The
     * allocator's lock is held. */
    void (*memory)(const ek_dev *dev, const ek_memory_stats *stats, const ek_span *span,
                   void *user);
    void *user;
} ek_tracer;

/* NULL: nobody collects from now on, and on return no call of the tracer before is running.
 * EK_E_STATE if there is one already. */
int ek_trace_set(const ek_tracer *tracer);

extern atomic_bool ek_trace_on;

/* ---- slow paths ---- */

void ek_span_open(ek_span *span);
void ek_span_close(ek_span *span);
void ek_trace_tell_memory(const ek_dev *dev, const ek_memory_stats *stats);

/* A worker's spans are its device's, whatever `dev` says; on other threads NULL stands for the
 * device of the span around it, or of the part that the thread runs. The span stays where it was
 * begun: it is linked by address. */
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

/* For the allocator, whose lock is held. */
static inline void ek_trace_memory(const ek_dev *dev, const ek_memory_stats *stats)
{
    if (atomic_load_explicit(&ek_trace_on, memory_order_relaxed))
        ek_trace_tell_memory(dev, stats);
}

#endif

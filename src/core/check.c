/* check.c: what EVENKEEL_CHECK asks for, warnings, and tombstones of released handles. */
#include "core/check.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/cells.h"
#include "core/environment.h"
#include "core/locale.h"
#include "core/thread.h"
#include "evenkeel/scope.h"

/* ---- the environment ---- */

static const char variable[] = "EVENKEEL_CHECK";

atomic_uint ek_checks;

void ek_checks_read(void)
{
    unsigned checks = 0;
#ifdef EK_CHECKED_BY_DEFAULT
    checks = ek_environment_lists(variable, "0") ? 0 : EK_CHECK_LIFETIMES;
#endif
    if (ek_environment_lists(variable, "1"))
        checks |= EK_CHECK_LIFETIMES;
    if (ek_environment_lists(variable, "anomaly"))
        checks |= EK_CHECK_ANOMALY;
    atomic_store(&ek_checks, checks);
}

__attribute__((constructor)) static void check_begin(void)
{
    ek_checks_read();
}

int ek_checks_validate(void)
{
    static const char *const words[] = {"0", "1", "anomaly"};
    return ek_environment_check_list(variable, words, 3);
}

/* ---- warnings ---- */

/* Returns true if the sentence was not told before, for at most MOST sentences: afterwards false.
 * Sentences are known by their digests, which are never 0. */
static bool check_is_news(const char *sentence)
{
    enum { MOST = 256 };
    static atomic_uint_fast64_t told[MOST];
    uint_fast64_t digest = UINT64_C(14695981039346656037); /* FNV-1a */
    for (const char *at = sentence; *at; at++)
        digest = (digest ^ (unsigned char)*at) * UINT64_C(1099511628211);
    digest |= 1;
    for (int i = 0; i < MOST; i++) {
        uint_fast64_t known = 0;
        if (atomic_compare_exchange_strong(&told[i], &known, digest))
            return true;
        if (known == digest)
            return false;
    }
    return false;
}

void ek_check_warn(const char *format, ...)
{
    char sentence[900];
    va_list arguments;
    va_start(arguments, format);
    ek_format_list(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (check_is_news(sentence) && !ek_log_line(EK_LOG_WARNING, "%s", sentence))
        fprintf(stderr, "evenkeel: %s\n", sentence);
}

/* ---- what releases ---- */

void *ek_placed(const void *pointer, const char *file, int line)
{
    if (ek_checks_for(EK_CHECK_LIFETIMES)) {
        const char *name = file ? strrchr(file, '/') : NULL;
        ek_thread_self()->checks.place =
            (ek_releaser){.file = name ? name + 1 : file, .line = line};
    }
    return (void *)(uintptr_t)pointer;
}

ek_releaser ek_release_take_place(const char *what)
{
    ek_thread *thread = ek_thread_self();
    ek_releaser place = thread->checks.place;
    thread->checks.place = (ek_releaser){0};
    place.what = what;
    return place;
}

ek_releaser ek_release_set(ek_releaser releaser)
{
    ek_thread *thread = ek_thread_self();
    ek_releaser before = thread->checks.releaser;
    thread->checks.releaser = releaser;
    return before;
}

bool ek_release_begin(ek_releaser *outer, const char *function, const void *handle)
{
    ek_thread_checks *checks = &ek_thread_self()->checks;
    *outer = checks->releaser;
    if (checks->place.file)
        checks->releaser = ek_release_take_place(function);
    if (!handle)
        return false;
    if (!ek_is_retired(handle))
        return true;
    ek_retired_warn(function, handle);
    return false;
}

/* ---- tombstones ---- */

/* What becomes of a handle's memory. A tensor has its dtype and ndim at `zeros`, a list its count:
 * code that doesn't know of the release sees an empty tensor or list. */
typedef struct tombstone {
    void *first;      /* an object's count of references; unchanged in other handles */
    const void *mark; /* &tombstone_mark */
    int zeros[2];
    const char *kind;
    ek_releaser releaser;
    size_t cell_nbytes; /* 0: `memory` is of malloc */
    void *memory;
} tombstone;
_Static_assert(sizeof(tombstone) <= EK_TOMBSTONE_NBYTES, "handles have room for a tombstone");

/* Tombstones of at most SMALL_NBYTES (tensors have 320) wait in a ring of the thread that released
 * them, those of a thread that has ended in a queue, and larger ones in another queue. A tombstone
 * is freed when the ring has taken SMALL_MOST later ones, so that a thread's tombstones of tensors
 * have 5 MiB. The queues free theirs after SMALL_MOST and LARGE_MOST later ones. A ring without
 * locks costs half as much as a queue of all threads. */
enum { SMALL_NBYTES = 1 << 12, SMALL_MOST = 1 << 14, LARGE_NBYTES = 1 << 16, LARGE_MOST = 1 << 8 };
static _Atomic(tombstone *) large_retired[LARGE_MOST], retired_by_ended_threads[SMALL_MOST];
static atomic_uint large_count, ended_count;
static const char tombstone_mark;

static void tombstone_free(tombstone *stone)
{
    if (stone && stone->cell_nbytes)
        ek_cell_free(stone, stone->cell_nbytes);
    else if (stone)
        free(stone->memory);
}

static void tombstone_queue(_Atomic(tombstone *) *queue, unsigned most, atomic_uint *count,
                            tombstone *stone)
{
    const unsigned i = atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    tombstone_free(atomic_exchange_explicit(&queue[i % most], stone, memory_order_acq_rel));
}

static void tombstone_retire(tombstone *stone, size_t nbytes, const char *kind, size_t cell_nbytes,
                             void *memory)
{
    ek_thread_checks *checks = &ek_thread_self()->checks;
    *stone = (tombstone){.first = stone->first,
                         .mark = &tombstone_mark,
                         .kind = kind,
                         .releaser = checks->releaser,
                         .cell_nbytes = cell_nbytes,
                         .memory = memory};
    const bool is_small = nbytes <= SMALL_NBYTES;
    if (is_small && !checks->retired)
        checks->retired = calloc(SMALL_MOST, sizeof(tombstone *));
    if (!is_small || !checks->retired) {
        tombstone_queue(large_retired, LARGE_MOST, &large_count, stone);
        return;
    }
    /* The tombstones that are freed soon, whose cells new tensors take. */
    const char *soon = (const char *)checks->retired[(checks->retired_count + 8) % SMALL_MOST];
    for (size_t at = 0; soon && at < 320; at += 64)
        __builtin_prefetch(soon + at, 1);
    tombstone **place = &checks->retired[checks->retired_count++ % SMALL_MOST];
    tombstone *before = *place;
    *place = stone;
    tombstone_free(before);
}

void ek_retired_hand_over(ek_thread *thread)
{
    tombstone **retired = thread->checks.retired;
    for (unsigned i = 0; retired && i < SMALL_MOST; i++) { /* the oldest first */
        tombstone *stone = retired[(thread->checks.retired_count + i) % SMALL_MOST];
        if (stone)
            tombstone_queue(retired_by_ended_threads, SMALL_MOST, &ended_count, stone);
    }
    free(retired);
    thread->checks.retired = NULL;
}

void ek_retire(void *handle, size_t nbytes, const char *kind, void *memory)
{
    if (ek_checks_for(EK_CHECK_LIFETIMES) && nbytes >= sizeof(tombstone) && nbytes <= LARGE_NBYTES)
        tombstone_retire(handle, nbytes, kind, 0, memory);
    else
        free(memory);
}

void ek_retire_cell(void *handle, size_t nbytes, const char *kind)
{
    tombstone_retire(handle, nbytes, kind, nbytes, NULL);
}

bool ek_is_retired(const void *handle)
{
    return ((const tombstone *)handle)->mark == &tombstone_mark;
}

/* Writes " by ek_release at file.c:12", or nothing if nothing is known, and returns `text`. */
static const char *releaser_text(const ek_releaser *releaser, char text[200])
{
    text[0] = '\0';
    if (releaser->what && releaser->name)
        snprintf(text, 200, " by %s %s", releaser->what, releaser->name);
    else if (releaser->what && releaser->file)
        snprintf(text, 200, " by %s at %s:%d", releaser->what, releaser->file, releaser->line);
    else if (releaser->what)
        snprintf(text, 200, " by %s", releaser->what);
    return text;
}

/* Returns what keeps a handle that a scope has released. */
static const char *tombstone_remedy(const tombstone *stone)
{
    const ek_releaser *releaser = &stone->releaser;
    if (!releaser->what || strncmp(releaser->what, "the ", 4) != 0)
        return "";
    return strcmp(stone->kind, "tensor") == 0 ? "; ek_keep it to use it longer"
                                              : "; ek_value_keep it to use it longer";
}

int ek_retired_fail(const char *what, const char *operand, const void *handle)
{
    const tombstone *stone = handle;
    char text[200];
    return EK_FAIL(EK_E_STATE, "%s: %s was released%s%s", what, operand,
                   releaser_text(&stone->releaser, text), tombstone_remedy(stone));
}

void ek_retired_warn(const char *function, const void *handle)
{
    const tombstone *stone = handle;
    const ek_releaser *now = &ek_thread_self()->checks.releaser;
    char before[200], place[200] = "";
    if (now->file)
        snprintf(place, sizeof place, " at %s:%d", now->file, now->line);
    ek_check_warn("%s%s: this %s was released before%s", function, place, stone->kind,
                  releaser_text(&stone->releaser, before));
}

int ek_check_handle(const char *what, const char *operand, const void *handle)
{
    return handle ? ek_check_alive(what, operand, handle) : ek_check_given(what, operand, handle);
}

/* inject.c: which call fails; memory, threads, maps and locks. */
#include "inject.h"

#include <errno.h>
#include <execinfo.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ledger.h"

static struct {
    atomic_bool armed;
    inject_plan plan;
    atomic_int points[INJECT_SERIES];
    atomic_int fired;
    inject_result result;
} inject;

#define INJECT_SERIES_CLASS(name, group, kind) group,
#define INJECT_SERIES_KIND(name, group, kind) kind,

const char *inject_series_class(inject_series series)
{
    static const char *const classes[] = {INJECT_SERIES_MAP(INJECT_SERIES_CLASS)};
    return classes[series];
}

const char *inject_series_kind(inject_series series)
{
    static const char *const kinds[] = {INJECT_SERIES_MAP(INJECT_SERIES_KIND)};
    return kinds[series];
}

void inject_arm(const inject_plan *plan)
{
    inject.plan = *plan;
    for (int i = 0; i < INJECT_SERIES; i++)
        inject.points[i] = 0;
    inject.fired = 0;
    inject.result = (inject_result){0};
    inject.armed = true;
}

const inject_result *inject_disarm(void)
{
    inject.armed = false;
    for (int i = 0; i < INJECT_SERIES; i++)
        inject.result.points[i] = inject.points[i];
    inject.result.fired = inject.fired;
    return &inject.result;
}

const inject_result *inject_last(void)
{
    return &inject.result;
}

/* A call that is always interrupted would be retried for ever, so a persisting plan interrupts
 * every second call. */
static bool inject_is_due(int point)
{
    int past = point - inject.plan.point;
    if (inject.plan.point == 0 || past < 0)
        return false;
    if (!inject.plan.persist)
        return past == 0;
    return inject.plan.series != INJECT_INTERRUPTED || past % 2 == 0;
}

bool inject_hit(inject_series series, const char *function)
{
    if (!inject.armed)
        return false;
    int point = atomic_fetch_add(&inject.points[series], 1) + 1;
    if (series != inject.plan.series || !inject_is_due(point))
        return false;
    if (atomic_fetch_add(&inject.fired, 1) == 0) {
        inject.result.function = function;
        inject.result.depth = backtrace(inject.result.stack, INJECT_DEPTH);
    }
    return true;
}

/* ---- memory ---- */

#define INJECT_ALLOCATION(name, parameters, arguments) \
    void *__real_##name parameters;                    \
    void *__wrap_##name parameters;                    \
    void *__wrap_##name parameters                     \
    {                                                  \
        if (inject_hit(INJECT_MEMORY, #name)) {        \
            errno = ENOMEM;                            \
            return NULL;                               \
        }                                              \
        return ledger_add(__real_##name arguments);    \
    }

INJECT_ALLOCATION(malloc, (size_t nbytes), (nbytes))
INJECT_ALLOCATION(calloc, (size_t count, size_t nbytes), (count, nbytes))
INJECT_ALLOCATION(aligned_alloc, (size_t alignment, size_t nbytes), (alignment, nbytes))

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text)
{
    if (inject_hit(INJECT_MEMORY, "strdup")) {
        errno = ENOMEM;
        return NULL;
    }
    return ledger_add(__real_strdup(text));
}

void *__real_realloc(void *block, size_t nbytes);
void *__wrap_realloc(void *block, size_t nbytes);
void *__wrap_realloc(void *block, size_t nbytes)
{
    if (inject_hit(INJECT_MEMORY, "realloc")) {
        errno = ENOMEM;
        return NULL;
    }
    bool known = ledger_remove(block);
    void *grown = __real_realloc(block, nbytes);
    if (grown)
        return ledger_add(grown);
    if (known)
        ledger_add(block);
    return NULL;
}

void __real_free(void *block);
void __wrap_free(void *block);
void __wrap_free(void *block)
{
    ledger_remove(block);
    __real_free(block);
}

locale_t __real_newlocale(int mask, const char *name, locale_t base);
locale_t __wrap_newlocale(int mask, const char *name, locale_t base);
locale_t __wrap_newlocale(int mask, const char *name, locale_t base)
{
    if (inject_hit(INJECT_MEMORY, "newlocale")) {
        errno = ENOMEM;
        return (locale_t)0;
    }
    return __real_newlocale(mask, name, base);
}

/* ---- threads, maps, locks ---- */

#define INJECT_RESULT(series, error, name, parameters, arguments) \
    int __real_##name parameters;                                 \
    int __wrap_##name parameters;                                 \
    int __wrap_##name parameters                                  \
    {                                                             \
        if (inject_hit(series, #name))                            \
            return error;                                         \
        return __real_##name arguments;                           \
    }

INJECT_RESULT(INJECT_THREAD, EAGAIN, pthread_create,
              (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *),
               void *user),
              (thread, attributes, run, user))
INJECT_RESULT(INJECT_LOCK, ENOMEM, pthread_mutex_init,
              (pthread_mutex_t * mutex, const pthread_mutexattr_t *attributes), (mutex, attributes))
INJECT_RESULT(INJECT_LOCK, ENOMEM, pthread_cond_init,
              (pthread_cond_t * condition, const pthread_condattr_t *attributes),
              (condition, attributes))
INJECT_RESULT(INJECT_LOCK, EAGAIN, pthread_key_create, (pthread_key_t * key, void (*end)(void *)),
              (key, end))

INJECT_RESULT(INJECT_LOCK, ENOMEM, pthread_atfork,
              (void (*prepare)(void), void (*parent)(void), void (*child)(void)),
              (prepare, parent, child))

void *__real_mmap(void *address, size_t nbytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t nbytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t nbytes, int protection, int flags, int file, off_t offset)
{
    if (inject_hit(INJECT_MAP, "mmap")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(address, nbytes, protection, flags, file, offset);
}

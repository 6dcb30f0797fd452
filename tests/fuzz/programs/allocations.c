/* allocations.c: see allocations.h. */
#include "allocations.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_long made, failing = LONG_MAX;
static atomic_bool counting, persisting;

void allocations_fail(long which, bool persist)
{
    atomic_store(&made, 0);
    atomic_store(&failing, which);
    atomic_store(&persisting, persist);
    atomic_store(&counting, true);
}

void allocations_count(void)
{
    allocations_fail(LONG_MAX, false);
}

long allocations_succeed(void)
{
    atomic_store(&counting, false);
    return atomic_load(&made);
}

#ifdef EK_WRAPPED_ALLOCATIONS
static bool fails(void)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return false;
    long which = atomic_load(&failing), number = atomic_fetch_add(&made, 1) + 1;
    if (number != which && !(number > which && atomic_load(&persisting)))
        return false;
    errno = ENOMEM;
    return true;
}

#define WRAP(result, name, parameters, arguments)        \
    result __real_##name parameters;                     \
    result __wrap_##name parameters;                     \
    result __wrap_##name parameters                      \
    {                                                    \
        return fails() ? NULL : __real_##name arguments; \
    }
WRAP(void *, malloc, (size_t nbytes), (nbytes))
WRAP(void *, calloc, (size_t count, size_t nbytes), (count, nbytes))
WRAP(void *, realloc, (void *memory, size_t nbytes), (memory, nbytes))
WRAP(void *, aligned_alloc, (size_t alignment, size_t nbytes), (alignment, nbytes))
WRAP(char *, strdup, (const char *text), (text))

bool allocations_can_fail(void)
{
    return true;
}
#else
bool allocations_can_fail(void)
{
    return false;
}
#endif

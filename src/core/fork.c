/* fork.c: see fork.h. */
#include "core/fork.h"

#include "core/error.h"

atomic_bool ek_fork_happened;
static atomic_bool fork_armed;
static void (*fork_abandon)(void); /* set by one constructor, constant afterwards */

void ek_fork_at_child(void (*abandon)(void))
{
    fork_abandon = abandon;
}

static void fork_in_child(void)
{
    if (!atomic_load(&fork_armed))
        return;
    atomic_store(&ek_fork_happened, true);
    if (fork_abandon)
        fork_abandon();
}

__attribute__((constructor)) static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, fork_in_child);
}

void ek_fork_arm(void)
{
    atomic_store_explicit(&fork_armed, true, memory_order_relaxed);
}

int ek_fork_check(void)
{
    return ek_forked()
               ? EK_FAIL(EK_E_STATE,
                         "this process was forked after its parent had begun to use devices, whose "
                         "threads it does not have; fork before the first use, or exec")
               : 0;
}

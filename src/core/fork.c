/* fork.c: see fork.h. */
#include "core/fork.h"

#include "core/thread.h"
#include "core/trace.h"

atomic_bool ek_fork_happened;
static atomic_bool armed;

static void in_child(void)
{
    if (!atomic_load(&armed))
        return;
    atomic_store(&ek_fork_happened, true);
    ek_trace_abandon();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ek_fork_arm(void)
{
    atomic_store_explicit(&armed, true, memory_order_relaxed);
}

int ek_fork_check(void)
{
    return ek_forked()
               ? EK_FAIL(EK_E_STATE,
                         "this process was forked after its parent had begun to use devices, whose "
                         "threads it does not have; fork before the first use, or exec")
               : 0;
}

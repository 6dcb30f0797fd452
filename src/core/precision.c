/* precision.c: the process' and the thread's choices of precision. */
#include "evenkeel/precision.h"

#include <stdatomic.h>

#include "core/casts.h"
#include "core/python_random.h"
#include "evenkeel/random.h"

static atomic_bool tf32, deterministic;

void ek_allow_tf32(bool allow)
{
    atomic_store_explicit(&tf32, allow, memory_order_relaxed);
}

bool ek_tf32_allowed(void)
{
    return atomic_load_explicit(&tf32, memory_order_relaxed);
}

void ek_use_deterministic_algorithms(bool on)
{
    atomic_store_explicit(&deterministic, on, memory_order_relaxed);
}

bool ek_deterministic(void)
{
    return atomic_load_explicit(&deterministic, memory_order_relaxed);
}

void ek_set_seed(int64_t seed)
{
    if (seed == EK_NO_SEED)
        return;
    ek_manual_seed((uint64_t)seed);
    ek_python_seed(NULL, seed);
    ek_numpy_seed(NULL, (uint32_t)seed);
    ek_use_deterministic_algorithms(true);
}

/* ---- autocast ---- */

ek_autocast ek_autocast_begin(ek_dtype dtype)
{
    ek_thread *thread = ek_thread_self();
    ek_thread_modes *modes = &thread->modes;
    thread->autocast_depth++;
    ek_autocast autocast = {modes->flags & EK_MODE_AUTOCAST};
    if (dtype == EK_BF16)
        modes->flags |= EK_MODE_AUTOCAST;
    else if (dtype == EK_F32)
        modes->flags &= ~(unsigned)EK_MODE_AUTOCAST;
    else
        EK_FAIL(EK_E_DTYPE, "autocast to %s; bf16 is possible, and f32, which switches it off",
                ek_dtype_name(dtype));
    return autocast;
}

void ek_autocast_end(const ek_autocast *autocast)
{
    if (!autocast)
        return;
    ek_thread *thread = ek_thread_self();
    ek_thread_modes *modes = &thread->modes;
    modes->flags = (modes->flags & ~(unsigned)EK_MODE_AUTOCAST) | autocast->before;
    if (thread->autocast_depth && --thread->autocast_depth == 0)
        ek_casts_forget(thread);
}

ek_dtype ek_autocast_dtype(void)
{
    return ek_thread_self()->modes.flags & EK_MODE_AUTOCAST ? EK_BF16 : EK_F32;
}

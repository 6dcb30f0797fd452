/* fork.h: what a child process may do.
 *
 * A forked child has only the thread that forked: no worker, no thread of a team or of a loader.
 * Threads that exist only in the parent may hold locks. So if a device was opened before the fork,
 * a child refuses to compute, to wait, and to read what threads of the parent may have been
 * changing. Every public function that locks a mutex, waits for a thread or allocates on a device
 * calls ek_fork_check first, directly or through its callees. */
#ifndef EK_CORE_FORK_H
#define EK_CORE_FORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool ek_fork_happened;

/* Returns true in a child of a process that had opened a device. Any thread. */
static inline bool ek_forked(void)
{
    return atomic_load_explicit(&ek_fork_happened, memory_order_relaxed);
}

/* Fails with EK_E_STATE if ek_forked(), else returns 0. */
int ek_fork_check(void);

/* Makes ek_forked true in children that are forked from now on. Called when a device is opened. Any
 * thread. */
void ek_fork_arm(void);

/* Makes every forked child call `abandon` first. For one constructor only. */
void ek_fork_at_child(void (*abandon)(void));

/* Lock and unlock a mutex. In a forked child both do nothing, because a thread of the parent may
 * hold the lock. */
static inline void ek_lock(pthread_mutex_t *lock)
{
    if (!ek_forked())
        pthread_mutex_lock(lock);
}

static inline void ek_unlock(pthread_mutex_t *lock)
{
    if (!ek_forked())
        pthread_mutex_unlock(lock);
}

/* Declares that forked children may use a static mutex and its data. fork() holds the mutex, so
 * that the child finds it unlocked and the data consistent. While the mutex is held, no other lock
 * may be taken and no user code called. */
#define EK_FORK_SAFE(lock)                                                        \
    static void lock##_before_fork(void)                                          \
    {                                                                             \
        pthread_mutex_lock(&(lock));                                              \
    }                                                                             \
    static void lock##_after_fork(void)                                           \
    {                                                                             \
        pthread_mutex_unlock(&(lock));                                            \
    }                                                                             \
    __attribute__((constructor)) static void lock##_for_forks(void)               \
    {                                                                             \
        pthread_atfork(lock##_before_fork, lock##_after_fork, lock##_after_fork); \
    }                                                                             \
    struct ek_fork_safe /* takes the semicolon after the macro */

#endif

/* fork.h: children of this process.
 *
 * A child has the thread that forked and no other: no worker, no thread of an OpenMP team or of a
 * loader, and locks as they were, held by threads that it does not have. Once a device has been
 * opened, a child therefore refuses all that computes, waits or looks into what those threads may
 * have been changing: every public function that locks a mutex, waits for a thread or allocates on
 * a device asks ek_fork_check first, itself or through what it calls. */
#ifndef EK_CORE_FORK_H
#define EK_CORE_FORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool ek_fork_happened;

/* True in a child of a process that had opened a device. Any thread. */
static inline bool ek_forked(void)
{
    return atomic_load_explicit(&ek_fork_happened, memory_order_relaxed);
}

/* EK_E_STATE there, else 0. */
int ek_fork_check(void);

/* From now on there is something that a child would not have. Any thread. */
void ek_fork_arm(void);

/* Calls `abandon` in such a child before anything else runs there. For one constructor only. */
void ek_fork_at_child(void (*abandon)(void));

/* These do nothing in such a child: it has one thread, and a thread that it lacks may hold the
 * lock.
 */
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

/* Marks a static mutex whose data children use too. fork() holds it, so that the child finds it
 * unlocked and the data consistent. No other lock may be taken under it, and nothing of the user's
 * be called. */
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
    struct ek_fork_safe /* for the semicolon */

#endif

/* Locks that cannot be had, of a communication and of a reducer. */
#include <errno.h>

#include "kit/ranks.h"

WRAPS(pthread_mutex_init)

static _Thread_local bool refuses;

int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    return refuses ? ENOMEM : __real_pthread_mutex_init(mutex, attributes);
}

static int open_without_locks(loop *l, ek_communication **communication)
{
    refuses = true;
    int rc = ek_communication_open(loop_transport(), loop_rank(l, 0), 1, 60, true, NULL, NULL,
                                   communication);
    refuses = false;
    return rc;
}

TEST(a_communication_needs_a_lock)
{
    loop *l = loop_new(1, 0);
    ek_communication *communication = NULL;
    assert_refused(open_without_locks(l, &communication), EK_E_NO_MEMORY, "no lock");
    ck_assert_ptr_null(communication);
    loop_free(l);
}

/* Rank 1 has none for its reducer, which is an error on all ranks. */
RANKS_LOOP(a_reducer_needs_a_lock, 3, 0, 3)
{
    ek_module *net = ek_linear(3, 2);
    refuses = world->rank == 1;
    ek_module *model = ek_distributed_data_parallel(net, .process_group = world);
    refuses = false;
    LOOP_CHECK(!model);
    RANKS_EXPECT(ek_error_status(), world->rank == 1 ? EK_E_NO_MEMORY : EK_E_ABORTED,
                 "no lock for the reduction");
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}

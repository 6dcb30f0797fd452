/* between.c: see between.h. */
#include "cuda/between.h"

#include <pthread.h>

static pthread_rwlock_t issuing = PTHREAD_RWLOCK_INITIALIZER;

void ek_cuda_waits_begin(void)
{
    pthread_rwlock_rdlock(&issuing);
}

void ek_cuda_waits_end(void)
{
    pthread_rwlock_unlock(&issuing);
}

void ek_cuda_parts_begin(void)
{
    pthread_rwlock_wrlock(&issuing);
}

void ek_cuda_parts_end(void)
{
    pthread_rwlock_unlock(&issuing);
}

/* buckets.c: which tensors travel together. */
#include "comm/buckets.h"

#include <stdlib.h>

#include "comm/transport.h"

typedef struct bucket {
    int *indices;
    int count;
    size_t nbytes;
} bucket;

static int close_bucket(bucket *b, ek_bucket_function *function, void *user)
{
    int rc = b->count > 0 ? function(user, b->indices, b->count) : 0;
    b->count = 0;
    b->nbytes = 0;
    return rc;
}

/* Buckets of the dtypes, each with room for all tensors. Freed with free(). */
static int *open_buckets(bucket *buckets, int count)
{
    int *room = ek_calloc((size_t)EK_DTYPES * (size_t)(count > 0 ? count : 1), sizeof *room);
    for (int t = 0; room && t < EK_DTYPES; t++)
        buckets[t] = (bucket){.indices = room + (ptrdiff_t)t * count};
    return room;
}

int ek_buckets_for_broadcast(ek_tensor *const *tensors, int count, size_t limit,
                             ek_bucket_function *function, void *user)
{
    bucket buckets[EK_DTYPES];
    int *room = open_buckets(buckets, count);
    if (!room)
        return ek_error_pending();
    int rc = 0;
    for (int i = 0; i < count && rc == 0; i++) {
        bucket *b = &buckets[tensors[i]->dtype];
        b->indices[b->count++] = i;
        b->nbytes += ek_comm_nbytes(tensors[i]);
        if (b->nbytes >= limit)
            rc = close_bucket(b, function, user);
    }
    for (int t = 0; t < EK_DTYPES && rc == 0; t++)
        rc = close_bucket(&buckets[t], function, user);
    free(room);
    return rc;
}

int ek_buckets_for_reduce(ek_tensor *const *tensors, int count, size_t limit,
                          ek_bucket_function *function, void *user)
{
    bucket buckets[EK_DTYPES];
    ek_dtype seen[EK_DTYPES];
    int seen_count = 0;
    int *room = open_buckets(buckets, count);
    if (!room)
        return ek_error_pending();
    int rc = 0;
    for (int i = 0; i < count && rc == 0; i++) {
        bucket *b = &buckets[tensors[i]->dtype];
        size_t nbytes = ek_comm_nbytes(tensors[i]);
        if (b->count > 0 && b->nbytes + nbytes > limit)
            rc = close_bucket(b, function, user);
        int t = 0;
        while (t < seen_count && seen[t] != tensors[i]->dtype)
            t++;
        if (t == seen_count)
            seen[seen_count++] = tensors[i]->dtype;
        b->indices[b->count++] = i;
        b->nbytes += nbytes;
    }
    for (int t = 0; t < seen_count && rc == 0; t++)
        rc = close_bucket(&buckets[seen[t]], function, user);
    free(room);
    return rc;
}

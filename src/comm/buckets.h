/* buckets.h: which tensors travel together. */
#ifndef EK_COMM_BUCKETS_H
#define EK_COMM_BUCKETS_H

#include "core/tensor.h"

/* Called with the positions of one bucket's tensors, all of one dtype. Non-zero stops and is
 * returned. */
typedef int ek_bucket_function(void *user, const int *indices, int count);

/* Both follow PyTorch, dtype by dtype. For broadcast a bucket closes once it holds `limit` bytes,
 * and what is left comes in the order of dtypes; for reduce it closes before it would exceed
 * `limit`, and what is left comes in the order in which the dtypes were seen. */
int ek_buckets_for_broadcast(ek_tensor *const *tensors, int count, size_t limit,
                             ek_bucket_function *function, void *user);
int ek_buckets_for_reduce(ek_tensor *const *tensors, int count, size_t limit,
                          ek_bucket_function *function, void *user);

#endif

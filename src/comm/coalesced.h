/* coalesced.h: lists of tensors of several devices, and which of their tensors travel together. */
#ifndef EK_COMM_COALESCED_H
#define EK_COMM_COALESCED_H

#include "core/tensor.h"

/* inputs[d * count + i] are given, and tensor i is of one shape and dtype on all devices, each list
 * on one device: devs[d] (with count > 0). EK_E_INVALID, EK_E_DTYPE, EK_E_SHAPE or EK_E_DEVICE with
 * the first that isn't so. */
int ek_comm_check_lists(const char *what, ek_tensor *const *inputs, int devices, int count,
                        ek_dev **devs);

/* Called with the positions of one bucket's tensors, all of one dtype. Non-zero stops and is
 * returned. */
typedef int ek_bucket_function(void *user, const int *indices, int count);

/* As PyTorch closes buckets, dtype by dtype. */
typedef enum ek_bucket_rule {
    EK_BUCKETS_OF_BROADCAST, /* once one holds `limit` bytes; the rest in the order of dtypes */
    EK_BUCKETS_OF_REDUCE     /* before one exceeds `limit`; the rest as the dtypes were seen */
} ek_bucket_rule;

int ek_buckets(ek_bucket_rule rule, ek_tensor *const *tensors, int count, size_t limit,
               ek_bucket_function *function, void *user);

#endif

/* shared_weights.h: transformed weights that devices of the process make once for all.
 *
 * Replicas' parameters are twins (core/tensor.h), whose transformed values are equal, too. The
 * device that asks first allocates the values, and all devices that ask meanwhile make them
 * together. They are freed when each device has used them once, or with the twins. Their memory
 * counts as a workspace of `cpu`, because no device owns it. */
#ifndef EK_HOST_SHARED_WEIGHTS_H
#define EK_HOST_SHARED_WEIGHTS_H

#include "core/tensor.h"
#include "host/parallel.h"

/* What the values are made of beside the twins' elements, and how. All bytes are compared. */
typedef struct ek_shared_key {
    const void *form;
    int64_t offset; /* set by ek_shared_weights_take */
    int64_t numbers[12];
} ek_shared_key;

typedef struct ek_shared_weights {
    ek_twin_value value;
    ek_shared_key key;
    ek_dev *dev; /* `cpu` */
    void *data;  /* NULL: there was no room */
    size_t nbytes;
    int uses; /* guarded by the lock of shared_weights.c */
    _Atomic int64_t next, made;
} ek_shared_weights;

/* Returns the values of w for this key, with one reference. Returns NULL if w has no twins, memory
 * is short, or the shared values of all devices would take more than `each` bytes for each twin:
 * the caller then makes values of its own. */
ek_shared_weights *ek_shared_weights_take(const ek_tensor *w, ek_shared_key key, size_t nbytes,
                                          size_t each);

/* Makes all values, by calls of `make` for some of `count` pieces each, unless other devices make
 * or have made them. All are made at the end. */
void ek_shared_weights_make(ek_dev *dev, ek_shared_weights *shared, int64_t count, int64_t grain,
                            ek_parallel_body *make, void *context);

#endif

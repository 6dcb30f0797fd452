/* tensor.h: the tensor struct, storages and versions, for the library's own use.
 *
 * A storage is a block of device memory. A version counts writes to a range of it: views share
 * their base's, members of a slab have one each. Strides count elements. */
#ifndef EK_CORE_TENSOR_H
#define EK_CORE_TENSOR_H

#include "core/device.h"
#include "core/object.h"
#include "core/thread.h"
#include "evenkeel/tensor.h"

/* What was computed from a storage's elements, and is kept with it. It learns of every write: who
 * publishes one (ek_storage_derive) before it reads the elements misses none. */
typedef struct ek_derived {
    ek_object object;
    void (*outdated)(struct ek_derived *self); /* something was written. Any thread */
} ek_derived;

typedef struct ek_storage {
    ek_object object;
    ek_dev *dev;
    void *data;
    size_t nbytes;
    ek_memory_category category;
    _Atomic(ek_derived *) derived; /* a reference; NULL: nothing is known */
    const ek_backend *locked_by;   /* whose page-locked memory it is (staging.h); NULL: dev's own */
    const ek_dev *locked_for;      /* who reads it; may be closed before */
    ek_queue queue; /* whose memory it is: EK_QUEUE_COMPUTE's unless it comes from the host */
    ek_mark *mark;  /* goes with such memory: where EK_QUEUE_UPLOAD has filled it, if `arriving` */
    bool arriving;  /* EK_QUEUE_COMPUTE has not been told to wait for that (staging.h) */
} ek_storage;

typedef struct ek_version {
    ek_object object;
    atomic_uint_fast64_t count;
    _Atomic(const char *) writer; /* name of the operation that wrote last; static string */
    atomic_uint_fast64_t
        recorded; /* how many of the writes are in a graph: older views are stale */
} ek_version;

struct ek_tensor {
    ek_object object;
    ek_dtype dtype;
    int ndim;
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_MAX_DIMS];
    int64_t offset;
    ek_storage *storage;
    ek_version *version;

    /* Autograd's. A leaf has no history; `history` is the graph node that made this tensor. */
    bool requires_grad;
    bool is_view;       /* shares its base's version: in-place writes are seen by both */
    int history_output; /* which output of `history` */
    ek_object *history;
    struct ek_tensor *grad;      /* NULL: none */
    struct ek_tensor *grad_slot; /* memory where gradients are to lie (a slab's), a reference.
                                    `grad` may lie outside of it (create_graph) */
    ek_object
        *flat; /* what a leaf is divided with (autograd/shards.h), a reference; NULL: it is whole */
    int segment; /* which one of the flat's it is */
};

/* A storage of nbytes on dev, counted under the calling thread's category. One reference. */
ek_storage *ek_storage_new(ek_dev *dev, size_t nbytes);
/* The same, in memory that work of `queue` uses first (device.h); with one queue, the same. */
ek_storage *ek_storage_new_for(ek_dev *dev, ek_queue queue, size_t nbytes);
/* From now on EK_QUEUE_COMPUTE finds what EK_QUEUE_UPLOAD was given to fill the storage with. */
void ek_storage_receive(ek_storage *storage);
/* The same on cpu, in memory that `reader` reads by itself; its backend has such. */
ek_storage *ek_storage_new_locked(ek_dev *reader, size_t nbytes);
/* The storage's derived object, a borrowed reference: the one there is, or `fresh`, of which a
 * reference is taken. */
ek_derived *ek_storage_derive(ek_storage *storage, ek_derived *fresh);
ek_version *ek_version_new(void);
/* Counts the storage's bytes under another category from now on. Any thread. */
void ek_storage_recategorise(ek_storage *storage, ek_memory_category category);

/* A new tensor in the scope, uninitialised: contiguous row-major, in the given format
 * (channels-last only means something for 4 dimensions), or with given strides (which must be
 * dense: a permutation of contiguous). */
ek_tensor *ek_tensor_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape,
                         ek_memory_format format);
ek_tensor *ek_tensor_new_strided(ek_dev *dev, ek_dtype dtype, const ek_shape *shape,
                                 const int64_t *strides);
/* The same dtype, device, shape and order of memory as `like` (dense even where `like` has gaps).
 */
ek_tensor *ek_tensor_like(const ek_tensor *like);
/* As ek_tensor_like, of another dtype. */
ek_tensor *ek_tensor_like_dtype(const ek_tensor *like, ek_dtype dtype);
/* The same, on another device; of `like` only the geometry is read. */
ek_tensor *ek_tensor_like_on(const ek_tensor *like, ek_dtype dtype, ek_dev *dev);

/* A new handle in the scope on the same storage and version, without history. `alias` is the whole
 * tensor; `view` has its own geometry (offset absolute, in elements) and is_view set. */
ek_tensor *ek_tensor_alias(const ek_tensor *tensor);
ek_tensor *ek_tensor_view(const ek_tensor *tensor, int ndim, const int64_t *shape,
                          const int64_t *stride, int64_t offset);
/* A view whose dimensions are sorted by descending stride: its row-major order is that of memory.
 */
ek_tensor *ek_tensor_in_memory_order(const ek_tensor *tensor);
/* A handle on part of a storage with a version of its own: a slab's member. */
ek_tensor *ek_tensor_member(ek_storage *storage, ek_dtype dtype, const ek_shape *shape,
                            const int64_t *strides, int64_t offset);

/* Makes `tensor` show `source`'s storage, version and geometry (same shape and dtype), keeping the
 * handle: parameters that are re-homed or moved. */
void ek_tensor_rehome(ek_tensor *tensor, const ek_tensor *source);

static inline ek_dev *ek_tensor_dev(const ek_tensor *tensor)
{
    return tensor->storage->dev;
}

/* Address of the first element on its device. */
static inline void *ek_tensor_address(const ek_tensor *tensor)
{
    return (char *)tensor->storage->data + (size_t)tensor->offset * ek_dtype_size(tensor->dtype);
}

static inline int64_t ek_count(const ek_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

/* Geometry: strides of sizes that multiply to more than INT64_MAX stop there. Dense means that the
 * elements fill count * size bytes without gaps or overlap in some order of dimensions. Dimensions
 * of size 1 never matter. */
void ek_strides_of(const ek_shape *shape, ek_memory_format format, int64_t *strides);
bool ek_is_dense(const ek_tensor *tensor);
bool ek_same_layout(const ek_tensor *a, const ek_tensor *b); /* equal shapes, and equal strides
                                                                where the size is not 1 */
bool ek_same_shape(const ek_tensor *a, const ek_tensor *b);
/* Elements repeat: a zero stride over more than one element. */
bool ek_repeats(const ek_tensor *tensor);

/* Bumps the version and notes who wrote (a static string). */
void ek_tensor_written(ek_tensor *tensor, const char *writer);

/* "f32[2, 3] on host:0" for sentences; returns text. */
char *ek_tensor_text(const ek_tensor *tensor, char text[200]);

/* An element as double. */
double ek_element_double(const void *element, ek_dtype dtype);

#endif

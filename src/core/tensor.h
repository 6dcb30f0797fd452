/* tensor.h: the tensor struct, storages and versions, for the library's own use.
 *
 * A storage is a block of device memory. A version counts the writes to a range of a storage. Views
 * share their base's version; every member of a slab has a version. Strides count elements. */
#ifndef EK_CORE_TENSOR_H
#define EK_CORE_TENSOR_H

#include "core/bits.h"
#include "core/device.h"
#include "core/object.h"
#include "core/thread.h"
#include "evenkeel/tensor.h"

/* A value that was computed from a storage's elements and is kept with the storage. A write marks
 * the value outdated. The value must be published (ek_storage_derive) before the elements are read;
 * otherwise a concurrent write could be missed. */
typedef struct ek_derived {
    ek_object object;
    void (*outdated)(struct ek_derived *self); /* called after each write. Any thread */
} ek_derived;

/* Supplies memory and elements to a storage that has them only while it is held
 * (parallel/gathering.c). */
typedef struct ek_residence {
    ek_object object;
    /* `hold` gives the storage its memory and elements. The storage keeps them until each `hold`
     * has had its `release`. Any thread. */
    int (*hold)(struct ek_residence *self);
    void (*release)(struct ek_residence *self);
    _Atomic(const ek_thread *)
        holder; /* the thread whose scope held the storage first; NULL: none */
} ek_residence;

/* Memory of the host that several storages use. The lender allocated it; borrowers use it in place
 * of their own. Each holds a reference. */
typedef struct ek_loan {
    ek_object object;
    /* The memory, if the lender has left it to the borrowers; else `data` is NULL. */
    ek_dev *dev;
    void *data;
    size_t nbytes;
    ek_memory_category category;
} ek_loan;

typedef struct ek_storage {
    ek_object object;
    ek_dev *dev;
    void *data; /* NULL while a storage with a residence has no memory */
    size_t nbytes;
    ek_memory_category category;
    const char *path;              /* The module that owns the memory (core/path.h) */
    _Atomic(ek_derived *) derived; /* one reference; NULL: none */
    ek_object *owner;              /* one reference to the holder of `data`; NULL: `dev` */
    const ek_backend *pinned_by;   /* the backend that pinned `data`; NULL: `dev`'s own memory */
    const ek_dev *pinned_for;      /* reader of pinned memory; may be closed by now */
    ek_stream stream;              /* the stream for which the memory was allocated */
    ek_event *event;         /* the memory's event (ek_dev_alloc_for); if `arriving`, recorded in
                              EK_STREAM_UPLOAD after the copy into it */
    bool arriving;           /* EK_STREAM_COMPUTE has yet to wait for `event` */
    ek_residence *residence; /* one reference; NULL: the storage always has its memory */
    /* Guarded by a lock of loan.c. One reference; NULL: no other storage uses `data`. */
    _Atomic(ek_loan *) loan;
    void *own; /* A borrower's own memory, allocated and counted; NULL: the storage borrows none. */
    /* The storage had to stop sharing, or a program may have kept the address of elements. */
    atomic_bool shares_never;
} ek_storage;

/* A copy into a device's memory that another stream makes. Work on the elements waits for `event`.
 */
typedef struct ek_arrival {
    ek_dev *dev;
    ek_event *event;
    atomic_bool awaited; /* EK_STREAM_COMPUTE waits for the event */
} ek_arrival;

/* A value that was computed from the elements of twins. */
typedef struct ek_twin_value {
    ek_object object;
    struct ek_twin_value *next;
} ek_twin_value;

/* The common object of twins: ranges of memory on several devices that hold equal elements, because
 * a broadcast has copied them. Each range's version holds a reference. */
typedef struct ek_twins {
    ek_object object;
    int places;            /* the most twins */
    ek_twin_value *values; /* one reference to each; guarded by a lock of those who compute them */
} ek_twins;

typedef struct ek_write_count {
    ek_object object;
    /* Borrowed: the first use of the elements waits for the arrival (ek_tensor_hold). NULL: none.
     */
    _Atomic(ek_arrival *) arrival;
    atomic_uint_fast64_t count;
    atomic_uint_fast64_t lent; /* how many writes were made while borrowers used the memory */
    /* The version of the elements that a borrower uses; one reference. NULL: it uses its own. */
    struct ek_write_count *lender;
    uint64_t lender_seen;          /* the lender's `lent` when the borrower last got its elements */
    _Atomic(const char *) writer;  /* the operation that wrote last; a static string */
    atomic_uint_fast64_t recorded; /* how many writes a graph recorded; older views are stale */
    /* Guarded by a lock of storage.c. The twins are outdated unless `count` is `twins_count`. */
    ek_twins *twins; /* one reference; NULL: no range is known to be equal */
    uint64_t twins_count;
    int64_t twins_offset; /* where the range begins in its storage */
} ek_write_count;

struct ek_tensor {
    ek_object object;
    ek_dtype dtype;
    int ndim;
    int64_t shape[EK_MAX_DIMS];
    int64_t stride[EK_MAX_DIMS];
    int64_t offset;
    ek_storage *storage;
    ek_write_count *version;

    /* The members below are autograd's. A leaf has no history. */
    bool requires_grad;
    bool is_view;       /* shares its base's version */
    bool is_parameter;  /* a module has, or had, the tensor as a parameter */
    int history_output; /* this tensor's index among the outputs of `history` */
    ek_object *history;
    struct ek_tensor *grad;
    struct ek_tensor *grad_buffer; /* one reference to a slab's memory for `grad`, or NULL; with
                                    create_graph `grad` may be another tensor */
    /* In a sharded leaf: one reference to its ek_shards (autograd/shards.h), else NULL. */
    ek_object *shards;
    int shards_index;    /* the leaf's index in `shards` */
    int grad_hook_index; /* the leaf's number in `grad_hook` */
    /* One reference to the hook that learns of the leaf's gradients (autograd/grad_hook.h), or
     * NULL. */
    struct ek_grad_hook *grad_hook;
    /* In a leaf: one reference to its tensor hooks (autograd/tensor_hook.c), or NULL. */
    struct ek_hook_list *hooks;
};

/* Makes a storage of nbytes on dev for the calling thread's stream, counted under the thread's
 * category. Returns one reference. */
ek_storage *ek_storage_new(ek_dev *dev, size_t nbytes);
/* Makes a storage in memory that `stream` uses first (ek_dev_alloc_for). */
ek_storage *ek_storage_new_for(ek_dev *dev, ek_stream stream, size_t nbytes);
/* Makes a storage without memory, for EK_STREAM_COMPUTE. Retains the residence. */
ek_storage *ek_storage_new_absent(ek_dev *dev, size_t nbytes, ek_memory_category category,
                                  ek_residence *residence);
/* For residences: gives a storage its memory, and takes the memory and what was derived from the
 * elements. ek_storage_present fails as ek_dev_alloc does. */
int ek_storage_present(ek_storage *storage);
void ek_storage_absent(ek_storage *storage);
/* Holds a storage that has a residence until the calling thread's scope ends. ek_tensor_hold calls
 * it. */
int ek_storage_hold(ek_storage *storage);
/* Makes EK_STREAM_COMPUTE wait for a copy of EK_STREAM_UPLOAD into the storage, if such a copy was
 * started and not yet waited for. */
void ek_storage_receive(ek_storage *storage);
/* Makes a storage on cpu in pinned memory for `reader`, whose backend must have pinned_alloc. */
ek_storage *ek_storage_new_pinned(ek_dev *reader, size_t nbytes);
/* Makes a storage in `data`, memory of dev that `owner` holds and that the ledger hasn't counted
 * yet. Retains the owner. */
ek_storage *ek_storage_new_foreign(ek_dev *dev, size_t nbytes, ek_object *owner, void *data);
/* Copies the elements to `data`, which is large enough memory of the host that `owner` holds, and
 * frees the old memory. Handles of the storage stay valid, but nobody may use them during the
 * call. */
void ek_storage_move(ek_storage *storage, ek_object *owner, void *data);
/* Makes the borrower use the lender's memory from byte `offset` on, and so have the elements that
 * lie there. Its own memory stays allocated and counted, but gives its pages back to the system.
 * Does nothing if one of them can't share (residence, pinned or foreign memory, another loan,
 * `shares_never`, a short lender) or if memory is short. Nobody may use the borrower during the
 * call. */
void ek_storage_lend(ek_storage *lender, size_t offset, ek_storage *borrower);
/* Copies a borrower's elements to its own memory, and ends its loan. */
void ek_storage_repay(ek_storage *borrower);
/* Ends the loan of a storage whose memory is about to be freed. A borrower's `data` becomes its own
 * memory; a lender's becomes NULL, because the last borrower frees it. */
void ek_storage_forget_loan(ek_storage *storage);
/* Does the work of ek_tensor_unshare for a storage that has a loan. If `exposed`, does that of
 * ek_tensor_expose. */
int ek_storage_unshare(ek_storage *storage, bool exposed);
/* Returns the storage's derived object (borrowed). If the storage has none, `fresh` (may be NULL)
 * becomes its derived object. */
ek_derived *ek_storage_derive(ek_storage *storage, ek_derived *fresh);
ek_write_count *ek_version_new(void);
/* Counts the storage's bytes under another category and another module's path. A change of category
 * drops what was derived from the elements. A storage with a residence stays unchanged. Any
 * thread. */
void ek_storage_assign(ek_storage *storage, ek_memory_category category, const char *path);

/* Releases `count` references (NULL: none) and frees the list. NULL does nothing. */
void ek_tensors_release(ek_tensor **tensors, int count);

/* Make an uninitialised tensor in the scope. The format is row-major, or channels-last for 4
 * dimensions. Strides that are given must be dense: those of a contiguous tensor, permuted. */
ek_tensor *ek_tensor_new(ek_dev *dev, ek_dtype dtype, const ek_shape *shape,
                         ek_memory_format format);
ek_tensor *ek_tensor_new_strided(ek_dev *dev, ek_dtype dtype, const ek_shape *shape,
                                 const int64_t *strides);
/* Makes a tensor with the dtype, device, shape and order of memory of `like`, without gaps. */
ek_tensor *ek_tensor_like(const ek_tensor *like);
/* Does what ek_tensor_like does, but with another dtype. */
ek_tensor *ek_tensor_like_dtype(const ek_tensor *like, ek_dtype dtype);
/* Does what ek_tensor_like does, but with another dtype and device. The data of `like` is not
 * read. */
ek_tensor *ek_tensor_like_on(const ek_tensor *like, ek_dtype dtype, ek_dev *dev);

/* Make a handle in the scope that shares the tensor's storage and version and has no history. An
 * alias has the tensor's geometry. A view has the given geometry (`offset` counts from the start of
 * the storage) and is_view set. */
ek_tensor *ek_tensor_alias(const ek_tensor *tensor);
/* Makes an alias in no scope; returns one reference. */
ek_tensor *ek_tensor_alias_owned(const ek_tensor *tensor);
ek_tensor *ek_tensor_view(const ek_tensor *tensor, int ndim, const int64_t *shape,
                          const int64_t *stride, int64_t offset);
/* Returns a view without dimensions of size 1, the others sorted by descending stride: its
 * row-major order is the order of memory. */
ek_tensor *ek_tensor_in_memory_order(const ek_tensor *tensor);
/* Makes a slab's member: a handle in the scope on part of a storage, with a separate version. */
ek_tensor *ek_tensor_member(ek_storage *storage, ek_dtype dtype, const ek_shape *shape,
                            const int64_t *strides, int64_t offset);

/* Gives `tensor` the storage, version, dtype, offset and strides of `source`, which has an equal
 * shape. The handle's address stays. For parameters that move to another memory. */
void ek_tensor_rebind(ek_tensor *tensor, const ek_tensor *source);

static inline ek_dev *ek_tensor_dev(const ek_tensor *tensor)
{
    return tensor->storage->dev;
}

/* Gives the tensor memory of its own before a program writes to it. A borrower keeps it for good. A
 * lender's write outside of jobs reaches its borrowers, which older graphs report
 * (ek_version_writes). In a job other devices may read the memory meanwhile. So the lender leaves
 * it to the borrowers, gets a copy, and never lends again. 0, or EK_E_OUT_OF_MEMORY. */
static inline int ek_tensor_unshare(const ek_tensor *tensor)
{
    return atomic_load_explicit(&tensor->storage->loan, memory_order_relaxed)
               ? ek_storage_unshare(tensor->storage, false)
               : 0;
}

/* Called before a program gets the address of the elements, which it may keep and write to. The
 * storage shares its memory no longer, and never again. 0, or EK_E_OUT_OF_MEMORY. Any thread, and
 * several at a time. */
static inline int ek_tensor_expose(const ek_tensor *tensor)
{
    ek_storage *storage = tensor->storage;
    if (!atomic_load_explicit(&storage->shares_never, memory_order_relaxed))
        atomic_store(&storage->shares_never, true);
    return atomic_load(&storage->loan) ? ek_storage_unshare(storage, true) : 0;
}

/* Returns how many writes the elements have had, those to a lender's included. */
static inline uint64_t ek_version_writes(const ek_write_count *version)
{
    const ek_write_count *lender = version->lender;
    const uint64_t own = atomic_load_explicit(&version->count, memory_order_acquire);
    return lender ? own + atomic_load_explicit(&lender->lent, memory_order_acquire) -
                        version->lender_seen
                  : own;
}
/* Notes that `copy` uses the elements of `source`, as they are now; NULL: its own. */
void ek_tensor_follow(ek_tensor *copy, const ek_tensor *source);

/* Makes sure that the tensor has memory and elements until the calling thread's scope ends. Called
 * for the operands of operations, for saved tensors and before copies. 0 or a negative status:
 * EK_E_STATE for a tensor that was retired (check.h). */
int ek_tensor_hold_resident(const ek_tensor *tensor);
/* Makes EK_STREAM_COMPUTE wait for the arrival of the elements. Any thread, and several at a time.
 */
void ek_tensor_await(const ek_tensor *tensor);
static inline int ek_tensor_hold(const ek_tensor *tensor)
{
    if (tensor->storage->residence)
        return ek_tensor_hold_resident(tensor);
    if (atomic_load_explicit(&tensor->version->arrival, memory_order_relaxed))
        ek_tensor_await(tensor);
    return 0;
}
/* Returns true for a tensor that was retired, without the load of ek_checks. */
static inline bool ek_tensor_is_retired(const ek_tensor *tensor)
{
    return tensor->storage->residence && ek_is_retired(tensor);
}

/* Returns the address of the first element on its device. */
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

/* Geometry of tensors. A stride that would exceed INT64_MAX becomes INT64_MAX. A tensor is dense if
 * its elements fill their memory without gaps or overlaps, in some order of dimensions. Dimensions
 * of size 1 never matter. */
void ek_strides_of(const ek_shape *shape, ek_memory_format format, int64_t *strides);
bool ek_is_dense(const ek_tensor *tensor);
/* Returns true if the shapes are equal, and so are the strides of all dimensions whose size isn't
 * 1. */
bool ek_same_layout(const ek_tensor *a, const ek_tensor *b);
bool ek_same_shape(const ek_tensor *a, const ek_tensor *b);
/* Returns true if elements repeat in memory: a dimension of more than one element has stride 0. */
bool ek_repeats(const ek_tensor *tensor);

/* Makes `view`, on the caller's stack, show x's memory (borrowed). For kernels only, which read
 * geometry, dtype and storage. x must outlive the view. */
void ek_borrow(ek_tensor *view, const ek_tensor *x);
/* Borrows `length` elements of x along `dim`, from `start` on, `step` apart. Without elements
 * `start`, and without a second element `step`, may be any number. */
void ek_borrow_slice(ek_tensor *view, const ek_tensor *x, int dim, int64_t start, int64_t length,
                     int64_t step);

/* Records a write by `writer` (a static string): increments the version's count and marks the
 * derived object outdated. */
void ek_tensor_written(ek_tensor *tensor, const char *writer);

/* Makes `copy`, which has got the elements of `source`, a twin of it, one of at most `places`. No
 * thread uses `copy`; any may read `source`. Does nothing if memory is short, or if the layouts
 * differ. */
void ek_tensor_make_twin(ek_tensor *copy, const ek_tensor *source, int places);
/* Returns the twins of x, which is a whole range or a part of one, with one reference, and writes
 * where x begins in its range to *offset. Returns NULL if there are none, or x was written since.
 * Any thread. */
ek_twins *ek_tensor_twins(const ek_tensor *x, int64_t *offset);

/* A tensor's elements in row-major order in the host's memory. */
typedef struct ek_rows {
    const void *bytes;
    void *copy; /* owned; NULL: the tensor's own memory has this order */
} ek_rows;
/* Fills `rows`, and waits for the device. The tensor's memory is held until the calling thread's
 * scope ends. ek_rows_free frees the copy, also after a failure. */
int ek_rows_of(const ek_tensor *tensor, ek_rows *rows);
void ek_rows_free(ek_rows *rows);

/* Returns the object if it is a tensor, else NULL. */
const ek_tensor *ek_object_tensor(const void *object);

/* Writes a text such as "f32[2, 3] on host:0", for sentences, and returns `text`. */
char *ek_tensor_text(const ek_tensor *tensor, char text[200]);

/* ---- dtypes ---- */

/* Returns true for bf16 and f16, which are computed in f32 and rounded at the end. */
static inline bool ek_dtype_is_narrow(ek_dtype dtype)
{
    return dtype == EK_BF16 || dtype == EK_F16;
}

/* Returns the dtype in which a floating dtype's sums are computed. */
static inline ek_dtype ek_dtype_wide(ek_dtype dtype)
{
    return ek_dtype_is_narrow(dtype) ? EK_F32 : dtype;
}

/* The range in which a dtype holds all whole numbers, from `first` to `last`. */
typedef struct ek_dtype_range {
    double first, last;
    const char *text;
} ek_dtype_range;
const ek_dtype_range *ek_dtype_range_of(ek_dtype dtype);
/* Returns true if the dtype is floating, or is an integer dtype or bool that holds the value. */
bool ek_dtype_holds(ek_dtype dtype, double value);

/* Convert f32 to a narrow dtype and back; ek_round_narrow does both. */
static inline uint16_t ek_narrow_of(ek_dtype dtype, float value)
{
    return dtype == EK_F16 ? ek_f16_of(value) : ek_bf16_of(value);
}

static inline float ek_float_of_narrow(ek_dtype dtype, uint16_t bits)
{
    return dtype == EK_F16 ? ek_float_of_f16(bits) : ek_float_of_bf16(bits);
}

static inline float ek_round_narrow(ek_dtype dtype, float value)
{
    return ek_float_of_narrow(dtype, ek_narrow_of(dtype, value));
}

/* Converts an element to double. */
double ek_element_double(const void *element, ek_dtype dtype);

#endif

/* dlpack.c: lends tensors' memory and borrows other libraries', by the structs of DLPack.
 *
 * Source of the structs and numbers: the specification of DLPack 1.0, dlpack.h. */
#include <stdlib.h>

#include "core/cells.h"
#include "core/error.h"
#include "core/tensor.h"
#include "evenkeel/dlpack.h"

enum { DL_MAJOR = 1, DL_MINOR = 0, DL_READ_ONLY = 1 /* a bit of `flags` */ };

typedef struct dl_device {
    int32_t kind, number;
} dl_device;
enum { DL_HOST = 1, DL_CUDA = 2 };

typedef struct dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensor {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self); /* NULL: nothing to call */
};

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self); /* NULL: nothing to call */
    uint64_t flags;
    dl_tensor tensor;
};

enum { DL_INT = 0, DL_UNSIGNED = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };
static const dl_dtype dl_dtypes[EK_DTYPES] = {
    [EK_F32] = {DL_FLOAT, 32, 1}, [EK_F64] = {DL_FLOAT, 64, 1},  [EK_BF16] = {DL_BFLOAT, 16, 1},
    [EK_I64] = {DL_INT, 64, 1},   [EK_U8] = {DL_UNSIGNED, 8, 1}, [EK_F16] = {DL_FLOAT, 16, 1},
    [EK_I32] = {DL_INT, 32, 1},   [EK_BOOL] = {DL_BOOL, 8, 1},
};

/* Orders the device's work and the other side's (ek_backend). The host's memory needs no order. */
static int dl_order(ek_dev *dev, void *stream, bool stream_waits)
{
    return dev->backend->order_stream && !ek_forked()
               ? dev->backend->order_stream(dev, stream, stream_waits)
               : 0;
}

/* Does what dl_order does, when the memory is given back. A stream that isn't a default one may
 * have been destroyed since, so the host waits instead. Leaves the thread's error unchanged. */
static void dl_order_back(ek_dev *dev, void *stream, bool stream_waits)
{
    enum { LAST_DEFAULT = 2 }; /* cudaStreamLegacy and cudaStreamPerThread are 1 and 2 */
    bool is_default = (uintptr_t)stream <= LAST_DEFAULT;
    ek_error_record error;
    ek_error_take(&error);
    dl_order(dev, is_default ? stream : EK_NO_STREAM, stream_waits);
    ek_error_clear();
    if (error.status < 0)
        ek_error_raise(&error);
}

/* ---- lending ---- */

typedef struct dl_loan {
    struct DLManagedTensorVersioned versioned;
    struct DLManagedTensor unversioned;
    ek_storage *storage; /* one reference */
    void *stream;
    int64_t shape[EK_MAX_DIMS], strides[EK_MAX_DIMS];
} dl_loan;

static void loan_end(dl_loan *loan)
{
    if (loan->stream != EK_NO_STREAM)
        dl_order_back(loan->storage->dev, loan->stream, false);
    ek_object_release(loan->storage);
    free(loan);
}

static void loan_delete_versioned(struct DLManagedTensorVersioned *self)
{
    loan_end(self->context);
}

static void loan_delete_unversioned(struct DLManagedTensor *self)
{
    loan_end(self->context);
}

static int loan_check(const ek_tensor *tensor)
{
    char text[200];
    EK_TRY(ek_check_given("to_dlpack", "the tensor", tensor));
    if (tensor->requires_grad)
        return EK_FAIL(EK_E_INVALID,
                       "to_dlpack: %s requires a gradient, which writes by another library would "
                       "make wrong; ek_detach it",
                       ek_tensor_text(tensor, text));
    if (tensor->storage->residence)
        return EK_FAIL(EK_E_INVALID,
                       "to_dlpack: %s is a sharded parameter, which has its memory only while it "
                       "is used; ek_clone it",
                       ek_tensor_text(tensor, text));
    return 0;
}

static void loan_describe(dl_loan *loan, const ek_tensor *tensor)
{
    const ek_dev *dev = ek_tensor_dev(tensor);
    dl_device device = {DL_HOST, 0};
    if (!ek_dev_is_host(dev))
        device = (dl_device){DL_CUDA, ek_dev_hardware(dev->id)};
    for (int i = 0; i < tensor->ndim; i++) {
        loan->shape[i] = tensor->shape[i];
        loan->strides[i] = tensor->shape[i] == 1 ? 1 : tensor->stride[i];
    }
    const dl_tensor described = {.data = ek_tensor_address(tensor),
                                 .device = device,
                                 .ndim = tensor->ndim,
                                 .dtype = dl_dtypes[tensor->dtype],
                                 .shape = loan->shape,
                                 .strides = loan->strides};
    loan->versioned =
        (struct DLManagedTensorVersioned){DL_MAJOR, DL_MINOR, loan, loan_delete_versioned,
                                          0,        described};
    loan->unversioned = (struct DLManagedTensor){described, loan, loan_delete_unversioned};
}

static dl_loan *loan_new(const ek_tensor *tensor, void *stream)
{
    dl_loan *loan =
        loan_check(tensor) < 0 || ek_tensor_expose(tensor) < 0 ? NULL : ek_calloc(1, sizeof *loan);
    if (!loan)
        return NULL;
    ek_storage_receive(tensor->storage);
    if (stream != EK_NO_STREAM && dl_order(ek_tensor_dev(tensor), stream, true) < 0) {
        free(loan);
        return NULL;
    }
    loan->storage = ek_object_retain(tensor->storage);
    loan->stream = stream;
    loan_describe(loan, tensor);
    return loan;
}

struct DLManagedTensorVersioned *ek_to_dlpack(const ek_tensor *tensor, void *stream)
{
    dl_loan *loan = loan_new(tensor, stream);
    return loan ? &loan->versioned : NULL;
}

struct DLManagedTensor *ek_to_dlpack_unversioned(const ek_tensor *tensor, void *stream)
{
    dl_loan *loan = loan_new(tensor, stream);
    return loan ? &loan->unversioned : NULL;
}

/* ---- borrowing ---- */

/* Borrowed memory: the owner of a storage's memory (ek_storage). */
typedef struct dl_borrowed {
    ek_object object;
    ek_dev *dev; /* NULL: no work uses the memory yet */
    void *stream;
    /* The struct that was taken over; one of both. */
    struct DLManagedTensorVersioned *versioned;
    struct DLManagedTensor *unversioned;
} dl_borrowed;

static void borrowed_give_back(const dl_borrowed *b)
{
    if (b->dev)
        dl_order_back(b->dev, b->stream, true);
    if (b->versioned && b->versioned->deleter)
        b->versioned->deleter(b->versioned);
    if (b->unversioned && b->unversioned->deleter)
        b->unversioned->deleter(b->unversioned);
}

static void borrowed_destroy(ek_object *object)
{
    borrowed_give_back((dl_borrowed *)object);
    ek_cell_free(object, sizeof(dl_borrowed));
}

/* Returns the CUDA device `wanted`, which must lie on the memory's GPU. If `wanted` is cpu, returns
 * the first CUDA device on that GPU. */
static ek_dev *borrowed_find_gpu(const dl_tensor *t, ek_device wanted)
{
    int first = wanted.kind == EK_CUDA ? wanted.index : 0;
    int end = wanted.kind == EK_CUDA ? first + 1 : ek_device_count(EK_CUDA);
    if (end < 0)
        return NULL;
    for (int i = first; i < end; i++)
        if (ek_dev_hardware(ek_cuda(i)) == t->device.number)
            return ek_dev_get(ek_cuda(i));
    return EK_FAIL_NULL(EK_E_DEVICE, "from_dlpack: the memory is on GPU %d, where %s",
                        (int)t->device.number,
                        wanted.kind == EK_CUDA ? "the wanted device does not lie"
                                               : "no device lies");
}

static ek_dev *borrowed_find_device(const dl_tensor *t, ek_device wanted)
{
    char text[16];
    bool on_gpu = t->device.kind == DL_CUDA;
    if (!on_gpu && t->device.kind != DL_HOST)
        return EK_FAIL_NULL(EK_E_DEVICE,
                            "from_dlpack: memory on a device of DLPack's kind %d; the host's (1) "
                            "and CUDA's (2) is taken",
                            (int)t->device.kind);
    if (on_gpu != (wanted.kind == EK_CUDA) && wanted.kind != EK_CPU)
        return EK_FAIL_NULL(EK_E_DEVICE, "from_dlpack: the memory is %s, and %s cannot use it",
                            on_gpu ? "a GPU's" : "the host's", ek_device_name(wanted, text));
    return on_gpu ? borrowed_find_gpu(t, wanted) : ek_dev_get(wanted);
}

static int borrowed_check_dtype(const dl_tensor *t, ek_dtype *dtype)
{
    for (int i = 0; i < EK_DTYPES; i++)
        if (t->dtype.code == dl_dtypes[i].code && t->dtype.bits == dl_dtypes[i].bits &&
            t->dtype.lanes == 1) {
            *dtype = (ek_dtype)i;
            return 0;
        }
    return EK_FAIL(EK_E_DTYPE,
                   "from_dlpack: elements of DLPack's type code %d with %d bits, %d at a time; "
                   "those of f32, f64, f16, bf16, i32, i64, u8 and bool are taken",
                   t->dtype.code, t->dtype.bits, t->dtype.lanes);
}

/* Reads sizes and strides. *span becomes how many elements the memory has from the first to the
 * last element, 0 if there are no elements. */
static int borrowed_read_layout(const dl_tensor *t, ek_shape *shape, int64_t *strides,
                                int64_t *span)
{
    int64_t last = 0, step;
    bool empty = false, fits = true;
    if (t->ndim < 0 || t->ndim > EK_MAX_DIMS || (t->ndim > 0 && !t->shape))
        return EK_FAIL(EK_E_SHAPE, "from_dlpack: %d dimensions; 0 to %d are taken", (int)t->ndim,
                       EK_MAX_DIMS);
    shape->ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++)
        shape->dims[i] = t->shape[i];
    ek_strides_of(shape, EK_CONTIGUOUS, strides);
    for (int i = 0; i < t->ndim; i++) {
        if (t->strides && t->shape[i] > 1)
            strides[i] = t->strides[i];
        if (t->shape[i] < 0 || strides[i] < 0)
            return EK_FAIL(EK_E_SHAPE,
                           "from_dlpack: dimension %d has size %lld and stride %lld; a copy of the "
                           "array has no negative strides",
                           i, (long long)t->shape[i], (long long)strides[i]);
        empty = empty || t->shape[i] == 0;
        fits = fits &&
               (t->shape[i] == 0 || (!__builtin_mul_overflow(t->shape[i] - 1, strides[i], &step) &&
                                     !__builtin_add_overflow(last, step, &last)));
    }
    *span = empty ? 0 : last + 1;
    return empty || (fits && last < INT64_MAX / 16)
               ? 0
               : EK_FAIL(EK_E_SHAPE, "from_dlpack: the elements span more than 2^63 bytes");
}

static int borrowed_check_address(const dl_tensor *t, ek_dtype dtype, int64_t span, char **address)
{
    static char nothing; /* the memory of tensors without elements */
    if (span > 0 && !t->data)
        return EK_FAIL(EK_E_INVALID, "from_dlpack: the memory is NULL");
    *address = span > 0 ? (char *)t->data + t->byte_offset : &nothing;
    if (span > 0 && (uintptr_t)*address % ek_dtype_size(dtype) != 0)
        return EK_FAIL(EK_E_INVALID,
                       "from_dlpack: elements of %s at an address that is no multiple of %zu; a "
                       "copy of the array is aligned",
                       ek_dtype_name(dtype), ek_dtype_size(dtype));
    return 0;
}

/* Makes a tensor over the memory. Takes the reference to `b` over. */
static ek_tensor *borrowed_tensor(dl_borrowed *b, ek_dev *dev, const dl_tensor *t)
{
    ek_shape shape = {0};
    int64_t strides[EK_MAX_DIMS], span = 0;
    ek_dtype dtype = EK_F32;
    char *address = NULL;
    ek_storage *storage = NULL;
    ek_tensor *tensor = NULL;
    if (borrowed_check_dtype(t, &dtype) == 0 &&
        borrowed_read_layout(t, &shape, strides, &span) == 0 &&
        borrowed_check_address(t, dtype, span, &address) == 0 &&
        (b->stream == EK_NO_STREAM || dl_order(dev, b->stream, false) >= 0)) {
        b->dev = dev;
        storage =
            ek_storage_new_foreign(dev, (size_t)span * ek_dtype_size(dtype), &b->object, address);
    }
    ek_object_release(b);
    if (storage)
        tensor = ek_tensor_member(storage, dtype, &shape, strides, 0);
    ek_object_release(storage);
    return tensor;
}

/* Makes a row-major copy in the scope. */
static ek_tensor *borrowed_copy(const ek_tensor *tensor)
{
    size_t nbytes = (size_t)ek_tensor_count(tensor) * ek_dtype_size(tensor->dtype);
    void *rows = ek_calloc(1, nbytes);
    ek_tensor *copy = NULL;
    if (rows && ek_to_data(tensor, rows, nbytes) == 0)
        copy = ek_from_data(rows, ek_tensor_shape(tensor), tensor->dtype,
                            .device = ek_tensor_device(tensor));
    free(rows);
    return copy;
}

static ek_tensor *borrowed_take(dl_borrowed taken, ek_device device)
{
    const dl_tensor *t = taken.versioned ? &taken.versioned->tensor : &taken.unversioned->tensor;
    bool read_only = taken.versioned && taken.versioned->flags & DL_READ_ONLY;
    ek_dev *dev = NULL;
    if (taken.versioned && taken.versioned->major != DL_MAJOR)
        EK_FAIL(EK_E_INVALID, "from_dlpack: version %u.%u of DLPack; 1 is taken",
                (unsigned)taken.versioned->major, (unsigned)taken.versioned->minor);
    else
        dev = borrowed_find_device(t, device);
    dl_borrowed *b = dev ? ek_cell_new(sizeof *b) : NULL;
    if (!b) {
        borrowed_give_back(&taken);
        return NULL;
    }
    *b = taken;
    ek_object_init(&b->object, borrowed_destroy);
    if (!read_only)
        return borrowed_tensor(b, dev, t);
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = borrowed_tensor(b, dev, t);
    return ek_scope_return(&scope, tensor ? borrowed_copy(tensor) : NULL);
}

ek_tensor *ek_from_dlpack(struct DLManagedTensorVersioned *lent, ek_device device, void *stream)
{
    if (ek_check_given("from_dlpack", "the lent tensor", lent) < 0)
        return NULL;
    return borrowed_take((dl_borrowed){.stream = stream, .versioned = lent}, device);
}

ek_tensor *ek_from_dlpack_unversioned(struct DLManagedTensor *lent, ek_device device, void *stream)
{
    if (ek_check_given("from_dlpack", "the lent tensor", lent) < 0)
        return NULL;
    return borrowed_take((dl_borrowed){.stream = stream, .unversioned = lent}, device);
}

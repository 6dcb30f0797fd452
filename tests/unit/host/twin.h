/* twin.h: the same tensors on a host device and on a GPU, and comparisons of what kernels of both
 * make of them: the host's with numbers that the test computes in double, the GPU's with the
 * host's.
 *
 *     twin x = twin_uniform(twin_new(EK_F32, 4, dims, TWIN_LAST), -2, 2, seed);
 *     twin y = twin_new(EK_F32, 4, dims, TWIN_GAPS);
 *     twin_run(unary, op, ON(y), ON(x), a, b);
 *     twin_expect(y, wanted, 1e-7, "unary");
 *     twin_close(y, 1e-6, 1e-6, "unary");
 *
 * Both have the same geometry, offsets included, and the same bytes between their elements, which
 * comparisons look at too: kernels must leave them alone. Without a GPU there is the host's tensor
 * alone, and comparisons of the two find nothing. */
#ifndef EK_TESTS_TWIN_H
#define EK_TESTS_TWIN_H

#include <stdarg.h>

#include "host_cases.h"

/* The first are case_layout's. DENSE_OFFSET: row-major from an odd element on; SWAPPED: the last
 * two dimensions in the other order of memory; REVERSED: all. */
typedef enum twin_layout {
    TWIN_LAST,
    TWIN_ROWS,
    TWIN_GAPS,
    TWIN_DENSE_OFFSET,
    TWIN_SWAPPED,
    TWIN_REVERSED,
    TWIN_LAYOUTS
} twin_layout;

typedef struct twin {
    ek_tensor *host, *cuda;
} twin;

/* The one of side 0, or that of side 1; an lvalue. ON(t): that of the `side` at hand. */
#define twin_on(t, side) (*((side) ? &(t).cuda : &(t).host))
#define ON(t) twin_on((t), side)

/* No operand. */
static const twin twin_none;

static inline void two_threads(void)
{
    case_device(2);
}

FIXTURE(two_threads, NULL)

/* Programs that have the GPU do without NVIDIA's libraries, which a process opens once. */
#ifdef TWIN_WITHOUT_LIBRARIES
static inline void without_libraries(void)
{
    skip_without_gpu();
    setenv("EVENKEEL_CUDA_WITHOUT", TWIN_WITHOUT_LIBRARIES, 1);
}

BEFORE_ALL(without_libraries)
#endif

/* A text, until the next one. */
__attribute__((format(printf, 1, 2))) static inline const char *text_of(const char *format, ...)
{
    static char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

/* ---- devices ---- */

static inline ek_dev *twin_dev(ek_device_kind kind)
{
    ek_dev *dev = kind == EK_CUDA ? ek_dev_get(ek_cuda(0)) : ek_dev_get(ek_host(0));
    assert_made(dev);
    return dev;
}

static inline const ek_kernels *twin_host(void)
{
    return twin_dev(EK_HOST)->backend->kernels;
}

static inline int twin_sides(void)
{
    return ek_device_count(EK_CUDA) > 0 ? 2 : 1;
}

/* Calls a kernel on the host and on the GPU; `side` in its arguments is the one or the other. */
#define twin_run(slot, ...)                                                           \
    do {                                                                              \
        for (int side = 0; side < twin_sides(); side++) {                             \
            ek_dev *dev_of_side = twin_dev(side ? EK_CUDA : EK_HOST);                 \
            assert_ok(dev_of_side->backend->kernels->slot(dev_of_side, __VA_ARGS__)); \
        }                                                                             \
    } while (0)

#define twin_refused(status, part, slot, ...)                                             \
    do {                                                                                  \
        for (int side = 0; side < twin_sides(); side++) {                                 \
            ek_dev *dev_of_side = twin_dev(side ? EK_CUDA : EK_HOST);                     \
            assert_refused(dev_of_side->backend->kernels->slot(dev_of_side, __VA_ARGS__), \
                           (status), (part));                                             \
        }                                                                                 \
    } while (0)

/* The host refuses the call itself; the GPU's comes with the next call that waits, and the device
 * goes on. */
#define twin_refused_late(status, host_part, cuda_part, slot, ...)                              \
    do {                                                                                        \
        for (int side = 0; side < twin_sides(); side++) {                                       \
            ek_dev *dev_of_side = twin_dev(side ? EK_CUDA : EK_HOST);                           \
            int result_of_side = dev_of_side->backend->kernels->slot(dev_of_side, __VA_ARGS__); \
            if (side)                                                                           \
                assert_ok(result_of_side);                                                      \
            assert_refused(side ? ek_dev_synchronize(dev_of_side) : result_of_side, (status),   \
                           side ? (cuda_part) : (host_part));                                   \
        }                                                                                       \
        if (twin_sides() == 2)                                                                  \
            assert_ok(ek_synchronize(ek_cuda(0)));                                              \
    } while (0)

/* Twice, the host's on one thread and on two: the same bits in t on either side. */
#define twin_repeats(t, slot, ...)                                                        \
    do {                                                                                  \
        double *once[2] = {NULL, NULL};                                                   \
        for (int turn = 1; turn <= 2; turn++) {                                           \
            case_device(turn);                                                            \
            case_poison((t).host);                                                        \
            twin_push(t);                                                                 \
            twin_run(slot, __VA_ARGS__);                                                  \
            for (int side = 0; side < twin_sides(); side++)                               \
                twin_repeated(side ? twin_pull((t).cuda) : (t).host, &once[side], #slot); \
        }                                                                                 \
        free(once[0]);                                                                    \
        free(once[1]);                                                                    \
    } while (0)

/* ---- making ---- */

enum { TWIN_PATTERN = 0x5a }; /* bytes between the elements */

static inline ek_tensor *twin_member(ek_dev *dev, const ek_tensor *like)
{
    ek_storage *storage = ek_storage_new(dev, like->storage->nbytes);
    assert_made(storage);
    ek_shape shape = ek_tensor_shape(like);
    ek_tensor *tensor = ek_tensor_member(storage, like->dtype, &shape, like->stride, like->offset);
    ek_object_release(storage);
    assert_made(tensor);
    return tensor;
}

/* Gives the GPU's the bytes of the host's. */
static inline void twin_push(twin t)
{
    if (t.cuda)
        assert_ok(ek_dev_copy(ek_tensor_dev(t.cuda), t.cuda->storage->data, ek_tensor_dev(t.host),
                              t.host->storage->data, t.host->storage->nbytes));
}

static inline twin twin_of(ek_tensor *host)
{
    twin t = {.host = host};
    if (twin_sides() == 2)
        t.cuda = twin_member(twin_dev(EK_CUDA), host);
    twin_push(t);
    return t;
}

/* Not initialised: holds a pattern (NaN, or an odd number) everywhere. */
static inline twin twin_new(ek_dtype dtype, int ndim, const int64_t *dims, twin_layout layout)
{
    ek_dev *dev = twin_dev(EK_HOST);
    ek_tensor *x;
    if (layout == TWIN_DENSE_OFFSET) {
        ek_shape shape = {ndim, {0}};
        memcpy(shape.dims, dims, sizeof *dims * (size_t)ndim);
        int64_t stride[EK_MAX_DIMS];
        ek_strides_of(&shape, EK_CONTIGUOUS, stride);
        ek_tensor *base =
            ek_tensor_new(dev, dtype, &EK_SHAPE(ek_shape_count(&shape) + 1), EK_CONTIGUOUS);
        assert_made(base);
        x = ek_tensor_view(base, ndim, dims, stride, 1);
    } else if ((layout == TWIN_SWAPPED || layout == TWIN_REVERSED) && ndim > 1) {
        int64_t turned[EK_MAX_DIMS], stride[EK_MAX_DIMS];
        int first = layout == TWIN_REVERSED ? 0 : ndim - 2;
        for (int d = 0; d < ndim; d++)
            turned[d] = d < first ? dims[d] : dims[ndim - 1 + first - d];
        ek_tensor *base = case_tensor(dev, dtype, ndim, turned, CASE_ROWS);
        for (int d = 0; d < ndim; d++)
            stride[d] = base->stride[d < first ? d : ndim - 1 + first - d];
        x = ek_tensor_view(base, ndim, dims, stride, 0);
    } else {
        x = case_tensor(dev, dtype, ndim, dims,
                        layout >= TWIN_DENSE_OFFSET ? CASE_ROWS : (case_layout)layout);
    }
    assert_made(x);
    memset(x->storage->data, TWIN_PATTERN, x->storage->nbytes);
    if (ek_dtype_is_floating(dtype))
        case_poison(x);
    return twin_of(x);
}

/* Views of both. */
static inline twin twin_view(twin t, int ndim, const int64_t *shape, const int64_t *stride,
                             int64_t offset)
{
    twin view = {.host = NULL};
    for (int side = 0; side < 2 && twin_on(t, side); side++) {
        twin_on(view, side) = ek_tensor_view(twin_on(t, side), ndim, shape, stride, offset);
        assert_made(twin_on(view, side));
    }
    return view;
}

/* A view of the first elements along the dimensions of `mask`, repeated along them. */
static inline twin twin_repeat(twin t, unsigned mask)
{
    int64_t stride[EK_MAX_DIMS];
    for (int d = 0; d < t.host->ndim; d++)
        stride[d] = mask >> d & 1 ? 0 : t.host->stride[d];
    return twin_view(t, t.host->ndim, t.host->shape, stride, t.host->offset);
}

/* Sets element i in row-major order on both sides to values[i]. */
static inline twin twin_set(twin t, const double *values)
{
    CASE_EACH(w, t.host)
        case_walk_set(&w, values[w.i]);
    twin_push(t);
    return t;
}

static inline uint32_t twin_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Element i of the host's tensor, or `otherwise` of twin_none. */
static inline double twin_value(twin t, int64_t i, double otherwise)
{
    return t.host ? case_get(t.host, i) : otherwise;
}

/* In [low, high); bf16 by truncation. */
static inline twin twin_uniform(twin t, double low, double high, unsigned seed)
{
    uint32_t state = seed * 2654435761u + 88172645u;
    CASE_EACH(w, t.host)
        case_walk_set(&w, low + (high - low) * (twin_random(&state) / 4294967296.0));
    twin_push(t);
    return t;
}

/* Whole numbers in [low, high]. */
static inline twin twin_integers(twin t, int64_t low, int64_t high, unsigned seed)
{
    uint32_t state = seed * 2654435761u + 88172645u;
    CASE_EACH(w, t.host)
        case_walk_set(&w, (double)(low + twin_random(&state) % (high - low + 1)));
    twin_push(t);
    return t;
}

/* ---- comparing: `expected` is the host's ---- */

/* The GPU's bytes on the host device, with their geometry. */
static inline ek_tensor *twin_pull(const ek_tensor *cuda)
{
    ek_tensor *copy = twin_member(twin_dev(EK_HOST), cuda);
    assert_ok(ek_dev_copy(ek_tensor_dev(copy), copy->storage->data, ek_tensor_dev(cuda),
                          cuda->storage->data, cuda->storage->nbytes));
    return copy;
}

/* The first element's bytes, of the host's or the GPU's. */
static inline const void *twin_bytes(twin t, int side)
{
    return ek_tensor_address(side ? twin_pull(t.cuda) : t.host);
}

/* Keeps the bits of the first call, and compares those of others. The caller frees them. */
static inline void twin_repeated(const ek_tensor *t, double **once, const char *what)
{
    if (!*once) {
        *once = case_values(t);
        return;
    }
    CASE_EACH(w, t) {
        const double again = case_walk_get(&w);
        if (memcmp(&again, &(*once)[w.i], sizeof again) != 0)
            ck_abort_msg("%s, %s, element %lld is %.17g, then %.17g", what, ek_dtype_name(t->dtype),
                         (long long)w.i, (*once)[w.i], again);
    }
}

/* What lies outside of the elements is equal. */
static inline void twin_gaps(const ek_tensor *expected, const ek_tensor *got, const char *what)
{
    size_t size = ek_dtype_size(expected->dtype), nbytes = expected->storage->nbytes;
    const char *a = expected->storage->data, *b = got->storage->data;
    if (ek_is_dense(expected) && (size_t)ek_count(expected) * size == nbytes)
        return;
    char *inside = calloc(nbytes / size + 1, 1);
    ck_assert_ptr_nonnull(inside);
    CASE_EACH(w, expected)
        inside[expected->offset + w.at] = 1;
    for (size_t i = 0; i < nbytes / size; i++)
        if (!inside[i] && memcmp(a + i * size, b + i * size, size) != 0)
            ck_abort_msg("%s: wrote outside of its output, at element %zu of the storage", what, i);
    free(inside);
}

/* The host's elements are wanted[i], to `tolerance` times 1 or |wanted[i]|, whichever is larger;
 * NaN and infinity must be the same. */
static inline void twin_expect(twin t, const double *wanted, double tolerance, const char *what)
{
    CASE_EACH(w, t.host) {
        double got = case_walk_get(&w), want = wanted[w.i];
        if (isnan(want) ? !isnan(got)
                        : !(got == want || fabs(got - want) <= tolerance * fmax(1, fabs(want))))
            ck_abort_msg("%s, %s, element %lld: %.9g instead of %.9g", what,
                         ek_dtype_name(t.host->dtype), (long long)w.i, got, want);
    }
}

/* The same over the whole tensor: |got - wanted|_2 <= relative |wanted|_2. */
static inline void twin_expect_norm(twin t, const double *wanted, double relative, const char *what)
{
    case_compare(t.host, wanted, relative, what);
}

/* |got - expected| <= absolute + relative * |expected|; NaN and infinity must be the same. */
static inline void twin_close(twin t, double relative, double absolute, const char *what)
{
    if (!t.cuda)
        return;
    ek_tensor *got = twin_pull(t.cuda);
    const void *host = ek_tensor_address(t.host);
    CASE_EACH(w, got) { /* its geometry is the host's */
        double x = case_walk_get(&w), y = case_get_at(w.tensor->dtype, host, w.at);
        bool same = x == y || (isnan(x) && isnan(y));
        if (!same && !(fabs(x - y) <= absolute + relative * fabs(y) && isfinite(y)))
            ck_abort_msg("%s, %s, element %lld of %lld: %.9g on the GPU, %.9g on the host (off by "
                         "%.3g)",
                         what, ek_dtype_name(got->dtype), (long long)w.i, (long long)w.count, x, y,
                         x - y);
    }
    twin_gaps(t.host, got, what);
}

/* Equal values (NaNs count as such). */
static inline void twin_same(twin t, const char *what)
{
    twin_close(t, 0, 0, what);
}

/* |got - expected|_2 <= relative |expected|_2 over the whole tensor. */
static inline void twin_close_norm(twin t, double relative, const char *what)
{
    if (!t.cuda)
        return;
    ek_tensor *got = twin_pull(t.cuda);
    double difference = 0, norm = 0;
    const void *host = ek_tensor_address(t.host);
    CASE_EACH(w, got) { /* its geometry is the host's */
        double x = case_walk_get(&w), y = case_get_at(w.tensor->dtype, host, w.at);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    if (!(sqrt(difference) <= relative * sqrt(norm)))
        ck_abort_msg("%s, %s: |GPU - host| %.3g, |host| %.3g: ratio %.3g, wanted at most %.3g",
                     what, ek_dtype_name(got->dtype), sqrt(difference), sqrt(norm),
                     sqrt(difference / norm), relative);
    twin_gaps(t.host, got, what);
}

#endif

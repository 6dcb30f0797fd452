/* choice.c: elements that are chosen by a mask, by counting, or at random. The sizes of results
 * depend on elements, so that they are computed on the host. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "ops/ops.h"

/* ---- positions of what isn't 0 ---- */

/* Counts the marks that aren't 0. Marks lie in memory that the host can read. */
static int64_t choice_count(const uint8_t *mark, int64_t size)
{
    int64_t found = 0;
    for (int64_t i = 0; i < size; i++)
        found += mark[i] != 0;
    return found;
}

/* Writes the positions of the `count` marks that aren't 0. Has no branch that depends on a mark,
 * because marks may be random. */
static void choice_scan(const uint8_t *mark, int64_t *positions, int64_t count)
{
    int64_t found = 0;
    for (int64_t i = 0; found < count; i++) {
        positions[found] = i;
        found += mark[i] != 0;
    }
}

/* Returns the row-major positions of elements that aren't 0. On a device whose memory the host
 * can't read, the marks of 1 are sorted to the front. */
static ek_tensor *choice_positions(ek_tensor *x)
{
    double count;
    ek_dev *dev = ek_tensor_dev(x);
    const bool are_bytes = x->dtype == EK_BOOL || x->dtype == EK_U8;
    ek_tensor *zero = ek_number_like(x, 0), *flat = ek_reshape(ek_detach(x), EK_SHAPE(-1));
    if (!zero || !flat)
        return NULL;
    ek_tensor *marks = are_bytes && dev->backend->host_memory ? flat : ek_ne(flat, zero);
    marks = marks ? ek_contiguous(marks, EK_CONTIGUOUS) : NULL;
    if (marks && dev->backend->host_memory) {
        const uint8_t *mark = ek_tensor_address(marks);
        const int64_t found = choice_count(mark, ek_count(marks));
        ek_tensor *index = ek_tensor_new(dev, EK_I64, &EK_SHAPE(found), EK_CONTIGUOUS);
        if (index)
            choice_scan(mark, ek_tensor_address(index), found);
        return index;
    }
    ek_tensor *total = marks ? ek_sum(marks) : NULL;
    if (!total || ek_item(total, &count) < 0)
        return NULL;
    ek_tensor *index = ek_tensor_new(dev, EK_I64, &EK_SHAPE((int64_t)count), EK_CONTIGUOUS);
    return EK_RUN(index, argsort, marks, 0, true);
}

ek_tensor *ek_nonzero(ek_tensor *x)
{
    if (!ek_given("nonzero", "x", x))
        return NULL;
    ek_tensor *flat = choice_positions(x), *on_cpu = ek_to_device(flat, ek_cpu());
    if (!flat || !on_cpu)
        return NULL;
    int64_t count = flat->shape[0];
    if (x->ndim == 1)
        return ek_reshape(flat, EK_SHAPE(count, 1));
    ek_tensor *index = ek_empty(EK_SHAPE(count, x->ndim), EK_I64);
    if (!index)
        return NULL;
    const int64_t *from = ek_tensor_address(on_cpu);
    int64_t *to = ek_tensor_address(index);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = from[i];
        for (int d = x->ndim - 1; d >= 0; d--) {
            to[i * x->ndim + d] = rest % x->shape[d];
            rest /= x->shape[d];
        }
    }
    return ek_to_device(index, ek_tensor_dev(x)->id);
}

/* ---- masks ---- */

/* Gives x and the mask their common shape. */
static bool choice_masked(const char *operation, ek_tensor **x, ek_tensor **mask)
{
    if (!ek_given(operation, "x", *x) || !ek_is_mask(operation, "mask", *mask) ||
        !ek_same_device(operation, *x, *mask))
        return false;
    ek_shape shape, of_x = ek_tensor_shape(*x), of_mask = ek_tensor_shape(*mask);
    if (ek_broadcast_shapes(operation, &of_x, &of_mask, &shape) < 0)
        return false;
    *x = ek_expand(*x, shape);
    *mask = ek_expand(*mask, shape);
    return *x && *mask;
}

ek_tensor *ek_masked_select(ek_tensor *x, ek_tensor *mask)
{
    if (!choice_masked("masked_select", &x, &mask))
        return NULL;
    ek_tensor *index = choice_positions(mask), *flat = index ? ek_reshape(x, EK_SHAPE(-1)) : NULL;
    return flat ? ek_gather_dim(flat, 0, index) : NULL;
}

ek_tensor *ek_masked_fill(ek_tensor *x, ek_tensor *mask, double value)
{
    if (!choice_masked("masked_fill", &x, &mask) ||
        !ek_holds("masked_fill", "the value", x->dtype, value))
        return NULL;
    return ek_where(mask, ek_number_like(x, value), x);
}

/* ---- bincount ---- */

/* Counts how often each number below `size` is in x. Works in blocks, because i64 positions may
 * take eight times x's memory. A block has at least as many elements as there are counts. */
static ek_tensor *choice_counts(ek_tensor *x, const ek_shape *size)
{
    const int64_t count = x->shape[0], least = 1 << 20,
                  block = size->dims[0] > least ? size->dims[0] : least;
    ek_tensor *sums = ek_filled(ek_tensor_dev(x), EK_F64, size, 0);
    ek_tensor *one = ek_filled(ek_tensor_dev(x), EK_F64, &EK_SHAPE(1), 1);
    for (int64_t at = 0; sums && one && at < count; at += block) {
        const int64_t length = count - at < block ? count - at : block;
        ek_scope scope = ek_scope_begin();
        ek_tensor *index = ek_to_dtype(ek_narrow(x, 0, at, length), EK_I64);
        ek_tensor *part = ek_index_sum(ek_expand(one, EK_SHAPE(length)), 0, index, size);
        if (!part || !ek_add_(sums, part))
            sums = NULL;
        ek_scope_end(&scope);
    }
    return one ? ek_to_dtype(sums, EK_I64) : NULL;
}

ek_tensor *ek_bincount(ek_tensor *x, ek_tensor *weights, int64_t minlength)
{
    double low = 0, high = -1;
    if (!ek_given("bincount", "x", x) || !ek_optional(weights))
        return NULL;
    if (ek_dtype_is_floating(x->dtype))
        return EK_REFUSE(EK_E_DTYPE, "bincount: x has dtype %s and must have an integer one",
                         ek_dtype_name(x->dtype));
    if (x->ndim != 1)
        return EK_REFUSE(EK_E_SHAPE, "bincount: x has %d dimensions and must have 1", x->ndim);
    if (minlength < 0)
        return EK_REFUSE(EK_E_INVALID, "bincount: minlength is %lld; it must not be negative",
                         (long long)minlength);
    if (weights && (!ek_same_device("bincount", x, weights) ||
                    !ek_of_shape("bincount", "weights", weights, &EK_SHAPE(x->shape[0]))))
        return NULL;
    if (x->shape[0] > 0) {
        ek_tensor *least = ek_min_dim(x, 0, false), *most = ek_max_dim(x, 0, false);
        if (!least || !most || ek_item(least, &low) < 0 || ek_item(most, &high) < 0)
            return NULL;
    }
    if (low < 0)
        return EK_REFUSE(EK_E_INVALID, "bincount: x has %.0f; its elements must not be negative",
                         low);
    if (high >= 0x1p53)
        return EK_REFUSE(EK_E_INVALID,
                         "bincount: x has %.0f; its elements must be below 2^53, as each smaller "
                         "number gets a count",
                         high);
    ek_shape shape = EK_SHAPE((int64_t)high + 1 > minlength ? (int64_t)high + 1 : minlength);
    if (!weights)
        return choice_counts(x, &shape);
    ek_dtype dtype = weights->dtype == EK_F32 ? EK_F32 : EK_F64;
    ek_tensor *index = ek_to_dtype(x, EK_I64), *added = ek_to_dtype(ek_detach(weights), dtype);
    return index && added ? ek_index_sum(added, 0, index, &shape) : NULL;
}

/* ---- multinomial ---- */

/* Checks that each of the `rows` rows of p (f64) is a distribution. */
static int choice_check_rows(const double *p, int64_t rows, int64_t classes)
{
    for (int64_t row = 0; row < rows; row++, p += classes) {
        int refused = 0, positive = 0;
        for (int64_t i = 0; i < classes; i++) {
            refused |= !((p[i] >= 0) & (p[i] <= DBL_MAX));
            positive |= p[i] > 0;
        }
        for (int64_t i = 0; refused && i < classes; i++)
            if (!(p[i] >= 0) || isinf(p[i]))
                return EK_FAIL(EK_E_INVALID,
                               "multinomial: p has %g in row %lld; probabilities must be finite "
                               "and not negative",
                               p[i], (long long)row);
        if (!positive)
            return EK_FAIL(EK_E_INVALID, "multinomial: row %lld of p has the sum 0",
                           (long long)row);
    }
    return 0;
}

/* Looks uniform numbers up in a row's cumulative distribution, which is summed in `type` (f32 or
 * f64, because sums in 16 bits soon stop growing). The search has no branch that depends on the
 * random numbers, which a processor couldn't predict. */
#define CHOICE_LOOK_UP(type)                                             \
    do {                                                                 \
        type *sums = memory, sum = 0;                                    \
        for (int64_t i = 0; i < classes; i++)                            \
            sums[i] = sum = sum + (type)p[i];                            \
        for (int64_t i = 0; i < classes; i++)                            \
            sums[i] /= sum;                                              \
        sums[classes - 1] = 1;                                           \
        for (int64_t j = 0; j < count; j++) {                            \
            const type *from = sums;                                     \
            for (int64_t rest = classes, half; rest > 1; rest -= half) { \
                half = rest / 2;                                         \
                from += ((double)from[half - 1] < uniform[j]) * half;    \
            }                                                            \
            index[j] = from - sums + ((double)*from < uniform[j]);       \
        }                                                                \
    } while (0)

static int choice_look_up(const double *p, int64_t rows, int64_t classes, ek_dtype dtype,
                          const double *uniform, int64_t count, int64_t *index)
{
    void *memory = ek_calloc((size_t)classes, sizeof(double));
    if (!memory)
        return ek_error_pending();
    for (int64_t row = 0; row < rows; row++, p += classes, uniform += count, index += count)
        if (dtype == EK_F64)
            CHOICE_LOOK_UP(double);
        else
            CHOICE_LOOK_UP(float);
    free(memory);
    return 0;
}

/* Draws from p (rows, classes), which lies on cpu; `wide` is p in f64. Quotients are computed in
 * f32 at least, because in 16 bits they could be infinite or 0 / 0. */
static ek_tensor *choice_draw(ek_tensor *p, ek_tensor *wide, int64_t count, bool replacement,
                              ek_generator *generator)
{
    const ek_dtype dtype = ek_dtype_wide(p->dtype);
    const double least = dtype == EK_F64 ? DBL_MIN : (double)FLT_MIN;
    int64_t rows = p->shape[0], classes = p->shape[1];
    ek_tensor *uniform = ek_empty(EK_SHAPE(rows, replacement ? count : classes), EK_F64),
              *index = NULL;
    if (!uniform || ek_uniform_(uniform, 0, 1, generator) < 0)
        return NULL;
    double *u = ek_tensor_address(uniform);
    if (replacement) {
        index = ek_empty(EK_SHAPE(rows, count), EK_I64);
        return index && choice_look_up(ek_tensor_address(wide), rows, classes, dtype, u, count,
                                       ek_tensor_address(index)) >= 0
                   ? index
                   : NULL;
    }
    for (int64_t i = 0; i < rows * classes; i++) {
        const double drawn = -log1p(-u[i]);
        u[i] = drawn < least ? least : drawn;
    }
    ek_tensor *ratio = ek_div(ek_to_dtype(p, dtype), ek_to_dtype(uniform, dtype));
    if (count == 1)
        return ek_argmax(ratio, 1, true);
    return ek_topk(ratio, count, 1, true, &index) ? index : NULL;
}

ek_tensor *ek_multinomial(ek_tensor *p, int64_t count, bool replacement, ek_generator *generator)
{
    if (!ek_floating("multinomial", "p", p))
        return NULL;
    if (p->ndim < 1 || p->ndim > 2 || p->shape[p->ndim - 1] < 1)
        return EK_REFUSE(
            EK_E_SHAPE,
            "multinomial: p has shape %s and must be one or two dimensions of at least "
            "one class",
            EK_SIZE_TEXT(p));
    int64_t classes = p->shape[p->ndim - 1], rows = p->ndim == 1 ? 1 : p->shape[0];
    if (count < 1 || (!replacement && count > classes))
        return EK_REFUSE(EK_E_INVALID,
                         "multinomial: %lld positions of %lld classes; there must be at least 1, "
                         "and without replacement no more than classes",
                         (long long)count, (long long)classes);
    ek_tensor *on_cpu = ek_to_device(ek_detach(p), ek_cpu());
    on_cpu = on_cpu ? ek_reshape(on_cpu, EK_SHAPE(rows, classes)) : NULL;
    ek_tensor *wide = on_cpu ? ek_contiguous(ek_to_dtype(on_cpu, EK_F64), EK_CONTIGUOUS) : NULL;
    if (!wide || choice_check_rows(ek_tensor_address(wide), rows, classes) < 0)
        return NULL;
    ek_tensor *index = choice_draw(on_cpu, wide, count, replacement, generator);
    if (index && p->ndim == 1)
        index = ek_reshape(index, EK_SHAPE(count));
    return index ? ek_to_device(index, ek_tensor_dev(p)->id) : NULL;
}

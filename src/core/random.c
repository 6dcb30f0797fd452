/* random.c: fills tensors with random numbers. Numbers of a Mersenne Twister are drawn on the CPU
 * and then copied. Numbers of Philox are made by the tensor's device. */
#include "evenkeel/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/bits.h"
#include "core/draw.h"
#include "core/dtypes.h"
#include "core/generator.h"
#include "core/tensor.h"

/* ---- one range of numbers into plain memory ---- */

typedef struct fill fill;
typedef void draw_function(ek_generator *generator, const fill *how, void *out, int64_t count);

struct fill {
    draw_function *draw;
    ek_draw_kind kind; /* the distribution of `draw` */
    const char *name;  /* the public function's name */
    ek_dtype dtype;
    double a, b; /* depending on `draw`: low and high, mean and std, or p in `a` */
    int64_t low;
    uint64_t range;
};

/* Draws x * (high - low) + low for x uniform in [0, 1), rounded once (fma) as in PyTorch. */
static void random_draw_uniform(ek_generator *generator, const fill *how, void *out, int64_t count)
{
    if (how->dtype == EK_F64) {
        double *values = out, scale = how->b - how->a;
        for (int64_t i = 0; i < count; i++)
            values[i] = fma(ek_generator_f64(generator), scale, how->a);
    } else if (how->dtype == EK_F32) {
        float *values = out, low = (float)how->a, scale = (float)how->b - low;
        for (int64_t i = 0; i < count; i++)
            values[i] = fmaf(ek_generator_f32(generator), scale, low);
    } else {
        uint16_t *values = out;
        float low = ek_round_narrow(how->dtype, (float)how->a);
        float high = ek_round_narrow(how->dtype, (float)how->b);
        float scale = ek_round_narrow(how->dtype, high - low);
        bool is_f16 = how->dtype == EK_F16;
        for (int64_t i = 0; i < count; i++) {
            uint32_t word = ek_generator_u32(generator);
            float x = is_f16 ? (float)(word & 0x7ffu) * 0x1p-11f : (float)(word & 0xffu) * 0x1p-8f;
            values[i] = ek_narrow_of(how->dtype, fmaf(x, scale, low));
        }
    }
}

static void random_draw_normal(ek_generator *generator, const fill *how, void *out, int64_t count)
{
    if (how->dtype == EK_F64) {
        ek_generator_normal_f64(generator, out, count, how->a, how->b);
    } else if (how->dtype == EK_F32) {
        ek_generator_normal_f32(generator, out, count, how->a, how->b);
    } else {
        (how->dtype == EK_F16 ? ek_generator_normal_f16
                              : ek_generator_normal_bf16)(generator, out, count, how->a, how->b);
        for (int64_t i = 0; i < count; i++) { /* converts each f32 in place */
            float wide;
            memcpy(&wide, (char *)out + i * 4, sizeof(wide));
            uint16_t narrow = ek_narrow_of(how->dtype, wide);
            memcpy((char *)out + i * 2, &narrow, sizeof(narrow));
        }
    }
}

static void random_store(ek_dtype dtype, void *out, int64_t i, int64_t value)
{
    switch (dtype) {
#define STORE(label, text, type, ...)                      \
    case EK_##label:                                       \
        ((type *)out)[i] = EK_##label##_OF_INTEGER(value); \
        break;
        EK_DTYPE_ROWS(STORE)
#undef STORE
    }
}

/* Draws each integer as the remainder of one draw, which is slightly uneven, as in PyTorch. */
static void random_draw_integers(ek_generator *generator, const fill *how, void *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t draw =
            how->range >> 32 ? ek_generator_u64(generator) : ek_generator_u32(generator);
        random_store(how->dtype, out, i, (int64_t)((uint64_t)how->low + draw % how->range));
    }
}

/* Draws zeros and ones of any dtype from f64 uniforms, as PyTorch does. */
static void random_draw_bernoulli(ek_generator *generator, const fill *how, void *out,
                                  int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        random_store(how->dtype, out, i, ek_generator_f64(generator) < how->a);
}

/* ---- tensors of Philox ---- */

/* Returns row-major memory with the tensor's elements if `load`, else with zeros. The caller frees
 * it. Returns NULL if x is NULL, or on an error, which makes *rc negative. */
static void *random_rows_of(const ek_tensor *x, bool load, int *rc)
{
    if (!x || *rc < 0)
        return NULL;
    const size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(x->dtype);
    void *rows = ek_calloc(1, nbytes);
    if (!rows || (load && ek_to_data(x, rows, nbytes) < 0))
        *rc = ek_error_pending();
    return rows;
}

int ek_draw_run(const ek_drawn *tensors, const ek_draw *draw)
{
    ek_tensor *out = tensors->out;
    const ek_tensor *x = tensors->x;
    int64_t count = ek_count(out);
    ek_dev *dev = ek_tensor_dev(out);
    int rc = 0;
    if (count == 0)
        return 0;
    if (dev->backend->draw)
        return dev->backend->draw(dev, tensors, draw);
    void *values = random_rows_of(out, false, &rc), *read = random_rows_of(x, true, &rc);
    void *residual = random_rows_of(tensors->residual, true, &rc);
    if (rc >= 0) {
        const ek_drawn_rows rows = {values, read, residual, out->dtype, x ? x->dtype : out->dtype};
        ek_draw_fill(draw, ek_philox_plain_blocks, &rows, 0, count);
        rc = ek_set_data(out, values, (size_t)count * ek_dtype_size(out->dtype));
    }
    free(values);
    free(read);
    free(residual);
    return rc;
}

/* ---- tensors ---- */

/* Returns true if the elements are drawn in row-major order. This includes elements of
 * channels-last tensors, so that the numbers of a weight don't depend on its memory format. */
static bool random_draws_by_row(const ek_tensor *tensor)
{
    return ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS) ||
           ek_tensor_is_contiguous(tensor, EK_CHANNELS_LAST);
}

/* Draws `count` numbers of `size` bytes into `values`, all at once if by_row. Otherwise draws one
 * number at a time, as PyTorch does, which makes normal numbers in another way then. */
static void random_draw_all(ek_generator *generator, const fill *how, bool by_row, char *values,
                            int64_t count, size_t size)
{
    if (by_row) {
        how->draw(generator, how, values, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        char value[8]; /* room to draw 16 bits as f32 */
        how->draw(generator, how, value, 1);
        memcpy(values + (size_t)i * size, value, size);
    }
}

static int random_run_fill(ek_tensor *tensor, ek_generator *generator, fill *how)
{
    int64_t count = ek_count(tensor);
    size_t size = ek_dtype_size(tensor->dtype);
    EK_TRY(ek_tensor_unshare(tensor));
    ek_draw draw = {
        .kind = how->kind, .a = how->a, .b = how->b, .low = how->low, .range = how->range};
    if (ek_draw_begin(&draw, generator, tensor)) {
        EK_TRY(ek_draw_run(&(ek_drawn){.out = tensor}, &draw));
        ek_tensor_written(tensor, how->name);
        return 0;
    }
    if (count == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    bool by_row = random_draws_by_row(tensor);
    ek_tensor *target = by_row ? tensor : ek_tensor_in_memory_order(tensor);
    char *values = target ? ek_calloc((size_t)count, 8) : NULL; /* room to draw 16 bits as f32 */
    int rc = 0;
    if (!values) {
        rc = ek_error_pending();
    } else {
        how->dtype = tensor->dtype;
        generator = ek_generator_lock(generator);
        random_draw_all(generator, how, by_row, values, count, size);
        ek_generator_unlock(generator);
        rc = ek_set_data(target, values, (size_t)count * size);
    }
    free(values);
    ek_scope_end(&scope);
    return rc;
}

static int random_check_tensor(const ek_tensor *tensor, bool must_float, const char *name)
{
    EK_TRY(ek_fork_check());
    char text[200];

    if (tensor && ek_check_alive(name, "the tensor", tensor) < 0)
        return ek_error_pending();
    if (!tensor)
        return ek_error_status() ? ek_error_status()
                                 : EK_FAIL(EK_E_INVALID, "%s: the tensor is NULL", name);
    if (must_float && !ek_dtype_is_floating(tensor->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: %s is not floating; f32, f64, bf16 and f16 are", name,
                       ek_tensor_text(tensor, text));
    if (ek_repeats(tensor))
        return EK_FAIL(EK_E_INVALID,
                       "%s: elements of %s share memory (an expanded view); clone it first", name,
                       ek_tensor_text(tensor, text));
    return 0;
}

int ek_uniform_(ek_tensor *tensor, double low, double high, ek_generator *generator)
{
    fill how = {random_draw_uniform, EK_DRAW_UNIFORM, "uniform_", EK_F32, low, high, 0, 0};
    EK_TRY(random_check_tensor(tensor, true, "uniform_"));
    if (!(low <= high) || !isfinite(low) || !isfinite(high))
        return EK_FAIL(EK_E_INVALID, "uniform_: low %g, high %g; finite and low <= high is needed",
                       low, high);
    return random_run_fill(tensor, generator, &how);
}

int ek_normal_(ek_tensor *tensor, double mean, double std, ek_generator *generator)
{
    fill how = {random_draw_normal, EK_DRAW_NORMAL, "normal_", EK_F32, mean, std, 0, 0};
    EK_TRY(random_check_tensor(tensor, true, "normal_"));
    if (!(std >= 0))
        return EK_FAIL(EK_E_INVALID, "normal_: std %g; it must be 0 or more", std);
    return random_run_fill(tensor, generator, &how);
}

/* Checks that all integers of [low, high) are numbers of the dtype. */
static int random_check_range(const ek_tensor *tensor, int64_t low, int64_t high)
{
    static const int64_t limits[EK_DTYPES][2] = {
#define LIMITS(label, text, type, class, first, last, ...) \
    [EK_##label] = {first, (last) < INT64_MAX ? (int64_t)((uint64_t)(last) + 1) : INT64_MAX},
        EK_DTYPE_ROWS(LIMITS)
#undef LIMITS
    };
    const int64_t *limit = limits[tensor->dtype];
    if (low >= high)
        return EK_FAIL(EK_E_INVALID, "random_: low %lld, high %lld; low < high is needed",
                       (long long)low, (long long)high);
    if (low < limit[0] || high > limit[1])
        return EK_FAIL(EK_E_INVALID, "random_: [%lld, %lld) is beyond %s, which holds [%lld, %lld)",
                       (long long)low, (long long)high, ek_dtype_name(tensor->dtype),
                       (long long)limit[0], (long long)limit[1]);
    return 0;
}

int ek_random_(ek_tensor *tensor, int64_t low, int64_t high, ek_generator *generator)
{
    fill how = {random_draw_integers,          EK_DRAW_INTEGERS, "random_", EK_I64, 0, 0, low,
                (uint64_t)high - (uint64_t)low};
    EK_TRY(random_check_tensor(tensor, false, "random_"));
    EK_TRY(random_check_range(tensor, low, high));
    return random_run_fill(tensor, generator, &how);
}

int ek_bernoulli_(ek_tensor *tensor, double p, ek_generator *generator)
{
    fill how = {random_draw_bernoulli, EK_DRAW_BERNOULLI, "bernoulli_", EK_F32, p, 0, 0, 0};
    EK_TRY(random_check_tensor(tensor, false, "bernoulli_"));
    if (!(p >= 0 && p <= 1))
        return EK_FAIL(EK_E_INVALID, "bernoulli_: p %g; it must lie in [0, 1]", p);
    return random_run_fill(tensor, generator, &how);
}

ek_tensor *ek_rand_with(ek_tensor_options options)
{
    ek_tensor *tensor = ek_empty_with(options);
    return tensor && ek_uniform_(tensor, 0, 1, NULL) == 0 ? tensor : NULL;
}

ek_tensor *ek_randn_with(ek_tensor_options options)
{
    ek_tensor *tensor = ek_empty_with(options);
    return tensor && ek_normal_(tensor, 0, 1, NULL) == 0 ? tensor : NULL;
}

ek_tensor *ek_rand_like(const ek_tensor *x)
{
    if (ek_check_alive("rand_like", "x", x) < 0)
        return NULL;
    ek_tensor *tensor = x ? ek_tensor_like(x) : EK_FAIL_NULL(EK_E_INVALID, "rand_like: x is NULL");
    return tensor && ek_uniform_(tensor, 0, 1, NULL) == 0 ? tensor : NULL;
}

ek_tensor *ek_randn_like(const ek_tensor *x)
{
    if (ek_check_alive("randn_like", "x", x) < 0)
        return NULL;
    ek_tensor *tensor = x ? ek_tensor_like(x) : EK_FAIL_NULL(EK_E_INVALID, "randn_like: x is NULL");
    return tensor && ek_normal_(tensor, 0, 1, NULL) == 0 ? tensor : NULL;
}

ek_tensor *ek_randint_with(int64_t low, int64_t high, ek_tensor_options options)
{
    options.dtype = EK_I64;
    ek_tensor *tensor = ek_empty_with(options);
    return tensor && ek_random_(tensor, low, high, NULL) == 0 ? tensor : NULL;
}

/* ---- permutations ---- */

int ek_randperm(int64_t count, int64_t *out, ek_generator *generator)
{
    if (count < 0 || (count > 0 && !out))
        return EK_FAIL(EK_E_INVALID, "randperm: %s",
                       count < 0 ? "the count is negative" : "the output is NULL");
    generator = ek_generator_lock(generator);
    for (int64_t i = 0; i < count; i++)
        out[i] = i;
    if (count < (int64_t)(UINT32_MAX / 20)) {
        for (int64_t i = 0; i < count - 1; i++) {
            int64_t other = i + ek_generator_u32(generator) % (count - i);
            int64_t value = out[i];
            out[i] = out[other];
            out[other] = value;
        }
    } else { /* remainders of 32-bit draws would be visibly uneven */
        for (int64_t i = 0; i < count; i++) {
            int64_t other = (int64_t)(ek_generator_u64(generator) % (uint64_t)(i + 1));
            out[i] = out[other];
            out[other] = i;
        }
    }
    ek_generator_unlock(generator);
    return 0;
}

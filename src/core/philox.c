/* philox.c: makes numbers in memory of the host: computes runs of words, and numbers from the
 * words. */
#include "core/draw.h"

#include <string.h>

#include "core/dtypes.h"
#include "core/multiversion.h"
#include "core/tensor.h"

/* A run's words, numbers and operands together fit into the first-level cache, and the processor
 * begins the next run's words while it stores this run's numbers. Longer runs take 20 % more
 * time. */
enum { RUN_WORDS = 256 };

void ek_philox_plain_blocks(uint64_t seed, uint64_t call, uint64_t first, int64_t count,
                            uint32_t *words)
{
    for (int64_t i = 0; i < count; i++)
        ek_philox_words_of(seed, call, first + (uint64_t)i, words + i * EK_PHILOX_BLOCK);
}

/* ---- numbers of one run of words: loops that vectorise ---- */

EK_MULTIVERSION
static void philox_uniforms_f32(const uint32_t *restrict words, float *restrict out, int64_t count,
                                float scale, float low)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = ek_philox_uniform_f32(words[i], scale, low);
}

EK_MULTIVERSION
static void philox_uniforms_f64(const uint32_t *restrict words, double *restrict out, int64_t count,
                                double scale, double low)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = ek_philox_uniform_f64(ek_philox_u64(words[2 * i], words[2 * i + 1]), scale, low);
}

EK_MULTIVERSION
static void philox_uniforms_bf16(const uint32_t *restrict words, uint16_t *restrict out,
                                 int64_t count, float scale, float low)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = ek_bf16_of(ek_philox_uniform_bf16(words[i], scale, low));
}

EK_MULTIVERSION
static void philox_uniforms_f16(const uint32_t *restrict words, uint16_t *restrict out,
                                int64_t count, float scale, float low)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = ek_f16_of(ek_philox_uniform_f16(words[i], scale, low));
}

EK_MULTIVERSION
static void philox_normals_f32(const uint32_t *restrict words, float *restrict out, int64_t pairs,
                               float mean, float std)
{
    for (int64_t i = 0; i < pairs; i++) {
        float pair[2];
        ek_philox_normals_f32(words + 2 * i, mean, std, pair);
        out[2 * i] = pair[0];
        out[2 * i + 1] = pair[1];
    }
}

EK_MULTIVERSION
static void philox_normals_f64(const uint32_t *restrict words, double *restrict out, int64_t pairs,
                               double mean, double std)
{
    for (int64_t i = 0; i < pairs; i++) {
        double pair[2];
        ek_philox_normals_f64(words + 4 * i, mean, std, pair);
        out[2 * i] = pair[0];
        out[2 * i + 1] = pair[1];
    }
}

EK_MULTIVERSION
static void philox_integers(const uint32_t *restrict words, int64_t *restrict out, int64_t count,
                            int64_t low, uint64_t range)
{
    if (range > 4294967296u)
        for (int64_t i = 0; i < count; i++)
            out[i] =
                ek_philox_wide_integer(ek_philox_u64(words[2 * i], words[2 * i + 1]), low, range);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = ek_philox_integer(words[i], low, range);
}

EK_MULTIVERSION
static void philox_choices(const uint32_t *restrict words, int64_t *restrict out, int64_t count,
                           ek_philox_choice choice)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = ek_philox_chosen(words[i], choice);
}

/* Stores integers as numbers of a dtype. */
EK_MULTIVERSION
static void philox_store(ek_dtype dtype, void *out, const int64_t *restrict values, int64_t count)
{
#define STORE(label, text, type, ...)                              \
    case EK_##label:                                               \
        for (int64_t i = 0; i < count; i++)                        \
            ((type *)out)[i] = EK_##label##_OF_INTEGER(values[i]); \
        break;
    switch (dtype) {
        EK_DTYPE_ROWS(STORE)
    }
#undef STORE
}

/* Multiplies each element by `scale` or by 0; NaN times 0 stays NaN. */
#define DEFINE_DROPOUT(suffix, type, real, load, store)                                     \
    EK_MULTIVERSION                                                                         \
    static void philox_dropout_##suffix(const uint32_t *restrict words, type *restrict out, \
                                        const type *restrict x, int64_t count,              \
                                        ek_philox_choice choice, real scale)                \
    {                                                                                       \
        for (int64_t i = 0; i < count; i++) {                                               \
            real factor = ek_philox_chosen(words[i], choice) ? scale : 0;                   \
            out[i] = store(load(x[i]) * factor);                                            \
        }                                                                                   \
    }
#define ITSELF(x) (x)
DEFINE_DROPOUT(f32, float, float, ITSELF, ITSELF)
DEFINE_DROPOUT(f64, double, double, ITSELF, ITSELF)
DEFINE_DROPOUT(bf16, uint16_t, float, ek_float_of_bf16, ek_bf16_of)
DEFINE_DROPOUT(f16, uint16_t, float, ek_float_of_f16, ek_f16_of)

/* ---- a run of elements with numbers that follow each other ---- */

/* A run of elements, whose numbers are made of `words`. The first word belongs to the element that
 * lies `skipped` elements before the run's first. `words` has room for count + skipped elements. */
typedef struct philox_run {
    const uint32_t *words;
    int64_t skipped, count;
    ek_dtype dtype, x_dtype;
    void *out;
    const void *x, *residual;
} philox_run;

static void philox_run_uniform(const ek_draw *draw, const philox_run *run)
{
    const double low = draw->a, high = draw->b;
    if (run->dtype == EK_F64) {
        philox_uniforms_f64(run->words + 2 * run->skipped, run->out, run->count, high - low, low);
    } else if (run->dtype == EK_F32) {
        float narrow = (float)low;
        philox_uniforms_f32(run->words + run->skipped, run->out, run->count, (float)high - narrow,
                            narrow);
    } else {
        float narrow = ek_round_narrow(run->dtype, (float)low);
        float scale =
            ek_round_narrow(run->dtype, ek_round_narrow(run->dtype, (float)high) - narrow);
        (run->dtype == EK_F16 ? philox_uniforms_f16
                              : philox_uniforms_bf16)(run->words + run->skipped, run->out,
                                                      run->count, scale, narrow);
    }
}

/* Makes pairs of numbers from run->words, which begins with a block of four words and so with a
 * whole pair. */
static void philox_run_normal(const ek_draw *draw, const philox_run *run)
{
    const int64_t pairs = (run->skipped + run->count + 1) / 2;
    if (run->dtype == EK_F64) {
        double numbers[RUN_WORDS / 2];
        philox_normals_f64(run->words, numbers, pairs, draw->a, draw->b);
        memcpy(run->out, numbers + run->skipped, (size_t)run->count * sizeof *numbers);
        return;
    }
    float numbers[RUN_WORDS];
    philox_normals_f32(run->words, numbers, pairs, (float)draw->a, (float)draw->b);
    if (run->dtype == EK_F32)
        memcpy(run->out, numbers + run->skipped, (size_t)run->count * sizeof *numbers);
    else
        for (int64_t i = 0; i < run->count; i++)
            ((uint16_t *)run->out)[i] = ek_narrow_of(run->dtype, numbers[run->skipped + i]);
}

static void philox_run_integers(const ek_draw *draw, const philox_run *run)
{
    int64_t values[RUN_WORDS];
    if (draw->kind == EK_DRAW_BERNOULLI)
        philox_choices(run->words + run->skipped, values, run->count, ek_philox_choice_of(draw->a));
    else
        philox_integers(run->words + run->skipped * ek_draw_width(draw, false), values, run->count,
                        draw->low, draw->range);
    philox_store(run->dtype, run->out, values, run->count);
}

/* Writes the products of x's elements; x and `out` have one dtype. */
static void philox_drop(const ek_draw *draw, const philox_run *run)
{
    const ek_philox_choice choice = ek_philox_choice_of(draw->a);
    const uint32_t *words = run->words + run->skipped;
    if (run->dtype == EK_F64)
        philox_dropout_f64(words, run->out, run->x, run->count, choice, draw->b);
    else if (run->dtype == EK_F32)
        philox_dropout_f32(words, run->out, run->x, run->count, choice, (float)draw->b);
    else
        (run->dtype == EK_F16 ? philox_dropout_f16
                              : philox_dropout_bf16)(words, run->out, run->x, run->count, choice,
                                                     ek_round_narrow(run->dtype, (float)draw->b));
}

/* Rounds a run of f32 to 16 bits. */
EK_MULTIVERSION
static void philox_narrow(ek_dtype dtype, uint16_t *restrict out, const float *restrict x,
                          int64_t count)
{
    if (dtype == EK_BF16)
        for (int64_t i = 0; i < count; i++)
            out[i] = ek_bf16_of(x[i]);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = ek_f16_of(x[i]);
}

EK_MULTIVERSION
static void philox_widen(ek_dtype dtype, float *restrict out, const uint16_t *restrict x,
                         int64_t count)
{
    if (dtype == EK_BF16)
        for (int64_t i = 0; i < count; i++)
            out[i] = ek_float_of_bf16(x[i]);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = ek_float_of_f16(x[i]);
}

/* Adds a run of the residual to products that have the result's dtype. `out` may be the
 * residual. */
EK_MULTIVERSION
static void philox_add(const philox_run *run, const void *products)
{
    if (run->dtype == EK_F64) {
        const double *x = products, *y = run->residual;
        for (int64_t i = 0; i < run->count; i++)
            ((double *)run->out)[i] = y[i] + x[i];
    } else if (run->dtype == EK_F32) {
        const float *x = products, *y = run->residual;
        for (int64_t i = 0; i < run->count; i++)
            ((float *)run->out)[i] = y[i] + x[i];
    } else {
        const uint16_t *x = products, *y = run->residual;
        for (int64_t i = 0; i < run->count; i++)
            ((uint16_t *)run->out)[i] =
                ek_narrow_of(run->dtype, ek_float_of_narrow(run->dtype, y[i]) +
                                             ek_float_of_narrow(run->dtype, x[i]));
    }
}

static void philox_run_dropout(const ek_draw *draw, const philox_run *run)
{
    union {
        float f32[RUN_WORDS];
        double f64[RUN_WORDS];
        uint16_t narrow[RUN_WORDS];
    } products;
    uint16_t narrow[RUN_WORDS];
    philox_run part = *run;
    if (run->residual)
        part.out = &products;
    if (run->dtype == run->x_dtype) {
        philox_drop(draw, &part);
    } else if (ek_dtype_is_narrow(run->dtype)) {
        philox_narrow(run->dtype, narrow, run->x, run->count);
        part.x = narrow;
        philox_drop(draw, &part);
    } else {
        void *out = part.out;
        part.out = narrow;
        part.dtype = run->x_dtype;
        philox_drop(draw, &part);
        philox_widen(run->x_dtype, out, narrow, run->count);
    }
    if (run->residual)
        philox_add(run, &products);
}

typedef void run_function(const ek_draw *draw, const philox_run *run);
static run_function *const run_functions[] = {[EK_DRAW_UNIFORM] = philox_run_uniform,
                                              [EK_DRAW_NORMAL] = philox_run_normal,
                                              [EK_DRAW_INTEGERS] = philox_run_integers,
                                              [EK_DRAW_BERNOULLI] = philox_run_integers,
                                              [EK_DRAW_DROPOUT] = philox_run_dropout};

void ek_draw_fill(const ek_draw *draw, ek_philox_blocks *blocks, const ek_drawn_rows *rows,
                  int64_t begin, int64_t end)
{
    const ek_dtype dtype = rows->dtype;
    _Alignas(64) uint32_t words[RUN_WORDS];
    /* how many elements a block of words makes */
    const int64_t each = EK_PHILOX_BLOCK / ek_draw_width(draw, dtype == EK_F64);
    const int64_t most = RUN_WORDS / EK_PHILOX_BLOCK * each;
    const size_t size = ek_dtype_size(dtype);
    for (int64_t i = begin; i < end;) {
        const int64_t row = i / draw->row, number = draw->first + i + row * draw->gap;
        const int64_t rest =
            (row + 1) * draw->row - i < end - i ? (row + 1) * draw->row - i : end - i;
        philox_run run = {.words = words,
                          .skipped = number % each,
                          .dtype = dtype,
                          .x_dtype = rows->x_dtype};
        run.count = rest < most - run.skipped ? rest : most - run.skipped;
        run.out = (char *)rows->out + (size_t)i * size;
        if (rows->x)
            run.x = (const char *)rows->x + (size_t)i * ek_dtype_size(rows->x_dtype);
        if (rows->residual)
            run.residual = (const char *)rows->residual + (size_t)i * size;
        blocks(draw->seed, draw->call, (uint64_t)(number / each),
               (run.skipped + run.count + each - 1) / each, words);
        run_functions[draw->kind](draw, &run);
        i += run.count;
    }
}

/* random.cu: Philox numbers (core/philox.h). A thread computes whole blocks of words, and the four
 * or two elements of each block. The arithmetic is the host's, to the bit. */
#include "core/philox.h"
#include "cuda/launch.cuh"
#include "cuda/launches.h"

/* Functors compute a block's elements, in their computing type. */
template <float (*Of)(uint32_t, float, float)> struct uniform_of {
    enum { EACH = EK_PHILOX_BLOCK };
    float scale, low;
    __device__ void operator()(float (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = Of(words[j], scale, low);
    }
};

struct uniform_f64 {
    enum { EACH = EK_PHILOX_BLOCK / 2 };
    double scale, low;
    __device__ void operator()(double (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = ek_philox_uniform_f64(ek_philox_u64(words[2 * j], words[2 * j + 1]), scale, low);
    }
};

struct normal_f32 {
    enum { EACH = EK_PHILOX_BLOCK };
    float mean, std;
    __device__ void operator()(float (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        ek_philox_normals_f32(words, mean, std, r);
        ek_philox_normals_f32(words + 2, mean, std, r + 2);
    }
};

struct normal_f64 {
    enum { EACH = EK_PHILOX_BLOCK / 2 };
    double mean, std;
    __device__ void operator()(double (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        ek_philox_normals_f64(words, mean, std, r);
    }
};

template <typename C> struct integers {
    enum { EACH = EK_PHILOX_BLOCK };
    int64_t low;
    uint64_t range;
    __device__ void operator()(C (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = (C)ek_philox_integer(words[j], low, range);
    }
};

template <typename C> struct wide_integers {
    enum { EACH = EK_PHILOX_BLOCK / 2 };
    int64_t low;
    uint64_t range;
    __device__ void operator()(C (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = (C)ek_philox_wide_integer(ek_philox_u64(words[2 * j], words[2 * j + 1]), low,
                                             range);
    }
};

template <typename C> struct bernoulli {
    enum { EACH = EK_PHILOX_BLOCK };
    ek_philox_choice choice;
    __device__ void operator()(C (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = (C)ek_philox_chosen(words[j], choice);
    }
};

/* Returns a number rounded to T. */
template <typename T, typename C> EK_DEVICE C round_to(C value)
{
    T stored;
    ek_store(&stored, value);
    return ek_load(&stored);
}

/* Return a product that the compiler doesn't fuse with a sum. */
EK_DEVICE float product_of(float x, float y)
{
    return __fmul_rn(x, y);
}
EK_DEVICE double product_of(double x, double y)
{
    return __dmul_rn(x, y);
}

/* Computes dropout of x's elements. Factors and products are rounded to Narrow. */
template <typename Narrow> struct dropout {
    enum { EACH = EK_PHILOX_BLOCK };
    typedef typename ek_compute<Narrow>::type C;
    ek_philox_choice choice;
    C scale;
    __device__ void operator()(C (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH) {
            C factor = ek_philox_chosen(words[j], choice) ? scale : C(0);
            r[j] = round_to<Narrow>(product_of(round_to<Narrow>(r[j]), factor));
        }
    }
};

/* ---- the loop ---- */

/* The rows of elements. Numbers within a row are consecutive; blocks may reach beyond a row's ends.
 */
struct draw_layout {
    uint64_t seed, call;
    int64_t count;
    int64_t first, row, step; /* a row's first number is `step` above that of the row before */
    int64_t blocks;           /* the most blocks that a row may overlap */
    ek_cuda_long_divisor per_blocks;
    bool one_row;
    bool vectors; /* all operands are aligned for vectors of a block's elements */
};

/* Writes a draw's elements. If `Adds`, adds them to the residual. */
template <typename T, typename X, bool Reads, bool Adds, typename F>
EK_KERNEL draw_loop(F f, draw_layout layout, int64_t items, T *out, const X *x, const T *residual)
{
    constexpr int EACH = F::EACH;
    EK_GRID_LOOP(i, items) {
        int64_t row =
            layout.one_row ? 0 : (int64_t)ek_cuda_divide_long(layout.per_blocks, (uint64_t)i);
        int64_t number = layout.first + row * layout.step;
        int64_t block = number / EACH + (i - row * layout.blocks);
        int64_t begin = block * EACH - number; /* the block's first element in the row */
        int64_t at = row * layout.row + begin;
        int64_t rest = layout.count - row * layout.row;
        int64_t end = rest < layout.row ? rest : layout.row; /* the last row may be shorter */
        typename ek_compute<T>::type r[EACH];
        uint32_t words[EK_PHILOX_BLOCK];
        ek_philox_words_of(layout.seed, layout.call, (uint64_t)block, words);
        if (layout.vectors && begin >= 0 && begin + EACH <= end && at % EACH == 0) {
            if constexpr (Reads)
                ek_load_elements(r, x + at);
            f(r, words);
            if constexpr (Adds) {
                typename ek_compute<T>::type sum[EACH];
                ek_load_elements(sum, residual + at);
                EK_EACH(j, EACH)
                    r[j] = sum[j] + r[j];
            }
            ek_store_elements(out + at, r);
            continue;
        }
        if constexpr (Reads)
            EK_EACH(j, EACH)
                r[j] = begin + j >= 0 && begin + j < end ? ek_load(x + at + j) : 0;
        f(r, words);
        EK_EACH(j, EACH)
            if (begin + j >= 0 && begin + j < end) {
                if constexpr (Adds)
                    r[j] = ek_load(residual + at + j) + r[j];
                ek_store(out + at + j, r[j]);
            }
    }
}

/* ---- launching ---- */

/* Returns true if a block's elements can be loaded and stored by units of up to 16 bytes. */
template <typename T> static bool draw_is_aligned(const void *data, int each)
{
    return ek_is_aligned(data, each * sizeof(T) > 16 ? 16 : each * sizeof(T));
}

template <typename T, typename X = T, bool Reads = false, bool Adds = false, typename F>
static int draw_launch(const ek_cuda_stream *stream, const ek_draw *draw,
                       const ek_cuda_draw_job *job, F f)
{
    const int64_t count = job->count, rows = (count + draw->row - 1) / draw->row;
    draw_layout layout = {};
    layout.seed = draw->seed;
    layout.call = draw->call;
    layout.count = count;
    layout.first = draw->first;
    layout.row = draw->row < count ? draw->row : count;
    layout.step = draw->row + draw->gap;
    layout.blocks = (layout.row + 2 * F::EACH - 2) / F::EACH;
    layout.per_blocks = ek_cuda_long_divisor_of((uint64_t)layout.blocks);
    layout.one_row = rows == 1;
    layout.vectors = draw_is_aligned<T>(job->out, F::EACH) && draw_is_aligned<X>(job->x, F::EACH) &&
                     draw_is_aligned<T>(job->residual, F::EACH);
    const int64_t items = rows * layout.blocks;
    return ek_launch(stream, dim3(ek_grid(stream, items)), draw_loop<T, X, Reads, Adds, F>, f,
                     layout, items, (T *)job->out, (const X *)job->x, (const T *)job->residual);
}

static inline float round_narrow(ek_dtype dtype, double x)
{
    return dtype == EK_F16 ? ek_float_of_f16(ek_f16_of((float)x))
                           : ek_float_of_bf16(ek_bf16_of((float)x));
}

static int launch_uniform(const ek_cuda_stream *stream, const ek_draw *draw,
                          const ek_cuda_draw_job *job)
{
    const ek_dtype dtype = job->dtype;
    const double low = draw->a, high = draw->b;
    if (dtype == EK_F64)
        return draw_launch<double>(stream, draw, job, uniform_f64{high - low, low});
    if (dtype == EK_F32)
        return draw_launch<float>(stream, draw, job,
                                  uniform_of<ek_philox_uniform_f32>{(float)high - (float)low,
                                                                    (float)low});
    float narrow = round_narrow(dtype, low);
    float scale = round_narrow(dtype, round_narrow(dtype, high) - narrow);
    if (dtype == EK_F16)
        return draw_launch<ek_f16>(stream, draw, job,
                                   uniform_of<ek_philox_uniform_f16>{scale, narrow});
    return draw_launch<ek_bf16>(stream, draw, job,
                                uniform_of<ek_philox_uniform_bf16>{scale, narrow});
}

static int launch_normal(const ek_cuda_stream *stream, const ek_draw *draw,
                         const ek_cuda_draw_job *job)
{
    const ek_dtype dtype = job->dtype;
    if (dtype == EK_F64)
        return draw_launch<double>(stream, draw, job, normal_f64{draw->a, draw->b});
    normal_f32 f = {(float)draw->a, (float)draw->b};
    if (dtype == EK_F32)
        return draw_launch<float>(stream, draw, job, f);
    if (dtype == EK_F16)
        return draw_launch<ek_f16>(stream, draw, job, f);
    return draw_launch<ek_bf16>(stream, draw, job, f);
}

static int launch_integers(const ek_cuda_stream *stream, const ek_draw *draw,
                           const ek_cuda_draw_job *job)
{
    EK_ANY_DTYPE(job->dtype, T, {
        typedef typename ek_compute<T>::type C;
        if (ek_draw_width(draw, false) == 2)
            return draw_launch<T>(stream, draw, job, wide_integers<C>{draw->low, draw->range});
        return draw_launch<T>(stream, draw, job, integers<C>{draw->low, draw->range});
    })
}

static int launch_bernoulli(const ek_cuda_stream *stream, const ek_draw *draw,
                            const ek_cuda_draw_job *job)
{
    EK_ANY_DTYPE(job->dtype, T,
                 return draw_launch<T>(stream, draw, job,
                                       bernoulli<typename ek_compute<T>::type>{
                                           ek_philox_choice_of(draw->a)}))
}

template <typename T, typename X, typename Narrow>
static int launch_dropout_of(const ek_cuda_stream *stream, const ek_draw *draw,
                             const ek_cuda_draw_job *job, typename ek_compute<Narrow>::type scale)
{
    const dropout<Narrow> f = {ek_philox_choice_of(draw->a), scale};
    return job->residual ? draw_launch<T, X, true, true>(stream, draw, job, f)
                         : draw_launch<T, X, true>(stream, draw, job, f);
}

static int launch_dropout(const ek_cuda_stream *stream, const ek_draw *draw,
                          const ek_cuda_draw_job *job)
{
    const ek_dtype dtype = job->dtype, from = job->x_dtype;
    if (dtype == EK_F64)
        return launch_dropout_of<double, double, double>(stream, draw, job, draw->b);
    if (dtype == EK_F32 && from == EK_F32)
        return launch_dropout_of<float, float, float>(stream, draw, job, (float)draw->b);
    const bool f16 = dtype == EK_F16 || from == EK_F16;
    const float scale = round_narrow(f16 ? EK_F16 : EK_BF16, draw->b);
    if (dtype == EK_F32 && f16)
        return launch_dropout_of<float, ek_f16, ek_f16>(stream, draw, job, scale);
    if (dtype == EK_F32)
        return launch_dropout_of<float, ek_bf16, ek_bf16>(stream, draw, job, scale);
    if (from == EK_F32 && f16)
        return launch_dropout_of<ek_f16, float, ek_f16>(stream, draw, job, scale);
    if (from == EK_F32)
        return launch_dropout_of<ek_bf16, float, ek_bf16>(stream, draw, job, scale);
    if (f16)
        return launch_dropout_of<ek_f16, ek_f16, ek_f16>(stream, draw, job, scale);
    return launch_dropout_of<ek_bf16, ek_bf16, ek_bf16>(stream, draw, job, scale);
}

int ek_cuda_launch_draw(const ek_cuda_stream *stream, const ek_draw *draw,
                        const ek_cuda_draw_job *job)
{
    switch (draw->kind) {
    case EK_DRAW_UNIFORM:
        return launch_uniform(stream, draw, job);
    case EK_DRAW_NORMAL:
        return launch_normal(stream, draw, job);
    case EK_DRAW_INTEGERS:
        return launch_integers(stream, draw, job);
    case EK_DRAW_BERNOULLI:
        return launch_bernoulli(stream, draw, job);
    default:
        return launch_dropout(stream, draw, job);
    }
}

/* random.cu: Philox numbers (core/philox.h). A thread makes whole blocks of words, and the four or
 * two elements that a block's words are for. The arithmetic is the host's, to the bit. */
#include "core/philox.h"
#include "cuda/launch.cuh"
#include "cuda/launches.h"

/* A functor makes a block's elements, on the type that they are computed in. */
struct uniform_f32 {
    enum { EACH = EK_PHILOX_BLOCK };
    float scale, low;
    __device__ void operator()(float (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = ek_philox_uniform_f32(words[j], scale, low);
    }
};

struct uniform_bf16 {
    enum { EACH = EK_PHILOX_BLOCK };
    float scale, low;
    __device__ void operator()(float (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = ek_philox_uniform_bf16(words[j], scale, low);
    }
};

struct uniform_f16 {
    enum { EACH = EK_PHILOX_BLOCK };
    float scale, low;
    __device__ void operator()(float (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = ek_philox_uniform_f16(words[j], scale, low);
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

/* On x's elements. */
template <typename C> struct dropout {
    enum { EACH = EK_PHILOX_BLOCK };
    ek_philox_choice choice;
    C scale;
    __device__ void operator()(C (&r)[EACH], const uint32_t (&words)[EK_PHILOX_BLOCK]) const
    {
        EK_EACH(j, EACH)
            r[j] = r[j] * (ek_philox_chosen(words[j], choice) ? scale : C(0));
    }
};

/* ---- the loop ---- */

/* Elements lie in rows whose numbers follow each other; blocks overlap a row's ends. */
struct draw_layout {
    uint64_t seed, call;
    int64_t count;
    int64_t first, row, step; /* a row's first number is `step` above that of the row before */
    int64_t blocks;           /* the most blocks that a row may overlap */
    ek_cuda_long_divisor per_blocks;
    bool one_row;
    bool vectors; /* out and x are aligned to a block's elements */
};

template <typename T, bool Reads, typename F>
EK_KERNEL draw_loop(F f, draw_layout layout, int64_t items, T *out, const T *x)
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
            ek_store_elements(out + at, r);
            continue;
        }
        if constexpr (Reads)
            EK_EACH(j, EACH)
                r[j] = begin + j >= 0 && begin + j < end ? ek_load(x + at + j) : 0;
        f(r, words);
        EK_EACH(j, EACH)
            if (begin + j >= 0 && begin + j < end)
                ek_store(out + at + j, r[j]);
    }
}

/* ---- launching ---- */

template <typename T, bool Reads = false, typename F>
static int draw_launch(const ek_cuda_stream *stream, const ek_draw *draw, int64_t count, void *out,
                       const void *x, F f)
{
    const int64_t rows = (count + draw->row - 1) / draw->row;
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
    layout.vectors = ek_is_aligned(out, F::EACH * sizeof(T) > 16 ? 16 : F::EACH * sizeof(T)) &&
                     ek_is_aligned(x, F::EACH * sizeof(T) > 16 ? 16 : F::EACH * sizeof(T));
    const int64_t items = rows * layout.blocks;
    return ek_launch(stream, dim3(ek_grid(stream, items)), draw_loop<T, Reads, F>, f, layout, items,
                     (T *)out, (const T *)x);
}

static inline float round_narrow(ek_dtype dtype, double x)
{
    return dtype == EK_F16 ? ek_float_of_f16(ek_f16_of((float)x))
                           : ek_float_of_bf16(ek_bf16_of((float)x));
}

static int launch_uniform(const ek_cuda_stream *stream, const ek_draw *draw, ek_dtype dtype,
                          int64_t count, void *out)
{
    const double low = draw->a, high = draw->b;
    if (dtype == EK_F64)
        return draw_launch<double>(stream, draw, count, out, NULL, uniform_f64{high - low, low});
    if (dtype == EK_F32)
        return draw_launch<float>(stream, draw, count, out, NULL,
                                  uniform_f32{(float)high - (float)low, (float)low});
    float narrow = round_narrow(dtype, low);
    float scale = round_narrow(dtype, round_narrow(dtype, high) - narrow);
    if (dtype == EK_F16)
        return draw_launch<ek_f16>(stream, draw, count, out, NULL, uniform_f16{scale, narrow});
    return draw_launch<ek_bf16>(stream, draw, count, out, NULL, uniform_bf16{scale, narrow});
}

static int launch_normal(const ek_cuda_stream *stream, const ek_draw *draw, ek_dtype dtype,
                         int64_t count, void *out)
{
    if (dtype == EK_F64)
        return draw_launch<double>(stream, draw, count, out, NULL, normal_f64{draw->a, draw->b});
    normal_f32 f = {(float)draw->a, (float)draw->b};
    if (dtype == EK_F32)
        return draw_launch<float>(stream, draw, count, out, NULL, f);
    if (dtype == EK_F16)
        return draw_launch<ek_f16>(stream, draw, count, out, NULL, f);
    return draw_launch<ek_bf16>(stream, draw, count, out, NULL, f);
}

static int launch_integers(const ek_cuda_stream *stream, const ek_draw *draw, ek_dtype dtype,
                           int64_t count, void *out)
{
    EK_ANY_DTYPE(dtype, T, {
        typedef typename ek_compute<T>::type C;
        if (ek_draw_width(draw, false) == 2)
            return draw_launch<T>(stream, draw, count, out, NULL,
                                  wide_integers<C>{draw->low, draw->range});
        return draw_launch<T>(stream, draw, count, out, NULL, integers<C>{draw->low, draw->range});
    })
}

static int launch_bernoulli(const ek_cuda_stream *stream, const ek_draw *draw, ek_dtype dtype,
                            int64_t count, void *out)
{
    EK_ANY_DTYPE(dtype, T,
                 return draw_launch<T>(stream, draw, count, out, NULL,
                                       bernoulli<typename ek_compute<T>::type>{
                                           ek_philox_choice_of(draw->a)}))
}

static int launch_dropout(const ek_cuda_stream *stream, const ek_draw *draw, ek_dtype dtype,
                          int64_t count, void *out, const void *x)
{
    const ek_philox_choice choice = ek_philox_choice_of(draw->a);
    if (dtype == EK_F64)
        return draw_launch<double, true>(stream, draw, count, out, x,
                                         dropout<double>{choice, draw->b});
    if (dtype == EK_F32)
        return draw_launch<float, true>(stream, draw, count, out, x,
                                        dropout<float>{choice, (float)draw->b});
    dropout<float> f = {choice, round_narrow(dtype, draw->b)};
    if (dtype == EK_F16)
        return draw_launch<ek_f16, true>(stream, draw, count, out, x, f);
    return draw_launch<ek_bf16, true>(stream, draw, count, out, x, f);
}

int ek_cuda_launch_draw(const ek_cuda_stream *stream, const ek_draw *draw, ek_dtype dtype,
                        int64_t count, void *out, const void *x)
{
    switch (draw->kind) {
    case EK_DRAW_UNIFORM:
        return launch_uniform(stream, draw, dtype, count, out);
    case EK_DRAW_NORMAL:
        return launch_normal(stream, draw, dtype, count, out);
    case EK_DRAW_INTEGERS:
        return launch_integers(stream, draw, dtype, count, out);
    case EK_DRAW_BERNOULLI:
        return launch_bernoulli(stream, draw, dtype, count, out);
    default:
        return launch_dropout(stream, draw, dtype, count, out, x);
    }
}

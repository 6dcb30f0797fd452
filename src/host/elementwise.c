/* elementwise.c: elementwise kernels: each thread takes part of a walk, tile by tile. */
#include <string.h>

#include "core/sum_order.h"
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/formulas.h"
#include "kernels/operations.h"

enum { GRAIN = 16384, LINE = 64 };

typedef struct elementwise_job elementwise_job;

/* Computes one tile of n elements; operands are contiguous runs of the class. */
typedef void tile_body(const elementwise_job *job, int64_t n, void *result,
                       const void *const *operands);

struct elementwise_job {
    ek_class type;
    int op;
    double a, b;
    tile_body *tile;
    bool output_is_bytes; /* the tile's result is u8, whatever the class */
    bool first_is_bytes;  /* the tile's first operand is u8, whatever the class */
};

/* ---- loops over contiguous runs. EK_IVDEP is right because out is an operand or overlaps no
 * operand ---- */

#define UNARY_CASE(suffix, name)                             \
    case EK_UNARY_##name:                                    \
        EK_IVDEP                                             \
        for (int64_t i = 0; i < n; i++)                      \
            out[i] = ek_unary_##name##_##suffix(x[i], a, b); \
        break;
#define UNARY_CASE_f32(name, formula) UNARY_CASE(f32, name)
#define UNARY_CASE_f64(name, formula) UNARY_CASE(f64, name)
#define UNARY_CASE_i64(name, formula) UNARY_CASE(i64, name)

#define BINARY_CASE(suffix, name)                                \
    case EK_BINARY_##name:                                       \
        EK_IVDEP                                                 \
        for (int64_t i = 0; i < n; i++)                          \
            out[i] = ek_binary_##name##_##suffix(x[i], y[i], a); \
        break;
#define BINARY_CASE_f32(name, formula) BINARY_CASE(f32, name)
#define BINARY_CASE_f64(name, formula) BINARY_CASE(f64, name)
#define BINARY_CASE_i64(name, formula) BINARY_CASE(i64, name)

#define COMPARE_CASE(name, operator)     \
    case EK_COMPARE_##name:              \
        for (int64_t i = 0; i < n; i++)  \
            out[i] = x[i] operator y[i]; \
        break;

#define UNARY_OF_REALS(CASE) EK_UNARY_REALS(CASE) EK_UNARY_MATHEMATICS(CASE)
#define BINARY_OF_REALS(CASE) EK_BINARY_REALS(CASE) EK_BINARY_MATHEMATICS(CASE)

/* Defines the tile bodies of a class. a and b are read as `scalar`. */
#define DEFINE_TILES(suffix, type, scalar, UNARY, BINARY)                             \
    EK_MULTIVERSION                                                                   \
    static void unary_##suffix(const elementwise_job *job, int64_t n, void *result,   \
                               const void *const *operands)                           \
    {                                                                                 \
        type *out = result;                                                           \
        const type *x = operands[0];                                                  \
        scalar a = (scalar)job->a, b = (scalar)job->b;                                \
        switch (job->op) {                                                            \
            UNARY(UNARY_CASE_##suffix)                                                \
        default:                                                                      \
            break;                                                                    \
        }                                                                             \
    }                                                                                 \
    EK_MULTIVERSION                                                                   \
    static void binary_##suffix(const elementwise_job *job, int64_t n, void *result,  \
                                const void *const *operands)                          \
    {                                                                                 \
        type *out = result;                                                           \
        const type *x = operands[0], *y = operands[1];                                \
        scalar a = (scalar)job->a;                                                    \
        switch (job->op) {                                                            \
            BINARY(BINARY_CASE_##suffix)                                              \
        default:                                                                      \
            break;                                                                    \
        }                                                                             \
    }                                                                                 \
    EK_MULTIVERSION                                                                   \
    static void compare_##suffix(const elementwise_job *job, int64_t n, void *result, \
                                 const void *const *operands)                         \
    {                                                                                 \
        uint8_t *restrict out = result;                                               \
        const type *x = operands[0], *y = operands[1];                                \
        switch (job->op) {                                                            \
            EK_COMPARISONS(COMPARE_CASE)                                              \
        default:                                                                      \
            break;                                                                    \
        }                                                                             \
    }                                                                                 \
    EK_MULTIVERSION                                                                   \
    static void where_##suffix(const elementwise_job *job, int64_t n, void *result,   \
                               const void *const *operands)                           \
    {                                                                                 \
        (void)job;                                                                    \
        type *out = result;                                                           \
        const uint8_t *condition = operands[0];                                       \
        const type *x = operands[1], *y = operands[2];                                \
        EK_IVDEP                                                                      \
        for (int64_t i = 0; i < n; i++)                                               \
            out[i] = condition[i] ? x[i] : y[i];                                      \
    }
DEFINE_TILES(f32, float, float, UNARY_OF_REALS, BINARY_OF_REALS)
DEFINE_TILES(f64, double, double, UNARY_OF_REALS, BINARY_OF_REALS)
DEFINE_TILES(i64, int64_t, double, EK_UNARY_INTEGERS, EK_BINARY_INTEGERS)

/* Computes sin, cos or tan of f32. The formulas return large angles unchanged, which the C library
 * then computes. */
static void unary_angles_f32(const elementwise_job *job, int64_t n, void *result,
                             const void *const *operands)
{
    float *out = result;
    int far = 0;
    unary_f32(job, n, result, operands);
    for (int64_t i = 0; i < n; i++)
        far |= fabsf(out[i]) > EK_FAR_ANGLE;
    for (int64_t i = 0; far && i < n; i++)
        if (fabsf(out[i]) > EK_FAR_ANGLE)
            out[i] = job->op == EK_UNARY_SIN   ? sinf(out[i])
                     : job->op == EK_UNARY_COS ? cosf(out[i])
                                               : tanf(out[i]);
}

/* Computes fmod or remainder of f32, faster than by the C library, which computes only blocks with
 * large quotients. */
EK_MULTIVERSION
static void binary_remainders_f32(const elementwise_job *job, int64_t n, void *result,
                                  const void *const *operands)
{
    float *out = result;
    const float *x = operands[0], *y = operands[1];
    for (int64_t begin = 0; begin < n; begin += EK_TILE) {
        const int64_t end = ek_smaller(n, begin + EK_TILE);
        int large = 0;
        for (int64_t i = begin; i < end; i++)
            large |= !ek_quotient_is_small(x[i], y[i]);
        if (large && job->op == EK_BINARY_FMOD) {
            for (int64_t i = begin; i < end; i++)
                out[i] = fmodf(x[i], y[i]);
        } else if (large) {
            for (int64_t i = begin; i < end; i++)
                out[i] = ek_remainder_f32(x[i], y[i]);
        } else if (job->op == EK_BINARY_FMOD) {
            EK_IVDEP
            for (int64_t i = begin; i < end; i++)
                out[i] = ek_small_fmod_f32(x[i], y[i]);
        } else {
            EK_IVDEP
            for (int64_t i = begin; i < end; i++) {
                const float rest = ek_small_fmod_f32(x[i], y[i]), divisor = y[i];
                out[i] = EK_REMAINDER_OF(rest, divisor);
            }
        }
    }
}

/* The tile bodies by ek_class. */
static tile_body *const unary_tiles[] = {unary_f32, unary_f64, unary_i64};
static tile_body *const binary_tiles[] = {binary_f32, binary_f64, binary_i64};
static tile_body *const compare_tiles[] = {compare_f32, compare_f64, compare_i64};
static tile_body *const where_tiles[] = {where_f32, where_f64, where_i64};

/* ---- one run ---- */

typedef struct elementwise_run_of {
    const elementwise_job *job;
    int operands;
    size_t size;                  /* of an element, in bytes */
    char *data[EK_WALK_OPERANDS]; /* 0 is the output */
} elementwise_run_of;

/* Returns true if all operands are contiguous in one order, with the class's type. */
static bool elementwise_is_flat(const elementwise_job *job, int operands,
                                const ek_tensor *const *tensors)
{
    if (job->output_is_bytes || job->first_is_bytes || !ek_is_dense(tensors[0]))
        return false;
    for (int k = 0; k < operands; k++)
        if (!ek_class_is_dtype(job->type, tensors[k]->dtype) ||
            !ek_same_layout(tensors[0], tensors[k]))
            return false;
    return true;
}

static void elementwise_flat(void *context, int64_t begin, int64_t end)
{
    const elementwise_run_of *run = context;
    void *data[EK_WALK_OPERANDS];
    for (int k = 0; k < run->operands; k++)
        data[k] = run->data[k] + (size_t)begin * run->size;
    run->job->tile(run->job, end - begin, data[0], (const void *const *)data + 1);
}

/* ---- tiles of a walk ---- */

typedef struct elementwise_walk {
    const elementwise_job *job;
    ek_walk walk;
    ek_operand operand[EK_WALK_OPERANDS]; /* 0 is the output */
} elementwise_walk;

/* A tile that holds equal rows, which later tiles use again. */
typedef struct elementwise_held {
    int64_t offset; /* The operand's offset of the first row. */
    int64_t count;  /* Elements; 0 if rows differ. */
} elementwise_held;

static void elementwise_tiles(void *context, int64_t begin, int64_t end)
{
    const elementwise_walk *walked = context;
    const elementwise_job *job = walked->job;
    const ek_walk *walk = &walked->walk;
    ek_tile tiles[EK_WALK_OPERANDS];
    const void *in[EK_WALK_OPERANDS];
    elementwise_held held[EK_WALK_OPERANDS] = {{0}};
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    for (int k = 1; k < walk->operands; k++) /* constants are loaded once for all tiles */
        if (walked->operand[k].constant && !(k == 1 && job->first_is_bytes))
            in[k] = ek_tile_load(walk, &cursor, &walked->operand[k], job->type, EK_TILE, &tiles[k]);
    while (begin < end) {
        int64_t count = ek_tile_count(walk, &cursor, end - begin);
        /* Conditions and results of comparisons are u8 in a tile, which is faster than i64. */
        uint8_t bytes_out[EK_TILE], bytes_in[EK_TILE];
        for (int k = 1; k < walk->operands; k++) {
            const ek_operand *operand = &walked->operand[k];
            if (k == 1 && job->first_is_bytes) {
                const int64_t *loaded =
                    ek_tile_load(walk, &cursor, operand, EK_CLASS_I64, count, &tiles[k]);
                for (int64_t i = 0; i < count; i++)
                    bytes_in[i] = loaded[i] != 0;
                in[k] = bytes_in;
            } else if (!operand->constant) {
                const int64_t same = ek_smaller(ek_tile_same(walk, &cursor, operand), count);
                if (same == count && held[k].count >= count && held[k].offset == cursor.offset[k]) {
                    in[k] = &tiles[k];
                    continue;
                }
                in[k] = ek_tile_load(walk, &cursor, operand, job->type, count, &tiles[k]);
                held[k] = (elementwise_held){cursor.offset[k], in[k] == &tiles[k] ? same : 0};
            }
        }
        if (job->output_is_bytes) {
            job->tile(job, count, bytes_out, in + 1);
            for (int64_t i = 0; i < count; i++)
                tiles[0].i64[i] = bytes_out[i];
            ek_tile_store(walk, &cursor, &walked->operand[0], EK_CLASS_I64, count, &tiles[0],
                          &tiles[0]);
        } else {
            void *target =
                ek_tile_target(walk, &cursor, &walked->operand[0], job->type, count, &tiles[0]);
            job->tile(job, count, target, in + 1);
            ek_tile_store(walk, &cursor, &walked->operand[0], job->type, count, target, &tiles[0]);
        }
        ek_tile_advance(walk, &cursor, count);
        begin += count;
    }
}

static int elementwise_run(ek_dev *dev, const elementwise_job *job, int operands,
                           const ek_tensor *const *tensors)
{
    if (elementwise_is_flat(job, operands, tensors)) {
        elementwise_run_of run = {job, operands, ek_dtype_size(tensors[0]->dtype), {NULL}};
        for (int k = 0; k < operands; k++)
            run.data[k] = ek_tensor_address(tensors[k]);
        ek_parallel_for(dev, ek_count(tensors[0]), GRAIN, elementwise_flat, &run);
        return 0;
    }
    elementwise_walk walked;
    walked.job = job;
    ek_walk_init(&walked.walk, operands, tensors);
    for (int k = 0; k < operands; k++)
        walked.operand[k] = ek_operand_of(&walked.walk, k, tensors[k]);
    ek_parallel_for(dev, walked.walk.count, GRAIN, elementwise_tiles, &walked);
    return 0;
}

/* ---- the slots ---- */

int ek_host_unary(ek_dev *dev, ek_unary op, ek_tensor *out, const ek_tensor *x, double a, double b)
{
    ek_class type = ek_class_of(x->dtype);
    if (type == EK_CLASS_I64 && !ek_unary_has_integers(op))
        return EK_FAIL(EK_E_DTYPE, "unary operation %d takes a floating dtype, not %s", (int)op,
                       ek_dtype_name(x->dtype));
    const bool angles = op == EK_UNARY_SIN || op == EK_UNARY_COS || op == EK_UNARY_TAN;
    elementwise_job job = {.type = type,
                           .op = (int)ek_unary_simplest(op, a),
                           .a = a,
                           .b = b,
                           .tile = angles && type == EK_CLASS_F32 ? unary_angles_f32
                                                                  : unary_tiles[type]};
    return elementwise_run(dev, &job, 2, (const ek_tensor *[]){out, x});
}

int ek_host_binary(ek_dev *dev, ek_binary op, ek_tensor *out, const ek_tensor *x,
                   const ek_tensor *y, double a)
{
    ek_class type = ek_class_of(x->dtype);
    if (type == EK_CLASS_I64 && !ek_binary_has_integers(op))
        return EK_FAIL(EK_E_DTYPE, "binary operation %d takes a floating dtype, not %s", (int)op,
                       ek_dtype_name(x->dtype));
    const bool remainders = op == EK_BINARY_FMOD || op == EK_BINARY_REMAINDER;
    elementwise_job job = {.type = type,
                           .op = (int)op,
                           .a = a,
                           .tile = remainders && type == EK_CLASS_F32 ? binary_remainders_f32
                                                                      : binary_tiles[type]};
    return elementwise_run(dev, &job, 3, (const ek_tensor *[]){out, x, y});
}

int ek_host_compare(ek_dev *dev, ek_compare op, ek_tensor *out, const ek_tensor *x,
                    const ek_tensor *y)
{
    ek_class type = ek_class_of(x->dtype);
    elementwise_job job = {.type = type,
                           .op = (int)op,
                           .tile = compare_tiles[type],
                           .output_is_bytes = true};
    return elementwise_run(dev, &job, 3, (const ek_tensor *[]){out, x, y});
}

int ek_host_where(ek_dev *dev, ek_tensor *out, const ek_tensor *condition, const ek_tensor *x,
                  const ek_tensor *y)
{
    ek_class type = ek_class_of(out->dtype);
    elementwise_job job = {.type = type, .tile = where_tiles[type], .first_is_bytes = true};
    return elementwise_run(dev, &job, 4, (const ek_tensor *[]){out, condition, x, y});
}

/* ---- sums of many ---- */

typedef struct add_job {
    const ek_tensor *out, *const *inputs; /* addend k is inputs[k * step] */
    int step, count;
    ek_class type;
} add_job;

enum { ADD_DEPTH = 7 }; /* entries of the stack of a sum (core/sum_order.h) */
_Static_assert(EK_MAX_DEVICES < 1 << ADD_DEPTH, "the stack has room for EK_MAX_DEVICES addends");

/* Returns elements [at, at + n) of an addend: NULL if the addend is absent, else the addend's
 * memory or `tile`. Also prefetches the n elements after them: the processor's own prefetching
 * doesn't follow many addends in turn. */
static const void *add_load(const add_job *job, int k, int64_t at, int64_t n, ek_tile *tile)
{
    const ek_tensor *x = job->inputs[(ptrdiff_t)k * job->step];
    if (!x)
        return NULL;
    const size_t size = ek_dtype_size(x->dtype), nbytes = (size_t)n * size;
    const char *source = (char *)ek_tensor_address(x) + (size_t)at * size;
    for (size_t i = 0; i < nbytes; i += LINE)
        __builtin_prefetch(source + nbytes + i);
    if (ek_class_is_dtype(job->type, x->dtype))
        return source;
    ek_row_load(job->type, tile, x->dtype, source, 1, n);
    return tile;
}

/* Returns x + y, of which each may be NULL (absent): in `tile`, or the memory of x. */
static const void *add_pair(ek_class type, const void *x, const void *y, int64_t n, ek_tile *tile)
{
    static const elementwise_job plus = {.op = EK_BINARY_ADD, .a = 1};
    if (!y)
        return x;
    if (!x)
        return memcpy(tile, y, (size_t)n * ek_class_size(type));
    binary_tiles[type](&plus, n, tile, (const void *[]){x, y});
    return tile;
}

static void add_tiles(void *context, int64_t begin, int64_t end)
{
    const add_job *job = context;
    const ek_dtype dtype = job->out->dtype;
    const void *stack[ADD_DEPTH];
    ek_tile tiles[ADD_DEPTH];
    for (int64_t at = begin; at < end; at += EK_TILE) {
        int64_t n = ek_smaller(end - at, EK_TILE);
        char *target = (char *)ek_tensor_address(job->out) + (size_t)at * ek_dtype_size(dtype);
        for (int k = 0, top = 0; k < job->count; k++, top++) {
            stack[top] = add_load(job, k, at, n, &tiles[top]);
            for (int joins = ek_sum_joins(k, job->count); joins > 0; joins--, top--)
                stack[top - 1] =
                    add_pair(job->type, stack[top - 1], stack[top], n, &tiles[top - 1]);
        }
        ek_row_store(job->type, stack[0], dtype, target, 1, n);
    }
}

int ek_host_add_n(ek_dev *dev, int count, ek_tensor *const *outs, const ek_tensor *const *inputs,
                  int addends)
{
    if (addends < 1 || addends > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_INVALID, "a sum of %d tensors; 1 to %d are possible", addends,
                       EK_MAX_DEVICES);
    for (int i = 0; i < count; i++) {
        add_job job = {outs[i], inputs + i, count, addends, ek_class_of(outs[i]->dtype)};
        ek_parallel_for(dev, ek_count(outs[i]), GRAIN, add_tiles, &job);
    }
    return 0;
}

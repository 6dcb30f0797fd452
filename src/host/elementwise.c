/* Elementwise kernels: each thread takes part of a walk, tile by tile. */
#include "host/host.h"
#include "host/parallel.h"
#include "host/rows.h"
#include "kernels/operations.h"

enum { GRAIN = 16384 };

typedef struct elementwise_job {
    ek_walk walk;
    ek_operand operand[EK_WALK_OPERANDS]; /* 0 is the output */
    ek_class type;
    int op;
    double a, b;
    /* One tile: operands as contiguous runs of the class. */
    void (*tile)(const struct elementwise_job *job, int64_t count, void *out,
                 const void *const *in);
    bool output_is_bytes; /* operand 0 is u8 memory whatever the class */
    bool first_is_bytes;  /* so is operand 1 */
} elementwise_job;

/* What a bytewise operand of the tile is computed in, or loaded as: i64 would do, bytes are faster.
 */
typedef struct byte_tile {
    uint8_t u8[EK_TILE];
} byte_tile;

static void run_tiles(void *context, int64_t begin, int64_t end)
{
    const elementwise_job *job = context;
    const ek_walk *walk = &job->walk;
    bool direct = !job->output_is_bytes && !job->first_is_bytes;
    for (int k = 0; direct && k < walk->operands; k++)
        direct = ek_class_is_dtype(job->type, job->operand[k].dtype) && ek_walk_is_flat(walk, k);
    ek_tile tiles[EK_WALK_OPERANDS];
    const void *in[EK_WALK_OPERANDS];
    int64_t ready[EK_WALK_OPERANDS] = {0}; /* elements that a periodic operand's tile holds */
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    for (int k = 1; k < walk->operands; k++) /* once for all tiles */
        if (job->operand[k].constant && !(k == 1 && job->first_is_bytes))
            in[k] = ek_tile_load(walk, &cursor, &job->operand[k], job->type, EK_TILE, &tiles[k]);
    while (begin < end) {
        int64_t count = direct ? end - begin : ek_tile_count(walk, &cursor, end - begin);
        byte_tile bytes_out, bytes_in;
        for (int k = 1; k < walk->operands; k++) {
            const ek_operand *operand = &job->operand[k];
            if (k == 1 && job->first_is_bytes) {
                const int64_t *loaded =
                    ek_tile_load(walk, &cursor, operand, EK_CLASS_I64, count, &tiles[k]);
                for (int64_t i = 0; i < count; i++)
                    bytes_in.u8[i] = loaded[i] != 0;
                in[k] = bytes_in.u8;
            } else if (operand->periodic && ready[k] >= count &&
                       cursor.index[walk->ndim - 1] == 0) {
                in[k] = &tiles[k];
            } else if (!operand->constant) {
                in[k] = ek_tile_load(walk, &cursor, operand, job->type, count, &tiles[k]);
                bool fresh = in[k] == &tiles[k] && cursor.index[walk->ndim - 1] == 0;
                ready[k] = fresh ? count : 0;
            }
        }
        if (job->output_is_bytes) {
            job->tile(job, count, bytes_out.u8, in + 1);
            for (int64_t i = 0; i < count; i++)
                tiles[0].i64[i] = bytes_out.u8[i];
            ek_tile_store(walk, &cursor, &job->operand[0], EK_CLASS_I64, count, &tiles[0],
                          &tiles[0]);
        } else {
            void *target =
                ek_tile_target(walk, &cursor, &job->operand[0], job->type, count, &tiles[0]);
            job->tile(job, count, target, in + 1);
            ek_tile_store(walk, &cursor, &job->operand[0], job->type, count, target, &tiles[0]);
        }
        ek_tile_advance(walk, &cursor, count);
        begin += count;
    }
}

static int run(ek_dev *dev, elementwise_job *job, int operands, const ek_tensor *const *tensors)
{
    ek_walk_init(&job->walk, operands, tensors);
    for (int k = 0; k < operands; k++)
        job->operand[k] = ek_operand_of(&job->walk, k, tensors[k]);
    ek_parallel_for(dev, job->walk.count, GRAIN, run_tiles, job);
    return 0;
}

/* ---- unary ---- */

static void unary_tile(const elementwise_job *job, int64_t count, void *out, const void *const *in)
{
    switch (job->type) {
    case EK_CLASS_F32:
        ek_rows_unary_f32((ek_unary)job->op, count, out, in[0], (float)job->a, (float)job->b);
        break;
    case EK_CLASS_F64:
        ek_rows_unary_f64((ek_unary)job->op, count, out, in[0], job->a, job->b);
        break;
    case EK_CLASS_I64:
        ek_rows_unary_i64((ek_unary)job->op, count, out, in[0], job->a, job->b);
        break;
    }
}

int ek_host_unary(ek_dev *dev, ek_unary op, ek_tensor *out, const ek_tensor *x, double a, double b)
{
    ek_class type = ek_class_of(x->dtype);
    if (type == EK_CLASS_I64 && !ek_unary_has_integers(op))
        return EK_FAIL(EK_E_DTYPE, "unary operation %d takes a floating dtype, not %s", (int)op,
                       ek_dtype_name(x->dtype));
    elementwise_job job = {
        .type = type, .op = (int)ek_unary_simplest(op, a), .a = a, .b = b, .tile = unary_tile};
    return run(dev, &job, 2, (const ek_tensor *[]){out, x});
}

/* ---- binary ---- */

static void binary_tile(const elementwise_job *job, int64_t count, void *out, const void *const *in)
{
    switch (job->type) {
    case EK_CLASS_F32:
        ek_rows_binary_f32((ek_binary)job->op, count, out, in[0], in[1], (float)job->a);
        break;
    case EK_CLASS_F64:
        ek_rows_binary_f64((ek_binary)job->op, count, out, in[0], in[1], job->a);
        break;
    case EK_CLASS_I64:
        ek_rows_binary_i64((ek_binary)job->op, count, out, in[0], in[1], job->a);
        break;
    }
}

int ek_host_binary(ek_dev *dev, ek_binary op, ek_tensor *out, const ek_tensor *x,
                   const ek_tensor *y, double a)
{
    ek_class type = ek_class_of(x->dtype);
    if (type == EK_CLASS_I64 && !ek_binary_has_integers(op))
        return EK_FAIL(EK_E_DTYPE, "binary operation %d takes a floating dtype, not %s", (int)op,
                       ek_dtype_name(x->dtype));
    elementwise_job job = {.type = type, .op = (int)op, .a = a, .tile = binary_tile};
    return run(dev, &job, 3, (const ek_tensor *[]){out, x, y});
}

/* ---- compare and where ---- */

static void compare_tile(const elementwise_job *job, int64_t count, void *out,
                         const void *const *in)
{
    ek_rows_compare((ek_compare)job->op, job->type, count, out, in[0], in[1]);
}

int ek_host_compare(ek_dev *dev, ek_compare op, ek_tensor *out, const ek_tensor *x,
                    const ek_tensor *y)
{
    elementwise_job job = {.type = ek_class_of(x->dtype),
                           .op = (int)op,
                           .tile = compare_tile,
                           .output_is_bytes = true};
    return run(dev, &job, 3, (const ek_tensor *[]){out, x, y});
}

static void where_tile(const elementwise_job *job, int64_t count, void *out, const void *const *in)
{
    ek_rows_where(job->type, count, out, in[0], in[1], in[2]);
}

int ek_host_where(ek_dev *dev, ek_tensor *out, const ek_tensor *condition, const ek_tensor *x,
                  const ek_tensor *y)
{
    elementwise_job job = {.type = ek_class_of(out->dtype),
                           .tile = where_tile,
                           .first_is_bytes = true};
    return run(dev, &job, 4, (const ek_tensor *[]){out, condition, x, y});
}

/* ---- sums of many ---- */

typedef struct add_job {
    const ek_operand *out;
    const ek_tensor *const *inputs; /* each `step` after the one before */
    int step, count;
    ek_class type;
} add_job;

static void add_tiles(void *context, int64_t begin, int64_t end)
{
    const add_job *job = context;
    size_t size = ek_dtype_size(job->out->dtype);
    bool direct = ek_class_is_dtype(job->type, job->out->dtype);
    ek_tile sum, next;
    for (int64_t at = begin; at < end; at += EK_TILE) {
        int64_t n = end - at < EK_TILE ? end - at : EK_TILE;
        char *target = (char *)job->out->data + (size_t)at * size;
        ek_row_load(job->type, &sum, job->out->dtype,
                    (char *)ek_tensor_address(job->inputs[0]) + (size_t)at * size, 1, n);
        for (int k = 1; k < job->count; k++) {
            const void *source = (char *)ek_tensor_address(job->inputs[(ptrdiff_t)k * job->step]) +
                                 (size_t)at * size;
            if (!direct) {
                ek_row_load(job->type, &next, job->out->dtype, source, 1, n);
                source = &next;
            }
            if (job->type == EK_CLASS_F32)
                ek_rows_binary_f32(EK_BINARY_ADD, n, sum.f32, sum.f32, source, 1);
            else if (job->type == EK_CLASS_F64)
                ek_rows_binary_f64(EK_BINARY_ADD, n, sum.f64, sum.f64, source, 1);
            else
                ek_rows_binary_i64(EK_BINARY_ADD, n, sum.i64, sum.i64, source, 1);
        }
        ek_row_store(job->type, &sum, job->out->dtype, target, 1, n);
    }
}

int ek_host_add_n(ek_dev *dev, int count, ek_tensor *const *outs, const ek_tensor *const *inputs,
                  int addends)
{
    if (addends < 1)
        return EK_FAIL(EK_E_INVALID, "a sum of %d tensors; at least 1 is needed", addends);
    for (int i = 0; i < count; i++) {
        ek_operand operand = {.dtype = outs[i]->dtype, .data = ek_tensor_address(outs[i])};
        add_job job = {&operand, inputs + i, count, addends, ek_class_of(outs[i]->dtype)};
        ek_parallel_for(dev, ek_count(outs[i]), GRAIN, add_tiles, &job);
    }
    return 0;
}

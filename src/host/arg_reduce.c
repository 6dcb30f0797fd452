/* arg_reduce.c: the position of the largest or smallest element along a dimension. Of equal
 * elements the first counts. A NaN is preferred to all numbers.
 *
 * Neighbouring lanes read one row of elements after another. Each lane keeps the best element so
 * far and its row. If outputs are neighbours in x, every output has a lane. Otherwise an output has
 * LANES lanes, to which its elements are dealt in turn; the lanes are compared at the end. */
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { LANES = 32, OUTPUTS = 256 };

typedef struct arg_job {
    ek_walk walk; /* over the other dimensions; operand 0 is index, 1 is x */
    const ek_tensor *x;
    int64_t *index;
    ek_class type; /* the lanes' class */
    bool direct;   /* x's elements have the class's type */
    bool smallest;
    int64_t size, stride;
} arg_job;

/* The best element of each lane so far, and its row. */
typedef struct arg_lanes {
    ek_tile best;
    union {
        int32_t i32[EK_TILE];
        int64_t i64[EK_TILE];
    } row; /* i32 for f32, so that vectors of rows and of elements are equally long */
} arg_lanes;

/* ---- rows of elements ---- */

#define TAKE_ROWS(type, numbers, row_type, rows_of, no_better)                  \
    do {                                                                        \
        type *restrict best = lanes->best.numbers;                              \
        row_type *restrict at = lanes->row.rows_of;                             \
        const type *from = x;                                                   \
        for (int64_t r = 0; r < rows; r++, from += stride)                      \
            for (int64_t j = 0; j < n; j++) {                                   \
                const type v = from[j], b = best[j];                            \
                const int take = !(v no_better b) & (b == b); /* a NaN stays */ \
                best[j] = take ? v : b;                                         \
                at[j] = take ? (row_type)(first + r) : at[j];                   \
            }                                                                   \
    } while (0)

#define TAKE_CLASSES(no_better)                           \
    switch (type) {                                       \
    case EK_CLASS_F32:                                    \
        TAKE_ROWS(float, f32, int32_t, i32, no_better);   \
        break;                                            \
    case EK_CLASS_F64:                                    \
        TAKE_ROWS(double, f64, int64_t, i64, no_better);  \
        break;                                            \
    case EK_CLASS_I64:                                    \
        TAKE_ROWS(int64_t, i64, int64_t, i64, no_better); \
        break;                                            \
    }

/* Updates n lanes with `rows` rows of x, `stride` apart. `first` is the first row's number. */
EK_MULTIVERSION
static void arg_take(ek_class type, bool smallest, int64_t rows, int64_t stride, int64_t n,
                     const void *x, int64_t first, arg_lanes *lanes)
{
    if (smallest)
        TAKE_CLASSES(>=)
    else
        TAKE_CLASSES(<=)
}

/* Starts n lanes with row 0, whose elements have the class's type. */
static void arg_start(const arg_job *job, int64_t n, const void *row, arg_lanes *lanes)
{
    const size_t size = job->type == EK_CLASS_F32 ? sizeof(float) : sizeof(double);
    memcpy(&lanes->best, row, (size_t)n * size);
    memset(&lanes->row, 0, (size_t)n * size);
}

static int64_t arg_row(const arg_job *job, const arg_lanes *lanes, int64_t lane)
{
    return job->type == EK_CLASS_F32 ? lanes->row.i32[lane] : lanes->row.i64[lane];
}

/* ---- outputs side by side ---- */

static void arg_outputs(const arg_job *job, int64_t n, const char *x, int64_t *index,
                        int64_t index_stride)
{
    const int64_t pitch = job->stride * (int64_t)ek_dtype_size(job->x->dtype);
    arg_lanes lanes;
    ek_tile tile;
    if (job->direct) {
        arg_start(job, n, x, &lanes);
        arg_take(job->type, job->smallest, job->size - 1, job->stride, n, x + pitch, 1, &lanes);
    }
    for (int64_t r = 0; !job->direct && r < job->size; r++) {
        ek_row_load(job->type, &tile, job->x->dtype, x + r * pitch, 1, n);
        if (r == 0)
            arg_start(job, n, &tile, &lanes);
        else
            arg_take(job->type, job->smallest, 1, 0, n, &tile, r, &lanes);
    }
    for (int64_t j = 0; j < n; j++)
        index[j * index_stride] = arg_row(job, &lanes, j);
}

/* ---- one output ---- */

/* Returns true if lane i's element is better than lane j's. */
static bool arg_is_better(const arg_job *job, const ek_tile *best, int64_t i, int64_t j)
{
    if (job->type == EK_CLASS_I64)
        return job->smallest ? best->i64[i] < best->i64[j] : best->i64[i] > best->i64[j];
    const bool is_f32 = job->type == EK_CLASS_F32;
    const double a = is_f32 ? (double)best->f32[i] : best->f64[i],
                 b = is_f32 ? (double)best->f32[j] : best->f64[j];
    return b == b && (a != a || (job->smallest ? a < b : a > b));
}

/* Returns the position of the best element of n lanes. */
static int64_t arg_join(const arg_job *job, int64_t n, const arg_lanes *lanes)
{
    int64_t best = 0, found = arg_row(job, lanes, 0) * LANES;
    for (int64_t j = 1; j < n; j++) {
        const int64_t at = arg_row(job, lanes, j) * LANES + j;
        if (arg_is_better(job, &lanes->best, j, best) ||
            (at < found && !arg_is_better(job, &lanes->best, best, j))) {
            best = j;
            found = at;
        }
    }
    return found;
}

static int64_t arg_output(const arg_job *job, const char *x)
{
    const int64_t size = (int64_t)ek_dtype_size(job->x->dtype),
                  lane_size = job->type == EK_CLASS_F32 ? sizeof(float) : sizeof(double);
    const bool direct = job->direct && job->stride == 1;
    arg_lanes lanes;
    ek_tile tile;
    for (int64_t start = 0; start < job->size; start += EK_TILE) {
        const int64_t n = ek_smaller(job->size - start, EK_TILE), rows = n / LANES;
        const char *row = x + start * job->stride * size;
        if (!direct) {
            ek_row_load(job->type, &tile, job->x->dtype, row, job->stride, n);
            row = (const char *)&tile;
        }
        if (start == 0)
            arg_start(job, ek_smaller(n, LANES), row, &lanes);
        arg_take(job->type, job->smallest, rows, LANES, LANES, row, start / LANES, &lanes);
        arg_take(job->type, job->smallest, 1, 0, n % LANES, row + rows * LANES * lane_size,
                 start / LANES + rows, &lanes);
    }
    return arg_join(job, ek_smaller(job->size, LANES), &lanes);
}

/* ---- the walk ---- */

static void arg_part(void *context, int64_t begin, int64_t end)
{
    const arg_job *job = context;
    const ek_walk *walk = &job->walk;
    const int64_t size = (int64_t)ek_dtype_size(job->x->dtype);
    const bool side_by_side = walk->stride[1][walk->ndim - 1] == 1 && job->stride != 1;
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    while (begin < end) {
        const char *x = (const char *)ek_tensor_address(job->x) + cursor.offset[1] * size;
        int64_t *index = job->index + cursor.offset[0];
        int64_t n = 1;
        if (side_by_side) {
            n = ek_smaller(ek_cursor_row_rest(walk, &cursor), ek_smaller(end - begin, OUTPUTS));
            arg_outputs(job, n, x, index, walk->stride[0][walk->ndim - 1]);
        } else {
            *index = arg_output(job, x);
        }
        ek_cursor_advance(walk, &cursor, n);
        begin += n;
    }
}

int ek_host_arg_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *index, const ek_tensor *x,
                       int dim)
{
    if (ek_count(index) == 0)
        return 0;
    int64_t size = ek_arg_reduce_size(kind, x, dim);
    if (size < 0)
        return (int)size;
    arg_job job = {.x = x,
                   .index = ek_tensor_address(index),
                   .type = ek_class_of(x->dtype),
                   .smallest = kind == EK_REDUCE_MIN,
                   .size = size,
                   .stride = x->ndim == 0 ? 1 : x->stride[dim]};
    if (job.type == EK_CLASS_F32 && size > INT32_MAX)
        job.type = EK_CLASS_F64;
    job.direct = ek_class_is_dtype(job.type, x->dtype);
    ek_walk_init_raw(&job.walk, 2, index->ndim, index->shape,
                     (const int64_t *[]){index->stride, x->stride});
    ek_parallel_for(dev, job.walk.count, 1 + 16384 / size, arg_part, &job);
    return 0;
}

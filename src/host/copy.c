/* copy.c: fill and copy: any dtypes, any strides. */
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/formulas.h"

enum { GRAIN = 32768, BLOCK = 32 };

/* ---- fill ---- */

typedef struct fill_job {
    ek_walk walk;
    ek_operand out;
    ek_class type;
    ek_tile row; /* the value, EK_TILE times */
    bool is_zero;
} fill_job;

static void fill_part(void *context, int64_t begin, int64_t end)
{
    const fill_job *job = context;
    size_t size = ek_dtype_size(job->out.dtype);
    ek_cursor cursor;
    ek_cursor_init(&job->walk, &cursor, begin);
    while (begin < end) {
        int64_t n = ek_cursor_run(&job->walk, &cursor, end - begin);
        char *target = (char *)job->out.data + cursor.offset[0] * (int64_t)size;
        int64_t stride = job->walk.stride[0][job->walk.ndim - 1];
        if (job->is_zero && stride == 1) {
            memset(target, 0, (size_t)n * size);
        } else {
            for (int64_t i = 0; i < n; i += EK_TILE)
                ek_row_store(job->type, &job->row, job->out.dtype,
                             target + i * stride * (int64_t)size, stride,
                             n - i < EK_TILE ? n - i : EK_TILE);
        }
        ek_cursor_advance(&job->walk, &cursor, n);
        begin += n;
    }
}

int ek_host_fill(ek_dev *dev, ek_tensor *out, double value)
{
    fill_job job; /* not zeroed: the row is long */
    job.type = ek_class_of(out->dtype);
    if (job.type == EK_CLASS_I64 && out->dtype != EK_I64)
        job.type = EK_CLASS_F64; /* `value` is converted like a copied f64 */
    ek_walk_init(&job.walk, 1, (const ek_tensor *[]){out});
    job.out = ek_operand_of(&job.walk, 0, out);
    job.is_zero = value == 0 && !signbit(value);
    ek_row_load(job.type, &job.row, EK_F64, &value, 0, ek_smaller(EK_TILE, job.walk.count));
    ek_parallel_for(dev, job.walk.count, GRAIN, fill_part, &job);
    return 0;
}

/* ---- copy ---- */

typedef struct copy_job {
    ek_walk walk;
    ek_operand out, x;
    ek_class type;
    int across; /* the dimension in which x is contiguous, for a transposition; else -1 */
    int64_t blocks_outer, blocks_inner;
} copy_job;

/* Calls X(size, type) for an unsigned integer of each size that elements have. */
#define COPY_SIZES(X) X(1, uint8_t) X(2, uint16_t) X(4, uint32_t) X(8, uint64_t)

/* Copies a row backwards; `from` is its last element. */
#define DEFINE_BACK(size, type)                                             \
    EK_MULTIVERSION                                                         \
    static void copy_back_##size(void *to, const void *from, int64_t count) \
    {                                                                       \
        type *restrict out = to;                                            \
        const type *restrict x = (const type *)from - (count - 1);          \
        for (int64_t i = 0; i < count; i++)                                 \
            out[i] = x[count - 1 - i];                                      \
    }
COPY_SIZES(DEFINE_BACK)

/* The functions by the size of an element. */
#define BACK(size, type) [size] = copy_back_##size,
static void (*const copy_backs[])(void *, const void *, int64_t) = {COPY_SIZES(BACK)};

/* Copies row by row. Rows of one dtype are copied as bytes, forwards or backwards, if their strides
 * allow it. Long contiguous rows are converted directly if one of them has the class's type. Other
 * rows are copied through a tile. */
static void copy_part(void *context, int64_t begin, int64_t end)
{
    const copy_job *job = context;
    const ek_walk *walk = &job->walk;
    size_t size = ek_dtype_size(job->out.dtype);
    const int last = walk->ndim - 1;
    const bool same = job->out.dtype == job->x.dtype && walk->stride[0][last] == 1,
               runs = walk->stride[0][last] == 1 && walk->stride[1][last] == 1;
    const bool bytes = same && runs, back = same && walk->stride[1][last] == -1; /* a flip */
    bool loads = runs && ek_class_is_dtype(job->type, job->out.dtype);
    bool stores = runs && ek_class_is_dtype(job->type, job->x.dtype);
    bool narrow = !bytes && !back && walk->shape[last] < EK_TILE;
    size_t x_size = ek_dtype_size(job->x.dtype);
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    ek_tile tile;
    while (begin < end) {
        int64_t n = ek_cursor_row_rest(walk, &cursor);
        if (narrow || (!bytes && !back && !loads && !stores && n > EK_TILE))
            n = ek_tile_count(walk, &cursor, end - begin);
        n = ek_smaller(n, end - begin);
        void *to = (char *)job->out.data + cursor.offset[0] * (int64_t)size;
        const void *from = (const char *)job->x.data + cursor.offset[1] * (int64_t)x_size;
        const int64_t rows = bytes ? ek_cursor_rows(walk, &cursor, end - begin) : 0;
        if (rows > 0) {
            n = rows * walk->shape[last];
            ek_rows_copy(to, walk->stride[0][last - 1] * (int64_t)size, from,
                         walk->stride[1][last - 1] * (int64_t)size,
                         (size_t)walk->shape[last] * size, rows);
        } else if (bytes) {
            memcpy(to, from, (size_t)n * size);
        } else if (back) {
            copy_backs[size](to, from, n);
        } else if (loads && !narrow) {
            ek_row_load(job->type, to, job->x.dtype, from, 1, n);
        } else if (stores && !narrow) {
            ek_row_store(job->type, from, job->out.dtype, to, 1, n);
        } else {
            const void *row = ek_tile_load(walk, &cursor, &job->x, job->type, n, &tile);
            ek_tile_store(walk, &cursor, &job->out, job->type, n, row, row);
        }
        ek_tile_advance(walk, &cursor, n);
        begin += n;
    }
}

/* Transposes one block: out[i][j] = x[j][i]. j is contiguous in out, i in x. Blocks of 8 x 8, and
 * dense blocks with a side of 2, have loops of constant size, which compilers vectorise. */
#define DEFINE_TRANSPOSE(size, type)                                                   \
    EK_MULTIVERSION                                                                    \
    static void copy_transpose_##size(void *to, int64_t out_stride, const void *from,  \
                                      int64_t x_stride, int64_t rows, int64_t columns) \
    {                                                                                  \
        type *restrict out = to;                                                       \
        const type *restrict x = from;                                                 \
        if (rows == 8 && columns == 8) {                                               \
            for (int i = 0; i < 8; i++)                                                \
                for (int j = 0; j < 8; j++)                                            \
                    out[i * out_stride + j] = x[j * x_stride + i];                     \
        } else if (columns == 2 && out_stride == 2) {                                  \
            for (int64_t i = 0; i < rows; i++) {                                       \
                out[2 * i] = x[i];                                                     \
                out[2 * i + 1] = x[x_stride + i];                                      \
            }                                                                          \
        } else if (rows == 2 && x_stride == 2) {                                       \
            for (int64_t j = 0; j < columns; j++) {                                    \
                out[j] = x[2 * j];                                                     \
                out[out_stride + j] = x[2 * j + 1];                                    \
            }                                                                          \
        } else {                                                                       \
            for (int64_t i = 0; i < rows; i++)                                         \
                for (int64_t j = 0; j < columns; j++)                                  \
                    out[i * out_stride + j] = x[j * x_stride + i];                     \
        }                                                                              \
    }
COPY_SIZES(DEFINE_TRANSPOSE)

/* The functions by the size of an element. */
#define TRANSPOSE(size, type) [size] = copy_transpose_##size,
static void (*const copy_transposes[])(void *, int64_t, const void *, int64_t, int64_t,
                                       int64_t) = {COPY_SIZES(TRANSPOSE)};

/* Transposes blocks [begin, end). A block's index is (position in the other dimensions, block along
 * `across`, block along the innermost dimension). */
static void copy_transpose_part(void *context, int64_t begin, int64_t end)
{
    const copy_job *job = context;
    const ek_walk *walk = &job->walk;
    int inner = walk->ndim - 1, across = job->across;
    size_t size = ek_dtype_size(job->out.dtype);
    int64_t out_stride = walk->stride[0][across], x_stride = walk->stride[1][inner];
    for (int64_t index = begin; index < end; index++) {
        int64_t j = index % job->blocks_inner * BLOCK;
        int64_t i = index / job->blocks_inner % job->blocks_outer * BLOCK;
        int64_t rest = index / (job->blocks_inner * job->blocks_outer);
        int64_t out_offset = i * out_stride + j, x_offset = i + j * x_stride;
        for (int d = inner - 1; d >= 0; d--) {
            if (d == across)
                continue;
            out_offset += rest % walk->shape[d] * walk->stride[0][d];
            x_offset += rest % walk->shape[d] * walk->stride[1][d];
            rest /= walk->shape[d];
        }
        int64_t rows = ek_smaller(BLOCK, walk->shape[across] - i);
        int64_t columns = ek_smaller(BLOCK, walk->shape[inner] - j);
        /* A block with a side below 8 is transposed at once. */
        int64_t step = ek_smaller(rows, columns) < 8 ? BLOCK : 8;
        for (int64_t r = 0; r < rows; r += step) {
            for (int64_t c = 0; c < columns; c += step) {
                char *to =
                    (char *)job->out.data + (out_offset + r * out_stride + c) * (int64_t)size;
                const char *from =
                    (const char *)job->x.data + (x_offset + r + c * x_stride) * (int64_t)size;
                copy_transposes[size](to, out_stride, from, x_stride, ek_smaller(step, rows - r),
                                      ek_smaller(step, columns - c));
            }
        }
    }
}

/* Returns the dimension along which x is contiguous, if out is contiguous along another dimension
 * and both dimensions have enough elements for blocks; else -1. */
static int copy_find_across(const ek_walk *walk)
{
    int inner = walk->ndim - 1;
    if (walk->stride[0][inner] != 1 || walk->stride[1][inner] <= 1 || walk->shape[inner] < 2)
        return -1;
    for (int d = 0; d < inner; d++)
        if (walk->stride[1][d] == 1 && walk->shape[d] >= 2 &&
            ek_larger(walk->shape[d], walk->shape[inner]) >= 8)
            return d;
    return -1;
}

int ek_host_copy(ek_dev *dev, ek_tensor *out, const ek_tensor *x)
{
    copy_job job = {.type = ek_class_of(x->dtype)};
    ek_walk_init(&job.walk, 2, (const ek_tensor *[]){out, x});
    job.out = ek_operand_of(&job.walk, 0, out);
    job.x = ek_operand_of(&job.walk, 1, x);
    job.across = out->dtype == x->dtype ? copy_find_across(&job.walk) : -1;
    if (job.walk.count == 0)
        return 0;
    if (job.across < 0) {
        ek_parallel_for(dev, job.walk.count, GRAIN, copy_part, &job);
        return 0;
    }
    int64_t inner = job.walk.shape[job.walk.ndim - 1], across = job.walk.shape[job.across];
    job.blocks_inner = (inner + BLOCK - 1) / BLOCK;
    job.blocks_outer = (across + BLOCK - 1) / BLOCK;
    int64_t blocks = job.blocks_inner * job.blocks_outer * (job.walk.count / (inner * across));
    ek_parallel_for(dev, blocks, GRAIN / (ek_smaller(BLOCK, across) * ek_smaller(BLOCK, inner)),
                    copy_transpose_part, &job);
    return 0;
}

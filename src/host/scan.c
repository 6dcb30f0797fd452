/* scan.c: linear recurrences along a dimension: cumulative sums and products. One thread computes a
 * line, element by element, so that results don't depend on the number of threads. Lines whose own
 * elements aren't neighbours in memory are computed together. Floating dtypes are accumulated in
 * f64. */
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"

enum { SCAN_GRAIN = 16384, SCAN_OUT = 0, SCAN_A, SCAN_B, SCAN_OPERANDS };

typedef struct scan_job {
    ek_walk lines; /* over the other dimensions */
    ek_class type;
    bool given[SCAN_OPERANDS];
    ek_dtype dtype[SCAN_OPERANDS];
    char *data[SCAN_OPERANDS];     /* the address of the first line's first element */
    int64_t stride[SCAN_OPERANDS]; /* from an element of a line to the next */
    int64_t size;
} scan_job;

static char *scan_address(const scan_job *job, const ek_cursor *cursor, int k, int64_t element)
{
    int64_t offset = cursor->offset[k] + element * job->stride[k];
    return job->data[k] + offset * (int64_t)ek_dtype_size(job->dtype[k]);
}

/* ---- loops over rows of n elements ---- */

/* Integers wrap. */
#define STEP_F64(h, a, b) ((h) * (a) + (b))
#define STEP_I64(h, a, b) ((int64_t)((uint64_t)(h) * (uint64_t)(a) + (uint64_t)(b)))

/* Computes one element of each of n lines: h[j] = h[j] a[j] + b[j]. */
#define SCAN_ACROSS(type, member, step)                                                     \
    do {                                                                                    \
        for (int64_t j = 0; j < n; j++)                                                     \
            h->member[j] =                                                                  \
                step(h->member[j], a ? a->member[j] : (type)1, b ? b->member[j] : (type)0); \
    } while (0)

EK_MULTIVERSION
static void scan_across(ek_class type, int64_t n, ek_tile *restrict h, const ek_tile *restrict a,
                        const ek_tile *restrict b)
{
    if (type == EK_CLASS_F64)
        SCAN_ACROSS(double, f64, STEP_F64);
    else
        SCAN_ACROSS(int64_t, i64, STEP_I64);
}

/* Computes n elements of one line. `carry` is the element before h[0]. */
#define SCAN_ALONG(type, member, step)                                              \
    do {                                                                            \
        type last = carry->member[0];                                               \
        for (int64_t j = 0; j < n; j++)                                             \
            h->member[j] = last =                                                   \
                step(last, a ? a->member[j] : (type)1, b ? b->member[j] : (type)0); \
        carry->member[0] = last;                                                    \
    } while (0)

static void scan_along(ek_class type, int64_t n, ek_tile *restrict h, const ek_tile *restrict a,
                       const ek_tile *restrict b, ek_tile *restrict carry)
{
    if (type == EK_CLASS_F64)
        SCAN_ALONG(double, f64, STEP_F64);
    else
        SCAN_ALONG(int64_t, i64, STEP_I64);
}

/* Sets h to the value before the first element, for n lines. */
static void scan_begin(const scan_job *job, ek_tile *h, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        if (job->type == EK_CLASS_F64)
            h->f64[j] = job->given[SCAN_B] ? 0 : 1;
        else
            h->i64[j] = job->given[SCAN_B] ? 0 : 1;
}

/* ---- lines ---- */

/* Loads a row of an operand into `tile` and returns it; returns NULL if the operand isn't given. */
static const ek_tile *scan_load(const scan_job *job, const ek_cursor *cursor, int k,
                                int64_t element, int64_t stride, int64_t n, ek_tile *tile)
{
    if (!job->given[k])
        return NULL;
    ek_row_load(job->type, tile, job->dtype[k], scan_address(job, cursor, k, element), stride, n);
    return tile;
}

static void scan_lines_side_by_side(void *context, int64_t begin, int64_t end)
{
    const scan_job *job = context;
    const ek_walk *lines = &job->lines;
    int last = lines->ndim - 1;
    ek_tile h, a, b;
    ek_cursor cursor;
    ek_cursor_init(lines, &cursor, begin);
    while (begin < end) {
        int64_t n = ek_smaller(ek_cursor_run(lines, &cursor, end - begin), EK_TILE);
        scan_begin(job, &h, n);
        for (int64_t i = 0; i < job->size; i++) {
            scan_across(job->type, n, &h,
                        scan_load(job, &cursor, SCAN_A, i, lines->stride[SCAN_A][last], n, &a),
                        scan_load(job, &cursor, SCAN_B, i, lines->stride[SCAN_B][last], n, &b));
            ek_row_store(job->type, &h, job->dtype[SCAN_OUT],
                         scan_address(job, &cursor, SCAN_OUT, i), lines->stride[SCAN_OUT][last], n);
        }
        ek_cursor_advance(lines, &cursor, n);
        begin += n;
    }
}

static void scan_lines_in_turn(void *context, int64_t begin, int64_t end)
{
    const scan_job *job = context;
    ek_tile h, a, b, carry;
    ek_cursor cursor;
    ek_cursor_init(&job->lines, &cursor, begin);
    for (; begin < end; begin++) {
        scan_begin(job, &carry, 1);
        for (int64_t i = 0; i < job->size; i += EK_TILE) {
            int64_t n = ek_smaller(job->size - i, EK_TILE);
            scan_along(job->type, n, &h,
                       scan_load(job, &cursor, SCAN_A, i, job->stride[SCAN_A], n, &a),
                       scan_load(job, &cursor, SCAN_B, i, job->stride[SCAN_B], n, &b), &carry);
            ek_row_store(job->type, &h, job->dtype[SCAN_OUT],
                         scan_address(job, &cursor, SCAN_OUT, i), job->stride[SCAN_OUT], n);
        }
        ek_cursor_advance(&job->lines, &cursor, 1);
    }
}

int ek_host_scan(ek_dev *dev, ek_tensor *out, const ek_tensor *a, const ek_tensor *b, int dim,
                 bool reverse)
{
    const ek_tensor *tensors[SCAN_OPERANDS] = {out, a, b};
    const int64_t *strides[SCAN_OPERANDS];
    ek_shape shape = ek_tensor_shape(out);
    if (ek_count(out) == 0)
        return 0;
    scan_job job; /* not zeroed: its walk is long */
    job.type = ek_class_of(out->dtype) == EK_CLASS_I64 ? EK_CLASS_I64 : EK_CLASS_F64;
    job.size = out->ndim == 0 ? 1 : shape.dims[dim];
    for (int k = 0; k < SCAN_OPERANDS; k++) {
        const ek_tensor *tensor = tensors[k] ? tensors[k] : out;
        int64_t stride = out->ndim == 0 ? 1 : tensor->stride[dim];
        job.given[k] = tensors[k] != NULL;
        job.dtype[k] = tensor->dtype;
        job.data[k] = ek_tensor_address(tensor);
        if (reverse)
            job.data[k] += (job.size - 1) * stride * (int64_t)ek_dtype_size(tensor->dtype);
        job.stride[k] = reverse ? -stride : stride;
        strides[k] = tensor->stride;
    }
    if (out->ndim > 0)
        shape.dims[dim] = 1;
    ek_walk_init_raw(&job.lines, SCAN_OPERANDS, shape.ndim, shape.dims, strides);
    bool beside = job.stride[SCAN_OUT] != 1 && job.stride[SCAN_OUT] != -1;
    ek_parallel_for(dev, job.lines.count, 1 + SCAN_GRAIN / job.size,
                    beside ? scan_lines_side_by_side : scan_lines_in_turn, &job);
    return 0;
}

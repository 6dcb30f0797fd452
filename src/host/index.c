/* index.c: selecting and scattering along one dimension. Bounds are checked before anything is
 * written. */
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/walk.h"

enum { GRAIN = 16384 };

typedef struct index_job {
    ek_walk walk; /* over all dimensions but `dim`; for gather over all */
    char *out;
    const char *x;
    const int64_t *index;
    int64_t index_count, index_stride; /* along dim */
    int64_t out_stride, x_stride;      /* along dim, in elements */
    size_t size;
    ek_dtype dtype;
} index_job;

static int64_t index_size_along(const ek_tensor *tensor, int dim)
{
    return tensor->ndim == 0 ? 1 : tensor->shape[dim];
}

/* Returns a job without its walk. index_dim is the dimension of `index` that corresponds to dim. */
static index_job index_job_of(const ek_tensor *out, const ek_tensor *x, int dim,
                              const ek_tensor *index, int index_dim)
{
    return (index_job){.out = ek_tensor_address(out),
                       .x = ek_tensor_address(x),
                       .index = ek_tensor_address(index),
                       .index_count = index_size_along(index, index_dim),
                       .index_stride = index->ndim == 0 ? 1 : index->stride[index_dim],
                       .out_stride = out->ndim == 0 ? 1 : out->stride[dim],
                       .x_stride = x->ndim == 0 ? 1 : x->stride[dim],
                       .size = ek_dtype_size(x->dtype),
                       .dtype = x->dtype};
}

/* Returns true if one of n indices is outside of [0, size). Indices equal to *ignored (which may be
 * NULL) don't count. */
EK_MULTIVERSION
static bool index_run_is_outside(const int64_t *index, int64_t stride, int64_t n, int64_t size,
                                 const int64_t *ignored)
{
    const int64_t other = ignored ? *ignored : 0;
    const uint64_t limit = (uint64_t)size;
    int outside = 0;
    if (ignored)
        for (int64_t i = 0; i < n; i++)
            outside |= ((uint64_t)index[i * stride] >= limit) & (index[i * stride] != other);
    else if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            outside |= (uint64_t)index[i] >= limit;
    else
        for (int64_t i = 0; i < n; i++)
            outside |= (uint64_t)index[i * stride] >= limit;
    return outside;
}

/* Returns true if an index is outside of [0, size). Checks each index in memory once, in the order
 * of memory. */
static bool index_is_outside(const ek_tensor *index, int64_t size, const int64_t *ignored)
{
    const int64_t *data = ek_tensor_address(index);
    int64_t shape[EK_MAX_DIMS];
    ek_walk walk;
    ek_cursor cursor;
    if (ek_count(index) == 0)
        return false;
    for (int d = 0; d < index->ndim; d++)
        shape[d] = index->stride[d] == 0 ? 1 : index->shape[d];
    ek_walk_init_raw(&walk, 1, index->ndim, shape, (const int64_t *[]){index->stride});
    ek_cursor_init(&walk, &cursor, 0);
    for (int64_t done = 0, n; done < walk.count; done += n) {
        n = ek_cursor_row_rest(&walk, &cursor);
        if (index_run_is_outside(data + cursor.offset[0], walk.stride[0][walk.ndim - 1], n, size,
                                 ignored))
            return true;
        ek_cursor_advance(&walk, &cursor, n);
    }
    return false;
}

bool ek_find_outside(const ek_tensor *index, int64_t size, const int64_t *ignored,
                     int64_t *position, int64_t *value)
{
    const int64_t *data = ek_tensor_address(index);
    const int64_t count = index_is_outside(index, size, ignored) ? ek_count(index) : 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = 0, rest = i;
        for (int d = index->ndim - 1; d >= 0; d--) {
            offset += rest % index->shape[d] * index->stride[d];
            rest /= index->shape[d];
        }
        *position = i;
        *value = data[offset];
        if ((*value < 0 || *value >= size) && !(ignored && *value == *ignored))
            return true;
    }
    return false;
}

/* Fails if an index is outside of [0, size). The sentence names the first such value in row-major
 * order. */
static int index_check_bounds(const ek_tensor *index, int dim, int64_t size)
{
    int64_t at, value;
    if (!ek_find_outside(index, size, NULL, &at, &value))
        return 0;
    return EK_FAIL(EK_E_INVALID,
                   "index %lld at position %lld is out of range for dimension %d of size %lld; it "
                   "must be from 0 to %lld",
                   (long long)value, (long long)at, dim, (long long)size, (long long)size - 1);
}

/* Writes the tensor's shape with size 1 in dim, for walks over the other dimensions. */
static void index_shape_without(const ek_tensor *tensor, int dim, int64_t shape[EK_MAX_DIMS])
{
    for (int d = 0; d < tensor->ndim; d++)
        shape[d] = d == dim ? 1 : tensor->shape[d];
}

static void index_copy_run(size_t size, char *out, int64_t out_stride, const char *x,
                           int64_t x_stride, int64_t count)
{
    if (out_stride == 1 && x_stride == 1) {
        memcpy(out, x, (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy(out + i * out_stride * (int64_t)size, x + i * x_stride * (int64_t)size, size);
}

#define ADD_RUN(type)                                     \
    do {                                                  \
        type *restrict to = (type *)out;                  \
        const type *restrict from = (const type *)x;      \
        if (out_stride == 1 && x_stride == 1)             \
            for (int64_t i = 0; i < count; i++)           \
                to[i] += from[i];                         \
        else                                              \
            for (int64_t i = 0; i < count; i++)           \
                to[i * out_stride] += from[i * x_stride]; \
    } while (0)

EK_MULTIVERSION
static void index_add_run(ek_dtype dtype, char *out, int64_t out_stride, const char *x,
                          int64_t x_stride, int64_t count)
{
    if (dtype == EK_F32)
        ADD_RUN(float);
    else
        ADD_RUN(double);
}

static int index_check_addable(const ek_tensor *out)
{
    if (out->dtype == EK_F32 || out->dtype == EK_F64)
        return 0;
    return EK_FAIL(EK_E_DTYPE, "additions at an index take f32 or f64, not %s",
                   ek_dtype_name(out->dtype));
}

/* ---- index_add ---- */

/* Adds the slices of x, in order, to the elements [begin, end) of out's slices. */
static void index_add_part(void *context, int64_t begin, int64_t end)
{
    const index_job *job = context;
    const ek_walk *walk = &job->walk;
    int last = walk->ndim - 1;
    for (int64_t i = 0; i < job->index_count; i++) {
        int64_t to = job->index[i * job->index_stride] * job->out_stride, from = i * job->x_stride;
        ek_cursor cursor;
        ek_cursor_init(walk, &cursor, begin);
        for (int64_t at = begin; at < end;) {
            int64_t run = ek_cursor_run(walk, &cursor, end - at);
            index_add_run(job->dtype, job->out + (to + cursor.offset[0]) * (int64_t)job->size,
                          walk->stride[0][last],
                          job->x + (from + cursor.offset[1]) * (int64_t)job->size,
                          walk->stride[1][last], run);
            ek_cursor_advance(walk, &cursor, run);
            at += run;
        }
    }
}

/* The gradient of an embedding, with contiguous rows and many indices. The indices are sorted by
 * the row that they name, so that each row is written once, even if nothing is added to it. */
typedef struct index_rows {
    const index_job *job;
    int64_t length;        /* elements of a row */
    const int64_t *begins; /* of each row's part of `order`, and the end */
    const int64_t *order;  /* the slices of x, by row, then by position */
} index_rows;

EK_MULTIVERSION
static void index_begin_row(ek_dtype dtype, char *to, const char *from, int64_t count)
{
    if (dtype == EK_F32)
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = 0 + ((const float *)from)[i];
    else
        for (int64_t i = 0; i < count; i++)
            ((double *)to)[i] = 0 + ((const double *)from)[i];
}

static void index_rows_part(void *context, int64_t begin, int64_t end)
{
    const index_rows *rows = context;
    const index_job *job = rows->job;
    int64_t nbytes = rows->length * (int64_t)job->size,
            x_nbytes = job->x_stride * (int64_t)job->size;
    for (int64_t row = begin; row < end; row++) {
        int64_t next = row;
        while (next < end && rows->begins[next] == rows->begins[next + 1])
            next++;
        memset(job->out + row * nbytes, 0, (size_t)((next - row) * nbytes));
        if (next == end)
            break;
        row = next;
        char *to = job->out + row * nbytes;
        int64_t i = rows->begins[row];
        index_begin_row(job->dtype, to, job->x + rows->order[i] * x_nbytes, rows->length);
        while (++i < rows->begins[row + 1])
            index_add_run(job->dtype, to, 1, job->x + rows->order[i] * x_nbytes, 1, rows->length);
    }
}

/* Sorts the indices by counting: `begins` has room for `size` + 1 numbers, `order` for all indices.
 */
static void index_count_rows(const index_job *job, int64_t size, int64_t *begins, int64_t *order)
{
    memset(begins, 0, (size_t)(size + 1) * sizeof *begins);
    for (int64_t i = 0; i < job->index_count; i++)
        begins[job->index[i * job->index_stride]]++;
    for (int64_t row = 0, sum = 0; row <= size; row++) {
        sum += begins[row];
        begins[row] = sum;
    }
    for (int64_t i = job->index_count - 1; i >= 0; i--)
        order[--begins[job->index[i * job->index_stride]]] = i;
}

static int index_add_rows(ek_dev *dev, const index_job *job, int64_t size)
{
    size_t nbytes = (size_t)(size + 1 + job->index_count) * sizeof(int64_t);
    void *room;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &room));
    int64_t *begins = room, *order = begins + size + 1;
    index_count_rows(job, size, begins, order);
    index_rows rows = {job, job->walk.count, begins, order};
    ek_parallel_for(dev, size, 1 + GRAIN / rows.length, index_rows_part, &rows);
    ek_dev_free(dev, room, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

/* Returns true if the slices of out are the rows of a matrix without gaps, with enough rows for all
 * threads, and the slices of x are dense, too. */
static bool index_has_rows(const index_job *job, int64_t size)
{
    enum { LEAST = 64 };
    const ek_walk *walk = &job->walk;
    return walk->ndim == 1 && size >= LEAST && job->out_stride == walk->count &&
           walk->stride[0][0] == 1 && walk->stride[1][0] == 1;
}

int ek_host_index_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                      const ek_tensor *index)
{
    int64_t shape[EK_MAX_DIMS], size = index_size_along(out, dim);
    EK_TRY(index_check_addable(out));
    EK_TRY(index_check_bounds(index, dim, size));
    if (ek_count(x) == 0)
        return ek_host_fill(dev, out, 0);
    index_job job = index_job_of(out, x, dim, index, 0);
    index_shape_without(x, dim, shape);
    ek_walk_init_raw(&job.walk, 2, x->ndim, shape, (const int64_t *[]){out->stride, x->stride});
    if (index_has_rows(&job, size))
        return index_add_rows(dev, &job, size);
    EK_TRY(ek_host_fill(dev, out, 0));
    ek_parallel_for(dev, job.walk.count, 1 + GRAIN / job.index_count, index_add_part, &job);
    return 0;
}

/* ---- gather ---- */

/* Elements are moved by their size, without regard to their dtype. */
#define GATHER_RUN(type)                                                 \
    do {                                                                 \
        for (int64_t i = 0; i < run; i++)                                \
            memcpy((type *)out + i * walk->stride[0][last],              \
                   (const type *)x + i * walk->stride[2][last] +         \
                       index[i * walk->stride[1][last]] * job->x_stride, \
                   sizeof(type));                                        \
    } while (0)

static void index_gather_part(void *context, int64_t begin, int64_t end)
{
    const index_job *job = context;
    const ek_walk *walk = &job->walk;
    int last = walk->ndim - 1;
    int64_t size = (int64_t)job->size;
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    while (begin < end) {
        int64_t run = ek_cursor_run(walk, &cursor, end - begin);
        const int64_t *index = job->index + cursor.offset[1];
        char *out = job->out + cursor.offset[0] * size;
        const char *x = job->x + cursor.offset[2] * size;
        switch (size) {
        case 1:
            GATHER_RUN(uint8_t);
            break;
        case 2:
            GATHER_RUN(uint16_t);
            break;
        case 4:
            GATHER_RUN(uint32_t);
            break;
        default:
            GATHER_RUN(uint64_t);
            break;
        }
        ek_cursor_advance(walk, &cursor, run);
        begin += run;
    }
}

/* Gathers x at index into out. index_stride has the strides of the index over out's dimensions. */
static void index_run_gather(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                             const ek_tensor *index, int index_dim, const int64_t *index_stride)
{
    index_job job = index_job_of(out, x, dim, index, index_dim);
    int64_t x_stride[EK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        x_stride[d] = d == dim ? 0 : x->stride[d];
    ek_walk_init_raw(&job.walk, 3, out->ndim, out->shape,
                     (const int64_t *[]){out->stride, index_stride, x_stride});
    ek_parallel_for(dev, job.walk.count, GRAIN, index_gather_part, &job);
}

int ek_host_gather(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim, const ek_tensor *index)
{
    EK_TRY(index_check_bounds(index, dim, index_size_along(x, dim)));
    if (ek_count(out) > 0)
        index_run_gather(dev, out, x, dim, index, dim, index->stride);
    return 0;
}

/* ---- index_select ---- */

/* Copies the positions [begin, end). Position p is element p % walk->count of the slice for index p
 * / walk->count. */
static void index_select_part(void *context, int64_t begin, int64_t end)
{
    const index_job *job = context;
    const ek_walk *walk = &job->walk;
    int last = walk->ndim - 1;
    while (begin < end) {
        int64_t i = begin / walk->count;
        int64_t slice_end = ek_smaller((i + 1) * walk->count, end);
        int64_t to = i * job->out_stride, from = job->index[i * job->index_stride] * job->x_stride;
        ek_cursor cursor;
        ek_cursor_init(walk, &cursor, begin - i * walk->count);
        while (begin < slice_end) {
            int64_t run = ek_cursor_run(walk, &cursor, slice_end - begin);
            index_copy_run(job->size, job->out + (to + cursor.offset[0]) * (int64_t)job->size,
                           walk->stride[0][last],
                           job->x + (from + cursor.offset[1]) * (int64_t)job->size,
                           walk->stride[1][last], run);
            ek_cursor_advance(walk, &cursor, run);
            begin += run;
        }
    }
}

int ek_host_index_select(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                         const ek_tensor *index)
{
    EK_TRY(index_check_bounds(index, dim, index_size_along(x, dim)));
    if (ek_count(out) == 0)
        return 0;
    if (out->ndim > 1 && out->stride[dim] == 1) { /* slices don't lie in one piece */
        int64_t index_stride[EK_MAX_DIMS] = {0};
        index_stride[dim] = index->stride[0];
        index_run_gather(dev, out, x, dim, index, 0, index_stride);
        return 0;
    }
    index_job job = index_job_of(out, x, dim, index, 0);
    int64_t shape[EK_MAX_DIMS];
    index_shape_without(out, dim, shape);
    ek_walk_init_raw(&job.walk, 2, out->ndim, shape, (const int64_t *[]){out->stride, x->stride});
    ek_parallel_for(dev, ek_count(out), GRAIN, index_select_part, &job);
    return 0;
}

/* ---- scatter_add, scatter ---- */

#define SCATTER_RUN(type)                                                                          \
    do {                                                                                           \
        type *out = (type *)job->out + cursor.offset[0];                                           \
        const type *x = (const type *)job->x + cursor.offset[2] + j * job->x_stride;               \
        for (int64_t i = 0; i < run; i++)                                                          \
            out[i * walk->stride[0][last] + index[i * walk->stride[1][last]] * job->out_stride] += \
                x[i * walk->stride[2][last]];                                                      \
    } while (0)

/* Adds to the lines [begin, end) along dim, to each line in the order of x. */
static void index_scatter_part(void *context, int64_t begin, int64_t end)
{
    const index_job *job = context;
    const ek_walk *walk = &job->walk;
    int last = walk->ndim - 1;
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    while (begin < end) {
        int64_t run = ek_cursor_run(walk, &cursor, end - begin);
        for (int64_t j = 0; j < job->index_count; j++) {
            const int64_t *index = job->index + cursor.offset[1] + j * job->index_stride;
            if (job->dtype == EK_F32)
                SCATTER_RUN(float);
            else
                SCATTER_RUN(double);
        }
        ek_cursor_advance(walk, &cursor, run);
        begin += run;
    }
}

/* Does what index_scatter_part does, but replaces out's elements by x's. */
static void index_assign_part(void *context, int64_t begin, int64_t end)
{
    const index_job *job = context;
    const ek_walk *walk = &job->walk;
    int last = walk->ndim - 1;
    int64_t size = (int64_t)job->size;
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    while (begin < end) {
        int64_t run = ek_cursor_run(walk, &cursor, end - begin);
        for (int64_t j = 0; j < job->index_count; j++) {
            const int64_t *index = job->index + cursor.offset[1] + j * job->index_stride;
            char *out = job->out + cursor.offset[0] * size;
            const char *x = job->x + (cursor.offset[2] + j * job->x_stride) * size;
            for (int64_t i = 0; i < run; i++)
                memcpy(out + (i * walk->stride[0][last] +
                              index[i * walk->stride[1][last]] * job->out_stride) *
                                 size,
                       x + i * walk->stride[2][last] * size, job->size);
        }
        ek_cursor_advance(walk, &cursor, run);
        begin += run;
    }
}

/* Calls the body for all lines along dim of out, index and x. */
static void index_run_lines(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                            const ek_tensor *index, ek_parallel_body *body)
{
    index_job job = index_job_of(out, x, dim, index, dim);
    int64_t shape[EK_MAX_DIMS];
    index_shape_without(index, dim, shape);
    ek_walk_init_raw(&job.walk, 3, index->ndim, shape,
                     (const int64_t *[]){out->stride, index->stride, x->stride});
    ek_parallel_for(dev, job.walk.count, 1 + GRAIN / job.index_count, body, &job);
}

int ek_host_scatter_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                        const ek_tensor *index)
{
    EK_TRY(index_check_addable(out));
    EK_TRY(index_check_bounds(index, dim, index_size_along(out, dim)));
    EK_TRY(ek_host_fill(dev, out, 0));
    if (ek_count(index) > 0)
        index_run_lines(dev, out, x, dim, index, index_scatter_part);
    return 0;
}

int ek_host_scatter(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                    const ek_tensor *index)
{
    EK_TRY(index_check_bounds(index, dim, index_size_along(out, dim)));
    if (ek_count(index) > 0)
        index_run_lines(dev, out, x, dim, index, index_assign_part);
    return 0;
}

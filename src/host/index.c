/* index.c: selecting and scattering along one dimension. Bounds are checked before anything is
 * written. */
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "kernels/walk.h"

enum { GRAIN = 16384 };

/* Moves of elements between lines along `dim`. A gather reads x at an index and writes the next
 * element of out. Other jobs read the next element of x, and write it or add it to out at an
 * index. */
typedef struct index_job {
    ek_walk walk; /* Operands: out, index, x. It goes over lines; if it gathers, over elements. */
    bool gathers, adds;
    char *out;
    const char *x;
    const int64_t *index;
    int64_t index_count, index_stride; /* Along dim. */
    int64_t out_stride, x_stride;      /* Along dim, in elements. */
    size_t size;
    ek_dtype dtype;
} index_job;

static int64_t index_size_along(const ek_tensor *tensor, int dim)
{
    return tensor->ndim == 0 ? 1 : tensor->shape[dim];
}

/* Returns a job. With `is_list`, the vector `index` applies to all lines. */
static index_job index_job_of(const ek_tensor *out, const ek_tensor *x, int dim,
                              const ek_tensor *index, bool is_list, bool gathers, bool adds)
{
    const ek_tensor *moved = gathers ? out : is_list ? x : index;
    const int index_dim = is_list ? 0 : dim;
    int64_t shape[EK_MAX_DIMS], index_stride[EK_MAX_DIMS], x_stride[EK_MAX_DIMS];
    index_job job = {.gathers = gathers,
                     .adds = adds,
                     .out = ek_tensor_address(out),
                     .x = ek_tensor_address(x),
                     .index = ek_tensor_address(index),
                     .index_count = index_size_along(index, index_dim),
                     .index_stride = index->ndim == 0 ? 1 : index->stride[index_dim],
                     .out_stride = out->ndim == 0 ? 1 : out->stride[dim],
                     .x_stride = x->ndim == 0 ? 1 : x->stride[dim],
                     .size = ek_dtype_size(x->dtype),
                     .dtype = x->dtype};
    for (int d = 0; d < moved->ndim; d++) {
        shape[d] = d == dim && !gathers ? 1 : moved->shape[d];
        index_stride[d] = !is_list ? index->stride[d] : d == dim ? job.index_stride : 0;
        x_stride[d] = d == dim ? 0 : x->stride[d];
    }
    ek_walk_init_raw(&job.walk, 3, moved->ndim, shape,
                     (const int64_t *[]){out->stride, index_stride, x_stride});
    return job;
}

/* Returns true if one of n indices is outside of [0, size). Indices equal to *ignored (which may be
 * NULL) don't count. */
EK_MULTIVERSION
static bool index_run_is_outside(const int64_t *index, int64_t stride, int64_t n, int64_t size,
                                 const int64_t *ignored)
{
    const int64_t other = ignored ? *ignored : 0;
    const uint64_t limit = (uint64_t)size;
    const int all = !ignored;
    int outside = 0;
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            outside |= ((uint64_t)index[i] >= limit) & (all | (index[i] != other));
    else
        for (int64_t i = 0; i < n; i++, index += stride)
            outside |= ((uint64_t)*index >= limit) & (all | (*index != other));
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

/* ---- runs of elements ---- */

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

#define MOVE_RUN(type, assign)                                                           \
    for (int64_t i = 0; i < n; i++) {                                                    \
        type *at = (type *)out + i * out_step + index[i * index_step] * to;              \
        const type value = ((const type *)x)[i * x_step + index[i * index_step] * from]; \
        *at assign value;                                                                \
    }

/* Moves a run of n elements. They are moved by their size, without regard to their dtype, unless
 * they are added. */
static void index_move_run(const index_job *job, char *out, const int64_t *index, const char *x,
                           int64_t n)
{
    const ek_walk *walk = &job->walk;
    const int last = walk->ndim - 1;
    const int64_t out_step = walk->stride[0][last], index_step = walk->stride[1][last],
                  x_step = walk->stride[2][last], size = (int64_t)job->size,
                  to = job->gathers ? 0 : job->out_stride, from = job->gathers ? job->x_stride : 0;
    if (index_step == 0) {
        out += *index * to * size;
        x += *index * from * size;
        if (job->adds)
            index_add_run(job->dtype, out, out_step, x, x_step, n);
        else
            index_copy_run(job->size, out, out_step, x, x_step, n);
    } else if (job->adds && job->dtype == EK_F32) {
        MOVE_RUN(float, +=)
    } else if (job->adds) {
        MOVE_RUN(double, +=)
    } else if (size == 1) {
        MOVE_RUN(uint8_t, =)
    } else if (size == 2) {
        MOVE_RUN(uint16_t, =)
    } else if (size == 4) {
        MOVE_RUN(uint32_t, =)
    } else {
        MOVE_RUN(uint64_t, =)
    }
}

/* Moves the elements of a part of the walk, to each line of out in the order of x. */
static void index_part(void *context, int64_t begin, int64_t end)
{
    const index_job *job = context;
    const int64_t size = (int64_t)job->size, count = job->gathers ? 1 : job->index_count;
    ek_cursor cursor;
    ek_cursor_init(&job->walk, &cursor, begin);
    while (begin < end) {
        int64_t run = ek_cursor_run(&job->walk, &cursor, end - begin);
        for (int64_t i = 0; i < count; i++)
            index_move_run(job, job->out + cursor.offset[0] * size,
                           job->index + cursor.offset[1] + i * job->index_stride,
                           job->x + (cursor.offset[2] + i * job->x_stride) * size, run);
        ek_cursor_advance(&job->walk, &cursor, run);
        begin += run;
    }
}

/* ---- rows that are added ---- */

/* The gradient of an embedding, with contiguous rows and many indices. The indices are sorted by
 * the row that they name, so that each row is written once, even if nothing is added to it. */
typedef struct index_rows {
    const index_job *job;
    int64_t length;        /* elements of a row */
    const int64_t *begins; /* of each row's part of `order`, and the end */
    const int64_t *order;  /* the slices of x, by row, then by position */
} index_rows;

static void index_rows_part(void *context, int64_t begin, int64_t end)
{
    const index_rows *rows = context;
    const index_job *job = rows->job;
    int64_t nbytes = rows->length * (int64_t)job->size,
            x_nbytes = job->x_stride * (int64_t)job->size;
    for (int64_t row = begin, next; row < end; row = next) {
        for (next = row; next < end && rows->begins[next] == rows->begins[next + 1]; next++)
            ;
        next = ek_smaller(next + 1, end); /* the row before it may have additions */
        memset(job->out + row * nbytes, 0, (size_t)((next - row) * nbytes));
        for (int64_t i = rows->begins[next - 1]; i < rows->begins[next]; i++)
            index_add_run(job->dtype, job->out + (next - 1) * nbytes, 1,
                          job->x + rows->order[i] * x_nbytes, 1, rows->length);
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
           walk->stride[0][0] == 1 && walk->stride[2][0] == 1;
}

/* ---- the slots ---- */

static int index_run(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                     const ek_tensor *index, bool is_list, bool gathers, bool adds)
{
    const int64_t size = index_size_along(gathers ? x : out, dim);
    if (adds && out->dtype != EK_F32 && out->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "additions at an index take f32 or f64, not %s",
                       ek_dtype_name(out->dtype));
    EK_TRY(index_check_bounds(index, dim, size));
    if (adds && ek_count(x) == 0)
        return ek_host_fill(dev, out, 0);
    index_job job = index_job_of(out, x, dim, index, is_list, gathers, adds);
    if (adds && is_list && index_has_rows(&job, size))
        return index_add_rows(dev, &job, size);
    if (adds)
        EK_TRY(ek_host_fill(dev, out, 0));
    ek_parallel_for(dev, job.walk.count,
                    gathers ? GRAIN : 1 + GRAIN / ek_larger(job.index_count, 1), index_part, &job);
    return 0;
}

int ek_host_index_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                      const ek_tensor *index)
{
    return index_run(dev, out, x, dim, index, true, false, true);
}

int ek_host_scatter_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                        const ek_tensor *index)
{
    return index_run(dev, out, x, dim, index, false, false, true);
}

int ek_host_gather(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim, const ek_tensor *index)
{
    return index_run(dev, out, x, dim, index, false, true, false);
}

int ek_host_index_select(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                         const ek_tensor *index)
{
    return index_run(dev, out, x, dim, index, true, true, false);
}

int ek_host_scatter(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                    const ek_tensor *index)
{
    return index_run(dev, out, x, dim, index, false, false, false);
}

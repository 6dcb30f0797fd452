/* index.c: prepares the arguments of indexing kernels. If an index is out of range, the kernel
 * records a fault (view.h), and reads 0 or adds nothing. */
#include <string.h>

#include "cuda/launches.h"
#include "cuda/runtime.h"
#include "evenkeel/precision.h"

/* Writes the strides of `index` over `like`'s dimensions. If the index is a list, all are 0 except
 * the one along dim. */
static void index_strides(const ek_tensor *like, const ek_tensor *index, bool is_list, int dim,
                          int64_t stride[EK_MAX_DIMS])
{
    for (int d = 0; d < like->ndim; d++)
        stride[d] = !is_list ? index->stride[d] : d == dim ? ek_cuda_stride_along(index, 0) : 0;
}

static void index_strides_without(const ek_tensor *tensor, int dim, int64_t stride[EK_MAX_DIMS])
{
    memcpy(stride, tensor->stride, sizeof *stride * EK_MAX_DIMS);
    if (tensor->ndim > 0)
        stride[dim] = 0;
}

/* ---- selecting ---- */

/* Makes elements 16 bytes wide if innermost runs of out and x allow it. Returns the elements' size.
 */
static size_t index_widen(ek_cuda_index_job *job, size_t nbytes)
{
    ek_cuda_strides *strides = &job->strides;
    int last = strides->ndim - 1, times = 16 / (int)nbytes;
    bool fits = (uintptr_t)job->out % 16 == 0 && (uintptr_t)job->x % 16 == 0 &&
                strides->shape[last] % times == 0 && job->stride % times == 0 &&
                strides->stride[0][last] == 1 && strides->stride[1][last] == 1 &&
                strides->stride[2][last] == 0;
    for (int d = 0; d < last; d++)
        fits = fits && strides->stride[0][d] % times == 0 && strides->stride[1][d] % times == 0;
    if (!fits)
        return nbytes;
    int64_t shape[EK_MAX_DIMS];
    memcpy(shape, strides->shape, sizeof shape);
    shape[last] /= times;
    job->stride /= times;
    int64_t stride[3][EK_MAX_DIMS];
    for (int k = 0; k < 3; k++)
        for (int d = 0; d <= last; d++)
            stride[k][d] = strides->stride[k][d] / (k < 2 && d < last ? times : 1);
    ek_cuda_strides_init(strides, 3, last + 1, shape,
                         (const int64_t *[]){stride[0], stride[1], stride[2]});
    return 16;
}

static int index_select_at(ek_dev *dev, const char *operation, ek_tensor *out, const ek_tensor *x,
                           int dim, const ek_tensor *index, bool is_list)
{
    if (ek_count(out) == 0)
        return 0;
    int64_t x_stride[EK_MAX_DIMS], index_stride[EK_MAX_DIMS];
    index_strides_without(x, dim, x_stride);
    index_strides(out, index, is_list, dim, index_stride);
    ek_cuda_index_job job = {.operation = operation,
                             .dtype = x->dtype,
                             .out = ek_tensor_address(out),
                             .x = ek_tensor_address(x),
                             .index = ek_tensor_address(index),
                             .size = ek_cuda_size_along(x, dim),
                             .stride = ek_cuda_stride_along(x, dim)};
    ek_cuda_strides_init(&job.strides, 3, out->ndim, out->shape,
                         (const int64_t *[]){out->stride, x_stride, index_stride});
    size_t nbytes = index_widen(&job, ek_dtype_size(x->dtype));
    EK_CUDA_RUN(dev, operation, ek_cuda_launch_gather(&stream, &job, nbytes));
}

int ek_cuda_index_select(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                         const ek_tensor *index)
{
    return index_select_at(dev, "index_select", out, x, dim, index, true);
}

int ek_cuda_gather(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim, const ek_tensor *index)
{
    return index_select_at(dev, "gather", out, x, dim, index, false);
}

/* ---- writing ---- */

/* Writes in the order of x. The index is sorted along each line, so that the writes to one element
 * are neighbours. A list is one line for all. */
static int index_write_sorted(ek_dev *dev, const ek_cuda_index_job *job, bool is_list, size_t size)
{
    const int64_t apart = is_list ? 0 : job->line, lines = is_list ? 1 : job->strides.count;
    size_t nbytes = (size_t)(lines * job->line) * sizeof(int64_t);
    void *order;
    EK_TRY(ek_cuda_scratch(dev, nbytes, &order));
    ek_cuda_stream stream;
    int rc = ek_cuda_argsort_lines(dev, job, lines, order);
    if (rc >= 0)
        rc = ek_cuda_begin(dev, &stream);
    if (rc >= 0)
        rc = ek_cuda_end(dev, &stream, job->operation,
                         ek_cuda_launch_write(&stream, job, order, apart, size));
    ek_cuda_scratch_free(dev, order, nbytes);
    return rc;
}

/* Writes x to out at the index: adds, or assigns elements of `size` bytes if `size` isn't 0. */
static int index_write_at(ek_dev *dev, const char *operation, ek_tensor *out, const ek_tensor *x,
                          int dim, const ek_tensor *index, bool is_list, size_t size)
{
    const ek_tensor *like = is_list ? x : index; /* has the shape that is written */
    if (ek_count(like) == 0)
        return 0;
    int64_t out_stride[EK_MAX_DIMS], index_stride[EK_MAX_DIMS], shape[EK_MAX_DIMS];
    index_strides_without(out, dim, out_stride);
    index_strides(x, index, is_list, dim, index_stride);
    memcpy(shape, like->shape, sizeof shape);
    ek_cuda_index_job job = {.operation = operation,
                             .dtype = x->dtype,
                             .out = ek_tensor_address(out),
                             .x = ek_tensor_address(x),
                             .index = ek_tensor_address(index),
                             .size = ek_cuda_size_along(out, dim),
                             .stride = ek_cuda_stride_along(out, dim),
                             .line = ek_cuda_size_along(like, dim),
                             .line_x = ek_cuda_stride_along(x, dim),
                             .line_index = x->ndim == 0 ? 1 : index_stride[dim]};
    const bool sorted = ek_deterministic() && x->ndim > 0;
    if (sorted)
        shape[dim] = 1;
    ek_cuda_strides_init(&job.strides, 3, x->ndim, shape,
                         (const int64_t *[]){out_stride, x->stride, index_stride});
    if (sorted)
        return index_write_sorted(dev, &job, is_list, size);
    EK_CUDA_RUN(dev, operation, ek_cuda_launch_write(&stream, &job, NULL, 0, size));
}

/* Sets out to the sums of x at the index. */
static int index_add_at(ek_dev *dev, const char *operation, ek_tensor *out, const ek_tensor *x,
                        int dim, const ek_tensor *index, bool is_list)
{
    if (out->dtype != EK_F32 && out->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "additions at an index take f32 or f64, not %s",
                       ek_dtype_name(out->dtype));
    EK_TRY(ek_cuda_fill(dev, out, 0));
    return index_write_at(dev, operation, out, x, dim, index, is_list, 0);
}

int ek_cuda_index_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                      const ek_tensor *index)
{
    return index_add_at(dev, "index_add", out, x, dim, index, true);
}

int ek_cuda_scatter_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                        const ek_tensor *index)
{
    return index_add_at(dev, "scatter_add", out, x, dim, index, false);
}

int ek_cuda_scatter(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                    const ek_tensor *index)
{
    return index_write_at(dev, "scatter", out, x, dim, index, false, ek_dtype_size(out->dtype));
}

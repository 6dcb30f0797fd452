/* sort.c: prepares the arguments of sorting and searching along one dimension. */
#include "cuda/launches.h"
#include "cuda/runtime.h"

/* Sorts all lines, as many at once as a group may have. */
static int sort_run(ek_dev *dev, ek_cuda_sort_job *job)
{
    const int64_t lines = job->lines.count, most = EK_CUDA_SORT_GROUP / job->size;
    const bool short_lines = job->size <= EK_CUDA_SORT_TILE;
    void *scratch = NULL;
    size_t nbytes;
    if (job->size >= UINT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "sort: %lld elements; on a GPU there can be 4294967294",
                       (long long)job->size);
    job->bits = 8 * (int)ek_dtype_size(job->dtype);
    job->group = short_lines || most >= lines ? lines : most > 1 ? most : 1;
    ek_cuda_stream stream;
    EK_TRY(ek_cuda_begin(dev, &stream));
    int rc = ek_cuda_argsort_nbytes(job, &nbytes);
    if (rc == 0)
        rc = ek_cuda_scratch(dev, nbytes, &scratch);
    for (; rc == 0 && job->first < lines; job->first += job->group) {
        if (job->group > lines - job->first)
            job->group = lines - job->first;
        rc = ek_cuda_launch_argsort(&stream, job, scratch);
    }
    rc = ek_cuda_end(dev, &stream, "sort", rc);
    if (scratch)
        ek_cuda_scratch_free(dev, scratch, nbytes);
    return rc;
}

int ek_cuda_argsort(ek_dev *dev, ek_tensor *index, const ek_tensor *x, int dim, bool descending)
{
    if (ek_count(index) == 0)
        return 0;
    int64_t shape[EK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = d == dim ? 1 : x->shape[d];
    ek_cuda_sort_job job = {.dtype = x->dtype,
                            .descending = descending,
                            .x = ek_tensor_address(x),
                            .index = ek_tensor_address(index),
                            .size = ek_cuda_size_along(x, dim),
                            .count = ek_cuda_size_along(index, dim),
                            .x_stride = ek_cuda_stride_along(x, dim),
                            .index_stride = ek_cuda_stride_along(index, dim)};
    ek_cuda_strides_init(&job.lines, 2, x->ndim, shape,
                         (const int64_t *[]){index->stride, x->stride});
    return sort_run(dev, &job);
}

int ek_cuda_argsort_lines(ek_dev *dev, const ek_cuda_index_job *index, int64_t lines,
                          int64_t *order)
{
    ek_cuda_sort_job job = {.dtype = EK_I64,
                            .x = index->index,
                            .index = order,
                            .lines = index->strides,
                            .size = index->line,
                            .count = index->line,
                            .x_stride = index->line_index,
                            .index_stride = 1,
                            .bound = index->size};
    int64_t apart = index->line;
    for (int d = job.lines.ndim - 1; d >= 0; d--) {
        job.lines.stride[0][d] = apart;
        job.lines.stride[1][d] = index->strides.stride[2][d];
        apart *= job.lines.shape[d];
    }
    job.lines.count = lines;
    return sort_run(dev, &job);
}

int ek_cuda_searchsorted(ek_dev *dev, ek_tensor *out, const ek_tensor *sorted,
                         const ek_tensor *values, bool right)
{
    if (ek_count(out) == 0)
        return 0;
    int64_t begins[EK_MAX_DIMS] = {0};
    int last = sorted->ndim - 1;
    for (int d = 0; last > 0 && d < last; d++)
        begins[d] = sorted->stride[d];
    ek_cuda_search_job job = {.dtype = values->dtype,
                              .out = ek_tensor_address(out),
                              .values = ek_tensor_address(values),
                              .sorted = ek_tensor_address(sorted),
                              .size = sorted->shape[last],
                              .stride = sorted->stride[last],
                              .right = right};
    ek_cuda_strides_init(&job.strides, 3, out->ndim, out->shape,
                         (const int64_t *[]){out->stride, values->stride, begins});
    EK_CUDA_RUN(dev, "searchsorted", ek_cuda_launch_searchsorted(&stream, &job));
}

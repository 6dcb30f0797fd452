/* pool.c: windows and staging of the pooling kernels. */
#include "host/pool.h"

#include "host/bounds.h"
#include "host/layout.h"
#include "host/parallel.h"
#include "host/stage.h"

ek_pool ek_pool_of(const ek_tensor *x, const ek_tensor *y, const ek_pool_params *params)
{
    ek_pool pool = {.samples = x->shape[0],
                    .channels = x->shape[1],
                    .in_plane = 1,
                    .out_plane = 1,
                    .adaptive = !params,
                    .count_include_pad = params && params->count_include_pad};
    int dims = x->ndim - 2;
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - dims);
        bool real = d >= 0 && params;
        pool.in[i] = d < 0 ? 1 : x->shape[2 + d];
        pool.out[i] = d < 0 ? 1 : y->shape[2 + d];
        pool.in_plane *= pool.in[i];
        pool.out_plane *= pool.out[i];
        pool.kernel[i] = real ? params->kernel[d] : 1;
        pool.stride[i] = real ? params->stride[d] : 1;
        pool.padding[i] = real ? params->padding[d] : 0;
        pool.dilation[i] = real && params->dilation[d] > 1 ? params->dilation[d] : 1;
    }
    return pool;
}

static ek_window window_of(const ek_pool *pool, int dim, int64_t i)
{
    int64_t size = pool->in[dim];
    ek_window w = {.step = pool->dilation[dim]};
    if (pool->adaptive) {
        int64_t n = pool->out[dim];
        w.first = i * size / n;
        w.count = ((i + 1) * size + n - 1) / n - w.first;
        w.divisor = w.count;
        return w;
    }
    int64_t begin = i * pool->stride[dim] - pool->padding[dim];
    int64_t end = begin + pool->kernel[dim] * w.step; /* after the last tap's step */
    int64_t padded = size + pool->padding[dim];
    w.divisor = (end < padded ? end : padded) - begin;
    w.first = begin < 0 ? begin + (-begin + w.step - 1) / w.step * w.step : begin;
    int64_t last = end < size ? end : size;
    w.count = last > w.first ? (last - w.first + w.step - 1) / w.step : 0;
    if (!pool->count_include_pad)
        w.divisor = w.count;
    return w;
}

void ek_pool_window(const ek_pool *pool, int64_t position, ek_window window[3])
{
    for (int dim = 2; dim >= 0; dim--) {
        window[dim] = window_of(pool, dim, position % pool->out[dim]);
        position /= pool->out[dim];
    }
}

static bool fits(const ek_tensor *tensor, ek_dtype dtype)
{
    return !tensor || (tensor->dtype == dtype && ek_is_channels_last(tensor));
}

/* The sentence for the first position out of range, in the row-major order of `index`. */
static int fail_position(const ek_tensor *index, int64_t plane)
{
    int64_t at, value;
    if (!ek_find_outside(index, plane, &at, &value))
        return EK_FAIL(EK_E_INVALID, "positions of maxima changed while they were read");
    return EK_FAIL(EK_E_INVALID,
                   "position %lld of maximum %lld is out of range for a plane of %lld; it must be "
                   "from 0 to %lld",
                   (long long)value, (long long)at, (long long)plane, (long long)plane - 1);
}

int ek_pool_run(ek_dev *dev, const ek_pool_job *job, const ek_tensor *x, const ek_tensor *y,
                const ek_tensor *index, const ek_pool_params *params)
{
    ek_dtype dtype = x->dtype == EK_F64 ? EK_F64 : EK_F32;
    bool computes_x = job->output == EK_POOL_COMPUTES_X;
    bool computes_index = job->output == EK_POOL_COMPUTES_Y_INDEX;
    ek_stage stages[3] = {{.nbytes = 0}};
    ek_stage *sx = &stages[0], *sy = &stages[1], *si = &stages[2];
    ek_pool pool = ek_pool_of(x, y, params);
    if (pool.in_plane > INT32_MAX)
        return EK_FAIL(EK_E_SHAPE, "pooling over planes of %lld positions; at most %d are possible",
                       (long long)pool.in_plane, INT32_MAX);
    int rc;
    EK_TRY_GOTO(ek_stage_begin(sx, dev, x, dtype, 1, fits(x, dtype), !computes_x), rc, end);
    EK_TRY_GOTO(ek_stage_begin(sy, dev, y, dtype, 1, fits(y, dtype), computes_x), rc, end);
    EK_TRY_GOTO(ek_stage_begin(si, dev, index, EK_I64, 1, fits(index, EK_I64), !computes_index), rc,
                end);
    pool.x = ek_tensor_address(sx->tensor);
    pool.y = ek_tensor_address(sy->tensor);
    pool.index = index ? ek_tensor_address(si->tensor) : NULL;

    /* About 20000 elements are worth another thread. */
    int64_t elements = pool.in_plane * pool.channels;
    int64_t count = pool.samples * pool.out_plane;
    int64_t item = elements / (pool.out_plane > 0 ? pool.out_plane : 1) + pool.channels;
    if (job->by_sample) {
        count = pool.samples * ek_pool_blocks(&pool);
        item = elements < EK_POOL_BLOCK * pool.in_plane ? elements : EK_POOL_BLOCK * pool.in_plane;
    }
    if (pool.channels > 0)
        ek_parallel_for(dev, count, 1 + 20000 / (item + 1), dtype == EK_F64 ? job->f64 : job->f32,
                        &pool);
    if (atomic_load_explicit(&pool.out_of_range, memory_order_relaxed))
        rc = fail_position(index, pool.in_plane);
end:
    rc = ek_stage_end(sx, dev, computes_x, rc);
    rc = ek_stage_end(sy, dev, !computes_x, rc);
    return ek_stage_end(si, dev, computes_index, rc);
}

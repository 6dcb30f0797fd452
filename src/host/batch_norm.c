/* Batch normalisation over all but dimension 1. The rows are cut into blocks by the shape alone and
 * joined in order, so that statistics don't depend on threads. */
#include "host/batch_norm.h"

#include <math.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/stage.h"

enum { GRAIN = 16384, TENSORS = 4 };

#define EK_REAL float
#define EK_NAME(name) name##_f32
#include "host/batch_norm_real.h"
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
#include "host/batch_norm_real.h"
#undef EK_REAL
#undef EK_NAME

/* ---- geometry ---- */

static bool plan_rows(ek_norm_plan *plan, int64_t rows, int64_t stride)
{
    int64_t channels = plan->channels;
    bool join =
        stride == channels && channels * 2 <= EK_NORM_LANES && rows >= EK_NORM_LANES / channels;
    plan->lanes = join ? EK_NORM_LANES / channels : 1;
    plan->width = plan->lanes * channels;
    plan->rows = rows / plan->lanes;
    plan->rest = rows % plan->lanes * channels;
    plan->row_stride = stride * plan->lanes;
    int64_t columns = plan->width < EK_NORM_COLUMNS ? plan->width : EK_NORM_COLUMNS;
    int64_t step = ek_norm_short_rows(columns);
    int64_t steps = 32768 / (step * columns);
    plan->block_rows = step * (steps > 0 ? steps : 1);
    plan->blocks = (plan->rows + plan->block_rows - 1) / plan->block_rows;
    return true;
}

/* False where the memory is neither rows nor planes. */
static bool plan_init(ek_norm_plan *plan, const ek_tensor *x)
{
    *plan = (ek_norm_plan){.channels = x->shape[1]};
    int64_t shape[EK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = d == 1 ? 1 : x->shape[d];
    ek_walk walk;
    ek_walk_init_raw(&walk, 1, x->ndim, shape, (const int64_t *[]){x->stride});
    if (walk.ndim == 1 && (x->stride[1] == 1 || plan->channels == 1))
        return plan_rows(plan, walk.count, walk.count == 1 ? plan->channels : walk.stride[0][0]);
    if (walk.ndim > 2 || walk.stride[0][walk.ndim - 1] != 1)
        return false;
    plan->planes = true;
    plan->blocks = 1;
    plan->width = plan->channels;
    plan->inner = walk.shape[walk.ndim - 1];
    plan->outer = walk.ndim == 2 ? walk.shape[0] : 1;
    plan->outer_stride = walk.ndim == 2 ? walk.stride[0][0] : 0;
    plan->channel_stride = x->stride[1];
    return true;
}

/* The tensors of one call (NULL allowed after the first), in one layout that has a plan and in the
 * type that is computed in. */
typedef struct norm_batch {
    ek_dev *dev;
    bool is_f64, has_output;
    int count;
    ek_stage stage[TENSORS];
    ek_norm_job job;
    void *parameters; /* workspace: repeated parameters */
    size_t parameter_bytes;
    void *sums; /* workspace: partial sums */
    size_t sum_bytes;
} norm_batch;

static int batch_end(norm_batch *batch, int rc)
{
    for (int i = 0; i < batch->count; i++)
        rc = ek_stage_end(&batch->stage[i], batch->dev, i == 0 && batch->has_output, rc);
    if (batch->parameters != NULL)
        ek_dev_free(batch->dev, batch->parameters, batch->parameter_bytes, EK_MEMORY_WORKSPACE);
    if (batch->sums != NULL)
        ek_dev_free(batch->dev, batch->sums, batch->sum_bytes, EK_MEMORY_WORKSPACE);
    return rc;
}

/* `tensors`: 0 is an output where `has_output` (only it is stored back), others are inputs. */
static int batch_begin(norm_batch *batch, ek_dev *dev, const ek_tensor *const *tensors, int count,
                       bool has_output)
{
    const ek_tensor *x = tensors[has_output ? 1 : 0];
    batch->dev = dev;
    batch->is_f64 = x->dtype == EK_F64;
    batch->has_output = has_output;
    batch->count = 0;
    batch->parameters = batch->sums = NULL;
    batch->job = (ek_norm_job){.relu = false};
    ek_dtype dtype = batch->is_f64 ? EK_F64 : EK_F32;
    bool keep = plan_init(&batch->job.plan, x);
    for (int i = 0; i < count; i++)
        if (tensors[i] != NULL)
            keep = keep && tensors[i]->dtype == dtype && ek_same_layout(tensors[i], x);
    for (int i = 0; i < count; i++) {
        int rc =
            ek_stage_begin(&batch->stage[i], dev, tensors[i], dtype, 1, keep, i > 0 || !has_output);
        if (rc < 0)
            return batch_end(batch, rc);
        batch->count++;
    }
    plan_init(&batch->job.plan, batch->stage[has_output ? 1 : 0].tensor);
    return 0;
}

static void *data_of(const norm_batch *batch, int i)
{
    return batch->stage[i].tensor != NULL ? ek_tensor_address(batch->stage[i].tensor) : NULL;
}

static int begin_sums(norm_batch *batch)
{
    const ek_norm_plan *plan = &batch->job.plan;
    int64_t blocks = plan->blocks > 0 ? plan->blocks : 1;
    batch->sum_bytes = (size_t)(2 * blocks * plan->width) * sizeof(double);
    EK_TRY(ek_dev_alloc(batch->dev, batch->sum_bytes, EK_MEMORY_WORKSPACE, &batch->sums));
    batch->job.first = batch->sums;
    batch->job.second = batch->job.first + blocks * plan->width;
    return 0;
}

/* ---- parameters, repeated over the columns ---- */

enum { CENTER, SCALE, SHIFT, SLOPE, PARAMETERS };

static double value_at(const ek_tensor *tensor, int64_t c, double otherwise)
{
    double value;
    if (tensor == NULL)
        return otherwise;
    ek_row_load(EK_CLASS_F64, &value, tensor->dtype,
                (const char *)ek_tensor_address(tensor) +
                    c * tensor->stride[0] * (int64_t)ek_dtype_size(tensor->dtype),
                1, 1);
    return value;
}

/* Values in the type that is computed in, as f32 arithmetic has them. */
static void set_column(norm_batch *batch, int parameter, int64_t c, double value)
{
    const ek_norm_plan *plan = &batch->job.plan;
    for (int64_t lane = 0; lane < plan->lanes || lane == 0; lane++) {
        int64_t at = parameter * plan->width + lane * plan->channels + c;
        if (batch->is_f64)
            ((double *)batch->parameters)[at] = value;
        else
            ((float *)batch->parameters)[at] = (float)value;
    }
}

static int begin_parameters(norm_batch *batch)
{
    ek_norm_plan *plan = &batch->job.plan;
    size_t size = batch->is_f64 ? sizeof(double) : sizeof(float);
    batch->parameter_bytes = (size_t)(PARAMETERS * plan->width) * size;
    EK_TRY(
        ek_dev_alloc(batch->dev, batch->parameter_bytes, EK_MEMORY_WORKSPACE, &batch->parameters));
    char *base = batch->parameters;
    size_t nbytes = (size_t)plan->width * size;
    batch->job.center = base;
    batch->job.scale = base + nbytes;
    batch->job.shift = base + 2 * nbytes;
    batch->job.slope = base + 3 * nbytes;
    return 0;
}

/* ---- running ---- */

static void over_sums(norm_batch *batch, ek_parallel_body *rows, ek_parallel_body *planes)
{
    const ek_norm_plan *plan = &batch->job.plan;
    int64_t parts = (plan->width + EK_NORM_COLUMNS - 1) / EK_NORM_COLUMNS;
    if (plan->planes)
        ek_parallel_for(batch->dev, plan->channels, 1 + GRAIN / (plan->outer * plan->inner), planes,
                        &batch->job);
    else
        ek_parallel_for(batch->dev, plan->blocks * parts, 1, rows, &batch->job);
}

static void over_elements(norm_batch *batch, ek_parallel_body *rows, ek_parallel_body *planes)
{
    const ek_norm_plan *plan = &batch->job.plan;
    if (plan->planes)
        ek_parallel_for(batch->dev, plan->outer * plan->channels, 1 + GRAIN / plan->inner, planes,
                        &batch->job);
    else
        ek_parallel_for(batch->dev, plan->rows + (plan->rest > 0), 1 + GRAIN / plan->width, rows,
                        &batch->job);
}

static void store(ek_tensor *out, int64_t c, double value)
{
    ek_row_store(EK_CLASS_F64, &value, out->dtype,
                 (char *)ek_tensor_address(out) +
                     c * out->stride[0] * (int64_t)ek_dtype_size(out->dtype),
                 1, 1);
}

/* ---- statistics ---- */

typedef struct moments {
    double count, mean, deviation;
} moments;

static moments joined(moments a, moments b)
{
    if (b.count == 0)
        return a;
    double count = a.count + b.count, delta = b.mean - a.mean, part = b.count / count;
    return (moments){count, a.mean + delta * part,
                     a.deviation + b.deviation + delta * delta * a.count * part};
}

/* The rows after the last joined one: fewer than there are lanes. */
static moments rest_moments(const norm_batch *batch, int64_t c)
{
    const ek_norm_plan *plan = &batch->job.plan;
    moments sum = {0, 0, 0};
    for (int64_t i = c; i < plan->rest; i += plan->channels) {
        int64_t at = plan->rows * plan->row_stride + i;
        double x = batch->is_f64 ? ((const double *)batch->job.x)[at]
                                 : (double)((const float *)batch->job.x)[at];
        sum = joined(sum, (moments){1, x, 0});
    }
    return sum;
}

static moments channel_moments(const norm_batch *batch, int64_t c)
{
    const ek_norm_job *job = &batch->job;
    const ek_norm_plan *plan = &job->plan;
    if (plan->planes)
        return (moments){(double)(plan->outer * plan->inner), job->first[c], job->second[c]};
    moments sum = {0, 0, 0};
    for (int64_t block = 0; block < plan->blocks; block++) {
        int64_t begin = block * plan->block_rows;
        int64_t rows =
            plan->rows - begin < plan->block_rows ? plan->rows - begin : plan->block_rows;
        for (int64_t lane = 0; lane < plan->lanes; lane++) {
            int64_t at = block * plan->width + lane * plan->channels + c;
            sum = joined(sum, (moments){(double)rows, job->first[at], job->second[at]});
        }
    }
    return joined(sum, rest_moments(batch, c));
}

int ek_host_batch_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x)
{
    int64_t channels = x->shape[1];
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, mean, (double)NAN));
        return ek_host_fill(dev, var, (double)NAN);
    }
    norm_batch batch;
    EK_TRY(batch_begin(&batch, dev, (const ek_tensor *[]){x}, 1, false));
    int rc = begin_sums(&batch);
    if (rc < 0)
        return batch_end(&batch, rc);
    batch.job.x = data_of(&batch, 0);
    over_sums(&batch, batch.is_f64 ? statistics_rows_f64 : statistics_rows_f32,
              batch.is_f64 ? statistics_planes_f64 : statistics_planes_f32);
    for (int64_t c = 0; c < channels; c++) {
        moments total = channel_moments(&batch, c);
        store(mean, c, total.mean);
        store(var, c, total.deviation / total.count);
    }
    return batch_end(&batch, 0);
}

/* ---- apply ---- */

int ek_host_batch_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias, bool relu)
{
    if (ek_count(x) == 0)
        return 0;
    norm_batch batch;
    EK_TRY(batch_begin(&batch, dev, (const ek_tensor *[]){y, x}, 2, true));
    int rc = begin_parameters(&batch);
    if (rc < 0)
        return batch_end(&batch, rc);
    batch.job.y = data_of(&batch, 0);
    batch.job.x = data_of(&batch, 1);
    batch.job.relu = relu;
    for (int64_t c = 0; c < x->shape[1]; c++) {
        set_column(&batch, CENTER, c, value_at(mean, c, 0));
        set_column(&batch, SCALE, c, value_at(invstd, c, 1) * value_at(weight, c, 1));
        set_column(&batch, SHIFT, c, value_at(bias, c, 0));
    }
    over_elements(&batch, batch.is_f64 ? apply_rows_f64 : apply_rows_f32,
                  batch.is_f64 ? apply_planes_f64 : apply_planes_f32);
    return batch_end(&batch, 0);
}

/* ---- reduce ---- */

static void rest_sums(const norm_batch *batch, int64_t c, double *first, double *second)
{
    const ek_norm_job *job = &batch->job;
    const ek_norm_plan *plan = &job->plan;
    for (int64_t i = c; i < plan->rest; i += plan->channels) {
        int64_t at = plan->rows * plan->row_stride + i;
        double dy, x, mask = 1, center;
        if (batch->is_f64) {
            dy = ((const double *)job->dy)[at];
            x = ((const double *)job->x)[at];
            center = ((const double *)job->center)[c];
            if (job->mask != NULL)
                mask = ((const double *)job->mask)[at];
        } else {
            dy = (double)((const float *)job->dy)[at];
            x = (double)((const float *)job->x)[at];
            center = (double)((const float *)job->center)[c];
            if (job->mask != NULL)
                mask = (double)((const float *)job->mask)[at];
        }
        if (mask > 0) {
            *first += dy;
            *second += dy * (x - center);
        }
    }
}

int ek_host_batch_norm_reduce(ek_dev *dev, ek_tensor *sum_dy, ek_tensor *sum_dy_xhat,
                              const ek_tensor *dy, const ek_tensor *x, const ek_tensor *mean,
                              const ek_tensor *invstd, const ek_tensor *y_relu)
{
    if (ek_count(x) == 0) {
        EK_TRY(ek_host_fill(dev, sum_dy, 0));
        return ek_host_fill(dev, sum_dy_xhat, 0);
    }
    norm_batch batch;
    EK_TRY(batch_begin(&batch, dev, (const ek_tensor *[]){x, dy, y_relu}, 3, false));
    int rc = begin_parameters(&batch);
    if (rc >= 0)
        rc = begin_sums(&batch);
    if (rc < 0)
        return batch_end(&batch, rc);
    batch.job.x = data_of(&batch, 0);
    batch.job.dy = data_of(&batch, 1);
    batch.job.mask = data_of(&batch, 2);
    for (int64_t c = 0; c < x->shape[1]; c++)
        set_column(&batch, CENTER, c, value_at(mean, c, 0));
    over_sums(&batch, batch.is_f64 ? reduce_rows_f64 : reduce_rows_f32,
              batch.is_f64 ? reduce_planes_f64 : reduce_planes_f32);
    const ek_norm_plan *plan = &batch.job.plan;
    for (int64_t c = 0; c < plan->channels; c++) {
        double first = 0, second = 0;
        for (int64_t block = 0; block < plan->blocks; block++) {
            for (int64_t at = c; at < plan->width; at += plan->channels) {
                first += batch.job.first[block * plan->width + at];
                second += batch.job.second[block * plan->width + at];
            }
        }
        rest_sums(&batch, c, &first, &second);
        store(sum_dy, c, first);
        store(sum_dy_xhat, c, second * value_at(invstd, c, 1));
    }
    return batch_end(&batch, 0);
}

/* ---- gradient ---- */

int ek_host_batch_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum_dy,
                                const ek_tensor *sum_dy_xhat, double count, const ek_tensor *y_relu)
{
    if (ek_count(x) == 0)
        return 0;
    norm_batch batch;
    EK_TRY(batch_begin(&batch, dev, (const ek_tensor *[]){dx, x, dy, y_relu}, 4, true));
    int rc = begin_parameters(&batch);
    if (rc < 0)
        return batch_end(&batch, rc);
    batch.job.y = data_of(&batch, 0);
    batch.job.x = data_of(&batch, 1);
    batch.job.dy = data_of(&batch, 2);
    batch.job.mask = data_of(&batch, 3);
    for (int64_t c = 0; c < x->shape[1]; c++) {
        double inverse = value_at(invstd, c, 1);
        set_column(&batch, CENTER, c, value_at(mean, c, 0));
        set_column(&batch, SCALE, c, inverse * value_at(weight, c, 1));
        set_column(&batch, SHIFT, c, value_at(sum_dy, c, 0) / count);
        set_column(&batch, SLOPE, c, value_at(sum_dy_xhat, c, 0) / count * inverse);
    }
    if (sum_dy == NULL)
        batch.job.shift = batch.job.slope = NULL;
    over_elements(&batch, batch.is_f64 ? gradient_rows_f64 : gradient_rows_f32,
                  batch.is_f64 ? gradient_planes_f64 : gradient_planes_f32);
    return batch_end(&batch, 0);
}

/* norm_pass.c: passes over memory for normalisation. Rows are cut into blocks by the shape alone,
 * and the blocks' sums are joined in order, so that statistics don't depend on the number of
 * threads. */
#include "host/norm.h"

#include "host/host.h"

enum { GRAIN = 16384 };

/* ---- geometry ---- */

static bool pass_plan_rows(ek_norm_plan *plan, int64_t rows, int64_t stride)
{
    int64_t channels = plan->channels;
    bool join =
        stride == channels && channels * 2 <= EK_NORM_LANES && rows >= EK_NORM_LANES / channels;
    plan->lanes = join ? EK_NORM_LANES / channels : 1;
    plan->width = plan->lanes * channels;
    plan->rows = rows / plan->lanes;
    plan->rest = rows % plan->lanes * channels;
    plan->row_stride = stride * plan->lanes;
    int64_t columns = ek_smaller(plan->width, EK_NORM_COLUMNS);
    int64_t step = ek_norm_short_rows(columns);
    int64_t steps = 32768 / (step * columns);
    plan->block_rows = step * (steps > 0 ? steps : 1);
    plan->blocks = (plan->rows + plan->block_rows - 1) / plan->block_rows;
    return true;
}

static void pass_cut_row(ek_norm_plan *plan, int64_t length, int64_t pieces)
{
    plan->planes = true;
    plan->blocks = plan->outer = 1;
    plan->channels = plan->width = pieces;
    plan->inner = plan->channel_stride = length / pieces;
}

static bool pass_plan_pieces(ek_norm_plan *plan, int64_t length)
{
    int64_t pieces = 1;
    for (int64_t n = 2; n <= 64 && length / n >= GRAIN / 2; n++)
        if (length % n == 0)
            pieces = n;
    pass_cut_row(plan, length, pieces);
    return true;
}

void ek_norm_pass_cut(ek_norm_pass *pass, int64_t pieces)
{
    ek_norm_plan *plan = &pass->job.plan;
    pass_cut_row(plan, plan->channels * plan->inner, pieces);
}

/* Makes a plan of x; false if x's memory is neither rows nor planes. */
static bool pass_plan(ek_norm_plan *plan, const ek_tensor *x, ek_norm_parts parts)
{
    *plan = (ek_norm_plan){.channels = x->shape[1], .samples = 1};
    if (parts != EK_NORM_BATCH) {
        plan->samples = x->shape[0];
        plan->sample_stride = x->stride[0];
    }
    int64_t shape[EK_MAX_DIMS] = {0};
    for (int d = 0; d < x->ndim; d++)
        shape[d] = (d == 1 && parts != EK_NORM_ROWS) || (d == 0 && parts != EK_NORM_BATCH)
                       ? 1
                       : x->shape[d];
    ek_walk walk;
    ek_walk_init_raw(&walk, 1, x->ndim, shape, (const int64_t *[]){x->stride});
    if (parts == EK_NORM_ROWS)
        return walk.ndim == 1 && (walk.count == 1 || walk.stride[0][0] == 1) &&
               pass_plan_pieces(plan, walk.count);
    if (walk.ndim == 1 && (x->stride[1] == 1 || plan->channels == 1))
        return pass_plan_rows(plan, walk.count,
                              walk.count == 1 ? plan->channels : walk.stride[0][0]);
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

int ek_norm_pass_end(ek_norm_pass *pass, int rc)
{
    for (int i = 0; i < EK_NORM_TENSORS; i++)
        rc = ek_stage_end(&pass->stage[i], pass->dev, i == EK_NORM_OUT, rc);
    if (pass->room)
        ek_dev_free(pass->dev, pass->room, pass->room_bytes, EK_MEMORY_WORKSPACE);
    return rc;
}

int ek_norm_pass_begin(ek_norm_pass *pass, ek_dev *dev, const ek_tensor *out, const ek_tensor *x,
                       const ek_tensor *dy, const ek_tensor *mask, ek_norm_parts parts)
{
    const ek_tensor *const tensors[] = {out, x, dy, mask};
    *pass = (ek_norm_pass){.dev = dev, .is_f64 = x->dtype == EK_F64};
    ek_norm_job *job = &pass->job;
    bool keep = pass_plan(&job->plan, x, parts);
    void *data[EK_NORM_TENSORS];
    for (int i = 0; i < EK_NORM_TENSORS; i++)
        if (tensors[i])
            keep = keep && tensors[i]->dtype == x->dtype && ek_same_layout(tensors[i], x);
    pass->is_bf16 = keep && x->dtype == EK_BF16 && parts != EK_NORM_ROWS;
    keep = keep && (pass->is_bf16 || !ek_dtype_is_narrow(x->dtype));
    ek_dtype dtype = pass->is_f64 ? EK_F64 : EK_F32;
    for (int i = 0; i < EK_NORM_TENSORS; i++) {
        ek_stage *stage = &pass->stage[i];
        int rc = ek_stage_begin(stage, dev, tensors[i], dtype, 1, keep, i != EK_NORM_OUT);
        if (rc < 0)
            return ek_norm_pass_end(pass, rc);
        data[i] = stage->tensor ? ek_tensor_address(stage->tensor) : NULL;
    }
    pass_plan(&job->plan, pass->stage[EK_NORM_X].tensor, parts);
    job->y = data[EK_NORM_OUT];
    job->x = data[EK_NORM_X];
    job->dy = data[EK_NORM_DY];
    job->mask = data[EK_NORM_MASK];
    return 0;
}

int ek_norm_pass_take_room(ek_norm_pass *pass, bool sums, bool parameters)
{
    ek_norm_job *job = &pass->job;
    const ek_norm_plan *plan = &job->plan;
    int64_t columns = plan->samples * plan->width;
    int64_t sum_count = sums ? columns * (plan->blocks > 0 ? plan->blocks : 1) : 0;
    size_t sum_bytes = (size_t)(2 * sum_count) * sizeof(double);
    size_t nbytes = (size_t)columns * (pass->is_f64 ? sizeof(double) : sizeof(float));
    pass->room_bytes = sum_bytes + (parameters ? EK_NORM_PARAMETERS * nbytes : 0);
    int rc = ek_dev_alloc(pass->dev, pass->room_bytes, EK_MEMORY_WORKSPACE, &pass->room);
    if (rc < 0)
        return ek_norm_pass_end(pass, rc);
    job->first = pass->room;
    job->second = job->first + sum_count;
    char *base = pass->parameters = (char *)pass->room + sum_bytes;
    job->center = base;
    job->scale = base + nbytes;
    job->shift = base + 2 * nbytes;
    job->slope = base + 3 * nbytes;
    return 0;
}

/* ---- parameters, repeated over the columns ---- */

void ek_norm_pass_set(ek_norm_pass *pass, int parameter, int64_t sample, int64_t c, double value)
{
    const ek_norm_plan *plan = &pass->job.plan;
    for (int64_t lane = 0; lane < plan->lanes || lane == 0; lane++) {
        int64_t at = (parameter * plan->samples + sample) * plan->width + lane * plan->channels + c;
        if (pass->is_f64)
            ((double *)pass->parameters)[at] = value;
        else
            ((float *)pass->parameters)[at] = (float)value;
    }
}

/* ---- running ---- */

#define PASS_BODY(pass, name) \
    ((pass)->is_f64 ? name##_f64 : (pass)->is_bf16 ? name##_bf16 : name##_f32)

void ek_norm_pass_sum(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->job.plan;
    int64_t parts = (plan->width + EK_NORM_COLUMNS - 1) / EK_NORM_COLUMNS;
    int64_t task = ek_smaller(plan->block_rows, plan->rows);
    task *= plan->width < EK_NORM_COLUMNS ? plan->width : EK_NORM_COLUMNS;
    task += task == 0;
    if (plan->planes)
        ek_parallel_for(pass->dev, plan->samples * plan->channels,
                        1 + GRAIN / (plan->outer * plan->inner),
                        PASS_BODY(pass, ek_norm_sum_planes), &pass->job);
    else
        ek_parallel_for(pass->dev, plan->samples * plan->blocks * parts, 1 + GRAIN / task,
                        PASS_BODY(pass, ek_norm_sum_rows), &pass->job);
}

void ek_norm_pass_apply(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->job.plan;
    if (plan->planes)
        ek_parallel_for(pass->dev, plan->samples * plan->outer * plan->channels,
                        1 + GRAIN / plan->inner, PASS_BODY(pass, ek_norm_line_planes), &pass->job);
    else
        ek_parallel_for(pass->dev, plan->samples * (plan->rows + (plan->rest > 0)),
                        1 + GRAIN / plan->width, PASS_BODY(pass, ek_norm_line_rows), &pass->job);
}

/* Element `at` of x, dy or the mask. */
static double pass_value(const ek_norm_pass *pass, const void *values, int64_t at)
{
    if (pass->is_bf16)
        return (double)ek_float_of_bf16(((const uint16_t *)values)[at]);
    return pass->is_f64 ? ((const double *)values)[at] : (double)((const float *)values)[at];
}

/* ---- moments ---- */

static ek_moments pass_join(ek_moments a, ek_moments b)
{
    if (b.count == 0)
        return a;
    double count = a.count + b.count, delta = b.mean - a.mean, part = b.count / count;
    return (ek_moments){count, a.mean + delta * part,
                        a.deviation + b.deviation + delta * delta * a.count * part};
}

/* The moments of the rows after the last joined row; they are fewer than `lanes`. */
static ek_moments pass_rest_moments(const ek_norm_pass *pass, int64_t sample, int64_t c)
{
    const ek_norm_plan *plan = &pass->job.plan;
    ek_moments sum = {0, 0, 0};
    for (int64_t i = c; i < plan->rest; i += plan->channels) {
        int64_t at = sample * plan->sample_stride + plan->rows * plan->row_stride + i;
        double x = pass_value(pass, pass->job.x, at);
        sum = pass_join(sum, (ek_moments){1, x, 0});
    }
    return sum;
}

ek_moments ek_norm_moments(const ek_norm_pass *pass, int64_t sample, int64_t c)
{
    const ek_norm_job *job = &pass->job;
    const ek_norm_plan *plan = &job->plan;
    int64_t column = sample * plan->channels + c;
    if (plan->planes)
        return (ek_moments){(double)(plan->outer * plan->inner), job->first[column],
                            job->second[column]};
    ek_moments sum = {0, 0, 0};
    for (int64_t block = 0; block < plan->blocks; block++) {
        int64_t begin = block * plan->block_rows;
        int64_t rows = ek_smaller(plan->rows - begin, plan->block_rows);
        for (int64_t lane = 0; lane < plan->lanes; lane++) {
            int64_t at = (sample * plan->blocks + block) * plan->width + lane * plan->channels + c;
            sum = pass_join(sum, (ek_moments){(double)rows, job->first[at], job->second[at]});
        }
    }
    return pass_join(sum, pass_rest_moments(pass, sample, c));
}

/* ---- reduce ---- */

static void pass_rest_sums(const ek_norm_pass *pass, int64_t sample, int64_t c, double *first,
                           double *second)
{
    const ek_norm_job *job = &pass->job;
    const ek_norm_plan *plan = &job->plan;
    int64_t own = sample * plan->width + c;
    double center = pass->is_f64 ? ((const double *)job->center)[own]
                                 : (double)((const float *)job->center)[own];
    for (int64_t i = c; i < plan->rest; i += plan->channels) {
        int64_t at = sample * plan->sample_stride + plan->rows * plan->row_stride + i;
        if (!job->mask || !(pass_value(pass, job->mask, at) <= 0)) {
            double dy = pass_value(pass, job->dy, at);
            *first += dy;
            *second += dy * (pass_value(pass, job->x, at) - center);
        }
    }
}

void ek_norm_sums_of(const ek_norm_pass *pass, int64_t sample, int64_t c, double *first,
                     double *second)
{
    const ek_norm_plan *plan = &pass->job.plan;
    *first = *second = 0;
    for (int64_t block = 0; block < plan->blocks; block++) {
        int64_t begin = (sample * plan->blocks + block) * plan->width;
        for (int64_t at = c; at < plan->width; at += plan->channels) {
            *first += pass->job.first[begin + at];
            *second += pass->job.second[begin + at];
        }
    }
    pass_rest_sums(pass, sample, c, first, second);
}

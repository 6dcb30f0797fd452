/* norm_pass.c: the geometry and workspace of a pass over memory. Rows are cut into blocks by the
 * shape alone, and the blocks' sums are joined in order, so that statistics don't depend on the
 * number of threads. */
#include <string.h>

#include "core/multiversion.h"
#include "host/norm.h"

enum {
    GRAIN = 16384,
    JOINED = 32 /* Columns whose partial sums are joined together. */
};

/* ---- geometry ---- */

static void pass_plan_rows(ek_norm_plan *plan, int64_t rows, int64_t stride)
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
    plan->blocks = ek_divide_up(plan->rows, plan->block_rows) + (plan->rest > 0);
}

/* Makes a plan of x. Returns false if x's memory has neither rows nor planes. */
static bool pass_plan(ek_norm_plan *plan, const ek_tensor *x, bool batch, int64_t groups)
{
    *plan = (ek_norm_plan){.channels = x->shape[1], .samples = 1, .groups = groups};
    if (!batch) {
        plan->samples = x->shape[0];
        plan->sample_stride = x->stride[0];
    }
    int64_t shape[EK_MAX_DIMS] = {0};
    for (int d = 0; d < x->ndim; d++)
        shape[d] = d == 1 || (d == 0 && !batch) ? 1 : x->shape[d];
    ek_walk walk;
    ek_walk_init_raw(&walk, 1, x->ndim, shape, (const int64_t *[]){x->stride});
    if (walk.ndim == 1 && (x->stride[1] == 1 || plan->channels == 1)) {
        pass_plan_rows(plan, walk.count, walk.count == 1 ? plan->channels : walk.stride[0][0]);
        return true;
    }
    if (walk.ndim > 2 || walk.stride[0][walk.ndim - 1] != 1)
        return false;
    plan->planes = true;
    plan->blocks = 1;
    plan->width = plan->channels;
    plan->inner = walk.shape[walk.ndim - 1];
    plan->channel_stride = x->stride[1];
    plan->outer = walk.ndim == 2 ? walk.shape[0] : 1;
    plan->outer_stride = walk.ndim == 2 ? walk.stride[0][0] : 0;
    return true;
}

/* ---- begin and end ---- */

int ek_norm_pass_end(ek_norm_pass *pass, int rc)
{
    for (int i = 0; i < EK_NORM_TENSORS; i++)
        rc = ek_stage_end(&pass->stage[i], pass->dev, i == EK_NORM_OUT, rc);
    if (pass->room)
        ek_dev_free(pass->dev, pass->room, pass->room_bytes, EK_MEMORY_WORKSPACE);
    return rc;
}

/* Returns the next `count` values of the room, and advances it. */
static void *pass_take(char **room, int64_t count, size_t size)
{
    char *at = *room;
    *room += (size_t)count * size;
    return at;
}

static int pass_take_room(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->plan;
    const size_t real = pass->is_f64 ? sizeof(double) : sizeof(float);
    const int64_t columns = plan->samples * plan->width;
    const int64_t partial = pass->sums || pass->moments[0] ? columns * plan->blocks : 0;
    pass->room_bytes =
        (size_t)(2 * partial) * sizeof(double) + (size_t)(EK_NORM_PARAMETERS * columns) * real;
    EK_TRY(ek_dev_alloc(pass->dev, pass->room_bytes, EK_MEMORY_WORKSPACE, &pass->room));
    char *room = pass->room;
    pass->first = pass_take(&room, partial, sizeof(double));
    pass->second = pass_take(&room, partial, sizeof(double));
    for (int i = 0; i < EK_NORM_PARAMETERS; i++)
        pass->parameters[i] = pass_take(&room, columns, real);
    return 0;
}

int ek_norm_pass_begin(ek_norm_pass *pass, int64_t groups, const ek_tensor *out)
{
    const ek_norm_args *args = pass->args;
    const ek_dtype dtype = args->x->dtype;
    bool keep = pass_plan(&pass->plan, args->x, pass->batch, groups);
    /* 16 bits may hold a small positive y as 0. */
    pass->again = args->y_again && keep && !pass->plan.planes && !ek_dtype_is_narrow(dtype) &&
                  args->y_relu->dtype == dtype;
    const ek_tensor *const tensors[] = {out, args->x, args->dy, pass->again ? NULL : args->y_relu};
    for (int i = 0; i < EK_NORM_TENSORS; i++)
        if (tensors[i])
            keep = keep && tensors[i]->dtype == dtype && ek_same_layout(tensors[i], args->x);
    pass->is_f64 = dtype == EK_F64;
    pass->is_bf16 = keep && dtype == EK_BF16;
    keep = keep && (pass->is_bf16 || !ek_dtype_is_narrow(dtype));
    int rc = 0;
    for (int i = 0; i < EK_NORM_TENSORS && rc >= 0; i++) {
        rc = ek_stage_begin(&pass->stage[i], pass->dev, tensors[i], pass->is_f64 ? EK_F64 : EK_F32,
                            1, keep, i != EK_NORM_OUT);
        if (rc >= 0 && tensors[i])
            pass->data[i] = ek_tensor_address(pass->stage[i].tensor);
    }
    if (rc < 0)
        return ek_norm_pass_end(pass, rc);
    pass_plan(&pass->plan, pass->stage[EK_NORM_X].tensor, pass->batch, groups);
    pass->plan.each = pass->plan.channels / groups;
    rc = pass_take_room(pass);
    return rc < 0 ? ek_norm_pass_end(pass, rc) : 0;
}

/* Joined rows have a channel's parameters once in each lane. */
void ek_norm_pass_set(ek_norm_pass *pass, int64_t sample, int64_t c,
                      const double of[EK_NORM_PARAMETERS])
{
    const ek_norm_plan *plan = &pass->plan;
    const int64_t begin = sample * plan->width;
    for (int64_t at = begin + c; at < begin + plan->width; at += plan->channels)
        for (int k = 0; k < EK_NORM_PARAMETERS; k++) {
            if (pass->is_f64)
                ((double *)pass->parameters[k])[at] = of[k];
            else
                ((float *)pass->parameters[k])[at] = (float)of[k];
        }
}

/* ---- running ---- */

#define PASS_BODY(pass, name) \
    ((pass)->is_f64 ? name##_f64 : (pass)->is_bf16 ? name##_bf16 : name##_f32)

/* Joins the partial sums of columns block by block, in the place of the first block's. The number
 * of values that moments are joined with is the same in all columns, so that columns are joined by
 * vectors, without a division for each. */
EK_MULTIVERSION
static void pass_join(void *context, int64_t begin, int64_t end)
{
    const ek_norm_pass *pass = context;
    const ek_norm_plan *plan = &pass->plan;
    const int64_t parts = ek_divide_up(plan->channels, JOINED), channels = plan->channels;
    for (int64_t task = begin; task < end; task++) {
        const int64_t sample = task / parts, c = task % parts * JOINED;
        const int64_t n = ek_smaller(channels - c, JOINED);
        double first[JOINED] = {0}, second[JOINED] = {0}, count = 0;
        double *to = pass->first + ek_norm_columns_at(pass, sample) + c;
        double *to_second = pass->second + (to - pass->first);
        for (int64_t block = 0; block < plan->blocks; block++) {
            const double rows = (double)ek_norm_block_rows(plan, block);
            const int64_t width = ek_norm_block_width(plan, block);
            for (int64_t at = block * plan->width; at < block * plan->width + width;
                 at += channels, count += rows) {
                const double *x = to + at, *y = to_second + at, part = rows / (count + rows);
                const bool sums = pass->args->dy || count == 0;
                for (int64_t i = 0; i < n; i++) {
                    const double delta = x[i] - first[i];
                    first[i] += sums ? x[i] : delta * part;
                    second[i] = second[i] + y[i] + (sums ? 0 : delta * delta * count * part);
                }
            }
        }
        memcpy(to, first, (size_t)n * sizeof *to);
        memcpy(to_second, second, (size_t)n * sizeof *to);
    }
}

void ek_norm_pass_sum(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->plan;
    int64_t parts = ek_divide_up(plan->width, EK_NORM_COLUMNS), tasks, size;
    ek_parallel_body *body;
    if (plan->planes) {
        tasks = plan->samples * plan->channels;
        size = plan->outer * plan->inner;
        body = PASS_BODY(pass, ek_norm_sum_planes);
    } else {
        tasks = plan->samples * plan->blocks * parts;
        size = ek_smaller(plan->block_rows, plan->rows) * ek_smaller(plan->width, EK_NORM_COLUMNS);
        body = PASS_BODY(pass, ek_norm_sum_rows);
    }
    ek_parallel_for(pass->dev, tasks, 1 + GRAIN / size, body, pass);
    if (!plan->planes)
        ek_parallel_for(pass->dev, plan->samples * ek_divide_up(plan->channels, JOINED),
                        1 + GRAIN / (JOINED * plan->blocks * plan->lanes), pass_join, pass);
}

void ek_norm_pass_line(ek_norm_pass *pass)
{
    const ek_norm_plan *plan = &pass->plan;
    int64_t tasks, size;
    ek_parallel_body *body;
    if (plan->planes) {
        tasks = plan->samples * plan->outer * plan->channels;
        size = plan->inner;
        body = PASS_BODY(pass, ek_norm_line_planes);
    } else {
        tasks = plan->samples * (plan->rows + (plan->rest > 0));
        size = plan->width;
        body = PASS_BODY(pass, ek_norm_line_rows);
    }
    ek_parallel_for(pass->dev, tasks, 1 + GRAIN / size, body, pass);
}

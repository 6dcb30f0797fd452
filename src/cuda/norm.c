/* norm.c: the slots of normalisation.
 *
 * If a group is one run of memory and its parameters are absent or per element (layer norm, or
 * channels of one value each; ek_norm_has_runs), its sums are computed at once, as if the group
 * were one channel. Otherwise sums are computed by channel, of the batch or of each sample, and the
 * sums of a sample's channels are joined by group. */
#include "cuda/norm.h"

#include <math.h>

#include "cuda/runtime.h"
#include "kernels/kernels.h"
#include "kernels/norm.h"
#include "kernels/stage.h"

enum { STAGES = 12 };
enum { READ = 1, WRITE = 2 };

/* A call of a slot. Its tensors have a form that the kernels support, its parameters and results
 * are dense arrays; other memory is staged. A call must not be moved, because stages point into it.
 */
typedef struct norm_call {
    ek_dev *dev;
    const char *operation;
    int rc; /* the first error, a status or a cudaError_t; nothing is staged or launched after it */
    ek_cuda_stream stream;
    ek_cuda_norm norm;
    ek_norm_form form;
    int stages;
    ek_stage stage[STAGES];
    bool stores[STAGES];    /* the stage is copied back if it is a copy */
    ek_tensor wide[STAGES]; /* parameters per element, as tensors of one sample */
    size_t nbytes;          /* bytes of partial sums */
} norm_call;

static int norm_begin(norm_call *call, ek_dev *dev, const char *operation, ek_dtype dtype)
{
    call->dev = dev;
    call->operation = operation;
    call->rc = call->stages = 0;
    call->norm = (ek_cuda_norm){.dtype = dtype};
    call->form = EK_NORM_ROWS;
    call->nbytes = 0;
    return ek_cuda_begin(dev, &call->stream);
}

static void norm_free_sums(norm_call *call)
{
    ek_cuda_scratch_free(call->dev, call->norm.first, call->nbytes);
    call->norm.first = call->norm.second = NULL;
    call->nbytes = 0;
}

static int norm_end(norm_call *call)
{
    int rc = ek_cuda_check(call->dev, call->operation, call->rc);
    norm_free_sums(call);
    for (int i = 0; i < call->stages; i++)
        rc = ek_stage_end(&call->stage[i], call->dev, call->stores[i], rc);
    return ek_cuda_end(call->dev, &call->stream, call->operation, rc);
}

static void norm_launch(norm_call *call, ek_cuda_norm_launch *launch)
{
    if (call->rc == 0)
        call->rc = launch(&call->stream, &call->norm);
}

/* ---- operands ---- */

/* Stages a tensor: unchanged if it `fits` and has the dtype, else as a copy. Returns NULL on
 * errors. */
static const ek_tensor *norm_stage(norm_call *call, const ek_tensor *t, ek_dtype dtype,
                                   ek_memory_format format, bool fits, unsigned use)
{
    ek_stage *stage = &call->stage[call->stages];
    if (call->rc == 0)
        call->rc = ek_stage_begin(stage, call->dev, t, dtype, ek_axis_of(format, t->ndim),
                                  fits && t->dtype == dtype, use & READ);
    if (call->rc != 0)
        return NULL;
    call->stores[call->stages++] = use & WRITE;
    return stage->tensor;
}

/* Returns the dtype of statistics, parameters and sums. */
static ek_dtype norm_computed(const norm_call *call)
{
    return call->norm.dtype == EK_F64 ? EK_F64 : EK_F32;
}

/* Returns the values of a parameter or statistic, as a dense array; NULL for NULL. */
static void *norm_array(norm_call *call, const ek_tensor *t, unsigned use)
{
    const ek_tensor *taken = t ? norm_stage(call, t, norm_computed(call), EK_CONTIGUOUS,
                                            ek_is_dense_along(t, t->ndim - 1), use)
                               : NULL;
    return taken ? ek_tensor_address(taken) : NULL;
}

/* Returns the values of weight, bias or their gradients. If norm.element, they are staged as a
 * batch of one sample, in the order that samples of x have in memory. */
static void *norm_parameter(norm_call *call, const ek_tensor *x, const ek_tensor *t, unsigned use)
{
    if (!t || !call->norm.element)
        return norm_array(call, t, use);
    ek_tensor *wide = &call->wide[call->stages];
    *wide = (ek_tensor){.dtype = t->dtype,
                        .ndim = t->ndim + 1,
                        .shape = {1},
                        .offset = t->offset,
                        .storage = t->storage};
    for (int d = 0; d < t->ndim; d++) {
        wide->shape[d + 1] = t->shape[d];
        wide->stride[d + 1] = t->stride[d];
    }
    const bool last = call->form == EK_NORM_RUN_LAST && wide->ndim == x->ndim;
    const ek_tensor *taken =
        norm_stage(call, wide, norm_computed(call), last ? EK_CHANNELS_LAST : EK_CONTIGUOUS,
                   ek_cuda_norm_fits(wide, last ? EK_NORM_RUN_LAST : EK_NORM_RUN, false), use);
    return taken ? ek_tensor_address(taken) : NULL;
}

/* Stages x, dy, the ReLU's output and y in one form, or other operands in their places
 * (ek_cuda_norm). y may be NULL. */
static void norm_take_tensors(norm_call *call, const ek_norm_args *args, const ek_norm_geometry *g,
                              bool runs, const ek_tensor *y)
{
    const bool adds = args->residual && !args->dy;
    const ek_tensor *const all[4] = {args->x, adds ? args->residual : args->dy,
                                     adds             ? args->total
                                     : args->residual ? args->residual
                                                      : args->y_relu,
                                     y};
    ek_cuda_norm *norm = &call->norm;
    ek_norm_operand *const operands[4] = {&norm->x, &norm->dy, &norm->mask, &norm->y};
    const ek_norm_form form = call->form = ek_cuda_norm_choose(norm, all, g, runs);
    for (int i = adds ? 2 : 1; i < 4; i++)
        if (all[i] && all[i]->dtype != norm->dtype)
            norm->dtype = norm_computed(call);
    norm->residual = adds ? args->residual->dtype : norm->dtype;
    for (int i = 0; i < 4; i++) {
        const bool writes = i == 3 || (i == 2 && adds);
        const ek_tensor *taken =
            all[i] ? norm_stage(call, all[i], i == 1 ? norm->residual : norm->dtype,
                                form == EK_NORM_ROWS || form == EK_NORM_RUN_LAST ? EK_CHANNELS_LAST
                                                                                 : EK_CONTIGUOUS,
                                ek_cuda_norm_fits(all[i], form, g->batch), writes ? WRITE : READ)
                   : NULL;
        if (taken)
            *operands[i] = ek_cuda_norm_operand(taken, form, g->batch, norm->inner);
    }
}

/* Stages the tensors and parameters of args, and y. `parameter` is a parameter that is given; NULL
 * if none is. */
static void norm_take(norm_call *call, const ek_norm_args *args, const ek_tensor *y,
                      const ek_tensor *parameter)
{
    ek_cuda_norm *norm = &call->norm;
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    norm->element = ek_norm_has_runs(&g, args->x, parameter);
    norm_take_tensors(call, args, &g, norm->element, y);
    norm->mean = norm_array(call, args->mean, READ);
    norm->invstd = norm_array(call, args->invstd, READ);
    norm->weight = norm_parameter(call, args->x, args->weight, READ);
    norm->bias = norm_parameter(call, args->x, args->bias, READ);
    norm->weighted = g.batch && args->invstd;
}

static void norm_room_for_sums(norm_call *call, int64_t count)
{
    ek_cuda_norm *norm = &call->norm;
    void *room = NULL;
    if (call->rc != 0)
        return;
    call->nbytes = 2 * (size_t)count * sizeof(double);
    call->rc = ek_cuda_scratch(call->dev, call->nbytes, &room);
    norm->first = room;
    norm->second = norm->first ? norm->first + count : NULL;
}

/* Cuts the sums over threads and allocates partial sums. If `direct`, each column has one part and
 * each group one column, there are no partial sums. */
static void norm_cut_sums(norm_call *call, bool direct)
{
    ek_cuda_norm *norm = &call->norm;
    ek_cuda_norm_cut_sums(norm);
    norm_free_sums(call);
    if (!direct || norm->each > 1 || norm->cut.parts > 1)
        norm_room_for_sums(call, norm->samples * norm->cut.parts * norm->channels);
}

static int norm_fill(ek_dev *dev, ek_tensor *const *tensors, int count, double value)
{
    for (int i = 0; i < count; i++)
        if (tensors[i])
            EK_TRY(ek_cuda_fill(dev, tensors[i], value));
    return 0;
}

/* ---- moments and merge ---- */

static void norm_take_update(norm_call *call, const ek_norm_update *update)
{
    call->norm.update =
        (ek_norm_updating){.inverts = true,
                           .running_mean = norm_array(call, update->running_mean, READ | WRITE),
                           .running_var = norm_array(call, update->running_var, READ | WRITE),
                           .eps = update->eps,
                           .momentum = update->momentum,
                           .unbiased = update->count / (update->count - 1),
                           .average = update->average ? ek_tensor_address(update->average) : NULL,
                           .batches = update->batches ? ek_tensor_address(update->batches) : NULL};
}

/* Computes groups as runs if possible. The groups of a row-major sample lie one after the other.
 * The channels of a single group are one run in any order of memory. */
int ek_cuda_norm_moments(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                         const ek_norm_update *update)
{
    if (ek_count(x) == 0)
        return norm_fill(dev, (ek_tensor *[]){mean, var}, 2, (double)NAN);
    norm_call call;
    EK_TRY(norm_begin(&call, dev, "norm_moments", x->dtype));
    const ek_norm_geometry g = ek_norm_geometry_of(x, mean, NULL);
    const bool rows =
        ek_cuda_norm_fits(x, EK_NORM_ROWS, false) && !ek_cuda_norm_fits(x, EK_NORM_PLANES, false);
    norm_take_tensors(&call, &(ek_norm_args){.x = x}, &g,
                      !g.batch && (g.groups == 1 || g.inner == 1 || !rows), NULL);
    call.norm.by_group[0] = norm_array(&call, mean, WRITE);
    call.norm.by_group[1] = norm_array(&call, var, WRITE);
    if (update)
        norm_take_update(&call, update);
    norm_cut_sums(&call, true);
    norm_launch(&call, ek_cuda_launch_norm_moments);
    if (call.norm.first)
        norm_launch(&call, ek_cuda_launch_norm_join_moments);
    return norm_end(&call);
}

/* Sets *step to the distance between the chunks of t (chunks, ...) in elements. Returns t's values,
 * which are copied if its dtype or innermost stride doesn't fit. */
static const void *norm_take_chunks(norm_call *call, const ek_tensor *t, int64_t *step)
{
    const int last = t->ndim - 1;
    const bool keep = t->dtype == call->norm.dtype && t->stride[last] == 1;
    *step = keep && last > 0 ? t->stride[0] : t->shape[last];
    return keep ? ek_tensor_address(t) : norm_array(call, t, READ);
}

int ek_cuda_norm_merge(ek_dev *dev, ek_tensor *mean, ek_tensor *invstd, const ek_tensor *means,
                       const ek_tensor *vars, const double *shares, const ek_norm_update *update)
{
    norm_call call;
    EK_TRY(norm_begin(&call, dev, "norm_merge", mean->dtype == EK_F64 ? EK_F64 : EK_F32));
    ek_norm_merging m = {.channels = ek_count(mean),
                         .chunks = means->ndim > 1 ? (int)means->shape[0] : 1};
    for (int k = 0; k < m.chunks; k++)
        m.shares[k] = shares[k];
    m.means = norm_take_chunks(&call, means, &m.means_step);
    m.vars = norm_take_chunks(&call, vars, &m.vars_step);
    m.mean = norm_array(&call, mean, WRITE);
    m.invstd = norm_array(&call, invstd, WRITE);
    norm_take_update(&call, update);
    m.update = call.norm.update;
    if (call.rc == 0)
        call.rc = ek_cuda_launch_norm_merge(&call.stream, call.norm.dtype == EK_F64, &m);
    return norm_end(&call);
}

/* ---- lines ---- */

int ek_cuda_norm_line(ek_dev *dev, ek_tensor *out, const ek_norm_args *args)
{
    if (ek_count(args->x) == 0)
        return 0;
    norm_call call;
    EK_TRY(norm_begin(&call, dev, "norm_line", args->x->dtype));
    norm_take(&call, args, out, args->weight ? args->weight : args->bias);
    call.norm.sum = norm_array(&call, args->sum, READ);
    call.norm.sum_xhat = norm_array(&call, args->sum_xhat, READ);
    call.norm.relu = args->relu;
    call.norm.share = args->sum_xhat ? 1 / args->count : 0;
    ek_cuda_norm_cut_line(&call.norm, call.stream.multiprocessors);
    norm_launch(&call, ek_cuda_launch_norm_line);
    return norm_end(&call);
}

/* ---- reduce ---- */

/* Computes the sums of the batch, and from them the line (ek_norm_line). The sums are the gradients
 * of the parameters, so that only the line contains the weight. */
static void norm_reduce_batch(norm_call *call, const ek_norm_sums *sums)
{
    ek_cuda_norm *norm = &call->norm;
    norm->line = (ek_norm_line){.weight = norm->weight,
                                .scale = norm_array(call, sums->scale, WRITE),
                                .shift = norm_array(call, sums->shift, WRITE),
                                .slope = norm_array(call, sums->slope, WRITE),
                                .share = -1 / sums->count};
    norm->weight = NULL;
    norm->by_group[0] = norm_array(call, sums->dbias, WRITE);
    norm->by_group[1] = norm_array(call, sums->dweight, WRITE);
    norm_cut_sums(call, true);
    norm_launch(call, ek_cuda_launch_norm_sums);
    if (norm->first)
        norm_launch(call, ek_cuda_launch_norm_join_groups);
}

/* Computes dweight and dbias per element: here elements are columns, and samples are rows. */
static void norm_reduce_elements(norm_call *call)
{
    ek_cuda_norm *norm = &call->norm;
    norm->planes = norm->element = false;
    norm->each = norm->inner;
    norm->channels *= norm->inner;
    norm->rows = norm->samples;
    norm->samples = 1;
    norm->x.row = norm->x.sample;
    norm->dy.row = norm->dy.sample;
    norm->x.sample = norm->dy.sample = 0;
    norm_cut_sums(call, true);
    norm_launch(call, ek_cuda_launch_norm_elements);
    norm->invstd = NULL;
}

/* Computes sums by group and by parameter. If groups are runs, their sums are computed at once;
 * otherwise sums of channels are joined. */
static void norm_reduce_samples(norm_call *call, const ek_norm_sums *sums, const ek_tensor *x)
{
    ek_cuda_norm *norm = &call->norm;
    const bool runs = norm->element;
    norm->by_group[0] = norm_array(call, sums->sum, WRITE);
    norm->by_group[1] = norm_array(call, sums->sum_xhat, WRITE);
    norm->by_column[0] = norm_parameter(call, x, sums->dbias, WRITE);
    norm->by_column[1] = norm_parameter(call, x, sums->dweight, WRITE);
    if (sums->sum || !runs) {
        norm_cut_sums(call, runs || (!sums->dweight && !norm->weight));
        norm_launch(call, ek_cuda_launch_norm_sums);
    }
    if (sums->sum && norm->first)
        norm_launch(call, ek_cuda_launch_norm_join_groups);
    if (sums->dweight && runs)
        norm_reduce_elements(call);
    if (sums->dweight && norm->first)
        norm_launch(call, ek_cuda_launch_norm_join_columns);
}

int ek_cuda_norm_reduce(ek_dev *dev, const ek_norm_sums *sums, const ek_norm_args *args)
{
    if (ek_count(args->x) == 0) {
        ek_tensor *const all[] = {sums->sum,   sums->sum_xhat, sums->dweight, sums->dbias,
                                  sums->shift, sums->slope,    sums->scale};
        return norm_fill(dev, all, 7, 0);
    }
    norm_call call;
    EK_TRY(norm_begin(&call, dev, "norm_reduce", args->x->dtype));
    norm_take(&call, args, NULL, args->weight ? args->weight : sums->dweight);
    if (ek_norm_geometry_of(args->x, args->mean, args->invstd).batch)
        norm_reduce_batch(&call, sums);
    else
        norm_reduce_samples(&call, sums, args->x);
    return norm_end(&call);
}

/* ---- rows in registers ---- */

/* Begins a call for rows. Returns 0 if registers don't hold the rows. */
static int norm_begin_rows(norm_call *call, ek_dev *dev, const char *operation, const ek_tensor *y,
                           const ek_norm_args *args, const ek_tensor *parameter)
{
    const ek_norm_geometry g = ek_norm_geometry_of(args->x, args->mean, args->invstd);
    if (g.groups != 1 || !ek_norm_has_runs(&g, args->x, parameter) ||
        g.each * g.inner > ek_cuda_norm_longest_row(args->x->dtype))
        return 0;
    EK_TRY(norm_begin(call, dev, operation, args->x->dtype));
    norm_take(call, args, y, parameter);
    return ek_cuda_norm_cut_row(&call->norm) ? 1 : norm_end(call);
}

int ek_cuda_norm_rows(ek_dev *dev, ek_tensor *y, ek_tensor *mean, ek_tensor *invstd,
                      const ek_norm_args *args, double eps)
{
    norm_call call;
    ek_norm_args all = *args;
    all.mean = mean;
    all.invstd = invstd;
    int rc =
        norm_begin_rows(&call, dev, "norm_rows", y, &all, args->weight ? args->weight : args->bias);
    if (rc <= 0)
        return rc;
    call.norm.by_group[0] = norm_array(&call, mean, WRITE);
    call.norm.by_group[1] = norm_array(&call, invstd, WRITE);
    call.norm.update.eps = eps;
    norm_launch(&call, ek_cuda_launch_norm_row);
    rc = norm_end(&call);
    return rc < 0 ? rc : 1;
}

int ek_cuda_norm_rows_gradient(ek_dev *dev, ek_tensor *dx, const ek_norm_sums *sums,
                               const ek_norm_args *args)
{
    norm_call call;
    ek_cuda_norm *norm = &call.norm;
    int rc = norm_begin_rows(&call, dev, "norm_rows_gradient", dx, args,
                             args->weight ? args->weight : sums->dweight);
    if (rc <= 0)
        return rc;
    norm->by_column[0] = norm_parameter(&call, args->x, sums->dbias, WRITE);
    norm->by_column[1] = norm_parameter(&call, args->x, sums->dweight, WRITE);
    norm->share = 1 / (double)norm->inner;
    if (sums->dweight)
        norm_room_for_sums(&call, norm->cut.parts * norm->inner);
    norm_launch(&call, ek_cuda_launch_norm_row_gradient);
    if (sums->dweight) { /* elements are columns now, and blocks parts of one sample */
        norm->channels = norm->each = norm->inner;
        norm->samples = 1;
        norm->invstd = NULL;
        norm_launch(&call, ek_cuda_launch_norm_join_columns);
    }
    rc = norm_end(&call);
    return rc < 0 ? rc : 1;
}

/* cross_entropy.c: cross entropy over dimension 1, as in PyTorch 1.13. The loss of an element with
 * logits x and target t is, with lse = log(sum(exp(x))),
 *
 *   loss = (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c])
 *
 * where s is the label smoothing. The mean loss of all elements is sum(loss) / sum(w[t]). */
#ifndef EK_REAL
#include <stdatomic.h>

#include "host/axis.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/formulas.h"

/* A block has at most ROWS rows. A task of the denominator has BLOCK targets. */
enum { ROWS = 512, BLOCK = 16384 };

typedef struct entropy_job {
    ek_axis axis;
    ek_axis_operand x, dx;
    ek_operand target, value, lse; /* value: the loss, or the loss's gradient */
    bool gradient;
    const ek_cross_entropy_params *params;
    double *weight; /* one per class; NULL if all are 1 */
    double total_weight;
    size_t weight_nbytes;
    atomic_bool out_of_range;
} entropy_job;

static bool entropy_counts(const entropy_job *job, int64_t target)
{
    return target != job->params->ignore_index && target >= 0 && target < job->axis.size;
}

static double entropy_weight_of(const entropy_job *job, int64_t class)
{
    return job->weight ? job->weight[class] : 1;
}

#define EK_FOR_REALS "host/cross_entropy.c"
#include "kernels/for_reals.h"

/* ---- targets and weights ---- */

/* Fails with the first target out of range, in row-major order. */
static int entropy_fail_target(const ek_tensor *target, int64_t classes, int64_t ignore_index)
{
    int64_t at, value;
    if (!ek_find_outside(target, classes, &ignore_index, &at, &value))
        return EK_FAIL(EK_E_INVALID, "targets changed while they were read");
    return EK_FAIL(EK_E_INVALID,
                   "target %lld at position %lld is out of range for %lld classes; it must be from "
                   "0 to %lld, or the ignored index %lld",
                   (long long)value, (long long)at, (long long)classes, (long long)classes - 1,
                   (long long)ignore_index);
}

static const int64_t *entropy_load_targets(entropy_job *job, const ek_cursor *cursor, int64_t rows,
                                           ek_tile *tile)
{
    const int64_t *target =
        ek_tile_load(&job->axis.walk, cursor, &job->target, EK_CLASS_I64, rows, tile);
    for (int64_t r = 0; r < rows; r++)
        if (target[r] != job->params->ignore_index && !entropy_counts(job, target[r]))
            atomic_store_explicit(&job->out_of_range, true, memory_order_relaxed);
    return target;
}

static int entropy_begin_weights(entropy_job *job, ek_dev *dev, const ek_tensor *weight)
{
    void *data;
    job->weight = NULL;
    job->total_weight = (double)job->axis.size;
    if (!weight)
        return 0;
    job->weight_nbytes = (size_t)job->axis.size * sizeof(double);
    EK_TRY(ek_dev_alloc(dev, job->weight_nbytes, EK_MEMORY_WORKSPACE, &data));
    job->weight = data;
    ek_row_load(EK_CLASS_F64, job->weight, weight->dtype, ek_tensor_address(weight),
                weight->stride[0], job->axis.size);
    job->total_weight = 0;
    for (int64_t c = 0; c < job->axis.size; c++)
        job->total_weight += job->weight[c];
    return 0;
}

/* slots[0] is scratch for x, slots[4] for dx. */
static void entropy_part(void *context, void *const *slots, int64_t begin, int64_t end)
{
    entropy_job *job = context;
    const ek_axis *axis = &job->axis;
    const ek_walk *walk = &axis->walk;
    const ek_class type = axis->type;
    ek_tile targets, values, lses; /* values: the losses, or the losses' gradients */
    ek_cursor cursor;
    ek_cursor_init(walk, &cursor, begin);
    while (begin < end) {
        int64_t rows = ek_axis_rows(axis, &cursor, end - begin);
        const void *x = ek_axis_load(axis, &cursor, &job->x, rows, slots[0]);
        const int64_t *target = entropy_load_targets(job, &cursor, rows, &targets);
        if (job->gradient) {
            void *dx = ek_axis_target(axis, &cursor, &job->dx, rows, slots[4]);
            const void *value = ek_tile_load(walk, &cursor, &job->value, type, rows, &values),
                       *lse = ek_tile_load(walk, &cursor, &job->lse, type, rows, &lses);
            (type == EK_CLASS_F32 ? entropy_gradient_f32
                                  : entropy_gradient_f64)(job, rows, x, target, value, lse, dx);
            ek_axis_store(axis, &cursor, &job->dx, rows, dx, slots[4]);
        } else {
            void *value = ek_tile_target(walk, &cursor, &job->value, type, rows, &values),
                 *lse = ek_tile_target(walk, &cursor, &job->lse, type, rows, &lses);
            (type == EK_CLASS_F32 ? entropy_loss_f32 : entropy_loss_f64)(job, rows, x, target,
                                                                         value, lse);
            ek_tile_store(walk, &cursor, &job->value, type, rows, value, &values);
            ek_tile_store(walk, &cursor, &job->lse, type, rows, lse, &lses);
        }
        ek_cursor_advance(walk, &cursor, rows);
        begin += rows;
    }
}

/* If dx is NULL, computes the loss and lse, and writes the loss to `value`. Otherwise computes dx
 * from lse and the loss's gradient `value`. */
static int entropy_run(ek_dev *dev, const ek_tensor *value, const ek_tensor *lse,
                       const ek_tensor *x, const ek_tensor *dx, const ek_tensor *target,
                       const ek_tensor *weight, const ek_cross_entropy_params *params)
{
    const int dim = x->ndim > 1 ? 1 : 0, count = dx ? 5 : 4;
    entropy_job job = {.params = params, .gradient = dx != NULL};
    EK_TRY(ek_axis_begin(&job.axis, dev, (const ek_tensor *[]){x, target, value, lse, dx},
                         (const bool[]){true, false, false, false, true}, count, dim));
    job.x = ek_axis_operand_of(&job.axis, 0, x, dim);
    job.target = ek_operand_of(&job.axis.walk, 1, target);
    job.value = ek_operand_of(&job.axis.walk, 2, value);
    job.lse = ek_operand_of(&job.axis.walk, 3, lse);
    if (dx)
        job.dx = ek_axis_operand_of(&job.axis, 4, dx, dim);
    int rc = entropy_begin_weights(&job, dev, weight);
    if (rc >= 0) {
        ek_axis_for(&job.axis, dev, entropy_part, &job);
        if (atomic_load(&job.out_of_range))
            rc = entropy_fail_target(target, job.axis.size, params->ignore_index);
        if (job.weight)
            ek_dev_free(dev, job.weight, job.weight_nbytes, EK_MEMORY_WORKSPACE);
    }
    ek_axis_end(&job.axis, dev);
    return rc;
}

int ek_host_cross_entropy_forward(ek_dev *dev, ek_tensor *loss, ek_tensor *lse, const ek_tensor *x,
                                  const ek_tensor *target, const ek_tensor *weight,
                                  const ek_cross_entropy_params *params)
{
    if (ek_count(target) == 0)
        return 0;
    if (x->shape[x->ndim > 1 ? 1 : 0] == 0)
        return EK_FAIL(EK_E_SHAPE, "cross entropy over 0 classes; at least 1 is needed");
    return entropy_run(dev, loss, lse, x, NULL, target, weight, params);
}

int ek_host_cross_entropy_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *gradient,
                                   const ek_tensor *lse, const ek_tensor *x,
                                   const ek_tensor *target, const ek_tensor *weight,
                                   const ek_cross_entropy_params *params)
{
    if (ek_count(x) == 0)
        return 0;
    return entropy_run(dev, gradient, lse, x, dx, target, weight, params);
}

/* ---- the denominator ---- */

typedef struct target_weight_job {
    ek_walk walk;
    ek_operand target;
    const double *weight; /* NULL if all are 1 */
    double *partial;      /* one sum per block */
    int64_t classes, ignore_index;
    atomic_bool out_of_range;
} target_weight_job;

static void target_weight_part(void *context, int64_t begin, int64_t end)
{
    target_weight_job *job = context;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * BLOCK;
        int64_t last = ek_smaller(at + BLOCK, job->walk.count);
        double sum = 0;
        ek_tile tile;
        ek_cursor cursor;
        ek_cursor_init(&job->walk, &cursor, at);
        while (at < last) {
            int64_t n = ek_tile_count(&job->walk, &cursor, last - at);
            const int64_t *target =
                ek_tile_load(&job->walk, &cursor, &job->target, EK_CLASS_I64, n, &tile);
            for (int64_t i = 0; i < n; i++) {
                int64_t t = target[i];
                if (t == job->ignore_index)
                    continue;
                if (!job->weight)
                    sum += 1;
                else if (t >= 0 && t < job->classes)
                    sum += job->weight[t];
                else
                    atomic_store_explicit(&job->out_of_range, true, memory_order_relaxed);
            }
            ek_tile_advance(&job->walk, &cursor, n);
            at += n;
        }
        job->partial[block] = sum;
    }
}

int ek_host_target_weight(ek_dev *dev, ek_tensor *out, const ek_tensor *target,
                          const ek_tensor *weight, int64_t ignore_index)
{
    target_weight_job job = {.ignore_index = ignore_index,
                             .classes = weight ? weight->shape[0] : 0};
    ek_walk_init(&job.walk, 1, (const ek_tensor *[]){target});
    job.target = ek_operand_of(&job.walk, 0, target);
    int64_t blocks = (job.walk.count + BLOCK - 1) / BLOCK;
    size_t nbytes = (size_t)(blocks + job.classes) * sizeof(double);
    void *scratch;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &scratch));
    job.partial = scratch;
    if (weight) {
        double *values = job.partial + blocks;
        ek_row_load(EK_CLASS_F64, values, weight->dtype, ek_tensor_address(weight),
                    weight->stride[0], job.classes);
        job.weight = values;
    }
    ek_parallel_for(dev, blocks, 2, target_weight_part, &job);
    double sum = 0;
    for (int64_t block = 0; block < blocks; block++)
        sum += job.partial[block];
    ek_row_store(EK_CLASS_F64, &sum, out->dtype, ek_tensor_address(out), 1, 1);
    ek_dev_free(dev, scratch, nbytes, EK_MEMORY_WORKSPACE);
    if (atomic_load(&job.out_of_range))
        return entropy_fail_target(target, job.classes, ignore_index);
    return 0;
}

#else /* for each EK_REAL */

/* Computes sum = log(sum) and lse = largest + sum. The loss uses `largest` and `sum`, because for
 * large logits lse has lost digits of `sum`. */
EK_MULTIVERSION
static void EK_NAME(entropy_log_sums)(int64_t rows, EK_REAL *restrict lse,
                                      const EK_REAL *restrict largest, EK_REAL *restrict sum)
{
    for (int64_t r = 0; r < rows; r++) {
        sum[r] = EK_NAME(ek_log)(sum[r]);
        lse[r] = largest[r] + sum[r];
    }
}

static void EK_NAME(entropy_loss)(const entropy_job *job, int64_t rows, const void *in,
                                  const int64_t *target, void *losses, void *lses)
{
    const EK_REAL *x = in;
    EK_REAL *loss = losses, *lse = lses, largest[ROWS], sum[ROWS];
    int64_t size = job->axis.size;
    double smoothing = job->params->label_smoothing;
    EK_NAME(ek_exp_sums)(rows, size, x, largest, sum);
    EK_NAME(entropy_log_sums)(rows, lse, largest, sum);
    for (int64_t r = 0; r < rows; r++) {
        const EK_REAL *row = x + r * size;
        int64_t t = target[r];
        if (!entropy_counts(job, t)) {
            loss[r] = 0;
            continue;
        }
        double own = entropy_weight_of(job, t) * (double)(largest[r] - row[t] + sum[r]);
        if (smoothing != 0) {
            double all = 0;
            for (int64_t c = 0; c < size; c++)
                all += entropy_weight_of(job, c) * (double)(largest[r] - row[c] + sum[r]);
            own = (1 - smoothing) * own + smoothing / (double)size * all;
        }
        loss[r] = (EK_REAL)own;
    }
}

/* Computes d = exp(x - lse). d may be x. */
EK_MULTIVERSION
static void EK_NAME(entropy_probabilities)(int64_t rows, int64_t size, EK_REAL *d, const EK_REAL *x,
                                           const EK_REAL *lse)
{
    for (int64_t r = 0; r < rows; r++)
        EK_IVDEP for (int64_t c = 0; c < size; c++) d[r * size + c] = x[r * size + c] - lse[r];
    for (int64_t i = 0; i < rows * size; i++)
        d[i] = EK_NAME(ek_exp)(d[i]);
}

EK_MULTIVERSION
static void EK_NAME(entropy_scale_row)(int64_t size, EK_REAL *restrict d, EK_REAL scale)
{
    for (int64_t c = 0; c < size; c++)
        d[c] *= scale;
}

static void EK_NAME(entropy_gradient)(const entropy_job *job, int64_t rows, const void *in,
                                      const int64_t *target, const void *gradients,
                                      const void *lses, void *out)
{
    const EK_REAL *x = in, *lse = lses, *gradient = gradients;
    EK_REAL *d = out;
    int64_t size = job->axis.size;
    double smoothing = job->params->label_smoothing, share = smoothing / (double)size;
    EK_NAME(entropy_probabilities)(rows, size, d, x, lse);
    for (int64_t r = 0; r < rows; r++) {
        EK_REAL *row = d + r * size;
        int64_t t = target[r];
        if (!entropy_counts(job, t)) {
            for (int64_t c = 0; c < size; c++)
                row[c] = 0;
            continue;
        }
        double g = (double)gradient[r], own = (1 - smoothing) * entropy_weight_of(job, t);
        EK_NAME(entropy_scale_row)(size, row, (EK_REAL)(g * (own + share * job->total_weight)));
        if (smoothing != 0)
            for (int64_t c = 0; c < size; c++)
                row[c] -= (EK_REAL)(g * share * entropy_weight_of(job, c));
        row[t] -= (EK_REAL)(g * own);
    }
}

#endif

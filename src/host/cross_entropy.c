/* Cross entropy over dimension 1. Per element and with lse = log sum exp x, as PyTorch 1.13 has it:
 *
 *   loss = (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c])
 *
 * where s is the label smoothing, so that the mean over all is sum(loss) / sum(w[t]). */
#include <stdatomic.h>

#include "host/axis.h"
#include "host/host.h"
#include "host/parallel.h"
#include "kernels/formulas.h"

/* Most rows of a block; rows shorter than NARROW are worked on together. */
enum { ROWS = 512, NARROW = 32, BLOCK = 16384 };

typedef struct entropy_job {
    ek_axis axis;
    ek_axis_operand x, dx;
    ek_operand target, loss, lse, gradient;
    const ek_cross_entropy_params *params;
    double *weight; /* per class; NULL: ones */
    double total_weight;
    size_t weight_nbytes;
    atomic_bool out_of_range;
} entropy_job;

static bool counts(const entropy_job *job, int64_t target)
{
    return target != job->params->ignore_index && target >= 0 && target < job->axis.size;
}

static double weight_of(const entropy_job *job, int64_t class)
{
    return job->weight ? job->weight[class] : 1;
}

#define EK_REAL float
#define EK_NAME(name) name##_f32
#include "host/cross_entropy_real.h"
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
#include "host/cross_entropy_real.h"
#undef EK_REAL
#undef EK_NAME

/* ---- targets and weights ---- */

static int64_t target_at(const ek_tensor *target, int64_t position)
{
    int64_t offset = 0, value;
    for (int d = target->ndim - 1; d >= 0; d--) {
        offset += position % target->shape[d] * target->stride[d];
        position /= target->shape[d];
    }
    ek_row_load(EK_CLASS_I64, &value, target->dtype,
                (const char *)ek_tensor_address(target) +
                    offset * (int64_t)ek_dtype_size(target->dtype),
                1, 1);
    return value;
}

/* The sentence for the first target out of range, in row-major order. */
static int fail_target(const ek_tensor *target, int64_t classes, int64_t ignore_index)
{
    int64_t count = ek_count(target);
    for (int64_t i = 0; i < count; i++) {
        int64_t t = target_at(target, i);
        if (t != ignore_index && (t < 0 || t >= classes))
            return EK_FAIL(EK_E_INVALID,
                           "target %lld at position %lld is out of range for %lld classes; it must "
                           "be from 0 to %lld, or the ignored index %lld",
                           (long long)t, (long long)i, (long long)classes, (long long)classes - 1,
                           (long long)ignore_index);
    }
    return EK_FAIL(EK_E_INVALID, "targets changed while they were read");
}

static void load_strided(const entropy_job *job, const ek_cursor *cursor, const ek_operand *operand,
                         ek_class type, int64_t rows, void *row)
{
    ek_row_load(type, row, operand->dtype,
                (const char *)operand->data +
                    cursor->offset[operand->index] * (int64_t)ek_dtype_size(operand->dtype),
                job->axis.walk.stride[operand->index][job->axis.walk.ndim - 1], rows);
}

static void store_strided(const entropy_job *job, const ek_cursor *cursor,
                          const ek_operand *operand, int64_t rows, const void *row)
{
    ek_row_store(job->axis.type, row, operand->dtype,
                 (char *)operand->data +
                     cursor->offset[operand->index] * (int64_t)ek_dtype_size(operand->dtype),
                 job->axis.walk.stride[operand->index][job->axis.walk.ndim - 1], rows);
}

static void load_targets(entropy_job *job, const ek_cursor *cursor, int64_t rows, int64_t *target)
{
    load_strided(job, cursor, &job->target, EK_CLASS_I64, rows, target);
    for (int64_t r = 0; r < rows; r++)
        if (target[r] != job->params->ignore_index && !counts(job, target[r]))
            atomic_store_explicit(&job->out_of_range, true, memory_order_relaxed);
}

static int begin_weights(entropy_job *job, ek_dev *dev, const ek_tensor *weight)
{
    void *data;
    job->weight = NULL;
    job->total_weight = (double)job->axis.size;
    if (weight == NULL)
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

static int dimension_of_classes(const ek_tensor *x)
{
    return x->ndim > 1 ? 1 : 0;
}

static int run(entropy_job *job, ek_dev *dev, ek_axis_body *body, const ek_tensor *target,
               const ek_tensor *weight)
{
    int rc = begin_weights(job, dev, weight);
    if (rc >= 0) {
        ek_axis_for(&job->axis, dev, body, job);
        if (atomic_load(&job->out_of_range))
            rc = fail_target(target, job->axis.size, job->params->ignore_index);
        if (job->weight)
            ek_dev_free(dev, job->weight, job->weight_nbytes, EK_MEMORY_WORKSPACE);
    }
    ek_axis_end(&job->axis, dev);
    return rc;
}

/* ---- loss ---- */

/* Slot: x. */
static void forward_part(void *context, void *const *slots, int64_t begin, int64_t end)
{
    entropy_job *job = context;
    const ek_axis *axis = &job->axis;
    int64_t target[ROWS];
    ek_tile loss, lse;
    ek_cursor cursor;
    ek_cursor_init(&axis->walk, &cursor, begin);
    while (begin < end) {
        int64_t rows = ek_axis_rows(axis, &cursor, end - begin);
        const void *x = ek_axis_load(axis, &cursor, &job->x, rows, slots[0]);
        load_targets(job, &cursor, rows, target);
        if (axis->type == EK_CLASS_F32)
            loss_block_f32(job, rows, x, target, loss.f32, lse.f32);
        else
            loss_block_f64(job, rows, x, target, loss.f64, lse.f64);
        store_strided(job, &cursor, &job->loss, rows, &loss);
        store_strided(job, &cursor, &job->lse, rows, &lse);
        ek_cursor_advance(&axis->walk, &cursor, rows);
        begin += rows;
    }
}

int ek_host_cross_entropy_forward(ek_dev *dev, ek_tensor *loss, ek_tensor *lse, const ek_tensor *x,
                                  const ek_tensor *target, const ek_tensor *weight,
                                  const ek_cross_entropy_params *params)
{
    int dim = dimension_of_classes(x);
    if (ek_count(target) == 0)
        return 0;
    if (x->shape[dim] == 0)
        return EK_FAIL(EK_E_SHAPE, "cross entropy over 0 classes; at least 1 is needed");
    entropy_job job = {.params = params};
    EK_TRY(ek_axis_begin(&job.axis, dev, (const ek_tensor *[]){x, target, loss, lse},
                         (const bool[]){true, false, false, false}, 4, dim));
    job.x = ek_axis_operand_of(&job.axis, 0, x, dim);
    job.target = ek_operand_of(&job.axis.walk, 1, target);
    job.loss = ek_operand_of(&job.axis.walk, 2, loss);
    job.lse = ek_operand_of(&job.axis.walk, 3, lse);
    return run(&job, dev, forward_part, target, weight);
}

/* ---- gradient ---- */

/* Slots: x, dx. */
static void gradient_part(void *context, void *const *slots, int64_t begin, int64_t end)
{
    entropy_job *job = context;
    const ek_axis *axis = &job->axis;
    int64_t target[ROWS];
    ek_tile gradient, lse;
    ek_cursor cursor;
    ek_cursor_init(&axis->walk, &cursor, begin);
    while (begin < end) {
        int64_t rows = ek_axis_rows(axis, &cursor, end - begin);
        const void *x = ek_axis_load(axis, &cursor, &job->x, rows, slots[0]);
        void *dx = ek_axis_target(axis, &cursor, &job->dx, rows, slots[1]);
        load_targets(job, &cursor, rows, target);
        load_strided(job, &cursor, &job->gradient, axis->type, rows, &gradient);
        load_strided(job, &cursor, &job->lse, axis->type, rows, &lse);
        if (axis->type == EK_CLASS_F32)
            entropy_gradient_f32(job, rows, x, target, gradient.f32, lse.f32, dx);
        else
            entropy_gradient_f64(job, rows, x, target, gradient.f64, lse.f64, dx);
        ek_axis_store(axis, &cursor, &job->dx, rows, dx, slots[1]);
        ek_cursor_advance(&axis->walk, &cursor, rows);
        begin += rows;
    }
}

int ek_host_cross_entropy_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *gradient,
                                   const ek_tensor *lse, const ek_tensor *x,
                                   const ek_tensor *target, const ek_tensor *weight,
                                   const ek_cross_entropy_params *params)
{
    int dim = dimension_of_classes(x);
    if (ek_count(x) == 0)
        return 0;
    entropy_job job = {.params = params};
    EK_TRY(ek_axis_begin(&job.axis, dev, (const ek_tensor *[]){x, dx, target, gradient, lse},
                         (const bool[]){true, true, false, false, false}, 5, dim));
    job.x = ek_axis_operand_of(&job.axis, 0, x, dim);
    job.dx = ek_axis_operand_of(&job.axis, 1, dx, dim);
    job.target = ek_operand_of(&job.axis.walk, 2, target);
    job.gradient = ek_operand_of(&job.axis.walk, 3, gradient);
    job.lse = ek_operand_of(&job.axis.walk, 4, lse);
    return run(&job, dev, gradient_part, target, weight);
}

/* ---- the denominator ---- */

typedef struct weight_job {
    ek_walk walk;
    ek_operand target;
    const double *weight; /* NULL: ones */
    double *partial;      /* per block */
    int64_t classes, ignore_index;
    atomic_bool out_of_range;
} weight_job;

static void weight_part(void *context, int64_t begin, int64_t end)
{
    weight_job *job = context;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * BLOCK;
        int64_t last = at + BLOCK < job->walk.count ? at + BLOCK : job->walk.count;
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
                if (job->weight == NULL)
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
    weight_job job = {.ignore_index = ignore_index,
                      .classes = weight != NULL ? weight->shape[0] : 0};
    ek_walk_init(&job.walk, 1, (const ek_tensor *[]){target});
    job.target = ek_operand_of(&job.walk, 0, target);
    int64_t blocks = (job.walk.count + BLOCK - 1) / BLOCK;
    size_t nbytes = (size_t)(blocks + job.classes) * sizeof(double);
    void *scratch;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &scratch));
    job.partial = scratch;
    if (weight != NULL) {
        double *values = job.partial + blocks;
        ek_row_load(EK_CLASS_F64, values, weight->dtype, ek_tensor_address(weight),
                    weight->stride[0], job.classes);
        job.weight = values;
    }
    ek_parallel_for(dev, blocks, 2, weight_part, &job);
    double sum = 0;
    for (int64_t block = 0; block < blocks; block++)
        sum += job.partial[block];
    ek_row_store(EK_CLASS_F64, &sum, out->dtype, ek_tensor_address(out), 1, 1);
    ek_dev_free(dev, scratch, nbytes, EK_MEMORY_WORKSPACE);
    if (atomic_load(&job.out_of_range))
        return fail_target(target, job.classes, ignore_index);
    return 0;
}

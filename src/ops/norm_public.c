/* norm_public.c: the public batch, group, instance, layer and local response norm, and running
 * statistics. */
#include "autograd/observer.h"
#include "ops/autocast.h"
#include "ops/norm.h"
#include "ops/ops.h"

static const char batch_norm_name[] = "batch_norm";

/* Returns the result for an x without elements. The result still depends on the operands. */
static ek_tensor *norm_empty(ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                             ek_norm_attributes attributes)
{
    ek_tensor *y = ek_norm_mul_affine(ek_clone(x), weight, attributes);
    return bias ? ek_add(y, ek_norm_mul_affine(ek_ones(ek_tensor_shape(x), x->dtype,
                                                       .device = ek_tensor_device(x)),
                                               bias, attributes))
                : y;
}

/* Returns true if `tensor`, a parameter or running statistic, is NULL or fits x. */
static bool norm_fits(const char *operation, const char *name, const ek_tensor *x,
                      const ek_tensor *tensor, ek_norm_attributes attributes)
{
    ek_shape shape = ek_norm_affine_shape(x, attributes);
    return !tensor ||
           (ek_of_dtype(operation, name, tensor, ek_norm_dtype(x)) &&
            ek_same_device(operation, x, tensor) && ek_of_shape(operation, name, tensor, &shape));
}

/* ---- batch ---- */

int ek_check_batch_norm(const ek_batch_norm_options *options)
{
    const ek_tensor *x = options->x;
    if (!ek_floating(batch_norm_name, "x", x) || !ek_optional(options->weight) ||
        !ek_optional(options->bias))
        return ek_error_pending();
    if (x->ndim < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "batch_norm: expected x of 2 or more dimensions (N, C, ...), got %s",
                       EK_TENSOR_TEXT(x));
    ek_norm_attributes attributes = {.batch = true};
    if (!norm_fits(batch_norm_name, "weight", x, options->weight, attributes) ||
        !norm_fits(batch_norm_name, "bias", x, options->bias, attributes) ||
        !norm_fits(batch_norm_name, "running_mean", x, options->running_mean, attributes) ||
        !norm_fits(batch_norm_name, "running_var", x, options->running_var, attributes))
        return ek_error_pending();
    if (!options->running_mean != !options->running_var)
        return EK_FAIL(EK_E_INVALID, "batch_norm: running_mean and running_var go together, but "
                                     "only one is given");
    if (!(options->eps >= 0))
        return EK_FAIL(EK_E_INVALID, "batch_norm: eps must not be negative, got %g", options->eps);
    return 0;
}

int ek_check_values_per_channel(const ek_tensor *x, int64_t count)
{
    if (count != 1)
        return 0;
    return EK_FAIL(EK_E_SHAPE,
                   "batch_norm: expected more than 1 value per channel when training, got input "
                   "size %s",
                   EK_SIZE_TEXT(x));
}

int ek_norm_count_batch(const ek_norm_tracking *tracking)
{
    ek_tensor *batches = tracking->batches;
    if (!batches)
        return 0;
    EK_TRY(ek_kernels_of(batches)->unary(ek_tensor_dev(batches), EK_UNARY_AFFINE, batches, batches,
                                         1, 1));
    ek_tensor_written(batches, batch_norm_name);
    return 0;
}

int ek_norm_tracking_begin(const ek_norm_tracking *tracking, int64_t count, ek_norm_update *update)
{
    if (!tracking->mean)
        return 0;
    if (tracking->momentum == EK_CUMULATIVE && !tracking->batches)
        return EK_FAIL(EK_E_INVALID, "batch_norm: EK_CUMULATIVE is for modules, which count their "
                                     "batches");
    EK_TRY(ek_tensor_unshare(tracking->mean));
    EK_TRY(ek_tensor_unshare(tracking->var));
    update->running_mean = tracking->mean;
    update->running_var = tracking->var;
    update->momentum = tracking->momentum;
    update->count = (double)count;
    if (tracking->momentum != EK_CUMULATIVE) {
        update->batches = tracking->batches;
        return 0;
    }
    /* The batch is counted first, because every channel reads the number. */
    update->average = tracking->batches;
    return ek_norm_count_batch(tracking);
}

void ek_norm_tracking_end(const ek_norm_tracking *tracking)
{
    ek_tensor *const written[] = {tracking->mean, tracking->var, tracking->batches};
    for (int i = 0; tracking->mean && i < 3; i++)
        if (written[i])
            ek_tensor_written(written[i], batch_norm_name);
}

/* Computes the statistics of x, and updates the running statistics. */
static int norm_own_statistics(const ek_tensor *x, const ek_norm_tracking *tracking, double eps,
                               ek_norm_attributes attributes, ek_norm_statistics *stats)
{
    *stats = (ek_norm_statistics){ek_norm_new_statistic(x, attributes),
                                  ek_norm_new_statistic(x, attributes)};
    if (!stats->mean || !stats->invstd)
        return ek_error_pending();
    ek_norm_update update = {.eps = eps};
    EK_TRY(ek_norm_tracking_begin(tracking, (int64_t)attributes.count, &update));
    EK_TRY(
        ek_kernels_of(x)->norm_moments(ek_tensor_dev(x), stats->mean, stats->invstd, x, &update));
    ek_norm_tracking_end(tracking);
    return 0;
}

/* Computes mean and invstd from the running statistics. The results are new tensors, so that a
 * later forward in training may update the running statistics before backward. */
static int norm_running_statistics(const ek_batch_norm_options *options, double eps,
                                   ek_norm_attributes attributes, ek_norm_statistics *stats)
{
    ek_tensor *x = options->x;
    *stats = (ek_norm_statistics){ek_norm_new_statistic(x, attributes),
                                  ek_norm_new_statistic(x, attributes)};
    if (!stats->mean || !stats->invstd)
        return ek_error_pending();
    EK_OBSERVED(stats->mean, "running_statistics",
                EK_INPUTS(options->running_mean, options->running_var));
    ek_norm_update update = {.eps = eps};
    return ek_kernels_of(x)->norm_merge(ek_tensor_dev(x), stats->mean, stats->invstd,
                                        options->running_mean, options->running_var,
                                        (const double[]){1}, &update);
}

/* Returns the running statistics that this call updates. */
static ek_norm_tracking norm_tracking_of(const ek_batch_norm_options *options, ek_tensor *batches)
{
    if (!options->training || !options->running_mean)
        return (ek_norm_tracking){.mean = NULL};
    return (ek_norm_tracking){.mean = options->running_mean,
                              .var = options->running_var,
                              .batches = batches,
                              .momentum = options->momentum};
}

static ek_tensor *batch_norm(const ek_batch_norm_options *options, const ek_norm_tracking *tracking,
                             ek_norm_attributes attributes)
{
    ek_tensor *x = options->x;
    ek_norm_statistics stats = {NULL, NULL};
    if (ek_count(x) == 0)
        return ek_norm_count_batch(tracking) < 0
                   ? NULL
                   : norm_empty(x, options->weight, options->bias, attributes);
    attributes.count = (double)(ek_count(x) / x->shape[1]);
    const double eps = attributes.eps = options->eps;
    if ((attributes.constant ? norm_running_statistics(options, eps, attributes, &stats)
                             : norm_own_statistics(x, tracking, eps, attributes, &stats)) < 0)
        return NULL;
    return ek_norm_normalize(x, options->weight, options->bias, stats, attributes);
}

ek_tensor *ek_batch_norm_tracked(ek_batch_norm_options options, bool relu, ek_tensor *batches)
{
    const ek_tensor *x = options.x;
    bool training = options.training || !options.running_mean;
    if (ek_check_batch_norm(&options) < 0)
        return NULL;
    if (training && ek_count(x) > 0 &&
        ek_check_values_per_channel(x, ek_count(x) / x->shape[1]) < 0)
        return NULL;
    ek_norm_tracking tracking = norm_tracking_of(&options, batches);
    ek_norm_attributes attributes = {.batch = true, .constant = !training, .relu = relu};
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, batch_norm(&options, &tracking, attributes));
}

ek_tensor *ek_f_batch_norm_with(ek_batch_norm_options options)
{
    return ek_batch_norm_tracked(options, false, NULL);
}

/* ---- group, instance, layer ---- */

/* Normalises x (N, C, ...) by groups. The caller has checked x and the groups. */
static ek_tensor *sample_norm(const char *name, ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                              double eps, ek_norm_attributes attributes)
{
    if (!ek_optional(weight) || !ek_optional(bias) ||
        !norm_fits(name, "weight", x, weight, attributes) ||
        !norm_fits(name, "bias", x, bias, attributes))
        return NULL;
    if (!(eps >= 0))
        return EK_REFUSE(EK_E_INVALID, "%s: eps must not be negative, got %g", name, eps);
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = NULL;
    attributes.eps = eps;
    if (ek_count(x) == 0) {
        y = norm_empty(x, weight, bias, attributes);
    } else {
        attributes.count = (double)(ek_count(x) / (x->shape[0] * attributes.groups));
        y = ek_norm_normalize_samples(x, weight, bias, attributes);
    }
    return ek_scope_return(&scope, y);
}

ek_tensor *ek_f_group_norm(ek_tensor *x, int64_t groups, ek_tensor *weight, ek_tensor *bias,
                           double eps)
{
    if (!ek_floating("group_norm", "x", x) || !(x = ek_autocast_wide(x)))
        return NULL;
    if (x->ndim < 2)
        return EK_REFUSE(EK_E_SHAPE,
                         "group_norm: expected x of 2 or more dimensions (N, C, ...), got %s",
                         EK_SIZE_TEXT(x));
    if (groups < 1 || x->shape[1] % groups != 0)
        return EK_REFUSE(
            EK_E_INVALID,
            "group_norm: expected a number of channels that groups divides, got input size %s "
            "and %lld groups",
            EK_SIZE_TEXT(x), (long long)groups);
    /* A group of one value is its own mean, so that the result is the bias. PyTorch refuses that
     * only for a batch of one. */
    if (ek_count(x) == groups)
        return EK_REFUSE(
            EK_E_SHAPE,
            "group_norm: expected more than 1 value per group or a batch of more than 1, got "
            "input size %s and %lld groups",
            EK_SIZE_TEXT(x), (long long)groups);
    return sample_norm("group_norm", x, weight, bias, eps, (ek_norm_attributes){.groups = groups});
}

ek_tensor *ek_f_instance_norm(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, double eps)
{
    if (!ek_floating("instance_norm", "x", x))
        return NULL;
    if (x->ndim < 3)
        return EK_REFUSE(EK_E_SHAPE,
                         "instance_norm: expected x of 3 or more dimensions (N, C, ...), got %s",
                         EK_SIZE_TEXT(x));
    if (ek_count(x) > 0 && ek_count(x) == x->shape[0] * x->shape[1])
        return EK_REFUSE(EK_E_SHAPE,
                         "instance_norm: expected more than 1 spatial element, got input size %s",
                         EK_SIZE_TEXT(x));
    /* Without channels there are no elements either, and no groups to count. */
    int64_t groups = x->shape[1] > 0 ? x->shape[1] : 1;
    return sample_norm("instance_norm", x, weight, bias, eps,
                       (ek_norm_attributes){.groups = groups});
}

/* Updates the running statistics from the statistics of x (N, C, ...). */
static int norm_track_instances(const ek_batch_norm_options *o)
{
    ek_variance_options spatial = EK_DEFAULTS(ek_variance_options);
    ek_tensor *mean = NULL;
    if (ek_count(o->x) == 0)
        return 0;
    for (int i = 2; i < o->x->ndim; i++)
        spatial.dims[spatial.dim_count++] = i;
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    spatial.x = ek_to_dtype(o->x, o->running_mean->dtype);
    ek_tensor *var = spatial.x ? ek_var_mean_with(&mean, spatial) : NULL;
    bool done = var && ek_lerp_(o->running_mean, ek_mean(mean, EK_DIMS(0)), o->momentum) &&
                ek_lerp_(o->running_var, ek_mean(var, EK_DIMS(0)), o->momentum);
    ek_scope_end(&scope);
    ek_set_grad_enabled(grad_enabled);
    return done ? 0 : ek_error_pending();
}

ek_tensor *ek_instance_norm_tracked(ek_batch_norm_options options)
{
    if (!options.running_mean)
        return ek_f_instance_norm(options.x, options.weight, options.bias, options.eps);
    if (!options.training)
        return ek_batch_norm_tracked(options, false, NULL);
    if (ek_check_batch_norm(&options) < 0)
        return NULL;
    ek_tensor *y = ek_f_instance_norm(options.x, options.weight, options.bias, options.eps);
    return y && norm_track_instances(&options) >= 0 ? y : NULL;
}

/* ---- local response ---- */

ek_tensor *ek_f_local_response_norm(ek_tensor *x, int64_t size, double alpha, double beta, double k)
{
    if (!ek_floating("local_response_norm", "x", x))
        return NULL;
    if (x->ndim < 3 || size < 1 || size > INT32_MAX)
        return EK_REFUSE(EK_E_SHAPE,
                         "local_response_norm: expected an x (N, C, ...) of 3 or more dimensions "
                         "and a size from 1 to %d, got input size %s and size %lld",
                         INT32_MAX, EK_SIZE_TEXT(x), (long long)size);
    if (ek_count(x) == 0)
        return ek_clone(x);
    const int64_t n = x->shape[0], channels = x->shape[1];
    ek_scope scope = ek_scope_begin();
    /* Averages over neighbouring channels, of which there are zeros beyond the first and last. */
    ek_tensor *squares = ek_reshape(ek_square(x), EK_SHAPE(n, 1, channels, -1));
    squares =
        ek_f_pad(squares, (const int64_t[]){0, 0, size / 2, (size - 1) / 2}, 4, EK_PAD_CONSTANT, 0);
    ek_tensor *mean = ek_f_avg_pool2d(squares, .kernels = {(int)size, 1}, .stride = 1);
    ek_tensor *divisor = ek_pow_scalar(ek_affine(mean, alpha, k), beta);
    divisor = divisor ? ek_reshape(divisor, ek_tensor_shape(x)) : NULL;
    return ek_scope_return(&scope, ek_div(x, divisor));
}

/* Returns x's shape with the dimensions before the normalised ones as one dimension of rows. */
static ek_shape norm_rows_shape(const ek_tensor *x, int normalized_ndim)
{
    const int lead = x->ndim - normalized_ndim;
    ek_shape rows = {.ndim = normalized_ndim + 1, .dims = {1}};
    for (int i = 0; i < lead; i++)
        rows.dims[0] *= x->shape[i];
    for (int i = 0; i < normalized_ndim; i++)
        rows.dims[i + 1] = x->shape[lead + i];
    return rows;
}

ek_tensor *ek_f_layer_norm(ek_tensor *x, int normalized_ndim, ek_tensor *weight, ek_tensor *bias,
                           double eps)
{
    if (!ek_floating("layer_norm", "x", x) || !(x = ek_autocast_wide(x)))
        return NULL;
    /* The leading dimensions become one dimension of rows, for which there must be room. */
    int most = x->ndim < EK_MAX_DIMS ? x->ndim : EK_MAX_DIMS - 1;
    if (normalized_ndim < 1 || normalized_ndim > most) {
        return EK_REFUSE(
            EK_E_SHAPE,
            "layer_norm: cannot normalise over the last %d dimensions of %s; 1 to %d can be",
            normalized_ndim, EK_SIZE_TEXT(x), most);
    }
    ek_norm_attributes attributes = {.groups = 1, .element = true};
    if (x->ndim == normalized_ndim + 1)
        return sample_norm("layer_norm", x, weight, bias, eps, attributes);
    ek_tensor *flat = ek_reshape(x, norm_rows_shape(x, normalized_ndim));
    if (!flat)
        return NULL;
    ek_tensor *y = sample_norm("layer_norm", flat, weight, bias, eps, attributes);
    return y ? ek_reshape(y, ek_tensor_shape(x)) : NULL;
}

/* Returns true if layer norm of the sum is one operation: the operands are those of a valid call,
 * with a dimension before the normalised ones, and nothing observes the sum. */
static bool norm_adds(const ek_tensor *x, const ek_tensor *residual, int normalized_ndim,
                      const ek_tensor *const parameters[2], double eps)
{
    ek_tensor *const both[] = {(ek_tensor *)(uintptr_t)x, (ek_tensor *)(uintptr_t)residual};
    if (!x || !residual || ek_error_status() < 0 || ek_thread_self()->observer ||
        !ek_dtype_is_floating(x->dtype) || ek_autocast_widens(x) || !ek_same_shape(x, residual) ||
        ek_tensor_dev(x) != ek_tensor_dev(residual) || ek_count(x) == 0 || !(eps >= 0) ||
        normalized_ndim < 1 || normalized_ndim >= x->ndim)
        return false;
    for (int i = 0; i < 2; i++) {
        const ek_tensor *p = parameters[i];
        bool fits =
            ek_optional(p) && (!p || (p->ndim == normalized_ndim && p->dtype == ek_norm_dtype(x) &&
                                      ek_tensor_dev(p) == ek_tensor_dev(x)));
        for (int d = 0; p && fits && d < normalized_ndim; d++)
            fits = p->shape[d] == x->shape[x->ndim - normalized_ndim + d];
        if (!fits)
            return false;
    }
    return x->dtype == residual->dtype || (x->dtype == EK_F32 && ek_autocast_mixes(both, 2));
}

ek_tensor *ek_layer_norm_added(ek_tensor **total, ek_tensor *x, ek_tensor *residual,
                               int normalized_ndim, ek_tensor *weight, ek_tensor *bias, double eps)
{
    if (!norm_adds(x, residual, normalized_ndim, (const ek_tensor *[]){weight, bias}, eps)) {
        *total = ek_add(x, residual);
        return ek_f_layer_norm(*total, normalized_ndim, weight, bias, eps);
    }
    const ek_shape shape = ek_tensor_shape(x), rows = norm_rows_shape(x, normalized_ndim);
    ek_norm_attributes attributes = {.groups = 1,
                                     .element = true,
                                     .eps = eps,
                                     .residual = residual->dtype};
    attributes.count = (double)(ek_count(x) / rows.dims[0]);
    x = ek_reshape(x, rows);
    residual = x ? ek_reshape(residual, rows) : NULL;
    ek_tensor *y =
        residual ? ek_norm_normalize_added(total, x, residual, weight, bias, attributes) : NULL;
    *total = y ? ek_reshape(*total, shape) : NULL;
    return *total ? ek_reshape(y, shape) : NULL;
}

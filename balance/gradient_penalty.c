/* gradient_penalty.c: penalties on the norm of a critic's gradient, on any number of devices.
 *
 * The points at which the gradient is taken are made for the whole batch. If the critic leaves its
 * outputs on their devices (balanced), the points are cut as its inputs are, and each chunk is a
 * leaf on its device; otherwise they are one leaf. One ek_grad over all outputs computes the
 * gradients, because through synchronised normalisation a chunk influences other replicas' outputs.
 * Each device's worker computes the norms of the device's gradients; only sums are added across
 * devices and ranks. */
#include <math.h>
#include <stdlib.h>

#include "balance/balance.h"
#include "core/tensor.h"
#include "core/value.h"
#include "core/worker.h"
#include "evenkeel/autograd.h"
#include "evenkeel/comm.h"
#include "evenkeel/gan.h"
#include "evenkeel/ops.h"
#include "nn/nn.h"
#include "ops/autocast.h"

const char *ek_penalty_name(ek_penalty_kind kind)
{
    static const char *const names[] = {"wgan_gp", "wgan_lp", "dragan", "r1", "r2"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : NULL;
}

static bool penalty_needs_real(ek_penalty_kind kind)
{
    return kind != EK_PENALTY_R2;
}

static bool penalty_needs_fake(ek_penalty_kind kind)
{
    return kind == EK_PENALTY_WGAN_GP || kind == EK_PENALTY_WGAN_LP || kind == EK_PENALTY_R2;
}

/* ---- what a penalty needs ---- */

/* This rank's samples: [first, first + count) of the `all` samples of all ranks. */
typedef struct penalty_rows {
    ek_ranks *ranks; /* NULL: all samples are this process's */
    int64_t first, all;
} penalty_rows;

static int penalty_check_samples(const char *kind, const char *name, const ek_tensor *x,
                                 const penalty_rows *rows)
{
    char text[200];
    if (!x) {
        EK_TRY(ek_error_status());
        return EK_FAIL(EK_E_INVALID, "gradient penalty: %s needs %s samples; %s is NULL", kind,
                       name, name);
    }
    if (!ek_dtype_is_floating(x->dtype))
        return EK_FAIL(EK_E_DTYPE, "gradient penalty: %s samples have to be floating, not %s", name,
                       ek_tensor_text(x, text));
    bool elsewhere = rows->ranks && x->ndim > 0 && x->shape[0] == 0 && rows->all > 0;
    if (x->ndim == 0 || (ek_count(x) == 0 && !elsewhere))
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: %s samples have to be (N, ...) with at least one "
                       "element, not %s",
                       name, ek_tensor_text(x, text));
    return 0;
}

static int penalty_check_pair(const ek_tensor *real, const ek_tensor *fake)
{
    char texts[2][200];
    ek_tensor_text(real, texts[0]);
    ek_tensor_text(fake, texts[1]);
    if (!ek_same_shape(real, fake))
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: real is %s, but fake is %s; the shapes must "
                       "be the same",
                       texts[0], texts[1]);
    if (real->dtype != fake->dtype)
        return EK_FAIL(EK_E_DTYPE,
                       "gradient penalty: real is %s, but fake is %s; the dtypes must "
                       "be the same",
                       texts[0], texts[1]);
    if (ek_tensor_dev(real) != ek_tensor_dev(fake))
        return EK_FAIL(EK_E_DEVICE,
                       "gradient penalty: real is %s, but fake is %s; they must lie "
                       "on one device",
                       texts[0], texts[1]);
    return 0;
}

/* Elements in the samples of all ranks. */
static int64_t penalty_elements(const ek_tensor *x, const penalty_rows *rows)
{
    int64_t each = 1;
    for (int i = 1; i < x->ndim; i++)
        each *= x->shape[i];
    return rows->all * each;
}

static int penalty_check_points(const ek_tensor *real, const ek_tensor *fake, ek_penalty_kind kind,
                                const penalty_rows *rows)
{
    const char *name = ek_penalty_name(kind);
    if (!name)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: %d is no kind (ek_penalty_kind)",
                       (int)kind);
    if ((!real || !fake) && ek_error_status() < 0)
        return ek_error_status(); /* making real or fake has failed */
    if (penalty_needs_real(kind))
        EK_TRY(penalty_check_samples(name, "real", real, rows));
    if (penalty_needs_fake(kind))
        EK_TRY(penalty_check_samples(name, "fake", fake, rows));
    if (penalty_needs_real(kind) && penalty_needs_fake(kind))
        EK_TRY(penalty_check_pair(real, fake));
    if (kind == EK_PENALTY_DRAGAN && penalty_elements(real, rows) < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: dragan needs the deviation of real's elements, and there "
                       "is only one");
    return 0;
}

/* ---- points: the samples at which the critic's gradient is taken ---- */

/* Draws numbers uniform in [0, 1) for `shape`, whose first dimension counts the samples of all
 * ranks. Returns this rank's rows, with real's dtype and device. */
static ek_tensor *penalty_draw_uniform(ek_shape shape, const ek_tensor *real,
                                       const penalty_rows *rows, ek_generator *generator)
{
    shape.dims[0] = rows->all;
    ek_tensor *u = ek_empty(shape, .dtype = real->dtype, .device = ek_tensor_device(real));
    if (!u || ek_uniform_(u, 0, 1, generator) < 0)
        return NULL;
    return rows->ranks ? ek_narrow(u, 0, rows->first, real->shape[0]) : u;
}

/* Returns x + a (y - x), with one uniform number a per sample. */
static ek_tensor *penalty_interpolate(ek_tensor *x, ek_tensor *y, const penalty_rows *rows,
                                      ek_generator *generator)
{
    ek_shape shape = {.ndim = x->ndim};
    for (int i = 1; i < x->ndim; i++)
        shape.dims[i] = 1;
    ek_tensor *a = penalty_draw_uniform(shape, x, rows, generator);
    return a ? ek_add(x, ek_mul(ek_sub(y, x), a)) : NULL;
}

/* Writes count, mean, and sum of squared distances from the mean. */
static int penalty_measure(ek_tensor *x, double *moments)
{
    moments[0] = (double)ek_count(x);
    moments[1] = moments[2] = 0;
    if (ek_count(x) == 0)
        return 0;
    ek_tensor *mean = ek_mean(x);
    EK_TRY(ek_item(mean, &moments[1]));
    return ek_item(ek_sum(ek_square(ek_sub(x, mean))), &moments[2]);
}

/* Returns the unbiased standard deviation of the elements of all ranks. */
static ek_tensor *penalty_deviation(ek_tensor *x, const penalty_rows *rows)
{
    ek_ranks *ranks = rows->ranks;
    if (!ranks)
        return ek_std(x);
    double mine[3];
    ek_tensor *moments = penalty_measure(x, mine) < 0
                             ? NULL
                             : ek_from_data(mine, EK_SHAPE(1, 3), EK_F64, .device = ek_cpu());
    moments = ranks->join(ranks, moments, 0, NULL);
    if (!moments)
        return NULL;
    const double *all = ek_tensor_address(moments);
    double count = 0, mean = 0, squares = 0;
    for (int r = 0; r < ranks->size; r++, all += 3) {
        double share = all[0] / (count += all[0]), apart = all[1] - mean;
        if (all[0] == 0)
            continue;
        squares += all[2] + apart * apart * all[0] * (1 - share);
        mean += apart * share;
    }
    return ek_scalar(sqrt(squares / (count - 1)), x->dtype, ek_tensor_device(x));
}

/* Returns x + std b / 2, with one uniform number b per element; std is the deviation of the whole
 * batch. */
static ek_tensor *penalty_perturb(ek_tensor *x, const penalty_rows *rows, ek_generator *generator)
{
    ek_tensor *b = penalty_draw_uniform(ek_tensor_shape(x), x, rows, generator);
    ek_tensor *std = b ? penalty_deviation(x, rows) : NULL;
    return std ? ek_add(x, ek_mul(b, ek_mul_scalar(std, 0.5))) : NULL;
}

static ek_tensor *penalty_points_of_kind(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                                         const penalty_rows *rows, ek_generator *generator)
{
    if (kind == EK_PENALTY_R1 || kind == EK_PENALTY_R2)
        return ek_detach(kind == EK_PENALTY_R1 ? real : fake);
    ek_tensor *other = kind == EK_PENALTY_DRAGAN ? penalty_perturb(real, rows, generator) : fake;
    return other ? penalty_interpolate(real, other, rows, generator) : NULL;
}

/* Finds which of all samples this rank has. Collective if there are other ranks. */
static int penalty_find_rows(const ek_tensor *real, const ek_tensor *fake, ek_penalty_kind kind,
                             penalty_rows *rows)
{
    const ek_tensor *x = penalty_needs_real(kind) ? real : fake;
    int64_t count = x && x->ndim > 0 ? x->shape[0] : 0;
    rows->first = 0;
    rows->all = count;
    if (!rows->ranks || !x)
        return 0;
    int64_t *counts = ek_calloc((size_t)rows->ranks->size, sizeof *counts);
    int rc = counts ? rows->ranks->gather(rows->ranks, &count, 1, counts) : ek_error_pending();
    rows->all = 0;
    for (int r = 0; r < rows->ranks->size && rc >= 0; r++) {
        rows->first += r < rows->ranks->rank ? counts[r] : 0;
        rows->all += counts[r];
    }
    free(counts);
    if (rc >= 0 && rows->all == 0)
        rc = ek_ranks_alike(EK_FAIL(EK_E_SHAPE, "gradient penalty: no rank has any samples"));
    return rc;
}

static ek_tensor *penalty_points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                                 penalty_rows *rows, ek_generator *generator)
{
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    /* Under autocast fake samples are bf16 from the generator, real samples f32 from a loader. */
    real = ek_autocast_wide(real);
    fake = ek_autocast_wide(fake);
    ek_tensor *x = penalty_find_rows(real, fake, kind, rows) < 0 ||
                           penalty_check_points(real, fake, kind, rows) < 0
                       ? NULL
                       : penalty_points_of_kind(real, fake, kind, rows, generator);
    ek_set_grad_enabled(enabled);
    return ek_scope_return(&scope, x);
}

ek_tensor *ek_penalty_points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                             ek_generator *generator)
{
    penalty_rows rows = {0};
    return penalty_points(real, fake, kind, &rows, generator);
}

/* ---- leaves: the points on the critic's devices ---- */

/* One penalty, in parts. Its tensors are in the scope. */
typedef struct penalty {
    ek_penalty_kind kind;
    ek_module *child;  /* the critic; if it is an ek_distributed_data_parallel, its child */
    penalty_rows rows; /* the rows of all parts' samples */
    int64_t samples;   /* samples of this rank's parts */
    int parts;
    bool apart;     /* the critic's inputs and outputs are a tensor per part; false: one part */
    ek_device home; /* where the parts' sums meet */
    ek_tensor *points[EK_MAX_DEVICES]; /* one leaf per part */
    ek_tensor *outputs[EK_MAX_DEVICES];
    ek_tensor *gradients[EK_MAX_DEVICES];
    ek_tensor *sums[EK_MAX_DEVICES]; /* per part, the sum of its samples' penalties */
} penalty;

/* Returns the device of the single leaf. If the critic is a wrapper, that is the device of its
 * outputs, otherwise the device of x. */
static ek_device penalty_place_of(ek_module *critic, const ek_tensor *x)
{
    ek_device device = ek_tensor_device(x);
    const ek_wrapper *wrapper = ek_wrapper_of(critic);
    if (!wrapper || critic->is_replica)
        return device;
    device = wrapper->devices.count ? wrapper->devices.devices[0] : ek_cpu();
    ek_data_parallel_output(critic, &device);
    return device;
}

/* Returns a chunk of x without history. A view of points made here (`ours`) is copied, so that it
 * doesn't keep the whole batch alive; the caller's samples stay alive anyway. */
static ek_tensor *penalty_chunk_of(ek_tensor *part, const ek_tensor *x, bool ours)
{
    bool shares = part && part->storage == x->storage;
    if (shares && ours && ek_count(part) < ek_count(x))
        return ek_clone(part);
    return shares ? ek_detach(part) : part;
}

static int penalty_cut_points(ek_wrapper *wrapper, ek_tensor *x, penalty *p)
{
    ek_wrapper_call call;
    const ek_value whole = ek_value_of_tensor(x);
    bool ours = p->kind != EK_PENALTY_R1 && p->kind != EK_PENALTY_R2;
    const int before = ek_error_status();
    if (ek_wrapper_begin(wrapper) < 0) {
        ek_error_prefix(before, "gradient penalty: %s", wrapper->module.type->name);
        return ek_error_pending();
    }
    /* The scatter begins the critic's forward, which plans count only in gradient mode. */
    bool enabled = ek_set_grad_enabled(true);
    int rc = ek_wrapper_scatter(wrapper, NULL, &(const ek_args){&whole, 1, ek_value_none()}, &call);
    ek_set_grad_enabled(enabled);
    EK_TRY(rc);
    p->parts = call.ranks.count;
    for (int i = 0; i < p->parts; i++)
        p->points[i] = penalty_chunk_of(ek_arg_tensor(&call.args[i], 0), x, ours);
    return ek_error_status();
}

/* If the critic is a wrapper that leaves its outputs on their devices, cuts x for these devices.
 * Otherwise moves x to the critic's device. Results are in the scope. */
static int penalty_place_points(ek_module *critic, ek_tensor *x, penalty *p)
{
    ek_wrapper *wrapper = ek_data_parallel_model_apart(critic);
    p->apart = wrapper != NULL;
    if (wrapper) {
        p->home = wrapper->devices.devices[0]; /* losses of other forwards lie there too */
        return penalty_cut_points(wrapper, x, p);
    }
    p->parts = 1;
    p->points[0] = ek_to_device(x, penalty_place_of(critic, x));
    return p->points[0] ? 0 : ek_error_pending();
}

static int penalty_check_dim(ek_module *critic)
{
    const ek_wrapper *wrapper = ek_wrapper_of(critic);
    if (!wrapper || wrapper->dim == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID,
                   "gradient penalty: samples lie along dimension 0, but the critic is cut along "
                   "dimension %d",
                   wrapper->dim);
}

static int penalty_make_points(const ek_gradient_penalty_options *options, penalty *p)
{
    EK_TRY(penalty_check_dim(p->child));
    ek_scope scope = ek_scope_begin();
    ek_tensor *x =
        penalty_points(options->real, options->fake, p->kind, &p->rows, options->generator);
    bool enabled = ek_set_grad_enabled(false);
    int rc = x ? penalty_place_points(p->child, x, p) : ek_error_pending();
    ek_set_grad_enabled(enabled);
    if (x)
        p->samples = x->shape[0];
    for (int i = 0; i < p->parts && rc >= 0; i++)
        ek_keep(p->points[i]);
    ek_scope_end(&scope);
    for (int i = 0; i < p->parts && rc >= 0; i++) {
        /* These handles are new: requires_grad of real and fake doesn't change. */
        if (!ek_scope_adopt(p->points[i]) || ek_tensor_set_requires_grad(p->points[i], true) < 0)
            rc = ek_error_pending();
    }
    return rc;
}

/* ---- the critic and its gradient ---- */

/* Checks that an output has numbers for each sample. It may have several per sample: g is the
 * gradient of the sum of all outputs. */
static int penalty_check_output(const penalty *p, int part, ek_value output)
{
    char texts[2][200];
    if (output.kind != EK_VALUE_TENSOR)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: the critic has to give one tensor, not %s",
                       ek_value_kind_name(output));
    const ek_tensor *d = output.as.tensor;
    if (d->ndim == 0 || d->shape[0] != p->points[part]->shape[0])
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: the critic has to give numbers for each sample, (N) or "
                       "(N, ...), but for %s it gave %s",
                       ek_tensor_text(p->points[part], texts[0]), ek_tensor_text(d, texts[1]));
    return 0;
}

static int penalty_call_critic(ek_module *critic, penalty *p)
{
    ek_value inputs[EK_MAX_DEVICES];
    for (int i = 0; i < p->parts; i++)
        inputs[i] = ek_value_of_tensor(p->points[i]);
    ek_value output =
        ek_forward(critic, p->apart ? ek_value_per_device(inputs, p->parts) : inputs[0]);
    if (output.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    if (p->apart && ek_value_length(output) != p->parts)
        return EK_FAIL(EK_E_STATE, "gradient penalty: the critic gave %d outputs for %d chunks",
                       ek_value_length(output), p->parts);
    for (int i = 0; i < p->parts; i++) {
        ek_value own = p->apart ? ek_value_at(output, i) : output;
        EK_TRY(penalty_check_output(p, i, own));
        p->outputs[i] = own.as.tensor;
    }
    return 0;
}

static int penalty_differentiate_critic(penalty *p)
{
    const int before = ek_error_status();
    ek_tensor *ones[EK_MAX_DEVICES];
    for (int i = 0; i < p->parts; i++) {
        const ek_tensor *d = p->outputs[i];
        ones[i] = ek_ones(ek_tensor_shape(d), .dtype = d->dtype, .device = ek_tensor_device(d));
        if (!ones[i])
            return ek_error_pending();
    }
    int rc = ek_grad(.outputs = p->outputs, .output_count = p->parts, .inputs = p->points,
                     .input_count = p->parts, .gradients = p->gradients, .grad_outputs = ones,
                     .create_graph = true);
    /* The penalty's backward needs the parameters' gradients only, not those of the points. */
    for (int i = 0; i < p->parts; i++)
        ek_tensor_set_requires_grad(p->points[i], false);
    if (rc < 0)
        ek_error_prefix(before, "gradient penalty");
    return rc;
}

/* ---- norms ---- */

/* The 2-norm of each sample, (N). */
static ek_tensor *penalty_norms_of(ek_tensor *g)
{
    ek_p_norm_options over_sample = EK_DEFAULTS(ek_p_norm_options);
    over_sample.x = g;
    over_sample.dim_count = g->ndim - 1;
    for (int i = 1; i < g->ndim; i++)
        over_sample.dims[i - 1] = i;
    return g->ndim == 1 ? ek_abs(g) : ek_norm_with(over_sample);
}

static ek_tensor *penalty_sum_of(ek_tensor *g, ek_penalty_kind kind)
{
    if (kind == EK_PENALTY_R1 || kind == EK_PENALTY_R2)
        return ek_sum(ek_square(g));
    ek_tensor *excess = ek_add_scalar(penalty_norms_of(g), -1);
    if (kind == EK_PENALTY_WGAN_LP)
        excess = ek_f_relu(excess);
    return ek_sum(ek_square(excess));
}

static int penalty_sum_part(void *user, int index)
{
    penalty *p = user;
    p->sums[index] = ek_keep(penalty_sum_of(p->gradients[index], p->kind));
    return p->sums[index] ? 0 : ek_error_pending();
}

static int penalty_sum_penalties(penalty *p)
{
    ek_dev *devs[EK_MAX_DEVICES];
    for (int i = 0; i < p->parts; i++)
        devs[i] = ek_tensor_dev(p->gradients[i]);
    int rc = ek_jobs_run(devs, p->parts, penalty_sum_part, p, "gradient penalty, part");
    for (int i = 0; i < p->parts; i++)
        if (!ek_scope_adopt(p->sums[i]) && rc >= 0)
            rc = ek_error_pending();
    return rc;
}

/* ---- the penalty ---- */

static int penalty_check_options(const ek_gradient_penalty_options *options)
{
    EK_TRY(ek_error_status());
    if (!options->critic)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: the critic is NULL");
    if (!(options->weight >= 0 && options->weight < INFINITY))
        return EK_FAIL(EK_E_INVALID,
                       "gradient penalty: the weight has to be a number of at least 0, not %g",
                       options->weight);
    if (!ek_grad_enabled())
        return EK_FAIL(EK_E_AUTOGRAD,
                       "gradient penalty: it is made of a gradient, but gradient mode is off");
    return 0;
}

/* Returns the mean penalty of all samples times `weight`, from the sums of all parts. */
static ek_tensor *penalty_mean(const penalty *p, double weight)
{
    ek_loss_sum parts[EK_MAX_DEVICES], total;
    ek_device home = p->apart ? p->home : ek_tensor_device(p->sums[0]);
    for (int i = 0; i < p->parts; i++) {
        double samples = (double)p->points[i]->shape[0];
        parts[i] = (ek_loss_sum){ek_to_dtype(ek_mul_scalar(p->sums[i], weight), EK_F64),
                                 ek_scalar(samples, EK_F64, ek_cpu())};
        if (!parts[i].sum || !parts[i].weight)
            return NULL;
    }
    if (ek_loss_sums_add(parts, p->parts, home, &total) < 0)
        return NULL;
    ek_tensor *mean = p->rows.ranks ? ek_loss_sum_over_ranks(&total, p->rows.ranks)
                                    : ek_loss_sums_mean(&total, 1, home);
    return ek_to_dtype(mean, p->sums[0]->dtype);
}

static ek_tensor *penalty_of(const ek_gradient_penalty_options *options, penalty *p)
{
    bool made = penalty_make_points(options, p) >= 0 &&
                penalty_call_critic(options->critic, p) >= 0 &&
                penalty_differentiate_critic(p) >= 0 && penalty_sum_penalties(p) >= 0;
    return made ? penalty_mean(p, options->weight) : NULL;
}

/* Finds the ranks: those of a given group (with one reference), or those of the critic. */
static int penalty_find_ranks(const ek_gradient_penalty_options *options, penalty *p,
                              ek_ranks **given)
{
    *given = NULL;
    p->rows.ranks = ek_ranks_around(options->critic, &p->child);
    if (!options->process_group || !ek_ranks_of)
        return 0;
    *given = p->rows.ranks = ek_ranks_of(options->process_group);
    return *given ? 0 : ek_error_status();
}

static ek_tensor *penalty_alone(const ek_gradient_penalty_options *options, penalty *p)
{
    ek_wrapper *wrapper = ek_wrapper_of(p->child);
    const int before = ek_error_status();
    if (wrapper && ek_wrapper_enter(wrapper) < 0) {
        ek_error_prefix(before, "gradient penalty");
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    ek_tensor *result = ek_scope_return(&scope, penalty_of(options, p));
    if (wrapper)
        ek_wrapper_leave(wrapper);
    return result;
}

ek_tensor *ek_gradient_penalty_with(ek_gradient_penalty_options options)
{
    penalty p = {.kind = options.kind};
    ek_ranks *given;
    if (penalty_find_ranks(&options, &p, &given) < 0)
        return NULL;
    ek_tensor *result = penalty_check_options(&options) < 0 ? NULL : penalty_alone(&options, &p);
    if (!result && p.rows.ranks) /* the other ranks wait for this one */
        p.rows.ranks->agree(p.rows.ranks, ek_error_pending());
    ek_object_release(given);
    return result;
}

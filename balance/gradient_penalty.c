/* gradient_penalty.c: penalties on the norm of a critic's gradient, on any number of devices.
 *
 * The points at which the gradient is taken are made for the whole batch. A critic whose outputs
 * stay apart (balanced) gets them cut as it cuts its inputs, each chunk a leaf on its device; any
 * other critic gets one leaf. One ek_grad over all outputs gives the gradients, because
 * synchronised normalisation carries a chunk's influence to other replicas' outputs. Each device's
 * worker takes the norms of its own gradients; only sums are added across devices. */
#include <math.h>

#include "balance/balance.h"
#include "core/keywords.h"
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

static int penalty_check_samples(const char *kind, const char *name, const ek_tensor *x)
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
    if (x->ndim == 0 || ek_count(x) == 0)
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

static int penalty_check_points(const ek_tensor *real, const ek_tensor *fake, ek_penalty_kind kind)
{
    const char *name = ek_penalty_name(kind);
    if (!name)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: %d is no kind (ek_penalty_kind)",
                       (int)kind);
    if ((!real || !fake) && ek_error_status() < 0)
        return ek_error_status(); /* making real or fake has failed */
    if (penalty_needs_real(kind))
        EK_TRY(penalty_check_samples(name, "real", real));
    if (penalty_needs_fake(kind))
        EK_TRY(penalty_check_samples(name, "fake", fake));
    if (penalty_needs_real(kind) && penalty_needs_fake(kind))
        EK_TRY(penalty_check_pair(real, fake));
    if (kind == EK_PENALTY_DRAGAN && ek_count(real) < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: dragan needs the deviation of real's elements, and there "
                       "is only one");
    return 0;
}

/* ---- points: the samples at which the critic's gradient is taken ---- */

/* Uniform in [0, 1), of real's dtype and device. */
static ek_tensor *penalty_draw_uniform(ek_shape shape, const ek_tensor *real,
                                       ek_generator *generator)
{
    ek_tensor *u = ek_empty(shape, .dtype = real->dtype, .device = ek_tensor_device(real));
    return u && ek_uniform_(u, 0, 1, generator) < 0 ? NULL : u;
}

/* x + a (y - x), with one uniform number a per sample. */
static ek_tensor *penalty_interpolate(ek_tensor *x, ek_tensor *y, ek_generator *generator)
{
    ek_shape shape = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        shape.dims[i] = i == 0 ? x->shape[0] : 1;
    ek_tensor *a = penalty_draw_uniform(shape, x, generator);
    return ek_add(x, ek_mul(ek_sub(y, x), a));
}

/* x + std b / 2, with one uniform number b per element; std is the deviation of the whole batch. */
static ek_tensor *penalty_perturb(ek_tensor *x, ek_generator *generator)
{
    ek_tensor *b = penalty_draw_uniform(ek_tensor_shape(x), x, generator);
    return ek_add(x, ek_mul(b, ek_mul_scalar(ek_std(x), 0.5)));
}

static ek_tensor *penalty_points_of_kind(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                                         ek_generator *generator)
{
    if (kind == EK_PENALTY_R1 || kind == EK_PENALTY_R2)
        return ek_detach(kind == EK_PENALTY_R1 ? real : fake);
    ek_tensor *other = kind == EK_PENALTY_DRAGAN ? penalty_perturb(real, generator) : fake;
    return other ? penalty_interpolate(real, other, generator) : NULL;
}

ek_tensor *ek_penalty_points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                             ek_generator *generator)
{
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    /* Under autocast fake samples come as bf16 from the generator, real ones as f32 from a loader.
     */
    real = ek_autocast_wide(real);
    fake = ek_autocast_wide(fake);
    ek_tensor *x = penalty_check_points(real, fake, kind) < 0
                       ? NULL
                       : penalty_points_of_kind(real, fake, kind, generator);
    ek_set_grad_enabled(enabled);
    return ek_scope_return(&scope, x);
}

/* ---- leaves: the points on the critic's devices ---- */

/* One penalty, in parts. Its tensors are in the scope. */
typedef struct penalty {
    ek_penalty_kind kind;
    int64_t samples; /* samples of all parts */
    int parts;
    bool apart;     /* the critic takes and gives one tensor per part; if false there is one part */
    ek_device home; /* where the parts' sums meet */
    ek_tensor *points[EK_MAX_DEVICES]; /* one leaf per part */
    ek_tensor *outputs[EK_MAX_DEVICES];
    ek_tensor *gradients[EK_MAX_DEVICES];
    ek_tensor *sums[EK_MAX_DEVICES]; /* per part, the sum of its samples' penalties */
} penalty;

/* The device of the single leaf: that of a wrapper's outputs, or of x if the critic is plain. */
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

/* A chunk of x without history. A view of points that we made (`ours`) is copied, so that it does
 * not keep the whole batch alive; the caller's own samples stay alive anyway. */
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

/* Cuts x for a critic whose outputs stay apart, or moves it; results are in the scope. */
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
    EK_TRY(penalty_check_dim(options->critic));
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_penalty_points(options->real, options->fake, p->kind, options->generator);
    bool enabled = ek_set_grad_enabled(false);
    int rc = x ? penalty_place_points(options->critic, x, p) : ek_error_pending();
    ek_set_grad_enabled(enabled);
    if (x)
        p->samples = x->shape[0];
    for (int i = 0; i < p->parts && rc >= 0; i++)
        ek_keep(p->points[i]);
    ek_scope_end(&scope);
    for (int i = 0; i < p->parts && rc >= 0; i++) {
        /* These handles are new: requires_grad of real and fake stays as it is. */
        if (!ek_scope_adopt(p->points[i]) || ek_tensor_set_requires_grad(p->points[i], true) < 0)
            rc = ek_error_pending();
    }
    return rc;
}

/* ---- the critic and its gradient ---- */

/* Refuses outputs other than one number for each sample. */
static int penalty_check_output(const penalty *p, int part, ek_value output)
{
    char texts[2][200];
    if (output.kind != EK_VALUE_TENSOR)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: the critic has to give one tensor, not %s",
                       ek_value_kind_name(output));
    const ek_tensor *d = output.as.tensor;
    if (d->ndim == 0 || d->shape[0] != p->points[part]->shape[0] || ek_count(d) != d->shape[0])
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: the critic has to give one number for each sample, (N) "
                       "or (N, 1, ...), but for %s it gave %s",
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
    ek_reduce_options over_sample = {.x = g, .dim_count = g->ndim - 1};
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

static int penalty_check_options(const ek_gradient_penalty_options *options, double weight)
{
    EK_TRY(ek_error_status());
    if (!options->critic)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: the critic is NULL");
    if (!(weight >= 0 && weight < INFINITY))
        return EK_FAIL(EK_E_INVALID,
                       "gradient penalty: the weight has to be a number of at least 0, not %g",
                       weight);
    if (!ek_grad_enabled())
        return EK_FAIL(EK_E_AUTOGRAD,
                       "gradient penalty: it is made of a gradient, but gradient mode is off");
    return 0;
}

static ek_tensor *penalty_of(const ek_gradient_penalty_options *options, double weight)
{
    penalty p = {.kind = options->kind};
    if (penalty_make_points(options, &p) < 0 || penalty_call_critic(options->critic, &p) < 0 ||
        penalty_differentiate_critic(&p) < 0 || penalty_sum_penalties(&p) < 0)
        return NULL;
    ek_tensor *sum = ek_reduce_add(p.sums, p.parts, ek_tensor_device(p.sums[0]));
    if (p.apart)
        sum = ek_to_device(sum, p.home);
    return ek_mul_scalar(sum, weight / (double)p.samples);
}

ek_tensor *ek_gradient_penalty_with(ek_gradient_penalty_options options)
{
    double weight = ek_number_or(EK_GIVEN(&options, weight, 4), 10);
    if (penalty_check_options(&options, weight) < 0)
        return NULL;
    ek_wrapper *wrapper = ek_wrapper_of(options.critic);
    const int before = ek_error_status();
    if (wrapper && ek_wrapper_enter(wrapper) < 0) {
        ek_error_prefix(before, "gradient penalty");
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    ek_tensor *result = ek_scope_return(&scope, penalty_of(&options, weight));
    if (wrapper)
        ek_wrapper_leave(wrapper);
    return result;
}

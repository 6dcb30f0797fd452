/* gan_loss.c: losses of critics and generators: ek_loss(criterion, d), d the critic's outputs. */
#include "core/tensor.h"
#include "evenkeel/gan.h"
#include "nn/nn.h"
#include "ops/autocast.h"

typedef struct gan_loss {
    ek_module module;
    ek_gan_loss_kind kind;
    ek_gan_role role;
} gan_loss;

/* Returns -1 for a critic on fakes, whose loss rises when d grows. Other roles have losses that
 * fall when d grows, and get +1. */
static double gan_loss_direction(ek_gan_role role)
{
    return role == EK_GAN_CRITIC_FAKE ? -1 : 1;
}

/* Returns max(0, 1 - d) for a critic on real samples, max(0, 1 + d) for a critic on fakes, and -d
 * for a generator. */
static ek_tensor *gan_loss_hinge(ek_tensor *d, ek_gan_role role)
{
    if (role == EK_GAN_GENERATOR)
        return ek_neg(d);
    return ek_f_relu(ek_add_scalar(ek_mul_scalar(d, -gan_loss_direction(role)), 1));
}

/* The loss per element of d. */
static ek_tensor *gan_loss_per_element(const gan_loss *self, ek_tensor *d)
{
    double sign = gan_loss_direction(self->role);
    switch (self->kind) {
    case EK_GAN_WASSERSTEIN:
        return sign > 0 ? ek_neg(d) : d;
    case EK_GAN_HINGE:
        return gan_loss_hinge(d, self->role);
    case EK_GAN_LEAST_SQUARES:
        return ek_square(sign > 0 ? ek_add_scalar(d, -1) : d);
    case EK_GAN_LOGISTIC:
        return ek_f_softplus(sign > 0 ? ek_neg(d) : d);
    }
    return NULL;
}

/* Checks the arguments and computes the loss per element of d. */
static ek_tensor *gan_loss_per_output(ek_module *module, const ek_args *args)
{
    ek_tensor *d = ek_only_input(module, args);
    if (d && !ek_dtype_is_floating(d->dtype)) {
        char text[200];
        EK_FAIL(EK_E_DTYPE, "the critic's output has to be floating, not %s",
                ek_tensor_text(d, text));
        d = NULL;
    }
    d = ek_autocast_wide(d); /* losses are computed in f32 under autocast */
    return d ? gan_loss_per_element((gan_loss *)module, d) : NULL;
}

static ek_value gan_loss_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *losses = gan_loss_per_output(module, args);
    return ek_value_of_tensor(losses ? ek_mean(losses) : NULL);
}

static int gan_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *loss)
{
    ek_tensor *losses = gan_loss_per_output(module, args);
    if (!losses)
        return ek_error_pending();
    *loss = (ek_loss_sum){ek_sum(losses), ek_scalar((double)ek_count(losses), EK_F64, ek_cpu())};
    return loss->sum && loss->weight ? 0 : ek_error_pending();
}

/* Returns the number of elements of d; in f32 if d is bf16, which doesn't hold all small integers.
 */
static ek_tensor *gan_loss_denominator(ek_module *module, const ek_args *args)
{
    const ek_tensor *d = ek_only_input(module, args);
    if (!d)
        return NULL;
    return ek_scalar((double)ek_count(d), d->dtype == EK_F64 ? EK_F64 : EK_F32,
                     ek_tensor_device(d));
}

static const ek_module_type gan_loss_type = {.name = "gan_loss",
                                             .size = sizeof(gan_loss),
                                             .forward = gan_loss_forward,
                                             .loss_sum = gan_loss_sum,
                                             .denominator = gan_loss_denominator};

ek_module *ek_gan_loss(ek_gan_loss_kind kind, ek_gan_role role)
{
    if ((unsigned)kind > EK_GAN_LOGISTIC) {
        EK_FAIL(EK_E_INVALID, "gan_loss: %d is no kind of loss (ek_gan_loss_kind)", (int)kind);
        return NULL;
    }
    if ((unsigned)role > EK_GAN_GENERATOR) {
        EK_FAIL(EK_E_INVALID, "gan_loss: %d is no role (ek_gan_role)", (int)role);
        return NULL;
    }
    gan_loss *self = (gan_loss *)ek_module_new(&gan_loss_type);
    if (!self)
        return NULL;
    self->kind = kind;
    self->role = role;
    return &self->module;
}

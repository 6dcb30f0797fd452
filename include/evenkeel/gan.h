/* gan.h: what training generative adversarial networks needs: losses and gradient penalties.
 *
 * A critic step, balanced or not, on any number of devices; if the generator is balanced, its
 * pictures for the penalty are made one tensor by ek_value_to_device(made, ek_cpu(), 0):
 *
 *     ek_module *on_real = ek_data_parallel_criterion(
 *         ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_REAL), .device_ids = devices);
 *     ek_module *on_fake = ...
 *     ek_tensor *loss_real = ek_loss(on_real, ek_forward(critic, real));
 *     ek_tensor *loss_fake = ek_loss(on_fake, ek_forward(critic, fake));
 *     ek_tensor *penalty = ek_gradient_penalty(critic, real, fake, .kind = EK_PENALTY_WGAN_GP);
 *     ek_backward(ek_add(ek_add(loss_real, loss_fake), penalty));
 */
#ifndef EVENKEEL_GAN_H
#define EVENKEEL_GAN_H

#include "evenkeel/module.h"
#include "evenkeel/random.h"

EK_BEGIN_DECLARATIONS

/* ---- losses ---- */

/*                       critic, real         critic, fake         generator
 * WASSERSTEIN            -mean(d)             mean(d)              -mean(d)
 * HINGE                  mean(max(0, 1 - d))  mean(max(0, 1 + d))  -mean(d)
 * LEAST_SQUARES          mean((d - 1)^2)      mean(d^2)            mean((d - 1)^2)
 * LOGISTIC               mean(softplus(-d))   mean(softplus(d))    mean(softplus(-d))
 *
 * Sources: Arjovsky et al. 2017; Lim and Ye 2017, Miyato et al. 2018; Mao et al. 2017; Goodfellow
 * et al. 2014 (non-saturating). */
typedef enum ek_gan_loss_kind {
    EK_GAN_WASSERSTEIN = 0,
    EK_GAN_HINGE = 1,
    EK_GAN_LEAST_SQUARES = 2,
    EK_GAN_LOGISTIC = 3
} ek_gan_loss_kind;

typedef enum ek_gan_role {
    EK_GAN_CRITIC_REAL = 0,
    EK_GAN_CRITIC_FAKE = 1,
    EK_GAN_GENERATOR = 2
} ek_gan_role;

/* A criterion of one input, the critic's outputs d (of any shape, floating): ek_loss(criterion, d).
 * Works in ek_data_parallel_criterion like any other. */
EK_API ek_module *ek_gan_loss(ek_gan_loss_kind kind, ek_gan_role role);

/* ---- gradient penalties ---- */

/* With g the gradient of the critic's outputs (summed) at x, |g| its 2-norm per sample:
 *
 *                x                                                    penalty
 * WGAN_GP        real + a (fake - real)                               mean((|g| - 1)^2)
 * WGAN_LP        real + a (fake - real)                               mean(max(0, |g| - 1)^2)
 * DRAGAN         real + a (near - real), near = real + std b / 2      mean((|g| - 1)^2)
 * R1             real                                                 mean(|g|^2)
 * R2             fake                                                 mean(|g|^2)
 *
 * b is uniform in [0, 1), of real's shape, and drawn first; a is uniform in [0, 1), one per sample;
 * std is the unbiased deviation of all elements of the whole batch. Numbers are drawn for the whole
 * batch before it is cut, so that any number of devices computes the same. Sources: Gulrajani et
 * al. 2017; Petzka et al. 2018; Kodali et al. 2017; Mescheder et al. 2018 (who weigh by gamma / 2).
 */
typedef enum ek_penalty_kind {
    EK_PENALTY_WGAN_GP = 0,
    EK_PENALTY_WGAN_LP = 1,
    EK_PENALTY_DRAGAN = 2,
    EK_PENALTY_R1 = 3,
    EK_PENALTY_R2 = 4
} ek_penalty_kind;

typedef struct ek_gradient_penalty_options {
    const char *keywords;
    ek_module *critic; /* a plain module, or a data-parallel wrapper of any kind: one tensor in, one
                          number for each sample out, (N) or (N, 1, ...) */
    ek_tensor *real;   /* (N, ...); DRAGAN, R1 need no fake, R2 no real */
    ek_tensor *fake;   /* of the same shape, dtype and device; used without its history */
    ek_penalty_kind kind;
    double weight;           /* default 10; with 0 the result is 0, and the same random numbers are
 drawn */
    ek_generator *generator; /* NULL: the default one */
} ek_gradient_penalty_options;

/* weight times the penalty, a scalar whose backward reaches the critic's parameters through the
 * gradient. The gradient is taken over all replicas at once, so that operations between replicas
 * (ek_sync_batch_norm) count; norms and penalties are computed where the chunks are, and only
 * scalars meet (with ek_data_parallel: on its output device). A norm of 0 gives no NaN. The critic
 * runs in the mode that it is in; its parameters' own gradients stay as they are. With gradient
 * mode off it is EK_E_AUTOGRAD. Wrappers take samples from any device; a plain critic wants them on
 * its own. */
EK_API ek_tensor *ek_gradient_penalty_with(ek_gradient_penalty_options options);
#define ek_gradient_penalty(...) \
    ek_gradient_penalty_with(    \
        EK_OPTIONS_3(ek_gradient_penalty_options, critic, real, fake, __VA_ARGS__))

/* The points x at which the penalty takes the gradient, on the samples' device, without history. */
EK_API ek_tensor *ek_penalty_points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                                    ek_generator *generator);

EK_END_DECLARATIONS
#endif

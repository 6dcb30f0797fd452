/** @file
 * gan.h: losses and gradient penalties for generative adversarial networks.
 *
 * A critic's step on any number of devices. If the generator's output is marked per_device,
 * ek_value_to_device(made, ek_cpu(), 0) joins it for the penalty.
 *
 *     ek_module *on_real = ek_data_parallel_criterion(
 *         ek_gan_loss(EK_GAN_WASSERSTEIN, EK_GAN_CRITIC_REAL), .device_ids = devices);
 *     ek_module *on_fake = ...
 *     ek_tensor *loss_real = ek_loss(on_real, ek_forward(critic, real));
 *     ek_tensor *loss_fake = ek_loss(on_fake, ek_forward(critic, fake));
 *     ek_tensor *penalty = ek_gradient_penalty(critic, real, fake, .kind = EK_PENALTY_WGAN_GP);
 *     ek_backward(ek_add(ek_add(loss_real, loss_fake), penalty)); */
#ifndef EVENKEEL_GAN_H
#define EVENKEEL_GAN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"
#include "evenkeel/random.h"

EK_BEGIN_DECLARATIONS

/* ---- losses ---- */

/** Losses of d, the critic's outputs:
 *
 *                    critic, real         critic, fake         generator
 *     WASSERSTEIN    -mean(d)             mean(d)              -mean(d)
 *     HINGE          mean(max(0, 1 - d))  mean(max(0, 1 + d))  -mean(d)
 *     LEAST_SQUARES  mean((d - 1)^2)      mean(d^2)            mean((d - 1)^2)
 *     LOGISTIC       mean(softplus(-d))   mean(softplus(d))    mean(softplus(-d))
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

/** A criterion of one input, the critic's floating outputs d of any shape: ek_loss(criterion, d).
 * Owned by the caller; NULL with EK_E_INVALID. Works in ek_data_parallel_criterion. */
EK_API ek_module *ek_gan_loss(ek_gan_loss_kind kind, ek_gan_role role);

/* ---- gradient penalties ---- */

/* clang-format off */
/** Let g be the gradient of the sum of the critic's outputs with respect to x, and |g| its 2-norm
 * per sample:
 *
 *                x                                                penalty
 *      WGAN_GP   real + a (fake - real)                           mean((|g| - 1)^2)
 *      WGAN_LP   real + a (fake - real)                           mean(max(0, |g| - 1)^2)
 *      DRAGAN    real + a (near - real), near = real + std b / 2  mean((|g| - 1)^2)
 *      R1        real                                             mean(|g|^2)
 *      R2        fake                                             mean(|g|^2)
 *
 * b is uniform in [0, 1), of the shape of `real`, and drawn first. a is uniform in [0, 1), one
 * number per sample. std is the unbiased standard deviation of all elements of `real`. Numbers are
 * drawn for the whole batch before it is cut, so that they do not depend on the number of devices.
 * Sources: Gulrajani et al. 2017; Petzka et al. 2018; Kodali et al. 2017; Mescheder et al. 2018
 * (with weight gamma / 2). */
/* clang-format on */
typedef enum ek_penalty_kind {
    EK_PENALTY_WGAN_GP = 0,
    EK_PENALTY_WGAN_LP = 1,
    EK_PENALTY_DRAGAN = 2,
    EK_PENALTY_R1 = 3,
    EK_PENALTY_R2 = 4
} ek_penalty_kind;

typedef struct ek_gradient_penalty_options {
    int begin; /**< no option, see base.h */
    /** A plain module or a data-parallel wrapper of any kind. It takes one tensor and gives one or
     * more numbers per sample, (N) or (N, ...), as critics of patches do. */
    ek_module *critic;
    ek_tensor *real; /**< (N, ...); may be NULL for R2 */
    ek_tensor *fake; /**< like `real`; its history is unused; may be NULL for DRAGAN and R1 */
    ek_penalty_kind kind;
    double weight EK_IS(10); /**< 0 gives 0, but the same random numbers are drawn */
    ek_generator *generator; /**< NULL: the default one */
    /** Processes, each of which has some of the samples, or none: the penalty is that of all. NULL:
     * this process alone, or those of a critic that is an ek_distributed_data_parallel. */
    ek_process_group *process_group;
} ek_gradient_penalty_options;
#define EK_DEFAULTS_ek_gradient_penalty_options EK_DEFAULT(weight, 10)

EK_API ek_tensor *ek_gradient_penalty_with(ek_gradient_penalty_options options);
/** The penalty times `weight`: a scalar, in the scope, whose backward reaches the critic's
 * parameters through g. g is taken over all replicas at once, and so includes operations between
 * replicas (ek_sync_batch_norm). Norms and penalties are computed on the chunks' devices, and only
 * scalars are sent; the result is on the output device of ek_data_parallel. A norm of 0 gives no
 * NaN. The critic's training mode stays, and so do the accumulated gradients of its parameters.
 * EK_E_AUTOGRAD if gradient mode is off. Samples may lie on any device for a wrapper, but on the
 * critic's for a plain critic.
 *
 * Over several ranks the result is the penalty of all samples on each, and the mean of the ranks'
 * gradients is its gradient, to any order. If the ranks' generators are in one state, each rank
 * draws the numbers of all samples and takes those of its own samples, so that numbers do not
 * depend on the number of ranks; the first samples are rank 0's. */
#define ek_gradient_penalty(...)                                                         \
    EK_CALL_3(ek_gradient_penalty_with, ek_gradient_penalty_options, critic, real, fake, \
              __VA_ARGS__)

/** The points x of the table above, on the samples' device, without history, in the scope. */
EK_API ek_tensor *ek_penalty_points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                                    ek_generator *generator);

EK_END_DECLARATIONS
#endif

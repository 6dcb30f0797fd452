/* stage_gan.c: gradient penalties and the losses beside them, on one device and on several. */
#include <string.h>

#include "fault.h"

typedef struct gan_row {
    const char *name;
    ek_penalty_kind kind;
    bool classic, balanced, synchronised, sharded, checkpoint;
    bool narrow; /* autocast to bf16 */
} gan_row;

static const gan_row rows[] = {
    {"wgan-gp", EK_PENALTY_WGAN_GP, .checkpoint = true},
    {"wgan-gp-classic", EK_PENALTY_WGAN_GP, .classic = true},
    {"wgan-gp-balanced", EK_PENALTY_WGAN_GP, .balanced = true, .synchronised = true,
     .checkpoint = true},
    {"wgan-lp-sharded", EK_PENALTY_WGAN_LP, .balanced = true, .sharded = true},
    {"dragan", EK_PENALTY_DRAGAN, .synchronised = true},
    {"dragan-balanced", EK_PENALTY_DRAGAN, .balanced = true},
    {"r1-balanced", EK_PENALTY_R1, .balanced = true},
    {"r2-classic", EK_PENALTY_R2, .classic = true, .synchronised = true},
    {"wgan-gp-bf16", EK_PENALTY_WGAN_GP, .narrow = true},
};

static struct {
    ek_module *critic, *on_real, *on_fake;
    ek_optimizer *optimizer;
    ek_tensor *real, *fake;
} gan;

static ek_module *gan_critic(const gan_row *row)
{
    ek_device_list devices = fault_devices();
    ek_module *head = ek_sequential(ek_flatten(1, -1), ek_linear(8, 3), ek_tanh());
    ek_module *net = ek_sequential(ek_conv2d(1, 2, 3, .stride = 2, .padding = 1),
                                   row->synchronised ? ek_sync_batch_norm(2) : ek_leaky_relu(0.2),
                                   row->checkpoint ? ek_checkpoint(head) : head, ek_linear(3, 1));
    if (row->classic)
        return ek_data_parallel(net, .device_ids = devices);
    if (row->balanced)
        return ek_data_parallel_model(net, .device_ids = devices,
                                      .shard = row->sharded ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
    return net;
}

static ek_module *gan_loss(const gan_row *row, ek_gan_role role)
{
    ek_module *loss = ek_gan_loss((ek_gan_loss_kind)((row - rows) % 4), role);
    return row->balanced ? ek_data_parallel_criterion(loss, .device_ids = fault_devices()) : loss;
}

static int gan_set_up(int row)
{
    gan.critic = gan_critic(&rows[row]);
    gan.on_real = gan_loss(&rows[row], EK_GAN_CRITIC_REAL);
    gan.on_fake = gan_loss(&rows[row], EK_GAN_CRITIC_FAKE);
    gan.optimizer = ek_adam(gan.critic, .lr = 0.01, .beta1 = 0);
    gan.real = ek_keep(ek_randn(EK_SHAPE(4, 1, 4, 4)));
    gan.fake = ek_keep(ek_randn(EK_SHAPE(4, 1, 4, 4)));
    return ek_error_status();
}

static int gan_step(int row)
{
    double value = 0;
    ek_tensor *real = ek_loss(gan.on_real, ek_forward(gan.critic, gan.real));
    ek_tensor *fake = ek_loss(gan.on_fake, ek_forward(gan.critic, gan.fake));
    ek_tensor *penalty =
        ek_gradient_penalty(gan.critic, gan.real, gan.fake, .kind = rows[row].kind);
    ek_tensor *loss = ek_add(ek_add(real, fake), penalty);
    ek_zero_grad(gan.optimizer);
    int status = ek_backward(loss);
    if (status >= 0)
        status = ek_item(loss, &value);
    if (status >= 0)
        status = ek_step(gan.optimizer);
    fault_note(value);
    return status;
}

static int gan_attempt(int row)
{
    ek_autocast autocast = ek_autocast_begin(rows[row].narrow ? EK_BF16 : EK_F32);
    int status = gan_step(row);
    ek_autocast_end(&autocast);
    return status;
}

static int gan_world(int row)
{
    int status = fault_note_parameters(gan.critic);
    return status < 0 ? status : fault_note_optimizer(gan.optimizer, gan.critic);
}

static void gan_clear(int row)
{
    ek_optimizer_free(gan.optimizer);
    ek_module_free(gan.critic);
    ek_module_free(gan.on_real);
    ek_module_free(gan.on_fake);
    ek_release(gan.real);
    ek_release(gan.fake);
    memset(&gan, 0, sizeof gan);
}

FAULT_STAGE(gan, FAULT_ROWS(rows), .set_up = gan_set_up, .attempt = gan_attempt, .world = gan_world,
            .clear = gan_clear);

#include "gan/settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args.h"
#include "common/devices.h"

const char *const mode_names[] = {"single", "classic", "balanced", NULL};
const char *const norm_names[] = {"none", "layer", "instance", "batch", "sync-batch", NULL};
const char *const penalty_names[] = {"wgan-gp", "wgan-lp", "dragan", "r1", NULL};
const char *const loss_names[] = {"wasserstein", "hinge", "least-squares", "logistic", NULL};
static const char *const dtype_names[] = {"f32", "f64", NULL};

enum { MOST = 1 << 20 };

static const char about[] =
    "Trains a generator of Fashion-MNIST pictures (32 x 32) and a critic with a gradient penalty,\n"
    "on a single device, on several with outputs and losses on device 0 (classic), or with losses\n"
    "and penalty on every device (balanced).\n\n"
    "Options (and defaults):\n";

/* ---- checks ---- */

static int check_devices(const run_settings *settings, const char *program)
{
    if (settings->mode == MODE_SINGLE && settings->devices > 1)
        return args_complain(program,
                             "--devices %d: --mode single trains on one device; classic or "
                             "balanced is needed for more",
                             (int)settings->devices);
    if (settings_devices(settings).count > 0)
        return 0;
    if (settings->devices > 0)
        args_complain(program, "--devices %d: %s", (int)settings->devices, ek_error_message());
    else
        args_complain(program, "%s", ek_error_message());
    ek_error_clear();
    return -1;
}

static int check(const run_settings *settings, const char *program)
{
    if (settings->resume && access(settings->resume, R_OK) < 0)
        return args_complain(program, "--resume %s: %s", settings->resume, strerror(errno));
    if (args_check_output(program, "json", settings->json) < 0 ||
        check_devices(settings, program) < 0)
        return -1;
    return args_check_directory(program, settings->out); /* last: it may be made */
}

/* ---- the command line ---- */

static run_settings defaults(void)
{
    return (run_settings){
        .penalty = EK_PENALTY_WGAN_GP,
        .norm = NORM_NONE, /* a sample's gradient is to depend on that sample alone */
        .mode = MODE_BALANCED,
        .loss = EK_GAN_WASSERSTEIN,
        .dtype = EK_F32,
        .batch = 64,
        .critic_steps = 3,
        .steps = 500,
        .width = 32,
        .every = 100,
        .lr = 5e-4,
        .weight = 10,
        .data = "/usr/share/datasets/fashion-mnist",
    };
}

int settings_parse(run_settings *settings, int argc, char **argv)
{
    *settings = defaults();
    arg_choice penalty = {penalty_names, (int)settings->penalty};
    arg_choice norm = {norm_names, (int)settings->norm};
    arg_choice mode = {mode_names, (int)settings->mode};
    arg_choice loss = {loss_names, (int)settings->loss};
    arg_choice dtype = {dtype_names, 0};
    arg_choice device = devices_choice();
    const arg_spec args[] = {
        {"penalty", ARG_CHOICE, &penalty, 0, 0, "KIND", "of the critic's gradient"},
        {"weight", ARG_REAL, &settings->weight, 0, 1e6, "X", "of the penalty"},
        {"critic-norm", ARG_CHOICE, &norm, 0, 0, "KIND", "normalisation in the critic"},
        {"loss", ARG_CHOICE, &loss, 0, 0, "KIND", "of critic and generator"},
        {"mode", ARG_CHOICE, &mode, 0, 0, "MODE", "how devices are used"},
        {"devices", ARG_INT, &settings->devices, 1, EK_MAX_DEVICES, "N",
         "devices; all there are unless given"},
        {"device", ARG_CHOICE, &device, 0, 0, "KIND", "which kind of devices"},
        {"auto", ARG_SWITCH, &settings->automatic, 0, 0, "",
         "each device's share of a batch by measurement"},
        {"shard", ARG_SWITCH, &settings->sharded, 0, 0, "",
         "divide gradients and the optimizers' state over the devices"},
        {"batch", ARG_INT, &settings->batch, 2, MOST, "N", "pictures per critic step"},
        {"critic-steps", ARG_INT, &settings->critic_steps, 1, 1000, "N",
         "critic steps per generator step"},
        {"steps", ARG_INT, &settings->steps, 1, MOST, "N",
         "generator steps, those resumed from "
         "included"},
        {"width", ARG_INT, &settings->width, 1, 512, "N", "channels of the critic's first layer"},
        {"lr", ARG_REAL, &settings->lr, 0, 1, "X", "learning rate of both"},
        {"dtype", ARG_CHOICE, &dtype, 0, 0, "TYPE", "of parameters and pictures"},
        {"seed", ARG_INT, &settings->seed, 0, 9007199254740992.0, "N",
         "of weights, order and noise"},
        {"data", ARG_TEXT, &settings->data, 0, 0, "DIR", "Fashion-MNIST's files"},
        {"out", ARG_TEXT, &settings->out, 0, 0, "DIR",
         "write pictures, charts and checkpoints there"},
        {"every", ARG_INT, &settings->every, 1, MOST, "N", "steps between those"},
        {"resume", ARG_TEXT, &settings->resume, 0, 0, "FILE", "go on from this checkpoint"},
        {"json", ARG_TEXT, &settings->json, 0, 0, "FILE", "write the results there"},
    };
    const size_t count = sizeof(args) / sizeof(args[0]);
    char error[512];

    if (args_want_help(argc, argv)) {
        printf("usage: %s [option...]\n\n%s", argv[0], about);
        args_help(stdout, args, count);
        return SETTINGS_HELP;
    }
    if (args_parse(argc, argv, args, count, error, sizeof(error)) < 0)
        return args_complain(argv[0], "%s", error);
    settings->penalty = (ek_penalty_kind)penalty.chosen;
    settings->norm = (critic_norm)norm.chosen;
    settings->mode = (train_mode)mode.chosen;
    settings->loss = (ek_gan_loss_kind)loss.chosen;
    settings->kind = devices_kind(&device);
    settings->dtype = dtype.chosen == 0 ? EK_F32 : EK_F64;
    return check(settings, argv[0]);
}

ek_device_list settings_devices(const run_settings *settings)
{
    return devices_open(settings->kind, settings->mode == MODE_SINGLE ? 1 : (int)settings->devices);
}

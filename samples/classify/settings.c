#include "classify/settings.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/args.h"
#include "common/devices.h"

const char *const mode_names[] = {"single",        "classic", "balanced",
                                  "balanced-auto", "sharded", NULL};
const char *const set_names[] = {"fashion-mnist", "cifar10", NULL};
const char *const optimizer_names[] = {"sgd", "adam", "adamw", NULL};
const char *const schedule_names[] = {"cosine", "step", "none", NULL};
const char *const norm_names[] = {"sync-batch", "batch", NULL};
static const char *const goal_names[] = {"memory", "time", NULL};

enum { MOST = 1 << 20, MOST_BLOCKS = 64 };

static const char about[] =
    "Trains a residual network to classify the pictures of Fashion-MNIST or CIFAR-10, and tests\n"
    "it after each epoch: on a single device; on several with outputs and loss on device 0\n"
    "(classic); with the loss on every device (balanced); with shares of the batch that follow\n"
    "from measurements (balanced-auto); with gradients and optimizer state divided (sharded).\n"
    "What --out wrote can be gone on with: --resume.\n\n"
    "Options (and defaults):\n";

/* ---- checks ---- */

static int check_devices(const run_settings *settings, const char *program)
{
    const char *text = settings->device_text;

    if (text && devices_text_count(text) < 0)
        return args_complain(program,
                             "--devices %s: a whole number from 1 to %d is needed, or a list", text,
                             EK_MAX_DEVICES);
    int count = settings_devices(settings).count;
    if (count == 0) {
        args_complain(program, "%s%s%s%s", text ? "--devices " : "", text ? text : "",
                      text ? ": " : "", ek_error_message());
        ek_error_clear();
        return -1;
    }
    if (settings->mode == MODE_SINGLE && count > 1)
        return args_complain(program,
                             "--devices %s: --mode single trains on one device; another mode is "
                             "needed for more",
                             text);
    if (settings->plan && strchr(settings->plan, ';'))
        return args_complain(program, "--plan %s: one plan for the whole run is needed",
                             settings->plan);
    if (settings->plan && ek_plan_check(settings->plan, count) < 0) {
        args_complain(program, "--plan %s: %s", settings->plan, ek_error_message());
        ek_error_clear();
        return -1;
    }
    return 0;
}

static int check(const run_settings *settings, const char *program)
{
    if (!settings->data || !*settings->data)
        return args_complain(program,
                             "--dataset %s: --data DIR is needed, with the files of its binary "
                             "version (data_batch_1.bin to data_batch_5.bin, test_batch.bin)",
                             set_names[settings->set]);
    if (settings->plan && settings->mode != MODE_AUTO)
        return args_complain(program, "--plan %s: it is for --mode %s", settings->plan,
                             mode_names[MODE_AUTO]);
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
        .mode = MODE_BALANCED,
        .batch = 128,
        .epochs = 8,
        .width = 16,
        .blocks = 1,
        .step_epochs = 3,
        .workers = 1,
        .lr = -1,
        .momentum = 0.9,
        .weight_decay = 5e-4,
        .gamma = 0.1,
    };
}

/* What is left out follows from what is given. */
static void complete(run_settings *settings)
{
    if (settings->lr < 0)
        settings->lr = settings->optimizer == SGD ? 0.1 : 0.003;
    if (!settings->data && settings->set == FASHION_MNIST)
        settings->data = "/usr/share/datasets/fashion-mnist";
}

int settings_parse(run_settings *settings, int argc, char **argv)
{
    *settings = defaults();
    arg_choice set = {set_names, 0}, mode = {mode_names, (int)settings->mode};
    arg_choice optimizer = {optimizer_names, 0}, schedule = {schedule_names, 0};
    arg_choice norm = {norm_names, 0}, goal = {goal_names, EK_GOAL_MEMORY};
    arg_choice device = devices_choice();
    const arg_spec args[] = {
        {"dataset", ARG_CHOICE, &set, 0, 0, "NAME", "what to classify"},
        {"data", ARG_TEXT, &settings->data, 0, 0, "DIR",
         "its files; of fashion-mnist /usr/share/datasets/fashion-mnist"},
        {"mode", ARG_CHOICE, &mode, 0, 0, "MODE", "how devices are used"},
        {"devices", ARG_TEXT, &settings->device_text, 0, 0, "N",
         "how many devices, or a list: 512M@1,256M@0.5; all there are unless given"},
        {"device", ARG_CHOICE, &device, 0, 0, "KIND", "which kind of devices"},
        {"goal", ARG_CHOICE, &goal, 0, 0, "GOAL", "what balanced-auto levels"},
        {"plan", ARG_TEXT, &settings->plan, 0, 0, "PLAN",
         "what balanced-auto follows instead: 40,32,32,24"},
        {"epochs", ARG_INT, &settings->epochs, 1, MOST, "N", "passes over the training pictures"},
        {"steps", ARG_INT, &settings->steps, 1, MOST, "N",
         "stop after so many, as if all epochs were to follow"},
        {"batch", ARG_INT, &settings->batch, 1, MOST, "N", "pictures per step"},
        {"width", ARG_INT, &settings->width, 1, 512, "N", "channels of the first stage"},
        {"blocks", ARG_INT, &settings->blocks, 1, MOST_BLOCKS, "N", "in each of three stages"},
        {"norm", ARG_CHOICE, &norm, 0, 0, "KIND", "over the whole batch, or on each device"},
        {"optimizer", ARG_CHOICE, &optimizer, 0, 0, "NAME", "the optimizer"},
        {"lr", ARG_REAL, &settings->lr, 0, 1e6, "X", "learning rate; 0.1, with adam(w) 0.003"},
        {"momentum", ARG_REAL, &settings->momentum, 0, 1, "X", "of sgd"},
        {"weight-decay", ARG_REAL, &settings->weight_decay, 0, 1e6, "X", "of the optimizer"},
        {"schedule", ARG_CHOICE, &schedule, 0, 0, "KIND", "of the learning rate, to its end"},
        {"step-epochs", ARG_INT, &settings->step_epochs, 1, MOST, "N",
         "after which schedule step multiplies the rate"},
        {"gamma", ARG_REAL, &settings->gamma, 0, 1, "X", "by which it does"},
        {"smoothing", ARG_REAL, &settings->smoothing, 0, 1, "X", "of the labels in training"},
        {"plain", ARG_SWITCH, &settings->plain, 0, 0, "",
         "train on pictures as they are: neither shifted nor mirrored"},
        {"seed", ARG_INT, &settings->seed, 0, 9007199254740992.0, "N",
         "of weights, order and augmentation"},
        {"train-samples", ARG_INT, &settings->train_samples, 1, MOST, "N",
         "train on the first so many pictures"},
        {"test-samples", ARG_INT, &settings->test_samples, 1, MOST, "N",
         "test on the first so many pictures"},
        {"loader-workers", ARG_INT, &settings->workers, 0, 64, "N",
         "threads that make batches; 0: none, steps wait for them"},
        {"out", ARG_TEXT, &settings->out, 0, 0, "DIR",
         "write a checkpoint there after each epoch and at the end"},
        {"every", ARG_INT, &settings->every, 1, MOST, "N", "and each so many steps"},
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
    settings->set = (picture_set)set.chosen;
    settings->mode = (train_mode)mode.chosen;
    settings->optimizer = (optimizer_kind)optimizer.chosen;
    settings->schedule = (schedule_kind)schedule.chosen;
    settings->norm = (norm_kind)norm.chosen;
    settings->goal = (ek_plan_goal)goal.chosen;
    settings->kind = devices_kind(&device);
    complete(settings);
    return check(settings, argv[0]);
}

ek_device_list settings_devices(const run_settings *settings)
{
    const char *text = settings->device_text;

    if (text)
        return devices_open_text(settings->kind, text);
    return devices_open(settings->kind, settings->mode == MODE_SINGLE ? 1 : 0);
}

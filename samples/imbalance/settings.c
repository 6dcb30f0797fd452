#include "imbalance/settings.h"

#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/devices.h"
#include "common/pictures.h"

const char *const mode_names[MODES] = {"single", "classic", "balanced", "balanced-auto", "sharded"};

#define ALL_MODES "single,classic,balanced,balanced-auto,sharded"

enum { DEFAULT_STEPS = 128, MOST = 1 << 20 };

static const char about[] =
    "Trains a segmentation network on scenes made of Fashion-MNIST pictures, from the same seed, "
    "and\n"
    "compares memory, time and result of: a single device; several with outputs and loss on "
    "device\n"
    "0 (classic); with the loss on every device (balanced); with shares of the batch that follow "
    "from\n"
    "measurements (balanced-auto); with gradients and optimizer state divided (sharded).\n\n"
    "Options (and defaults):\n";

/* "classic,balanced" into runs[]. */
static int parse_modes(run_settings *settings, const char *program)
{
    const char *text = settings->modes;

    do {
        size_t length = strcspn(text, ",");
        int mode = 0;
        while (mode < MODES &&
               (strlen(mode_names[mode]) != length || strncmp(mode_names[mode], text, length) != 0))
            mode++;
        if (mode == MODES)
            return args_complain(program, "--modes %s: some of " ALL_MODES " are needed",
                                 settings->modes);
        settings->runs[mode] = true;
        text += length;
    } while (*text++ == ',');
    return 0;
}

/* Opens the devices once, so that a list that can't be had is refused now. */
static int check_devices(run_settings *settings, const char *program)
{
    if (devices_text_count(settings->device_text) < 0)
        return args_complain(program,
                             "--devices %s: a whole number from 1 to %d is needed, or a list",
                             settings->device_text, EK_MAX_DEVICES);
    settings->devices = devices_open_text(settings->kind, settings->device_text).count;
    if (settings->devices < 0) {
        args_complain(program, "--devices %s: %s", settings->device_text, ek_error_message());
        ek_error_clear();
        return -1;
    }
    return 0;
}

static int check_plan(const run_settings *settings, const char *program)
{
    if (!settings->plan || ek_plan_check(settings->plan, (int)settings->devices) >= 0)
        return 0;
    args_complain(program, "--plan %s: %s", settings->plan, ek_error_message());
    ek_error_clear();
    return -1;
}

static int check_outputs(const run_settings *settings, const char *program)
{
    if (args_check_output(program, "json", settings->json) < 0 ||
        args_check_output(program, "html", settings->html) < 0 ||
        args_check_output(program, "trace", settings->trace) < 0)
        return -1;
    return 0;
}

static const volatile sig_atomic_t never;

int settings_parse(run_settings *settings, int argc, char **argv)
{
    *settings = (struct run_settings){.device_text = "4",
                                      .batch = 64,
                                      .size = 64,
                                      .width = 32,
                                      .scenes = 2048,
                                      .test_scenes = 512,
                                      .seed = 0,
                                      .lr = -1,
                                      .momentum = 0.9,
                                      .modes = ALL_MODES,
                                      .optimizer = "sgd",
                                      .stopped = &never,
                                      .data = "/usr/share/datasets/fashion-mnist"};
    static const char *const goals[] = {"memory", "time", NULL};
    arg_choice device = devices_choice(), goal = {goals, EK_GOAL_MEMORY};
    const arg_spec args[] = {
        {"devices", ARG_TEXT, &settings->device_text, 0, 0, "N",
         "how many devices, or a list: 512M@1,256M@0.5"},
        {"device", ARG_CHOICE, &device, 0, 0, "KIND", "which kind of devices"},
        {"batch", ARG_INT, &settings->batch, 1, MOST, "N", "scenes per step"},
        {"steps", ARG_INT, &settings->steps, 1, MOST, "N", "steps per mode; 128 unless --epochs"},
        {"epochs", ARG_INT, &settings->epochs, 1, MOST, "N", "passes over the training scenes"},
        {"modes", ARG_TEXT, &settings->modes, 0, 0, "LIST", "which to run"},
        {"seed", ARG_INT, &settings->seed, 0, 9007199254740992.0, "N",
         "of scenes, weights and order"},
        {"lr", ARG_REAL, &settings->lr, 0, 1e6, "X", "learning rate; 0.05, with adam 0.001"},
        {"optimizer", ARG_TEXT, &settings->optimizer, 0, 0, "NAME", "sgd or adam"},
        {"momentum", ARG_REAL, &settings->momentum, 0, 1, "X", "of sgd"},
        {"width", ARG_INT, &settings->width, 1, 512, "N", "channels of the first convolution"},
        {"size", ARG_INT, &settings->size, PICTURE, 1024, "N", "height and width of a scene"},
        {"scenes", ARG_INT, &settings->scenes, 1, MOST, "N", "training scenes"},
        {"test-scenes", ARG_INT, &settings->test_scenes, 1, MOST, "N", "test scenes"},
        {"data", ARG_TEXT, &settings->data, 0, 0, "DIR", "Fashion-MNIST's files"},
        {"cap", ARG_BYTES, &settings->capacity, 0, 0, "BYTES", "memory per device: 64M, 1.5G"},
        {"find-batch", ARG_SWITCH, &settings->find_batch, 0, 0, "",
         "only find each mode's largest batch (by default under 3 times single's state)"},
        {"goal", ARG_CHOICE, &goal, 0, 0, "GOAL", "what balanced-auto levels"},
        {"plan", ARG_TEXT, &settings->plan, 0, 0, "PLAN",
         "what balanced-auto follows instead: 16,16,16,16; 3: 20,15,15,14"},
        {"json", ARG_TEXT, &settings->json, 0, 0, "FILE", "write the results there"},
        {"html", ARG_TEXT, &settings->html, 0, 0, "FILE", "write a page with charts there"},
        {"trace", ARG_TEXT, &settings->trace, 0, 0, "FILE",
         "write the last mode's last step there, for Perfetto"},
    };
    const size_t count = sizeof(args) / sizeof(args[0]);
    /* The help shows defaults: before parsing. */
    if (args_want_help(argc, argv)) {
        printf("usage: %s [option...]\n\n%s", argv[0], about);
        args_help(stdout, args, count);
        return SETTINGS_HELP;
    }
    char error[512];
    if (args_parse(argc, argv, args, count, error, sizeof(error)) < 0)
        return args_complain(argv[0], "%s", error);
    settings->kind = devices_kind(&device);
    settings->goal = (ek_plan_goal)goal.chosen;
    settings->adam = strcmp(settings->optimizer, "adam") == 0;
    if (!settings->adam && strcmp(settings->optimizer, "sgd") != 0)
        return args_complain(argv[0], "--optimizer %s: sgd or adam is needed", settings->optimizer);
    if (settings->lr < 0)
        settings->lr = settings->adam ? 0.001 : 0.05;
    if (parse_modes(settings, argv[0]) < 0 || check_outputs(settings, argv[0]) < 0 ||
        check_devices(settings, argv[0]) < 0 || check_plan(settings, argv[0]) < 0)
        return -1;
    return 0;
}

int settings_steps(const run_settings *settings)
{
    int64_t per_epoch = (settings->scenes + settings->batch - 1) / settings->batch;
    int64_t steps = settings->steps;

    if (settings->epochs && (steps == 0 || settings->epochs * per_epoch < steps))
        steps = settings->epochs * per_epoch;
    return (int)(steps ? steps : DEFAULT_STEPS);
}

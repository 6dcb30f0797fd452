#include "imbalance/settings.h"

#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/devices.h"
#include "common/pictures.h"

const char *const mode_names[MODES] = {"single", "classic", "balanced"};

enum { DEFAULT_STEPS = 128, MOST = 1 << 20 };

static const char about[] =
    "Trains a segmentation network on scenes made of Fashion-MNIST pictures: on a single device, "
    "on\n"
    "several with outputs and loss on device 0 (classic), and with the loss on every device\n"
    "(balanced), from the same seed, and compares memory, time and result.\n\n"
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
            return args_complain(program, "--modes %s: some of single,classic,balanced are needed",
                                 settings->modes);
        settings->runs[mode] = true;
        text += length;
    } while (*text++ == ',');
    return 0;
}

static int check_devices(const run_settings *settings, const char *program)
{
    if (devices_open(settings->kind, (int)settings->devices).count == 0) {
        args_complain(program, "--devices %d: %s", (int)settings->devices, ek_error_message());
        ek_error_clear();
        return -1;
    }
    return 0;
}

int settings_parse(run_settings *settings, int argc, char **argv)
{
    *settings = (struct run_settings){.devices = 4,
                                      .batch = 64,
                                      .size = 64,
                                      .width = 32,
                                      .scenes = 2048,
                                      .test_scenes = 512,
                                      .seed = 0,
                                      .lr = -1,
                                      .momentum = 0.9,
                                      .modes = "single,classic,balanced",
                                      .optimizer = "sgd",
                                      .data = "/usr/share/datasets/fashion-mnist"};
    arg_choice device = devices_choice();
    const arg_spec args[] = {
        {"devices", ARG_INT, &settings->devices, 1, EK_MAX_DEVICES, "N", "how many devices"},
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
        {"fit", ARG_SWITCH, &settings->fit, 0, 0, "",
         "only find each mode's largest batch under --cap"},
        {"json", ARG_TEXT, &settings->json, 0, 0, "FILE", "write the results there"},
        {"html", ARG_TEXT, &settings->html, 0, 0, "FILE", "write a page with charts there"},
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
    settings->adam = strcmp(settings->optimizer, "adam") == 0;
    if (!settings->adam && strcmp(settings->optimizer, "sgd") != 0)
        return args_complain(argv[0], "--optimizer %s: sgd or adam is needed", settings->optimizer);
    if (settings->lr < 0)
        settings->lr = settings->adam ? 0.001 : 0.05;
    if (settings->fit && settings->capacity == 0)
        return args_complain(argv[0], "--fit: the capacity to fit is missing; give --cap BYTES");
    if (parse_modes(settings, argv[0]) < 0 ||
        args_check_output(argv[0], "json", settings->json) < 0 ||
        args_check_output(argv[0], "html", settings->html) < 0 ||
        check_devices(settings, argv[0]) < 0)
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

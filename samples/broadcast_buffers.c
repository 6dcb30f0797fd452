/* broadcast_buffers.c: what becomes of batch normalisation's running means on two devices, of which
 * one is fed zeros and the other one ones: sent at every forward, kept apart, or synchronised. */
#include <stdlib.h>

#include "broadcast_buffers/train.h"
#include "common/args.h"
#include "common/devices.h"

/* Exit statuses: 0 well, 1 the training failed, 2 it was not begun. */
enum { FAILED = 1, REFUSED = 2 };

static const char about[] =
    "Trains Conv2d(3, 5, 3, padding 1), BatchNorm2d(5), summed, for a step on two devices: of\n"
    "one batch of 14 the first device gets 7 samples of zeros, the second 7 of ones. The loss is\n"
    "the mean of the squared sums; Adam, learning rate 0.001. Shows the running means of each\n"
    "device at five moments, for each way of treating them.\n\n"
    "Options (and defaults):\n";

static ek_device_list devices;

static void print_means(const char *moment, const channel_means means[DEVICES])
{
    for (int d = 0; d < DEVICES; d++) {
        char name[16];
        printf("  %-26s%s ", d ? "" : moment, ek_device_name(devices.devices[d], name));
        for (int c = 0; c < CHANNELS; c++)
            printf(" %11.7f", (double)means[d][c]);
        putchar('\n');
    }
}

static void print_result(buffer_policy policy, const train_result *result)
{
    printf("%s: %s\n", policy_names[policy], policy_lines[policy]);
    for (int i = 0; i < result->looks; i++)
        print_means(result->moments[i], result->means[i]);
    print_means("mean of the last batch", result->batch_mean);
    printf("  %-26s%.4g\n\n", "loss", result->loss);
}

static int open_devices(ek_device_kind kind, const char *program)
{
    devices = devices_open(kind, DEVICES);
    if (devices.count == DEVICES)
        return 0;
    args_complain(program, "%d devices are needed: %s", DEVICES, ek_error_message());
    ek_error_clear();
    return -1;
}

int main(int argc, char **argv)
{
    arg_choice policy = {policy_names, POLICIES};
    arg_choice device = devices_choice();
    int64_t seed = 0;
    const arg_spec args[] = {
        {"case", ARG_CHOICE, &policy, 0, 0, "CASE", "what to show"},
        {"device", ARG_CHOICE, &device, 0, 0, "KIND", "which kind of devices"},
        {"seed", ARG_INT, &seed, 0, 9007199254740992.0, "N", "of the weights"},
    };
    const size_t count = sizeof(args) / sizeof(args[0]);
    char error[512];

    if (args_want_help(argc, argv)) {
        printf("usage: %s [option...]\n\n%s", argv[0], about);
        args_help(stdout, args, count);
        return 0;
    }
    if (args_parse(argc, argv, args, count, error, sizeof(error)) < 0) {
        args_complain(argv[0], "%s", error);
        return REFUSED;
    }
    if (open_devices(devices_kind(&device), argv[0]) < 0)
        return REFUSED;
    for (int p = 0; p < POLICIES; p++) {
        train_result result;
        if (policy.chosen != POLICIES && policy.chosen != p)
            continue;
        if (train_twice((buffer_policy)p, &devices, (uint64_t)seed, &result) < 0) {
            args_complain(argv[0], "%s: %s", policy_names[p], ek_error_message());
            return FAILED;
        }
        print_result((buffer_policy)p, &result);
    }
    return ek_shutdown() < 0 ? FAILED : 0;
}

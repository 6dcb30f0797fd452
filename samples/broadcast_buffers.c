/* broadcast_buffers.c: what becomes of batch normalisation's running means on two devices, of which
 * one is fed zeros and the other one ones: sent at every forward, kept apart, or synchronised. The
 * devices are those of one process, or of two ranks:
 *
 *     samples/mpirun -n 2 build/samples/broadcast_buffers */
#include <evenkeel/evenkeel.h>
#include <string.h>

#include "args.h"

enum { DEVICES = 2, CHANNELS = 5, MOST_LOOKS = 7 };

static const char about[] =
    "Trains Conv2d(3, 5, 3, padding 1), BatchNorm2d(5), summed, for a step on two devices: of\n"
    "one batch of 14 the first device gets 7 samples of zeros, the second 7 of ones. The loss is\n"
    "the mean of the squared sums; Adam, learning rate 0.001. Shows the running means of each\n"
    "device at five moments, for each way of treating them. Started by mpirun on two ranks, each "
    "has\n"
    "one of the devices.\n\n";

typedef enum buffer_policy {
    POLICY_BROADCAST,    /* device 0's buffers are sent at every forward */
    POLICY_KEPT,         /* each device goes on with its own */
    POLICY_SYNCHRONISED, /* statistics of the whole batch */
    POLICY_EXTRA,        /* as the first, and one more forward, not used, before backward */
    POLICIES
} buffer_policy;

static const char *const policy_names[] = {"broadcast", "kept", "synchronised",
                                           "extra",     "all",  NULL};
static const char *const policy_lines[POLICIES] = {
    "buffers of device 0 are sent at every forward (the default)",
    "each device keeps its own buffers (.broadcast_buffers = false)",
    "statistics of the whole batch (ek_convert_sync_batch_norm)",
    "buffers are sent, and an extra forward that nobody uses runs before backward",
};

#define OPTIONS(ROW)                                              \
    ROW(word, case_, "all", policy_names, "CASE", "what to show") \
    ROW(device, device, "which kind of devices")                  \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of the weights")
args_declare(OPTIONS);

/* ---- a user's module with a replication callback: its replicas show their running means ---- */

typedef float channel_means[CHANNELS];

/* What the replicas of the last forward showed. Each writes to places of its own. */
typedef struct buffer_view {
    ek_tensor *running_mean[DEVICES];  /* references: read on to see what becomes of them */
    channel_means inside[DEVICES];     /* running means at the start of the forward */
    channel_means batch_mean[DEVICES]; /* the means that normalise each replica's chunk */
} buffer_view;

typedef struct observed {
    ek_module module;
    ek_module *conv, *norm;
    buffer_view *view; /* shared by all replicas, as plain members are */
    int index;         /* the replica's */
} observed;

/* Called on every replica before any runs: it learns which one it is, and leaves a handle on its
 * running mean, whose memory goes on when the replica's struct is gone. */
static int observed_replicated(ek_module *replica, ek_replication *replication)
{
    observed *self = (observed *)replica;
    ek_tensor *mean = ek_module_tensor(self->norm, "running_mean");
    if (!mean || replication->count > DEVICES)
        return mean ? ek_error(EK_E_USER, "there is room for %d replicas", DEVICES)
                    : ek_error_status();
    self->index = replication->index;
    ek_release(self->view->running_mean[self->index]);
    self->view->running_mean[self->index] = ek_keep(mean);
    return 0;
}

static ek_value observed_forward(ek_module *module, const ek_args *args)
{
    observed *self = (observed *)module;
    buffer_view *view = self->view;
    ek_tensor *mean = ek_module_tensor(self->norm, "running_mean");
    if (ek_to_data(mean, view->inside[self->index], sizeof(channel_means)) < 0)
        return ek_value_error();
    ek_tensor *x = ek_apply(self->conv, ek_arg_tensor(args, 0)); /* (N, CHANNELS, H, W) */
    mean = x ? ek_mean(ek_detach(x), EK_DIMS(0, 2, 3)) : NULL;
    if (!mean || ek_to_data(mean, view->batch_mean[self->index], sizeof(channel_means)) < 0)
        return ek_value_error();
    return ek_value_of_tensor(ek_sum(ek_apply(self->norm, x)));
}

static const ek_module_type observed_type = {
    .name = "observed",
    .size = sizeof(observed),
    .forward = observed_forward,
    .replicated = observed_replicated,
};

/* A convolution of 3 channels, batch normalisation, and the sum of all that comes out (a scalar).
 * Its replicas show themselves in *view if the replication callback is patched in. */
static ek_module *observed_network(buffer_view *view)
{
    observed *self = (observed *)ek_module_new(&observed_type);
    if (!self)
        return NULL;
    self->view = view;
    ek_register_module(&self->module, "conv", &self->conv, ek_conv2d(3, CHANNELS, 3, .padding = 1));
    ek_register_module(&self->module, "norm", &self->norm, ek_batch_norm2d(CHANNELS));
    return ek_module_finish(&self->module);
}

/* ---- two training steps under one policy ---- */

/* The devices that this process sees: all, or of two ranks its own. */
static int first_device, end_device = DEVICES;

static bool over_ranks(void)
{
    return end_device - first_device < DEVICES;
}

/* Two steps, and the running means of each device, again and again. */
typedef struct training {
    ek_module *model; /* data parallel over DEVICES devices */
    ek_optimizer *optimizer;
    ek_tensor *batch; /* zeros for the first device, ones for the second */
    buffer_view view; /* what the last forward showed */
    int looks;
    const char *moments[MOST_LOOKS]; /* "inside the first forward" */
    channel_means means[MOST_LOOKS][DEVICES];
    double loss; /* of the first forward */
} training;

/* Without replicas there is no callback: a rank's network is told which one it is. */
static ek_module *wrap_rank(ek_module *network, buffer_view *view, bool sends)
{
    ek_module *model = ek_distributed_data_parallel(network, .broadcast_buffers = sends);
    ek_tensor *mean = model ? ek_module_tensor(model, "norm.running_mean") : NULL;
    if (mean) {
        ((observed *)network)->index = first_device;
        view->running_mean[first_device] = ek_keep(mean);
    }
    return model;
}

static int train_begin(training *run, buffer_policy policy, const ek_device_list *devices,
                       uint64_t seed)
{
    const ek_shape half = EK_SHAPE(7, 3, 5, 5);
    const bool sends = policy != POLICY_KEPT;
    ek_manual_seed(seed);
    ek_module *network = observed_network(&run->view);
    if (network && policy == POLICY_SYNCHRONISED && !ek_convert_sync_batch_norm(network)) {
        ek_module_free(network);
        network = NULL;
    }
    run->model = over_ranks() ? wrap_rank(network, &run->view, sends)
                              : ek_data_parallel(network, *devices, .broadcast_buffers = sends);
    run->optimizer = run->model ? ek_adam(run->model, .lr = 1e-3) : NULL;
    ek_tensor *const halves[DEVICES] = {ek_zeros(half), ek_ones(half)};
    run->batch = ek_cat(halves + first_device, end_device - first_device, 0);
    if (!run->optimizer || !run->batch)
        return ek_error_status();
    return over_ranks() ? 0 : ek_patch_replication_callback(run->model);
}

/* The next look's means, for the caller to fill in. */
static channel_means *train_look(training *run, const char *moment)
{
    run->moments[run->looks] = moment;
    return run->means[run->looks++];
}

/* Looks at the running means of all devices as they are now. */
static int train_look_now(training *run, const char *moment)
{
    channel_means *means = train_look(run, moment);
    for (int d = first_device; d < end_device; d++)
        if (ek_to_data(run->view.running_mean[d], means[d], sizeof means[d]) < 0)
            return ek_error_status();
    return 0;
}

/* The mean of the squared sums; looks inside the forward and after it. */
static ek_tensor *train_forward(training *run, const char *inside)
{
    ek_tensor *sums = ek_apply(run->model, run->batch); /* one per device */
    memcpy(train_look(run, inside), run->view.inside, sizeof run->view.inside);
    if (!sums || train_look_now(run, "after it") < 0)
        return NULL;
    return ek_mean(ek_square(sums));
}

static int train_steps(training *run, buffer_policy policy)
{
    ek_tensor *loss = train_forward(run, "inside the first forward");
    if (policy == POLICY_EXTRA)
        train_forward(run, "inside the extra forward");
    if (ek_minimize(run->optimizer, loss, .value = &run->loss) < 0 ||
        train_look_now(run, "after backward and step") < 0)
        return ek_error_status();
    train_forward(run,
                  policy == POLICY_EXTRA ? "inside the next forward" : "inside the second forward");
    return ek_error_status();
}

/* Of two ranks each has looked at its own device; afterwards both have all that was seen. */
static int train_share(training *run)
{
    const ek_shape shape = EK_SHAPE(MOST_LOOKS + 1, DEVICES, CHANNELS);
    float seen[MOST_LOOKS + 1][DEVICES][CHANNELS] = {{{0}}};
    for (int i = 0; i < run->looks; i++)
        memcpy(seen[i][first_device], run->means[i][first_device], sizeof(channel_means));
    memcpy(seen[MOST_LOOKS][first_device], run->view.batch_mean[first_device],
           sizeof(channel_means));
    ek_tensor *all = ek_from_data(seen, shape, EK_F32, .device = ek_cpu());
    if (ek_dist_all_reduce(all, .op = EK_DIST_SUM) < 0 || ek_to_data(all, seen, sizeof seen) < 0)
        return ek_error_status();
    memcpy(run->means, seen, sizeof run->means);
    memcpy(run->view.batch_mean, seen[MOST_LOOKS], sizeof run->view.batch_mean);
    return 0;
}

/* What it makes is freed; the looks stay. */
static int train_twice(buffer_policy policy, const ek_device_list *devices, uint64_t seed,
                       training *run)
{
    ek_scope scope = ek_scope_begin();
    *run = (training){0};
    int rc = train_begin(run, policy, devices, seed);
    if (rc == 0)
        rc = train_steps(run, policy);
    if (rc == 0 && over_ranks())
        rc = train_share(run);
    ek_optimizer_free(run->optimizer);
    ek_module_free(run->model);
    for (int d = 0; d < DEVICES; d++)
        ek_release(run->view.running_mean[d]);
    ek_scope_end(&scope);
    return rc;
}

/* ---- the program ---- */

static void print_means(const ek_device_list *devices, const char *moment,
                        channel_means means[DEVICES])
{
    for (int d = 0; d < DEVICES; d++) {
        char name[16] = "rank 0";
        name[5] = (char)('0' + d);
        if (!over_ranks())
            ek_device_name(devices->devices[d], name);
        printf("  %-26s%s ", d ? "" : moment, name);
        for (int c = 0; c < CHANNELS; c++)
            printf(" %11.7f", (double)means[d][c]);
        putchar('\n');
    }
}

static int show(buffer_policy policy, const ek_device_list *devices, uint64_t seed)
{
    training run;
    int rc = train_twice(policy, devices, seed, &run);
    if (rc < 0 || first_device > 0) /* the rank of the first device prints */
        return rc;
    printf("%s: %s\n", policy_names[policy], policy_lines[policy]);
    for (int i = 0; i < run.looks; i++)
        print_means(devices, run.moments[i], run.means[i]);
    print_means(devices, "mean of the last batch", run.view.batch_mean);
    printf("  %-26s%.4g\n\n", "loss", run.loss);
    return 0;
}

/* Finds the devices: this process's, or of two ranks one on each. */
static int open_devices(ek_device_list *devices)
{
    int ranks = ek_dist_get_world_size(NULL);
    if (ranks != 1 && ranks != DEVICES)
        return args_complain("%d ranks: it is for one or two", ranks);
    *devices = ranks == 1 ? devices_open(opt.device, DEVICES)
                          : ek_dist_devices((ek_device_kind)opt.device);
    if (devices->count < (ranks == 1 ? DEVICES : 1))
        return args_complain("%d devices are needed: %s", DEVICES, ek_error_message());
    if (ranks > 1) {
        first_device = ek_dist_get_rank(NULL);
        end_device = first_device + 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv, about, option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    ek_device_list devices;
    if (ek_dist_init_process_group() < 0)
        return args_fail(FAILED);
    if (open_devices(&devices) < 0)
        return REFUSED;
    for (int p = 0; p < POLICIES; p++) {
        if (opt.case_ != POLICIES && opt.case_ != p)
            continue;
        if (show((buffer_policy)p, &devices, (uint64_t)opt.seed) < 0) {
            args_complain("%s: %s", policy_names[p], ek_error_message());
            return FAILED;
        }
    }
    return ek_shutdown() < 0 ? FAILED : 0;
}

/* stage_train.c: the first and later steps of every way to train. */
#include <string.h>

#include "fault.h"

typedef enum train_wrapper { TRAIN_PLAIN, TRAIN_CLASSIC, TRAIN_BALANCED } train_wrapper;
typedef enum train_rule { TRAIN_ADAM, TRAIN_ADAMW, TRAIN_SGD } train_rule;

typedef struct train_row {
    const char *name;
    train_wrapper wrapper;
    train_rule rule;
    ek_shard_policy shard;
    ek_split_policy split;
    ek_offload_policy offload;
    int devices; /* 0: all */
    int micro_batches;
    double max_norm;
    bool later;        /* a step after the first */
    bool calls;        /* forward, loss, ek_minimize; else ek_train_step */
    bool synchronised; /* batch normalisation of the whole batch */
    bool narrow;       /* autocast to bf16 */
    bool average;      /* of running statistics */
    bool nested;       /* inputs are a list */
    bool own_buffers;  /* of each replica */
    bool accumulate;   /* gradients only */
} train_row;

static const train_row rows[] = {
    /* The plans of these depend on what failed: they are the rows of a stage that is compared with
     * a tolerance. */
    {"memory", TRAIN_BALANCED, TRAIN_SGD, .split = EK_SPLIT_AUTO, .synchronised = true,
     .later = true},
    {"sharded", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_OPTIMIZER, EK_SPLIT_AUTO, .synchronised = true,
     .later = true},
    {"micro", TRAIN_BALANCED, TRAIN_SGD, .split = EK_SPLIT_AUTO, .synchronised = true,
     .micro_batches = 2},
    {"single", TRAIN_PLAIN, TRAIN_SGD, .later = false},
    {"single-later", TRAIN_PLAIN, TRAIN_ADAM, .later = true, .max_norm = 0.1},
    {"single-micro", TRAIN_PLAIN, TRAIN_ADAMW, .micro_batches = 3},
    {"single-calls", TRAIN_PLAIN, TRAIN_SGD, .calls = true, .max_norm = 0.1},
    {"single-bf16", TRAIN_PLAIN, TRAIN_ADAM, .narrow = true},
    {"classic", TRAIN_CLASSIC, TRAIN_SGD, .later = false},
    {"classic-later", TRAIN_CLASSIC, TRAIN_SGD, .later = true, .average = true},
    {"classic-calls", TRAIN_CLASSIC, TRAIN_ADAM, .calls = true, .max_norm = 0.1},
    {"classic-sync", TRAIN_CLASSIC, TRAIN_ADAMW, .synchronised = true, .own_buffers = true},
    {"balanced", TRAIN_BALANCED, TRAIN_ADAM, .later = false},
    {"balanced-later", TRAIN_BALANCED, TRAIN_ADAM, .later = true, .max_norm = 0.1},
    {"balanced-calls", TRAIN_BALANCED, TRAIN_SGD, .calls = true},
    {"balanced-sync", TRAIN_BALANCED, TRAIN_ADAMW, .synchronised = true},
    {"balanced-bf16", TRAIN_BALANCED, TRAIN_ADAM, .narrow = true, .later = true},
    {"balanced-micro", TRAIN_BALANCED, TRAIN_SGD, .micro_batches = 2},
    {"balanced-nested", TRAIN_BALANCED, TRAIN_SGD, .nested = true, .average = true},
    {"balanced-even", TRAIN_BALANCED, TRAIN_SGD, .split = EK_SPLIT_EVEN, .own_buffers = true},
    {"balanced-accumulate", TRAIN_BALANCED, TRAIN_ADAM, .accumulate = true, .later = true},
    {"sharded", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_OPTIMIZER, .later = false},
    {"sharded-later", TRAIN_BALANCED, TRAIN_ADAMW, EK_SHARD_OPTIMIZER, .later = true},
    {"sharded-micro", TRAIN_BALANCED, TRAIN_SGD, EK_SHARD_OPTIMIZER, .micro_batches = 2,
     .max_norm = 0.1, .later = true},
    {"sharded-calls", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_OPTIMIZER, .calls = true,
     .synchronised = true},
    {"sharded-accumulate", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_OPTIMIZER, .accumulate = true},
    {"parameters", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_PARAMETERS, .later = false},
    {"parameters-later", TRAIN_BALANCED, TRAIN_ADAMW, EK_SHARD_PARAMETERS, .later = true},
    {"parameters-micro", TRAIN_BALANCED, TRAIN_SGD, EK_SHARD_PARAMETERS, .micro_batches = 2,
     .max_norm = 0.1, .later = true},
    {"parameters-calls", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_PARAMETERS, .calls = true,
     .synchronised = true},
    {"parameters-bf16", TRAIN_BALANCED, TRAIN_ADAM, EK_SHARD_PARAMETERS, .narrow = true,
     .later = true},
    {"offload", TRAIN_BALANCED, TRAIN_ADAM, .offload = EK_OFFLOAD_OPTIMIZER, .later = false},
    {"offload-later", TRAIN_BALANCED, TRAIN_ADAMW, .offload = EK_OFFLOAD_OPTIMIZER, .devices = 1,
     .later = true},
    {"offload-calls", TRAIN_BALANCED, TRAIN_ADAM, .offload = EK_OFFLOAD_OPTIMIZER, .calls = true,
     .synchronised = true, .later = true},
    {"offload-parameters", TRAIN_BALANCED, TRAIN_SGD, EK_SHARD_PARAMETERS,
     .offload = EK_OFFLOAD_OPTIMIZER, .micro_batches = 2, .max_norm = 0.1, .later = true},
};

enum { TRAIN_AUTO = 3, TRAIN_ROWS = sizeof rows / sizeof *rows };

static struct {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *x, *y;
} train;

static ek_module *train_net(const train_row *row)
{
    ek_module *net =
        ek_sequential(ek_conv2d(1, 2, 3, .padding = 1), ek_batch_norm2d(2), ek_leaky_relu(0.2),
                      ek_checkpoint(ek_sequential(ek_conv2d(2, 2, 1), ek_tanh())),
                      row->split == EK_SPLIT_AUTO ? ek_identity() : ek_dropout(0.25),
                      ek_flatten(1, -1), ek_linear(2 * 9, 3));
    return row->synchronised ? ek_convert_sync_batch_norm(net) : net;
}

static ek_device_list train_devices(const train_row *row)
{
    ek_device_list devices = fault_devices();
    devices.count = row->devices ? row->devices : devices.count;
    return devices;
}

/* The wrapper takes the net over. */
static ek_module *train_wrap(const train_row *row)
{
    ek_device_list devices = train_devices(row);
    ek_running_stats stats = row->average ? EK_RUNNING_STATS_AVERAGE : EK_RUNNING_STATS_FIRST;
    bool buffers = !row->own_buffers;
    if (row->wrapper == TRAIN_PLAIN)
        return train.net;
    if (row->wrapper == TRAIN_CLASSIC)
        return ek_data_parallel(train.net, .device_ids = devices, .running_stats = stats,
                                .broadcast_buffers = buffers);
    return ek_data_parallel_model(train.net, .device_ids = devices, .running_stats = stats,
                                  .shard = row->shard, .split = row->split, .offload = row->offload,
                                  .broadcast_buffers = buffers);
}

static ek_optimizer *train_optimizer(train_rule rule, ek_module *model)
{
    if (rule == TRAIN_SGD)
        return ek_sgd(model, .lr = 0.1, .momentum = 0.9);
    if (rule == TRAIN_ADAMW)
        return ek_adamw(model, .lr = 0.01, .amsgrad = true);
    return ek_adam(model, .lr = 0.01, .weight_decay = 0.01);
}

static int train_make(const train_row *row)
{
    train.net = train_net(row);
    train.model = train_wrap(row);
    if (!train.model)
        train.net = NULL;
    train.criterion = ek_cross_entropy_loss(.label_smoothing = 0.1);
    if (row->wrapper == TRAIN_BALANCED)
        train.criterion =
            ek_data_parallel_criterion(train.criterion, .device_ids = train_devices(row));
    train.optimizer = train_optimizer(row->rule, train.model);
    train.x = ek_keep(ek_randn(EK_SHAPE(7, 1, 3, 3)));
    train.y = ek_keep(ek_randint(0, 3, EK_SHAPE(7)));
    return ek_error_status();
}

/* ---- the step ---- */

static ek_value train_input(const train_row *row)
{
    return row->nested ? EK_LIST(train.x) : EK_VALUE(train.x);
}

static int train_whole(const train_row *row, double *loss)
{
    return ek_train_step(loss, .model = train.model, .criterion = train.criterion,
                         .optimizer = train.optimizer, .input = train_input(row),
                         .target = EK_VALUE(train.y), .micro_batches = row->micro_batches,
                         .max_norm = row->max_norm, .accumulate_only = row->accumulate);
}

static int train_calls(const train_row *row, double *loss)
{
    ek_grad_scaler *scaler = row->max_norm > 0 ? ek_grad_scaler_new(.init_scale = 8) : NULL;
    ek_tensor *l = ek_loss(train.criterion, ek_forward(train.model, train_input(row)), train.y);
    int status = row->max_norm > 0 && !scaler
                     ? ek_error_status()
                     : ek_minimize(train.optimizer, l, .max_norm = row->max_norm, .scaler = scaler,
                                   .value = loss);
    ek_grad_scaler_free(scaler);
    return status;
}

static int train_step(const train_row *row)
{
    double loss = 0;
    ek_autocast autocast = ek_autocast_begin(row->narrow ? EK_BF16 : EK_F32);
    int status = row->calls ? train_calls(row, &loss) : train_whole(row, &loss);
    ek_autocast_end(&autocast);
    fault_note(loss);
    return status;
}

/* ---- the stage ---- */

static int train_set_up(int row)
{
    const train_row *r = &rows[row + TRAIN_AUTO];
    int status = train_make(r);
    if (status >= 0 && r->later) {
        train_row before = *r;
        before.accumulate = false;
        status = train_step(&before);
        ek_zero_grad(train.optimizer);
    }
    return status;
}

static int train_attempt(int row)
{
    return train_step(&rows[row + TRAIN_AUTO]);
}

/* A whole step that failed has removed the gradients. Running statistics have moved with the
 * forward, whatever failed after it. */
static int train_world(int row)
{
    int status = fault_note_parameters(train.model);
    if (status >= 0)
        status = fault_note_optimizer(train.optimizer, train.model);
    if (status >= 0 && !rows[row + TRAIN_AUTO].calls)
        status = fault_note_gradients(train.model);
    return status;
}

static void train_clear(int row)
{
    ek_optimizer_free(train.optimizer);
    ek_module_free(train.model);
    ek_module_free(train.criterion);
    ek_release(train.x);
    ek_release(train.y);
    memset(&train, 0, sizeof train);
}

FAULT_STAGE(train, .rows = TRAIN_ROWS - TRAIN_AUTO, .names = &rows[TRAIN_AUTO],
            .stride = sizeof *rows, .set_up = train_set_up, .attempt = train_attempt,
            .world = train_world, .clear = train_clear);

/* ---- plans by measurement ----
 *
 * Which samples a device gets depends on what failed, and with it how sums are rounded: what a
 * success computes is compared as numbers, the last layer's parameters among them. */

static int auto_set_up(int row)
{
    return train_set_up(row - TRAIN_AUTO);
}

static int auto_attempt(int row)
{
    return train_attempt(row - TRAIN_AUTO);
}

static int auto_world(int row)
{
    ek_module *last = NULL, *layer;
    int status = train_world(row - TRAIN_AUTO);
    for (int i = 0; status >= 0 && (layer = ek_module_child(train.net, i)) != NULL; i++)
        last = layer;
    if (status >= 0)
        status = fault_note_numbers(ek_module_tensor(last, "weight"));
    return status < 0 ? status : fault_note_numbers(ek_module_tensor(last, "bias"));
}

FAULT_STAGE(auto, .rows = TRAIN_AUTO, .names = rows, .stride = sizeof *rows, .set_up = auto_set_up,
            .attempt = auto_attempt, .world = auto_world, .clear = train_clear, .tolerance = 1e-3);

/* ---- a training that fits ----
 *
 * What it chooses depends on times and on what failed; that the chosen training can be made is
 * noted. */

static ek_optimizer *fit_optimizer(ek_module *model, void *user)
{
    return train_optimizer(TRAIN_SGD, model);
}

static int fit_set_up(int row)
{
    train.net = ek_sequential(ek_sequential(ek_linear(3, 3), ek_tanh()), ek_linear(3, 3));
    train.criterion = ek_cross_entropy_loss();
    train.x = ek_keep(ek_randn(EK_SHAPE(4, 3)));
    train.y = ek_keep(ek_randint(0, 3, EK_SHAPE(4)));
    train.model = train.net;
    return ek_error_status();
}

static int fit_attempt(int row)
{
    ek_fit_result fit;
    ek_device_list devices = fault_devices();
    devices.count = 1;
    int status = ek_fit(&fit, .module = train.net, .criterion = train.criterion,
                        .optimizer = fit_optimizer, .input = EK_VALUE(train.x),
                        .target = EK_VALUE(train.y), .device_ids = devices, .checkpoint = row == 1,
                        .shard = EK_SHARD_NONE, .offload = false, .micro_batches = 1);
    FAULT_TRY(status);
    ek_module *model = ek_fit_model(&fit, ek_module_copy(train.net));
    ek_module *criterion = ek_fit_criterion(&fit, ek_module_copy(train.criterion));
    FILE *stream = fopen("/dev/null", "w");
    status = stream ? ek_fit_print(&fit, stream) : 0;
    if (stream)
        fclose(stream);
    ek_module_free(model);
    ek_module_free(criterion);
    fault_note(1);
    return status < 0 ? status : ek_error_status();
}

static int fit_world(int row)
{
    return fault_note_parameters(train.net);
}

static const char *const fits[] = {"plain", "checkpoints"};

FAULT_STAGE(fit, FAULT_ROWS(fits), .set_up = fit_set_up, .attempt = fit_attempt, .world = fit_world,
            .clear = train_clear, .keeps_world = true, .tolerance = 1);

/* ---- from nothing: devices, threads, the model, a step ---- */

static const char *const builds[] = {"single", "classic-later", "balanced-sync", "sharded-calls"};

static int build_attempt(int row)
{
    const train_row *r = rows + TRAIN_AUTO;
    while (strcmp(r->name, builds[row]) != 0)
        r++;
    int status = fault_use_one_thread();
    if (status >= 0)
        status = train_make(r);
    if (status >= 0)
        status = train_step(r);
    if (status >= 0)
        status = fault_note_parameters(train.model);
    train_clear(row);
    return status;
}

FAULT_STAGE(build, FAULT_ROWS(builds), .attempt = build_attempt, .cold = true);

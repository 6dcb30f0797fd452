/* data_parallel.c: the first program with data parallelism: one line makes a model run on several
 * devices, and each replica says what it sees of a batch. */
#include <stdio.h>

#include <evenkeel/evenkeel.h>

#include "common/args.h"
#include "common/devices.h"

/* Exit statuses: 0 well, 1 the run failed, 2 it was not begun. */
enum { FAILED = 1, REFUSED = 2 };

enum { INPUT_SIZE = 5, OUTPUT_SIZE = 2, BATCH_SIZE = 30, DATA_SIZE = 100 };

static const char about[] =
    "Runs a linear layer of 5 inputs and 2 outputs, data parallel, over 100 random rows in "
    "shuffled\n"
    "batches of 30, and prints the sizes that each replica, and the caller, sees.\n\n"
    "Options (and defaults):\n";

/* ---- the model: a user's own module ---- */

/* What the replicas say: one line each, printed when all have spoken, in the devices' order. */
typedef struct said {
    ek_device_list devices;
    char lines[EK_MAX_DEVICES][400];
} said;

typedef struct model {
    ek_module module;
    ek_module *fc;
    said *said; /* replicas share what pointers point to */
} model;

static char *line_of(said *all, ek_device device)
{
    int at = 0;
    while (at + 1 < all->devices.count && !ek_device_equal(all->devices.devices[at], device))
        at++;
    return all->lines[at];
}

static ek_value model_forward(ek_module *module, const ek_args *args)
{
    model *self = (model *)module;
    ek_tensor *input = ek_arg_tensor(args, 0);
    ek_tensor *output = ek_apply(self->fc, input);
    char in_text[160], out_text[160];

    if (output) {
        ek_shape in = ek_tensor_shape(input), out = ek_tensor_shape(output);
        snprintf(line_of(self->said, ek_tensor_device(input)), sizeof(self->said->lines[0]),
                 "\tIn Model: input size %s output size %s\n", ek_shape_text(&in, in_text),
                 ek_shape_text(&out, out_text));
    }
    return ek_value_of_tensor(output);
}

static const ek_module_type model_type = {.name = "model",
                                          .size = sizeof(model),
                                          .forward = model_forward};

static ek_module *model_new(said *all)
{
    model *self = (model *)ek_module_new(&model_type);

    if (!self)
        return NULL;
    self->said = all;
    ek_register_module(&self->module, "fc", &self->fc, ek_linear(INPUT_SIZE, OUTPUT_SIZE));
    return ek_module_finish(&self->module);
}

/* ---- the run ---- */

static void print_batch(said *all, const ek_batch *batch, ek_value output)
{
    ek_shape in = ek_tensor_shape(ek_value_tensor(batch->input));
    ek_shape out = ek_tensor_shape(ek_value_tensor(output));
    char in_text[160], out_text[160];

    for (int d = 0; d < all->devices.count; d++) {
        fputs(all->lines[d], stdout);
        all->lines[d][0] = '\0'; /* a small batch may leave a device out */
    }
    printf("Outside: input size %s output_size %s\n", ek_shape_text(&in, in_text),
           ek_shape_text(&out, out_text));
}

static int run(ek_module *net, ek_loader *loader, said *all)
{
    ek_batch batch;
    int rc;

    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        ek_scope step = ek_scope_begin();
        ek_value output = ek_forward(net, batch.input);
        if (output.kind != EK_VALUE_ERROR)
            print_batch(all, &batch, output);
        ek_scope_end(&step);
        if (output.kind == EK_VALUE_ERROR)
            return ek_error_status();
    }
    return rc;
}

static int train_nothing(const ek_device_list *devices, int64_t seed)
{
    static said all;

    all.devices = *devices;
    ek_set_seed(seed);
    ek_module *net = model_new(&all);
    ek_tensor *rows = ek_randn(EK_SHAPE(DATA_SIZE, INPUT_SIZE));
    ek_loader *loader =
        ek_data_loader(ek_tensor_dataset(rows), .batch_size = BATCH_SIZE, .shuffle = true);
    if (devices->count > 1) {
        printf("Let's use %d GPUs!\n", devices->count);
        net = ek_data_parallel(net, .device_ids = *devices);
    }
    int rc = net && loader ? run(net, loader, &all) : ek_error_status();
    ek_loader_free(loader);
    ek_module_free(net);
    return rc;
}

int main(int argc, char **argv)
{
    arg_choice device = devices_choice();
    int64_t count = 2, seed = 0;
    const arg_spec args[] = {
        {"devices", ARG_INT, &count, 1, EK_MAX_DEVICES, "N", "how many devices"},
        {"device", ARG_CHOICE, &device, 0, 0, "KIND", "which kind of devices"},
        {"seed", ARG_INT, &seed, 0, 9007199254740992.0, "N", "of weights, rows and their order"},
    };
    const size_t number = sizeof(args) / sizeof(args[0]);
    char error[512];

    if (args_want_help(argc, argv)) {
        printf("usage: %s [option...]\n\n%s", argv[0], about);
        args_help(stdout, args, number);
        return 0;
    }
    if (args_parse(argc, argv, args, number, error, sizeof(error)) < 0) {
        args_complain(argv[0], "%s", error);
        return REFUSED;
    }
    ek_device_list devices = devices_open(devices_kind(&device), (int)count);
    if (devices.count < 1) {
        args_complain(argv[0], "%s", ek_error_message());
        return REFUSED;
    }
    int rc = train_nothing(&devices, seed);
    if (rc < 0) {
        args_complain(argv[0], "%s", ek_error_message());
        ek_error_clear();
    }
    return ek_shutdown() < 0 || rc < 0 ? FAILED : 0;
}

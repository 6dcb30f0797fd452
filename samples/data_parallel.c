/* data_parallel.c: the first program with data parallelism: one line makes a model run on several
 * devices, and each replica says what it sees of a batch. */
#include <evenkeel/evenkeel.h>

#include "args.h"

enum { INPUT_SIZE = 5, OUTPUT_SIZE = 2, BATCH_SIZE = 30, DATA_SIZE = 100 };

#define OPTIONS(ROW)                                              \
    ROW(int, devices, "2", 1, EK_MAX_DEVICES, "how many devices") \
    ROW(device, device, "which kind of devices")                  \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, rows and their order")
args_declare(OPTIONS);

/* ---- the model: a user's own module ---- */

typedef struct model {
    ek_module module;
    ek_module *fc;
} model;

/* What the replica on each device sees, printed when all have run. */
static ek_shape seen_input[EK_MAX_DEVICES], seen_output[EK_MAX_DEVICES];

static ek_value model_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *input = ek_arg_tensor(args, 0), *output = ek_apply(((model *)module)->fc, input);
    if (output) {
        int device = ek_tensor_device(input).index;
        seen_input[device] = ek_tensor_shape(input);
        seen_output[device] = ek_tensor_shape(output);
    }
    return ek_value_of_tensor(output);
}

static const ek_module_type model_type = {"model", sizeof(model), .forward = model_forward};

static ek_module *model_new(void)
{
    model *self = (model *)ek_module_new(&model_type);
    if (!self)
        return NULL;
    ek_register_module(&self->module, "fc", &self->fc, ek_linear(INPUT_SIZE, OUTPUT_SIZE));
    return ek_module_finish(&self->module);
}

/* ---- the run ---- */

static void print_sizes(const char *format, ek_shape input, ek_shape output)
{
    char input_text[160], output_text[160];
    printf(format, ek_shape_text(&input, input_text), ek_shape_text(&output, output_text));
}

static int run(ek_module *net, ek_loader *loader, int devices)
{
    ek_batch batch;
    int rc;
    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        ek_scope step = ek_scope_begin();
        ek_tensor *input = ek_value_tensor(batch.input), *output = ek_apply(net, input);
        for (int d = 0; d < devices && output; d++) {
            if (seen_input[d].ndim > 0) /* a small batch may leave a device out */
                print_sizes("\tIn Model: input size %s output size %s\n", seen_input[d],
                            seen_output[d]);
            seen_input[d].ndim = 0;
        }
        if (output)
            print_sizes("Outside: input size %s output_size %s\n", ek_tensor_shape(input),
                        ek_tensor_shape(output));
        ek_scope_end(&step);
        if (!output)
            return ek_error_status();
    }
    return rc;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv,
                       "Runs a linear layer of 5 inputs and 2 outputs, data parallel, over 100 "
                       "random rows in shuffled\nbatches of 30, and prints the sizes that each "
                       "replica, and the caller, sees.\n\n",
                       option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    ek_device_list devices = devices_open(opt.device, (int)opt.devices);
    if (devices.count < 1)
        return args_fail(REFUSED);
    ek_set_seed(opt.seed);
    ek_module *net = model_new();
    ek_tensor *rows = ek_randn(EK_SHAPE(DATA_SIZE, INPUT_SIZE));
    ek_loader *loader =
        ek_data_loader(ek_tensor_dataset(rows), .batch_size = BATCH_SIZE, .shuffle = true);
    if (devices.count > 1) {
        printf("Let's use %d GPUs!\n", devices.count);
        net = ek_data_parallel(net, .device_ids = devices);
    }
    rc = net && loader ? run(net, loader, devices.count) : ek_error_status();
    ek_loader_free(loader);
    ek_module_free(net);
    int shut = rc < 0 ? args_fail(FAILED) : 0;
    return ek_shutdown() < 0 ? FAILED : shut;
}

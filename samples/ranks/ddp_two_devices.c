/* ddp_two_devices.c: ek_distributed_data_parallel around a model that spans two devices: of each
 * rank's two devices the first has the first layer, the second has the second.
 *
 *     samples/mpirun -n 2 build/samples/ddp_two_devices */
#include <evenkeel/evenkeel.h>

#include "../args.h"

#define OPTIONS(ROW) ROW(device, device, "which kind of devices")
args_declare(OPTIONS);

/* ---- the model: layers on two devices ---- */

typedef struct two_devices {
    ek_module module;
    ek_module *net1, *net2;
    ek_device first, second;
} two_devices;

static ek_value two_devices_forward(ek_module *module, const ek_args *args)
{
    two_devices *self = (two_devices *)module;
    ek_tensor *x = ek_to_device(ek_arg_tensor(args, 0), self->first);
    x = ek_f_relu(ek_apply(self->net1, x));
    return ek_value_of_tensor(ek_apply(self->net2, ek_to_device(x, self->second)));
}

static const ek_module_type two_devices_type = {"two_devices", sizeof(two_devices),
                                                .forward = two_devices_forward};

static ek_module *two_devices_new(ek_device first, ek_device second)
{
    two_devices *self = (two_devices *)ek_module_new(&two_devices_type);
    if (!self)
        return NULL;
    self->first = first;
    self->second = second;
    ek_register_module(&self->module, "net1", &self->net1, ek_linear(10, 10));
    ek_register_module(&self->module, "net2", &self->net2, ek_linear(10, 5));
    if (ek_error_status() == 0) {
        ek_module_to_device(self->net1, first);
        ek_module_to_device(self->net2, second);
    }
    return ek_module_finish(&self->module);
}

/* ---- the run ---- */

/* One step; outputs are on the second device, and the criterion moves the labels there. */
static int train_step(ek_module *model, ek_module *criterion, ek_optimizer *optimizer)
{
    char device[16];
    double value;
    ek_tensor *outputs = ek_apply(model, ek_randn(EK_SHAPE(20, 10)));
    ek_tensor *loss = ek_loss(criterion, outputs, ek_randn(EK_SHAPE(20, 5)));
    if (ek_minimize(optimizer, loss, .value = &value) < 0)
        return ek_error_status();
    printf("Rank %d: outputs on %s, loss %.6f\n", ek_dist_get_rank(NULL),
           ek_device_name(ek_tensor_device(outputs), device), value);
    return 0;
}

static int run(void)
{
    /* Of host devices each process has its own, of GPUs its share. */
    ek_device_list devices =
        opt.device == EK_HOST ? devices_open(EK_HOST, 2) : ek_dist_devices(EK_CUDA);
    if (devices.count < 0)
        return ek_error_status();
    if (devices.count < 2)
        return ek_error(EK_E_USER, "each rank needs two devices, and this one has %d",
                        devices.count);
    ek_manual_seed(42);
    /* No .device_ids and .output_device: the model knows its devices. */
    ek_module *model =
        ek_distributed_data_parallel(two_devices_new(devices.devices[0], devices.devices[1]));
    ek_module *criterion = ek_mse_loss();
    ek_optimizer *optimizer = model ? ek_sgd(model, .lr = 0.001) : NULL;
    ek_manual_seed(1000 + (uint64_t)ek_dist_get_rank(NULL)); /* numbers of its own on each rank */
    ek_scope scope = ek_scope_begin();
    char hash[65];
    int rc = optimizer ? train_step(model, criterion, optimizer) : ek_error_status();
    ek_scope_end(&scope);
    if (rc == 0 && (rc = ek_module_sha256(model, hash)) == 0)
        printf("Rank %d, parameters: %.16s\n", ek_dist_get_rank(NULL), hash);
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(model);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv,
                       "Trains a model that spans two devices, data parallel over ranks.\n\n",
                       option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    rc = ek_dist_init_process_group();
    if (rc == 0) {
        rc = run();
        ek_dist_raise();
    }
    if (rc < 0)
        ek_dist_print_error(stderr);
    return ek_shutdown() < 0 || rc < 0 ? FAILED : 0;
}

#include <evenkeel/evenkeel.h>

int main(void)
{
    ek_host_devices_configure("2"); /* as EVENKEEL_HOST_DEVICES=2 does */
    ek_module *net = ek_sequential(ek_linear(4, 8), ek_relu(), ek_linear(8, 2));
    ek_module *model = ek_data_parallel(net, .device_ids = ek_devices(EK_HOST, 2));
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.1, .momentum = 0.9);
    ek_module *criterion = ek_mse_loss();
    for (int i = 0; i < 10 && ek_error_status() == 0; i++) {
        ek_scope step = ek_scope_begin();
        ek_tensor *y = ek_apply(model, ek_randn(EK_SHAPE(6, 4)));
        ek_minimize(optimizer, ek_loss(criterion, y, ek_zeros(EK_SHAPE(6, 2))));
        ek_scope_end(&step);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(model);
    int failed = ek_error_status() < 0 || ek_shutdown() < 0;
    ek_print_error(stderr);
    return failed;
}

/* Two devices, the classic way and balanced: one loss, and where the memory goes. */
#include <evenkeel/evenkeel.h>

enum { STEPS = 3, WORDS = 4096, BATCH = 256 };

/* A few steps from one seed. Writes the last loss, and each device's peak in bytes. */
static int train(bool balanced, double *loss, uint64_t peaks[2])
{
    ek_device_list devices = ek_devices(EK_HOST, 2);
    ek_manual_seed(3);
    ek_module *net = ek_sequential(ek_linear(16, 64), ek_relu(), ek_linear(64, WORDS));
    ek_module *model, *criterion;
    if (balanced) { /* outputs stay on their devices, each computes its part of the loss */
        model = ek_data_parallel_model(net, .device_ids = devices);
        criterion = ek_data_parallel_criterion(ek_cross_entropy_loss(), .device_ids = devices);
    } else { /* as torch.nn.DataParallel: outputs are gathered on the first device */
        model = ek_data_parallel(net, .device_ids = devices);
        criterion = ek_cross_entropy_loss();
    }
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.5);
    ek_report *report = ek_report_start(balanced ? "balanced" : "classic", .device_ids = devices);
    int rc = report ? 0 : ek_error_status();
    for (int i = 0; i < STEPS && rc == 0; i++) {
        ek_scope step = ek_scope_begin();
        ek_tensor *x = ek_randn(EK_SHAPE(BATCH, 16)), *y = ek_randint(0, WORDS, EK_SHAPE(BATCH));
        ek_tensor *l = ek_loss(criterion, ek_forward(model, x), y); /* moves y to the output */
        rc = ek_minimize(optimizer, l, .value = loss);
        ek_scope_end(&step);
        ek_report_step(report);
    }
    ek_report_stop(report); /* ek_report_html(path, &report, 1) would make a page of it */
    for (int d = 0; d < 2 && rc == 0; d++) {
        ek_device_report device;
        rc = ek_report_get_device(report, d, &device);
        peaks[d] = device.peak.in_use;
    }
    ek_report_free(report);
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(model);
    return rc;
}

int main(void)
{
    int rc = ek_host_devices_configure("2"); /* two logical devices, on any machine */
    for (int balanced = 0; balanced < 2 && rc == 0; balanced++) {
        double loss;
        uint64_t peaks[2];
        rc = train(balanced, &loss, peaks);
        if (rc == 0)
            printf("%-8s  loss %.4f  host:0 %3.0f MiB  host:1 %3.0f MiB\n",
                   balanced ? "balanced" : "classic", loss, (double)peaks[0] / (1 << 20),
                   (double)peaks[1] / (1 << 20));
    }
    if (rc < 0)
        ek_print_error(stderr);
    return ek_shutdown() < 0 || rc < 0;
}

/* classify.c: trains a residual network on Fashion-MNIST or CIFAR-10, from the files to the test:
 * augmentation, loader, schedule, checkpoints, one device or several. */
#include "classify/report.h"
#include "classify/train.h"
#include "common/interrupt.h"

/* Exit statuses: 0 well, 1 the run failed, 2 it was not begun, interrupt_status() where a
 * signal stopped it. */
enum { FAILED = 1, REFUSED = 2 };

static int finish(const train_run *run, int argc, char **argv)
{
    char path[4096];

    if (run->settings.out)
        train_checkpoint_path(run, path, sizeof(path));
    if (run->settings.json && report_json(run->settings.json, run) < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], ek_error_message());
        ek_error_clear();
        return FAILED;
    }
    if (run->step < run->last_step) {
        interrupt_explain(run->step, run->settings.out ? path : NULL, argc, argv);
        return interrupt_status();
    }
    report_table(stdout, run);
    if (run->settings.out)
        printf("Checkpoint: %s\n", path);
    return 0;
}

/* What went wrong, and where in the run. */
static void complain(const train_run *run, const char *program)
{
    if (run->step > 0)
        fprintf(stderr, "%s: after step %lld: %s\n", program, (long long)run->step,
                ek_error_message());
    else
        fprintf(stderr, "%s: %s\n", program, ek_error_message());
}

int main(int argc, char **argv)
{
    run_settings settings;
    train_run run;
    int rc = settings_parse(&settings, argc, argv);

    if (rc != 0)
        return rc == SETTINGS_HELP ? 0 : REFUSED;
    const volatile sig_atomic_t *stopped = interrupt_catch();
    ek_device_list devices = settings_devices(&settings);
    int status = REFUSED;
    rc = train_open(&run, &settings, &devices);
    bool lacks_data = rc < 0 && !run.has_data;
    if (rc == 0) {
        status = FAILED;
        rc = train_steps(&run, stopped);
    }
    if (rc == 0)
        status = finish(&run, argc, argv);
    else
        complain(&run, argv[0]);
    if (lacks_data)
        data_explain(argv[0], &settings);
    ek_error_clear();
    if (train_close(&run) < 0 && status == 0) {
        fprintf(stderr, "%s: %s\n", argv[0], ek_error_message());
        status = FAILED;
    }
    return status;
}

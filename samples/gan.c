/* gan.c: trains a DCGAN on Fashion-MNIST with a gradient penalty: gradients of gradients on one
 * device or several, losses and penalty in one place or on every device. */
#include "common/interrupt.h"
#include "common/pictures.h"
#include "gan/report.h"
#include "gan/train.h"

/* Exit statuses: 0 well, 1 the run failed, 2 it was not begun, interrupt_status() where a
 * signal stopped it. */
enum { FAILED = 1, REFUSED = 2 };

static void print_devices(const ek_device_list *devices)
{
    for (int i = 0; i < devices->count; i++) {
        ek_memory_stats stats;
        char name[16];
        if (ek_memory_get(devices->devices[i], &stats) == 0)
            printf("%s%s %.1f MiB",
                   i ? ", " : "Peak memory: ", ek_device_name(devices->devices[i], name),
                   (double)stats.peak / (double)(1 << 20));
    }
    putchar('\n');
}

static int finish(train_run *run, int argc, char **argv)
{
    if (run->settings.json && report_json(run->settings.json, run) < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], ek_error_message());
        ek_error_clear();
        return FAILED;
    }
    if (run->step < run->settings.steps) {
        char path[4096];
        if (run->settings.out)
            train_checkpoint_path(run, path, sizeof(path));
        interrupt_explain(run->step, run->settings.out ? path : NULL, argc, argv);
        return interrupt_status();
    }
    print_devices(&run->job.devices);
    printf("Median step: %.0f ms\n", 1000 * records_median(&run->records, SECONDS));
    if (run->settings.out)
        printf("Pictures, charts, checkpoint: %s\n", run->settings.out);
    return 0;
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
    bool lacks_data = rc < 0 && !run.data.pixels;
    if (rc == 0) {
        status = FAILED;
        rc = train_steps(&run, stopped);
    }
    if (rc == 0)
        status = finish(&run, argc, argv);
    else
        fprintf(stderr, "%s: %s\n", argv[0], ek_error_message());
    if (lacks_data)
        pictures_explain(argv[0], settings.data);
    ek_error_clear();
    if (train_close(&run) < 0 && status == 0) {
        fprintf(stderr, "%s: %s\n", argv[0], ek_error_message());
        status = FAILED;
    }
    return status;
}

#include "classify/report.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/device_json.h"

static const double mebibyte = 1 << 20;

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- to read ---- */

static void print_epochs(FILE *stream, const run_records *records)
{
    int64_t best = records_best(records);

    fprintf(stream, "\n%5s %14s %10s %10s %8s %8s\n", "epoch", "training loss", "test loss",
            "accuracy", "seconds", "waiting");
    for (int64_t i = 0; i < records->count; i++) {
        const epoch_record *r = &records->epochs[i];
        fprintf(stream, "%5" PRId64 " %14.4f %10.4f %9.2f%% %8.1f %7.2f%%%s\n", i + 1,
                r->train_loss, r->test_loss, 100 * r->test_accuracy, r->seconds,
                100 * share(r->waited, r->seconds), i == best ? "  best" : "");
    }
}

static void print_device(FILE *stream, const train_job *job, int index)
{
    ek_device device = job->devices.devices[index];
    ek_memory_stats stats;
    char name[16];

    if (ek_memory_get(device, &stats) < 0)
        return;
    fprintf(stream, "%-8s %10.2f", ek_device_name(device, name), (double)stats.peak / mebibyte);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %13.2f", (double)stats.at_peak[c] / mebibyte);
    fputc('\n', stream);
}

void report_table(FILE *stream, const train_run *run)
{
    const train_job *job = &run->job;
    epoch_sums total = records_total(&run->records);

    if (run->records.count > 0)
        print_epochs(stream, &run->records);
    fprintf(stream, "\n%-8s %10s", "device", "peak MiB");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(stream, " %13s", ek_memory_category_name((ek_memory_category)c));
    fputc('\n', stream);
    for (int d = 0; d < job->devices.count; d++)
        print_device(stream, job, d);
    if (job->plan[0])
        fprintf(stream, "\nPlan: %s\n", job->plan);
    fprintf(stream,
            "\nStep %" PRId64 ": test loss %.4f, accuracy %.2f %% of %" PRId64
            " pictures. %.0f samples/s; %.2f %% of the\ntraining time was spent waiting for "
            "batches\n",
            run->step, run->tested.loss, 100 * run->tested.accuracy, run->tested.count, run->speed,
            100 * share(total.waited, total.seconds));
}

/* ---- JSON ---- */

static void write_settings(json_writer *json, const train_run *run)
{
    const run_settings *settings = &run->settings;

    json_begin(json, "settings", '{');
    json_put_text(json, "dataset", set_names[settings->set]);
    json_put_text(json, "mode", mode_names[settings->mode]);
    json_put_integer(json, "devices", run->job.devices.count);
    if (run->job.plan[0])
        json_put_text(json, "plan", run->job.plan);
    json_put_integer(json, "training_samples", run->train_count);
    json_put_integer(json, "epochs", settings->epochs);
    json_put_integer(json, "epoch_steps", run->epoch_steps);
    json_put_integer(json, "batch", settings->batch);
    json_put_integer(json, "width", settings->width);
    json_put_integer(json, "blocks", settings->blocks);
    json_put_text(json, "norm", norm_names[settings->norm]);
    json_put_text(json, "optimizer", optimizer_names[settings->optimizer]);
    json_put_real(json, "lr", settings->lr);
    json_put_real(json, "momentum", settings->momentum);
    json_put_real(json, "weight_decay", settings->weight_decay);
    json_put_text(json, "schedule", schedule_names[settings->schedule]);
    json_put_real(json, "smoothing", settings->smoothing);
    json_put_integer(json, "augmented", !settings->plain);
    json_put_integer(json, "seed", settings->seed);
    json_put_integer(json, "loader_workers", settings->workers);
    json_end(json, '}');
}

static int write_network(json_writer *json, ek_module *network)
{
    char sha256[65];
    int rc = ek_module_sha256(network, sha256);

    if (rc < 0)
        return rc;
    json_begin(json, "network", '{');
    json_put_integer(json, "parameters", ek_module_parameter_count(network));
    json_put_text(json, "parameters_sha256", sha256);
    json_end(json, '}');
    return 0;
}

static void write_epoch(json_writer *json, const epoch_record *r)
{
    json_begin(json, NULL, '{');
    json_put_real(json, "training_loss", r->train_loss);
    json_put_real(json, "test_loss", r->test_loss);
    json_put_real(json, "test_accuracy", r->test_accuracy);
    json_put_real(json, "training_seconds", r->seconds);
    json_put_real(json, "waiting_seconds", r->waited);
    json_put_real(json, "waiting_share", share(r->waited, r->seconds));
    json_end(json, '}');
}

static void write_result(json_writer *json, const train_run *run)
{
    const run_records *records = &run->records;
    int64_t best = records_best(records);
    epoch_sums total = records_total(records);

    json_put_integer(json, "finished_steps", run->step);
    json_begin(json, "epochs", '[');
    for (int64_t i = 0; i < records->count; i++)
        write_epoch(json, &records->epochs[i]);
    json_end(json, ']');
    if (best >= 0)
        json_put_real(json, "best_accuracy", records->epochs[best].test_accuracy);
    if (run->tested.count > 0) {
        json_begin(json, "test", '{');
        json_put_integer(json, "samples", run->tested.count);
        json_put_real(json, "loss", run->tested.loss);
        json_put_real(json, "accuracy", run->tested.accuracy);
        json_end(json, '}');
    }
    json_put_real(json, "samples_per_second", run->speed);
    json_put_real(json, "training_seconds", total.seconds);
    json_put_real(json, "waiting_seconds", total.waited);
    json_put_real(json, "waiting_share", share(total.waited, total.seconds));
}

static int write_all(json_writer *json, const train_run *run)
{
    const train_job *job = &run->job;

    json_begin(json, NULL, '{');
    write_settings(json, run);
    int rc = write_network(json, job->network);
    json_begin(json, "devices", '[');
    for (int i = 0; i < job->devices.count && rc == 0; i++)
        rc = device_json_write(json, job->devices.devices[i]);
    json_end(json, ']');
    write_result(json, run);
    json_end(json, '}');
    return rc;
}

int report_json(const char *path, const train_run *run)
{
    json_writer json = {.stream = fopen(path, "w")};

    if (!json.stream)
        return ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    int rc = write_all(&json, run), failed = ferror(json.stream);
    failed = fclose(json.stream) != 0 || failed;
    return rc == 0 && failed ? ek_error(EK_E_IO, "%s: %s", path, strerror(errno)) : rc;
}

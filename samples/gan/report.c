#include "gan/report.h"

#include <errno.h>
#include <string.h>

#include "common/device_json.h"

static void write_settings(json_writer *json, const run_settings *settings, int devices)
{
    json_begin(json, "settings", '{');
    json_put_text(json, "penalty", penalty_names[settings->penalty]);
    json_put_real(json, "weight", settings->weight);
    json_put_text(json, "critic_norm", norm_names[settings->norm]);
    json_put_text(json, "loss", loss_names[settings->loss]);
    json_put_text(json, "mode", mode_names[settings->mode]);
    json_put_integer(json, "devices", devices);
    json_put_integer(json, "batch", settings->batch);
    json_put_integer(json, "critic_steps", settings->critic_steps);
    json_put_integer(json, "steps", settings->steps);
    json_put_integer(json, "width", settings->width);
    json_put_real(json, "lr", settings->lr);
    json_put_text(json, "dtype", ek_dtype_name(settings->dtype));
    json_put_integer(json, "seed", settings->seed);
    json_end(json, '}');
}

static int write_network(json_writer *json, const char *key, ek_module *network)
{
    char sha256[65];
    int rc = ek_module_sha256(network, sha256);

    if (rc < 0)
        return rc;
    json_begin(json, key, '{');
    json_put_integer(json, "parameters", ek_module_parameter_count(network));
    json_put_text(json, "parameters_sha256", sha256);
    json_end(json, '}');
    return 0;
}

static void write_series(json_writer *json, const run_records *records, record_series series)
{
    json_begin_flat(json, series_names[series]);
    for (int64_t i = 0; i < records->counts[series]; i++)
        json_put_real(json, NULL, records->values[series][i]);
    json_end(json, ']');
}

static int write_all(json_writer *json, train_run *run)
{
    const gan_job *job = &run->job;
    int rc;

    json_begin(json, NULL, '{');
    write_settings(json, &run->settings, job->devices.count);
    json_put_integer(json, "finished_steps", run->step);
    rc = write_network(json, "generator", job->generator);
    if (rc == 0)
        rc = write_network(json, "critic", job->critic);
    json_begin(json, "devices", '[');
    for (int i = 0; i < job->devices.count && rc == 0; i++)
        rc = device_json_write(json, job->devices.devices[i]);
    json_end(json, ']');
    json_put_real(json, "median_step_seconds", records_median(&run->records, SECONDS));
    for (int s = 0; s < SERIES; s++)
        write_series(json, &run->records, (record_series)s);
    json_end(json, '}');
    return rc;
}

int report_json(const char *path, train_run *run)
{
    json_writer json = {.stream = fopen(path, "w")};

    if (!json.stream)
        return ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    int rc = write_all(&json, run), failed = ferror(json.stream);
    failed = fclose(json.stream) != 0 || failed;
    return rc == 0 && failed ? ek_error(EK_E_IO, "%s: %s", path, strerror(errno)) : rc;
}

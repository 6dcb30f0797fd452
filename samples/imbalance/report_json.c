#include "common/json.h"
#include "imbalance/result.h"

static void write_workload(json_writer *json, const run_settings *settings,
                           const mode_result *results)
{
    json_begin(json, "workload", '{');
    json_put_text(json, "name", "segmentation of Fashion-MNIST scenes");
    json_put_integer(json, "devices", settings->devices);
    json_put_text(json, "device_list", settings->device_text);
    json_put_integer(json, "batch", settings->batch);
    json_put_integer(json, "steps", settings_steps(settings));
    json_put_integer(json, "seed", settings->seed);
    json_put_text(json, "optimizer", settings->optimizer);
    json_put_real(json, "lr", settings->lr);
    json_put_integer(json, "size", settings->size);
    json_put_integer(json, "width", settings->width);
    json_put_integer(json, "parameters", results[0].parameters);
    json_put_integer(json, "training_scenes", settings->scenes);
    json_put_integer(json, "test_scenes", settings->test_scenes);
    json_put_integer(json, "capacity_bytes", (int64_t)settings->capacity);
    json_end(json, '}');
}

static void write_device(json_writer *json, const mode_result *r, int index)
{
    ek_device_report device;
    char name[16];

    if (ek_report_device(r->report, index, &device) < 0)
        return;
    json_begin(json, NULL, '{');
    json_put_text(json, "name", ek_device_name(device.device, name));
    json_put_integer(json, "share", r->share[index]);
    json_put_integer(json, "capacity_bytes", (int64_t)device.capacity);
    json_put_integer(json, "peak_bytes", (int64_t)device.peak.in_use);
    json_put_integer(json, "peak_step", device.peak.step);
    json_put_text(json, "peak_operation", device.peak_operation);
    json_begin(json, "categories", '{');
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        json_put_integer(json, ek_memory_category_name((ek_memory_category)c),
                         (int64_t)device.peak.now[c]);
    json_end(json, '}');
    json_put_real(json, "computing_seconds", device.computing);
    json_put_real(json, "communicating_seconds", device.communicating);
    json_put_real(json, "waiting_seconds", device.waiting);
    json_end(json, '}');
}

static void write_mode(json_writer *json, const mode_result *r)
{
    json_begin(json, NULL, '{');
    json_put_text(json, "name", r->name);
    json_put_integer(json, "batch", r->batch);
    if (r->largest >= 0)
        json_put_integer(json, "largest_batch", r->largest);
    if (r->plan[0])
        json_put_text(json, "plan", r->plan);
    json_begin(json, "devices", '[');
    for (int d = 0; r->report && d < ek_report_device_count(r->report); d++)
        write_device(json, r, d);
    json_end(json, ']');
    json_put_real(json, "imbalance", r->report ? ek_report_imbalance(r->report) : 0);
    json_put_real(json, "step_seconds", r->step_seconds);
    json_put_real(json, "samples_per_second", r->samples_per_second);
    json_begin_flat(json, "losses");
    for (int i = 0; i < r->loss_count; i++)
        json_put_real(json, NULL, r->losses[i]);
    json_end(json, ']');
    if (r->sha256[0]) {
        json_put_real(json, "pixel_accuracy", r->pixel_accuracy);
        json_put_real(json, "mean_iou", r->mean_iou);
        json_put_text(json, "parameters_sha256", r->sha256);
    }
    json_end(json, '}');
}

int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    json_writer json = {.stream = fopen(path, "w")};

    if (!json.stream)
        return -1;
    json_begin(&json, NULL, '{');
    write_workload(&json, settings, results);
    json_begin(&json, "modes", '[');
    for (int m = 0; m < count; m++)
        write_mode(&json, &results[m]);
    json_end(&json, ']');
    json_end(&json, '}');
    int failed = ferror(json.stream);
    return fclose(json.stream) != 0 || failed ? -1 : 0;
}

#include "common/json.h"
#include "imbalance/result.h"

static void write_workload(json_writer *json, const run_settings *settings,
                           const mode_result *results)
{
    json_open(json, "workload", '{');
    json_text(json, "name", "segmentation of Fashion-MNIST scenes");
    json_integer(json, "devices", settings->devices);
    json_integer(json, "batch", settings->batch);
    json_integer(json, "steps", settings_steps(settings));
    json_integer(json, "seed", settings->seed);
    json_text(json, "optimizer", settings->optimizer);
    json_real(json, "lr", settings->lr);
    json_integer(json, "size", settings->size);
    json_integer(json, "width", settings->width);
    json_integer(json, "parameters", results[0].parameters);
    json_integer(json, "training_scenes", settings->scenes);
    json_integer(json, "test_scenes", settings->test_scenes);
    json_integer(json, "capacity_bytes", (int64_t)settings->capacity);
    json_close(json, '}');
}

static void write_mode(json_writer *json, const mode_result *r)
{
    json_open(json, NULL, '{');
    json_text(json, "name", r->name);
    json_open(json, "devices", '[');
    for (int d = 0; d < r->device_count; d++) {
        json_open(json, NULL, '{');
        json_text(json, "name", r->devices[d].name);
        json_integer(json, "peak_bytes", (int64_t)r->devices[d].peak);
        json_open(json, "categories", '{');
        for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
            json_integer(json, ek_memory_category_name((ek_memory_category)c),
                         (int64_t)r->devices[d].categories[c]);
        json_close(json, '}');
        json_close(json, '}');
    }
    json_close(json, ']');
    json_real(json, "imbalance", r->imbalance);
    json_real(json, "step_seconds", r->step_seconds);
    json_real(json, "samples_per_second", r->samples_per_second);
    json_open_flat(json, "losses");
    for (int i = 0; i < r->loss_count; i++)
        json_real(json, NULL, r->losses[i]);
    json_close(json, ']');
    json_real(json, "pixel_accuracy", r->pixel_accuracy);
    json_real(json, "mean_iou", r->mean_iou);
    json_text(json, "parameters_sha256", r->sha256);
    json_close(json, '}');
}

int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    json_writer json = {.stream = fopen(path, "w")};

    if (!json.stream)
        return -1;
    json_open(&json, NULL, '{');
    write_workload(&json, settings, results);
    json_open(&json, "modes", '[');
    for (int m = 0; m < count; m++)
        write_mode(&json, &results[m]);
    json_close(&json, ']');
    json_close(&json, '}');
    int failed = ferror(json.stream);
    return fclose(json.stream) != 0 || failed ? -1 : 0;
}

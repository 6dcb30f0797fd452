#include "common/device_json.h"

int device_json_write(json_writer *json, ek_device device)
{
    ek_memory_stats stats;
    char name[16];
    int rc = ek_memory_get(device, &stats);

    if (rc < 0)
        return rc;
    json_begin(json, NULL, '{');
    json_put_text(json, "name", ek_device_name(device, name));
    json_put_integer(json, "peak_bytes", (int64_t)stats.peak);
    json_begin(json, "categories", '{');
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        json_put_integer(json, ek_memory_category_name((ek_memory_category)c),
                         (int64_t)stats.at_peak[c]);
    json_end(json, '}');
    json_end(json, '}');
    return 0;
}

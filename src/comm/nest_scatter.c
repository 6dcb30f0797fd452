/* nest_scatter.c: scatter over nests of values. */
#include <stdlib.h>

#include "comm/chunks.h"
#include "comm/collectives.h"
#include "comm/nest.h"
#include "core/thread.h"
#include "core/value.h"

/* How one nest is cut. */
typedef struct cut {
    ek_device_list devices; /* one per part */
    const int64_t *sizes;   /* of tensors' chunks */
    int dim;
} cut;

static int cut_value(ek_value value, const cut *c, ek_value *out);

static int cut_tensor(ek_tensor *tensor, const cut *c, ek_value *out)
{
    ek_tensor *chunks[EK_MAX_DEVICES];
    EK_TRY(ek_scatter(tensor, &c->devices, c->sizes, c->dim, chunks));
    for (int p = 0; p < c->devices.count; p++)
        out[p] = ek_value_of_tensor(chunks[p]);
    return 0;
}

/* Element by element, then one container per part. */
static int cut_container(ek_value value, const cut *c, ek_value *out)
{
    int parts = c->devices.count, count = ek_value_length(value);
    ek_value *cuts = ek_calloc((size_t)(count * parts), sizeof *cuts);
    ek_value *items = ek_calloc((size_t)count, sizeof *items);
    int rc = cuts && items ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc >= 0; i++)
        rc = cut_value(ek_value_at(value, i), c, cuts + (ptrdiff_t)i * parts);
    for (int p = 0; p < parts && rc >= 0; p++) {
        for (int i = 0; i < count; i++)
            items[i] = cuts[i * parts + p];
        out[p] = ek_value_like(value, items);
        rc = out[p].kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
    }
    free(cuts);
    free(items);
    return rc;
}

static int cut_value(ek_value value, const cut *c, ek_value *out)
{
    if (value.kind == EK_VALUE_TENSOR)
        return cut_tensor(value.as.tensor, c, out);
    if (value.per_device) {
        for (int p = 0; p < c->devices.count; p++) {
            out[p] = ek_value_to_device(ek_value_at(value, p), c->devices.devices[p], c->dim);
            if (out[p].kind == EK_VALUE_ERROR)
                return ek_error_pending();
        }
        return 0;
    }
    if (value.kind == EK_VALUE_LIST || value.kind == EK_VALUE_DICT)
        return cut_container(value, c, out);
    for (int p = 0; p < c->devices.count; p++)
        out[p] = value;
    return 0;
}

/* How many parts the nest gives, and the sizes of its tensors' chunks. */
static int plan(const ek_nest_survey *survey, int devices, const int64_t *given, int64_t *sizes)
{
    if (survey->parts > devices)
        return EK_FAIL(EK_E_SHAPE, "scatter: a scattered list of %d elements for %d devices",
                       survey->parts, devices);
    if (survey->parts == 0)
        return survey->size < 0
                   ? devices
                   : ek_comm_chunk_sizes("scatter", survey->size, devices, given, sizes);
    if (survey->size < 0)
        return survey->parts;
    /* What isn't scattered yet follows what is. */
    if (!given && survey->sizes_known)
        given = survey->sizes;
    int64_t total = 0;
    for (int p = 0; given && p < survey->parts; p++)
        total += sizes[p] = given[p];
    if (given && total != survey->size)
        return EK_FAIL(EK_E_SHAPE,
                       "scatter: the elements of a scattered list have batch sizes that add up to "
                       "%lld, but a tensor to be cut has %lld",
                       (long long)total, (long long)survey->size);
    int parts =
        given ? survey->parts : ek_comm_chunk_sizes("scatter", survey->size, devices, NULL, sizes);
    if (parts >= 0 && parts != survey->parts)
        return EK_FAIL(
            EK_E_SHAPE,
            "scatter: a tensor is cut into %d chunks, but a scattered list has %d elements", parts,
            survey->parts);
    return parts;
}

int ek_scatter_value(ek_value value, const ek_device_list *devices, const int64_t *chunk_sizes,
                     int dim, ek_value *out)
{
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("scatter", devices, devs));
    EK_TRY(ek_check_pointer("scatter", "the array for the parts", out));
    ek_nest_survey survey = {.size = -1};
    EK_TRY(ek_nest_look(value, dim, &survey));
    int64_t sizes[EK_MAX_DEVICES];
    int parts = plan(&survey, devices->count, chunk_sizes, sizes);
    EK_TRY(parts);
    cut c = {.devices = *devices, .sizes = sizes, .dim = dim};
    c.devices.count = parts;
    EK_TRY(cut_value(value, &c, out));
    return parts;
}

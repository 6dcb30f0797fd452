/* subset.c: some of another data set's samples. */
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "data/dataset.h"

typedef struct subset {
    ek_dataset dataset;
    ek_dataset *of;
    int64_t *indices;
    int64_t count;
} subset;

static int64_t subset_length(ek_dataset *dataset)
{
    return ((subset *)dataset)->count;
}

static ek_value subset_get(ek_dataset *dataset, int64_t index)
{
    subset *self = (subset *)dataset;
    return ek_dataset_get(self->of, self->indices[index]);
}

static ek_value subset_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                 ek_device device)
{
    subset *self = (subset *)dataset;
    int64_t *inner = ek_calloc((size_t)count, sizeof *inner);
    if (!inner)
        return ek_value_error();
    for (int64_t i = 0; i < count; i++)
        inner[i] = self->indices[samples[i]];
    ek_value batch = ek_dataset_get_batch(self->of, inner, count, device);
    free(inner);
    return batch;
}

static void subset_destroy(ek_dataset *dataset)
{
    subset *self = (subset *)dataset;
    ek_dataset_free(self->of);
    free(self->indices);
}

static const ek_dataset_type subset_type = {
    .name = "subset",
    .size = sizeof(subset),
    .length = subset_length,
    .get = subset_get,
    .get_batch = subset_get_batch,
    .destroy = subset_destroy,
};

/* Of a data set that gives single samples: so does the subset, and whoever makes batches of it, or
 * transforms them before, reads each sample once. */
static const ek_dataset_type samples_type = {
    .name = "subset",
    .size = sizeof(subset),
    .length = subset_length,
    .get = subset_get,
    .destroy = subset_destroy,
};

static int check_indices(ek_dataset *dataset, const int64_t *indices, int64_t count)
{
    EK_TRY(ek_dataset_given(dataset, "subset"));
    if (count < 0 || (count > 0 && !indices))
        return EK_FAIL(EK_E_INVALID, "subset: %s",
                       count < 0 ? "the number of samples is negative" : "the indices are NULL");
    int64_t length = ek_dataset_length(dataset);
    if (length < 0)
        return ek_error_pending();
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= length)
            return EK_FAIL(EK_E_INVALID, "subset: index %lld is %lld; %s has %lld samples",
                           (long long)i, (long long)indices[i], dataset->type->name,
                           (long long)length);
    return 0;
}

ek_dataset *ek_subset(ek_dataset *dataset, const int64_t *indices, int64_t count)
{
    subset *self = NULL;
    if (check_indices(dataset, indices, count) == 0)
        self = (subset *)ek_dataset_new(dataset->type->get_batch ? &subset_type : &samples_type);
    if (!self) {
        ek_dataset_free(dataset);
        return NULL;
    }
    self->of = dataset;
    self->indices = ek_calloc((size_t)count, sizeof *indices);
    if (!self->indices) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    if (count > 0)
        memcpy(self->indices, indices, (size_t)count * sizeof *indices);
    self->count = count;
    return &self->dataset;
}

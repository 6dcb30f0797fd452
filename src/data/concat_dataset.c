/* concat_dataset.c: data sets one after another. */
#include <stdlib.h>

#include "core/thread.h"
#include "data/dataset.h"

typedef struct concat_dataset {
    ek_dataset dataset;
    int count;
    ek_dataset **parts;
    int64_t *ends; /* of each part, in samples of the whole */
} concat_dataset;

static int64_t concat_length(ek_dataset *dataset)
{
    const concat_dataset *self = (concat_dataset *)dataset;
    return self->ends[self->count - 1];
}

/* The part that holds sample `index`: the first that ends after it. */
static int part_of(const concat_dataset *self, int64_t index)
{
    int first = 0, last = self->count - 1;
    while (first < last) {
        int middle = first + (last - first) / 2;
        if (self->ends[middle] > index)
            last = middle;
        else
            first = middle + 1;
    }
    return first;
}

static int64_t start_of(const concat_dataset *self, int part)
{
    return part ? self->ends[part - 1] : 0;
}

static ek_value concat_get(ek_dataset *dataset, int64_t index)
{
    const concat_dataset *self = (concat_dataset *)dataset;
    int part = part_of(self, index);
    return ek_dataset_get(self->parts[part], index - start_of(self, part));
}

static bool all_of_part(const concat_dataset *self, int part, const int64_t *samples, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (samples[i] < start_of(self, part) || samples[i] >= self->ends[part])
            return false;
    return true;
}

/* A batch within one part is that part's. Others are made of single samples in their order, in
 * which parts that draw random numbers are to draw them. */
static ek_value concat_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                 ek_device device)
{
    const concat_dataset *self = (concat_dataset *)dataset;
    int part = part_of(self, samples[0]);
    if (!all_of_part(self, part, samples, count))
        return ek_dataset_batch_by_samples(dataset, samples, count, device);
    int64_t *inner = ek_calloc((size_t)count, sizeof *inner);
    if (!inner)
        return ek_value_error();
    for (int64_t i = 0; i < count; i++)
        inner[i] = samples[i] - start_of(self, part);
    ek_value batch = ek_dataset_get_batch(self->parts[part], inner, count, device);
    free(inner);
    return batch;
}

static void concat_destroy(ek_dataset *dataset)
{
    concat_dataset *self = (concat_dataset *)dataset;
    for (int i = 0; i < self->count; i++)
        ek_dataset_free(self->parts[i]);
    free(self->parts);
    free(self->ends);
}

static const ek_dataset_type concat_dataset_type = {
    .name = "concat_dataset",
    .size = sizeof(concat_dataset),
    .length = concat_length,
    .get = concat_get,
    .get_batch = concat_get_batch,
    .destroy = concat_destroy,
};

/* Of parts of which some give single samples (as in subset.c). */
static const ek_dataset_type samples_type = {
    .name = "concat_dataset",
    .size = sizeof(concat_dataset),
    .length = concat_length,
    .get = concat_get,
    .destroy = concat_destroy,
};

static int set_ends(concat_dataset *self, ek_dataset *const *datasets, int count)
{
    int64_t end = 0;
    for (int i = 0; i < count; i++) {
        int64_t length = ek_dataset_length(datasets[i]);
        if (length < 0)
            return ek_error_pending();
        if (__builtin_add_overflow(end, length, &end))
            return EK_FAIL(EK_E_INVALID, "concat_dataset: the lengths add up to more than 2^63");
        self->ends[i] = end;
    }
    return 0;
}

/* The data sets are the caller's until all is well. */
static concat_dataset *make(ek_dataset *const *datasets, int count)
{
    const ek_dataset_type *type = &concat_dataset_type;
    for (int i = 0; i < count; i++) {
        if (ek_dataset_given(datasets[i], "concat_dataset") < 0)
            return NULL;
        if (!datasets[i]->type->get_batch)
            type = &samples_type;
    }
    concat_dataset *self = (concat_dataset *)ek_dataset_new(type);
    if (!self)
        return NULL;
    self->parts = ek_calloc((size_t)count, sizeof(ek_dataset *));
    self->ends = self->parts ? ek_calloc((size_t)count, sizeof *self->ends) : NULL;
    if (!self->ends || set_ends(self, datasets, count) < 0) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    for (; self->count < count; self->count++)
        self->parts[self->count] = datasets[self->count];
    return self;
}

ek_dataset *ek_concat_dataset_of(ek_dataset *const *datasets, int count)
{
    if (count < 1 || !datasets) {
        EK_FAIL(EK_E_INVALID, "concat_dataset: %s",
                count < 1 ? "no data set is given" : "the data sets are NULL");
        return NULL;
    }
    concat_dataset *self = make(datasets, count);
    if (self)
        return &self->dataset;
    for (int i = 0; i < count; i++)
        ek_dataset_free(datasets[i]);
    return NULL;
}

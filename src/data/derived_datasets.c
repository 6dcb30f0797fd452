/* derived_datasets.c: data sets made of others: a subset, several one after the other, parts at
 * random (random_split, as PyTorch draws them), and parts after the partitioner of PyTorch's
 * distributed tutorial (Python's shuffle, cut into parts). */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/keywords.h"
#include "core/python_random.h"
#include "core/thread.h"
#include "data/dataset.h"

/* ---- subset ---- */

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
static const ek_dataset_type subset_samples_type = {
    .name = "subset",
    .size = sizeof(subset),
    .length = subset_length,
    .get = subset_get,
    .destroy = subset_destroy,
};

static int subset_check_indices(ek_dataset *dataset, const int64_t *indices, int64_t count)
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
    if (subset_check_indices(dataset, indices, count) == 0)
        self = (subset *)ek_dataset_new(dataset->type->get_batch ? &subset_type
                                                                 : &subset_samples_type);
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

/* ---- one after the other ---- */

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
static int concat_part_of(const concat_dataset *self, int64_t index)
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

static int64_t concat_start_of(const concat_dataset *self, int part)
{
    return part ? self->ends[part - 1] : 0;
}

static ek_value concat_get(ek_dataset *dataset, int64_t index)
{
    const concat_dataset *self = (concat_dataset *)dataset;
    int part = concat_part_of(self, index);
    return ek_dataset_get(self->parts[part], index - concat_start_of(self, part));
}

static bool concat_all_of_part(const concat_dataset *self, int part, const int64_t *samples,
                               int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (samples[i] < concat_start_of(self, part) || samples[i] >= self->ends[part])
            return false;
    return true;
}

/* A batch within one part is that part's. Others are made of single samples in their order, in
 * which parts that draw random numbers are to draw them. */
static ek_value concat_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                 ek_device device)
{
    const concat_dataset *self = (concat_dataset *)dataset;
    int part = concat_part_of(self, samples[0]);
    if (!concat_all_of_part(self, part, samples, count))
        return ek_dataset_batch_by_samples(dataset, samples, count, device);
    int64_t *inner = ek_calloc((size_t)count, sizeof *inner);
    if (!inner)
        return ek_value_error();
    for (int64_t i = 0; i < count; i++)
        inner[i] = samples[i] - concat_start_of(self, part);
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

/* Of parts of which some give single samples (as of a subset). */
static const ek_dataset_type concat_samples_type = {
    .name = "concat_dataset",
    .size = sizeof(concat_dataset),
    .length = concat_length,
    .get = concat_get,
    .destroy = concat_destroy,
};

static int concat_set_ends(concat_dataset *self, ek_dataset *const *datasets, int count)
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
static concat_dataset *concat_make(ek_dataset *const *datasets, int count)
{
    const ek_dataset_type *type = &concat_dataset_type;
    for (int i = 0; i < count; i++) {
        if (ek_dataset_given(datasets[i], "concat_dataset") < 0)
            return NULL;
        if (!datasets[i]->type->get_batch)
            type = &concat_samples_type;
    }
    concat_dataset *self = (concat_dataset *)ek_dataset_new(type);
    if (!self)
        return NULL;
    self->parts = ek_calloc((size_t)count, sizeof(ek_dataset *));
    self->ends = self->parts ? ek_calloc((size_t)count, sizeof *self->ends) : NULL;
    if (!self->ends || concat_set_ends(self, datasets, count) < 0) {
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
    concat_dataset *self = concat_make(datasets, count);
    if (self)
        return &self->dataset;
    for (int i = 0; i < count; i++)
        ek_dataset_free(datasets[i]);
    return NULL;
}

/* ---- parts at random ---- */

static int split_check_parts(ek_dataset *dataset, const void *sizes, const char *what, int count,
                             ek_dataset **parts)
{
    for (int i = 0; parts && i < count; i++)
        parts[i] = NULL;
    EK_TRY(ek_dataset_given(dataset, "random_split"));
    if (count < 1)
        return EK_FAIL(EK_E_INVALID, "random_split: %d parts; at least one is wanted", count);
    if (!sizes || !parts)
        return EK_FAIL(EK_E_INVALID, "random_split: the %s are NULL", !parts ? "parts" : what);
    return 0;
}

static int split_check_lengths(const int64_t *lengths, int count, int64_t length)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        if (lengths[i] < 0)
            return EK_FAIL(EK_E_INVALID, "random_split: length %d is %lld", i,
                           (long long)lengths[i]);
        if (__builtin_add_overflow(sum, lengths[i], &sum))
            sum = INT64_MAX;
    }
    if (sum != length)
        return EK_FAIL(EK_E_INVALID,
                       "random_split: the lengths add up to %lld; the data set has %lld samples",
                       (long long)sum, (long long)length);
    return 0;
}

static int split_cut(ek_dataset *dataset, const int64_t *order, const int64_t *lengths, int count,
                     ek_dataset **parts)
{
    for (int i = 0; i < count; order += lengths[i++]) {
        parts[i] = ek_subset(ek_dataset_keep(dataset), order, lengths[i]);
        if (parts[i])
            continue;
        while (i-- > 0) {
            ek_dataset_free(parts[i]);
            parts[i] = NULL;
        }
        return ek_error_pending();
    }
    return 0;
}

static int split_make(ek_dataset *dataset, const int64_t *lengths, int count,
                      ek_generator *generator, ek_dataset **parts)
{
    int64_t length = ek_dataset_length(dataset);
    if (length < 0)
        return ek_error_pending();
    EK_TRY(split_check_lengths(lengths, count, length));
    int64_t *order = ek_calloc((size_t)length, sizeof *order);
    if (!order)
        return EK_E_NO_MEMORY;
    int rc = ek_randperm(length, order, generator);
    if (rc >= 0)
        rc = split_cut(dataset, order, lengths, count, parts);
    free(order);
    return rc;
}

int ek_random_split(ek_dataset *dataset, const int64_t *lengths, int count, ek_generator *generator,
                    ek_dataset **parts)
{
    int rc = split_check_parts(dataset, lengths, "lengths", count, parts);
    if (rc >= 0)
        rc = split_make(dataset, lengths, count, generator, parts);
    ek_dataset_free(dataset);
    return rc;
}

/* No more than there are: doubles don't hold all lengths. */
static int64_t split_part_of(int64_t length, double fraction)
{
    double exact = floor((double)length * fraction);
    return exact < (double)length ? (int64_t)exact : length;
}

/* Rounded down, and what is left dealt out one by one from the first. Fractions that decimals
 * cannot write exactly miss 1 by a few roundings of a double. */
static int split_lengths_of(const double *fractions, int count, int64_t length, int64_t *lengths)
{
    const double near = 1e-9;
    double sum = 0;
    int64_t left = length;
    for (int i = 0; i < count; i++) {
        if (!(fractions[i] >= 0 && fractions[i] <= 1))
            return EK_FAIL(EK_E_INVALID,
                           "random_split: fraction %d is %g; between 0 and 1 it can "
                           "lie",
                           i, fractions[i]);
        sum += fractions[i];
    }
    for (int i = 0; i < count && fabs(sum - 1) <= near; i++)
        left -= lengths[i] = split_part_of(length, fractions[i]);
    if (!(fabs(sum - 1) <= near) || left < 0)
        return EK_FAIL(EK_E_INVALID, "random_split: the fractions add up to %.10g instead of 1",
                       sum);
    for (int64_t i = 0; i < left; i++)
        lengths[i % count]++;
    return 0;
}

static int split_fractions(ek_dataset *dataset, const double *fractions, int count,
                           ek_generator *generator, ek_dataset **parts)
{
    int64_t length = ek_dataset_length(dataset);
    if (length < 0)
        return ek_error_pending();
    int64_t *lengths = ek_calloc((size_t)count, sizeof *lengths);
    if (!lengths)
        return EK_E_NO_MEMORY;
    int rc = split_lengths_of(fractions, count, length, lengths);
    if (rc >= 0)
        rc = split_make(dataset, lengths, count, generator, parts);
    free(lengths);
    return rc;
}

int ek_random_split_fractions(ek_dataset *dataset, const double *fractions, int count,
                              ek_generator *generator, ek_dataset **parts)
{
    int rc = split_check_parts(dataset, fractions, "fractions", count, parts);
    if (rc >= 0)
        rc = split_fractions(dataset, fractions, count, generator, parts);
    ek_dataset_free(dataset);
    return rc;
}

/* ---- the tutorial's parts ---- */

static const double tutorial_sizes[] = {0.7, 0.2, 0.1};
enum { TUTORIAL_COUNT = sizeof tutorial_sizes / sizeof *tutorial_sizes, TUTORIAL_SEED = 1234 };

/* Fractions that were rounded may add up to a little more than 1: no part grows by that. */
static int partition_check(int part, const ek_partition_options *options)
{
    const double rounding = 1e-9;
    double sum = 0;
    if (options->count < 1 || !options->sizes)
        return EK_FAIL(EK_E_INVALID, "partition: %d sizes%s; there has to be one at least",
                       options->count, options->sizes ? "" : " at NULL");
    if (part < 0 || part >= options->count)
        return EK_FAIL(EK_E_INVALID, "partition: part %d; parts are 0 to %d", part,
                       options->count - 1);
    for (int i = 0; i < options->count; i++) {
        if (!(options->sizes[i] >= 0 && options->sizes[i] <= 1))
            return EK_FAIL(EK_E_INVALID, "partition: size %d is %g; sizes are fractions, 0 to 1", i,
                           options->sizes[i]);
        sum += options->sizes[i];
    }
    if (!(sum <= 1 + rounding))
        return EK_FAIL(EK_E_INVALID, "partition: the sizes add up to %.17g; 1 is the most", sum);
    return 0;
}

/* The part's samples; all of them are shuffled for any part. */
static ek_dataset *partition_cut(int part, const ek_partition_options *options, int64_t length)
{
    ek_generator generator;
    int64_t begin = 0, count;
    int64_t *order = ek_calloc((size_t)length + 1, sizeof *order);
    if (!order) {
        ek_dataset_free(options->dataset);
        return NULL;
    }
    for (int64_t i = 0; i < length; i++)
        order[i] = i;
    memset(&generator, 0, sizeof generator);
    ek_python_seed(&generator, options->seed);
    ek_python_shuffle(&generator, order, length, sizeof *order);
    for (int i = 0; i < part; i++)
        begin += (int64_t)(options->sizes[i] * (double)length);
    count = (int64_t)(options->sizes[part] * (double)length);
    begin = begin < length ? begin : length;
    count = count < length - begin ? count : length - begin;
    ek_dataset *chosen = ek_subset(options->dataset, order + begin, count);
    free(order);
    return chosen;
}

ek_dataset *ek_partition_with(int part, ek_partition_options options)
{
    if (ek_dataset_given(options.dataset, "partition") < 0)
        return NULL;
    if (!options.sizes && options.count == 0) {
        options.sizes = tutorial_sizes;
        options.count = TUTORIAL_COUNT;
    }
    options.seed = ek_integer_or(EK_GIVEN(&options, seed, 3), TUTORIAL_SEED);
    int64_t length = partition_check(part, &options) < 0 ? -1 : ek_dataset_length(options.dataset);
    if (length < 0) {
        ek_dataset_free(options.dataset);
        return NULL;
    }
    return partition_cut(part, &options, length);
}

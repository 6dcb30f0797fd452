/* derived_datasets.c: subsets, concatenations, parts at random (random_split, with PyTorch's random
 * numbers), and the parts of the partitioner in PyTorch's distributed tutorial (Python's shuffle,
 * then cuts). */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/python_random.h"
#include "data/dataset.h"

/* ---- views: all or chosen samples of several data sets (the parts) in a row ---- */

typedef struct view_dataset {
    ek_dataset dataset;
    int64_t length;
    int64_t *indices; /* the chosen samples; NULL: all samples */
    int count;
    ek_dataset **parts;
    int64_t *ends; /* where each part ends, counted in samples from the first part */
} view_dataset;

static int64_t view_length(ek_dataset *dataset)
{
    return ((view_dataset *)dataset)->length;
}

/* Returns the part that holds sample `index`; *within becomes the sample's index there. */
static int view_find(const view_dataset *self, int64_t index, int64_t *within)
{
    *within = self->indices ? self->indices[index] : index;
    int part = (int)ek_dataset_part(self->ends, self->count, *within);
    *within -= part ? self->ends[part - 1] : 0;
    return part;
}

static ek_value view_get(ek_dataset *dataset, int64_t index)
{
    const view_dataset *self = (view_dataset *)dataset;
    int64_t within;
    int part = view_find(self, index, &within);
    return ek_dataset_get(self->parts[part], within);
}

/* If all samples of a batch lie in one part, the part makes the batch. Any other batch is made
 * sample by sample in its order, in which parts then draw their random numbers. */
static ek_value view_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                               ek_device device)
{
    const view_dataset *self = (view_dataset *)dataset;
    int64_t *within = ek_calloc((size_t)count, sizeof *within), i = 1;
    if (!within)
        return ek_value_error();
    int part = view_find(self, samples[0], within);
    while (i < count && view_find(self, samples[i], within + i) == part)
        i++;
    ek_value batch = i == count ? ek_dataset_get_batch(self->parts[part], within, count, device)
                                : ek_dataset_batch_by_samples(dataset, samples, count, device);
    free(within);
    return batch;
}

static void view_destroy(ek_dataset *dataset)
{
    view_dataset *self = (view_dataset *)dataset;
    for (int i = 0; i < self->count; i++)
        ek_dataset_free(self->parts[i]);
    free(self->parts);
    free(self->ends);
    free(self->indices);
}

/* The first type lacks get_batch, the second type has it. A view gets the first type if any of its
 * parts lacks get_batch, so that callers read the view sample by sample. */
#define VIEW_TYPES(kind)                                                                          \
    {                                                                                             \
        {.name = (kind),                                                                          \
         .size = sizeof(view_dataset),                                                            \
         .length = view_length,                                                                   \
         .get = view_get,                                                                         \
         .destroy = view_destroy},                                                                \
        {                                                                                         \
            .name = (kind), .size = sizeof(view_dataset), .length = view_length, .get = view_get, \
            .get_batch = view_get_batch, .destroy = view_destroy                                  \
        }                                                                                         \
    }

static const ek_dataset_type subset_types[2] = VIEW_TYPES("subset");
static const ek_dataset_type concat_types[2] = VIEW_TYPES("concat_dataset");

static int view_set_ends(view_dataset *self, ek_dataset *const *parts, int count)
{
    for (int i = 0; i < count; i++) {
        int64_t length = ek_dataset_length(parts[i]);
        if (length < 0)
            return ek_error_pending();
        if (__builtin_add_overflow(self->length, length, &self->length))
            return EK_FAIL(EK_E_INVALID, "%s: the lengths add up to more than 2^63",
                           self->dataset.type->name);
        self->ends[i] = self->length;
    }
    return 0;
}

/* Makes a view of all samples of the parts. It takes over the parts only if it succeeds. */
static view_dataset *view_new(const ek_dataset_type types[2], ek_dataset *const *parts, int count)
{
    bool batches = true;
    for (int i = 0; i < count; i++) {
        if (ek_check_handle(types->name, "the data set", parts[i]) < 0)
            return NULL;
        batches = batches && parts[i]->type->get_batch;
    }
    view_dataset *self = (view_dataset *)ek_dataset_new(&types[batches]);
    if (!self)
        return NULL;
    self->parts = ek_calloc((size_t)count, sizeof(ek_dataset *));
    self->ends = self->parts ? ek_calloc((size_t)count, sizeof *self->ends) : NULL;
    if (!self->ends || view_set_ends(self, parts, count) < 0) {
        ek_dataset_free(&self->dataset);
        return NULL;
    }
    for (; self->count < count; self->count++)
        self->parts[self->count] = parts[self->count];
    return self;
}

static int view_choose(view_dataset *self, const int64_t *indices, int64_t count)
{
    if (count < 0 || (count > 0 && !indices))
        return EK_FAIL(EK_E_INVALID, "subset: %s",
                       count < 0 ? "the number of samples is negative" : "the indices are NULL");
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= self->length)
            return EK_FAIL(EK_E_INVALID, "subset: index %lld is %lld; %s has %lld samples",
                           (long long)i, (long long)indices[i], self->parts[0]->type->name,
                           (long long)self->length);
    self->indices = ek_calloc((size_t)count + 1, sizeof *indices);
    if (!self->indices)
        return EK_E_NO_MEMORY;
    if (count > 0)
        memcpy(self->indices, indices, (size_t)count * sizeof *indices);
    self->length = count;
    return 0;
}

ek_dataset *ek_subset(ek_dataset *dataset, const int64_t *indices, int64_t count)
{
    view_dataset *self = view_new(subset_types, &dataset, 1);
    if (!self)
        ek_dataset_free(dataset);
    else if (view_choose(self, indices, count) == 0)
        return &self->dataset;
    else
        ek_dataset_free(&self->dataset);
    return NULL;
}

ek_dataset *ek_concat_dataset_of(ek_dataset *const *datasets, int count)
{
    if (count < 1 || !datasets)
        return EK_FAIL_NULL(EK_E_INVALID, "concat_dataset: %s",
                            count < 1 ? "no data set is given" : "the data sets are NULL");
    view_dataset *self = view_new(concat_types, datasets, count);
    if (self)
        return &self->dataset;
    for (int i = 0; i < count; i++)
        ek_dataset_free(datasets[i]);
    return NULL;
}

/* ---- parts at random ---- */

/* Checks that each fraction is in [0, 1], and writes their sum to *sum. */
static int fractions_add(const char *what, const double *fractions, int count, double *sum)
{
    *sum = 0;
    for (int i = 0; i < count; i++) {
        if (!(fractions[i] >= 0 && fractions[i] <= 1))
            return EK_FAIL(EK_E_INVALID, "%s: fraction %d is %g; fractions lie in [0, 1]", what, i,
                           fractions[i]);
        *sum += fractions[i];
    }
    return 0;
}

/* Fractions such as 0.1 have no exact double, so their sum may miss 1 by a few roundings. */
static const double rounding = 1e-9;

/* Checks that the lengths add up to the data set's length. */
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

/* Writes the parts' lengths, rounded down. Samples that are left over are given one by one to the
 * parts, from the first part on. */
static int split_lengths_of(const double *fractions, int count, int64_t length, int64_t *lengths)
{
    double sum;
    int64_t left = length;
    EK_TRY(fractions_add("random_split", fractions, count, &sum));
    for (int i = 0; i < count && fabs(sum - 1) <= rounding; i++) {
        double exact = floor((double)length * fractions[i]);
        /* The product may exceed `length`, because doubles don't hold all integers. */
        lengths[i] = exact < (double)length ? (int64_t)exact : length;
        left -= lengths[i];
    }
    if (!(fabs(sum - 1) <= rounding) || left < 0)
        return EK_FAIL(EK_E_INVALID, "random_split: the fractions add up to %.10g instead of 1",
                       sum);
    for (int64_t i = 0; i < left; i++)
        lengths[i % count]++;
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

/* Splits by lengths, or by fractions if lengths is NULL. */
static int split_by(ek_dataset *dataset, const int64_t *lengths, const double *fractions, int count,
                    ek_generator *generator, ek_dataset **parts)
{
    int64_t length = ek_dataset_length(dataset), *order = NULL;
    if (length < 0)
        return ek_error_pending();
    int64_t *own = ek_calloc((size_t)count, sizeof *own);
    int rc = !own      ? EK_E_NO_MEMORY
             : lengths ? split_check_lengths(lengths, count, length)
                       : split_lengths_of(fractions, count, length, own);
    if (rc == 0 && !(order = ek_calloc((size_t)length, sizeof *order)))
        rc = EK_E_NO_MEMORY;
    if (rc == 0)
        rc = ek_randperm(length, order, generator);
    if (rc == 0)
        rc = split_cut(dataset, order, lengths ? lengths : own, count, parts);
    free(order);
    free(own);
    return rc;
}

static int split_checked(ek_dataset *dataset, const int64_t *lengths, const double *fractions,
                         const char *what, int count, ek_generator *generator, ek_dataset **parts)
{
    for (int i = 0; parts && i < count; i++)
        parts[i] = NULL;
    EK_TRY(ek_check_handle("random_split", "the data set", dataset));
    if (count < 1)
        return EK_FAIL(EK_E_INVALID, "random_split: %d parts; at least one is wanted", count);
    if (!parts || (!lengths && !fractions))
        return EK_FAIL(EK_E_INVALID, "random_split: the %s are NULL", !parts ? "parts" : what);
    return split_by(dataset, lengths, fractions, count, generator, parts);
}

int ek_random_split(ek_dataset *dataset, const int64_t *lengths, int count, ek_generator *generator,
                    ek_dataset **parts)
{
    int rc = split_checked(dataset, lengths, NULL, "lengths", count, generator, parts);
    ek_dataset_free(dataset);
    return rc;
}

int ek_random_split_fractions(ek_dataset *dataset, const double *fractions, int count,
                              ek_generator *generator, ek_dataset **parts)
{
    int rc = split_checked(dataset, NULL, fractions, "fractions", count, generator, parts);
    ek_dataset_free(dataset);
    return rc;
}

/* ---- the tutorial's parts ---- */

static const double tutorial_sizes[] = {0.7, 0.2, 0.1};
enum { TUTORIAL_COUNT = sizeof tutorial_sizes / sizeof *tutorial_sizes };

/* The sizes may exceed 1 by a rounding: partition_cut keeps every part within the data set. */
static int partition_check(int part, const ek_partition_options *options)
{
    double sum;
    if (options->count < 1 || !options->sizes)
        return EK_FAIL(EK_E_INVALID, "partition: %d sizes%s; there has to be one at least",
                       options->count, options->sizes ? "" : " at NULL");
    if (part < 0 || part >= options->count)
        return EK_FAIL(EK_E_INVALID, "partition: part %d; parts are 0 to %d", part,
                       options->count - 1);
    EK_TRY(fractions_add("partition", options->sizes, options->count, &sum));
    if (!(sum <= 1 + rounding))
        return EK_FAIL(EK_E_INVALID, "partition: the sizes add up to %.17g; 1 is the most", sum);
    return 0;
}

/* Makes one part. All samples are shuffled for every part. */
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
    if (ek_check_handle("partition", "the data set", options.dataset) < 0)
        return NULL;
    if (!options.sizes && options.count == 0) {
        options.sizes = tutorial_sizes;
        options.count = TUTORIAL_COUNT;
    }
    int64_t length = partition_check(part, &options) < 0 ? -1 : ek_dataset_length(options.dataset);
    if (length < 0) {
        ek_dataset_free(options.dataset);
        return NULL;
    }
    return partition_cut(part, &options, length);
}

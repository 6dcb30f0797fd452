/* partition.c: the partitioner of PyTorch's distributed tutorial: Python's shuffle of a data set,
 * cut into parts. */
#include <stdlib.h>
#include <string.h>

#include "core/keywords.h"
#include "core/python_random.h"
#include "core/thread.h"
#include "data/dataset.h"

static const double tutorial_sizes[] = {0.7, 0.2, 0.1};
enum { TUTORIAL_COUNT = sizeof tutorial_sizes / sizeof *tutorial_sizes, TUTORIAL_SEED = 1234 };

/* Fractions that were rounded may add up to a little more than 1: no part grows by that. */
static int check(int part, const ek_partition_options *options)
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
static ek_dataset *cut(int part, const ek_partition_options *options, int64_t length)
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
    ek_dataset *subset = ek_subset(options->dataset, order + begin, count);
    free(order);
    return subset;
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
    int64_t length = check(part, &options) < 0 ? -1 : ek_dataset_length(options.dataset);
    if (length < 0) {
        ek_dataset_free(options.dataset);
        return NULL;
    }
    return cut(part, &options, length);
}

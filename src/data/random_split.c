/* random_split.c: a random permutation cut into subsets, as torch.utils.data.random_split. */
#include <math.h>
#include <stdlib.h>

#include "core/thread.h"
#include "data/dataset.h"

static int check_parts(ek_dataset *dataset, const void *sizes, const char *what, int count,
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

static int check_lengths(const int64_t *lengths, int count, int64_t length)
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

static int cut(ek_dataset *dataset, const int64_t *order, const int64_t *lengths, int count,
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

static int split(ek_dataset *dataset, const int64_t *lengths, int count, ek_generator *generator,
                 ek_dataset **parts)
{
    int64_t length = ek_dataset_length(dataset);
    if (length < 0)
        return ek_error_pending();
    EK_TRY(check_lengths(lengths, count, length));
    int64_t *order = ek_calloc((size_t)length, sizeof *order);
    if (!order)
        return EK_E_NO_MEMORY;
    int rc = ek_randperm(length, order, generator);
    if (rc >= 0)
        rc = cut(dataset, order, lengths, count, parts);
    free(order);
    return rc;
}

int ek_random_split(ek_dataset *dataset, const int64_t *lengths, int count, ek_generator *generator,
                    ek_dataset **parts)
{
    int rc = check_parts(dataset, lengths, "lengths", count, parts);
    if (rc >= 0)
        rc = split(dataset, lengths, count, generator, parts);
    ek_dataset_free(dataset);
    return rc;
}

/* No more than there are: doubles don't hold all lengths. */
static int64_t part_of(int64_t length, double fraction)
{
    double exact = floor((double)length * fraction);
    return exact < (double)length ? (int64_t)exact : length;
}

/* Rounded down, and what is left dealt out one by one from the first. Fractions that decimals
 * cannot write exactly miss 1 by a few roundings of a double. */
static int lengths_of(const double *fractions, int count, int64_t length, int64_t *lengths)
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
        left -= lengths[i] = part_of(length, fractions[i]);
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
    int rc = lengths_of(fractions, count, length, lengths);
    if (rc >= 0)
        rc = split(dataset, lengths, count, generator, parts);
    free(lengths);
    return rc;
}

int ek_random_split_fractions(ek_dataset *dataset, const double *fractions, int count,
                              ek_generator *generator, ek_dataset **parts)
{
    int rc = check_parts(dataset, fractions, "fractions", count, parts);
    if (rc >= 0)
        rc = split_fractions(dataset, fractions, count, generator, parts);
    ek_dataset_free(dataset);
    return rc;
}

/* dataset_setup.h: what the tests of data sets share: numbers, of which none may be left, and
 * readers side by side. */
#ifndef EK_TESTS_DATASET_SETUP_H
#define EK_TESTS_DATASET_SETUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "unit.h"

/* Data sets of the tests. */
static atomic_int alive;
static atomic_int numbers_batches; /* that were asked for at once */

/* Sample i: the whole number first + i; fails at `bad`. */
typedef struct numbers {
    ek_dataset dataset;
    int64_t count, first, bad;
} numbers;

static inline int64_t numbers_length(ek_dataset *dataset)
{
    return ((numbers *)dataset)->count;
}

static inline ek_value numbers_get(ek_dataset *dataset, int64_t index)
{
    const numbers *self = (numbers *)dataset;
    if (index == self->bad) {
        ek_error(EK_E_IO, "torn out");
        return ek_value_error();
    }
    return ek_value_of_int(self->first + index);
}

static inline ek_value numbers_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                         ek_device device)
{
    atomic_fetch_add(&numbers_batches, 1);
    int64_t *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = ((numbers *)dataset)->first + samples[i];
    ek_value batch = ek_value_of_tensor(ek_from_data(values, EK_SHAPE(count), EK_I64, device));
    free(values);
    return batch;
}

static inline void numbers_destroy(ek_dataset *dataset)
{
    atomic_fetch_sub(&alive, 1);
}

static const ek_dataset_type single_type = {.name = "single",
                                            .size = sizeof(numbers),
                                            .length = numbers_length,
                                            .get = numbers_get,
                                            .destroy = numbers_destroy};
static const ek_dataset_type batched_type = {.name = "batched",
                                             .size = sizeof(numbers),
                                             .length = numbers_length,
                                             .get = numbers_get,
                                             .get_batch = numbers_get_batch,
                                             .destroy = numbers_destroy};

static inline ek_dataset *make(const ek_dataset_type *type, int64_t first, int64_t count)
{
    numbers *self = (numbers *)ek_dataset_new(type);
    assert_made(self);
    atomic_fetch_add(&alive, 1);
    self->count = count;
    self->first = first;
    self->bad = -1;
    return &self->dataset;
}

static inline ek_dataset *single(int64_t first, int64_t count)
{
    return make(&single_type, first, count);
}

static inline ek_dataset *batched(int64_t first, int64_t count)
{
    return make(&batched_type, first, count);
}

static inline void begin(void)
{
    atomic_store(&alive, 0);
    atomic_store(&numbers_batches, 0);
}

static inline void end(void)
{
    ck_assert_int_eq(ek_error_status(), 0);
    ck_assert_int_eq(atomic_load(&alive), 0);
}

FIXTURE(begin, end)

/* Four threads run `reads` with a reference each, which they give back; it returns what is wrong.
 */
static inline void read_by_threads(ek_dataset *dataset, void *(*reads)(void *))
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, reads, ek_dataset_keep(dataset)), 0);
    ek_dataset_free(dataset);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        ck_assert_int_eq(pthread_join(threads[i], &wrong), 0);
        ck_assert_msg(!wrong, "%s", (char *)wrong);
    }
}

#endif

/* counter.h: a data set without a length, as a user writes it: 0, 1, ..., end - 1, each with a
 * draw. */
#ifndef EK_TESTS_COUNTER_H
#define EK_TESTS_COUNTER_H

#include "unit.h"

typedef struct counter {
    ek_dataset dataset;
    int64_t end;
    int64_t bad; /* sample that fails; -1: none */
} counter;

/* Passes that are under way. */
static int open_cursors;

static inline void *counter_open(ek_dataset *dataset, int64_t epoch)
{
    open_cursors++;
    return calloc(1, sizeof(int64_t));
}

static inline int counter_next(ek_dataset *dataset, void *cursor, ek_value *sample)
{
    const counter *self = (counter *)dataset;
    int64_t *at = cursor, value = *at;
    if (value == self->end)
        return 0;
    ++*at;
    if (value == self->bad)
        return ek_error(EK_E_IO, "line %d is bad", (int)value);
    *sample = ek_value_of_int(value);
    return 1;
}

static inline ek_value counter_convert(ek_dataset *dataset, ek_value sample)
{
    return EK_LIST(ek_from_data(&sample.as.integer, EK_SHAPE(1), EK_I64), ek_rand(EK_SHAPE(2)));
}

static inline int64_t counter_skip(ek_dataset *dataset, void *cursor, int64_t count)
{
    int64_t *at = cursor, left = ((counter *)dataset)->end - *at;
    count = count < left ? count : left;
    *at += count;
    return count;
}

static inline void counter_close(ek_dataset *dataset, void *cursor)
{
    open_cursors--;
    free(cursor);
}

static const ek_dataset_type counter_type = {.name = "counter",
                                             .size = sizeof(counter),
                                             .open = counter_open,
                                             .next = counter_next,
                                             .close = counter_close,
                                             .convert = counter_convert};
static const ek_dataset_type skipping_type = {.name = "counter",
                                              .size = sizeof(counter),
                                              .open = counter_open,
                                              .next = counter_next,
                                              .skip = counter_skip,
                                              .close = counter_close,
                                              .convert = counter_convert};

/* Skips by itself if `end` is even. */
static inline ek_dataset *counter_new(int64_t end)
{
    counter *self = (counter *)ek_dataset_new(end % 2 ? &counter_type : &skipping_type);
    assert_made(self);
    self->end = end;
    self->bad = -1;
    return &self->dataset;
}

/* The number of a sample, or the i-th of a batch. */
static inline int64_t number_at(ek_value value, int64_t i)
{
    return (int64_t)element(ek_value_at(value, 0).as.tensor, i);
}

#endif

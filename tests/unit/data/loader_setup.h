/* loader_setup.h: what the tests of loaders share: a data set that draws, and runs that are
 * compared. */
#ifndef EK_TESTS_LOADER_SETUP_H
#define EK_TESTS_LOADER_SETUP_H

#include <stdatomic.h>

#include "unit.h"

enum { NOISY_DRAWS = 3 };

/* Sample i: the list of i (i64, no dimensions) and NOISY_DRAWS uniforms. Counts how many were read.
 */
typedef struct noisy {
    ek_dataset dataset;
    int64_t count;
    int64_t bad; /* sample that fails; -1: none */
    atomic_int *read;
    void (*before)(int64_t index); /* each sample */
} noisy;

static inline int64_t noisy_length(ek_dataset *dataset)
{
    return ((noisy *)dataset)->count;
}

static inline ek_value noisy_get(ek_dataset *dataset, int64_t index)
{
    const noisy *self = (noisy *)dataset;
    if (self->read)
        atomic_fetch_add(self->read, 1);
    if (self->before)
        self->before(index);
    ek_tensor *draws = ek_rand(EK_SHAPE(NOISY_DRAWS));
    if (index == self->bad) {
        ek_error(EK_E_IO, "no such row");
        return ek_value_error();
    }
    return EK_LIST(ek_from_data(&index, ek_scalar_shape(), EK_I64), draws);
}

static const ek_dataset_type noisy_type = {.name = "noisy",
                                           .size = sizeof(noisy),
                                           .length = noisy_length,
                                           .get = noisy_get};

static inline noisy *noisy_new(int64_t count)
{
    noisy *self = (noisy *)ek_dataset_new(&noisy_type);
    assert_made(self);
    self->count = count;
    self->bad = -1;
    return self;
}

/* ---- what loaders gave ---- */

enum { MOST_SAMPLES = 400 };

/* Samples and batches one after another. */
typedef struct record {
    int64_t indices[MOST_SAMPLES];
    float draws[MOST_SAMPLES][NOISY_DRAWS];
    int64_t ends[MOST_SAMPLES], numbers[MOST_SAMPLES];
    int samples, batches;
} record;

/* Rows of a part, (n) and (n, draws), or a sample as it is. */
static inline void record_part(record *into, ek_value part)
{
    ek_tensor *index = ek_value_tensor(ek_value_at(part, 0));
    ek_tensor *draws = ek_value_tensor(ek_value_at(part, 1));
    assert_made(index);
    assert_made(draws);
    int count = (int)ek_tensor_count(index);
    ck_assert_int_eq(ek_tensor_count(draws), count * NOISY_DRAWS);
    ck_assert_int_le(into->samples + count, MOST_SAMPLES);
    assert_ok(ek_to_data(index, into->indices + into->samples, (size_t)count * sizeof(int64_t)));
    assert_ok(
        ek_to_data(draws, into->draws[into->samples], (size_t)count * NOISY_DRAWS * sizeof(float)));
    into->samples += count;
}

static inline void record_batch(record *into, const ek_batch *batch)
{
    int before = into->samples;
    if (batch->data.per_device)
        for (int i = 0; i < ek_value_length(batch->data); i++)
            record_part(into, ek_value_at(batch->data, i));
    else
        record_part(into, batch->data);
    ck_assert_int_eq(batch->count, into->samples - before);
    if (batch->count)
        ck_assert_mem_eq(batch->indices, into->indices + before,
                         (size_t)batch->count * sizeof(int64_t));
    into->numbers[into->batches] = batch->number;
    into->ends[into->batches++] = into->samples;
}

/* The rest of a pass; how many batches it had. */
static inline int record_pass(record *into, ek_loader *loader)
{
    ek_batch batch;
    int count = 0, rc;
    while ((rc = ek_loader_next(loader, &batch)) > 0) {
        record_batch(into, &batch);
        count++;
    }
    assert_ok(rc);
    ck_assert_int_eq(batch.data.kind, EK_VALUE_NONE);
    return count;
}

static inline void assert_same(const record *a, const record *b)
{
    ck_assert_int_eq(a->samples, b->samples);
    ck_assert_int_eq(a->batches, b->batches);
    ck_assert_mem_eq(a->indices, b->indices, (size_t)a->samples * sizeof *a->indices);
    ck_assert_mem_eq(a->ends, b->ends, (size_t)a->batches * sizeof *a->ends);
    ck_assert_mem_eq(a->numbers, b->numbers, (size_t)a->batches * sizeof *a->numbers);
    ck_assert_mem_eq(a->draws, b->draws, (size_t)a->samples * sizeof *a->draws);
}

/* ---- ledgers ---- */

static inline void setup_devices(void)
{
    assert_ok(ek_host_devices_configure("4"));
}

/* Fails where anything is still kept. */
static inline void all_is_given_back(void)
{
    ck_assert_int_eq(ek_error_status(), 0);
}

/* The dictionary with another value of a key; none leaves it out. */
static inline ek_value with(ek_value state, const char *key, ek_value value)
{
    ek_value_entry entries[20];
    int count = 0;
    for (int i = 0; i < ek_value_length(state); i++) {
        const char *name = ek_value_key(state, i);
        bool changed = strcmp(name, key) == 0;
        if (!changed || value.kind != EK_VALUE_NONE)
            entries[count++] = (ek_value_entry){name, changed ? value : ek_value_at(state, i)};
    }
    return ek_value_dict(entries, count);
}

#endif

/* shuffled.c: a data set whose samples pass through a buffer in random order. */
#include <stdlib.h>

#include "core/error.h"
#include "core/generator.h"
#include "core/value.h"
#include "data/dataset.h"

typedef struct shuffled {
    ek_dataset dataset;
    ek_dataset *of;
    int64_t size, seed;
} shuffled;

typedef struct shuffled_cursor {
    ek_iterator *iterator;
    ek_generator generator;
    ek_value *buffer; /* one reference each */
    int64_t count;
} shuffled_cursor;

static void shuffled_close(ek_dataset *dataset, void *user)
{
    shuffled_cursor *cursor = user;
    (void)dataset;
    for (int64_t i = 0; i < cursor->count; i++)
        ek_value_release(cursor->buffer[i]);
    ek_iterator_free(cursor->iterator);
    free(cursor->buffer);
    free(cursor);
}

/* Every epoch has different random numbers: its number is added to the seed, and neighbouring seeds
 * give unrelated generators. */
static void *shuffled_open(ek_dataset *dataset, int64_t epoch)
{
    const shuffled *self = (const shuffled *)dataset;
    shuffled_cursor *cursor = ek_calloc(1, sizeof *cursor);
    if (!cursor)
        return NULL;
    ek_generator_seed(&cursor->generator, (uint64_t)self->seed);
    ek_generator_seed(&cursor->generator, ek_generator_u64(&cursor->generator) + (uint64_t)epoch);
    cursor->buffer = ek_calloc((size_t)self->size, sizeof *cursor->buffer);
    cursor->iterator = cursor->buffer ? ek_iterate(ek_dataset_keep(self->of), epoch) : NULL;
    if (!cursor->iterator) {
        shuffled_close(dataset, cursor);
        return NULL;
    }
    return cursor;
}

/* Moves the sample at place `at` of the buffer to the caller's scope. Stores `next` at this place;
 * if `next` is NULL, moves the buffer's last sample there. */
static int shuffled_give(shuffled_cursor *cursor, int64_t at, const ek_value *next,
                         ek_value *sample)
{
    *sample = cursor->buffer[at];
    cursor->buffer[at] = next ? ek_value_keep(*next) : cursor->buffer[--cursor->count];
    void *object = ek_value_object(*sample);
    return ek_scope_adopt(object) == object ? 1 : ek_error_pending();
}

static int shuffled_next(ek_dataset *dataset, void *user, ek_value *sample)
{
    const shuffled *self = (const shuffled *)dataset;
    shuffled_cursor *cursor = user;
    ek_value read;
    int rc;
    while ((rc = ek_iterator_read(cursor->iterator, &read)) > 0) {
        if (cursor->count == self->size)
            return shuffled_give(cursor, ek_generator_below(&cursor->generator, cursor->count),
                                 &read, sample);
        cursor->buffer[cursor->count++] = ek_value_keep(read);
    }
    if (rc < 0 || cursor->count == 0)
        return rc;
    return shuffled_give(cursor, ek_generator_below(&cursor->generator, cursor->count), NULL,
                         sample);
}

static ek_value shuffled_convert(ek_dataset *dataset, ek_value sample)
{
    return ek_dataset_convert(((shuffled *)dataset)->of, sample);
}

static void shuffled_destroy(ek_dataset *dataset)
{
    ek_dataset_free(((shuffled *)dataset)->of);
}

static const ek_dataset_type shuffled_type = {.name = "shuffled",
                                              .size = sizeof(shuffled),
                                              .destroy = shuffled_destroy,
                                              .open = shuffled_open,
                                              .next = shuffled_next,
                                              .close = shuffled_close,
                                              .convert = shuffled_convert};

ek_dataset *ek_shuffled_with(ek_shuffled_options options)
{
    int64_t size = options.buffer;
    shuffled *self = NULL;
    if (ek_check_handle("shuffled", "the data set", options.dataset) == 0) {
        if (size < 1)
            EK_FAIL(EK_E_INVALID, "shuffled: a buffer of %lld samples; at least 1 is needed",
                    (long long)size);
        else
            self = (shuffled *)ek_dataset_new(&shuffled_type);
    }
    if (!self) {
        ek_dataset_free(options.dataset);
        return NULL;
    }
    self->of = options.dataset;
    self->size = size;
    self->seed = options.seed;
    return &self->dataset;
}

/* iterator.c: passes over data sets, with and without a length. */
#include <stdlib.h>

#include "core/error.h"
#include "core/value.h"
#include "data/dataset.h"

struct ek_iterator {
    ek_dataset *dataset; /* one reference */
    void *cursor;        /* NULL for a data set with a length */
    int64_t number;      /* of the next sample */
    int64_t length;      /* of a data set with a length */
    bool ended;
};

/* ---- making ---- */

static int iterator_open(ek_iterator *self, int64_t epoch)
{
    const ek_dataset_type *type = self->dataset->type;
    if (!type->next) {
        self->length = ek_dataset_length(self->dataset);
        return self->length < 0 ? (int)self->length : 0;
    }
    const int before = ek_error_status();
    self->cursor = type->open(self->dataset, epoch);
    int rc = ek_error_outcome(self->cursor ? 0 : EK_E_USER);
    if (rc < 0)
        ek_error_prefix(before, "%s", type->name);
    return before && self->cursor ? 0 : rc;
}

ek_iterator *ek_iterate(ek_dataset *dataset, int64_t epoch)
{
    ek_iterator *self = ek_check_handle("iterate", "the data set", dataset) < 0
                            ? NULL
                            : ek_calloc(1, EK_RETIRABLE(sizeof *self));
    if (!self) {
        ek_dataset_free(dataset);
        return NULL;
    }
    self->dataset = dataset;
    if (iterator_open(self, epoch) < 0) {
        ek_iterator_free(self);
        return NULL;
    }
    return self;
}

void ek_iterator_free(ek_iterator *iterator)
{
    EK_RELEASES("ek_iterator_free", iterator);
    if (iterator->cursor)
        iterator->dataset->type->close(iterator->dataset, iterator->cursor);
    ek_dataset_free(iterator->dataset);
    ek_retire(iterator, EK_RETIRABLE(sizeof *iterator), "iterator", iterator);
}

/* ---- samples ---- */

/* Calls the type's `next`. All else that it leaves in the scope is released. */
static int iterator_call_next(ek_iterator *self, ek_value *sample)
{
    const int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    int rc = self->dataset->type->next(self->dataset, self->cursor, sample);
    if (rc > 0 && sample->kind == EK_VALUE_ERROR)
        rc = EK_E_USER;
    bool failed = rc < 0 || (!before && ek_error_status() < 0);
    if (failed)
        rc = ek_error_outcome(rc < 0 ? rc : EK_E_USER);
    if (failed)
        ek_error_prefix(before, "%s: sample %lld", self->dataset->type->name,
                        (long long)self->number);
    *sample = ek_scope_return_value(&scope, rc > 0 ? *sample : ek_value_none());
    return rc > 0 && sample->kind == EK_VALUE_ERROR ? ek_error_pending() : rc < 0 ? rc : rc > 0;
}

int ek_iterator_read(ek_iterator *iterator, ek_value *sample)
{
    *sample = ek_value_none();
    if (iterator->ended)
        return 0;
    int rc = 1;
    if (iterator->cursor) {
        rc = iterator_call_next(iterator, sample);
    } else if (iterator->number == iterator->length) {
        rc = 0;
    } else {
        *sample = ek_dataset_get(iterator->dataset, iterator->number);
        rc = sample->kind == EK_VALUE_ERROR ? ek_error_pending() : 1;
    }
    iterator->ended = rc == 0;
    if (rc != 0)
        iterator->number++;
    return rc;
}

ek_value ek_dataset_convert(ek_dataset *dataset, ek_value sample)
{
    if (!dataset->type->convert || sample.kind == EK_VALUE_ERROR)
        return sample;
    const int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    ek_value result = dataset->type->convert(dataset, sample);
    if (result.kind == EK_VALUE_ERROR || (!before && ek_error_status() < 0)) {
        ek_error_outcome(EK_E_USER);
        ek_error_prefix(before, "%s", dataset->type->name);
        result = ek_value_error();
    }
    return ek_scope_return_value(&scope, result);
}

int ek_iterator_next(ek_iterator *iterator, ek_value *sample)
{
    EK_TRY(ek_check_handle("iterator_next", "the iterator", iterator));
    EK_TRY(ek_check_pointer("iterator_next", "the sample", sample));
    ek_scope scope = ek_scope_begin();
    int rc = ek_iterator_read(iterator, sample);
    if (rc > 0)
        *sample = ek_dataset_convert(iterator->dataset, *sample);
    *sample = ek_scope_return_value(&scope, *sample);
    return rc > 0 && sample->kind == EK_VALUE_ERROR ? ek_error_pending() : rc;
}

/* ---- skipping ---- */

static int64_t iterator_skip_one_by_one(ek_iterator *self, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        ek_value sample;
        ek_scope scope = ek_scope_begin();
        int rc = ek_iterator_read(self, &sample);
        ek_scope_end(&scope);
        if (rc <= 0)
            return rc < 0 ? rc : i;
    }
    return count;
}

int64_t ek_iterator_skip(ek_iterator *iterator, int64_t count)
{
    EK_TRY(ek_check_handle("iterator_skip", "the iterator", iterator));
    if (count < 0)
        return EK_FAIL(EK_E_INVALID, "iterator_skip: %lld samples; at least 0 are skipped",
                       (long long)count);
    const ek_dataset_type *type = iterator->dataset->type;
    if (iterator->ended || count == 0)
        return 0;
    int64_t skipped = count;
    if (!iterator->cursor)
        skipped = count < iterator->length - iterator->number ? count
                                                              : iterator->length - iterator->number;
    else if (type->skip)
        skipped = type->skip(iterator->dataset, iterator->cursor, count);
    else
        return iterator_skip_one_by_one(iterator, count);
    if (skipped < 0) {
        ek_error_outcome((int)skipped);
        return skipped;
    }
    iterator->number += skipped;
    iterator->ended = skipped < count;
    return skipped;
}

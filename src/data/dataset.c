/* dataset.c: reference counts of data sets, and checked calls of their types' functions.
 *
 * Data sets that wrap others call each other recursively. The recursion ends, because a data set is
 * made from data sets that exist already. */
#include "data/dataset.h"

#include <stdalign.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/value.h"

/* ---- reference counts ---- */

/* Lies in memory before each data set's struct, which its alignment keeps aligned. */
typedef struct dataset_counter {
    alignas(max_align_t) atomic_int references;
} dataset_counter;

static dataset_counter *dataset_counter_of(ek_dataset *dataset)
{
    return (dataset_counter *)(void *)dataset - 1;
}

ek_dataset *ek_dataset_new(const ek_dataset_type *type)
{
    const char *missing = !type           ? "the type is NULL"
                          : !type->name   ? "the type has no name"
                          : type->next    ? (!type->open    ? "the type has no open"
                                             : !type->close ? "the type has no close"
                                                            : NULL)
                          : !type->length ? "the type has no length"
                          : !type->get    ? "the type has no get"
                                          : NULL;
    if (missing)
        return EK_FAIL_NULL(EK_E_INVALID, "dataset_new: %s", missing);
    if (type->size < sizeof(ek_dataset) || type->size > SIZE_MAX / 2)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "dataset_new: %s has a size of %zu bytes; its struct begins with an "
                            "ek_dataset of %zu",
                            type->name, type->size, sizeof(ek_dataset));
    dataset_counter *count = ek_calloc(1, sizeof *count + EK_RETIRABLE(type->size));
    if (!count)
        return NULL;
    atomic_init(&count->references, 1);
    ek_dataset *dataset = (ek_dataset *)(void *)(count + 1);
    dataset->type = type;
    return dataset;
}

ek_dataset *ek_dataset_keep(ek_dataset *dataset)
{
    if (ek_check_alive("dataset_keep", "the data set", dataset) < 0)
        return NULL;
    if (dataset)
        atomic_fetch_add_explicit(&dataset_counter_of(dataset)->references, 1,
                                  memory_order_relaxed);
    return dataset;
}

void ek_dataset_free(ek_dataset *dataset)
{
    /* acq_rel: the thread that destroys the data set sees what other owners wrote before. */
    EK_RELEASES("ek_dataset_free", dataset);
    if (atomic_fetch_sub_explicit(&dataset_counter_of(dataset)->references, 1,
                                  memory_order_acq_rel) != 1)
        return;
    if (dataset->type->destroy)
        dataset->type->destroy(dataset);
    ek_retire(dataset, EK_RETIRABLE(dataset->type->size), "data set", dataset_counter_of(dataset));
}

/* ---- results of a type's function ---- */

/* Returns true if the function failed: it returned an error, or left one pending. `before` is the
 * status before the call: an error that was pending then isn't the function's, and keeps its
 * message. */
static bool dataset_failed(ek_value value, int before)
{
    if (value.kind == EK_VALUE_ERROR)
        return ek_error_outcome(EK_E_USER) < 0;
    return !before && ek_error_status() < 0;
}

int64_t ek_dataset_length(ek_dataset *dataset)
{
    EK_TRY(ek_check_handle("dataset_length", "the data set", dataset));
    if (dataset->type->next)
        return EK_FAIL(EK_E_INVALID,
                       "%s has no length, and no samples by index: it is read from beginning to "
                       "end (ek_iterate)",
                       dataset->type->name);
    int before = ek_error_status();
    int64_t length = dataset->type->length(dataset);
    int status = ek_error_status();
    if (length >= 0 && (before || !status))
        return length;
    if (before)
        return status;
    if (status)
        ek_error_prefix(before, "%s", dataset->type->name);
    else
        status = EK_FAIL(EK_E_INVALID, "%s: its length is %lld; at least 0 is possible",
                         dataset->type->name, (long long)length);
    return status;
}

/* Gets sample `index`, which is in range. Releases all other objects that the call left in the
 * scope. */
static ek_value dataset_sample(ek_dataset *dataset, int64_t index)
{
    int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    ek_value sample = dataset->type->get(dataset, index);
    if (dataset_failed(sample, before)) {
        ek_error_prefix(before, "%s: sample %lld", dataset->type->name, (long long)index);
        sample = ek_value_error();
    }
    const ek_releaser outer = ek_release_named("the sample of", dataset->type->name);
    sample = ek_scope_return_value(&scope, sample);
    ek_release_end(&outer);
    return sample;
}

ek_value ek_dataset_get(ek_dataset *dataset, int64_t index)
{
    if (ek_check_handle("dataset_get", "the data set", dataset) < 0)
        return ek_value_error();
    int64_t length = ek_dataset_length(dataset);
    if (length < 0)
        return ek_value_error();
    if (index < -length || index >= length)
        return EK_FAIL_VALUE(EK_E_INVALID, "%s: sample %lld of %lld", dataset->type->name,
                             (long long)index, (long long)length);
    return dataset_sample(dataset, index < 0 ? index + length : index);
}

int64_t ek_dataset_part(const int64_t *ends, int64_t count, int64_t index)
{
    int64_t first = 0, last = count - 1;
    while (first < last) {
        int64_t middle = first + (last - first) / 2;
        if (ends[middle] > index)
            last = middle;
        else
            first = middle + 1;
    }
    return first;
}

/* ---- batches ---- */

static int dataset_check_samples(ek_dataset *dataset, const int64_t *samples, int64_t count)
{
    int64_t length = ek_dataset_length(dataset);
    const char *name = dataset->type->name;
    if (length < 0)
        return ek_error_pending();
    if (count < 1)
        return EK_FAIL(EK_E_INVALID, "%s: a batch of %lld samples; at least one is wanted", name,
                       (long long)count);
    if (!samples)
        return EK_FAIL(EK_E_INVALID, "%s: the samples of a batch are NULL", name);
    for (int64_t i = 0; i < count; i++)
        if (samples[i] < 0 || samples[i] >= length)
            return EK_FAIL(EK_E_INVALID, "%s: sample %lld of %lld in a batch", name,
                           (long long)samples[i], (long long)length);
    return 0;
}

static _Thread_local const atomic_bool *dataset_stop;

const atomic_bool *ek_dataset_stop_when(const atomic_bool *stop)
{
    const atomic_bool *before = dataset_stop;
    dataset_stop = stop;
    return before;
}

bool ek_dataset_stopped(void)
{
    return dataset_stop && atomic_load_explicit(dataset_stop, memory_order_relaxed);
}

ek_value ek_dataset_batch_by_samples(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device)
{
    ek_value *values = ek_calloc((size_t)count, sizeof *values);
    if (!values)
        return ek_value_error();
    ek_value batch = ek_value_none();
    ek_scope scope = ek_scope_begin();
    for (int64_t i = 0; i < count && batch.kind != EK_VALUE_ERROR; i++) {
        values[i] = ek_dataset_stopped() ? ek_value_error() : dataset_sample(dataset, samples[i]);
        if (values[i].kind == EK_VALUE_ERROR)
            batch = values[i];
    }
    if (batch.kind != EK_VALUE_ERROR)
        batch = ek_collate_numbered(values, samples, count, device);
    free(values);
    return ek_scope_return_value(&scope, batch);
}

/* Fails if a tensor of a batch from get_batch lies on another device than the one asked for. */
static int dataset_check_devices(ek_value value, const ek_dev *dev)
{
    if (value.kind == EK_VALUE_TENSOR && ek_tensor_dev(value.as.tensor) != dev) {
        char text[200];
        return EK_FAIL(EK_E_DEVICE, "get_batch made %s; it was asked for %s",
                       ek_tensor_text(value.as.tensor, text), dev->name);
    }
    for (int i = 0; i < ek_value_length(value); i++)
        EK_TRY(dataset_check_devices(ek_value_at(value, i), dev));
    return 0;
}

ek_value ek_dataset_get_batch(ek_dataset *dataset, const int64_t *samples, int64_t count,
                              ek_device device)
{
    ek_dev *dev = NULL;
    if (ek_check_handle("dataset_get_batch", "the data set", dataset) < 0 ||
        dataset_check_samples(dataset, samples, count) < 0 ||
        !(dev = ek_batch_dev(device, "dataset_get_batch")))
        return ek_value_error();
    int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    ek_value batch;
    if (dataset->type->get_batch) {
        batch = dataset->type->get_batch(dataset, samples, count, device);
        if (dataset_failed(batch, before) || dataset_check_devices(batch, dev) < 0) {
            ek_error_prefix(before, "%s", dataset->type->name);
            batch = ek_value_error();
        }
    } else {
        batch = ek_dataset_batch_by_samples(dataset, samples, count, device);
    }
    return ek_scope_return_value(&scope, batch);
}

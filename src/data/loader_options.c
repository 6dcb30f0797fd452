/* loader_options.c: checks that a loader's options are in range and don't exclude each other. */
#include "core/device.h"
#include "data/loader.h"
#include "plan/split.h"

static int loader_check_samplers(const ek_loader_options *o)
{
    if (o->shuffle + (o->sampler != NULL) + (o->batch_sampler != NULL) > 1)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: shuffle, sampler and batch_sampler each say which samples "
                       "come; at most one of them can be given");
    if (o->sampler && o->sampler->type->makes_batches)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: sampler \"%s\" makes batches; give it as batch_sampler",
                       o->sampler->type->name);
    if (!o->batch_sampler)
        return 0;
    if (!o->batch_sampler->type->makes_batches)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: batch_sampler \"%s\" makes no batches; give it as sampler",
                       o->batch_sampler->type->name);
    if (o->batch_size != 1 || o->drop_last)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: batch_size and drop_last are the batch_sampler's to decide");
    return 0;
}

static int loader_check_batches(const ek_loader_options *o)
{
    if (o->batch_size < 0)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: batch_size %lld; 1 or more are possible, or 0 for "
                       "samples as they are",
                       (long long)o->batch_size);
    if (o->batch_size != 0)
        return 0;
    if (o->drop_last || o->collate)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: %s has no meaning for samples as they are (batch_size "
                       "0)",
                       o->drop_last ? "drop_last" : "collate");
    if (o->device_ids.count > 1)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: samples as they are (batch_size 0) cannot be divided "
                       "among %d devices",
                       o->device_ids.count);
    return 0;
}

static int loader_check_workers(const ek_loader_options *o)
{
    if (o->workers < 0 || o->workers > EK_LOADER_MOST_WORKERS)
        return EK_FAIL(EK_E_INVALID, "data_loader: %d workers; between 0 and %d are possible",
                       o->workers, EK_LOADER_MOST_WORKERS);
    if (o->prefetch < 1 || (o->workers && o->prefetch > EK_LOADER_MOST_SLOTS / o->workers))
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: prefetch %d; between 1 and %d are possible for %d workers",
                       o->prefetch, EK_LOADER_MOST_SLOTS / (o->workers ? o->workers : 1),
                       o->workers);
    if (o->seeding != EK_SEED_BATCH && o->seeding != EK_SEED_WORKER)
        return EK_FAIL(EK_E_INVALID, "data_loader: %d is no way of seeding", (int)o->seeding);
    return 0;
}

static int loader_check_devices(const ek_loader_options *o)
{
    const ek_device_list *list = &o->device_ids;
    char name[16];
    EK_TRY(ek_device_list_check("data_loader", list));
    for (int i = 0; i < list->count; i++) {
        if (!ek_dev_get(list->devices[i]))
            return ek_error_pending();
        for (int j = 0; j < i; j++)
            if (ek_device_equal(list->devices[i], list->devices[j]))
                return EK_FAIL(EK_E_INVALID, "data_loader: %s stands twice in device_ids",
                               ek_device_name(list->devices[i], name));
    }
    if (o->split != EK_SPLIT_CHUNK && o->split != EK_SPLIT_EVEN)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: split can be EK_SPLIT_CHUNK or EK_SPLIT_EVEN; measured plans "
                       "come from the wrapper, by sizes (ek_data_parallel_sizes)");
    if (o->sizes && o->split != EK_SPLIT_CHUNK)
        return EK_FAIL(EK_E_INVALID, "data_loader: split and sizes both say how to divide a batch");
    if (o->sizes && list->count == 0)
        return EK_FAIL(EK_E_INVALID, "data_loader: sizes are given, but no device_ids");
    return 0;
}

/* Refuses options that a data set without a length can't have: it has no samples by index, and
 * which batch is its last is known too late. */
static int loader_check_iterable(const ek_loader_options *o)
{
    if (!o->dataset->type->next)
        return 0;
    if (o->shuffle || o->sampler || o->batch_sampler)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: %s has no samples by index, which %s would choose; "
                       "ek_shuffled shuffles it",
                       o->dataset->type->name,
                       o->shuffle   ? "shuffle"
                       : o->sampler ? "a sampler"
                                    : "a batch_sampler");
    if (o->sizes && !o->drop_last)
        return EK_FAIL(EK_E_INVALID,
                       "data_loader: sizes cannot be asked for the last batch of %s, whose length "
                       "is not known; .drop_last leaves it out",
                       o->dataset->type->name);
    return 0;
}

/* Fails with the pending error. If the data set is NULL, because making it has failed, the sentence
 * of that failure stays. */
int ek_loader_check(const ek_loader_options *options)
{
    if (!options->dataset && ek_error_status() < 0)
        return ek_error_pending();
    EK_TRY(ek_error_refused("data_loader"));
    if (!options->dataset)
        return EK_FAIL(EK_E_INVALID, "data_loader: the data set is NULL");
    EK_TRY(loader_check_samplers(options));
    EK_TRY(loader_check_batches(options));
    EK_TRY(loader_check_workers(options));
    EK_TRY(loader_check_iterable(options));
    return loader_check_devices(options);
}

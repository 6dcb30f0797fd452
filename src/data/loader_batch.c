/* loader_batch.c: makes a batch, in a worker or the caller's thread, and gives it to the caller. */
#include <stdlib.h>

#include "core/object.h"
#include "core/staging.h"
#include "core/value.h"
#include "data/dataset.h"
#include "data/loader.h"

static _Thread_local const ek_loader_maker *of_thread; /* NULL: the thread is no loader's worker */

bool ek_loader_worker(ek_worker_info *info)
{
    if (!of_thread || !info)
        return of_thread != NULL;
    info->worker = of_thread->number;
    info->workers = of_thread->loader->options.workers;
    info->seed = of_thread->loader->base_seed + (uint64_t)of_thread->number;
    return true;
}

/* ---- from the host's memory to devices ---- */

/* Copies to memory from which `dev` is fed: the device's own, or pinned host memory. Runs in the
 * worker. */
static ek_tensor *part_stage(ek_tensor *tensor, ek_dev *dev)
{
    if (ek_tensor_dev(tensor) == dev)
        return tensor;
    ek_shape shape = ek_tensor_shape(tensor);
    ek_tensor *staged = ek_staging_new(dev, tensor->dtype, &shape);
    if (!staged)
        return NULL;
    size_t nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    return ek_to_data(tensor, ek_tensor_address(staged), nbytes) < 0 ? NULL : staged;
}

/* Calls ek_staging_send or ek_staging_receive for each tensor. Runs in the caller's thread. */
static ek_value part_pass(ek_value staged, ek_device device, ek_batch_function *function)
{
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_value_error();
    return ek_dev_is_host(dev) ? staged : ek_batch_map(staged, function, dev);
}

/* ---- a part: the samples that one device gets ---- */

ek_value *ek_loader_room(ek_loader_maker *worker, int64_t count)
{
    if (count > worker->room) {
        ek_value *grown = ek_realloc(worker->samples, (size_t)count * sizeof *grown);
        if (!grown)
            return NULL;
        worker->samples = grown;
        worker->room = count;
    }
    return worker->samples;
}

/* The source of a batch's samples: the data set, by their indices, or the worker's room, into which
 * the reader has read them. */
typedef struct maker_source {
    const int64_t *indices;
    ek_value *samples; /* if indices is NULL */
} maker_source;

static ek_value maker_sample(ek_loader_maker *worker, const maker_source *from, int64_t i)
{
    ek_dataset *dataset = worker->loader->options.dataset;
    return from->indices ? ek_dataset_get(dataset, from->indices[i])
                         : ek_dataset_convert(dataset, from->samples[i]);
}

/* Gets each sample, and collates them by the user's function or on `device`. */
static ek_value maker_collate(ek_loader_maker *worker, const maker_source *from, int64_t count,
                              ek_device device)
{
    const int before = ek_error_status();
    const ek_loader_options *options = &worker->loader->options;
    ek_value *samples = from->indices ? ek_loader_room(worker, count) : from->samples;
    if (!samples)
        return ek_value_error();
    for (int64_t i = 0; i < count && !ek_dataset_stopped(); i++) {
        samples[i] = maker_sample(worker, from, i);
        if (samples[i].kind == EK_VALUE_ERROR)
            return samples[i];
    }
    if (ek_dataset_stopped())
        return ek_value_error();
    if (!options->collate)
        return ek_collate(samples, count, device);
    ek_value batch = options->collate(samples, count, options->collate_user);
    int rc = ek_error_outcome(batch.kind == EK_VALUE_ERROR ? EK_E_USER : 0);
    if (rc == 0)
        return batch;
    ek_error_prefix(before, "collate");
    return ek_value_error();
}

/* Replaces a tensor by a tensor without samples. A tensor without dimensions stays. */
static bool part_empty(ek_value *value, void *user)
{
    (void)user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    const ek_tensor *tensor = value->as.tensor;
    ek_shape shape = ek_tensor_shape(tensor);
    if (shape.ndim == 0)
        return true;
    shape.dims[ek_value_batch_dim(*value, 0)] = 0;
    *value = ek_value_with_tensor(*value, ek_tensor_new(ek_tensor_dev(tensor), tensor->dtype,
                                                        &shape, EK_CONTIGUOUS));
    return true;
}

/* Makes the part of one device. With `empty`, samples are read only for their shapes, and the part
 * has no samples. */
static ek_value maker_make_part(ek_loader_maker *worker, const maker_source *from, int64_t count,
                                bool empty, ek_device device)
{
    const ek_loader *loader = worker->loader;
    ek_dataset *dataset = loader->options.dataset;
    ek_dev *dev = ek_dev_get(device);
    ek_value part;
    if (!dev)
        return ek_value_error();
    ek_device at = ek_dev_is_host(dev) ? device : ek_cpu();
    if (loader->single)
        part = maker_sample(worker, from, 0);
    else if (loader->options.collate || !from->indices)
        part = maker_collate(worker, from, count, at);
    else
        part = ek_dataset_get_batch(dataset, from->indices, count, at);
    if (empty && part.kind != EK_VALUE_ERROR)
        part = ek_value_map(part, part_empty, NULL);
    if (loader->options.device_ids.count == 0)
        return part; /* tensors from a user's function may lie on any device */
    return part.kind == EK_VALUE_ERROR ? part : ek_batch_map(part, part_stage, dev);
}

/* ---- a batch ---- */

static int slot_check_indices(const ek_loader *loader, const ek_loader_slot *slot)
{
    int64_t length = ek_dataset_length(loader->options.dataset);
    if (length < 0)
        return ek_error_pending();
    for (int64_t i = 0; i < slot->count; i++)
        if (slot->indices[i] < 0 || slot->indices[i] >= length)
            return EK_FAIL(EK_E_INVALID, "sampler \"%s\" gave sample %lld of a data set of %lld",
                           loader->sampler->type->name, (long long)slot->indices[i],
                           (long long)length);
    return 0;
}

/* Makes the parts of all devices. An empty batch has one sample, for the first device. */
static int maker_make_parts(ek_loader_maker *worker, ek_loader_slot *slot, maker_source from)
{
    const ek_device_list *devices = &worker->loader->options.device_ids;
    const bool empty = slot->count == 0;
    for (int d = 0; d < (devices->count ? devices->count : 1); d++) {
        int64_t count = empty && d == 0 ? 1 : slot->sizes[d];
        if (count == 0)
            continue;
        ek_device device = devices->count ? devices->devices[d] : ek_cpu();
        ek_scope scope = ek_scope_begin();
        ek_value part = maker_make_part(worker, &from, count, empty, device);
        if (part.kind != EK_VALUE_ERROR) {
            slot->device[slot->parts] = d;
            slot->part[slot->parts++] = ek_value_keep(part);
        }
        ek_scope_end(&scope);
        if (part.kind == EK_VALUE_ERROR)
            return ek_error_pending();
        if (from.indices)
            from.indices += count;
        else
            from.samples += count;
    }
    return 0;
}

static int maker_make_by_index(ek_loader_maker *worker, ek_loader_slot *slot)
{
    static const int64_t first_sample = 0;
    EK_TRY(slot_check_indices(worker->loader, slot));
    return maker_make_parts(worker, slot,
                            (maker_source){slot->count ? slot->indices : &first_sample, NULL});
}

/* Makes a batch of a data set without a length. A batch whose sizes could not be made is read, too,
 * so that its turn passes, and the next batch begins after its samples. If the data set has ended,
 * or the batch is empty, the error of its sizes is dropped. Random numbers that an empty batch's
 * sample draws don't change the numbers of other batches. */
static int maker_make_by_reading(ek_loader_maker *worker, ek_loader_slot *slot)
{
    ek_loader *loader = worker->loader;
    int64_t full = slot->count;
    ek_generator own, *before = NULL;
    EK_TRY(ek_loader_read(worker, slot));
    if (slot->over || slot->count == 0)
        slot->error.status = 0;
    if (slot->over || slot->error.status || ek_dataset_stopped())
        return 0;
    if (slot->count < full)
        EK_TRY(ek_loader_cut(loader, slot));
    if (slot->count == 0) {
        ek_generator_seed_late(&own, loader->base_seed + (uint64_t)slot->number);
        before = ek_generator_stand_in(&own);
    }
    int rc = maker_make_parts(worker, slot, (maker_source){NULL, worker->samples});
    if (slot->count == 0)
        ek_generator_stand_in(before);
    return rc;
}

/* The state of a thread that is saved around a call of the user's function. The function gets fresh
 * modes, the worker's generator, no pending error, and a scope that ends after it. */
typedef struct call_context {
    ek_scope scope;
    ek_thread_modes modes;
    ek_generator *generator;
    bool stands_in;
    const atomic_bool *stop;
} call_context;

static call_context context_enter(const ek_loader *loader, ek_generator *generator)
{
    ek_thread *self = ek_thread_self();
    call_context before = {.modes = self->modes,
                           .stands_in = generator != NULL,
                           .stop = ek_dataset_stop_when(&loader->stop)};
    self->modes = (ek_thread_modes){.category = EK_MEMORY_ACTIVATION, .path = ek_path_root};
    if (generator)
        before.generator = ek_generator_stand_in(generator);
    before.scope = ek_scope_begin();
    return before;
}

static void context_leave(call_context *before)
{
    ek_scope_end(&before->scope);
    if (before->stands_in)
        ek_generator_stand_in(before->generator);
    ek_dataset_stop_when(before->stop);
    ek_thread_self()->modes = before->modes;
}

/* Returns the generator that replaces the default generator for this batch; NULL: none. An empty
 * batch always has a separate generator, because the numbers of other batches must not depend on a
 * rank's share. */
static ek_generator *maker_generator(ek_loader_maker *worker, ek_loader_slot *slot)
{
    const ek_loader *loader = worker->loader;
    if (slot->count == 0) {
        ek_generator_seed_late(&slot->after, loader->base_seed + (uint64_t)slot->number);
        return &slot->after;
    }
    if (loader->options.seeding == EK_SEED_WORKER)
        return loader->options.workers ? &worker->generator : NULL;
    ek_generator_seed_late(&worker->generator, loader->base_seed + (uint64_t)slot->number);
    return &worker->generator;
}

static void maker_say_where(const ek_loader_maker *worker, int64_t number, int before)
{
    if (worker->loader->options.workers)
        ek_error_prefix(before, "loader: batch %lld (worker %d)", (long long)number,
                        worker->number);
    else
        ek_error_prefix(before, "loader: batch %lld", (long long)number);
}

void ek_loader_make(ek_loader_maker *worker, ek_loader_slot *slot)
{
    const int pending = ek_error_status();
    call_context before = context_enter(worker->loader, maker_generator(worker, slot));
    const bool iterates = worker->loader->iterates;
    int rc = iterates              ? maker_make_by_reading(worker, slot)
             : !slot->error.status ? maker_make_by_index(worker, slot)
                                   : 0;
    if (rc < 0) {
        maker_say_where(worker, slot->number, pending);
        ek_error_take(&slot->error);
        ek_loader_drop(slot);
    }
    context_leave(&before);
    if (ek_loader_seeds_workers(worker->loader))
        slot->after = worker->generator;
}

/* Calls worker_start, which draws from a separate generator, so that batches don't depend on when a
 * thread starts. */
void ek_loader_start_worker(ek_loader_maker *worker)
{
    const ek_loader_options *options = &worker->loader->options;
    ek_generator generator;
    of_thread = worker;
    if (!options->worker_start)
        return;
    ek_generator_seed_late(&generator, worker->loader->base_seed + (uint64_t)worker->number);
    call_context before = context_enter(worker->loader, &generator);
    if (ek_error_outcome(options->worker_start(worker->number, options->worker_user)) < 0)
        ek_error_prefix(0, "worker_start");
    context_leave(&before);
    ek_error_take(&worker->failed);
}

/* ---- to the caller ---- */

void ek_loader_drop(ek_loader_slot *slot)
{
    for (int i = 0; i < slot->parts; i++)
        ek_value_release(slot->part[i]);
    slot->parts = 0;
    slot->sent = false;
}

void ek_loader_forget(ek_loader *loader)
{
    ek_value_release(loader->data);
    ek_value_release(loader->input);
    ek_value_release(loader->target);
    loader->data = loader->input = loader->target = ek_value_none();
}

static bool batch_is_sample_list(ek_value value)
{
    return value.kind == EK_VALUE_LIST && !value.per_device && ek_value_length(value) > 0;
}

/* Returns element `index` of the batch; of a per-device value, a list with one for each device. */
static ek_value batch_element(ek_value data, int index)
{
    ek_value items[EK_MAX_DEVICES];
    ek_value other = index == 0 ? data : ek_value_none();
    int count = ek_value_length(data);
    if (batch_is_sample_list(data))
        return count > index ? ek_value_at(data, index) : other;
    if (!data.per_device || count == 0 || count > EK_MAX_DEVICES)
        return other;
    for (int i = 0; i < count; i++) {
        ek_value part = ek_value_at(data, i);
        if (!batch_is_sample_list(part) || ek_value_length(part) <= index)
            return other;
        items[i] = ek_value_at(part, index);
    }
    return ek_value_per_device(items, count);
}

/* Starts the copies of the slot's parts to their devices, and replaces the parts by the copies:
 * all, or on an error none. */
static int slot_send(const ek_loader *loader, ek_loader_slot *slot)
{
    const ek_device_list *devices = &loader->options.device_ids;
    ek_value sent[EK_MAX_DEVICES];
    for (int i = 0; i < slot->parts; i++) {
        sent[i] = part_pass(slot->part[i], devices->devices[slot->device[i]], ek_staging_send);
        if (sent[i].kind == EK_VALUE_ERROR)
            return ek_error_pending();
    }
    for (int i = 0; i < slot->parts; i++) {
        ek_value_keep(sent[i]);
        ek_value_release(slot->part[i]);
        slot->part[i] = sent[i];
    }
    slot->sent = true;
    return 0;
}

/* Returns the parts, on their devices, as one value in the scope. */
static ek_value slot_join(const ek_loader *loader, const ek_loader_slot *slot)
{
    const ek_device_list *devices = &loader->options.device_ids;
    ek_value parts[EK_MAX_DEVICES];
    for (int i = 0; i < slot->parts; i++) {
        parts[i] = slot->part[i];
        if (devices->count)
            parts[i] = part_pass(parts[i], devices->devices[slot->device[i]], ek_staging_receive);
    }
    return devices->count > 1 ? ek_value_per_device(parts, slot->parts) : parts[0];
}

static int slot_give(ek_loader *loader, ek_loader_slot *slot)
{
    const int before = ek_error_status();
    bool away = loader->options.device_ids.count > 0 && !slot->sent;
    ek_value data =
        away && slot_send(loader, slot) < 0 ? ek_value_error() : slot_join(loader, slot);
    ek_value input = batch_element(data, 0), target = batch_element(data, 1);
    if (data.kind == EK_VALUE_ERROR || input.kind == EK_VALUE_ERROR ||
        target.kind == EK_VALUE_ERROR) {
        int rc = ek_error_pending();
        ek_error_prefix(before, "loader: batch %lld", (long long)slot->number);
        return rc;
    }
    loader->data = ek_value_keep(data);
    loader->input = ek_value_keep(input);
    loader->target = ek_value_keep(target);
    return 0;
}

void ek_loader_send_ahead(ek_loader *loader, ek_loader_slot *slot)
{
    ek_error_record error;
    if (slot->error.status || slot->sent)
        return;
    call_context before = context_enter(loader, NULL);
    if (slot_send(loader, slot) < 0 && ek_error_take(&error) == EK_E_OUT_OF_MEMORY)
        loader->sends_ahead = false;
    context_leave(&before);
}

int ek_loader_take(ek_loader *loader, ek_loader_slot *slot)
{
    if (slot->error.status)
        return ek_error_raise(&slot->error);
    call_context before = context_enter(loader, NULL);
    int rc = slot_give(loader, slot);
    context_leave(&before);
    ek_loader_drop(slot);
    return rc;
}

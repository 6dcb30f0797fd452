/* loader.c: makes loaders, draws their passes, and gives batches in their order. */
#include "data/loader.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/device.h"
#include "core/trace.h"
#include "core/world.h"
#include "data/sampler.h"
#include "plan/split.h"

/* ---- making and freeing ---- */

static ek_sampler *loader_sampler(const ek_loader_options *options, int64_t count)
{
    if (options->sampler || options->batch_sampler)
        return options->sampler ? options->sampler : options->batch_sampler;
    if (options->shuffle)
        return ek_random_sampler(.count = count, .generator = options->generator);
    return ek_sequential_sampler(count);
}

/* Returns true if sending ahead can help: workers make batches ahead, and copies are concurrent
 * with a device's work. */
static bool loader_can_send_ahead(const ek_loader_options *options)
{
    bool beside = false;
    for (int i = 0; i < options->device_ids.count; i++)
        beside = beside || ek_dev_has_streams(ek_dev_get(options->device_ids.devices[i]));
    return beside && options->workers > 0 && options->send_ahead;
}

/* Returns true if another rank's share of the sampler is longer, even if that rank isn't a process.
 */
static bool loader_has_short_share(ek_sampler *sampler)
{
    return sampler && ek_sampler_longest(sampler) > ek_sampler_length(sampler);
}

static int loader_fill(ek_loader *loader)
{
    ek_loader_options *options = &loader->options;
    int workers = options->workers ? options->workers : 1;
    if (!loader->iterates) {
        int64_t count = ek_dataset_length(options->dataset);
        loader->sampler = count < 0 ? NULL : loader_sampler(options, count);
        if (!loader->sampler)
            return ek_error_pending();
    }
    loader->single = options->batch_size == 0;
    loader->evens = !loader->single && options->empty_batches &&
                    (ek_world.size > 1 || loader_has_short_share(loader->sampler));
    loader->sends_ahead = loader_can_send_ahead(options);
    loader->batch_size = loader->single ? 1 : options->batch_sampler ? 0 : options->batch_size;
    loader->slot_count = options->workers ? options->workers * options->prefetch : 1;
    loader->slots = ek_calloc((size_t)loader->slot_count, sizeof *loader->slots);
    loader->workers = ek_calloc((size_t)workers, sizeof *loader->workers);
    if (loader->slots && loader->workers)
        loader->after = ek_calloc((size_t)workers, sizeof *loader->after);
    if (!loader->after)
        return ek_error_pending();
    for (int w = 0; w < workers; w++) {
        loader->workers[w].loader = loader;
        loader->workers[w].number = w;
        pthread_cond_init(&loader->workers[w].wake, NULL);
    }
    return 0;
}

ek_loader *ek_data_loader_with(ek_loader_options options)
{
    ek_loader *loader = ek_loader_check(&options) < 0 ? NULL : ek_calloc(1, sizeof *loader);
    if (!loader) {
        ek_dataset_free(options.dataset);
        ek_sampler_free(options.sampler);
        if (options.batch_sampler != options.sampler)
            ek_sampler_free(options.batch_sampler);
        return NULL;
    }
    loader->options = options;
    loader->sampler = options.sampler ? options.sampler : options.batch_sampler;
    loader->awaited = -1;
    loader->iterates = options.dataset->type->next != NULL;
    loader->reader.first = ek_value_none();
    pthread_cond_init(&loader->reader.turned, NULL);
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->made, NULL);
    if (loader_fill(loader) < 0) {
        ek_loader_free(loader);
        return NULL;
    }
    return loader;
}

void ek_loader_free(ek_loader *loader)
{
    EK_RELEASES("ek_loader_free", loader);
    if (loader->started && ek_forked()) /* a forked child lacks the threads */
        return;
    bool whole = loader->after != NULL; /* `after` is the last thing that loader_fill allocates */
    if (whole)
        ek_loader_join(loader);
    ek_loader_forget(loader);
    ek_loader_reader_close(&loader->reader);
    pthread_cond_destroy(&loader->reader.turned);
    for (int w = 0; whole && w < (loader->options.workers ? loader->options.workers : 1); w++) {
        pthread_cond_destroy(&loader->workers[w].wake);
        free(loader->workers[w].samples);
    }
    pthread_cond_destroy(&loader->made);
    pthread_mutex_destroy(&loader->lock);
    ek_pass_free(&loader->pass);
    ek_sampler_free(loader->sampler);
    ek_dataset_free(loader->options.dataset);
    free(loader->after);
    free(loader->workers);
    free(loader->slots);
    ek_retire(loader, sizeof *loader, "loader", loader);
}

/* ---- passes ---- */

int64_t ek_loader_batches_of(const ek_loader *loader, int64_t samples)
{
    int64_t size = loader->batch_size;
    return samples / size + (samples % size != 0 && !loader->options.drop_last);
}

int64_t ek_loader_batches_in(const ek_loader *loader, const ek_pass *pass)
{
    return loader->batch_size == 0 ? pass->batches : ek_loader_batches_of(loader, pass->count);
}

void ek_loader_range(const ek_loader *loader, int64_t number, int64_t *begin, int64_t *end)
{
    const ek_pass *pass = &loader->pass;
    int64_t in_pass = number - loader->first, size = loader->batch_size;
    if (in_pass >= ek_loader_batches_in(loader, pass)) {
        *begin = *end = pass->count;
        return;
    }
    if (size == 0) {
        *begin = in_pass ? pass->ends[in_pass - 1] : 0;
        *end = pass->ends[in_pass];
        return;
    }
    *begin = in_pass * size;
    *end = pass->count - *begin < size ? pass->count : *begin + size;
}

int64_t ek_loader_longest(const ek_loader *loader)
{
    if (!loader->evens || loader->iterates)
        return 0;
    int64_t longest = ek_sampler_longest(loader->sampler);
    return longest < 0
               ? longest
               : ek_loader_batches_in(loader, &(ek_pass){.count = longest, .batches = longest});
}

void ek_loader_go_on(ek_loader *loader)
{
    ek_loader_settle(loader, loader->first);
    loader->batches = loader->first + ek_loader_batches_in(loader, &loader->pass);
    if (loader->batches < loader->longest)
        loader->batches = loader->longest;
    if (loader->iterates) /* the end is where it is found */
        loader->batches = INT64_MAX / 2;
    loader->given = loader->first;
    loader->begun = true;
    for (int w = 0; w < loader->options.workers && ek_loader_seeds_workers(loader); w++)
        loader->workers[w].generator = loader->after[w];
}

/* Draws a pass in PyTorch's order: first the base seed, as random_() of an int64, then samples. */
static int loader_begin_pass(ek_loader *loader)
{
    uint64_t base_seed = ek_random_u64(loader->options.generator) & INT64_MAX;
    const ek_index_sampler *share = ek_sampler_share(loader->sampler);
    int64_t epoch = share ? share->sampler.epoch : 0;
    ek_scope scope = ek_scope_begin();
    int64_t longest = ek_loader_longest(loader); /* of this epoch, which drawing may end */
    int rc = longest < 0         ? (int)longest
             : !loader->iterates ? ek_sampler_draw(loader->sampler, &loader->pass)
                                 : 0;
    ek_scope_end(&scope);
    if (rc < 0)
        return rc;
    loader->reader.epoch = loader->reader.next_epoch++;
    ek_loader_reader_begin(loader, 0, 0);
    loader->base_seed = base_seed;
    loader->longest = longest;
    loader->first = loader->before = 0;
    loader->epoch = epoch;
    for (int w = 0; w < loader->options.workers; w++)
        ek_generator_seed_late(&loader->after[w], base_seed + (uint64_t)w);
    ek_loader_go_on(loader);
    return 0;
}

/* ---- handing out ---- */

static int loader_ask_sizes(const ek_loader *loader, int64_t count, int64_t *sizes)
{
    const ek_loader_options *options = &loader->options;
    int64_t left = count;
    ek_scope scope = ek_scope_begin();
    int rc = ek_error_outcome(options->sizes(count, sizes, options->sizes_user));
    ek_scope_end(&scope);
    if (rc < 0)
        return rc;
    for (int i = 0; i < options->device_ids.count; i++) {
        if (sizes[i] < 0 || sizes[i] > left)
            return EK_FAIL(EK_E_INVALID,
                           "sizes gave %lld samples to device %d; %lld of %lld were left",
                           (long long)sizes[i], i, (long long)left, (long long)count);
        left -= sizes[i];
    }
    if (left)
        return EK_FAIL(EK_E_INVALID, "sizes gave %lld of %lld samples to devices",
                       (long long)(count - left), (long long)count);
    return 0;
}

int ek_loader_cut(const ek_loader *loader, ek_loader_slot *slot)
{
    const ek_loader_options *options = &loader->options;
    int devices = options->device_ids.count ? options->device_ids.count : 1;
    memset(slot->sizes, 0, sizeof slot->sizes);
    if (slot->count == 0)
        return 0;
    if (options->sizes)
        return loader_ask_sizes(loader, slot->count, slot->sizes);
    if (options->split == EK_SPLIT_EVEN)
        ek_split_even(slot->count, devices, slot->sizes);
    else
        ek_split_chunk(slot->count, devices, slot->sizes);
    return 0;
}

static void loader_prepare(ek_loader *loader, int64_t number)
{
    const int before = ek_error_status();
    ek_loader_slot *slot = &loader->slots[number % loader->slot_count];
    int64_t begin = 0, end = loader->batch_size; /* if it iterates, until it is known */
    if (!loader->iterates)
        ek_loader_range(loader, number, &begin, &end);
    slot->number = number;
    slot->indices = end > begin && !loader->iterates ? loader->pass.indices + begin : NULL;
    slot->over = false;
    slot->count = end - begin;
    slot->made = false;
    slot->error.status = 0;
    if (ek_loader_cut(loader, slot) < 0) {
        ek_error_prefix(before, "loader: batch %lld", (long long)number);
        ek_error_take(&slot->error);
    }
}

/* Hands the next batches out to all free slots. */
static void loader_hand_out(ek_loader *loader)
{
    int64_t begin = loader->asked, end = loader->given + loader->slot_count;
    if (end > loader->batches)
        end = loader->batches;
    if (begin == end)
        return;
    for (int64_t number = begin; number < end; number++)
        loader_prepare(loader, number);
    ek_loader_hand_out(loader, end);
}

/* ---- giving ---- */

static ek_loader_slot *loader_made_slot(ek_loader *loader)
{
    ek_loader_slot *slot = &loader->slots[loader->given % loader->slot_count];
    ek_span span;
    uint64_t began = ek_clock_ns();
    if (loader->options.workers) {
        ek_span_begin(&span, EK_SPAN_WAIT, "waiting for a batch", NULL, NULL);
        ek_loader_wait(loader);
    } else {
        ek_span_begin(&span, EK_SPAN_COMPUTE, "making a batch", NULL, NULL);
        ek_loader_make(loader->workers, slot);
    }
    ek_span_end(&span);
    loader->stats.waited_ns += ek_clock_ns() - began;
    return slot;
}

/* Fails with the first worker's error from worker_start. Every batch fails with it. */
static int loader_start_error(ek_loader *loader)
{
    const int before = ek_error_status();
    for (int w = 0; loader->options.worker_start && w < loader->options.workers; w++) {
        if (loader->workers[w].failed.status) {
            int rc = ek_error_raise(&loader->workers[w].failed);
            ek_error_prefix(before, "loader: batch %lld (worker %d)", (long long)loader->given++,
                            w);
            return rc;
        }
    }
    return 0;
}

static void loader_end_pass(ek_loader *loader)
{
    loader->begun = false;
    if (!loader->iterates)
        return;
    ek_loader_settle(loader, 0); /* batches behind the end were handed out too */
    ek_loader_reader_close(&loader->reader);
}

static int loader_give_next(ek_loader *loader, ek_batch *batch)
{
    if (!loader->begun)
        EK_TRY(loader_begin_pass(loader));
    if (loader->given == loader->batches) {
        loader_end_pass(loader);
        return 0;
    }
    if (loader->options.workers) {
        EK_TRY(ek_loader_start(loader));
        EK_TRY(loader_start_error(loader));
    }
    loader_hand_out(loader);
    ek_loader_slot *slot = loader_made_slot(loader);
    if (slot->over) {
        loader_end_pass(loader);
        return 0;
    }
    loader->reader.given = slot->position;
    *batch = (ek_batch){.indices = slot->indices, .count = slot->count, .number = slot->number};
    ek_error_record failed;
    failed.status = 0;
    if (ek_loader_take(loader, slot) < 0)
        ek_error_take(&failed);
    if (ek_loader_seeds_workers(loader))
        loader->after[loader->given % loader->options.workers] = slot->after;
    loader->given++;
    if (loader->options.workers)
        loader_hand_out(loader); /* before the error is raised: user functions must not see it */
    ek_loader_slot *next = loader->sends_ahead ? ek_loader_made_already(loader) : NULL;
    if (next)
        ek_loader_send_ahead(loader, next);
    if (failed.status) {
        *batch = (ek_batch){0};
        return ek_error_raise(&failed);
    }
    batch->data = loader->data;
    batch->input = loader->input;
    batch->target = loader->target;
    loader->stats.batches++;
    loader->stats.samples += batch->count;
    return 1;
}

/* ---- public ---- */

int ek_loader_next(ek_loader *loader, ek_batch *batch)
{
    ek_error_record before; /* an error that was pending before the call stays the first */
    if (!loader)
        return ek_error_pending();
    if (!batch)
        return EK_FAIL(EK_E_INVALID, "loader_next: the batch is NULL");
    *batch = (ek_batch){0};
    EK_TRY(ek_check_alive("loader_next", "the loader", loader));
    EK_TRY(ek_fork_check());
    ek_error_take(&before);
    ek_loader_forget(loader);
    int rc = loader_give_next(loader, batch);
    if (before.status) {
        ek_error_clear();
        ek_error_raise(&before);
    }
    return rc;
}

int ek_loader_reset(ek_loader *loader)
{
    if (!loader)
        return ek_error_pending();
    EK_TRY(ek_check_alive("loader_reset", "the loader", loader));
    EK_TRY(ek_fork_check());
    ek_loader_settle(loader, 0);
    ek_loader_forget(loader);
    loader->begun = false;
    return 0;
}

int64_t ek_loader_length(ek_loader *loader)
{
    if (!loader)
        return ek_error_pending();
    EK_TRY(ek_check_alive("loader_length", "the loader", loader));
    if (loader->iterates)
        return ek_dataset_length(loader->options.dataset); /* an error that says so */
    int64_t length = ek_sampler_length(loader->sampler), longest = ek_loader_longest(loader);
    if (length < 0 || longest < 0)
        return length < 0 ? length : longest;
    if (loader->batch_size != 0)
        length = ek_loader_batches_in(loader, &(ek_pass){.count = length});
    return length < longest ? longest : length;
}

int ek_loader_set_epoch(ek_loader *loader, int64_t epoch)
{
    if (!loader)
        return ek_error_pending();
    if (!loader->iterates)
        return ek_sampler_set_epoch(loader->sampler, epoch);
    loader->reader.next_epoch = epoch;
    return 0;
}

ek_dataset *ek_loader_dataset(ek_loader *loader)
{
    return loader && ek_check_alive("loader_dataset", "the loader", loader) == 0
               ? loader->options.dataset
               : NULL;
}

ek_sampler *ek_loader_sampler(ek_loader *loader)
{
    return loader && ek_check_alive("loader_sampler", "the loader", loader) == 0 ? loader->sampler
                                                                                 : NULL;
}

int ek_loader_get_stats(ek_loader *loader, ek_loader_stats *stats)
{
    if (!loader)
        return ek_error_pending();
    if (!stats)
        return EK_FAIL(EK_E_INVALID, "loader_get_stats: the statistics are NULL");
    EK_TRY(ek_check_alive("loader_get_stats", "the loader", loader));
    *stats = loader->stats;
    ek_lock(&loader->lock);
    stats->worked_ns = loader->worked_ns;
    ek_unlock(&loader->lock);
    return 0;
}

/* loader_state.c: the state of a loader, which is a dictionary:
 *
 *     samples     i64: the data set's length
 *     batch_size  i64; 0: the sampler makes batches, -1: each batch is a single sample, uncollated
 *     drop_last   i64: 0 or 1
 *     seeding     i64: an ek_seeding
 *     workers     i64: how many, with EK_SEED_WORKER; else 0
 *     ranks       i64: among how many ranks the samples are divided
 *     rank        i64: whose share the sampler draws
 *     begun       i64: 1 within a pass, else 0
 *     sampler     the sampler's state
 *     generator   u8: the state of the caller's generator, if the loader has one
 *
 * Within a pass there are also:
 *
 *     given       i64: batches of the pass that were given
 *     position    i64: samples of this rank that were given
 *     base_seed   i64
 *     epoch       i64: the epoch for which a rank's share was drawn
 *     indices     i64: the samples of this rank that are left
 *     ends        i64: where their batches end, if the sampler makes batches
 *     of_worker   u8: with EK_SEED_WORKER the workers' generators, one after another
 *
 * A data set without a length has no sampler: its state has neither `sampler` nor indices, and has
 * `epoch` between passes, too.
 *
 * The indices of the rest of the pass are saved, so that no sampler has to draw them again, except
 * for the share of another rank. Empty batches aren't saved: the sampler knows how many a pass has.
 * States of older versions have no `position` with a sampler; they are loaded with an equal batch
 * size, as shares of the rank that loads them. */
#include <stdlib.h>
#include <string.h>

#include "core/world.h"
#include "data/loader.h"
#include "data/sampler.h"

static int64_t loader_batch_size(const ek_loader *loader)
{
    return loader->single ? -1 : loader->batch_size;
}

static int64_t loader_seeded_workers(const ek_loader *loader)
{
    return loader->options.seeding == EK_SEED_WORKER ? loader->options.workers : 0;
}

/* Returns among how many ranks the samples of the data set are divided. */
static int loader_ranks(const ek_loader *loader)
{
    const ek_index_sampler *share = ek_sampler_share(loader->sampler);
    return loader->iterates ? ek_world.size : share ? share->ranks : 1;
}

static int loader_rank(const ek_loader *loader)
{
    const ek_index_sampler *share = ek_sampler_share(loader->sampler);
    return loader->iterates ? ek_world.rank : share ? share->rank : 0;
}

enum { NO_LENGTH = -1 };

/* Returns the data set's length, NO_LENGTH if it has no length, or a status below NO_LENGTH. */
static int64_t loader_samples(const ek_loader *loader)
{
    int64_t length = loader->iterates ? NO_LENGTH : ek_dataset_length(loader->options.dataset);
    return length < 0 && !loader->iterates ? ek_error_pending() : length;
}

/* ---- saving ---- */

static void loader_put_workers(const ek_loader *loader, ek_state_writer *writer)
{
    enum { EACH = EK_GENERATOR_STATE_BYTES };
    int workers = loader->options.workers, rc = 0;
    uint8_t *bytes = ek_calloc((size_t)workers, EACH);
    for (int w = 0; bytes && w < workers && rc == 0; w++) {
        ek_generator generator = loader->after[w];
        if (generator.left == 0)
            ek_generator_seed(&generator, generator.seed);
        rc = ek_generator_get_state(&generator, bytes + (size_t)w * EACH, EACH);
    }
    if (bytes && rc == 0)
        ek_state_put_bytes(writer, "of_worker", bytes, (int64_t)workers * EACH);
    else
        ek_state_put(writer, "of_worker", ek_value_error());
    free(bytes);
}

static void loader_put_pass(const ek_loader *loader, ek_state_writer *writer)
{
    int64_t begin = 0, end = 0, in_pass = loader->given - loader->first;
    int64_t most = ek_loader_batches_in(loader, &loader->pass);
    if (!loader->iterates)
        ek_loader_range(loader, loader->given, &begin, &end);
    ek_state_put_int(writer, "given", loader->given);
    ek_state_put_int(writer, "base_seed", (int64_t)loader->base_seed);
    ek_state_put_int(writer, "position",
                     loader->iterates ? loader->reader.given : loader->before + begin);
    if (!loader->iterates) {
        ek_state_put_int(writer, "epoch", loader->epoch);
        ek_state_put_pass(writer, &loader->pass, begin, loader->batch_size == 0,
                          in_pass < most ? in_pass : most);
    }
    if (ek_loader_seeds_workers(loader))
        loader_put_workers(loader, writer);
}

ek_value ek_loader_state(ek_loader *loader)
{
    ek_state_writer writer = {.count = 0};
    if (!loader)
        ek_error_pending();
    if (!loader || ek_check_alive("loader_state", "the loader", loader) < 0 || ek_fork_check() < 0)
        return ek_value_error();
    const ek_loader_options *options = &loader->options;
    int64_t samples = loader_samples(loader);
    if (samples < NO_LENGTH)
        return ek_value_error();
    ek_state_put_int(&writer, "samples", samples);
    ek_state_put_int(&writer, "batch_size", loader_batch_size(loader));
    ek_state_put_int(&writer, "drop_last", options->drop_last);
    ek_state_put_int(&writer, "seeding", options->seeding);
    ek_state_put_int(&writer, "workers", loader_seeded_workers(loader));
    ek_state_put_int(&writer, "ranks", loader_ranks(loader));
    ek_state_put_int(&writer, "rank", loader_rank(loader));
    ek_state_put_int(&writer, "begun", loader->begun);
    if (loader->iterates) {
        ek_state_put_int(&writer, "epoch",
                         loader->begun ? loader->reader.epoch : loader->reader.next_epoch);
    } else {
        ek_state_put(&writer, "sampler", ek_sampler_state(loader->sampler));
    }
    ek_state_put_generator(&writer, options->generator);
    if (loader->begun)
        loader_put_pass(loader, &writer);
    return ek_value_dict(writer.entries, writer.count);
}

/* ---- loading: everything is read and checked before anything is changed ---- */

typedef struct loader_loaded {
    int64_t begun, given, base_seed, longest, position, epoch;
    int64_t batch_size, ranks, rank; /* The values of the loader that was saved. */
    bool old;                        /* the state has no rank, and with a sampler no position */
    ek_pass pass;
    ek_generator generator;
    ek_generator *of_worker;
} loader_loaded;

static int loader_check_same(const ek_state *state, const char *key, int64_t here, const char *what)
{
    int64_t there;
    EK_TRY(ek_state_int(state, key, INT64_MIN, INT64_MAX, &there));
    if (there == here)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: the state is of a loader with %s %lld; this one has %lld",
                   state->function, what, (long long)there, (long long)here);
}

static int loader_read_workers(const ek_loader *loader, const ek_state *state, loader_loaded *into)
{
    enum { EACH = EK_GENERATOR_STATE_BYTES };
    const int before = ek_error_status();
    int workers = loader->options.workers;
    uint8_t *bytes = ek_calloc((size_t)workers, EACH);
    into->of_worker = ek_calloc((size_t)workers, sizeof *into->of_worker);
    int rc = bytes && into->of_worker ? 0 : EK_E_NO_MEMORY;
    if (rc == 0)
        rc = ek_state_bytes(state, "of_worker", bytes, (int64_t)workers * EACH);
    for (int w = 0; w < workers && rc == 0; w++) {
        rc = ek_generator_set_state(&into->of_worker[w], bytes + (size_t)w * EACH, EACH);
        if (rc < 0)
            ek_error_prefix(before, "%s: worker %d in \"of_worker\" of the state", state->function,
                            w);
    }
    free(bytes);
    return rc;
}

/* ---- loading: another number of ranks, another batch size ---- */

/* Reads how the saved loader divided its samples. An older state counts as one of this rank. */
static int loader_read_division(const ek_loader *loader, const ek_state *state, loader_loaded *into)
{
    static const char batch_size[] = "batch_size (0: a batch_sampler's, -1: samples as they are)";
    int64_t here = loader_batch_size(loader);
    into->old = ek_value_get(state->value, "rank").kind == EK_VALUE_NONE;
    into->ranks = loader_ranks(loader);
    into->rank = loader_rank(loader);
    EK_TRY(ek_state_int(state, "batch_size", INT64_MIN, INT64_MAX, &into->batch_size));
    if (into->old || into->batch_size <= 0 || here <= 0)
        EK_TRY(loader_check_same(state, "batch_size", here, batch_size));
    if (!into->old || loader->iterates)
        EK_TRY(ek_state_int(state, "ranks", 1, INT32_MAX, &into->ranks));
    return into->old ? 0 : ek_state_int(state, "rank", 0, into->ranks - 1, &into->rank);
}

/* Draws the share of this rank again, and drops the samples that were given. */
static int loader_draw_rest(const ek_loader *loader, const ek_state *state, loader_loaded *into)
{
    ek_pass *pass = &into->pass;
    ek_sampler *sampler = loader->sampler, *share = &ek_sampler_share(sampler)->sampler;
    int64_t epoch = sampler->epoch, epoch_of_share = share->epoch, batches = 0;
    share->epoch = into->epoch;
    ek_scope scope = ek_scope_begin();
    int rc = ek_sampler_draw(sampler, pass);
    ek_scope_end(&scope);
    sampler->epoch = epoch;
    share->epoch = epoch_of_share;
    EK_TRY(rc);
    int64_t given = into->position < pass->count ? into->position : pass->count;
    while (batches < pass->batches && pass->ends[batches] <= given)
        batches++;
    if (batches < pass->batches && given != (batches ? pass->ends[batches - 1] : 0))
        return EK_FAIL(EK_E_INVALID,
                       "%s: the state is at sample %lld of a rank, where no batch of this loader's "
                       "batch_sampler begins",
                       state->function, (long long)given);
    pass->count -= given;
    pass->batches -= batches;
    memmove(pass->indices, pass->indices + given, (size_t)pass->count * sizeof *pass->indices);
    for (int64_t b = 0; b < pass->batches; b++)
        pass->ends[b] = pass->ends[b + batches] - given;
    if (loader->batch_size == 0)
        into->given = batches;
    return 0;
}

/* Converts the position to one of this loader. A pass that had no samples left has none here. */
static int loader_convert(const ek_loader *loader, const ek_state *state, loader_loaded *into)
{
    const ek_index_sampler *share = ek_sampler_share(loader->sampler);
    int64_t ranks = loader_ranks(loader), size = loader->batch_size, samples;
    bool same = into->ranks == ranks;
    bool alike = same && into->batch_size == loader_batch_size(loader);
    bool ended = !loader->iterates && into->pass.count == 0;
    if (alike && (!share || into->rank == share->rank))
        return 0;
    if (!alike && ek_loader_seeds_workers(loader))
        return EK_FAIL(EK_E_INVALID,
                       "%s: the state is of %lld ranks with batches of %lld, and the generators of "
                       "EK_SEED_WORKER resume with these only",
                       state->function, (long long)into->ranks, (long long)into->batch_size);
    if (!same && share && !share->strided)
        return EK_FAIL(EK_E_INVALID,
                       "%s: the state is of %lld ranks, and contiguous shares resume on as many "
                       "only; this loader's sampler is of %lld",
                       state->function, (long long)into->ranks, (long long)ranks);
    if (__builtin_mul_overflow(into->position, into->ranks, &samples))
        return EK_FAIL(EK_E_FORMAT, "%s: \"position\" of the state is %lld", state->function,
                       (long long)into->position);
    if (!ended && (samples % ranks || (size && samples / ranks % size)))
        return EK_FAIL(EK_E_INVALID,
                       "%s: the state is at sample %lld of all ranks, which is no whole number of "
                       "batches of %lld on %lld rank%s",
                       state->function, (long long)samples, (long long)size, (long long)ranks,
                       ranks == 1 ? "" : "s");
    into->position = ended ? INT64_MAX / 2 : samples / ranks;
    if (share && (!same || into->rank != share->rank))
        EK_TRY(loader_draw_rest(loader, state, into));
    if (ended)
        into->position = share ? share->length : ek_sampler_length(loader->sampler);
    if (size)
        into->given = ek_loader_batches_of(loader, into->position);
    return 0;
}

/* Reads the rest of a pass that had begun. */
static int loader_read_pass(const ek_loader *loader, const ek_state *state, int64_t length,
                            loader_loaded *into)
{
    const ek_index_sampler *share = ek_sampler_share(loader->sampler);
    bool placed = loader->iterates || !into->old;
    EK_TRY(ek_state_int(state, "given", 0, INT64_MAX / 2, &into->given));
    EK_TRY(ek_state_int(state, "base_seed", 0, INT64_MAX, &into->base_seed));
    if (placed)
        EK_TRY(ek_state_int(state, "position", 0, INT64_MAX / 2 / ek_world.size, &into->position));
    if (!loader->iterates) {
        EK_TRY(ek_state_pass(state, loader->batch_size == 0, 0, length - 1, &into->pass));
        if (!into->old)
            EK_TRY(ek_state_int(state, "epoch", INT64_MIN, INT64_MAX, &into->epoch));
    }
    if (!placed)
        into->position = share ? share->length - into->pass.count : length - into->pass.count;
    EK_TRY(loader_convert(loader, state, into));
    if (ek_loader_seeds_workers(loader))
        EK_TRY(loader_read_workers(loader, state, into));
    into->longest = ek_loader_longest(loader);
    return into->longest < 0 ? (int)into->longest : 0;
}

static int loader_read(const ek_loader *loader, const ek_state *state, loader_loaded *into)
{
    const ek_loader_options *options = &loader->options;
    EK_TRY(ek_state_check(state));
    int64_t length = loader_samples(loader);
    if (length < NO_LENGTH)
        return ek_error_pending();
    EK_TRY(loader_check_same(state, "samples", length, "a data set of length"));
    EK_TRY(loader_check_same(state, "drop_last", options->drop_last, "drop_last"));
    EK_TRY(loader_check_same(state, "seeding", options->seeding, "seeding (1: EK_SEED_WORKER)"));
    EK_TRY(loader_check_same(state, "workers", loader_seeded_workers(loader),
                             "workers (EK_SEED_WORKER)"));
    EK_TRY(ek_state_int(state, "begun", 0, 1, &into->begun));
    if (loader->iterates)
        EK_TRY(ek_state_int(state, "epoch", INT64_MIN, INT64_MAX - 1, &into->epoch));
    EK_TRY(loader_read_division(loader, state, into));
    if (into->begun)
        EK_TRY(loader_read_pass(loader, state, length, into));
    return ek_state_generator(state, options->generator, "loader", &into->generator);
}

static void loader_take(ek_loader *loader, loader_loaded *from)
{
    const ek_index_sampler *share = ek_sampler_share(loader->sampler);
    ek_loader_settle(loader, 0);
    ek_loader_forget(loader);
    if (loader->options.generator)
        *loader->options.generator = from->generator;
    loader->begun = false;
    loader->reader.epoch = from->epoch;
    loader->reader.next_epoch = from->epoch + from->begun;
    if (!from->begun)
        return;
    ek_pass_free(&loader->pass);
    loader->pass = from->pass;
    from->pass = (ek_pass){0};
    loader->first = from->given;
    loader->before = from->position;
    loader->epoch = from->epoch;
    if (from->old && share) /* drawing may have ended the epoch that the sampler's state has */
        loader->epoch = share->sampler.epoch - share->sampler.automatic_epochs;
    loader->longest = from->longest;
    loader->base_seed = (uint64_t)from->base_seed;
    ek_loader_reader_begin(loader, from->given, from->position);
    for (int w = 0; from->of_worker && w < loader->options.workers; w++)
        loader->after[w] = from->of_worker[w];
    ek_loader_go_on(loader);
}

int ek_loader_load_state(ek_loader *loader, ek_value value)
{
    const int before = ek_error_status();
    const ek_state state = {"loader_load_state", value};
    loader_loaded from = {0};
    if (!loader)
        return ek_error_pending();
    EK_TRY(ek_check_alive(state.function, "the loader", loader));
    EK_TRY(ek_fork_check());
    int rc = loader_read(loader, &state, &from);
    if (rc == 0 && !loader->iterates) {
        rc = ek_sampler_load_state(loader->sampler, ek_value_get(value, "sampler"));
        if (rc < 0)
            ek_error_prefix(before, "%s", state.function);
    }
    if (rc == 0)
        loader_take(loader, &from);
    ek_pass_free(&from.pass);
    free(from.of_worker);
    return rc;
}

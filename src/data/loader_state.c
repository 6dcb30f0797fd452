/* loader_state.c: the state of a loader, which is a dictionary:
 *
 *     samples     i64: the data set's length
 *     batch_size  i64; 0: the sampler makes batches, -1: each batch is a single sample, uncollated
 *     drop_last   i64: 0 or 1
 *     seeding     i64: an ek_seeding
 *     workers     i64: how many, with EK_SEED_WORKER; else 0
 *     begun       i64: 1 within a pass, else 0
 *     sampler     the sampler's state
 *     generator   u8: the state of the caller's generator, if the loader has one
 *
 * Within a pass there are also:
 *
 *     given       i64: batches of the pass that were given
 *     base_seed   i64
 *     indices     i64: the samples that are left
 *     ends        i64: where their batches end, if the sampler makes batches
 *     position    i64: for a data set without a length, in place of indices and ends: how many
 *                 samples of this rank were given. This state has `epoch` and `ranks` in place of
 *                 `sampler`
 *     of_worker   u8: with EK_SEED_WORKER the workers' generators, one after another
 *
 * The indices of the rest of the pass are saved, so that no sampler has to draw them again. Empty
 * batches aren't saved: the sampler knows how many a pass has. */
#include <stdlib.h>

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
    if (loader->iterates)
        ek_state_put_int(writer, "position", loader->reader.given);
    else
        ek_state_put_pass(writer, &loader->pass, begin, loader->batch_size == 0,
                          in_pass < most ? in_pass : most);
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
    ek_state_put_int(&writer, "begun", loader->begun);
    if (loader->iterates) {
        ek_state_put_int(&writer, "epoch",
                         loader->begun ? loader->reader.epoch : loader->reader.next_epoch);
        ek_state_put_int(&writer, "ranks", ek_world.size);
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

static int loader_read(const ek_loader *loader, const ek_state *state, loader_loaded *into)
{
    const ek_loader_options *options = &loader->options;
    EK_TRY(ek_state_check(state));
    int64_t length = loader_samples(loader);
    if (length < NO_LENGTH)
        return ek_error_pending();
    EK_TRY(loader_check_same(state, "samples", length, "a data set of length"));
    EK_TRY(loader_check_same(state, "batch_size", loader_batch_size(loader),
                             "batch_size (0: a batch_sampler's, -1: samples as they are)"));
    EK_TRY(loader_check_same(state, "drop_last", options->drop_last, "drop_last"));
    EK_TRY(loader_check_same(state, "seeding", options->seeding, "seeding (1: EK_SEED_WORKER)"));
    EK_TRY(loader_check_same(state, "workers", loader_seeded_workers(loader),
                             "workers (EK_SEED_WORKER)"));
    EK_TRY(ek_state_int(state, "begun", 0, 1, &into->begun));
    if (loader->iterates) {
        EK_TRY(loader_check_same(state, "ranks", ek_world.size, "ranks"));
        EK_TRY(ek_state_int(state, "epoch", INT64_MIN, INT64_MAX - 1, &into->epoch));
    }
    if (into->begun) {
        EK_TRY(ek_state_int(state, "given", 0, INT64_MAX / 2, &into->given));
        EK_TRY(ek_state_int(state, "base_seed", 0, INT64_MAX, &into->base_seed));
        if (loader->iterates)
            EK_TRY(
                ek_state_int(state, "position", 0, INT64_MAX / 2 / ek_world.size, &into->position));
        else
            EK_TRY(ek_state_pass(state, loader->batch_size == 0, 0, length - 1, &into->pass));
        if (ek_loader_seeds_workers(loader))
            EK_TRY(loader_read_workers(loader, state, into));
        into->longest = ek_loader_longest(loader);
        if (into->longest < 0)
            return (int)into->longest;
    }
    return ek_state_generator(state, options->generator, "loader", &into->generator);
}

static void loader_take(ek_loader *loader, loader_loaded *from)
{
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

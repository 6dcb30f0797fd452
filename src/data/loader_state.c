/* loader_state.c: where a loader is, as a dictionary:
 *
 *     samples     i64: the data set's length
 *     batch_size  i64; 0: the sampler makes batches, -1: samples as they are
 *     drop_last   i64: 0 or 1
 *     seeding     i64: an ek_seeding
 *     workers     i64: with EK_SEED_WORKER their number, else 0
 *     begun       i64: 1 within a pass, else 0
 *     sampler     its state
 *     generator   u8: the state of the caller's generator, where the loader has one
 *
 * and within a pass
 *
 *     given       i64: batches of the pass that were given
 *     base_seed   i64
 *     indices     i64: of the samples that are left
 *     ends        i64: where their batches end, where the sampler makes batches
 *     of_worker   u8: with EK_SEED_WORKER the workers' generators, one after another
 *
 * What is left of a pass stands there itself, so that no sampler has to draw it again. */
#include <stdlib.h>

#include "core/thread.h"
#include "data/loader.h"
#include "data/state.h"

static const char load[] = "loader_load_state";

static int64_t batch_size_of(const ek_loader *loader)
{
    return loader->single ? -1 : loader->batch_size;
}

static int64_t seeded_workers(const ek_loader *loader)
{
    return loader->options.seeding == EK_SEED_WORKER ? loader->options.workers : 0;
}

/* ---- saving ---- */

static ek_value rest_of_ends(const ek_loader *loader, int64_t begin)
{
    const ek_pass *pass = &loader->pass;
    int64_t position = loader->given - loader->first, count = pass->batches - position;
    int64_t *ends = ek_calloc((size_t)count, sizeof *ends);
    if (!ends)
        return ek_value_error();
    for (int64_t b = 0; b < count; b++)
        ends[b] = pass->ends[position + b] - begin;
    ek_value value = ek_state_of_ints(ends, count);
    free(ends);
    return value;
}

static ek_value generators_of_workers(const ek_loader *loader)
{
    int workers = loader->options.workers;
    uint8_t *bytes = ek_calloc((size_t)workers, EK_GENERATOR_STATE_BYTES);
    if (!bytes)
        return ek_value_error();
    int rc = 0;
    for (int w = 0; w < workers && rc == 0; w++) {
        ek_generator generator = loader->after[w];
        if (generator.left == 0)
            ek_generator_seed(&generator, generator.seed);
        rc = ek_generator_get_state(&generator, bytes + (size_t)w * EK_GENERATOR_STATE_BYTES,
                                    EK_GENERATOR_STATE_BYTES);
    }
    ek_value value = rc < 0 ? ek_value_error()
                            : ek_state_of_bytes(bytes, (int64_t)workers * EK_GENERATOR_STATE_BYTES);
    free(bytes);
    return value;
}

static int add_pass(const ek_loader *loader, ek_value_entry *entries)
{
    const ek_pass *pass = &loader->pass;
    int64_t begin = pass->count, end;
    int count = 0;
    if (loader->given < loader->batches)
        ek_loader_range(loader, loader->given, &begin, &end);
    entries[count++] = (ek_value_entry){"given", ek_state_of_int(loader->given)};
    entries[count++] = (ek_value_entry){"base_seed", ek_state_of_int((int64_t)loader->base_seed)};
    entries[count++] =
        (ek_value_entry){"indices", ek_state_of_ints(pass->indices + begin, pass->count - begin)};
    if (loader->batch_size == 0)
        entries[count++] = (ek_value_entry){"ends", rest_of_ends(loader, begin)};
    if (ek_loader_seeds_workers(loader))
        entries[count++] = (ek_value_entry){"of_worker", generators_of_workers(loader)};
    return count;
}

ek_value ek_loader_state(ek_loader *loader)
{
    ek_value_entry entries[13];
    int count = 0;
    if (!loader) {
        ek_error_pending();
        return ek_value_error();
    }
    if (ek_fork_check() < 0)
        return ek_value_error();
    const ek_loader_options *options = &loader->options;
    int64_t samples = ek_dataset_length(options->dataset);
    if (samples < 0)
        return ek_value_error();
    entries[count++] = (ek_value_entry){"samples", ek_state_of_int(samples)};
    entries[count++] = (ek_value_entry){"batch_size", ek_state_of_int(batch_size_of(loader))};
    entries[count++] = (ek_value_entry){"drop_last", ek_state_of_int(options->drop_last)};
    entries[count++] = (ek_value_entry){"seeding", ek_state_of_int(options->seeding)};
    entries[count++] = (ek_value_entry){"workers", ek_state_of_int(seeded_workers(loader))};
    entries[count++] = (ek_value_entry){"begun", ek_state_of_int(loader->begun)};
    entries[count++] = (ek_value_entry){"sampler", ek_sampler_state(loader->sampler)};
    if (options->generator)
        entries[count++] = (ek_value_entry){"generator", ek_state_of_generator(options->generator)};
    if (loader->begun)
        count += add_pass(loader, entries + count);
    return ek_value_dict(entries, count);
}

/* ---- loading: all is read and checked before anything is changed ---- */

typedef struct loaded {
    int64_t begun, given, base_seed, length;
    ek_pass pass;
    ek_generator generator;
    ek_generator *of_worker;
} loaded;

static int check_same(ek_value state, const char *key, int64_t here, const char *what)
{
    int64_t there;
    EK_TRY(ek_state_int(state, load, key, INT64_MIN, INT64_MAX, &there));
    if (there == here)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: the state is of a loader with %s %lld; this one has %lld",
                   load, what, (long long)there, (long long)here);
}

static int read_indices(ek_value state, loaded *into)
{
    ek_pass *pass = &into->pass;
    EK_TRY(ek_state_ints(state, load, "indices", &pass->indices, &pass->count));
    pass->room = pass->count;
    for (int64_t i = 0; i < pass->count; i++)
        if (pass->indices[i] < 0 || pass->indices[i] >= into->length)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"indices\" of the state has sample %lld; the data set has %lld",
                           load, (long long)pass->indices[i], (long long)into->length);
    return 0;
}

static int read_workers(const ek_loader *loader, ek_value state, loaded *into)
{
    const int before = ek_error_status();
    int workers = loader->options.workers;
    int64_t nbytes = (int64_t)workers * EK_GENERATOR_STATE_BYTES;
    uint8_t *bytes = ek_calloc(1, (size_t)nbytes);
    into->of_worker = ek_calloc((size_t)workers, sizeof *into->of_worker);
    int rc = bytes && into->of_worker ? 0 : EK_E_NO_MEMORY;
    if (rc == 0)
        rc = ek_state_bytes(state, load, "of_worker", bytes, nbytes);
    for (int w = 0; w < workers && rc == 0; w++) {
        rc = ek_generator_set_state(&into->of_worker[w],
                                    bytes + (size_t)w * EK_GENERATOR_STATE_BYTES,
                                    EK_GENERATOR_STATE_BYTES);
        if (rc < 0)
            ek_error_prefix(before, "%s: worker %d in \"of_worker\" of the state", load, w);
    }
    free(bytes);
    return rc;
}

static int read_pass(const ek_loader *loader, ek_value state, loaded *into)
{
    EK_TRY(ek_state_int(state, load, "given", 0, INT64_MAX / 2, &into->given));
    EK_TRY(ek_state_int(state, load, "base_seed", 0, INT64_MAX, &into->base_seed));
    EK_TRY(read_indices(state, into));
    if (loader->batch_size == 0)
        EK_TRY(ek_state_ends(state, load, &into->pass));
    return ek_loader_seeds_workers(loader) ? read_workers(loader, state, into) : 0;
}

static int read_state(const ek_loader *loader, ek_value state, loaded *into)
{
    const ek_loader_options *options = &loader->options;
    EK_TRY(ek_state_check(state, load));
    into->length = ek_dataset_length(options->dataset);
    if (into->length < 0)
        return ek_error_pending();
    EK_TRY(check_same(state, "samples", into->length, "a data set of length"));
    EK_TRY(check_same(state, "batch_size", batch_size_of(loader),
                      "batch_size (0: a batch_sampler's, -1: samples as they are)"));
    EK_TRY(check_same(state, "drop_last", options->drop_last, "drop_last"));
    EK_TRY(check_same(state, "seeding", options->seeding, "seeding (1: EK_SEED_WORKER)"));
    EK_TRY(check_same(state, "workers", seeded_workers(loader), "workers (EK_SEED_WORKER)"));
    EK_TRY(ek_state_int(state, load, "begun", 0, 1, &into->begun));
    if (into->begun)
        EK_TRY(read_pass(loader, state, into));
    if (options->generator)
        return ek_state_generator(state, load, "generator", &into->generator);
    if (ek_state_has(state, "generator"))
        return EK_FAIL(EK_E_FORMAT,
                       "%s: the state has a generator; this loader was made without one", load);
    return 0;
}

static void take(ek_loader *loader, loaded *from)
{
    ek_loader_settle(loader, 0);
    ek_loader_forget(loader);
    if (loader->options.generator)
        *loader->options.generator = from->generator;
    loader->begun = false;
    if (!from->begun)
        return;
    ek_pass_free(&loader->pass);
    loader->pass = from->pass;
    from->pass = (ek_pass){0};
    loader->first = from->given;
    loader->base_seed = (uint64_t)from->base_seed;
    for (int w = 0; from->of_worker && w < loader->options.workers; w++)
        loader->after[w] = from->of_worker[w];
    ek_loader_go_on(loader);
}

int ek_loader_load_state(ek_loader *loader, ek_value state)
{
    const int before = ek_error_status();
    loaded from = {0};
    if (!loader)
        return ek_error_pending();
    EK_TRY(ek_fork_check());
    int rc = read_state(loader, state, &from);
    if (rc == 0) {
        rc = ek_sampler_load_state(loader->sampler, ek_value_get(state, "sampler"));
        if (rc < 0)
            ek_error_prefix(before, "%s", load);
    }
    if (rc == 0)
        take(loader, &from);
    ek_pass_free(&from.pass);
    free(from.of_worker);
    return rc;
}

/* sampler_state.c: where a sampler is, as a dictionary:
 *
 *     kind       u8: the bytes of the type's name
 *     epoch      i64
 *     begun      i64: 1 within a pass of ek_sampler_next, else 0
 *     indices    i64: what is left of that pass
 *     ends       i64: where its batches end, of samplers that make batches
 *     generator  u8: the state of the caller's generator, where the sampler has one
 *     inner      the same of the sampler that batches are made of
 */
#include <stdlib.h>

#include "core/thread.h"
#include "data/samplers.h"
#include "data/state.h"

static const char load[] = "sampler_load_state";

/* ---- saving ---- */

/* Where batches end, counted from the first index that is left. */
static ek_value rest_of_ends(const ek_pass *pass, int64_t position, int64_t begin)
{
    int64_t count = pass->batches - position;
    int64_t *ends = ek_calloc((size_t)count + 1, sizeof *ends);

    if (!ends)
        return ek_value_error();
    for (int64_t b = 0; b < count; b++)
        ends[b] = pass->ends[position + b] - begin;
    ek_value value = ek_state_of_ints(ends, count);
    free(ends);
    return value;
}

ek_value ek_sampler_state(ek_sampler *sampler)
{
    ek_value_entry entries[7];
    int count = 0;

    if (ek_sampler_given(sampler, "sampler_state") < 0)
        return ek_value_error();
    const ek_pass *pass = &sampler->pass;
    int64_t position = sampler->position;
    entries[count++] = (ek_value_entry){"kind", ek_state_of_text(sampler->type->name)};
    entries[count++] = (ek_value_entry){"epoch", ek_state_of_int(sampler->epoch)};
    entries[count++] = (ek_value_entry){"begun", ek_state_of_int(position >= 0)};
    if (position >= 0) {
        bool batches = sampler->type->makes_batches;
        int64_t begin = !batches ? position : position ? pass->ends[position - 1] : 0;
        entries[count++] = (ek_value_entry){"indices", ek_state_of_ints(pass->indices + begin,
                                                                        pass->count - begin)};
        if (batches)
            entries[count++] = (ek_value_entry){"ends", rest_of_ends(pass, position, begin)};
    }
    if (sampler->generator)
        entries[count++] = (ek_value_entry){"generator", ek_state_of_generator(sampler->generator)};
    if (sampler->inner)
        entries[count++] = (ek_value_entry){"inner", ek_sampler_state(sampler->inner)};
    return ek_value_dict(entries, count);
}

/* ---- loading: all is read and checked before anything is changed ---- */

typedef struct loaded {
    int64_t epoch, begun;
    ek_pass pass;
    ek_generator generator;
    struct loaded *inner;
} loaded;

static void loaded_free(loaded *from)
{
    if (!from)
        return;
    loaded_free(from->inner);
    ek_pass_free(&from->pass);
    free(from);
}

/* The indices that passes may hold: known of the library's own types. */
static void find_range(const ek_sampler *sampler, int64_t *low, int64_t *high)
{
    static const ek_sampler_type *const ranged[] = {
        &ek_sequential_type,      &ek_random_type,
        &ek_subset_random_type,   &ek_weighted_random_type,
        &ek_distributed_type,     &ek_distributed_inference_type,
        &ek_random_identity_type, &ek_distributed_random_identity_type,
    };

    while (sampler->inner)
        sampler = sampler->inner;
    *low = INT64_MIN;
    *high = INT64_MAX;
    for (size_t i = 0; i < sizeof ranged / sizeof *ranged; i++) {
        if (sampler->type != ranged[i])
            continue;
        *low = ((const ek_ranged_sampler *)sampler)->low;
        *high = ((const ek_ranged_sampler *)sampler)->high - 1;
    }
}

static int read_indices(const ek_sampler *sampler, ek_value state, ek_pass *pass)
{
    int64_t low, high;

    EK_TRY(ek_state_ints(state, load, "indices", &pass->indices, &pass->count));
    pass->room = pass->count;
    find_range(sampler, &low, &high);
    for (int64_t i = 0; i < pass->count; i++)
        if (pass->indices[i] < low || pass->indices[i] > high)
            return EK_FAIL(EK_E_FORMAT,
                           "%s: \"indices\" of the state has %lld; samples of this sampler lie in "
                           "[%lld, %lld]",
                           load, (long long)pass->indices[i], (long long)low, (long long)high);
    return 0;
}

static int read_state(const ek_sampler *sampler, ek_value state, loaded *into)
{
    EK_TRY(ek_state_check(state, load));
    EK_TRY(ek_state_is_text(state, load, "kind", sampler->type->name, "sampler"));
    EK_TRY(ek_state_int(state, load, "epoch", INT64_MIN, INT64_MAX, &into->epoch));
    EK_TRY(ek_state_int(state, load, "begun", 0, 1, &into->begun));
    if (into->begun) {
        EK_TRY(read_indices(sampler, state, &into->pass));
        if (sampler->type->makes_batches)
            EK_TRY(ek_state_ends(state, load, &into->pass));
    }
    if (sampler->generator)
        EK_TRY(ek_state_generator(state, load, "generator", &into->generator));
    else if (ek_state_has(state, "generator"))
        return EK_FAIL(EK_E_FORMAT,
                       "%s: the state has a generator; sampler \"%s\" was made without one", load,
                       sampler->type->name);
    if (!sampler->inner)
        return 0;
    into->inner = ek_calloc(1, sizeof *into->inner);
    if (!into->inner)
        return EK_E_NO_MEMORY;
    const int before = ek_error_status();
    int rc = ek_state_check(ek_value_get(state, "inner"), load);
    if (rc < 0) {
        ek_error_prefix(before, "\"inner\"");
        return rc;
    }
    return read_state(sampler->inner, ek_value_get(state, "inner"), into->inner);
}

static void take(ek_sampler *sampler, loaded *from)
{
    sampler->epoch = from->epoch;
    sampler->position = from->begun ? 0 : -1;
    ek_pass_free(&sampler->pass);
    sampler->pass = from->pass;
    from->pass = (ek_pass){0};
    if (sampler->generator)
        *sampler->generator = from->generator;
    if (sampler->inner)
        take(sampler->inner, from->inner);
}

int ek_sampler_load_state(ek_sampler *sampler, ek_value state)
{
    EK_TRY(ek_sampler_given(sampler, load));
    loaded *from = ek_calloc(1, sizeof *from);
    if (!from)
        return EK_E_NO_MEMORY;
    int rc = read_state(sampler, state, from);
    if (rc == 0)
        take(sampler, from);
    loaded_free(from);
    return rc;
}

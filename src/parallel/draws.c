/* draws.c: see draws.h. */
#include "parallel/draws.h"

#include <stdlib.h>

#include "comm/tree.h"
#include "core/world.h"

int64_t ek_draws_samples(const ek_args *args, int dim)
{
    int64_t size = -1;
    for (int i = 0; i <= args->count && size == -1; i++)
        size = ek_tree_batch_size(i < args->count ? args->inputs[i] : args->keywords, dim);
    return size == -1 ? 1 : size;
}

/* Writes the parts' shares of the batch of all ranks. Along dimension 0 the samples of ranks
 * alternate, as strided samplers deal them out; along another dimension each rank has a block. */
static void draws_share(ek_draws *draws, int dim, const int64_t *samples)
{
    int64_t before = 0, total = 0;
    for (int p = 0; p < draws->count; p++)
        total += samples[p];
    for (int p = 0; p < draws->count; before += samples[p++]) {
        ek_generator_share share = {.dim = dim, .samples = samples[p], .first = before, .step = 1};
        share.total = total * ek_world.size;
        if (dim > 0) {
            share.first += total * ek_world.rank;
        } else {
            share.first = before * ek_world.size + ek_world.rank;
            share.step = ek_world.size;
        }
        draws->parts[p].share = share;
    }
}

int ek_draws_begin(ek_draws *draws, int dim, const ek_args *args, int count)
{
    int64_t samples[EK_MAX_DEVICES];
    *draws = (ek_draws){0};
    if ((count == 1 && ek_world.size == 1) || ek_generator_engine(NULL) != EK_RANDOM_PHILOX)
        return 0;
    for (int p = 0; p < count; p++) {
        samples[p] = ek_draws_samples(&args[p], dim);
        if (samples[p] < 0)
            return (int)samples[p];
    }
    draws->parts = ek_calloc((size_t)count + 2, sizeof *draws->parts);
    if (!draws->parts)
        return ek_error_pending();
    draws->count = count;
    ek_generator_borrow(&draws->parts[count], &draws->parts[count + 1]);
    for (int p = 0; p < count; p++)
        draws->parts[p] = draws->parts[count];
    draws_share(draws, dim, samples);
    return 0;
}

ek_generator *ek_draws_enter(ek_draws *draws, int index)
{
    return draws->count ? ek_generator_stand_in(&draws->parts[index]) : NULL;
}

void ek_draws_leave(const ek_draws *draws, ek_generator *before)
{
    if (draws->count)
        ek_generator_stand_in(before);
}

void ek_draws_end(ek_draws *draws)
{
    if (draws->count == 0)
        return;
    /* Tensors and single words are counted separately. One part may have drawn the most tensors and
     * another the most words. The latest block of words comes from the part with the most words. */
    ek_generator *end = &draws->parts[0];
    uint64_t call = end->call;
    for (int p = 1; p < draws->count; p++) {
        if (draws->parts[p].drawn > end->drawn)
            end = &draws->parts[p];
        if (draws->parts[p].call > call)
            call = draws->parts[p].call;
    }
    end->call = call;
    end->share = draws->parts[draws->count].share;
    ek_generator_give_back(end, &draws->parts[draws->count + 1]);
    free(draws->parts);
    *draws = (ek_draws){0};
}

/* sync_chunks.c: joins the moments of batch normalisation's chunks with those of other ranks. */
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "evenkeel/ops.h"
#include "parallel/sync_chunks.h"

/* Merges the moments of chunks [begin, end), at most EK_MAX_DEVICES, which have `count` values
 * together. Returns moments (2, C). */
static ek_tensor *chunks_merged(const ek_sync_chunks *chunks, int begin, int end, int64_t count)
{
    double shares[EK_MAX_DEVICES];
    for (int k = begin; k < end; k++)
        shares[k - begin] = (double)chunks->counts[k] / (double)count;
    ek_tensor *moments = ek_narrow(chunks->moments, 0, begin, end - begin);
    ek_tensor *weights = ek_from_data(shares, EK_SHAPE(end - begin, 1), EK_F64, .device = ek_cpu());
    if (!moments || !weights)
        return NULL;
    weights = ek_to_device(ek_to_dtype(weights, moments->dtype), ek_tensor_device(moments));
    ek_tensor *means = ek_select(moments, 1, 0), *vars = ek_select(moments, 1, 1);
    ek_tensor *mean = ek_sum(ek_mul(means, weights), EK_DIMS(0), .keepdim = true);
    ek_tensor *spread = ek_add(vars, ek_square(ek_sub(means, mean)));
    ek_tensor *rows[] = {mean, ek_sum(ek_mul(spread, weights), EK_DIMS(0), .keepdim = true)};
    return mean && rows[1] ? ek_cat(rows, 2, 0) : NULL;
}

/* Merges neighbouring chunks until there are at most `most`. */
static int chunks_thin(ek_sync_chunks *chunks, int most)
{
    ek_tensor *merged[EK_MAX_DEVICES];
    while (chunks->count > most) {
        /* Up to EK_MAX_DEVICES neighbours become one, in up to EK_MAX_DEVICES places at once. */
        int each = (chunks->count + most - 1) / most;
        each = each < EK_MAX_DEVICES ? each : EK_MAX_DEVICES;
        int places = 0, at = 0;
        for (; at < chunks->count && places < most; places++) {
            int end = at + each < chunks->count ? at + each : chunks->count;
            int64_t count = 0;
            for (int k = at; k < end; k++)
                count += chunks->counts[k];
            merged[places] = chunks_merged(chunks, at, end, count);
            if (!merged[places])
                return ek_error_pending();
            chunks->counts[places] = count;
            at = end;
        }
        ek_tensor *parts[] = {ek_stack(merged, places, 0),
                              ek_narrow(chunks->moments, 0, at, chunks->count - at)};
        chunks->moments = ek_cat(parts, 2, 0);
        if (!chunks->moments)
            return ek_error_pending();
        memmove(chunks->counts + places, chunks->counts + at,
                (size_t)(chunks->count - at) * sizeof *chunks->counts);
        chunks->count -= at - places;
    }
    return 0;
}

/* The numbers that a rank tells the others. */
enum {
    TOLD_GRADIENT, /* a chunks_gradient */
    TOLD_CHANNELS,
    TOLD_DTYPE,
    TOLD_CHUNKS,
    TOLD_COUNTS, /* values per channel of each chunk */
    TOLD_MOST = EK_RANKS_COUNTS - TOLD_COUNTS
};

typedef enum chunks_gradient { GRADIENT_OFF, GRADIENT_NONE, GRADIENT_REQUIRED } chunks_gradient;

/* Checks that channels and dtype are equal on all ranks, and that all ranks have gradient mode on
 * if the input of any rank requires a gradient. Returns on all ranks 1 if an input requires a
 * gradient, else 0, or a negative status. */
static int chunks_check_ranks(const int64_t *all, int size)
{
    int required = -1, off = -1;
    for (int r = 0; r < size; r++) {
        const int64_t *told = all + (size_t)r * EK_RANKS_COUNTS;
        if (told[TOLD_CHANNELS] != all[TOLD_CHANNELS] || told[TOLD_DTYPE] != all[TOLD_DTYPE])
            return EK_FAIL(EK_E_SHAPE,
                           "channels and dtype must agree, but rank %d has %lld channels of %s and "
                           "rank 0 %lld of %s",
                           r, (long long)told[TOLD_CHANNELS],
                           ek_dtype_name((ek_dtype)told[TOLD_DTYPE]), (long long)all[TOLD_CHANNELS],
                           ek_dtype_name((ek_dtype)all[TOLD_DTYPE]));
        required = told[TOLD_GRADIENT] == GRADIENT_REQUIRED ? r : required;
        off = told[TOLD_GRADIENT] == GRADIENT_OFF ? r : off;
    }
    if (required < 0 || off < 0)
        return required >= 0;
    return EK_FAIL(EK_E_STATE,
                   "rank %d's input requires a gradient, but gradient mode is off on rank %d; it "
                   "must be on or off on all ranks",
                   required, off);
}

static int chunks_told(ek_ranks *ranks, const int64_t *all, int64_t *sizes, ek_sync_chunks *chunks)
{
    int rc = ek_ranks_alike(chunks_check_ranks(all, ranks->size));
    EK_TRY(rc);
    chunks->records = rc > 0;
    int64_t *counts = ek_calloc((size_t)ranks->size * TOLD_MOST, sizeof *counts);
    if (!counts)
        return ek_error_pending();
    free(chunks->counts);
    chunks->counts = counts;
    chunks->count = 0;
    for (int r = 0; r < ranks->size; r++) {
        const int64_t *told = all + (size_t)r * EK_RANKS_COUNTS;
        sizes[r] = told[TOLD_CHUNKS];
        for (int k = 0; k < sizes[r]; k++)
            counts[chunks->count++] = told[TOLD_COUNTS + k];
    }
    return 0;
}

int ek_sync_chunks_join(ek_ranks *ranks, const ek_tensor *x, bool enabled, ek_sync_chunks *chunks)
{
    int64_t mine[EK_RANKS_COUNTS] = {0};
    EK_TRY(chunks_thin(chunks, TOLD_MOST));
    mine[TOLD_GRADIENT] = !enabled          ? GRADIENT_OFF
                          : chunks->records ? GRADIENT_REQUIRED
                                            : GRADIENT_NONE;
    mine[TOLD_CHANNELS] = x->shape[1];
    mine[TOLD_DTYPE] = x->dtype;
    mine[TOLD_CHUNKS] = chunks->count;
    memcpy(mine + TOLD_COUNTS, chunks->counts, (size_t)chunks->count * sizeof *mine);
    int64_t *all = ek_calloc((size_t)ranks->size * (EK_RANKS_COUNTS + 1), sizeof *all);
    if (!all)
        return ek_error_pending();
    int64_t *sizes = all + (size_t)ranks->size * EK_RANKS_COUNTS;
    int rc = ranks->gather(ranks, mine, EK_RANKS_COUNTS, all);
    if (rc >= 0)
        rc = chunks_told(ranks, all, sizes, chunks);
    if (rc >= 0 && chunks->count > 0) {
        chunks->moments = ranks->join(ranks, chunks->moments, 0, sizes);
        rc = chunks->moments ? chunks_thin(chunks, EK_MAX_DEVICES) : ek_error_pending();
    }
    free(all);
    return rc;
}

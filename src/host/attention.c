/* attention.c: scaled dot-product attention and its gradients, a block of the scores at a time.
 *
 * After T. Dao et al., "FlashAttention" (2022), and M. Rabe and C. Staats, "Self-attention does not
 * need O(n^2) memory" (2021). With scores s = scale q k' + mask, a row's probabilities are
 * p = exp(s - lse), lse = log(sum(exp(s))). The forward goes over blocks of keys, and rescales its
 * sums when a larger score appears. The gradients compute p again from lse:
 *
 *     dv = p' do,   dp = do v',   ds = p (dp - sum(do out)),   dq = scale ds k,   dk = scale ds' q
 *
 * Operands are converted and copied to blocks in level 2 cache, which the kernels of matrix
 * products read in order. In forward a piece of work is a block of queries of one head. In the
 * gradient a piece is a part of the keys that a group of heads shares, with all queries that see
 * these keys: dk and dv of the piece are complete, and dq is summed over a group's pieces in their
 * order. So results don't depend on the number of threads. */
#ifndef EK_REAL
#include "host/attention.h"

#include <math.h>
#include <string.h>

/* The most rows and keys of a block of f32 scores. ROWS is a multiple of every kernel's rows. A
 * thread packs the keys of its heads itself if there are PACKED_ALONE groups of heads for each
 * thread, or equally many for all threads. */
enum { ROWS = 96, FORWARD_KEYS = 256, PACKED_ALONE = 4 };

ek_attention_operand ek_attention_operand_of(const ek_tensor *x)
{
    if (!x)
        return (ek_attention_operand){.data = NULL};
    return (
        ek_attention_operand){ek_tensor_address(x), x->dtype,     (int64_t)ek_dtype_size(x->dtype),
                              x->stride[0],         x->stride[1], x->stride[2],
                              x->stride[3]};
}

void ek_attention_drop(const ek_attention_job *job, int64_t head, int64_t row, int64_t rows,
                       int64_t key, int64_t keys, void *values)
{
    const ek_draw *all = job->params->dropout;
    const ek_dtype dtype = job->type == EK_CLASS_F64 ? EK_F64 : EK_F32;
    for (int64_t r = row; all && r < row + rows; r++) {
        const int64_t first = (head * job->rows + r) * job->keys + key;
        ek_draw part = *all;
        part.first = all->first + first + first / all->row * all->gap;
        part.row = INT64_MAX;
        part.gap = 0;
        void *at = (char *)values + (size_t)((r - row) * job->block_keys) * job->element;
        const ek_drawn_rows drawn = {.out = at, .x = at, .dtype = dtype, .x_dtype = dtype};
        ek_draw_fill(&part, job->philox, &drawn, 0, ek_attention_seen(job, r, key, keys));
    }
}

#define EK_FOR_REALS "host/attention.c"
#include "kernels/for_reals.h"

/* ---- geometry, workspace and the run ---- */

ek_attention_job ek_attention_job_of(const ek_tensor *q, const ek_tensor *k, const ek_tensor *v,
                                     const ek_tensor *mask, const ek_attention_params *params,
                                     int64_t block_keys)
{
    ek_attention_job job = {.params = params,
                            .type = ek_class_of(q->dtype),
                            .batch = q->shape[0],
                            .heads = q->shape[1],
                            .groups = k->shape[1],
                            .rows = q->shape[2],
                            .keys = k->shape[2],
                            .depth = q->shape[3],
                            .width = v->shape[3],
                            .q = ek_attention_operand_of(q),
                            .k = ek_attention_operand_of(k),
                            .v = ek_attention_operand_of(v),
                            .mask = ek_attention_operand_of(mask),
                            .philox = ek_host_philox_blocks()};
    const bool wide = job.type == EK_CLASS_F64;
    job.kernel = ek_gemm_kernel_best(wide ? EK_F64 : EK_F32);
    job.element = wide ? sizeof(double) : sizeof(float);
    job.members = job.heads / job.groups;
    job.panel = job.kernel->columns;
    job.vector = job.panel / 2;
    job.padded_depth = ek_multiple_up(job.depth, job.vector);
    job.padded_width = ek_multiple_up(job.width, job.vector);
    job.block_rows = ek_smaller(ROWS, job.rows);
    const int64_t lanes = wide ? LANES_f64 : LANES_f32;
    job.block_keys = ek_multiple_up(ek_smaller(wide ? block_keys / 2 : block_keys, job.keys),
                                    ek_larger(job.panel, lanes));
    job.row_blocks = ek_divide_up(job.rows, job.block_rows);
    return job;
}

void ek_attention_run(ek_dev *dev, ek_attention_job *job, int64_t pieces, ek_parallel_body *body)
{
    job->pieces = pieces;
    atomic_store(&job->next_thread, 0);
    atomic_store(&job->next_piece, 0);
    ek_parallel_for(dev, pieces, 1, body, job);
}

int ek_host_attention_composes(ek_dev *dev, const ek_tensor *q, const ek_tensor *k,
                               const ek_tensor *v, const ek_tensor *mask,
                               const ek_attention_params *params, bool gradient)
{
    (void)dev, (void)q, (void)k, (void)v, (void)mask, (void)params, (void)gradient;
    return 0;
}

int ek_host_attention(ek_dev *dev, ek_tensor *out, ek_tensor *lse, const ek_tensor *q,
                      const ek_tensor *k, const ek_tensor *v, const ek_tensor *mask,
                      const ek_attention_params *params)
{
    ek_attention_job job = ek_attention_job_of(q, k, v, mask, params, FORWARD_KEYS);
    job.out = ek_attention_operand_of(out);
    job.lse = ek_tensor_address(lse);
    const int64_t padded_keys = ek_multiple_up(job.keys, job.panel);
    const int64_t pairs = job.batch * job.groups;
    const int threads = ek_parallel_threads(dev);
    job.packed_alone = pairs % threads == 0 || pairs >= PACKED_ALONE * threads;
    job.values_at = ek_attention_nbytes(&job, padded_keys * job.depth);
    job.pair_nbytes = job.values_at + ek_attention_nbytes(&job, job.keys * job.padded_width);
    const size_t packed_nbytes = (size_t)(job.packed_alone ? threads : pairs) * job.pair_nbytes;
    job.workspace_stride =
        ek_attention_nbytes(&job, job.block_rows * (job.depth + job.padded_width + 4)) +
        ek_attention_nbytes(&job, 2 * job.block_rows * job.block_keys) +
        ek_attention_nbytes(&job, job.panel * job.depth);
    const size_t nbytes = packed_nbytes + (size_t)threads * job.workspace_stride;
    void *memory;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &memory));
    job.packed = memory;
    job.workspace = job.packed + packed_nbytes;
    const bool wide = job.type == EK_CLASS_F64;
    if (!job.packed_alone)
        ek_attention_run(dev, &job, pairs, wide ? attention_pack_f64 : attention_pack_f32);
    ek_attention_run(dev, &job, job.packed_alone ? pairs : job.batch * job.heads * job.row_blocks,
                     wide ? attention_forward_f64 : attention_forward_f32);
    ek_dev_free(dev, memory, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

#else /* for each EK_REAL */

/* ---- rows of scores ---- */

/* Raises each number of *most to the number of *other if that is larger. */
EK_FORMULA void EK_NAME(attention_raise)(EK_NAME(ek_attention_vector) * most,
                                         const EK_NAME(ek_attention_vector) * other)
{
    const __typeof__(*other > *most) larger = *other > *most;
    *most = (EK_NAME(ek_attention_vector))((larger & (__typeof__(*other > *most))*other) |
                                           (~larger & (__typeof__(*other > *most))*most));
}

/* Returns the largest of `most` and the row's elements, whole lanes of which are read. NaNs are
 * ignored here, because exp keeps them. */
EK_FORMULA EK_REAL EK_NAME(attention_largest)(int64_t size, const EK_REAL *row, EK_REAL most)
{
    enum { VECTOR = EK_NAME(VECTOR) };
    EK_NAME(ek_attention_vector) low = most - (EK_NAME(ek_attention_vector)){0}, high = low;
    for (int64_t c = 0; c < size; c += 2 * VECTOR) {
        EK_NAME(attention_raise)(&low, EK_NAME(ek_attention_vector_at)(row + c));
        EK_NAME(attention_raise)(&high, EK_NAME(ek_attention_vector_at)(row + c) + 1);
    }
    EK_NAME(attention_raise)(&low, &high);
    for (int width = VECTOR / 2; width > 0; width /= 2) {
        EK_NAME(ek_attention_halve)(&high, &low, width);
        EK_NAME(attention_raise)(&low, &high);
    }
    return low[0];
}

/* The scores of one row in the blocks of keys so far. */
typedef struct EK_NAME(attention_state) {
    EK_REAL largest, sum;
    EK_REAL shift;      /* The present block's scores are lessened by it. */
    EK_REAL correction; /* Sums over earlier blocks are multiplied by it. */
} EK_NAME(attention_state);

/* Adds the mask to a row of scores, sets whole lanes beyond its `seen` keys to -inf, and updates
 * the state for the row's largest score. */
EK_FORMULA void EK_NAME(attention_raise_state)(int64_t seen, EK_REAL *p, const EK_REAL *mask,
                                               EK_NAME(attention_state) * state)
{
    enum { LANES = EK_NAME(LANES) };
    const int64_t size = ek_multiple_up(seen, LANES);
    if (mask)
        for (int64_t c = 0; c < seen; c++)
            p[c] += mask[c];
    if (seen < size) {
        EK_REAL *last = p + size - LANES;
        const int rest = (int)(seen + LANES - size);
        for (int j = 0; j < LANES; j++)
            last[j] = j < rest ? last[j] : -(EK_REAL)INFINITY;
    }
    const EK_REAL before = state->largest;
    const EK_REAL most = EK_NAME(attention_largest)(size, p, before);
    state->largest = most;
    state->shift = most == -(EK_REAL)INFINITY ? 0 : most; /* -inf - -inf would be NaN */
    state->correction = before == most ? 1 : EK_NAME(ek_exp)(before - state->shift);
}

/* Adds the mask to rows of scores, turns them into exp(score - largest), and updates the rows'
 * states. Scores of keys that a row doesn't see become 0, up to whole lanes. `sums`, of `width`
 * elements, are the rows' sums of values over earlier blocks. */
EK_MULTIVERSION
static void EK_NAME(attention_exponentials)(const ek_attention_job *job, int64_t rows, int64_t row,
                                            int64_t key, int64_t keys, EK_REAL *scores,
                                            const EK_REAL *mask, int64_t mask_stride,
                                            EK_NAME(attention_state) * states, EK_REAL *sums,
                                            int64_t width)
{
    enum { LANES = EK_NAME(LANES) };
    for (int64_t r = 0; r < rows; r++)
        EK_NAME(attention_raise_state)
    (ek_attention_seen(job, row + r, key, keys), scores + r * job->block_keys,
     mask ? mask + r * mask_stride : NULL, &states[r]);
    for (int64_t r = 0; r < rows; r++, sums += width) {
        EK_REAL *p = scores + r * job->block_keys;
        const int64_t size = ek_multiple_up(ek_attention_seen(job, row + r, key, keys), LANES);
        const EK_REAL shift = states[r].shift, correction = states[r].correction;
        for (int64_t c = 0; c < size; c++)
            p[c] = EK_NAME(ek_exp)(p[c] - shift);
        for (int64_t c = size; c < keys; c += LANES)
            for (int j = 0; j < LANES; j++)
                p[c + j] = 0;
        states[r].sum = states[r].sum * correction + EK_NAME(ek_attention_sum)(size, p, NULL);
        if (correction != 1)
            for (int64_t c = 0; c < width; c++)
                sums[c] *= correction;
    }
}

/* Divides rows of `sums` by the sums of their exponentials, and writes lse. */
EK_MULTIVERSION
static void EK_NAME(attention_finish)(int64_t rows, int64_t width, EK_REAL *sums,
                                      const EK_NAME(attention_state) * states, EK_REAL *lse)
{
    for (int64_t r = 0; r < rows; r++, sums += width) {
        /* If a row has no keys, or scores of -inf only, lse = inf makes its probabilities 0 in the
         * gradient. */
        const bool none = states[r].largest == -(EK_REAL)INFINITY && states[r].sum == 0;
        const EK_REAL factor = none ? 0 : 1 / states[r].sum;
        for (int64_t c = 0; c < width; c++)
            sums[c] *= factor;
        lse[r] = none ? (EK_REAL)INFINITY : states[r].largest + EK_NAME(ek_log)(states[r].sum);
    }
}

/* ---- forward ---- */

/* Packs the keys and values of one group, which is counted through the batch, to `to`. */
static void EK_NAME(attention_pack_pair)(const ek_attention_job *job, int64_t pair, char *to,
                                         EK_REAL *lines)
{
    const int64_t batch = pair / job->groups, group = pair % job->groups;
    EK_NAME(ek_attention_pack_transposed)
    (job, (EK_REAL *)(void *)to, &job->k, ek_attention_at(&job->k, batch, group, 0, 0), job->keys,
     job->depth, lines);
    EK_REAL *values = (EK_REAL *)(void *)(to + job->values_at);
    for (int64_t c = 0; c < job->padded_width; c += job->panel) {
        const int64_t stride = ek_smaller(job->panel, job->padded_width - c);
        EK_NAME(ek_attention_load)
        (job, values, stride, &job->v, ek_attention_at(&job->v, batch, group, 0, c), job->keys,
         ek_smaller(stride, job->width - c), 1);
        values += stride * job->keys;
    }
}

/* Packs the keys and values of the groups [begin, end). */
static void EK_NAME(attention_pack)(void *context, int64_t begin, int64_t end)
{
    ek_attention_job *job = context;
    EK_REAL *lines = (EK_REAL *)(void *)ek_attention_workspace(job, NULL);
    for (int64_t pair = begin; pair < end; pair++)
        EK_NAME(attention_pack_pair)
    (job, pair, job->packed + (size_t)pair * job->pair_nbytes, lines);
}

/* The memory with which a block of queries is computed. */
typedef struct EK_NAME(attention_rows) {
    EK_REAL *q, *scores; /* q is scaled. */
    EK_REAL *room;       /* The mask is copied here. */
    EK_REAL *sums;       /* Sums of values. */
    EK_NAME(attention_state) * states;
} EK_NAME(attention_rows);

/* Adds to a block of queries what a block of keys contributes. */
static void EK_NAME(attention_forward_keys)(const ek_attention_job *job,
                                            const EK_NAME(attention_rows) * b, const char *packed,
                                            int64_t head, int64_t row, int64_t rows, int64_t key,
                                            int64_t keys)
{
    const int64_t batch = head / job->heads, of_batch = head % job->heads;
    const int64_t stride = job->block_keys, width = job->padded_width;
    int64_t mask_stride;
    const EK_REAL *mask = EK_NAME(ek_attention_mask)(job, batch, of_batch, row, rows, key, keys,
                                                     b->room, &mask_stride);
    EK_NAME(ek_attention_multiply)
    (job, &(ek_attention_product){.rows = rows,
                                  .columns = keys,
                                  .k = job->depth,
                                  .c = b->scores,
                                  .c_row = stride,
                                  .a = b->q,
                                  .a_row = job->depth,
                                  .a_depth = 1,
                                  .b = (const EK_REAL *)(const void *)packed + key * job->depth,
                                  .b_panel = job->panel * job->depth,
                                  .b_depth = job->panel,
                                  .sight = ek_attention_sight_of(job, SIGHT_COLUMNS),
                                  .seen = row - key + 1});
    EK_NAME(attention_exponentials)
    (job, rows, row, key, keys, b->scores, mask, mask_stride, b->states, b->sums, width);
    ek_attention_drop(job, head, row, rows, key, keys, b->scores);
    const EK_REAL *values = (const EK_REAL *)(const void *)(packed + job->values_at);
    for (int64_t c = 0; c < width; c += job->panel) {
        const int64_t columns = ek_smaller(job->panel, width - c);
        EK_NAME(ek_attention_multiply)
        (job, &(ek_attention_product){.rows = rows,
                                      .columns = columns,
                                      .k = keys,
                                      .c = b->sums + c,
                                      .c_row = width,
                                      .a = b->scores,
                                      .a_row = stride,
                                      .a_depth = 1,
                                      .b = values + c * job->keys + key * columns,
                                      .b_depth = columns,
                                      .add = true,
                                      .sight = ek_attention_sight_of(job, SIGHT_END),
                                      .seen = row - key + 1});
    }
}

/* Computes a block of queries of one head from its group's packed keys and values. */
static void EK_NAME(attention_forward_block)(const ek_attention_job *job, int64_t head, int64_t row,
                                             const char *packed, const EK_NAME(attention_rows) * b)
{
    const int64_t batch = head / job->heads, of_batch = head % job->heads;
    const int64_t rows = ek_smaller(job->block_rows, job->rows - row);
    const int64_t last = job->params->causal ? ek_smaller(job->keys, row + rows) : job->keys;
    EK_NAME(ek_attention_load)
    (job, b->q, job->depth, &job->q, ek_attention_at(&job->q, batch, of_batch, row, 0), rows,
     job->depth, (EK_REAL)job->params->scale);
    memset(b->sums, 0, (size_t)(rows * job->padded_width) * sizeof *b->sums);
    for (int64_t r = 0; r < rows; r++)
        b->states[r] = (EK_NAME(attention_state)){.largest = -(EK_REAL)INFINITY};
    for (int64_t key = 0; key < last; key += job->block_keys)
        EK_NAME(attention_forward_keys)
    (job, b, packed, head, row, rows, key, ek_smaller(job->block_keys, last - key));
    EK_NAME(attention_finish)
    (rows, job->padded_width, b->sums, b->states, (EK_REAL *)job->lse + head * job->rows + row);
    EK_NAME(ek_attention_store)
    (job, &job->out, ek_attention_at(&job->out, batch, of_batch, row, 0), b->sums,
     job->padded_width, rows, job->width, 1);
}

/* Computes one piece after another until none is left: a group with all its queries if its keys are
 * packed here, else a block of queries. [begin, end) is ignored. */
static void EK_NAME(attention_forward)(void *context, int64_t begin, int64_t end)
{
    ek_attention_job *job = context;
    (void)begin, (void)end;
    int thread;
    EK_NAME(attention_rows) b;
    b.scores = (EK_REAL *)(void *)ek_attention_workspace(job, &thread);
    b.room = b.scores + job->block_rows * job->block_keys;
    b.q = b.room + job->block_rows * job->block_keys;
    b.sums = b.q + job->block_rows * job->depth;
    b.states = (void *)(b.sums + job->block_rows * job->padded_width);
    EK_REAL *lines = (EK_REAL *)(void *)(b.states + job->block_rows);
    const int64_t row_blocks = job->row_blocks, of_group = job->members * row_blocks;
    int64_t piece;
    while ((piece = atomic_fetch_add(&job->next_piece, 1)) < job->pieces) {
        const int64_t pair = job->packed_alone ? piece : piece / of_group;
        char *packed = job->packed + (size_t)(job->packed_alone ? thread : pair) * job->pair_nbytes;
        if (job->packed_alone)
            EK_NAME(attention_pack_pair)(job, pair, packed, lines);
        const int64_t first = job->packed_alone ? 0 : piece % of_group;
        const int64_t last = job->packed_alone ? of_group : first + 1;
        for (int64_t block = first; block < last; block++)
            EK_NAME(attention_forward_block)
        (job, pair * job->members + block / row_blocks,
         (row_blocks - 1 - block % row_blocks) * job->block_rows, packed, &b);
    }
}

#endif

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

/* The most rows and keys of a block of f32 scores. ROWS is a multiple of every kernel's rows. */
enum { ROWS = 96, FORWARD_KEYS = 256 };

ek_attention_operand ek_attention_operand_of(const ek_tensor *x)
{
    if (!x)
        return (ek_attention_operand){.data = NULL};
    return (
        ek_attention_operand){ek_tensor_address(x), x->dtype,     (int64_t)ek_dtype_size(x->dtype),
                              x->stride[0],         x->stride[1], x->stride[2],
                              x->stride[3]};
}

void ek_attention_drop(const ek_attention_job *job, int64_t head, int64_t row, int64_t key,
                       int64_t keys, void *values)
{
    const ek_draw *all = job->params->dropout;
    const int64_t first = (head * job->rows + row) * job->keys + key;
    ek_draw part = *all;
    part.first = all->first + first + first / all->row * all->gap;
    part.row = INT64_MAX;
    part.gap = 0;
    const ek_dtype dtype = job->type == EK_CLASS_F64 ? EK_F64 : EK_F32;
    const ek_drawn_rows rows = {.out = values, .x = values, .dtype = dtype, .x_dtype = dtype};
    ek_draw_fill(&part, job->philox, &rows, 0, keys);
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
    job.padded_depth = ek_attention_round_up(job.depth, job.vector);
    job.padded_width = ek_attention_round_up(job.width, job.vector);
    job.block_rows = ek_smaller(ROWS, job.rows);
    job.block_keys =
        ek_attention_round_up(ek_smaller(wide ? block_keys / 2 : block_keys, job.keys), job.panel);
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
    const int64_t padded_keys = ek_attention_round_up(job.keys, job.panel);
    const int64_t pairs = job.batch * job.groups;
    const size_t keys_nbytes = ek_attention_nbytes(&job, pairs * padded_keys * job.depth);
    const size_t values_nbytes = ek_attention_nbytes(&job, pairs * job.keys * job.padded_width);
    const int threads = ek_parallel_threads(dev);
    job.workspace_stride =
        ek_attention_nbytes(&job, job.block_rows *
                                      (job.depth + 2 * job.block_keys + job.padded_width + 3)) +
        ek_attention_nbytes(&job, job.panel * job.depth);
    const size_t nbytes = keys_nbytes + values_nbytes + (size_t)threads * job.workspace_stride;
    void *memory;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &memory));
    job.keys_packed = memory;
    job.values_packed = job.keys_packed + keys_nbytes;
    job.workspace = job.values_packed + values_nbytes;
    const bool wide = job.type == EK_CLASS_F64;
    ek_attention_run(dev, &job, pairs, wide ? attention_pack_f64 : attention_pack_f32);
    ek_attention_run(dev, &job, job.batch * job.heads * job.row_blocks,
                     wide ? attention_forward_f64 : attention_forward_f32);
    ek_dev_free(dev, memory, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

#else /* for each EK_REAL */

/* ---- blocks of operands ---- */

void EK_NAME(ek_attention_load)(const ek_attention_job *job, EK_REAL *to, int64_t stride,
                                const ek_attention_operand *x, const char *from, int64_t rows,
                                int64_t columns, EK_REAL scale)
{
    for (int64_t r = 0; r < rows; r++, to += stride, from += x->size * x->row) {
        ek_row_load(job->type, to, x->dtype, from, x->column, columns);
        if (scale != 1)
            for (int64_t c = 0; c < columns; c++)
                to[c] *= scale;
        for (int64_t c = columns; c < stride; c++)
            to[c] = 0;
    }
}

void EK_NAME(ek_attention_store)(const ek_attention_job *job, const ek_attention_operand *x,
                                 char *to, const EK_REAL *from, int64_t stride, int64_t rows,
                                 int64_t columns)
{
    for (int64_t r = 0; r < rows; r++, from += stride, to += x->size * x->row)
        ek_row_store(job->type, from, x->dtype, to, x->column, columns);
}

void EK_NAME(ek_attention_pack_transposed)(const ek_attention_job *job, EK_REAL *to,
                                           const ek_attention_operand *x, const char *from,
                                           int64_t keys, int64_t depth, EK_REAL *lines)
{
    enum { TOGETHER = 32 / sizeof(EK_REAL) };
    const int64_t width = job->panel;
    const bool direct = ek_class_is_dtype(job->type, x->dtype) && x->column == 1;
    for (; keys > 0; keys -= width, to += width * depth, from += x->size * x->row * width) {
        const int64_t count = ek_smaller(keys, width);
        const EK_REAL *line = direct ? (const EK_REAL *)(const void *)from : lines;
        const int64_t stride = direct ? x->row : depth;
        int64_t done = 0;
        if (!direct)
            EK_NAME(ek_attention_load)(job, lines, depth, x, from, count, depth, 1);
        if (width % TOGETHER == 0)
            for (int64_t l = 0; l < count; l += TOGETHER)
                done = EK_NAME(ek_gemm_transpose)(to + l, width, line + l * stride,
                                                  ek_smaller(TOGETHER, count - l), stride, depth);
        for (int64_t d = done; d < depth; d++)
            for (int64_t l = 0; l < width; l++)
                to[d * width + l] = l < count ? line[l * stride + d] : 0;
    }
}

void EK_NAME(ek_attention_multiply)(const ek_attention_job *job, EK_REAL *c, int64_t c_row,
                                    int64_t rows, int64_t columns, int64_t k, const EK_REAL *a,
                                    int64_t a_row, int64_t a_depth, const EK_REAL *b,
                                    int64_t panel_stride, int64_t b_depth, bool add)
{
    const ek_gemm_kernel *kernel = job->kernel;
    ek_gemm_ahead none = {.runs = 0};
    for (int64_t column = 0; column < columns; column += job->panel, b += panel_stride) {
        const int vectors = columns - column > job->vector ? 2 : 1;
        ek_gemm_call call = {.k = k,
                             .a_row = a_row,
                             .a_depth = a_depth,
                             .b = b,
                             .b_depth = b_depth,
                             .c_row = c_row,
                             .add = add,
                             .next_a = &none,
                             .next_b = &none};
        for (int64_t row = 0; row < rows; row += kernel->rows) {
            call.a = a + row * a_row;
            call.c = c + row * c_row + column;
            kernel->inner[vectors - 1][ek_smaller(kernel->rows, rows - row) - 1](&call);
        }
    }
}

/* ---- rows of scores ---- */

/* Raises each number of *most to the number of *other if that is larger. */
EK_FORMULA void EK_NAME(attention_raise)(EK_NAME(ek_attention_vector) * most,
                                         const EK_NAME(ek_attention_vector) * other)
{
    const __typeof__(*other > *most) larger = *other > *most;
    *most = (EK_NAME(ek_attention_vector))((larger & (__typeof__(*other > *most))*other) |
                                           (~larger & (__typeof__(*other > *most))*most));
}

/* Returns the largest of `most` and the row's elements. NaNs are ignored here, because exp keeps
 * them. */
EK_FORMULA EK_REAL EK_NAME(attention_largest)(int64_t size, const EK_REAL *row, EK_REAL most)
{
    enum { VECTOR = EK_NAME(VECTOR), CHAINS = 4 };
    int64_t c = 0;
    if (size >= CHAINS * VECTOR) {
        EK_NAME(ek_attention_vector) chains[CHAINS];
        for (int i = 0; i < CHAINS; i++)
            chains[i] = EK_NAME(ek_attention_vector_at)(row)[i];
        for (c = CHAINS * VECTOR; c + CHAINS * VECTOR <= size; c += CHAINS * VECTOR)
            for (int i = 0; i < CHAINS; i++)
                EK_NAME(attention_raise)(&chains[i], EK_NAME(ek_attention_vector_at)(row + c) + i);
        for (int i = 1; i < CHAINS; i++)
            EK_NAME(attention_raise)(&chains[0], &chains[i]);
        for (int j = 0; j < VECTOR; j++)
            most = chains[0][j] > most ? chains[0][j] : most;
    }
    for (; c < size; c++)
        most = row[c] > most ? row[c] : most;
    return most;
}

/* The scores of one row in the blocks of keys so far. */
typedef struct EK_NAME(attention_state) {
    EK_REAL largest, sum, correction; /* correction: the factor of sums over earlier blocks */
} EK_NAME(attention_state);

/* Adds the mask to a row of scores, turns them into exp(score - largest), and updates the row's
 * state. */
EK_MULTIVERSION
static void EK_NAME(attention_exponentials)(int64_t seen, int64_t keys, EK_REAL *restrict row,
                                            const EK_REAL *restrict mask,
                                            EK_NAME(attention_state) * state)
{
    if (mask)
        for (int64_t c = 0; c < seen; c++)
            row[c] += mask[c];
    const EK_REAL before = state->largest;
    const EK_REAL most = EK_NAME(attention_largest)(seen, row, before);
    const EK_REAL shift = most == -(EK_REAL)INFINITY ? 0 : most; /* -inf - -inf would be NaN */
    for (int64_t c = 0; c < seen; c++)
        row[c] = EK_NAME(ek_exp)(row[c] - shift);
    for (int64_t c = seen; c < keys; c++)
        row[c] = 0;
    state->correction = before == most ? 1 : EK_NAME(ek_exp)(before - shift);
    state->sum = state->sum * state->correction + EK_NAME(ek_attention_sum)(seen, row, NULL);
    state->largest = most;
}

EK_MULTIVERSION
void EK_NAME(ek_attention_scale)(int64_t size, EK_REAL *row, EK_REAL factor)
{
    for (int64_t c = 0; c < size; c++)
        row[c] *= factor;
}

const EK_REAL *EK_NAME(ek_attention_mask)(const ek_attention_job *job, int64_t batch, int64_t head,
                                          int64_t row, int64_t rows, int64_t key, int64_t keys,
                                          EK_REAL *room, int64_t *stride)
{
    const ek_attention_operand *mask = &job->mask;
    *stride = 0;
    if (!mask->data)
        return NULL;
    const char *from = ek_attention_at(mask, batch, head, row, key);
    if (ek_class_is_dtype(job->type, mask->dtype) && mask->column == 1) {
        *stride = mask->row;
        return (const EK_REAL *)(const void *)from;
    }
    if (mask->row != 0)
        *stride = job->block_keys;
    EK_NAME(ek_attention_load)
    (job, room, job->block_keys, mask, from, mask->row != 0 ? rows : 1, keys, 1);
    return room;
}

/* ---- forward ---- */

/* Packs the keys and values of the groups [begin, end), which are counted through the batch. */
static void EK_NAME(attention_pack)(void *context, int64_t begin, int64_t end)
{
    ek_attention_job *job = context;
    EK_REAL *lines =
        (EK_REAL *)(void *)(job->workspace +
                            (size_t)atomic_fetch_add(&job->next_thread, 1) * job->workspace_stride);
    const int64_t padded_keys = ek_attention_round_up(job->keys, job->panel);
    for (int64_t pair = begin; pair < end; pair++) {
        const int64_t batch = pair / job->groups, group = pair % job->groups;
        EK_NAME(ek_attention_pack_transposed)
        (job, (EK_REAL *)(void *)job->keys_packed + pair * padded_keys * job->depth, &job->k,
         ek_attention_at(&job->k, batch, group, 0, 0), job->keys, job->depth, lines);
        EK_REAL *to = (EK_REAL *)(void *)job->values_packed + pair * job->keys * job->padded_width;
        for (int64_t c = 0; c < job->padded_width; c += job->panel) {
            const int64_t stride = ek_smaller(job->panel, job->padded_width - c);
            EK_NAME(ek_attention_load)
            (job, to, stride, &job->v, ek_attention_at(&job->v, batch, group, 0, c), job->keys,
             ek_smaller(stride, job->width - c), 1);
            to += stride * job->keys;
        }
    }
}

/* Computes one block of queries of one head. */
static void EK_NAME(attention_forward_piece)(const ek_attention_job *job, int64_t piece,
                                             EK_REAL *workspace)
{
    const int64_t head = piece / job->row_blocks,
                  row = (job->row_blocks - 1 - piece % job->row_blocks) * job->block_rows;
    const int64_t batch = head / job->heads, of_batch = head % job->heads;
    const int64_t rows = ek_smaller(job->block_rows, job->rows - row);
    const int64_t pair = batch * job->groups + of_batch / job->members;
    const int64_t padded_keys = ek_attention_round_up(job->keys, job->panel);
    const EK_REAL *keys_packed =
        (const EK_REAL *)(void *)job->keys_packed + pair * padded_keys * job->depth;
    const EK_REAL *values =
        (const EK_REAL *)(void *)job->values_packed + pair * job->keys * job->padded_width;
    EK_REAL *q = workspace, *scores = q + job->block_rows * job->depth;
    EK_REAL *room = scores + job->block_rows * job->block_keys;
    EK_REAL *sums = room + job->block_rows * job->block_keys;
    EK_NAME(attention_state) *states = (void *)(sums + job->block_rows * job->padded_width);
    const int64_t last = job->params->causal ? ek_smaller(job->keys, row + rows) : job->keys;
    EK_NAME(ek_attention_load)
    (job, q, job->depth, &job->q, ek_attention_at(&job->q, batch, of_batch, row, 0), rows,
     job->depth, (EK_REAL)job->params->scale);
    memset(sums, 0, (size_t)(rows * job->padded_width) * sizeof *sums);
    for (int64_t r = 0; r < rows; r++)
        states[r] = (EK_NAME(attention_state)){.largest = -(EK_REAL)INFINITY};
    for (int64_t key = 0; key < last; key += job->block_keys) {
        const int64_t keys = ek_smaller(job->block_keys, last - key);
        int64_t mask_stride;
        const EK_REAL *mask = EK_NAME(ek_attention_mask)(job, batch, of_batch, row, rows, key, keys,
                                                         room, &mask_stride);
        EK_NAME(ek_attention_multiply)
        (job, scores, job->block_keys, rows, keys, job->depth, q, job->depth, 1,
         keys_packed + key * job->depth, job->panel * job->depth, job->panel, false);
        for (int64_t r = 0; r < rows; r++) {
            EK_REAL *p = scores + r * job->block_keys;
            const int64_t seen = ek_attention_seen(job, row + r, key, keys);
            EK_NAME(attention_exponentials)
            (seen, keys, p, mask ? mask + r * mask_stride : NULL, &states[r]);
            if (states[r].correction != 1)
                EK_NAME(ek_attention_scale)
            (job->padded_width, sums + r * job->padded_width, states[r].correction);
            if (job->params->dropout)
                ek_attention_drop(job, head, row + r, key, seen, p);
        }
        for (int64_t c = 0; c < job->padded_width; c += job->panel) {
            const int64_t stride = ek_smaller(job->panel, job->padded_width - c);
            EK_NAME(ek_attention_multiply)
            (job, sums + c, job->padded_width, rows, stride, keys, scores, job->block_keys, 1,
             values + c * job->keys + key * stride, 0, stride, true);
        }
    }
    EK_REAL *lse = (EK_REAL *)job->lse + head * job->rows + row;
    for (int64_t r = 0; r < rows; r++) {
        /* If a row has no keys, or scores of -inf only, lse = inf makes its probabilities 0 in the
         * gradient. */
        const bool none = states[r].largest == -(EK_REAL)INFINITY && states[r].sum == 0;
        EK_NAME(ek_attention_scale)
        (job->padded_width, sums + r * job->padded_width, none ? 0 : 1 / states[r].sum);
        lse[r] = none ? (EK_REAL)INFINITY : states[r].largest + EK_NAME(ek_log)(states[r].sum);
    }
    EK_NAME(ek_attention_store)
    (job, &job->out, ek_attention_at(&job->out, batch, of_batch, row, 0), sums, job->padded_width,
     rows, job->width);
}

/* Computes one piece after another until none is left. [begin, end) is ignored. */
static void EK_NAME(attention_forward)(void *context, int64_t begin, int64_t end)
{
    ek_attention_job *job = context;
    (void)begin, (void)end;
    const int thread = atomic_fetch_add(&job->next_thread, 1);
    char *workspace = job->workspace + (size_t)thread * job->workspace_stride;
    int64_t piece;
    while ((piece = atomic_fetch_add(&job->next_piece, 1)) < job->pieces)
        EK_NAME(attention_forward_piece)(job, piece, (EK_REAL *)(void *)workspace);
}

#endif

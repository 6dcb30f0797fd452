/* attention_gradient.c: the gradients of scaled dot-product attention. */
#ifndef EK_REAL
#include <math.h>
#include <string.h>

#include "host/attention.h"

/* GRADIENT_KEYS is the most keys of a block of f32 scores. If there are fewer groups of heads than
 * PIECES, the keys of a group are cut into parts of at least PIECE_KEYS keys. */
enum { GRADIENT_KEYS = 128, PIECES = 8, PIECE_KEYS = 512 };

#define EK_FOR_REALS "host/attention_gradient.c"
#include "kernels/for_reals.h"

int ek_host_attention_gradient(ek_dev *dev, ek_tensor *dq, ek_tensor *dk, ek_tensor *dv,
                               const ek_tensor *dout, const ek_tensor *q, const ek_tensor *k,
                               const ek_tensor *v, const ek_tensor *mask, const ek_tensor *out,
                               const ek_tensor *lse, const ek_attention_params *params)
{
    ek_attention_job job = ek_attention_job_of(q, k, v, mask, params, GRADIENT_KEYS);
    job.out = ek_attention_operand_of(out);
    job.dq = ek_attention_operand_of(dq);
    job.dk = ek_attention_operand_of(dk);
    job.dv = ek_attention_operand_of(dv);
    job.dout = ek_attention_operand_of(dout);
    job.lse = ek_tensor_address(lse);
    const int64_t pairs = job.batch * job.groups;
    job.parts = ek_larger(1, ek_smaller(ek_divide_up(PIECES, pairs), job.keys / PIECE_KEYS));
    job.part_keys = ek_multiple_up(ek_divide_up(job.keys, job.parts), job.block_keys);
    job.parts = ek_divide_up(job.keys, job.part_keys);
    const int threads = ek_parallel_threads(dev);
    const int64_t sums = job.members * job.rows * job.padded_depth; /* dq of a group's heads */
    const int64_t tile = job.block_rows * job.block_keys;
    const size_t sums_nbytes =
        ek_attention_nbytes(&job, sums) * (size_t)(job.parts > 1 ? pairs * job.parts : threads);
    job.workspace_stride =
        ek_attention_nbytes(&job, job.block_rows * (job.padded_depth + 2 * job.padded_width)) +
        ek_attention_nbytes(&job, 3 * tile) + ek_attention_nbytes(&job, job.block_rows) +
        ek_attention_nbytes(&job, job.block_keys * (2 * job.padded_depth + job.depth +
                                                    job.padded_width + job.width)) +
        ek_attention_nbytes(&job, job.panel * ek_larger(job.depth, job.width));
    const size_t nbytes = sums_nbytes + (size_t)threads * job.workspace_stride;
    void *memory;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &memory));
    job.query_sums = memory;
    job.workspace = job.query_sums + sums_nbytes;
    const bool wide = job.type == EK_CLASS_F64;
    ek_attention_run(dev, &job, pairs * job.parts,
                     wide ? attention_gradient_f64 : attention_gradient_f32);
    if (job.parts > 1)
        ek_attention_run(dev, &job, job.batch * job.heads * job.row_blocks,
                         wide ? attention_join_f64 : attention_join_f32);
    ek_dev_free(dev, memory, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

#else /* for each EK_REAL */

/* ---- rows of scores ---- */

/* Adds the mask to rows of scores, turns them into probabilities p, and replaces their gradients dp
 * by ds = p (dp - sum(dout out)). Both are 0 for keys that a row doesn't see. */
EK_MULTIVERSION
static void EK_NAME(attention_probabilities)(const ek_attention_job *job, int64_t rows, int64_t row,
                                             int64_t key, int64_t keys, EK_REAL *restrict p,
                                             EK_REAL *restrict ds, const EK_REAL *mask,
                                             int64_t mask_stride, const EK_REAL *lse,
                                             const EK_REAL *sums)
{
    enum { LANES = EK_NAME(LANES) };
    for (int64_t r = 0; r < rows; r++, p += job->block_keys, ds += job->block_keys) {
        const EK_REAL of_row = lse[r], sum = sums[r];
        const int64_t seen = ek_attention_seen(job, row + r, key, keys);
        const int64_t size = ek_multiple_up(seen, LANES);
        if (mask)
            for (int64_t c = 0; c < seen; c++)
                p[c] += mask[r * mask_stride + c];
        for (int64_t c = 0; c < size; c++) {
            const EK_REAL e = EK_NAME(ek_exp)(p[c] - of_row);
            p[c] = e;
            ds[c] = e * (ds[c] - sum);
        }
        if (seen < size) {
            const int64_t last = size - LANES;
            const int rest = (int)(seen - last);
            for (int j = 0; j < LANES; j++)
                p[last + j] = j < rest ? p[last + j] : 0;
            for (int j = 0; j < LANES; j++)
                ds[last + j] = j < rest ? ds[last + j] : 0;
        }
        for (int64_t c = size; c < keys; c += LANES) {
            for (int j = 0; j < LANES; j++)
                p[c + j] = 0;
            for (int j = 0; j < LANES; j++)
                ds[c + j] = 0;
        }
    }
}

/* Writes sum(dout out) of each row. */
EK_MULTIVERSION
static void EK_NAME(attention_row_sums)(int64_t rows, int64_t width, int64_t stride, EK_REAL *sums,
                                        const EK_REAL *dout, const EK_REAL *out)
{
    for (int64_t r = 0; r < rows; r++)
        sums[r] = EK_NAME(ek_attention_sum)(width, dout + r * stride, out + r * stride);
}

/* ---- pieces ---- */

/* The blocks with which a piece of the gradient is computed. */
typedef struct EK_NAME(attention_blocks) {
    EK_REAL *q, *dout, *out;     /* The queries' rows; q is scaled. */
    EK_REAL *p, *ds;             /* The scores' rows. */
    EK_REAL *mask;               /* room for the mask */
    EK_REAL *sums;               /* sum(do out) of each row */
    EK_REAL *keys, *keys_packed; /* row by row, and as panels */
    EK_REAL *values_packed;
    EK_REAL *dk, *dv;
    EK_REAL *lines;
    ek_attention_ahead *ahead;
} EK_NAME(attention_blocks);

static EK_NAME(attention_blocks)
    EK_NAME(attention_blocks_of)(const ek_attention_job *job, char *from)
{
    const int64_t rows = job->block_rows, keys = job->block_keys;
    EK_NAME(attention_blocks) b;
#define TAKE(member, count) \
    b.member = (EK_REAL *)(void *)from, from += (size_t)(count) * sizeof(EK_REAL)
    TAKE(p, rows * keys);
    TAKE(ds, rows * keys);
    TAKE(mask, rows * keys);
    TAKE(dk, keys * job->padded_depth);
    TAKE(keys, keys * job->padded_depth);
    TAKE(dv, keys * job->padded_width);
    TAKE(keys_packed, keys * job->depth);
    TAKE(values_packed, keys * job->width);
    TAKE(q, rows * job->padded_depth);
    TAKE(dout, rows * job->padded_width);
    TAKE(out, rows * job->padded_width);
    TAKE(sums, rows);
    TAKE(lines, job->panel * ek_larger(job->depth, job->width));
#undef TAKE
    return b;
}

/* Computes p and ds of a block of queries and a block of keys, and adds ds k to dq. */
static void EK_NAME(attention_gradient_scores)(const ek_attention_job *job,
                                               const EK_NAME(attention_blocks) * b, int64_t batch,
                                               int64_t head, int64_t row, int64_t rows, int64_t key,
                                               int64_t keys, EK_REAL *query_sums)
{
    const int64_t stride = job->block_keys, of_batch = head % job->heads;
    const EK_REAL *lse = (const EK_REAL *)job->lse + head * job->rows + row;
    int64_t mask_stride;
    const EK_REAL *mask = EK_NAME(ek_attention_mask)(job, batch, of_batch, row, rows, key, keys,
                                                     b->mask, &mask_stride);
    ek_attention_product scores = {.rows = rows,
                                   .columns = keys,
                                   .k = job->depth,
                                   .c = b->p,
                                   .c_row = stride,
                                   .a = b->q,
                                   .a_row = job->padded_depth,
                                   .a_depth = 1,
                                   .b = b->keys_packed,
                                   .b_panel = job->panel * job->depth,
                                   .b_depth = job->panel,
                                   .sight = ek_attention_sight_of(job, SIGHT_COLUMNS),
                                   .seen = row - key + 1,
                                   .ahead = b->ahead};
    EK_NAME(ek_attention_multiply)(job, &scores);
    scores.k = job->width;
    scores.c = b->ds;
    scores.a = b->dout;
    scores.a_row = job->padded_width;
    scores.b = b->values_packed;
    scores.b_panel = job->panel * job->width;
    EK_NAME(ek_attention_multiply)(job, &scores);
    ek_attention_drop(job, head, row, rows, key, keys, b->ds);
    EK_NAME(attention_probabilities)
    (job, rows, row, key, keys, b->p, b->ds, mask, mask_stride, lse, b->sums);
    ek_attention_drop(job, head, row, rows, key, keys, b->p);
    EK_NAME(ek_attention_multiply)
    (job, &(ek_attention_product){.rows = rows,
                                  .columns = job->padded_depth,
                                  .k = keys,
                                  .c = query_sums,
                                  .c_row = job->padded_depth,
                                  .a = b->ds,
                                  .a_row = stride,
                                  .a_depth = 1,
                                  .b = b->keys,
                                  .b_panel = job->panel,
                                  .b_depth = job->padded_depth,
                                  .add = true,
                                  .sight = ek_attention_sight_of(job, SIGHT_END),
                                  .seen = row - key + 1,
                                  .ahead = b->ahead});
}

/* Adds to dq, dk and dv what a block of queries and a block of keys contribute. */
static void EK_NAME(attention_gradient_block)(const ek_attention_job *job,
                                              const EK_NAME(attention_blocks) * b, int64_t batch,
                                              int64_t head, int64_t row, int64_t rows, int64_t key,
                                              int64_t keys, EK_REAL *query_sums)
{
    const int64_t of_batch = head % job->heads;
    const int64_t depth = job->padded_depth, width = job->padded_width;
    EK_NAME(ek_attention_load)
    (job, b->q, depth, &job->q, ek_attention_at(&job->q, batch, of_batch, row, 0), rows, job->depth,
     (EK_REAL)job->params->scale);
    EK_NAME(ek_attention_load)
    (job, b->dout, width, &job->dout, ek_attention_at(&job->dout, batch, of_batch, row, 0), rows,
     job->width, 1);
    EK_NAME(ek_attention_load)
    (job, b->out, width, &job->out, ek_attention_at(&job->out, batch, of_batch, row, 0), rows,
     job->width, 1);
    EK_NAME(attention_row_sums)(rows, job->width, width, b->sums, b->dout, b->out);
    EK_NAME(attention_gradient_scores)(job, b, batch, head, row, rows, key, keys, query_sums);
    ek_attention_product of_keys = {.rows = keys,
                                    .columns = width,
                                    .k = rows,
                                    .c = b->dv,
                                    .c_row = width,
                                    .a = b->p,
                                    .a_row = 1,
                                    .a_depth = job->block_keys,
                                    .b = b->dout,
                                    .b_panel = job->panel,
                                    .b_depth = width,
                                    .add = true,
                                    .sight = ek_attention_sight_of(job, SIGHT_BEGIN),
                                    .seen = row - key + 1,
                                    .ahead = b->ahead};
    EK_NAME(ek_attention_multiply)(job, &of_keys);
    of_keys.columns = of_keys.c_row = of_keys.b_depth = depth;
    of_keys.c = b->dk;
    of_keys.a = b->ds;
    of_keys.b = b->q;
    EK_NAME(ek_attention_multiply)(job, &of_keys);
}

/* Multiplies dq of some queries by the scale, and stores dq. */
static void EK_NAME(attention_store_queries)(const ek_attention_job *job, int64_t head, int64_t row,
                                             int64_t rows, EK_REAL *sums)
{
    EK_NAME(ek_attention_store)
    (job, &job->dq, ek_attention_at(&job->dq, head / job->heads, head % job->heads, row, 0), sums,
     job->padded_depth, rows, job->depth, (EK_REAL)job->params->scale);
}

/* Lets the products of a block of keys fetch the memory of dk and dv, and the products of the last
 * block the memory of dq. */
static void EK_NAME(attention_fetch_results)(const ek_attention_job *job, ek_attention_ahead *ahead,
                                             int64_t batch, int64_t group, int64_t key,
                                             int64_t keys)
{
    ahead->count = ahead->at = 0;
    ek_attention_look_ahead(ahead, &job->dk, ek_attention_at(&job->dk, batch, group, key, 0), keys,
                            job->depth);
    ek_attention_look_ahead(ahead, &job->dv, ek_attention_at(&job->dv, batch, group, key, 0), keys,
                            job->width);
    if (job->parts == 1 && key + keys == job->keys)
        ek_attention_look_ahead(ahead, &job->dq,
                                ek_attention_at(&job->dq, batch, group * job->members, 0, 0),
                                job->rows, job->depth);
}

/* Computes the gradients from one part of the keys of a group. */
static void EK_NAME(attention_gradient_piece)(const ek_attention_job *job, int64_t piece,
                                              const EK_NAME(attention_blocks) * b,
                                              EK_REAL *query_sums)
{
    const int64_t pair = piece / job->parts, part = piece % job->parts;
    const int64_t batch = pair / job->groups, group = pair % job->groups;
    const int64_t first = part * job->part_keys;
    const int64_t last = ek_smaller(first + job->part_keys, job->keys);
    const int64_t head = batch * job->heads + group * job->members;
    const int64_t of_head = job->rows * job->padded_depth;
    memset(query_sums, 0, (size_t)(job->members * of_head) * sizeof *query_sums);
    for (int64_t key = first; key < last; key += job->block_keys) {
        const int64_t keys = ek_smaller(job->block_keys, last - key);
        const char *k = ek_attention_at(&job->k, batch, group, key, 0);
        EK_NAME(ek_attention_load)
        (job, b->keys, job->padded_depth, &job->k, k, keys, job->depth, 1);
        EK_NAME(ek_attention_pack_transposed)
        (job, b->keys_packed, &job->k, k, keys, job->depth, b->lines);
        EK_NAME(ek_attention_pack_transposed)
        (job, b->values_packed, &job->v, ek_attention_at(&job->v, batch, group, key, 0), keys,
         job->width, b->lines);
        EK_NAME(attention_fetch_results)(job, b->ahead, batch, group, key, keys);
        memset(b->dk, 0, (size_t)(keys * job->padded_depth) * sizeof *b->dk);
        memset(b->dv, 0, (size_t)(keys * job->padded_width) * sizeof *b->dv);
        for (int64_t member = 0; member < job->members; member++)
            for (int64_t row = 0; row < job->rows; row += job->block_rows) {
                const int64_t rows = ek_smaller(job->block_rows, job->rows - row);
                if (job->params->causal && row + rows <= key)
                    continue;
                EK_NAME(attention_gradient_block)
                (job, b, batch, head + member, row, rows, key, keys,
                 query_sums + member * of_head + row * job->padded_depth);
            }
        EK_NAME(ek_attention_store)
        (job, &job->dk, ek_attention_at(&job->dk, batch, group, key, 0), b->dk, job->padded_depth,
         keys, job->depth, 1);
        EK_NAME(ek_attention_store)
        (job, &job->dv, ek_attention_at(&job->dv, batch, group, key, 0), b->dv, job->padded_width,
         keys, job->width, 1);
    }
    for (int64_t member = 0; member < job->members && job->parts == 1; member++)
        EK_NAME(attention_store_queries)
    (job, head + member, 0, job->rows, query_sums + member * of_head);
}

static void EK_NAME(attention_gradient)(void *context, int64_t begin, int64_t end)
{
    ek_attention_job *job = context;
    (void)begin, (void)end;
    int thread;
    ek_attention_ahead ahead;
    EK_NAME(attention_blocks)
    blocks = EK_NAME(attention_blocks_of)(job, ek_attention_workspace(job, &thread));
    blocks.ahead = &ahead;
    const size_t sums = ek_attention_nbytes(job, job->members * job->rows * job->padded_depth);
    int64_t piece;
    while ((piece = atomic_fetch_add(&job->next_piece, 1)) < job->pieces) {
        char *query_sums = job->query_sums + (size_t)(job->parts > 1 ? piece : thread) * sums;
        EK_NAME(attention_gradient_piece)(job, piece, &blocks, (EK_REAL *)(void *)query_sums);
    }
}

/* Sums dq over the parts, for the blocks [begin, end) of queries, and stores dq. */
static void EK_NAME(attention_join)(void *context, int64_t begin, int64_t end)
{
    const ek_attention_job *job = context;
    const size_t of_piece = ek_attention_nbytes(job, job->members * job->rows * job->padded_depth);
    for (int64_t i = begin; i < end; i++) {
        const int64_t head = i / job->row_blocks, row = i % job->row_blocks * job->block_rows;
        const int64_t rows = ek_smaller(job->block_rows, job->rows - row);
        const int64_t pair = head / job->members, member = head % job->members;
        const int64_t at = (member * job->rows + row) * job->padded_depth;
        char *first = job->query_sums + (size_t)(pair * job->parts) * of_piece;
        EK_REAL *sums = (EK_REAL *)(void *)first + at;
        for (int64_t part = 1; part < job->parts; part++) {
            const EK_REAL *other = (const EK_REAL *)(void *)(first + (size_t)part * of_piece) + at;
            for (int64_t c = 0; c < rows * job->padded_depth; c++)
                sums[c] += other[c];
        }
        EK_NAME(attention_store_queries)(job, head, row, rows, sums);
    }
}

#endif

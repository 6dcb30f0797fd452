/* attention.h: geometry, and blocks of operands and scores, for attention's forward and gradient.
 * attention.c has the theory. */
#ifndef EK_REAL
#ifndef EK_HOST_ATTENTION_H
#define EK_HOST_ATTENTION_H

#include <stdatomic.h>

#include "core/draw.h"
#include "host/gemm_kernel.h"
#include "host/host.h"
#include "host/parallel.h"
#include "host/tile.h"
#include "kernels/formulas.h"

/* A tensor (batch, head, row, column) of any strides. */
typedef struct ek_attention_operand {
    char *data; /* NULL: none */
    ek_dtype dtype;
    int64_t size; /* bytes of an element */
    int64_t batch, head, row, column;
} ek_attention_operand;

typedef struct ek_attention_job {
    const ek_gemm_kernel *kernel;
    const ek_attention_params *params;
    ek_class type;
    int64_t batch, heads, groups, members; /* `members` heads share a group's keys and values */
    int64_t rows, keys, depth, width;      /* L, S, and the last sizes of q and v */
    int64_t vector, panel;                 /* columns of one vector, and of a panel of two */
    int64_t padded_depth, padded_width;    /* whole vectors */
    int64_t block_rows, block_keys;
    int64_t row_blocks;
    int64_t parts, part_keys; /* the gradient's parts of a group's keys */
    ek_attention_operand q, k, v, mask, out, dq, dk, dv, dout;
    void *lse;
    size_t element;                /* bytes of an f32 or f64 */
    bool packed_alone;             /* forward: each thread packs the groups that it computes */
    char *packed;                  /* forward: of all groups, or of each thread's group */
    size_t values_at, pair_nbytes; /* Where a packed group's values begin, and its size. */
    char *query_sums; /* gradient: dq of each piece, or of each thread's current piece */
    char *workspace;  /* of each thread */
    size_t workspace_stride;
    ek_philox_blocks *philox;
    int64_t pieces;
    atomic_int next_thread;
    atomic_llong next_piece;
} ek_attention_job;

ek_attention_operand ek_attention_operand_of(const ek_tensor *x);

/* Returns the address of an element. */
static inline char *ek_attention_at(const ek_attention_operand *x, int64_t batch, int64_t head,
                                    int64_t row, int64_t column)
{
    return x->data +
           x->size * (batch * x->batch + head * x->head + row * x->row + column * x->column);
}

/* Returns the bytes of `count` numbers of the computation's type, rounded up to cache lines. */
static inline size_t ek_attention_nbytes(const ek_attention_job *job, int64_t count)
{
    return ek_round_up((size_t)count * job->element);
}

/* Returns how many of a block's keys row `row` sees: all, or with causal attention those up to its
 * position. */
static inline int64_t ek_attention_seen(const ek_attention_job *job, int64_t row, int64_t key,
                                        int64_t keys)
{
    if (!job->params->causal)
        return keys;
    return ek_larger(0, ek_smaller(keys, row - key + 1));
}

/* Returns the next thread's workspace, and writes the thread's number to *thread, if it isn't
 * NULL. */
static inline char *ek_attention_workspace(ek_attention_job *job, int *thread)
{
    const int number = atomic_fetch_add(&job->next_thread, 1);
    if (thread)
        *thread = number;
    return job->workspace + (size_t)number * job->workspace_stride;
}

/* Causal attention leaves part of a product out. The first query sees `seen` keys, and each further
 * query one more. Elements of c that are left out remain as they are. */
typedef enum ek_attention_sight {
    SIGHT_ALL,     /* Nothing is left out. */
    SIGHT_COLUMNS, /* Rows are queries, columns are keys: the last columns are left out. */
    SIGHT_END,     /* Rows are queries, k are keys: the end of k is left out. */
    SIGHT_BEGIN    /* Rows are keys, k are queries: the beginning of k is left out. */
} ek_attention_sight;

/* Returns `sight`, or SIGHT_ALL if attention isn't causal. */
static inline ek_attention_sight ek_attention_sight_of(const ek_attention_job *job,
                                                       ek_attention_sight sight)
{
    return job->params->causal ? sight : SIGHT_ALL;
}

/* Rows of results that a thread writes next. Products fetch their memory. */
typedef struct ek_attention_ahead {
    ek_gemm_ahead rows[3];
    int count, at;
} ek_attention_ahead;

/* Adds the first rows of a result, as many as leave room in level 2 cache. */
void ek_attention_look_ahead(ek_attention_ahead *ahead, const ek_attention_operand *x,
                             const char *from, int64_t rows, int64_t columns);

/* c (rows, columns) = a b, or with `add` c += a b, of f32 or f64, with b in panels. Rows of c and b
 * have memory up to a whole vector. Strides count elements. */
typedef struct ek_attention_product {
    int64_t rows, columns, k;
    void *c;
    const void *a, *b;
    int64_t c_row, a_row, a_depth, b_panel, b_depth;
    bool add;
    ek_attention_sight sight;
    int64_t seen;
    ek_attention_ahead *ahead; /* NULL: none */
} ek_attention_product;

/* Multiplies a block of probabilities, or of their gradients, by dropout's factors, if there is
 * dropout. */
void ek_attention_drop(const ek_attention_job *job, int64_t head, int64_t row, int64_t rows,
                       int64_t key, int64_t keys, void *values);

/* Returns a job whose sizes and operands are set. A block has at most `block_keys` keys in f32,
 * half as many in f64. */
ek_attention_job ek_attention_job_of(const ek_tensor *q, const ek_tensor *k, const ek_tensor *v,
                                     const ek_tensor *mask, const ek_attention_params *params,
                                     int64_t block_keys);
/* Runs a body for `pieces` pieces of work, which are counted from 0. */
void ek_attention_run(ek_dev *dev, ek_attention_job *job, int64_t pieces, ek_parallel_body *body);

#define EK_FOR_REALS "host/attention.h"
#include "kernels/for_reals.h"

#endif
#else /* for each EK_REAL */

/* ---- blocks of operands ---- */

/* Copies `rows` rows of `columns` elements, times `scale`, to rows `stride` apart. The elements
 * between the end of a row and the next row become 0. */
void EK_NAME(ek_attention_load)(const ek_attention_job *job, EK_REAL *to, int64_t stride,
                                const ek_attention_operand *x, const char *from, int64_t rows,
                                int64_t columns, EK_REAL scale);
/* Stores rows of a block, times `scale`, as elements of x. May overwrite the block. */
void EK_NAME(ek_attention_store)(const ek_attention_job *job, const ek_attention_operand *x,
                                 char *to, EK_REAL *from, int64_t stride, int64_t rows,
                                 int64_t columns, EK_REAL scale);
/* Packs keys (or values) as the right side of a product with their transpose: panels of keys, with
 * element (key, d) of a panel at d * panel + key. Memory beyond the last key is never read.
 * `lines` has room for a panel's rows. */
void EK_NAME(ek_attention_pack_transposed)(const ek_attention_job *job, EK_REAL *to,
                                           const ek_attention_operand *x, const char *from,
                                           int64_t keys, int64_t depth, EK_REAL *lines);
/* Computes a product. */
void EK_NAME(ek_attention_multiply)(const ek_attention_job *job,
                                    const ek_attention_product *product);
/* Returns the address of a block's rows of the mask, `*stride` apart: in the mask's memory, or in
 * `room`, to which the rows are copied. Returns NULL if there is no mask. */
const EK_REAL *EK_NAME(ek_attention_mask)(const ek_attention_job *job, int64_t batch, int64_t head,
                                          int64_t row, int64_t rows, int64_t key, int64_t keys,
                                          EK_REAL *room, int64_t *stride);

/* ---- rows of scores ---- */

/* 32 bytes of numbers, at any address. gcc 12 compares longer vectors number by number, and keeps
 * them in memory, if the processor's registers are shorter than the vectors. */
typedef EK_REAL EK_NAME(ek_attention_vector)
    __attribute__((vector_size(32), aligned(sizeof(EK_REAL)), may_alias));
enum { EK_NAME(VECTOR) = 32 / sizeof(EK_REAL), EK_NAME(LANES) = 2 * EK_NAME(VECTOR) };

EK_FORMULA const EK_NAME(ek_attention_vector) * EK_NAME(ek_attention_vector_at)(const EK_REAL *row)
{
    return (const EK_NAME(ek_attention_vector) *)(const void *)row;
}

/* Moves the elements of v from `width` on to the beginning of *half. */
EK_FORMULA void EK_NAME(ek_attention_halve)(EK_NAME(ek_attention_vector) * half,
                                            const EK_NAME(ek_attention_vector) * v, int width)
{
    for (int j = 0; j < EK_NAME(VECTOR); j++)
        (*half)[j] = (*v)[(j + width) % EK_NAME(VECTOR)];
}

/* Returns the sum of x, or of x * y if y isn't NULL: lane by lane, then the lanes in pairs. */
EK_FORMULA EK_REAL EK_NAME(ek_attention_sum)(int64_t size, const EK_REAL *x, const EK_REAL *y)
{
    enum { VECTOR = EK_NAME(VECTOR) };
    EK_NAME(ek_attention_vector) low = {0}, high = {0};
    int64_t c = 0;
    for (; c + 2 * VECTOR <= size; c += 2 * VECTOR) {
        const EK_NAME(ek_attention_vector) *v = EK_NAME(ek_attention_vector_at)(x + c);
        const EK_NAME(ek_attention_vector) *w = y ? EK_NAME(ek_attention_vector_at)(y + c) : NULL;
        if (w) {
            low += v[0] * w[0];
            high += v[1] * w[1];
        } else {
            low += v[0];
            high += v[1];
        }
    }
    low += high;
    for (int width = VECTOR / 2; width > 0; width /= 2) {
        EK_NAME(ek_attention_halve)(&high, &low, width);
        low += high;
    }
    EK_REAL total = low[0];
    for (; c < size; c++)
        total += y ? x[c] * y[c] : x[c];
    return total;
}

#endif

/* launches.h: the launches of kernels by family, which the file x.cu defines for the family x.
 * Walks have at least one element, and operand 0 is the output. */
#ifndef EK_CUDA_LAUNCHES_H
#define EK_CUDA_LAUNCHES_H

#include "core/philox.h"
#include "cuda/view.h"
#include "evenkeel/dist.h"
#include "kernels/grid_sample.h"
#include "kernels/params.h"
#include "kernels/resample.h"

EK_BEGIN_DECLARATIONS

/* ---- elementwise: the dtype of operand 1 decides how unary and binary are computed ---- */

int ek_cuda_launch_unary(const ek_cuda_stream *stream, ek_unary op, const ek_cuda_walk *walk,
                         double a, double b);
int ek_cuda_launch_binary(const ek_cuda_stream *stream, ek_binary op, const ek_cuda_walk *walk,
                          double a);
int ek_cuda_launch_compare(const ek_cuda_stream *stream, ek_compare op, const ek_cuda_walk *walk);
/* Operand 1 is the condition. The output's dtype decides the type of the computation. */
int ek_cuda_launch_where(const ek_cuda_stream *stream, const ek_cuda_walk *walk);
/* Copies and converts to another dtype. */
int ek_cuda_launch_convert(const ek_cuda_stream *stream, const ek_cuda_walk *walk);

/* Returns cudaSuccess if this build has kernels that the current GPU can run, else another
 * cudaError_t. */
int ek_cuda_have_kernels(void);

/* ---- copy: elements of one dtype, of `size` bytes ---- */

int ek_cuda_launch_copy(const ek_cuda_stream *stream, const ek_cuda_walk *walk, size_t size);

/* An element's bytes, repeated to 16 bytes. */
typedef union ek_cuda_pattern {
    uint8_t u8[16];
    uint16_t u16[8];
    uint32_t u32[4];
    uint64_t u64[2];
} ek_cuda_pattern;
int ek_cuda_launch_fill(const ek_cuda_stream *stream, const ek_cuda_walk *walk, size_t size,
                        const ek_cuda_pattern *pattern);

/* ---- reduce: sums and extremes over any set of dimensions ----
 *
 * The order of a sum depends on shape, strides and device alone. If there are too few outputs to
 * keep the device busy, the reduced elements are cut into chunks, and a second reduction joins the
 * chunks' results. */

typedef struct ek_cuda_reduction {
    ek_reduce_kind kind;
    ek_dtype x_dtype, out_dtype;
    const void *x;
    void *out;
    ek_cuda_strides kept;    /* kept dimensions without `columns`; operands: x, out */
    ek_cuda_strides reduced; /* reduced dimensions; operand: x */
    /* Reduced elements of a chunk, and the number of chunks. If there are several, out is
     * [chunk][output], row-major in the order of `kept`. */
    int64_t chunk, chunks;
    int pack; /* elements of one load: 1, or as many as 16 bytes hold */

    /* True if the innermost dimension is kept: threads lie along it, `width` side by side. */
    bool by_columns;
    int64_t columns, column_x, column_out; /* number of columns, and their strides */
    int width;

    /* If by_columns is false: the team of threads that goes along the reduced elements. If `runs`,
     * the team goes along runs of the innermost dimension, else along single elements. */
    ek_cuda_team team;
    bool runs;
} ek_cuda_reduction;
int ek_cuda_launch_reduce(const ek_cuda_stream *stream, const ek_cuda_reduction *reduction);

/* Finds the position of the largest or smallest element along one dimension. */
typedef struct ek_cuda_arg_job {
    bool smallest;
    ek_dtype dtype;
    const void *x;
    int64_t *index;
    ek_cuda_strides lines; /* operands: index, x */
    int64_t size, stride;  /* size and stride of x along the dimension */
    ek_cuda_team team;
} ek_cuda_arg_job;
int ek_cuda_launch_arg_reduce(const ek_cuda_stream *stream, const ek_cuda_arg_job *job);

/* A recurrence along one dimension. a and b may be NULL. */
typedef struct ek_cuda_scan_job {
    ek_dtype dtype;
    void *out;
    const void *a, *b;
    ek_cuda_strides lines;   /* operands: out, a, b */
    int64_t size, stride[3]; /* the dimension's size, and the strides along it */
    int64_t count;           /* elements of all lines */
    ek_cuda_long_divisor by_size;
    bool reverse;
} ek_cuda_scan_job;
/* Returns the size of the scratch memory that the launch needs. */
size_t ek_cuda_scan_nbytes(const ek_cuda_stream *stream, const ek_cuda_scan_job *job);
int ek_cuda_launch_scan(const ek_cuda_stream *stream, const ek_cuda_scan_job *job, void *scratch);

/* ---- a step of a recurrent network, and its gradient ---- */

typedef struct ek_cuda_recurrent_job {
    ek_dtype dtype;
    ek_recurrent_cell cell;
    int64_t count, hidden; /* elements of a state, and of its rows */
    int64_t x_row;         /* from a row of x to the next; not in the gradient */
    void *out[3];          /* h, c, gates; or dx, dbefore in the gradient */
    /* x, product, before; or dh, more, dc, gates, before, c in the gradient */
    const void *in[6];
} ek_cuda_recurrent_job;
int ek_cuda_launch_recurrent(const ek_cuda_stream *stream, const ek_cuda_recurrent_job *job);
int ek_cuda_launch_recurrent_gradient(const ek_cuda_stream *stream,
                                      const ek_cuda_recurrent_job *job);

/* ---- softmax along one dimension, and its gradient ---- */

typedef struct ek_cuda_softmax_job {
    bool logarithm;
    ek_dtype dtype;
    void *out;               /* y, or dx in the gradient */
    const void *a, *b;       /* x, NULL; or dy, y in the gradient */
    ek_cuda_strides lines;   /* operands: out, a, b */
    int64_t size, stride[3]; /* the dimension's size, and the strides along it */
    ek_cuda_team team;
} ek_cuda_softmax_job;
int ek_cuda_launch_softmax(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job);
int ek_cuda_launch_softmax_gradient(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job);

/* Values whose dtype the kernel reads at run time. */
typedef struct ek_cuda_values {
    void *data; /* NULL: each value is 1 */
    ek_dtype dtype;
} ek_cuda_values;

/* Cross entropy over one dimension, and its gradient. */
typedef struct ek_cuda_entropy_job {
    ek_cross_entropy_params params;
    ek_dtype dtype; /* dtype of x and dx */
    const void *x;
    void *dx;
    const int64_t *target;
    ek_cuda_values loss, lse; /* in the gradient, `loss` is the arriving gradient */
    ek_cuda_values weight;
    int64_t weight_stride;
    ek_cuda_strides lines; /* operands: x, target, loss, lse, dx */
    int64_t classes, stride_x, stride_dx;
    ek_cuda_team team;
} ek_cuda_entropy_job;
int ek_cuda_launch_cross_entropy(const ek_cuda_stream *stream, const ek_cuda_entropy_job *job);
int ek_cuda_launch_cross_entropy_gradient(const ek_cuda_stream *stream,
                                          const ek_cuda_entropy_job *job);

/* The sum of the weights of all targets. */
enum { EK_CUDA_TARGET_BLOCK = 16384 /* targets that one block weighs */ };
typedef struct ek_cuda_target_job {
    const int64_t *target;
    ek_cuda_strides strides; /* operand: target */
    ek_cuda_values weight, out;
    int64_t weight_stride, classes, ignore_index;
    double *partial; /* a sum per block; NULL if there is one block */
    int64_t blocks;
} ek_cuda_target_job;
int ek_cuda_launch_target_weight(const ek_cuda_stream *stream, const ek_cuda_target_job *job);

/* ---- index: selecting and adding at positions along one dimension ---- */

typedef struct ek_cuda_index_job {
    const char *operation;
    ek_dtype dtype;
    void *out;
    const void *x;
    const int64_t *index;
    int64_t size;   /* size of the dimension that index addresses */
    int64_t stride; /* the addressed operand's stride along this dimension */

    /* Operands: out, x, index. The operand that `index` addresses has stride 0 along the dimension.
     * If writes have a fixed order, a position of `strides` is a whole line along the dimension,
     * with `line` elements and the strides line_x and line_index. */
    ek_cuda_strides strides;
    int64_t line, line_x, line_index;
} ek_cuda_index_job;
/* out = x at index, for elements of `size` bytes. */
int ek_cuda_launch_gather(const ek_cuda_stream *stream, const ek_cuda_index_job *job, size_t size);
/* out at index = x, for elements of `size` bytes; or out at index += x, f32 or f64, if `size` is 0.
 * If `order` is NULL, writes to one element go in any order. Otherwise they go in the order of x,
 * and for additions out has zeros. `order` then has the positions along each line in ascending
 * order of the index, and those of the next line follow `apart` elements later. */
int ek_cuda_launch_write(const ek_cuda_stream *stream, const ek_cuda_index_job *job,
                         const int64_t *order, int64_t apart, size_t size);

/* ---- sort: positions along one dimension, and searches in sorted lines ---- */

/* A block sorts lines of up to EK_CUDA_SORT_TILE elements. Longer lines are sorted in scratch
 * memory, as many lines together as have EK_CUDA_SORT_GROUP elements, which take about 100 MB. */
enum { EK_CUDA_SORT_TILE = 2048, EK_CUDA_SORT_GROUP = 1 << 22 };

typedef struct ek_cuda_sort_job {
    ek_dtype dtype;
    bool descending;
    const void *x;
    int64_t *index;
    ek_cuda_strides lines;          /* operands: index, x */
    int64_t size, count;            /* elements of a line, and positions that are wanted */
    int64_t x_stride, index_stride; /* along the dimension */
    int64_t bound; /* i64 elements that aren't in [0, bound) are equal to `bound`; 0: no bound */
    int64_t first, group; /* lines that one launch sorts: `group` lines from `first` on */
    int bits;             /* An element's bits. */
    size_t room;          /* bytes of CUB's temporary storage, set by ek_cuda_argsort_nbytes */
} ek_cuda_sort_job;
/* Returns a cudaError_t, or 0 and in *nbytes how much scratch memory the launch needs. */
int ek_cuda_argsort_nbytes(ek_cuda_sort_job *job, size_t *nbytes);
int ek_cuda_launch_argsort(const ek_cuda_stream *stream, const ek_cuda_sort_job *job,
                           void *scratch);

typedef struct ek_cuda_search_job {
    ek_dtype dtype;
    int64_t *out;
    const void *values, *sorted;
    ek_cuda_strides strides; /* operands: out, values, the begins of sorted lines */
    int64_t size, stride;    /* size and stride of a sorted line */
    bool right;
} ek_cuda_search_job;
int ek_cuda_launch_searchsorted(const ek_cuda_stream *stream, const ek_cuda_search_job *job);

/* ---- pool: two images and the windows between them ---- */

typedef struct ek_cuda_pool {
    ek_cuda_image x, y; /* x and y, or their gradients */
    ek_cuda_image index;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    ek_cuda_divider per_stride[3];
    bool adaptive; /* windows follow from the sizes alone */
    bool count_include_pad;
    bool wide; /* positions need 64-bit arithmetic */
    const char *operation;
} ek_cuda_pool;
int ek_cuda_launch_avg_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
int ek_cuda_launch_avg_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
int ek_cuda_launch_max_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
/* x = sum of y at index, in the order of y. bf16 is rounded once. y isn't empty. */
int ek_cuda_launch_max_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
int ek_cuda_launch_max_gather(const ek_cuda_stream *stream, const ek_cuda_pool *pool);

/* ---- resample: a sparse matrix per direction, or its transpose (kernels/resample.h) ---- */

/* The rows of one direction's matrix, in the device's memory: output i reads the inputs first[i] to
 * first[i] + taps - 1 with weight[i * taps] on. Inputs that don't exist have a weight of 0. For the
 * adjoint, input j is read by the outputs begin[j] to end[j] - 1. */
typedef struct ek_cuda_resample_table {
    int32_t *first, *begin, *end;
    void *weight; /* of the type that images are computed in */
    int32_t taps;
} ek_cuda_resample_table;

typedef struct ek_cuda_resample_job {
    ek_cuda_image from, to; /* what is read, and what is written */
    ek_resample_axis axis[3];
    ek_cuda_resample_table table[3];
    bool adjoint; /* `from` has the map's outputs, `to` its inputs */
    bool wide;
} ek_cuda_resample_job;
/* Fills the tables, and resamples by them. */
int ek_cuda_launch_resample(const ek_cuda_stream *stream, const ek_cuda_resample_job *job);

/* ---- grid sampling of f32 and f64 (kernels/grid_sample.h): `image` has the pixels, `result` the
 * values at the places ---- */

typedef struct ek_cuda_grid_job {
    ek_cuda_image image, result;
    ek_grid_params params;
    const void *grid;
    int64_t by_sample, step[3], by_coordinate; /* strides of the grid, as those of an image */
    void *slope;                               /* row-major: (samples, places, dims) */
} ek_cuda_grid_job;
int ek_cuda_launch_grid_sample(const ek_cuda_stream *stream, const ek_cuda_grid_job *job);
/* Adds to `image`. */
int ek_cuda_launch_grid_adjoint(const ek_cuda_stream *stream, const ek_cuda_grid_job *job);
int ek_cuda_launch_grid_slope(const ek_cuda_stream *stream, const ek_cuda_grid_job *job);

/* ---- matmul by this library's kernel: any strides and sizes ---- */

/* Matrices in memory. Strides count elements. */
typedef struct ek_cuda_matrices {
    void *data;
    int64_t batch, row, column;
} ek_cuda_matrices;

/* out (batch, n, m) = x (batch, n, k) y (batch, k, m) + bias (m). If `accumulate`, the result is
 * added to out. If `relu`, negative results become 0. bias.data may be NULL. All operands have one
 * floating dtype; bf16 is rounded once. */
typedef struct ek_cuda_gemm {
    ek_dtype dtype;
    int64_t batch, n, m, k;
    ek_cuda_matrices x, y, out;
    ek_cuda_matrices bias; /* `column` is the bias's stride */
    bool accumulate, relu;
} ek_cuda_gemm;
int ek_cuda_launch_gemm(const ek_cuda_stream *stream, const ek_cuda_gemm *gemm);

/* ---- combine: the terms that ranks have sent (core/rail.h) ---- */

typedef struct ek_cuda_combination {
    ek_dtype dtype;
    int op; /* ek_dist_op */
    const char *terms,
        *own; /* the term of rank r lies r strides after `terms`; that of `rank` lies at `own` */
    size_t stride; /* bytes */
    int ranks, rank;
    void *out; /* may be `own` */
    int64_t count;
} ek_cuda_combination;
int ek_cuda_launch_combine(const ek_cuda_stream *stream, const ek_cuda_combination *job);

/* ---- random: Philox numbers (core/draw.h) ---- */

/* The elements of the tensors of ek_drawn (core/draw.h), contiguous. */
typedef struct ek_cuda_draw_job {
    int64_t count;
    ek_dtype dtype, x_dtype;
    void *out;
    const void *x, *residual;
} ek_cuda_draw_job;
int ek_cuda_launch_draw(const ek_cuda_stream *stream, const ek_draw *draw,
                        const ek_cuda_draw_job *job);

/* ---- lists of tensors ---- */

/* Sets each entry's first operand, of dtype `dtype`, to the sum of its other operands, at most
 * EK_MAX_DEVICES, by Note [Order of a sum]. An operand that is NULL is absent. The first operand
 * may be the second. The other operands have dtype `from`, which is `dtype`, or bf16 or f16 if
 * `dtype` is f32. */
int ek_cuda_launch_add_n(const ek_cuda_stream *stream, ek_dtype dtype, ek_dtype from,
                         const ek_cuda_list *list);
/* Optimizer steps. Entries are parameters of f32 or f64. Operands are the parameter, its gradient,
 * and the rule's states. */
int ek_cuda_launch_step(const ek_cuda_stream *stream, ek_dtype dtype, ek_step_rule rule,
                        const ek_cuda_list *list, const ek_step_numbers *numbers);
/* Entries have one operand of a floating dtype, which is multiplied by *factor. If factor is NULL,
 * block i writes the power sum of its chunk to partial[i] (ek_norm_list_kernel). */
int ek_cuda_launch_norm(const ek_cuda_stream *stream, ek_dtype dtype, const ek_cuda_list *list,
                        double p, double *partial, const double *factor);
/* Writes the outputs of ek_norm_list_kernel for these power sums, joined in a fixed order. */
int ek_cuda_launch_norm_join(const ek_cuda_stream *stream, const double *sums, int64_t count,
                             double p, double max_norm, double *out);

EK_END_DECLARATIONS
#endif

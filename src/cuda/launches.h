/* launches.h: the launches of kernels by family; x.cu defines them. Walks have at least one
 * element, and operand 0 is the output. */
#ifndef EK_CUDA_LAUNCHES_H
#define EK_CUDA_LAUNCHES_H

#include "cuda/view.h"
#include "kernels/params.h"

EK_BEGIN_DECLARATIONS

/* ---- elementwise: unary and binary are computed as operand 1's dtype is; integers have some
 * operations only ---- */

int ek_cuda_launch_unary(const ek_cuda_stream *stream, ek_unary op, const ek_cuda_walk *walk,
                         double a, double b);
int ek_cuda_launch_binary(const ek_cuda_stream *stream, ek_binary op, const ek_cuda_walk *walk,
                          double a);
int ek_cuda_launch_compare(const ek_cuda_stream *stream, ek_compare op, const ek_cuda_walk *walk);
/* Operand 1 is the condition. Computed as the output's dtype is. */
int ek_cuda_launch_where(const ek_cuda_stream *stream, const ek_cuda_walk *walk);
/* A copy that changes the dtype. */
int ek_cuda_launch_convert(const ek_cuda_stream *stream, const ek_cuda_walk *walk);

/* ---- copy: elements of one dtype, of `size` bytes ---- */

int ek_cuda_launch_copy(const ek_cuda_stream *stream, const ek_cuda_walk *walk, size_t size);

/* An element's bytes over and over, whatever its size. */
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
 * Sums go in a fixed order that depends on shape, strides and device alone. If there are fewer
 * outputs than keep the device busy, the reduced elements are cut into chunks; a second reduction
 * joins their results. */

typedef struct ek_cuda_reduction {
    ek_reduce_kind kind;
    ek_dtype x_dtype, out_dtype;
    const void *x;
    void *out;
    ek_cuda_strides kept;    /* operands: x, out; without `columns` */
    ek_cuda_strides reduced; /* operand: x */
    int64_t chunk, chunks; /* reduced elements of a chunk; how many chunks. With more than one, out
                              is [chunk][output], row-major in the order of `kept` */
    int pack;              /* elements that one load takes: 1, or 16 bytes */

    /* The innermost dimension is kept: threads lie along it, `width` of a block side by side. */
    bool by_columns;
    int64_t columns, column_x, column_out; /* their number and strides */
    int width;

    /* Else a team of threads goes along the reduced elements: in runs of the innermost dimension,
     * or one by one if these are short. */
    ek_cuda_team team;
    bool runs;
} ek_cuda_reduction;
int ek_cuda_launch_reduce(const ek_cuda_stream *stream, const ek_cuda_reduction *reduction);

/* Position of the largest or smallest along one dimension. */
typedef struct ek_cuda_arg_job {
    bool smallest;
    ek_dtype dtype;
    const void *x;
    int64_t *index;
    ek_cuda_strides lines; /* operands: index, x */
    int64_t size, stride;  /* of x along the dimension */
    ek_cuda_team team;
} ek_cuda_arg_job;
int ek_cuda_launch_arg_reduce(const ek_cuda_stream *stream, const ek_cuda_arg_job *job);

/* ---- softmax along one dimension, and its gradient ---- */

typedef struct ek_cuda_softmax_job {
    bool logarithm;
    ek_dtype dtype;
    void *out;               /* y, or dx */
    const void *a, *b;       /* x, or dy and y */
    ek_cuda_strides lines;   /* operands: out, a, b */
    int64_t size, stride[3]; /* of the dimension */
    ek_cuda_team team;
} ek_cuda_softmax_job;
int ek_cuda_launch_softmax(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job);
int ek_cuda_launch_softmax_gradient(const ek_cuda_stream *stream, const ek_cuda_softmax_job *job);

/* Values whose dtype the kernel looks at. */
typedef struct ek_cuda_values {
    void *data; /* NULL: there are none, and each is 1 */
    ek_dtype dtype;
} ek_cuda_values;

/* Cross entropy over one dimension, and its gradient. */
typedef struct ek_cuda_entropy_job {
    ek_cross_entropy_params params;
    ek_dtype dtype; /* of x and dx */
    const void *x;
    void *dx;
    const int64_t *target;
    ek_cuda_values loss, lse; /* `loss` is the arriving gradient in the gradient */
    ek_cuda_values weight;
    int64_t weight_stride;
    ek_cuda_strides lines; /* operands: x, target, loss, lse, dx */
    int64_t classes, stride_x, stride_dx;
    ek_cuda_team team;
} ek_cuda_entropy_job;
int ek_cuda_launch_cross_entropy(const ek_cuda_stream *stream, const ek_cuda_entropy_job *job);
int ek_cuda_launch_cross_entropy_gradient(const ek_cuda_stream *stream,
                                          const ek_cuda_entropy_job *job);

/* The weight of all targets. */
enum { EK_CUDA_TARGET_BLOCK = 16384 /* targets that one block weighs */ };
typedef struct ek_cuda_target_job {
    const int64_t *target;
    ek_cuda_strides strides; /* operand: target */
    ek_cuda_values weight, out;
    int64_t weight_stride, classes, ignore_index;
    double *partial; /* one per block; NULL if there is one */
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
    int64_t size;   /* of the dimension that index addresses */
    int64_t stride; /* of what index addresses, along it */

    /* Operands: out, x, index. What index addresses does not move along the dimension. In fixed
     * order of additions these are the lines along the dimension only, `line` elements each, x and
     * index with these strides. */
    ek_cuda_strides strides;
    int64_t line, line_x, line_index;
} ek_cuda_index_job;
/* out = x at index, for elements of `size` bytes. */
int ek_cuda_launch_gather(const ek_cuda_stream *stream, const ek_cuda_index_job *job, size_t size);
/* out at index += x, f32 or f64: in the order of arrival, or if the stream is deterministic
 * ascending in x. */
int ek_cuda_launch_scatter(const ek_cuda_stream *stream, const ek_cuda_index_job *job);

/* ---- pool: two images and the windows between them ---- */

typedef struct ek_cuda_pool {
    ek_cuda_image x, y; /* or their gradients */
    ek_cuda_image index;
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    ek_cuda_divider per_stride[3];
    bool adaptive; /* windows by the sizes alone */
    bool count_include_pad;
    bool wide; /* for 64-bit arithmetic */
    const char *operation;
} ek_cuda_pool;
int ek_cuda_launch_avg_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
int ek_cuda_launch_avg_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
int ek_cuda_launch_max_forward(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
/* x = sum of y at index, in the order of y; one rounding of bf16. y has an element. */
int ek_cuda_launch_max_gradient(const ek_cuda_stream *stream, const ek_cuda_pool *pool);
int ek_cuda_launch_max_gather(const ek_cuda_stream *stream, const ek_cuda_pool *pool);

/* ---- upsample: `small` is the side before upsampling, `large` after, whichever is larger ---- */

typedef struct ek_cuda_upsample {
    ek_cuda_image small, large;
    /* Steps in `small` per step in `large`, rounded to what positions are computed in; and large
     * size / small size. Height, width. */
    double scale[2], inverse[2];
    bool bilinear, align_corners;
    bool wide;
} ek_cuda_upsample;
/* large from small; and the adjoint. */
int ek_cuda_launch_upsample_forward(const ek_cuda_stream *stream, const ek_cuda_upsample *job);
int ek_cuda_launch_upsample_gradient(const ek_cuda_stream *stream, const ek_cuda_upsample *job);

/* ---- matmul by a kernel of our own: any strides and sizes ---- */

/* Matrices in memory; strides count elements. */
typedef struct ek_cuda_matrices {
    void *data;
    int64_t batch, row, column;
} ek_cuda_matrices;

/* out (batch, n, m) = x (batch, n, k) y (batch, k, m) + bias (m, or data NULL), added to what is in
 * out with `accumulate`. All of one floating dtype; bf16 is summed in f32 and rounded once. */
typedef struct ek_cuda_gemm {
    ek_dtype dtype;
    int64_t batch, n, m, k;
    ek_cuda_matrices x, y, out;
    ek_cuda_matrices bias; /* its `column` is the stride */
    bool accumulate;
} ek_cuda_gemm;
int ek_cuda_launch_gemm(const ek_cuda_stream *stream, const ek_cuda_gemm *gemm);

/* ---- lists of tensors ---- */

/* The first operand of each entry = the sum of the others, in their order; it may be the second. */
int ek_cuda_launch_add_n(const ek_cuda_stream *stream, ek_dtype dtype, const ek_cuda_list *list);
/* Optimizer steps. Entries are parameters of f32 or f64; operands: the parameter, its gradient, and
 * the states of the options. */
int ek_cuda_launch_sgd(const ek_cuda_stream *stream, ek_dtype dtype, const ek_cuda_list *list,
                       const ek_sgd_params *params);
int ek_cuda_launch_adam(const ek_cuda_stream *stream, ek_dtype dtype, const ek_cuda_list *list,
                        const ek_adam_params *params);

EK_END_DECLARATIONS
#endif

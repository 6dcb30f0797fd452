/* kernels.h: the table of kernels that a backend fills, one slot per kernel.
 *
 * Contract of every slot. Tensors lie on `dev`. The caller has checked shapes, dtypes and devices,
 * and has allocated the outputs, which may have gaps. An output aliases an input only if the slot's
 * comment allows it. Kernels don't change versions or history. All slots take f32 and f64, and
 * further dtypes if their comment says so; bf16 is computed in f32 and rounded once. Results don't
 * depend on the number of threads. Matrix products and convolutions are an exception, because a
 * library may cut them by its number of threads: with an equal number of threads, their results are
 * equal from run to run. Scratch memory comes from ek_dev_alloc as EK_MEMORY_WORKSPACE. A slot
 * returns 0, or a negative status with an error set. On an asynchronous device, an error that only
 * kernels detect (an index out of range) is returned by a later call, at the latest by one that
 * waits for the device or reads from it. */
#ifndef EK_KERNELS_KERNELS_H
#define EK_KERNELS_KERNELS_H

#include "core/tensor.h"
#include "kernels/params.h"

/* ---- memory: tensors of any dtype ---- */
typedef int ek_fill_kernel(ek_dev *dev, ek_tensor *out, double value);
/* out and x have one shape and any strides. Dtypes are converted; floating numbers are truncated to
 * integers. */
typedef int ek_copy_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x);

/* ---- elementwise: all tensors have one shape; a stride of 0 broadcasts an input. `out` may be an
 * input. AFFINE, NEG, ABS, SIGN, SQUARE, CLAMP, ADD to MINIMUM, FMOD and REMAINDER also take
 * integer dtypes. ---- */
typedef int ek_unary_kernel(ek_dev *dev, ek_unary op, ek_tensor *out, const ek_tensor *x, double a,
                            double b);
typedef int ek_binary_kernel(ek_dev *dev, ek_binary op, ek_tensor *out, const ek_tensor *x,
                             const ek_tensor *y, double a);
/* x and y have one dtype, which may be any; out is u8. */
typedef int ek_compare_kernel(ek_dev *dev, ek_compare op, ek_tensor *out, const ek_tensor *x,
                              const ek_tensor *y);
typedef int ek_where_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *condition,
                            const ek_tensor *x, const ek_tensor *y);
/* `count` sums of one dtype, which may be any, each of 1 to EK_MAX_DEVICES addends: addend k of
 * outs[i] is inputs[k * count + i], which is absent if it is NULL; at least one is present. Addends
 * are added in the order of Note [Order of a sum] (core/sum_order.h). The addends and the output of
 * a sum are dense and of one layout; the output may be the first addend. With one addend the
 * outputs may be f32 and all inputs bf16, or all f16. */
typedef int ek_add_n_kernel(ek_dev *dev, int count, ek_tensor *const *outs,
                            const ek_tensor *const *inputs, int addends);

/* ---- reductions: out has x's ndim, with size 1 in reduced dimensions. Sums of i64 and u8 inputs
 * are i64 ---- */
typedef int ek_reduce_kernel(ek_dev *dev, ek_reduce_kind kind, ek_tensor *out, const ek_tensor *x);
/* Writes the first position of the largest (or smallest) element along dim. index is i64, with size
 * 1 in dim. A NaN is preferred to all numbers. */
typedef int ek_arg_reduce_kernel(ek_dev *dev, ek_reduce_kind kind, ek_tensor *index,
                                 const ek_tensor *x, int dim);

/* Computes the recurrence out[i] = a[i] out[i - 1] + b[i] along dim. If a is NULL, the factors are
 * 1. If b is NULL, the addends are 0 and out[-1] is 1; otherwise out[-1] is 0. With `reverse`,
 * lines run from their last element to the first. All tensors have one dtype, floating or i64. */
typedef int ek_scan_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *a, const ek_tensor *b,
                           int dim, bool reverse);

/* ---- indexing: any dtype (for additions f32 and f64). The kernel checks bounds and fails with
 * EK_E_INVALID ---- */
typedef int ek_index_select_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                                   const ek_tensor *index);
/* Writes zeros to out, and adds x to out at index, in ascending order of position in x. So does
 * scatter_add. */
typedef int ek_index_add_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                                const ek_tensor *index);
typedef int ek_gather_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                             const ek_tensor *index);
typedef int ek_scatter_add_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                                  const ek_tensor *index);
/* Writes x to `out` at index; other elements stay. x may have zero strides. If several elements of
 * x have one place, the last of them in x is written; on a GPU any of them, unless algorithms must
 * be deterministic. */
typedef int ek_scatter_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                              const ek_tensor *index);

/* ---- order: any dtype; NaN is larger than all numbers ---- */
/* Writes the positions along dim of x's elements in ascending (or descending) order. Equal elements
 * stay in the order of their positions. index is i64. If index is shorter than x along dim, only
 * the first positions are written. */
typedef int ek_argsort_kernel(ek_dev *dev, ek_tensor *index, const ek_tensor *x, int dim,
                              bool descending);
/* Writes each value's place in `sorted` to out (i64, of the shape of `values`): the place before
 * equal elements, or with `right` the place after them. `sorted` is ascending along its last
 * dimension. It has one dimension, or the sizes of `values` in all its other dimensions. */
typedef int ek_searchsorted_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *sorted,
                                   const ek_tensor *values, bool right);

/* ---- matrices: out (B, n, m) = x (B, n, k) y (B, k, m) [+ bias (m)]; any strides, a batch
 * stride of 0 broadcasts. With `accumulate`, adds to out. ---- */
typedef int ek_matmul_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                             const ek_tensor *bias, bool accumulate);

/* ---- linear layers: y (n, out) = x (n, in) w' + bias for w (out, in); bias may be NULL. With
 * `relu`, negative results become 0 ---- */
typedef int ek_linear_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                             const ek_tensor *bias, bool relu);
/* Computes `before` as ek_linear_kernel does, and y = gelu(before), with `tanh` by its
 * approximation: the results of `linear` and `unary` to the bit. y may be `before`. */
typedef int ek_linear_gelu_kernel(ek_dev *dev, ek_tensor *y, ek_tensor *before, const ek_tensor *x,
                                  const ek_tensor *w, const ek_tensor *bias, bool tanh);
/* dw = dy' x, dbias (out) = the sum of dy's rows. */
typedef int ek_linear_weight_gradient_kernel(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                             const ek_tensor *x, const ek_tensor *dy);

/* ---- convolution: x (N, C, ...), w (O, C / groups, ...), y (N, O, ...), bias (O) or NULL. If y
 * has fewer positions than there are windows, the last windows are left out ---- */
/* Returns the order of memory in which images are convolved fastest. Weights are channels-last in
 * either case. */
typedef ek_memory_format ek_conv_format_kernel(ek_dev *dev, ek_dtype dtype);
typedef int ek_conv_forward_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                                   const ek_tensor *w, const ek_tensor *bias,
                                   const ek_conv_params *params);
typedef int ek_conv_input_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                          const ek_tensor *w, const ek_conv_params *params);
/* dbias may be NULL. */
typedef int ek_conv_weight_gradient_kernel(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias,
                                           const ek_tensor *x, const ek_tensor *dy,
                                           const ek_conv_params *params);

/* ---- pooling over 2 or 3 dimensions: `index` (i64) has the maxima's positions within the input
 * plane, in row-major order ---- */
typedef int ek_max_pool_forward_kernel(ek_dev *dev, ek_tensor *y, ek_tensor *index,
                                       const ek_tensor *x, const ek_pool_params *params);
/* dx = the sum of dy at index, the positions that forward found with the same params. The adjoint
 * is max_pool_gather: y = x at index. Both fail with EK_E_INVALID if a position is outside of the
 * plane. */
typedef int ek_max_pool_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                        const ek_tensor *index, const ek_pool_params *params);
typedef int ek_max_pool_gather_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                                      const ek_tensor *index);
typedef int ek_avg_pool_forward_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                                       const ek_pool_params *params);
typedef int ek_avg_pool_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                        const ek_pool_params *params);
/* In both, window i of n over s positions of x is [floor(i s / n), ceil((i + 1) s / n)). */
typedef int ek_adaptive_avg_pool_forward_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x);
typedef int ek_adaptive_avg_pool_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy);

/* ---- resampling over 2 or 3 dimensions, linear in x; x may be empty only if out is ---- */
typedef int ek_resample_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *x,
                               const ek_resample_params *params);

/* ---- sampling x (N, C, H, W) or (N, C, D, H, W) at the places of grid (N, H', W', 2) or (N, D',
 * H', W', 3), whose coordinates are in the reverse order of x's dimensions; y is (N, C, H', W') or
 * (N, C, D', H', W'). All are f32 or f64. A place that isn't finite reads nothing. ---- */
/* y = S x for S, the interpolation differentiated params->order times. */
typedef int ek_grid_sample_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                                  const ek_tensor *grid, const ek_grid_params *params);
/* dx = S' dy */
typedef int ek_grid_sample_adjoint_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                          const ek_tensor *grid, const ek_grid_params *params);
/* dgrid[..., c] is the sum over channels of dy T x, where T is S differentiated once more by
 * coordinate c. */
typedef int ek_grid_sample_slope_kernel(ek_dev *dev, ek_tensor *dgrid, const ek_tensor *dy,
                                        const ek_tensor *x, const ek_tensor *grid,
                                        const ek_grid_params *params);

/* ---- normalisation: batch, group, instance and layer norm share these slots. x is (N, C, ...);
 * kernels/norm.h has its geometry. Statistics are (C), each over a channel of the whole batch, or
 * (N, G), each over a group of C / G channels of a sample; (N, G) is contiguous. Sums have the same
 * shapes. All are f32 for bf16 inputs. Weight and bias are (C); if a sample has one group, they may
 * also have x's shape without N. Either may be NULL. xhat = (x - mean) invstd. A mean of NULL is 0,
 * and an invstd of NULL is 1; at least one of them is given. `relu`, `y_relu`, tensors in an
 * update, and scale, shift and slope of ek_norm_sums are given only with statistics (C); sum and
 * sum_xhat of ek_norm_sums only with (N, G). ---- */

/* Tensors that a kernel of statistics updates beside its outputs. Each may be NULL; running_mean
 * and running_var are NULL together. */
typedef struct ek_norm_update {
    double eps;
    /* become (1 - momentum) running + momentum value; running_var's value is the unbiased variance
     * of `count` values */
    ek_tensor *running_mean, *running_var;
    double momentum, count;
    const ek_tensor *average; /* i64 scalar: replaces the momentum by 1 / average */
    ek_tensor *batches;       /* i64 scalar that is increased by 1; not the tensor `average` */
} ek_norm_update;
/* Writes the mean and the biased variance, computed by a stable two-pass or merged (Chan) sum. With
 * an update, writes 1 / sqrt(variance + eps) to var instead of the variance. */
typedef int ek_norm_moments_kernel(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x,
                                   const ek_norm_update *update);
/* Writes the mean (C) and 1 / sqrt(variance + eps) of all values of several chunks (Chan et al.
 * 1983), from the chunks' means and biased variances (chunks, C). shares[i] is chunk i's part of
 * all values. Means of shape (C) are those of one chunk. There are at most EK_MAX_DEVICES
 * chunks. */
typedef int ek_norm_merge_kernel(ek_dev *dev, ek_tensor *mean, ek_tensor *invstd,
                                 const ek_tensor *means, const ek_tensor *vars,
                                 const double *shares, const ek_norm_update *update);
/* The operands of norm_line and norm_reduce. The members after x may be NULL, but mean and invstd
 * not both, and some only with statistics (C) or (N, G): see the head of this section. */
typedef struct ek_norm_args {
    const ek_tensor *x, *mean, *invstd, *weight;
    const ek_tensor *bias;        /* for y */
    bool relu;                    /* for y */
    const ek_tensor *dy, *y_relu; /* dy counts only where y_relu, if given, is > 0 or NaN */
    /* With dy: y_relu is the y that x, mean, invstd, weight and bias yield. A backend may compute
     * it again where that costs less than reading it. */
    bool y_again;
    const ek_tensor *sum, *sum_xhat; /* for dx */
    double count;                    /* for dx: the divisor of the sums */
    const ek_tensor *residual;       /* for norm_rows and its gradient alone, as is `total` */
    ek_tensor *total;
} ek_norm_args;
/* Without dy, out = y = xhat weight + bias, or max(y, 0) with `relu`. With dy, out = dx = invstd
 * (weight dy - sum / count - xhat sum_xhat / count), or invstd weight dy if sum_xhat is NULL. A sum
 * of NULL is 0. Sums of shape (N, G) contain the weight. Sums of shape (C) are dbias and dweight;
 * the kernel multiplies them by the weight if invstd isn't NULL. */
typedef int ek_norm_line_kernel(ek_dev *dev, ek_tensor *out, const ek_norm_args *args);
/* The outputs of norm_reduce. Each group of tensors below is NULL if it isn't wanted. */
typedef struct ek_norm_sums {
    ek_tensor *sum, *sum_xhat;  /* over a statistic's values: of weight dy, weight dy xhat */
    ek_tensor *dweight, *dbias; /* over a parameter's values: of dy xhat, of dy */
    /* The coefficients of dx = scale dy + shift + slope (x - mean), only with dweight and dbias:
     * scale = weight invstd, shift = -scale dbias / count, slope = -scale invstd dweight / count.
     * If several chunks have `count` values of a channel together, the caller sums shift and slope
     * over the chunks. */
    ek_tensor *scale, *shift, *slope;
    double count;
} ek_norm_sums;
/* Reads x, mean, invstd, weight, dy and y_relu of args, and bias with y_again. */
typedef int ek_norm_reduce_kernel(ek_dev *dev, const ek_norm_sums *sums, const ek_norm_args *args);

/* ---- normalisation of rows in as few passes as possible, for statistics (N, 1) with weight and
 * bias per element. A backend that doesn't serve a size, dtype or layout writes nothing and returns
 * 0, and the caller takes the slots above. Otherwise the kernels return 1. ---- */

/* Writes the statistics to mean and invstd, and y. If the mean is NULL, invstd is
 * 1 / sqrt(mean(x^2) + eps). Reads x, weight and bias of args. If a residual is given, writes
 * x + residual to `total`, and normalises that. The residual may have 16 bits if x is f32. */
typedef int ek_norm_rows_kernel(ek_dev *dev, ek_tensor *y, ek_tensor *mean, ek_tensor *invstd,
                                const ek_norm_args *args, double eps);
/* Writes dx, to which it adds the residual, if one is given; and dweight and dbias of sums. dx may
 * be NULL; so may dweight and dbias together. Reads x, mean, invstd, weight and dy of args. */
typedef int ek_norm_rows_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_norm_sums *sums,
                                         const ek_norm_args *args);

/* ---- softmax along dim ---- */
typedef int ek_softmax_kernel(ek_dev *dev, ek_tensor *y, const ek_tensor *x, int dim,
                              bool logarithm);
/* Computes dx from the output y: y (dy - sum(dy y)) for softmax, dy - exp(y) sum(dy) for
 * log-softmax. */
typedef int ek_softmax_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                                       const ek_tensor *y, int dim, bool logarithm);

/* ---- attention: q (B, H, L, E), k (B, G, S, E), v (B, G, S, D), out (B, H, L, D). Head h has the
 * keys and values of group h G / H. No size is 0. `mask` (B, H, L, S), of any floating dtype, is
 * added to the scores scale q k'; NULL: none. lse (B, H, L), contiguous, f32 for bf16, is
 * log(sum(exp(scores))). If all scores of a row are -inf, lse is inf and out is 0. ---- */
/* Returns 1 if the caller must compute this attention by matmul and softmax, which hold all scores
 * in memory; 0 if not; negative on error. If 1, the two kernels below may refuse the operands. The
 * numbers of params->dropout aren't read. `gradient`: the gradient will be computed, too. */
typedef int ek_attention_composes_kernel(ek_dev *dev, const ek_tensor *q, const ek_tensor *k,
                                         const ek_tensor *v, const ek_tensor *mask,
                                         const ek_attention_params *params, bool gradient);
typedef int ek_attention_kernel(ek_dev *dev, ek_tensor *out, ek_tensor *lse, const ek_tensor *q,
                                const ek_tensor *k, const ek_tensor *v, const ek_tensor *mask,
                                const ek_attention_params *params);
/* Computes dq, dk and dv from dout, the gradient of out. The mask has no gradient. */
typedef int ek_attention_gradient_kernel(ek_dev *dev, ek_tensor *dq, ek_tensor *dk, ek_tensor *dv,
                                         const ek_tensor *dout, const ek_tensor *q,
                                         const ek_tensor *k, const ek_tensor *v,
                                         const ek_tensor *mask, const ek_tensor *out,
                                         const ek_tensor *lse, const ek_attention_params *params);

/* ---- a step of a recurrent network. x and product are (N, G H) of a cell with G gates, `gates`
 * is (N, 4 H), others are (N, H). All have one floating dtype and are row-major, but rows of x may
 * be further apart. Tensors that a cell doesn't have are NULL.
 *
 *     LSTM        x, product and gates: i, f, g, o;  `before` is the previous c
 *     GRU         x and product: r, z, n;  gates: r, z, n and the n of product;  `before` is the
 *                 previous h;  no c
 *     tanh, relu  x and product: one gate;  no c, no gates, no `before` ---- */
/* Computes the gates and the state h, c after the step from x + product and `before`. The gates may
 * overwrite x. */
typedef int ek_recurrent_forward_kernel(ek_dev *dev, ek_tensor *h, ek_recurrent_cell cell,
                                        ek_tensor *c, ek_tensor *gates, const ek_tensor *x,
                                        const ek_tensor *product, const ek_tensor *before);
/* Computes dx, the gradients of the gates' sums, and that of `before`. The gradient of h is dh +
 * more. Each of dh, more and dc may be NULL, which counts as zeros. A GRU's dx is (N, 4 H): those
 * of r, z, n and of the n of product, which product has instead of that of n. dx may be `gates`,
 * and dbefore may be `more` or dc. For tanh and relu `gates` is h, and dbefore is NULL. */
typedef int ek_recurrent_gradient_kernel(ek_dev *dev, ek_tensor *dx, ek_recurrent_cell cell,
                                         ek_tensor *dbefore, const ek_tensor *dh,
                                         const ek_tensor *more, const ek_tensor *dc,
                                         const ek_tensor *gates, const ek_tensor *before,
                                         const ek_tensor *c);

/* ---- all steps of one direction of a layer, for L steps, tensors as above with the steps as first
 * dimension. Tensors with fewer rows of steps than there are steps use them in turn. A state before
 * step t is row t of h and c, and with `reverse` row t + 1. ---- */
typedef struct ek_recurrent_steps {
    ek_recurrent_cell cell;
    bool reverse;
    const ek_tensor *x;                         /* (L, N, I), row-major */
    const ek_tensor *input_weight, *input_bias; /* Weight_ih; bias_ih, or NULL */
    const ek_tensor *weight, *bias;             /* Weight_hh; bias_hh, or NULL */
    ek_tensor *h, *c; /* (L + 1, N, H), of which the states before all steps are set */
    ek_tensor *gates; /* (L, N, 4 H), NULL for tanh and relu, and if no backward follows */
    ek_tensor *y;     /* (L, N, H): gets the states after all steps; NULL in backward */
} ek_recurrent_steps;
/* Computes the gates and states of all steps. Returns 1; 0 if single steps have to be computed, and
 * then nothing has been written. */
typedef int ek_recurrent_steps_kernel(ek_dev *dev, const ek_recurrent_steps *steps);
/* The gradients of all steps, of their outputs, of the last states and of the first ones. Those of
 * outputs and last states may be NULL, which counts as zeros. Rows of dy may lie anywhere. dx may
 * be the gates. */
typedef struct ek_recurrent_steps_back {
    ek_tensor *dx;
    const ek_tensor *dy, *dh_n, *dc_n;
    ek_tensor *dh, *dc;
    ek_tensor *dinput; /* (L, N, I), the gradient of x; NULL: not wanted */
    bool wants_h;      /* false: dh is undefined afterwards */
} ek_recurrent_steps_back;
typedef int ek_recurrent_steps_gradient_kernel(ek_dev *dev, const ek_recurrent_steps *steps,
                                               const ek_recurrent_steps_back *back);
/* The gradients of the parameters of x, then those of h, each of which may be NULL. */
typedef struct ek_recurrent_parameters {
    ek_tensor *weight[2], *bias[2];
} ek_recurrent_parameters;
/* Computes them from the gradient of the sums (L, N, G H), in a GRU (L, N, 4 H) as dx above.
 * Returns 1; 0 if they have to be computed as products. */
typedef int ek_recurrent_parameters_gradient_kernel(ek_dev *dev, const ek_recurrent_steps *steps,
                                                    const ek_tensor *dsums,
                                                    const ek_recurrent_parameters *gradients);

/* ---- a recurrent network of several layers, by a library that a backend may have. All tensors
 * have one dtype and are row-major, R = layers * directions, and no size is 0. ---- */
enum { EK_RECURRENT_WEIGHTS = 5 }; /* A direction's weight_ih, weight_hh, biases, weight_hr. */
typedef struct ek_recurrent_call {
    ek_recurrent_cell cell;
    int layers, directions;
    int64_t hidden;
    const int32_t *lengths;      /* (N) on the host, from 0 to L */
    ek_tensor *const *weights;   /* R * EK_RECURRENT_WEIGHTS; NULL where the network has none */
    const ek_tensor *x, *h, *c;  /* (L, N, input), (R, N, size of h), (R, N, hidden) or NULL */
    ek_tensor *y, *h_n, *c_n;    /* (L, N, directions * size of h), then as h and c */
    ek_tensor *packed, *reserve; /* Backward needs both beside the tensors above. */
} ek_recurrent_call;
/* Computes y, where steps beyond a sample's length are 0, and the states after the last steps. If
 * `keeps` is true, makes packed and reserve in the scope. Returns 1; 0 if there is no such library,
 * if the library doesn't serve, or if its results may differ from run to run and must not. */
typedef int ek_recurrent_network_kernel(ek_dev *dev, ek_recurrent_call *call, bool keeps);
typedef struct ek_recurrent_back {
    const ek_tensor *dy, *dh_n, *dc_n; /* dh_n and dc_n may be NULL, which counts as zeros */
    ek_tensor *dx, *dh, *dc;
    ek_tensor **dweights; /* made in the scope, for each of call->weights that isn't NULL */
} ek_recurrent_back;
/* Computes the gradients of a call that was kept. Overwrites its reserve. dx beyond a sample's
 * length is undefined. Returns 1; 0 if the library doesn't serve or memory is short. */
typedef int ek_recurrent_network_gradient_kernel(ek_dev *dev, const ek_recurrent_call *call,
                                                 const ek_recurrent_back *back);

/* ---- cross entropy over dimension 1 of x (N, C, ...); target i64 (N, ...) ---- */
/* Writes each target's loss (N, ...), 0 if the target is ignored, and lse (N, ...) =
 * log(sum(exp(x))). weight is (C) or NULL. loss may be f32 for an x of 16 bits. A target out of
 * range is EK_E_INVALID; the error names the target. Label smoothing is weighted, as PyTorch does
 * it. */
typedef int ek_cross_entropy_forward_kernel(ek_dev *dev, ek_tensor *loss, ek_tensor *lse,
                                            const ek_tensor *x, const ek_tensor *target,
                                            const ek_tensor *weight,
                                            const ek_cross_entropy_params *params);
/* Computes dx from the loss's gradient (N, ...), which may have zero strides. dx may be x. */
typedef int ek_cross_entropy_gradient_kernel(ek_dev *dev, ek_tensor *dx, const ek_tensor *gradient,
                                             const ek_tensor *lse, const ek_tensor *x,
                                             const ek_tensor *target, const ek_tensor *weight,
                                             const ek_cross_entropy_params *params);
/* Writes the sum of weight[target] over all targets but ignore_index to the scalar out. A weight of
 * NULL counts as ones. */
typedef int ek_target_weight_kernel(ek_dev *dev, ek_tensor *out, const ek_tensor *target,
                                    const ek_tensor *weight, int64_t ignore_index);

/* ---- optimizers: `count` parameters of one dtype. A parameter, its gradient and its states are
 * dense with one layout. states[k][i] is state k of parameter i. ---- */
typedef int ek_step_list_kernel(ek_dev *dev, ek_step_rule rule, int count,
                                ek_tensor *const *parameters, ek_tensor *const *gradients,
                                ek_tensor *const *const states[EK_STEP_STATES],
                                const ek_step_numbers *numbers);
/* Checks a step's operands for a backend: EK_E_DTYPE if a parameter is neither f32 nor f64,
 * EK_E_INVALID if a state is missing. */
int ek_step_check(ek_step_rule rule, int count, ek_tensor *const *parameters,
                  ek_tensor *const *const states[EK_STEP_STATES]);

/* ---- norms of gradients: `count` dense tensors of one floating dtype, none of them empty. Other
 * tensors are f64. Nothing waits for the device ---- */
/* Writes the power sum of all elements of all tensors to out, and the norm and the factor that
 * follow from it (EK_NORM_SUM to EK_NORM_FACTOR). A power sum is the sum of |x|^p; if p is
 * infinite, it is the largest |x|, or NaN if an element is NaN. The order of the sum depends on the
 * tensors' sizes alone. If `sums` isn't NULL, it is a vector of power sums, which are joined, and
 * there are no tensors. */
typedef int ek_norm_list_kernel(ek_dev *dev, ek_tensor *out, int count, ek_tensor *const *x,
                                const ek_tensor *sums, double p, double max_norm);
/* Multiplies all elements by the scalar `factor`, but leaves them unchanged if that is 1. */
typedef int ek_scale_list_kernel(ek_dev *dev, int count, ek_tensor *const *x,
                                 const ek_tensor *factor);

/* All slots. If a slot is added here, with its type above, the compiler demands its kernel of both
 * backends. */
/* clang-format off */
#define EK_KERNELS(SLOT) \
    SLOT(fill) SLOT(copy) \
    SLOT(unary) SLOT(binary) SLOT(compare) SLOT(where) SLOT(add_n) \
    SLOT(reduce) SLOT(arg_reduce) SLOT(scan) \
    SLOT(index_select) SLOT(index_add) SLOT(gather) SLOT(scatter_add) \
    SLOT(scatter) SLOT(argsort) SLOT(searchsorted) \
    SLOT(matmul) SLOT(linear) SLOT(linear_gelu) SLOT(linear_weight_gradient) \
    SLOT(conv_format) SLOT(conv_forward) SLOT(conv_input_gradient) SLOT(conv_weight_gradient) \
    SLOT(max_pool_forward) SLOT(max_pool_gradient) SLOT(max_pool_gather) \
    SLOT(avg_pool_forward) SLOT(avg_pool_gradient) \
    SLOT(adaptive_avg_pool_forward) SLOT(adaptive_avg_pool_gradient) \
    SLOT(resample) \
    SLOT(grid_sample) SLOT(grid_sample_adjoint) SLOT(grid_sample_slope) \
    SLOT(norm_moments) SLOT(norm_merge) SLOT(norm_line) SLOT(norm_reduce) \
    SLOT(norm_rows) SLOT(norm_rows_gradient) \
    SLOT(softmax) SLOT(softmax_gradient) \
    SLOT(attention_composes) SLOT(attention) SLOT(attention_gradient) \
    SLOT(recurrent_forward) SLOT(recurrent_gradient) \
    SLOT(recurrent_steps) SLOT(recurrent_steps_gradient) SLOT(recurrent_parameters_gradient) \
    SLOT(recurrent_network) SLOT(recurrent_network_gradient) \
    SLOT(cross_entropy_forward) SLOT(cross_entropy_gradient) SLOT(target_weight) \
    SLOT(step_list) SLOT(norm_list) SLOT(scale_list)

typedef struct ek_kernels {
#define EK_KERNEL_SLOT(name) ek_##name##_kernel *name;
    EK_KERNELS(EK_KERNEL_SLOT)
#undef EK_KERNEL_SLOT
} ek_kernels;
/* clang-format on */

/* Returns the kernels of a tensor's device. */
static inline const ek_kernels *ek_kernels_of(const ek_tensor *tensor)
{
    return tensor->storage->dev->backend->kernels;
}

/* Writes the value of a reduction of no elements to *value, for the slot reduce. Fails with
 * EK_E_INVALID for a maximum or a minimum, which don't exist. */
static inline int ek_reduce_nothing(ek_reduce_kind kind, double *value)
{
    if (kind == EK_REDUCE_MAX || kind == EK_REDUCE_MIN)
        return EK_FAIL(EK_E_INVALID, "there is no %s of no elements",
                       kind == EK_REDUCE_MAX ? "maximum" : "minimum");
    *value = kind == EK_REDUCE_PRODUCT ? 1 : 0;
    return 0;
}

/* Returns the size along dim of the elements that the slot arg_reduce compares. Fails with
 * EK_E_INVALID if there are none. */
static inline int64_t ek_arg_reduce_size(ek_reduce_kind kind, const ek_tensor *x, int dim)
{
    int64_t size = x->ndim == 0 ? 1 : x->shape[dim];
    if (size == 0)
        return EK_FAIL(EK_E_INVALID, "there is no position of the %s of no elements (dimension %d)",
                       kind == EK_REDUCE_MIN ? "minimum" : "maximum", dim);
    return size;
}

/* Returns a vector as a matrix of one row. */
static inline ek_tensor ek_row_of_vector(const ek_tensor *vector)
{
    return (ek_tensor){.dtype = vector->dtype,
                       .ndim = 2,
                       .shape = {1, vector->shape[0]},
                       .stride = {0, vector->stride[0]},
                       .offset = vector->offset,
                       .storage = vector->storage};
}

/* Returns a matrix, or its transpose, as a batch of one for the slot matmul. */
static inline ek_tensor ek_batch_of_matrix(const ek_tensor *matrix, bool transposed)
{
    int rows = transposed, columns = !transposed;
    return (ek_tensor){.dtype = matrix->dtype,
                       .ndim = 3,
                       .shape = {1, matrix->shape[rows], matrix->shape[columns]},
                       .stride = {0, matrix->stride[rows], matrix->stride[columns]},
                       .offset = matrix->offset,
                       .storage = matrix->storage};
}

#endif

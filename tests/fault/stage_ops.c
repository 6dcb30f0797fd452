/* stage_ops.c: ops.h: arithmetic, activations, reductions, shapes, indexing, matrices. */
#include <math.h>

#include "rows.h"

/* All pieces, each times another number, as one tensor again. */
static ek_tensor *joined(int count, ek_tensor **pieces, int dim)
{
    for (int i = 0; i < count; i++)
        pieces[i] = ek_mul_scalar(pieces[i], i + 1);
    return count < 0 ? NULL : ek_cat(pieces, count, dim);
}

static ek_tensor *split(ek_tensor *x)
{
    ek_tensor *pieces[4] = {NULL};
    return joined(ek_split(x, 2, 0, pieces, 4), pieces, 0);
}

static ek_tensor *chunk(ek_tensor *x)
{
    ek_tensor *pieces[4] = {NULL};
    int64_t sizes[4];
    int count = ek_chunk(x, 2, 0, pieces, 4);
    return count >= 0 && count != ek_chunk_sizes(5, 2, sizes) ? NULL : joined(count, pieces, 0);
}

static ek_tensor *split_sizes(ek_tensor *x)
{
    ek_tensor *pieces[2] = {NULL};
    int status = ek_split_sizes(x, (const int64_t[]){1, 4}, 2, 0, pieces);
    return joined(status < 0 ? status : 2, pieces, 0);
}

/* In bf16 where autocast says so. */
static ek_tensor *narrow(ek_tensor *(*apply)(ek_tensor *x, ek_tensor *y), ek_tensor *x,
                         ek_tensor *y)
{
    ek_autocast autocast = ek_autocast_begin(EK_BF16);
    ek_tensor *z = apply(x, y);
    ek_autocast_end(&autocast);
    return z;
}

#define ARITHMETIC(X)                                                           \
    X(add, "f2x3 f3", ek_add(x[0], x[1]))                                       \
    X(sub, "f2x3 f1x3", ek_sub(x[0], x[1]))                                     \
    X(mul, "f2x3 f3", ek_mul(x[0], x[1]))                                       \
    X(div, "f2x3 p2x1", ek_div(x[0], x[1]))                                     \
    X(maximum, "f2x3 f2x3", ek_maximum(x[0], x[1]))                             \
    X(minimum, "f2x3 f3", ek_minimum(x[0], x[1]))                               \
    X(add_scaled, "f2x3 f3", ek_add_scaled(x[0], x[1], 0.5))                    \
    X(add_scalar, "f2x3", ek_add_scalar(x[0], 2))                               \
    X(mul_scalar, "f2x3", ek_mul_scalar(x[0], 2))                               \
    X(pow_scalar, "p2x3", ek_pow_scalar(x[0], 1.5))                             \
    X(neg, "f2x3", ek_neg(x[0]))                                                \
    X(abs, "f2x3", ek_abs(x[0]))                                                \
    X(sqrt, "p2x3", ek_sqrt(x[0]))                                              \
    X(square, "f2x3", ek_square(x[0]))                                          \
    X(reciprocal, "p2x3", ek_reciprocal(x[0]))                                  \
    X(exp, "f2x3", ek_exp(x[0]))                                                \
    X(log, "p2x3", ek_log(x[0]))                                                \
    X(sign, "f2x3", ek_sign(x[0]))                                              \
    X(clamp, "f2x3", ek_clamp(x[0], -0.5, 0.5))                                 \
    X(eq, "i2x3 i3", ek_eq(x[0], x[1]))                                         \
    X(ne, "i2x3 i3", ek_ne(x[0], x[1]))                                         \
    X(lt, "f2x3 f3", ek_lt(x[0], x[1]))                                         \
    X(le, "f2x3 f3", ek_le(x[0], x[1]))                                         \
    X(gt, "f2x3 f3", ek_gt(x[0], x[1]))                                         \
    X(ge, "f2x3 f3", ek_ge(x[0], x[1]))                                         \
    X(where, "b2x3 f2x3 f3", ek_where(x[0], x[1], x[2]))                        \
    X(add_, "f2x3 f3", ek_add_(ek_clone(x[0]), x[1]))                           \
    X(add_scaled_, "f2x3 f3", ek_add_scaled_(ek_clone(x[0]), x[1], 0.5))        \
    X(mul_, "f2x3 f3", ek_mul_(ek_clone(x[0]), x[1]))                           \
    X(mul_scalar_, "f2x3", ek_mul_scalar_(ek_clone(x[0]), 2))                   \
    X(fill_, "f2x3", ek_fill_(ek_clone(x[0]), 2))                               \
    X(copy_, "f2x3 f2x3", ek_copy_(ek_clone(x[0]), x[1]))                       \
    X(copy_across, "f2x3 f2x3", ek_copy_(ek_to_device(x[0], ek_host(1)), x[1])) \
    X(narrow_add, "f2x3 f3", narrow(ek_add, ek_to_dtype(x[0], EK_BF16), x[1]))

ROWS_STAGE(ops_arithmetic, ARITHMETIC);

#define REDUCTIONS(X)                                                        \
    X(relu, "f2x3", ek_f_relu(x[0]))                                         \
    X(leaky_relu, "f2x3", ek_f_leaky_relu(x[0], 0.1))                        \
    X(sigmoid, "f2x3", ek_f_sigmoid(x[0]))                                   \
    X(tanh, "f2x3", ek_f_tanh(x[0]))                                         \
    X(softplus, "f2x3", ek_f_softplus(x[0]))                                 \
    X(gelu, "f2x3", ek_f_gelu(x[0], EK_GELU_NONE))                           \
    X(gelu_tanh, "f2x3", ek_f_gelu(x[0], EK_GELU_TANH))                      \
    X(ndtr, "f2x3", ek_ndtr(x[0]))                                           \
    X(softmax, "f2x3", ek_f_softmax(x[0], 1))                                \
    X(log_softmax, "f2x3x2", ek_f_log_softmax(x[0], 1))                      \
    X(dropout, "f4x3", ek_f_dropout(x[0], 0.5, true))                        \
    X(dropout_off, "f4x3", ek_mul_scalar(ek_f_dropout(x[0], 0.5, false), 2)) \
    X(sum, "f2x3", ek_sum(x[0]))                                             \
    X(sum_dims, "f2x3x2", ek_sum(x[0], EK_DIMS(0, 2), .keepdim = true))      \
    X(mean, "f2x3", ek_mean(x[0], EK_DIMS(1)))                               \
    X(norm, "f2x3", ek_norm(x[0], EK_DIMS(1)))                               \
    X(var, "f2x3", ek_var(x[0], EK_DIMS(1)))                                 \
    X(std, "f2x3", ek_std(x[0]))                                             \
    X(logsumexp, "f2x3", ek_logsumexp(x[0], EK_DIMS(1)))                     \
    X(max_dim, "f2x3", ek_max_dim(x[0], 1, false))                           \
    X(min_dim, "f2x3", ek_min_dim(x[0], 0, true))                            \
    X(argmax, "f2x3", ek_argmax(x[0], 1, false))                             \
    X(sum_to, "f2x3", ek_sum_to(x[0], EK_SHAPE(3)))

ROWS_STAGE(ops_reductions, REDUCTIONS);

#define MATHEMATICS(X)                                                 \
    X(sin, "f2x3", ek_sin(x[0]))                                       \
    X(cos, "f2x3", ek_cos(x[0]))                                       \
    X(tan, "f2x3", ek_tan(x[0]))                                       \
    X(atan, "f2x3", ek_atan(x[0]))                                     \
    X(sinh, "f2x3", ek_sinh(x[0]))                                     \
    X(cosh, "f2x3", ek_cosh(x[0]))                                     \
    X(asinh, "f2x3", ek_asinh(x[0]))                                   \
    X(erf, "f2x3", ek_erf(x[0]))                                       \
    X(erfc, "f2x3", ek_erfc(x[0]))                                     \
    X(expm1, "f2x3", ek_expm1(x[0]))                                   \
    X(exp2, "f2x3", ek_exp2(x[0]))                                     \
    X(floor, "f2x3", ek_floor(x[0]))                                   \
    X(ceil, "f2x3", ek_ceil(x[0]))                                     \
    X(round, "f2x3", ek_round(x[0]))                                   \
    X(trunc, "f2x3", ek_trunc(x[0]))                                   \
    X(frac, "f2x3", ek_frac(x[0]))                                     \
    X(log1p, "p2x3", ek_log1p(x[0]))                                   \
    X(log2, "p2x3", ek_log2(x[0]))                                     \
    X(log10, "p2x3", ek_log10(x[0]))                                   \
    X(rsqrt, "p2x3", ek_rsqrt(x[0]))                                   \
    X(asin, "f2x3", ek_asin(ek_mul_scalar(ek_f_tanh(x[0]), 0.9)))      \
    X(acos, "f2x3", ek_acos(ek_mul_scalar(ek_f_tanh(x[0]), 0.9)))      \
    X(atanh, "f2x3", ek_atanh(ek_mul_scalar(ek_f_tanh(x[0]), 0.9)))    \
    X(acosh, "p2x3", ek_acosh(ek_add_scalar(x[0], 1.5)))               \
    X(sub_scalar, "f2x3", ek_sub_scalar(x[0], 2))                      \
    X(rsub_scalar, "f2x3", ek_rsub_scalar(x[0], 2))                    \
    X(fmod_scalar, "f2x3", ek_fmod_scalar(x[0], 2))                    \
    X(remainder_scalar, "f2x3", ek_remainder_scalar(x[0], 2))          \
    X(div_scalar, "f2x3", ek_div_scalar(x[0], 2))                      \
    X(pow, "p2x3 f3", ek_pow(x[0], x[1]))                              \
    X(atan2, "f2x3 f3", ek_atan2(x[0], x[1]))                          \
    X(fmod, "f2x3 p3", ek_fmod(x[0], x[1]))                            \
    X(remainder, "f2x3 p3", ek_remainder(x[0], x[1]))                  \
    X(lerp, "f2x3 f3 p3", ek_lerp(x[0], x[1], x[2]))                   \
    X(lerp_scalar, "f2x3 f3", ek_lerp_scalar(x[0], x[1], 0.3))         \
    X(addcmul, "f2x3 f3 f3", ek_addcmul(x[0], x[1], x[2], 2))          \
    X(addcdiv, "f2x3 f3 p3", ek_addcdiv(x[0], x[1], x[2], 2))          \
    X(clamp_tensors, "f2x3 f3 f3", ek_clamp_tensors(x[0], x[1], x[2])) \
    X(nan_to_num, "f2x3", ek_nan_to_num(x[0]))                         \
    X(eq_scalar, "f2x3", ek_eq_scalar(x[0], 0.5))                      \
    X(ne_scalar, "f2x3", ek_ne_scalar(x[0], 0.5))                      \
    X(lt_scalar, "f2x3", ek_lt_scalar(x[0], 0.5))                      \
    X(le_scalar, "f2x3", ek_le_scalar(x[0], 0.5))                      \
    X(gt_scalar, "f2x3", ek_gt_scalar(x[0], 0.5))                      \
    X(ge_scalar, "f2x3", ek_ge_scalar(x[0], 0.5))                      \
    X(logical_not, "f2x3", ek_logical_not(x[0]))                       \
    X(logical_and, "i2x3 i3", ek_logical_and(x[0], x[1]))              \
    X(logical_or, "i2x3 i3", ek_logical_or(x[0], x[1]))                \
    X(logical_xor, "i2x3 i3", ek_logical_xor(x[0], x[1]))              \
    X(isnan, "f2x3", ek_isnan(x[0]))                                   \
    X(isinf, "f2x3", ek_isinf(x[0]))                                   \
    X(isfinite, "f2x3", ek_isfinite(x[0]))                             \
    X(sub_, "f2x3 f3", ek_sub_(ek_clone(x[0]), x[1]))                  \
    X(div_, "f2x3 p3", ek_div_(ek_clone(x[0]), x[1]))                  \
    X(clamp_, "f2x3", ek_clamp_(ek_clone(x[0]), -0.5, 0.5))            \
    X(lerp_, "f2x3 f3", ek_lerp_(ek_clone(x[0]), x[1], 0.1))           \
    X(addcmul_, "f2x3 f3 f3", ek_addcmul_(ek_clone(x[0]), x[1], x[2], 2))

ROWS_STAGE(ops_mathematics, MATHEMATICS);

static ek_tensor *var_and_mean(ek_tensor *x)
{
    ek_tensor *mean, *var = ek_var_mean(&mean, x, EK_DIMS(1), .correction = 0);
    return var ? ek_mul(var, mean) : NULL;
}

#define ACTIVATIONS(X)                                                      \
    X(silu, "f2x3", ek_f_silu(x[0]))                                        \
    X(rrelu, "f2x3", (ek_manual_seed(1), ek_f_rrelu(x[0], 0.1, 0.3, true))) \
    X(mish, "f2x3", ek_f_mish(x[0]))                                        \
    X(selu, "f2x3", ek_f_selu(x[0]))                                        \
    X(relu6, "f2x3", ek_f_relu6(x[0]))                                      \
    X(hardsigmoid, "f2x3", ek_f_hardsigmoid(x[0]))                          \
    X(hardswish, "f2x3", ek_f_hardswish(x[0]))                              \
    X(tanhshrink, "f2x3", ek_f_tanhshrink(x[0]))                            \
    X(softsign, "f2x3", ek_f_softsign(x[0]))                                \
    X(log_sigmoid, "f2x3", ek_f_log_sigmoid(x[0]))                          \
    X(elu, "f2x3", ek_f_elu(x[0], 0.5))                                     \
    X(celu, "f2x3", ek_f_celu(x[0], 0.5))                                   \
    X(hardshrink, "f2x3", ek_f_hardshrink(x[0], 0.5))                       \
    X(softshrink, "f2x3", ek_f_softshrink(x[0], 0.5))                       \
    X(hardtanh, "f2x3", ek_f_hardtanh(x[0], -0.5, 0.5))                     \
    X(threshold, "f2x3", ek_f_threshold(x[0], 0.1, 2))                      \
    X(prelu, "f2x3 f3", ek_f_prelu(x[0], x[1]))                             \
    X(glu, "f2x4", ek_f_glu(x[0], 1))                                       \
    X(softmin, "f2x3", ek_f_softmin(x[0], 1))                               \
    X(softplus_beta, "f2x3", ek_f_softplus(x[0], .beta = 2))                \
    X(max, "f2x3", ek_max(x[0]))                                            \
    X(min, "f2x3", ek_min(x[0]))                                            \
    X(amax, "f2x3", ek_amax(x[0], EK_DIMS(1)))                              \
    X(amin, "f2x3", ek_amin(x[0], EK_DIMS(0), .keepdim = true))             \
    X(argmin, "f2x3", ek_argmin(x[0], 1, false))                            \
    X(any, "f2x3", ek_any(x[0]))                                            \
    X(all, "f2x3", ek_all(x[0], EK_DIMS(1)))                                \
    X(prod, "f2x3", ek_prod(x[0]))                                          \
    X(nansum, "f2x3", ek_nansum(x[0]))                                      \
    X(logcumsumexp, "f2x3", ek_logcumsumexp(x[0], 1))                       \
    X(cumsum, "f2x3", ek_cumsum(x[0], 1))                                   \
    X(cumprod, "f2x3", ek_cumprod(x[0], 0))                                 \
    X(norm_3, "f2x3", ek_norm(x[0], EK_DIMS(1), .p = 3))                    \
    X(norm_inf, "f2x3", ek_norm(x[0], .p = (double)INFINITY))               \
    X(var_mean, "f2x3", var_and_mean(x[0]))

ROWS_STAGE(ops_activations, ACTIVATIONS);

#define SHAPES(X)                                                                               \
    X(reshape, "f2x3", ek_reshape(x[0], EK_SHAPE(3, -1)))                                       \
    X(reshape_copy, "f2x3", ek_reshape(ek_transpose(x[0], 0, 1), EK_SHAPE(6)))                  \
    X(flatten, "f2x3x2", ek_f_flatten(x[0], 1, -1))                                             \
    X(unsqueeze, "f2x3", ek_unsqueeze(x[0], 1))                                                 \
    X(squeeze, "f2x1x3", ek_squeeze(x[0], 1))                                                   \
    X(permute, "f2x3x1", ek_permute(x[0], EK_SHAPE(2, 0, 1)))                                   \
    X(transpose, "f2x3", ek_transpose(x[0], 0, 1))                                              \
    X(slice, "f5x2", ek_slice(x[0], 0, 1, -1, 2))                                               \
    X(narrow, "f5x2", ek_narrow(x[0], 0, 1, 3))                                                 \
    X(select, "f5x2", ek_select(x[0], 0, 2))                                                    \
    X(expand, "f1x3", ek_expand(x[0], EK_SHAPE(4, 3)))                                          \
    X(contiguous, "f2x3x2x2", ek_contiguous(x[0], EK_CHANNELS_LAST))                            \
    X(clone, "f2x3", ek_clone(x[0]))                                                            \
    X(to_dtype, "f2x3", ek_to_dtype(x[0], EK_F64))                                              \
    X(to_device, "f2x3", ek_to_device(x[0], ek_host(2)))                                        \
    X(cat, "f2x3 f1x3", ek_cat(x, 2, 0))                                                        \
    X(stack, "f2x3 f2x3", ek_stack(x, 2, 1))                                                    \
    X(split, "f5x2", split(x[0]))                                                               \
    X(chunk, "f5x2", chunk(x[0]))                                                               \
    X(split_sizes, "f5x2", split_sizes(x[0]))                                                   \
    X(index_select, "f3x2 i4", ek_index_select(x[0], 0, x[1]))                                  \
    X(gather_dim, "f3x2 i4x2", ek_gather_dim(x[0], 0, x[1]))                                    \
    X(scatter_add_dim, "f4x2 i4x2", ek_scatter_add_dim(x[0], 0, x[1], EK_SHAPE(3, 2)))          \
    X(matmul, "f2x3 f3x4", ek_matmul(x[0], x[1]))                                               \
    X(matmul_batched, "f2x2x3 f3x2", ek_matmul(x[0], x[1]))                                     \
    X(matmul_vector, "f3 f3", ek_matmul(x[0], x[1]))                                            \
    X(matmul_narrow, "f2x3 f3x4", narrow(ek_matmul, x[0], x[1]))                                \
    X(matmul_f64, "f2x3 f3x4", ek_matmul(ek_to_dtype(x[0], EK_F64), ek_to_dtype(x[1], EK_F64))) \
    X(linear, "f2x3 f4x3 f4", ek_f_linear(x[0], x[1], x[2]))                                    \
    X(detach, "f2x3", ek_detach(x[0]))

ROWS_STAGE(ops_shapes, SHAPES);

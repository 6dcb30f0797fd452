/* stage_ops.c: ops.h: arithmetic, activations, reductions, shapes, indexing, matrices. */
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

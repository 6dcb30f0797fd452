/* test_module_errors.c: what modules and operations say of bad calls: a sentence each, that names
 * nothing twice. */
#include "unit.h"

/* Every kind of module, ready to be called. */
static ek_module *module_of(int number)
{
    switch (number) {
        CASE_IS(0, ek_linear(3, 2));
        CASE_IS(1, ek_conv1d(3, 2, 3));
        CASE_IS(2, ek_conv2d(3, 2, 3));
        CASE_IS(3, ek_conv3d(3, 2, 3));
        CASE_IS(4, ek_conv_transpose1d(3, 2, 3));
        CASE_IS(5, ek_conv_transpose2d(3, 2, 3));
        CASE_IS(6, ek_conv_transpose3d(3, 2, 3));
        CASE_IS(7, ek_batch_norm1d(3));
        CASE_IS(8, ek_batch_norm2d(3));
        CASE_IS(9, ek_batch_norm3d(3));
        CASE_IS(10, ek_instance_norm1d(3));
        CASE_IS(11, ek_instance_norm2d(3));
        CASE_IS(12, ek_instance_norm3d(3));
        CASE_IS(13, ek_layer_norm(EK_SHAPE(3)));
        CASE_IS(14, ek_group_norm(3, 3));
        CASE_IS(15, ek_max_pool1d(2));
        CASE_IS(16, ek_max_pool2d(2));
        CASE_IS(17, ek_max_pool3d(2));
        CASE_IS(18, ek_avg_pool1d(2));
        CASE_IS(19, ek_avg_pool2d(2));
        CASE_IS(20, ek_avg_pool3d(2));
        CASE_IS(21, ek_adaptive_avg_pool1d(2));
        CASE_IS(22, ek_adaptive_avg_pool2d(2, 2));
        CASE_IS(23, ek_adaptive_avg_pool3d(2, 2, 2));
        CASE_IS(24, ek_upsample(2, .mode = EK_BILINEAR));
        CASE_IS(25, ek_relu());
        CASE_IS(26, ek_leaky_relu(0.1));
        CASE_IS(27, ek_sigmoid());
        CASE_IS(28, ek_tanh());
        CASE_IS(29, ek_dropout(0.5));
        CASE_IS(30, ek_identity());
        CASE_IS(31, ek_flatten(3, -1));
        CASE_IS(32, ek_sequential(ek_linear(3, 2)));
        CASE_IS(33, ek_checkpoint(ek_linear(3, 2)));
        CASE_IS(34, ek_cross_entropy_loss());
        CASE_IS(35, ek_nll_loss());
        CASE_IS(36, ek_mse_loss());
        CASE_IS(37, ek_l1_loss());
        CASE_IS(38, ek_dropout2d(0.5));
    default:
        return ek_bce_with_logits_loss();
    }
}
enum { MODULES = 40, IDENTITY = 30 };

TEST_LOOP(modules, 0, MODULES)
{
    ek_module *module = module_of(_i);
    assert_made(module);
    /* Integers of one dimension, and calls without or with too many inputs. */
    ek_tensor *bad = ek_ones(EK_SHAPE(5), EK_I64);
    int status = 0;
    for (int way = 0; way < 5; way++) {
        ek_value result = way == 0   ? ek_forward(module, bad)
                          : way == 1 ? ek_forward(module, bad, bad)
                          : way == 2 ? ek_forward(module, bad, bad, bad)
                          : way == 3 ? ek_forward(module, ek_value_none())
                                     : ek_forward(module, (ek_tensor *)NULL);
        if (result.kind != EK_VALUE_ERROR) {
            ck_assert_int_eq(_i, IDENTITY);
            continue;
        }
        status = ek_error_status();
        ck_assert_int_lt(status, 0);
        ck_assert_str_ne(ek_error_message(), "");
        assert_error(status, "");
    }
    ck_assert_int_lt(status, 0);
    ek_module_free(module);
}

/* ---- operations ---- */

typedef ek_tensor *operation(ek_tensor *x, ek_tensor *y);

#define OPERATION(name, call)                               \
    static ek_tensor *name##_of(ek_tensor *x, ek_tensor *y) \
    {                                                       \
        return call;                                        \
    }

#define OPERATIONS(X)                                            \
    X(add, ek_add(x, y))                                         \
    X(sub, ek_sub(x, y))                                         \
    X(mul, ek_mul(x, y))                                         \
    X(div, ek_div(x, y))                                         \
    X(maximum, ek_maximum(x, y))                                 \
    X(minimum, ek_minimum(x, y))                                 \
    X(add_scaled, ek_add_scaled(x, y, 0.5))                      \
    X(add_scalar, ek_add_scalar(x, 0.5))                         \
    X(mul_scalar, ek_mul_scalar(x, 0.5))                         \
    X(pow_scalar, ek_pow_scalar(x, 2))                           \
    X(sqrt, ek_sqrt(x))                                          \
    X(reciprocal, ek_reciprocal(x))                              \
    X(exp, ek_exp(x))                                            \
    X(log, ek_log(x))                                            \
    X(clamp, ek_clamp(x, 0.5, 1))                                \
    X(eq, ek_eq(x, y))                                           \
    X(where, ek_where(x, x, y))                                  \
    X(add_, ek_add_(x, y))                                       \
    X(mul_, ek_mul_(x, y))                                       \
    X(mul_scalar_, ek_mul_scalar_(x, 0.5))                       \
    X(fill_, ek_fill_(x, 0.5))                                   \
    X(copy_, ek_copy_(x, y))                                     \
    X(relu, ek_f_relu(x))                                        \
    X(leaky_relu, ek_f_leaky_relu(x, 0.1))                       \
    X(sigmoid, ek_f_sigmoid(x))                                  \
    X(tanh, ek_f_tanh(x))                                        \
    X(softplus, ek_f_softplus(x))                                \
    X(softmax, ek_f_softmax(x, 0))                               \
    X(log_softmax, ek_f_log_softmax(x, 7))                       \
    X(dropout, ek_f_dropout(x, 0.5, true))                       \
    X(sum, ek_sum(x, EK_DIMS(9)))                                \
    X(mean, ek_mean(x))                                          \
    X(norm, ek_norm(x))                                          \
    X(var, ek_var(x))                                            \
    X(std, ek_std(x))                                            \
    X(max_dim, ek_max_dim(x, 7, false))                          \
    X(min_dim, ek_min_dim(x, 7, false))                          \
    X(argmax, ek_argmax(x, 7, false))                            \
    X(sum_to, ek_sum_to(x, EK_SHAPE(7, 7)))                      \
    X(reshape, ek_reshape(x, EK_SHAPE(7, 7)))                    \
    X(flatten, ek_f_flatten(x, 7, 8))                            \
    X(unsqueeze, ek_unsqueeze(x, 9))                             \
    X(squeeze, ek_squeeze(x, 9))                                 \
    X(permute, ek_permute(x, EK_SHAPE(0, 0)))                    \
    X(transpose, ek_transpose(x, 0, 9))                          \
    X(slice, ek_slice(x, 0, 0, 1, 0))                            \
    X(narrow, ek_narrow(x, 0, 0, 99))                            \
    X(select, ek_select(x, 0, 99))                               \
    X(expand, ek_expand(x, EK_SHAPE(7, 7)))                      \
    X(to_dtype, ek_to_dtype(x, (ek_dtype)99))                    \
    X(cat, ek_cat((ek_tensor *[]){x, y}, 2, 0))                  \
    X(stack, ek_stack((ek_tensor *[]){x, y}, 2, 0))              \
    X(index_select, ek_index_select(x, 0, y))                    \
    X(gather_dim, ek_gather_dim(x, 0, y))                        \
    X(scatter_add_dim, ek_scatter_add_dim(x, 0, y, EK_SHAPE(2))) \
    X(matmul, ek_matmul(x, y))                                   \
    X(linear, ek_f_linear(x, y, NULL))                           \
    X(conv2d, ek_f_conv2d(x, y))                                 \
    X(conv_transpose2d, ek_f_conv_transpose2d(x, y))             \
    X(max_pool2d, ek_f_max_pool2d(x, 2))                         \
    X(avg_pool2d, ek_f_avg_pool2d(x, 2))                         \
    X(adaptive_avg_pool2d, ek_f_adaptive_avg_pool2d(x, 2, 2))    \
    X(upsample, ek_f_upsample(x, 2, 2, EK_NEAREST, false))       \
    X(batch_norm, ek_f_batch_norm(x, y))                         \
    X(layer_norm, ek_f_layer_norm(x, 1, y, NULL, 0))             \
    X(group_norm, ek_f_group_norm(x, 1, y, NULL, 0))             \
    X(instance_norm, ek_f_instance_norm(x, y, NULL, 0))          \
    X(nll_loss, ek_f_nll_loss(x, y))                             \
    X(cross_entropy, ek_f_cross_entropy(x, y))                   \
    X(mse_loss, ek_f_mse_loss(x, y))                             \
    X(l1_loss, ek_f_l1_loss(x, y))                               \
    X(bce_with_logits, ek_f_bce_with_logits(x, y))               \
    X(target_weight, ek_target_weight(x, y, 0, EK_F32))          \
    X(full, ek_full(0.5, EK_SHAPE(2), EK_U8))                    \
    X(arange, ek_arange(-1, EK_F32, ek_cpu()))

OPERATIONS(OPERATION)
#define ROW(name, call) {#name, name##_of},
static const struct {
    const char *name;
    operation *function;
} operations[] = {OPERATIONS(ROW)};
enum { ALL_OPERATIONS = sizeof operations / sizeof *operations };

TEST_LOOP(functions, 0, ALL_OPERATIONS)
{
    int refused = 0;
    for (int way = 0; way < 3; way++) {
        ek_tensor *x = way == 0 ? NULL : ek_ones(EK_SHAPE(5), way == 1 ? EK_I64 : EK_F32);
        ek_tensor *y = way == 0 ? NULL : ek_ones(EK_SHAPE(3, 3), way == 1 ? EK_F64 : EK_U8);
        if (operations[_i].function(x, y)) {
            ck_assert_int_eq(ek_error_status(), 0);
            continue;
        }
        refused++;
        int status = ek_error_status();
        ck_assert_msg(status < 0, "%s failed without saying why", operations[_i].name);
        assert_error(status, "");
    }
    ck_assert_msg(refused > 0, "%s took everything", operations[_i].name);
}

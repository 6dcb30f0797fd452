/* Every operation's output and gradients against PyTorch, in f64 and f32, on cpu and on a host
 * device; and against finite differences of first and second order. */
#include "check_op.h"

#include "home.h"

#define OP(name, expression)                                           \
    static ek_tensor *name(ek_tensor *const *x, int count, void *user) \
    {                                                                  \
        (void)count, (void)user;                                       \
        return expression;                                             \
    }

OP(add, ek_add(x[0], x[1]))
OP(sub, ek_sub(x[0], x[1]))
OP(mul, ek_mul(x[0], x[1]))
OP(mul_self, ek_mul(x[0], x[0]))
OP(divide, ek_div(x[0], x[1]))
OP(maximum, ek_maximum(x[0], x[1]))
OP(minimum, ek_minimum(x[0], x[1]))
OP(add_scaled, ek_add_scaled(x[0], x[1], -2.5))
OP(add_scalar, ek_add_scalar(x[0], 1.5))
OP(mul_scalar, ek_mul_scalar(x[0], -1.5))
OP(pow_3, ek_pow_scalar(x[0], 3))
OP(pow_half, ek_pow_scalar(x[0], 0.5))
OP(pow_2, ek_pow_scalar(x[0], 2))
OP(pow_0, ek_pow_scalar(x[0], 0))
OP(pow_minus_1, ek_pow_scalar(x[0], -1))
OP(neg, ek_neg(x[0]))
OP(absolute, ek_abs(x[0]))
OP(root, ek_sqrt(x[0]))
OP(square, ek_square(x[0]))
OP(reciprocal, ek_reciprocal(x[0]))
OP(exponential, ek_exp(x[0]))
OP(logarithm, ek_log(x[0]))
OP(sign, ek_sign(x[0]))
OP(clamp, ek_clamp(x[0], -0.7, 0.9))
OP(clamp_at_ends, ek_clamp(x[0], -1, 2))
OP(where, ek_where(x[0], x[1], x[2]))
OP(relu, ek_f_relu(x[0]))
OP(leaky_relu, ek_f_leaky_relu(x[0], 0.2))
OP(sigmoid, ek_f_sigmoid(x[0]))
OP(hyperbolic, ek_f_tanh(x[0]))
OP(softplus, ek_f_softplus(x[0]))
OP(sum, ek_sum(x[0]))
OP(sum_dims, ek_sum(x[0], .dims = {0, 2}, .dim_count = 2))
OP(sum_keepdim, ek_sum(x[0], .dims = {1}, .dim_count = 1, .keepdim = true))
OP(mean, ek_mean(x[0]))
OP(mean_dims, ek_mean(x[0], .dims = {0, -1}, .dim_count = 2, .keepdim = true))
OP(max_dim, ek_max_dim(x[0], 1, false))
OP(max_first, ek_max_dim(x[0], 0, false))
OP(min_dim, ek_min_dim(x[0], -1, true))
OP(sum_to, ek_sum_to(x[0], EK_SHAPE(3, 1)))
OP(reshape, ek_reshape(x[0], EK_SHAPE(3, -1)))
OP(reshape_copy, ek_reshape(ek_permute(x[0], EK_SHAPE(2, 0, 1)), EK_SHAPE(4, 6)))
OP(flatten, ek_f_flatten(x[0], 1, 2))
OP(unsqueeze, ek_unsqueeze(x[0], 1))
OP(squeeze, ek_squeeze(x[0], 1))
OP(permute, ek_permute(x[0], EK_SHAPE(2, 0, 1)))
OP(transpose, ek_transpose(x[0], 0, -1))
OP(slice, ek_slice(x[0], 1, 1, 8, 3))
OP(slice_negative, ek_slice(x[0], 0, -4, -1, 1))
OP(slice_empty, ek_slice(x[0], 0, 4, 2, 1))
OP(narrow, ek_narrow(x[0], 1, 2, 3))
OP(select_one, ek_select(x[0], 1, -2))
OP(expand, ek_expand(x[0], EK_SHAPE(2, 3, 4)))
OP(contiguous, ek_contiguous(x[0], EK_CHANNELS_LAST))
OP(clone, ek_clone(x[0]))
OP(cat, ek_cat(x, count, 1))
OP(cat_first, ek_cat(x, count, 0))
OP(stack, ek_stack(x, count, -1))
OP(index_select, ek_index_select(x[0], 1, x[1]))
OP(gather_dim, ek_gather_dim(x[0], 0, x[1]))
OP(scatter_add_dim, ek_scatter_add_dim(x[0], 0, x[1], EK_SHAPE(4, 3)))

/* The last piece three times and the first: the others get no gradient. */
static ek_tensor *pieces(ek_tensor *const *out, int count)
{
    if (count < 1)
        return NULL;
    return ek_cat((ek_tensor *const[]){ek_mul_scalar(out[count - 1], 3), out[0]}, 2, 0);
}

static ek_tensor *split(ek_tensor *const *x, int count, void *user)
{
    (void)count, (void)user;
    ek_tensor *out[8];
    return pieces(out, ek_split(x[0], 3, 0, out, 8));
}

static ek_tensor *chunk(ek_tensor *const *x, int count, void *user)
{
    (void)count, (void)user;
    ek_tensor *out[8];
    return pieces(out, ek_chunk(x[0], 4, 0, out, 8));
}

static ek_tensor *split_sizes(ek_tensor *const *x, int count, void *user)
{
    (void)count, (void)user;
    ek_tensor *out[3];
    const int64_t sizes[] = {1, 4, 2};
    return ek_split_sizes(x[0], sizes, 3, 0, out) < 0 ? NULL : pieces(out, 3);
}

#define TWICE ek_mul_scalar(x[0], 2)
OP(add_in_place, ek_add_(TWICE, x[1]))
OP(add_scaled_in_place, ek_add_scaled_(TWICE, x[1], -2))
OP(mul_in_place, ek_mul_(TWICE, x[1]))
OP(mul_scalar_in_place, ek_mul_scalar_(TWICE, -3))
OP(fill_in_place, ek_add_(ek_fill_(TWICE, 3), ek_scalar(1, ek_tensor_dtype(x[0]), test_home())))
OP(copy_in_place, ek_copy_(TWICE, x[1]))

static const op_case cases[] = {
    {"add", add, false},
    {"add_scalar_tensor", add, false},
    {"sub", sub, false},
    {"mul", mul, false},
    {"mul_self", mul_self, false},
    {"div", divide, false},
    {"maximum", maximum, false},
    {"maximum_ties", maximum, true},
    {"minimum", minimum, false},
    {"minimum_ties", minimum, true},
    {"add_scaled", add_scaled, false},
    {"add_scalar", add_scalar, false},
    {"mul_scalar", mul_scalar, false},
    {"pow_3", pow_3, false},
    {"pow_half", pow_half, false},
    {"pow_2_at_0", pow_2, false},
    {"pow_0", pow_0, false},
    {"pow_minus_1", pow_minus_1, false},
    {"neg", neg, false},
    {"abs", absolute, false},
    {"abs_at_0", absolute, true},
    {"sqrt", root, false},
    {"square", square, false},
    {"reciprocal", reciprocal, false},
    {"exp", exponential, false},
    {"log", logarithm, false},
    {"sign", sign, true},
    {"clamp", clamp, false},
    {"clamp_at_ends", clamp_at_ends, true},
    {"where", where, false},
    {"relu", relu, false},
    {"relu_at_0", relu, true},
    {"leaky_relu", leaky_relu, false},
    {"leaky_relu_at_0", leaky_relu, true},
    {"sigmoid", sigmoid, false},
    {"tanh", hyperbolic, false},
    {"softplus", softplus, false},
    {"softplus_far", softplus, true},
    {"sum", sum, false},
    {"sum_dims", sum_dims, false},
    {"sum_keepdim", sum_keepdim, false},
    {"mean", mean, false},
    {"mean_dims", mean_dims, false},
    {"max_dim", max_dim, false},
    {"max_dim_ties", max_first, true},
    {"min_dim", min_dim, false},
    {"sum_to", sum_to, false},
    {"reshape", reshape, false},
    {"reshape_copy", reshape_copy, false},
    {"flatten", flatten, false},
    {"unsqueeze", unsqueeze, false},
    {"squeeze", squeeze, false},
    {"permute", permute, false},
    {"transpose", transpose, false},
    {"slice", slice, false},
    {"slice_negative", slice_negative, false},
    {"slice_empty", slice_empty, true},
    {"narrow", narrow, false},
    {"select", select_one, false},
    {"expand", expand, false},
    {"contiguous", contiguous, false},
    {"clone", clone, false},
    {"cat", cat, false},
    {"cat_first", cat_first, false},
    {"stack", stack, false},
    {"split", split, false},
    {"chunk", chunk, false},
    {"split_sizes", split_sizes, false},
    {"index_select", index_select, false},
    {"gather_dim", gather_dim, false},
    {"scatter_add_dim", scatter_add_dim, false},
    {"add_", add_in_place, false},
    {"add_scaled_", add_scaled_in_place, false},
    {"mul_", mul_in_place, false},
    {"mul_scalar_", mul_scalar_in_place, false},
    {"fill_", fill_in_place, true},
    {"copy_", copy_in_place, false},
};
enum { CASES = sizeof cases / sizeof *cases };

TEST_LOOP(f64_is_pytorch, 0, CASES)
{
    check_golden(&cases[_i], EK_F64, test_home(), 1e-12);
}

/* One rounding of the inputs and a few of f32 each; values are of order 1 to 30. */
TEST_LOOP(f32_on_a_host_device_is_pytorch, 0, CASES)
{
    check_golden(&cases[_i], EK_F32, test_device(0), 2e-6);
}

TEST_LOOP(differences_agree, 0, CASES)
{
    if (!cases[_i].kinked)
        check_differences(&cases[_i]);
}

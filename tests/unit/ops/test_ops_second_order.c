/* Finite differences of first and second order for what other tests of operations check at one
 * order or one option only: broadcasting, repeated positions, dtypes and devices crossed, fixed
 * masks, every combination of a loss's options; and penalties on gradients. */
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kit/devices.h"
#include "kit/tensors.h"

#include "home.h"

FIXTURE(two_devices, shut_down)

/* ---- broadcasting: (3, 1) with (4), and with a number ---- */

#define OP(name, expression)                                           \
    static ek_tensor *name(ek_tensor *const *x, int count, void *user) \
    {                                                                  \
        (void)count, (void)user;                                       \
        return expression;                                             \
    }

static ek_tensor *greater(ek_tensor *x, ek_tensor *y)
{
    return ek_gt(ek_detach(x), ek_detach(y));
}

OP(add, ek_square(ek_add(x[0], x[1])))
OP(sub, ek_square(ek_sub(x[0], x[1])))
OP(mul, ek_mul(x[0], x[1]))
OP(divide, ek_div(x[0], x[1]))
OP(maximum, ek_square(ek_maximum(x[0], x[1])))
OP(minimum, ek_square(ek_minimum(x[0], x[1])))
OP(add_scaled, ek_square(ek_add_scaled(x[0], x[1], -1.5)))
OP(where, ek_square(ek_where(greater(x[0], x[1]), x[0], x[1])))
OP(expand, ek_square(ek_expand(x[0], EK_SHAPE(2, 3, 4))))
OP(sum_to, ek_square(ek_sum_to(ek_mul(x[0], x[1]), EK_SHAPE(1, 4))))

static ek_check_function *const broadcasts[] = {add,     sub,        mul,   divide, maximum,
                                                minimum, add_scaled, where, expand, sum_to};
enum { BROADCASTS = sizeof broadcasts / sizeof *broadcasts };

TEST_LOOP(broadcasting, 0, BROADCASTS)
{
    ek_tensor *inputs[] = {leaf(1, EK_SHAPE(3, 1)), leaf(2, EK_SHAPE(4))};
    check_gradients(broadcasts[_i], inputs, 2, NULL);
    inputs[0] = leaf(3, EK_SHAPE(3, 4));
    check_gradients(broadcasts[_i], inputs, 2, NULL);
    /* A number on cpu meets a tensor elsewhere. */
    ek_tensor *mixed[] = {leaf_on(4, EK_SHAPE(2, 4), test_device(0)), leaf(5, ek_scalar_shape())};
    if (broadcasts[_i] != expand && broadcasts[_i] != where && broadcasts[_i] != sum_to)
        check_gradients(broadcasts[_i], mixed, 2, NULL);
}

/* ---- in place, on a result of its own, with what is written broadcast, twice ---- */

#define OWN ek_mul(x[0], x[0])
OP(add_in_place, ek_square(ek_add_(ek_add_(OWN, x[1]), x[1])))
OP(add_scaled_in_place, ek_square(ek_add_scaled_(OWN, x[1], -2)))
OP(mul_in_place, ek_mul_(ek_mul_(OWN, x[1]), x[1]))
OP(mul_scalar_in_place, ek_square(ek_mul_scalar_(ek_mul_scalar_(OWN, 3), -0.5)))
OP(fill_in_place, ek_mul(ek_add_(ek_fill_(OWN, 3), x[1]), x[0]))
OP(copy_in_place, ek_mul(ek_copy_(OWN, x[1]), x[0]))

static ek_check_function *const writers[] = {add_in_place,  add_scaled_in_place,
                                             mul_in_place,  mul_scalar_in_place,
                                             fill_in_place, copy_in_place};
enum { WRITERS = sizeof writers / sizeof *writers };

TEST_LOOP(in_place, 0, WRITERS)
{
    ek_tensor *inputs[] = {leaf(1, EK_SHAPE(3, 4)), leaf(2, EK_SHAPE(4))};
    check_gradients(writers[_i], inputs, 2, NULL);
    inputs[1] = leaf(3, EK_SHAPE(3, 4));
    check_gradients(writers[_i], inputs, 2, NULL);
}

/* ---- positions that repeat ---- */

static ek_tensor *positions(const int64_t *values, ek_shape shape)
{
    return ek_from_data(values, shape, EK_I64);
}

static ek_tensor *pick(ek_tensor *const *x, int count, void *user)
{
    const int *dim = user;
    (void)count;
    ek_tensor *index = positions((const int64_t[]){2, 0, 2, 2}, EK_SHAPE(4));
    return ek_square(ek_index_select(x[0], *dim, index));
}

static ek_tensor *gather(ek_tensor *const *x, int count, void *user)
{
    const int *dim = user;
    (void)count;
    ek_tensor *index = positions((const int64_t[]){2, 0, 1, 2, 2, 0}, EK_SHAPE(2, 3));
    return ek_square(ek_gather_dim(x[0], *dim, index));
}

static ek_tensor *scatter_add(ek_tensor *const *x, int count, void *user)
{
    const int *dim = user;
    (void)count;
    ek_tensor *index = positions((const int64_t[]){1, 0, 1, 1, 1, 0}, EK_SHAPE(2, 3));
    return ek_square(ek_scatter_add_dim(ek_slice(x[0], 0, 0, 2, 1), *dim, index, EK_SHAPE(2, 3)));
}

TEST_LOOP(repeated_positions, 0, 2)
{
    ek_tensor *x = leaf(1, EK_SHAPE(3, 3));
    int dim = _i;
    check_gradients(pick, &x, 1, &dim);
    check_gradients(gather, &x, 1, &dim);
    check_gradients(scatter_add, &x, 1, &dim);
}

/* ---- across dtypes and devices ---- */

OP(there_and_back,
   ek_mul(ek_to_device(ek_square(ek_to_device(x[0], test_device(1))), test_home()), x[0]))
OP(copied_there, ek_mul(ek_copy_(ek_to_device(ek_square(x[1]), test_device(1)), x[0]),
                        ek_to_device(x[1], test_device(1))))
OP(through_f32, ek_to_dtype(ek_mul(ek_to_dtype(x[0], EK_F32), ek_to_dtype(x[1], EK_F32)), EK_F64))
OP(copied_through_f32,
   ek_square(ek_copy_(ek_mul_scalar(x[0], 2), ek_square(ek_to_dtype(x[1], EK_F32)))))

TEST(devices_and_dtypes_crossed)
{
    ek_tensor *inputs[] = {leaf(1, EK_SHAPE(2, 3)), leaf(2, EK_SHAPE(2, 3))};
    check_gradients(there_and_back, inputs, 1, NULL);
    check_gradients(copied_there, inputs, 2, NULL);
    /* f32 rounds to 6e-8; steps of 0.01 keep that to 6e-6 of a difference. */
    ek_check_function *const narrow[] = {through_f32, copied_through_f32};
    for (int i = 0; i < 2; i++) {
        assert_ok(ek_gradcheck(narrow[i], inputs, 2, .epsilon = 1e-2, .absolute_tolerance = 2e-3,
                               .relative_tolerance = 2e-3));
        assert_ok(ek_gradgradcheck(narrow[i], inputs, 2, .epsilon = 1e-2,
                                   .absolute_tolerance = 5e-3, .relative_tolerance = 5e-3));
    }
}

/* ---- dropout with the same mask each time ---- */

static ek_tensor *dropped(ek_tensor *const *x, int count, void *user)
{
    const double *p = user;
    (void)count;
    ek_manual_seed(31);
    return ek_f_dropout(ek_square(x[0]), *p, true);
}

TEST_LOOP(dropout_with_a_fixed_mask, 0, 3)
{
    ek_tensor *x = leaf(1, EK_SHAPE(4, 3));
    static const double shares[] = {0, 0.4, 1};
    double p = shares[_i];
    check_gradients(dropped, &x, 1, &p);
}

/* ---- losses ---- */

typedef struct loss_case {
    ek_reduction reduction;
    bool weighted, ignores, spatial;
    double smoothing;
} loss_case;

/* Inputs: scores. Targets 0 and 3 and 1, of which one may be ignored. */
static ek_loss_options class_options(ek_tensor *scores, const loss_case *c)
{
    static const int64_t targets[] = {0, 3, 1, 3};
    static const double weights[] = {0.5, 2, 1, 1.5};
    return (ek_loss_options){
        .input = scores,
        .target = c->spatial ? positions(targets, EK_SHAPE(2, 2)) : positions(targets, EK_SHAPE(4)),
        .weight = c->weighted ? tensor_of(weights, EK_SHAPE(4), EK_F64, test_home()) : NULL,
        .reduction = c->reduction,
        .ignore_index = c->ignores ? 3 : 0,
        .label_smoothing = c->smoothing};
}

static ek_tensor *cross_entropy(ek_tensor *const *x, int count, void *user)
{
    (void)count;
    return ek_f_cross_entropy_with(class_options(x[0], user));
}

static ek_tensor *nll(ek_tensor *const *x, int count, void *user)
{
    (void)count;
    return ek_f_nll_loss_with(class_options(ek_f_log_softmax(x[0], 1), user));
}

TEST_LOOP(class_losses_with_every_option, 0, 3)
{
    for (int bits = 0; bits < 16; bits++) {
        ek_scope scope = ek_scope_begin();
        loss_case c = {(ek_reduction)_i, bits & 1, bits & 2, bits & 4, bits & 8 ? 0.2 : 0};
        ek_tensor *x = leaf(7, c.spatial ? EK_SHAPE(2, 4, 2) : EK_SHAPE(4, 4));
        check_gradients(cross_entropy, &x, 1, &c);
        c.smoothing = 0;
        if (bits < 8)
            check_gradients(nll, &x, 1, &c);
        ek_scope_end(&scope);
    }
}

static ek_tensor *bce(ek_tensor *const *x, int count, void *user)
{
    const loss_case *c = user;
    return ek_f_bce_with_logits(x[0], ek_f_sigmoid(x[1]), .weight = c->weighted ? x[2] : NULL,
                                .pos_weight = c->ignores ? x[count - 1] : NULL,
                                .reduction = c->reduction);
}

OP(mse_none, ek_f_mse_loss(x[0], x[1], .reduction = EK_NONE))
OP(mse_sum, ek_f_mse_loss(x[0], x[1], .reduction = EK_SUM))
OP(mse_mean, ek_f_mse_loss(x[0], x[1]))
OP(l1_none, ek_square(ek_f_l1_loss(x[0], x[1], .reduction = EK_NONE)))
OP(l1_sum, ek_square(ek_f_l1_loss(x[0], x[1], .reduction = EK_SUM)))
OP(l1_mean, ek_square(ek_f_l1_loss(x[0], x[1])))

/* Weights are varied too. */
TEST_LOOP(pair_losses_with_every_option, 0, 3)
{
    static ek_check_function *const pairs[] = {mse_mean, mse_sum, mse_none,
                                               l1_mean,  l1_sum,  l1_none};
    ek_tensor *inputs[] = {leaf(1, EK_SHAPE(2, 3)), leaf(2, EK_SHAPE(2, 3)), leaf(3, EK_SHAPE(3)),
                           leaf(4, EK_SHAPE(3))};
    check_gradients(pairs[_i], inputs, 2, NULL);
    check_gradients(pairs[_i + 3], inputs, 2, NULL);
    for (int bits = 0; bits < 4; bits++) {
        loss_case c = {.reduction = (ek_reduction)_i, .weighted = bits & 1, .ignores = bits & 2};
        check_gradients(bce, inputs, bits ? 4 : 2, &c);
    }
}

/* ---- penalties on gradients of what is linear in pieces ---- */

typedef ek_tensor *activation(ek_tensor *x);

static ek_tensor *leaky(ek_tensor *x)
{
    return ek_f_leaky_relu(x, 0.2);
}

static ek_tensor *clamped(ek_tensor *x)
{
    return ek_clamp(x, -0.4, 0.5);
}

static ek_tensor *positive(ek_tensor *x)
{
    return ek_maximum(x, ek_zeros(ek_tensor_shape(x), EK_F64));
}

static ek_tensor *largest(ek_tensor *x)
{
    return ek_max_dim(x, 1, true);
}

static activation *const pieces[] = {ek_f_relu, leaky, ek_abs, clamped, positive, largest};
enum { PIECES = sizeof pieces / sizeof *pieces };

/* Inputs: x, both weights, the first bias. mean((|dD/dx| - 1)^2) */
static ek_tensor *penalty(ek_tensor *const *x, int count, void *user)
{
    activation *const *act = user;
    (void)count;
    ek_tensor *hidden = (*act)(ek_f_linear(x[0], x[1], x[3]));
    ek_tensor *score = ek_sum(ek_mul(hidden, x[2])), *gradient;
    if (ek_grad(.outputs = &score, .output_count = 1, .inputs = x, .input_count = 1,
                .gradients = &gradient, .create_graph = true) < 0)
        return NULL;
    ek_tensor *norm = ek_norm(gradient, .dims = {1}, .dim_count = 1);
    return ek_mean(ek_square(ek_add_scalar(norm, -1)));
}

TEST_LOOP(penalties_of_piecewise_linear_critics, 0, PIECES)
{
    activation *act = pieces[_i];
    ek_tensor *inputs[] = {leaf(1, EK_SHAPE(4, 3)), leaf(2, EK_SHAPE(5, 3)), leaf(3, EK_SHAPE(1)),
                           leaf(4, EK_SHAPE(5))};
    check_gradients(penalty, inputs, 4, &act);
    ek_tensor *loss = penalty(inputs, 4, &act);
    assert_ok(ek_backward(loss));
    assert_made(ek_tensor_grad(inputs[1]));
    assert_made(ek_tensor_grad(inputs[2]));
    /* Where the pieces end does not depend on anything smoothly. */
    ck_assert_ptr_null(ek_tensor_grad(inputs[3]));
    loss = penalty(inputs, 4, &act);
    ek_tensor *gradients[2];
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = inputs + 1, .input_count = 2,
                      .gradients = gradients));
    assert_close(gradients[0], ek_tensor_grad(inputs[1]), 1e-14, 0);
}

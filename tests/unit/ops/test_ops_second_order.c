/* Finite differences of first and second order of what has more options than a row of the table:
 * fixed masks, every combination of a loss's options; and penalties on gradients. */
#include "kit/devices.h"
#include "kit/tensors.h"
#include "ops/norm.h"

#include "home.h"

FIXTURE(two_devices, NULL)

static ek_tensor *positions(const int64_t *values, ek_shape shape)
{
    return ek_from_data(values, shape, EK_I64);
}

/* ---- dropout with the same mask each time ---- */

static ek_tensor *dropped(ek_tensor *const *x, int count, void *user)
{
    const double *p = user;
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
static ek_cross_entropy_options class_options(ek_tensor *scores, const loss_case *c)
{
    static const int64_t targets[] = {0, 3, 1, 3};
    static const double weights[] = {0.5, 2, 1, 1.5};
    return EK_OPTIONS(ek_cross_entropy_options, .input = scores,
                      .target = c->spatial ? positions(targets, EK_SHAPE(2, 2))
                                           : positions(targets, EK_SHAPE(4)),
                      .weight =
                          c->weighted ? tensor_of(weights, EK_SHAPE(4), EK_F64, test_home()) : NULL,
                      .reduction = c->reduction, .ignore_index = c->ignores ? 3 : -100,
                      .label_smoothing = c->smoothing);
}

static ek_tensor *cross_entropy(ek_tensor *const *x, int count, void *user)
{
    return ek_f_cross_entropy_with(class_options(x[0], user));
}

static ek_tensor *nll(ek_tensor *const *x, int count, void *user)
{
    const ek_cross_entropy_options o = class_options(ek_f_log_softmax(x[0], 1), user);
    return ek_f_nll_loss(o.input, o.target, o.weight, o.reduction, o.ignore_index);
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

/* Weights are varied too. */
TEST_LOOP(weighted_losses_with_every_option, 0, 3)
{
    ek_tensor *inputs[] = {leaf(1, EK_SHAPE(2, 3)), leaf(2, EK_SHAPE(2, 3)), leaf(3, EK_SHAPE(3)),
                           leaf(4, EK_SHAPE(3))};
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
    ek_tensor *hidden = (*act)(ek_f_linear(x[0], x[1], x[3]));
    ek_tensor *score = ek_sum(ek_mul(hidden, x[2])), *gradient;
    if (ek_grad(.outputs = &score, .output_count = 1, .inputs = x, .input_count = 1,
                .gradients = &gradient, .create_graph = true) < 0)
        return NULL;
    ek_tensor *norm = ek_norm(gradient, EK_DIMS(1));
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

/* ---- a sum and its layer norm ---- */

static ek_tensor *sum_and_norm(ek_tensor *const *x, int count, void *user)
{
    ek_tensor *total;
    (void)count, (void)user;
    ek_tensor *y = ek_layer_norm_added(&total, x[0], x[1], 1, x[2], x[3], 1e-5);
    return y ? ek_mul(y, total) : NULL;
}

TEST(gradients_of_a_sum_and_its_layer_norm)
{
    ek_tensor *x[] = {leaf(1, EK_SHAPE(3, 4)), leaf(2, EK_SHAPE(3, 4)), leaf(3, EK_SHAPE(4)),
                      leaf(4, EK_SHAPE(4))};
    check_gradients(sum_and_norm, x, 4, NULL);
}

/* The fused step of an LSTM: what the operations that it stands for give, in every dtype, and its
 * derivatives. Networks as PyTorch's are in nn/test_recurrent.c. */
#include "evenkeel/autograd.h"
#include "kit/devices.h"
#include "kit/tensors.h"
#include "ops/recurrent.h"

#include "home.h"

FIXTURE(two_devices, shut_down)

/* More than a tile, and no multiple of a vector. */
enum { SAMPLES = 3, HIDDEN = 517 };

/* The inputs: x (N, 4 H), weight (4 H, H), and h and c (N, H). */
typedef struct step {
    ek_tensor *in[4];
} step;

static step step_of(ek_dtype dtype, int64_t hidden)
{
    const ek_shape shapes[] = {EK_SHAPE(SAMPLES, 4 * hidden), EK_SHAPE(4 * hidden, hidden),
                               EK_SHAPE(SAMPLES, hidden), EK_SHAPE(SAMPLES, hidden)};
    step made;
    for (int i = 0; i < 4; i++) {
        made.in[i] = ek_mul_scalar(normal((uint64_t)i + 1, shapes[i], dtype, test_home()),
                                   i == 1 ? 0.05 : 1);
        assert_made(made.in[i]);
        assert_ok(ek_tensor_set_requires_grad(made.in[i], true));
    }
    return made;
}

static void fused(ek_tensor *const *in, ek_tensor **h, ek_tensor **c)
{
    const ek_recurrent_weights weights = {.weight_hh = in[1]};
    ek_recurrent_state state = {in[2], in[3]};
    assert_ok(ek_recurrent_step(EK_RECURRENCE_LSTM, in[0], &weights, NULL, &state));
    *h = state.h;
    *c = state.c;
}

static void composed(ek_tensor *const *in, ek_tensor **h, ek_tensor **c)
{
    ek_tensor *gates[4];
    ek_tensor *sums = ek_add(ek_f_linear(in[2], in[1], NULL), in[0]);
    ck_assert_int_eq(ek_chunk(sums, 4, 1, gates, 4), 4);
    *c = ek_add(ek_mul(ek_f_sigmoid(gates[1]), in[3]),
                ek_mul(ek_f_sigmoid(gates[0]), ek_f_tanh(gates[2])));
    *h = ek_mul(ek_f_sigmoid(gates[3]), ek_f_tanh(*c));
}

/* One of h and c, or both, are used: gradients of the other are missing. */
TEST_LOOP(equals_its_composition, 0, 12)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
    static const double near[] = {1e-5, 1e-13, 0.03, 0.005};
    const int type = _i / 3, use = _i % 3;
    step own = step_of(dtypes[type], HIDDEN), other = step_of(dtypes[type], HIDDEN);
    ek_tensor *h[2], *c[2];
    fused(own.in, &h[0], &c[0]);
    composed(other.in, &h[1], &c[1]);
    assert_close(h[0], h[1], near[type], near[type]);
    assert_close(c[0], c[1], near[type], near[type]);
    for (int i = 0; i < 2; i++) {
        ek_tensor *of_h = ek_sum(ek_square(h[i])), *of_c = ek_sum(ek_square(c[i]));
        assert_ok(ek_backward(use == 0 ? of_h : use == 1 ? of_c : ek_add(of_h, of_c)));
    }
    for (int i = 0; i < 4; i++)
        assert_close_norm(ek_tensor_grad(own.in[i]), ek_tensor_grad(other.in[i]), near[type]);
}

static ek_tensor *square_of(ek_tensor *const *x, int count, void *user)
{
    const int use = *(const int *)user;
    ek_tensor *h, *c;
    (void)count;
    fused(x, &h, &c);
    return use == 0 ? ek_square(h) : use == 1 ? ek_square(c) : ek_mul(ek_square(h), c);
}

TEST_LOOP(derivatives_are_those_of_differences, 0, 3)
{
    step own = step_of(EK_F64, 2);
    int use = _i;
    check_gradients(square_of, own.in, 4, &use);
}

/* The gradient of a gradient's square, against that of the composition. */
TEST(third_derivatives_equal_those_of_the_composition)
{
    step own = step_of(EK_F64, 3), other = step_of(EK_F64, 3);
    for (int i = 0; i < 2; i++) {
        ek_tensor *const *in = i == 0 ? own.in : other.in;
        ek_tensor *h, *c, *first[4], *second[4];
        (i == 0 ? fused : composed)(in, &h, &c);
        ek_tensor *y = ek_sum(ek_mul(ek_square(h), c));
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = in, .input_count = 4,
                          .gradients = first, .create_graph = true));
        y = ek_sum(ek_square(first[0]));
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = in, .input_count = 4,
                          .gradients = second, .create_graph = true));
        assert_ok(ek_backward(ek_add(ek_sum(ek_square(second[0])), ek_sum(ek_square(second[3])))));
    }
    for (int i = 0; i < 4; i++)
        assert_close_norm(ek_tensor_grad(own.in[i]), ek_tensor_grad(other.in[i]), 1e-11);
}

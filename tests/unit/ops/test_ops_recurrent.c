/* The fused steps of recurrent networks: what the operations that they stand for give, in every
 * dtype, and their derivatives. Networks as PyTorch's are in nn/test_recurrent.c. */
#include "kit/devices.h"
#include "kit/tensors.h"
#include "ops/recurrent.h"

#include "home.h"

FIXTURE(two_devices, NULL)

/* More than a tile, and no multiple of a vector. */
enum { SAMPLES = 3, HIDDEN = 517, KINDS = 4 };

/* The inputs of a step with G gates: x (N, G H), weight (G H, H), and h and c (N, H). */
typedef struct step {
    ek_recurrence kind;
    ek_tensor *in[4];
} step;

static step step_of(ek_recurrence kind, ek_dtype dtype, int64_t hidden)
{
    const int64_t rows = ek_recurrence_gates(kind) * hidden;
    const ek_shape shapes[] = {EK_SHAPE(SAMPLES, rows), EK_SHAPE(rows, hidden),
                               EK_SHAPE(SAMPLES, hidden), EK_SHAPE(SAMPLES, hidden)};
    step made = {.kind = kind};
    for (int i = 0; i < 4; i++) {
        made.in[i] = ek_mul_scalar(normal((uint64_t)i + 1, shapes[i], dtype, test_home()),
                                   i == 1 ? 0.05 : 1);
        assert_made(made.in[i]);
        assert_ok(ek_tensor_set_requires_grad(made.in[i], true));
    }
    return made;
}

/* An LSTM has two results, h and c, others h, which stands for both here. */
static void fused(ek_recurrence kind, ek_tensor *const *in, ek_tensor **h, ek_tensor **c)
{
    const ek_recurrent_weights weights = {.weight_hh = in[1]};
    ek_recurrent_state state = {in[2], kind == EK_RECURRENCE_LSTM ? in[3] : NULL};
    assert_ok(ek_recurrent_step(kind, in[0], &weights, NULL, &state));
    *h = state.h;
    *c = kind == EK_RECURRENCE_LSTM ? state.c : state.h;
}

static void composed(ek_recurrence kind, ek_tensor *const *in, ek_tensor **h, ek_tensor **c)
{
    ek_tensor *gates[4], *parts[3], *product = ek_f_linear(in[2], in[1], NULL),
                                    *sums = ek_add(product, in[0]);
    if (kind == EK_RECURRENCE_LSTM) {
        ck_assert_int_eq(ek_chunk(sums, 4, 1, gates, 4), 4);
        *c = ek_add(ek_mul(ek_f_sigmoid(gates[1]), in[3]),
                    ek_mul(ek_f_sigmoid(gates[0]), ek_f_tanh(gates[2])));
        *h = ek_mul(ek_f_sigmoid(gates[3]), ek_f_tanh(*c));
        return;
    }
    *h = kind == EK_RECURRENCE_RELU ? ek_f_relu(sums) : ek_f_tanh(sums);
    if (kind == EK_RECURRENCE_GRU) {
        ck_assert_int_eq(ek_chunk(sums, 3, 1, gates, 3), 3);
        ck_assert_int_eq(ek_chunk(product, 3, 1, parts, 3), 3);
        ck_assert_int_eq(ek_chunk(in[0], 3, 1, gates, 3), 3);
        ek_tensor *r = ek_f_sigmoid(ek_add(gates[0], parts[0])),
                  *z = ek_f_sigmoid(ek_add(gates[1], parts[1])),
                  *n = ek_f_tanh(ek_add(gates[2], ek_mul(r, parts[2])));
        *h = ek_add(ek_mul(ek_sub(in[2], n), z), n);
    }
    *c = *h;
}

/* One of h and c, or both, are used: gradients of the other are missing. */
TEST_LOOP(equals_its_composition, 0, 12 * KINDS)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
    static const double near[] = {1e-5, 1e-13, 0.03, 0.005};
    const int type = _i / 3 % 4, use = _i % 3;
    const ek_recurrence kind = (ek_recurrence)(_i / 12);
    const bool has_c = kind == EK_RECURRENCE_LSTM;
    step own = step_of(kind, dtypes[type], HIDDEN), other = step_of(kind, dtypes[type], HIDDEN);
    ek_tensor *h[2], *c[2];
    fused(kind, own.in, &h[0], &c[0]);
    composed(kind, other.in, &h[1], &c[1]);
    assert_close(h[0], h[1], near[type], near[type]);
    assert_close(c[0], c[1], near[type], near[type]);
    for (int i = 0; i < 2; i++) {
        ek_tensor *of_h = ek_sum(ek_square(h[i])), *of_c = ek_sum(ek_square(c[i]));
        assert_ok(ek_backward(use == 0 ? of_h : use == 1 ? of_c : ek_add(of_h, of_c)));
    }
    for (int i = 0; i < (has_c ? 4 : 3); i++)
        assert_close_norm(ek_tensor_grad(own.in[i]), ek_tensor_grad(other.in[i]), near[type]);
}

/* What a test of derivatives is of. */
typedef struct use {
    ek_recurrence kind;
    int of; /* 0: h, 1: c, 2: both */
} use;

static ek_tensor *square_of(ek_tensor *const *x, int count, void *user)
{
    const use *u = user;
    ek_tensor *h, *c;
    fused(u->kind, x, &h, &c);
    return u->of == 0 ? ek_square(h) : u->of == 1 ? ek_square(c) : ek_mul(ek_square(h), c);
}

TEST_LOOP(derivatives_are_those_of_differences, 0, 3 * KINDS)
{
    use u = {(ek_recurrence)(_i / 3), _i % 3};
    step own = step_of(u.kind, EK_F64, 2);
    check_gradients(square_of, own.in, u.kind == EK_RECURRENCE_LSTM ? 4 : 3, &u);
}

/* The gradient of a gradient's square, against that of the composition. */
TEST_LOOP(third_derivatives_equal_those_of_the_composition, 0, KINDS)
{
    const ek_recurrence kind = (ek_recurrence)_i;
    const int count = kind == EK_RECURRENCE_LSTM ? 4 : 3;
    step own = step_of(kind, EK_F64, 3), other = step_of(kind, EK_F64, 3);
    for (int i = 0; i < 2; i++) {
        ek_tensor *const *in = i == 0 ? own.in : other.in;
        ek_tensor *h, *c, *first[4], *second[4];
        (i == 0 ? fused : composed)(kind, in, &h, &c);
        ek_tensor *y = ek_sum(ek_mul(ek_square(h), c));
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = in, .input_count = count,
                          .gradients = first, .create_graph = true));
        y = ek_sum(ek_square(first[0]));
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = in, .input_count = count,
                          .gradients = second, .create_graph = true));
        assert_ok(ek_backward(
            ek_add(ek_sum(ek_square(second[0])), ek_sum(ek_square(second[count - 1])))));
    }
    for (int i = 0; i < count; i++)
        assert_close_norm(ek_tensor_grad(own.in[i]), ek_tensor_grad(other.in[i]), 1e-11);
}

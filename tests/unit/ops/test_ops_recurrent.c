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

/* ---- whole networks ---- */

enum { STEPS = 4, BATCH = 3, INPUT = 5, WIDTH = 6, NARROW = 4, LEAVES = 3 + 4 * 5 };

/* A network of up to two layers and directions, and its leaves: x, h, c and weights. */
typedef struct whole {
    ek_recurrent_network network;
    ek_recurrent_weights weights[4];
    ek_tensor *leaves[LEAVES];
    int count;
} whole;

static const struct {
    int layers, directions;
    bool bias, projects, lengths;
} forms[] = {{1, 1, true, false, false}, {1, 1, false, false, true}, {2, 1, true, false, false},
             {2, 2, true, false, true},  {2, 2, true, true, true},   {1, 2, false, true, false}};
enum { FORMS = sizeof forms / sizeof *forms };

static ek_tensor *add_leaf(whole *w, ek_shape shape, ek_dtype dtype)
{
    ek_tensor *x = ek_mul_scalar(normal((uint64_t)w->count + 7, shape, dtype, test_home()), 0.4);
    assert_made(x);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return w->leaves[w->count++] = x;
}

static bool make_whole(whole *w, ek_recurrence kind, int form, ek_dtype dtype)
{
    static const int64_t lengths[] = {4, 1, 3};
    const bool lstm = kind == EK_RECURRENCE_LSTM, projects = forms[form].projects;
    const int rows = forms[form].layers * forms[form].directions;
    const int64_t size = projects ? NARROW : WIDTH, gates = ek_recurrence_gates(kind) * WIDTH;
    if (projects && !lstm)
        return false;
    *w = (whole){.network = {.kind = kind,
                             .layers = forms[form].layers,
                             .directions = forms[form].directions}};
    w->network.weights = w->weights;
    if (forms[form].lengths)
        w->network.lengths = ek_to_device(ek_from_data(lengths, EK_SHAPE(BATCH), EK_I64), ek_cpu());
    add_leaf(w, EK_SHAPE(STEPS, BATCH, INPUT), dtype);
    add_leaf(w, EK_SHAPE(rows, BATCH, size), dtype);
    if (lstm)
        add_leaf(w, EK_SHAPE(rows, BATCH, WIDTH), dtype);
    for (int i = 0; i < rows; i++) {
        const int64_t input = i < forms[form].directions ? INPUT : forms[form].directions * size;
        w->weights[i].weight_ih = add_leaf(w, EK_SHAPE(gates, input), dtype);
        w->weights[i].weight_hh = add_leaf(w, EK_SHAPE(gates, size), dtype);
        if (forms[form].bias) {
            w->weights[i].bias_ih = add_leaf(w, EK_SHAPE(gates), dtype);
            w->weights[i].bias_hh = add_leaf(w, EK_SHAPE(gates), dtype);
        }
        if (projects)
            w->weights[i].weight_hr = add_leaf(w, EK_SHAPE(size, WIDTH), dtype);
    }
    return true;
}

static ek_recurrent_state state_of(const whole *w)
{
    return (ek_recurrent_state){w->leaves[1],
                                w->network.kind == EK_RECURRENCE_LSTM ? w->leaves[2] : NULL};
}

/* The network step by step. */
static ek_tensor *stepped(const whole *w, ek_recurrent_state *state)
{
    const ek_recurrent_network *n = &w->network;
    const int directions = n->directions;
    ek_tensor *x = w->leaves[0], *h[4], *c[4], *mask = NULL;
    if (n->lengths) {
        ek_tensor *time = ek_to_device(ek_arange(STEPS, EK_I64, ek_cpu()), test_home());
        mask = ek_gt(ek_reshape(ek_to_device(n->lengths, test_home()), EK_SHAPE(1, BATCH, 1)),
                     ek_reshape(time, EK_SHAPE(STEPS, 1, 1)));
    }
    for (int row = 0; row < n->layers * directions; row += directions) {
        ek_tensor *outputs[2];
        for (int d = 0; d < directions; d++) {
            const ek_recurrent_weights *of = &n->weights[row + d];
            ek_recurrent_state own = {ek_select(state->h, 0, row + d),
                                      state->c ? ek_select(state->c, 0, row + d) : NULL};
            ek_tensor *products = ek_f_linear(x, of->weight_ih, of->bias_ih), *of_steps[STEPS];
            for (int i = 0; i < STEPS; i++) {
                const int t = d ? STEPS - 1 - i : i;
                assert_ok(ek_recurrent_step(n->kind, ek_select(products, 0, t), of,
                                            mask ? ek_select(mask, 0, t) : NULL, &own));
                of_steps[t] = own.h;
            }
            outputs[d] = ek_stack(of_steps, STEPS, 0);
            h[row + d] = own.h;
            c[row + d] = own.c;
        }
        x = directions == 2 ? ek_cat(outputs, 2, 2) : outputs[0];
        x = mask ? ek_where(mask, x, ek_scalar(0, ek_tensor_dtype(x), ek_cpu())) : x;
    }
    state->h = ek_stack(h, n->layers * directions, 0);
    state->c = state->c ? ek_stack(c, n->layers * directions, 0) : NULL;
    return x;
}

/* Which of the outputs y, h and c are used. */
static ek_tensor *loss_of(ek_tensor *y, const ek_recurrent_state *last, int which)
{
    ek_tensor *loss = which != 1 ? ek_sum(ek_square(y)) : NULL;
    if (which > 0)
        loss = loss ? ek_add(loss, ek_sum(last->h)) : ek_sum(ek_square(last->h));
    if (which > 0 && last->c)
        loss = ek_add(loss, ek_sum(ek_square(last->c)));
    return loss;
}

TEST_LOOP(networks_equal_their_steps, 0, FORMS *KINDS * 4)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_F16};
    static const double near[] = {1e-5, 1e-13, 0.04, 0.006};
    const int type = _i % 4, form = _i / 4 % FORMS, which = _i % 3;
    const ek_recurrence kind = (ek_recurrence)(_i / 4 / FORMS);
    whole own, other;
    if (!make_whole(&own, kind, form, dtypes[type]) ||
        !make_whole(&other, kind, form, dtypes[type]))
        return;
    ek_recurrent_state of_own = state_of(&own), of_other = state_of(&other);
    ek_tensor *y = ek_recurrent_run(&own.network, own.leaves[0], &of_own),
              *wanted = stepped(&other, &of_other);
    assert_made(y);
    assert_close(y, wanted, near[type], near[type]);
    assert_close(of_own.h, of_other.h, near[type], near[type]);
    if (of_own.c)
        assert_close(of_own.c, of_other.c, near[type], near[type]);
    assert_ok(ek_backward(loss_of(y, &of_own, which)));
    assert_ok(ek_backward(loss_of(wanted, &of_other, which)));
    for (int i = 0; i < own.count; i++)
        assert_close_norm(ek_tensor_grad(own.leaves[i]), ek_tensor_grad(other.leaves[i]),
                          near[type]);
}

/* A weight of another size is an error of the step that reads it. */
TEST_LOOP(weights_of_other_sizes_are_refused, 0, KINDS)
{
    whole w;
    make_whole(&w, (ek_recurrence)_i, 0, EK_F32);
    ek_recurrent_state state = state_of(&w);
    w.weights[0].weight_ih = ek_narrow(w.weights[0].weight_ih, 1, 1, INPUT - 1);
    ck_assert_ptr_null(ek_recurrent_run(&w.network, w.leaves[0], &state));
    assert_error(EK_E_SHAPE, "linear");
}

/* The second of two backwards of one graph adds the same gradients again, also if the lengths were
 * overwritten. */
TEST_LOOP(a_graph_may_be_run_back_twice, 0, KINDS)
{
    whole once, twice;
    make_whole(&once, (ek_recurrence)_i, 3, EK_F32);
    make_whole(&twice, (ek_recurrence)_i, 3, EK_F32);
    for (int i = 0; i < 2; i++) {
        whole *w = i ? &twice : &once;
        ek_recurrent_state last = state_of(w);
        ek_tensor *loss = loss_of(ek_recurrent_run(&w->network, w->leaves[0], &last), &last, 2);
        if (i) {
            assert_made(ek_fill_(w->network.lengths, 1));
            assert_ok(ek_backward(loss, .retain_graph = true));
        }
        assert_ok(ek_backward(loss));
    }
    for (int i = 0; i < once.count; i++)
        assert_close_norm(ek_tensor_grad(twice.leaves[i]),
                          ek_mul_scalar(ek_tensor_grad(once.leaves[i]), 2), 1e-5);
}

/* The gradient of a gradient's square equals that of the steps. */
TEST_LOOP(second_derivatives_of_networks_equal_those_of_steps, 0, KINDS)
{
    whole own, other;
    make_whole(&own, (ek_recurrence)_i, 3, EK_F32);
    make_whole(&other, (ek_recurrence)_i, 3, EK_F32);
    for (int i = 0; i < 2; i++) {
        whole *w = i ? &other : &own;
        ek_recurrent_state last = state_of(w);
        ek_tensor *y = i ? stepped(w, &last) : ek_recurrent_run(&w->network, w->leaves[0], &last),
                  *loss = loss_of(y, &last, 2), *first;
        assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = w->leaves,
                          .input_count = 1, .gradients = &first, .create_graph = true));
        assert_ok(ek_backward(ek_sum(ek_square(first))));
    }
    for (int i = 0; i < own.count; i++)
        assert_close_norm(ek_tensor_grad(own.leaves[i]), ek_tensor_grad(other.leaves[i]), 1e-4);
}

/* test_recurrent.c: recurrent networks and cells: initial values, outputs, states and gradients as
 * PyTorch's. */
#include "kit/tensors.h"
#include "nn/nn.h"

enum { INPUT = 3, HIDDEN = 4, STEPS = 5, SAMPLES = 3 };
#define BOTH .num_layers = 2, .bidirectional = true

/* ---- against PyTorch ---- */

typedef struct pieces {
    ek_tensor *rows[64];
    int count;
    bool gradients;
} pieces;

static int take_piece(const char *path, ek_tensor *tensor, void *user)
{
    pieces *p = user;
    p->rows[p->count++] =
        ek_reshape(ek_detach(p->gradients ? ek_tensor_grad(tensor) : tensor), EK_SHAPE(-1));
    return 0;
}

/* All parameters, or their gradients, behind each other. */
static ek_tensor *flat(ek_module *module, bool gradients)
{
    pieces p = {.gradients = gradients};
    ek_module_parameters(module, take_piece, &p);
    ek_tensor *all = ek_cat(p.rows, p.count, 0);
    assert_made(all);
    return all;
}

static ek_tensor *wanted(const char *name, const char *what)
{
    char path[80];
    snprintf(path, sizeof path, "%s/%s", name, what);
    return golden("recurrent.golden", path);
}

static ek_tensor *wanted_number(const char *name, const char *what, int number)
{
    char text[40];
    snprintf(text, sizeof text, "%s%d", what, number);
    return wanted(name, text);
}

/* The parameters are PyTorch's to the bit; then they are f64. */
static void assert_initial(ek_module *module, const char *name)
{
    assert_made(module);
    assert_close(flat(module, false), wanted(name, "initial"), 0, 0);
    assert_ok(ek_module_to_dtype(module, EK_F64));
}

static ek_tensor *draw(ek_shape shape)
{
    return ek_randn(shape, .dtype = EK_F64, .requires_grad = true);
}

/* Results, and gradients of the sum of their squares, weighted by 1, 2, 3. */
static void assert_results(ek_module *module, const char *name, ek_tensor *const *results,
                           int count, ek_tensor *const *leaves, int leaf_count)
{
    ek_tensor *loss = NULL;
    for (int i = 0; i < count; i++) {
        assert_made(results[i]);
        assert_close(results[i], wanted_number(name, "result", i), 1e-12, 1e-13);
        ek_tensor *term = ek_mul_scalar(ek_sum(ek_square(results[i])), i + 1);
        loss = loss ? ek_add(loss, term) : term;
    }
    assert_ok(ek_backward(loss));
    for (int i = 0; i < leaf_count; i++)
        assert_close(ek_tensor_grad(leaves[i]), wanted_number(name, "gradient", i), 1e-12, 1e-12);
    assert_close(flat(module, true), wanted(name, "gradients"), 1e-12, 1e-12);
}

static const struct {
    const char *name;
    int rows; /* of the state */
    int64_t size;
    bool lstm, state, one, batch_first;
    int64_t lengths[SAMPLES];
} networks[] = {{"rnn", 4, HIDDEN, .state = true},
                {"rnn_relu", 1, HIDDEN, .state = false},
                {"rnn_short", 4, HIDDEN, .state = true, .lengths = {3, 1, 2}},
                {"lstm", 4, HIDDEN, .lstm = true, .state = true},
                {"lstm_proj", 4, 2, .lstm = true, .state = true, .batch_first = true},
                {"lstm_lengths", 4, HIDDEN, .lstm = true, .state = true, .batch_first = true,
                 .lengths = {3, 5, 1}},
                {"lstm_one", 2, HIDDEN, .lstm = true, .state = true, .one = true},
                {"gru", 4, HIDDEN, .state = true},
                {"gru_lengths", 4, HIDDEN, .state = true, .lengths = {2, 4, 5}},
                {"gru_one", 1, HIDDEN, .one = true}};

static ek_module *make_network(int i)
{
    switch (i) {
        CASE_IS(0, ek_rnn(INPUT, HIDDEN, BOTH));
        CASE_IS(1, ek_rnn(INPUT, HIDDEN, .nonlinearity = EK_RNN_RELU, .bias = false));
        CASE_IS(2, ek_rnn(INPUT, HIDDEN, BOTH));
        CASE_IS(3, ek_lstm(INPUT, HIDDEN, BOTH, .dropout = 0.4));
        CASE_IS(4, ek_lstm(INPUT, HIDDEN, BOTH, .proj_size = 2, .batch_first = true));
        CASE_IS(5, ek_lstm(INPUT, HIDDEN, BOTH, .batch_first = true));
        CASE_IS(6, ek_lstm(INPUT, HIDDEN, .num_layers = 2));
        CASE_IS(7, ek_gru(INPUT, HIDDEN, BOTH, .dropout = 0.4));
        CASE_IS(8, ek_gru(INPUT, HIDDEN, BOTH));
        CASE_IS(9, ek_gru(INPUT, HIDDEN, .batch_first = true, .bias = false));
    default:
        return NULL;
    }
}

TEST_LOOP(networks_are_torchs, 0, (int)(sizeof networks / sizeof *networks))
{
    const char *name = networks[_i].name;
    const int rows = networks[_i].rows;
    const bool one = networks[_i].one;
    ek_manual_seed(11);
    ek_module *net = make_network(_i);
    assert_initial(net, name);
    ek_tensor *leaves[3], *results[3], *lengths = NULL;
    int leaf_count = 0;
    leaves[leaf_count++] = draw(one                        ? EK_SHAPE(STEPS, INPUT)
                                : networks[_i].batch_first ? EK_SHAPE(SAMPLES, STEPS, INPUT)
                                                           : EK_SHAPE(STEPS, SAMPLES, INPUT));
    ek_value state = ek_value_none();
    if (networks[_i].state) {
        leaves[leaf_count++] = draw(one ? EK_SHAPE(rows, networks[_i].size)
                                        : EK_SHAPE(rows, SAMPLES, networks[_i].size));
        if (networks[_i].lstm)
            leaves[leaf_count++] =
                draw(one ? EK_SHAPE(rows, HIDDEN) : EK_SHAPE(rows, SAMPLES, HIDDEN));
        state = networks[_i].lstm ? EK_LIST(leaves[1], leaves[2]) : EK_VALUE(leaves[1]);
    }
    if (networks[_i].lengths[0])
        lengths = ek_from_data(networks[_i].lengths, EK_SHAPE(SAMPLES), EK_I64);
    ek_value result =
        !lengths ? ek_forward(net, leaves[0], state)
        : networks[_i].lstm
            ? ek_forward(net, leaves[0], state, lengths)
            : ek_forward_kw(net,
                            ek_value_dict((ek_value_entry[]){{"hx", state},
                                                             {"lengths", EK_VALUE(lengths)}},
                                          2),
                            leaves[0]);
    assert_ok(ek_error_status());
    results[0] = ek_value_tensor(ek_value_at(result, 0));
    ek_value after = ek_value_at(result, 1);
    results[1] = ek_value_tensor(networks[_i].lstm ? ek_value_at(after, 0) : after);
    results[2] = networks[_i].lstm ? ek_value_tensor(ek_value_at(after, 1)) : NULL;
    assert_results(net, name, results, networks[_i].lstm ? 3 : 2, leaves, leaf_count);
    ek_module_free(net);
}

static ek_module *make_cell(int i)
{
    switch (i) {
        CASE_IS(0, ek_rnn_cell(INPUT, HIDDEN));
        CASE_IS(1, ek_rnn_cell(INPUT, HIDDEN, .nonlinearity = EK_RNN_RELU, .bias = false));
        CASE_IS(2, ek_lstm_cell(INPUT, HIDDEN));
        CASE_IS(3, ek_gru_cell(INPUT, HIDDEN));
    default:
        return NULL;
    }
}

TEST_LOOP(cells_are_torchs, 0, 4)
{
    static const char *const names[] = {"rnn_cell", "rnn_cell_relu", "lstm_cell", "gru_cell"};
    ek_manual_seed(12);
    ek_module *cell = make_cell(_i);
    assert_initial(cell, names[_i]);
    ek_tensor *leaves[2], *results[2];
    for (int i = 0; i < 2; i++)
        leaves[i] = draw(EK_SHAPE(SAMPLES, INPUT));
    ek_value after = ek_forward(cell, leaves[1], ek_forward(cell, leaves[0]));
    results[0] = ek_value_tensor(_i == 2 ? ek_value_at(after, 0) : after);
    results[1] = _i == 2 ? ek_value_tensor(ek_value_at(after, 1)) : NULL;
    assert_results(cell, names[_i], results, _i == 2 ? 2 : 1, leaves, 2);
    /* One sample is a batch of one without its dimension. */
    ek_value one = ek_forward(cell, ek_select(leaves[0], 0, 1)), all = ek_forward(cell, leaves[0]);
    assert_close(ek_value_tensor(_i == 2 ? ek_value_at(one, 0) : one),
                 ek_select(ek_value_tensor(_i == 2 ? ek_value_at(all, 0) : all), 0, 1), 1e-14,
                 1e-15);
    ek_module_free(cell);
}

static ek_tensor *first_output(ek_module *net, ek_tensor *x)
{
    return ek_value_tensor(ek_value_at(ek_forward(net, x), 0));
}

static int take_step(const char *path, ek_tensor *tensor, void *user)
{
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_add_scaled_(tensor, ek_tensor_grad(tensor), -0.5));
    ek_set_grad_enabled(before);
    return 0;
}

TEST(training_is_torchs)
{
    ek_manual_seed(13);
    ek_module *nets[] = {ek_lstm(6, 16, .num_layers = 2, .dropout = 0.25, .batch_first = true,
                                 .bidirectional = true),
                         ek_gru(32, 8, .batch_first = true), ek_linear(8, 2)};
    for (int i = 0; i < 3; i++)
        assert_ok(ek_module_to_dtype(nets[i], EK_F64));
    ek_tensor *x = ek_randn(EK_SHAPE(8, 7, 6), EK_F64),
              *target = ek_randn(EK_SHAPE(8, 7, 2), EK_F64);
    ek_tensor *curve = golden("recurrent.golden", "curve");
    ck_assert_int_eq(ek_tensor_count(curve), 20);
    for (int step = 0; step < 20; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *y = ek_apply(nets[2], first_output(nets[1], first_output(nets[0], x)));
        ek_tensor *loss = ek_f_mse_loss(y, target);
        assert_made(loss);
        assert_close(ek_reshape(loss, EK_SHAPE(1)), ek_narrow(curve, 0, step, 1), 1e-10, 0);
        for (int i = 0; i < 3; i++)
            ek_module_zero_grad(nets[i]);
        assert_ok(ek_backward(loss));
        for (int i = 0; i < 3; i++)
            assert_ok(ek_module_parameters(nets[i], take_step, NULL));
        ek_scope_end(&scope);
    }
    for (int i = 0; i < 3; i++)
        ek_module_free(nets[i]);
}

/* ---- derivatives ---- */

typedef struct checked {
    ek_module *net;
    ek_tensor *lengths;
} checked;

/* Inputs: x, h and, of an LSTM, c. */
static ek_tensor *evaluated(ek_tensor *const *x, int count, void *user)
{
    const checked *c = user;
    ek_value state = count == 3 ? EK_LIST(x[1], x[2]) : EK_VALUE(x[1]),
             result = ek_forward(c->net, x[0], state, EK_VALUE(c->lengths)),
             after = ek_value_at(result, 1);
    ek_tensor *y = ek_value_tensor(ek_value_at(result, 0)),
              *last = ek_value_tensor(count == 3 ? ek_value_at(after, 1) : after);
    return ek_add(ek_sum(ek_square(y)), ek_sum(last));
}

TEST_LOOP(derivatives_are_those_of_differences, 0, 4)
{
    static const int64_t lengths[] = {1, 2};
    ek_manual_seed(3);
    checked c = {_i == 0   ? ek_rnn(2, 2, .bidirectional = true)
                 : _i == 1 ? ek_gru(2, 2, .bidirectional = true)
                 : _i == 2 ? ek_lstm(2, 2, .bidirectional = true)
                           : ek_lstm(2, 2, .bidirectional = true, .proj_size = 1),
                 _i % 2 ? ek_from_data(lengths, EK_SHAPE(2), EK_I64) : NULL};
    assert_ok(ek_module_to_dtype(c.net, EK_F64));
    ek_module_set_requires_grad(c.net, false);
    ek_tensor *x[] = {leaf_on(1, EK_SHAPE(2, 2, 2), ek_cpu()),
                      leaf_on(2, EK_SHAPE(2, 2, _i == 3 ? 1 : 2), ek_cpu()),
                      leaf_on(4, EK_SHAPE(2, 2, 2), ek_cpu())};
    check_gradients(evaluated, x, _i < 2 ? 2 : 3, &c);
    ek_module_free(c.net);
}

/* ---- names, dtypes, edges ---- */

TEST(parameters_have_torchs_names)
{
    ek_module *net = ek_lstm(3, 4, BOTH, .proj_size = 2), *cell = ek_gru_cell(3, 4);
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh",
                                        "weight_hr"};
    const ek_shape shapes[] = {EK_SHAPE(16, 4), EK_SHAPE(16, 2), EK_SHAPE(16), EK_SHAPE(16),
                               EK_SHAPE(2, 4)};
    for (int i = 0; i < 5; i++) {
        char path[40];
        snprintf(path, sizeof path, "%s_l1_reverse", names[i]);
        ek_tensor *parameter = ek_module_tensor(net, path);
        assert_made(parameter);
        ek_shape shape = ek_tensor_shape(parameter);
        ck_assert(ek_shape_equal(&shape, &shapes[i]));
        snprintf(path, sizeof path, "%s_l0", names[i]);
        assert_made(ek_module_tensor(net, path));
        if (i < 4)
            assert_made(ek_module_tensor(cell, names[i]));
    }
    ck_assert_int_eq(ek_module_numel(cell), 12 * 3 + 12 * 4 + 2 * 12);
    ek_module_free(net);
    ek_module_free(cell);
}

/* In bf16, and under autocast: near f32, with gradients, also if lengths mix states of two dtypes.
 */
TEST_LOOP(lower_precision, 0, 6)
{
    static const int64_t lengths[] = {4, 2, 1};
    const bool autocast = _i >= 3;
    ek_manual_seed(4);
    ek_module *net = _i % 3 == 0   ? ek_rnn(3, 4, BOTH)
                     : _i % 3 == 1 ? ek_lstm(3, 4, BOTH)
                                   : ek_gru(3, 4, BOTH);
    ek_tensor *x = normal(5, EK_SHAPE(4, 3, 3), EK_F32, ek_cpu()),
              *given = ek_from_data(lengths, EK_SHAPE(3), EK_I64);
    const ek_value none = ek_value_none();
    ek_tensor *exact = ek_value_tensor(ek_value_at(ek_forward(net, x, none, given), 0));
    assert_made(exact);
    if (!autocast)
        assert_ok(ek_module_to_dtype(net, EK_BF16));
    ek_tensor *y;
    if (autocast) {
        ek_autocast region = ek_autocast_begin(EK_BF16);
        y = ek_value_tensor(ek_value_at(ek_forward(net, x, none, given), 0));
        ek_autocast_end(&region);
    } else
        y = ek_value_tensor(ek_value_at(ek_forward(net, ek_to_dtype(x, EK_BF16), none, given), 0));
    assert_made(y);
    assert_close(ek_to_dtype(y, EK_F32), exact, 0, 0.03);
    assert_ok(ek_backward(ek_sum(ek_to_dtype(y, EK_F32))));
    assert_made(ek_tensor_grad(ek_module_tensor(net, "weight_hh_l0")));
    ek_module_free(net);
}

TEST(a_batch_may_be_empty)
{
    ek_module *net = ek_gru(2, 3, .num_layers = 2), *cell = ek_lstm_cell(2, 3);
    ek_value result = ek_forward(net, ek_zeros(EK_SHAPE(4, 0, 2)));
    assert_close(ek_value_tensor(ek_value_at(result, 0)), ek_zeros(EK_SHAPE(4, 0, 3)), 0, 0);
    assert_close(ek_value_tensor(ek_value_at(result, 1)), ek_zeros(EK_SHAPE(2, 0, 3)), 0, 0);
    result = ek_forward(cell, ek_zeros(EK_SHAPE(0, 2)));
    assert_close(ek_value_tensor(ek_value_at(result, 1)), ek_zeros(EK_SHAPE(0, 3)), 0, 0);
    ek_module_free(net);
    ek_module_free(cell);
}

/* ---- lengths ---- */

/* A sample's results don't depend on what stands beyond its end, NaN included, nor on others; one
 * without steps keeps the state before. */
TEST(steps_beyond_the_end_do_not_count)
{
    static const int64_t lengths[] = {2, 0, 4};
    ek_module *net = ek_lstm(2, 3, .bidirectional = true, .batch_first = true);
    ek_tensor *x = normal(5, EK_SHAPE(3, 4, 2), EK_F32, ek_cpu()), *y = ek_clone(x);
    assert_made(ek_fill_(ek_narrow(ek_select(y, 0, 0), 0, 2, 2), NAN));
    ek_tensor *given = ek_from_data(lengths, EK_SHAPE(3), EK_I64),
              *h = normal(6, EK_SHAPE(2, 3, 3), EK_F32, ek_cpu());
    ek_value result = ek_forward(net, y, EK_LIST(h, h), given);
    ek_tensor *out = ek_value_tensor(ek_value_at(result, 0)),
              *last = ek_value_tensor(ek_value_at(ek_value_at(result, 1), 0));
    assert_close(ek_narrow(ek_select(out, 0, 0), 0, 2, 2), ek_zeros(EK_SHAPE(2, 6)), 0, 0);
    assert_close(ek_select(out, 0, 1), ek_zeros(EK_SHAPE(4, 6)), 0, 0);
    assert_close(ek_select(last, 1, 1), ek_select(h, 1, 1), 0, 0);
    ek_tensor *of_first = ek_narrow(h, 1, 0, 1);
    ek_value alone =
        ek_forward(net, ek_narrow(ek_narrow(x, 0, 0, 1), 1, 0, 2), EK_LIST(of_first, of_first));
    assert_close(ek_narrow(ek_narrow(out, 0, 0, 1), 1, 0, 2),
                 ek_value_tensor(ek_value_at(alone, 0)), 1e-6, 1e-7);
    ek_module_free(net);
}

TEST(padding_is_torchs)
{
    ek_tensor *rows[3];
    for (int i = 0; i < 3; i++) {
        const int64_t n = i == 0 ? 2 : i == 1 ? 4 : 1;
        rows[i] = ek_reshape(ek_arange(2 * n, EK_F32, ek_cpu()), EK_SHAPE(n, 2));
    }
    assert_close(ek_pad_sequence(rows, 3, false, -1), golden("recurrent.golden", "padded"), 0, 0);
    assert_close(ek_pad_sequence(rows, 3, true, 0),
                 golden("recurrent.golden", "padded_batch_first"), 0, 0);
    ek_tensor *leaves[] = {leaf_on(1, EK_SHAPE(2), ek_cpu()), leaf_on(2, EK_SHAPE(3), ek_cpu())};
    assert_ok(ek_backward(ek_sum(ek_square(ek_pad_sequence(leaves, 2, true, 9)))));
    assert_close(ek_tensor_grad(leaves[0]), ek_mul_scalar(ek_detach(leaves[0]), 2), 0, 0);
    rows[1] = ek_zeros(EK_SHAPE(4, 3));
    assert_refused(ek_pad_sequence(rows, 3, true, 0), EK_E_SHAPE,
                   "tensor 1 is [4, 3] and tensor 0 is [2, 2]");
    assert_refused(ek_pad_sequence(rows, 0, true, 0), EK_E_INVALID, "pad_sequence: no tensors");
    rows[1] = ek_zeros(EK_SHAPE(4, 2), EK_F64);
    assert_refused(ek_pad_sequence(rows, 3, true, 0), EK_E_DTYPE, "pad_sequence");
    rows[0] = ek_scalar(1, EK_F32, ek_cpu());
    assert_refused(ek_pad_sequence(rows, 1, true, 0), EK_E_SHAPE, "tensor 0");
}

/* ---- errors ---- */

TEST(refused_options)
{
    assert_refused(ek_lstm(0, 3), EK_E_INVALID, "lstm: input_size 0 and hidden_size 3 have to be");
    assert_refused(ek_gru(2, 3, .num_layers = 0), EK_E_INVALID, "gru: num_layers has to be from 1");
    assert_refused(ek_rnn(2, 3, .dropout = 1.5), EK_E_INVALID, "dropout has to be between 0 and 1");
    assert_refused(ek_lstm(2, 3, .proj_size = 3), EK_E_INVALID, "proj_size 3 has to be smaller");
    assert_refused(ek_rnn(2, 3, .nonlinearity = (ek_rnn_nonlinearity)7), EK_E_INVALID,
                   "nonlinearity");
    assert_refused(ek_lstm_cell(2, -3), EK_E_INVALID, "lstm_cell: input_size 2 and hidden_size -3");
}

TEST(refused_inputs)
{
    static const int64_t too_long[] = {1, 5}, negative[] = {-1, 2};
    ek_module *net = ek_lstm(2, 3), *cell = ek_gru_cell(2, 3);
    ek_tensor *x = ek_zeros(EK_SHAPE(4, 2, 2)), *h = ek_zeros(EK_SHAPE(1, 2, 3)),
              *lengths = ek_from_data(too_long, EK_SHAPE(2), EK_I64);
    const ek_value none = ek_value_none();
    assert_refused(ek_forward(net, ek_zeros(EK_SHAPE(4, 2, 3))), EK_E_SHAPE,
                   "expected an input (L, N, 2) or (L, 2) of at least 1 step, got");
    assert_refused(ek_forward(net, ek_zeros(EK_SHAPE(0, 2, 2))), EK_E_SHAPE, "at least 1 step");
    assert_refused(ek_forward(net, x, h), EK_E_INVALID, "a list of two tensors, h and c");
    assert_refused(ek_forward(net, x, EK_LIST(h, x)), EK_E_SHAPE,
                   "expected c of shape [1, 2, 3], got f32[4, 2, 2]");
    assert_refused(ek_forward(net, x, none, lengths), EK_E_INVALID,
                   "the length of sample 1 is 5; the input has 4 steps");
    assert_refused(ek_forward(net, x, none, ek_from_data(negative, EK_SHAPE(2), EK_I64)),
                   EK_E_INVALID, "the length of sample 0 is -1");
    assert_refused(ek_forward(net, x, none, h), EK_E_SHAPE, "expected lengths i64[2]");
    assert_refused(ek_forward(net, ek_zeros(EK_SHAPE(4, 2)), none, lengths), EK_E_SHAPE,
                   "lengths are for a batch");
    ek_value_entry entry = {"length", EK_VALUE(lengths)};
    assert_refused(ek_forward_kw(net, ek_value_dict(&entry, 1), x), EK_E_INVALID,
                   "lstm takes no keyword argument \"length\"");
    entry.key = "lengths";
    assert_refused(ek_forward_kw(net, ek_value_dict(&entry, 1), x, none, lengths), EK_E_INVALID,
                   "lengths is given twice");
    assert_refused(ek_forward_kw(cell, ek_value_dict(&entry, 1), x), EK_E_INVALID,
                   "gru_cell takes no keyword argument \"lengths\"");
    assert_refused(ek_forward(cell, x), EK_E_SHAPE, "expected an input (N, 2) or (2), got f32[4, ");
    assert_refused(ek_forward(cell, ek_zeros(EK_SHAPE(2, 2)), h), EK_E_SHAPE,
                   "expected h of shape [2, 3]");
    ek_module_free(net);
    ek_module_free(cell);
}

/* All steps of a recurrent layer's direction in one call: what single steps give, on every
 * instruction set, and the same bits on any number of threads. */
#include "conv_isas.h"
#include "host/host.h"

/* What a call reads and writes; and the sums that single steps overwrite. */
typedef struct sequence {
    ek_recurrent_steps call;
    ek_recurrent_steps_back back;
    ek_tensor *sums, *gates;
} sequence;

/* By rows, with several pieces for a thread; by units; weights that few samples read. */
static const struct {
    int64_t steps, samples, hidden, input;
    bool reverse, bias, keeps, given, wants_h, wants_x;
} cases[] = {{3, 150, 37, 70, false, true, true, true, true, true},
             {5, 14, 131, 5, true, true, true, true, false, true},
             {70, 1, 33, 600, false, false, true, false, true, true},
             {6, 20, 64, 33, true, true, false, false, false, false},
             {3, 210, 70, 16, true, false, true, true, false, false},
             {4, 18, 150, 48, false, true, true, true, true, true}};
enum { CASES = sizeof cases / sizeof *cases, CELLS = 4 };

static ek_tensor *drawn(ek_dtype dtype, int ndim, const int64_t *dims, unsigned seed)
{
    ek_tensor *x = case_tensor(case_device(1), dtype, ndim, dims, CASE_ROWS);
    case_fill(x, seed);
    return x;
}

static ek_tensor *drawn_steps(ek_dtype dtype, int64_t steps, int64_t samples, int64_t columns,
                              unsigned seed)
{
    return drawn(dtype, 3, (int64_t[]){steps, samples, columns}, seed);
}

/* Step t of x as a matrix of its first `columns` columns. */
static ek_tensor at(const ek_tensor *x, int64_t t, int64_t columns)
{
    ek_tensor view = *x;
    view.ndim = 2;
    view.offset += t % x->shape[0] * x->stride[0];
    view.shape[0] = x->shape[1];
    view.shape[1] = columns;
    view.stride[0] = x->stride[1];
    view.stride[1] = 1;
    return view;
}

static int parts_of(ek_recurrent_cell cell)
{
    return cell == EK_CELL_LSTM ? 4 : cell == EK_CELL_GRU ? 3 : 1;
}

static bool gated(ek_recurrent_cell cell)
{
    return cell == EK_CELL_LSTM || cell == EK_CELL_GRU;
}

/* A matrix: row by row, or with `strided` column by column, with gaps between the columns. */
static ek_tensor *drawn_matrix(ek_dtype dtype, int64_t rows, int64_t columns, bool strided,
                               unsigned seed)
{
    if (!strided)
        return drawn(dtype, 2, (int64_t[]){rows, columns}, seed);
    ek_tensor *x = drawn(dtype, 2, (int64_t[]){columns, rows + 3}, seed);
    x->shape[0] = rows, x->shape[1] = columns;
    x->stride[0] = 1, x->stride[1] = rows + 3;
    return x;
}

static sequence make(int c, ek_recurrent_cell cell, ek_dtype dtype)
{
    const int64_t steps = cases[c].steps, samples = cases[c].samples, hidden = cases[c].hidden,
                  parts = parts_of(cell);
    const bool lstm = cell == EK_CELL_LSTM, keeps = cases[c].keeps;
    sequence s = {.call = {.cell = cell, .reverse = cases[c].reverse}};
    ek_tensor *weight = drawn_matrix(dtype, parts * hidden, hidden, c % 2, 1),
              *input = drawn_matrix(dtype, parts * hidden, cases[c].input, c % 3 == 1, 13);
    for (int64_t i = 0; i < ek_count(weight); i++)
        case_set(weight, i, case_get(weight, i) / 16);
    for (int64_t i = 0; i < ek_count(input); i++)
        case_set(input, i, case_get(input, i) / 16);
    s.call.weight = weight;
    s.call.input_weight = input;
    s.call.bias = cases[c].bias ? drawn(dtype, 1, (int64_t[]){parts * hidden}, 2) : NULL;
    s.call.input_bias = cases[c].bias ? drawn(dtype, 1, (int64_t[]){parts * hidden}, 14) : NULL;
    s.call.x = drawn_steps(dtype, steps, samples, cases[c].input, 5);
    s.call.h = drawn_steps(dtype, steps + 1, samples, hidden, 3);
    s.call.c = lstm ? drawn_steps(dtype, keeps ? steps + 1 : 2, samples, hidden, 4) : NULL;
    s.call.y = drawn_steps(dtype, steps, samples, hidden, 15);
    s.sums = drawn_steps(dtype, steps, samples, gated(cell) ? 4 * hidden : hidden, 6);
    s.gates = gated(cell) ? drawn_steps(dtype, steps, samples, 4 * hidden, 6) : NULL;
    s.call.gates = keeps ? s.gates : NULL;
    s.back.dx = s.gates ? s.gates : drawn_steps(dtype, steps, samples, hidden, 7);
    s.back.dinput =
        cases[c].wants_x ? drawn_steps(dtype, steps, samples, cases[c].input, 16) : NULL;
    if (cases[c].given) { /* sample by sample in memory */
        ek_tensor *dy = drawn_steps(dtype, samples, steps, hidden, 8);
        dy->shape[0] = steps, dy->shape[1] = samples;
        dy->stride[0] = hidden, dy->stride[1] = steps * hidden;
        s.back.dy = dy;
    }
    s.back.dh_n = cases[c].given ? drawn(dtype, 2, (int64_t[]){samples, hidden}, 9) : NULL;
    s.back.dc_n = lstm && cases[c].given ? drawn(dtype, 2, (int64_t[]){samples, hidden}, 10) : NULL;
    s.back.dh = drawn(dtype, 2, (int64_t[]){samples, hidden}, 11);
    s.back.dc = lstm ? drawn(dtype, 2, (int64_t[]){samples, hidden}, 12) : NULL;
    s.back.wants_h = cases[c].wants_h;
    return s;
}

/* Draws what a call overwrites. */
static void draw_again(const sequence *s)
{
    case_fill(s->call.h, 3);
    if (s->call.c)
        case_fill(s->call.c, 4);
}

static void add_product(ek_tensor *to, const ek_tensor *x, const ek_tensor *w, int64_t first,
                        int64_t rows)
{
    ek_tensor part = *w;
    part.offset += first * w->stride[0];
    part.shape[0] = rows;
    ek_tensor out = ek_batch_of_matrix(to, false), a = ek_batch_of_matrix(x, false),
              b = ek_batch_of_matrix(&part, false);
    assert_ok(ek_host_matmul(ek_tensor_dev(to), &out, &a, &b, NULL, true));
}

/* The forward by single steps, and the backward, which reads what the forward left. */
static void single_forward(const sequence *s)
{
    const ek_recurrent_steps *call = &s->call;
    const int64_t steps = call->x->shape[0], hidden = call->h->shape[2],
                  rows = call->weight->shape[0];
    ek_dev *dev = ek_tensor_dev(call->h);
    ek_tensor *product =
        case_tensor(dev, call->h->dtype, 2, (int64_t[]){call->h->shape[1], rows}, CASE_ROWS);
    for (int64_t i = 0; i < steps; i++) {
        const int64_t t = call->reverse ? steps - 1 - i : i, from = t + call->reverse,
                      to = t + !call->reverse;
        ek_tensor h = at(call->h, from, hidden), next = at(call->h, to, hidden),
                  in = at(call->x, t, call->x->shape[2]), x = at(s->sums, t, rows),
                  y = at(call->y, t, hidden), c, next_c, gates;
        if (call->c)
            c = at(call->c, from, hidden), next_c = at(call->c, to, hidden);
        if (s->gates)
            gates = at(s->gates, t, 4 * hidden);
        assert_ok(ek_host_linear(dev, &x, &in, call->input_weight, call->input_bias, false));
        assert_ok(ek_host_linear(dev, product, &h, call->weight, call->bias, false));
        assert_ok(ek_host_recurrent_forward(dev, &next, call->cell, call->c ? &next_c : NULL,
                                            s->gates ? &gates : NULL, &x, product,
                                            call->c    ? &c
                                            : s->gates ? &h
                                                       : NULL));
        assert_ok(ek_host_copy(dev, &y, &next));
    }
}

static void single_backward(const sequence *s)
{
    const ek_recurrent_steps *call = &s->call;
    const ek_recurrent_steps_back *back = &s->back;
    const int64_t steps = call->x->shape[0], hidden = call->h->shape[2],
                  rows = call->weight->shape[0];
    const bool gru = call->cell == EK_CELL_GRU;
    ek_dev *dev = ek_tensor_dev(call->h);
    assert_ok(back->dh_n ? ek_host_copy(dev, back->dh, back->dh_n)
                         : ek_host_fill(dev, back->dh, 0));
    if (back->dc)
        assert_ok(back->dc_n ? ek_host_copy(dev, back->dc, back->dc_n)
                             : ek_host_fill(dev, back->dc, 0));
    for (int64_t i = 0; i < steps; i++) {
        const int64_t t = call->reverse ? i : steps - 1 - i, from = t + call->reverse,
                      to = t + !call->reverse;
        ek_tensor h = at(call->h, from, hidden), next = at(call->h, to, hidden),
                  dx = at(back->dx, t, call->gates ? 4 * hidden : hidden), dy, c, next_c;
        if (call->c)
            c = at(call->c, from, hidden), next_c = at(call->c, to, hidden);
        if (back->dy)
            dy = at(back->dy, t, hidden);
        assert_ok(ek_host_recurrent_gradient(dev, &dx, call->cell,
                                             back->dc ? back->dc
                                             : gru    ? back->dh
                                                      : NULL,
                                             back->dy ? &dy : NULL, back->dh, back->dc,
                                             call->gates ? &dx : &next,
                                             call->c ? &c
                                             : gru   ? &h
                                                     : NULL,
                                             call->c ? &next_c : NULL));
        if (!gru)
            assert_ok(ek_host_fill(dev, back->dh, 0));
        const ek_tensor first = at(back->dx, t, gru ? 2 * hidden : rows);
        add_product(back->dh, &first, call->weight, 0, gru ? 2 * hidden : rows);
        ek_tensor last = at(back->dx, t, hidden);
        last.offset += 3 * hidden;
        if (gru)
            add_product(back->dh, &last, call->weight, 2 * hidden, hidden);
        if (!back->dinput)
            continue;
        const ek_tensor sums = at(back->dx, t, rows);
        ek_tensor dinput = at(back->dinput, t, call->x->shape[2]);
        assert_ok(ek_host_fill(dev, &dinput, 0));
        add_product(&dinput, &sums, call->input_weight, 0, rows);
    }
}

/* h, c, gates, dh, dc, and y or the gradient of x; or NULL where there are none. */
static void results_of(const sequence *s, bool back, ek_tensor **results)
{
    results[0] = s->call.h;
    results[1] = s->call.c;
    results[2] = back ? s->back.dx : s->call.gates;
    results[3] = back && s->back.wants_h ? s->back.dh : NULL;
    results[4] = back ? s->back.dc : NULL;
    results[5] = back ? s->back.dinput : s->call.y;
}

static void check(int c, ek_recurrent_cell cell, ek_dtype dtype)
{
    enum { ALL = 6 };
    static const char *const what[ALL] = {"h", "c", "gates", "dh", "dc", "x"};
    const double near = dtype == EK_F32 ? 2e-5 : 1e-13;
    sequence s = make(c, cell, dtype);
    double *wanted[2][ALL] = {{NULL}}, *once[EK_ISA_AVX512 + 1][2][ALL] = {{{NULL}}};
    ek_tensor *results[ALL];
    const int passes = cases[c].keeps ? 2 : 1;
    draw_again(&s);
    for (int back = 0; back < passes; back++) {
        (back ? single_backward : single_forward)(&s);
        results_of(&s, back, results);
        for (int i = 0; i < ALL; i++)
            wanted[back][i] = results[i] ? case_values(results[i]) : NULL;
    }
    for (ek_isa isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++)
        for (int threads = 1; threads <= 4 && conv_limit_isa(isa); threads *= 2) {
            ek_dev *dev = case_device(threads);
            draw_again(&s);
            for (int back = 0; back < passes; back++) {
                ck_assert_int_eq(back ? ek_host_recurrent_steps_gradient(dev, &s.call, &s.back)
                                      : ek_host_recurrent_steps(dev, &s.call),
                                 1);
                results_of(&s, back, results);
                for (int i = 0; i < ALL; i++)
                    if (results[i]) {
                        case_compare(results[i], wanted[back][i], near, what[i]);
                        /* AVX2 and AVX-512 compute the same bits. */
                        twin_repeated(results[i], &once[isa > EK_ISA_PLAIN][back][i], what[i]);
                    }
            }
        }
    for (int i = 0; i < 2 * ALL; i++) {
        free(wanted[i / ALL][i % ALL]);
        for (int isa = 0; isa <= EK_ISA_AVX512; isa++)
            free(once[isa][i / ALL][i % ALL]);
    }
}

TEST_LOOP(equal_single_steps, 0, CASES *CELLS * 2)
{
    if (!test_is_short())
        check(_i / 2 / CELLS, (ek_recurrent_cell)(_i / 2 % CELLS), _i % 2 ? EK_F64 : EK_F32);
}

/* Too little work to pack weights for, and dtypes that products have to be converted for. */
TEST(others_are_computed_by_steps)
{
    ek_dev *dev = case_device(2);
    sequence s = make(0, EK_CELL_LSTM, EK_F32);
    const ek_recurrent_steps few = {.cell = EK_CELL_TANH,
                                    .weight = drawn(EK_F32, 2, (int64_t[]){8, 8}, 1),
                                    .h = drawn_steps(EK_F32, 4, 2, 8, 2),
                                    .x = drawn_steps(EK_F32, 3, 2, 8, 3)};
    ck_assert_int_eq(ek_host_recurrent_steps(dev, &few), 0);
    s.call.h = drawn_steps(EK_BF16, 4, 150, 37, 3);
    ck_assert_int_eq(ek_host_recurrent_steps(dev, &s.call), 0);
}

/* Sizes whose columns fill vectors of every instruction set, but rows no panel; x and h, or one of
 * them; one of the biases, or both. */
static const struct {
    ek_recurrent_cell cell;
    int64_t steps, samples, hidden, input;
    bool reverse, x, h, bias_x, bias_h;
} weights[] = {{EK_CELL_LSTM, 5, 150, 64, 32, false, true, true, true, true},
               {EK_CELL_LSTM, 3, 20, 16, 48, true, true, true, false, true},
               {EK_CELL_GRU, 4, 140, 48, 80, true, true, true, true, true},
               {EK_CELL_GRU, 2, 30, 32, 16, false, false, true, true, false},
               {EK_CELL_GRU, 2, 30, 32, 16, false, true, false, false, false},
               {EK_CELL_TANH, 6, 120, 80, 16, false, true, true, true, true}};
enum { WEIGHTS = sizeof weights / sizeof *weights };

/* The gradient of rows [row, row + count) of a weight and a bias, from columns of the sums'. */
static void single_weight(const ek_tensor *sums, int64_t column, int64_t count, const ek_tensor *x,
                          ek_tensor *dw, ek_tensor *db, int64_t row)
{
    ek_dev *dev = ek_tensor_dev(sums);
    ek_tensor part = *sums, out, to, line;
    part.offset += column;
    part.shape[1] = count;
    if (dw) {
        out = *dw;
        out.offset += row * dw->stride[0];
        out.shape[0] = count;
        const ek_tensor turned = ek_batch_of_matrix(&part, true),
                        right = ek_batch_of_matrix(x, false);
        to = ek_batch_of_matrix(&out, false);
        assert_ok(ek_host_matmul(dev, &to, &turned, &right, NULL, false));
    }
    if (db) {
        line = *db;
        line.ndim = 2;
        line.offset += row;
        line.shape[0] = 1, line.shape[1] = count;
        line.stride[0] = count, line.stride[1] = 1;
        assert_ok(ek_host_reduce(dev, EK_REDUCE_SUM, &line, &part));
    }
}

static void check_weights(int c, ek_dtype dtype)
{
    static const char *const what[4] = {"dw of x", "dw of h", "db of x", "db of h"};
    const ek_recurrent_cell cell = weights[c].cell;
    const int64_t steps = weights[c].steps, samples = weights[c].samples, all = steps * samples,
                  hidden = weights[c].hidden, rows = parts_of(cell) * hidden;
    const bool wanted[4] = {weights[c].x, weights[c].h, weights[c].bias_x, weights[c].bias_h};
    ek_tensor *x = drawn_steps(dtype, steps, samples, weights[c].input, 1),
              *h = drawn_steps(dtype, steps + 1, samples, hidden, 2),
              *sums = drawn_steps(dtype, steps, samples, gated(cell) ? 4 * hidden : hidden, 3);
    const ek_recurrent_steps call = {.cell = cell, .reverse = weights[c].reverse, .x = x, .h = h};
    ek_tensor *own[4] = {NULL}, *single[4] = {NULL};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2 && wanted[i]; k++)
            (k ? own : single)[i] =
                drawn(dtype, i < 2 ? 2 : 1, (int64_t[]){rows, i == 0 ? weights[c].input : hidden},
                      4 + k);
    ek_tensor lines = at(sums, 0, sums->shape[2]), before = at(h, call.reverse, hidden),
              in = at(x, 0, weights[c].input);
    lines.shape[0] = before.shape[0] = in.shape[0] = all;
    for (int i = 0; i < 2; i++)
        if (cell == EK_CELL_GRU) {
            single_weight(&lines, 0, 2 * hidden, i ? &before : &in, single[i], single[2 + i], 0);
            single_weight(&lines, (2 + i) * hidden, hidden, i ? &before : &in, single[i],
                          single[2 + i], 2 * hidden);
        } else {
            single_weight(&lines, 0, rows, i ? &before : &in, single[i], single[2 + i], 0);
        }
    double *values[4] = {NULL}, *once[EK_ISA_AVX512 + 1][4] = {{NULL}};
    for (int i = 0; i < 4; i++)
        values[i] = wanted[i] ? case_values(single[i]) : NULL;
    for (ek_isa isa = EK_ISA_PLAIN; isa <= EK_ISA_AVX512; isa++)
        for (int threads = 1; threads <= 4 && conv_limit_isa(isa); threads *= 2) {
            for (int i = 0; i < 4; i++)
                if (wanted[i])
                    case_fill(own[i], 7);
            const ek_recurrent_parameters to = {{own[0], own[1]}, {own[2], own[3]}};
            ck_assert_int_eq(ek_host_recurrent_parameters_gradient(case_device(threads), &call,
                                                                   sums, &to),
                             1);
            for (int i = 0; i < 4; i++)
                if (wanted[i]) {
                    case_compare(own[i], values[i], dtype == EK_F32 ? 1e-5 : 1e-13, what[i]);
                    twin_repeated(own[i], &once[isa > EK_ISA_PLAIN][i], what[i]);
                }
        }
    for (int i = 0; i < 4; i++) {
        free(values[i]);
        for (int isa = 0; isa <= EK_ISA_AVX512; isa++)
            free(once[isa][i]);
    }
}

TEST_LOOP(weights_are_products, 0, WEIGHTS * 2)
{
    if (!test_is_short())
        check_weights(_i / 2, _i % 2 ? EK_F64 : EK_F32);
}

/* Columns that fill no vector, and too many. */
TEST(other_weights_are_computed_as_products)
{
    ek_dev *dev = case_device(2);
    ek_tensor *x = drawn_steps(EK_F32, 2, 3, 9, 1), *h = drawn_steps(EK_F32, 3, 3, 8, 2),
              *sums = drawn_steps(EK_F32, 2, 3, 8, 3), *dw = drawn(EK_F32, 2, (int64_t[]){8, 9}, 4);
    const ek_recurrent_steps call = {.cell = EK_CELL_TANH, .x = x, .h = h};
    const ek_recurrent_parameters to = {{dw, NULL}, {NULL, NULL}};
    ck_assert_int_eq(ek_host_recurrent_parameters_gradient(dev, &call, sums, &to), 0);
    const ek_recurrent_steps wide = {.cell = EK_CELL_TANH,
                                     .x = drawn_steps(EK_F32, 2, 3, 1024, 1),
                                     .h = h};
    const ek_recurrent_parameters more = {{drawn(EK_F32, 2, (int64_t[]){8, 1024}, 4), NULL},
                                          {NULL, NULL}};
    ck_assert_int_eq(ek_host_recurrent_parameters_gradient(dev, &wide, sums, &more), 0);
}

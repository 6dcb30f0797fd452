/* State out of one optimizer and into another: training goes on to the same bits, and as fast. */
#include "core/tensor.h"
#include "kit/optimizers.h"
#include "optim_setup.h"

#define CASE_LIST(X)                                                                         \
    X(plain, "plain", 0, ek_sgd(module, .lr = 0.1))                                          \
    X(momentum, "momentum", 0,                                                               \
      ek_sgd(module, .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01))    \
    X(nesterov, "nesterov", 0, ek_sgd(module, .lr = 0.1, .momentum = 0.8, .nesterov = true)) \
    X(adam, "adam", 0, ek_adam(module, .lr = 0.01, .weight_decay = 0.1))                     \
    X(no_eps, "no eps", 0, ek_adam(module, .lr = 0.01, .eps = 0))                            \
    X(amsgrad, "amsgrad", 0, ek_adam(module, .lr = 0.01, .amsgrad = true))                   \
    X(adamw, "adamw", 0, ek_adamw(module, .lr = 0.01))                                       \
    X(adamw_amsgrad, "adamw amsgrad", 0, ek_adamw(module, .lr = 0.01, .amsgrad = true))
CASE_LIST(OPTIMIZER_MAKER)
static const optimizer_row cases[] = {CASE_LIST(OPTIMIZER_ROW)};
enum { CASES = sizeof cases / sizeof *cases, ADAM = 3 };

/* ---- a checkpoint in memory ---- */

/* What `from` knows of p goes to `to` as copies of another order of memory, last state first. */
static void carry_over(ek_optimizer *from, ek_tensor *p, ek_optimizer *to, ek_tensor *q)
{
    const char *names[4], *name;
    ek_tensor *states[4];
    int count = 0;
    for (int i = 0; (name = ek_optimizer_state_name(from, i)); i++) {
        ck_assert_int_lt(i, 4);
        ek_tensor *state = ek_optimizer_state(from, p, name);
        if (!state)
            continue;
        memmove(names + 1, names, (size_t)count * sizeof *names);
        memmove(states + 1, states, (size_t)count++ * sizeof *states);
        names[0] = name;
        states[0] = ek_clone(ek_contiguous(state, EK_CONTIGUOUS));
    }
    ck_assert_int_eq(ek_error_status(), 0);
    assert_ok(ek_optimizer_set_state(to, q, ek_optimizer_steps(from, p), names, states, count));
}

/* Two groups with rates of their own. */
static ek_optimizer *make(int i, ek_tensor **leaves)
{
    ek_optimizer *optimizer = cases[i].make(NULL);
    assert_made(optimizer);
    assert_ok(ek_optimizer_add_group(optimizer, leaves, 3));
    assert_ok(add_group_with(optimizer, leaves + 3, 2, "lr", 0.02));
    return optimizer;
}

static void copies_of(ek_tensor **leaves, ek_tensor **copies)
{
    for (int i = 0; i < MEMBERS; i++) {
        copies[i] = ek_clone(ek_detach(leaves[i]));
        assert_ok(ek_tensor_set_requires_grad(copies[i], true));
    }
}

static void assert_equal(ek_tensor **a, ek_tensor **b)
{
    for (int i = 0; i < MEMBERS; i++)
        assert_close(ek_detach(a[i]), ek_detach(b[i]), 0, 0);
}

/* Some gradients are absent, so that the parameters differ in their counts of updates, one of which
 * stays 0 at first. */
static void continue_elsewhere(int i, bool from_slabs, bool to_slabs)
{
    static const unsigned absent[] = {0x08, 0x09, 0x0c, 0x00, 0x10, 0x00};
    ek_tensor *p[MEMBERS], *q[MEMBERS];
    random_leaves(p);
    random_leaves(q);
    if (from_slabs)
        move_into_slabs(p);
    ek_optimizer *first = make(i, p);
    for (int step = 0; step < 3; step++) {
        give_gradients(q, p, absent[step]);
        assert_ok(ek_step(first));
    }
    copies_of(p, q);
    if (to_slabs)
        move_into_slabs(q);
    ek_optimizer *second = make(i, q);
    for (int k = 0; k < MEMBERS; k++) {
        carry_over(first, p[k], second, q[k]);
        ck_assert_int_eq(ek_optimizer_steps(second, q[k]), k == 3 ? 0 : k == 0 || k == 2 ? 2 : 3);
    }
    for (int step = 3; step < 6; step++) {
        if (from_slabs)
            give_gradients(q, p, absent[step]);
        else
            give_gradients(p, q, absent[step]);
        assert_ok(ek_step(first));
        assert_ok(ek_step(second));
        assert_equal(p, q);
    }
    ek_optimizer_free(first);
    ek_optimizer_free(second);
}

TEST_LOOP(continues_to_the_same_bits, 0, CASES)
{
    ek_manual_seed(7);
    continue_elsewhere(_i, false, false);
    continue_elsewhere(_i, false, true);
    continue_elsewhere(_i, true, false);
}

/* ---- places ---- */

static uint64_t optimizer_bytes(ek_device device)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return stats.now[EK_MEMORY_OPTIMIZER];
}

/* After a restore the state of neighbours lies as stepping wants it: the step moves nothing. */
TEST(lands_where_stepping_looks)
{
    ek_tensor *p[MEMBERS], *q[MEMBERS], *state[2][MEMBERS];
    void *address[2][MEMBERS];
    ek_manual_seed(8);
    random_leaves(p);
    random_leaves(q);
    move_into_slabs(q);
    ek_optimizer *first = ek_adam(), *second = ek_adam();
    assert_ok(ek_optimizer_add_group(first, p, MEMBERS));
    assert_ok(ek_optimizer_add_group(second, q, MEMBERS));
    give_gradients(p, q, 0);
    assert_ok(ek_step(first));
    uint64_t before = optimizer_bytes(ek_cpu());
    for (int i = MEMBERS - 1; i >= 0; i--)
        carry_over(first, p[i], second, q[i]);
    /* 16 + 48 + 16 + 16 + 32 elements, twice */
    ck_assert_uint_eq(optimizer_bytes(ek_cpu()) - before, 2 * 4 * 128);
    for (int i = 0; i < MEMBERS; i++) {
        state[0][i] = ek_optimizer_state(second, q[i], "exp_avg");
        state[1][i] = ek_optimizer_state(second, q[i], "exp_avg_sq");
        for (int s = 0; s < 2; s++) {
            ck_assert_int_eq(state[s][i]->offset - state[s][0]->offset,
                             q[i]->offset - q[0]->offset);
            ck_assert_ptr_eq(state[s][i]->storage, state[s][0]->storage);
            ck_assert(ek_same_layout(state[s][i], q[i]));
            address[s][i] = ek_tensor_address(state[s][i]);
        }
    }
    assert_ok(ek_step(second));
    /* Once more into the same optimizer: nothing moves either. */
    carry_over(first, p[1], second, q[1]);
    assert_ok(ek_step(second));
    for (int i = 0; i < MEMBERS; i++)
        for (int s = 0; s < 2; s++)
            ck_assert_ptr_eq(ek_tensor_address(state[s][i]), address[s][i]);
    ck_assert_int_eq(ek_optimizer_steps(second, q[0]), 3);
    ck_assert_int_eq(ek_optimizer_steps(second, q[1]), 2);
    ek_optimizer_free(first);
    ek_optimizer_free(second);
}

/* One parameter of a slab alone: the others have no state, whatever memory there is for it. */
TEST(neighbours_stay_new)
{
    ek_tensor *p[MEMBERS], *q[MEMBERS];
    ek_manual_seed(9);
    random_leaves(p);
    random_leaves(q);
    move_into_slabs(q);
    ek_optimizer *optimizer = make(ADAM, q);
    const char *names[] = {"exp_avg", "exp_avg_sq"};
    ek_tensor *ones = ek_ones(member_shape(1));
    assert_ok(ek_optimizer_set_state(optimizer, q[1], 9, names, (ek_tensor *[]){ones, ones}, 2));
    /* Memory for its whole group: 16 + 48 + 16 elements, twice. */
    ck_assert_uint_eq(optimizer_bytes(ek_cpu()), 2 * 4 * 80);
    for (int i = 0; i < MEMBERS; i++) {
        ck_assert_int_eq(ek_optimizer_steps(optimizer, q[i]), i == 1 ? 9 : 0);
        ek_tensor *state = ek_optimizer_state(optimizer, q[i], "exp_avg");
        ck_assert(i == 1 ? element(state, 47) == 1 : !state);
    }
    ck_assert_int_eq(ek_error_status(), 0);
    give_gradients(p, q, 0);
    assert_ok(ek_step(optimizer));
    ck_assert_int_eq(ek_optimizer_steps(optimizer, q[0]), 1);
    assert_made(ek_optimizer_state(optimizer, q[0], "exp_avg"));
    ek_optimizer_free(optimizer);
}

/* A parameter of a slab that has no room for a gradient, as one that requires none. */
TEST(frozen_neighbours_are_left_out)
{
    ek_tensor *q[MEMBERS];
    ek_manual_seed(10);
    random_leaves(q);
    move_into_slabs(q);
    assert_ok(ek_tensor_set_requires_grad(q[1], false));
    assert_ok(ek_leaf_set_grad_buffer(q[1], NULL));
    ek_optimizer *optimizer = make(ADAM, q);
    const char *names[] = {"exp_avg", "exp_avg_sq"};
    ek_tensor *ones = ek_ones(member_shape(0));
    assert_ok(ek_optimizer_set_state(optimizer, q[0], 2, names, (ek_tensor *[]){ones, ones}, 2));
    ck_assert_ptr_null(ek_optimizer_state(optimizer, q[1], "exp_avg"));
    ck_assert(element(ek_optimizer_state(optimizer, q[0], "exp_avg"), 6) == 1);
    ek_optimizer_free(optimizer);
}

TEST(converts_dtypes_and_devices)
{
    assert_ok(test_devices_configure("2"));
    ek_tensor *p = ek_empty(EK_SHAPE(1, 2, 2, 2), .device = test_device(1),
                            .format = EK_CHANNELS_LAST, .requires_grad = true);
    ek_optimizer *optimizer = ek_adam();
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    const double values[] = {1, 2, 3, 4, 5, 6, 7, 8.5};
    ek_shape shape = EK_SHAPE(1, 2, 2, 2);
    ek_tensor *states[] = {tensor_of(values, shape, EK_F64, test_device(0)),
                           tensor_of(values, shape, EK_BF16, ek_cpu())};
    assert_ok(ek_tensor_set_requires_grad(states[0], true));
    const char *names[] = {"exp_avg_sq", "exp_avg"};
    assert_ok(ek_optimizer_set_state(optimizer, p, 1, names, states, 2));
    for (int i = 0; i < 2; i++) {
        ek_tensor *state = ek_optimizer_state(optimizer, p, names[i]);
        ck_assert(ek_device_equal(ek_tensor_device(state), test_device(1)));
        ck_assert(ek_same_layout(state, p));
        ck_assert(!ek_tensor_requires_grad(state));
        assert_close(ek_to_device(state, ek_cpu()), tensor_of(values, shape, EK_F32, ek_cpu()), 0,
                     0);
    }
    /* Its own states, exchanged. */
    ek_tensor *own[] = {ek_optimizer_state(optimizer, p, "exp_avg"),
                        ek_optimizer_state(optimizer, p, "exp_avg_sq")};
    assert_made(ek_fill_(own[0], 3));
    assert_ok(ek_optimizer_set_state(optimizer, p, 2, names, own, 2));
    ck_assert_double_eq(element(ek_optimizer_state(optimizer, p, "exp_avg_sq"), 7), 3);
    ck_assert_double_eq(element(ek_optimizer_state(optimizer, p, "exp_avg"), 7), 8.5);
    ek_optimizer_free(optimizer);
}

/* ---- names, steps 0 ---- */

TEST(names_follow_the_options)
{
    static const int counts[] = {0, 1, 1, 2, 2, 3, 2, 3};
    for (int i = 0; i < CASES; i++) {
        ek_optimizer *optimizer = cases[i].make(NULL);
        int count = 0;
        while (ek_optimizer_state_name(optimizer, count))
            count++;
        ck_assert_msg(count == counts[i], "%s has %d states", cases[i].name, count);
        ck_assert_ptr_null(ek_optimizer_state_name(optimizer, -1));
        ek_optimizer_free(optimizer);
    }
    /* Only one group has momentum. */
    ek_tensor *p[MEMBERS], *q[MEMBERS];
    random_leaves(p);
    random_leaves(q);
    ek_optimizer *optimizer = ek_sgd();
    assert_ok(ek_optimizer_add_group(optimizer, p, 1));
    ck_assert_ptr_null(ek_optimizer_state_name(optimizer, 0));
    assert_ok(add_group_with(optimizer, p + 1, 1, "momentum", 0.9));
    ck_assert_str_eq(ek_optimizer_state_name(optimizer, 0), "momentum_buffer");
    ck_assert_ptr_null(ek_optimizer_state_name(optimizer, 1));
    assert_ok(ek_optimizer_set_state(optimizer, p[0], 4, NULL, NULL, 0));
    ck_assert_int_eq(ek_optimizer_steps(optimizer, p[0]), 4);
    ck_assert_ptr_null(ek_optimizer_state_name(NULL, 0));
    ck_assert_int_eq(ek_error_status(), 0);
    ek_optimizer_free(optimizer);
}

TEST_LOOP(steps_zero_begins_anew, 0, CASES)
{
    ek_tensor *p[MEMBERS], *q[MEMBERS];
    random_leaves(p);
    copies_of(p, q);
    move_into_slabs(q);
    ek_optimizer *first = make(_i, p), *second = make(_i, q);
    give_gradients(p, q, 0);
    assert_ok(ek_step(second));
    for (int i = 0; i < MEMBERS; i++) {
        assert_ok(ek_optimizer_set_state(second, q[i], 0, NULL, NULL, 0));
        ck_assert_int_eq(ek_optimizer_steps(second, q[i]), 0);
        ck_assert_ptr_null(ek_optimizer_state(second, q[i], ek_optimizer_state_name(second, 0)));
        bool grad_enabled = ek_set_grad_enabled(false);
        assert_made(ek_copy_(q[i], p[i]));
        ek_set_grad_enabled(grad_enabled);
    }
    for (int step = 0; step < 2; step++) {
        give_gradients(p, q, 0);
        assert_ok(ek_step(first));
        assert_ok(ek_step(second));
        assert_equal(p, q);
    }
    ek_optimizer_free(first);
    ek_optimizer_free(second);
}

/* ---- errors ---- */

static ek_tensor *x, *p0;

static void assert_state_refused(ek_optimizer *optimizer, int64_t steps, const char *const *names,
                                 ek_tensor *const *states, int count, int status, const char *part)
{
    assert_refused(ek_optimizer_set_state(optimizer, p0, steps, names, states, count), status,
                   part);
    ck_assert_int_eq(ek_optimizer_steps(optimizer, p0), 5);
    ck_assert_double_eq(element(ek_optimizer_state(optimizer, p0, "exp_avg"), 0), 1);
    ck_assert_double_eq(element(ek_optimizer_state(optimizer, p0, "exp_avg_sq"), 0), 2);
}

TEST(refuses_what_does_not_fit)
{
    x = ek_full(9, EK_SHAPE(2, 3));
    p0 = ek_zeros(EK_SHAPE(2, 3), .requires_grad = true);
    ek_tensor *other = ek_zeros(EK_SHAPE(2, 3), .requires_grad = true);
    ek_optimizer *optimizer = ek_adam();
    assert_ok(ek_optimizer_add_group(optimizer, &p0, 1));
    const char *names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    ek_tensor *good[] = {ek_ones(EK_SHAPE(2, 3)), ek_full(2, EK_SHAPE(2, 3)), x};
    assert_ok(ek_optimizer_set_state(optimizer, p0, 5, names, good, 2));

    ek_tensor *states[] = {x, x, x};
    assert_state_refused(optimizer, -1, names, states, 2, EK_E_INVALID, "after -1 updates");
    assert_state_refused(optimizer, INT64_MAX, names, states, 2, EK_E_INVALID,
                         "9223372036854775807");
    assert_state_refused(optimizer, 6, names, states, 1, EK_E_INVALID, "\"exp_avg_sq\" is missing");
    assert_state_refused(optimizer, 6, NULL, NULL, 0, EK_E_INVALID, "\"exp_avg\" is missing");
    assert_state_refused(optimizer, 6, names, states, 3, EK_E_INVALID,
                         "with these options and after 6 updates a parameter has no state "
                         "\"max_exp_avg_sq\"");
    assert_state_refused(optimizer, 0, names, states, 2, EK_E_INVALID,
                         "after 0 updates a parameter has no state \"exp_avg\"");
    assert_state_refused(optimizer, 6, (const char *[]){"exp_avg", "momentum_buffer"}, states, 2,
                         EK_E_INVALID, "no state \"momentum_buffer\"");
    assert_state_refused(optimizer, 6, (const char *[]){"exp_avg", "exp_avg"}, states, 2,
                         EK_E_INVALID, "\"exp_avg\" is given twice");
    assert_state_refused(optimizer, 6, (const char *[]){"exp_avg", NULL}, states, 2, EK_E_INVALID,
                         "state 1 has no name");
    assert_state_refused(optimizer, 6, names, NULL, 2, EK_E_INVALID, "a list is missing");
    assert_state_refused(optimizer, 6, names, states, -2, EK_E_INVALID, "-2 states");
    assert_state_refused(optimizer, 6, names, (ek_tensor *[]){x, NULL}, 2, EK_E_INVALID,
                         "\"exp_avg_sq\" is NULL");
    assert_state_refused(optimizer, 6, names, (ek_tensor *[]){x, ek_zeros(EK_SHAPE(3, 2))}, 2,
                         EK_E_SHAPE,
                         "\"exp_avg_sq\" is f32[3, 2] on cpu, its parameter f32[2, 3] on cpu");
    assert_state_refused(optimizer, 6, names, (ek_tensor *[]){x, ek_zeros(EK_SHAPE(1, 3))}, 2,
                         EK_E_SHAPE, "its parameter");
    assert_state_refused(optimizer, 6, names,
                         (ek_tensor *[]){x, ek_zeros(EK_SHAPE(2, 3), .dtype = EK_I64)}, 2,
                         EK_E_DTYPE, "is i64[2, 3] on cpu; it has to be floating");

    assert_refused(ek_optimizer_set_state(optimizer, other, 1, names, states, 2), EK_E_INVALID,
                   "adam: f32[2, 3] on cpu is none of the optimizer's 1 parameters");
    assert_refused(ek_optimizer_steps(optimizer, other), EK_E_INVALID, "is none of");
    assert_refused(ek_optimizer_steps(optimizer, NULL), EK_E_INVALID, "NULL is none of");
    assert_refused(ek_optimizer_steps(NULL, p0), EK_E_INVALID, "the optimizer is NULL");
    ek_optimizer_free(optimizer);
}

/* Without memory for all, nothing has changed; with it, the same call works. */
TEST(memory_runs_out)
{
    enum { COUNT = 1 << 16 };
    assert_ok(test_devices_configure("1x8M"));
    ek_tensor *p = ek_zeros(EK_SHAPE(COUNT), .device = test_device(0), .requires_grad = true);
    ek_optimizer *optimizer = ek_adam(.amsgrad = true);
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1));
    const char *names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    ek_tensor *ones = ek_ones(EK_SHAPE(COUNT)), *states[] = {ones, ones, ones};
    bool done = false;
    /* Room for the parameter and for ever more of the copies. */
    for (uint64_t room = 1; !done; room++) {
        ck_assert_uint_lt(room, 10);
        assert_ok(ek_memory_trim(test_device(0)));
        assert_ok(ek_memory_set_capacity(test_device(0), room * COUNT * 4 + 4096));
        int status = ek_optimizer_set_state(optimizer, p, 2, names, states, 3);
        done = status == 0;
        if (!done) {
            assert_error(EK_E_OUT_OF_MEMORY, "host:0");
            ck_assert_int_eq(ek_optimizer_steps(optimizer, p), 0);
            ck_assert_ptr_null(ek_optimizer_state(optimizer, p, "exp_avg"));
        }
    }
    ck_assert_int_eq(ek_optimizer_steps(optimizer, p), 2);
    ck_assert_double_eq(element(ek_optimizer_state(optimizer, p, "max_exp_avg_sq"), COUNT - 1), 1);
    ck_assert_uint_eq(optimizer_bytes(test_device(0)), 3 * 4 * COUNT);
    ek_optimizer_free(optimizer);
}

/* Parameters in pieces on several devices are stepped as if they were whole, to the bit. */
#include "evenkeel/nn.h"
#include "shard_setup.h"

typedef ek_optimizer *constructor(ek_optimizer_options options);

static const struct {
    const char *name;
    constructor *make;
    ek_optimizer_options options;
    int states;
} cases[] = {
    {"plain", ek_sgd_with, {.lr = 0.1, .weight_decay = 0.05}, 0},
    {"momentum", ek_sgd_with, {.lr = 0.1, .momentum = 0.9, .dampening = 0.3}, 1},
    {"nesterov", ek_sgd_with, {.lr = 0.1, .momentum = 0.8, .nesterov = true}, 1},
    {"adam", ek_adam_with, {.lr = 0.01, .weight_decay = 0.1}, 2},
    {"no eps", ek_adam_with, {.lr = 0.01, .eps = EK_ZERO}, 2},
    {"amsgrad", ek_adam_with, {.lr = 0.01, .amsgrad = true}, 3},
    {"adamw", ek_adamw_with, {.lr = 0.01}, 2},
};
enum { CASES = sizeof cases / sizeof *cases, ADAM = 3, NO_EPS = 4, AMSGRAD = 5 };

/* How the divided parameter gets it: as a whole, in its pieces' slots, half there and half through
 * the parameter itself, or in some of the pieces only (the rest is zeros). */
typedef enum arrival { AS_A_WHOLE, IN_PIECES, BOTH_WAYS, IN_SOME_PIECES, ARRIVALS } arrival;
static int arrivals = ARRIVALS; /* that are in use */

/* Two groups with rates of their own. */
static ek_optimizer *make(int i, ek_tensor **p)
{
    /* Without eps a zero gradient of a zero moment gives no number. */
    arrivals = i == NO_EPS ? IN_SOME_PIECES : ARRIVALS;
    ek_optimizer *optimizer = cases[i].make(cases[i].options);
    assert_made(optimizer);
    assert_ok(ek_optimizer_add_group(optimizer, p, 3, (ek_optimizer_options){0}));
    assert_ok(ek_optimizer_add_group(optimizer, p + 3, PARAMETERS - 3,
                                     (ek_optimizer_options){.lr = 0.02}));
    return optimizer;
}

/* ---- gradients ---- */

static ek_tensor *random_gradient(ek_tensor *p)
{
    ek_tensor *gradient = ek_tensor_like(p);
    ek_tensor *drawn = ek_randn(ek_tensor_shape(p), .dtype = ek_tensor_dtype(p));
    assert_made(gradient);
    assert_made(ek_copy_(gradient, drawn));
    return gradient;
}

static void give_to_pieces(ek_tensor *q, ek_tensor *gradient, bool some)
{
    const ek_shards *shards = ek_leaf_shards(q);
    for (int k = 0; k < shards->count; k++) {
        const ek_shard *shard = &shards->shards[k];
        if (some && k % 2 == 1) {
            assert_ok(
                ek_dev_zero(ek_tensor_dev(gradient), address_of(gradient, shard->begin),
                            (size_t)(shard->end - shard->begin) * ek_dtype_size(gradient->dtype)));
            continue;
        }
        ek_tensor *slot = shard->piece->grad_slot;
        assert_ok(ek_dev_copy(ek_tensor_dev(slot), ek_tensor_address(slot), ek_tensor_dev(gradient),
                              address_of(gradient, shard->begin),
                              (size_t)(shard->end - shard->begin) * ek_dtype_size(slot->dtype)));
        assert_ok(ek_tensor_set_grad(shard->piece, slot));
    }
}

static void add_through(ek_tensor *p, ek_tensor *gradient)
{
    assert_ok(ek_backward(ek_sum(ek_mul(p, gradient))));
}

static void give(ek_tensor *p, ek_tensor *q, arrival how)
{
    ek_tensor *gradient = random_gradient(p);
    if (!ek_leaf_shards(q))
        how = AS_A_WHOLE;
    if (how == AS_A_WHOLE)
        assert_ok(ek_tensor_set_grad(q, gradient));
    else
        give_to_pieces(q, gradient, how == IN_SOME_PIECES);
    assert_ok(ek_tensor_set_grad(p, ek_clone(gradient)));
    if (how != BOTH_WAYS)
        return;
    ek_tensor *more = random_gradient(p);
    add_through(p, more);
    add_through(q, more);
}

/* A bit of `absent` leaves a parameter out. */
static void give_all(ek_tensor **p, ek_tensor **q, unsigned absent, int how)
{
    for (int i = 0; i < PARAMETERS; i++) {
        ek_tensor_set_grad(p[i], NULL);
        ek_tensor_set_grad(q[i], NULL);
        if (!(absent >> i & 1))
            give(p[i], q[i], (arrival)((how + i) % arrivals));
    }
}

static void step_both(ek_optimizer *whole, ek_optimizer *divided)
{
    assert_ok(settled(ek_step(whole)));
    assert_ok(settled(ek_step(divided)));
}

/* ---- stepping ---- */

/* The last parameter is frozen throughout. */
static const unsigned absent[] = {0x80, 0x81, 0x86, 0x80, 0xf8, 0x80};
enum { STEPS = sizeof absent / sizeof *absent };

static void step_as_whole(int i, int devices, bool straddling)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, devices, straddling);
    ek_optimizer *whole = make(i, p), *divided = make(i, q);
    for (int step = 0; step < STEPS; step++) {
        give_all(p, q, absent[step], step);
        step_both(whole, divided);
        assert_equal_lists(q, p, PARAMETERS);
        assert_published(group);
        ck_assert_int_eq(group->refreshed, step + 1);
        ck_assert_int_eq(group->published, step + 1);
    }
    for (int k = 0; k < PARAMETERS; k++) {
        ck_assert_int_eq(ek_optimizer_steps(divided, q[k]), ek_optimizer_steps(whole, p[k]));
        ck_assert_ptr_null(ek_tensor_grad(q[k]));
    }
    /* Nothing to step: nothing is sent. */
    ek_zero_grad(divided);
    assert_ok(ek_step(divided));
    ck_assert_int_eq(group->published, STEPS);
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
}

START_TEST(steps_as_the_whole_does)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(11);
    assert_ok(test_devices_configure("4"));
    for (int devices = 1; devices <= MOST_DEVICES; devices++) {
        step_as_whole(_i, devices, false);
        step_as_whole(_i, devices, true);
    }
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- changes of division ---- */

static void change_division(int i, bool optimizer_first)
{
    static const int devices[] = {0, 3, 3, 2, 0, 4, 0};
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(i, p), *divided = optimizer_first ? make(i, q) : NULL;
    for (int k = 0; k < (int)(sizeof devices / sizeof *devices); k++) {
        if (k > 0 && devices[k] > 0)
            divide_over(q, PARAMETERS, devices[k], k % 2 == 0);
        else
            make_whole(q, PARAMETERS);
        if (!divided)
            divided = make(i, q);
        /* Absent ones follow when their turn comes. */
        for (int step = 0; step < 2; step++) {
            give_all(p, q, absent[(k + step) % STEPS], step + k);
            step_both(whole, divided);
            assert_equal_lists(q, p, PARAMETERS);
        }
    }
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
    for (int d = 1; d < MOST_DEVICES; d++)
        ck_assert_uint_eq(bytes_of(test_device(d), EK_MEMORY_OPTIMIZER), 0);
}

START_TEST(state_follows_the_division)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(12);
    assert_ok(test_devices_configure("4"));
    change_division(_i, true);
    change_division(_i, false);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* A wrapper that goes leaves nothing of its devices' memory behind in the optimizer. */
START_TEST(former_pieces_are_not_kept)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(13);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(ADAM, p), *divided = make(ADAM, q);
    ek_scope inner = ek_scope_begin();
    divide_over(q, PARAMETERS, 2, false);
    give_all(p, q, 0, 0);
    step_both(whole, divided);
    make_whole(q, PARAMETERS);
    ek_scope_end(&inner);
    ck_assert_uint_eq(bytes_of(test_device(1), EK_MEMORY_PARAMETER), 0);
    ck_assert_uint_eq(bytes_of(test_device(1), EK_MEMORY_GRADIENT), 0);
    assert_close(ek_to_device(ek_optimizer_state(whole, p[1], "exp_avg"), ek_cpu()),
                 ek_optimizer_state(divided, q[1], "exp_avg"), 0, 0);
    give_all(p, q, 0, 0);
    step_both(whole, divided);
    assert_equal_lists(q, p, PARAMETERS);
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* A module that is moved has whole parameters, and their state comes along. */
START_TEST(a_moved_module_is_whole)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(14);
    assert_ok(test_devices_configure("3"));
    ek_module *nets[2];
    ek_tensor *p[2][2];
    ek_optimizer *optimizers[2];
    for (int k = 0; k < 2; k++) {
        ek_manual_seed(15);
        nets[k] = ek_linear(5, 7);
        assert_ok(ek_module_to_device(nets[k], test_device(0)));
        p[k][0] = ek_module_tensor(nets[k], "weight");
        p[k][1] = ek_module_tensor(nets[k], "bias");
        optimizers[k] = ek_adam(nets[k]);
    }
    divide_over(p[1], 2, 3, true);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 2; i++)
            give(p[0][i], p[1][i], IN_PIECES);
        step_both(optimizers[0], optimizers[1]);
        assert_equal_lists(p[1], p[0], 2);
        for (int i = 0; i < 2; i++)
            give(p[0][i], p[1][i], IN_PIECES);
        for (int k = 0; k < 2; k++)
            assert_ok(turn == 1 ? ek_module_to_dtype(nets[k], EK_F64)
                                : ek_module_to_device(nets[k], test_device(turn ? 2 : 1)));
        for (int i = 0; i < 2; i++) {
            ck_assert_ptr_null(ek_leaf_shards(p[1][i]));
            ck_assert_ptr_null(ek_gather_grad(p[1][i]));
        }
    }
    for (int k = 0; k < 2; k++) {
        ek_optimizer_free(optimizers[k]);
        ek_module_free(nets[k]);
    }
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- state out and in ---- */

static void carry_over(ek_optimizer *from, ek_tensor *p, ek_optimizer *to, ek_tensor *q)
{
    const char *names[4], *name;
    ek_tensor *states[4];
    int count = 0;
    for (int i = 0; (name = ek_optimizer_state_name(from, i)); i++) {
        ek_tensor *state = ek_optimizer_state(from, p, name);
        if (!state)
            continue;
        names[count] = name;
        states[count++] = ek_clone(ek_contiguous(state, EK_CONTIGUOUS));
    }
    ck_assert_int_eq(ek_error_status(), 0);
    assert_ok(ek_optimizer_set_state(to, q, ek_optimizer_steps(from, p), names, states, count));
}

/* After some steps either one continues from the other's state. */
static void exchange_state(int i, bool into_divided)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(i, p), *divided = make(i, q);
    divide_over(q, PARAMETERS, 3, true);
    for (int step = 0; step < 2; step++) {
        give_all(p, q, absent[step], step);
        step_both(whole, divided);
    }
    ek_optimizer **renewed = into_divided ? &divided : &whole;
    ek_optimizer *other = make(i, into_divided ? q : p);
    for (int k = PARAMETERS - 1; k >= 0; k--)
        carry_over(*renewed, into_divided ? q[k] : p[k], *renewed, into_divided ? q[k] : p[k]);
    for (int k = PARAMETERS - 1; k >= 0; k--) {
        if (into_divided)
            carry_over(whole, p[k], other, q[k]);
        else
            carry_over(divided, q[k], other, p[k]);
    }
    ek_optimizer_free(*renewed);
    *renewed = other;
    for (int step = 2; step < STEPS; step++) {
        give_all(p, q, absent[step], step);
        step_both(whole, divided);
        assert_equal_lists(q, p, PARAMETERS);
    }
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
}

START_TEST(state_is_the_same_for_both_kinds)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(16);
    assert_ok(test_devices_configure("4"));
    exchange_state(_i, true);
    exchange_state(_i, false);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

START_TEST(state_of_the_whole_is_a_copy)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(17);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *divided = make(ADAM, q);
    ck_assert_ptr_null(ek_optimizer_state(divided, q[1], "exp_avg"));
    ck_assert_int_eq(ek_error_status(), 0);
    give_all(p, q, 1, IN_PIECES);
    assert_ok(ek_step(divided));
    ek_tensor *state = ek_optimizer_state(divided, q[1], "exp_avg");
    assert_made(state);
    ck_assert(ek_device_equal(ek_tensor_device(state), ek_cpu()));
    ck_assert(ek_same_layout(state, q[1]));
    assert_made(ek_fill_(state, 3));
    ck_assert_double_ne(element(ek_optimizer_state(divided, q[1], "exp_avg"), 0), 3);
    ck_assert_ptr_null(ek_optimizer_state(divided, q[0], "exp_avg"));
    ck_assert_ptr_null(ek_optimizer_state(divided, q[1], "momentum_buffer"));
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* What a restore prepares is where the step looks for it. */
START_TEST(restored_state_stays_where_it_is)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(18);
    assert_ok(test_devices_configure("3"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(AMSGRAD, p), *divided = make(AMSGRAD, q);
    give_all(p, q, 0, AS_A_WHOLE);
    assert_ok(ek_step(whole));
    for (int i = 0; i < PARAMETERS; i++)
        assert_made(ek_copy_(ek_detach(q[i]), ek_detach(p[i])));
    divide_over(q, PARAMETERS, 3, false);
    for (int i = PARAMETERS - 1; i >= 0; i--)
        carry_over(whole, p[i], divided, q[i]);
    for (int i = 0; i < PARAMETERS; i++)
        give(p[i], q[i], IN_PIECES);
    ek_memory_stats before[3], after[3];
    for (int d = 0; d < 3; d++) {
        assert_ok(ek_memory_reset_peak(test_device(d)));
        assert_ok(ek_memory_get(test_device(d), &before[d]));
    }
    assert_ok(ek_step(divided));
    for (int d = 0; d < 3; d++) {
        assert_ok(ek_memory_get(test_device(d), &after[d]));
        ck_assert_uint_eq(before[d].now[EK_MEMORY_OPTIMIZER], after[d].now[EK_MEMORY_OPTIMIZER]);
        ck_assert_uint_eq(before[d].peak, after[d].peak);
    }
    assert_ok(ek_step(whole));
    assert_equal_lists(q, p, PARAMETERS);
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- memory ---- */

START_TEST(each_device_has_its_part_of_the_state)
{
    enum { COUNT = 1 << 14, DEVICES = 4 };
    ek_scope scope = ek_scope_begin();
    assert_ok(test_devices_configure("4"));
    ek_tensor *p[2];
    for (int i = 0; i < 2; i++)
        p[i] = ek_zeros(EK_SHAPE(COUNT / 2), .device = test_device(0), .requires_grad = true);
    divide_over(p, 2, DEVICES, false);
    ek_optimizer *optimizer = ek_adam();
    assert_ok(ek_optimizer_add_group(optimizer, p, 2, (ek_optimizer_options){0}));
    for (int i = 0; i < 2; i++)
        give_to_pieces(p[i], random_gradient(p[i]), false);
    assert_ok(ek_step(optimizer));
    /* Each device has all of its piece of one parameter and nothing of the other's. */
    for (int d = 0; d < DEVICES; d++) {
        uint64_t nbytes = bytes_of(test_device(d), EK_MEMORY_OPTIMIZER);
        ck_assert_uint_ge(nbytes, 2 * 4 * COUNT / DEVICES);
        ck_assert_uint_le(nbytes, 2 * 4 * COUNT / DEVICES + 2 * 64);
    }
    ek_optimizer_free(optimizer);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* One large parameter; device 2 has no room for its part of the state. */
static void run_out(bool with_state)
{
    enum { COUNT = 1 << 15, DEVICES = 3 };
    ek_scope scope = ek_scope_begin();
    ek_tensor *p = ek_zeros(EK_SHAPE(COUNT), .device = test_device(0), .requires_grad = true);
    ek_tensor *q = ek_zeros(EK_SHAPE(COUNT), .device = test_device(0), .requires_grad = true);
    ek_optimizer *whole = ek_adam(), *divided = ek_adam();
    assert_ok(ek_optimizer_add_group(whole, &p, 1, (ek_optimizer_options){0}));
    assert_ok(ek_optimizer_add_group(divided, &q, 1, (ek_optimizer_options){0}));
    if (with_state) {
        give(p, q, AS_A_WHOLE);
        step_both(whole, divided);
    }
    fake_group *group = divide_over(&q, 1, DEVICES, false);
    give(p, q, BOTH_WAYS);
    ek_tensor *gradient = ek_tensor_grad(p);
    assert_close(ek_gather_grad(q), gradient, 0, 0);
    uint64_t bytes[DEVICES];
    for (int d = 0; d < DEVICES; d++)
        bytes[d] = bytes_of(test_device(d), EK_MEMORY_OPTIMIZER);
    ek_memory_stats stats;
    assert_ok(ek_memory_trim(test_device(2)));
    assert_ok(ek_memory_get(test_device(2), &stats));
    /* Room for what settles the gradient, and for one of the states. */
    assert_ok(ek_memory_set_capacity(test_device(2), stats.in_use + COUNT / DEVICES * 4 + 4096));
    ck_assert_int_eq(ek_step(divided), EK_E_OUT_OF_MEMORY);
    assert_error(EK_E_OUT_OF_MEMORY, "host:2");
    for (int d = 0; d < DEVICES; d++)
        ck_assert_uint_eq(bytes_of(test_device(d), EK_MEMORY_OPTIMIZER), bytes[d]);
    ck_assert_int_eq(ek_optimizer_steps(divided, q), with_state);
    assert_close(ek_detach(q), ek_detach(p), 0, 0);
    assert_close(ek_gather_grad(q), gradient, 0, 0);
    ck_assert_int_eq(group->published, 0);
    if (with_state)
        assert_close(ek_optimizer_state(divided, q, "exp_avg"),
                     ek_optimizer_state(whole, p, "exp_avg"), 0, 0);

    assert_ok(ek_memory_set_capacity(test_device(2), 0));
    step_both(whole, divided);
    assert_close(ek_detach(q), ek_detach(p), 0, 0);
    ck_assert_int_eq(group->published, 1);
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
}

START_TEST(nothing_changes_where_an_owner_has_no_room)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(19);
    assert_ok(test_devices_configure("3x16M"));
    run_out(_i);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- the group ---- */

START_TEST(a_failing_refresh_leaves_all)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(20);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *divided = make(ADAM, q);
    give_all(p, q, 0, IN_PIECES);
    group->fail = 1;
    ck_assert_int_eq(ek_step(divided), EK_E_STATE);
    assert_error(EK_E_STATE, "no refreshment");
    assert_equal_lists(q, p, PARAMETERS);
    ck_assert_int_eq(group->published, 0);
    for (int d = 0; d < 2; d++)
        ck_assert_uint_eq(bytes_of(test_device(d), EK_MEMORY_OPTIMIZER), 0);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

static int publish_nothing(ek_shard_group *base)
{
    (void)base;
    return 0;
}

/* Between two pieces of one owner there may be another's, where a slab of gradients has padding. */
START_TEST(what_others_own_is_left)
{
    enum { PIECES = 3 };
    static const int64_t ends[PIECES] = {20, 32, 64};
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(25);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p = ek_ones(EK_SHAPE(64), .device = test_device(0), .requires_grad = true);
    fake_group *group = divide_over(&p, 1, 2, false);
    group->base.publish = publish_nothing;
    ek_shards *shards = ek_shards_new(&group->base, PIECES);
    assert_made(shards);
    ek_tensor *pieces[2], *slots[3];
    for (int i = 0; i < PIECES; i++) {
        ek_shard *shard = &shards->shards[i];
        *shard = (ek_shard){i ? ends[i - 1] : 0, ends[i], NULL};
        shard->piece = piece_of(group->copies[i % 2][0], shard->begin, shard->end);
    }
    pieces[0] = shards->shards[0].piece;
    pieces[1] = shards->shards[2].piece;
    make_homes(pieces, 2, test_device(0), slots);
    make_homes(&shards->shards[1].piece, 1, test_device(1), slots + 2);
    for (int i = 0; i < PIECES; i++) {
        assert_ok(ek_leaf_set_grad_slot(shards->shards[i].piece, slots[i == 0 ? 0 : 3 - i]));
        ek_object_release(slots[i == 0 ? 0 : 3 - i]);
    }
    assert_ok(ek_leaf_set_shards(p, shards));
    ek_object_release(shards);
    ek_optimizer *optimizer = ek_sgd(.lr = 0.1, .weight_decay = 0.5);
    assert_ok(ek_optimizer_add_group(optimizer, &p, 1, (ek_optimizer_options){0}));
    give_to_pieces(p, ek_ones(EK_SHAPE(64), .device = test_device(0)), false);
    assert_ok(ek_step(optimizer));
    for (int i = 0; i < 64; i++) {
        bool theirs = i >= 20 && i < 32;
        ck_assert_double_eq_tol(element(p, i), theirs ? 1 : 0.85, 1e-6);
        ck_assert_double_eq_tol(element(group->copies[1][0], i), theirs ? 0.85 : 1, 1e-6);
    }
    ek_optimizer_free(optimizer);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* What a user wrote into a parameter is what is stepped. */
START_TEST(parameters_may_be_written_between_steps)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(21);
    assert_ok(test_devices_configure("3"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, 3, true);
    ek_optimizer *whole = make(ADAM, p), *divided = make(ADAM, q);
    for (int step = 0; step < 3; step++) {
        give_all(p, q, 0, step);
        step_both(whole, divided);
        assert_made(ek_mul_scalar_(ek_detach(p[1]), -2));
        assert_made(ek_mul_scalar_(ek_detach(q[1]), -2));
    }
    give_all(p, q, 0, 0);
    step_both(whole, divided);
    assert_equal_lists(q, p, PARAMETERS);
    assert_published(group);
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* A graph that saved the parameter, or a piece, must not go on with what the step made of it. */
START_TEST(graphs_notice_the_step)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(22);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *divided = make(ADAM, q);
    give_all(p, q, 0, IN_PIECES);
    ek_tensor *saved[] = {q[1], ek_leaf_shards(q[1])->shards[0].piece,
                          ek_leaf_shards(q[1])->shards[1].piece};
    ek_tensor *losses[3];
    for (int i = 0; i < 3; i++)
        losses[i] = ek_sum(ek_mul(saved[i], saved[i]));
    uint64_t version = ek_tensor_version(q[1]);
    assert_ok(ek_step(divided));
    ck_assert_uint_eq(ek_tensor_version(q[1]), version + 1);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ek_backward(losses[i]), EK_E_MODIFIED);
        assert_error(EK_E_MODIFIED, "the optimizer's step");
    }
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

/* ---- gradients ---- */

START_TEST(zero_grad_empties_pieces)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(23);
    assert_ok(test_devices_configure("2"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    fake_group *group = divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *divided = make(ADAM, q);
    give_all(p, q, 0, IN_PIECES);
    ek_zero_grad(divided);
    for (int i = 0; i < PARAMETERS; i++) {
        ck_assert_ptr_null(ek_gather_grad(q[i]));
        for (int k = 0; k < 2; k++)
            ck_assert_ptr_null(ek_tensor_grad(ek_leaf_shards(q[i])->shards[k].piece));
    }
    assert_ok(ek_step(divided));
    assert_equal_lists(q, p, PARAMETERS);
    ck_assert_int_eq(group->published, 0);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

START_TEST(gradients_are_clipped_in_pieces)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(24);
    assert_ok(test_devices_configure("3"));
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    divide_over(q, PARAMETERS, 3, true);
    ek_optimizer *whole = make(ADAM, p), *divided = make(ADAM, q);
    double norms[2];
    give_all(p, q, 0x21, IN_PIECES);
    assert_ok(ek_clip_grad_norm(whole, 2, &norms[0]));
    assert_ok(ek_clip_grad_norm(divided, 2, &norms[1]));
    ck_assert_double_gt(norms[0], 4);
    ck_assert_double_eq_tol(norms[1], norms[0], 1e-6 * norms[0]);
    for (int i = 0; i < PARAMETERS; i++) {
        if (0x21 >> i & 1)
            ck_assert_ptr_null(ek_gather_grad(q[i]));
        else
            assert_close_norm(ek_gather_grad(q[i]), ek_tensor_grad(p[i]), 1e-6);
    }
    /* Below the limit nothing is scaled. */
    assert_ok(ek_clip_grad_norm(divided, 5, &norms[1]));
    ck_assert_double_eq_tol(norms[1], 2, 1e-5);

    give_all(p, q, 0, IN_PIECES);
    assert_ok(ek_clip_grad_value(whole, 0.5));
    assert_ok(ek_clip_grad_value(divided, 0.5));
    for (int i = 0; i < PARAMETERS; i++)
        assert_close(ek_gather_grad(q[i]), ek_tensor_grad(p[i]), 0, 0);
    ek_optimizer_free(whole);
    ek_optimizer_free(divided);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("sharded_step");
    TCase *t = tcase_create("sharded_step");
    tcase_add_loop_test(t, steps_as_the_whole_does, 0, CASES);
    tcase_add_loop_test(t, state_follows_the_division, 0, CASES);
    tcase_add_test(t, former_pieces_are_not_kept);
    tcase_add_test(t, a_moved_module_is_whole);
    tcase_add_loop_test(t, state_is_the_same_for_both_kinds, 0, CASES);
    tcase_add_test(t, state_of_the_whole_is_a_copy);
    tcase_add_test(t, restored_state_stays_where_it_is);
    tcase_add_test(t, each_device_has_its_part_of_the_state);
    tcase_add_loop_test(t, nothing_changes_where_an_owner_has_no_room, 0, 2);
    tcase_add_test(t, a_failing_refresh_leaves_all);
    tcase_add_test(t, what_others_own_is_left);
    tcase_add_test(t, parameters_may_be_written_between_steps);
    tcase_add_test(t, graphs_notice_the_step);
    tcase_add_test(t, zero_grad_empties_pieces);
    tcase_add_test(t, gradients_are_clipped_in_pieces);
    suite_add_tcase(s, t);
    return s;
}

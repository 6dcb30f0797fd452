/* State of parameters in shards: where it lies, where it goes when the sharding changes, out and
 * in. */
#include "evenkeel/nn.h"
#include "sharded.h"

/* ---- changes of sharding ---- */

static void change_division(int i, bool optimizer_first)
{
    static const int devices[] = {0, 3, 3, 2, 0, 4, 0};
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(i, p), *sharded = optimizer_first ? make(i, q) : NULL;
    for (int k = 0; k < (int)(sizeof devices / sizeof *devices); k++) {
        if (k > 0 && devices[k] > 0)
            divide_over(q, PARAMETERS, devices[k], k % 2 == 0);
        else
            make_whole(q, PARAMETERS);
        if (!sharded)
            sharded = make(i, q);
        /* Absent ones follow when their turn comes. */
        for (int step = 0; step < 2; step++) {
            give_all(p, q, absent[(k + step) % STEPS], step + k);
            step_both(whole, sharded);
            assert_equal_lists(q, p, PARAMETERS);
        }
    }
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
    for (int d = 1; d < MOST_DEVICES; d++)
        ck_assert_uint_eq(bytes_of(test_device(d), EK_MEMORY_OPTIMIZER), 0);
}

TEST_LOOP(state_follows_the_division, 0, CASES)
{
    change_division(_i, true);
    change_division(_i, false);
}

/* A wrapper that goes leaves nothing of its devices' memory behind in the optimizer. */
TEST(former_shards_are_not_kept)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(ADAM, p), *sharded = make(ADAM, q);
    ek_scope inner = ek_scope_begin();
    divide_over(q, PARAMETERS, 2, false);
    give_all(p, q, 0, 0);
    step_both(whole, sharded);
    make_whole(q, PARAMETERS);
    ek_scope_end(&inner);
    ck_assert_uint_eq(bytes_of(test_device(1), EK_MEMORY_PARAMETER), 0);
    ck_assert_uint_eq(bytes_of(test_device(1), EK_MEMORY_GRADIENT), 0);
    assert_close(ek_to_device(ek_optimizer_state(whole, p[1], "exp_avg"), ek_cpu()),
                 ek_optimizer_state(sharded, q[1], "exp_avg"), 0, 0);
    give_all(p, q, 0, 0);
    step_both(whole, sharded);
    assert_equal_lists(q, p, PARAMETERS);
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
}

/* A module that is moved has whole parameters, and their state comes along. */
TEST(a_moved_module_is_whole)
{
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
}

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
    ek_optimizer *whole = make(i, p), *sharded = make(i, q);
    divide_over(q, PARAMETERS, 3, true);
    for (int step = 0; step < 2; step++) {
        give_all(p, q, absent[step], step);
        step_both(whole, sharded);
    }
    ek_optimizer **renewed = into_divided ? &sharded : &whole;
    ek_optimizer *other = make(i, into_divided ? q : p);
    for (int k = PARAMETERS - 1; k >= 0; k--)
        carry_over(*renewed, into_divided ? q[k] : p[k], *renewed, into_divided ? q[k] : p[k]);
    for (int k = PARAMETERS - 1; k >= 0; k--) {
        if (into_divided)
            carry_over(whole, p[k], other, q[k]);
        else
            carry_over(sharded, q[k], other, p[k]);
    }
    ek_optimizer_free(*renewed);
    *renewed = other;
    for (int step = 2; step < STEPS; step++) {
        give_all(p, q, absent[step], step);
        step_both(whole, sharded);
        assert_equal_lists(q, p, PARAMETERS);
    }
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
}

TEST_LOOP(state_is_the_same_for_both_kinds, 0, CASES)
{
    exchange_state(_i, true);
    exchange_state(_i, false);
}

TEST(state_of_the_whole_is_a_copy)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    divide_over(q, PARAMETERS, 2, true);
    ek_optimizer *sharded = make(ADAM, q);
    ck_assert_ptr_null(ek_optimizer_state(sharded, q[1], "exp_avg"));
    ck_assert_int_eq(ek_error_status(), 0);
    give_all(p, q, 1, IN_PIECES);
    assert_ok(ek_step(sharded));
    ek_tensor *state = ek_optimizer_state(sharded, q[1], "exp_avg");
    assert_made(state);
    ck_assert(ek_device_equal(ek_tensor_device(state), ek_cpu()));
    ck_assert(ek_same_layout(state, q[1]));
    assert_made(ek_fill_(state, 3));
    ck_assert_double_ne(element(ek_optimizer_state(sharded, q[1], "exp_avg"), 0), 3);
    ck_assert_ptr_null(ek_optimizer_state(sharded, q[0], "exp_avg"));
    ck_assert_ptr_null(ek_optimizer_state(sharded, q[1], "momentum_buffer"));
    ek_optimizer_free(sharded);
}

/* What a restore prepares is where the step looks for it. */
TEST(restored_state_stays_where_it_is)
{
    ek_tensor *p[PARAMETERS], *q[PARAMETERS];
    random_parameters(p, test_device(0));
    copies_of(p, q);
    ek_optimizer *whole = make(AMSGRAD, p), *sharded = make(AMSGRAD, q);
    give_all(p, q, 0, AS_A_WHOLE);
    assert_ok(ek_step(whole));
    for (int i = 0; i < PARAMETERS; i++)
        assert_made(ek_copy_(ek_detach(q[i]), ek_detach(p[i])));
    divide_over(q, PARAMETERS, 3, false);
    for (int i = PARAMETERS - 1; i >= 0; i--)
        carry_over(whole, p[i], sharded, q[i]);
    for (int i = 0; i < PARAMETERS; i++)
        give(p[i], q[i], IN_PIECES);
    ek_memory_stats before[3], after[3];
    for (int d = 0; d < 3; d++) {
        assert_ok(ek_memory_reset_peak(test_device(d)));
        assert_ok(ek_memory_get_stats(test_device(d), &before[d]));
    }
    assert_ok(ek_step(sharded));
    for (int d = 0; d < 3; d++) {
        assert_ok(ek_memory_get_stats(test_device(d), &after[d]));
        ck_assert_uint_eq(before[d].now[EK_MEMORY_OPTIMIZER], after[d].now[EK_MEMORY_OPTIMIZER]);
        ck_assert_uint_eq(before[d].peak, after[d].peak);
    }
    assert_ok(ek_step(whole));
    assert_equal_lists(q, p, PARAMETERS);
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
}

/* ---- memory ---- */

TEST(each_device_has_its_part_of_the_state)
{
    enum { COUNT = 1 << 14, DEVICES = 4 };
    ek_scope scope = ek_scope_begin();
    assert_ok(test_devices_configure("4"));
    ek_tensor *p[2];
    for (int i = 0; i < 2; i++)
        p[i] = ek_zeros(EK_SHAPE(COUNT / 2), .device = test_device(0), .requires_grad = true);
    divide_over(p, 2, DEVICES, false);
    ek_optimizer *optimizer = ek_adam();
    assert_ok(ek_optimizer_add_group(optimizer, p, 2));
    for (int i = 0; i < 2; i++)
        give_to_shards(p[i], random_gradient(p[i]), false);
    assert_ok(ek_step(optimizer));
    /* Each device has all of its shard of one parameter and nothing of the other's. */
    for (int d = 0; d < DEVICES; d++) {
        uint64_t nbytes = bytes_of(test_device(d), EK_MEMORY_OPTIMIZER);
        ck_assert_uint_ge(nbytes, 2 * 4 * COUNT / DEVICES);
        ck_assert_uint_le(nbytes, 2 * 4 * COUNT / DEVICES + 2 * 64);
    }
    ek_optimizer_free(optimizer);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}

/* One large parameter; device 2 has no room for its part of the state. */
static void run_out(bool with_state)
{
    enum { COUNT = 1 << 15, DEVICES = 3 };
    ek_scope scope = ek_scope_begin();
    ek_tensor *p = ek_zeros(EK_SHAPE(COUNT), .device = test_device(0), .requires_grad = true);
    ek_tensor *q = ek_zeros(EK_SHAPE(COUNT), .device = test_device(0), .requires_grad = true);
    ek_optimizer *whole = ek_adam(), *sharded = ek_adam();
    assert_ok(ek_optimizer_add_group(whole, &p, 1));
    assert_ok(ek_optimizer_add_group(sharded, &q, 1));
    if (with_state) {
        give(p, q, AS_A_WHOLE);
        step_both(whole, sharded);
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
    assert_ok(ek_memory_get_stats(test_device(2), &stats));
    /* Room for what settles the gradient, and for one of the states. */
    assert_ok(ek_memory_set_capacity(test_device(2), stats.in_use + COUNT / DEVICES * 4 + 4096));
    assert_refused(ek_step(sharded), EK_E_OUT_OF_MEMORY, "host:2");
    for (int d = 0; d < DEVICES; d++)
        ck_assert_uint_eq(bytes_of(test_device(d), EK_MEMORY_OPTIMIZER), bytes[d]);
    ck_assert_int_eq(ek_optimizer_steps(sharded, q), with_state);
    assert_close(ek_detach(q), ek_detach(p), 0, 0);
    assert_close(ek_gather_grad(q), gradient, 0, 0);
    ck_assert_int_eq(group->published, 0);
    if (with_state)
        assert_close(ek_optimizer_state(sharded, q, "exp_avg"),
                     ek_optimizer_state(whole, p, "exp_avg"), 0, 0);

    assert_ok(ek_memory_set_capacity(test_device(2), 0));
    step_both(whole, sharded);
    assert_close(ek_detach(q), ek_detach(p), 0, 0);
    ck_assert_int_eq(group->published, 1);
    ek_optimizer_free(whole);
    ek_optimizer_free(sharded);
    ek_scope_end(&scope);
}

TEST_LOOP(nothing_changes_where_an_owner_has_no_room, 0, 2)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(19);
    assert_ok(test_devices_configure("3x16M"));
    run_out(_i);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}

/* Nodes whose backward meets other ranks: they run without gradients too, one after another, in one
 * order whatever device is faster. */
#include "core/rendezvous.h"
#include "toy.h"

enum { DEVICES = 4, MEETINGS = 64 };
static ek_dev *devs[DEVICES];

/* What the backwards of nodes that meet wrote down. */
static struct {
    atomic_int count, inside, beside;
    int index[MEETINGS];
    int missing; /* gradients that were NULL */
} met;

static void forget(void)
{
    atomic_store(&met.count, 0);
    atomic_store(&met.inside, 0);
    atomic_store(&met.beside, 0);
    met.missing = 0;
}

static void setup(void)
{
    assert_ok(test_devices_configure("4"));
    for (int i = 0; i < DEVICES; i++) {
        devs[i] = ek_dev_get(test_device(i));
        assert_made(devs[i]);
        devs[i]->threads = 1;
    }
    forget();
}

FIXTURE(setup, NULL)

/* ---- x, which meets; its backward is differentiable and meets too ---- */

typedef struct meeting {
    int index;
    unsigned nap_us;
    bool fails;
} meeting;

static ek_tensor *meet_with(ek_tensor *x, meeting how);

static int meet_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    meeting how = *(const meeting *)ek_node_attributes(node);
    if (atomic_fetch_add(&met.inside, 1))
        atomic_fetch_add(&met.beside, 1);
    if (how.nap_us)
        usleep(how.nap_us);
    int at = atomic_fetch_add(&met.count, 1);
    if (at < MEETINGS)
        met.index[at] = how.index;
    if (how.fails) {
        atomic_fetch_sub(&met.inside, 1);
        return ek_error(EK_E_USER, "rank 1 is gone");
    }
    for (int i = 0; i < ek_node_output_count(node); i++) {
        if (!gradients[i]) {
            met.missing++;
            continue;
        }
        how.index += 100;
        ek_tensor *own = meet_with(gradients[i], how);
        results[0] = results[0] ? ek_fold_add(results[0], own) : own;
    }
    atomic_fetch_sub(&met.inside, 1);
    return 0;
}

static const ek_operation meet_operation = {.name = "meet",
                                            .backward = meet_backward,
                                            .urgent = true,
                                            .meets = true};

static ek_tensor *meet_with(ek_tensor *x, meeting how)
{
    if (!x)
        return NULL;
    return EK_RECORD(ek_fold_copy(ek_detach(x), x), &meet_operation, EK_INPUTS(x),
                     EK_ATTRIBUTES(how));
}

static ek_tensor *meet(ek_tensor *x, int index)
{
    return meet_with(x, (meeting){.index = index});
}

static void assert_met(const int *indices, int count)
{
    ck_assert_int_eq(atomic_load(&met.count), count);
    ck_assert_int_eq(atomic_load(&met.beside), 0);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(met.index[i], indices[i]);
    forget();
}

/* ---- x, whose gradient is lost ---- */

static int lose_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return 0;
}

static ek_tensor *lose(ek_tensor *x)
{
    static const ek_operation operation = {.name = "lose", .backward = lose_backward};
    return EK_RECORD(ek_fold_copy(ek_detach(x), x), &operation, EK_INPUTS(x));
}

/* ---- what runs ---- */

TEST_LOOP(runs_without_a_gradient, 0, 2)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0));
    ek_tensor *y = toy_leaf((double[]){3, 4}, 2, test_device(_i));
    ek_tensor *none = lose(toy_exp(meet(toy_scale(x, 2), 0)));
    ek_tensor *loss = ek_fold_add(toy_sum(none), toy_to(toy_sum(toy_exp(y)), devs[0], 0));
    int runs = atomic_load(&toy_exp_runs);
    assert_ok(ek_backward(loss));
    assert_met((const int[]){0}, 1);
    ck_assert_int_eq(met.missing, 0);
    ck_assert_int_eq(atomic_load(&toy_exp_runs), runs + 1); /* those that don't meet are skipped */
    assert_made(ek_tensor_grad(x));
    assert_close(ek_tensor_grad(x), toy_full(0, EK_SHAPE(2), test_device(0)), 0, 0);
}

TEST(outputs_without_a_gradient_get_zeros)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0)), *outputs[4];
    meeting how = {.index = 5};
    outputs[0] = toy_full(1, EK_SHAPE(2), test_device(0));
    outputs[1] = toy_full(1, EK_SHAPE(2), test_device(0)); /* used, but lost */
    outputs[2] = NULL;
    outputs[3] = ek_empty(EK_SHAPE(2), .dtype = EK_I64, .device = test_device(0));
    assert_ok(ek_record_outputs(outputs, 4, &meet_operation,
                                &(ek_record_options){EK_INPUTS(x), EK_ATTRIBUTES(how)}));
    assert_ok(ek_backward(toy_sum(ek_fold_add(toy_scale(outputs[0], 3), lose(outputs[1])))));
    ck_assert_int_eq(met.missing, 2); /* those that carry none */
    assert_met((const int[]){5}, 1);
    ck_assert_double_eq(element(ek_tensor_grad(x), 1), 3);
}

TEST(only_what_leads_to_something_wanted_runs)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0));
    ek_tensor *y = toy_leaf((double[]){1, 2}, 2, test_device(1));
    ek_tensor *z = toy_leaf((double[]){1, 2}, 2, test_device(0));
    ek_tensor *of_x = meet(x, 0), *of_y = toy_to(meet(y, 1), devs[0], 0);
    ek_tensor *product = meet(toy_mul(of_x, of_y), 2);
    ek_tensor *loss = toy_sum(toy_mul(product, toy_exp(meet(z, 3))));
    meet(x, 4); /* leads nowhere */
    toy_grad(loss, x, true);
    assert_met((const int[]){2, 0}, 2);
    assert_ok(ek_tensor_set_requires_grad(z, false));
    assert_ok(ek_backward(loss, .retain_graph = true));
    assert_met((const int[]){2, 1, 0}, 3);
    assert_ok(ek_tensor_set_requires_grad(z, true));
    assert_ok(ek_backward(loss));
    assert_met((const int[]){3, 2, 1, 0}, 4);
}

/* ---- the order ---- */

/* Device i has its meetings i, DEVICES + i, .., of which each naps; devices have little or much to
 * do before. */
static ek_tensor *many_meetings(ek_tensor **leaves, int round)
{
    ek_tensor *x[DEVICES], *sum = NULL;
    for (int i = 0; i < DEVICES; i++)
        x[i] = toy_scale(leaves[i], 0.5);
    for (int m = 0; m < 4 * DEVICES; m++) {
        int i = (m * 3 + round) % DEVICES;
        unsigned nap = (unsigned)((m + round) % 5 == 0) * 300;
        x[i] = meet_with(toy_exp(toy_scale(x[i], 0.1)), (meeting){.index = m, .nap_us = nap});
        if (m % 6 == 5) /* gradients cross over, or are lost */
            x[i] = ek_fold_add(x[i], toy_to(x[(i + 1) % DEVICES], devs[i], nap));
    }
    for (int i = 0; i < DEVICES; i++) {
        ek_tensor *part = toy_sum(toy_to(x[i], devs[0], i == round % DEVICES ? 2000 : 0));
        sum = sum ? ek_fold_add(sum, part) : part;
    }
    return sum;
}

TEST(the_order_is_that_of_recording_backwards)
{
#ifdef EK_SANITIZED
    enum { ROUNDS = 8 };
#else
    enum { ROUNDS = 40 };
#endif
    int backwards[4 * DEVICES];
    for (int i = 0; i < 4 * DEVICES; i++)
        backwards[i] = 4 * DEVICES - 1 - i;
    for (int round = 0; round < ROUNDS; round++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *leaves[DEVICES];
        for (int i = 0; i < DEVICES; i++)
            leaves[i] = toy_leaf((double[]){1, 2}, 2, test_device(round % 2 ? i : 0));
        for (int i = 0; round % 2 == 0 && i < DEVICES; i++)
            leaves[i] = toy_to(leaves[i], devs[i], 0);
        ek_tensor *loss = many_meetings(leaves, round);
        assert_ok(ek_backward(loss, .retain_graph = true));
        assert_met(backwards, 4 * DEVICES);
        assert_ok(ek_backward(loss));
        assert_met(backwards, 4 * DEVICES);
        ek_scope_end(&scope);
    }
}

TEST(second_order)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0));
    ek_tensor *there = meet(toy_to(x, devs[1], 0), 0);
    ek_tensor *here = meet(x, 1);
    ek_tensor *cube = toy_to(toy_mul(there, toy_mul(there, there)), devs[0], 0);
    ek_tensor *y = toy_sum(ek_fold_add(cube, toy_mul(here, here)));
    ek_tensor *gradient = toy_grad(y, x, true); /* 3 x^2 + 2 x */
    assert_met((const int[]){1, 0}, 2);
    ck_assert_double_eq(element(gradient, 1), 16);
    assert_ok(ek_backward(toy_sum(toy_mul(gradient, gradient)), .create_graph = true));
    ck_assert_int_eq(atomic_load(&met.beside), 0);
    /* 2 (3 x^2 + 2 x) (6 x + 2) */
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 1), 2 * 16 * 14, 1e-9);
    /* First the meetings of the gradients, made last, then those of the forward. */
    assert_met((const int[]){100, 101, 1, 0}, 4);
    assert_ok(ek_tensor_set_grad(x, NULL));
}

/* ---- errors ---- */

TEST(an_error_ends_the_turns)
{
    for (int round = 0; round < 12; round++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0)), *sum = NULL;
        for (int i = 0; i < DEVICES; i++) {
            ek_tensor *there = toy_to(x, devs[i], 0);
            meeting how = {.index = i, .nap_us = 200, .fails = i == round % DEVICES};
            there = toy_to(toy_sum(meet_with(toy_exp(there), how)), devs[0], 0);
            sum = sum ? ek_fold_add(sum, there) : there;
        }
        assert_refused(ek_backward(sum), EK_E_USER, "in backward of meet on ");
        ck_assert_int_eq(atomic_load(&met.count), DEVICES - round % DEVICES);
        ck_assert_ptr_null(ek_tensor_grad(x));
        forget();
        assert_ok(ek_backward(toy_sum(meet(toy_to(meet(x, 0), devs[3], 0), 1))));
        assert_met((const int[]){1, 0}, 2);
        ek_scope_end(&scope);
    }
}

TEST(no_memory_for_zeros)
{
    enum { COUNT = 1 << 16 };
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = toy_full(1, EK_SHAPE(COUNT), test_device(2));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *loss = toy_to(toy_sum(lose(meet(x, 0))), devs[0], 0);
    assert_ok(ek_memory_set_capacity(test_device(2), toy_memory(test_device(2)).in_use + 1024));
    assert_refused(ek_backward(loss, .retain_graph = true), EK_E_OUT_OF_MEMORY,
                   "in backward of meet on ");
    assert_met(NULL, 0);
    assert_ok(ek_memory_set_capacity(test_device(2), 0));
    assert_ok(ek_backward(loss));
    assert_met((const int[]){0}, 1);
    ek_scope_end(&scope);
    ck_assert_uint_eq(toy_memory(test_device(2)).in_use, 0);
}

/* ---- passes within passes, and in jobs ---- */

typedef struct inner {
    ek_object object;
    int index;
} inner;

static void inner_destroy(ek_object *object)
{
    free(object);
}

static int inner_function(ek_object *state, ek_tensor *const *inputs, int input_count,
                          ek_tensor **outputs, int output_count)
{
    outputs[0] =
        meet(toy_exp(meet(inputs[0], ((inner *)state)->index)), 1 + ((inner *)state)->index);
    return outputs[0] ? 0 : ek_error_pending();
}

/* exp x, computed again in backward as a checkpoint does. */
static ek_tensor *computed_again(ek_tensor *x, int index)
{
    static const ek_operation operation = {.name = "again",
                                           .backward = ek_recomputed_backward,
                                           .destroy = ek_recomputed_destroy};
    inner *state = calloc(1, sizeof *state);
    ck_assert_ptr_nonnull(state);
    ek_object_init(&state->object, inner_destroy);
    state->index = index;
    ek_recomputed recomputed = {&operation, inner_function, &state->object, 0};
    ek_tensor *y;
    bool before = ek_set_grad_enabled(false);
    assert_ok(inner_function(&state->object, &x, 1, &y, 1));
    ek_set_grad_enabled(before);
    assert_ok(ek_record_recomputed(&y, 1, &recomputed, &x, 1));
    ek_object_release(state);
    return y;
}

TEST(computed_again_on_one_device)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(1));
    ek_tensor *again = computed_again(meet(x, 0), 1);
    ek_tensor *y = toy_sum(ek_fold_add(again, meet(x, 3)));
    assert_ok(ek_backward(y));
    assert_met((const int[]){3, 2, 1, 0}, 4);
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 0), 1 + 2.718281828459045, 1e-12);
    y = toy_sum(computed_again(x, 0));
    y = toy_grad(y, x, true);
    assert_met((const int[]){1, 0}, 2);
    assert_ok(ek_tensor_set_grad(x, NULL));
    assert_ok(ek_backward(toy_sum(y)));
    ck_assert_double_eq_tol(element(ek_tensor_grad(x), 0), 2.718281828459045, 1e-12);
}

/* Nodes that meet run in the order of recording, also if the operation of one is urgent. The node
 * that was recorded later is a checkpoint, whose recomputation meets. */
TEST(meetings_are_not_urgent)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0));
    ek_tensor *early = meet(x, 0), *y = computed_again(toy_exp(x), 1);
    assert_ok(ek_backward(toy_sum(ek_fold_add(y, early))));
    assert_met((const int[]){2, 1, 0}, 3);
}

TEST(computed_again_on_several_devices_is_refused)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(1));
    ek_tensor *y = toy_to(toy_sum(computed_again(x, 0)), devs[0], 0);
    assert_refused(ek_backward(y), EK_E_STATE,
                   "meet meets other ranks, which is impossible in backward of again beside");
    assert_met(NULL, 0);
}

static int pass_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ck_assert_ptr_nonnull(dy[0]);
    ek_tensor *x = ek_detach(dy[0]);
    bool before = ek_set_grad_enabled(true);
    int rc = ek_tensor_set_requires_grad(x, true);
    ek_tensor *y = toy_sum(meet(x, 7));
    ek_set_grad_enabled(before);
    if (rc < 0 || !y)
        return ek_error_status();
    return ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                   .gradients = dx);
}

static int pass_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = toy_scale(x[0], 1);
    return 0;
}

/* A user's function that meets has its turn, in which it may make passes that meet. */
TEST_LOOP(functions_of_users_meet, 0, 2)
{
    const ek_function function = {.name = "pass",
                                  .forward = pass_forward,
                                  .backward = pass_backward,
                                  .meets = _i};
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(1)), *y;
    assert_ok(ek_function_apply(&function, &x, 1, &y));
    ek_tensor *loss = toy_to(toy_sum(_i ? lose(y) : y), devs[0], 0);
    if (_i) {
        assert_ok(ek_backward(loss));
        assert_met((const int[]){7}, 1);
        ck_assert_double_eq(element(ek_tensor_grad(x), 1), 1);
    } else {
        assert_refused(ek_backward(loss), EK_E_STATE,
                       "impossible in backward of pass beside other");
        assert_met(NULL, 0);
        /* On one device there is one order. */
        assert_ok(ek_function_apply(&function, &x, 1, &y));
        assert_ok(ek_backward(toy_sum(y)));
        assert_met((const int[]){7}, 1);
    }
}

typedef struct job_losses {
    ek_tensor *loss[2]; /* goes backward; NULL: the job records */
} job_losses;

static int run_job(void *user, int index)
{
    ek_tensor *loss = ((job_losses *)user)->loss[index];
    if (loss)
        return ek_backward(loss);
    ek_tensor *x = toy_full(1, EK_SHAPE(2), test_device(index));
    EK_TRY(ek_tensor_set_requires_grad(x, true));
    return meet(x, index) ? 0 : ek_error_status();
}

TEST(replicas_are_refused)
{
    job_losses none = {{NULL}}, made;
    for (int i = 0; i < 2; i++) {
        ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(i));
        made.loss[i] = toy_sum(meet(x, i));
    }
    assert_refused(ek_jobs_run(devs, 2, run_job, &none, NULL), EK_E_STATE,
                   "meet meets other ranks, which is impossible in one of several replicas");
    assert_refused(ek_jobs_run(devs, 2, run_job, &made, NULL), EK_E_STATE,
                   "meet meets other ranks, which is impossible in one of several replicas");
    assert_met(NULL, 0);
    /* One job meets no other. */
    assert_ok(ek_jobs_run(devs, 1, run_job, &none, NULL));
    assert_ok(ek_jobs_run(devs, 1, run_job, &made, NULL));
    assert_met((const int[]){0}, 1);
    assert_ok(ek_backward(made.loss[1]));
    assert_met((const int[]){1}, 1);
}

/* What replicas do together is done once, and in the same order on all ranks. */
static ek_tensor *common; /* one reference */

static int meet_together(void *const *brought, int count)
{
    common = ek_keep(meet(meet(brought[0], 0), 1));
    return common ? 0 : ek_error_pending();
}

static int rendezvous_in_job(void *user, int index)
{
    return ek_rendezvous("together", 0, user, meet_together);
}

TEST(the_common_work_of_a_rendezvous_records)
{
    ek_tensor *x = toy_leaf((double[]){1, 2}, 2, test_device(0));
    assert_ok(ek_jobs_run(devs, DEVICES, rendezvous_in_job, x, NULL));
    assert_ok(ek_backward(toy_sum(common)));
    assert_met((const int[]){1, 0}, 2);
    ck_assert_double_eq(element(ek_tensor_grad(x), 1), 1);
    ek_release(common);
}

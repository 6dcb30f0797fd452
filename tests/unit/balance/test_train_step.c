/* A training step in micro-batches gives the loss and gradients of the whole batch. */
#include "kit/models.h"
#include "kit/remote.h"
#include "step_setup.h"

enum { BATCH = 11 };

/* ---- the same numbers ---- */

static void check_parts(way how, loss_kind kind, ek_dtype dtype, int parts, double tolerance)
{
    ek_scope scope = ek_scope_begin();
    job plain = make_job(PLAIN, kind, dtype), j = make_job(how, kind, dtype);
    ek_value x = ek_value_of_tensor(ek_to_dtype(make_inputs(BATCH), dtype));
    ek_value target = make_target(kind, BATCH, dtype);
    double expected = whole_batch(&plain, x, target), loss;
    assert_ok(train_job(&loss, &j, .input = x, .target = target, .micro_batches = parts,
                        .accumulate_only = true));
    assert_near(loss, expected, tolerance);
    assert_at_most(gradient_distance(j.net, plain.net), tolerance);
    ek_scope_end(&scope);
    free_job(&plain);
    free_job(&j);
}

TEST_LOOP(parts_add_up, 0, (WAYS * LOSS_KINDS))
{
    way how = _i % WAYS;
    loss_kind kind = (loss_kind)(_i / WAYS);
    for (int parts = 0; parts <= 7; parts++)
        check_parts(how, kind, EK_F64, parts, 1e-12);
}

TEST_LOOP(parts_add_up_in_f32, 0, WAYS)
{
    for (int kind = 0; kind < LOSS_KINDS; kind++)
        check_parts((way)_i, (loss_kind)kind, EK_F32, 4, 1e-5);
}

TEST_LOOP(more_parts_than_samples, 0, WAYS)
{
    check_parts((way)_i, CROSS_ENTROPY, EK_F64, 100, 1e-12);
}

/* Parts are those of torch.chunk: of 11 in 4 they have 3, 3, 3 and 2 samples. */
static int part_sizes[16], part_count;

static ek_value noting_forward(ek_module *module, const ek_args *args)
{
    part_sizes[part_count++] = (int)ek_tensor_size(ek_arg_tensor(args, 0), 0);
    return samples_forward(module, args);
}

MODULE_TYPE(noting, ek_module)

TEST(parts_are_chunks)
{
    static const int expected[] = {3, 3, 3, 2};
    job j = make_job(PLAIN, USERS_MEAN, EK_F64);
    ek_module *noting = ek_module_new(&noting_type);
    part_count = 0;
    assert_ok(ek_train_step(NULL, .model = j.model, .criterion = noting, .optimizer = j.optimizer,
                            .input = EK_VALUE(make_inputs(BATCH)), .micro_batches = 4));
    ck_assert_int_eq(part_count, 4);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(part_sizes[i], expected[i]);
    ek_module_free(noting);
    free_job(&j);
}

/* ---- steps ---- */

static void hash_of(ek_module *net, char text[65])
{
    assert_ok(ek_module_sha256(net, text));
}

/* Without micro-batches it is the loop that everybody writes, to the bit; twice, momentum with it.
 */
TEST_LOOP(whole_steps_are_the_plain_loop, 0, WAYS)
{
    char a[65], b[65];
    job one = make_job((way)_i, CROSS_ENTROPY, EK_F64);
    job two = make_job((way)_i, CROSS_ENTROPY, EK_F64);
    for (int step = 0; step < 2; step++) {
        ek_scope scope = ek_scope_begin();
        ek_value x = ek_value_of_tensor(make_inputs(BATCH + step));
        ek_value target = make_target(CROSS_ENTROPY, BATCH + step, EK_F64);
        double loss, expected;
        assert_ok(train_job(&loss, &one, .input = x, .target = target, .max_norm = 0.01));
        ek_value output =
            ek_forward(two.model, ek_value_to_device(x, _i == PLAIN ? test_home() : ek_cpu(), 0));
        ek_tensor *by_hand = ek_loss(two.criterion, output, target);
        expected = value_of(by_hand);
        ek_zero_grad(two.optimizer);
        assert_ok(ek_backward(by_hand));
        assert_ok(ek_clip_grad_norm(two.optimizer, 0.01, NULL));
        assert_ok(ek_step(two.optimizer));
        ck_assert_double_eq(loss, expected);
        ek_scope_end(&scope);
    }
    hash_of(one.net, a);
    hash_of(two.net, b);
    ck_assert_str_eq(a, b);
    free_job(&one);
    free_job(&two);
}

TEST_LOOP(steps_in_parts_clip_what_has_added_up, 0, WAYS)
{
    job whole = make_job(PLAIN, WEIGHTED, EK_F64), parts = make_job((way)_i, WEIGHTED, EK_F64);
    for (int step = 0; step < 3; step++) {
        ek_scope scope = ek_scope_begin();
        ek_value x = ek_value_of_tensor(make_inputs(BATCH));
        ek_value target = make_target(WEIGHTED, BATCH, EK_F64);
        job *jobs[] = {&whole, &parts};
        double losses[2];
        for (int k = 0; k < 2; k++)
            assert_ok(train_job(&losses[k], jobs[k], .input = x, .target = target,
                                .micro_batches = k == 0 ? 1 : 3, .max_norm = 0.02));
        assert_near(losses[1], losses[0], 1e-11);
        ek_scope_end(&scope);
    }
    ek_scope scope = ek_scope_begin();
    for (int p = 0; p < 4; p++)
        assert_close_norm(ek_to_device(ek_module_tensor(parts.net, scorer_paths[p]), ek_cpu()),
                          ek_to_device(ek_module_tensor(whole.net, scorer_paths[p]), ek_cpu()),
                          1e-11);
    ek_scope_end(&scope);
    free_job(&whole);
    free_job(&parts);
}

TEST_LOOP(denominators_stay_on_devices, (ONE_DEVICE * LOSS_KINDS), (WAYS * LOSS_KINDS))
{
    way how = (way)(_i / LOSS_KINDS);
    loss_kind kind = (loss_kind)(_i % LOSS_KINDS);
    if (kind == USERS_COUNTED)
        return; /* 0 / 0 of one's own, which only numbers can cut off, has a gradient of NaN */
    make_remote(3, EK_COLLECTIVE_NONE);
    for (int parts = 2; parts <= 5; parts++)
        check_parts(how, kind, EK_F64, parts, 1e-12);
    /* Nothing to average in all parts. */
    job j = make_job(how, CROSS_ENTROPY, EK_F64);
    double loss = 0;
    assert_ok(train_job(&loss, &j, .input = EK_VALUE(make_inputs(9)),
                        .target = EK_VALUE(make_targets(9, 0, 9)), .micro_batches = 3));
    ck_assert(isnan(loss));
    free_job(&j);
    end_remote();
}

/* Two calls give the sum of two batches' gradients: what was there is not scaled. */
TEST_LOOP(gradients_accumulate_over_calls, 0, (2 * WAYS))
{
    loss_kind kind = _i % 2 ? CROSS_ENTROPY : SQUARES;
    job plain = make_job(PLAIN, kind, EK_F64), j = make_job((way)(_i / 2), kind, EK_F64);
    for (int call = 0; call < 3; call++) {
        ek_value x = ek_value_of_tensor(make_inputs(BATCH - 2 * call));
        ek_value target = make_target(kind, BATCH - 2 * call, EK_F64);
        whole_batch(&plain, x, target);
        assert_ok(train_job(NULL, &j, .input = x, .target = target, .micro_batches = 1 + call,
                            .accumulate_only = true));
        assert_at_most(gradient_distance(j.net, plain.net), 1e-12);
    }
    free_job(&plain);
    free_job(&j);
}

TEST_LOOP(autocast_holds_in_parts, 0, WAYS)
{
    job plain = make_job(PLAIN, CROSS_ENTROPY, EK_F32),
        j = make_job((way)_i, CROSS_ENTROPY, EK_F32);
    ek_value x = ek_value_of_tensor(ek_to_dtype(make_inputs(BATCH), EK_F32));
    ek_value target = make_target(CROSS_ENTROPY, BATCH, EK_F32);
    double exact = whole_batch(&plain, x, target), loss;
    ek_autocast region = ek_autocast_begin(EK_BF16);
    assert_ok(train_job(&loss, &j, .input = x, .target = target, .micro_batches = 3,
                        .accumulate_only = true));
    ek_autocast_end(&region);
    assert_near(loss, exact, 0.01);
    ck_assert_double_ne(loss, exact);
    assert_at_most(gradient_distance(j.net, plain.net), 0.03);
    free_job(&plain);
    free_job(&j);
}

/* ---- nests and dimensions ---- */

/* (x, options): x is (POINTS, n, FEATURES), options a dictionary with a shift of the same batch. */
static ek_value nested_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *shift = ek_value_tensor(ek_value_get(ek_arg(args, 1), "shift"));
    int64_t times = ek_value_get(ek_arg(args, 1), "times").as.integer;
    if (!x || !shift || times != 2)
        return ek_value_error();
    ek_tensor *h = ek_add(ek_permute(x, EK_SHAPE(1, 0, 2)), ek_permute(shift, EK_SHAPE(1, 0, 2)));
    return scorer_forward(module, &(const ek_args){EK_VALUES(h), 1, ek_value_none()});
}

MODULE_TYPE(nested, scorer)

static ek_value squares_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *scores = ek_arg_tensor(args, 0); /* (n, CLASSES, POINTS) */
    ek_tensor *target = ek_value_tensor(ek_value_get(ek_arg(args, 1), "scores"));
    if (!scores || !target)
        return ek_value_error();
    return ek_value_of_tensor(
        ek_f_mse_loss(.input = scores, .target = ek_permute(target, EK_SHAPE(1, 0, 2))));
}

MODULE_TYPE(squares, ek_module)

TEST(nests_along_dimension_1)
{
    ek_module *nets[2] = {make_scorer(), make_scorer()}, *squares = ek_module_new(&squares_type);
    ek_tensor *x = ek_clone(ek_permute(make_inputs(9), EK_SHAPE(1, 0, 2)));
    ek_value options =
        ek_value_dict((const ek_value_entry[]){{"shift", ek_value_of_tensor(ek_mul_scalar(x, 0.3))},
                                               {"times", ek_value_of_int(2)}},
                      2);
    ek_tensor *scores = ek_value_tensor(make_target(SQUARES, 9, EK_F64));
    ek_value target = ek_value_dict(
        (const ek_value_entry[]){
            {"scores", ek_value_of_tensor(ek_permute(scores, EK_SHAPE(1, 0, 2)))}},
        1);
    double losses[2];
    for (int k = 0; k < 2; k++) {
        nets[k]->type = &nested_type;
        ek_optimizer *optimizer = ek_sgd(nets[k]);
        assert_ok(ek_train_step(&losses[k], .model = nets[k], .criterion = squares,
                                .optimizer = optimizer, .input = EK_LIST(x, options),
                                .target = target, .dim = 1, .micro_batches = k ? 4 : 1,
                                .accumulate_only = true));
        ek_optimizer_free(optimizer);
    }
    assert_near(losses[1], losses[0], 1e-12);
    assert_at_most(gradient_distance(nets[1], nets[0]), 1e-12);
    ek_module_free(squares);
    ek_module_free(nets[0]);
    ek_module_free(nets[1]);
}

/* ---- nothing to average ---- */

static bool gradients_are_finite(ek_module *net)
{
    for (int p = 0; p < 4; p++) {
        ek_tensor *gradient =
            ek_to_device(ek_gather_grad(ek_module_tensor(net, scorer_paths[p])), ek_cpu());
        for (int64_t i = 0; i < ek_tensor_count(gradient); i++)
            if (!isfinite(element(gradient, i)))
                return false;
    }
    return true;
}

/* Parts without a target add nothing, be they the first, the last or between. */
TEST_LOOP(empty_parts_add_nothing, 0, (6 * WAYS))
{
    static const int from[] = {0, 3, 6}, to[] = {6, 7, 9};
    way how = (way)(_i / 6);
    loss_kind kind = _i % 2 ? CROSS_ENTROPY : USERS_COUNTED;
    job plain = make_job(PLAIN, kind, EK_F64), j = make_job(how, kind, EK_F64);
    ek_value x = ek_value_of_tensor(make_inputs(9));
    ek_value target = ek_value_of_tensor(make_targets(9, from[_i / 2 % 3], to[_i / 2 % 3]));
    double expected = whole_batch(&plain, x, target), loss;
    assert_ok(train_job(&loss, &j, .input = x, .target = target, .micro_batches = 3,
                        .accumulate_only = true));
    assert_near(loss, expected, 1e-12);
    assert_at_most(gradient_distance(j.net, plain.net), 1e-12);
    free_job(&plain);
    free_job(&j);
}

/* On GPUs an empty part of a mean by `denominator` has gradients of 0, also if all parts are empty.
 */
TEST_LOOP(nothing_at_all_is_nan_as_one_batch_is, 0, (2 * WAYS))
{
    loss_kind kind = _i % 2 ? CROSS_ENTROPY : USERS_COUNTED;
    job whole = make_job((way)(_i / 2), kind, EK_F64),
        parts = make_job((way)(_i / 2), kind, EK_F64);
    job *jobs[] = {&whole, &parts};
    bool finite[2];
    for (int k = 0; k < 2; k++) {
        double loss = 0;
        assert_ok(train_job(&loss, jobs[k], .input = EK_VALUE(make_inputs(9)),
                            .target = EK_VALUE(make_targets(9, 0, 9)), .micro_batches = k ? 3 : 1,
                            .accumulate_only = true));
        ck_assert(isnan(loss));
        finite[k] = gradients_are_finite(jobs[k]->net);
    }
    if (kind == CROSS_ENTROPY || test_kind() == EK_HOST)
        ck_assert_int_eq(finite[1], finite[0]);
    else
        ck_assert(finite[1]);
    free_job(&whole);
    free_job(&parts);
}

/* ---- errors ---- */

static void assert_no_gradients(ek_module *net)
{
    for (int p = 0; p < 4; p++)
        ck_assert_ptr_null(ek_gather_grad(ek_module_tensor(net, scorer_paths[p])));
}

static int part_calls;

/* Fails in its third call. */
static ek_value failing_forward(ek_module *module, const ek_args *args)
{
    if (++part_calls == 3) {
        ek_error(EK_E_OUT_OF_MEMORY, "the third part is too much");
        return ek_value_error();
    }
    return samples_forward(module, args);
}

MODULE_TYPE(failing, ek_module)

TEST_LOOP(a_failed_part_leaves_no_gradients, 0, 2)
{
    char before[65], after[65];
    job j = make_job(PLAIN, USERS_MEAN, EK_F64);
    ek_module *failing = ek_module_new(&failing_type);
    ek_value x = EK_VALUE(make_inputs(8));
    double loss = 5;
    part_calls = 0;
    hash_of(j.net, before);
    assert_refused(ek_train_step(&loss, .model = j.model, .criterion = failing,
                                 .optimizer = j.optimizer, .input = x, .micro_batches = 4,
                                 .accumulate_only = _i),
                   EK_E_OUT_OF_MEMORY, "train_step");
    hash_of(j.net, after);
    ck_assert_str_eq(before, after);
    ck_assert_double_eq(loss, 5);
    assert_no_gradients(j.net);
    assert_ok(ek_train_step(&loss, .model = j.model, .criterion = failing, .optimizer = j.optimizer,
                            .input = x, .micro_batches = 2));
    hash_of(j.net, after);
    ck_assert_str_ne(before, after);
    ek_module_free(failing);
    free_job(&j);
}

static void expect_error(const job *j, ek_value x, ek_value target, int parts, double max_norm,
                         int status, const char *text)
{
    assert_refused(train_job(NULL, j, .input = x, .target = target, .micro_batches = parts,
                             .max_norm = max_norm),
                   status, text);
    assert_no_gradients(j->net);
}

TEST(errors_say_what_is_wrong)
{
    job j = make_job(PLAIN, CROSS_ENTROPY, EK_F64);
    ek_value x = EK_VALUE(make_inputs(8)), y = EK_VALUE(make_targets(8, 0, 1));
    expect_error(&j, x, y, -1, 0, EK_E_INVALID, "-1 micro-batches");
    expect_error(&j, x, y, 2, -1, EK_E_INVALID, "max_norm");
    expect_error(&j, x, y, 2, (double)NAN, EK_E_INVALID, "max_norm");
    expect_error(&j, ek_value_none(), y, 2, 0, EK_E_INVALID, "the input is missing");
    expect_error(&j, x, EK_VALUE(make_targets(7, 0, 1)), 2, 0, EK_E_SHAPE, "has size 7");
    expect_error(&j, EK_SCATTERED(make_inputs(4), make_inputs(4)), y, 2, 0, EK_E_INVALID,
                 "scattered already");
    ek_optimizer *optimizer = j.optimizer;
    j.optimizer = NULL;
    expect_error(&j, x, y, 2, 0, EK_E_INVALID, "the optimizer is missing");
    j.optimizer = optimizer;
    ek_module_free(j.criterion);
    j.criterion = ek_cross_entropy_loss(.reduction = EK_NONE, .ignore_index = IGNORED);
    expect_error(&j, x, y, 2, 0, EK_E_SHAPE, "needs one number");
    expect_error(&j, x, y, 1, 0, EK_E_SHAPE, "needs one number");
    free_job(&j);
}

/* A norm that is not finite: nothing is stepped. */
TEST(infinite_gradients_are_not_stepped)
{
    char before[65], after[65];
    job j = make_job(PLAIN, CROSS_ENTROPY, EK_F64);
    hash_of(j.net, before);
    ek_value x = ek_value_of_tensor(ek_mul_scalar(make_inputs(6), (double)INFINITY));
    expect_error(&j, x, EK_VALUE(make_targets(6, 0, 1)), 2, 1, EK_E_INVALID, "clip_grad_norm");
    hash_of(j.net, after);
    ck_assert_str_eq(before, after);
    free_job(&j);
}

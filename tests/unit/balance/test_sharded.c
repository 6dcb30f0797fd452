/* Gradients and optimizer state sharded over devices: numbers are the unsharded run's, memory is
 * level. */
#include "sharded_setup.h"

static int step_count(void)
{
    return test_is_short() ? 3 : 10;
}

static void compare(job j, int steps)
{
    j.shard = true;
    outcome sharded = run(&j, steps);
    job other = whole(j);
    outcome unsharded = run(&other, steps);
    assert_same_outcome(&sharded, &unsharded, steps);
}

static const int64_t batches[] = {8, 10, 3, 1};

/* Over 2, 3 and 4 devices. */
TEST_LOOP(training_is_the_unsharded_run, 0, 12)
{
    job j = {.devices = 2 + _i / 4, .batch = batches[_i % 4]};
    for (int k = 0; k < 4; k++) {
        j.mode = k % 2 ? BALANCED : CLASSIC;
        j.mlp = (k + _i) / 2 % 2 ? 20 : 0;
        j.dtype = (k + _i / 2) % 2 ? EK_F64 : EK_F32;
        j.algorithm = (k / 2 + _i) % 2 ? ADAM : SGD;
        compare(j, step_count());
    }
}

/* Several buckets and owners; steps are shared by the workers. */
TEST_LOOP(large_parameters_too, 0, test_is_short() ? 1 : 2)
{
    compare(
        (job){.mode = BALANCED, .mlp = 2000, .algorithm = ADAM, .devices = 2 + 2 * _i, .batch = 5},
        2);
}

/* A device may own a range and have no samples. */
TEST_LOOP(idle_devices_own_their_range, 0, 5)
{
    static const char *const plans[] = {"0,4,4", "4,0,4", "0,8,0", "8,0,0", "0,0,8; 2: 3,5,0"};
    compare((job){.mode = _i % 2 ? CLASSIC : BALANCED,
                  .algorithm = ADAM,
                  .devices = 3,
                  .batch = 8,
                  .plan = plans[_i]},
            6);
}

/* ---- memory ---- */

enum { WIDTH = 500 };

static uint64_t parameter_bytes(void)
{
    uint64_t last = CLASSES * PIXELS * PIXELS / 16;
    return (PIXELS * PIXELS * WIDTH + WIDTH + WIDTH * last + last) * sizeof(float);
}

TEST(ledgers_are_level)
{
    job j = {
        .mode = BALANCED, .mlp = WIDTH, .algorithm = ADAM, .devices = 4, .batch = 8, .shard = true};
    trainer t = make_job(&j);
    uint64_t all = parameter_bytes(), share = all / 4;
    one_step(&j, &t, 0);
    for (int d = 0; d < 4; d++)
        assert_ok(ek_memory_reset_peak(test_device(d)));
    one_step(&j, &t, 1);
    uint64_t most = 0, sum = 0, slack = 4 * 64;
    /* Who runs ahead in backward holds gradients until the others have theirs: peaks differ by some
     * of them, from run to run. */
    const double tolerance = 1.1;
    for (int d = 0; d < 4; d++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        ck_assert_uint_ge(stats.now[EK_MEMORY_PARAMETER], all);
        ck_assert_uint_le(stats.now[EK_MEMORY_PARAMETER], all + slack);
        ck_assert_uint_ge(stats.now[EK_MEMORY_GRADIENT] + slack, share);
        ck_assert_uint_le(stats.now[EK_MEMORY_GRADIENT], share + slack);
        ck_assert_uint_ge(stats.now[EK_MEMORY_OPTIMIZER] + 2 * slack, 2 * share);
        ck_assert_uint_le(stats.now[EK_MEMORY_OPTIMIZER], 2 * (share + slack));
        most = stats.peak > most ? stats.peak : most;
        sum += stats.peak;
    }
    double imbalance = (double)most / ((double)sum / 4);
    ck_assert_msg(imbalance <= tolerance, "imbalance is %g", imbalance);
    free_trainer(&t);
}

TEST(a_step_is_shared_once)
{
    job j = {
        .mode = BALANCED, .mlp = WIDTH, .algorithm = SGD, .devices = 4, .batch = 8, .shard = true};
    trainer t = make_job(&j);
    ek_data_parallel_stats stats;
    for (int step = 0; step < 3; step++) {
        one_step(&j, &t, step);
        assert_ok(ek_data_parallel_get_stats(t.model, &stats));
        ck_assert_uint_eq(stats.forwards, 1 + (uint64_t)step);
        ck_assert_uint_eq(stats.parameter_broadcasts, 1);
        ck_assert_uint_eq(stats.parameter_nbytes, 3 * parameter_bytes());
        ck_assert_uint_eq(stats.shared_nbytes, 3 * parameter_bytes() * (1 + (uint64_t)step));
    }
    free_trainer(&t);
}

TEST_LOOP(memory_does_not_grow, 0, 2)
{
    job j = {.mode = _i ? BALANCED : CLASSIC,
             .algorithm = ADAM,
             .devices = 3,
             .batch = 7,
             .shard = true};
    trainer t = make_job(&j);
    uint64_t warm[3] = {0};
    for (int step = 0; step < 12; step++) {
        one_step(&j, &t, step);
        for (int d = 0; d < 3; d++) {
            ek_memory_stats stats;
            assert_ok(ek_memory_get_stats(test_device(d), &stats));
            if (step < 2)
                warm[d] = stats.in_use;
            ck_assert_uint_eq(stats.in_use, warm[d]);
        }
    }
    free_trainer(&t);
}

/* ---- steps of other kinds ---- */

/* Two backwards, or two forwards in one, before each step; clipped. */
static outcome run_accumulating(const job *j, bool in_one_graph)
{
    outcome o = {.count = 0};
    trainer t = make_job(j);
    for (int step = 0; step < 6; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *images[2], *target[2], *losses[2];
        ek_zero_grad(t.optimizer);
        for (int k = 0; k < 2; k++) {
            batch_of(j, 2 * step + k, &images[k], &target[k]);
            losses[k] = loss_of(&t, images[k], target[k]);
            if (!in_one_graph)
                assert_ok(ek_backward(losses[k]));
        }
        if (in_one_graph)
            assert_ok(ek_backward(ek_add(losses[0], ek_mul_scalar(losses[1], 0.5))));
        assert_ok(ek_clip_grad_value(t.optimizer, 1e-3));
        assert_ok(ek_step(t.optimizer));
        assert_ok(ek_item(losses[1], &o.losses[step]));
        ek_scope_end(&scope);
        for (int k = 0; k < 2; k++) {
            ek_release(images[k]);
            ek_release(target[k]);
        }
    }
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

TEST_LOOP(gradients_accumulate, 0, 4)
{
    job j = {.mode = BALANCED,
             .mlp = _i / 2 * 20,
             .algorithm = ADAM,
             .devices = 3,
             .batch = 7,
             .shard = true};
    job other = whole(j);
    outcome a = run_accumulating(&j, _i % 2), b = run_accumulating(&other, _i % 2);
    assert_same_outcome(&a, &b, 6);
}

static int compare_gradient(const char *path, ek_tensor *parameter, void *user)
{
    ek_tensor *wanted = ek_tensor_grad(ek_module_tensor(user, path));
    ck_assert_ptr_null(ek_tensor_grad(parameter));
    ek_tensor *gradient = ek_gather_grad(parameter);
    assert_made(wanted);
    assert_made(gradient);
    assert_close(gradient, wanted, 0, 0);
    return 0;
}

/* Of a single sample too, which one replica takes. */
TEST_LOOP(whole_gradients_can_be_gathered, 0, 4)
{
    job j = {.mode = _i % 2 ? BALANCED : CLASSIC,
             .dtype = EK_F64,
             .devices = 4,
             .batch = _i / 2 ? 1 : 6,
             .shard = true};
    job other = whole(j);
    trainer a = make_job(&j), b = make_job(&other);
    ek_tensor *images, *target;
    batch_of(&j, 0, &images, &target);
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_backward(loss_of(&a, images, target)));
    assert_ok(ek_backward(loss_of(&b, images, target)));
    assert_ok(ek_module_parameters(a.model, compare_gradient, b.model));
    double norms[2];
    assert_ok(ek_clip_grad_norm(a.optimizer, 1e-2, &norms[0]));
    assert_ok(ek_clip_grad_norm(b.optimizer, 1e-2, &norms[1]));
    ck_assert_double_gt(norms[1], 1e-2);
    ck_assert_double_eq_tol(norms[0], norms[1], 1e-14 * norms[1]);
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
    free_trainer(&a);
    free_trainer(&b);
}

/* What reaches only the shards is no gradient of the parameter. */
TEST(single_gradients_are_asked_for_otherwise)
{
    job j = {.mode = BALANCED, .devices = 3, .batch = 6, .shard = true};
    trainer t = make_job(&j);
    ek_tensor *images, *target, *gradient;
    batch_of(&j, 0, &images, &target);
    ek_scope scope = ek_scope_begin();
    ek_tensor *loss = loss_of(&t, images, target), *weight = ek_module_tensor(t.model, "0.weight");
    assert_refused(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &weight, .input_count = 1,
                           .gradients = &gradient),
                   EK_E_AUTOGRAD, "is sharded over devices, and gradients go to its shards");
    ck_assert_ptr_null(gradient);
    ek_scope_end(&scope);
    ek_release(images);
    ek_release(target);
    free_trainer(&t);
}

/* A critic with a penalty on the gradient of its outputs, whose backward is of second order. */
static outcome run_penalty(const job *j, ek_penalty_kind kind)
{
    outcome o = {.count = 0};
    ek_manual_seed(21);
    ek_module *critic = ek_sequential(ek_conv2d(1, 5, 4, .stride = 2, .padding = 1),
                                      ek_leaky_relu(0.2), ek_conv2d(5, 3, 4, .stride = 2),
                                      ek_tanh(), ek_flatten(1, -1), ek_linear(27, 1));
    assert_made(critic);
    assert_ok(ek_module_to_dtype(critic, j->dtype));
    trainer t = wrap(j, critic);
    for (int step = 0; step < 4; step++) {
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(50 + (uint64_t)step);
        ek_shape shape = EK_SHAPE(j->batch, 1, PIXELS, PIXELS);
        ek_tensor *real = ek_randn(shape, .dtype = j->dtype);
        ek_tensor *fake = ek_randn(shape, .dtype = j->dtype);
        ek_tensor *penalty = ek_gradient_penalty(t.model, real, fake, .kind = kind);
        assert_made(penalty);
        ek_zero_grad(t.optimizer);
        assert_ok(ek_backward(penalty));
        assert_ok(ek_step(t.optimizer));
        assert_ok(ek_item(penalty, &o.losses[step]));
        ek_scope_end(&scope);
    }
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

TEST_LOOP(gradient_penalties_are_the_same, 0, 4)
{
    job j = {.mode = _i % 2 ? BALANCED : CLASSIC,
             .dtype = _i / 2 ? EK_F64 : EK_F32,
             .algorithm = ADAM,
             .devices = 3,
             .batch = 7,
             .shard = true};
    job other = whole(j);
    ek_penalty_kind kind = _i / 2 ? EK_PENALTY_R1 : EK_PENALTY_WGAN_GP;
    outcome a = run_penalty(&j, kind), b = run_penalty(&other, kind);
    assert_same_outcome(&a, &b, 4);
}

/* The module itself, beside its replicas: its gradients are whole, and added before the step. */
static outcome run_mixed(const job *j)
{
    outcome o = {.count = 0};
    trainer t = make_job(j);
    for (int step = 0; step < 5; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *images, *target;
        batch_of(j, step, &images, &target);
        ek_tensor *plain =
            ek_apply(ek_data_parallel_module(t.model), ek_to_device(images, test_device(0)));
        assert_ok(ek_backward(ek_mul_scalar(ek_sum(ek_square(plain)), 1e-4)));
        ek_tensor *loss = loss_of(&t, images, target);
        if (step % 2)
            assert_ok(ek_backward(loss));
        assert_ok(ek_step(t.optimizer));
        ek_zero_grad(t.optimizer);
        assert_ok(ek_item(loss, &o.losses[step]));
        ek_scope_end(&scope);
        ek_release(images);
        ek_release(target);
    }
    note_outcome(&t, &o);
    free_trainer(&t);
    return o;
}

/* If whole gradients and shards meet the order of additions is another: not to the bit. */
TEST(the_module_can_be_used_itself)
{
    job j = {.mode = BALANCED, .dtype = EK_F64, .devices = 4, .batch = 6, .shard = true};
    job other = whole(j);
    outcome a = run_mixed(&j), b = run_mixed(&other);
    for (int step = 0; step < 5; step++)
        ck_assert_double_eq_tol(a.losses[step], b.losses[step], 1e-12);
    free(a.states);
    free(b.states);
}

TEST_LOOP(evaluation_is_the_same, 0, 2)
{
    job j = {.mode = _i ? BALANCED : CLASSIC, .devices = 3, .batch = 7, .shard = true};
    job other = whole(j);
    trainer t[2] = {make_job(&j), make_job(&other)};
    double values[2];
    for (int k = 0; k < 2; k++) {
        for (int step = 0; step < 3; step++)
            one_step(&j, &t[k], step);
        ek_module_train(t[k].model, false);
        ek_tensor *images, *target;
        batch_of(&j, 3, &images, &target);
        ek_scope scope = ek_scope_begin();
        bool before = ek_set_grad_enabled(false);
        ek_value out = ek_forward(t[k].model, images);
        assert_ok(ek_item(ek_sum(ek_square(ek_value_tensor(out))), &values[k]));
        ek_set_grad_enabled(before);
        ek_scope_end(&scope);
        ek_release(images);
        ek_release(target);
        free_trainer(&t[k]);
    }
    ck_assert_double_eq(values[0], values[1]);
}

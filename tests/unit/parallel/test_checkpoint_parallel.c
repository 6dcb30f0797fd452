/* Checkpoint modules inside data parallelism: the same as on one device, whatever the number. */
#include "kit/models.h"
#include "parallel_setup.h"

/* As make_net, its inside checkpointed where asked; paths are the same. */
static ek_module *net(bool checkpoints)
{
    ek_manual_seed(7);
    ek_module *first = ek_linear(3, 5), *middle = ek_tanh(), *last = ek_linear(5, 2);
    if (checkpoints) {
        first = ek_checkpoint(first);
        last = ek_checkpoint(last);
    }
    ek_module *all = ek_sequential(first, middle, last);
    if (checkpoints)
        all = ek_checkpoint(all);
    assert_made(all);
    assert_ok(ek_module_to_dtype(all, EK_F64));
    return all;
}

TEST_LOOP(gradients_are_those_of_one_device, 0, 4)
{
    ek_module *one = held(net(false));
    ek_module *several =
        held(ek_data_parallel(net(true), .device_ids = ek_devices(test_kind(), 1 + _i)));
    for (int step = 0; step < 2; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = normal(3 + (uint64_t)step, EK_SHAPE(7, 3), EK_F64, ek_cpu());
        ek_module_zero_grad(one);
        ek_module_zero_grad(several);
        double wanted = square_loss(ek_apply(one, x));
        ck_assert_double_eq_tol(square_loss(ek_apply(several, x)), wanted, 1e-14);
        assert_same_gradients(one, several, 1e-13);
        ek_scope_end(&scope);
    }
}

/* Of random masks and running statistics: to the bit what the same replicas give without. */
static void noisy_step(bool checkpoints, ek_tensor **gradients, ek_tensor **mean, uint32_t *next)
{
    ek_manual_seed(7);
    ek_module *body = ek_sequential(ek_linear(3, 5), ek_batch_norm1d(5), ek_dropout(0.5));
    if (checkpoints)
        body = ek_checkpoint(body);
    ek_module *all = ek_data_parallel(ek_sequential(body, ek_linear(5, 2)),
                                      .device_ids = ek_devices(test_kind(), 3));
    assert_made(all);
    assert_ok(ek_module_to_dtype(all, EK_F64));
    ek_manual_seed(21);
    ek_tensor *x = normal(3, EK_SHAPE(9, 3), EK_F64, ek_cpu());
    square_loss(ek_apply(all, x));
    square_loss(ek_apply(all, x)); /* the generators of the workers are where they should be */
    *next = ek_random_u32(NULL);
    static const char *const paths[] = {"0.0.weight", "0.1.weight", "1.bias"};
    for (int i = 0; i < 3; i++)
        gradients[i] =
            ek_to_device(ek_clone(ek_tensor_grad(ek_module_tensor(all, paths[i]))), ek_cpu());
    *mean = ek_to_device(ek_clone(ek_module_tensor(all, "0.1.running_mean")), ek_cpu());
    ek_module_free(all);
}

TEST(state_is_found_again_on_every_device)
{
    ek_tensor *plain[3], *checkpoint[3], *mean, *other_mean;
    uint32_t next, other_next;
    noisy_step(false, plain, &mean, &next);
    noisy_step(true, checkpoint, &other_mean, &other_next);
    for (int i = 0; i < 3; i++)
        assert_close(checkpoint[i], plain[i], 0, 0);
    assert_close(other_mean, mean, 0, 0);
    ck_assert_uint_eq(next, other_next);
}

static double penalty_step(ek_module *critic, ek_tensor *x)
{
    ek_tensor *score = ek_sum(ek_apply(critic, x)), *gradient;
    assert_ok(ek_grad(.outputs = &score, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = true));
    ek_tensor *norm = ek_norm(gradient, EK_DIMS(1));
    return square_loss(ek_add_scalar(norm, -1));
}

TEST_LOOP(a_gradient_penalty_over_devices, 0, 4)
{
    ek_module *one = held(net(false));
    ek_module *several =
        held(ek_data_parallel(net(true), .device_ids = ek_devices(test_kind(), 1 + _i)));
    ek_tensor *x = normal(3, EK_SHAPE(5, 3), EK_F64, ek_cpu());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    double wanted = penalty_step(one, x);
    ck_assert_double_eq_tol(penalty_step(several, x), wanted, 1e-13);
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight"};
    for (int i = 0; i < 3; i++)
        assert_close(ek_to_device(ek_tensor_grad(ek_module_tensor(several, paths[i])), ek_cpu()),
                     ek_tensor_grad(ek_module_tensor(one, paths[i])), 1e-12, 1e-14);
}

/* ---- what goes wrong inside ---- */

typedef struct troubled {
    ek_module module;
    bool meets; /* else fails when it is computed again, the only time with a graph */
} troubled;

static ek_value troubled_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    if (((troubled *)module)->meets) {
        ek_tensor *sum;
        return ek_allreduce(&x, 1, 1, &sum) < 0 ? ek_value_error() : ek_value_of_tensor(sum);
    }
    if (ek_grad_enabled() && ek_tensor_device(x).index == 1)
        return fail_with("not again");
    return ek_value_of_tensor(ek_square(x));
}

MODULE_TYPE(troubled, troubled)

TEST(errors_inside_reach_the_caller)
{
    troubled *body = (troubled *)ek_module_new(&troubled_type);
    ek_module *all =
        held(ek_data_parallel(ek_sequential(ek_linear(3, 5), ek_checkpoint(&body->module)),
                              .device_ids = ek_devices(test_kind(), 3)));
    ek_tensor *x = ek_ones(EK_SHAPE(6, 3));
    assert_refused(ek_backward(ek_sum(ek_apply(all, x))), EK_E_USER,
                   "in backward of checkpoint on host:1: troubled: not again");
    /* Replicas' backwards don't meet: nobody may wait inside. */
    body->meets = true;
    ck_assert_ptr_null(ek_apply(all, x));
    ck_assert_int_eq(ek_error_status(), EK_E_STATE);
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "impossible inside ek_checkpoint"));
    ek_error_clear();
    body->meets = false;
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_apply(all, x));
    ek_set_grad_enabled(before);
}

TEST(a_wrapper_inside_is_refused)
{
    ek_module *all = held(
        ek_checkpoint(ek_data_parallel(ek_linear(3, 2), .device_ids = ek_devices(test_kind(), 2))));
    assert_refused(ek_apply(all, ek_ones(EK_SHAPE(6, 3))), EK_E_STATE,
                   "put the checkpoint inside the module that is wrapped");
}

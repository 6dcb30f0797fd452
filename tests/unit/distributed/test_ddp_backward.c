/* What a backward of ek_distributed_data_parallel does with gradients: unused parameters, no_sync,
 * gradients that were there before, failures, histories, narrow gradients; and wrong modules. */
#include "core/error.h"
#include "core/tensor.h"
#include "kit/models.h"
#include "kit/ranks.h"

/* Two branches of one weight each: y = x * a, or x * b. */
typedef struct branches {
    ek_module module;
    ek_tensor *a, *b;
    int use;    /* which one the forward uses */
    bool fails; /* the forward fails */
} branches;

static ek_value branches_forward(ek_module *module, const ek_args *args)
{
    branches *self = (branches *)module;
    if (self->fails)
        return fail_with("branches: out of luck");
    return ek_value_of_tensor(ek_mul(ek_arg_tensor(args, 0), self->use ? self->b : self->a));
}

MODULE_TYPE(branches, branches)

enum { WIDE = 1000 };

static branches *new_branches(double a)
{
    branches *self = (branches *)ek_module_new(&branches_type);
    ek_register_parameter(&self->module, "a", &self->a,
                          ek_full(a, EK_SHAPE(WIDE), .device = ek_cpu()));
    ek_register_parameter(&self->module, "b", &self->b,
                          ek_full(2, EK_SHAPE(WIDE), .device = ek_cpu()));
    return self;
}

static ek_tensor *ones(double value)
{
    return ek_full(value, EK_SHAPE(WIDE), .device = ek_cpu());
}

static int backward(ek_module *model, double x)
{
    return ek_backward(ek_sum(ek_apply(model, ones(x))));
}

static const char *has(const ek_tensor *gradient, double value)
{
    LOOP_CHECK(gradient);
    for (int64_t i = 0; i < ek_count(gradient); i += 111)
        if (!(fabs(element(gradient, i) - value) <= 1e-6 * fabs(value)))
            return loop_failure(__FILE__, __LINE__, "%g, not %g", element(gradient, i), value);
    return NULL;
}

#define HAS(gradient, value) LOOP_PASS(has((gradient), (value)))

/* Rank r gives x = r + 1: the mean over two ranks is 1.5. */
RANKS_LOOP(a_gradient_of_one_rank_is_all_ranks_, 2, 0, 4)
{
    branches *net = new_branches(1);
    ek_module *model =
        ek_distributed_data_parallel(&net->module, .process_group = world, .bucket_cap_mb = 0.002);
    LOOP_CHECK(model);
    double x = world->rank + 1;
    /* a on both ranks, b on none */
    RANKS_OK(backward(model, x));
    HAS(ek_tensor_grad(net->a), 1.5);
    LOOP_CHECK(!ek_tensor_grad(net->b));
    /* what was there is averaged with what comes: equal before, equal after */
    RANKS_OK(backward(model, x));
    HAS(ek_tensor_grad(net->a), 3);
    /* b on rank 1 alone */
    ek_module_zero_grad(model);
    net->use = world->rank;
    RANKS_OK(backward(model, x));
    HAS(ek_tensor_grad(net->a), 0.5);
    HAS(ek_tensor_grad(net->b), 1);
    /* and another optimizer's step leaves what has no gradient anywhere */
    ek_module_zero_grad(model);
    net->use = 1;
    RANKS_OK(backward(model, x));
    LOOP_CHECK(!ek_tensor_grad(net->a));
    HAS(ek_tensor_grad(net->b), 1.5);
    ek_distributed_stats stats;
    RANKS_OK(ek_distributed_get_stats(model, &stats));
    LOOP_CHECK_EQ(stats.backwards, 4);
    LOOP_CHECK_EQ(stats.buckets, 8);
    LOOP_CHECK_EQ(stats.nbytes, 4 * 2 * WIDE * 4);
    ek_module_free(model);
    return NULL;
}

RANKS_LOOP(no_sync_adds_up_on_each_rank, 2, 0, 3)
{
    branches *net = new_branches(1);
    ek_module *model = ek_distributed_data_parallel(&net->module, .process_group = world);
    LOOP_CHECK(model);
    double x = world->rank + 1;
    ek_no_sync no_sync = ek_no_sync_begin(model);
    RANKS_OK(backward(model, x));
    RANKS_OK(backward(model, x));
    HAS(ek_tensor_grad(net->a), 2 * x);
    /* it is the forward that counts */
    ek_tensor *loss = ek_sum(ek_apply(model, ones(x)));
    ek_no_sync_end(&no_sync);
    RANKS_OK(ek_backward(loss));
    HAS(ek_tensor_grad(net->a), 3 * x);
    RANKS_OK(backward(model, x));
    HAS(ek_tensor_grad(net->a), 6);
    /* evaluation and ek_grad say nothing to other ranks */
    if (world->rank == 1) {
        ek_module_train(model, false);
        bool before = ek_set_grad_enabled(false);
        LOOP_CHECK(ek_apply(model, ones(1)));
        ek_set_grad_enabled(before);
        ek_module_train(model, true);
        ek_tensor *y = ek_sum(ek_apply(model, ones(1))), *grad = NULL;
        RANKS_OK(ek_grad(.outputs = &y, .output_count = 1, .inputs = &net->a, .input_count = 1,
                         .gradients = &grad));
        HAS(grad, 1);
    }
    ek_module_free(model);
    return NULL;
}

/* ---- failures ---- */

static int failing_backward(ek_function_call *call, ek_tensor *const *gradients,
                            ek_tensor **results)
{
    return ek_error(EK_E_USER, "bad luck in backward");
}

static int passing_forward(ek_function_call *call, ek_tensor *const *inputs, ek_tensor **outputs)
{
    outputs[0] = ek_mul_scalar(inputs[0], 1);
    return 0;
}

static const ek_function failing = {.name = "failing",
                                    .forward = passing_forward,
                                    .backward = failing_backward};

RANKS_LOOP(a_failed_backward_is_an_error_of_all_ranks, 2, 0, 4)
{
    branches *net = new_branches(1);
    ek_module *model = ek_distributed_data_parallel(&net->module, .process_group = world);
    LOOP_CHECK(model);
    double x = world->rank + 1;
    for (int round = 0; round < 3; round++) {
        ek_tensor *y = ek_apply(model, ones(x));
        if (world->rank == 1) {
            ek_tensor *out = NULL;
            RANKS_OK(ek_function_apply(&failing, &y, 1, &out));
            RANKS_EXPECT(ek_backward(ek_sum(out)), EK_E_USER, "bad luck in backward");
        } else {
            RANKS_EXPECT(ek_backward(ek_sum(y)), EK_E_ABORTED, "rank 1 on ");
        }
        LOOP_CHECK(!ek_tensor_grad(net->a)); /* dropped everywhere */
        RANKS_OK(backward(model, x));
        HAS(ek_tensor_grad(net->a), 1.5);
        ek_module_zero_grad(model);
    }
    ek_module_free(model);
    return NULL;
}

RANKS_LOOP(a_failed_forward_is_an_error_of_all_ranks, 2, 0, 4)
{
    branches *net = new_branches(1);
    ek_module *model = ek_distributed_data_parallel(&net->module, .process_group = world);
    LOOP_CHECK(model);
    for (int round = 0; round < 3; round++) {
        net->fails = world->rank == 0;
        if (world->rank == 0)
            RANKS_EXPECT(backward(model, 1), EK_E_USER, "out of luck");
        else
            RANKS_EXPECT(backward(model, 1), EK_E_ABORTED, "branches: out of luck");
        net->fails = false;
        ek_module_zero_grad(model);
        RANKS_OK(backward(model, world->rank + 1));
        HAS(ek_tensor_grad(net->a), 1.5);
    }
    ek_module_free(model);
    return NULL;
}

/* ---- histories and narrow gradients ---- */

/* loss = sum (r + 1) a^3 / 3: the averaged gradient is 1.5 a^2, and its own gradient 3 a. */
RANKS_LOOP(averaged_gradients_can_be_differentiated, 2, 0, 3)
{
    branches *net = new_branches(2);
    ek_module *model = ek_distributed_data_parallel(&net->module, .process_group = world);
    LOOP_CHECK(model);
    ek_tensor *y = ek_apply(model, ones(1));
    ek_tensor *loss = ek_mul_scalar(ek_sum(ek_mul(y, ek_mul(y, y))), (world->rank + 1) / 3.0);
    RANKS_OK(ek_backward(loss, .create_graph = true));
    ek_tensor *first = ek_tensor_grad(net->a);
    HAS(first, 1.5 * 4);
    LOOP_CHECK(!ek_tensor_grad(net->b));
    ek_tensor *sum = ek_sum(first), *second = NULL;
    RANKS_OK(ek_grad(.outputs = &sum, .output_count = 1, .inputs = &net->a, .input_count = 1,
                     .gradients = &second));
    /* The gradient of the sum of both ranks' sums, of which this rank's part is its own term. */
    HAS(second, (world->rank + 1) * 2 * 2);
    ek_tensor_set_grad(net->a, NULL);
    ek_module_free(model);
    return NULL;
}

RANKS_TEST(narrow_gradients_are_rounded_once_each_way, 2, 1)
{
    branches *net = new_branches(1);
    ek_module *model =
        ek_distributed_data_parallel(&net->module, .process_group = world, .bf16_gradients = true);
    LOOP_CHECK(model);
    RANKS_OK(backward(model, world->rank ? 1.00390625 : 1)); /* 1 + 2^-8 is 1 in bf16 */
    HAS(ek_tensor_grad(net->a), 1);
    ek_module_free(model);
    return NULL;
}

/* ---- modules that differ ---- */

RANKS_LOOP(modules_that_differ_are_named, 3, 0, 3)
{
    int64_t hidden = world->rank == 1 ? 6 : 5;
    ek_module *net = ek_sequential(ek_linear(4, 5), ek_relu(), ek_linear(5, hidden));
    LOOP_CHECK(!ek_distributed_data_parallel(net, .process_group = world));
    RANKS_EXPECT(ek_error_status(), EK_E_STATE,
                 "rank 0 has the parameter or buffer \"2.weight\" f32[5, 5], rank 1 \"2.weight\" "
                 "f32[6, 5]");
    net = world->rank == 1 ? ek_linear(4, 5) : ek_linear(4, 5, .bias = false);
    LOOP_CHECK(!ek_distributed_data_parallel(net, .process_group = world));
    RANKS_EXPECT(ek_error_status(), EK_E_STATE, "nothing more, rank 1 \"bias\" f32[5]");
    return NULL;
}

/* A zero that a call writes is a zero, and `false` is off, also if the option's default is another.
 */
#include <math.h>

#include "evenkeel/evenkeel.h"
#include "kit/optimizers.h"
#include "unit.h"

/* The module's first weight after two steps on fixed gradients. */
static double after_two_steps(ek_module *net, ek_optimizer *optimizer)
{
    double value = NAN;
    assert_made(net);
    assert_made(optimizer);
    ek_tensor *weight = ek_module_tensor(net, "weight");
    assert_ok(ek_init_constant(weight, 1));
    for (int i = 1; i <= 2; i++) {
        ek_tensor *x = ek_full((double)i, EK_SHAPE(1, 1), .device = test_home());
        ek_zero_grad(optimizer);
        assert_ok(ek_backward(ek_sum(ek_apply(net, x))));
        assert_ok(ek_step(optimizer));
    }
    assert_ok(ek_item(ek_sum(weight), &value));
    ek_optimizer_free(optimizer);
    return value;
}

static ek_module *line(void)
{
    ek_module *net = ek_linear(1, 1, .bias = false);
    assert_ok(ek_module_to_device(net, test_home()));
    return net;
}

#define SHARED_OPTIONS .lr = 0.5, .beta1 = 0, .beta2 = 0

TEST(optimizers)
{
    ek_module *net = line();
    const double plain = after_two_steps(net, ek_adam(net, .lr = 0.5));
    const double none = after_two_steps(net, ek_adam(net, SHARED_OPTIONS));
    ck_assert_double_eq_tol(none, 0, 1e-6); /* each step is lr times the gradient's sign */
    ck_assert(fabs(plain - none) > 1e-3);
    ek_adam_options filled = EK_DEFAULTS(ek_adam_options);
    filled.module = net;
    filled.lr = 0.5;
    filled.beta1 = filled.beta2 = 0;
    ck_assert_double_eq(after_two_steps(net, ek_adam_with(filled)), none);
    ck_assert_double_eq(after_two_steps(net, ek_sgd(net, .lr = 0)), 1);
    ck_assert_double_eq(after_two_steps(net, ek_sgd(net, 0)), 1);
    ck_assert_double_eq_tol(after_two_steps(net, ek_sgd(net)), 1 - 3e-3, 1e-6);
    const double decays = after_two_steps(net, ek_adamw(net, .lr = 0.5, .beta1 = 0, .beta2 = 0));
    ck_assert_double_eq_tol(after_two_steps(net, ek_adamw(net, SHARED_OPTIONS, .weight_decay = 0,
                                                          .eps = 1e-8)),
                            none, 1e-6);
    ck_assert(fabs(decays - none) > 1e-3);
    ek_optimizer *groups = ek_sgd(NULL, .lr = 0.5);
    ek_tensor *weight = ek_module_tensor(net, "weight");
    assert_ok(add_group_with(groups, &weight, 1, "lr", 0));
    ck_assert_double_eq(ek_optimizer_lr(groups, 0), 0);
    ek_optimizer_free(groups);
    ek_module_free(net);
}

TEST(criteria)
{
    assert_ok(test_devices_configure("2"));
    const double logits[] = {2, 0, 0, 1};
    ek_tensor *x = tensor_of(logits, EK_SHAPE(2, 2), EK_F64, test_home());
    ek_tensor *target = tensor_of((double[]){0, 1}, EK_SHAPE(2), EK_I64, test_home());
    ek_module *all = ek_cross_entropy_loss(), *second = ek_cross_entropy_loss(.ignore_index = 0);
    double a = NAN, b = NAN, c = NAN;
    assert_ok(ek_item(ek_loss(all, x, target), &a));
    assert_ok(ek_item(ek_loss(second, x, target), &b));
    assert_ok(ek_item(ek_f_cross_entropy(x, target, .ignore_index = 0), &c));
    const double first_loss = log1p(exp(-2)), second_loss = log1p(exp(-1));
    ck_assert_double_eq_tol(a, (first_loss + second_loss) / 2, 1e-12);
    ck_assert_double_eq_tol(b, second_loss, 1e-12);
    ck_assert_double_eq_tol(c, second_loss, 1e-12);
    ek_module *balanced =
        ek_data_parallel_criterion(second, .device_ids = ek_devices(test_kind(), 2));
    assert_ok(ek_item(ek_loss(balanced, ek_value_of_tensor(x), target), &c));
    ck_assert_double_eq_tol(c, second_loss, 1e-12);
    ek_module_free(balanced);
    ek_module_free(all);
}

TEST(normalisation)
{
    ek_tensor *x = ek_full(3, EK_SHAPE(4, 2), .device = test_home());
    ek_module *still = ek_batch_norm1d(2, .momentum = 0), *moves = ek_batch_norm1d(2);
    double a = NAN, b = NAN;
    assert_ok(ek_module_to_device(still, test_home()));
    assert_ok(ek_module_to_device(moves, test_home()));
    assert_made(ek_apply(still, x));
    assert_made(ek_apply(moves, x));
    assert_ok(ek_item(ek_sum(ek_module_tensor(still, "running_mean")), &a));
    assert_ok(ek_item(ek_sum(ek_module_tensor(moves, "running_mean")), &b));
    ck_assert_double_eq(a, 0);
    ck_assert_double_eq_tol(b, 0.6, 1e-6);
    ek_module_free(still);
    ek_module_free(moves);
    /* Without eps the variance of equal values divides by zero. */
    ek_module *exact = ek_layer_norm(EK_SHAPE(2), .eps = 0);
    assert_ok(ek_module_to_device(exact, test_home()));
    assert_ok(ek_item(ek_sum(ek_apply(exact, x)), &a));
    ck_assert(isnan(a));
    ek_module_free(exact);
}

TEST(geometry)
{
    assert_refused(ek_conv2d(1, 1, 3, .stride = 0), EK_E_INVALID,
                   "stride must be at least 1, got 0 x 0");
    assert_refused(ek_conv2d(1, 1, 3, 0), EK_E_INVALID, "stride must be at least 1, got 0 x 0");
    assert_refused(ek_conv2d(1, 1, 3, .groups = 0), EK_E_INVALID, "groups 0");
    assert_refused(ek_max_pool2d(2, .stride = 0), EK_E_INVALID, "stride");
    ek_tensor *x = ek_ones(EK_SHAPE(1, 1, 4, 4), .device = test_home());
    assert_refused(ek_f_conv2d(x, x, NULL, .dilation = 0), EK_E_INVALID, "dilation");
    assert_refused(ek_f_max_pool2d(x, 2, .stride = 0), EK_E_INVALID, "stride");
}

static int count_one(const char *path, ek_tensor *tensor, void *user)
{
    ++*(int *)user;
    return 0;
}

/* How many parameters and buffers the module has, which is freed. */
static int tensors_of(ek_module *module)
{
    int count = 0;
    assert_made(module);
    assert_ok(ek_module_parameters(module, count_one, &count));
    assert_ok(ek_module_buffers(module, count_one, &count));
    ek_module_free(module);
    return count;
}

TEST(layers_switches)
{
    const bool no = false;
    ck_assert_int_eq(tensors_of(ek_linear(2, 3)), 2);
    ck_assert_int_eq(tensors_of(ek_linear(2, 3, .bias = 0)), 1);
    ck_assert_int_eq(tensors_of(ek_linear(2, 3, .bias = false)), 1);
    ck_assert_int_eq(tensors_of(ek_linear(2, 3, false)), 1);
    ck_assert_int_eq(tensors_of(ek_linear(2, 3, .bias = no)), 1);
    ck_assert_int_eq(tensors_of(ek_linear(2, 3, .bias = true)), 2);
    ck_assert_int_eq(tensors_of(ek_bilinear(2, 3, 1, false)), 1);
    ck_assert_int_eq(tensors_of(ek_conv2d(2, 3, 1, .bias = false)), 1);
    ck_assert_int_eq(tensors_of(ek_conv_transpose1d(2, 3, 1, 1, 0, 1, 1, 0, false)), 1);
    ck_assert_int_eq(tensors_of(ek_batch_norm2d(2, .affine = false)), 3);
    ck_assert_int_eq(tensors_of(ek_batch_norm1d(2, 1e-5, 0.1, true, false)), 2);
    ck_assert_int_eq(tensors_of(ek_batch_norm1d(2, 1e-5, 0.1, false)), 3);
    ck_assert_int_eq(tensors_of(ek_sync_batch_norm(2, .track_running_stats = false)), 2);
    ck_assert_int_eq(tensors_of(ek_instance_norm1d(2, .affine = false)), 0);
    ck_assert_int_eq(tensors_of(ek_instance_norm1d(2, .affine = true)), 2);
    ck_assert_int_eq(tensors_of(ek_layer_norm(EK_SHAPE(2), 1e-5, false)), 0);
    ck_assert_int_eq(tensors_of(ek_rms_norm(EK_SHAPE(2), .affine = false)), 0);
    ck_assert_int_eq(tensors_of(ek_group_norm(1, 2, 1e-5, false)), 0);
    ck_assert_int_eq(tensors_of(ek_multihead_attention(4, 2, .bias = false)), 2);
    ck_assert_int_eq(tensors_of(ek_lstm(2, 3, 1, false)), 2);
    ck_assert_int_eq(tensors_of(ek_gru_cell(2, 3, .bias = false)), 2);
    ck_assert_int_eq(tensors_of(ek_rnn_cell(2, 3, EK_RNN_TANH, false)), 2);
    ek_linear_options filled = EK_DEFAULTS(ek_linear_options);
    filled.in_features = 2;
    filled.out_features = 3;
    ck_assert_int_eq(tensors_of(ek_linear_with(filled)), 2);
}

TEST(other_switches)
{
    assert_ok(test_devices_configure("2"));
    double a = NAN, b = NAN;
    ek_tensor *x = ek_ones(EK_SHAPE(1, 1, 2), EK_F64, .requires_grad = true);
    assert_ok(ek_item(ek_sum(ek_f_avg_pool1d(x, 3, .stride = 2, .padding = 1)), &a));
    assert_ok(ek_item(ek_sum(ek_f_avg_pool1d(x, 3, 2, 1, false, false)), &b));
    ck_assert_double_eq_tol(a, 2.0 / 3, 1e-12);
    ck_assert_double_eq_tol(b, 1, 1e-12);
    ek_module *pool = ek_avg_pool1d(3, .stride = 2, .padding = 1, .count_include_pad = false);
    assert_ok(ek_item(ek_sum(ek_apply(pool, x)), &b));
    ck_assert_double_eq_tol(b, 1, 1e-12);
    ek_module_free(pool);
    assert_ok(ek_item(ek_f_poisson_nll_loss(x, x, .log_input = false), &a));
    ek_module *poisson = ek_poisson_nll_loss(.log_input = false);
    assert_ok(ek_item(ek_loss(poisson, x, x), &b));
    ek_module_free(poisson);
    ck_assert_double_eq_tol(a, 1, 1e-6);
    ck_assert_double_eq(a, b);

    ek_tensor *y = ek_sum(ek_square(x)), *dx = NULL;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx, .retain_graph = false));
    assert_refused(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                           .gradients = &dx),
                   EK_E_STATE, "");

    ek_sampler *sampler = ek_distributed_sampler(5, 2, 1, false, .padding = false);
    assert_made(sampler);
    ck_assert_int_eq((int)ek_sampler_length(sampler), 2);
    ek_sampler_free(sampler);
    sampler = ek_distributed_inference_sampler(5, 2, 1, false);
    assert_made(sampler);
    ck_assert_int_eq((int)ek_sampler_length(sampler), 2);
    ek_sampler_free(sampler);
    ek_grad_scaler *scaler = ek_grad_scaler_new(.enabled = false);
    assert_made(scaler);
    assert_ok(ek_item(ek_sum(ek_grad_scaler_scale(scaler, x)), &a));
    ck_assert_double_eq(a, 2);
    ek_grad_scaler_free(scaler);

    ek_module *net = line();
    ek_optimizer *adagrad = ek_adagrad(net, .lr = 0.5);
    assert_refused(ek_cyclic_lr(adagrad, 0.1, 1), EK_E_INVALID, "no momentum to cycle");
    ek_schedule *schedule = ek_cyclic_lr(adagrad, 0.1, 1, .cycle_momentum = false);
    assert_made(schedule);
    ek_schedule_free(schedule);
    schedule = ek_one_cycle_lr(adagrad, 1, 10, .cycle_momentum = false);
    assert_made(schedule);
    ek_schedule_free(schedule);
    ek_optimizer_free(adagrad);
    assert_refused(ek_data_parallel(line(), ek_devices(test_kind(), 2), .broadcast_buffers = false,
                                    .running_stats = EK_RUNNING_STATS_AVERAGE),
                   EK_E_INVALID, "needs .broadcast_buffers");
    ek_module_free(net);
}

static ek_dataset *ten(void)
{
    return ek_tensor_dataset(ek_arange(10, EK_I64, ek_cpu()));
}

TEST(data)
{
    ek_dataset *seeded = ek_partition(0, ten(), .seed = 0), *usual = ek_partition(0, ten());
    assert_made(seeded);
    assert_made(usual);
    bool same = true;
    for (int64_t i = 0; i < ek_dataset_length(seeded); i++) {
        double a = NAN, b = NAN;
        assert_ok(ek_item(ek_value_tensor(ek_dataset_get(seeded, i)), &a));
        assert_ok(ek_item(ek_value_tensor(ek_dataset_get(usual, i)), &b));
        same = same && a == b;
    }
    ck_assert(!same);
    ek_dataset_free(seeded);
    ek_dataset_free(usual);

    ek_loader *single = ek_data_loader(ten(), .batch_size = 0);
    assert_made(single);
    ek_batch batch;
    ck_assert_int_eq(ek_loader_next(single, &batch), 1);
    ck_assert_int_eq(ek_tensor_ndim(ek_value_tensor(batch.input)), 0);
    ek_loader_free(single);
    assert_refused(ek_data_loader(ten(), .workers = 1, .prefetch = 0), EK_E_INVALID, "prefetch 0");
    assert_refused(ek_distributed_sampler(10, .num_replicas = 0), EK_E_INVALID, "");
    assert_refused(ek_random_sampler(10, .num_samples = 0), EK_E_INVALID, "num_samples is 0");
}

static ek_module *critic(void)
{
    return ek_sequential(ek_linear(3, 4), ek_tanh(), ek_linear(4, 1));
}

TEST(balance)
{
    assert_ok(test_devices_configure("2"));
    ek_module *net = critic();
    ek_tensor *real = ek_randn(EK_SHAPE(4, 3)), *fake = ek_randn(EK_SHAPE(4, 3));
    double weighed = NAN, none = NAN;
    assert_ok(ek_item(ek_gradient_penalty(net, real, fake), &weighed));
    assert_ok(ek_item(ek_gradient_penalty(net, real, fake, .weight = 0), &none));
    ck_assert(weighed > 0);
    ck_assert_double_eq(none, 0);
    ek_module_free(net);
    ek_module *relieved = ek_data_parallel_model(critic(), .device_ids = ek_devices(test_kind(), 2),
                                                 .first_device_batch = 0);
    assert_made(relieved);
    int64_t sizes[2];
    assert_ok(ek_data_parallel_sizes(relieved, 6, sizes));
    ck_assert_int_eq(sizes[0], 0);
    ck_assert_int_eq(sizes[1], 6);
    ek_module_free(relieved);
    assert_refused(ek_data_parallel_model(critic(), .device_ids = ek_devices(test_kind(), 2),
                                          .chunks = {0, 0}),
                   EK_E_INVALID, "gives no device a sample");
    assert_refused(ek_data_parallel_model(critic(), .device_ids = ek_devices(test_kind(), 2),
                                          .weights = {0}),
                   EK_E_INVALID, "gives no device a sample");
}

static int never(int64_t count, void *user)
{
    return 0;
}

TEST(searches)
{
    ck_assert_int_lt(ek_find_batch(.function = never, .most = 0), 0);
    assert_error(EK_E_INVALID, "most 0");
    ck_assert_int_lt(ek_find_batch(.function = never, .multiple = 0), 0);
    assert_error(EK_E_INVALID, "multiple 0");
}

/* Dimensions without EK_DIMS are refused when the call runs. */
#pragma GCC diagnostic ignored "-Wmissing-braces"

#define SIDE 4
#define ZEROS(...) ek_zeros(__VA_ARGS__)

TEST(shapes_may_be_variables)
{
    const ek_shape shape = EK_SHAPE(SIDE, 2);
    const ek_shape shapes[] = {shape, shape};
    ck_assert_int_eq((int)ek_tensor_count(ZEROS(shape, EK_F64)), 8);
    ck_assert_int_eq((int)ek_tensor_count(ek_zeros((shape))), 8);
    ck_assert_int_eq((int)ek_tensor_count(ek_zeros(shapes[1])), 8);
    ck_assert_int_eq((int)ek_tensor_count(ZEROS(EK_SHAPE(SIDE, 3))), 12);
    ck_assert_int_eq((int)ek_tensor_count(ek_zeros(.shape = shape)), 8);
    ck_assert_int_eq((int)ek_tensor_count(ek_zeros(ek_scalar_shape())), 1);
    ck_assert_int_eq((int)ek_tensor_count(ek_zeros()), 1);
}

#define SUM_DIM 0
#define assert_shape(x, ...) \
    ck_assert(ek_shape_equal((ek_shape[1]){ek_tensor_shape(x)}, (ek_shape[1]){__VA_ARGS__}))
#define SUM(x, ...) ek_sum(x, __VA_ARGS__)

TEST(dimensions_need_a_count)
{
    ek_tensor *x = ek_ones(EK_SHAPE(2, 3), EK_F64), *q = ek_full(0.5, ek_scalar_shape(), EK_F64);
    assert_refused(ek_sum(x, 0, 2), EK_E_INVALID,
                   "sum: dimension 2 is given without a count; write EK_DIMS(2)");
    assert_refused(ek_mean(x, 0, -1), EK_E_INVALID, "mean: dimension -1");
    assert_refused(ek_sum(x, .dims = {1}), EK_E_INVALID, "write EK_DIMS(1)");
    assert_refused(ek_amax(x, .dims[0] = 1), EK_E_INVALID, "write EK_DIMS(1)");
    assert_refused(SUM(x, 1, 1), EK_E_INVALID, "write EK_DIMS(1)");
    assert_refused(ek_quantile(x, q, 1), EK_E_INVALID, "quantile: dimension 1");
    ck_assert_int_eq(ek_tensor_ndim(SUM(x, EK_DIMS(1))), 1);
    assert_refused(ek_sum(x, .dim = 1, EK_DIMS(0)), EK_E_INVALID, "dim and EK_DIMS");
    assert_refused(ek_any(x, .dim = 2), EK_E_SHAPE, "any: dimension 2 is not in [-2, 1]");
    assert_shape(ek_sum(x, 1), EK_SHAPE(2));
    assert_shape(ek_mean(x, .dim = 0), EK_SHAPE(3));
    assert_shape(ek_norm(x, SUM_DIM, .p = 1, .keepdim = true), EK_SHAPE(1, 3));
    assert_shape(ek_var(x, -1), EK_SHAPE(2));
    ck_assert_int_eq(ek_tensor_ndim(ek_amax(ek_ones(ek_scalar_shape()), 0)), 0);
    ck_assert_int_eq(ek_tensor_ndim(ek_sum(x, .keepdim = true)), 2);
    assert_refused(ek_sum(x, .dims = {0}), EK_E_INVALID, "write EK_DIMS(0)");
    assert_refused(ek_sum(x, 1, 0), EK_E_INVALID, "write EK_DIMS(0)");
    ek_reduce_options filled = EK_DEFAULTS(ek_reduce_options);
    filled.x = x;
    ck_assert_int_eq(ek_tensor_ndim(ek_sum_with(filled)), 0);
    filled.dim = 0;
    assert_shape(ek_sum_with(filled), EK_SHAPE(3));
    ck_assert_int_eq(ek_tensor_ndim(ek_quantile(x, q, EK_DIMS(1))), 1);
}

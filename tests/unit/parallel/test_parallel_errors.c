/* What goes wrong in one replica reaches the caller, and the next call works. */
#include "kit/models.h"
#include "parallel_setup.h"

/* Fails, or returns something, depending on where it runs. */
typedef struct moody {
    ek_module module;
    ek_tensor *weight;
    unsigned failing; /* bit d: on host:d */
    bool in_backward;
    bool silent;
} moody;

static ek_value moody_forward(ek_module *module, const ek_args *args)
{
    moody *self = (moody *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    int d = ek_tensor_device(x).index;
    if (self->failing >> d & 1) {
        if (self->silent)
            return ek_value_error();
        return ek_value_of_tensor(
            ek_matmul(x, ek_ones(EK_SHAPE(d + 7, 2), .dtype = EK_F64, .device = test_device(d))));
    }
    ek_tensor *y = ek_mul(x, self->weight);
    if (self->in_backward && d == 1) /* y's saved operand changes under it */
        ek_fill_(self->weight, 0);
    return ek_value_of_tensor(y);
}

MODULE_TYPE(moody, moody)

static ek_module *make_moody(moody **self)
{
    *self = (moody *)ek_module_new(&moody_type);
    assert_made(*self);
    assert_ok(ek_register_parameter(&(*self)->module, "weight", &(*self)->weight,
                                    ek_full(2, EK_SHAPE(1), .dtype = EK_F64)));
    return ek_data_parallel(&(*self)->module, ek_devices(test_kind(), 4));
}

TEST(the_first_failing_replica_is_named)
{
    moody *self;
    ek_module *model = held(make_moody(&self));
    ek_tensor *x = normal(1, EK_SHAPE(8, 3), EK_F64, ek_cpu());
    self->failing = 1u << 3 | 1u << 2;
    ck_assert_ptr_null(ek_apply(model, x));
    /* Device, operation and shapes. */
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "matmul"));
    ck_assert_ptr_nonnull(strstr(ek_error_message(), "9"));
    assert_error(EK_E_SHAPE, "data_parallel: replica 2 on host:2: moody: ");
    self->failing = 0;
    ck_assert_double_gt(square_loss(ek_apply(model, x)), 0);
}

TEST(a_silent_failure_gets_a_sentence)
{
    moody *self;
    ek_module *model = held(make_moody(&self));
    self->failing = 1;
    self->silent = true;
    assert_refused(ek_apply(model, normal(1, EK_SHAPE(8, 3), EK_F64, ek_cpu())), EK_E_STATE,
                   "replica 0 on host:0");
}

TEST(an_error_in_backward_names_the_device)
{
    moody *self;
    ek_module *model = held(make_moody(&self));
    ek_tensor *x = normal(1, EK_SHAPE(8, 3), EK_F64, ek_cpu());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    self->in_backward = true;
    /* In place on a parameter: only gradient mode's check would stop it. */
    ek_tensor *out = ek_apply(model, x);
    if (out) {
        ck_assert_int_lt(ek_backward(ek_sum(out)), 0);
        ck_assert_ptr_nonnull(strstr(ek_error_message(), device_text("host:1")));
        assert_error(EK_E_MODIFIED, "");
    } else {
        ck_assert_ptr_nonnull(strstr(ek_error_message(), device_text("host:1")));
        ek_error_clear();
    }
    self->in_backward = false;
    ek_module_zero_grad(model);
    square_loss(ek_apply(model, x));
}

TEST(out_of_memory_in_one_replica)
{
    ek_manual_seed(1);
    ek_module *model =
        held(ek_data_parallel(ek_sequential(ek_linear(256, 256), ek_relu(), ek_linear(256, 256)),
                              ek_devices(test_kind(), 4)));
    ek_tensor *small = ek_zeros(EK_SHAPE(8, 256)), *large = ek_zeros(EK_SHAPE(4096, 256));
    square_loss(ek_apply(model, small));
    ek_module_zero_grad(model);
    ek_memory_trim(test_device(2));
    assert_ok(ek_memory_set_capacity(test_device(2), bytes_in_use(test_device(2)) + (2 << 20)));
    uint64_t before[4];
    for (int d = 0; d < 4; d++)
        before[d] = bytes_in_use(test_device(d));
    ek_scope scope = ek_scope_begin();
    assert_refused(ek_apply(model, large), EK_E_OUT_OF_MEMORY, "host:2");
    ek_scope_end(&scope);
    for (int d = 0; d < 4; d++)
        ck_assert_uint_eq(bytes_in_use(test_device(d)), before[d]);
    scope = ek_scope_begin();
    square_loss(ek_apply(model, small)); /* a smaller batch succeeds */
    ek_scope_end(&scope);
}

TEST(no_room_for_a_replica)
{
    ek_manual_seed(1);
    ek_module *model = held(ek_data_parallel(ek_linear(256, 256), ek_devices(test_kind(), 3)));
    ek_tensor *x = ek_zeros(EK_SHAPE(6, 256));
    assert_ok(ek_memory_set_capacity(test_device(1), 1000));
    assert_refused(ek_apply(model, x), EK_E_OUT_OF_MEMORY, "host:1");
    assert_ok(ek_memory_set_capacity(test_device(1), 0));
    square_loss(ek_apply(model, x));
}

TEST(memory_does_not_grow)
{
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 4)));
    uint64_t after[4] = {0};
    for (int step = 0; step < 200; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = normal(3, EK_SHAPE(4 + step % 5, 3), EK_F64, ek_cpu());
        ek_module_zero_grad(model);
        square_loss(ek_apply(model, x));
        bool before = ek_set_grad_enabled(false);
        ek_tensor *weight = ek_module_tensor(model, "0.weight");
        assert_made(ek_add_scaled_(weight, ek_tensor_grad(weight), -0.01));
        ek_set_grad_enabled(before);
        ek_scope_end(&scope);
        for (int d = 0; d < 4; d++) {
            if (step == 4)
                after[d] = bytes_in_use(test_device(d));
            if (step > 4)
                ck_assert_uint_eq(bytes_in_use(test_device(d)), after[d]);
        }
    }
}

/* ---- parallel_apply by itself ---- */

TEST(apply_checks_its_arguments)
{
    ek_module *net = held(make_net());
    ek_tensor *x = normal(3, EK_SHAPE(2, 3), EK_F64, ek_cpu());
    ek_args args = {EK_VALUES(x), 1, ek_value_none()};
    ek_device_list devices = EK_DEVICES(ek_cpu());
    ek_value out;
    assert_ok(ek_parallel_apply(&net, &args, 1, &devices, &out));
    assert_made(ek_value_tensor(out));
    assert_refused(ek_parallel_apply(&net, &args, 2, &devices, &out), EK_E_INVALID,
                   "2 modules for 1 devices");
    assert_refused(ek_parallel_apply(&net, &args, 0, &devices, &out), EK_E_INVALID, "0 modules");
}

TEST(apply_runs_different_modules)
{
    ek_module *modules[2] = {ek_relu(), ek_tanh()};
    ek_value inputs[2] = {EK_VALUE(ek_full(-1, EK_SHAPE(2), .device = test_device(2))),
                          EK_VALUE(ek_full(0.5, EK_SHAPE(3), .device = test_device(1)))};
    ek_args args[2] = {{&inputs[0], 1, ek_value_none()}, {&inputs[1], 1, ek_value_none()}};
    ek_device_list devices = EK_DEVICES(test_device(2), test_device(1));
    ek_value out[2];
    assert_ok(ek_parallel_apply(modules, args, 2, &devices, out));
    ck_assert_double_eq(element(ek_value_tensor(out[0]), 1), 0);
    ck_assert_double_eq_tol(element(ek_value_tensor(out[1]), 2), tanh(0.5), 1e-6);
    ek_module_free(modules[0]);
    ek_module_free(modules[1]);
}

/* ---- a model that spans devices on its own ---- */

TEST(a_model_on_two_devices)
{
    ek_manual_seed(7);
    ek_module *first = held(ek_linear(3, 5)), *second = held(ek_linear(5, 2));
    ek_module *net = held(make_net());
    assert_ok(ek_module_to_dtype(first, EK_F64));
    assert_ok(ek_module_to_dtype(second, EK_F64));
    assert_ok(ek_module_to_device(first, test_device(0)));
    assert_ok(ek_module_to_device(second, test_device(1)));
    ek_tensor *x = normal(3, EK_SHAPE(6, 3), EK_F64, ek_cpu());
    for (int step = 0; step < 3; step++) {
        ek_tensor *h = ek_f_tanh(ek_apply(first, ek_to_device(x, test_device(0))));
        ek_tensor *out = ek_apply(second, ek_to_device(h, test_device(1)));
        double expected = square_loss(ek_apply(net, x));
        double loss = square_loss(out);
        ck_assert(fabs(loss - expected) <= 1e-14 * expected);
    }
    assert_on(ek_tensor_grad(ek_module_tensor(first, "weight")), test_device(0));
    assert_close_norm(ek_to_device(ek_tensor_grad(ek_module_tensor(first, "weight")), ek_cpu()),
                      ek_tensor_grad(ek_module_tensor(net, "0.weight")), 1e-13);
    assert_close_norm(ek_to_device(ek_tensor_grad(ek_module_tensor(second, "bias")), ek_cpu()),
                      ek_tensor_grad(ek_module_tensor(net, "2.bias")), 1e-13);
}

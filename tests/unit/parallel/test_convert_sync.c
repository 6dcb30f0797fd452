/* Plain batch norms that turn into synchronised ones; if synchronised ones and allreduce stand
 * in modules. */
#include "kit/models.h"
#include "sync_setup.h"

static const char *type_name(ek_module *module)
{
    assert_made(module);
    return module->type->name;
}

TEST(every_kind_turns_and_works)
{
    for (int form = 0; form < 4; form++) {
        ek_module *net = plain_net(form, EK_F64), *plain = plain_net(form, EK_F64);
        ek_module *last = ek_module_child(net, 2);
        ek_tensor *weight = ek_module_tensor(net, "0.weight");
        ek_tensor *mean = ek_module_tensor(net, "2.running_mean");
        ck_assert_ptr_eq(ek_convert_sync_batch_norm(net), net);
        ck_assert_str_eq(type_name(ek_module_child(net, 0)), "sync_batch_norm");
        ck_assert_str_eq(type_name(ek_module_child(net, 1)), "tanh");
        ck_assert_ptr_eq(ek_module_child(net, 2), last);
        ck_assert_ptr_eq(ek_module_tensor(net, "0.weight"), weight);
        ck_assert_ptr_eq(ek_module_tensor(net, "2.running_mean"), mean);
        ck_assert_ptr_eq(ek_convert_sync_batch_norm(net), net); /* once more changes nothing */
        ek_module *model = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 4));
        ek_tensor *x = normal(1, shape_of(form, 10), EK_F64, ek_cpu());
        step got = take_step(model, x, true), wanted = take_step(plain, x, true);
        assert_same_step(&got, &wanted, 1e-12);
        ek_module_free(model);
        ek_module_free(plain);
    }
}

static int run_once(ek_module *module, void *user)
{
    return ek_apply(module, user) ? 0 : ek_error_status();
}

/* Statistics of batches: of batch norms of every type, but not of instance norms, which have the
 * same struct. */
TEST(statistics_are_those_of_batch_norms)
{
    for (int kind = 0; kind < 3; kind++) {
        ek_module *norm =
            kind == 2 ? ek_instance_norm1d(3, .track_running_stats = true) : ek_batch_norm1d(3);
        assert_made(norm);
        if (kind == 1)
            assert_made(ek_convert_sync_batch_norm(norm));
        ek_tensor *mean = ek_module_tensor(norm, "running_mean");
        assert_made(ek_fill_(mean, 5));
        assert_ok(
            ek_update_batch_norm(norm, run_once, normal(1, EK_SHAPE(4, 3, 6), EK_F32, ek_cpu())));
        if (kind == 2)
            assert_close(mean, ek_full_like(mean, 5), 0, 0);
        else
            ck_assert(fabs(element(mean, 0)) < 2);
        ek_module_free(norm);
    }
}

TEST(options_and_mode_stay)
{
    ek_module *net = ek_batch_norm2d(CHANNELS, .eps = 0.1, .momentum = 0.5);
    ek_module *plain = ek_batch_norm2d(CHANNELS, .eps = 0.1, .momentum = 0.5);
    assert_ok(ek_tensor_set_requires_grad(ek_module_tensor(net, "weight"), false));
    ek_module_train(net, false);
    net = ek_convert_sync_batch_norm(net); /* the root itself */
    ck_assert_str_eq(type_name(net), "sync_batch_norm");
    ck_assert(!net->training);
    ck_assert(!ek_tensor_requires_grad(ek_module_tensor(net, "weight")));
    ck_assert(ek_tensor_requires_grad(ek_module_tensor(net, "bias")));
    ek_module *model = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 4));
    ek_module_train(model, true);
    ek_tensor *x = ek_to_dtype(normal(1, shape_of(2, 10), EK_F64, ek_cpu()), EK_F32);
    assert_close_norm(here(ek_apply(model, x)), here(ek_apply(plain, x)), 1e-6);
    assert_close_norm(here(ek_module_tensor(model, "running_var")),
                      here(ek_module_tensor(plain, "running_var")), 1e-6);
    /* Dimensions are checked as before. */
    assert_refused(ek_apply(model, ek_ones(shape_of(0, 10))), EK_E_SHAPE,
                   "expected an input of 4 dimensions");
    ek_module_free(model);
    ek_module_free(plain);

    net = ek_convert_sync_batch_norm(
        ek_batch_norm1d(CHANNELS, .affine = false, .track_running_stats = false));
    model = ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 2));
    assert_made(ek_apply(model, ek_ones(shape_of(0, 4))));
    ek_module_free(model);
    ek_module *linear = ek_linear(2, 2);
    ck_assert_ptr_eq(ek_convert_sync_batch_norm(linear), linear);
    ek_module_free(linear);
    assert_refused(ek_convert_sync_batch_norm(NULL), EK_E_INVALID, "module is NULL");
}

/* A norm under two names, and one in a list. */
typedef struct shared {
    ek_module module;
    ek_module *norm, *same, *list;
} shared;

static ek_value shared_forward(ek_module *module, const ek_args *args)
{
    shared *self = (shared *)module;
    ek_tensor *x = ek_apply(self->norm, ek_arg_tensor(args, 0));
    return ek_value_of_tensor(ek_apply(self->list, ek_apply(self->same, ek_f_tanh(x))));
}
MODULE_TYPE(shared, shared)

static ek_module *make_shared(void)
{
    shared *self = (shared *)ek_module_new(&shared_type);
    ek_module *norm = ek_batch_norm1d(CHANNELS);
    randomise(norm, 5);
    assert_ok(ek_register_module(&self->module, "norm", &self->norm, norm));
    assert_ok(ek_register_module(&self->module, "same", &self->same, norm));
    assert_ok(ek_register_module(&self->module, "list", &self->list,
                                 ek_sequential(ek_batch_norm1d(CHANNELS), ek_relu())));
    assert_ok(ek_module_to_dtype(&self->module, EK_F64));
    return &self->module;
}

TEST(shared_modules_stay_shared)
{
    ek_module *net = ek_convert_sync_batch_norm(make_shared()), *plain = held(make_shared());
    ck_assert_ptr_eq(((shared *)net)->norm, ((shared *)net)->same);
    ck_assert_str_eq(type_name(((shared *)net)->same), "sync_batch_norm");
    ck_assert_str_eq(type_name(ek_module_child(((shared *)net)->list, 0)), "sync_batch_norm");
    ek_module *model = held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 4)));
    for (int i = 0; i < 3; i++) {
        ek_tensor *x = normal(1 + (uint64_t)i, shape_of(0, 10), EK_F64, ek_cpu());
        ek_tensor *got = ek_apply(model, x), *wanted = ek_apply(plain, x);
        assert_close_norm(here(got), here(wanted), 1e-12);
        assert_ok(ek_backward(ek_sum(ek_square(got))));
        assert_ok(ek_backward(ek_sum(ek_square(wanted))));
        assert_close_norm(here(ek_tensor_grad(ek_module_tensor(model, "norm.weight"))),
                          here(ek_tensor_grad(ek_module_tensor(plain, "norm.weight"))), 1e-10);
        ck_assert_double_eq(element(ek_module_tensor(model, "norm.num_batches_tracked"), 0),
                            2 * (i + 1));
    }
}

TEST(a_wrapper_turns_after_its_first_forward)
{
    ek_module *model =
        ek_data_parallel(plain_net(2, EK_F64), .device_ids = ek_devices(test_kind(), 4));
    ek_module *plain = plain_net(2, EK_F64);
    ek_tensor *x = normal(1, shape_of(2, 10), EK_F64, ek_cpu());
    ek_set_grad_enabled(false);
    ek_module_train(model, false);
    assert_made(ek_apply(model, x));
    ek_module_train(model, true);
    ek_set_grad_enabled(true);
    ck_assert_ptr_eq(ek_convert_sync_batch_norm(model), model);
    for (int i = 0; i < 2; i++) {
        step got = take_step(model, x, true), wanted = take_step(plain, x, true);
        assert_same_step(&got, &wanted, 1e-12);
    }
    ek_module_free(model);
    ek_module_free(plain);
    /* The child of a wrapper is the norm itself. */
    model = ek_data_parallel(ek_batch_norm2d(CHANNELS), .device_ids = ek_devices(test_kind(), 4));
    plain = ek_batch_norm2d(CHANNELS);
    x = ek_to_dtype(x, EK_F32);
    assert_made(ek_apply(model, x));
    model = ek_convert_sync_batch_norm(model);
    ek_module_train(model, false);
    assert_made(ek_apply(model, x));
    ek_module_train(model, true);
    assert_close_norm(here(ek_apply(model, x)), here(ek_apply(plain, x)), 1e-5);
    ek_module_free(model);
    ek_module_free(plain);
}

/* ---- in modules ---- */

TEST(a_wrapper_within_a_wrapper)
{
    ek_module *inner = ek_data_parallel(sync_net(EK_F64), .device_ids = ek_devices(test_kind(), 2));
    ek_module *model = held(ek_data_parallel(inner, .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(plain_net(2, EK_F64));
    ek_tensor *x = normal(1, shape_of(2, 10), EK_F64, ek_cpu());
    step got = take_step(model, x, true), wanted = take_step(plain, x, true);
    assert_same_step(&got, &wanted, 1e-12);
}

TEST(in_what_is_computed_again)
{
    ek_module *model = held(ek_data_parallel(ek_sequential(ek_checkpoint(sync_net(EK_F64))),
                                             .device_ids = ek_devices(test_kind(), 4),
                                             .output_device = test_device(2)));
    ek_module *plain = held(plain_net(2, EK_F64));
    assert_refused(ek_apply(model, normal(1, shape_of(2, 10), EK_F64, ek_cpu())), EK_E_STATE,
                   "sync_batch_norm waits for the other replicas, which is impossible "
                   "inside ek_checkpoint");
    /* One chunk has nobody to wait for, also if threads of several devices run its backward. */
    ek_tensor *x = normal(1, shape_of(2, 1), EK_F64, test_device(3)), *y = ek_detach(x);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_tensor_set_requires_grad(y, true));
    ek_tensor *out = ek_apply(model, x);
    assert_on(out, test_device(2));
    assert_ok(ek_backward(ek_sum(ek_mul(ek_square(out), out))));
    ek_tensor *wanted = ek_apply(plain, ek_to_device(y, ek_cpu()));
    assert_ok(ek_backward(ek_sum(ek_mul(ek_square(wanted), wanted))));
    assert_close_norm(here(ek_tensor_grad(x)), here(ek_tensor_grad(y)), 1e-10);
}

/* Softmax over the whole batch: exp(x) / sum over all replicas, per column. */
static ek_value share_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_exp(ek_arg_tensor(args, 0));
    ek_tensor *own = ek_sum(x, EK_DIMS(0)), *all;
    if (ek_allreduce(&own, 1, 1, &all) < 0)
        return ek_value_error();
    return ek_value_of_tensor(ek_div(x, all));
}
MODULE_TYPE(share, ek_module)

static ek_tensor *shares(ek_tensor *const *inputs, int count, void *user)
{
    return ek_apply(user, inputs[0]);
}

TEST(allreduce_in_modules)
{
    ek_module *model = held(
        ek_data_parallel(ek_module_new(&share_type), .device_ids = ek_devices(test_kind(), 4)));
    ek_tensor *x = normal(1, EK_SHAPE(5, 2), EK_F64, ek_cpu());
    ek_tensor *wanted = ek_f_softmax(x, 0);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_close_norm(here(ek_apply(model, x)), wanted, 1e-14);
    assert_ok(ek_gradcheck(.function = shares, .inputs = &x, .input_count = 1, .user = model));
    assert_ok(ek_gradgradcheck(.function = shares, .inputs = &x, .input_count = 1, .user = model));
}

/* A replica that applies one module: its norm meets those of the other replicas. Several modules
 * run one after the other there, and cannot meet. */
typedef struct applying {
    ek_module module;
    ek_module *norm;
    int modules;
} applying;

static ek_value applying_forward(ek_module *module, const ek_args *args)
{
    applying *self = (applying *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_value input = ek_value_of_tensor(x), outputs[2];
    ek_module *const modules[] = {self->norm, self->norm};
    const ek_args inner[] = {{&input, 1, ek_value_none()}, {&input, 1, ek_value_none()}};
    ek_device device = ek_tensor_device(x);
    ek_device_list devices = EK_DEVICES(device, test_device((device.index + 1) % 4));
    if (ek_parallel_apply(modules, inner, self->modules, &devices, outputs) < 0)
        return ek_value_error();
    return outputs[0];
}
MODULE_TYPE(applying, applying)

TEST(modules_that_a_replica_applies)
{
    applying *self = (applying *)ek_module_new(&applying_type);
    assert_ok(ek_register_module(&self->module, "norm", &self->norm, ek_sync_batch_norm(CHANNELS)));
    self->modules = 1;
    ek_module *model =
        held(ek_data_parallel(&self->module, .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(ek_batch_norm1d(CHANNELS));
    ek_tensor *x = ek_to_dtype(normal(1, shape_of(0, 8), EK_F64, ek_cpu()), EK_F32);
    assert_close_norm(here(ek_apply(model, x)), here(ek_apply(plain, x)), 1e-5);
    self->modules = 2;
    assert_refused(ek_apply(model, x), EK_E_STATE,
                   "the jobs of a group within a group run one after the other");
}

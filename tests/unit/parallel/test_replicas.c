/* Replicas: what persists, what is shared, what is sent again, where parameters live. */
#include "core/tensor.h"
#include "kit/models.h"
#include "nn/module_table.h"
#include "parallel/replica_set.h"
#include "parallel_setup.h"

static ek_tensor *part(ek_module *module, int index, int member)
{
    return *ek_module_member(ek_module_child(module, index), member).slot.tensor;
}

static ek_module *make_bn_net(void)
{
    ek_manual_seed(7);
    ek_module *net = ek_sequential(ek_linear(3, 4), ek_batch_norm1d(4));
    assert_made(net);
    return net;
}

TEST(replicas_are_complete)
{
    ek_module *net = held(make_bn_net());
    ek_device_list devices = ek_devices(test_kind(), 3);
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_module *replicas[3];
    assert_refused(ek_replicate(net, &devices, NULL), EK_E_INVALID, "replicas is NULL");
    assert_ok(ek_replicate(net, &devices, replicas));
    for (int d = 0; d < 3; d++) {
        ck_assert(replicas[d]->is_replica);
        ek_tensor *weight = ek_module_tensor(replicas[d], "0.weight");
        assert_on(weight, test_device(d));
        assert_close(ek_to_device(weight, ek_cpu()),
                     ek_to_device(ek_module_tensor(net, "0.weight"), ek_cpu()), 0, 0);
        ck_assert(ek_tensor_requires_grad(weight) && !ek_tensor_is_leaf(weight));
        ek_tensor *mean = ek_module_tensor(replicas[d], "1.running_mean");
        assert_on(mean, test_device(d));
        ck_assert(!ek_tensor_requires_grad(mean));
    }
    ck_assert_ptr_eq(ek_tensor_address(ek_module_tensor(replicas[0], "0.weight")),
                     ek_tensor_address(ek_module_tensor(net, "0.weight")));
    ck_assert_ptr_eq(ek_module_tensor(replicas[0], "1.running_mean"),
                     ek_module_tensor(net, "1.running_mean"));
    for (int d = 0; d < 3; d++)
        ek_module_free(replicas[d]);
    devices.devices[0] = test_device(1);
    assert_refused(ek_replicate(net, &devices, replicas), EK_E_DEVICE,
                   "on device host:1 (device_ids[0])");
    assert_refused(ek_replicate(NULL, &devices, replicas), EK_E_INVALID, "module is NULL");
}

/* Returns the twins of a module's tensor without a reference. */
static const ek_twins *twins_of(ek_module *module, const char *name, int64_t *offset)
{
    ek_twins *twins = ek_tensor_twins(ek_module_tensor(module, name), offset);
    ek_object_release(twins);
    return twins;
}

/* Kernels of the host may compute once for all what parameters on several devices have in common.
 */
TEST(parameters_of_replicas_are_twins)
{
    ek_module *net = held(make_bn_net()), *replicas[3];
    ek_device_list devices = ek_devices(test_kind(), 3);
    int64_t offset;
    assert_ok(ek_module_to_device(net, test_device(0)));
    ck_assert_ptr_null(twins_of(net, "0.weight", &offset));
    assert_ok(ek_replicate(net, &devices, replicas));
    const ek_twins *twins[3][2];
    for (int d = 0; d < 3; d++) {
        twins[d][0] = twins_of(replicas[d], "0.weight", &offset);
        ck_assert_int_eq(offset, 0);
        twins[d][1] = twins_of(replicas[d], "0.bias", &offset);
        ck_assert_int_eq(twins[d][0] != NULL, test_kind() == EK_HOST);
        for (int i = 0; i < 2; i++)
            ck_assert_ptr_eq(twins[d][i], twins[0][i]);
        ck_assert_ptr_null(twins_of(replicas[d], "1.running_mean", &offset));
    }
    ck_assert(!twins[0][0] || twins[0][0] != twins[0][1]);
    ek_tensor_touch(ek_module_tensor(replicas[1], "0.weight"));
    for (int d = 0; d < 3; d++)
        ck_assert_ptr_eq(twins_of(replicas[d], "0.weight", &offset), d == 1 ? NULL : twins[0][0]);
    for (int d = 0; d < 3; d++)
        ek_module_free(replicas[d]);
}

TEST(gradients_of_replicas_add_up)
{
    ek_module *net = held(ek_linear(1, 1, false)), *replicas[3];
    ek_device_list devices = ek_devices(test_kind(), 3);
    assert_ok(ek_module_to_device(net, test_device(0)));
    assert_ok(ek_replicate(net, &devices, replicas));
    ek_tensor *terms[3];
    for (int d = 0; d < 3; d++) {
        ek_tensor *x = ek_full(d + 1, EK_SHAPE(1, 1), .device = test_device(d));
        terms[d] = ek_sum(ek_apply(replicas[d], x));
        ek_module_free(replicas[d]);
    }
    assert_ok(ek_backward(ek_reduce_add(terms, 3, ek_tensor_device(terms[0]))));
    ck_assert_double_eq(element(ek_tensor_grad(ek_module_tensor(net, "weight")), 0), 6);
}

typedef struct tied {
    ek_module module;
    ek_module *first, *second;
    ek_tensor *scale, *same;
} tied;

static ek_value tied_forward(ek_module *module, const ek_args *args)
{
    tied *self = (tied *)module;
    if (self->first != self->second || self->scale != self->same)
        return fail_with("what is shared has come apart");
    ek_tensor *y = ek_apply(self->second, ek_apply(self->first, ek_arg_tensor(args, 0)));
    return ek_value_of_tensor(ek_mul(ek_mul(y, self->scale), self->same));
}

MODULE_TYPE(tied, tied)

TEST(what_is_shared_stays_shared)
{
    tied *self = (tied *)ek_module_new(&tied_type);
    ek_module *linear = ek_linear(2, 2);
    assert_ok(ek_module_to_dtype(linear, EK_F64));
    ek_tensor *scale = ek_full(2, EK_SHAPE(1), .dtype = EK_F64);
    assert_ok(ek_register_module(&self->module, "first", &self->first, linear));
    assert_ok(ek_register_module(&self->module, "second", &self->second, linear));
    assert_ok(ek_register_parameter(&self->module, "scale", &self->scale, scale));
    assert_ok(ek_register_parameter(&self->module, "same", &self->same, scale));
    ek_tensor *x = normal(3, EK_SHAPE(5, 2), EK_F64, ek_cpu());
    square_loss(ek_apply(&self->module, x));
    ek_tensor *expected = ek_keep(ek_tensor_grad(ek_module_tensor(linear, "weight")));
    double scale_gradient = element(ek_tensor_grad(scale), 0);
    ek_module_zero_grad(&self->module);

    ek_module *model = held(ek_data_parallel(&self->module, ek_devices(test_kind(), 3)));
    square_loss(ek_apply(model, x));
    assert_close_norm(ek_to_device(ek_tensor_grad(ek_module_tensor(linear, "weight")), ek_cpu()),
                      expected, 1e-13);
    ck_assert(fabs(element(ek_tensor_grad(scale), 0) - scale_gradient) <=
              1e-13 * fabs(scale_gradient));
    ek_release(expected);
}

TEST(only_what_was_written_is_sent)
{
    ek_module *net = held(make_bn_net()), *replicas[2];
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_dev *devs[] = {ek_dev_get(test_device(0)), ek_dev_get(test_device(1))};
    const ek_rank_list ranks = {2, {0, 1}};
    ek_replica_set *set = ek_replica_set_new(net, 2, true);
    uint64_t versions[3][2];
    const void *data[3];
    for (int round = 0; round < 3; round++) {
        if (round == 2) {
            bool before = ek_set_grad_enabled(false);
            assert_made(ek_fill_(ek_module_tensor(net, "0.bias"), 5));
            ek_set_grad_enabled(before);
        }
        assert_ok(ek_replica_set_make(set, devs, &ranks, replicas));
        versions[round][0] = ek_tensor_version(part(replicas[1], 0, 0));
        versions[round][1] = ek_tensor_version(part(replicas[1], 0, 1));
        data[round] = ek_tensor_address(part(replicas[1], 0, 0));
        if (round == 2)
            ck_assert_double_eq(element(part(replicas[1], 0, 1), 3), 5);
        ek_module_free(replicas[0]);
        ek_module_free(replicas[1]);
    }
    ck_assert_uint_eq(versions[0][0], versions[2][0]);
    ck_assert_uint_eq(versions[0][1], versions[1][1]);
    ck_assert_uint_gt(versions[2][1], versions[1][1]);
    ck_assert_ptr_eq(data[0], data[2]); /* the memory persists */
    ek_replica_set_free(set);
}

TEST(a_module_that_changes_is_looked_at_again)
{
    ek_module *net = make_net();
    ek_module *model = held(ek_data_parallel(net, ek_devices(test_kind(), 2)));
    ek_tensor *x = normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu());
    assert_made(ek_apply(model, x));
    assert_ok(ek_module_to_dtype(net, EK_F32)); /* other geometry in every copy */
    ek_tensor *out = ek_apply(model, ek_to_dtype(x, EK_F32));
    assert_made(out);
    ck_assert_int_eq(ek_tensor_dtype(out), EK_F32);
}

TEST(several_forwards_before_backward)
{
    ek_module *net = held(make_net()),
              *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 3)));
    ek_module *both[2] = {net, model};
    for (int m = 0; m < 2; m++) {
        ek_tensor *sum = NULL;
        for (int i = 0; i < 3; i++) {
            ek_tensor *x = normal(10 + (uint64_t)i, EK_SHAPE(5, 3), EK_F64, ek_cpu());
            ek_tensor *out = ek_mean(ek_square(ek_apply(both[m], x)));
            sum = sum ? ek_add(sum, out) : out;
        }
        assert_ok(ek_backward(sum));
    }
    assert_same_gradients(net, model, 1e-13);
}

TEST(older_graphs_err_after_a_step)
{
    ek_module *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 2)));
    ek_tensor *x = normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu());
    ek_tensor *old = ek_mean(ek_square(ek_apply(model, x)));
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_mul_scalar_(ek_module_tensor(model, "2.weight"), 0.5));
    ek_set_grad_enabled(before);
    ek_tensor *new = ek_mean(ek_square(ek_apply(model, x)));
    assert_refused(ek_backward(old), EK_E_MODIFIED, "");
    ek_module_zero_grad(model);
    assert_ok(ek_backward(new));
}

/* ---- buffers ---- */

TEST(the_first_replicas_buffers_are_the_modules)
{
    ek_module *net = make_bn_net(), *alone = held(make_bn_net());
    ek_module *model = held(ek_data_parallel(net, ek_devices(test_kind(), 2)));
    ek_tensor *x = ek_to_dtype(normal(3, EK_SHAPE(8, 3), EK_F64, ek_cpu()), EK_F32);
    for (int step = 0; step < 3; step++) {
        assert_made(ek_apply(model, x));
        assert_made(ek_apply(alone, ek_narrow(x, 0, 0, 4)));
    }
    static const char *const paths[] = {"1.running_mean", "1.running_var", "1.num_batches_tracked"};
    for (int i = 0; i < 3; i++)
        assert_close(ek_to_device(ek_module_tensor(model, paths[i]), ek_cpu()),
                     ek_module_tensor(alone, paths[i]), test_rounding(), 0);
    /* In evaluation all replicas use them. */
    ek_module_train(model, false);
    ek_module_train(alone, false);
    assert_close(ek_to_device(ek_apply(model, x), ek_cpu()), ek_apply(alone, x), 1e-6, 1e-6);
}

TEST(replicas_may_keep_their_own_buffers)
{
    ek_module *net = make_bn_net(), *alone = held(make_bn_net());
    ek_module *model =
        held(ek_data_parallel(net, ek_devices(test_kind(), 2), .broadcast_buffers = false));
    ek_tensor *x = ek_to_dtype(normal(3, EK_SHAPE(8, 3), EK_F64, ek_cpu()), EK_F32);
    for (int step = 0; step < 3; step++) {
        assert_made(ek_apply(model, x));
        assert_made(ek_apply(alone, ek_narrow(x, 0, 4, 4)));
    }
    ek_module_train(model, false);
    ek_module_train(alone, false);
    ek_tensor *second = ek_narrow(ek_to_device(ek_apply(model, x), ek_cpu()), 0, 4, 4);
    assert_close(second, ek_apply(alone, ek_narrow(x, 0, 4, 4)), 1e-6, 1e-6);
}

/* ---- slabs ---- */

TEST(parameters_and_gradients_live_in_slabs)
{
    ek_module *net = make_net();
    ek_tensor *weight = ek_module_tensor(net, "0.weight"), *bias = ek_module_tensor(net, "0.bias");
    ek_tensor *copy = ek_clone(ek_detach(weight));
    ek_module *model = held(ek_data_parallel(net, ek_devices(test_kind(), 2)));
    ck_assert_ptr_eq(weight->storage, bias->storage);
    ck_assert_ptr_ne(weight->version, bias->version);
    ck_assert_int_lt(weight->offset, bias->offset);
    ck_assert_ptr_null(ek_tensor_grad(weight));
    assert_close(ek_to_device(weight, ek_cpu()), copy, 0, 0);
    square_loss(ek_apply(model, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu())));
    ek_tensor *gradient = ek_tensor_grad(weight);
    assert_made(gradient);
    ck_assert_ptr_eq(gradient->storage, ek_tensor_grad(bias)->storage);
    ck_assert_int_eq(gradient->storage->category, EK_MEMORY_GRADIENT);
    ck_assert_int_eq(weight->storage->category, EK_MEMORY_PARAMETER);
    ek_module_zero_grad(model);
    ck_assert_ptr_null(ek_tensor_grad(weight));
    square_loss(ek_apply(model, normal(4, EK_SHAPE(4, 3), EK_F64, ek_cpu())));
    ck_assert_ptr_eq(ek_tensor_grad(weight), gradient); /* the slot again */
}

TEST(two_wrappers_share_a_slab)
{
    ek_module *net = make_net();
    ek_tensor *weight = ek_module_tensor(net, "0.weight");
    ek_module *first = ek_data_parallel(net, ek_devices(test_kind(), 2));
    const ek_storage *home = weight->storage;
    ek_module *second = held(ek_data_parallel(net, ek_devices(test_kind(), 3)));
    ck_assert_ptr_eq(weight->storage, home);
    ek_tensor *x = normal(3, EK_SHAPE(6, 3), EK_F64, ek_cpu());
    for (int step = 0; step < 3; step++) {
        double a = square_loss(ek_apply(first, x));
        double b = square_loss(ek_apply(second, x));
        ck_assert(fabs(a - b) <= 1e-14 * a);
        bool before = ek_set_grad_enabled(false);
        assert_made(ek_add_scaled_(weight, ek_tensor_grad(weight), -0.1));
        ek_set_grad_enabled(before);
        ek_module_zero_grad(net);
    }
    ek_module_free(first);
    assert_made(ek_apply(second, x));
}

TEST(a_larger_module_takes_in_a_homed_one)
{
    ek_module *inner = make_net();
    held(ek_data_parallel(inner, ek_devices(test_kind(), 2)));
    const ek_storage *home = ek_module_tensor(inner, "0.weight")->storage;
    ek_module *last = ek_linear(2, 1);
    assert_ok(ek_module_to_dtype(last, EK_F64));
    ek_module *all = held(ek_data_parallel(ek_sequential(inner, last), ek_devices(test_kind(), 2)));
    ck_assert_ptr_eq(ek_module_tensor(inner, "0.weight")->storage, home);
    ck_assert_ptr_ne(ek_module_tensor(last, "weight")->storage, home);
    square_loss(ek_apply(all, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu())));
    assert_made(ek_tensor_grad(ek_module_tensor(inner, "2.bias")));
}

TEST(gradients_and_graphs_from_before_survive)
{
    ek_module *net = make_net();
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_tensor *x = normal(3, EK_SHAPE(4, 3), EK_F64, test_device(0));
    square_loss(ek_apply(net, x));
    ek_tensor *loss = ek_mean(ek_square(ek_apply(net, x)));
    ek_tensor *weight = ek_module_tensor(net, "0.weight");
    ek_tensor *before = ek_clone(ek_tensor_grad(weight));
    held(ek_data_parallel(net, ek_devices(test_kind(), 2)));
    assert_close(ek_tensor_grad(weight), before, 0, 0);
    assert_ok(ek_backward(loss)); /* recorded before the move */
    assert_close(ek_tensor_grad(weight), ek_mul_scalar(before, 2), 1e-14, 1e-16);
}

TEST(frozen_parameters_get_no_gradient)
{
    ek_module *net = make_net();
    ek_tensor *frozen = ek_module_tensor(net, "0.weight");
    assert_ok(ek_tensor_set_requires_grad(frozen, false));
    ek_module *model = held(ek_data_parallel(net, ek_devices(test_kind(), 2)));
    square_loss(ek_apply(model, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu())));
    ck_assert_ptr_null(ek_tensor_grad(frozen));
    assert_made(ek_tensor_grad(ek_module_tensor(net, "0.bias")));
    assert_ok(ek_tensor_set_requires_grad(frozen, true)); /* thawed: outside of the slab */
    square_loss(ek_apply(model, normal(3, EK_SHAPE(4, 3), EK_F64, ek_cpu())));
    assert_made(ek_tensor_grad(frozen));
}

TEST(second_order_through_replicas)
{
    /* The gradient of a gradient's norm, against one device. */
    ek_module *net = held(make_net()),
              *model = held(ek_data_parallel(make_net(), ek_devices(test_kind(), 3)));
    ek_module *both[2] = {net, model};
    for (int m = 0; m < 2; m++) {
        ek_tensor *x = normal(5, EK_SHAPE(7, 3), EK_F64, ek_cpu()), *gradient;
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *out = ek_sum(ek_square(ek_apply(both[m], x)));
        assert_ok(ek_grad(.outputs = &out, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &gradient, .create_graph = true));
        assert_ok(ek_backward(ek_sum(ek_square(gradient))));
    }
    assert_same_gradients(net, model, 1e-12);
}

TEST(many_buckets_give_the_same_gradients)
{
    /* 1.1 M parameters in f32: several buckets of 1 and 4 MiB, sent by the workers. */
    ek_manual_seed(1);
    ek_module *net = held(ek_sequential(ek_linear(64, 1024), ek_relu(), ek_linear(1024, 1024),
                                        ek_relu(), ek_linear(1024, 8)));
    ek_manual_seed(1);
    ek_module *model =
        held(ek_data_parallel(ek_sequential(ek_linear(64, 1024), ek_relu(), ek_linear(1024, 1024),
                                            ek_relu(), ek_linear(1024, 8)),
                              ek_devices(test_kind(), 3)));
    ek_tensor *x = ek_to_dtype(normal(3, EK_SHAPE(6, 64), EK_F64, ek_cpu()), EK_F32);
    square_loss(ek_apply(net, x));
    square_loss(ek_apply(model, x));
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "4.bias"};
    for (int i = 0; i < 4; i++)
        assert_close_norm(ek_to_device(ek_tensor_grad(ek_module_tensor(model, paths[i])), ek_cpu()),
                          ek_tensor_grad(ek_module_tensor(net, paths[i])), 1e-5);
}

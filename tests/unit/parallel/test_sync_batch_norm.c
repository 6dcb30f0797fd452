/* Synchronised batch norm: one device's numbers on several, in every order, and failures that
 * arrive. */
#include "kit/models.h"
#include "sync_setup.h"

/* Three steps of both models on batches of these sizes. */
static void compare(ek_module *model, ek_module *plain, int form, const int *sizes, int count,
                    ek_dtype dtype, bool gradients, double relative)
{
    for (int i = 0; i < count; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x =
            ek_to_dtype(normal(20 + (uint64_t)i, shape_of(form, sizes[i]), EK_F64, ek_cpu()),
                        dtype);
        x = ek_add_scalar(ek_mul_scalar(x, 1.5), 0.5);
        step got = take_step(model, x, gradients), wanted = take_step(plain, x, gradients);
        assert_same_step(&got, &wanted, relative);
        ek_scope_end(&scope);
    }
}

static const int all_sizes[] = {10, 3, 7, 8, 2};

TEST_LOOP(as_one_device_in_every_order, 0, 8)
{
    /* (3, 3, 3, 1); three chunks of one sample; (2, 2, 2, 1); (2, 2, 2, 2); two chunks of one
     * sample, where two values per channel would leave no gradient to speak of. */
    int form = _i % 4, sizes = form == 0 ? 4 : 5;
    ek_dtype dtype = _i < 4 ? EK_F64 : EK_F32;
    ek_module *model =
        held(ek_data_parallel(sync_net(dtype), .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(plain_net(form, dtype));
    compare(model, plain, form, all_sizes, sizes, dtype, true, _i < 4 ? 1e-12 : 1e-5);
}

TEST(one_chunk_on_four_devices)
{
    for (int form = 1; form < 4; form++) {
        ek_module *model =
            ek_data_parallel(sync_net(EK_F64), .device_ids = ek_devices(test_kind(), 4));
        ek_module *plain = plain_net(form, EK_F64);
        compare(model, plain, form, (int[]){1, 5, 1}, 3, EK_F64, true, 1e-12);
        ek_module_free(model);
        ek_module_free(plain);
    }
}

TEST(any_devices)
{
    for (int i = 0; i < 2; i++) {
        ek_module *model =
            ek_data_parallel(sync_net(EK_F64),
                             .device_ids = EK_DEVICES(test_device(3), test_device(1)),
                             .broadcast_buffers = i == 0);
        ek_module *plain = plain_net(2, EK_F64);
        compare(model, plain, 2, all_sizes, 5, EK_F64, true, 1e-12);
        ek_module_free(model);
        ek_module_free(plain);
    }
}

TEST(without_a_graph_and_in_evaluation)
{
    ek_module *model =
        held(ek_data_parallel(sync_net(EK_F64), .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(plain_net(2, EK_F64));
    ek_set_grad_enabled(false);
    compare(model, plain, 2, all_sizes, 5, EK_F64, false, 1e-12);
    ek_set_grad_enabled(true);
    ek_module_train(model, false);
    ek_module_train(plain, false);
    compare(model, plain, 2, all_sizes, 5, EK_F64, true, 1e-12);
    compare(model, plain, 2, (int[]){1}, 1, EK_F64, true, 1e-12);
}

TEST(in_bf16_with_statistics_in_f32)
{
    ek_module *model =
        held(ek_data_parallel(sync_net(EK_F32), .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(plain_net(2, EK_F32));
    compare(model, plain, 2, all_sizes, 2, EK_BF16, true, 3e-2);
}

TEST_LOOP(without_weights_or_running_statistics, 0, 4)
{
    const bool affine = !(_i & 1), tracked = !(_i & 2);
    ek_module *model =
        held(ek_data_parallel(ek_sync_batch_norm(CHANNELS, 1e-2, 0.3, affine, tracked),
                              .device_ids = ek_devices(test_kind(), 4)));
    ek_module *plain = held(ek_batch_norm2d(CHANNELS, 1e-2, 0.3, affine, tracked));
    ek_tensor *x = ek_to_dtype(normal(1, shape_of(2, 10), EK_F64, ek_cpu()), EK_F32);
    assert_close_norm(here(ek_apply(model, x)), here(ek_apply(plain, x)), 1e-6);
    if (tracked)
        for (int b = 0; b < 2; b++)
            assert_close_norm(here(ek_module_tensor(model, b ? "running_var" : "running_mean")),
                              here(ek_module_tensor(plain, b ? "running_var" : "running_mean")),
                              1e-6);
}

TEST_LOOP(empty_chunks_take_no_part, 0, 3)
{
    /* Chunk `_i` is empty; the others have 3 samples. */
    ek_module *model =
        held(ek_data_parallel(sync_net(EK_F64), .device_ids = ek_devices(test_kind(), 3)));
    ek_module *plain = held(plain_net(2, EK_F64));
    ek_tensor *x = normal(5, shape_of(2, 6), EK_F64, ek_cpu()), *wanted_dx, *dx;
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_value parts[3];
    for (int d = 0, start = 0; d < 3; d++) {
        int n = d == _i ? 0 : 3;
        parts[d] = ek_value_of_tensor(ek_narrow(x, 0, start, n));
        start += n;
    }
    ek_tensor *out = ek_value_tensor(ek_forward(model, ek_value_per_device(parts, 3)));
    ek_tensor *wanted = ek_apply(plain, x);
    assert_close_norm(here(out), here(wanted), 1e-12);
    for (int b = 0; b < BUFFERS; b++)
        assert_close_norm(here(ek_module_tensor(model, buffer_names[b])),
                          here(ek_module_tensor(plain, buffer_names[b])), 1e-12);
    ek_tensor *loss = ek_sum(ek_square(ek_square(out)));
    ek_tensor *wanted_loss = ek_sum(ek_square(ek_square(wanted)));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &dx));
    assert_ok(ek_grad(.outputs = &wanted_loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &wanted_dx));
    assert_close_norm(dx, wanted_dx, 1e-12);
}

TEST(an_empty_batch_changes_nothing)
{
    ek_module *model =
        held(ek_data_parallel(sync_net(EK_F64), .device_ids = ek_devices(test_kind(), 3)));
    ek_tensor *out = ek_apply(model, ek_zeros(shape_of(2, 0), .dtype = EK_F64));
    assert_made(out);
    ck_assert_int_eq(ek_tensor_count(out), 0);
    ck_assert_double_eq(element(ek_module_tensor(model, "0.running_var"), 0), 1);
}

/* ---- failures ---- */

/* Fails where x begins with 666, in every replica that has such a chunk. */
static ek_value fragile_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    float first;
    if (!x || ek_to_data(ek_narrow(ek_reshape(x, EK_SHAPE(-1)), 0, 0, 1), &first, sizeof first) < 0)
        return ek_value_error();
    if (first == 666)
        return fail_with("a chunk of the beast");
    return ek_value_of_tensor(x);
}
MODULE_TYPE(fragile, ek_module)

TEST(a_replica_that_fails_ends_the_waiting)
{
    /* Before the only one; with a norm on each side, the first of which must pass 666 on. */
    ek_module *net = ek_sequential(ek_module_new(&fragile_type), ek_sync_batch_norm(CHANNELS),
                                   ek_module_new(&fragile_type), ek_sync_batch_norm(CHANNELS));
    ek_module *model = held(ek_data_parallel(net, .device_ids = ek_devices(test_kind(), 4)));
    for (int i = 0; i < 1000; i++) {
        ek_scope scope = ek_scope_begin();
        int chunk = i % 4;
        ek_tensor *x = ek_to_dtype(normal(3, shape_of(0, 8), EK_F64, ek_cpu()), EK_F32);
        ek_fill_(ek_narrow(x, 0, 2 * chunk, 1), 666);
        ck_assert_ptr_null(ek_apply(model, x));
        char sentence[80];
        snprintf(sentence, sizeof sentence, "replica %d on host:%d", chunk, chunk);
        ck_assert_ptr_nonnull(strstr(ek_error_message(), device_text(sentence)));
        assert_error(EK_E_USER, "a chunk of the beast");
        if (i % 100 == 0)
            assert_made(ek_apply(model, ek_ones(shape_of(0, 8))));
        ek_scope_end(&scope);
    }
}

/* Norms its input, unless its chunk is marked. */
typedef struct skipping {
    ek_module module;
    ek_module *norm, *other;
    bool twice; /* marked chunks go to the other norm instead */
} skipping;

static ek_value skipping_forward(ek_module *module, const ek_args *args)
{
    skipping *self = (skipping *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    bool marked = element(x, 0) == 666;
    if (marked && !self->twice)
        return ek_value_of_tensor(x);
    return ek_value_of_tensor(ek_apply(marked ? self->other : self->norm, x));
}
MODULE_TYPE(skipping, skipping)

static skipping *make_skipping(void)
{
    skipping *self = (skipping *)ek_module_new(&skipping_type);
    assert_ok(ek_register_module(&self->module, "norm", &self->norm, ek_sync_batch_norm(CHANNELS)));
    assert_ok(
        ek_register_module(&self->module, "other", &self->other, ek_sync_batch_norm(CHANNELS)));
    return self;
}

TEST(a_replica_that_does_not_come_ends_the_waiting)
{
    skipping *net = make_skipping();
    ek_module *model =
        held(ek_data_parallel(&net->module, .device_ids = ek_devices(test_kind(), 4)));
    for (int i = 0; i < 200; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_ones(shape_of(0, 8));
        ek_fill_(ek_narrow(x, 0, 2 * (i % 4), 1), 666);
        net->twice = i >= 100;
        ck_assert_ptr_null(ek_apply(model, x));
        ck_assert_ptr_null(strstr(ek_error_message(), "sync_batch_norm: sync_batch_norm"));
        if (net->twice)
            assert_error(EK_E_STATE, "waits at sync_batch_norm");
        else
            assert_error(EK_E_STATE, "ended without taking part in sync_batch_norm");
        ek_scope_end(&scope);
    }
    assert_made(ek_apply(model, ek_ones(shape_of(0, 8))));
}

TEST(what_is_refused)
{
    /* One value per channel in all, which (N, C) on one device would refuse too. */
    ek_module *model = ek_data_parallel(sync_net(EK_F32), .device_ids = ek_devices(test_kind(), 2));
    assert_refused(ek_apply(model, ek_ones(EK_SHAPE(1, CHANNELS))), EK_E_SHAPE,
                   "expected more than 1 value per channel when training, got input size");
    ek_value parts[2] = {ek_value_of_tensor(ek_ones(EK_SHAPE(1, CHANNELS))),
                         ek_value_of_tensor(ek_ones(EK_SHAPE(0, CHANNELS)))};
    assert_refused(ek_forward(model, ek_value_per_device(parts, 2)), EK_E_SHAPE,
                   "replica 0 on host:0: sequential: sync_batch_norm: batch_norm: "
                   "expected more than 1 value per channel when training, got input "
                   "size [1, 3]");
    assert_refused(ek_apply(model, ek_ones(EK_SHAPE(4, CHANNELS + 1, 2))), EK_E_SHAPE,
                   "batch_norm");
    assert_refused(ek_apply(model, ek_ones(EK_SHAPE(4))), EK_E_SHAPE,
                   "expected an input of 2 to 5 dimensions");
    ek_module_free(model);
    /* Without weights nothing else tells that replicas differ. */
    model = ek_data_parallel(ek_sync_batch_norm(CHANNELS, .affine = false,
                                                .track_running_stats = false),
                             .device_ids = ek_devices(test_kind(), 2));
    parts[0] = ek_value_of_tensor(ek_ones(EK_SHAPE(2, CHANNELS)));
    parts[1] = ek_value_of_tensor(ek_ones(EK_SHAPE(2, CHANNELS + 1)));
    assert_refused(ek_forward(model, ek_value_per_device(parts, 2)), EK_E_SHAPE,
                   "sync_batch_norm: channels and dtype must agree, but replica 1 has");
    ek_module_free(model);
    assert_refused(ek_sync_batch_norm(0), EK_E_INVALID,
                   "sync_batch_norm: features has to be at least 1");
}

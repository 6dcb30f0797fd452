/* ek_data_parallel_model: outputs stay on their devices. */
#include "balance_setup.h"

TEST(outputs_stay_where_they_are)
{
    ek_module *net = held(make_scorer());
    ek_module *model = held(ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), 4)));
    ek_tensor *x = make_inputs(10);
    ek_value out = ek_forward(model, x);
    ck_assert_int_eq(out.kind, EK_VALUE_LIST);
    ck_assert(out.per_device);
    ck_assert_int_eq(ek_value_length(out), 4);
    ek_value parts[4];
    for (int d = 0; d < 4; d++) {
        parts[d] = ek_value_at(out, d);
        ek_tensor *part = ek_value_tensor(parts[d]);
        ck_assert(ek_device_equal(ek_tensor_device(part), test_device(d)));
        ck_assert_int_eq(ek_tensor_size(part, 0), d < 3 ? 3 : 1);
    }
    ek_tensor *joined = ek_value_tensor(ek_gather_value(parts, 4, ek_cpu(), 0));
    assert_close(joined, ek_apply(net, x), 1e-14, 1e-15);
}

TEST(a_short_batch_uses_fewer_devices)
{
    ek_module *model = held(ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), 4)));
    ek_value out = ek_forward(model, make_inputs(1));
    ck_assert(out.per_device);
    ck_assert_int_eq(ek_value_length(out), 1);
    ck_assert_int_eq(ek_value_length(ek_forward(model, make_inputs(5))), 3);
}

TEST(an_even_split_fills_all_devices)
{
    static const int sizes[][4] = {{3, 3, 2, 2}, {2, 1, 1, 1}, {1, 1, 1, 0}};
    static const int batches[] = {10, 5, 3};
    ek_module *model = held(
        ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), 4), .split = EK_SPLIT_EVEN));
    for (int i = 0; i < 3; i++) {
        ek_value out = ek_forward(model, make_inputs(batches[i]));
        ck_assert_int_eq(ek_value_length(out), i == 2 ? 3 : 4);
        for (int d = 0; d < ek_value_length(out); d++)
            ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(out, d)), 0), sizes[i][d]);
    }
}

TEST(plain_calls_give_bare_outputs)
{
    ek_tensor *x = make_inputs(6);
    for (int i = 0; i < 3; i++) {
        ek_module *model = ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), i ? 2 : 1),
                                                  .plain = i == 1);
        if (i == 2)
            ek_module_train(model, false);
        ek_value out = ek_forward(model, x);
        ck_assert_int_eq(out.kind, EK_VALUE_TENSOR);
        ck_assert(ek_device_equal(ek_tensor_device(out.as.tensor), test_device(0)));
        ck_assert_int_eq(ek_tensor_size(out.as.tensor, 0), 6);
        /* Scattered inputs come together for a plain call. */
        ek_value scattered = EK_SCATTERED(ek_narrow(x, 0, 0, 2), ek_narrow(x, 0, 2, 4));
        assert_close(ek_value_tensor(ek_forward(model, scattered)), out.as.tensor, 0, 0);
        ek_module_free(model);
    }
}

TEST(scattered_inputs_are_taken_as_they_are)
{
    ek_module *model = held(ek_data_parallel_model(make_scorer(), ek_devices(test_kind(), 3)));
    ek_tensor *x = make_inputs(6);
    ek_value out = ek_forward(model, EK_SCATTERED(ek_narrow(x, 0, 0, 5), ek_narrow(x, 0, 5, 1)));
    ck_assert_int_eq(ek_value_length(out), 2);
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(out, 0)), 0), 5);
    ck_assert(
        ek_device_equal(ek_tensor_device(ek_value_tensor(ek_value_at(out, 1))), test_device(1)));
}

TEST(wrong_options_are_errors)
{
    assert_refused(ek_data_parallel_model(make_scorer(), .output_on_cpu = true), EK_E_INVALID,
                   "outputs stay on their devices");
    assert_refused(ek_data_parallel_model(NULL), EK_E_INVALID, "module is NULL");
}

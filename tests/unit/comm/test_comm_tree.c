/* Scatter and gather over nests. */
#include "comm_setup.h"

static double at(ek_value value, int64_t i)
{
    return element(ek_value_tensor(value), i);
}

TEST(nests_are_cut_element_by_element)
{
    int user;
    ek_tensor *x = ramp(0, 1, EK_SHAPE(5), EK_F32, ek_cpu());
    ek_tensor *y = ramp(10, 1, EK_SHAPE(5), EK_I64, test_device(1));
    const ek_value_entry entries[] = {{"y", EK_VALUE(y)}, {"flag", ek_value_of_int(3)}};
    ek_value nest = EK_LIST(x, ek_value_dict(entries, 2), ek_value_of_float(0.5), ek_value_none(),
                            ek_value_of_pointer(&user), ek_value_list(NULL, 0));
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_value out[4];
    ck_assert_int_eq(ek_scatter_value(nest, &devices, NULL, 0, out), 3);
    static const int64_t sizes[] = {2, 2, 1};
    for (int p = 0; p < 3; p++) {
        ck_assert_int_eq(ek_value_length(out[p]), 6);
        ek_tensor *own = ek_value_tensor(ek_value_at(out[p], 0));
        assert_on(own, test_device(p));
        ck_assert_int_eq(ek_tensor_size(own, 0), sizes[p]);
        assert_ramp(own, 2 * p, 1);
        ek_value dict = ek_value_at(out[p], 1);
        assert_on(ek_value_tensor(ek_value_get(dict, "y")), test_device(p));
        assert_ramp(ek_value_tensor(ek_value_get(dict, "y")), 10 + 2 * p, 1);
        ck_assert_int_eq(ek_value_get(dict, "flag").as.integer, 3);
        ck_assert_double_eq(ek_value_at(out[p], 2).as.floating, 0.5);
        ck_assert_int_eq(ek_value_at(out[p], 3).kind, EK_VALUE_NONE);
        ck_assert_ptr_eq(ek_value_at(out[p], 4).as.pointer, &user);
        ck_assert_int_eq(ek_value_length(ek_value_at(out[p], 5)), 0);
    }
}

TEST(marked_tensors_are_cut_and_joined_along_their_batch)
{
    ek_tensor *x = ramp(0, 1, EK_SHAPE(5), EK_F32, ek_cpu());
    ek_tensor *y = ramp(0, 1, EK_SHAPE(2, 5), EK_F32, test_device(1));
    ek_value marked = ek_value_batched(EK_VALUE(y), 1), out[4];
    ek_device_list devices = ek_devices(test_kind(), 4);
    ck_assert_int_eq(ek_scatter_value(EK_LIST(x, marked), &devices, NULL, 0, out), 3);
    static const int64_t sizes[] = {2, 2, 1};
    for (int p = 0; p < 3; p++) {
        ek_value own = ek_value_at(out[p], 1);
        ck_assert_int_eq(ek_tensor_size(ek_value_tensor(own), 0), 2);
        ck_assert_int_eq(ek_tensor_size(ek_value_tensor(own), 1), sizes[p]);
        ck_assert_double_eq(at(own, sizes[p]), 2 * p + 5);
        ck_assert_int_eq(ek_value_batch_dim(own, 7), 1);
        ck_assert_int_eq(ek_value_batch_dim(ek_value_at(out[p], 0), 7), 0); /* by the cut */
    }
    ek_value joined = ek_gather_value(out, 3, ek_cpu(), 0), both = ek_value_per_device(out, 3);
    for (int i = 0; i < 2; i++) {
        assert_ramp(ek_value_tensor(ek_value_at(joined, 0)), 0, 1);
        assert_ramp(ek_value_tensor(ek_value_at(joined, 1)), 0, 1);
        ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(joined, 1)), 0), 2);
        ck_assert_int_eq(ek_value_batch_dim(ek_value_at(joined, 1), 7), 1);
        joined = ek_value_to_device(both, test_device(0), 0);
    }
    ek_value unlike[2] = {marked, EK_VALUE(y)};
    assert_refused(ek_gather_value(unlike, 2, ek_cpu(), 0), EK_E_SHAPE,
                   "output 1 has its batch in dimension 0, but output 0 in dimension 1");
    assert_refused(ek_scatter_value(EK_LIST(x, y), &devices, NULL, 0, out), EK_E_SHAPE,
                   "a batch in another dimension is marked with ek_value_batched");
}

TEST(without_tensors_every_device_gets_one)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_value out[3];
    ck_assert_int_eq(ek_scatter_value(EK_LIST(ek_value_of_int(1)), &devices, NULL, 0, out), 3);
    ck_assert_int_eq(ek_value_at(out[2], 0).as.integer, 1);
}

TEST(scattered_lists_are_taken_apart)
{
    ek_device_list devices = ek_devices(test_kind(), 3);
    ek_value scattered = EK_SCATTERED(ramp(0, 1, EK_SHAPE(3), EK_F32, test_device(0)),
                                      ramp(3, 1, EK_SHAPE(1), EK_F32, ek_cpu()));
    ek_value out[3];
    /* What is cut beside it follows its sizes. */
    ek_value nest = EK_LIST(scattered, ramp(100, 1, EK_SHAPE(4), EK_F32, ek_cpu()));
    ck_assert_int_eq(ek_scatter_value(nest, &devices, NULL, 0, out), 2);
    assert_ramp(ek_value_tensor(ek_value_at(out[0], 0)), 0, 1);
    assert_on(ek_value_tensor(ek_value_at(out[1], 0)), test_device(1));
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(out[0], 1)), 0), 3);
    ck_assert_double_eq(at(ek_value_at(out[1], 1), 0), 103);

    nest = EK_LIST(scattered, ramp(100, 1, EK_SHAPE(5), EK_F32, ek_cpu()));
    ck_assert_int_lt(ek_scatter_value(nest, &devices, NULL, 0, out), 0);
    assert_error(EK_E_SHAPE, "add up to 4, but a tensor to be cut has 5");
    nest = EK_LIST(scattered, EK_SCATTERED(ek_value_of_int(1)));
    ck_assert_int_lt(ek_scatter_value(nest, &devices, NULL, 0, out), 0);
    assert_error(EK_E_SHAPE, "scattered lists of 2 and of 1");
    devices.count = 1;
    ck_assert_int_lt(ek_scatter_value(scattered, &devices, NULL, 0, out), 0);
    assert_error(EK_E_SHAPE, "2 elements for 1 devices");
}

TEST(unequal_batches_are_errors)
{
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_value out[2];
    ek_value nest = EK_LIST(ek_zeros(EK_SHAPE(4, 2)), EK_LIST(ek_zeros(EK_SHAPE(3, 2))));
    ck_assert_int_lt(ek_scatter_value(nest, &devices, NULL, 0, out), 0);
    assert_error(EK_E_SHAPE, "f32[3, 2] on cpu has size 3 along dimension 0, but another tensor of "
                             "the call has 4");
    ck_assert_int_lt(ek_scatter_value(EK_VALUE(ek_scalar(1, EK_F32, ek_cpu())), &devices, NULL, 0,
                                      out),
                     0);
    assert_error(EK_E_SHAPE, "without dimensions");
    ck_assert_int_lt(ek_scatter_value(EK_VALUE(ek_zeros(EK_SHAPE(4))), &devices, NULL, 1, out), 0);
    assert_error(EK_E_SHAPE, "dimension 1 is not in");
    ck_assert_int_lt(ek_scatter_value(ek_value_error(), &devices, NULL, 0, out), 0);
    assert_error(EK_E_INVALID, "an input is an error");
}

TEST(given_sizes_hold_for_the_whole_nest)
{
    ek_device_list devices = ek_devices(test_kind(), 2);
    static const int64_t sizes[] = {1, 3};
    ek_value out[2];
    ek_value nest = EK_LIST(ek_zeros(EK_SHAPE(2, 4)), ek_zeros(EK_SHAPE(5, 4, 2)));
    ck_assert_int_eq(ek_scatter_value(nest, &devices, sizes, 1, out), 2);
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(out[1], 0)), 1), 3);
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(out[0], 1)), 1), 1);
}

TEST(outputs_are_joined_element_by_element)
{
    ek_value outputs[3];
    for (int i = 0; i < 3; i++) {
        /* Keys may stand in another order. */
        ek_value_entry entries[] = {{"a",
                                     EK_VALUE(ramp(2 * i, 1, EK_SHAPE(2), EK_F64, test_device(i)))},
                                    {"n", ek_value_of_int(i + 5)}};
        if (i == 1) {
            ek_value_entry first = entries[0];
            entries[0] = entries[1];
            entries[1] = first;
        }
        outputs[i] = EK_LIST(ek_value_dict(entries, 2), ek_value_none(), ek_value_of_float(i + 0.5),
                             ramp(i, 1, EK_SHAPE(1, 2), EK_F32, test_device(i)));
    }
    ek_value joined = ek_gather_value(outputs, 3, test_device(1), 0);
    ek_value dict = ek_value_at(joined, 0);
    assert_ramp(ek_value_tensor(ek_value_get(dict, "a")), 0, 1);
    assert_on(ek_value_tensor(ek_value_get(dict, "a")), test_device(1));
    ek_tensor *n = ek_value_tensor(ek_value_get(dict, "n"));
    ck_assert_int_eq(ek_tensor_dtype(n), EK_I64);
    assert_ramp(n, 5, 1);
    ck_assert_int_eq(ek_value_at(joined, 1).kind, EK_VALUE_NONE);
    assert_ramp(ek_value_tensor(ek_value_at(joined, 2)), 0.5, 1);
    ck_assert_int_eq(ek_tensor_size(ek_value_tensor(ek_value_at(joined, 3)), 0), 3);
}

/* What lies one per device is joined in batch order, anything else moves as it is. */
TEST(values_go_to_one_device)
{
    ek_tensor *a = ramp(0, 1, EK_SHAPE(2, 3), EK_F32, test_device(0));
    ek_tensor *b = ramp(6, 1, EK_SHAPE(1, 3), EK_F32, test_device(1));
    ek_value value = EK_LIST(EK_SCATTERED(a, b), a, ek_value_of_int(7));
    value = ek_value_to_device(value, ek_cpu(), 0);
    ek_tensor *whole = ek_value_tensor(ek_value_at(value, 0));
    assert_close(whole, ramp(0, 1, EK_SHAPE(3, 3), EK_F32, ek_cpu()), 0, 0);
    assert_close(ek_value_tensor(ek_value_at(value, 1)), ek_to_device(a, ek_cpu()), 0, 0);
    ck_assert_int_eq(ek_value_at(value, 2).as.integer, 7);
    ek_tensor *other = ramp(0, 1, EK_SHAPE(2, 4), EK_F32, test_device(1));
    ck_assert_int_eq(ek_value_to_device(EK_SCATTERED(a, other), ek_cpu(), 0).kind, EK_VALUE_ERROR);
    assert_error(EK_E_SHAPE, "index 1");
}

TEST(outputs_that_do_not_fit_are_errors)
{
    int user[2];
    ek_value x = EK_VALUE(ek_zeros(EK_SHAPE(2)));
    ek_value pairs[][2] = {{x, ek_value_none()},
                           {EK_LIST(x), EK_LIST(x, x)},
                           {ek_value_dict(&(ek_value_entry){"a", x}, 1),
                            ek_value_dict(&(ek_value_entry){"b", x}, 1)},
                           {ek_value_of_pointer(&user[0]), ek_value_of_pointer(&user[1])},
                           {x, ek_value_error()}};
    static const char *const sentences[] = {"output 1 is none, but output 0 is a tensor",
                                            "output 1 is a list of 2, but output 0 is one of 1",
                                            "output 1 has no key \"a\"", "another pointer",
                                            "output 1 is an error"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        ck_assert_int_eq(ek_gather_value(pairs[i], 2, test_device(0), 0).kind, EK_VALUE_ERROR);
        assert_error(i == 1 ? EK_E_SHAPE : EK_E_INVALID, sentences[i]);
    }
    pairs[0][1] = x;
    pairs[0][0] = EK_VALUE(ek_zeros(EK_SHAPE(2, 2)));
    ck_assert_int_eq(ek_gather_value(pairs[0], 2, test_device(0), 0).kind, EK_VALUE_ERROR);
    assert_error(EK_E_SHAPE, "index 1");
}

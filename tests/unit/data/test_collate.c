/* test_collate.c: batches of samples, and every way in which samples can differ. */
#include "unit.h"

static void end(void)
{
    ck_assert_int_eq(ek_error_status(), 0);
}

FIXTURE(NULL, end)

static ek_tensor *row(double a, double b)
{
    return tensor_of((double[]){a, b}, EK_SHAPE(2), EK_F32, ek_cpu());
}

TEST(leaves)
{
    ek_value tensors[] = {EK_VALUE(row(1, 2)), EK_VALUE(row(3, 4)), EK_VALUE(row(5, 6))};
    assert_close(ek_value_tensor(ek_collate(tensors, 3, ek_cpu())),
                 tensor_of((double[]){1, 2, 3, 4, 5, 6}, EK_SHAPE(3, 2), EK_F32, ek_cpu()), 0, 0);
    ek_value integers[] = {ek_value_of_int(INT64_MIN), ek_value_of_int(INT64_MAX)};
    ek_tensor *whole = ek_value_tensor(ek_collate(integers, 2, ek_cpu()));
    int64_t back[2];
    ck_assert_int_eq(ek_tensor_dtype(whole), EK_I64);
    assert_ok(ek_to_data(whole, back, sizeof back));
    ck_assert(back[0] == INT64_MIN && back[1] == INT64_MAX);
    ek_value floats[] = {ek_value_of_float(0.1), ek_value_of_float(-2)};
    assert_close(ek_value_tensor(ek_collate(floats, 2, ek_cpu())),
                 tensor_of((double[]){0.1, -2}, EK_SHAPE(2), EK_F64, ek_cpu()), 0, 0);
    ek_value nothing[] = {ek_value_none(), ek_value_none()};
    ck_assert_int_eq(ek_collate(nothing, 2, ek_cpu()).kind, EK_VALUE_NONE);
}

/* Of every dtype, of no dimensions and of no elements. */
TEST(shapes)
{
    const double values[] = {1, 2, 3, 4};
    for (int d = 0; d < EK_DTYPES; d++) {
        ek_value scalars[] = {EK_VALUE(tensor_of(values, ek_scalar_shape(), d, ek_cpu())),
                              EK_VALUE(tensor_of(values + 2, ek_scalar_shape(), d, ek_cpu()))};
        assert_close(ek_value_tensor(ek_collate(scalars, 2, ek_cpu())),
                     tensor_of((double[]){1, 3}, EK_SHAPE(2), d, ek_cpu()), 0, 0);
    }
    ek_value empty[] = {EK_VALUE(ek_empty(EK_SHAPE(3, 0))), EK_VALUE(ek_empty(EK_SHAPE(3, 0)))};
    ek_shape shape = ek_tensor_shape(ek_value_tensor(ek_collate(empty, 2, ek_cpu())));
    ck_assert(ek_shape_equal(&shape, &EK_SHAPE(2, 3, 0)));
    ek_value deep[] = {EK_VALUE(ek_empty(EK_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)))};
    assert_refused(ek_collate(deep, 1, ek_cpu()), EK_E_SHAPE, "more than 8 dimensions");
}

/* In whatever order their memory is, batches are row-major. */
TEST(strided)
{
    double values[24];
    for (int i = 0; i < 24; i++)
        values[i] = i;
    ek_tensor *images[] = {ek_empty(EK_SHAPE(1, 2, 3, 2), .format = EK_CHANNELS_LAST),
                           ek_empty(EK_SHAPE(1, 2, 3, 2), .format = EK_CHANNELS_LAST)};
    float rows[24];
    for (int i = 0; i < 24; i++)
        rows[i] = (float)values[i];
    assert_ok(ek_set_data(images[0], rows, sizeof rows / 2));
    assert_ok(ek_set_data(images[1], rows + 12, sizeof rows / 2));
    ek_value samples[] = {EK_VALUE(images[0]), EK_VALUE(images[1])};
    ek_tensor *batch = ek_value_tensor(ek_collate(samples, 2, ek_cpu()));
    assert_close(batch, tensor_of(values, EK_SHAPE(2, 1, 2, 3, 2), EK_F32, ek_cpu()), 0, 0);
    ck_assert(ek_tensor_is_contiguous(batch, EK_CONTIGUOUS));
}

TEST(only_data)
{
    ek_tensor *learned = ek_empty(EK_SHAPE(2), .requires_grad = true);
    assert_ok(ek_set_data(learned, (float[]){5, 6}, 8));
    ek_value samples[] = {EK_VALUE(learned), EK_VALUE(row(1, 2))};
    ek_tensor *batch = ek_value_tensor(ek_collate(samples, 2, ek_cpu()));
    assert_made(batch);
    ck_assert(element(batch, 0) == 5 && element(batch, 2) == 1);
    assert_ok(ek_set_data(batch, (float[4]){0}, 16));
    ck_assert(element(learned, 0) == 5); /* a copy */
}

static ek_value nest(double a, int64_t b, double c)
{
    return ek_value_dict(
        (ek_value_entry[]){
            {"image", EK_VALUE(row(a, -a))},
            {"more", EK_LIST(ek_value_of_int(b), ek_value_none(),
                             ek_value_dict((ek_value_entry[]){{"x", ek_value_of_float(c)}}, 1),
                             ek_value_list(NULL, 0))}},
        2);
}

TEST(nests)
{
    ek_value samples[] = {nest(1, 10, .5), nest(2, 20, .25)};
    ek_value batch = ek_collate(samples, 2, ek_cpu());
    ck_assert_int_eq(batch.kind, EK_VALUE_DICT);
    ck_assert_str_eq(ek_value_key(batch, 0), "image");
    ck_assert_str_eq(ek_value_key(batch, 1), "more");
    assert_close(ek_value_tensor(ek_value_get(batch, "image")),
                 tensor_of((double[]){1, -1, 2, -2}, EK_SHAPE(2, 2), EK_F32, ek_cpu()), 0, 0);
    ek_value more = ek_value_get(batch, "more");
    ck_assert_int_eq(more.kind, EK_VALUE_LIST);
    ck_assert_int_eq(ek_value_length(more), 4);
    assert_close(ek_value_tensor(ek_value_at(more, 0)),
                 tensor_of((double[]){10, 20}, EK_SHAPE(2), EK_I64, ek_cpu()), 0, 0);
    ck_assert_int_eq(ek_value_at(more, 1).kind, EK_VALUE_NONE);
    assert_close(ek_value_tensor(ek_value_get(ek_value_at(more, 2), "x")),
                 tensor_of((double[]){.5, .25}, EK_SHAPE(2), EK_F64, ek_cpu()), 0, 0);
    ck_assert_int_eq(ek_value_at(more, 3).kind, EK_VALUE_LIST);
    ck_assert_int_eq(ek_value_length(ek_value_at(more, 3)), 0);
}

/* Keys say what belongs together, not their order. */
TEST(keys)
{
    ek_value_entry ab[] = {{"a", ek_value_of_int(1)}, {"b", ek_value_of_float(2)}};
    ek_value_entry ba[] = {{"b", ek_value_of_float(4)}, {"a", ek_value_of_int(3)}};
    ek_value_entry ac[] = {{"a", ek_value_of_int(1)}, {"c", ek_value_of_float(2)}};
    ek_value samples[] = {ek_value_dict(ab, 2), ek_value_dict(ba, 2)};
    ek_value batch = ek_collate(samples, 2, ek_cpu());
    ck_assert(element(ek_value_tensor(ek_value_get(batch, "a")), 1) == 3);
    ck_assert(element(ek_value_tensor(ek_value_get(batch, "b")), 1) == 4);
    samples[1] = ek_value_dict(ac, 2);
    assert_refused(ek_collate(samples, 2, ek_cpu()), EK_E_INVALID,
                   "collate: sample 1 has no \"b\", sample 0 has");
    ek_value inner[] = {EK_LIST(samples[0]), EK_LIST(samples[1])};
    assert_refused(ek_collate(inner, 2, ek_cpu()), EK_E_INVALID,
                   "collate: sample 1 at [0] has no \"b\", sample 0 has");
}

TEST(differences)
{
    ek_value same = EK_VALUE(row(1, 2));
    ek_value shape[] = {same, same, EK_VALUE(ek_empty(EK_SHAPE(3)))};
    assert_refused(ek_collate(shape, 3, ek_cpu()), EK_E_SHAPE,
                   "collate: sample 2 is f32[3] on cpu, sample 0 is f32[2] on cpu");
    ek_value dtype[] = {same, EK_VALUE(ek_empty(EK_SHAPE(2), EK_F64))};
    assert_refused(ek_collate(dtype, 2, ek_cpu()), EK_E_DTYPE,
                   "collate: sample 1 is f64[2] on cpu, sample 0 is f32[2] on cpu");
    ek_value mixed[] = {ek_value_of_int(1), ek_value_of_int(1), ek_value_of_float(1)};
    assert_refused(ek_collate(mixed, 3, ek_cpu()), EK_E_INVALID,
                   "collate: sample 2 is a float, sample 0 is an integer");
    ek_value missing[] = {same, ek_value_none()};
    assert_refused(ek_collate(missing, 2, ek_cpu()), EK_E_INVALID,
                   "sample 1 is none, sample 0 is f32[2] on cpu");
    ek_value lengths[] = {EK_LIST(same, same), EK_LIST(same)};
    assert_refused(ek_collate(lengths, 2, ek_cpu()), EK_E_SHAPE,
                   "sample 1 is a list of 1, sample 0 is a list of 2");
    ek_value kinds[] = {EK_LIST(same), nest(1, 2, 3)};
    assert_refused(ek_collate(kinds, 2, ek_cpu()), EK_E_INVALID,
                   "sample 1 is a dictionary of 2, sample 0 is a list of 1");
    ek_value deep[] = {
        EK_LIST(same, nest(1, 2, 3)), EK_LIST(same, nest(1, 2, 3)),
        EK_LIST(same, ek_value_dict((ek_value_entry[]){{"image", same}, {"more", same}}, 2))};
    assert_refused(ek_collate(deep, 3, ek_cpu()), EK_E_INVALID,
                   "collate: sample 2 at [1][\"more\"] is f32[2] on cpu, sample 0 is a list of 4");
}

TEST(impossible)
{
    int here;
    ek_value same = EK_VALUE(row(1, 2));
    ek_value pointers[] = {EK_LIST(same, ek_value_of_pointer(&here)),
                           EK_LIST(same, ek_value_of_pointer(&here))};
    assert_refused(ek_collate(pointers, 2, ek_cpu()), EK_E_INVALID,
                   "collate: sample 0 at [1] is a pointer; batches");
    ek_value away[] = {same, EK_VALUE(ek_empty(EK_SHAPE(2), .device = ek_host(0)))};
    assert_refused(ek_collate(away, 2, ek_cpu()), EK_E_DEVICE,
                   "collate: sample 1 is f32[2] on host:0; samples lie on cpu");
    ek_value errors[] = {same, ek_value_error()};
    assert_refused(ek_collate(errors, 2, ek_cpu()), EK_E_USER, "failed");
    assert_refused(ek_collate(errors, 0, ek_cpu()), EK_E_INVALID, "there is no sample");
    assert_refused(ek_collate(errors, -1, ek_cpu()), EK_E_INVALID, "there is no sample");
    assert_refused(ek_collate(NULL, 1, ek_cpu()), EK_E_INVALID, "the samples are NULL");
    assert_refused(ek_collate(&same, 1, ek_host(63)), EK_E_DEVICE, "host:63");
}

/* Where places are nested deeper than a sentence is long. */
TEST(long_places)
{
    ek_value same = EK_VALUE(row(1, 2)), other = ek_value_none();
    const char *key = "a key that is rather long, and longer";
    for (int i = 0; i < 30; i++) {
        same = ek_value_dict((ek_value_entry[]){{key, same}}, 1);
        other = ek_value_dict((ek_value_entry[]){{key, other}}, 1);
    }
    ek_value samples[] = {same, other};
    assert_refused(ek_collate(samples, 2, ek_cpu()), EK_E_INVALID, "collate: sample 1 at [\"a key");
}

/* The device's memory is short: an error, and all that was made until then is given back. */
TEST(out_of_memory)
{
    assert_ok(ek_host_devices_configure("1x4K"));
    ek_tensor *large = ek_empty(EK_SHAPE(700));
    ek_value samples[] = {EK_LIST(ek_value_of_int(1), large), EK_LIST(ek_value_of_int(2), large)};
    assert_refused(ek_collate(samples, 2, ek_host(0)), EK_E_OUT_OF_MEMORY, "host:0");
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
    ek_value batch = ek_collate(samples, 1, ek_host(0));
    ck_assert(
        ek_device_equal(ek_tensor_device(ek_value_tensor(ek_value_at(batch, 1))), ek_host(0)));
}

/* test_dataset_tensors.c: rows of tensors: samples, batches of all sizes of rows, threads. */
#include "core/tensor.h"
#include "dataset_setup.h"

/* Elements 0, 1, 2, ... modulo 251, which f32, f64, i64 and u8 hold exactly. */
static ek_tensor *counted_up(ek_shape shape, ek_dtype dtype)
{
    int64_t count = ek_shape_count(&shape);
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(i % 251);
    ek_tensor *tensor = tensor_of(values, shape, dtype, ek_cpu());
    free(values);
    return tensor;
}

TEST(samples_one_by_one)
{
    ek_tensor *images = counted_up(EK_SHAPE(5, 2, 3), EK_U8),
              *labels = counted_up(EK_SHAPE(5), EK_I64);
    ek_dataset *dataset = ek_tensor_dataset(images, labels);
    assert_made(dataset);
    ck_assert_int_eq(ek_dataset_length(dataset), 5);
    for (int64_t i = 0; i < 5; i++) {
        ek_value sample = ek_dataset_get(dataset, i);
        ck_assert_int_eq(sample.kind, EK_VALUE_LIST);
        ck_assert_int_eq(ek_value_length(sample), 2);
        ek_tensor *image = ek_value_tensor(ek_value_at(sample, 0));
        ek_tensor *label = ek_value_tensor(ek_value_at(sample, 1));
        ek_shape shape = ek_tensor_shape(image);
        ck_assert(ek_shape_equal(&shape, &EK_SHAPE(2, 3)));
        ck_assert(element(image, 0) == 6 * i && element(image, 5) == 6 * i + 5);
        ck_assert_int_eq(ek_tensor_ndim(label), 0);
        ck_assert(element(label, 0) == i);
    }
    ek_dataset_free(dataset);
}

/* One tensor: the rows themselves. */
TEST(one_tensor)
{
    ek_dataset *dataset = ek_tensor_dataset(counted_up(EK_SHAPE(4), EK_I64));
    ek_value sample = ek_dataset_get(dataset, -1);
    ck_assert_int_eq(sample.kind, EK_VALUE_TENSOR);
    ck_assert_int_eq(ek_tensor_ndim(sample.as.tensor), 0);
    ck_assert(element(sample.as.tensor, 0) == 3);
    ek_value batch = ek_dataset_get_batch(dataset, (int64_t[]){2, 0}, 2, ek_cpu());
    ck_assert_int_eq(batch.kind, EK_VALUE_TENSOR);
    assert_close(batch.as.tensor, tensor_of((double[]){2, 0}, EK_SHAPE(2), EK_I64, ek_cpu()), 0, 0);
    ek_dataset_free(dataset);
}

/* Row-major tensors are shared, also when the caller's handles are gone; others are copied. */
TEST(shared_and_copied)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *rows = counted_up(EK_SHAPE(3, 2), EK_F32);
    ek_tensor *other = ek_empty(EK_SHAPE(3, 2, 2, 2), .format = EK_CHANNELS_LAST);
    float values[24];
    for (int i = 0; i < 24; i++)
        values[i] = (float)i;
    assert_ok(ek_set_data(other, values, sizeof values));
    ek_dataset *dataset = ek_tensor_dataset(rows, other);
    assert_made(dataset);
    assert_ok(ek_set_data(rows, (float[]){9, 8, 7, 6, 5, 4}, 24));
    float zeros[24] = {0};
    assert_ok(ek_set_data(other, zeros, sizeof zeros));
    ek_scope_end(&scope);

    ek_value sample = ek_dataset_get(dataset, 1);
    ck_assert(element(ek_value_tensor(ek_value_at(sample, 0)), 1) == 6);
    for (int i = 0; i < 8; i++)
        ck_assert(element(ek_value_tensor(ek_value_at(sample, 1)), i) == 8 + i);
    ek_value batch = ek_dataset_get_batch(dataset, (int64_t[]){2, 1}, 2, ek_cpu());
    for (int i = 0; i < 16; i++)
        ck_assert(element(ek_value_tensor(ek_value_at(batch, 1)), i) == (i < 8 ? 16 + i : i));
    ek_dataset_free(dataset);
}

/* Rows in the midst of a storage; what becomes of the caller's handle is its own matter. */
TEST(part_of_a_storage)
{
    ek_tensor *all = counted_up(EK_SHAPE(6, 2), EK_F32);
    ek_tensor *middle = ek_tensor_view(all, 2, (int64_t[]){3, 2}, (int64_t[]){2, 1}, 4);
    ek_dataset *dataset = ek_tensor_dataset(middle);
    ek_tensor_rebind(middle, ek_empty(EK_SHAPE(3, 2)));
    for (int64_t i = 0; i < 3; i++) {
        ck_assert(element(ek_value_tensor(ek_dataset_get(dataset, i)), 1) == 5 + 2 * i);
        ek_value batch = ek_dataset_get_batch(dataset, &i, 1, ek_cpu());
        ck_assert(element(ek_value_tensor(batch), 1) == 5 + 2 * i);
    }
    ek_dataset_free(dataset);
}

/* Rows of every size that is copied in its own way, and longer than is fetched ahead. */
TEST(rows_of_all_sizes)
{
    static const int64_t widths[] = {1, 2, 3, 4, 5, 8, 13, 64, 100, 1000, 3000};
    const int64_t order[] = {6, 0, 6, 3, 1, 5, 2, 4, 0, 0};
    for (int d = 0; d < EK_DTYPES; d++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            ek_scope scope = ek_scope_begin();
            int64_t width = widths[w];
            ek_tensor *rows = counted_up(EK_SHAPE(7, width), d);
            ek_dataset *dataset = ek_tensor_dataset(rows);
            ek_value batch =
                ek_dataset_get_batch(dataset, order, 10, w % 2 ? ek_host(0) : ek_cpu());
            ek_tensor *got = ek_value_tensor(batch);
            assert_made(got);
            ck_assert(ek_device_equal(ek_tensor_device(got), w % 2 ? ek_host(0) : ek_cpu()));
            ck_assert_int_eq(ek_tensor_dtype(got), d);
            ck_assert_int_eq(ek_tensor_size(got, 0), 10);
            ck_assert_int_eq(ek_tensor_size(got, 1), width);
            size_t nbytes = (size_t)width * ek_dtype_size(d);
            for (int i = 0; i < 10; i++)
                ck_assert_mem_eq((char *)ek_tensor_data(got) + (size_t)i * nbytes,
                                 (char *)ek_tensor_data(rows) + (size_t)order[i] * nbytes, nbytes);
            ek_dataset_free(dataset);
            ek_scope_end(&scope);
        }
}

TEST(empty)
{
    ek_dataset *none = ek_tensor_dataset(ek_empty(EK_SHAPE(0, 3)));
    assert_made(none);
    ck_assert_int_eq(ek_dataset_length(none), 0);
    assert_refused(ek_dataset_get(none, 0), EK_E_INVALID, "tensor_dataset: sample 0 of 0");
    ek_dataset *thin = ek_tensor_dataset(ek_empty(EK_SHAPE(3, 0)));
    ek_value batch = ek_dataset_get_batch(thin, (int64_t[]){2, 1}, 2, ek_cpu());
    ek_shape shape = ek_tensor_shape(ek_value_tensor(batch));
    ck_assert(ek_shape_equal(&shape, &EK_SHAPE(2, 0)));
    ek_dataset_free(none);
    ek_dataset_free(thin);
}

/* More than fit in a sample made without the heap. */
TEST(many_tensors)
{
    ek_tensor *tensors[20];
    for (int i = 0; i < 20; i++)
        tensors[i] = tensor_of((double[]){i, 100 + i}, EK_SHAPE(2), EK_F32, ek_cpu());
    for (int count = 7; count <= 20; count++) {
        ek_dataset *dataset = ek_tensor_dataset_of(tensors, count);
        ek_value sample = ek_dataset_get(dataset, 1);
        ek_value batch = ek_dataset_get_batch(dataset, (int64_t[]){1, 0}, 2, ek_cpu());
        ck_assert_int_eq(ek_value_length(sample), count);
        ck_assert_int_eq(ek_value_length(batch), count);
        for (int i = 0; i < count; i++) {
            ck_assert(element(ek_value_tensor(ek_value_at(sample, i)), 0) == 100 + i);
            ck_assert(element(ek_value_tensor(ek_value_at(batch, i)), 1) == i);
        }
        ek_dataset_free(dataset);
    }
}

TEST(only_data)
{
    ek_dataset *dataset = ek_tensor_dataset(ek_empty(EK_SHAPE(3, 1), .requires_grad = true));
    ek_value batch = ek_dataset_get_batch(dataset, (int64_t[]){2, 1}, 2, ek_cpu());
    ck_assert_int_eq(batch.kind, EK_VALUE_TENSOR);
    ek_dataset_free(dataset);
}

TEST(bad_tensors)
{
    ek_tensor *good = counted_up(EK_SHAPE(3, 2), EK_F32);
    assert_refused(ek_tensor_dataset_of(&good, 0), EK_E_INVALID, "tensor_dataset: no tensor");
    assert_refused(ek_tensor_dataset_of(NULL, 1), EK_E_INVALID,
                   "tensor_dataset: the tensors are NULL");
    assert_refused(ek_tensor_dataset_of((ek_tensor *[]){good, NULL}, 2), EK_E_INVALID,
                   "tensor_dataset: tensor 1 is NULL");
    assert_refused(ek_tensor_dataset_of((ek_tensor *[]){good, ek_empty(ek_scalar_shape())}, 2),
                   EK_E_SHAPE, "tensor_dataset: tensor 1, f32[] on cpu, has no rows");
    assert_refused(ek_tensor_dataset_of((ek_tensor *[]){good, ek_empty(EK_SHAPE(2))}, 2),
                   EK_E_SHAPE,
                   "tensor 1, f32[2] on cpu, has another number of rows than tensor 0, f32[3, 2]");
    assert_refused(
        ek_tensor_dataset_of((ek_tensor *[]){good, ek_empty(EK_SHAPE(3), .device = ek_host(0))}, 2),
        EK_E_DEVICE, "tensor_dataset: tensor 1 is f32[3] on host:0; samples lie on cpu");
    ek_error(EK_E_IO, "earlier");
    assert_refused(ek_tensor_dataset_of((ek_tensor *[]){NULL}, 1), EK_E_IO, "earlier");
}

/* The device's memory is short: the tensors made before are given back. */
TEST(out_of_memory)
{
    assert_ok(ek_host_devices_configure("1x4K"));
    ek_dataset *dataset =
        ek_tensor_dataset(counted_up(EK_SHAPE(6), EK_I64), counted_up(EK_SHAPE(6, 1000), EK_F32));
    const int64_t order[] = {5, 4};
    assert_refused(ek_dataset_get_batch(dataset, order, 2, ek_host(0)), EK_E_OUT_OF_MEMORY,
                   "tensor_dataset: host:0 is out of memory");
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
    ck_assert_int_eq(ek_dataset_get_batch(dataset, order, 2, ek_cpu()).kind, EK_VALUE_LIST);
    ek_dataset_free(dataset);
}

/* ---- threads ---- */

enum { ROUNDS = 100, ROWS = 50 };

static void *reads(void *user)
{
    ek_dataset *dataset = user;
    for (int64_t i = 0; i < ROUNDS; i++) {
        ek_scope scope = ek_scope_begin();
        const int64_t order[] = {i % ROWS, (7 * i) % ROWS, (3 * i + 1) % ROWS};
        ek_value batch = ek_dataset_get_batch(dataset, order, 3, ek_cpu());
        ek_value sample = ek_dataset_get(dataset, i % ROWS);
        const uint8_t *rows = ek_tensor_data(ek_value_tensor(ek_value_at(batch, 0)));
        const uint8_t *row = ek_tensor_data(ek_value_tensor(ek_value_at(sample, 0)));
        const int64_t *labels = ek_tensor_data(ek_value_tensor(ek_value_at(batch, 1)));
        if (!rows || !row || !labels)
            return "nothing";
        for (int k = 0; k < 3; k++)
            if (rows[5 * k] != 5 * order[k] % 251 || labels[k] != order[k])
                return "wrong rows";
        if (row[0] != rows[0])
            return "wrong row";
        ek_scope_end(&scope);
    }
    ek_dataset_free(dataset);
    return NULL;
}

TEST(threads_read_rows)
{
    read_by_threads(ek_tensor_dataset(counted_up(EK_SHAPE(ROWS, 5), EK_U8),
                                      counted_up(EK_SHAPE(ROWS), EK_I64)),
                    reads);
}

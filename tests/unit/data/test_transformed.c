/* test_transformed.c: data sets with transforms: samples, batches, on devices, by several threads.
 */
#include <pthread.h>

#include "core/generator.h"
#include "core/tensor.h"
#include "unit.h"

static const char file[] = "transforms.golden";
static const double mean[] = {0.1307}, deviation[] = {0.3081};
static const int64_t all[] = {0, 1, 2, 3, 4, 5, 6};
enum { COUNT = 7 };

/* Pictures u8 (1, 12, 12) of the golden, with labels 0 to 6. */
static ek_dataset *pictures(void)
{
    ek_tensor *labels =
        tensor_of((double[]){0, 1, 2, 3, 4, 5, 6}, EK_SHAPE(COUNT), EK_I64, ek_cpu());
    return ek_tensor_dataset(golden(file, "chain/in"), labels);
}

static ek_dataset *augmented(ek_dataset *dataset)
{
    return ek_transformed(dataset, 0, ek_random_crop(12, .padding = 2),
                          ek_random_horizontal_flip(0.5), ek_to_float(),
                          ek_normalize(mean, deviation, 1));
}

/* ---- a user's: whatever a sample is to be ---- */

typedef struct any {
    ek_dataset dataset;
    ek_value (*make)(int64_t index);
} any;

static int64_t any_length(ek_dataset *dataset)
{
    return COUNT;
}

static ek_value any_get(ek_dataset *dataset, int64_t index)
{
    return ((any *)dataset)->make(index);
}

static const ek_dataset_type any_type = {.name = "any",
                                         .size = sizeof(any),
                                         .length = any_length,
                                         .get = any_get};

static ek_dataset *any_new(ek_value (*make)(int64_t index))
{
    any *self = (any *)ek_dataset_new(&any_type);
    assert_made(self);
    self->make = make;
    return &self->dataset;
}

static ek_tensor *square(int64_t size)
{
    double values[100];
    for (int64_t i = 0; i < size * size; i++)
        values[i] = (double)size;
    return tensor_of(values, EK_SHAPE(1, size, size), EK_U8, ek_cpu());
}

static int growing_reads; /* samples that were read */
static ek_value growing(int64_t index)
{
    growing_reads++;
    return EK_LIST(square(index + 2), ek_value_of_int(index));
}
static ek_value number(int64_t index)
{
    return ek_value_of_int(index);
}
static ek_value fraction(int64_t index)
{
    return ek_value_of_float((double)index + 0.25);
}
static ek_value nothing(int64_t index)
{
    return ek_value_none();
}
static ek_value named(int64_t index)
{
    return ek_value_dict((ek_value_entry[]){{"image", ek_value_of_tensor(square(4))},
                                            {"label", ek_value_of_int(index)},
                                            {"name", ek_value_none()}},
                         3);
}

/* ---- samples and batches ---- */

static ek_tensor *part(ek_value value, int index)
{
    ek_tensor *tensor = ek_value_tensor(ek_value_at(value, index));
    assert_made(tensor);
    return tensor;
}

TEST(one_by_one)
{
    ek_dataset *set = augmented(pictures());
    ek_tensor *expected = golden(file, "chain/out");
    assert_made(set);
    ck_assert_int_eq(ek_dataset_length(set), COUNT);
    ek_manual_seed(11);
    for (int i = 0; i < COUNT; i++) {
        ek_value sample = ek_dataset_get(set, i);
        assert_close(part(sample, 0),
                     ek_from_data((float *)ek_tensor_data(expected) + i * 144, EK_SHAPE(1, 12, 12),
                                  EK_F32),
                     0, 0);
        ck_assert_double_eq(element(part(sample, 1), 0), i);
    }
    ek_dataset_free(set);
}

static void assert_batch(ek_dataset *set, ek_device device)
{
    ek_manual_seed(11);
    ek_value batch = ek_dataset_get_batch(set, all, COUNT, device);
    assert_on(part(batch, 0), device);
    assert_on(part(batch, 1), device);
    assert_close(part(batch, 0), golden(file, "chain/out"), 0, 0);
    for (int i = 0; i < COUNT; i++)
        ck_assert_double_eq(element(part(batch, 1), i), i);
    ck_assert_int_eq(ek_random_u32(NULL) % 1000, (int64_t)element(golden(file, "chain/next"), 0));
}

TEST(batches)
{
    assert_ok(ek_host_devices_configure("2"));
    ek_dataset *set = augmented(pictures());
    assert_batch(set, ek_cpu());
    assert_batch(set, ek_host(1));
    ek_dataset_free(set);
}

static ek_memory_stats memory(ek_device device)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return stats;
}

/* The device holds the batch and nothing else, at no time; cpu, what is read and what is
 * transformed again: no more is copied. */
TEST(memory_of_devices)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_dataset *set = ek_transformed(augmented(pictures()), 1, ek_one_hot(10));
    set = ek_transformed(set, 0, ek_center_crop(5));
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    ek_scope scope = ek_scope_begin();
    uint64_t before = memory(ek_cpu()).allocations;
    ek_value batch = ek_dataset_get_batch(set, all, COUNT, ek_host(0));
    ck_assert_int_eq(ek_value_length(batch), 2);
    ck_assert_uint_eq(memory(ek_cpu()).allocations - before, 3);
    ck_assert_uint_eq(memory(ek_host(0)).allocations, 2);
    ck_assert_uint_eq(memory(ek_host(0)).peak, memory(ek_host(0)).in_use);
    ek_scope_end(&scope);
    ck_assert_uint_eq(memory(ek_host(0)).in_use, 0);
    ek_dataset_free(set);
}

/* Samples in any order, some twice: each draws anew. */
TEST(any_samples)
{
    static const int64_t samples[] = {3, 3, 0, 6, 3};
    ek_dataset *set = augmented(pictures());
    ek_manual_seed(5);
    ek_value batch = ek_dataset_get_batch(set, samples, 5, ek_cpu());
    assert_ok(ek_value_length(batch) == 2 ? 0 : -1);
    ek_manual_seed(5);
    for (int i = 0; i < 5; i++) {
        ek_tensor *alone = part(ek_dataset_get(set, samples[i]), 0);
        const float *row = (const float *)ek_tensor_data(part(batch, 0)) + i * 144;
        assert_close(ek_from_data(row, EK_SHAPE(1, 12, 12), EK_F32), alone, 0, 0);
        ck_assert_double_eq(element(part(batch, 1), i), (double)samples[i]);
    }
    ek_dataset_free(set);
}

/* Both elements, and one of them twice: by samples and in batches, on cpu and elsewhere. */
TEST(sets_in_sets)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_dataset *set = ek_transformed(pictures(), 0, ek_to_float());
    set = ek_transformed(ek_transformed(set, 1, ek_one_hot(7)), 0, ek_normalize(mean, deviation, 1),
                         ek_center_crop(4));
    ek_device devices[] = {ek_cpu(), ek_host(0)};
    for (int d = 0; d < 2; d++) {
        ek_value batch = ek_dataset_get_batch(set, all, COUNT, devices[d]);
        ck_assert_int_eq(ek_value_length(batch), 2);
        assert_on(part(batch, 0), devices[d]);
        assert_on(part(batch, 1), devices[d]);
        for (int i = 0; i < COUNT; i++) {
            ek_value sample = ek_dataset_get(set, i);
            assert_close(ek_from_data((float *)ek_tensor_data(part(batch, 0)) + i * 16,
                                      EK_SHAPE(1, 4, 4), EK_F32),
                         part(sample, 0), 0, 0);
            ck_assert_double_eq(element(part(sample, 1), i), 1);
            for (int c = 0; c < 7; c++)
                ck_assert_double_eq(element(part(batch, 1), 7 * i + c), c == i);
        }
    }
    ek_dataset_free(set);
}

/* Pictures that differ until they are cropped: each is read once, also through other sets. */
TEST(shapes_that_differ)
{
    enum { SETS = 3, HALF = COUNT / 2 };
    ek_dataset *sets[SETS] = {any_new(growing), ek_subset(any_new(growing), all, COUNT),
                              ek_concat_dataset(ek_subset(any_new(growing), all, HALF),
                                                ek_subset(any_new(growing), all + HALF,
                                                          COUNT - HALF))};
    assert_ok(ek_host_devices_configure("1"));
    for (int s = 0; s < SETS; s++) {
        ek_dataset *set = ek_transformed(sets[s], 0, ek_center_crop(3, .fill = 1));
        growing_reads = 0;
        ek_value batch = ek_dataset_get_batch(set, all, COUNT, ek_host(0));
        ck_assert_int_eq(growing_reads, COUNT);
        assert_on(part(batch, 0), ek_host(0));
        ek_shape shape = ek_tensor_shape(part(batch, 0)), expected = EK_SHAPE(COUNT, 1, 3, 3);
        ck_assert(ek_shape_equal(&shape, &expected));
        ck_assert_double_eq(element(part(batch, 0), 8), 1); /* the border of the first */
        for (int i = 0; i < COUNT; i++)
            ck_assert_double_eq(element(part(batch, 0), 9 * i), i + 2);
        ek_dataset_free(set);
    }
}

/* Of parts that give rows, each of another shape and type. */
TEST(parts_that_differ)
{
    ek_dataset *small =
        ek_tensor_dataset(tensor_of((double[]){51, 102}, EK_SHAPE(2, 1, 1), EK_U8, ek_cpu()));
    ek_dataset *large =
        ek_tensor_dataset(tensor_of((double[]){1, 2, 3, 4}, EK_SHAPE(1, 2, 2), EK_F32, ek_cpu()));
    ek_dataset *set =
        ek_transformed(ek_concat_dataset(small, large), 0, ek_to_float(), ek_resize(1));
    set = ek_transformed(set, 0, ek_normalize((double[]){0}, (double[]){0.5}, 1));
    ek_tensor *batch = ek_value_tensor(ek_dataset_get_batch(set, all, 3, ek_cpu()));
    assert_close(batch, tensor_of((double[]){0.4f, 0.8f, 5}, EK_SHAPE(3, 1, 1), EK_F32, ek_cpu()),
                 1e-7, 0);
    ek_dataset_free(set);
}

/* ---- which element ---- */

TEST(numbers)
{
    ek_dataset *set = ek_transformed(any_new(number), 0, ek_one_hot(7));
    ek_tensor *hot = ek_value_tensor(ek_dataset_get(set, 2));
    assert_close(hot, tensor_of((double[]){0, 0, 1, 0, 0, 0, 0}, EK_SHAPE(7), EK_F32, ek_cpu()), 0,
                 0);
    ek_tensor *batch = ek_value_tensor(ek_dataset_get_batch(set, all, COUNT, ek_cpu()));
    ck_assert_int_eq(ek_tensor_size(batch, 0), 7);
    ck_assert_int_eq(ek_tensor_size(batch, 1), 7);
    ek_dataset_free(set);
    set = ek_transformed(any_new(fraction), 0, ek_to_float());
    assert_close(ek_value_tensor(ek_dataset_get(set, 2)),
                 tensor_of((double[]){2.25}, ek_scalar_shape(), EK_F32, ek_cpu()), 0, 0);
    ek_dataset_free(set);

    /* A label, one_hot, of a list; in batches of a set that gives rows. */
    set = ek_transformed(any_new(growing), 1, ek_one_hot(7));
    ck_assert_double_eq(element(part(ek_dataset_get(set, 4), 1), 4), 1);
    ek_dataset_free(set);
    set = ek_transformed(ek_tensor_dataset(golden(file, "chain/in")), 0, ek_to_float());
    batch = ek_value_tensor(ek_dataset_get_batch(set, all, COUNT, ek_cpu()));
    ck_assert_int_eq(ek_tensor_dtype(batch), EK_F32);
    ck_assert_int_eq(ek_tensor_count(batch), COUNT * 144);
    ek_dataset_free(set);
}

TEST(dictionaries)
{
    ek_dataset *set = ek_transformed_key(any_new(named), "image", ek_to_float(), ek_center_crop(2));
    set = ek_transformed_key(set, "label", ek_one_hot(7));
    ek_value sample = ek_dataset_get(set, 5);
    ck_assert_int_eq(ek_value_length(sample), 3);
    ck_assert_str_eq(ek_value_key(sample, 0), "image");
    ck_assert_str_eq(ek_value_key(sample, 1), "label");
    ck_assert_int_eq(ek_value_get(sample, "name").kind, EK_VALUE_NONE);
    ck_assert_int_eq(ek_tensor_count(part(sample, 0)), 4);
    ck_assert_float_eq((float)element(part(sample, 0), 0), 4.0f / 255);
    ck_assert_double_eq(element(part(sample, 1), 5), 1);
    ek_value batch = ek_dataset_get_batch(set, all, COUNT, ek_cpu());
    ck_assert_int_eq(ek_tensor_count(ek_value_tensor(ek_value_get(batch, "label"))), 49);
    ek_dataset_free(set);
}

static void assert_get_fails(ek_dataset *set, const char *sentence)
{
    assert_made(set);
    assert_refused(ek_dataset_get(set, 3), EK_E_INVALID, sentence);
    assert_refused(ek_dataset_get_batch(set, all, COUNT, ek_cpu()), EK_E_INVALID, sentence);
    ek_dataset_free(set);
}

TEST(no_such_element)
{
    assert_get_fails(ek_transformed(pictures(), 2, ek_to_float()),
                     "field 2 is transformed, and the sample is a list of 2");
    assert_get_fails(ek_transformed(any_new(named), 0, ek_to_float()),
                     "field 0 is transformed, and the sample is a dictionary; ek_transformed_key");
    assert_get_fails(ek_transformed(any_new(number), 1, ek_to_float()),
                     "field 1 is transformed, and the sample is an integer");
    assert_get_fails(ek_transformed(any_new(nothing), 0, ek_to_float()),
                     "field 0 is transformed, and the sample is none");
    assert_get_fails(ek_transformed_key(pictures(), "image", ek_to_float()),
                     "\"image\" is transformed, and the sample is a list; a dictionary is needed");
    assert_get_fails(ek_transformed_key(any_new(named), "mask", ek_to_float()),
                     "\"mask\" is transformed, and the sample has no such element");
    assert_get_fails(ek_transformed_key(any_new(named), "name", ek_to_float()),
                     "what is transformed is none; tensors and numbers are");
}

/* ---- errors ---- */

TEST(samples_are_named)
{
    ek_dataset *set = ek_transformed(pictures(), 1, ek_one_hot(5));
    assert_refused(ek_dataset_get(set, -1), EK_E_INVALID,
                   "transformed: sample 6: one_hot: label 6; labels of 5 classes");
    static const int64_t samples[] = {0, 5, 6};
    assert_refused(ek_dataset_get_batch(set, samples, 3, ek_cpu()), EK_E_INVALID,
                   "transformed: sample 5: one_hot: label 5");
    ek_dataset_free(set);
    set = ek_transformed(pictures(), 0, ek_random_crop(13));
    assert_refused(ek_dataset_get_batch(set, samples, 3, ek_cpu()), EK_E_SHAPE,
                   "transformed: random_crop: u8[1, 12, 12] is smaller than 13 x 13");
    ek_dataset_free(set);

    ek_tensor *deep = tensor_of((double[]){1}, EK_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), EK_I64, ek_cpu());
    set = ek_transformed(ek_tensor_dataset(deep), 0, ek_one_hot(2));
    assert_refused(ek_dataset_get_batch(set, samples, 1, ek_cpu()), EK_E_SHAPE,
                   "samples become f32[1, 1, 1, 1, 1, 1, 1, 2]; a batch");
    ek_dataset_free(set);
}

static int destroyed;

static void count_destroyed(ek_transform *transform)
{
    destroyed++;
}

static void forget(ek_dataset *dataset)
{
    destroyed += 100;
}

static int as_it_is(const ek_transform *transform, ek_array *array)
{
    return 0;
}

static int copies(const ek_transform *transform, const ek_array *in, ek_array *out,
                  ek_generator *generator)
{
    memcpy(out->data, in->data, (size_t)ek_shape_count(&in->shape) * ek_dtype_size(in->dtype));
    return 0;
}

static ek_transform *counted(void)
{
    static const ek_transform_type type = {.name = "counted",
                                           .size = sizeof(ek_transform),
                                           .describe = as_it_is,
                                           .apply = copies,
                                           .destroy = count_destroyed};
    return ek_transform_new(&type);
}

static ek_dataset *counted_set(void)
{
    static const ek_dataset_type type = {.name = "counted set",
                                         .size = sizeof(any),
                                         .length = any_length,
                                         .get = any_get,
                                         .destroy = forget};
    any *self = (any *)ek_dataset_new(&type);
    assert_made(self);
    self->make = number;
    return &self->dataset;
}

static void assert_taken(ek_dataset *set, int count, int status, const char *sentence)
{
    if (status < 0) {
        ck_assert_ptr_null(set);
        assert_error(status, sentence);
    }
    ek_dataset_free(set);
    ck_assert_int_eq(destroyed, count);
    destroyed = 0;
}

TEST(taken_over)
{
    assert_taken(ek_transformed(counted_set(), 0, counted(), counted()), 102, 0, NULL);
    assert_taken(ek_transformed_key(counted_set(), "x", counted()), 101, 0, NULL);
    assert_taken(ek_transformed(counted_set(), -1, counted()), 101, EK_E_INVALID, "field -1");
    assert_taken(ek_transformed(NULL, 0, counted()), 1, EK_E_INVALID,
                 "transformed: the data set is NULL");
    assert_taken(ek_transformed(counted_set(), 0, counted(), NULL, counted()), 102, EK_E_INVALID,
                 "transformed: transform 1 of 3 is NULL");
    assert_taken(ek_transformed(counted_set(), 0, counted(), ek_one_hot(0)), 101, EK_E_INVALID,
                 "one_hot: 0 classes");
    assert_taken(ek_transformed_of(counted_set(), 0, NULL, 2), 100, EK_E_INVALID, "2 transforms");
    assert_taken(ek_transformed_of(counted_set(), 0, NULL, -2), 100, EK_E_INVALID, "-2 transforms");
    assert_taken(ek_transformed_key(counted_set(), NULL, counted()), 101, EK_E_INVALID,
                 "transformed_key: the key is NULL");
    /* None is no error. */
    ek_dataset *plain = ek_transformed_of(counted_set(), 0, NULL, 0);
    ck_assert_double_eq(element(ek_value_tensor(ek_dataset_get(plain, 4)), 0), 4);
    assert_taken(plain, 100, 0, NULL);
}

/* ---- threads ---- */

enum { THREADS = 4 };

typedef struct reader {
    ek_dataset *set;
    float sum;
    bool well;
} reader;

/* As a loader's worker: with a generator of its own. */
static void *read_batches(void *context)
{
    reader *self = context;
    self->well = true;
    for (int pass = 0; pass < 10; pass++) {
        ek_generator *generator = ek_generator_new(11);
        ek_generator_stand_in(generator);
        ek_scope scope = ek_scope_begin();
        ek_tensor *batch =
            ek_value_tensor(ek_value_at(ek_dataset_get_batch(self->set, all, COUNT, ek_cpu()), 0));
        float sum = 0;
        for (int i = 0; batch && i < COUNT * 144; i++)
            sum += ((float *)ek_tensor_data(batch))[i] * (float)(i % 5);
        self->well = self->well && batch && (pass == 0 || sum == self->sum);
        self->sum = sum;
        ek_scope_end(&scope);
        ek_generator_stand_in(NULL);
        ek_generator_free(generator);
    }
    return NULL;
}

TEST(several_threads)
{
    ek_dataset *set = augmented(pictures());
    pthread_t threads[THREADS];
    reader readers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (reader){.set = set};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_batches, &readers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(readers[i].well);
        ck_assert_float_eq(readers[i].sum, readers[0].sum);
    }
    ek_dataset_free(set);
}

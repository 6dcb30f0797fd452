/* test_transform_chain.c: transforms of the user's own, and chains of them on a tensor. */
#include "core/tensor.h"
#include "unit.h"

static const char file[] = "transforms.golden";

/* ---- the user's: adds `what`, and fails in the ways there are ---- */

typedef enum failure {
    NO_FAULT,
    SAYS_NOTHING,
    SAYS_ALL,
    HIDES,
    DESCRIBES_DTYPE,
    DESCRIBES_NDIM,
    DESCRIBES_SIZE,
    DESCRIBES_MUCH,
    REFUSES
} failure;

typedef struct add {
    ek_transform transform;
    float what;
    failure fault;
    int *destroyed;
} add;

static int add_describe(const ek_transform *transform, ek_array *array)
{
    const add *self = (const add *)transform;
    ck_assert_ptr_null(array->data);
    array->data = array; /* nobody reads it */
    switch (self->fault) {
    case DESCRIBES_DTYPE:
        array->dtype = (ek_dtype)17;
        break;
    case DESCRIBES_NDIM:
        array->shape.ndim = EK_MAX_DIMS + 1;
        break;
    case DESCRIBES_SIZE:
        array->shape.dims[0] = -2;
        break;
    case DESCRIBES_MUCH:
        array->shape = EK_SHAPE(INT64_C(1) << 40, INT64_C(1) << 40);
        break;
    case REFUSES:
        return EK_E_USER;
    default:
        break;
    }
    return 0;
}

static int add_apply(const ek_transform *transform, const ek_array *in, ek_array *out,
                     ek_generator *generator)
{
    const add *self = (const add *)transform;
    if (self->fault == SAYS_NOTHING)
        return EK_E_USER;
    if (self->fault == SAYS_ALL)
        return ek_error(EK_E_INVALID, "add: not today");
    if (self->fault == HIDES)
        ek_error(EK_E_INVALID, "add: not today");
    for (int64_t i = 0; i < ek_shape_count(&in->shape); i++)
        ((float *)out->data)[i] = ((const float *)in->data)[i] + self->what;
    return 0;
}

static void add_destroy(ek_transform *transform)
{
    add *self = (add *)transform;
    if (self->destroyed)
        ++*self->destroyed;
}

static const ek_transform_type add_type = {.name = "add",
                                           .size = sizeof(add),
                                           .describe = add_describe,
                                           .apply = add_apply,
                                           .destroy = add_destroy};

static ek_transform *add_new(float what, failure fault, int *destroyed)
{
    add *self = (add *)ek_transform_new(&add_type);
    assert_made(self);
    self->what = what;
    self->fault = fault;
    self->destroyed = destroyed;
    return &self->transform;
}

TEST(types_refused)
{
    ek_transform_type type = add_type;
    assert_refused(ek_transform_new(NULL), EK_E_INVALID, "transform_new: there is no type");
    type.name = NULL;
    assert_refused(ek_transform_new(&type), EK_E_INVALID, "there is no name");
    type = add_type;
    type.describe = NULL;
    assert_refused(ek_transform_new(&type), EK_E_INVALID, "there is no describe in type add");
    type = add_type;
    type.apply = NULL;
    assert_refused(ek_transform_new(&type), EK_E_INVALID, "there is no apply in type add");
    type = add_type;
    type.size = sizeof(ek_transform) - 1;
    assert_refused(ek_transform_new(&type), EK_E_INVALID, "add has a size of 7 bytes");
}

TEST(freed)
{
    int destroyed = 0;
    ek_transform_free(add_new(0, NO_FAULT, &destroyed));
    ck_assert_int_eq(destroyed, 1);
    ek_transform_free(NULL);
}

/* ---- chains ---- */

static ek_tensor *counting(ek_dtype dtype)
{
    return tensor_of((double[]){0, 1, 2, 3, 4, 5}, EK_SHAPE(1, 2, 3), dtype, ek_cpu());
}

/* 0 to 5 transforms: the buffers between them take turns. */
TEST(lengths)
{
    ek_transform *chain[5];
    double values[6] = {0, 1, 2, 3, 4, 5};
    ek_tensor *in = counting(EK_F32);
    for (int i = 0; i < 5; i++)
        chain[i] = add_new((float)(1 << i), NO_FAULT, NULL);
    for (int count = 0; count <= 5; count++) {
        ek_tensor *out = ek_transform_apply(chain, count, in, NULL);
        assert_close(out, tensor_of(values, EK_SHAPE(1, 2, 3), EK_F32, ek_cpu()), 0, 0);
        ck_assert_ptr_ne(ek_tensor_data(out), ek_tensor_data(in));
        for (int i = 0; i < 6 && count < 5; i++)
            values[i] += 1 << count;
    }
    assert_close(in, counting(EK_F32), 0, 0);
    assert_close(ek_transform_apply(NULL, 0, in, NULL), in, 0, 0);
    for (int i = 0; i < 5; i++)
        ek_transform_free(chain[i]);
}

/* Steps of growing and shrinking size. */
TEST(sizes_between)
{
    ek_transform *chain[] = {ek_center_crop(1),    ek_center_crop(40), ek_to_float(),
                             ek_center_crop(2, 3), ek_center_crop(50), ek_center_crop(2, 1)};
    ek_tensor *in = tensor_of((double[]){9}, EK_SHAPE(1, 1), EK_U8, ek_cpu());
    ek_tensor *out = ek_transform_apply(chain, 6, in, NULL);
    ek_shape shape = ek_tensor_shape(out), expected = EK_SHAPE(2, 1);
    ck_assert(ek_shape_equal(&shape, &expected));
    ck_assert_int_eq(ek_tensor_dtype(out), EK_F32);
    for (int i = 0; i < 6; i++)
        ek_transform_free(chain[i]);
}

TEST(order_in_memory)
{
    int64_t strides[] = {1, 1, 2}; /* columns first */
    ek_shape shape = EK_SHAPE(1, 2, 3);
    ek_tensor *in = ek_tensor_new_strided(ek_dev_get(ek_cpu()), EK_F32, &shape, strides);
    assert_made(in);
    assert_ok(ek_set_data(in, (float[]){0, 1, 2, 3, 4, 5}, 24));
    ek_transform *transform = add_new(0, NO_FAULT, NULL);
    assert_close(ek_transform_apply(&transform, 1, in, NULL), counting(EK_F32), 0, 0);
    ek_transform_free(transform);
}

static ek_tensor *chain_rows(int64_t first, int64_t count)
{
    ek_tensor *in = golden(file, "chain/in");
    return ek_from_data((char *)ek_tensor_data(in) + first * 144, EK_SHAPE(count, 1, 12, 12),
                        EK_U8);
}

TEST(torch_draws)
{
    ek_transform *chain[] = {ek_random_crop(12, .padding = 2), ek_random_horizontal_flip(0.5),
                             ek_to_float(),
                             ek_normalize((double[]){0.1307}, (double[]){0.3081}, 1)};
    ek_generator *generator = ek_generator_new(11);
    ek_tensor *expected = golden(file, "chain/out");
    for (int i = 0; i < 7; i++) {
        ek_tensor *out = ek_transform_apply(chain, 4, chain_rows(i, 1), generator);
        assert_close(out,
                     ek_from_data((float *)ek_tensor_data(expected) + i * 144,
                                  EK_SHAPE(1, 1, 12, 12), EK_F32),
                     0, 0);
    }
    ck_assert_int_eq(ek_random_u32(generator) % 1000,
                     (int64_t)element(golden(file, "chain/next"), 0));
    ek_generator_free(generator);
    for (int i = 0; i < 4; i++)
        ek_transform_free(chain[i]);
}

/* ---- errors ---- */

static void assert_fails(failure fault, int status, const char *part)
{
    ek_transform *chain[] = {add_new(1, NO_FAULT, NULL), add_new(1, fault, NULL),
                             add_new(1, NO_FAULT, NULL)};
    ck_assert_ptr_null(ek_transform_apply(chain, 3, counting(EK_F32), NULL));
    ck_assert_msg(strstr(ek_error_message(), part) == ek_error_message(),
                  "\"%s\" does not begin \"%s\"", ek_error_message(), part);
    assert_error(status, part);
    for (int i = 0; i < 3; i++)
        ek_transform_free(chain[i]);
}

TEST(users_errors)
{
    assert_fails(SAYS_NOTHING, EK_E_USER, "transform add: it failed with EK_E_USER");
    assert_fails(SAYS_ALL, EK_E_INVALID, "add: not today");
    assert_fails(HIDES, EK_E_INVALID, "add: not today");
    assert_fails(REFUSES, EK_E_USER, "transform add: it failed with EK_E_USER");
    assert_fails(DESCRIBES_DTYPE, EK_E_DTYPE, "transform add: describe gives dtype 17");
    assert_fails(DESCRIBES_NDIM, EK_E_SHAPE, "transform add: describe gives 9 dimensions");
    assert_fails(DESCRIBES_SIZE, EK_E_SHAPE, "transform add: describe gives f32[-2, 2, 3]");
    assert_fails(DESCRIBES_MUCH, EK_E_SHAPE, "transform add: f32[1099511627776, 1099511627776]");
}

TEST(arguments_refused)
{
    ek_tensor *in = counting(EK_F32);
    ek_transform *chain[] = {add_new(1, NO_FAULT, NULL), NULL};
    assert_refused(ek_transform_apply(chain, 2, in, NULL), EK_E_INVALID,
                   "transform_apply: transform 1 of 2 is NULL");
    chain[1] = ek_one_hot(0);
    assert_refused(ek_transform_apply(chain, 2, in, NULL), EK_E_INVALID, "one_hot: 0 classes");
    assert_refused(ek_transform_apply(chain, -1, in, NULL), EK_E_INVALID,
                   "transform_apply: -1 transforms");
    assert_refused(ek_transform_apply(NULL, 1, in, NULL), EK_E_INVALID, "1 transforms at NULL");
    assert_refused(ek_transform_apply(chain, 1, NULL, NULL), EK_E_INVALID,
                   "transform_apply: the tensor is NULL");
    ek_error(EK_E_USER, "before");
    ck_assert_ptr_null(ek_transform_apply(chain, 1, NULL, NULL));
    /* An error of before is not the transform's. */
    assert_close(ek_transform_apply(chain, 1, in, NULL),
                 tensor_of((double[]){1, 2, 3, 4, 5, 6}, EK_SHAPE(1, 2, 3), EK_F32, ek_cpu()), 0,
                 0);
    assert_error(EK_E_USER, "before");
    ek_tensor *there = tensor_of((double[]){1}, EK_SHAPE(1), EK_F32, ek_host(0));
    assert_refused(ek_transform_apply(chain, 1, there, NULL), EK_E_DEVICE,
                   "transform_apply: f32[1] on host:0; transforms take tensors on cpu");
    ek_transform_free(chain[0]);
}

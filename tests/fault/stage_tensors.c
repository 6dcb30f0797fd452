/* stage_tensors.c: tensor.h, value.h, random.h, function.h, autograd.h. */
#include <string.h>

#include "../unit/dlpack_abi.h"
#include "rows.h"

/* ---- making and reading ---- */

static ek_tensor *made(void)
{
    ek_tensor *zero = ek_zeros(EK_SHAPE(2, 3), .device = ek_host(0));
    ek_tensor *one = ek_ones(EK_SHAPE(2, 3), .device = ek_host(0));
    ek_tensor *two = ek_full(2, EK_SHAPE(2, 3), .device = ek_host(0));
    return ek_add(ek_add(zero, one), two);
}

static ek_tensor *data(ek_tensor *x)
{
    float numbers[6];
    ek_tensor *y = ek_empty(EK_SHAPE(2, 3), .device = ek_host(0));
    if (ek_to_data(x, numbers, sizeof numbers) < 0 || !y ||
        ek_set_data(y, numbers, sizeof numbers) < 0)
        return NULL;
    ek_tensor_touch(y);
    fault_note((double)ek_tensor_version(y));
    return ek_add(y, ek_from_data(numbers, EK_SHAPE(2, 3), .device = ek_host(0)));
}

static ek_tensor *item(ek_tensor *x)
{
    double value = 0;
    ek_tensor *sum = ek_sum(x);
    if (!sum || ek_item(sum, &value) < 0)
        return NULL;
    return ek_scalar(value, EK_F32, ek_host(0));
}

static ek_tensor *print(ek_tensor *x)
{
    static FILE *stream;
    if (!stream)
        stream = tmpfile();
    if (stream)
        rewind(stream);
    return !stream || ek_tensor_print(x, stream) < 0 ? NULL : x;
}

static ek_tensor *about(ek_tensor *x)
{
    char text[160];
    ek_shape shape = ek_tensor_shape(x), strides = ek_tensor_strides(x);
    fault_note((double)ek_tensor_size(x, -1) + ek_tensor_ndim(x) + (double)strides.dims[0]);
    fault_note((double)ek_shape_count(&shape) + ek_shape_equal(&shape, &strides));
    fault_note(ek_tensor_is_contiguous(x, EK_CONTIGUOUS) + (ek_tensor_data(x) != NULL));
    fault_note((double)ek_tensor_device(x).index + (double)strlen(ek_shape_text(&shape, text)));
    fault_note((double)strlen(ek_dtype_name(ek_tensor_dtype(x))));
    return x;
}

static ek_tensor *kept(ek_tensor *x)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = ek_mul_scalar(x, 2);
    ek_release(ek_keep(y));
    return ek_scope_return(&scope, y);
}

/* ---- values ---- */

static ek_tensor *nest(ek_tensor *const *x)
{
    ek_scope scope = ek_scope_begin();
    ek_value list = EK_LIST(x[0], ek_value_of_pointer(NULL), ek_value_none());
    ek_value_entry entries[] = {{"list", list}, {"scattered", EK_SCATTERED(x[0], x[1])}};
    ek_value dict = ek_value_keep(ek_value_dict(entries, 2));
    ek_value_release(dict);
    dict = ek_scope_return_value(&scope, dict);
    if (dict.kind == EK_VALUE_ERROR || !ek_value_key(dict, 1))
        return NULL;
    fault_note(ek_value_length(dict) + (double)strlen(ek_value_key(dict, 1)));
    return ek_mul(ek_value_tensor(ek_value_at(ek_value_get(dict, "list"), 0)),
                  ek_value_tensor(ek_value_at(ek_value_get(dict, "scattered"), 1)));
}

static ek_tensor *failed_value(ek_tensor *x)
{
    return ek_value_error().kind == EK_VALUE_ERROR ? ek_value_tensor(EK_VALUE(x)) : NULL;
}

/* ---- random numbers ---- */

static ek_tensor *drawn(int (*draw)(ek_tensor *x, ek_generator *generator))
{
    unsigned char state[EK_GENERATOR_STATE_BYTES];
    ek_generator *generator = ek_generator_new(5);
    ek_tensor *x = ek_empty(EK_SHAPE(2, 3), .device = ek_host(0));
    int status = generator && x ? draw(x, generator) : -1;
    if (status >= 0)
        status = ek_generator_get_state(generator, state, sizeof state);
    if (status >= 0)
        status = ek_generator_set_state(NULL, state, sizeof state);
    ek_generator_free(generator);
    return status < 0 ? NULL : ek_add(x, ek_rand(EK_SHAPE(2, 3), .device = ek_host(0)));
}

static int draw_uniform(ek_tensor *x, ek_generator *generator)
{
    return ek_uniform_(x, 0, 2, generator);
}

static int draw_normal(ek_tensor *x, ek_generator *generator)
{
    return ek_normal_(x, 0, 2, generator);
}

static int draw_bernoulli(ek_tensor *x, ek_generator *generator)
{
    return ek_bernoulli_(x, 0.5, generator);
}

static int draw_integers(ek_tensor *x, ek_generator *generator)
{
    return ek_random_(x, 0, 9, generator);
}

static ek_tensor *permutation(void)
{
    int64_t order[5];
    return ek_randperm(5, order, NULL) < 0 ? NULL
                                           : ek_from_data(order, EK_SHAPE(5), EK_I64, ek_host(0));
}

/* ---- functions of one's own, gradients ---- */

static int cube_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_mul(x[0], ek_square(x[0]));
    return ek_function_save(call, x, 1);
}

static int cube_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = ek_mul(dy[0], ek_mul_scalar(ek_square(ek_function_saved(call, 0)), 3));
    return 0;
}

static ek_tensor *cube(ek_tensor *x)
{
    static const ek_function function = {.name = "cube",
                                         .forward = cube_forward,
                                         .backward = cube_backward};
    ek_tensor *y = NULL;
    return ek_function_apply(&function, &x, 1, &y) < 0 ? NULL : y;
}

static ek_tensor *checked(ek_tensor *const *x, int count, void *user)
{
    return ek_f_tanh(cube(x[0]));
}

static ek_tensor *gradchecks(void)
{
    ek_tensor *x = ek_rand(EK_SHAPE(2), EK_F64, .requires_grad = true);
    if (ek_gradcheck(.function = checked, .inputs = &x, .input_count = 1) < 0 ||
        ek_gradgradcheck(.function = checked, .inputs = &x, .input_count = 1) < 0)
        return NULL;
    return ek_to_device(ek_detach(x), ek_host(0));
}

/* Twice, added up, with its graph; all is taken away again. */
static ek_tensor *backward(ek_tensor *x)
{
    ek_tensor *leaf = ek_detach(x), *gradient = NULL;
    if (!leaf || ek_tensor_set_requires_grad(leaf, true) < 0)
        return NULL;
    ek_tensor *loss = ek_sum(cube(leaf));
    if (ek_backward(loss, .retain_graph = true) >= 0 &&
        ek_backward(loss, .create_graph = true) >= 0)
        gradient = ek_clone(ek_detach(ek_tensor_grad(leaf)));
    ek_tensor_set_grad(leaf, NULL);
    return gradient;
}

static ek_tensor *set_grad(ek_tensor *x)
{
    ek_tensor *leaf = ek_detach(x);
    if (!leaf || ek_tensor_set_requires_grad(leaf, true) < 0 ||
        ek_tensor_set_grad(leaf, ek_ones(EK_SHAPE(2, 3), .device = ek_host(0))) < 0)
        return NULL;
    return ek_clone(ek_gather_grad(leaf));
}

/* Lent and borrowed: over the same memory, and as a copy of memory that is read-only. */
static ek_tensor *lent(ek_tensor *x)
{
    DLManagedTensorVersioned *once = ek_to_dlpack(x, NULL), *again = ek_to_dlpack(x, NULL);
    if (again)
        again->flags = 1;
    ek_tensor *y = ek_from_dlpack(once, ek_host(0), NULL);
    ek_tensor *copy = ek_from_dlpack(again, ek_host(0), NULL);
    ek_tensor *z = ek_from_dlpack_unversioned(ek_to_dlpack_unversioned(x, NULL), ek_host(0), NULL);
    return ek_add(ek_add(y, copy), z);
}

#define TENSORS(X)                                  \
    X(made, "", made())                             \
    X(data, "c2x3", data(x[0]))                     \
    X(arange, "", ek_arange(5, EK_I64, ek_host(0))) \
    X(item, "c2x3", item(x[0]))                     \
    X(print, "c2x3", print(x[0]))                   \
    X(about, "c2x3", about(x[0]))                   \
    X(scope, "f2x3", kept(x[0]))                    \
    X(value, "f2x3 f2x3", nest(x))                  \
    X(value_error, "f2x3", failed_value(x[0]))      \
    X(uniform, "", drawn(draw_uniform))             \
    X(normal, "", drawn(draw_normal))               \
    X(bernoulli, "", drawn(draw_bernoulli))         \
    X(integers, "", drawn(draw_integers))           \
    X(permutation, "", permutation())               \
    X(function, "f2x3", cube(x[0]))                 \
    X(gradcheck, "", gradchecks())                  \
    X(backward, "c2x3", backward(x[0]))             \
    X(set_grad, "c2x3", set_grad(x[0]))             \
    X(dlpack, "c2x3", lent(x[0]))

ROWS_STAGE(tensors, TENSORS);

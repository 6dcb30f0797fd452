/* transform.c: makes transforms, and runs several one after the other. */
#include "evenkeel/transform.h"

#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "data/dataset.h"
#include "data/transform_chain.h"

/* ---- making ---- */

ek_transform *ek_transform_new(const ek_transform_type *type)
{
    const char *missing = !type             ? "type"
                          : !type->name     ? "name"
                          : !type->describe ? "describe"
                          : !type->apply    ? "apply"
                                            : NULL;
    if (missing)
        return EK_FAIL_NULL(EK_E_INVALID, "transform_new: there is no %s%s%s", missing,
                            type && type->name ? " in type " : "",
                            type && type->name ? type->name : "");
    if (type->size < sizeof(ek_transform))
        return EK_FAIL_NULL(EK_E_INVALID,
                            "transform_new: %s has a size of %zu bytes; a struct that begins with "
                            "an ek_transform has at least %zu",
                            type->name, type->size, sizeof(ek_transform));
    ek_transform *transform = ek_calloc(1, EK_RETIRABLE(type->size));
    if (transform)
        transform->type = type;
    return transform;
}

void ek_transform_free(ek_transform *transform)
{
    EK_RELEASES("ek_transform_free", transform);
    if (transform->type->destroy)
        transform->type->destroy(transform);
    ek_retire(transform, EK_RETIRABLE(transform->type->size), "transform", transform);
}

void ek_transforms_free(ek_transform *const *transforms, int count)
{
    for (int i = 0; transforms && i < count; i++)
        ek_transform_free(transforms[i]);
}

int ek_transforms_check(const char *caller, ek_transform *const *transforms, int count)
{
    if (count < 0 || (count > 0 && !transforms))
        return EK_FAIL(EK_E_INVALID, "%s: %d transforms%s", caller, count,
                       count < 0 ? "; their number cannot be negative" : " at NULL");
    for (int i = 0; i < count; i++)
        if (!transforms[i])
            return ek_error_status() < 0
                       ? ek_error_status()
                       : EK_FAIL(EK_E_INVALID, "%s: transform %d of %d is NULL", caller, i, count);
        else
            EK_TRY(ek_check_alive(caller, "a transform", transforms[i]));
    return 0;
}

/* ---- arrays ---- */

char *ek_array_text(const ek_array *array, char text[200])
{
    char shape[160];
    snprintf(text, 200, "%s%s", ek_dtype_name(array->dtype), ek_shape_text(&array->shape, shape));
    return text;
}

void ek_array_keep(const ek_array *in, ek_array *out)
{
    size_t nbytes = (size_t)ek_shape_count(&in->shape) * ek_dtype_size(in->dtype);
    if (nbytes)
        memcpy(out->data, in->data, nbytes);
}

/* Checks what describe has written, because a user's describe may write anything. */
static int chain_check_described(const char *name, const ek_array *array, size_t *nbytes)
{
    char text[200];
    const ek_shape *shape = &array->shape;
    if ((int)array->dtype < 0 || (int)array->dtype >= EK_DTYPES)
        return EK_FAIL(EK_E_DTYPE, "transform %s: describe gives dtype %d, which there is not",
                       name, (int)array->dtype);
    if (shape->ndim < 0 || shape->ndim > EK_MAX_DIMS)
        return EK_FAIL(EK_E_SHAPE, "transform %s: describe gives %d dimensions; 0 to %d there are",
                       name, shape->ndim, EK_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++)
        if (shape->dims[i] < 0)
            return EK_FAIL(EK_E_SHAPE, "transform %s: describe gives %s, with a negative size",
                           name, ek_array_text(array, text));
    int64_t count = ek_shape_count(shape);
    if (count > INT64_MAX / 16)
        return EK_FAIL(EK_E_SHAPE, "transform %s: %s is more than memory can hold", name,
                       ek_array_text(array, text));
    *nbytes = (size_t)count * ek_dtype_size(array->dtype);
    return 0;
}

/* ---- chains ---- */

/* Reports the outcome of a type's function. If it failed without an error, the message names the
 * transform. An error that was pending `before` is not the function's. */
static int chain_outcome(int rc, int before, const ek_transform *transform)
{
    bool said = ek_error_status() < 0;
    if (before)
        return rc < 0 ? rc : 0;
    rc = ek_error_outcome(rc);
    if (rc < 0 && !said)
        ek_error_prefix(before, "transform %s", transform->type->name);
    return rc;
}

static int chain_describe(ek_chain *chain, size_t nbytes[2])
{
    for (int i = 0; i < chain->count; i++) {
        const ek_transform *transform = chain->transforms[i];
        ek_array *array = &chain->steps[i + 1];
        size_t needed = 0;
        *array = chain->steps[i];
        int before = ek_error_status();
        EK_TRY(chain_outcome(transform->type->describe(transform, array), before, transform));
        array->data = NULL;
        EK_TRY(chain_check_described(transform->type->name, array, &needed));
        if (i + 1 < chain->count && needed > nbytes[i % 2])
            nbytes[i % 2] = needed;
    }
    return 0;
}

int ek_chain_open(ek_chain *chain, ek_transform *const *transforms, int count, ek_dtype dtype,
                  const ek_shape *shape)
{
    size_t nbytes[2] = {0, 0};
    *chain = (ek_chain){.transforms = transforms, .count = count};
    chain->steps = ek_calloc((size_t)count + 1, sizeof *chain->steps);
    if (!chain->steps)
        return EK_E_NO_MEMORY;
    chain->steps[0] = (ek_array){.dtype = dtype, .shape = *shape};
    int rc = chain_describe(chain, nbytes);
    for (int i = 0; i < 2 && i < count - 1 && rc == 0; i++) {
        chain->scratch[i] = ek_realloc(NULL, nbytes[i] ? nbytes[i] : 1);
        rc = chain->scratch[i] ? 0 : EK_E_NO_MEMORY;
    }
    if (rc < 0)
        ek_chain_close(chain);
    return rc;
}

void ek_chain_close(ek_chain *chain)
{
    free(chain->scratch[0]);
    free(chain->scratch[1]);
    free(chain->steps);
    *chain = (ek_chain){.count = 0};
}

int ek_chain_run(const ek_chain *chain, const void *in, void *out, ek_generator *generator)
{
    ek_array from = chain->steps[0];
    from.data = (void *)(uintptr_t)in; /* transforms get it as const */
    if (chain->count == 0)
        ek_array_keep(&from, &(ek_array){.data = out});
    for (int i = 0; i < chain->count; i++) {
        const ek_transform *transform = chain->transforms[i];
        ek_array to = chain->steps[i + 1];
        to.data = i + 1 < chain->count ? chain->scratch[i % 2] : out;
        int before = ek_error_status();
        int rc = transform->type->apply(transform, &from, &to, generator);
        EK_TRY(chain_outcome(rc, before, transform));
        from = chain->steps[i + 1];
        from.data = to.data;
    }
    return 0;
}

/* ---- one tensor ---- */

static int transform_check_tensor(const ek_tensor *tensor)
{
    char text[200];
    EK_TRY(ek_check_handle("transform_apply", "the tensor", tensor));
    if (ek_tensor_dev(tensor)->id.kind != EK_CPU)
        return EK_FAIL(EK_E_DEVICE, "transform_apply: %s; transforms take tensors on cpu",
                       ek_tensor_text(tensor, text));
    return 0;
}

static ek_tensor *chain_run_tensor(const ek_chain *chain, ek_tensor *tensor,
                                   ek_generator *generator)
{
    const ek_array *result = ek_chain_result(chain);
    tensor = ek_row_major(tensor, ek_tensor_dev(tensor));
    ek_tensor *out =
        tensor ? ek_tensor_new(ek_tensor_dev(tensor), result->dtype, &result->shape, EK_CONTIGUOUS)
               : NULL;
    if (!out ||
        ek_chain_run(chain, ek_tensor_address(tensor), ek_tensor_address(out), generator) < 0)
        return NULL;
    return out;
}

ek_tensor *ek_transform_apply(ek_transform *const *transforms, int count, ek_tensor *tensor,
                              ek_generator *generator)
{
    if (ek_transforms_check("transform_apply", transforms, count) < 0 ||
        transform_check_tensor(tensor) < 0)
        return NULL;
    ek_chain chain;
    ek_shape shape = ek_tensor_shape(tensor);
    ek_scope scope = ek_scope_begin();
    ek_tensor *out = NULL;
    if (ek_chain_open(&chain, transforms, count, tensor->dtype, &shape) == 0) {
        out = chain_run_tensor(&chain, tensor, generator);
        ek_chain_close(&chain);
    }
    return ek_scope_return(&scope, out);
}

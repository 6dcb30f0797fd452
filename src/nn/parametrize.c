/* parametrize.c: modules whose weight is computed from other tensors in each forward: spectral norm
 * and weight norm.
 *
 * A wrapper registers the tensors that the weight is computed from. One of them takes the place of
 * the parameter in the wrapped module, so that walks find it once, under the wrapper's name for it.
 * A forward calls a copy of the module's structs that has the computed weight. So threads that call
 * the module concurrently don't see each other's weights. */
#include <stdio.h>
#include <string.h>

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/precision.h"
#include "evenkeel/random.h"
#include "nn/module_table.h"
#include "nn/nn.h"

enum { FIRST_ITERATIONS = 15 };

typedef struct parametrized {
    ek_module module;
    ek_module *body;
    ek_tensor *weight; /* spectral norm: the original; weight norm: the direction */
    ek_tensor *g;      /* of weight norm: the lengths */
    ek_tensor *u, *v;  /* spectral norm: singular vectors; NULL for a weight of one dimension */
    int dim;           /* weight norm: -1: the norm is that of all elements */
    int iterations;    /* spectral norm */
    double eps;        /* spectral norm */
} parametrized;

/* ---- the body ---- */

/* Returns true if a wrapper of this type in `module` already computes its weight from `weight`. */
static bool parametrized_twice(const ek_module_type *type, ek_module *module,
                               const ek_tensor *weight)
{
    for (ek_module *at = module; at; at = ek_module_wrapped(at))
        if (at->type == type && ((const parametrized *)at)->weight == weight)
            return true;
    return false;
}

/* Returns the parameter of this name, of the module or of a module that it wraps. NULL with an
 * error if there is no such parameter, or if a wrapper of this type already computes a weight from
 * it: both wrappers would use equal names. */
static ek_tensor *parametrized_find(const ek_module_type *type, ek_module *module, const char *name)
{
    for (ek_module *at = module; at; at = ek_module_wrapped(at))
        for (int i = 0; i < ek_module_member_count(at); i++) {
            ek_member member = ek_module_member(at, i);
            if (member.kind != EK_MEMBER_PARAMETER || !*member.slot.tensor ||
                strcmp(member.name, name) != 0)
                continue;
            if (!parametrized_twice(type, module, *member.slot.tensor))
                return *member.slot.tensor;
            return EK_FAIL_NULL(EK_E_INVALID, "%s: the parameter \"%s\" of %s has a %s already",
                                type->name, name, at->type->name, type->name);
        }
    return EK_FAIL_NULL(EK_E_INVALID, "%s: %s has no parameter \"%s\"", type->name,
                        module->type->name, name);
}

/* Calls the body with `weight` in place of the body's parameter. A body that has another parent may
 * have got another parameter there. */
static ek_value parametrized_call(const parametrized *self, ek_tensor *weight, const ek_args *args)
{
    const ek_module *at = self->body;
    while (at && !ek_module_slot_of(at, self->weight))
        at = ek_module_wrapped(at);
    if (!at) {
        EK_FAIL(EK_E_STATE, "the parameter from which it computes the weight was replaced in the "
                            "module that it wraps, by another path");
        return ek_value_error();
    }
    ek_module *copy = weight ? ek_module_copy_with(self->body, &self->weight, &weight, 1) : NULL;
    ek_value output = copy ? ek_module_forward(copy, args) : ek_value_error();
    ek_module_free(copy);
    return output;
}

/* ---- spectral norm (Miyato et al., 2018): W / sigma(W), with sigma by power iteration ---- */

/* Returns the weight as a matrix with a row for each index of dimension `dim`. */
static ek_tensor *spectral_matrix(ek_tensor *weight, int dim)
{
    ek_shape order = {.ndim = weight->ndim, .dims = {dim}};
    for (int i = 0, at = 1; i < weight->ndim; i++)
        if (i != dim)
            order.dims[at++] = i;
    return ek_reshape(ek_permute(weight, order), EK_SHAPE(weight->shape[dim], -1));
}

/* Moves u and v towards the matrix's first singular vectors, in place. */
static int spectral_iterate(const parametrized *self, ek_tensor *matrix, int count)
{
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    ek_tensor *u = NULL, *v = self->v, *transposed = ek_transpose(matrix, 0, 1);
    for (int i = 0; i < count; i++) {
        u = ek_f_normalize(ek_matmul(matrix, v), .dim = 0, .eps = self->eps);
        v = ek_f_normalize(ek_matmul(transposed, u), .dim = 0, .eps = self->eps);
    }
    bool done = ek_copy_(self->u, u) && ek_copy_(self->v, v);
    ek_scope_end(&scope);
    ek_set_grad_enabled(grad_enabled);
    return done ? 0 : ek_error_pending();
}

static ek_tensor *spectral_weight(const parametrized *self)
{
    if (!self->u)
        return ek_f_normalize(self->weight, .dim = 0, .eps = self->eps);
    ek_tensor *matrix = spectral_matrix(self->weight, self->dim);
    if (!matrix || (self->module.training && spectral_iterate(self, matrix, self->iterations) < 0))
        return NULL;
    /* The graph keeps copies, because the next forward may change u and v before this backward. */
    ek_tensor *u = ek_clone(self->u), *v = ek_clone(self->v);
    return ek_div(self->weight, ek_sum(ek_mul(u, ek_matmul(matrix, v))));
}

static ek_value spectral_norm_forward(ek_module *module, const ek_args *args)
{
    const parametrized *self = (const parametrized *)module;
    ek_autocast autocast = ek_autocast_begin(EK_F32); /* the norm is not that of rounded numbers */
    ek_tensor *weight = spectral_weight(self);
    ek_autocast_end(&autocast);
    return parametrized_call(self, weight, args);
}

static void spectral_norm_describe(const ek_module *module, char *text, size_t size)
{
    const parametrized *self = (const parametrized *)module;
    snprintf(text, size, "dim=%d, n_power_iterations=%d, eps=%g", self->dim, self->iterations,
             self->eps);
}

static const ek_module_type spectral_norm_type = {.name = "spectral_norm",
                                                  .size = sizeof(parametrized),
                                                  .forward = spectral_norm_forward,
                                                  .describe = spectral_norm_describe};

/* ---- weight norm (Salimans and Kingma, 2016): g V / |V| ---- */

static ek_tensor *weight_norm_lengths(ek_tensor *v, int dim)
{
    ek_p_norm_options options = EK_DEFAULTS(ek_p_norm_options);
    options.x = v;
    options.keepdim = dim >= 0;
    for (int i = 0; dim >= 0 && i < v->ndim; i++)
        if (i != dim)
            options.dims[options.dim_count++] = i;
    /* If `dim` is the only dimension, the norm of each element is its magnitude. */
    return dim >= 0 && options.dim_count == 0 ? ek_abs(v) : ek_norm_with(options);
}

static ek_value weight_norm_forward(ek_module *module, const ek_args *args)
{
    const parametrized *self = (const parametrized *)module;
    ek_tensor *scale = ek_div(self->g, weight_norm_lengths(self->weight, self->dim));
    return parametrized_call(self, ek_mul(self->weight, scale), args);
}

static void weight_norm_describe(const ek_module *module, char *text, size_t size)
{
    snprintf(text, size, "dim=%d", ((const parametrized *)module)->dim);
}

static const ek_module_type weight_norm_type = {.name = "weight_norm",
                                                .size = sizeof(parametrized),
                                                .forward = weight_norm_forward,
                                                .describe = weight_norm_describe};

/* ---- construction ---- */

/* Makes the wrapper around the module, which it owns from then on, even after an error. *weight
 * becomes the parameter of this name. */
static parametrized *parametrized_new(const ek_module_type *type, ek_module *module,
                                      const char *name, ek_tensor **weight)
{
    if (!module) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "%s: the module is NULL", type->name);
        return NULL;
    }
    *weight =
        strlen(name) > 100
            ? EK_FAIL_NULL(EK_E_INVALID, "%s: the name of a parameter is too long", type->name)
            : parametrized_find(type, module, name);
    if (*weight && ek_count(*weight) == 0)
        *weight =
            EK_FAIL_NULL(EK_E_SHAPE, "%s: the parameter \"%s\" has no elements", type->name, name);
    if (*weight && !ek_dtype_is_floating((*weight)->dtype))
        *weight =
            EK_FAIL_NULL(EK_E_DTYPE, "%s: the parameter \"%s\" is not floating", type->name, name);
    parametrized *self = *weight ? (parametrized *)ek_module_new(type) : NULL;
    if (!self) {
        ek_module_discard(module);
        return NULL;
    }
    self->module.training = module->training;
    if (ek_register_module(&self->module, "", &self->body, module) < 0) {
        ek_module_free(&self->module);
        return NULL;
    }
    return self;
}

/* Writes "name_suffix", and returns it. */
static const char *parametrized_name(char text[128], const char *name, const char *suffix)
{
    snprintf(text, 128, "%.100s_%s", name, suffix);
    return text;
}

static int parametrized_dim(const char *operation, const ek_tensor *weight, int dim)
{
    if (dim >= 0 && dim < weight->ndim)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: dim is %d; the parameter has the dimensions 0 to %d",
                   operation, dim, weight->ndim - 1);
}

/* Makes a unit vector of normal numbers, with the weight's dtype and device. */
static ek_tensor *spectral_vector(const ek_tensor *weight, int64_t size, double eps)
{
    ek_tensor *x =
        ek_empty(EK_SHAPE(size), .dtype = weight->dtype, .device = ek_tensor_device(weight));
    return x && ek_normal_(x, 0, 1, NULL) >= 0 ? ek_f_normalize(x, .dim = 0, .eps = eps) : NULL;
}

static int spectral_norm_make(parametrized *self, const char *name)
{
    ek_tensor *weight = self->weight, *u = NULL, *v = NULL;
    char text[128];
    if (weight->ndim > 1) {
        const int64_t rows = weight->shape[self->dim];
        u = spectral_vector(weight, rows, self->eps);
        v = spectral_vector(weight, ek_count(weight) / rows, self->eps);
        if (!u || !v)
            return ek_error_pending();
    }
    ek_module *module = &self->module;
    EK_TRY(ek_register_buffer(module, parametrized_name(text, name, "u"), &self->u, u));
    EK_TRY(ek_register_buffer(module, parametrized_name(text, name, "v"), &self->v, v));
    if (!u)
        return 0;
    /* PyTorch evaluates the parametrization once when it is registered. */
    const int count = FIRST_ITERATIONS + (module->training ? self->iterations : 0);
    ek_tensor *matrix = spectral_matrix(weight, self->dim);
    return matrix ? spectral_iterate(self, matrix, count) : ek_error_pending();
}

/* Registers the tensor that takes the parameter's place in the body. */
static int parametrized_register(parametrized *self, const char *name, const char *suffix,
                                 ek_tensor *weight)
{
    char text[128];
    EK_TRY(ek_register_parameter(&self->module, parametrized_name(text, name, suffix),
                                 &self->weight, weight));
    ek_module_set_origin(&self->module);
    return 0;
}

ek_module *ek_spectral_norm_with(ek_spectral_norm_options options)
{
    const char *name = options.name ? options.name : "weight";
    const char *operation = spectral_norm_type.name;
    const bool transposed = options.module && ek_module_is_transposed(options.module);
    ek_tensor *weight = NULL;
    ek_scope scope = ek_scope_begin();
    parametrized *self = parametrized_new(&spectral_norm_type, options.module, name, &weight);
    if (self) {
        bool grad_enabled = ek_set_grad_enabled(false);
        self->iterations = options.n_power_iterations;
        self->eps = options.eps;
        self->dim = options.dim != EK_UNSET ? options.dim : transposed ? 1 : 0;
        if (self->iterations < 1)
            EK_FAIL(EK_E_INVALID, "%s: n_power_iterations is %d; it must be at least 1", operation,
                    self->iterations);
        else if (!(self->eps >= 0))
            EK_FAIL(EK_E_INVALID, "%s: eps is %g; it must be at least 0", operation, self->eps);
        else if (parametrized_dim(operation, weight, self->dim) >= 0 &&
                 parametrized_register(self, name, "orig", weight) >= 0)
            spectral_norm_make(self, name);
        ek_set_grad_enabled(grad_enabled);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

ek_module *ek_weight_norm_with(ek_weight_norm_options options)
{
    const char *name = options.name ? options.name : "weight";
    ek_tensor *weight = NULL;
    char text[128];
    ek_scope scope = ek_scope_begin();
    parametrized *self = parametrized_new(&weight_norm_type, options.module, name, &weight);
    if (self) {
        bool grad_enabled = ek_set_grad_enabled(false);
        self->dim = options.dim;
        if (self->dim == -1 || parametrized_dim(weight_norm_type.name, weight, self->dim) >= 0) {
            ek_tensor *g = weight_norm_lengths(weight, self->dim);
            ek_register_parameter(&self->module, parametrized_name(text, name, "g"), &self->g, g);
            parametrized_register(self, name, "v", weight);
        }
        ek_set_grad_enabled(grad_enabled);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

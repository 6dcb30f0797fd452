/* sample_norm.c: normalisation with statistics per sample: layer, RMS, group and local response
 * norm. Training and evaluation compute alike, and there are no buffers. */
#include <stdio.h>

#include "core/tensor.h"
#include "evenkeel/attention.h"
#include "nn/module_table.h"
#include "nn/nn.h"
#include "ops/norm.h"

typedef struct sample_norm {
    ek_module module;
    ek_tensor *weight, *bias; /* have `shape`; NULL if affine is off */
    ek_shape shape;           /* (channels), or layer norm's normalized_shape */
    int64_t groups;           /* group norm: how many groups */
    double eps;               /* RMS norm: EK_UNSET: the machine epsilon of the input */
} sample_norm;

/* ---- layer norm, and RMS norm ---- */

/* Returns the input. Fails if the input's shape doesn't end with the normalised shape. */
static ek_tensor *sample_norm_last_input(const sample_norm *self, const ek_args *args)
{
    ek_tensor *x = ek_only_input(&self->module, args);
    if (!x)
        return NULL;
    const ek_shape own = ek_tensor_shape(x);
    const int lead = own.ndim - self->shape.ndim;
    bool fits = lead >= 0;
    for (int i = 0; fits && i < self->shape.ndim; i++)
        fits = own.dims[lead + i] == self->shape.dims[i];
    if (!fits) {
        char text[160], wanted[160];
        EK_FAIL(EK_E_SHAPE,
                "given normalized_shape %s, expected an input that ends in it, got input size %s",
                ek_shape_text(&self->shape, wanted), ek_shape_text(&own, text));
        return NULL;
    }
    return x;
}

static ek_value layer_norm_forward(ek_module *module, const ek_args *args)
{
    sample_norm *self = (sample_norm *)module;
    ek_tensor *x = sample_norm_last_input(self, args);
    return ek_value_of_tensor(
        x ? ek_f_layer_norm(x, self->shape.ndim, self->weight, self->bias, self->eps) : NULL);
}

ek_tensor *ek_layer_norm_module_added(ek_module *module, ek_tensor **total, ek_tensor *x,
                                      ek_tensor *residual)
{
    const sample_norm *self = (const sample_norm *)module;
    if (module->type->forward != layer_norm_forward || !ek_module_is_fusible(module) ||
        !self->weight) {
        *total = x && residual ? ek_add(x, residual) : NULL;
        return *total ? ek_apply(module, *total) : NULL;
    }
    return ek_layer_norm_added(total, x, residual, self->shape.ndim, self->weight, self->bias,
                               self->eps);
}

static ek_value rms_norm_forward(ek_module *module, const ek_args *args)
{
    sample_norm *self = (sample_norm *)module;
    ek_tensor *x = sample_norm_last_input(self, args);
    return ek_value_of_tensor(x ? ek_f_rms_norm(x, self->shape.ndim, self->weight, self->eps)
                                : NULL);
}

static const ek_module_type layer_norm_type = {.name = "layer_norm",
                                               .size = sizeof(sample_norm),
                                               .forward = layer_norm_forward};

static const ek_module_type rms_norm_type = {.name = "rms_norm",
                                             .size = sizeof(sample_norm),
                                             .forward = rms_norm_forward};

static ek_tensor *sample_norm_filled(ek_shape shape, double value)
{
    return ek_fill_(ek_new_parameter(shape, EK_F32), value);
}

/* Makes a module, or returns NULL with an error if eps is below 0. */
static sample_norm *sample_norm_new(const ek_module_type *type, ek_shape shape, double eps,
                                    bool affine, bool bias)
{
    if (!(eps >= 0 || (eps == EK_UNSET && type == &rms_norm_type))) {
        EK_FAIL(EK_E_INVALID, "%s: eps %g has to be at least 0", type->name, eps);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    sample_norm *self = (sample_norm *)ek_module_new(type);
    if (self) {
        self->shape = shape;
        self->eps = eps;
        ek_register_parameter(&self->module, "weight", &self->weight,
                              affine ? sample_norm_filled(shape, 1) : NULL);
        ek_register_parameter(&self->module, "bias", &self->bias,
                              bias ? sample_norm_filled(shape, 0) : NULL);
    }
    ek_scope_end(&scope);
    return self;
}

static ek_module *sample_norm_of_last(const ek_module_type *type, ek_shape shape, double eps,
                                      bool affine, bool bias)
{
    bool positive = shape.ndim >= 1 && shape.ndim <= EK_MAX_DIMS;
    for (int i = 0; positive && i < shape.ndim; i++)
        positive = shape.dims[i] >= 1;
    if (!positive) {
        EK_FAIL(EK_E_INVALID,
                "%s: normalized_shape needs 1 to %d dimensions, each at "
                "least 1",
                type->name, EK_MAX_DIMS);
        return NULL;
    }
    return ek_module_finish((ek_module *)sample_norm_new(type, shape, eps, affine, bias));
}

ek_module *ek_layer_norm_with(ek_layer_norm_options options)
{
    return sample_norm_of_last(&layer_norm_type, options.normalized_shape, options.eps,
                               options.affine, options.affine);
}

ek_module *ek_rms_norm_with(ek_rms_norm_options options)
{
    return sample_norm_of_last(&rms_norm_type, options.normalized_shape, options.eps,
                               options.affine, false);
}

/* ---- group norm ---- */

static ek_value group_norm_forward(ek_module *module, const ek_args *args)
{
    sample_norm *self = (sample_norm *)module;
    ek_tensor *x = ek_only_input(module, args);
    if (x && (x->ndim < 2 || x->shape[1] != self->shape.dims[0])) {
        char text[200];
        EK_FAIL(EK_E_SHAPE, "expected an input (N, %lld, ...), got %s",
                (long long)self->shape.dims[0], ek_tensor_text(x, text));
        x = NULL;
    }
    if (!x)
        return ek_value_of_tensor(NULL);
    return ek_value_of_tensor(
        ek_f_group_norm(x, self->groups, self->weight, self->bias, self->eps));
}

static const ek_module_type group_norm_type = {.name = "group_norm",
                                               .size = sizeof(sample_norm),
                                               .forward = group_norm_forward};

ek_module *ek_group_norm_with(ek_group_norm_options options)
{
    const long long groups = options.groups, channels = options.channels;
    if (groups < 1 || channels < 1 || channels % groups != 0) {
        EK_FAIL(EK_E_INVALID,
                "group_norm: channels has to be a positive multiple of groups, got %lld channels "
                "and %lld groups",
                channels, groups);
        return NULL;
    }
    sample_norm *self = sample_norm_new(&group_norm_type, EK_SHAPE(options.channels), options.eps,
                                        options.affine, options.affine);
    if (self)
        self->groups = options.groups;
    return ek_module_finish((ek_module *)self);
}

/* ---- local response norm ---- */

typedef struct response_norm {
    ek_module module;
    int64_t size;
    double alpha, beta, k;
} response_norm;

static ek_value response_norm_forward(ek_module *module, const ek_args *args)
{
    const response_norm *self = (const response_norm *)module;
    ek_tensor *x = ek_only_input(module, args);
    return ek_value_of_tensor(
        x ? ek_f_local_response_norm(x, self->size, self->alpha, self->beta, self->k) : NULL);
}

static void response_norm_describe(const ek_module *module, char *text, size_t size)
{
    const response_norm *self = (const response_norm *)module;
    snprintf(text, size, "%lld, alpha=%g, beta=%g, k=%g", (long long)self->size, self->alpha,
             self->beta, self->k);
}

ek_module *ek_local_response_norm_with(ek_local_response_norm_options options)
{
    static const ek_module_type type = {.name = "local_response_norm",
                                        .size = sizeof(response_norm),
                                        .forward = response_norm_forward,
                                        .describe = response_norm_describe};
    if (options.size < 1) {
        EK_FAIL(EK_E_INVALID, "local_response_norm: size is %lld; it must be at least 1",
                (long long)options.size);
        return NULL;
    }
    response_norm *self = (response_norm *)ek_module_new(&type);
    if (self) {
        self->size = options.size;
        self->alpha = options.alpha;
        self->beta = options.beta;
        self->k = options.k;
    }
    return (ek_module *)self;
}

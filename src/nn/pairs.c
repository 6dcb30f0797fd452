/* pairs.c: layers of two inputs: bilinear forms and similarities. */
#include <math.h>
#include <stdio.h>

#include "core/tensor.h"
#include "evenkeel/random.h"
#include "nn/nn.h"

/* ---- bilinear: x' W y + b ---- */

typedef struct bilinear {
    ek_module module;
    ek_tensor *weight; /* (out, in1, in2) */
    ek_tensor *bias;   /* (out), or NULL */
} bilinear;

static ek_value bilinear_forward(ek_module *module, const ek_args *args)
{
    const bilinear *self = (const bilinear *)module;
    if (ek_check_inputs(module, args, 2) < 0)
        return ek_value_error();
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_arg_tensor(args, 1);
    return ek_value_of_tensor(x && y ? ek_f_bilinear(x, y, self->weight, self->bias) : NULL);
}

static void bilinear_describe(const ek_module *module, char *text, size_t size)
{
    const bilinear *self = (const bilinear *)module;
    if (!self->weight)
        return;
    const int64_t *shape = self->weight->shape;
    snprintf(text, size, "in1_features=%lld, in2_features=%lld, out_features=%lld, bias=%s",
             (long long)shape[1], (long long)shape[2], (long long)shape[0],
             self->bias ? "True" : "False");
}

static const ek_module_type bilinear_type = {.name = "bilinear",
                                             .size = sizeof(bilinear),
                                             .forward = bilinear_forward,
                                             .describe = bilinear_describe};

ek_module *ek_bilinear_with(ek_bilinear_options options)
{
    const int64_t in1 = options.in1_features, in2 = options.in2_features;
    if (in1 < 1 || in2 < 1 || options.out_features < 1) {
        EK_FAIL(EK_E_INVALID,
                "bilinear: in1_features %lld, in2_features %lld and out_features %lld have to be "
                "at least 1",
                (long long)in1, (long long)in2, (long long)options.out_features);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    bilinear *self = (bilinear *)ek_module_new(&bilinear_type);
    if (self) {
        const double bound = 1 / sqrt((double)in1);
        ek_tensor *weight = ek_new_parameter(EK_SHAPE(options.out_features, in1, in2), EK_F32);
        ek_tensor *bias =
            options.bias ? ek_new_parameter(EK_SHAPE(options.out_features), EK_F32) : NULL;
        ek_register_parameter(&self->module, "weight", &self->weight, weight);
        ek_register_parameter(&self->module, "bias", &self->bias, bias);
        if (ek_error_status() == 0 && ek_init_uniform(self->weight, -bound, bound) >= 0 && bias)
            ek_init_uniform(self->bias, -bound, bound);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

/* ---- similarities ---- */

typedef struct similarity {
    ek_module module;
    int dim;
    double p, eps;
    bool keepdim;
} similarity;

static ek_value cosine_similarity_forward(ek_module *module, const ek_args *args)
{
    const similarity *self = (const similarity *)module;
    if (ek_check_inputs(module, args, 2) < 0)
        return ek_value_error();
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_arg_tensor(args, 1);
    return ek_value_of_tensor(
        x && y ? ek_f_cosine_similarity(x, y, .dim = self->dim, .eps = self->eps) : NULL);
}

static ek_value pairwise_distance_forward(ek_module *module, const ek_args *args)
{
    const similarity *self = (const similarity *)module;
    if (ek_check_inputs(module, args, 2) < 0)
        return ek_value_error();
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_arg_tensor(args, 1);
    return ek_value_of_tensor(x && y ? ek_f_pairwise_distance(x, y, .p = self->p, .eps = self->eps,
                                                              .keepdim = self->keepdim)
                                     : NULL);
}

static ek_module *similarity_new(const ek_module_type *type, const similarity *form)
{
    if (!(form->eps >= 0)) {
        EK_FAIL(EK_E_INVALID, "%s: eps is %g; it must be at least 0", type->name, form->eps);
        return NULL;
    }
    similarity *self = (similarity *)ek_module_new(type);
    if (self) {
        const ek_module module = self->module;
        *self = *form;
        self->module = module;
    }
    return (ek_module *)self;
}

ek_module *ek_cosine_similarity_with(ek_cosine_similarity_module_options options)
{
    static const ek_module_type type = {.name = "cosine_similarity",
                                        .size = sizeof(similarity),
                                        .forward = cosine_similarity_forward};
    const similarity form = {.dim = options.dim, .eps = options.eps};
    return similarity_new(&type, &form);
}

ek_module *ek_pairwise_distance_with(ek_pairwise_distance_module_options options)
{
    static const ek_module_type type = {.name = "pairwise_distance",
                                        .size = sizeof(similarity),
                                        .forward = pairwise_distance_forward};
    const similarity form = {.eps = options.eps, .keepdim = options.keepdim, .p = options.p};
    return similarity_new(&type, &form);
}

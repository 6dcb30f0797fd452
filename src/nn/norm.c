/* norm.c: batch normalisation. */
#include "ops/norm.h"

#include <stdlib.h>

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "nn/batch_norm_module.h"

int ek_batch_norm_module_check(const ek_batch_norm_module *self, const ek_tensor *x)
{
    if (!x)
        return ek_error_pending();
    if (x->ndim >= self->ndim_least && x->ndim <= self->ndim_most)
        return 0;
    char text[200], least[16] = "";
    if (self->ndim_least != self->ndim_most)
        snprintf(least, sizeof least, "%d %s ", self->ndim_least,
                 self->ndim_most - self->ndim_least > 1 ? "to" : "or");
    return EK_FAIL(EK_E_SHAPE, "expected an input of %s%d dimensions, got %s", least,
                   self->ndim_most, ek_tensor_text(x, text));
}

ek_batch_norm_options ek_batch_norm_module_operation(const ek_batch_norm_module *self, ek_tensor *x)
{
    return (ek_batch_norm_options){.x = x,
                                   .weight = self->weight,
                                   .bias = self->bias,
                                   .running_mean = self->running_mean,
                                   .running_var = self->running_var,
                                   .training = self->module.training,
                                   .momentum = self->momentum,
                                   .eps = self->eps};
}

static ek_tensor *norm_normalise(ek_module *module, ek_tensor *x, bool relu)
{
    ek_batch_norm_module *self = (ek_batch_norm_module *)module;
    if (ek_batch_norm_module_check(self, x) < 0)
        return NULL;
    return ek_batch_norm_tracked(ek_batch_norm_module_operation(self, x), relu,
                                 self->num_batches_tracked);
}

static ek_value batch_norm_forward(ek_module *module, const ek_args *args)
{
    return ek_value_of_tensor(norm_normalise(module, ek_only_input(module, args), false));
}

static ek_value batch_norm_relu_forward(ek_module *module, const ek_args *args)
{
    return ek_value_of_tensor(norm_normalise(module, ek_only_input(module, args), true));
}

void ek_batch_norm_module_describe(const ek_module *module, char *text, size_t size)
{
    const ek_batch_norm_module *self = (const ek_batch_norm_module *)module;
    char momentum[32] = "None";
    if (self->momentum != EK_CUMULATIVE)
        snprintf(momentum, sizeof momentum, "%g", self->momentum);
    snprintf(text, size, "%lld, eps=%g, momentum=%s, affine=%s, track_running_stats=%s",
             (long long)self->features, self->eps, momentum, self->weight ? "True" : "False",
             self->running_mean ? "True" : "False");
}

const char ek_batch_norm_family[] = "batch_norm";

/* Indexed by the number of the input's directions less 1. */
#define BATCH_NORM_TYPE(id)                                                              \
    {                                                                                    \
        .name = id, .size = sizeof(ek_batch_norm_module), .forward = batch_norm_forward, \
        .describe = ek_batch_norm_module_describe, .family = ek_batch_norm_family        \
    }
static const ek_module_type batch_norm_types[] = {BATCH_NORM_TYPE("batch_norm1d"),
                                                  BATCH_NORM_TYPE("batch_norm2d"),
                                                  BATCH_NORM_TYPE("batch_norm3d")};

bool ek_module_is_batch_norm(const ek_module *module)
{
    for (size_t i = 0; i < sizeof batch_norm_types / sizeof *batch_norm_types; i++)
        if (module->type == &batch_norm_types[i])
            return true;
    return false;
}

ek_forward_function *ek_batch_norm_with_relu(const ek_module *layer)
{
    return ek_module_is_batch_norm(layer) ? batch_norm_relu_forward : NULL;
}

static ek_tensor *norm_filled(int64_t features, double value)
{
    ek_tensor *tensor = ek_new_parameter(EK_SHAPE(features), EK_F32);
    return ek_fill_(tensor, value);
}

ek_module *ek_batch_norm_module_new(const ek_module_type *type,
                                    const ek_batch_norm_module_options *options, int ndim_least,
                                    int ndim_most)
{
    const double eps = options->eps, momentum = options->momentum;
    if (options->features < 1) {
        EK_FAIL(EK_E_INVALID, "%s: features has to be at least 1, not %lld", type->name,
                (long long)options->features);
        return NULL;
    }
    if (!(eps >= 0) || !((momentum >= 0 && momentum <= 1) || momentum == EK_CUMULATIVE)) {
        EK_FAIL(EK_E_INVALID,
                "%s: eps %g has to be at least 0, momentum %g between 0 and 1 or EK_CUMULATIVE",
                type->name, eps, momentum);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    ek_batch_norm_module *self = (ek_batch_norm_module *)ek_module_new(type);
    if (self) {
        ek_module *module = &self->module;
        int64_t features = options->features;
        bool affine = options->affine, track = options->track_running_stats;
        self->features = features;
        self->eps = eps;
        self->momentum = momentum;
        self->ndim_least = ndim_least;
        self->ndim_most = ndim_most;
        ek_register_parameter(module, "weight", &self->weight,
                              affine ? norm_filled(features, 1) : NULL);
        ek_register_parameter(module, "bias", &self->bias,
                              affine ? norm_filled(features, 0) : NULL);
        ek_register_buffer(module, "running_mean", &self->running_mean,
                           track ? norm_filled(features, 0) : NULL);
        ek_register_buffer(module, "running_var", &self->running_var,
                           track ? norm_filled(features, 1) : NULL);
        ek_register_buffer(module, "num_batches_tracked", &self->num_batches_tracked,
                           track ? ek_fill_(ek_new_parameter(ek_scalar_shape(), EK_I64), 0) : NULL);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

ek_module *ek_batch_norm1d_with(ek_batch_norm_module_options options)
{
    return ek_batch_norm_module_new(&batch_norm_types[0], &options, 2, 3);
}

ek_module *ek_batch_norm2d_with(ek_batch_norm_module_options options)
{
    return ek_batch_norm_module_new(&batch_norm_types[1], &options, 4, 4);
}

ek_module *ek_batch_norm3d_with(ek_batch_norm_module_options options)
{
    return ek_batch_norm_module_new(&batch_norm_types[2], &options, 5, 5);
}

/* ---- statistics of given data ---- */

/* A module as it was before. */
typedef struct norm_before {
    ek_module *module; /* borrowed */
    bool training;
    double momentum; /* of a batch norm with running statistics */
} norm_before;

typedef struct norm_list {
    norm_before *modules;
    int count, room;
} norm_list;

/* Returns the module if it is a batch norm of any type with running statistics; else NULL. */
static ek_batch_norm_module *norm_tracked(ek_module *module)
{
    ek_batch_norm_module *self = (ek_batch_norm_module *)module;
    return module->type->family == ek_batch_norm_family && self->running_mean ? self : NULL;
}

static int norm_note(const char *path, ek_module *module, void *user)
{
    norm_list *list = user;
    (void)path;
    EK_TRY(ek_grow(&list->modules, &list->room, list->count + 1));
    const ek_batch_norm_module *norm = norm_tracked(module);
    list->modules[list->count++] =
        (norm_before){module, module->training, norm ? norm->momentum : 0};
    return 0;
}

/* Clears running statistics, and makes them averages in which all batches count equally. Returns
 * the number of batch norms. */
static int norm_clear(const norm_list *list)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        ek_batch_norm_module *norm = norm_tracked(list->modules[i].module);
        if (!norm)
            continue;
        if (!ek_fill_(norm->running_mean, 0) || !ek_fill_(norm->running_var, 1) ||
            !ek_fill_(norm->num_batches_tracked, 0))
            return ek_error_pending();
        norm->momentum = EK_CUMULATIVE;
        count++;
    }
    return count;
}

int ek_update_batch_norm(ek_module *module, ek_module_run *run, void *user)
{
    norm_list list = {0};
    if (module && !run)
        return EK_FAIL(EK_E_INVALID, "update_batch_norm: the function is NULL");
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = ek_module_modules(module, norm_note, &list);
    if (status == 0)
        status = norm_clear(&list);
    if (status > 0) {
        ek_module_train(module, true);
        status = run(module, user);
    }
    for (int i = 0; i < list.count; i++) {
        ek_batch_norm_module *norm = norm_tracked(list.modules[i].module);
        if (norm)
            norm->momentum = list.modules[i].momentum;
        list.modules[i].module->training = list.modules[i].training;
    }
    ek_set_grad_enabled(grad_enabled);
    free(list.modules);
    return status;
}

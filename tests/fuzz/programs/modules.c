/* modules.c: see modules.h. */
#include "modules.h"

#include <evenkeel/autograd.h>
#include <evenkeel/comm.h>
#include <evenkeel/function.h>
#include <evenkeel/ops.h>
#include <evenkeel/status.h>

#include "faults.h"
#include "program.h"

static ek_value unary(ek_tensor *x, ek_tensor *(*f)(ek_module *self, ek_tensor *x), ek_module *self)
{
    return x ? ek_value_of_tensor(f(self, x)) : ek_value_error();
}

/* ---- the guard ---- */

static int cubic_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_add_scaled(x[0], ek_mul(x[0], ek_square(x[0])), 0.1);
    return ek_function_save(call, x, 1);
}

static int cubic_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ek_tensor *x = ek_function_saved(call, 0);
    if (x && fault_strikes(FAULT_BACKWARD, ek_tensor_device(x)))
        return ek_error(EK_E_USER, "a backward that fails on purpose");
    dx[0] = ek_mul(dy[0], ek_add_scalar(ek_mul_scalar(ek_square(x), 0.3), 1));
    return 0;
}

static const ek_function cubic = {.name = "cubic",
                                  .forward = cubic_forward,
                                  .backward = cubic_backward};

static int parts_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_mul_scalar(x[0], 0.5);
    y[1] = ek_mul(x[0], ek_square(x[0]));
    return ek_function_save(call, x, 1);
}

/* Of outputs that nobody used there is no gradient. */
static int parts_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    ek_tensor *x = ek_function_saved(call, 0), *first = NULL, *second = NULL;
    if (x && fault_strikes(FAULT_BACKWARD, ek_tensor_device(x)))
        return ek_error(EK_E_USER, "a backward of two that fails on purpose");
    if (dy[0])
        first = ek_mul_scalar(dy[0], 0.5);
    if (dy[1])
        second = ek_mul(dy[1], ek_mul_scalar(ek_square(x), 3));
    dx[0] = first && second ? ek_add(first, second) : first ? first : second;
    return 0;
}

static const ek_function parts = {.name = "parts",
                                  .outputs = 2,
                                  .forward = parts_forward,
                                  .backward = parts_backward};

typedef struct guard {
    ek_module module;
    int variant;
} guard;

static ek_tensor *guard_apply(ek_module *module, ek_tensor *x)
{
    ek_device device = ek_tensor_device(x);
    ek_tensor *y[2];
    if (fault_strikes(FAULT_FORWARD, device))
        ek_error(EK_E_USER, "a forward that fails on purpose");
    if (fault_strikes(FAULT_FORWARD, device) || fault_strikes(FAULT_SILENT, device))
        return NULL;
    if (((guard *)module)->variant % 2 == 0)
        return ek_function_apply(&cubic, &x, 1, y) < 0 ? NULL : y[0];
    if (ek_function_apply(&parts, &x, 1, y) < 0)
        return NULL;
    return ((guard *)module)->variant % 4 == 1 ? ek_add(ek_mul_scalar(y[0], 2), y[1]) : y[1];
}

static ek_value guard_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0), *y = x ? guard_apply(module, x) : NULL;
    return y ? ek_value_of_tensor(y) : ek_value_error();
}

static const ek_module_type guard_type = {.name = "guard",
                                          .size = sizeof(guard),
                                          .forward = guard_forward};

ek_module *guard_new(int variant)
{
    guard *self = (guard *)ek_module_new(&guard_type);
    if (self)
        self->variant = variant;
    return self ? &self->module : NULL;
}

/* ---- mix ---- */

static ek_tensor *mix_apply(ek_module *module, ek_tensor *x)
{
    ek_tensor *sums[2], *all[2];
    sums[0] = ek_sum(x, EK_DIMS(0), .keepdim = true);
    sums[1] = ek_full((double)ek_tensor_size(x, 0), EK_SHAPE(1), .dtype = ek_tensor_dtype(x),
                      .device = ek_tensor_device(x));
    if (!sums[0] || !sums[1] || ek_allreduce(sums, 2, 2, all) < 0)
        return NULL;
    return ek_add_scaled(x, ek_div(all[0], all[1]), -0.5);
}

static ek_value mix_forward(ek_module *module, const ek_args *args)
{
    return unary(ek_arg_tensor(args, 0), mix_apply, module);
}

static const ek_module_type mix_type = {.name = "mix",
                                        .size = sizeof(ek_module),
                                        .forward = mix_forward};

ek_module *mix_new(void)
{
    return ek_module_new(&mix_type);
}

/* ---- spare ---- */

typedef struct spare {
    ek_module module;
    ek_tensor *scale, *unused, *calls;
} spare;

static ek_tensor *spare_apply(ek_module *module, ek_tensor *x)
{
    spare *self = (spare *)module;
    if (module->training) {
        bool before = ek_set_grad_enabled(false);
        ek_tensor *one = ek_ones(EK_SHAPE(1), .dtype = ek_tensor_dtype(self->calls),
                                 .device = ek_tensor_device(x));
        ek_tensor *counted = ek_add_(self->calls, one);
        ek_set_grad_enabled(before);
        if (!counted)
            return NULL;
    }
    ek_shape shape = {ek_tensor_ndim(x), {1, -1, 1, 1, 1}};
    return ek_mul(x, ek_reshape(self->scale, shape));
}

static ek_value spare_forward(ek_module *module, const ek_args *args)
{
    return unary(ek_arg_tensor(args, 0), spare_apply, module);
}

static const ek_module_type spare_type = {.name = "spare",
                                          .size = sizeof(spare),
                                          .forward = spare_forward};

ek_module *spare_new(int features)
{
    spare *self = (spare *)ek_module_new(&spare_type);
    if (!self)
        return NULL;
    ek_register_parameter(&self->module, "scale", &self->scale, ek_ones(EK_SHAPE(features)));
    ek_register_parameter(&self->module, "unused", &self->unused, ek_ones(EK_SHAPE(3)));
    ek_register_buffer(&self->module, "calls", &self->calls,
                       ek_zeros(EK_SHAPE(1), .dtype = EK_F64));
    return ek_module_finish(&self->module);
}

/* ---- wrong ---- */

static ek_device wrong_device;

void wrong_set_device(ek_device device)
{
    wrong_device = device;
}

static ek_tensor *wrong_apply(ek_module *module, ek_tensor *x)
{
    return ek_mul_scalar(x, ek_device_equal(ek_tensor_device(x), wrong_device) ? 1.001 : 1);
}

static ek_value wrong_forward(ek_module *module, const ek_args *args)
{
    return unary(ek_arg_tensor(args, 0), wrong_apply, module);
}

static const ek_module_type wrong_type = {.name = "wrong",
                                          .size = sizeof(ek_module),
                                          .forward = wrong_forward};

ek_module *wrong_new(void)
{
    return ek_module_new(&wrong_type);
}

/* ---- around a body ---- */

typedef struct around {
    ek_module module;
    ek_module *body, *again;
    int output;
} around;

static ek_module *around_new(const ek_module_type *type, ek_module *body)
{
    around *self = body ? (around *)ek_module_new(type) : NULL;
    if (!self) {
        ek_module_free(body);
        return NULL;
    }
    ek_register_module(&self->module, "body", &self->body, body);
    return ek_module_finish(&self->module);
}

static ek_tensor *residual_apply(ek_module *module, ek_tensor *x)
{
    return ek_mul_scalar(ek_add(x, ek_apply(((around *)module)->body, x)), 0.5);
}

static ek_value residual_forward(ek_module *module, const ek_args *args)
{
    return unary(ek_arg_tensor(args, 0), residual_apply, module);
}

static const ek_module_type residual_type = {.name = "residual",
                                             .size = sizeof(around),
                                             .forward = residual_forward};

ek_module *residual_new(ek_module *body)
{
    return around_new(&residual_type, body);
}

static ek_tensor *tied_apply(ek_module *module, ek_tensor *x)
{
    return ek_apply(((around *)module)->again, ek_apply(((around *)module)->body, x));
}

static ek_value tied_forward(ek_module *module, const ek_args *args)
{
    return unary(ek_arg_tensor(args, 0), tied_apply, module);
}

static const ek_module_type tied_type = {.name = "tied",
                                         .size = sizeof(around),
                                         .forward = tied_forward};

ek_module *tied_new(ek_module *body)
{
    around *self = (around *)around_new(&tied_type, body);
    if (!self)
        return NULL;
    ek_register_module(&self->module, "again", &self->again, self->body);
    return ek_module_finish(&self->module);
}

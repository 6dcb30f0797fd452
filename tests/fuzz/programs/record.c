/* record.c: see record.h. */
#include "record.h"

#include <evenkeel/autograd.h>
#include <evenkeel/ops.h>
#include <evenkeel/scope.h>
#include <evenkeel/status.h>
#include <stdlib.h>

static int add(tape *t, ek_tensor *tensor)
{
    ek_scope scope = ek_scope_begin();
    bool before = ek_set_grad_enabled(false);
    ek_tensor *wide = ek_to_dtype(ek_detach(tensor), EK_F64);
    int64_t count = wide ? ek_tensor_count(wide) : 0;
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    int rc = !wide || !values ? -1 : ek_to_data(wide, values, (size_t)count * sizeof *values);
    if (rc >= 0)
        tape_add(t, values, (int)count);
    free(values);
    ek_set_grad_enabled(before);
    ek_scope_end(&scope);
    return rc;
}

static int add_tensor(const char *path, ek_tensor *tensor, void *user)
{
    (void)path;
    return add(user, tensor);
}

static int add_gradient(const char *path, ek_tensor *tensor, void *user)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *gradient = ek_gather_grad(tensor);
    double there = gradient != NULL;
    int rc = ek_error_status();
    (void)path;
    tape_add(user, &there, 1);
    if (gradient && rc >= 0)
        rc = add(user, gradient);
    ek_scope_end(&scope);
    return rc;
}

int record_gradients(tape *t, int step, ek_module *module)
{
    tape_begin(t, TAPE_GRADIENTS, step, false);
    return ek_module_parameters(module, add_gradient, t);
}

int record_parameters(tape *t, int step, ek_module *module)
{
    tape_begin(t, TAPE_PARAMETERS, step, false);
    return ek_module_parameters(module, add_tensor, t);
}

int record_buffers(tape *t, int step, ek_module *module, bool open)
{
    tape_begin(t, TAPE_BUFFERS, step, open);
    return open ? 0 : ek_module_buffers(module, add_tensor, t);
}

/* module_call.c: calling modules, and reading the arguments of a call. */
#include <stdlib.h>

#include "autograd/observer.h"
#include "core/tensor.h"
#include "core/trace.h"
#include "core/value.h"
#include "evenkeel/comm.h"
#include "nn/module_table.h"
#include "nn/nn.h"

/* Returns true if an argument is an error or a NULL tensor. */
static bool call_has_error(const ek_args *args)
{
    for (int i = 0; i < args->count; i++)
        if (args->inputs[i].kind == EK_VALUE_ERROR ||
            (args->inputs[i].kind == EK_VALUE_TENSOR && !args->inputs[i].as.tensor))
            return true;
    return args->keywords.kind == EK_VALUE_ERROR;
}

/* Returns the device of the first tensor in a value; NULL if there is no tensor. */
static ek_dev *call_dev_in(ek_value value)
{
    ek_dev *dev = NULL;
    if (value.kind == EK_VALUE_TENSOR)
        return ek_tensor_dev(value.as.tensor);
    for (int i = 0; i < ek_value_length(value) && !dev; i++)
        dev = call_dev_in(ek_value_at(value, i));
    return dev;
}

static ek_dev *call_dev_of(const ek_args *args)
{
    ek_dev *dev = NULL;
    for (int i = 0; i < args->count && !dev; i++)
        dev = call_dev_in(args->inputs[i]);
    return dev;
}

ek_value ek_module_call(ek_module *module, const ek_args *args,
                        ek_value (*forward)(ek_module *self, const ek_args *args))
{
    int before = ek_error_status();
    if (ek_fork_check() < 0)
        return ek_value_error();
    if (call_has_error(args)) {
        if (before == 0)
            EK_FAIL(EK_E_INVALID, "%s: an argument is NULL", module->type->name);
        return ek_value_error();
    }
    ek_thread *self = ek_thread_self();
    const char *outer = self->modes.path, *path = module->members->path;
    if (path != ek_path_root) /* a module without a parent is a part of the module that calls it */
        self->modes.path = path;
    /* Only the output leaves this scope. Activations that no graph holds are freed here. */
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMPUTE, "forward of", module->type->name, call_dev_of(args));
    ek_scope scope = ek_scope_begin();
    ek_observer *observer = self->observer;
    if (observer)
        observer->enter(observer, module);
    const bool is_outermost = !self->checks.module;
    if (is_outermost)
        self->checks.module = module->type->name;
    ek_value output = module->members->hooks ? ek_module_call_hooked(module, args, forward)
                                             : forward(module, args);
    if (output.kind == EK_VALUE_TENSOR && !output.as.tensor)
        output = ek_value_error();
    if (is_outermost)
        self->checks.module = NULL;
    if (observer)
        observer->leave(observer, module, args, output);
    const ek_releaser releaser = ek_release_named("the forward of", module->type->name);
    output = ek_scope_return_value(&scope, output);
    ek_release_end(&releaser);
    ek_span_end(&span);
    self->modes.path = outer;
    if (output.kind != EK_VALUE_ERROR)
        return output;
    if (ek_error_status() == 0)
        EK_FAIL(EK_E_STATE, "forward failed without saying why");
    if (before == 0) {
        /* Each module prefixes its name, so that a sentence begins with the outermost: "features
         * (sequential): 0 (conv2d): ..." */
        const char *name = module->members->name;
        if (name[0])
            ek_error_prefix(before, "%s (%s)", name, module->type->name);
        else
            ek_error_prefix(before, "%s", module->type->name);
    }
    return output;
}

ek_value ek_module_forward(ek_module *module, const ek_args *args)
{
    if (!module || !args || (args->count > 0 && !args->inputs)) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "the %s NULL", !module ? "module is" : "arguments are");
        return ek_value_error();
    }
    if (ek_check_alive("module_forward", "the module", module) < 0)
        return ek_value_error();
    const ek_value_kind keywords = args->keywords.kind;
    if (keywords != EK_VALUE_NONE && keywords != EK_VALUE_DICT && keywords != EK_VALUE_ERROR) {
        EK_FAIL(EK_E_INVALID, "%s: keyword arguments have to be a dictionary or none",
                module->type->name);
        return ek_value_error();
    }
    return ek_module_call(module, args,
                          module->members->is_checkpointed ? ek_module_call_checkpointed
                                                           : module->type->forward);
}

ek_tensor *ek_apply(ek_module *module, ek_tensor *x)
{
    if (!x) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "x is NULL");
        return NULL;
    }
    return ek_value_tensor(ek_forward(module, x));
}

/* ---- calling criteria ---- */

static bool call_spreads(ek_value value)
{
    return value.kind == EK_VALUE_LIST && !value.per_device;
}

ek_value ek_spread(const ek_value *values, int count)
{
    int width = 0, done = 0;
    for (int i = 0; i < count; i++)
        width += call_spreads(values[i]) ? ek_value_length(values[i]) : 1;
    ek_value *items = ek_calloc((size_t)width + 1, sizeof *items);
    for (int i = 0; i < count && items; i++) {
        const int length = call_spreads(values[i]) ? ek_value_length(values[i]) : 0;
        for (int k = 0; k < length; k++)
            items[done++] = ek_value_at(values[i], k);
        if (!call_spreads(values[i]))
            items[done++] = values[i];
    }
    ek_value list = items ? ek_value_list(items, width) : ek_value_error();
    free(items);
    return list;
}

/* Tells whether the module's only member is a child without a name. */
static bool call_is_wrapper(const ek_module *module)
{
    if (ek_module_member_count(module) != 1)
        return false;
    const ek_member member = ek_module_member(module, 0);
    return member.kind == EK_MEMBER_MODULE && !member.name[0];
}

/* Moves tensors without a gradient to a device, and joins there what is cut for devices. */
static bool call_move_target(ek_value *value, void *dev)
{
    const ek_tensor *x = value->kind == EK_VALUE_TENSOR ? value->as.tensor : NULL;
    if (value->per_device || (x && !x->requires_grad && ek_tensor_dev(x) != dev))
        *value = ek_value_to_device(*value, ((ek_dev *)dev)->id, 0);
    return value->per_device || x;
}

int ek_criterion_args(const ek_module *criterion, const ek_args *args, ek_args *own)
{
    *own = *args;
    if (call_is_wrapper(criterion))
        return 0; /* the wrapper asks for its child's arguments */
    if (args->count < 1 || !args->inputs || call_has_error(args))
        return 0; /* ek_module_forward says what is wrong */
    const ek_value output = args->inputs[0];
    ek_dev *dev = output.per_device ? NULL : call_dev_in(output);
    ek_value *moved = ek_calloc((size_t)args->count, sizeof *moved);
    if (!moved)
        return ek_error_pending();
    for (int i = 0; i < args->count; i++)
        moved[i] =
            i > 0 && dev ? ek_value_map(args->inputs[i], call_move_target, dev) : args->inputs[i];
    ek_value list = criterion->type->takes_lists ? ek_value_list(moved, args->count)
                                                 : ek_spread(moved, args->count);
    free(moved);
    if (list.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    own->inputs = ek_value_items(list);
    own->count = ek_value_length(list);
    return 0;
}

ek_value ek_criterion_forward(ek_module *criterion, const ek_args *args)
{
    ek_args own = *args;
    if (ek_check_alive("loss", "the criterion", criterion) < 0)
        return ek_value_error();
    ek_scope scope = ek_scope_begin();
    ek_value loss = criterion && ek_criterion_args(criterion, args, &own) < 0
                        ? ek_value_error()
                        : ek_module_forward(criterion, &own);
    return ek_scope_return_value(&scope, loss);
}

ek_tensor *ek_loss_of(ek_module *criterion, const ek_value *arguments, int count)
{
    const ek_args args = {arguments, count, ek_value_none()};
    return ek_value_tensor(ek_criterion_forward(criterion, &args));
}

/* ---- reading the arguments of a call ---- */

ek_value ek_arg(const ek_args *args, int index)
{
    if (ek_check_pointer("arg", "the arguments' list", args) < 0)
        return ek_value_error();
    if (index < 0 || index >= args->count) {
        EK_FAIL(EK_E_INVALID, "argument %d is missing: the module was given %d", index,
                args->count);
        return ek_value_error();
    }
    return args->inputs[index];
}

ek_tensor *ek_arg_tensor(const ek_args *args, int index)
{
    ek_value value = ek_arg(args, index);
    if (value.kind == EK_VALUE_ERROR)
        return NULL;
    if (value.kind != EK_VALUE_TENSOR) {
        EK_FAIL(EK_E_INVALID, "argument %d has to be a tensor, not %s%s", index,
                ek_value_kind_name(value),
                value.per_device ? " with one output per device, as ek_data_parallel_model gives; "
                                   "a criterion takes those by ek_data_parallel_criterion, others "
                                   "by ek_value_to_device, which joins them"
                                 : "");
        return NULL;
    }
    return value.as.tensor;
}

int ek_check_batch(const char *name, ek_value value, int dim)
{
    const int marked = ek_value_batch_dim(value, dim);
    if (marked == dim)
        return 0;
    if (dim < 0)
        return EK_FAIL(EK_E_SHAPE,
                       "%s is of one sample, without a batch, but was cut along dimension %d", name,
                       marked);
    return EK_FAIL(EK_E_SHAPE,
                   "the batch of %s is dimension %d, but it was cut along dimension %d, or is "
                   "marked so; a wrapper's .dim says where the batch is, and ek_value_batched for "
                   "a tensor where it is elsewhere",
                   name, dim, marked);
}

int ek_check_inputs(const ek_module *module, const ek_args *args, int count)
{
    if (ek_value_length(args->keywords) > 0)
        return EK_FAIL(EK_E_INVALID, "%s takes no keyword argument \"%s\"", module->type->name,
                       ek_value_key(args->keywords, 0));
    if (args->count != count)
        return EK_FAIL(EK_E_INVALID, "%s takes %d input%s, not %d", module->type->name, count,
                       count == 1 ? "" : "s", args->count);
    return 0;
}

ek_tensor *ek_only_input(const ek_module *module, const ek_args *args)
{
    return ek_check_inputs(module, args, 1) < 0 ? NULL : ek_arg_tensor(args, 0);
}

/* module_hook.c: the user's functions around the forward and the backward of a module.
 *
 * A call with backward hooks records two nodes that change nothing. The node of the outputs stores
 * their gradients when its backward runs. The node of the inputs, whose backward runs later, gets
 * the inputs' gradients and calls the hooks. Both hold one record of the call. The record doesn't
 * hold the module, because the module's parameters may hold gradients that hold the graph. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "core/hook_list.h"
#include "core/value.h"
#include "nn/module_table.h"
#include "nn/nn.h"

typedef enum hook_kind { HOOK_PRE, HOOK_FORWARD, HOOK_BACKWARD } hook_kind;

/* ---- registering ---- */

static int64_t hook_register(ek_module *module, hook_kind kind, ek_any_function *hook, void *user)
{
    if (!module || !hook)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "register_hook: the %s is NULL",
                                               module ? "hook" : "module");
    EK_TRY(ek_check_alive("register_hook", "the module", module));
    return ek_hook_list_add(&module->members->hooks, kind, hook, user);
}

int64_t ek_module_register_forward_pre_hook(ek_module *module, ek_forward_pre_hook *hook,
                                            void *user)
{
    return hook_register(module, HOOK_PRE, (ek_any_function *)hook, user);
}

int64_t ek_module_register_forward_hook(ek_module *module, ek_forward_hook *hook, void *user)
{
    return hook_register(module, HOOK_FORWARD, (ek_any_function *)hook, user);
}

int64_t ek_module_register_full_backward_hook(ek_module *module, ek_full_backward_hook *hook,
                                              void *user)
{
    return hook_register(module, HOOK_BACKWARD, (ek_any_function *)hook, user);
}

int ek_module_remove_hook(ek_module *module, int64_t id)
{
    if (!module)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "remove_hook: the module is NULL");
    EK_TRY(ek_check_alive("remove_hook", "the module", module));
    int removed = ek_hook_list_remove(&module->members->hooks, id);
    if (removed == 0)
        return EK_FAIL(EK_E_INVALID, "remove_hook: the %s has no hook %lld", module->type->name,
                       (long long)id);
    return removed < 0 ? removed : 0;
}

/* ---- the record of a call with backward hooks ---- */

typedef struct hooked_call {
    ek_object object;
    ek_hook_list *hooks; /* one reference */
    const char *name;    /* of the module's type */
    int inputs;          /* positional inputs of the call */
    int *places;         /* indices of the inputs that go through the inputs' node, ascending */
    int place_count;     /* 0: no input requires a gradient */
    int outputs;         /* elements of the output */
    int *output_places;  /* indices of the outputs that go through the outputs' node */
    ek_value gradients; /* the outputs' gradients: a list, one reference; none before they arrive */
    uint64_t pass;      /* in which they arrived (ek_node_pass) */
} hooked_call;

static void hooked_destroy(ek_object *object)
{
    hooked_call *call = (hooked_call *)object;
    ek_value_release(call->gradients);
    free(call->places);
    free(call->output_places);
    ek_object_release(call->hooks);
    free(call);
}

static void hooked_release(void *attributes)
{
    ek_object_release(*(hooked_call **)attributes);
}

/* Makes a list of `length` values: tensors[i] at places[i], and none elsewhere. In the scope. With
 * `detached` the tensors are detached, because a record must not hold a graph that holds the
 * record. */
static ek_value hooked_list(ek_tensor *const *tensors, const int *places, int count, int length,
                            bool detached)
{
    ek_value *items = ek_calloc((size_t)length + 1, sizeof *items), list = ek_value_error();
    for (int i = 0; items && i < count; i++)
        if (tensors[i])
            items[places[i]] = ek_value_of_tensor(detached ? ek_detach(tensors[i]) : tensors[i]);
    if (items)
        list = ek_value_list(items, length);
    free(items);
    return list;
}

/* Stores the outputs' gradients of a pass: a list, or none, in the scope. */
static void hooked_note(hooked_call *call, ek_value gradients, uint64_t pass)
{
    ek_value_release(call->gradients);
    call->gradients = ek_value_keep(gradients);
    call->pass = pass;
}

/* Calls the hooks one after the other. Returns the list of the inputs' gradients, or an error. */
static ek_value hooked_run_backward(const hooked_call *call, ek_value gradients)
{
    if (ek_cast_lists_flush_all() < 0)
        return ek_value_error();
    for (int i = 0; i < call->hooks->count; i++) {
        const ek_hook *hook = &call->hooks->hooks[i];
        if (hook->kind != HOOK_BACKWARD)
            continue;
        ek_value result =
            ((ek_full_backward_hook *)hook->function)(gradients, call->gradients, hook->user);
        if (result.kind == EK_VALUE_ERROR || ek_error_outcome(0) < 0)
            return ek_value_error();
        if (result.kind == EK_VALUE_NONE)
            continue;
        if (result.kind != EK_VALUE_LIST || ek_value_length(result) != call->inputs) {
            EK_FAIL(EK_E_INVALID,
                    "a full backward hook of %s must return none or a list of %d gradients",
                    call->name, call->inputs);
            return ek_value_error();
        }
        gradients = result;
    }
    return gradients;
}

static int hooked_outputs_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    hooked_call *call = *(hooked_call *const *)ek_node_attributes(node);
    const int count = ek_node_output_count(node);
    ek_value list = hooked_list(gradients, call->output_places, count, call->outputs, true);
    if (list.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    hooked_note(call, list, ek_node_pass(node));
    for (int i = 0; i < count; i++)
        results[i] = gradients[i];
    if (call->place_count > 0)
        return 0;
    ek_value none = hooked_list(NULL, NULL, 0, call->inputs, false);
    bool failed =
        none.kind == EK_VALUE_ERROR || hooked_run_backward(call, none).kind == EK_VALUE_ERROR;
    hooked_note(call, ek_value_none(), 0);
    return failed ? ek_error_pending() : 0;
}

static int hooked_inputs_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    hooked_call *call = *(hooked_call *const *)ek_node_attributes(node);
    /* If the outputs got no gradients in this pass (a pass over gradients), no hook is called. */
    if (call->gradients.kind == EK_VALUE_NONE || call->pass != ek_node_pass(node)) {
        for (int i = 0; i < call->place_count; i++)
            results[i] = gradients[i];
        return 0;
    }
    ek_value list = hooked_list(gradients, call->places, call->place_count, call->inputs, false);
    if (list.kind != EK_VALUE_ERROR)
        list = hooked_run_backward(call, list);
    hooked_note(call, ek_value_none(), 0);
    if (list.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    for (int i = 0; i < call->place_count; i++) {
        ek_value item = ek_value_at(list, call->places[i]);
        results[i] = item.kind == EK_VALUE_TENSOR ? item.as.tensor : NULL;
    }
    return 0;
}

static const ek_operation hooked_inputs = {.name = "module inputs",
                                           .backward = hooked_inputs_backward,
                                           .destroy = hooked_release};
static const ek_operation hooked_outputs = {.name = "module outputs",
                                            .backward = hooked_outputs_backward,
                                            .destroy = hooked_release};

/* Replaces the tensors among `items` that carry a gradient by outputs of a node that changes
 * nothing. Writes the indices of these tensors to *places. Returns their number, or a negative
 * status. */
static int hooked_attach(hooked_call *call, const ek_operation *operation, ek_value *items,
                         int count, int **places)
{
    int found = 0;
    ek_tensor **tensors = ek_calloc(2 * (size_t)count + 1, sizeof *tensors);
    ek_tensor **views = tensors ? tensors + count : NULL;
    *places = ek_calloc((size_t)count + 1, sizeof **places);
    int rc = tensors && *places ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc >= 0; i++) {
        ek_tensor *x = items[i].kind == EK_VALUE_TENSOR ? items[i].as.tensor : NULL;
        if (!x || !x->requires_grad)
            continue;
        tensors[found] = x;
        views[found] = ek_tensor_view(x, x->ndim, x->shape, x->stride, x->offset);
        rc = views[found] ? 0 : ek_error_pending();
        (*places)[found++] = i;
    }
    if (rc >= 0 && found > 0) {
        hooked_call *held = ek_object_retain(call);
        rc = ek_record_outputs(views, found, operation,
                               &(const ek_record_options){.inputs = tensors,
                                                          .input_count = found,
                                                          EK_ATTRIBUTES(held)});
    }
    for (int i = 0; i < found && rc >= 0; i++)
        items[(*places)[i]].as.tensor = views[i];
    free(tensors);
    return rc < 0 ? rc : found;
}

/* ---- a call ---- */

static bool hook_list_has(const ek_hook_list *list, int kind)
{
    for (int i = 0; i < list->count; i++)
        if (list->hooks[i].kind == kind)
            return true;
    return false;
}

/* Returns an output that goes through the node which stores its gradients. */
static ek_value hooked_output(hooked_call *call, ek_value output)
{
    const bool list = output.kind == EK_VALUE_LIST;
    const int count = list ? ek_value_length(output) : 1;
    ek_value *items = ek_calloc((size_t)count + 1, sizeof *items), result = ek_value_error();
    for (int i = 0; items && i < count; i++)
        items[i] = list ? ek_value_at(output, i) : output;
    call->outputs = count;
    if (items && hooked_attach(call, &hooked_outputs, items, count, &call->output_places) >= 0)
        result = !list               ? items[0]
                 : output.per_device ? ek_value_per_device(items, count)
                                     : ek_value_list(items, count);
    free(items);
    return result;
}

/* If the call has backward hooks, lets the inputs go through a node, and sets *begun to the call's
 * record. *items becomes memory of the new inputs. */
static int hooked_begin(const ek_module *module, ek_hook_list *hooks, ek_args *args,
                        ek_value **items, hooked_call **begun)
{
    *begun = NULL;
    if (!ek_grad_enabled() || !hook_list_has(hooks, HOOK_BACKWARD))
        return 0;
    hooked_call *call = ek_calloc(1, sizeof *call);
    ek_value *inputs = ek_calloc((size_t)args->count + 1, sizeof *inputs);
    if (!call || !inputs) {
        free(call);
        free(inputs);
        return ek_error_pending();
    }
    ek_object_init(&call->object, hooked_destroy);
    call->hooks = ek_object_retain(hooks);
    call->name = module->type->name;
    call->inputs = args->count;
    for (int i = 0; i < args->count; i++)
        inputs[i] = args->inputs[i];
    *begun = call;
    free(*items);
    args->inputs = *items = inputs;
    return call->place_count =
               hooked_attach(call, &hooked_inputs, inputs, args->count, &call->places);
}

/* Sets *args to the inputs that a hook returned, and stores the inputs in `items`, which has room
 * for `room` of them. */
static int hook_take_inputs(const ek_module *module, ek_value given, ek_args *args,
                            ek_value **items)
{
    const bool list = given.kind == EK_VALUE_LIST;
    const int count = list ? ek_value_length(given) : 1;
    if (given.kind == EK_VALUE_ERROR || ek_error_outcome(0) < 0)
        return ek_error_status() < 0
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_STATE, "%s: a forward pre-hook failed", module->type->name);
    if (given.kind == EK_VALUE_NONE)
        return 0;
    ek_value *inputs = ek_calloc((size_t)count + 1, sizeof *inputs);
    if (!inputs)
        return ek_error_pending();
    for (int i = 0; i < count; i++)
        inputs[i] = list ? ek_value_at(given, i) : given;
    free(*items);
    *items = inputs;
    args->inputs = inputs;
    args->count = count;
    return 0;
}

ek_value ek_module_call_hooked(ek_module *module, const ek_args *args, ek_forward_function *forward)
{
    ek_args given = *args;
    ek_value *items = NULL, output = ek_value_error();
    ek_hook_list *list = ek_object_retain(module->members->hooks); /* a hook may remove itself */
    int rc = 0;
    for (int i = 0; i < list->count && rc >= 0; i++) {
        const ek_hook *hook = &list->hooks[i];
        if (hook->kind == HOOK_PRE)
            rc = hook_take_inputs(module,
                                  ((ek_forward_pre_hook *)hook->function)(module, &given,
                                                                          hook->user),
                                  &given, &items);
    }
    hooked_call *call = NULL;
    if (rc >= 0 && hooked_begin(module, list, &given, &items, &call) >= 0)
        output = forward(module, &given);
    for (int i = 0; i < list->count && output.kind != EK_VALUE_ERROR; i++) {
        const ek_hook *hook = &list->hooks[i];
        if (hook->kind != HOOK_FORWARD)
            continue;
        ek_value result = ((ek_forward_hook *)hook->function)(module, &given, output, hook->user);
        if (ek_error_outcome(0) < 0)
            result = ek_value_error();
        if (result.kind != EK_VALUE_NONE)
            output = result;
    }
    if (call && output.kind != EK_VALUE_ERROR) /* what the caller gets, whoever made it */
        output = hooked_output(call, output);
    ek_object_release(call);
    free(items);
    ek_object_release(list);
    return output;
}

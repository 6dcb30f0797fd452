/* function.c: the user's own functions as operations of the graph. */
#include "evenkeel/function.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "core/thread.h"
#include "core/trace.h"

/* One application of a user's function. The forward and the backwards share this object. The
 * graph's node holds a reference to it. `function` is a copy; `user` is owned. */
typedef struct application {
    ek_object object;
    ek_operation operation;
    ek_function function;
    void *user;
    unsigned autocast; /* EK_MODE_AUTOCASTS of forward, which backward runs under, too */
} application;

struct ek_function_call {
    application *application;
    ek_tensor *const *inputs; /* borrowed; NULL in backward */
    int input_count;
    ek_node *node; /* borrowed; NULL in forward */
    bool records;  /* true in a forward that is recorded */
    bool has_saved;
    int saved_count;
    ek_tensor *saved[EK_FUNCTION_TENSORS]; /* one reference each, in forward */
};

static void application_destroy(ek_object *object)
{
    application *self = (application *)object;
    if (self->function.destroy)
        self->function.destroy(self->user);
    free(self);
}

/* ---- what forward and backward ask ---- */

void *ek_function_user(const ek_function_call *call)
{
    if (!call)
        return NULL;
    return call->application->user;
}

int ek_function_save(ek_function_call *call, ek_tensor *const *tensors, int count)
{
    EK_TRY(ek_check_pointer("function_save", "the call", call));
    const char *name = call->application->function.name;
    EK_TRY(ek_error_status());
    if (call->node)
        return EK_FAIL(EK_E_STATE, "%s: ek_function_save is for the forward", name);
    if (call->has_saved)
        return EK_FAIL(EK_E_STATE, "%s: ek_function_save was called before; give all in one call",
                       name);
    if (count < 0 || count > EK_FUNCTION_TENSORS || (count && !tensors))
        return EK_FAIL(EK_E_INVALID, "%s: %d tensors%s cannot be saved; 0 to %d can", name, count,
                       count && !tensors ? " at NULL" : "", EK_FUNCTION_TENSORS);
    call->has_saved = true;
    call->saved_count = count;
    for (int i = 0; i < count; i++)
        call->saved[i] = ek_keep(tensors[i]);
    return 0;
}

ek_tensor *ek_function_saved(ek_function_call *call, int index)
{
    if (ek_check_pointer("function_saved", "the call", call) < 0)
        return NULL;
    if (call->node)
        return ek_node_saved(call->node, index);
    return EK_FAIL_NULL(EK_E_STATE, "%s: ek_function_saved is for the backward",
                        call->application->function.name);
}

bool ek_function_needs(const ek_function_call *call, int input)
{
    if (!call || input < 0 || input >= call->input_count)
        return false;
    if (call->node)
        return ek_node_needs(call->node, input);
    return call->records && call->inputs[input] && call->inputs[input]->requires_grad;
}

/* ---- backward ---- */

/* Casts gradients to their inputs' dtypes if autocast computed them in another dtype. */
static void function_match_inputs(const ek_node *node, ek_tensor **results)
{
    for (int i = 0; i < node->input_count; i++) {
        const ek_edge *edge = &node->edges[i];
        if (!results[i] || (!edge->node && !edge->leaf))
            continue;
        ek_dtype wanted = edge->leaf ? edge->leaf->dtype : edge->node->outputs[edge->output].dtype;
        ek_dtype given = results[i]->dtype;
        if (wanted != given && ek_dtype_wide(wanted) == EK_F32 && ek_dtype_wide(given) == EK_F32)
            results[i] = ek_fold_cast(results[i], wanted);
    }
}

static int function_run_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    application *self = *(application *const *)ek_node_attributes(node);
    ek_function_call call = {.application = self,
                             .node = node,
                             .input_count = ek_node_input_count(node)};
    unsigned *flags = &ek_thread_self()->modes.flags, before = *flags;
    EK_TRY(ek_cast_lists_flush_all());
    *flags = (before & ~(unsigned)EK_MODE_AUTOCASTS) | self->autocast;
    int rc = self->function.backward(&call, gradients, results);
    *flags = before;
    if (rc >= 0 && self->autocast)
        function_match_inputs(node, results);
    return rc;
}

static void application_release(void *attributes)
{
    ek_object_release(*(application **)attributes);
}

/* ---- forward ---- */

static int function_output_count_of(const ek_function *function)
{
    return function->outputs ? function->outputs : 1;
}

static int function_check_call(const ek_function *function, ek_tensor *const *inputs, int count,
                               ek_tensor **outputs)
{
    if (!function || !function->name || !function->forward)
        return EK_FAIL(EK_E_INVALID, "ek_function_apply: a function needs a name and a forward");
    if (count < 0 || count > EK_FUNCTION_TENSORS || (count && !inputs))
        return EK_FAIL(EK_E_INVALID, "%s: %d inputs%s; there can be 0 to %d", function->name, count,
                       count && !inputs ? " at NULL" : "", EK_FUNCTION_TENSORS);
    if (function->outputs < 0 || function->outputs > EK_FUNCTION_TENSORS || !outputs)
        return EK_FAIL(EK_E_INVALID, "%s: %d outputs%s; there can be 1 to %d", function->name,
                       function_output_count_of(function), outputs ? "" : " at NULL",
                       EK_FUNCTION_TENSORS);
    return 0;
}

/* Checks an output. Returns a new handle on its memory, in the scope, because the user may hold the
 * handle that the forward returned. */
static ek_tensor *function_check_output(const ek_function_call *call, int index, ek_tensor *output)
{
    const char *name = call->application->function.name;
    char text[200];
    if (!output) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_AUTOGRAD, "%s: forward left output %d NULL", name, index);
        return NULL;
    }
    for (int i = 0; i < call->input_count; i++) {
        if (!call->inputs[i] || call->inputs[i]->version != output->version)
            continue;
        return EK_FAIL_NULL(
            EK_E_AUTOGRAD,
            "%s: output %d, %s, is input %d or a view of its memory; give a copy (ek_clone)", name,
            index, ek_tensor_text(output, text), i);
    }
    if (output->requires_grad)
        return EK_FAIL_NULL(
            EK_E_AUTOGRAD,
            "%s: output %d, %s, was there before the forward and has a gradient of its own; "
            "give a copy (ek_clone)",
            name, index, ek_tensor_text(output, text));
    return ek_tensor_alias(output);
}

/* Replaces the outputs by new handles, also in the list of saved tensors. */
static int function_check_outputs(ek_function_call *call, ek_tensor **outputs, int output_count)
{
    for (int o = 0; o < output_count; o++) {
        ek_tensor *own = function_check_output(call, o, outputs[o]);
        if (!own)
            return ek_error_pending();
        for (int i = 0; i < call->saved_count; i++) {
            if (call->saved[i] != outputs[o])
                continue;
            ek_release(call->saved[i]);
            call->saved[i] = ek_keep(own);
        }
        outputs[o] = own;
    }
    return 0;
}

static int function_run_forward(ek_function_call *call, ek_tensor **outputs)
{
    const ek_function *function = &call->application->function;
    uint64_t versions[EK_FUNCTION_TENSORS];
    for (int i = 0; i < call->input_count; i++)
        versions[i] = ek_tensor_version(call->inputs[i]);
    ek_thread_modes before = ek_thread_self()->modes;
    ek_set_grad_enabled(false);
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMPUTE, "forward of", function->name,
                  call->input_count && call->inputs[0] ? ek_tensor_dev(call->inputs[0]) : NULL);
    int rc = function->forward(call, call->inputs, outputs);
    ek_span_end(&span);
    ek_thread_self()->modes = before;
    EK_TRY(ek_error_outcome(rc));
    for (int i = 0; i < call->input_count; i++) {
        char text[200];
        if (ek_tensor_version(call->inputs[i]) != versions[i])
            return EK_FAIL(EK_E_AUTOGRAD,
                           "%s: forward modified input %d, %s, in place; work on a copy (ek_clone)",
                           function->name, i, ek_tensor_text(call->inputs[i], text));
    }
    return 0;
}

static int function_record(ek_function_call *call, ek_tensor *const *outputs, int output_count)
{
    application *self = call->application;
    if (!call->records) {
        ek_thread_self()->meetings += self->operation.meets; /* else counted when it is recorded */
        return 0;
    }
    ek_object_retain(self); /* the node's reference */
    return ek_record_outputs(outputs, output_count, &self->operation,
                             &(ek_record_options){.inputs = call->inputs,
                                                  .input_count = call->input_count,
                                                  .saved = call->saved,
                                                  .saved_count = call->saved_count,
                                                  EK_ATTRIBUTES(self)});
}

/* Runs the forward and records it. Temporaries of the forward are freed here. */
static int function_apply(ek_function_call *call, ek_tensor **outputs, int output_count)
{
    const int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    int rc = function_run_forward(call, outputs);
    if (rc >= 0)
        rc = function_check_outputs(call, outputs, output_count);
    if (rc >= 0)
        rc = function_record(call, outputs, output_count);
    if (rc < 0)
        ek_error_prefix(before, "in forward of %s", call->application->function.name);
    for (int i = 0; i < call->saved_count; i++)
        ek_release(call->saved[i]);
    for (int o = 0; o < output_count; o++)
        outputs[o] = rc < 0 ? NULL : ek_keep(outputs[o]);
    ek_scope_end(&scope);
    for (int o = 0; o < output_count; o++) {
        outputs[o] = ek_scope_adopt(outputs[o]);
        if (rc >= 0 && !outputs[o])
            rc = ek_error_pending();
    }
    return rc < 0 ? rc : 0;
}

int ek_function_apply_user(const ek_function *function, ek_tensor *const *inputs, int count,
                           ek_tensor **outputs, void *user)
{
    int rc = ek_error_status();
    if (rc >= 0)
        rc = function_check_call(function, inputs, count, outputs);
    application *self = rc < 0 ? NULL : ek_calloc(1, sizeof *self);
    if (!self) {
        if (function && function->destroy)
            function->destroy(user);
        return ek_error_pending();
    }
    ek_object_init(&self->object, application_destroy);
    self->operation = (ek_operation){.name = function->name,
                                     .backward = function_run_backward,
                                     .destroy = application_release,
                                     .meets = function->meets && function->backward};
    self->function = *function;
    self->user = user;
    self->autocast = ek_thread_self()->modes.flags & EK_MODE_AUTOCASTS;
    int output_count = function_output_count_of(function);
    memset(outputs, 0, (size_t)output_count * sizeof *outputs);
    ek_function_call call = {.application = self,
                             .inputs = inputs,
                             .input_count = count,
                             .records = function->backward && ek_records(inputs, count)};
    rc = function_apply(&call, outputs, output_count);
    ek_object_release(self);
    return rc;
}

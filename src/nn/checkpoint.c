/* checkpoint.c: modules whose inner activations are computed again in backward: those inside of
 * ek_checkpoint, and those that ek_module_checkpoint has marked.
 *
 * The body's forward is a function of tensors: arguments, parameters and buffers. It runs without a
 * graph. One graph node keeps these tensors (buffers as copies) and the other state that the
 * forward read. Backward evaluates the function again on a copy of the body. */
#include <stdlib.h>

#include "autograd/graph.h"
#include "core/generator.h"
#include "core/value.h"
#include "nn/module_table.h"
#include "nn/nn.h"

/* ---- treedefs: a tree of values with an index in place of each tensor ---- */

/* The kind of an index in a treedef: as.integer is a position in a list of tensors. */
static const ek_value_kind index_kind = (ek_value_kind)(EK_VALUE_ERROR + 1);

static bool treedef_take(ek_value *value, void *user)
{
    ek_tensor_list *list = user;
    if (value->kind != EK_VALUE_TENSOR)
        return false;
    int index = 0;
    while (index < list->count && list->tensors[index] != value->as.tensor)
        index++;
    if (index == list->count && ek_tensor_list_append(list, value->as.tensor) < 0)
        *value = ek_value_error();
    else
        *value = (ek_value){.kind = index_kind, .batch = value->batch, .as.integer = index};
    return true;
}

static bool treedef_put(ek_value *value, void *user)
{
    ek_tensor *const *tensors = user;
    if (value->kind != index_kind)
        return false;
    ek_tensor *tensor = tensors[value->as.integer];
    *value = (ek_value){.kind = EK_VALUE_TENSOR, .batch = value->batch, .as.tensor = tensor};
    return true;
}

/* Returns the treedef of a value, or an error value, in the scope. Appends the tensors to `list`,
 * each once. */
static ek_value treedef_of(ek_value value, ek_tensor_list *list)
{
    return ek_value_map(value, treedef_take, list);
}

/* Returns the tree of a treedef with tensors[i] in place of index i, in the scope. */
static ek_value treedef_fill(ek_value treedef, ek_tensor *const *tensors)
{
    return ek_value_map(treedef, treedef_put, (void *)(uintptr_t)tensors);
}

/* ---- the record of one forward ---- */

/* A forward. `tensors` are those of the arguments, then the body's parameters, then its buffers. */
typedef struct record {
    ek_object object;
    ek_module *body;  /* one reference; the copies of its structs point to memory that it owns */
    ek_module *found; /* owned; a copy of the body's structs, made before the forward */
    ek_tensor_list tensors;
    ek_value arguments;               /* treedef of the list (inputs, keywords); one reference */
    int argument_tensors, parameters; /* how many of `tensors` these are */
    ek_generator generator;           /* the default generator before the forward */
    bool meets;                       /* the forward called operations that meet other ranks */
} record;

static void checkpoint_destroy_record(ek_object *object)
{
    record *self = (record *)object;
    ek_value_release(self->arguments);
    ek_tensor_list_clear(&self->tensors);
    ek_module_free(self->found);
    ek_module_free(self->body);
    free(self);
}

/* Returns true if tensor `index` of the record is a buffer that the body may write to. */
static bool checkpoint_is_state(const record *self, int index, const ek_tensor *tensor)
{
    return index >= self->argument_tensors + self->parameters && !tensor->requires_grad;
}

/* ---- evaluating again ---- */

/* Calls the forward of the body's type. Activations that no graph holds are freed. */
static ek_value checkpoint_call(ek_module *body, const ek_args *args)
{
    ek_scope scope = ek_scope_begin();
    ek_value output = body->type->forward(body, args);
    if (output.kind == EK_VALUE_TENSOR && !output.as.tensor)
        output = ek_value_error();
    return ek_scope_return_value(&scope, output);
}

/* Calls the body in its state before the forward, with `handles` in place of `tensors`. */
static ek_value checkpoint_call_again(const record *self, ek_tensor *const *handles)
{
    int first = self->argument_tensors, count = self->tensors.count - first;
    ek_value arguments = treedef_fill(self->arguments, handles);
    if (arguments.kind == EK_VALUE_ERROR)
        return arguments;
    ek_value inputs = ek_value_at(arguments, 0);
    ek_args args = {.count = ek_value_length(inputs), .keywords = ek_value_at(arguments, 1)};
    ek_value *items = ek_calloc((size_t)args.count, sizeof *items);
    ek_module *copy =
        ek_module_copy_with(self->found, self->tensors.tensors + first, handles + first, count);
    ek_value output = ek_value_error();
    if (items && copy) {
        for (int i = 0; i < args.count; i++)
            items[i] = ek_value_at(inputs, i);
        args.inputs = items;
        ek_generator again = self->generator;
        ek_generator *before = ek_generator_stand_in(&again);
        output = checkpoint_call(copy, &args);
        ek_generator_stand_in(before);
    }
    ek_module_free(copy);
    free(items);
    return output;
}

static int checkpoint_evaluate(ek_object *state, ek_tensor *const *inputs, int input_count,
                               ek_tensor **outputs, int output_count)
{
    const record *self = (const record *)state;
    ek_tensor **handles = ek_calloc((size_t)input_count, sizeof *handles);
    if (!handles)
        return ek_error_pending();
    int rc = 0;
    for (int i = 0; i < input_count && rc >= 0; i++) {
        /* The body gets copies of its buffers, because the forward has updated them. */
        handles[i] = checkpoint_is_state(self, i, inputs[i]) ? ek_clone(inputs[i]) : inputs[i];
        rc = handles[i] ? 0 : ek_error_pending();
    }
    ek_tensor_list list = {0};
    if (rc >= 0 && treedef_of(checkpoint_call_again(self, handles), &list).kind == EK_VALUE_ERROR)
        rc = ek_error_pending();
    if (rc >= 0 && list.count != output_count)
        rc = EK_FAIL(EK_E_STATE,
                     "the module gave %d tensors when it was computed again, but %d "
                     "in the forward; it must not depend on anything that changes outside of it",
                     list.count, output_count);
    for (int o = 0; o < output_count && rc >= 0; o++)
        outputs[o] = list.tensors[o];
    ek_tensor_list_clear(&list);
    free(handles);
    return rc;
}

/* ---- the forward ---- */

static record *checkpoint_new_record(ek_module *body, const ek_args *args)
{
    record *self = ek_calloc(1, sizeof *self);
    if (!self)
        return NULL;
    ek_object_init(&self->object, checkpoint_destroy_record);
    self->body = ek_module_retain(body);
    ek_value arguments = EK_LIST(ek_value_list(args->inputs, args->count), args->keywords);
    self->arguments = ek_value_keep(treedef_of(arguments, &self->tensors));
    self->argument_tensors = self->tensors.count;
    int rc = self->arguments.kind == EK_VALUE_ERROR ? ek_error_pending() : 0;
    if (rc >= 0)
        rc = ek_module_collect(body, true, false, &self->tensors);
    self->parameters = self->tensors.count - self->argument_tensors;
    if (rc >= 0)
        rc = ek_module_collect(body, false, true, &self->tensors);
    if (rc >= 0)
        return self;
    ek_object_release(self);
    return NULL;
}

/* Records the state that the forward will read: structs, generator and buffers. inputs[i] becomes
 * tensor i or, if that is a buffer, its copy. */
static int checkpoint_look(record *self, ek_tensor **inputs)
{
    int first = self->argument_tensors;
    self->found = ek_module_copy_with(self->body, self->tensors.tensors + first,
                                      self->tensors.tensors + first, self->tensors.count - first);
    if (!self->found)
        return ek_error_pending();
    ek_generator *generator = ek_generator_lock(NULL);
    self->generator = *generator;
    ek_generator_unlock(generator);
    for (int i = 0; i < self->tensors.count; i++) {
        inputs[i] = self->tensors.tensors[i];
        if (checkpoint_is_state(self, i, inputs[i]))
            inputs[i] = ek_clone(inputs[i]);
        if (!inputs[i])
            return ek_error_pending();
    }
    return 0;
}

/* Calls the body without a graph. Fails if the body writes to an input or a parameter. */
static ek_value checkpoint_call_body(record *self, const ek_args *args, ek_tensor *const *inputs,
                                     uint64_t *versions)
{
    for (int i = 0; i < self->tensors.count; i++)
        versions[i] = ek_tensor_version(inputs[i]);
    ek_thread *thread = ek_thread_self();
    ek_thread_modes before = thread->modes;
    unsigned meetings = thread->meetings;
    thread->modes.flags |= EK_MODE_NO_GRAD | EK_MODE_ALONE;
    ek_value output = checkpoint_call(self->body, args);
    thread->modes = before;
    self->meets = thread->meetings != meetings;
    for (int i = 0; i < self->tensors.count && output.kind != EK_VALUE_ERROR; i++) {
        char text[200];
        if (ek_tensor_version(inputs[i]) == versions[i])
            continue;
        EK_FAIL(EK_E_AUTOGRAD,
                "the forward modified %s, %s, in place; when it is computed again it "
                "would find it modified; work on a copy (ek_clone)",
                i < self->argument_tensors ? "an input" : "a parameter",
                ek_tensor_text(inputs[i], text));
        return ek_value_error();
    }
    return output;
}

static const ek_operation operation = {.name = "checkpoint",
                                       .backward = ek_recomputed_backward,
                                       .destroy = ek_recomputed_destroy};
static const ek_operation meeting_operation = {.name = "checkpoint",
                                               .backward = ek_recomputed_backward,
                                               .destroy = ek_recomputed_destroy,
                                               .meets = true};

/* Returns the output with a graph of one node, which evaluates the forward again in backward. */
static ek_value checkpoint_attach(record *self, ek_value output, ek_tensor *const *inputs)
{
    ek_tensor_list list = {0};
    ek_value treedef = treedef_of(output, &list);
    ek_recomputed recomputed = {self->meets ? &meeting_operation : &operation, checkpoint_evaluate,
                                &self->object, ek_thread_self()->modes.flags};
    if (treedef.kind != EK_VALUE_ERROR &&
        ek_record_recomputed(list.tensors, list.count, &recomputed, inputs, self->tensors.count) >=
            0)
        treedef = treedef_fill(treedef, list.tensors);
    else
        treedef = ek_value_error();
    ek_tensor_list_clear(&list);
    return treedef;
}

ek_value ek_module_call_checkpointed(ek_module *body, const ek_args *args)
{
    if (!ek_grad_enabled())
        return checkpoint_call(body, args);
    record *self = checkpoint_new_record(body, args);
    if (!self)
        return ek_value_error();
    int count = self->tensors.count;
    ek_value output = ek_value_error();
    if (!ek_records(self->tensors.tensors, count)) {
        ek_object_release(self);
        return checkpoint_call(body, args);
    }
    ek_tensor **inputs = ek_calloc((size_t)count, sizeof *inputs);
    uint64_t *versions = ek_calloc((size_t)count, sizeof *versions);
    if (inputs && versions && checkpoint_look(self, inputs) >= 0)
        output = checkpoint_call_body(self, args, inputs, versions);
    if (output.kind != EK_VALUE_ERROR)
        output = checkpoint_attach(self, output, inputs);
    free(inputs);
    free(versions);
    ek_object_release(self);
    return output;
}

int ek_module_checkpoint(ek_module *module, bool on)
{
    EK_TRY(ek_check_handle("module_checkpoint", "the module", module));
    module->members->is_checkpointed = on;
    return 0;
}

/* ---- a module around a body, itself checkpointed ---- */

typedef struct checkpoint {
    ek_module module;
    ek_module *body;
} checkpoint;

static ek_value checkpoint_forward(ek_module *module, const ek_args *args)
{
    return ek_module_forward(((checkpoint *)module)->body, args);
}

static const ek_module_type checkpoint_type = {.name = "checkpoint",
                                               .size = sizeof(checkpoint),
                                               .forward = checkpoint_forward};

ek_module *ek_checkpoint(ek_module *body)
{
    if (!body) {
        if (ek_error_status() == 0)
            EK_FAIL(EK_E_INVALID, "checkpoint: the module is NULL");
        return NULL;
    }
    checkpoint *self = (checkpoint *)ek_module_new(&checkpoint_type);
    if (!self) {
        ek_module_discard(body);
        return NULL;
    }
    self->module.training = body->training;
    self->module.members->is_checkpointed = true;
    ek_register_module(&self->module, "", &self->body, body);
    return ek_module_finish(&self->module);
}

/* trace.c: see trace.h.
 *
 * A tensor's number is found by the tensor's address. The trace holds a reference to each tensor
 * that it knows, so that no address is used twice. Two handles on the same elements have one
 * number. A result of constants is a constant, and its operation is not recorded. */
#include "onnx/trace.h"

#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "core/value.h"
#include "evenkeel/autograd.h"

static void trace_fail(ek_onnx_trace *trace, int status)
{
    if (status < 0 && trace->status == 0)
        trace->status = status;
}

static const char *trace_path(const ek_onnx_trace *trace)
{
    const char *path = NULL;
    for (int i = trace->depth; !path && i > 0; i--) /* parts that are no children have no path */
        path = ek_map_find(&trace->paths, trace->stack[i - 1]);
    return path ? path : "";
}

const char *ek_onnx_place(const ek_onnx_record *record, char text[200])
{
    if (record->path[0])
        snprintf(text, 200, "%s (%s)", record->path, record->operation);
    else
        snprintf(text, 200, "%s", record->operation);
    return text;
}

/* ---- values ---- */

uint64_t ek_onnx_version(const ek_tensor *tensor)
{
    return ek_version_writes(tensor->version);
}

/* Adds a value, or a handle on the value `same` (-1: none). Returns the value's number, or -1. */
static int trace_add(ek_onnx_trace *trace, ek_tensor *tensor, ek_onnx_kind kind, int same)
{
    const int number = trace->value_count;
    void **at = NULL;
    if (ek_grow(&trace->values, &trace->value_room, number + 1) < 0 ||
        !(at = ek_map_at(&trace->numbers, tensor))) {
        trace_fail(trace, EK_E_NO_MEMORY);
        return -1;
    }
    trace->values[trace->value_count++] =
        (ek_onnx_value){.tensor = ek_object_retain(tensor),
                        .kind = same < 0 ? kind : trace->values[same].kind,
                        .version = ek_onnx_version(tensor),
                        .record = -1,
                        .same = same < 0 ? number : same};
    *at = (void *)(intptr_t)trace->value_count;
    return trace->values[number].same;
}

static int trace_refuse_written(ek_onnx_trace *trace, const ek_tensor *tensor)
{
    trace_fail(trace,
               EK_FAIL(EK_E_INVALID,
                       "%s: %s shows memory that was written in place, or a part of a tensor "
                       "that no operation made; make new tensors instead",
                       trace_path(trace), ek_tensor_text(tensor, (char[200]){0})));
    return -1;
}

/* Finds the value whose elements this handle shows. Returns its number, or -1 for a tensor that the
 * trace doesn't know. */
static int trace_find_handle(ek_onnx_trace *trace, ek_tensor *tensor)
{
    bool shares = false;
    for (int i = trace->value_count - 1; i >= 0; i--) {
        const ek_onnx_value *value = &trace->values[i];
        const ek_tensor *known = value->tensor;
        if (known->version != tensor->version || value->kind == EK_ONNX_CONSTANT)
            continue;
        if (known->offset == tensor->offset && known->dtype == tensor->dtype &&
            ek_same_shape(known, tensor) && ek_same_layout(known, tensor) &&
            value->version == ek_onnx_version(tensor))
            return trace_add(trace, tensor, value->kind, value->same);
        shares = true;
    }
    return shares ? trace_refuse_written(trace, tensor) : -1;
}

/* Returns the number of a value that the trace knows, or -1. */
static int trace_find(ek_onnx_trace *trace, ek_tensor *tensor)
{
    if (!tensor)
        return -1;
    const int number = (int)(intptr_t)ek_map_find(&trace->numbers, tensor) - 1;
    if (number >= 0 && trace->values[number].version == ek_onnx_version(tensor))
        return trace->values[number].same;
    return number < 0 ? trace_find_handle(trace, tensor) : trace_refuse_written(trace, tensor);
}

static bool trace_depends(ek_onnx_trace *trace, ek_tensor *const *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        const int number = trace_find(trace, tensors[i]);
        if (number >= 0 && trace->values[number].kind != EK_ONNX_CONSTANT)
            return true;
    }
    return false;
}

/* Returns the number of an operand. A tensor that the trace doesn't know is a constant. */
static int trace_operand(ek_onnx_trace *trace, ek_tensor *tensor)
{
    const int number = trace_find(trace, tensor);
    return tensor && number < 0 ? trace_add(trace, tensor, EK_ONNX_CONSTANT, -1) : number;
}

/* ---- records ---- */

static int *trace_operands(ek_onnx_trace *trace, ek_tensor *const *tensors, int count)
{
    int *numbers = ek_calloc((size_t)count + 1, sizeof *numbers);
    for (int i = 0; numbers && i < count; i++)
        numbers[i] = trace_operand(trace, tensors[i]);
    if (!numbers)
        trace_fail(trace, EK_E_NO_MEMORY);
    return numbers;
}

static void trace_record(ek_onnx_trace *trace, const char *name, const ek_recurrent_module *network,
                         ek_tensor *const *outputs, int output_count, const ek_record_options *o)
{
    if (ek_grow(&trace->records, &trace->record_room, trace->record_count + 1) < 0) {
        trace_fail(trace, EK_E_NO_MEMORY);
        return;
    }
    ek_onnx_record *record = &trace->records[trace->record_count];
    *record = (ek_onnx_record){.operation = name,
                               .path = trace_path(trace),
                               .network = network,
                               .attributes = ek_calloc(1, o->attributes_size + 1),
                               .inputs = trace_operands(trace, o->inputs, o->input_count),
                               .saved = trace_operands(trace, o->saved, o->saved_count),
                               .outputs = ek_calloc((size_t)output_count + 1, sizeof(int)),
                               .input_count = o->input_count,
                               .saved_count = o->saved_count,
                               .output_count = output_count};
    if (record->attributes && o->attributes_size)
        memcpy(record->attributes, o->attributes, o->attributes_size);
    for (int i = 0; record->outputs && i < output_count; i++) {
        const int number = outputs[i] ? trace_add(trace, outputs[i], EK_ONNX_RESULT, -1) : -1;
        record->outputs[i] = number;
        if (number >= 0)
            trace->values[number].record = trace->record_count;
    }
    if (!record->attributes || !record->outputs)
        trace_fail(trace, EK_E_NO_MEMORY);
    trace->record_count++;
}

/* Notes that an operation has written x in place. Fails if x is a constant that becomes a result,
 * because the elements before the write are lost. Constants that are operands already keep their
 * version, which is compared when they are written to the file. */
static void trace_written(ek_onnx_trace *trace, const char *name, ek_tensor *x, bool depends)
{
    const int number = (int)(intptr_t)ek_map_find(&trace->numbers, x) - 1;
    if (number >= 0 && trace->values[number].kind != EK_ONNX_CONSTANT)
        trace->values[number].version = ek_onnx_version(x);
    else if (depends && strcmp(name, "copy_") != 0)
        trace_fail(trace,
                   EK_FAIL(EK_E_INVALID, "%s: %s writes to a constant in place; make a new tensor",
                           trace_path(trace), name));
}

/* Returns true for operations whose result has the input's elements. */
static bool trace_copies(const char *name)
{
    return strcmp(name, "contiguous") == 0 || strcmp(name, "clone") == 0 ||
           strcmp(name, "to_device") == 0;
}

/* Returns true for operations that only give a gradient to a result of other operations. */
static bool trace_ignores(const char *name)
{
    return strcmp(name, "embedding") == 0 || strcmp(name, "counted") == 0;
}

static void trace_operation(ek_observer *observer, const char *name, ek_tensor *const *outputs,
                            int output_count, const ek_record_options *o)
{
    ek_onnx_trace *trace = (ek_onnx_trace *)observer;
    if (trace->status < 0 || trace_ignores(name))
        return;
    const bool in_place = o->input_count > 0 && outputs[0] && outputs[0] == o->inputs[0];
    const bool depends = trace_depends(trace, o->inputs + in_place, o->input_count - in_place) ||
                         trace_depends(trace, o->saved, o->saved_count);
    if (in_place)
        trace_written(trace, name, outputs[0], depends);
    if (!depends && !(in_place && trace_depends(trace, outputs, 1)))
        return;
    if (trace_copies(name))
        trace_add(trace, outputs[0], EK_ONNX_RESULT, trace_operand(trace, o->inputs[0]));
    else
        trace_record(trace, name, NULL, outputs, output_count, o);
}

/* ---- modules ---- */

static void trace_enter(ek_observer *observer, ek_module *module)
{
    ek_onnx_trace *trace = (ek_onnx_trace *)observer;
    if (ek_grow(&trace->stack, &trace->stack_room, trace->depth + 1) < 0)
        trace_fail(trace, EK_E_NO_MEMORY);
    else
        trace->stack[trace->depth] = module;
    trace->depth++;
}

/* Records a recurrent network as one operation, which comes after those of its steps, so that the
 * outputs are its own. ONNX has no projections: networks with these stay steps. */
static void trace_network(ek_onnx_trace *trace, ek_module *module, const ek_args *args,
                          ek_value output)
{
    const ek_recurrent_module *network = ek_recurrent_module_of(module);
    ek_recurrent_inputs in;
    if (!network || network->proj_size > 0)
        return;
    trace_fail(trace, ek_recurrent_module_read(network, args, &in));
    if (trace->status < 0)
        return;
    const ek_value state = ek_value_at(output, 1);
    const bool lstm = network->kind == EK_RECURRENCE_LSTM;
    ek_tensor *inputs[] = {in.x, in.state.h, in.state.c, in.lengths};
    ek_tensor *outputs[] = {ek_value_tensor(ek_value_at(output, 0)),
                            ek_value_tensor(lstm ? ek_value_at(state, 0) : state),
                            lstm ? ek_value_tensor(ek_value_at(state, 1)) : NULL};
    if (trace_depends(trace, inputs, 4))
        trace_record(trace, module->type->name, network, outputs, lstm ? 3 : 2,
                     &(ek_record_options){.inputs = inputs, .input_count = 4});
}

static void trace_leave(ek_observer *observer, ek_module *module, const ek_args *args,
                        ek_value output)
{
    ek_onnx_trace *trace = (ek_onnx_trace *)observer;
    if (trace->status >= 0 && output.kind != EK_VALUE_ERROR)
        trace_network(trace, module, args, output);
    trace->depth--;
}

/* ---- a run ---- */

static int trace_name_module(const char *path, ek_module *module, void *user)
{
    ek_onnx_trace *trace = user;
    void **at = ek_map_at(&trace->paths, module);
    if (!at)
        return ek_error_pending();
    *at = (void *)path;
    return 0;
}

static int trace_name_tensor(const char *path, ek_tensor *tensor, void *user)
{
    ek_onnx_trace *trace = user;
    const int number = trace_add(trace, tensor, EK_ONNX_PARAMETER, -1);
    if (number < 0)
        return ek_error_pending();
    trace->values[number].name = path;
    return 0;
}

/* Adds the tensors of the forward's result, one after the other. */
static int trace_outputs(ek_onnx_trace *trace, ek_value output)
{
    if (output.kind == EK_VALUE_TENSOR) {
        EK_TRY(ek_grow(&trace->outputs, &trace->output_room, trace->output_count + 1));
        const int number = trace_find(trace, output.as.tensor);
        if (number < 0 || trace->values[number].kind == EK_ONNX_CONSTANT)
            return trace->status < 0
                       ? trace->status
                       : EK_FAIL(EK_E_INVALID,
                                 "output %d is made of no input and no parameter by operations on "
                                 "this thread",
                                 trace->output_count);
        trace->outputs[trace->output_count++] = number;
    }
    for (int i = 0; i < ek_value_length(output); i++)
        EK_TRY(trace_outputs(trace, ek_value_at(output, i)));
    return 0;
}

int ek_onnx_trace_run(ek_onnx_trace *trace, ek_module *module, ek_value inputs,
                      ek_tensor *const *tensors, int count)
{
    ek_thread *self = ek_thread_self();
    trace->observer = (ek_observer){trace_operation, trace_enter, trace_leave};
    for (int i = 0; i < count; i++)
        if (trace_add(trace, tensors[i], EK_ONNX_INPUT, -1) < 0)
            return trace->status;
    EK_TRY(ek_module_modules(module, trace_name_module, trace));
    EK_TRY(ek_module_parameters(module, trace_name_tensor, trace));
    EK_TRY(ek_module_buffers(module, trace_name_tensor, trace));
    const ek_args args = {inputs.kind == EK_VALUE_LIST ? ek_value_items(inputs) : &inputs,
                          inputs.kind == EK_VALUE_LIST ? ek_value_length(inputs) : 1,
                          ek_value_none()};
    ek_observer *before = self->observer;
    const bool gradients = ek_set_grad_enabled(false);
    self->observer = &trace->observer;
    const ek_value output = ek_module_forward(module, &args);
    self->observer = before;
    ek_set_grad_enabled(gradients);
    EK_TRY(trace->status);
    if (output.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    EK_TRY(trace_outputs(trace, output));
    return trace->output_count > 0
               ? 0
               : EK_FAIL(EK_E_INVALID, "%s gives no tensor", module->type->name);
}

void ek_onnx_trace_clear(ek_onnx_trace *trace)
{
    for (int i = 0; i < trace->value_count; i++)
        ek_release(trace->values[i].tensor);
    for (int i = 0; i < trace->record_count; i++) {
        const ek_onnx_record *record = &trace->records[i];
        void *const owned[] = {record->attributes, record->inputs, record->saved, record->outputs};
        for (int k = 0; k < 4; k++)
            free(owned[k]);
    }
    void *const owned[] = {trace->values, trace->records, trace->stack, trace->outputs};
    for (int k = 0; k < 4; k++)
        free(owned[k]);
    ek_map_clear(&trace->numbers);
    ek_map_clear(&trace->paths);
    *trace = (ek_onnx_trace){.status = 0};
}

static bool trace_same(const int *a, const int *b, int a_count, int b_count)
{
    return a_count == b_count && memcmp(a, b, (size_t)a_count * sizeof *a) == 0;
}

int ek_onnx_trace_compare(const ek_onnx_trace *a, const ek_onnx_trace *b)
{
    const int count = a->record_count < b->record_count ? a->record_count : b->record_count;
    int i = 0;
    for (; i < count; i++) {
        const ek_onnx_record *x = &a->records[i], *y = &b->records[i];
        if (strcmp(x->operation, y->operation) != 0 || strcmp(x->path, y->path) != 0 ||
            !trace_same(x->inputs, y->inputs, x->input_count, y->input_count) ||
            !trace_same(x->saved, y->saved, x->saved_count, y->saved_count) ||
            !trace_same(x->outputs, y->outputs, x->output_count, y->output_count))
            break;
    }
    if (i == a->record_count && i == b->record_count &&
        trace_same(a->outputs, b->outputs, a->output_count, b->output_count))
        return 0;
    const ek_onnx_trace *longer = a->record_count > i ? a : b;
    return EK_FAIL(
        EK_E_INVALID,
        "which operations run depends on the batch's size or on the inputs' elements%s%s",
        i < longer->record_count ? ", from " : "",
        i < longer->record_count ? ek_onnx_place(&longer->records[i], (char[200]){0}) : "");
}

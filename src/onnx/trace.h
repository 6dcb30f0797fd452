/* trace.h: what a forward computes, as records of operations and of the values between them. */
#ifndef EK_ONNX_TRACE_H
#define EK_ONNX_TRACE_H

#include "autograd/observer.h"
#include "core/map.h"
#include "nn/recurrent_module.h"

typedef enum ek_onnx_kind {
    EK_ONNX_RESULT,
    EK_ONNX_INPUT,
    EK_ONNX_PARAMETER, /* or a buffer */
    EK_ONNX_CONSTANT   /* any other tensor that is an operand */
} ek_onnx_kind;

typedef struct ek_onnx_value {
    ek_tensor *tensor; /* one reference */
    ek_onnx_kind kind;
    uint64_t version; /* of the memory, when the value was made */
    int record;       /* of a result: the record that made it */
    int same;         /* the value of which this tensor is another handle; else its own number */
    const char *name; /* of a parameter: its path */
} ek_onnx_value;

/* An operation, or the call of a recurrent network. Operands are numbers of values; -1 for NULL. */
typedef struct ek_onnx_record {
    const char *operation;
    const char *path; /* of the module that called the operation; "" for the outermost */
    const ek_recurrent_module *network; /* NULL for operations */
    void *attributes;                   /* a copy */
    int *inputs, *saved, *outputs;
    int input_count, saved_count, output_count;
} ek_onnx_record;

typedef struct ek_onnx_trace {
    ek_observer observer;
    int status; /* 0, or the first error */
    ek_onnx_value *values;
    ek_onnx_record *records;
    int value_count, value_room, record_count, record_room;
    ek_map numbers;    /* of each tensor: 1 + the number of its last value */
    ek_map paths;      /* of each module, from the exported one (core/path.h) */
    ek_module **stack; /* the modules that are being called */
    int depth, stack_room;
    int *outputs; /* values of the forward's result */
    int output_count, output_room;
} ek_onnx_trace;

/* Runs a forward without gradients and traces it. `tensors` are the inputs' tensors, which become
 * the first values. Clear the trace, also after an error. */
int ek_onnx_trace_run(ek_onnx_trace *trace, ek_module *module, ek_value inputs,
                      ek_tensor *const *tensors, int count);
void ek_onnx_trace_clear(ek_onnx_trace *trace);

/* Checks that both traces have the same operations on the same values. */
int ek_onnx_trace_compare(const ek_onnx_trace *a, const ek_onnx_trace *b);

/* Returns how often the tensor's memory was written. */
uint64_t ek_onnx_version(const ek_tensor *tensor);

/* Returns "module path (operation)" for sentences. */
const char *ek_onnx_place(const ek_onnx_record *record, char text[200]);

#endif

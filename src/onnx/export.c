/* export.c: modules as ONNX files.
 *
 *     ek_onnx_export_with     checks, evaluation mode
 *     export_run              example inputs of two batch sizes, export_trace for each
 *     ek_onnx_trace_run       trace.c: the operations of a forward
 *     export_mark             which records the outputs need
 *     export_write            a graph for each trace, by the tables of rows; both must be equal
 *     export_model            parameters, inputs, outputs, and what is around the graph
 *
 * The forward is traced because a user's module is a function in C, of which nothing is known but
 * the operations that it runs. It is traced twice because a number that comes from the batch's size
 * or from the inputs' elements looks like any other number. The runs have different batch sizes and
 * elements. Sizes of tensors that differ are written as multiples of the batch's size. If anything
 * else differs, the export is refused. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/value.h"
#include "evenkeel/onnx.h"
#include "evenkeel/version.h"
#include "onnx/graph.h"

enum { MODEL_IR = 1, MODEL_PRODUCER, MODEL_VERSION, MODEL_GRAPH = 7, MODEL_OPSET };
enum { OPSET_DOMAIN = 1, OPSET_VERSION, GRAPH_NAME = 2, GRAPH_INPUT = 11, GRAPH_OUTPUT };
enum { VALUE_NAME = 1, VALUE_TYPE, TYPE_TENSOR = 1, TENSOR_TYPE = 1, TENSOR_SHAPE };
enum { SHAPE_DIM = 1, DIM_VALUE = 1, DIM_PARAM };
enum { FIRST_OPSET = 17, LAST_OPSET = 20 };
static const char export_name[] = "onnx_export";

typedef struct exporter {
    ek_onnx_options options;
    int first_dim;   /* the batch dimension of the first tensor of the inputs */
    int64_t batch;   /* of the example */
    int64_t size[2]; /* the batch sizes of both runs */
    ek_onnx_trace traces[2];
    ek_onnx_graph graphs[2];
    ek_protobuf model;        /* a ModelProto up to the bytes of its graph */
    const ek_onnx_row **rows; /* of each record that the outputs need; else NULL */
    size_t *ends;             /* where each record's part of the first graph ends */
    ek_tensor **tensors;      /* of the inputs (borrowed) */
    int tensor_count, tensor_room;
} exporter;

/* ---- example inputs ---- */

/* Whose example inputs are made. */
typedef struct export_example {
    const exporter *self;
    int run;
} export_example;

/* Replaces a tensor of the inputs by one of the run's batch size. Run 1 reverses the elements. */
static bool export_enlarge(ek_value *value, void *user)
{
    const export_example *example = user;
    const exporter *self = example->self;
    const int dim = ek_value_batch_dim(*value, 0);
    ek_tensor *x = value->kind == EK_VALUE_TENSOR ? value->as.tensor : NULL;
    if (!x)
        return false;
    ek_shape dims = {.ndim = x->ndim};
    for (int d = 0; d < x->ndim; d++)
        dims.dims[d] = d;
    if (example->run == 1)
        x = ek_flip(x, dims);
    if (x && x->ndim > dim && x->shape[dim] == self->batch) {
        ek_tensor *parts[3] = {x}; /* at most two samples more */
        int count = 1;
        while (self->batch + count - 1 < self->size[example->run])
            parts[count++] = ek_narrow(x, dim, 0, 1);
        x = ek_cat(parts, count, dim);
    }
    *value = ek_value_with_tensor(*value, x);
    return true;
}

/* Lists the tensors in a value. */
static int export_list(exporter *self, ek_value value)
{
    if (value.kind == EK_VALUE_TENSOR) {
        EK_TRY(ek_grow(&self->tensors, &self->tensor_room, self->tensor_count + 1));
        if (self->tensor_count == 0)
            self->first_dim = ek_value_batch_dim(value, 0);
        self->tensors[self->tensor_count++] = value.as.tensor;
    }
    for (int i = 0; i < ek_value_length(value); i++)
        EK_TRY(export_list(self, ek_value_at(value, i)));
    return 0;
}

static int export_sizes(exporter *self)
{
    EK_TRY(export_list(self, self->options.inputs));
    if (self->tensor_count == 0)
        return EK_FAIL(EK_E_INVALID, "the inputs have no tensor");
    const ek_tensor *first = self->tensors[0];
    const bool batched = first->ndim > self->first_dim;
    self->batch = batched ? first->shape[self->first_dim] : 0;
    if (batched && self->batch < 1)
        return EK_FAIL(EK_E_INVALID, "the example has an empty batch");
    /* A batch of one sample would look like a dimension that broadcasts. */
    const bool dynamic = self->options.dynamic_batch && batched;
    self->size[0] = dynamic && self->batch == 1 ? 2 : self->batch;
    self->size[1] = self->size[0] + dynamic;
    return 0;
}

static int export_trace(exporter *self, int run)
{
    export_example example = {self, run};
    const ek_value inputs = ek_value_map(self->options.inputs, export_enlarge, &example);
    if (inputs.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    self->tensor_count = 0;
    EK_TRY(export_list(self, inputs));
    return ek_onnx_trace_run(&self->traces[run], self->options.module, inputs, self->tensors,
                             self->tensor_count);
}

/* ---- which records are needed ---- */

static const ek_onnx_row *export_row(const char *operation)
{
    const ek_onnx_row *const tables[] = {ek_onnx_elementwise, ek_onnx_shapes, ek_onnx_spatial,
                                         ek_onnx_layers, ek_onnx_networks};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const ek_onnx_row *row = tables[i]; row->operation; row++)
            if (strcmp(row->operation, operation) == 0)
                return row;
    return NULL;
}

static int export_need(exporter *self, int value)
{
    const ek_onnx_trace *trace = &self->traces[0];
    const int record = value < 0 ? -1 : trace->values[value].record;
    if (record < 0 || self->rows[record])
        return 0;
    self->rows[record] = export_row(trace->records[record].operation);
    if (!self->rows[record])
        return EK_FAIL(EK_E_INVALID, "%s has no counterpart in ONNX",
                       ek_onnx_place(&trace->records[record], (char[200]){0}));
    return 0;
}

/* Walks back from the outputs. Operands of a record are made by earlier records. */
static int export_mark(exporter *self)
{
    const ek_onnx_trace *trace = &self->traces[0];
    self->rows = ek_calloc((size_t)trace->record_count + 1, sizeof *self->rows);
    self->ends = ek_calloc((size_t)trace->record_count + 1, sizeof *self->ends);
    if (!self->rows || !self->ends)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < trace->output_count; i++)
        EK_TRY(export_need(self, trace->outputs[i]));
    for (int k = trace->record_count - 1; k >= 0; k--) {
        const ek_onnx_record *r = &trace->records[k];
        const ek_onnx_row *row = self->rows[k];
        for (int i = 0; row && i < r->input_count; i++)
            EK_TRY(export_need(self, row->broadcasts && r->inputs[i] >= 0
                                         ? ek_onnx_unexpanded(&self->graphs[0], r, i)
                                         : r->inputs[i]));
        for (int i = 0; row && i < r->saved_count; i++)
            EK_TRY(row->saved >> i & 1 ? export_need(self, r->saved[i]) : 0);
    }
    return 0;
}

/* ---- the graph ---- */

/* Returns the name of input or output i of `count`: the caller's, or a default. */
static const char *export_label(ek_onnx_graph *g, const char *const *names, const char *otherwise,
                                int i, int count)
{
    return names && names[i] ? ek_onnx_text(g, "%s", names[i])
           : count == 1      ? ek_onnx_text(g, "%s", otherwise)
                             : ek_onnx_text(g, "%s_%d", otherwise, i);
}

static void export_write_record(ek_onnx_graph *g, const ek_onnx_record *r, const ek_onnx_row *row)
{
    g->path = r->path;
    g->row = row;
    const char *name = row->write(g, r);
    if (name)
        g->names[r->outputs[0]] = name;
}

/* Returns true if bytes [begin, end) of both messages are equal. An empty message has no bytes. */
static bool export_same(const ek_protobuf *a, const ek_protobuf *b, size_t begin, size_t end)
{
    return begin == end || memcmp(a->bytes + begin, b->bytes + begin, end - begin) == 0;
}

/* Writes the graph of one run. The second graph is compared with the first, record by record. */
static int export_write(exporter *self, int run)
{
    ek_onnx_graph *g = &self->graphs[run];
    const ek_onnx_graph *first = &self->graphs[0];
    const ek_onnx_trace *trace = g->trace;
    g->names = ek_calloc((size_t)trace->value_count, sizeof *g->names);
    if (!g->names)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < self->tensor_count; i++)
        g->names[i] = export_label(g, self->options.input_names, "input", i, self->tensor_count);
    for (int k = 0; k < trace->record_count && g->status >= 0; k++) {
        const size_t begin = g->body.nbytes;
        if (self->rows[k])
            export_write_record(g, &trace->records[k], self->rows[k]);
        EK_TRY(g->status < 0 ? g->status : g->body.status);
        if (run == 0)
            self->ends[k] = g->body.nbytes;
        else if (g->body.nbytes != self->ends[k] ||
                 !export_same(&g->body, &first->body, begin, self->ends[k]))
            ek_onnx_refuse(g, &trace->records[k],
                           "has numbers that depend on the batch's size, or on the inputs' "
                           "elements, otherwise than ONNX can compute");
    }
    return g->status;
}

/* Adds nodes that give the outputs their names. */
static void export_write_outputs(exporter *self)
{
    ek_onnx_graph *g = &self->graphs[0];
    g->path = "";
    for (int i = 0; i < g->trace->output_count; i++) {
        const char *name =
            export_label(g, self->options.output_names, "output", i, g->trace->output_count);
        ek_onnx_node_outputs(g, "Identity", IN(ek_onnx_name(g, g->trace->outputs[i])),
                             (const ek_onnx_attribute[]){{0}}, &name, 1);
    }
}

/* ---- the model ---- */

static void export_put_value(ek_onnx_graph *g, int field, const char *name, int value)
{
    const ek_tensor *x = g->trace->values[value].tensor;
    ek_protobuf shape = {0}, tensor = {0}, type = {0}, info = {0};
    for (int d = 0; d < x->ndim; d++) {
        const int64_t batches = ek_onnx_batches(g, value, d);
        ek_protobuf dim = {0};
        if (batches == 1)
            ek_protobuf_text(&dim, DIM_PARAM, "N");
        else if (batches > 1)
            ek_protobuf_text(&dim, DIM_PARAM, ek_onnx_text(g, "%lldN", (long long)batches));
        else
            ek_protobuf_int(&dim, DIM_VALUE, x->shape[d]);
        ek_protobuf_message(&shape, SHAPE_DIM, &dim);
    }
    ek_protobuf_int(&tensor, TENSOR_TYPE, ek_onnx_dtype(x->dtype));
    ek_protobuf_message(&tensor, TENSOR_SHAPE, &shape);
    ek_protobuf_message(&type, TYPE_TENSOR, &tensor);
    ek_protobuf_text(&info, VALUE_NAME, name);
    ek_protobuf_message(&info, VALUE_TYPE, &type);
    ek_protobuf_message(&g->body, field, &info);
}

static int export_put_parameters(ek_onnx_graph *g)
{
    size_t nbytes = g->body.nbytes;
    for (int v = 0; v < g->trace->value_count; v++) {
        const ek_onnx_value *value = &g->trace->values[v];
        if (value->kind != EK_ONNX_PARAMETER || !g->names[v] || value->same != v)
            continue;
        nbytes += (size_t)ek_count(value->tensor) * ek_dtype_size(value->tensor->dtype);
        if (nbytes >= INT32_MAX)
            return EK_FAIL(EK_E_INVALID, "parameters and constants take 2 GiB or more, which the "
                                         "format does not hold");
        EK_TRY(ek_onnx_put_tensor(&g->body, value->name, value->tensor));
    }
    return 0;
}

/* Writes the model without the bytes of its graph, which follow it in the file. */
static int export_model(exporter *self)
{
    ek_protobuf *model = &self->model;
    ek_onnx_graph *g = &self->graphs[0];
    ek_protobuf opset = {0};
    export_write_outputs(self);
    EK_TRY(g->status);
    EK_TRY(export_put_parameters(g));
    ek_protobuf_text(&g->body, GRAPH_NAME, self->options.module->type->name);
    for (int i = 0; i < self->tensor_count; i++)
        export_put_value(g, GRAPH_INPUT, g->names[i], i);
    for (int i = 0; i < g->trace->output_count; i++)
        export_put_value(g, GRAPH_OUTPUT,
                         export_label(g, self->options.output_names, "output", i,
                                      g->trace->output_count),
                         g->trace->outputs[i]);
    ek_protobuf_text(&opset, OPSET_DOMAIN, "");
    ek_protobuf_int(&opset, OPSET_VERSION, g->opset);
    ek_protobuf_int(model, MODEL_IR, g->opset < 19 ? 8 : 9);
    ek_protobuf_text(model, MODEL_PRODUCER, "evenkeel");
    ek_protobuf_text(model, MODEL_VERSION, ek_version());
    ek_protobuf_message(model, MODEL_OPSET, &opset);
    ek_protobuf_begin(model, MODEL_GRAPH, g->body.nbytes);
    EK_TRY(g->status < 0 ? g->status : g->body.status);
    return model->status;
}

static int export_save(const ek_file *file, void *user)
{
    const exporter *self = user;
    const ek_protobuf *graph = &self->graphs[0].body;
    EK_TRY(ek_file_write(file, self->model.bytes, self->model.nbytes));
    return ek_file_write(file, graph->bytes, graph->nbytes);
}

static int export_run(exporter *self)
{
    EK_TRY(export_sizes(self));
    for (int run = 0; run < 2; run++)
        EK_TRY(export_trace(self, run));
    EK_TRY(ek_onnx_trace_compare(&self->traces[0], &self->traces[1]));
    for (int run = 0; run < 2; run++)
        self->graphs[run] = (ek_onnx_graph){.trace = &self->traces[run],
                                            .other = &self->traces[1 - run],
                                            .batch = self->size[run],
                                            .other_batch = self->size[1 - run],
                                            .opset = self->options.opset,
                                            .path = ""};
    EK_TRY(export_mark(self));
    for (int run = 0; run < 2; run++)
        EK_TRY(export_write(self, run));
    EK_TRY(export_model(self));
    return ek_file_replace(export_name, self->options.path, export_save, self);
}

static void export_clear(exporter *self)
{
    for (int run = 0; run < 2; run++) {
        ek_onnx_graph *g = &self->graphs[run];
        for (int i = 0; i < g->text_count; i++)
            free(g->texts[i]);
        free(g->texts);
        free((void *)g->names);
        ek_protobuf_clear(&g->body);
        ek_onnx_trace_clear(&self->traces[run]);
    }
    free((void *)self->rows);
    free(self->ends);
    free(self->tensors);
    ek_protobuf_clear(&self->model);
}

/* ---- evaluation mode ---- */

typedef struct export_modes {
    ek_module **training; /* the modules that were in training mode */
    int count, room;
} export_modes;

static int export_note_mode(const char *path, ek_module *module, void *user)
{
    export_modes *modes = user;
    (void)path;
    if (!module->training)
        return 0;
    EK_TRY(ek_grow(&modes->training, &modes->room, modes->count + 1));
    modes->training[modes->count++] = module;
    return 0;
}

static int export_check(const ek_onnx_options *options)
{
    EK_TRY(ek_check_given(export_name, "the module", options->module));
    EK_TRY(ek_check_pointer(export_name, "the path", options->path));
    if (options->inputs.kind == EK_VALUE_ERROR)
        return ek_check_given(export_name, "an input", NULL);
    if (options->opset >= FIRST_OPSET && options->opset <= LAST_OPSET)
        return 0;
    return EK_FAIL(EK_E_INVALID, "onnx_export: opset is %d; %d to %d are written", options->opset,
                   FIRST_OPSET, LAST_OPSET);
}

int ek_onnx_export_with(ek_onnx_options options)
{
    EK_TRY(export_check(&options));
    const int before = ek_error_status();
    export_modes modes = {.training = NULL};
    exporter self = {.options = options};
    int status = ek_module_modules(options.module, export_note_mode, &modes);
    if (status >= 0) {
        ek_scope scope = ek_scope_begin();
        ek_module_train(options.module, false);
        status = export_run(&self);
        ek_scope_end(&scope);
    }
    for (int i = 0; i < modes.count; i++)
        modes.training[i]->training = true;
    export_clear(&self);
    free(modes.training);
    if (status < 0)
        ek_error_prefix(before, export_name);
    return status < 0 ? status : 0;
}

/* recurrent.c: recurrent networks and cells. A network's parameters have no members in the struct:
 * they are in the module's table, layer by layer and direction by direction. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"
#include "nn/recurrent_module.h"

/* Texts for error sentences. */
#define RECURRENT_TENSOR(x) ek_tensor_text((x), (char[200]){0})
#define RECURRENT_SHAPE(shape) ek_shape_text((shape), (char[160]){0})

/* ---- parameters ---- */

/* The size of h. */
static int64_t recurrent_state_size(const ek_recurrent_module *self)
{
    return self->proj_size > 0 ? self->proj_size : self->hidden_size;
}

/* Registers an uninitialised parameter. */
static void recurrent_register(ek_recurrent_module *self, const char *name, const char *ending,
                               ek_shape shape)
{
    char text[80];
    snprintf(text, sizeof text, "%s%s", name, ending);
    ek_register_parameter(&self->module, text, NULL, ek_new_parameter(shape, EK_F32));
}

static void recurrent_register_layer(ek_recurrent_module *self, int layer, int direction)
{
    const int64_t rows = ek_recurrence_gates(self->kind) * self->hidden_size,
                  state = recurrent_state_size(self),
                  input = layer == 0 ? self->input_size : state * self->directions;
    char ending[40] = "";
    if (!self->is_cell)
        snprintf(ending, sizeof ending, "_l%d%s", layer, direction ? "_reverse" : "");
    recurrent_register(self, "weight_ih", ending, EK_SHAPE(rows, input));
    recurrent_register(self, "weight_hh", ending, EK_SHAPE(rows, state));
    if (self->bias) {
        recurrent_register(self, "bias_ih", ending, EK_SHAPE(rows));
        recurrent_register(self, "bias_hh", ending, EK_SHAPE(rows));
    }
    if (self->proj_size > 0)
        recurrent_register(self, "weight_hr", ending, EK_SHAPE(self->proj_size, self->hidden_size));
}

ek_recurrent_weights ek_recurrent_module_weights(const ek_recurrent_module *self, int layer,
                                                 int direction)
{
    const int each = 2 + 2 * self->bias + (self->proj_size > 0),
              first = (layer * self->directions + direction) * each;
    ek_tensor *of[5] = {NULL};
    for (int i = 0; i < each; i++)
        of[i] = *ek_module_member(&self->module, first + i).slot.tensor;
    return (ek_recurrent_weights){.weight_ih = of[0],
                                  .weight_hh = of[1],
                                  .bias_ih = self->bias ? of[2] : NULL,
                                  .bias_hh = self->bias ? of[3] : NULL,
                                  .weight_hr = self->proj_size > 0 ? of[each - 1] : NULL};
}

/* ---- the arguments of a call ---- */

/* recurrent_batch returns the batch dimension of inputs, recurrent_state_batch the batch dimension
 * of states. Both return -1 if there is no batch. */
static int recurrent_batch(const ek_recurrent_module *self, bool batched)
{
    return !batched ? -1 : self->is_cell || self->batch_first ? 0 : 1;
}

static int recurrent_state_batch(const ek_recurrent_module *self, bool batched)
{
    return !batched ? -1 : self->is_cell ? 0 : 1;
}

/* Argument `index`, or the keyword, or none. */
static int recurrent_argument(const ek_args *args, int index, const char *name, ek_value *value)
{
    ek_value by_name = ek_value_get(args->keywords, name);
    *value = index < args->count ? args->inputs[index] : by_name;
    if (index < args->count && by_name.kind != EK_VALUE_NONE)
        return EK_FAIL(EK_E_INVALID, "%s is given twice, by position and by name", name);
    return 0;
}

static int recurrent_read_state(const ek_recurrent_module *self, ek_value value, int batch,
                                ek_recurrent_state *state)
{
    if (value.kind == EK_VALUE_NONE)
        return 0;
    if (self->kind != EK_RECURRENCE_LSTM) {
        state->h = ek_value_tensor(value);
        return state->h ? ek_check_batch("the state", value, batch) : ek_error_pending();
    }
    if (value.kind != EK_VALUE_LIST || ek_value_length(value) != 2)
        return EK_FAIL(EK_E_INVALID, "the state has to be a list of two tensors, h and c");
    state->h = ek_value_tensor(ek_value_at(value, 0));
    state->c = ek_value_tensor(ek_value_at(value, 1));
    if (!state->h || !state->c)
        return ek_error_pending();
    EK_TRY(ek_check_batch("h of the state", ek_value_at(value, 0), batch));
    return ek_check_batch("c of the state", ek_value_at(value, 1), batch);
}

int ek_recurrent_module_read(const ek_recurrent_module *self, const ek_args *args,
                             ek_recurrent_inputs *inputs)
{
    const int most = self->is_cell ? 2 : 3;
    ek_value state, lengths = ek_value_none();
    *inputs = (ek_recurrent_inputs){0};
    if (args->count < 1 || args->count > most)
        return EK_FAIL(EK_E_INVALID, "%s takes 1 to %d inputs, not %d", self->module.type->name,
                       most, args->count);
    for (int i = 0; i < ek_value_length(args->keywords); i++) {
        const char *key = ek_value_key(args->keywords, i);
        if (strcmp(key, "hx") != 0 && (self->is_cell || strcmp(key, "lengths") != 0))
            return EK_FAIL(EK_E_INVALID, "%s takes no keyword argument \"%s\"",
                           self->module.type->name, key);
    }
    EK_TRY(recurrent_argument(args, 1, "hx", &state));
    if (!self->is_cell)
        EK_TRY(recurrent_argument(args, 2, "lengths", &lengths));
    inputs->x = ek_arg_tensor(args, 0);
    if (!inputs->x)
        return ek_error_pending();
    const bool batched = inputs->x->ndim == (self->is_cell ? 2 : 3);
    EK_TRY(ek_check_batch("the input", args->inputs[0], recurrent_batch(self, batched)));
    EK_TRY(recurrent_read_state(self, state, recurrent_state_batch(self, batched), &inputs->state));
    if (lengths.kind == EK_VALUE_NONE)
        return 0;
    inputs->lengths = ek_value_tensor(lengths);
    return inputs->lengths ? ek_check_batch("lengths", lengths, 0) : ek_error_pending();
}

static int recurrent_check_state(const char *name, const ek_tensor *state, ek_shape shape)
{
    ek_shape own = ek_tensor_shape(state);
    return ek_shape_equal(&own, &shape)
               ? 0
               : EK_FAIL(EK_E_SHAPE, "expected %s of shape %s, got %s", name,
                         RECURRENT_SHAPE(&shape), RECURRENT_TENSOR(state));
}

/* Checks a given state, or makes a state of zeros. The state's shape is `shape` with another last
 * size. */
static int recurrent_start(const ek_recurrent_module *self, const ek_tensor *x, ek_shape shape,
                           ek_recurrent_state *state)
{
    const bool has_c = self->kind == EK_RECURRENCE_LSTM;
    const ek_device device = ek_tensor_device(x);
    ek_shape of_c = shape;
    shape.dims[shape.ndim - 1] = recurrent_state_size(self);
    of_c.dims[shape.ndim - 1] = self->hidden_size;
    if (state->h) {
        EK_TRY(recurrent_check_state("h", state->h, shape));
        return has_c ? recurrent_check_state("c", state->c, of_c) : 0;
    }
    state->h = ek_zeros(shape, .dtype = x->dtype, .device = device);
    state->c = has_c ? ek_zeros(of_c, .dtype = x->dtype, .device = device) : NULL;
    return state->h && (state->c || !has_c) ? 0 : ek_error_pending();
}

static ek_value recurrent_state_value(const ek_recurrent_module *self, ek_recurrent_state state,
                                      bool batched)
{
    ek_value value =
        self->kind == EK_RECURRENCE_LSTM ? EK_LIST(state.h, state.c) : ek_value_of_tensor(state.h);
    return batched ? ek_value_batched(value, recurrent_state_batch(self, batched)) : value;
}

/* ---- lengths ---- */

/* Returns the lengths on cpu. NULL with an error, also if a length isn't from 0 to L. */
static ek_tensor *recurrent_lengths(ek_tensor *lengths, const ek_tensor *x)
{
    const int64_t steps = x->shape[0], count = x->shape[1];
    if (lengths->dtype != EK_I64 || lengths->ndim != 1 || lengths->shape[0] != count) {
        EK_FAIL(EK_E_SHAPE, "expected lengths i64[%lld], one for each sample, got %s",
                (long long)count, RECURRENT_TENSOR(lengths));
        return NULL;
    }
    ek_tensor *own = ek_contiguous(ek_to_device(lengths, ek_cpu()), EK_CONTIGUOUS);
    const int64_t *values = own ? ek_tensor_address(own) : NULL;
    for (int64_t i = 0; own && i < count; i++)
        if (values[i] < 0 || values[i] > steps) {
            EK_FAIL(EK_E_INVALID, "the length of sample %lld is %lld; the input has %lld steps",
                    (long long)i, (long long)values[i], (long long)steps);
            return NULL;
        }
    return own;
}

/* ---- networks ---- */

static ek_tensor *recurrent_run(const ek_recurrent_module *self, ek_tensor *x, ek_tensor *lengths,
                                ek_recurrent_state *state)
{
    const int rows = self->num_layers * self->directions;
    ek_recurrent_weights *weights = ek_calloc((size_t)rows, sizeof *weights);
    if (!weights)
        return NULL;
    for (int i = 0; i < rows; i++)
        weights[i] = ek_recurrent_module_weights(self, i / self->directions, i % self->directions);
    const ek_recurrent_network network = {.kind = self->kind,
                                          .layers = self->num_layers,
                                          .directions = self->directions,
                                          .dropout = self->module.training ? self->dropout : 0,
                                          .weights = weights,
                                          .lengths = lengths};
    ek_tensor *y = ek_recurrent_run(&network, x, state);
    free(weights);
    return y;
}

static ek_value recurrent_forward(ek_module *module, const ek_args *args)
{
    const ek_recurrent_module *self = (ek_recurrent_module *)module;
    ek_recurrent_inputs in;
    if (ek_recurrent_module_read(self, args, &in) < 0)
        return ek_value_error();
    ek_tensor *x = in.x, *lengths = NULL;
    const bool batched = x->ndim == 3;
    if ((!batched && x->ndim != 2) || x->shape[x->ndim - 1] != self->input_size ||
        x->shape[batched && self->batch_first] < 1 ||
        x->shape[batched && self->batch_first] > INT32_MAX / 4) {
        EK_FAIL(EK_E_SHAPE, "expected an input (%s, %lld) or (L, %lld) of at least 1 step, got %s",
                self->batch_first ? "N, L" : "L, N", (long long)self->input_size,
                (long long)self->input_size, RECURRENT_TENSOR(x));
        return ek_value_error();
    }
    if (!batched && in.lengths) {
        EK_FAIL(EK_E_SHAPE, "lengths are for a batch, not for %s", RECURRENT_TENSOR(x));
        return ek_value_error();
    }
    if (!batched)
        x = ek_unsqueeze(x, 1);
    else if (self->batch_first)
        x = ek_transpose(x, 0, 1);
    if (!x)
        return ek_value_error();
    const int rows = self->num_layers * self->directions;
    if (recurrent_start(self, x, batched ? EK_SHAPE(rows, x->shape[1], 0) : EK_SHAPE(rows, 0),
                        &in.state) < 0)
        return ek_value_error();
    if (!batched && in.state.h->ndim == 2) {
        in.state.h = ek_unsqueeze(in.state.h, 1);
        in.state.c = in.state.c ? ek_unsqueeze(in.state.c, 1) : NULL;
    }
    if (in.lengths && !(lengths = recurrent_lengths(in.lengths, x)))
        return ek_value_error();
    ek_tensor *y = recurrent_run(self, x, lengths, &in.state);
    if (!y)
        return ek_value_error();
    if (!batched) {
        y = ek_squeeze(y, 1);
        in.state.h = ek_squeeze(in.state.h, 1);
        in.state.c = in.state.c ? ek_squeeze(in.state.c, 1) : NULL;
    } else if (self->batch_first)
        y = ek_transpose(y, 0, 1);
    ek_value output = ek_value_of_tensor(y);
    if (batched)
        output = ek_value_batched(output, recurrent_batch(self, batched));
    return EK_LIST(output, recurrent_state_value(self, in.state, batched));
}

/* ---- cells ---- */

static ek_value recurrent_cell_forward(ek_module *module, const ek_args *args)
{
    const ek_recurrent_module *self = (ek_recurrent_module *)module;
    ek_recurrent_inputs in;
    if (ek_recurrent_module_read(self, args, &in) < 0)
        return ek_value_error();
    ek_tensor *x = in.x;
    const bool batched = x->ndim == 2;
    if ((!batched && x->ndim != 1) || x->shape[x->ndim - 1] != self->input_size) {
        EK_FAIL(EK_E_SHAPE, "expected an input (N, %lld) or (%lld), got %s",
                (long long)self->input_size, (long long)self->input_size, RECURRENT_TENSOR(x));
        return ek_value_error();
    }
    if (recurrent_start(self, x, batched ? EK_SHAPE(x->shape[0], 0) : EK_SHAPE(0), &in.state) < 0)
        return ek_value_error();
    if (!batched) {
        x = ek_unsqueeze(x, 0);
        in.state.h = ek_unsqueeze(in.state.h, 0);
        in.state.c = in.state.c ? ek_unsqueeze(in.state.c, 0) : NULL;
    }
    const ek_recurrent_weights weights = ek_recurrent_module_weights(self, 0, 0);
    ek_tensor *product = ek_f_linear(x, weights.weight_ih, weights.bias_ih);
    if (!product || ek_recurrent_step(self->kind, product, &weights, NULL, &in.state) < 0)
        return ek_value_error();
    if (!batched) {
        in.state.h = ek_squeeze(in.state.h, 0);
        in.state.c = in.state.c ? ek_squeeze(in.state.c, 0) : NULL;
    }
    return recurrent_state_value(self, in.state, batched);
}

/* ---- constructors ---- */

/* Types in the order of ek_recurrence; tanh and relu share a type. */
#define RECURRENT_TYPE(id, function)                                         \
    {                                                                        \
        .name = id, .size = sizeof(ek_recurrent_module), .forward = function \
    }
static const ek_module_type recurrent_types[] = {RECURRENT_TYPE("rnn", recurrent_forward),
                                                 RECURRENT_TYPE("lstm", recurrent_forward),
                                                 RECURRENT_TYPE("gru", recurrent_forward)};
static const ek_module_type recurrent_cell_types[] = {
    RECURRENT_TYPE("rnn_cell", recurrent_cell_forward),
    RECURRENT_TYPE("lstm_cell", recurrent_cell_forward),
    RECURRENT_TYPE("gru_cell", recurrent_cell_forward)};

const ek_recurrent_module *ek_recurrent_module_of(const ek_module *module)
{
    return module->type->forward == recurrent_forward ? (const ek_recurrent_module *)module : NULL;
}

static int recurrent_check(const char *name, const ek_recurrent_module *form,
                           ek_rnn_nonlinearity nonlinearity)
{
    if (form->input_size < 1 || form->hidden_size < 1 || form->hidden_size > INT32_MAX)
        return EK_FAIL(EK_E_INVALID,
                       "%s: input_size %lld and hidden_size %lld have to be at least 1", name,
                       (long long)form->input_size, (long long)form->hidden_size);
    if (form->num_layers < 1 || form->num_layers > 10000)
        return EK_FAIL(EK_E_INVALID, "%s: num_layers has to be from 1 to 10000, not %d", name,
                       form->num_layers);
    if (!(form->dropout >= 0 && form->dropout <= 1))
        return EK_FAIL(EK_E_INVALID, "%s: dropout has to be between 0 and 1, not %g", name,
                       form->dropout);
    if (nonlinearity != EK_RNN_TANH && nonlinearity != EK_RNN_RELU)
        return EK_FAIL(EK_E_INVALID,
                       "%s: nonlinearity has to be EK_RNN_TANH or EK_RNN_RELU, "
                       "not %d",
                       name, (int)nonlinearity);
    if (form->proj_size < 0 || form->proj_size >= form->hidden_size)
        return EK_FAIL(EK_E_INVALID,
                       "%s: proj_size %lld has to be smaller than hidden_size %lld, and not "
                       "negative",
                       name, (long long)form->proj_size, (long long)form->hidden_size);
    return 0;
}

static int recurrent_init(const char *path, ek_tensor *tensor, void *user)
{
    const double *bound = user;
    (void)path;
    return ek_init_uniform(tensor, -*bound, *bound);
}

static ek_module *recurrent_make(const ek_module_type *type, const ek_recurrent_module *form,
                                 ek_rnn_nonlinearity nonlinearity)
{
    if (recurrent_check(type->name, form, nonlinearity) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_recurrent_module *self = (ek_recurrent_module *)ek_module_new(type);
    if (self) {
        ek_module module = self->module;
        *self = *form;
        self->module = module;
        if (nonlinearity == EK_RNN_RELU)
            self->kind = EK_RECURRENCE_RELU;
        for (int row = 0; row < self->num_layers * self->directions; row++)
            if (ek_error_status() == 0)
                recurrent_register_layer(self, row / self->directions, row % self->directions);
        double bound = 1 / sqrt((double)self->hidden_size);
        if (ek_error_status() == 0)
            ek_module_parameters(&self->module, recurrent_init, &bound);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

#define RECURRENT_NETWORK(o, ...)                                          \
    (&(const ek_recurrent_module){.input_size = (o).input_size,            \
                                  .hidden_size = (o).hidden_size,          \
                                  .num_layers = (o).num_layers,            \
                                  .directions = (o).bidirectional ? 2 : 1, \
                                  .bias = (o).bias,                        \
                                  .batch_first = (o).batch_first,          \
                                  .dropout = (o).dropout,                  \
                                  __VA_ARGS__})

ek_module *ek_rnn_with(ek_rnn_options options)
{
    return recurrent_make(&recurrent_types[0],
                          RECURRENT_NETWORK(options, .kind = EK_RECURRENCE_TANH),
                          options.nonlinearity);
}

ek_module *ek_lstm_with(ek_lstm_options options)
{
    return recurrent_make(&recurrent_types[1],
                          RECURRENT_NETWORK(options, .kind = EK_RECURRENCE_LSTM,
                                            .proj_size = options.proj_size),
                          EK_RNN_TANH);
}

ek_module *ek_gru_with(ek_gru_options options)
{
    return recurrent_make(&recurrent_types[2],
                          RECURRENT_NETWORK(options, .kind = EK_RECURRENCE_GRU), EK_RNN_TANH);
}

#define RECURRENT_CELL(o, kind_)                                  \
    (&(const ek_recurrent_module){.kind = kind_,                  \
                                  .input_size = (o).input_size,   \
                                  .hidden_size = (o).hidden_size, \
                                  .num_layers = 1,                \
                                  .directions = 1,                \
                                  .bias = (o).bias,               \
                                  .is_cell = true})

ek_module *ek_rnn_cell_with(ek_rnn_cell_options options)
{
    return recurrent_make(&recurrent_cell_types[0], RECURRENT_CELL(options, EK_RECURRENCE_TANH),
                          options.nonlinearity);
}

ek_module *ek_lstm_cell_with(ek_cell_options options)
{
    return recurrent_make(&recurrent_cell_types[1], RECURRENT_CELL(options, EK_RECURRENCE_LSTM),
                          EK_RNN_TANH);
}

ek_module *ek_gru_cell_with(ek_cell_options options)
{
    return recurrent_make(&recurrent_cell_types[2], RECURRENT_CELL(options, EK_RECURRENCE_GRU),
                          EK_RNN_TANH);
}

/* recurrent_network.c: the layers of recurrent networks. A library of the device computes as many
 * layers as it can by one call, which is one node of the graph. Other layers are computed one by
 * one, and so are those whose gradient is differentiated, or is computed a second time. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ops/autocast.h"
#include "ops/ops.h"
#include "ops/recurrent.h"

/* ---- layer by layer ---- */

/* Makes a mask (L, N, 1) of bool: true for the steps within a sample's length. NULL without
 * lengths. */
static ek_tensor *network_mask(ek_tensor *lengths, const ek_tensor *x)
{
    const ek_device device = ek_tensor_device(x);
    const int64_t steps = x->shape[0];
    if (!lengths)
        return NULL;
    ek_tensor *time = ek_reshape(ek_arange(steps, EK_I64, device), EK_SHAPE(steps, 1, 1)),
              *own = ek_reshape(ek_to_device(lengths, device), EK_SHAPE(1, x->shape[1], 1));
    return ek_gt(own, time);
}

/* Returns x where the mask is true, else 0. Without a mask, returns x. */
static ek_tensor *network_masked(ek_tensor *mask, ek_tensor *x)
{
    return x && mask ? ek_where(mask, x, ek_scalar(0, x->dtype, ek_cpu())) : x;
}

/* Computes a network of one layer. */
static ek_tensor *network_layer(const ek_recurrent_network *layer, ek_tensor *x, ek_tensor *mask,
                                ek_recurrent_state *all)
{
    ek_tensor *outputs[2], *h[2], *c[2];
    const int directions = layer->directions;
    for (int d = 0; d < directions; d++) {
        ek_recurrent_state state = {ek_select(all->h, 0, d),
                                    all->c ? ek_select(all->c, 0, d) : NULL};
        if (!state.h || (all->c && !state.c))
            return NULL;
        outputs[d] =
            ek_recurrent_direction(layer->kind, d == 1, x, &layer->weights[d], mask, &state);
        if (!outputs[d])
            return NULL;
        h[d] = state.h;
        c[d] = state.c;
    }
    all->h = ek_stack(h, directions, 0);
    all->c = all->c ? ek_stack(c, directions, 0) : NULL;
    return network_masked(mask, directions == 2 ? ek_cat(outputs, 2, 2) : outputs[0]);
}

static int library_network(const ek_recurrent_network *network, ek_tensor **x,
                           ek_recurrent_state *state);

/* `room` has place for the states h and c of each layer. */
static ek_tensor *network_layers_in(const ek_recurrent_network *network, ek_tensor *x,
                                    ek_recurrent_state *state, ek_tensor **room)
{
    const int layers = network->layers, directions = network->directions;
    ek_recurrent_network one = *network;
    ek_tensor *mask = network_mask(network->lengths, x);
    if (network->lengths && !mask)
        return NULL;
    one.layers = 1;
    one.dropout = 0;
    for (int i = 0; i < layers; i++, one.weights += directions) {
        ek_recurrent_state own = {ek_narrow(state->h, 0, i * directions, directions),
                                  state->c ? ek_narrow(state->c, 0, i * directions, directions)
                                           : NULL};
        if (i > 0)
            x = ek_f_dropout(x, network->dropout, network->dropout > 0);
        if (!x || !own.h || (state->c && !own.c))
            return NULL;
        /* Layers with dropout between them are calls of the library one by one. */
        const int rc = network->dropout > 0 ? library_network(&one, &x, &own) : 0;
        x = rc < 0 ? NULL : rc > 0 ? x : network_layer(&one, x, mask, &own);
        if (!x)
            return NULL;
        room[i] = own.h;
        room[layers + i] = own.c;
    }
    state->h = layers > 1 ? ek_cat(room, layers, 0) : room[0];
    state->c = state->c && layers > 1 ? ek_cat(room + layers, layers, 0) : room[layers];
    return x;
}

static ek_tensor *network_layers(const ek_recurrent_network *network, ek_tensor *x,
                                 ek_recurrent_state *state)
{
    ek_tensor **room = ek_calloc((size_t)network->layers * 2, sizeof *room);
    x = room ? network_layers_in(network, x, state, room) : NULL;
    free(room);
    return x;
}

/* ---- by the device's library ---- */

/* Inputs of the node, which are saved first: x, h, c and the weights. Then come y and what the call
 * kept. */
enum { X, H, C, WEIGHTS };

typedef struct library {
    ek_object object;
    ek_recurrent_network network; /* without weights; owns one reference to the lengths */
    int64_t hidden;
    ek_tensor *steps; /* i32 (N) on cpu: each sample's length; one reference */
    atomic_bool used; /* a backward has overwritten the call's reserve */
} library;

static int library_inputs(const ek_recurrent_network *network)
{
    return WEIGHTS + network->layers * network->directions * EK_RECURRENT_WEIGHTS;
}

/* The ek_recomputed_function: layer by layer. */
static int library_compose(ek_object *object, ek_tensor *const *in, int count, ek_tensor **outputs,
                           int output_count)
{
    ek_recurrent_network network = ((const library *)object)->network;
    const int rows = network.layers * network.directions;
    ek_recurrent_weights *weights = ek_calloc((size_t)rows, sizeof *weights);
    ek_recurrent_state state = {in[H], in[C]};
    (void)count, (void)output_count;
    if (!weights)
        return ek_error_pending();
    for (int i = 0; i < rows; i++) {
        ek_tensor *const *of = in + WEIGHTS + i * EK_RECURRENT_WEIGHTS;
        weights[i] = (ek_recurrent_weights){of[0], of[1], of[2], of[3], of[4]};
    }
    network.weights = weights;
    outputs[0] = network_layers(&network, in[X], &state);
    outputs[1] = state.h;
    outputs[2] = state.c;
    free(weights);
    return outputs[0] ? 0 : ek_error_pending();
}

/* Describes a call. `tensors` are the node's inputs and, in backward, the other saved tensors. */
static ek_recurrent_call library_call(const library *self, ek_tensor *const *tensors, bool back)
{
    ek_tensor *const *kept = tensors + library_inputs(&self->network);
    return (ek_recurrent_call){.cell = (ek_recurrent_cell)self->network.kind,
                               .layers = self->network.layers,
                               .directions = self->network.directions,
                               .hidden = self->hidden,
                               .lengths = ek_tensor_address(self->steps),
                               .weights = tensors + WEIGHTS,
                               .x = tensors[X],
                               .h = tensors[H],
                               .c = tensors[C],
                               .y = back ? kept[0] : NULL,
                               .packed = back ? kept[1] : NULL,
                               .reserve = back ? kept[2] : NULL};
}

/* `room` has place for the saved tensors. Returns 1; 0 if the library doesn't serve. */
static int library_gradients(ek_node *node, const library *self, ek_tensor *const *gradients,
                             ek_tensor **results, ek_tensor **room)
{
    const int inputs = library_inputs(&self->network);
    ek_tensor *given[3];
    for (int i = 0; i < inputs + 3; i++)
        room[i] = ek_node_saved(node, i);
    for (int i = 0; i < 3; i++)
        given[i] = gradients[i] ? ek_contiguous(gradients[i], EK_CONTIGUOUS) : NULL;
    given[0] = gradients[0] ? given[0] : ek_node_zeros(node, 0);
    if (ek_error_status() < 0)
        return ek_error_pending();
    const ek_recurrent_call call = library_call(self, room, true);
    const ek_recurrent_back back = {.dy = given[0],
                                    .dh_n = given[1],
                                    .dc_n = given[2],
                                    .dx = ek_tensor_like(room[X]),
                                    .dh = ek_tensor_like(room[H]),
                                    .dc = room[C] ? ek_tensor_like(room[C]) : NULL,
                                    .dweights = results + WEIGHTS};
    if (!back.dx || !back.dh || (room[C] && !back.dc))
        return ek_error_pending();
    int rc =
        ek_kernels_of(room[X])->recurrent_network_gradient(ek_tensor_dev(room[X]), &call, &back);
    results[H] = back.dh;
    results[C] = back.dc;
    if (rc <= 0 || !ek_node_needs(node, X))
        return rc;
    ek_tensor *mask = network_mask(self->network.lengths, room[X]);
    results[X] = network_masked(mask, back.dx);
    return results[X] && (mask || !self->network.lengths) ? 1 : ek_error_pending();
}

static int library_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    library *self = (library *)((const ek_recomputed *)ek_node_attributes(node))->state;
    const size_t inputs = (size_t)library_inputs(&self->network);
    if (ek_grad_enabled() || atomic_exchange(&self->used, true))
        return ek_recomputed_backward(node, gradients, results);
    ek_tensor **room = ek_calloc(inputs + 3, sizeof *room);
    int rc = room ? library_gradients(node, self, gradients, results, room) : ek_error_pending();
    free(room);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    for (size_t i = 0; i < inputs; i++)
        results[i] = NULL;
    return ek_recomputed_backward(node, gradients, results);
}

static void library_destroy(ek_object *object)
{
    ek_release(((library *)object)->network.lengths);
    ek_release(((library *)object)->steps);
    free(object);
}

static const ek_operation library_operation = {.name = "recurrent_network",
                                               .backward = library_backward,
                                               .destroy = ek_recomputed_destroy};
static const ek_operation library_gradient_operation = {.name = "recurrent_network_gradient",
                                                        .backward = ek_recomputed_backward,
                                                        .destroy = ek_recomputed_destroy};

/* Fills `in` with the node's inputs, cast and dense. Returns false if they don't fit together, and
 * on an error. */
static bool library_operands(const ek_recurrent_network *network, ek_tensor *x,
                             const ek_recurrent_state *state, ek_tensor **in)
{
    in[X] = ek_contiguous(ek_autocast_narrow(x), EK_CONTIGUOUS);
    in[H] = ek_contiguous(ek_autocast_narrow(state->h), EK_CONTIGUOUS);
    in[C] = state->c ? ek_contiguous(ek_autocast_narrow(state->c), EK_CONTIGUOUS) : NULL;
    bool fits = in[X] && in[H] && ek_error_status() == 0;
    for (int i = 0; fits && i < network->layers * network->directions; i++) {
        const ek_recurrent_weights *w = &network->weights[i];
        const ek_recurrent_weights own = {ek_autocast_narrow(w->weight_ih),
                                          ek_autocast_narrow(w->weight_hh),
                                          ek_autocast_narrow(w->bias_ih),
                                          ek_autocast_narrow(w->bias_hh),
                                          ek_autocast_narrow(w->weight_hr)};
        const int64_t input =
            i < network->directions ? in[X]->shape[2] : network->directions * in[H]->shape[2];
        _Static_assert(sizeof own == EK_RECURRENT_WEIGHTS * sizeof *in, "only tensors");
        memcpy(in + WEIGHTS + i * EK_RECURRENT_WEIGHTS, &own, sizeof own);
        fits = own.weight_ih && ek_error_status() == 0 &&
               ek_recurrent_fits(network->kind, in[X], in[H], in[C], &own, input);
    }
    return fits;
}

/* Makes the call for dense operands. `in` has room for what the node saves. Returns 1; 0 if the
 * library doesn't serve. */
static int library_run(library *self, ek_tensor **in, ek_tensor **outputs)
{
    const int inputs = library_inputs(&self->network);
    const bool keeps = ek_records(in, inputs);
    const ek_tensor *x = in[X];
    ek_recurrent_call call = library_call(self, in, false);
    call.y = ek_tensor_new(ek_tensor_dev(x), x->dtype,
                           &EK_SHAPE(x->shape[0], x->shape[1],
                                     self->network.directions * in[H]->shape[2]),
                           EK_CONTIGUOUS);
    call.h_n = ek_tensor_like(in[H]);
    call.c_n = in[C] ? ek_tensor_like(in[C]) : NULL;
    if (!call.y || !call.h_n || (in[C] && !call.c_n))
        return ek_error_pending();
    int rc = ek_kernels_of(in[X])->recurrent_network(ek_tensor_dev(in[X]), &call, keeps);
    if (rc <= 0)
        return rc;
    outputs[0] = in[inputs] = call.y;
    outputs[1] = call.h_n;
    outputs[2] = call.c_n;
    in[inputs + 1] = call.packed;
    in[inputs + 2] = call.reserve;
    if (!keeps)
        return 1;
    const ek_recomputed recomputed = {&library_gradient_operation, library_compose,
                                      ek_object_retain(&self->object),
                                      ek_thread_self()->modes.flags};
    EK_TRY(ek_record_outputs(outputs, 3, &library_operation,
                             &(const ek_record_options){.inputs = in,
                                                        .input_count = inputs,
                                                        .saved = in,
                                                        .saved_count = inputs + 3,
                                                        EK_ATTRIBUTES(recomputed)}));
    return 1;
}

/* Casts a result to the dtype that single steps give under autocast. */
static ek_tensor *library_result(const ek_recurrent_network *network, ek_tensor *y)
{
    const bool gated = network->kind == EK_RECURRENCE_LSTM || network->kind == EK_RECURRENCE_GRU;
    return gated || network->lengths ? ek_autocast_wide(y) : y;
}

/* Computes the outputs y, h_n and c_n. Returns 1; 0 if the library doesn't serve. */
static int library_network_in(const ek_recurrent_network *network, ek_tensor *x,
                              const ek_recurrent_state *state, ek_tensor **outputs)
{
    library *self = ek_calloc(1, sizeof *self);
    if (!self)
        return ek_error_pending();
    ek_object_init(&self->object, library_destroy);
    self->network = *network;
    /* The caller may overwrite the lengths before backward. */
    ek_tensor *lengths = network->lengths ? ek_clone(network->lengths) : NULL;
    self->network.lengths = lengths ? ek_keep(lengths) : NULL;
    self->hidden = network->weights->weight_ih->shape[0] / ek_recurrence_gates(network->kind);
    ek_tensor *steps = network->lengths
                           ? ek_to_dtype(lengths, EK_I32)
                           : ek_full((double)x->shape[0], EK_SHAPE(x->shape[1]), EK_I32, ek_cpu());
    self->steps = steps ? ek_keep(steps) : NULL;
    ek_tensor **in = ek_calloc((size_t)library_inputs(network) + 3, sizeof *in);
    int rc = in && steps ? library_operands(network, x, state, in) : ek_error_pending();
    if (rc > 0)
        rc = library_run(self, in, outputs);
    free(in);
    ek_object_release(&self->object);
    if (rc <= 0)
        return ek_error_status() < 0 ? ek_error_pending() : rc;
    for (int i = 0; i < 3; i++)
        if (outputs[i] && !(outputs[i] = library_result(network, outputs[i])))
            return ek_error_pending();
    return 1;
}

/* Computes a network without dropout. Returns 1; 0 if the library doesn't serve. */
static int library_network(const ek_recurrent_network *network, ek_tensor **x,
                           ek_recurrent_state *state)
{
    ek_tensor *outputs[3] = {NULL};
    if (ek_thread_self()->observer || ek_count(*x) == 0 || ek_tensor_dev(*x)->id.kind == EK_CPU ||
        !network->weights->weight_ih)
        return 0;
    ek_scope scope = ek_scope_begin();
    int rc = library_network_in(network, *x, state, outputs);
    if (rc > 0) {
        rc = ek_recurrent_return(&scope, rc, outputs, state);
        *x = outputs[0];
    } else {
        ek_scope_end(&scope);
    }
    return rc;
}

/* ---- a network ---- */

ek_tensor *ek_recurrent_run(const ek_recurrent_network *network, ek_tensor *x,
                            ek_recurrent_state *state)
{
    const int rc = network->dropout > 0 ? 0 : library_network(network, &x, state);
    return rc < 0 ? NULL : rc > 0 ? x : network_layers(network, x, state);
}

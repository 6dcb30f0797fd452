/* networks.c: how recurrent networks are written: a node for each layer with all directions. Steps
 * of cells, and of networks with projections, are written as formulas. */
#include <stdlib.h>

#include "kernels/params.h"
#include "onnx/graph.h"

/* ---- weights: in ONNX's order of gates, i o f c of an LSTM and z r h of a GRU ---- */

static ek_tensor *network_reordered(const ek_recurrent_module *network, ek_tensor *weight)
{
    static const int lstm[] = {0, 3, 1, 2}, gru[] = {1, 0, 2}, one[] = {0};
    const int gates = ek_recurrence_gates(network->kind);
    const int *order = gates == 4 ? lstm : gates == 3 ? gru : one;
    ek_tensor *parts[4];
    for (int i = 0; i < gates; i++)
        parts[i] = ek_narrow(weight, 0, order[i] * network->hidden_size, network->hidden_size);
    return ek_cat(parts, gates, 0);
}

/* Returns true if an earlier call of the network has been written. */
static bool network_is_known(const ek_onnx_graph *g, const ek_onnx_record *r)
{
    for (const ek_onnx_record *before = g->trace->records; before < r; before++)
        if (before->network == r->network && g->names[before->outputs[0]])
            return true;
    return false;
}

/* Names a layer's weights of all directions, and adds them as one initializer each. */
static void network_weights(ek_onnx_graph *g, const ek_onnx_record *r, int layer,
                            const char *names[3])
{
    const ek_recurrent_module *network = r->network;
    const bool gradients = ek_set_grad_enabled(false);
    ek_scope scope = ek_scope_begin();
    ek_tensor *of[3][2] = {{NULL}};
    for (int d = 0; d < network->directions; d++) {
        const ek_recurrent_weights w = ek_recurrent_module_weights(network, layer, d);
        of[0][d] = network_reordered(network, w.weight_ih);
        of[1][d] = network_reordered(network, w.weight_hh);
        if (network->bias)
            of[2][d] = ek_cat(EK_ITEMS(ek_tensor *, network_reordered(network, w.bias_ih),
                                       network_reordered(network, w.bias_hh)),
                              2, 0);
    }
    const bool known = network_is_known(g, r);
    for (int i = 0; i < 3; i++) {
        names[i] = i == 2 && !network->bias ? ""
                                            : ek_onnx_text(g, "%s%s%c_l%d", r->path,
                                                           r->path[0] ? "." : "", "WRB"[i], layer);
        if (names[i][0] && !known)
            ek_onnx_constant(g, names[i], ek_stack(of[i], network->directions, 0));
    }
    ek_scope_end(&scope);
    ek_set_grad_enabled(gradients);
}

/* ---- a network. Inputs x, h, c, lengths; outputs y, h, c ---- */

/* Returns the initial state of a layer, from h or c of all layers; "" for zeros. */
static const char *network_state(ek_onnx_graph *g, const ek_onnx_record *r, int input, int layer)
{
    const ek_recurrent_module *network = r->network;
    const ek_tensor *all = ek_onnx_input_tensor(g, r, input);
    const char *state = ek_onnx_input(g, r, input);
    const int rows = network->directions, first = layer * rows;
    if (!all)
        return "";
    if (all->ndim == 2)
        state = NODE("Unsqueeze", IN(state, ONE(1)));
    return network->num_layers == 1
               ? state
               : NODE("Slice", IN(state, ONE(first), ONE(first + rows), ONE(0)));
}

/* Returns a layer's output (L, N, features) from a node's output (L, directions, N, hidden). */
static const char *network_joined(ek_onnx_graph *g, const char *y, int directions)
{
    if (directions == 1)
        return NODE("Squeeze", IN(y, ONE(1)));
    y = NODE("Transpose", IN(y), INTS("perm", ((const int64_t[]){0, 2, 1, 3}), 4));
    return NODE("Reshape", IN(y, ek_onnx_integers(g, (const int64_t[]){0, 0, -1}, 3)));
}

static const char *network_layer(ek_onnx_graph *g, const ek_onnx_record *r, int layer,
                                 const char *x, const char *last[2])
{
    const ek_recurrent_module *network = r->network;
    const bool lstm = network->kind == EK_RECURRENCE_LSTM, gru = network->kind == EK_RECURRENCE_GRU;
    const char *lengths = ek_onnx_input(g, r, 3), *weights[3], *outputs[3] = {NULL};
    const int directions = network->directions;
    network_weights(g, r, layer, weights);
    if (lengths[0])
        lengths = NODE("Cast", IN(lengths), INT("to", ek_onnx_dtype(EK_I32)));
    const ek_onnx_attribute activations = {.name = "activations",
                                           .kind = EK_ONNX_TEXTS,
                                           .text = "Relu",
                                           .integer = directions};
    const ek_onnx_attribute attributes[] = {INT("hidden_size", network->hidden_size),
                                            TEXT("direction",
                                                 directions == 2 ? "bidirectional" : "forward"),
                                            gru ? INT("linear_before_reset", 1)
                                            : network->kind == EK_RECURRENCE_RELU
                                                ? activations
                                                : (ek_onnx_attribute){0},
                                            {0}};
    ek_onnx_node_outputs(g, TYPE,
                         IN(x, weights[0], weights[1], weights[2], lengths,
                            network_state(g, r, 1, layer), network_state(g, r, 2, layer)),
                         attributes, outputs, lstm ? 3 : 2);
    last[0] = outputs[1];
    last[1] = lstm ? outputs[2] : "";
    return network_joined(g, outputs[0], directions);
}

/* Names the states after the last step, in which the layers follow each other. */
static int network_states(ek_onnx_graph *g, const ek_onnx_record *r, const char *(*last)[2],
                          bool batched)
{
    const int layers = r->network->num_layers;
    const char **names = ek_calloc((size_t)layers + 1, sizeof *names);
    if (!names)
        return EK_E_NO_MEMORY;
    for (int k = 0; k + 1 < r->output_count; k++) {
        for (int layer = 0; layer < layers; layer++)
            names[layer] = last[layer][k];
        const char *state = layers == 1 ? names[0] : NODE("Concat", names, INT("axis", 0));
        g->names[r->outputs[1 + k]] = batched ? state : NODE("Squeeze", IN(state, ONE(1)));
    }
    free(names);
    return 0;
}

ROW(network_write)
{
    const ek_recurrent_module *network = r->network;
    const bool batched = ek_onnx_input_tensor(g, r, 0)->ndim == 3;
    const int64_t turned[] = {1, 0, 2};
    const char *x = X;
    const char *(*last)[2] = ek_calloc((size_t)network->num_layers, sizeof *last);
    if (!batched)
        x = NODE("Unsqueeze", IN(x, ONE(1)));
    else if (network->batch_first)
        x = NODE("Transpose", IN(x), INTS("perm", turned, 3));
    for (int layer = 0; last && layer < network->num_layers; layer++)
        x = network_layer(g, r, layer, x, last[layer]);
    const int status = last ? network_states(g, r, last, batched) : EK_E_NO_MEMORY;
    g->status = g->status < 0 ? g->status : status;
    free(last);
    if (!batched)
        x = NODE("Squeeze", IN(x, ONE(1)));
    else if (network->batch_first)
        x = NODE("Transpose", IN(x), INTS("perm", turned, 3));
    g->names[r->outputs[0]] = x;
    return NULL;
}

/* ---- a step. Inputs: the products of x and of h with their weights, and the state ---- */

static void network_gates(ek_onnx_graph *g, const ek_onnx_record *r, const char *from, int count,
                          const char **gates)
{
    const int64_t size = ek_onnx_output_tensor(g, r, 0)->shape[1];
    const int64_t sizes[] = {size, size, size, size};
    ek_onnx_node_outputs(g, "Split", IN(from, ek_onnx_integers(g, sizes, count)),
                         (const ek_onnx_attribute[]){INT("axis", 1), {0}}, gates, count);
}

/* With gates i, f, g, o: c = f c + i g, h = o tanh(c). */
ROW(network_lstm)
{
    if (r->network)
        return network_write(g, r);
    const char *gate[4] = {NULL};
    network_gates(g, r, NODE("Add", IN(ek_onnx_input(g, r, 0), ek_onnx_input(g, r, 1))), 4, gate);
    for (int i = 0; i < 4; i++)
        gate[i] = NODE(i == 2 ? "Tanh" : "Sigmoid", IN(gate[i]));
    const char *c = NODE("Add", IN(NODE("Mul", IN(gate[1], ek_onnx_input(g, r, 2))),
                                   NODE("Mul", IN(gate[0], gate[2]))));
    g->names[r->outputs[0]] = NODE("Mul", IN(gate[3], NODE("Tanh", IN(c))));
    g->names[r->outputs[1]] = c;
    return NULL;
}

/* With gates r, z, n of x and of h: n = tanh(x_n + r h_n), h = n + z (h - n). */
ROW(network_gru)
{
    if (r->network)
        return network_write(g, r);
    const char *x[3] = {NULL}, *h[3] = {NULL}, *gate[2], *before = ek_onnx_input(g, r, 2);
    network_gates(g, r, ek_onnx_input(g, r, 0), 3, x);
    network_gates(g, r, ek_onnx_input(g, r, 1), 3, h);
    for (int i = 0; i < 2; i++)
        gate[i] = NODE("Sigmoid", IN(NODE("Add", IN(x[i], h[i]))));
    const char *n = NODE("Tanh", IN(NODE("Add", IN(x[2], NODE("Mul", IN(gate[0], h[2]))))));
    g->names[r->outputs[0]] =
        NODE("Add", IN(n, NODE("Mul", IN(gate[1], NODE("Sub", IN(before, n))))));
    return NULL;
}

ROW(network_rnn)
{
    if (r->network)
        return network_write(g, r);
    const char *sum = NODE("Add", IN(ek_onnx_input(g, r, 0), ek_onnx_input(g, r, 1)));
    return NODE(*(const ek_recurrent_cell *)r->attributes == EK_CELL_RELU ? "Relu" : "Tanh",
                IN(sum));
}

const ek_onnx_row ek_onnx_networks[] = {{"lstm", network_lstm, "LSTM", 0, false},
                                        {"gru", network_gru, "GRU", 0, false},
                                        {"rnn", network_rnn, "RNN", 0, false},
                                        {0}};

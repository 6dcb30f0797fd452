/* recurrent_network.c: the layers of recurrent networks. */
#include <stdlib.h>

#include "ops/autocast.h"
#include "ops/ops.h"
#include "ops/recurrent.h"

/* Makes a mask (L, N, 1) of bool: true for the steps within a sample's length. */
static ek_tensor *network_mask(ek_tensor *lengths, const ek_tensor *x)
{
    const ek_device device = ek_tensor_device(x);
    const int64_t steps = x->shape[0];
    ek_tensor *time = ek_reshape(ek_arange(steps, EK_I64, device), EK_SHAPE(steps, 1, 1)),
              *own = ek_reshape(ek_to_device(lengths, device), EK_SHAPE(1, x->shape[1], 1));
    return ek_gt(own, time);
}

/* Returns the outputs of a layer with all directions. last[d] is the state of direction d. */
static ek_tensor *network_layer(const ek_recurrent_network *network, int layer, ek_tensor *x,
                                ek_tensor *mask, const ek_recurrent_state *all, ek_tensor **last_h,
                                ek_tensor **last_c)
{
    ek_tensor *outputs[2];
    for (int d = 0; d < network->directions; d++) {
        const int row = layer * network->directions + d;
        ek_recurrent_state state = {ek_select(all->h, 0, row),
                                    all->c ? ek_select(all->c, 0, row) : NULL};
        if (!state.h || (all->c && !state.c))
            return NULL;
        outputs[d] =
            ek_recurrent_direction(network->kind, d == 1, x, &network->weights[row], mask, &state);
        if (!outputs[d])
            return NULL;
        last_h[row] = state.h;
        last_c[row] = state.c;
    }
    x = network->directions == 2 ? ek_cat(outputs, 2, 2) : outputs[0];
    return x && mask ? ek_where(mask, x, ek_scalar(0, x->dtype, ek_cpu())) : x;
}

ek_tensor *ek_recurrent_run(const ek_recurrent_network *network, ek_tensor *x,
                            ek_recurrent_state *state)
{
    const int rows = network->layers * network->directions;
    ek_tensor *mask = network->lengths ? network_mask(network->lengths, x) : NULL;
    if (network->lengths && !mask)
        return NULL;
    ek_tensor **last_h = ek_calloc((size_t)rows * 2, sizeof *last_h), **last_c = last_h + rows;
    if (!last_h)
        return NULL;
    for (int layer = 0; x && layer < network->layers; layer++) {
        if (layer > 0)
            x = ek_f_dropout(x, network->dropout, network->dropout > 0);
        x = x ? network_layer(network, layer, x, mask, state, last_h, last_c) : NULL;
    }
    if (x) {
        state->h = ek_stack(last_h, rows, 0);
        state->c = state->c ? ek_stack(last_c, rows, 0) : NULL;
    }
    free(last_h);
    return x;
}

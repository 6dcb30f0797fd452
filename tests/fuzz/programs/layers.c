/* layers.c: from a list of layers to a net: each takes what the one before gives. A layer that can
 * do nothing there (a pool of single values) is left out. */
#include "layers.h"

#include <string.h>

#include "modules.h"

int sample_count(const sample_shape *s)
{
    int count = s->features;
    for (int i = 0; i < s->rank; i++)
        count *= s->sizes[i];
    return count;
}

ek_shape batch_shape(const sample_shape *s, int samples)
{
    ek_shape shape = {2 + s->rank, {samples, s->features}};
    for (int i = 0; i < s->rank; i++)
        shape.dims[2 + i] = s->sizes[i];
    return shape;
}

static int smallest(const sample_shape *s)
{
    int least = s->sizes[0];
    for (int i = 1; i < s->rank; i++)
        if (s->sizes[i] < least)
            least = s->sizes[i];
    return least;
}

static void flatten(sample_shape *s)
{
    s->features = sample_count(s);
    s->rank = 0;
}

/* Takes one bit of the variant after the other. */
static bool bit(int *variant)
{
    bool set = *variant & 1;
    *variant >>= 1;
    return set;
}

static void resize(placed_layer *l)
{
    for (int i = 0; i < l->after.rank; i++)
        l->after.sizes[i] =
            (l->before.sizes[i] + 2 * l->padding - l->dilation * (l->kernel - 1) - 1) / l->stride +
            1;
}

/* ---- the kinds; false: nothing to do there ---- */

static bool place_conv(placed_layer *l, const layer *from)
{
    int bits = from->variant, room = smallest(&l->before);
    l->kernel = from->size <= room ? from->size : 1;
    l->padding = bit(&bits) ? l->kernel / 2 : 0;
    l->stride = bit(&bits) && room >= 4 ? 2 : 1;
    l->dilation = bit(&bits) && 2 * (l->kernel - 1) < room ? 2 : 1;
    l->bias = !(bit(&bits) && bit(&bits));
    l->groups = bit(&bits) && bit(&bits) ? l->before.features : 1;
    l->after.features = l->groups > 1 ? l->groups * (1 + from->width % 2) : from->width;
    resize(l);
    return l->before.rank > 0;
}

static bool place_transpose(placed_layer *l, const layer *from)
{
    int bits = from->variant;
    if (l->before.rank == 0 || smallest(&l->before) > (l->before.rank == 3 ? 4 : 8))
        return false;
    l->kernel = from->size;
    l->stride = bit(&bits) ? 2 : 1;
    l->padding = bit(&bits) ? (l->kernel - 1) / 2 : 0;
    l->output_padding = bit(&bits) && l->stride > 1;
    l->bias = bit(&bits);
    l->dilation = l->groups = 1;
    l->after.features = from->width;
    for (int i = 0; i < l->after.rank; i++)
        l->after.sizes[i] =
            (l->before.sizes[i] - 1) * l->stride - 2 * l->padding + l->kernel + l->output_padding;
    return smallest(&l->after) > 0;
}

static bool place_pool(placed_layer *l, const layer *from)
{
    int bits = from->variant;
    if (l->before.rank == 0 || smallest(&l->before) < 2)
        return false;
    l->kernel = 2;
    l->stride = bit(&bits) || from->size > 2 ? 2 : 1;
    l->padding = bit(&bits) && bit(&bits);
    l->dilation = 1;
    resize(l);
    return true;
}

static bool place_norm(placed_layer *l, const layer *from)
{
    int bits = from->variant;
    int values = sample_count(&l->before);
    l->affine = !(bit(&bits) && bit(&bits));
    l->groups = l->before.features % 2 == 0 && bit(&bits) ? 2 : 1;
    if (l->kind == LAYER_GROUP_NORM)
        return values / l->groups > 1;
    if (l->kind == LAYER_INSTANCE_NORM)
        return l->before.rank > 0 && values > l->before.features;
    return l->kind != LAYER_LAYER_NORM || values > 1;
}

static bool place_upsample(placed_layer *l, const layer *from)
{
    if (l->before.rank != 2 || smallest(&l->before) > 6)
        return false;
    for (int i = 0; i < 2; i++)
        l->after.sizes[i] += from->size;
    return true;
}

static bool place_linear(placed_layer *l, const layer *from)
{
    l->bias = from->variant % 4 != 0;
    flatten(&l->after);
    l->after.features = from->width;
    return true;
}

static bool place(placed_layer *l, const layer *from)
{
    switch (from->kind) {
    case LAYER_LINEAR:
        return place_linear(l, from);
    case LAYER_CONV:
        return place_conv(l, from);
    case LAYER_TRANSPOSE:
        return place_transpose(l, from);
    case LAYER_BATCH_NORM:
    case LAYER_SYNC_NORM:
    case LAYER_LAYER_NORM:
    case LAYER_GROUP_NORM:
    case LAYER_INSTANCE_NORM:
        return place_norm(l, from);
    case LAYER_MAX_POOL:
    case LAYER_AVG_POOL:
        return place_pool(l, from);
    case LAYER_ADAPTIVE_POOL:
        for (int i = 0; i < l->after.rank; i++)
            l->after.sizes[i] = from->size <= smallest(&l->before) ? from->size : 1;
        return l->before.rank > 0;
    case LAYER_UPSAMPLE:
        return place_upsample(l, from);
    case LAYER_FLATTEN:
        flatten(&l->after);
        return l->before.rank > 0;
    default:
        return true;
    }
}

/* ---- the net ---- */

/* Behind a normalisation without parameters values that are all equal are zero on one device and
 * rounding on others: what has a corner at zero may not see them. */
static bool has_corner(const placed_layer *l)
{
    return l->kind == LAYER_RELU || l->kind == LAYER_LEAKY_RELU || l->kind == LAYER_MAX_POOL ||
           l->kind == LAYER_OPS;
}

static void follow_zeros(placed_layer *l, bool *zeros)
{
    bool parameters =
        l->kind == LAYER_LINEAR || l->kind == LAYER_CONV || l->kind == LAYER_TRANSPOSE;
    bool norm = l->kind >= LAYER_BATCH_NORM && l->kind <= LAYER_INSTANCE_NORM;
    if (*zeros && has_corner(l))
        l->kind = l->kind == LAYER_MAX_POOL ? LAYER_AVG_POOL : LAYER_TANH;
    if (norm)
        *zeros = !l->affine;
    else if (l->kind == LAYER_OPS)
        *zeros = *zeros || ops_center(l->variant);
    else if (parameters && l->bias)
        *zeros = false;
}

/* What meets other replicas can't be computed again; what changes shapes has no second place. */
static void settle_wrap(placed_layer *l)
{
    bool meets = l->kind == LAYER_BATCH_NORM || l->kind == LAYER_SYNC_NORM || l->kind == LAYER_MIX;
    bool same = memcmp(&l->before, &l->after, sizeof l->before) == 0;
    if ((l->wrap == WRAP_CHECKPOINT && meets) || (l->wrap > WRAP_CHECKPOINT && !same))
        l->wrap = WRAP_NONE;
}

static sample_shape add_layer(placed_net *net, const layer *from, sample_shape s, bool *zeros)
{
    placed_layer l = {.kind = from->kind,
                      .variant = from->variant,
                      .wrap = from->wrap,
                      .frozen = from->frozen,
                      .before = s,
                      .after = s};
    if (!place(&l, from) || sample_count(&l.after) > 4000)
        return s;
    follow_zeros(&l, zeros);
    settle_wrap(&l);
    net->layers[net->count++] = l;
    return l.after;
}

void place_layers(const program *p, placed_net *net)
{
    sample_shape s = {p->rank, p->channels, {1, 1, 1}};
    bool zeros = false;
    memset(net, 0, sizeof *net);
    for (int i = 0; i < p->rank; i++)
        s.sizes[i] = p->size;
    for (int i = 0; i < p->layer_count; i++)
        s = add_layer(net, &p->layers[i], s, &zeros);
    layer head = {.kind = p->dense && s.rank > 0 ? LAYER_CONV : LAYER_LINEAR,
                  .width = p->classes,
                  .size = 1,
                  .variant = p->dense && s.rank > 0 ? 0 : 1};
    s = add_layer(net, &head, s, &zeros);
    if (p->task == TASK_NLL) /* log_softmax */
        s = add_layer(net, &(layer){.kind = LAYER_OPS, .variant = 3}, s, &(bool){false});
    net->out = s;
}

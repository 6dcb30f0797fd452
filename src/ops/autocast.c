/* autocast.c: see autocast.h. */
#include "ops/autocast.h"

#include "core/casts.h"
#include "evenkeel/autograd.h"

static bool casts(void)
{
    return ek_thread_self()->modes.flags & EK_MODE_AUTOCAST;
}

static ek_tensor *cast(ek_tensor *x, ek_dtype from, ek_dtype to)
{
    return x && x->dtype == from && casts() ? ek_to_dtype(x, to) : x;
}

/* Inputs and views come and go, and what is computed again in backward has handles of its own. */
static bool is_remembered(const ek_tensor *x)
{
    return !x->history && !x->is_view && x->storage->category == EK_MEMORY_PARAMETER &&
           !(ek_thread_self()->modes.flags & EK_MODE_ALONE);
}

ek_tensor *ek_autocast_narrow(ek_tensor *x)
{
    if (!x || x->dtype != EK_F32 || !casts())
        return x;
    if (!is_remembered(x))
        return ek_to_dtype(x, EK_BF16);
    /* A cast without history would cut the graph; one with history would start one. */
    const bool graph = x->requires_grad && ek_grad_enabled();
    ek_tensor *known = ek_cast_find(x, graph);
    if (known)
        return known;
    ek_tensor *y = ek_to_dtype(x, EK_BF16);
    if (y)
        ek_cast_remember(x, graph, y);
    return y;
}

ek_tensor *ek_autocast_wide(ek_tensor *x)
{
    return cast(x, EK_BF16, EK_F32);
}

ek_tensor *ek_autocast_unary(ek_tensor *(*operation)(ek_tensor *), ek_tensor *x)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *wide = ek_autocast_wide(x);
    return ek_scope_end_with(&scope, wide ? operation(wide) : NULL);
}

void ek_autocast_promote(ek_tensor **x, ek_tensor **y)
{
    if (!*x || !*y)
        return;
    if ((*y)->dtype == EK_F32)
        *x = cast(*x, EK_BF16, EK_F32);
    else if ((*x)->dtype == EK_F32)
        *y = cast(*y, EK_BF16, EK_F32);
}

bool ek_autocast_mixes(ek_tensor *const *tensors, int count)
{
    bool narrow = false, wide = false;
    for (int i = 0; i < count && casts(); i++) {
        narrow = narrow || (tensors[i] && tensors[i]->dtype == EK_BF16);
        wide = wide || (tensors[i] && tensors[i]->dtype == EK_F32);
    }
    return narrow && wide;
}

ek_tensor *ek_autocast_like(ek_tensor *y, const ek_tensor *x)
{
    if (!x || (x->dtype != EK_F32 && x->dtype != EK_BF16))
        return y;
    return cast(y, x->dtype == EK_F32 ? EK_BF16 : EK_F32, x->dtype);
}

void ek_autocast_loss(ek_loss_options *options)
{
    options->input = ek_autocast_wide(options->input);
    options->target = ek_autocast_wide(options->target);
    options->weight = ek_autocast_wide(options->weight);
    options->pos_weight = ek_autocast_wide(options->pos_weight);
}

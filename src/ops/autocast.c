/* autocast.c: see autocast.h. */
#include "ops/autocast.h"

#include "evenkeel/autograd.h"
#include "ops/casts.h"
#include "ops/ops.h"

static bool casts(void)
{
    return ek_thread_self()->modes.flags & EK_MODE_AUTOCAST;
}

static ek_tensor *cast(ek_tensor *x, ek_dtype from, ek_dtype to)
{
    return x && x->dtype == from && casts() ? ek_to_dtype(x, to) : x;
}

static bool is_parameter(const ek_tensor *x)
{
    return !x->is_view && x->storage->category == EK_MEMORY_PARAMETER && ek_is_dense(x);
}

/* A flat tensor on the caller's stack that shows a whole storage. */
static ek_tensor whole(ek_storage *storage, ek_dtype dtype)
{
    return (ek_tensor){.dtype = dtype,
                       .ndim = 1,
                       .shape = {(int64_t)(storage->nbytes / ek_dtype_size(dtype))},
                       .stride = {1},
                       .storage = storage};
}

/* A storage's elements in bf16: one launch for a slab. One reference. */
static ek_storage *cast_storage(ek_storage *from)
{
    ek_tensor wide = whole(from, EK_F32);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    ek_storage *to = ek_storage_new(from->dev, (size_t)wide.shape[0] * ek_dtype_size(EK_BF16));
    ek_memory_set_category(before);
    if (!to)
        return NULL;
    ek_tensor narrow = whole(to, EK_BF16);
    if (from->dev->backend->kernels->copy(from->dev, &narrow, &wide) >= 0)
        return to;
    ek_object_release(to);
    return NULL;
}

/* The same elements in `storage`, bf16. */
static ek_tensor *shown_in(ek_storage *storage, ek_tensor *x)
{
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y = ek_tensor_member(storage, EK_BF16, &shape, x->stride, x->offset);
    return y ? ek_record_cast(y, x) : NULL;
}

/* By way of its storage, as that keeps what was cast, unless that doesn't pay. */
static ek_tensor *cast_parameter(ek_tensor *x)
{
    ek_narrow_found found;
    int64_t count = ek_count(x);
    if (ek_narrow_find(x->storage, count, &found) < 0)
        return NULL;
    ek_storage *narrow = found.elements;
    if (!narrow && found.wastes)
        return ek_to_dtype(x, EK_BF16);
    if (!narrow) {
        narrow = cast_storage(x->storage);
        if (!narrow)
            return NULL;
        ek_narrow_keep(x->storage, narrow, count, found.writes);
    }
    ek_tensor *y = shown_in(narrow, x);
    ek_object_release(narrow);
    return y;
}

/* What is computed again in backward has handles of its own. */
static bool is_remembered(const ek_tensor *x)
{
    return !x->history && !(ek_thread_self()->modes.flags & EK_MODE_ALONE);
}

ek_tensor *ek_autocast_narrow(ek_tensor *x)
{
    if (!x || x->dtype != EK_F32 || !casts())
        return x;
    if (!is_parameter(x)) /* inputs and views come and go */
        return ek_to_dtype(x, EK_BF16);
    if (!is_remembered(x))
        return cast_parameter(x);
    /* A cast without history would cut the graph; one with history would start one. */
    const bool graph = x->requires_grad && ek_grad_enabled();
    const int pending = ek_error_status();
    ek_tensor *known = ek_cast_find(x, graph);
    if (known || ek_error_status() != pending)
        return known;
    ek_tensor *y = cast_parameter(x);
    return y && ek_cast_remember(x, graph, y) >= 0 ? y : NULL;
}

ek_tensor *ek_autocast_image(ek_tensor *x)
{
    if (!x || x->dtype != EK_F32 || !casts() || x->ndim != 4 || is_parameter(x) ||
        ek_tensor_is_contiguous(x, EK_CHANNELS_LAST))
        return ek_autocast_narrow(x);
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), EK_BF16, &shape, EK_CHANNELS_LAST);
    return y && ek_transfer(y, x) >= 0 ? ek_record_cast(y, x) : NULL;
}

ek_tensor *ek_autocast_wide(ek_tensor *x)
{
    return cast(x, EK_BF16, EK_F32);
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

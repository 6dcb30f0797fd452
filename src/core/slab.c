/* slab.c: many tensors in one storage, and who owns which range of it. */
#include "core/slab.h"

#include <stdlib.h>
#include <string.h>

/* ---- Note [Owners of slices] ---- */

/* Returns how many of `others` slices come before slice `own` of `count` slices in a merge by
 * centres. `first` tells whether the slice comes before another one of its centre. */
static int slab_before(int own, int count, int others, bool first)
{
    int64_t centre = (2 * (int64_t)own + 1) * others - first;
    int64_t before = (centre / count + 1) / 2;
    return (int)(before < others ? before : others);
}

int ek_slab_place(int ranks, int rank)
{
    if (ranks <= 1)
        return 0;
    int left = 1;
    while (2 * left < ranks)
        left *= 2;
    int right = ranks - left;
    int place = rank < left ? ek_slab_place(left, rank) : ek_slab_place(right, rank - left);
    return place + (rank < left ? slab_before(place, left, right, true)
                                : slab_before(place, right, left, false));
}

/* ---- slabs ---- */

static void slab_destroy(ek_object *object)
{
    ek_slab *slab = (ek_slab *)object;
    ek_tensors_release(slab->members, slab->count);
    ek_object_release(slab->storage);
    free(slab);
}

ek_slab *ek_slab_new_for(ek_dev *dev, ek_dev *reader, ek_tensor *const *tensors, int count)
{
    ek_slab *slab = ek_calloc(1, sizeof *slab);
    if (!slab)
        return NULL;
    ek_object_init(&slab->object, slab_destroy);
    slab->dtype = count ? tensors[0]->dtype : EK_F32;
    size_t size = ek_dtype_size(slab->dtype);

    ek_scope scope = ek_scope_begin();
    int64_t *offsets = ek_calloc((size_t)count, sizeof *offsets);
    slab->members = ek_calloc((size_t)count, sizeof(ek_tensor *));
    if (!slab->members || !offsets)
        goto fail;
    for (int i = 0; i < count; i++) {
        if (tensors[i]->dtype != slab->dtype) {
            EK_FAIL(EK_E_DTYPE, "a slab of %s cannot hold a tensor of %s",
                    ek_dtype_name(slab->dtype), ek_dtype_name(tensors[i]->dtype));
            goto fail;
        }
        offsets[i] = slab->elements;
        slab->elements += ek_slab_pitch(slab->dtype, ek_count(tensors[i]));
    }
    slab->storage = reader && reader->backend->pinned_alloc
                        ? ek_storage_new_pinned(reader, (size_t)slab->elements * size)
                        : ek_storage_new(dev, (size_t)slab->elements * size);
    if (!slab->storage || ek_dev_zero(dev, slab->storage->data, slab->storage->nbytes) < 0)
        goto fail;
    for (int i = 0; i < count; i++) {
        ek_shape shape = ek_tensor_shape(tensors[i]);
        int64_t dense[EK_MAX_DIMS];
        const int64_t *strides = tensors[i]->stride;
        if (!ek_is_dense(tensors[i])) {
            ek_strides_of(&shape, EK_CONTIGUOUS, dense);
            strides = dense;
        }
        ek_tensor *member =
            ek_tensor_member(slab->storage, slab->dtype, &shape, strides, offsets[i]);
        if (!member)
            goto fail;
        slab->members[slab->count++] = ek_object_retain(member);
    }
    free(offsets);
    ek_scope_end(&scope);
    return slab;

fail:
    free(offsets);
    ek_scope_end(&scope);
    ek_object_release(slab);
    return NULL;
}

ek_tensor *ek_slab_range(const ek_slab *slab, int64_t begin, int64_t end)
{
    ek_shape shape = {1, {end - begin}};
    int64_t stride = 1;
    if (begin < 0 || end < begin || end > slab->elements)
        return EK_FAIL_NULL(EK_E_INVALID, "range %lld to %lld of a slab of %lld elements",
                            (long long)begin, (long long)end, (long long)slab->elements);
    return ek_tensor_member(slab->storage, slab->dtype, &shape, &stride, begin);
}

/* layout.c: see layout.h. */
#include "train/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/digest.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "group/differentiable.h"
#include "group/same.h"

/* ---- what a module has ---- */

enum { LAYOUT_TEXT = 400 }; /* bytes of an item's text */

static int layout_visit(const char *path, ek_tensor *tensor, void *user)
{
    ek_module_layout *layout = user;
    char text[LAYOUT_TEXT], shape[200];
    EK_TRY(ek_grow(&layout->items, &layout->room, layout->count + 1));
    ek_wire_shape wire = ek_wire_shape_of(tensor);
    ek_wire_shape_text(&wire, shape);
    snprintf(text, sizeof text, "\"%.180s\" %.180s", path, shape);
    uint64_t digest = ek_digest_bytes(ek_digest_text(EK_DIGEST, path), &wire, sizeof wire);
    ek_module_layout_item item = {tensor, ek_strdup(text), (int64_t)digest};
    layout->items[layout->count++] = item;
    return item.text ? 0 : ek_error_pending();
}

int ek_layout_read(ek_module_layout *layout, ek_module *module, bool buffers)
{
    EK_TRY(ek_module_parameters(module, layout_visit, layout));
    return buffers ? ek_module_buffers(module, layout_visit, layout) : 0;
}

void ek_layout_clear(ek_module_layout *layout)
{
    for (int i = 0; i < layout->count; i++)
        free(layout->items[i].text);
    free(layout->items);
    *layout = (ek_module_layout){0};
}

/* Fails with EK_E_STATE on all ranks. The sentence has the item of rank 0 of the group at this
 * index, and the item of the first rank that differs there. */
static int layout_complain(const char *what, const ek_module_layout *layout, int64_t index,
                           ek_process_group *group)
{
    char own[LAYOUT_TEXT] = "nothing more";
    if (index < layout->count)
        snprintf(own, sizeof own, "%s", layout->items[index].text);
    ek_tensor *mine = ek_from_data(own, EK_SHAPE(LAYOUT_TEXT), EK_U8, .device = ek_cpu());
    ek_tensor *all = mine ? ek_join(&ek_verb_gather_value, mine, 0, NULL, group) : NULL;
    const char *first = all ? ek_tensor_address(all) : NULL, *other = first;
    if (!all)
        return ek_error_pending();
    int rank = 0;
    while (rank < group->size - 1 && strcmp(first, other) == 0)
        other = first + (ptrdiff_t)LAYOUT_TEXT * ++rank;
    return ek_ranks_alike(EK_FAIL(EK_E_STATE,
                                  "%s: the module differs between ranks: rank %d has the parameter "
                                  "or buffer %s, rank %d %s",
                                  what, group->ranks[0], first, group->ranks[rank], other));
}

/* Returns 1 if all ranks' digests are equal. Else fails with the first difference. */
static int layout_compare(const char *what, const ek_module_layout *layout, ek_process_group *group)
{
    ek_difference found;
    int64_t *digests = ek_calloc((size_t)layout->count + 1, sizeof *digests);
    for (int i = 0; i < layout->count && digests; i++)
        digests[i] = layout->items[i].digest;
    int same =
        digests ? ek_group_compare(digests, layout->count, group, &found) : ek_error_pending();
    free(digests);
    return same ? same : layout_complain(what, layout, found.index, group);
}

int ek_layout_agree(const char *what, ek_module *module, ek_process_group *group)
{
    ek_module_layout layout = {0};
    ek_scope scope = ek_scope_begin();
    int rc = ek_layout_read(&layout, module, true);
    if (rc >= 0)
        rc = layout_compare(what, &layout, group);
    ek_scope_end(&scope);
    ek_layout_clear(&layout);
    return rc < 0 ? rc : 0;
}

/* A walk over a module's parameters beside leaves. */
typedef struct leaf_walk {
    ek_tensor *const *leaves;
    int count, next; /* next: the leaf after the one that was found last */
} leaf_walk;

static int leaf_find(const char *path, ek_tensor *parameter, void *user)
{
    leaf_walk *walk = user;
    for (int i = 0; i < walk->count && parameter->requires_grad; i++) {
        const int leaf = (walk->next + i) % walk->count;
        if (walk->leaves[leaf] != parameter)
            continue;
        walk->next = leaf + 1;
        return 0;
    }
    return parameter->requires_grad
               ? EK_FAIL(EK_E_STATE,
                         "parameter \"%s\" was put into the module, or began to require a "
                         "gradient, after it was wrapped, so that ranks would not average its "
                         "gradient; wrap the module anew",
                         path)
               : 0;
}

int ek_layout_check_leaves(ek_module *module, ek_tensor *const *leaves, int count)
{
    leaf_walk walk = {leaves, count, 0};
    return ek_module_parameters(module, leaf_find, &walk);
}

/* ---- tensors that travel as one ---- */

/* Returns the GPU on which all tensors lie, or cpu if there is no such GPU. */
static ek_device pack_device(ek_tensor *const *tensors, int count)
{
    ek_dev *dev = ek_tensor_dev(tensors[0]);
    for (int i = 0; i < count; i++)
        if (ek_tensor_dev(tensors[i]) != dev || tensors[i]->storage->residence)
            return ek_cpu(); /* gathered tensors may be larger than their device */
    return ek_dev_is_host(dev) ? ek_cpu() : dev->id;
}

/* Returns how many elements of the memory a tensor occupies. */
static int64_t pack_pitch(ek_dtype dtype, const ek_tensor *tensor)
{
    if (dtype != EK_U8)
        return ek_count(tensor);
    return ((int64_t)ek_comm_nbytes(tensor) + EK_COMM_ALIGNMENT - 1) / EK_COMM_ALIGNMENT *
           EK_COMM_ALIGNMENT;
}

int ek_pack_open(ek_pack *pack, ek_dtype dtype, ek_tensor *const *tensors, int count)
{
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        total += pack_pitch(dtype, tensors[i]);
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_device device = pack_device(tensors, count);
    ek_tensor *memory = dtype == EK_U8 ? ek_zeros(EK_SHAPE(total), dtype, .device = device)
                                       : ek_empty(EK_SHAPE(total), dtype, .device = device);
    *pack = (ek_pack){ek_object_retain(memory), tensors, count};
    ek_memory_set_category(before);
    ek_scope_end(&scope);
    return memory ? 0 : ek_error_pending();
}

void ek_pack_close(ek_pack *pack)
{
    ek_object_release(pack->memory);
    *pack = (ek_pack){0};
}

/* Returns the row-major place of a tensor in the memory, from element `at` on. In the scope. */
static ek_tensor *pack_place(const ek_pack *pack, const ek_tensor *tensor, int64_t at)
{
    ek_shape shape = ek_tensor_shape(tensor);
    int64_t strides[EK_MAX_DIMS], bytes = at * (int64_t)ek_dtype_size(pack->memory->dtype);
    ek_strides_of(&shape, EK_CONTIGUOUS, strides);
    return ek_tensor_member(pack->memory->storage, tensor->dtype, &shape, strides,
                            bytes / (int64_t)ek_dtype_size(tensor->dtype));
}

/* Copies the tensors to the memory, or if `back`, the memory to the tensors. Copies each tensor
 * alone, because other elements may lie between the elements of a view. */
static int pack_copy(const ek_pack *pack, bool back, const char *what)
{
    int64_t at = 0;
    bool waits = !back && ek_dev_is_host(ek_tensor_dev(pack->memory));
    for (int i = 0; i < pack->count; i++) {
        ek_tensor *tensor = pack->tensors[i];
        ek_scope scope = ek_scope_begin();
        ek_tensor *place = pack_place(pack, tensor, at);
        int rc =
            place ? ek_comm_copy(back ? tensor : place, back ? place : tensor) : ek_error_pending();
        if (rc >= 0 && back)
            ek_tensor_written(tensor, what);
        ek_scope_end(&scope);
        EK_TRY(rc);
        if (waits)
            EK_TRY(ek_synchronize(ek_tensor_dev(tensor)->id));
        at += pack_pitch(pack->memory->dtype, tensor);
    }
    return 0;
}

int ek_pack_fill(const ek_pack *pack)
{
    return pack_copy(pack, false, NULL);
}

int ek_pack_deliver(const ek_pack *pack, const char *what)
{
    return pack_copy(pack, true, what);
}

int ek_layout_broadcast(ek_tensor *const *tensors, int count, int root, ek_process_group *group,
                        uint64_t *nbytes)
{
    ek_pack pack;
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        total += ek_count(tensors[i]);
    if (total == 0)
        return 0;
    int rc = ek_pack_open(&pack, EK_U8, tensors, count);
    if (rc >= 0 && group->rank == root)
        rc = ek_pack_fill(&pack);
    if (rc >= 0)
        rc = ek_dist_broadcast(pack.memory, group->ranks[root], .group = group);
    if (rc >= 0 && group->rank != root)
        rc = ek_pack_deliver(&pack, "broadcast");
    if (nbytes && pack.memory)
        *nbytes += ek_comm_nbytes(pack.memory);
    ek_pack_close(&pack);
    return rc;
}

/* layout.c: see layout.h. */
#include "train/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/digest.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "group/collective.h"
#include "group/differentiable.h"

/* ---- comparing ---- */

typedef struct layout_list {
    char **texts; /* "2.weight f32[6, 10]" */
    int count, room;
} layout_list;

static int layout_visit(const char *path, ek_tensor *tensor, void *user)
{
    layout_list *list = user;
    char text[400], shape[200];
    EK_TRY(ek_grow(&list->texts, &list->room, list->count + 1));
    ek_wire_shape wire = ek_wire_shape_of(tensor);
    ek_wire_shape_text(&wire, shape);
    snprintf(text, sizeof text, "\"%.180s\" %.180s", path, shape);
    list->texts[list->count] = ek_strdup(text);
    return list->texts[list->count++] ? 0 : ek_error_pending();
}

/* All ranks' lists, one after another: their length, and the digest of each text. */
static ek_tensor *layout_join(const layout_list *list, ek_process_group *group)
{
    ek_tensor *mine = ek_empty(EK_SHAPE(list->count + 1), EK_I64, .device = ek_cpu());
    if (mine) {
        int64_t *numbers = ek_tensor_address(mine);
        numbers[0] = list->count;
        for (int i = 0; i < list->count; i++)
            numbers[i + 1] = (int64_t)ek_digest_text(EK_DIGEST, list->texts[i]);
    }
    return ek_join(&ek_verb_presence, mine, 0, group);
}

/* The index of the first text that is not the same everywhere, alike on all ranks; -1: none. */
static int64_t layout_first_difference(const ek_tensor *all, int ranks)
{
    const int64_t *first = ek_tensor_address(all), *numbers = first;
    int64_t least = -1;
    for (int r = 0; r < ranks; numbers += *numbers + 1, r++) {
        int64_t common = *numbers < *first ? *numbers : *first, i = 0;
        while (i < common && numbers[i + 1] == first[i + 1])
            i++;
        if ((i < common || *numbers != *first) && (least < 0 || i < least))
            least = i;
    }
    return least;
}

/* Says what each rank has there: that of the first rank, and the first that is another. */
static int layout_complain(const char *what, const layout_list *list, int64_t index,
                           ek_process_group *group)
{
    ek_value *values = ek_calloc((size_t)group->size, sizeof *values);
    if (!values)
        return ek_error_pending();
    const char *own = index < list->count ? list->texts[index] : "nothing more";
    ek_tensor *mine =
        ek_from_data(own, EK_SHAPE((int64_t)strlen(own) + 1), EK_U8, .device = ek_cpu());
    int rc = ek_dist_all_gather_value(ek_value_of_tensor(mine), values, group);
    for (int r = 1; r < group->size && rc >= 0; r++) {
        const char *first = ek_tensor_address(ek_value_tensor(values[0]));
        const char *other = ek_tensor_address(ek_value_tensor(values[r]));
        if (strcmp(first, other) != 0)
            rc = EK_FAIL(EK_E_STATE,
                         "%s: the module differs between ranks: rank %d has the parameter or "
                         "buffer %s, rank %d %s",
                         what, group->ranks[0], first, group->ranks[r], other);
    }
    free(values);
    return rc;
}

int ek_layout_agree(const char *what, ek_module *module, ek_process_group *group)
{
    layout_list list = {0};
    ek_scope scope = ek_scope_begin();
    int rc = ek_module_parameters(module, layout_visit, &list);
    if (rc >= 0)
        rc = ek_module_buffers(module, layout_visit, &list);
    ek_tensor *all = rc >= 0 ? layout_join(&list, group) : NULL;
    if (!all)
        rc = ek_error_pending();
    int64_t index = rc >= 0 ? layout_first_difference(all, group->size) : -1;
    if (index >= 0)
        rc = layout_complain(what, &list, index, group);
    ek_scope_end(&scope);
    for (int i = 0; i < list.count; i++)
        free(list.texts[i]);
    free(list.texts);
    return rc;
}

/* ---- sending ---- */

/* Copies between a tensor and its row-major elements in `bytes`. */
static int layout_copy(ek_tensor *tensor, ek_tensor *bytes, int64_t at, bool pack)
{
    ek_shape shape = ek_tensor_shape(tensor);
    int64_t strides[EK_MAX_DIMS];
    ek_strides_of(&shape, EK_CONTIGUOUS, strides);
    ek_tensor *packed = ek_tensor_member(bytes->storage, tensor->dtype, &shape, strides,
                                         at / (int64_t)ek_dtype_size(tensor->dtype));
    if (!packed)
        return ek_error_pending();
    EK_TRY(ek_comm_copy(pack ? packed : tensor, pack ? tensor : packed));
    bool waits = pack && ek_dev_is_host(ek_tensor_dev(bytes));
    return waits ? ek_synchronize(ek_tensor_dev(tensor)->id) : 0;
}

static int64_t layout_pitch(const ek_tensor *tensor)
{
    return ((int64_t)ek_comm_nbytes(tensor) + EK_COMM_ALIGNMENT - 1) / EK_COMM_ALIGNMENT *
           EK_COMM_ALIGNMENT;
}

/* Where the tensors are packed: on their device, if it is one, else on cpu. */
static ek_device layout_place(ek_tensor *const *tensors, int count)
{
    for (int i = 1; i < count; i++)
        if (ek_tensor_dev(tensors[i]) != ek_tensor_dev(tensors[0]))
            return ek_cpu();
    return ek_dev_is_host(ek_tensor_dev(tensors[0])) ? ek_cpu() : ek_tensor_dev(tensors[0])->id;
}

int ek_layout_broadcast(ek_tensor *const *tensors, int count, int root, ek_process_group *group,
                        uint64_t *nbytes)
{
    int64_t total = 0, at = 0;
    for (int i = 0; i < count; i++)
        total += layout_pitch(tensors[i]);
    if (total == 0)
        return 0;
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_tensor *bytes = ek_zeros(EK_SHAPE(total), EK_U8, .device = layout_place(tensors, count));
    ek_memory_set_category(before);
    int rc = bytes ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc >= 0 && group->rank == root;
         at += layout_pitch(tensors[i]), i++)
        rc = layout_copy(tensors[i], bytes, at, true);
    if (rc >= 0)
        rc = ek_dist_broadcast(bytes, group->ranks[root], .group = group);
    at = 0;
    for (int i = 0; i < count && rc >= 0 && group->rank != root;
         at += layout_pitch(tensors[i]), i++) {
        rc = layout_copy(tensors[i], bytes, at, false);
        ek_tensor_written(tensors[i], "broadcast");
    }
    ek_scope_end(&scope);
    if (nbytes)
        *nbytes += (uint64_t)total;
    return rc;
}

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
#include "group/same.h"
#include "train/pack.h"

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

/* The digests of all ranks' texts; in the scope. */
static const int64_t *layout_digests(const layout_list *list, ek_process_group *group)
{
    int64_t *digests = ek_calloc((size_t)list->count + 1, sizeof *digests);
    for (int i = 0; i < list->count && digests; i++)
        digests[i] = (int64_t)ek_digest_text(EK_DIGEST, list->texts[i]);
    const int64_t *all = digests ? ek_group_lists(digests, list->count, group) : NULL;
    free(digests);
    return all;
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
            rc = ek_ranks_alike(
                EK_FAIL(EK_E_STATE,
                        "%s: the module differs between ranks: rank %d has the parameter or "
                        "buffer %s, rank %d %s",
                        what, group->ranks[0], first, group->ranks[r], other));
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
    const int64_t *all = rc >= 0 ? layout_digests(&list, group) : NULL;
    ek_difference difference;
    if (!all)
        rc = ek_error_pending();
    else if (!ek_group_same(all, group->size, INT64_MAX, &difference))
        rc = layout_complain(what, &list, difference.index, group);
    ek_scope_end(&scope);
    for (int i = 0; i < list.count; i++)
        free(list.texts[i]);
    free(list.texts);
    return rc;
}

/* ---- sending ---- */

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

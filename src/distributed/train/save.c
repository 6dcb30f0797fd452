/* save.c: archives of all ranks of a group: one rank writes them in the call, or threads write them
 * beside the program (saving.h). */
#include <stdlib.h>
#include <string.h>

#include "core/ranks.h"
#include "core/thread.h"
#include "evenkeel/ddp.h"
#include "group/same.h"
#include "train/saving.h"

/* Waits until all ranks of the group have come to this call. The broadcast also compares the ranks'
 * values of `rank`. */
static int save_meet(int rank, ek_process_group *group)
{
    double nothing = 0;
    return ek_dist_broadcast_number(&nothing, rank, group);
}

/* Checks that all ranks' archives have equal lists of states that are sharded over ranks, and with
 * `alike` of what is divided. Sets *count to the list's length. */
static int save_compare(const ek_archive *archive, bool alike, ek_process_group *group, int *count)
{
    enum { COUNT, DIGEST, NUMBERS };
    uint64_t digest;
    ek_difference found;
    int64_t mine[NUMBERS] = {ek_archive_count_with_ranks(archive, alike, &digest)};
    mine[DIGEST] = (int64_t)digest;
    *count = (int)mine[COUNT];
    int same = group->size == 1 ? 1 : ek_group_compare(mine, NUMBERS, group, &found);
    if (same)
        return same < 0 ? same : 0;
    bool others = found.index == DIGEST;
    return ek_ranks_alike(
        EK_FAIL(EK_E_STATE,
                "%s: the archive of rank 0 of the group has %lld %s that are divided over "
                "ranks, that of rank %d %lld%s; each rank puts the same into its own",
                ek_save_name, (long long)(others ? mine[COUNT] : found.first),
                alike ? "tensors" : "states", found.rank,
                (long long)(others ? mine[COUNT] : found.other), others ? " others" : ""));
}

/* ---- the file is written by the call ---- */

static int save_now(const ek_dist_archive_options *call, ek_process_group *group, int root)
{
    int sharded = 0;
    EK_TRY(save_compare(call->archive, false, group, &sharded));
    if (group->rank == root)
        EK_TRY(sharded ? ek_archive_save_with_ranks(call->archive, call->path)
                       : ek_archive_save(call->archive, call->path));
    else if (sharded)
        EK_TRY(ek_archive_give(call->archive));
    return save_meet(call->rank, group);
}

/* ---- files are written by threads ---- */

/* Tells all ranks which names the parts get: those that the root's index does not list. */
static int save_name_parts(const ek_dist_archive_options *call, ek_saving *saving)
{
    double second =
        saving->in_parts && saving->group->rank == saving->root && ek_set_lists_first(saving->path);
    EK_TRY(ek_dist_broadcast_number(&second, call->rank, saving->group));
    saving->parts = (ek_set_parts){second > 0, saving->group->size};
    return 0;
}

/* Makes the index, which names all ranks' files and machines. */
static int save_index(const ek_archive *archive, const int *owners, ek_saving *saving)
{
    const ek_communication *communication = saving->communication;
    const char **hosts = ek_calloc((size_t)saving->size, sizeof *hosts);
    if (!hosts)
        return EK_E_NO_MEMORY;
    for (int r = 0; r < saving->size; r++)
        hosts[r] = communication ? communication->hosts[saving->ranks[r]] : ek_dist_host(0);
    const ek_set_list list = {.path = saving->path, .parts = saving->parts, .hosts = hosts};
    int rc = ek_archive_index(archive, owners, list, &saving->index_content);
    free(hosts);
    return rc;
}

/* Copies what this rank writes, and makes the names of its files. */
static int save_copy(const ek_dist_archive_options *call, ek_saving *saving)
{
    const ek_archive *archive = call->archive;
    const bool is_root = saving->rank == saving->root, has_index = saving->in_parts && is_root;
    int *owners = ek_calloc((size_t)(archive ? archive->count : 0) + 1, sizeof *owners);
    int rc = owners ? ek_archive_divide(archive, saving->in_parts ? saving->size : 1, saving->root,
                                        owners)
                    : EK_E_NO_MEMORY;
    if (rc == 0)
        rc = ek_archive_part(archive, owners, saving->rank, is_root, &saving->content);
    if (rc == 0 && has_index)
        rc = save_index(archive, owners, saving);
    free(owners);
    EK_TRY(rc);
    if (saving->in_parts)
        saving->file = ek_set_part_path(saving->path, saving->parts, saving->rank);
    else if (is_root)
        saving->file = ek_strdup(saving->path);
    if (has_index)
        saving->index = ek_set_index_path(saving->path);
    return ek_error_status();
}

static int save_check(const ek_dist_archive_options *call, bool is_root)
{
    if (is_root)
        EK_TRY(ek_check_handle(ek_save_name, "the archive", call->archive));
    if (is_root || call->parts)
        EK_TRY(ek_check_given(ek_save_name, "the path", call->path));
    if (call->path && ek_archive_is_pth(call->path))
        return EK_FAIL(EK_E_INVALID,
                       "%s: %.500s would be a file of torch.save; parts and files that are written "
                       "beside the program are safetensors files",
                       ek_save_name, call->path);
    return 0;
}

/* Does all that can fail before the threads start. */
static int save_prepare(const ek_dist_archive_options *call, ek_saving *saving)
{
    int divided;
    ek_saving_await(saving->group);
    EK_TRY(save_check(call, saving->group->rank == saving->root));
    saving->path = ek_set_path(call->path ? call->path : "");
    if (!saving->path || !ek_saving_new_work(saving))
        return ek_error_pending();
    EK_TRY(save_compare(call->archive, call->parts, saving->group, &divided));
    EK_TRY(save_name_parts(call, saving));
    EK_TRY(save_copy(call, saving));
    return save_meet(call->rank, saving->group);
}

static int save_beside(const ek_dist_archive_options *call, ek_process_group *group, int root)
{
    ek_saving *saving = ek_calloc(1, sizeof *saving);
    if (!saving)
        return EK_E_NO_MEMORY;
    saving->group = group;
    saving->root = root;
    saving->in_parts = call->parts;
    int rc = save_prepare(call, saving);
    if (rc < 0) {
        ek_dist_work_free(saving->work);
        ek_saving_free(saving);
        return rc;
    }
    ek_dist_work *work = saving->work;
    ek_saving_start(saving);
    if (!call->work)
        return ek_dist_wait(work);
    *call->work = work;
    return 0;
}

static int save_run(ek_process_group *group, void *user)
{
    const ek_dist_archive_options *call = user;
    int root = ek_world_root(ek_save_name, group, call->rank);
    EK_TRY(root);
    return call->parts || call->work ? save_beside(call, group, root) : save_now(call, group, root);
}

int ek_dist_archive_save_with(ek_dist_archive_options options)
{
    if (options.work)
        *options.work = NULL;
    return ek_group_call(ek_save_name, options.group, save_run, &options);
}

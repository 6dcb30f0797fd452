/* save.c: archives that one rank writes for all ranks. */
#include "archive/archive.h"
#include "core/ranks.h"
#include "core/thread.h"
#include "evenkeel/ddp.h"
#include "evenkeel/ops.h"
#include "evenkeel/scope.h"
#include "group/same.h"
#include "group/world.h"

static const char save_name[] = "dist_archive_save";

/* Waits until all ranks of the group have come to this call. The broadcast also compares the ranks'
 * values of `rank`. */
static int save_meet(int rank, ek_process_group *group)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *nothing = ek_zeros(EK_SHAPE(1), EK_U8, .device = ek_cpu());
    int rc = nothing ? ek_dist_broadcast(nothing, rank, .group = group) : ek_error_pending();
    ek_scope_end(&scope);
    return rc;
}

/* Checks that all ranks' archives have equal lists of states that are sharded over ranks. *sharded
 * tells whether this rank's archive has any. */
static int save_compare(const ek_archive *archive, ek_process_group *group, bool *sharded)
{
    enum { COUNT, DIGEST, NUMBERS };
    uint64_t digest;
    ek_difference found;
    int64_t mine[NUMBERS] = {ek_archive_count_with_ranks(archive, &digest)};
    mine[DIGEST] = (int64_t)digest;
    *sharded = mine[COUNT] > 0;
    int same = ek_group_compare(mine, NUMBERS, group, &found);
    if (same)
        return same < 0 ? same : 0;
    bool others = found.index == DIGEST;
    return ek_ranks_alike(
        EK_FAIL(EK_E_STATE,
                "%s: the archive of rank 0 of the group has %lld states that are divided over "
                "ranks, that of rank %d %lld%s; each rank puts the same into its own",
                save_name, (long long)(others ? mine[COUNT] : found.first), found.rank,
                (long long)(others ? mine[COUNT] : found.other), others ? " others" : ""));
}

typedef struct save_call {
    ek_archive *archive;
    const char *path;
    int rank;
} save_call;

static int save_run(ek_process_group *group, void *user)
{
    const save_call *call = user;
    bool sharded = false;
    int root = ek_world_root(save_name, group, call->rank);
    EK_TRY(root);
    if (group->size > 1)
        EK_TRY(save_compare(call->archive, group, &sharded));
    if (group->rank == root)
        EK_TRY(sharded ? ek_archive_save_with_ranks(call->archive, call->path)
                       : ek_archive_save(call->archive, call->path));
    else if (sharded)
        EK_TRY(ek_archive_give(call->archive));
    return save_meet(call->rank, group);
}

int ek_dist_archive_save(ek_archive *archive, const char *path, int rank, ek_process_group *group)
{
    save_call call = {archive, path, rank};
    return ek_group_call(save_name, group, save_run, &call);
}

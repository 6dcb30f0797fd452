/* save.c: archives that one rank writes for all. */
#include "core/thread.h"
#include "distributed/world.h"
#include "evenkeel/ddp.h"
#include "evenkeel/ops.h"
#include "evenkeel/scope.h"

/* Waits until all ranks are here. The broadcast of an element compares the ranks' `rank`. */
static int save_meet(int rank, ek_process_group *group)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *nothing = ek_zeros(EK_SHAPE(1), EK_U8, .device = ek_cpu());
    int rc = nothing ? ek_dist_broadcast(nothing, rank, .group = group)
                     : ek_world_outcome(group, ek_error_pending());
    ek_scope_end(&scope);
    return rc;
}

int ek_dist_archive_save(ek_archive *archive, const char *path, int rank, ek_process_group *given)
{
    static const char what[] = "dist_archive_save";
    ek_process_group *group;
    int part = ek_world_group(what, given, &group);
    if (part <= 0)
        return part;
    int root = ek_world_root(what, group, rank);
    EK_TRY(ek_world_outcome(group, root));
    if (group->rank == root)
        EK_TRY(ek_world_outcome(group, ek_archive_save(archive, path)));
    return save_meet(rank, group);
}

/* place.c: this process's place among the others: its group in a call, ranks, hosts and devices. */
#include <unistd.h>

#include "core/device.h"
#include "core/thread.h"
#include "distributed/world.h"

int ek_world_group(const char *what, ek_process_group *given, ek_process_group **group)
{
    EK_TRY(ek_fork_check());
    if (!given && !ek_dist_is_initialized())
        return EK_FAIL(EK_E_STATE,
                       "%s: there is no process group; call "
                       "ek_dist_init_process_group first",
                       what);
    *group = given ? given : ek_dist_world();
    if ((*group)->rank >= 0)
        return 1;
    ek_log_line(EK_LOG_WARNING, "%s: rank %d is not in %s, for which it was called", what,
                ek_dist_get_rank(NULL), (*group)->name);
    return 0;
}

int ek_world_root(const char *what, const ek_process_group *group, int rank)
{
    for (int r = 0; r < group->size; r++)
        if (group->ranks[r] == rank)
            return r;
    return EK_FAIL(EK_E_INVALID, "%s: rank %d is not in %s, which has %d %s%d", what, rank,
                   group->name, group->size, group->size == 1 ? "rank: " : "ranks; the last is ",
                   group->ranks[group->size - 1]);
}

int ek_dist_get_rank(const ek_process_group *group)
{
    if (!group)
        group = ek_dist_world();
    return group ? group->rank : 0;
}

int ek_dist_get_world_size(const ek_process_group *group)
{
    if (!group)
        group = ek_dist_world();
    return !group ? 1 : group->rank < 0 ? -1 : group->size;
}

int ek_dist_local_rank(void)
{
    return ek_world.local_rank;
}

int ek_dist_local_size(void)
{
    return ek_world.local_size;
}

const char *ek_dist_host(int rank)
{
    const ek_communication *communication = ek_world_communication();
    if (communication)
        return rank >= 0 && rank < communication->place.size ? communication->hosts[rank] : NULL;
    static char host[64];
    if (!host[0])
        gethostname(host, sizeof host - 1);
    return rank == 0 ? host : NULL;
}

ek_device_list ek_dist_devices(ek_device_kind kind)
{
    ek_device_list all = {0};
    if (kind != EK_CUDA || ek_device_count(kind) > 0)
        all = ek_devices(kind, 0);
    if (kind != EK_CUDA || all.count < 1 || ek_world.local_size == 1)
        return all;
    /* More processes than GPUs share them. */
    int begin = all.count * ek_world.local_rank / ek_world.local_size;
    int end = all.count * (ek_world.local_rank + 1) / ek_world.local_size;
    if (end == begin)
        end = begin + 1;
    return ek_device_list_of(all.devices + begin, end - begin);
}

int ek_dist_group_rank(const ek_process_group *group, int rank)
{
    group = group ? group : ek_dist_world();
    if (!group)
        return EK_FAIL(EK_E_STATE, "group_rank: there is no process group");
    return ek_world_root("group_rank", group, rank);
}

int ek_dist_global_rank(const ek_process_group *group, int group_rank)
{
    group = group ? group : ek_dist_world();
    if (!group)
        return EK_FAIL(EK_E_STATE, "global_rank: there is no process group");
    if (group_rank < 0 || group_rank >= group->size)
        return EK_FAIL(EK_E_INVALID, "global_rank: rank %d of %s, which has ranks 0 to %d",
                       group_rank, group->name, group->size - 1);
    return group->ranks[group_rank];
}

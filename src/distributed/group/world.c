/* world.c: see world.h. */
#include "group/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/device.h"
#include "core/thread.h"

static ek_communication *world_communication;
static ek_process_group *world_alone;  /* the world of a process that is alone */
static ek_process_group *world_groups; /* made by ek_dist_new_group; linked by `next_made` */

ek_communication *ek_world_communication(void)
{
    return world_communication;
}

void ek_world_set(ek_communication *communication, ek_process_group *alone)
{
    world_communication = communication;
    world_alone = alone;
}

bool ek_dist_is_initialized(void)
{
    return world_communication || world_alone;
}

ek_process_group *ek_dist_world(void)
{
    return world_communication ? world_communication->world : world_alone;
}

/* ---- calls: Note [One boundary] ---- */

/* Finds the group of a call: `given`, or the world for NULL. Returns 1 if this rank takes part in
 * the group. Else writes a log line and returns 0. Without a world returns EK_E_STATE. */
static int world_find(const char *what, ek_process_group *given, ek_process_group **group)
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

int ek_group_call(const char *what, ek_process_group *given,
                  int (*body)(ek_process_group *group, void *user), void *user)
{
    ek_process_group *group = NULL;
    int part = world_find(what, given, &group);
    return part > 0 ? ek_world_outcome(group, body(group, user)) : part;
}

/* ---- places: ranks, hosts and devices ---- */

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
    /* If there are more processes than GPUs, several processes share a GPU. */
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

/* ---- groups ---- */

static int world_compare_ranks(const void *a, const void *b)
{
    int first = *(const int *)a, second = *(const int *)b;
    return (first > second) - (first < second);
}

/* Copies the options' ranks to `ranks`, sorts them, and checks that each is in the world once. */
static int world_sorted_ranks(const ek_group_options *options, int size, int *ranks)
{
    for (int i = 0; i < options->count; i++)
        ranks[i] = options->ranks[i];
    qsort(ranks, (size_t)options->count, sizeof *ranks, world_compare_ranks);
    for (int i = 0; i < options->count; i++) {
        if (ranks[i] < 0 || ranks[i] >= size)
            return EK_FAIL(EK_E_INVALID, "new_group: rank %d; the world has ranks 0 to %d",
                           ranks[i], size - 1);
        if (i > 0 && ranks[i] == ranks[i - 1])
            return EK_FAIL(EK_E_INVALID, "new_group: rank %d is named twice", ranks[i]);
    }
    return 0;
}

static int world_check_group(const ek_group_options *options, const ek_process_group *world,
                             double timeout)
{
    if (options->ranks && (options->count < 1 || options->count > world->size))
        return EK_FAIL(EK_E_INVALID, "new_group: %d ranks; 1 to %d are possible", options->count,
                       world->size);
    if (world->communication && !(timeout > 0 && isfinite(timeout)))
        return EK_FAIL(EK_E_INVALID, "new_group: a timeout of %g seconds; it must be positive",
                       timeout);
    return 0;
}

typedef struct new_group {
    const ek_group_options *options;
    ek_process_group *made;
} new_group;

static int world_new_group(ek_process_group *world, void *user)
{
    static int made_alone; /* groups made in worlds of one */
    new_group *call = user;
    const ek_group_options *options = call->options;
    double timeout = options->timeout != EK_UNSET ? options->timeout : world->timeout;
    int count = options->ranks ? options->count : world->size;
    EK_TRY(world_check_group(options, world, timeout));
    int *ranks = ek_calloc((size_t)count, sizeof *ranks);
    if (!ranks)
        return ek_error_pending();
    for (int i = 0; i < count; i++)
        ranks[i] = i;
    int rc = options->ranks ? world_sorted_ranks(options, world->size, ranks) : 0;
    if (rc >= 0)
        call->made = world->communication
                         ? ek_communication_new_group(world->communication, ranks, count, timeout)
                         : ek_process_group_new(NULL, ++made_alone, NULL, 1, timeout);
    free(ranks);
    return call->made ? 0 : ek_error_pending();
}

ek_process_group *ek_dist_new_group_with(ek_group_options options)
{
    new_group call = {.options = &options};
    if (ek_group_call("new_group", NULL, world_new_group, &call) < 0)
        return NULL;
    call.made->next_made = world_groups;
    world_groups = call.made;
    return call.made;
}

int ek_world_destroy_group(ek_process_group *group)
{
    ek_process_group **at = &world_groups;
    while (*at && *at != group)
        at = &(*at)->next_made;
    if (!*at)
        return EK_FAIL(EK_E_INVALID,
                       "destroy_process_group: not a group that ek_dist_new_group has made");
    *at = group->next_made;
    ek_communication_destroy_group(group);
    return 0;
}

void ek_world_destroy_groups(void)
{
    while (world_groups)
        ek_world_destroy_group(world_groups);
}

/* ---- errors of the job ---- */

int ek_dist_raise(void)
{
    return ek_world_outcome(ek_dist_world(), ek_error_status());
}

int ek_dist_error_rank(void)
{
    const ek_error_record *pending = &ek_thread_self()->error;
    int origin = pending->status < 0 ? pending->origin - 1 : -1;
    return world_communication && origin != world_communication->place.rank ? origin : -1;
}

void ek_dist_print_error(FILE *stream)
{
    ek_error_record error;
    if (!world_communication)
        ek_print_error(stream);
    else if (ek_dist_error_rank() >= 0)
        ek_error_clear();
    else if (stream && ek_error_take(&error))
        ek_communication_print(world_communication, &error, stream);
}

/* sum_schedule.c: see sum_schedule.h. */
#include "group/sum_schedule.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "link/communication.h"

enum { SCHEDULE_FEW = 4 }; /* the most nodes that a level joins if the way is not EK_SUM_DIRECT */

/* ---- blocks: Note [Machines] ---- */

/* Returns how many ranks from `first` on are on one machine. */
static int schedule_run(const ek_process_group *group, int first)
{
    const char(*hosts)[64] = (const char(*)[64])group->communication->hosts;
    int end = first + 1;
    while (end < group->size && strcmp(hosts[group->ranks[end]], hosts[group->ranks[first]]) == 0)
        end++;
    return end - first;
}

int ek_sum_block(const ek_process_group *group)
{
    const int block = schedule_run(group, 0);
    if (block == group->size)
        return block;
    for (int first = block; first < group->size;) {
        int run = schedule_run(group, first);
        if (run != block && (run > block || first + run < group->size))
            return 1;
        first += run;
    }
    return (block & (block - 1)) == 0 ? block : 1;
}

/* ---- nodes ---- */

ek_interval ek_sum_node_slice(const ek_sum_node *node, int64_t count, int rank)
{
    return ek_slab_slice(count, EK_SUM_UNIT, node->size, rank - node->first);
}

int ek_sum_node_find(const ek_sum_node *node, int64_t count, int64_t at, ek_interval *slice)
{
    int64_t units = (count + EK_SUM_UNIT - 1) / EK_SUM_UNIT;
    int place = (int)(at / EK_SUM_UNIT * node->size / units);
    for (;; place++) {
        *slice = (ek_interval){ek_slab_cut(count, EK_SUM_UNIT, node->size, place),
                               ek_slab_cut(count, EK_SUM_UNIT, node->size, place + 1)};
        if (at < slice->end)
            return place;
    }
}

/* ---- levels: Note [Halving] ---- */

/* What a schedule is made of. The first call of schedule_list_all counts, and the second call
 * fills. */
typedef struct schedule_room {
    ek_sum_schedule *schedule; /* NULL: counts only */
    int levels, sides, owners;
    ek_sum_node *side;
    int *owner;
} schedule_room;

static ek_sum_node schedule_node(schedule_room *room, int first, int size)
{
    ek_sum_node node = {first, size, NULL};
    if (room->schedule) {
        int *owners = room->owner + room->owners;
        for (int r = 0; r < size; r++)
            owners[ek_slab_place(size, r)] = first + r;
        node.owners = owners;
    }
    room->owners += size;
    return node;
}

/* Adds the level that joins nodes of `size` ranks (the last one may have fewer) to the node
 * [first, end). */
static void schedule_join(schedule_room *room, int rank, int first, int end, int size)
{
    ek_sum_level level = {.node = schedule_node(room, first, end - first)};
    level.own = (rank - first) / size;
    level.sides = room->side ? room->side + room->sides : NULL;
    for (int at = first; at < end; at += size, level.count++, room->sides++) {
        ek_sum_node side = schedule_node(room, at, end - at < size ? end - at : size);
        if (room->side)
            room->side[room->sides] = side;
    }
    if (room->schedule)
        room->schedule->levels[room->levels] = level;
    room->levels++;
}

/* Adds the levels that join the least nodes, of `size` ranks, to the node [first, end). */
static void schedule_list(schedule_room *room, int rank, int first, int end, int size)
{
    const int ranks = end - first;
    int left = size;
    if (ranks <= size)
        return;
    if (ranks <= SCHEDULE_FEW * size) {
        schedule_join(room, rank, first, end, size);
        return;
    }
    while (2 * left < ranks)
        left *= 2;
    const bool is_left = rank < first + left;
    schedule_list(room, rank, is_left ? first : first + left, is_left ? first + left : end, size);
    schedule_join(room, rank, first, end, left);
}

static void schedule_list_all(schedule_room *room, int ranks, int rank, int block, ek_sum_way way)
{
    const int first = rank / block * block, end = first + block < ranks ? first + block : ranks;
    if (way == EK_SUM_DIRECT) {
        if (ranks > 1)
            schedule_join(room, rank, 0, ranks, 1);
        return;
    }
    if (way == EK_SUM_SENT)
        schedule_list(room, rank, first, end, 1);
    schedule_list(room, rank, 0, ranks, block);
}

ek_sum_schedule *ek_sum_schedule_new(int ranks, int rank, int block, ek_sum_way way)
{
    schedule_room room = {0};
    schedule_list_all(&room, ranks, rank, block, way);
    const size_t levels = sizeof(ek_sum_schedule) + (size_t)room.levels * sizeof(ek_sum_level);
    const size_t sides = (size_t)room.sides * sizeof(ek_sum_node);
    ek_sum_schedule *schedule = ek_calloc(levels + sides + (size_t)room.owners * sizeof(int), 1);
    if (!schedule)
        return NULL;
    schedule->ranks = ranks;
    schedule->rank = rank;
    schedule->count = room.levels;
    room = (schedule_room){.schedule = schedule,
                           .side = (ek_sum_node *)(void *)((char *)schedule + levels)};
    room.owner = (int *)(void *)((char *)room.side + sides);
    schedule_list_all(&room, ranks, rank, block, way);
    schedule->base = (ek_sum_node){rank, 1, NULL};
    if (way == EK_SUM_SHARED) {
        schedule->base.first = rank / block * block;
        schedule->base.size = ranks - schedule->base.first;
        if (schedule->base.size > block)
            schedule->base.size = block;
    }
    return schedule;
}

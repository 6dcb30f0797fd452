/* process_group.c: makes and destroys the groups of a communication. */
#include "link/communication.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/digest.h"
#include "core/thread.h"

static void group_forget_view(ek_process_group *group)
{
    if (group->forget_view)
        group->forget_view(group);
}

void ek_process_group_free(ek_process_group *group)
{
    if (!group)
        return;
    if (group->await_saves)
        group->await_saves(group);
    if (group->close_rails)
        group->close_rails(group);
    group_forget_view(group);
    ek_object_release(group->served_by);
    free(group->ranks);
    free(group->blocks);
    free(group->gathered);
    free(group->bounds);
    free(group->waits.of);
    free(group);
}

ek_process_group *ek_process_group_new(ek_communication *communication, int number,
                                       const int *ranks, int count, double timeout)
{
    ek_process_group *group = ek_calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->communication = communication;
    group->number = number;
    group->size = count;
    group->rank = group->last_verb = -1;
    group->timeout = timeout;
    group->end = &group->first;
    group->ranks = ek_calloc((size_t)count, sizeof(int));
    group->blocks = ek_calloc((size_t)ek_rounds_room(count), sizeof *group->blocks);
    group->gathered = ek_calloc((size_t)count, EK_DESCRIPTOR_PAYLOAD);
    group->bounds = ek_calloc((size_t)count + 1, sizeof(size_t));
    group->waits.of = ek_calloc((size_t)count, sizeof *group->waits.of);
    if (!group->ranks || !group->blocks || !group->gathered || !group->bounds || !group->waits.of) {
        ek_process_group_free(group);
        return NULL;
    }
    for (int r = 0; r < count; r++) {
        group->ranks[r] = ranks ? ranks[r] : r;
        if (group->ranks[r] == (communication ? communication->place.rank : 0))
            group->rank = r;
    }
    if (number == 0)
        snprintf(group->name, sizeof group->name, "the world");
    else
        snprintf(group->name, sizeof group->name, "group %d", number);
    return group;
}

int ek_process_group_gather(ek_process_group *group, void *all, size_t nbytes)
{
    for (int r = 0; r <= group->size; r++)
        group->bounds[r] = (size_t)r * nbytes;
    return ek_rounds_gather(&group->rounds, group, EK_ROUNDS_TAG, all, group->bounds);
}

static int group_go_on_new_group(ek_dist_work *work)
{
    ek_process_group *group = work->user;
    ek_communication *communication = group->communication;
    int rc = communication->transport->split(communication->everybody, group->rank < 0 ? -1 : 0,
                                             group->rank, &group->communicator);
    if (rc < 0)
        return EK_FAIL(EK_E_BACKEND, "new_group: %s makes no communicator: %s",
                       communication->transport->name, communication->transport->reason(rc));
    group->clean = communication->epoch;
    if (group->rank >= 0) {
        ek_process_group **at = &communication->groups;
        while (*at)
            at = &(*at)->next;
        *at = group;
    }
    return 0;
}
static const ek_verb group_make_group = {EK_VERB_NEW_GROUP, .go_on = group_go_on_new_group};

ek_process_group *ek_communication_new_group(ek_communication *communication, const int *ranks,
                                             int count, double timeout)
{
    ek_process_group *group =
        ek_process_group_new(communication, ++communication->groups_made, ranks, count, timeout);
    ek_dist_work *work =
        group ? ek_dist_work_new(communication->world, &group_make_group, 0) : NULL;
    if (!work) {
        ek_process_group_free(group);
        return NULL;
    }
    work->user = group;
    uint64_t digest = EK_DIGEST;
    for (int r = 0; r < count; r++)
        digest = ek_digest_word(digest, (uint64_t)group->ranks[r]);
    work->descriptor.shape = (ek_wire_shape){-1, 2, {count, (int64_t)(digest >> 1)}};
    if (ek_dist_work_run(work) < 0) {
        ek_process_group_free(group);
        return NULL;
    }
    return group;
}

void ek_process_group_close(ek_process_group *group)
{
    ek_communication *communication = group->communication;
    ek_process_group **at = &communication->groups;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    communication->transport->close_communicator(group->communicator);
    pthread_mutex_lock(&communication->lock);
    communication->serving -= group->served_by != NULL;
    pthread_mutex_unlock(&communication->lock);
    group->communicator = NULL;
    group->communication = NULL;
    if (atomic_load(&group->retired))
        ek_process_group_free(group);
}

bool ek_process_group_is_given_up(const ek_process_group *group)
{
    const ek_communication *communication = group->communication;
    return atomic_load(&group->retired) || (communication->shut && group != communication->world);
}

void ek_communication_destroy_group(ek_process_group *group)
{
    ek_communication *communication = group->communication;
    if (!communication || group->rank < 0) {
        ek_process_group_free(group);
        return;
    }
    group_forget_view(group); /* in this thread, which uses the view */
    atomic_store(&group->retired, true);
    ek_communication_wake(communication);
}

void ek_communication_free_groups(ek_communication *communication)
{
    while (communication->groups) {
        ek_process_group *group = communication->groups;
        communication->groups = group->next;
        group->communication = NULL;
        if (atomic_load(&group->retired) || group == communication->world)
            ek_process_group_free(group);
    }
}

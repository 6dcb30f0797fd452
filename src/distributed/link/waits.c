/* waits.c: how long calls wait, and for which rank.
 *
 * Note [Who came last]
 *
 * The clocks of ranks differ, so that ranks compare how long they wait. A rank's wait in a call
 * begins when the rank's own part is complete: when it begins the agreement, or in a gradual call
 * at the end of its backward or its step. The wait ends when all ranks' parts are there, which all
 * ranks see at about the same time. So the rank with the shortest wait came last. The difference
 * between another rank's wait and the shortest wait is the time that the other rank has waited for
 * the last rank. The group's next agreement finds the shortest wait and its rank. */
#include "core/clock.h"
#include "link/communication.h"

static const double nanosecond = 1e-9;

void ek_waits_time(ek_process_group *group, const ek_dist_work *work)
{
    group->timed = group->calls;
    group->timed_pass = work->verb->gradual;
    group->waited = ek_clock_ns() - (work->arrived ? work->arrived : group->arrived);
}

static void waits_add(ek_ranks_wait *wait, uint64_t ns)
{
    wait->calls++;
    wait->waited += ns;
}

void ek_waits_compare(ek_process_group *group)
{
    const ek_agreement *agreed = &group->agreed;
    ek_communication *communication = group->communication;
    int last = agreed->last;
    if (agreed->timed == 0 || agreed->timed_differ)
        return;
    uint64_t longer = group->waited - agreed->waited;
    pthread_mutex_lock(&communication->lock);
    if (group->timed_pass)
        waits_add(&group->waits.of[last], longer);
    waits_add(&communication->waits.of[group->ranks[last]], longer);
    pthread_mutex_unlock(&communication->lock);
}

void ek_waits_send(ek_process_group *group, bool sends)
{
    if (sends == (group->busy_since > 0))
        return;
    uint64_t now = ek_clock_ns(), ns = now - group->busy_since;
    group->busy_since = sends ? now : 0;
    if (sends)
        return;
    pthread_mutex_lock(&group->communication->lock);
    group->waits.communicating += ns;
    pthread_mutex_unlock(&group->communication->lock);
}

void ek_waits_expose(ek_dist_work *work, uint64_t ns)
{
    if (work->verb->gradual)
        work->group->waits.exposed += ns;
    work->group->communication->waits.exposed += ns;
}

void ek_waits_read(ek_process_group *group, ek_distributed_stats *stats)
{
    uint64_t waited = 0, most = 0;
    int last = -1;
    stats->waited_for = -1;
    if (!group->communication) /* the group was destroyed */
        return;
    pthread_mutex_lock(&group->communication->lock);
    for (int r = 0; r < group->size; r++) {
        const ek_ranks_wait *wait = &group->waits.of[r];
        waited += wait->waited;
        if (wait->calls > most) {
            most = wait->calls;
            last = r;
        }
    }
    stats->exposed = nanosecond * (double)group->waits.exposed;
    stats->communicating = nanosecond * (double)group->waits.communicating;
    pthread_mutex_unlock(&group->communication->lock);
    stats->waited = nanosecond * (double)waited;
    stats->waited_for = last < 0 ? -1 : group->ranks[last];
}

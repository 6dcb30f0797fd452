/* process_group.h: a group of ranks, whose works are done one after another. */
#ifndef EK_LINK_PROCESS_GROUP_H
#define EK_LINK_PROCESS_GROUP_H

#include <stdatomic.h>

#include "core/ranks.h"
#include "evenkeel/ddp.h"
#include "link/work.h"

/* ---- waits (waits.c) ---- */

/* What this rank's calls have waited so far. Under the communication's lock. */
typedef struct ek_waits {
    uint64_t exposed;       /* nanoseconds that callers of ek_dist_wait waited */
    uint64_t communicating; /* of a group: nanoseconds in which transfers or sums were under way */
    ek_ranks_wait *of;      /* by rank; owned */
} ek_waits;

/* ---- groups ---- */

struct ek_process_group {
    ek_process_group *next;      /* of the communication's groups, in the order of their numbers */
    ek_process_group *next_made; /* of the groups that world.c has made */
    ek_communication *communication; /* NULL: the world has one rank, or has ended */
    int number;                      /* 0: the world */
    char name[32];                   /* "the world", "group 2" */
    int size, rank;                  /* rank is -1 if this process is not in it */
    int *ranks;                      /* the members' ranks in the world, ascending; owned */
    double timeout;                  /* seconds */
    int rails_made;                  /* how many rails the group has made; equal on all ranks */
    struct ek_group_rail *rails;     /* under the communication's lock, for one thread at a time */
    struct ek_ranks *view; /* as other folders see it (ranks.c); NULL until somebody has asked */
    /* What ends the rails and the view; set by who makes them, NULL before. */
    void (*close_rails)(ek_process_group *group);
    void (*forget_view)(ek_process_group *group);
    atomic_bool retired; /* this rank has given it up; it is the communication thread's then */

    /* The communication thread's. */
    ek_communicator *communicator;
    ek_dist_work *first, **end; /* works in order; the first is under way */
    uint64_t calls;             /* agreements that have ended */
    ek_descriptor *descriptors; /* of all ranks, of the last agreement */
    size_t *bounds;             /* room for the list that an all-gather needs */
    ek_request *agreement;      /* NULL: none is under way */
    bool answering;             /* this rank's descriptor in it is of no work */
    uint32_t clean;             /* failures of epochs below this are drained */
    uint64_t arrived;           /* ek_clock_ns() when this rank's descriptor went out */
    uint64_t timed, waited;     /* what the next descriptor will say */
    bool timed_pass;            /* the call that was timed last had a verb with `ready` */
    uint64_t busy_since; /* ek_clock_ns() when `first` last stopped to wait for its program; 0: it
                            waits */
    int last_verb;       /* for inquiries: the last work that ended (-1: none yet), and when */
    uint64_t last_ended;

    ek_waits waits; /* of works whose verbs have `ready`, by rank of the group */
};

/* ---- making and closing ---- */

/* Makes the group of the world's ranks[0 .. count), ascending: a collective call of the world. */
ek_process_group *ek_communication_new_group(ek_communication *communication, const int *ranks,
                                             int count, double timeout);
/* Gives up a group that is not the world. It waits for nobody, and frees the group once all ranks
 * have given it up. Works of the group have ended. Also after the world's end. */
void ek_communication_destroy_group(ek_process_group *group);

/* Makes a group of `count` ranks of the world, ascending (NULL: the first ones), without a
 * communicator. A communication of NULL is that of a process without others. */
ek_process_group *ek_process_group_new(ek_communication *communication, int number,
                                       const int *ranks, int count, double timeout);
void ek_process_group_free(ek_process_group *group);
/* True if this rank calls the group no more. */
bool ek_process_group_is_given_up(const ek_process_group *group);
/* Closes a group that all its ranks have given up. Who holds it still, at the end of the world,
 * frees it. */
void ek_process_group_close(ek_process_group *group);
/* Frees the world and what was given up, after the thread's end. Holders free other groups. */
void ek_communication_free_groups(ek_communication *communication);

/* ---- on the communication thread ---- */

/* Starts the all-gather of `all`, in which each rank has `nbytes`. Returns the transport's status.
 */
int ek_process_group_gather(const ek_process_group *group, void *all, size_t nbytes,
                            ek_request **request);

/* Goes on with a group's works; true if anything went on. agreement.c. */
bool ek_group_turn(ek_process_group *group);

/* Now all ranks' parts of the group's work, which is the first, are complete. */
void ek_waits_time(ek_process_group *group, const ek_dist_work *work);
/* Finds out from the descriptors of an agreement who came last to an earlier call. */
void ek_waits_compare(ek_process_group *group);
/* From now on transfers or sums of the group's work are under way, or none; for verbs with `ready`.
 */
void ek_waits_send(ek_process_group *group, bool sends);
/* Writes how long the group's averages waited, in seconds, and which rank came last. */
void ek_waits_read(ek_process_group *group, ek_distributed_stats *stats);

#endif

/* process_group.h: a group of ranks, whose works are done one after another. */
#ifndef EK_LINK_PROCESS_GROUP_H
#define EK_LINK_PROCESS_GROUP_H

#include <stdatomic.h>

#include "core/ranks.h"
#include "evenkeel/ddp.h"
#include "link/rounds.h"
#include "link/work.h"

/* ---- waits (waits.c) ---- */

/* How long this rank has waited in calls so far. Guarded by the communication's lock. */
typedef struct ek_waits {
    uint64_t exposed;       /* nanoseconds that callers of ek_dist_wait waited */
    uint64_t communicating; /* only in a group: nanoseconds in which transfers or sums ran */
    ek_ranks_wait *of;      /* per rank: this rank's waits for that rank; owned */
} ek_waits;

/* ---- agreements (agreement.c) ---- */

/* What one rank tells in an agreement, or several ranks combined. If `call`, `payload` or `timed`
 * differs between ranks, a member tells that, and the number is that of any rank. */
typedef struct ek_agreement {
    uint64_t call;          /* digest of the descriptor's members that must be equal */
    uint64_t payload;       /* digest of the payload */
    uint64_t timed, waited; /* the number of an earlier call (0: none), and its least wait in ns */
    int32_t last;           /* the first rank with the least wait */
    int32_t required, off;  /* the first rank with this `gradient`; INT32_MAX: none */
    uint32_t failed; /* 1 + the latest epoch of a failure in which a rank takes no part; 0: none */
    bool calls_differ, payloads_differ, timed_differ;
} ek_agreement;
_Static_assert(sizeof(ek_agreement) <= 64, "an agreement is a small message");

/* What a rank sends if all ranks of the group send to each other (rounds.h). */
typedef struct ek_agreement_block {
    ek_agreement told;
    char payload[EK_DESCRIPTOR_PAYLOAD];
} ek_agreement_block;

/* ---- groups ---- */

struct ek_process_group {
    ek_process_group *next;      /* the communication's next group, by number */
    ek_process_group *next_made; /* the next group in world.c's list */
    /* NULL: the world has one rank or has ended, or all ranks have given the group up. */
    ek_communication *communication;
    int number;                  /* 0: the world */
    char name[32];               /* "the world", "group 2" */
    int size, rank;              /* rank is -1 if this process is not in the group */
    int *ranks;                  /* the members' ranks in the world, ascending; owned */
    double timeout;              /* seconds that a call may wait */
    int rails_made;              /* how many rails the group has made; equal on all ranks */
    struct ek_group_rail *rails; /* a list; guarded by the communication's lock */
    /* Memory of this rank that the other ranks read (ek_group_read), and what keeps it; one
     * reference. Set once, under the communication's lock. NULL: this rank serves nothing. */
    ek_object *served_by;
    const char *served;
    size_t served_nbytes;
    struct ek_ranks *view; /* the group as other folders see it; NULL until ranks.c makes it */
    /* close_rails frees the rails, and forget_view takes the group away from its view. rail.c and
     * ranks.c set the functions. NULL: there are no rails, or there is no view. */
    void (*close_rails)(ek_process_group *group);
    void (*forget_view)(ek_process_group *group);
    /* In the world: waits for archives that threads write. NULL: there are none. */
    void (*await_saves)(const ek_process_group *group);
    atomic_bool retired; /* this rank has given the group up (communication.h) */

    /* Used by the communication thread alone: */
    ek_communicator *communicator;
    ek_dist_work *first, **end; /* works in order; the first is under way */
    uint64_t calls;             /* how many agreements have ended */
    size_t *bounds;             /* room for the offsets of an all-gather, in bytes */
    ek_rounds rounds;           /* The exchange of the agreement, or of the work under way. */
    /* What the agreement under way exchanges. */
    enum {
        EK_AGREEMENT_NONE = 0,
        EK_AGREEMENT_REDUCES,
        EK_AGREEMENT_GATHERS_CALLS, /* they differ */
        EK_AGREEMENT_GATHERS_PAYLOADS
    } agreement;
    ek_agreement_block *blocks; /* The blocks of the agreement; owned. */
    ek_agreement agreed;        /* the outcome of the last agreement */
    char *gathered;        /* EK_DESCRIPTOR_PAYLOAD bytes per rank, for calls or payloads; owned */
    const char *payloads;  /* of the last agreement: rank 0's */
    size_t payload_stride; /* bytes from one rank's payload to the next rank's */
    bool answering;        /* this rank's part in the agreement belongs to no work */
    uint32_t clean;        /* the group is clean of failures of epochs below this number */
    uint64_t arrived;      /* ek_clock_ns() when this rank began the agreement */
    /* For the next agreement: the number of an earlier call (0: none), and this rank's wait in
     * that call in nanoseconds. */
    uint64_t timed, waited;
    bool timed_pass;     /* the call `timed` had a gradual verb */
    uint64_t busy_since; /* ek_clock_ns() when transfers or sums of `first` began; 0: none run */
    int last_verb;       /* for inquiries: the verb of the last work that ended (-1: none yet) */
    uint64_t last_ended;

    ek_waits waits; /* waits of gradual works; waits.of is by rank of the group */
};

/* ---- making and closing ---- */

/* Makes the group of the world's ranks[0 .. count), which must be ascending. All ranks of the world
 * make this call. NULL with an error. */
ek_process_group *ek_communication_new_group(ek_communication *communication, const int *ranks,
                                             int count, double timeout);
/* Gives up a group that is not the world, also after the world's end. All works of the group must
 * have ended. Waits for no other rank. The group is freed once all ranks have given it up, or at
 * once if the world has ended or this rank is not in the group. */
void ek_communication_destroy_group(ek_process_group *group);

/* Makes a group without a communicator, of `count` ranks of the world. `ranks` must be ascending;
 * NULL: ranks 0 to count - 1. `communication` is NULL if the process is alone. */
ek_process_group *ek_process_group_new(ek_communication *communication, int number,
                                       const int *ranks, int count, double timeout);
void ek_process_group_free(ek_process_group *group);
/* Returns true if this rank will not call the group any more. */
bool ek_process_group_is_given_up(const ek_process_group *group);
/* Closes a group that all its ranks have given up. Frees the group if it is retired. Else, which
 * happens at the end of the world, the caller that holds the group frees it. */
void ek_process_group_close(ek_process_group *group);
/* Frees the world's group and the retired groups, after the end of the communication thread.
 * Callers free the groups that they hold. */
void ek_communication_free_groups(ek_communication *communication);

/* ---- on the communication thread ---- */

/* Starts group->rounds, an all-gather of `all`, in which each rank has `nbytes` bytes. A work whose
 * go_on calls this function is called again once the rounds have ended. Returns the transport's
 * status. */
int ek_process_group_gather(ek_process_group *group, void *all, size_t nbytes);

/* Returns the payload of a rank's descriptor in the last agreement. */
static inline const void *ek_group_payload(const ek_process_group *group, int rank)
{
    return group->payloads + (size_t)rank * group->payload_stride;
}

/* Makes one step with the group's works. Returns true if there was progress. agreement.c. */
bool ek_group_turn(ek_process_group *group);

/* Ends this rank's wait in the group's first work, of which all ranks' parts are complete now. */
void ek_waits_time(ek_process_group *group, const ek_dist_work *work);
/* Adds this rank's wait, in an earlier call, for the rank that came last. The outcome of an
 * agreement names that rank. */
void ek_waits_compare(ek_process_group *group);
/* Notes whether transfers or sums of the group's first work are under way. The work's verb has
 * `ready`. */
void ek_waits_send(ek_process_group *group, bool sends);
/* Writes the times in group->waits in seconds, and which rank came last most often (-1: none). If
 * the group was destroyed, writes only -1 for that rank. */
void ek_waits_read(ek_process_group *group, ek_distributed_stats *stats);

#endif

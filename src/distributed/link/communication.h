/* communication.h: the communication thread, which makes every call to the transport.
 *
 * Public functions check their arguments on the caller's thread, submit a work and wait for it. The
 * communication thread takes works in the order of submission, group by group, and drives each as
 * a state machine that never blocks: transfers are started and then tested in a loop, with short
 * naps in between. (MPI makes no progress by itself, and its own waits burn a core.)
 *
 * Note [Agreement]
 *
 * Every collective work begins with an agreement: an all-gather of one descriptor per rank, which
 * says what the rank is about to do. It is the only transfer of a group that a rank may start
 * before it knows that the others will. If all descriptors name the same call, the work is
 * committed: all ranks know that all ranks are in it, and its transfers are run to their end on
 * every rank whatever fails meanwhile. If they differ, the call fails on all ranks alike, and
 * nothing was started. A few bytes of data travel in the descriptor itself, so that small
 * collectives end with the agreement.
 *
 * Tensors of GPUs are complete before their work's agreement begins: in the host's memory, from
 * which they are sent (staging.h), or on the GPUs, between which they travel directly (rail.h).
 *
 * Note [Failures drain themselves]
 *
 * A rank that fails sends a notice to all ranks. From then on every rank answers the next
 * agreement of each of its groups with a descriptor that says "failed", unless its own descriptor
 * of that agreement is out already. Committed works run to their end. An agreement that contains a
 * failed descriptor ends its work with an error on all ranks. By Note [Agreement] no other transfer
 * can be open on a group after that, so that its communicator is clean and can be used again. When
 * all groups of a rank have had such an agreement, its next epoch begins. Notices and messages
 * carry the epoch, and those of an older one are dropped. Calls that differ are such a failure too,
 * which all ranks of their group find, and of which the first one tells.
 *
 * If nothing has gone on for 1.5 seconds, all ranks are asked for a sign of life, because a
 * transfer or a verb that waits for its program may take longer. If one of them doesn't answer,
 * because its process has stopped, the world is broken: every call fails with the same sentence,
 * and ek_communication_close ends the job. After a time-out nobody is asked.
 *
 * Note [Groups that are given up]
 *
 * Who destroys a group waits for nobody. From then on this rank's descriptor in the group's
 * agreements says so. Once an agreement has such descriptors alone, all ranks close the
 * communicator. Until then the group takes part in failures, because other ranks' groups become
 * clean by its descriptors. A rank that still calls the group finds that the calls differ. At the
 * end of the world all ranks give up all groups.
 *
 * Note [Lock of a communication]
 *
 * communication->lock guards the members that say so, and `ended` and the outcome of works. All
 * else belongs to the communication thread. The lock is not held in calls to the transport, and no
 * other lock is taken under it. */
#ifndef EK_LINK_COMMUNICATION_H
#define EK_LINK_COMMUNICATION_H

#include <pthread.h>
#include <stdio.h>

#include "link/process_group.h"

/* ---- the thread ---- */

/* A failure of the job. */
typedef struct ek_failure {
    int origin; /* rank in the world */
    ek_error_record error;
} ek_failure;

typedef struct ek_packet ek_packet; /* packet.h */

/* What failures and ends of works ask of notices and messages, and notices of messages. */
typedef struct ek_peer_calls {
    /* Tells all ranks of a failure of this rank. */
    void (*tell)(ek_communication *communication, const ek_error_record *error);
    /* While a failure is drained: false once a rank has not given the sign of life that it was
     * asked for. */
    bool (*are_all_alive)(ek_communication *communication);
    /* Forgets the inquiry for a work that has ended. */
    void (*forget)(ek_communication *communication, const ek_dist_work *work);
    /* Takes over a submitted message. */
    void (*add)(ek_communication *communication, ek_dist_work *work);
    /* A message that this rank waits for, or NULL. */
    const ek_dist_work *(*first)(const ek_communication *communication);
    /* Ends the messages that their receiver has not accepted. */
    void (*abort)(ek_communication *communication);
    /* Takes one of the three kinds of packet that messages use (packet.h). */
    void (*take)(ek_communication *communication, int from, const ek_packet *packet);
} ek_peer_calls;

struct ek_communication {
    const ek_transport *transport;
    ek_world_place place;
    char (*hosts)[64]; /* per rank: the name of its machine */
    bool check;
    ek_dist_backend backend; /* what carries GPUs' tensors */
    ek_process_group *world;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t wake;  /* of the communication thread */
    pthread_cond_t ended; /* a work has ended, or a failure is over */
    /* Written under the lock, read by any thread: */
    atomic_bool broken;        /* a failure could not be drained, and every call gets it */
    atomic_bool leave;         /* the thread must end the job */
    _Atomic uint32_t failures; /* how many have begun */
    /* Under the lock: */
    ek_dist_work *submitted, **submitted_end;
    int waiting; /* threads in ek_dist_wait */
    int gradual; /* gradual works (ek_verb) that have been submitted and have not ended */
    bool woken;  /* ek_communication_wake was called since the last nap */
    bool raise;  /* `raised` is a failure of this rank that is yet to begin */
    ek_failure raised;
    bool failing;       /* a failure is under way */
    bool unreported;    /* no call has had the failure as its error yet */
    bool lost;          /* a rank timed out, and no agreement of all ranks has succeeded since */
    ek_failure failure; /* the last one */
    bool opened;        /* ek_communication_open may go on */
    ek_waits waits;     /* of all groups and messages, by rank of the world */
    ek_dist_work *abandoned; /* ended works whose memory open transfers may use */

    /* The communication thread's. */
    void *context;
    ek_communicator *everybody, *notices, *messages;
    ek_process_group *groups; /* that this rank is in; the world is the first */
    uint32_t epoch;           /* changed under the lock */
    uint64_t draining;        /* ek_clock_ns() when the failure that is under way began */
    uint64_t progress;        /* and when something last went on */
    bool silent;              /* a rank did not answer before the failure that is under way */
    bool shut;                /* all ranks have agreed to end */
    ek_peer_calls peers;      /* set by the two calls that make `board` and `mailbox` */
    struct ek_notices *board;
    struct ek_messages *mailbox;
    struct ek_turn *turns; /* of jobs that are yet to be issued (rail.h) */
    uint64_t turn_clock;

    int groups_made; /* for one thread at a time, as public calls */
};

/* Opens the transport on a new communication thread. `timeout` is the world's, in seconds. Writes
 * the communication, whose world group exists; on error NULL. `several`: how many processes the
 * launcher has told of (0: none); another number is EK_E_BACKEND. EK_E_TIMEOUT if not all processes
 * come in that time; the program can only end then. `look` (may be NULL) is called now and then
 * while it waits, and calls nothing of the communication. */
int ek_communication_open(const ek_transport *transport, void *context, int several, double timeout,
                          bool check, void (*look)(void *user), void *user,
                          ek_communication **communication);

/* Ends the thread and frees all. All ranks call it. If they don't come in time, or the world is
 * broken, the transport ends the job. Time is that of the world, or short: if `soon`, or if a rank
 * was missing before. An error that is pending stays; others are printed by the rank on which they
 * began. NULL is ignored. */
int ek_communication_close(ek_communication *communication, bool soon);

/* Prints an error, and on which rank it is. */
void ek_communication_print(const ek_communication *communication, const ek_error_record *error,
                            FILE *stream);

/* Has the thread ask again what is ready. Any thread. */
void ek_communication_wake(ek_communication *communication);

/* Makes the error a failure of the job, and waits until it is drained or the world is broken. */
int ek_communication_raise(ek_communication *communication, const ek_error_record *error);

/* The outcome of a call on a group (NULL: there is none): if this rank has failed before the others
 * knew, they get its error. The boundary of calls asks for it (world.h, Note [One boundary]). */
int ek_world_outcome(const ek_process_group *group, int rc);

/* Waits for a failure of the job, after the first `before` ones, that is known to be on its way,
 * and raises its error. Returns the status. */
int ek_communication_take_failure(ek_communication *communication, uint32_t before);

/* ---- for the files of this folder, on the communication thread ---- */

/* Moves the submitted works to their groups; true if there were any. The lock is held. */
bool ek_communication_take_submitted(ek_communication *communication);

/* Ends the failure that is under way once all groups are clean, or have had their time; true if it
 * ended. */
bool ek_communication_drain(ek_communication *communication);

/* A negative return of the transport breaks the world: in `what`, with the transport's reason. */
void ek_communication_break(ek_communication *communication, const char *what, int status);

/* Begins a failure of the job, unless one is under way. */
void ek_communication_fail(ek_communication *communication, int origin,
                           const ek_error_record *error);
/* Takes the pending error of this thread and begins a failure of this rank with it. */
void ek_communication_fail_here(ek_communication *communication);

/* Opens and frees what notice.c and message.c keep; NULL is ignored. */
struct ek_notices *ek_notices_open(ek_communication *communication);
void ek_notices_close(ek_communication *communication);
struct ek_messages *ek_messages_open(ek_communication *communication);
void ek_messages_close(ek_communication *communication);

/* Go on with notices, inquiries and messages; true if anything went on. */
bool ek_notices_turn(ek_communication *communication);
bool ek_messages_turn(ek_communication *communication);

/* Messages between two ranks; works of these two need no agreement. */
extern const ek_verb ek_verb_send, ek_verb_recv;

/* Whether messages are under way. */
bool ek_messages_are_open(const ek_communication *communication);
/* Asks the ranks of the work's group where they are, and then begins the failure EK_E_TIMEOUT. Only
 * `peer` (rank in the world) is asked, unless it is negative. */
void ek_notices_inquire(ek_communication *communication, ek_dist_work *work, int peer);

#endif

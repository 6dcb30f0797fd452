/* communication.h: the communication thread, which makes every call to the transport.
 *
 * Public functions check their arguments on the caller's thread, submit a work and wait for it. The
 * communication thread takes works in the order of submission, group by group. It drives each work
 * as a state machine that never blocks: it starts transfers and then tests them in a loop, with
 * short naps in between. (MPI needs calls to make progress, and MPI's own waits burn a core.)
 *
 * Note [Agreement]
 *
 * Every collective work begins with an agreement. Each rank has a descriptor, which says what the
 * rank is about to do, and the ranks find out in a few rounds (rounds.h) whether digests of their
 * descriptors are equal. An agreement is the only transfer of a group that a rank may start before
 * the rank knows that the others will. If all descriptors name the same call, the work is
 * committed: all ranks know that all ranks are in the work, and its transfers run to their end on
 * every rank whatever fails meanwhile. If they differ, the ranks gather their descriptors for the
 * error's sentence. The call fails on all ranks alike, and nothing was started.
 *
 * A descriptor can have a payload, so that small collectives end with the agreement. If all ranks
 * of the group send to each other, the payloads travel with the digests. Otherwise the ranks gather
 * the payloads afterwards, as a part of the agreement.
 *
 * Transfers at the end of a work don't carry the agreement of the next work, because a rank can't
 * promise a call that its program has not made.
 *
 * Tensors of GPUs are complete before their work's agreement begins. They are in the host's memory,
 * from which they are sent (staging.h), or on the GPUs, between which they travel directly
 * (rail.h).
 *
 * Note [Failures drain themselves]
 *
 * A rank that fails sends a notice to all ranks. Every rank then says "failed" in the next
 * agreement of each of its groups, unless the rank has begun that agreement already. Committed
 * works run to their end. An agreement in which a rank says "failed" ends its work with an error on
 * all ranks. By Note [Agreement] no other transfer can be
 * open on a group after that, so that the group is clean: its communicator can be used again. When
 * all groups of a rank are clean, the failure is drained, and the rank's next epoch begins. Notices
 * and messages carry the epoch, and ranks drop those of an older epoch. Calls that differ are a
 * failure too. All ranks of the group find that failure, and the group's first rank sends the
 * notice.
 *
 * If no part of a message moves and no work makes progress for 1.5 seconds during a failure, the
 * rank asks all ranks for a sign of life, because a verb that waits for its program may take
 * longer. If neither an answer nor a part of a message comes from a rank, because its process has
 * stopped, or if there is no progress for the time of the world's time-out, the world is broken:
 * every call fails with the failure's error, and ek_communication_close ends the job. If the
 * failure is a time-out, no rank is asked: the world is broken after 1.5 seconds without progress,
 * or 0.3 seconds if a rank did not answer the inquiry.
 *
 * Note [Groups that are given up]
 *
 * A rank that destroys a group waits for no other rank. The rank gives the group up, and says so in
 * the group's agreements from then on. Once all ranks of an agreement say so, all ranks close the
 * communicator. Until then the group takes part in failures, because other ranks' groups become
 * clean by its agreements. A rank that still calls the group finds that
 * the calls differ. At the end of the world all ranks give up all groups.
 *
 * Note [Lock of a communication]
 *
 * communication->lock guards the members that say so, and `ended` and the outcome of works. All
 * other members belong to the communication thread. No thread holds the lock in a call to the
 * transport, or takes another lock while it holds this one. */
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
typedef struct ek_kept_packet ek_kept_packet;

/* Functions of notice.c, inquiry.c and message.c that failure.c, process_group.c and each other
 * call. ek_notices_open, ek_inquiries_open and ek_messages_open set them. */
typedef struct ek_peer_calls {
    /* Tells all ranks of a failure of this rank. */
    void (*tell)(ek_communication *communication, const ek_error_record *error);
    /* While a failure is drained: asks all ranks for a sign of life. Returns false once a rank has
     * not answered in time. */
    bool (*are_all_alive)(ek_communication *communication);
    /* Forgets the inquiry for a work that has ended. */
    void (*forget)(ek_communication *communication, const ek_dist_work *work);
    /* Takes over a submitted message. */
    void (*add)(ek_communication *communication, ek_dist_work *work);
    /* Returns a message that this rank waits for, or NULL. */
    const ek_dist_work *(*first)(const ek_communication *communication);
    /* Ends the messages that their receiver has not accepted, or all messages if the world is
     * broken. */
    void (*abort)(ek_communication *communication);
    /* Handles an offer, an acceptance or a refusal (packet.h). */
    void (*take)(ek_communication *communication, int from, const ek_packet *packet);
} ek_peer_calls;

struct ek_communication {
    const ek_transport *transport;
    ek_world_place place;
    char (*hosts)[64]; /* per rank: the name of its machine */
    /* Per rank. Messages that are left open if the transport fails at the start use this memory. */
    struct ek_rank_identity *identities;
    bool check;
    ek_dist_backend backend; /* what carries GPUs' tensors */
    ek_process_group *world;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t wake;  /* wakes the communication thread */
    pthread_cond_t ended; /* signals the end of a work or of a failure */
    /* Written under the lock, read by any thread: */
    atomic_bool broken; /* a failure could not be drained, and every call returns its error */
    atomic_bool leave;  /* the thread must end the job */
    _Atomic uint32_t failures; /* how many failures have begun */
    /* Under the lock: */
    ek_dist_work *submitted, **submitted_end;
    int waiting; /* threads in ek_dist_wait */
    int gradual; /* gradual works (ek_verb) that have been submitted and have not ended */
    int serving; /* groups for which this rank has served memory */
    int reading; /* readings (ek_group_read) that have been submitted and have not ended */
    ek_kept_packet *outbox, *inbox; /* posts to send, whose `from` is the receiver; posts to take */
    int awaited;                    /* rank of the world whose post a thread awaits */
    uint64_t awaiting;              /* ek_clock_ns() since when; 0: no thread awaits a post */
    bool woken; /* ek_communication_wake or ek_dist_wait was called since the last nap ended */
    bool raise; /* `raised` is a failure of this rank that has not begun yet */
    ek_failure raised;
    bool failing;       /* a failure is under way */
    bool unreported;    /* no call has returned the failure's error yet */
    bool lost;          /* a call timed out, and no work of the world has succeeded since then */
    ek_failure failure; /* the last failure */
    bool opened;        /* the transport is open, or has failed to open */
    ek_waits waits;     /* waits of all groups and messages, by rank of the world */
    ek_dist_work *abandoned; /* ended works whose memory open transfers may use */

    /* Used by the communication thread alone, unless said otherwise: */
    void *context;
    ek_communicator *everybody, *notices, *messages;
    ek_process_group *groups; /* of this rank; the world is the first */
    uint32_t epoch;           /* changed under the lock */
    uint64_t draining;        /* ek_clock_ns() when the failure that is under way began */
    uint64_t progress;        /* ek_clock_ns() when a work last made progress during the failure */
    uint64_t moved;           /* parts of all groups and messages that have moved */
    bool silent; /* a rank did not answer the inquiry that led to the failure under way */
    bool shut;   /* all ranks have agreed to end */
    ek_peer_calls peers;
    struct ek_notices *board;
    struct ek_inquiries *inquiries;
    struct ek_messages *mailbox;
    struct ek_turn *turns; /* of jobs that have not been issued yet (rail.h) */
    uint64_t turn_clock;

    int groups_made; /* changed by one thread at a time */
};

/* Opens the transport on a new communication thread, and writes the communication, whose world
 * group exists. `timeout` is the world's, in seconds. `several` is the number of processes that the
 * launcher has named (0: none). If the transport knows another number, returns EK_E_BACKEND. If not
 * all processes come in time, returns EK_E_TIMEOUT, and the program can only end then. While the
 * call waits, it calls `look` now and then (NULL: nothing). `look` must not use the communication.
 * On an error *communication is NULL. */
int ek_communication_open(const ek_transport *transport, void *context, int several, double timeout,
                          bool check, void (*look)(void *user), void *user,
                          ek_communication **communication);

/* identity.c: gathers the names of all ranks' machines. Returns EK_E_BACKEND if the transport fails
 * or if the ranks' builds differ. */
int ek_identities_gather(ek_communication *communication);

/* Ends the thread and frees the communication. All ranks call this function. If a rank doesn't come
 * in time, or if the world is broken, the transport ends the job. The ranks have the world's
 * time-out to come, or a short time if `soon` or if a call has timed out before. A pending error of
 * the caller stays pending. An error that no later call can return is printed by the rank on which
 * the error began. NULL is ignored. */
int ek_communication_close(ek_communication *communication, bool soon);

/* Prints an error, with the rank and its machine. */
void ek_communication_print(const ek_communication *communication, const ek_error_record *error,
                            FILE *stream);

/* Makes the communication thread ask at once which works are ready. Any thread. */
void ek_communication_wake(ek_communication *communication);

/* Makes the error a failure of the job, and waits until the failure is drained or the world is
 * broken. If a gradual work of this rank is under way, waits only until a failure has begun.
 * Returns the error's status. */
int ek_communication_raise(ek_communication *communication, const ek_error_record *error);

/* Returns rc, the outcome of a call on a group (NULL: there is none). If this rank has failed and
 * the other ranks don't know yet, they get its error first. See world.h, Note [One boundary]. */
int ek_world_outcome(const ek_process_group *group, int rc);

/* Waits until more than `before` failures of the job have begun. The caller knows that a failure is
 * on its way. Raises the last failure's error and returns the status. */
int ek_communication_take_failure(ek_communication *communication, uint32_t before);

/* ---- for the files of this folder, on the communication thread ---- */

/* Moves the submitted works to their groups. Returns true if there were any. The caller holds the
 * lock. */
bool ek_communication_take_submitted(ek_communication *communication);

/* If a failure is under way, ends it once all groups are clean. If the failure is stuck
 * (failure.c), breaks the world first. Returns true if the failure ended. */
bool ek_communication_drain(ek_communication *communication);

/* Breaks the world after a negative return of the transport in `what`. The error has the
 * transport's reason. */
void ek_communication_break(ek_communication *communication, const char *what, int status);
/* Takes the pending error of this thread, and breaks the world with it. */
void ek_communication_break_here(ek_communication *communication);

/* Begins a failure of the job. `origin` is the rank on which the failure began. Does nothing if a
 * failure is under way or the world is broken. */
void ek_communication_fail(ek_communication *communication, int origin,
                           const ek_error_record *error);
/* Takes the pending error of this thread, and begins a failure of the job on this rank with it. */
void ek_communication_fail_here(ek_communication *communication);

/* Open and close what notice.c, inquiry.c and message.c keep for a communication. Closing ignores
 * what is not open. */
struct ek_notices *ek_notices_open(ek_communication *communication);
void ek_notices_close(ek_communication *communication);
struct ek_inquiries *ek_inquiries_open(ek_communication *communication);
void ek_inquiries_close(ek_communication *communication);
struct ek_messages *ek_messages_open(ek_communication *communication);
void ek_messages_close(ek_communication *communication);

/* Make one step with notices and inquiries, or with messages. Return true if there was progress. */
bool ek_notices_turn(ek_communication *communication);
bool ek_messages_turn(ek_communication *communication);

/* Messages between two ranks. Their works need no agreement. */
extern const ek_verb ek_verb_send, ek_verb_recv;

/* Lets the other ranks of the group read nbytes of this rank's memory, which `owner` keeps. The
 * memory stays until all ranks have given the group up. At most one call for a group. */
void ek_group_serve(ek_process_group *group, ek_object *owner, const char *memory, size_t nbytes);
/* Starts to read the elements of `to`, which is row-major and lies in the host's memory, from the
 * memory that a rank of the group serves, from the byte `at` on. The other rank's program takes no
 * part; its communication thread sends the bytes. Returns the work, for ek_dist_wait; NULL with an
 * error. */
ek_dist_work *ek_group_read(ek_process_group *group, int rank, size_t at, ek_tensor *to);

/* Tells whether messages are under way. */
bool ek_messages_are_open(const ek_communication *communication);
/* Asks the ranks of the work's group where they are, which is late. The group's first rank asks at
 * once. Other ranks first give lower ranks the time to ask. Once the ranks have answered, or had
 * the time to answer, begins the failure EK_E_TIMEOUT. If `peer` is not negative, asks only that
 * rank of the world, at once. Does nothing if another inquiry is under way. */
void ek_notices_inquire(ek_communication *communication, ek_dist_work *work, int peer);

#endif

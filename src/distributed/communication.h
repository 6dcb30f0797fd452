/* communication.h: the communication thread, which makes every call to the transport.
 *
 * Public functions check their arguments on the caller's thread, submit a work and wait for it. The
 * communication thread takes works in the order of submission, group by group, and drives each as
 * a state machine that never blocks: transfers are started and then tested in a loop, with short
 * naps in between. (MPI makes no progress by itself, and its own waits burn a core.)
 *
 * Note [Agreement]
 *
 * Every collective work begins with an agreement: an all-gather of one card per rank, which says
 * what the rank is about to do. It is the only transfer of a group that a rank may start before it
 * knows that the others will. If all cards name the same call, the work is committed: all ranks
 * know that all ranks are in it, and its transfers are run to their end on every rank whatever
 * fails meanwhile. If they differ, the call fails on all ranks alike, and nothing was started. A
 * few bytes of data travel in the card itself, so that small collectives end with the agreement.
 *
 * Tensors of GPUs are complete before their work's agreement begins: in the host's memory, from
 * which they are sent (staging.h), or on the GPUs, between which they travel directly (rail.h).
 *
 * Note [Failures drain themselves]
 *
 * A rank that fails sends a notice to all ranks. From then on every rank answers the next
 * agreement of each of its groups with a card that says "failed", unless its own card of that
 * agreement is out already. Committed works run to their end. An agreement that contains a failed
 * card ends its work with an error on all ranks. By Note [Agreement] no other transfer can be open
 * on a group after that, so that its communicator is clean and can be used again. When all groups
 * of a rank have had such an agreement, its next epoch begins. Notices and messages carry the
 * epoch, and those of an older one are dropped. Calls that differ are such a failure too, which all
 * ranks of their group find, and of which the first one tells.
 *
 * If nothing has gone on for 1.5 seconds, all ranks are asked for a sign of life, because a
 * transfer or a verb that waits for its program may take longer. If one of them doesn't answer,
 * because its process has stopped, the world is broken: every call fails with the same sentence,
 * and ek_communication_close ends the job. After a time-out nobody is asked.
 *
 * Note [Groups that are given up]
 *
 * Who destroys a group waits for nobody. From then on this rank's card in the group's agreements
 * says so. Once an agreement has such cards alone, all ranks close the communicator. Until then the
 * group takes part in failures, because other ranks' groups become clean by its cards. A rank that
 * still calls the group finds that the calls differ. At the end of the world all ranks give up all
 * groups.
 *
 * Note [Lock of a communication]
 *
 * communication->lock guards the members that say so, and `ended` and the outcome of works. All
 * else belongs to the communication thread. The lock is not held in calls to the transport, and no
 * other lock is taken under it. */
#ifndef EK_DISTRIBUTED_COMMUNICATION_H
#define EK_DISTRIBUTED_COMMUNICATION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "comm/ranks.h"
#include "core/tensor.h"
#include "distributed/transport.h"
#include "evenkeel/dist.h"

typedef struct ek_communication ek_communication;

/* ---- cards ---- */

enum { EK_CARD_PAYLOAD = 128 }; /* bytes of data that travel with an agreement */

/* A rank's part in the graph of an operation between ranks (differentiable.c). */
typedef enum ek_card_gradient {
    EK_CARD_GRADIENT_OFF = 0, /* gradient mode is off */
    EK_CARD_GRADIENT_NONE,    /* it is on, but the rank's tensor requires no gradient */
    EK_CARD_GRADIENT_REQUIRED
} ek_card_gradient;

/* What one rank is about to do. Zeroed before it is filled, since cards are compared as bytes. */
typedef struct ek_card {
    bool failed;    /* the rank takes no part, because the job has failed */
    uint32_t epoch; /* of the failure */
    /* From here to `shape` cards of one call are equal. */
    int32_t verb; /* ek_verb_id */
    int32_t op, dtype, ndim;
    int32_t root; /* rank in the group, or -1 */
    int32_t rail; /* the number of the group's rail on which tensors travel (rail.h); 0: none */
    int64_t shape[EK_MAX_DIMS];
    uint32_t nbytes; /* of the payload; the ranks' may differ, as what follows */
    ek_card_gradient gradient;
    /* How long the rank has waited in an earlier call (waits.c). */
    uint64_t timed, waited; /* the call's number, from 1 (0: none); nanoseconds */
    _Alignas(8) char payload[EK_CARD_PAYLOAD];
} ek_card;

/* ---- works ---- */

/* The kinds of calls: number and name. */
#define EK_VERBS(X)                           \
    X(SHUTDOWN, "shutdown")                   \
    X(NEW_GROUP, "new_group")                 \
    X(DESTROY_GROUP, "destroy_process_group") \
    X(BARRIER, "barrier")                     \
    X(BROADCAST, "broadcast")                 \
    X(ALL_REDUCE, "all_reduce")               \
    X(REDUCE, "reduce")                       \
    X(ALL_GATHER, "all_gather")               \
    X(GATHER, "gather")                       \
    X(SCATTER, "scatter")                     \
    X(REDUCE_SCATTER, "reduce_scatter")       \
    X(ALL_TO_ALL, "all_to_all")               \
    X(SEND, "send")                           \
    X(RECV, "recv")                           \
    X(BACKWARD, "the reduction of gradients") \
    X(STEP, "the optimizer's step")           \
    X(SUM, "dist_sum")                        \
    X(MEAN, "dist_mean")                      \
    X(JOIN, "dist_join")                      \
    X(JOIN_PARTS, "the parts of dist_join")   \
    X(SPLIT, "the gradient of dist_join")     \
    X(COUNTS, "the counts of all ranks")      \
    X(GATHER_VALUE, "all_gather_value")       \
    X(PRESENCE, "average_gradients")          \
    X(RAIL, "the first use of a GPU")
typedef enum ek_verb_id {
#define EK_VERB_ENUM(name, text) EK_VERB_##name,
    EK_VERBS(EK_VERB_ENUM)
#undef EK_VERB_ENUM
        EK_VERB_COUNT
} ek_verb_id;

/* "all_reduce"; "an unknown call" for other numbers. */
const char *ek_verb_name(int id);

/* Whether a committed work has what it needs for its next step. */
typedef enum ek_readiness {
    EK_READY,
    EK_AWAITS_CALLER, /* a thread of this rank, which will call ek_communication_wake */
    EK_AWAITS_RANKS   /* other ranks: asked again and again, until the work's time is over */
} ek_readiness;

/* What a work does after its agreement: one per kind of call, constant. */
typedef struct ek_verb {
    ek_verb_id id;
    /* Goes on with a committed work: called at once (work->stage is 0), then each time that its
     * request is complete (stage 1, 2, ...). It starts the next transfer (work->request), or ends
     * the work by leaving that NULL. A negative status, with the error set, ends it too. Errors
     * of this rank alone do not end a work: the transfers that other ranks expect are made all the
     * same. */
    int (*go_on)(ek_dist_work *work); /* NULL for messages */
    /* Optional: asked before go_on is called. With it, go_on returns 1 to be called again without a
     * transfer between. */
    ek_readiness (*ready)(ek_dist_work *work);
    /* The rank gives its part while the work goes on; work->arrived says when it was complete. */
    bool gradual;
} ek_verb;

typedef enum ek_dist_work_state {
    EK_DIST_WORK_SUBMITTED,
    EK_DIST_WORK_AGREEING, /* its card is out */
    EK_DIST_WORK_REFUSED,  /* the agreement had failed cards; the notice is yet to come */
    EK_DIST_WORK_COMMITTED
} ek_dist_work_state;

/* A tensor that a call sends or receives. */
typedef struct ek_dist_work_tensor {
    ek_tensor *tensor; /* the user's; retained */
    /* Row-major, on the host, or on the device of a rail: `tensor` itself or a copy; retained. */
    ek_tensor *memory;
    ek_tensor *source; /* on a device, from which `memory` is being filled; retained; NULL: none */
    ek_event *event;   /* that follows the device's work with `source` */
    bool receives;     /* `memory` is copied to `tensor` at the end */
    uint64_t version;  /* of `tensor` when it was submitted */
} ek_dist_work_tensor;

/* The layout of a tensor on the wire, for pairs of ranks that must agree. */
typedef struct ek_wire_shape {
    int32_t dtype, ndim; /* dtype -1: no tensor */
    int64_t shape[EK_MAX_DIMS];
} ek_wire_shape;

struct ek_dist_work {
    ek_dist_work *next;
    ek_process_group *group;
    const ek_verb *verb;
    uint64_t began;   /* ek_clock_ns() at submission, or when a gradual work last had its part */
    uint64_t arrived; /* the same when the rank's part was complete; 0: with its card */
    double timeout;   /* seconds */

    /* The call; set before submission, read-only afterwards. */
    ek_card card;
    ek_dist_work_tensor *tensors;
    int count;
    void *user; /* the verb's */
    struct ek_rail_run
        *rail;               /* if its tensors travel between GPUs; owned. NULL: by the transport */
    int peer;                /* of a message: rank in the world; EK_DIST_ANY: any */
    int tag;                 /* of a message */
    bool first_missing_only; /* after a time-out only one missing rank is named */

    /* The verb's room, the communication thread's; scratch is allocated before submission. */
    int stage;
    int64_t done; /* elements that are done, of a call that is made in parts */
    ek_request *request;
    char *scratch, *room;
    ek_bytes *out, *in;           /* per rank of the group */
    ek_wire_shape *gives, *takes; /* per rank: what out and in are */
    int result;                   /* what ek_dist_wait returns unless something failed */

    ek_dist_work_state state; /* the communication thread's, as the next two */
    bool awaits_caller;       /* as `ready` said last */
    uint32_t refused;         /* epoch of the failure that refused it */
    /* Under the communication's lock: */
    bool ended;
    bool abandoned;   /* transfers may still use the memory, which is never freed */
    uint32_t failure; /* the number of the failure that ended it; 0: none */
    ek_error_record error;
};

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
    ek_communication *communication; /* NULL: a world of one, or one that has ended */
    int number;                      /* 0: the world */
    char name[32];                   /* "the world", "group 2" */
    int size, rank;                  /* rank is -1 if this process is not in it */
    int *ranks;                      /* the members' ranks in the world, ascending; owned */
    double timeout;                  /* seconds */
    int rails_made;                  /* for one thread at a time; the same on all ranks */
    struct ek_group_rail *rails;     /* under the communication's lock, for one thread at a time */
    struct ek_ranks *view; /* as other folders see it (ranks.c); NULL until somebody has asked */
    atomic_bool retired;   /* this rank has given it up; it is the communication thread's then */

    /* The communication thread's. */
    ek_communicator *communicator;
    ek_dist_work *first, **end; /* works in order; the first is under way */
    uint64_t calls;             /* agreements that have ended */
    ek_card *cards;             /* of all ranks, of the last agreement */
    size_t *bounds;             /* of the cards, in bytes */
    ek_request *agreement;      /* NULL: none is under way */
    bool answering;             /* this rank's card in it is of no work */
    uint32_t clean;             /* failures of epochs below this are drained */
    uint64_t arrived;           /* ek_clock_ns() when this rank's card went out */
    uint64_t timed, waited;     /* what the next card will say */
    bool timed_pass;            /* the call that was timed last had a verb with `ready` */
    uint64_t sending; /* ek_clock_ns() since when the first work awaits no caller; 0: it does */
    int last_verb;    /* for inquiries: the last work that ended (-1: none yet), and when */
    uint64_t last_ended;

    ek_waits waits; /* of works whose verbs have `ready`, by rank of the group */
};

/* ---- the thread ---- */

/* A failure of the job. */
typedef struct ek_failure {
    int origin; /* rank in the world */
    ek_error_record error;
} ek_failure;

struct ek_communication {
    const ek_transport *transport;
    ek_world_place place;
    char (*hosts)[64]; /* of all ranks */
    bool check;
    ek_dist_backend backend; /* of GPUs' tensors */
    ek_process_group *world;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t wake;  /* of the communication thread */
    pthread_cond_t ended; /* a work has ended, or a failure is over */
    /* Under the lock: */
    ek_dist_work *submitted, **submitted_end;
    int waiting; /* threads in ek_dist_wait */
    int gradual; /* gradual works (ek_verb) that have been submitted and have not ended */
    bool woken;  /* ek_communication_wake was called since the last nap */
    bool raise;  /* `raised` is a failure of this rank that is yet to begin */
    ek_failure raised;
    bool failing;            /* a failure is under way */
    bool broken;             /* a failure that could not be drained, and that every call gets */
    bool untold;             /* no call has had the failure as its error yet */
    uint32_t failures;       /* that have begun */
    bool lost;               /* a rank did not come in time, and all have not met since */
    ek_failure failure;      /* the last one */
    bool opened;             /* ek_communication_open may go on */
    bool leave;              /* the thread is to end the job */
    ek_waits waits;          /* of all groups and messages, by rank of the world */
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
    struct ek_notices *board;
    struct ek_messages *post;
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

/* Makes the group of the world's ranks[0 .. count), ascending: a collective call of the world. */
ek_process_group *ek_communication_new_group(ek_communication *communication, const int *ranks,
                                             int count, double timeout);
/* Gives up a group that is not the world. It waits for nobody, and frees the group once all ranks
 * have given it up. Works of the group have ended. Also after the world's end. */
void ek_communication_destroy_group(ek_process_group *group);

/* A new work without tensors. It is freed by ek_dist_wait, or by the call below. */
ek_dist_work *ek_dist_work_new(ek_process_group *group, const ek_verb *verb);
void ek_dist_work_free(ek_dist_work *work);

/* Adds a tensor to work->tensors, which has room for it, with row-major memory on the host: a copy
 * unless `tensor` has that (staging.h). `sends` says whether a copy needs the elements. */
int ek_dist_work_add(ek_dist_work *work, ek_tensor *tensor, bool sends, bool receives);
/* The same for a tensor that is sent from `memory`, which is the caller's. */
int ek_dist_work_add_from(ek_dist_work *work, ek_tensor *tensor, ek_tensor *memory);

/* Hands the work to the communication thread. On an error, also one of another rank that is yet to
 * be told, the work is freed. */
int ek_dist_work_submit(ek_dist_work *work);

/* ek_dist_work_submit and ek_dist_wait. */
int ek_dist_work_run(ek_dist_work *work);

/* A caller of the work has waited for so long. The lock is held. waits.c. */
void ek_waits_expose(ek_dist_work *work, uint64_t ns);

/* Makes the error a failure of the job, and waits until it is drained or the world is broken. */
int ek_communication_raise(ek_communication *communication, const ek_error_record *error);

/* The outcome of a call on a group (NULL: there is none): if this rank has failed before the others
 * knew, they get its error. The boundary of calls asks for it (world.h, Note [One boundary]). */
int ek_world_outcome(const ek_process_group *group, int rc);

/* How many failures of the job have begun. */
uint32_t ek_communication_failures(ek_communication *communication);
/* Waits for a failure of the job, after the first `before` ones, that is known to be on its way,
 * and raises its error. Returns the status. */
int ek_communication_take_failure(ek_communication *communication, uint32_t before);

/* ---- for the files of this folder, on the communication thread ---- */

/* Moves the submitted works to their groups; true if there were any. The lock is held. */
bool ek_communication_take_submitted(ek_communication *communication);

/* Ends the failure that is under way once all groups are clean, or have had their time; true if it
 * ended. */
bool ek_communication_drain(ek_communication *communication);

/* True if a failure could not be drained. Any thread. */
bool ek_communication_is_broken(ek_communication *communication);

/* A group of count ranks of the world, ascending (NULL: the first ones), without a communicator. */
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

/* A negative return of the transport breaks the world: in `what`, with the transport's reason. */
void ek_communication_break(ek_communication *communication, const char *what, int status);

/* Begins a failure of the job, unless one is under way. */
void ek_communication_fail(ek_communication *communication, int origin,
                           const ek_error_record *error);

/* Ends a work with a status (0, or negative with the error set on this thread). */
void ek_dist_work_end(ek_dist_work *work, int status);
/* Ends a work with the failure that is under way. */
void ek_dist_work_abort(ek_dist_work *work);

/* True once the work has waited as long as it may. */
bool ek_dist_work_is_late(const ek_dist_work *work);

/* Goes on with a group's works; true if anything went on. agreement.c. */
bool ek_group_turn(ek_process_group *group);

/* Now all ranks' parts of the group's work, which is the first, are complete. */
void ek_waits_time(ek_process_group *group, const ek_dist_work *work);
/* Finds out from the cards of an agreement who came last to an earlier call. */
void ek_waits_compare(ek_process_group *group);
/* From now on transfers or sums of the group's work are under way, or none; for verbs with `ready`.
 */
void ek_waits_send(ek_process_group *group, bool sends);

/* Opens and frees what notice.c and message.c keep; NULL is ignored. */
struct ek_notices *ek_notices_open(ek_communication *communication);
void ek_notices_close(ek_communication *communication);
struct ek_messages *ek_messages_open(ek_communication *communication);
void ek_messages_close(ek_communication *communication);

/* Go on with notices, inquiries and messages; true if anything went on. */
bool ek_notices_turn(ek_communication *communication);
bool ek_messages_turn(ek_communication *communication);

/* Whether messages are under way. */
bool ek_messages_are_open(const ek_communication *communication);
/* Takes over a submitted message. */
void ek_messages_add(ek_communication *communication, ek_dist_work *work);
/* A message that this rank waits for, or NULL. */
const ek_dist_work *ek_messages_first(const ek_communication *communication);
/* Ends the messages that their receiver has not accepted. */
void ek_messages_abort(ek_communication *communication);
/* True for messages, which need no agreement. */
static inline bool ek_dist_work_is_message(const ek_dist_work *work)
{
    return work->verb->id == EK_VERB_SEND || work->verb->id == EK_VERB_RECV;
}

/* Asks the ranks of the work's group where they are, and then begins the failure EK_E_TIMEOUT. Only
 * `peer` (rank in the world) is asked, unless it is negative. */
void ek_notices_inquire(ek_communication *communication, ek_dist_work *work, int peer);

/* Forgets the inquiry for a work that has ended. */
void ek_notices_forget(ek_communication *communication, const ek_dist_work *work);
/* While a failure is drained: false once a rank has not given the sign of life that it was asked
 * for. */
bool ek_notices_are_all_alive(ek_communication *communication);

/* Tells all ranks of a failure of this rank. */
void ek_notices_tell(ek_communication *communication, const ek_error_record *error);

#endif

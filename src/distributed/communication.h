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
 * Note [Failures drain themselves]
 *
 * A rank that fails sends a notice to all ranks. From then on every rank answers the next
 * agreement of each of its groups with a card that says "failed", unless its own card of that
 * agreement is out already. Committed works run to their end. An agreement that contains a failed
 * card ends its work with an error on all ranks. By Note [Agreement] no other transfer can be open
 * on a group after that, so that its communicator is clean and can be used again. When all groups
 * of a rank have had such an agreement, its next epoch begins. Notices and messages carry the
 * epoch, and those of an older one are dropped.
 *
 * Note [Lock of the communication]
 *
 * communication->lock guards the list of submitted works, the state and the outcome of works, the
 * failure that is to be told, and `closing`. All else belongs to the communication thread. The lock
 * is not held in calls to the transport, and no other lock is taken under it. */
#ifndef EK_DISTRIBUTED_COMMUNICATION_H
#define EK_DISTRIBUTED_COMMUNICATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/tensor.h"
#include "distributed/transport.h"
#include "evenkeel/dist.h"

typedef struct ek_communication ek_communication;

/* ---- cards ---- */

enum {
    EK_CARD_BYTES = 256,
    EK_CARD_PAYLOAD = 128 /* bytes of data that travel with an agreement */
};

typedef enum ek_card_state {
    EK_CARD_CALL = 1, /* the rank makes the call */
    EK_CARD_FAILED    /* the rank takes no part, because the job has failed */
} ek_card_state;

/* What one rank is about to do. Zeroed before it is filled: cards are compared as bytes. */
typedef struct ek_card {
    uint64_t number; /* of the call in its group, from 1 */
    uint32_t state, epoch;
    int32_t verb; /* ek_verb.id */
    int32_t op, dtype, ndim;
    int32_t root;    /* rank in the group, or -1 */
    uint32_t nbytes; /* of the payload: not compared */
    int64_t shape[EK_MAX_DIMS];
    char payload[EK_CARD_PAYLOAD];
} ek_card;

/* ---- works ---- */

/* What a work does after its agreement: one per kind of call, constant. */
typedef struct ek_verb {
    const char *name; /* "all_reduce" */
    int id;           /* the same on all ranks */
    /* Goes on with a committed work. Called when it is committed (work->stage is 0), then each time
     * that its request is complete. It starts the next transfer (work->request), or ends the work
     * by leaving the request NULL. Returns 0 or a negative status with the error set; errors do
     * not end a work early: the transfers that the other ranks expect are made all the same. */
    int (*go_on)(ek_dist_work *work);
} ek_verb;

typedef enum ek_work_state {
    EK_WORK_SUBMITTED,
    EK_WORK_AGREEING,  /* the card is out */
    EK_WORK_COMMITTED,
    EK_WORK_ENDED
} ek_work_state;

struct ek_dist_work {
    ek_dist_work *next;
    ek_process_group *group;
    const ek_verb *verb;
    ek_work_state state;
    uint64_t began; /* ek_clock_ns() at submission */
    double timeout; /* seconds */
    int result;     /* what ek_dist_wait returns if nothing failed */
    ek_error_record error;

    /* The call. `tensor` is the user's, `memory` a row-major host tensor with its elements: itself
     * or a copy, which is copied back if `receives`. All are retained. */
    ek_card card;
    ek_tensor *tensor, *memory;
    bool sends, receives;
    uint64_t version; /* of `tensor` at submission */
    ek_dist_work **parts; /* list calls: a work that holds the tensor of each rank */

    /* The communication thread's. */
    ek_request *request;
    ek_card *cards; /* of all ranks, once committed */
    int stage;
    int64_t done; /* elements that are done, of a call that is cut into parts */
    char *scratch;
    size_t scratch_nbytes;
};

/* ---- groups ---- */

struct ek_process_group {
    ek_process_group *next; /* of the communication's groups, in the order of making */
    ek_communication *communication;
    int number;      /* 0: the world */
    char name[64];   /* "the world", "group 2" */
    int size, rank;  /* rank is -1 if this process is not in it */
    int *ranks;      /* the members' ranks in the world, ascending */
    double timeout;  /* seconds */

    /* The communication thread's. */
    ek_communicator *communicator;
    ek_dist_work *first, *last; /* works in order; the first is under way */
    uint64_t calls;             /* agreements that have ended */
    ek_card *cards;             /* of all ranks, of the agreement under way */
    ek_request *agreement;      /* NULL: none is under way */
    uint32_t clean;             /* the epoch whose failure the group has drained, plus 1 */
    const char *last_call;      /* for inquiries: name of the last work that ended, and when */
    uint64_t last_ended;
};

/* ---- the thread ---- */

/* Opens the transport on a new communication thread. `timeout` is the world's, in seconds. Writes
 * the communication, whose world group exists. Status with the error set. */
int ek_communication_open(const ek_transport *transport, void *context, double timeout, bool check,
                          ek_communication **communication);

/* Ends the thread. All ranks call it. If they do not come, or the world is broken, the job is ended
 * by the transport. NULL is ignored. */
int ek_communication_close(ek_communication *communication);

/* Where the process stands, and the world's group. Constant once opened. */
const ek_world_place *ek_communication_place(const ek_communication *communication);
ek_process_group *ek_communication_world(const ek_communication *communication);

/* Makes a group of the world's ranks[0 .. count), ascending; a collective call of the world. */
ek_process_group *ek_communication_new_group(ek_communication *communication, const int *ranks,
                                             int count, double timeout);

/* A new work with one reference, and its release: by ek_dist_wait. */
ek_dist_work *ek_dist_work_new(ek_process_group *group, const ek_verb *verb);
void ek_dist_work_free(ek_dist_work *work);

/* Hands the work to the communication thread. If a failure is yet to be told, it becomes the
 * error of this call, and the work is freed. */
int ek_dist_submit(ek_dist_work *work);

/* A failure of this rank becomes that of all: sends the notice and waits until the groups are clean
 * again, two seconds at most. */
int ek_communication_raise(ek_communication *communication, const ek_error_record *error);

#endif

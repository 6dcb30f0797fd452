/* work.h: a call between ranks, from its submission to its end.
 *
 * Each kind of call has a table of functions (ek_verb), which the communication thread calls
 * (communication.h). work.c makes works, submits them and waits for them on the caller's thread. */
#ifndef EK_LINK_WORK_H
#define EK_LINK_WORK_H

#include <stdatomic.h>

#include "core/tensor.h"
#include "evenkeel/dist.h"
#include "link/transport.h"

typedef struct ek_communication ek_communication;
typedef struct ek_rail_run ek_rail_run; /* group/rail.h */

/* ---- descriptors ---- */

enum { EK_DESCRIPTOR_PAYLOAD = 128 }; /* the most bytes of data that an agreement brings */

/* What a rank's descriptor says of its tensor's gradient, for operations of the graph
 * (differentiable.h). */
typedef enum ek_descriptor_gradient {
    EK_DESCRIPTOR_GRADIENT_OFF = 0, /* gradient mode is off */
    EK_DESCRIPTOR_GRADIENT_NONE,    /* the rank's tensor requires no gradient */
    EK_DESCRIPTOR_GRADIENT_REQUIRED
} ek_descriptor_gradient;

/* A tensor's dtype and shape, as ranks compare them. */
typedef struct ek_wire_shape {
    int32_t dtype, ndim; /* dtype -1: no tensor */
    int64_t shape[EK_MAX_DIMS];
} ek_wire_shape;

/* What one rank is about to do. Its maker zeroes the descriptor first, because descriptors are
 * compared as bytes. */
typedef struct ek_descriptor {
    /* The members up to `shape` must be equal on all ranks of one call. */
    int32_t verb; /* ek_verb_id */
    int32_t op;
    int32_t root; /* rank in the group, or -1 */
    int32_t rail; /* the number of the group's rail on which tensors travel (rail.h); 0: none */
    ek_wire_shape shape;
    uint32_t nbytes; /* of the payload; equal on all ranks of one call */
    ek_descriptor_gradient gradient;
    _Alignas(8) char payload[EK_DESCRIPTOR_PAYLOAD];
} ek_descriptor;
enum { EK_DESCRIPTOR_CALL = offsetof(ek_descriptor, nbytes) }; /* bytes that must be equal */

/* ---- works ---- */

/* The kinds of calls, with their names in sentences. */
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
    X(RAIL, "the first use of a GPU")         \
    X(READ, "the gathering of parameters")    \
    X(SAVE, "dist_archive_save")
typedef enum ek_verb_id {
#define EK_VERB_ENUM(name, text) EK_VERB_##name,
    EK_VERBS(EK_VERB_ENUM)
#undef EK_VERB_ENUM
        EK_VERB_COUNT
} ek_verb_id;

/* Returns the name of a kind of call, such as "all_reduce", or "an unknown call" for other
 * numbers. */
const char *ek_verb_name(int id);

/* Tells what a committed work needs for its next step. */
typedef enum ek_readiness {
    EK_READY,
    EK_AWAITS_CALLER, /* a thread of this rank, which will call ek_communication_wake */
    EK_AWAITS_RANKS   /* other ranks; `ready` is called again until the time-out */
} ek_readiness;

/* What a work does after its agreement. Constant, one table for each kind of call. */
typedef struct ek_verb {
    ek_verb_id id;
    /* Makes the work's next step. Called after the agreement (work->stage is 0), and then (stage 1,
     * 2, ...) whenever no request of the work is open. Each time `ready` must allow the call.
     * Starts the next transfer (work->request), returns 1 to be called again without a transfer, or
     * ends the work by returning 0 without a transfer. A negative status, with the error set, ends
     * the work too. An error of this rank alone must not end the work, because other ranks expect
     * this rank's transfers. */
    int (*go_on)(ek_dist_work *work); /* NULL for messages */
    /* Tells whether go_on can be called. NULL: always. */
    ek_readiness (*ready)(ek_dist_work *work);
    /* True if the rank gives its part while the work is under way. work->arrived then says when the
     * part was complete. */
    bool gradual;
    /* Takes the place of ek_dist_wait if a separate thread does the work. NULL: the communication
     * thread does the work. */
    int (*wait)(ek_dist_work *work);
    /* True if payloads are only compared. If payloads are equal on all ranks, ek_group_payload may
     * return this rank's payload for every rank. */
    bool compares;
} ek_verb;

typedef enum ek_dist_work_state {
    EK_DIST_WORK_SUBMITTED,
    EK_DIST_WORK_AGREEING, /* this rank has begun the work's agreement */
    /* The agreement tells that a rank has failed. The work ends once this rank has learned of the
     * failure. */
    EK_DIST_WORK_REFUSED,
    EK_DIST_WORK_COMMITTED
} ek_dist_work_state;

/* A tensor that a call sends or receives. */
typedef struct ek_dist_work_tensor {
    ek_tensor *tensor; /* the user's; retained */
    /* Row-major memory on the host, or on the device of a rail: `tensor` or a copy. Retained. */
    ek_tensor *memory;
    /* Memory of a device that is copied to `memory`, or on a rail `memory` itself. Retained. NULL:
     * no work of a device is awaited. */
    ek_tensor *source;
    ek_event *event;  /* follows the device's work with `source` */
    bool receives;    /* `memory` is copied to `tensor` at the end */
    uint64_t version; /* of `tensor` when it was added to the work */
} ek_dist_work_tensor;

/* Returns the tensor's dtype and shape, or dtype -1 for NULL. */
ek_wire_shape ek_wire_shape_of(const ek_tensor *tensor);
/* Writes "f32[2, 3]" or "no tensor". */
void ek_wire_shape_text(const ek_wire_shape *shape, char text[120]);

/* Functions of rails that work.c calls. `stage` gives a tensor row-major memory on the rail's
 * device. `close` ends a run. */
typedef struct ek_rail_calls {
    int (*stage)(const ek_rail_run *run, ek_dist_work_tensor *one, ek_tensor *tensor, bool sends);
    void (*close)(ek_rail_run *run, const ek_process_group *group);
} ek_rail_calls;

struct ek_dist_work {
    ek_dist_work *next;
    ek_process_group *group;
    const ek_verb *verb;
    /* ek_clock_ns() at submission; for a gradual work: when its wait for other ranks began; for a
     * committed work: when ek_dist_work_is_late last found that parts of messages had moved. */
    uint64_t began;
    uint64_t moved; /* the communicator's count of parts when `began` was set last */
    /* ek_clock_ns() when this rank's part was complete; 0: when its agreement began. */
    uint64_t arrived;
    double timeout; /* seconds that the work may wait */

    /* Set before submission and read-only afterwards: */
    ek_descriptor descriptor;
    ek_dist_work_tensor *tensors;
    int count;
    void *user;       /* for the verb */
    ek_object *keeps; /* has memory that transfers use; one reference, or NULL */
    /* The run of a rail between GPUs; owned. NULL: tensors travel by the transport. */
    ek_rail_run *rail;
    const ek_rail_calls *rail_calls;
    int peer;                /* of a message: rank in the world; EK_DIST_ANY: any */
    int tag;                 /* of a message */
    bool first_missing_only; /* after a time-out only one missing rank is named */

    /* For the verb, on the communication thread. `scratch` is allocated before submission. */
    int stage;
    int64_t done; /* elements that are finished, if the call is made in parts; see also message.c */
    ek_request *request;
    char *scratch, *room;
    ek_bytes *out, *in;           /* per rank of the group */
    ek_wire_shape *gives, *takes; /* per rank: the shapes of what `out` and `in` have */
    int result;                   /* what ek_dist_wait returns unless something failed */

    /* These three are the communication thread's: */
    ek_dist_work_state state;
    bool awaits_caller; /* `ready` has returned EK_AWAITS_CALLER */
    uint32_t refused;   /* the epoch of the failure for which the work was refused */
    /* Written under the communication's lock: */
    atomic_bool ended;
    bool abandoned;   /* transfers may use the work's memory, which the communication frees */
    uint32_t failure; /* the number of the failure that ended the work; 0: none */
    ek_error_record error;
};

/* ---- on the caller's thread ---- */

/* Makes a work with room for `count` tensors. ek_dist_wait or ek_dist_work_free frees the work. */
ek_dist_work *ek_dist_work_new(ek_process_group *group, const ek_verb *verb, int count);
void ek_dist_work_free(ek_dist_work *work);

/* Adds a tensor to work->tensors, which has room for the tensor, with row-major memory: on the
 * device of work->rail if there is a rail, else on the host (staging.h). The memory is that of
 * `tensor` if possible, else of a copy. `sends` tells whether a copy needs the elements. */
int ek_dist_work_add(ek_dist_work *work, ek_tensor *tensor, bool sends, bool receives);
/* Adds a tensor that is sent from the caller's `memory`, and starts to copy the tensor there. */
int ek_dist_work_add_from(ek_dist_work *work, ek_tensor *tensor, ek_tensor *memory);

/* Hands the work to the communication thread. If the world is broken, or if this rank has not
 * returned the error of the last failure (of any rank) yet, frees the work and returns that
 * error. */
int ek_dist_work_submit(ek_dist_work *work);

/* Submits the work and waits for it. */
int ek_dist_work_run(ek_dist_work *work);

/* Adds the `ns` nanoseconds that a thread has waited for the work. Called under the communication's
 * lock. waits.c. */
void ek_waits_expose(ek_dist_work *work, uint64_t ns);

/* ---- on the communication thread ---- */

/* Ends a work with a status: 0, or a negative status with the error set on this thread. */
void ek_dist_work_end(ek_dist_work *work, int status);
/* Ends a work with the error of the last failure of the job. */
void ek_dist_work_abort(ek_dist_work *work);

/* Takes rc, which a call to the transport has returned. If rc is negative, breaks the world and
 * returns the world's error. Else returns 0. */
int ek_dist_work_started(ek_dist_work *work, int rc);

/* Returns true once the work has waited longer than work->timeout. The wait of a committed work
 * begins again with every part that moves. */
bool ek_dist_work_is_late(ek_dist_work *work);

/* Returns true for messages and readings, which need no agreement. */
static inline bool ek_dist_work_is_message(const ek_dist_work *work)
{
    return work->verb->id == EK_VERB_SEND || work->verb->id == EK_VERB_RECV ||
           work->verb->id == EK_VERB_READ;
}

#endif

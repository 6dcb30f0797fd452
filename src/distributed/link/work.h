/* work.h: a call between ranks, from its submission to its end.
 *
 * Each file that has kinds of calls gives each a table of functions (ek_verb), which the
 * communication thread drives (communication.h). The caller's side, work.c, makes works, submits
 * them and waits. */
#ifndef EK_LINK_WORK_H
#define EK_LINK_WORK_H

#include "core/tensor.h"
#include "evenkeel/dist.h"
#include "link/transport.h"

typedef struct ek_communication ek_communication;
typedef struct ek_rail_run ek_rail_run; /* group/rail.h */

/* ---- descriptors ---- */

enum { EK_DESCRIPTOR_PAYLOAD = 128 }; /* bytes of data that travel with an agreement */

/* A rank's part in the graph of an operation between ranks (differentiable.c). */
typedef enum ek_descriptor_gradient {
    EK_DESCRIPTOR_GRADIENT_OFF = 0, /* gradient mode is off */
    EK_DESCRIPTOR_GRADIENT_NONE,    /* it is on, but the rank's tensor requires no gradient */
    EK_DESCRIPTOR_GRADIENT_REQUIRED
} ek_descriptor_gradient;

/* A tensor's dtype and shape as ranks tell them to each other. */
typedef struct ek_wire_shape {
    int32_t dtype, ndim; /* dtype -1: no tensor */
    int64_t shape[EK_MAX_DIMS];
} ek_wire_shape;

/* What one rank is about to do. Zeroed before it is filled, since descriptors are compared as
 * bytes. */
typedef struct ek_descriptor {
    bool failed;    /* the rank takes no part, because the job has failed */
    uint32_t epoch; /* of the failure */
    /* From here to `shape` descriptors of one call are equal. */
    int32_t verb; /* ek_verb_id */
    int32_t op;
    int32_t root; /* rank in the group, or -1 */
    int32_t rail; /* the number of the group's rail on which tensors travel (rail.h); 0: none */
    ek_wire_shape shape;
    uint32_t nbytes; /* of the payload; the ranks' may differ, as what follows */
    ek_descriptor_gradient gradient;
    /* How long the rank has waited in an earlier call (waits.c). */
    uint64_t timed, waited; /* the call's number, from 1 (0: none); nanoseconds */
    _Alignas(8) char payload[EK_DESCRIPTOR_PAYLOAD];
} ek_descriptor;

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
    EK_DIST_WORK_AGREEING, /* its descriptor is out */
    EK_DIST_WORK_REFUSED,  /* the agreement had failed descriptors; the notice is yet to come */
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

/* A tensor's dtype and shape; NULL: no tensor. */
ek_wire_shape ek_wire_shape_of(const ek_tensor *tensor);
/* "f32[2, 3]"; "no tensor". */
void ek_wire_shape_text(const ek_wire_shape *shape, char text[120]);

/* The functions of a rail that work.c calls. `stage` gives a tensor row-major memory on the rail's
 * device. `close` ends a run. */
typedef struct ek_rail_calls {
    int (*stage)(const ek_rail_run *run, ek_dist_work_tensor *one, ek_tensor *tensor, bool sends);
    void (*close)(ek_rail_run *run, const ek_process_group *group);
} ek_rail_calls;

struct ek_dist_work {
    ek_dist_work *next;
    ek_process_group *group;
    const ek_verb *verb;
    uint64_t began;   /* ek_clock_ns() at submission, or when a gradual work last had its part */
    uint64_t arrived; /* ek_clock_ns() when this rank's data was complete; 0: when its descriptor
                         went out */
    double timeout;   /* seconds */

    /* The call; set before submission, read-only afterwards. */
    ek_descriptor descriptor;
    ek_dist_work_tensor *tensors;
    int count;
    void *user; /* the verb's */
    /* If its tensors travel between GPUs; owned. NULL: they travel by the transport. */
    ek_rail_run *rail;
    const ek_rail_calls *rail_calls;
    int peer;                /* of a message: rank in the world; EK_DIST_ANY: any */
    int tag;                 /* of a message */
    bool first_missing_only; /* after a time-out only one missing rank is named */

    /* The verb's room, the communication thread's; scratch is allocated before submission. */
    int stage;
    int64_t done; /* of a call that is made in parts: how many elements are finished */
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

/* ---- on the caller's thread ---- */

/* Makes a work with room for `count` tensors. ek_dist_wait frees it, or the second function. */
ek_dist_work *ek_dist_work_new(ek_process_group *group, const ek_verb *verb, int count);
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

/* ---- on the communication thread ---- */

/* Ends a work with a status (0, or negative with the error set on this thread). */
void ek_dist_work_end(ek_dist_work *work, int status);
/* Ends a work with the failure that is under way. */
void ek_dist_work_abort(ek_dist_work *work);

/* For verbs whose call to the transport has returned rc: a negative one breaks the world. */
int ek_dist_work_started(ek_dist_work *work, int rc);

/* True once the work has waited as long as it may. */
bool ek_dist_work_is_late(const ek_dist_work *work);

/* True for messages, which need no agreement. */
static inline bool ek_dist_work_is_message(const ek_dist_work *work)
{
    return work->verb->id == EK_VERB_SEND || work->verb->id == EK_VERB_RECV;
}

#endif

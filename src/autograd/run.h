/* run.h: one backward pass.
 *
 * walk.c makes a task for every node and leaf that takes part, with an input buffer for each
 * gradient that will arrive there. Each device has a ready queue (queue.c), and a thread on which
 * engine.c runs the queue's tasks. gradients.c adds the contributions (partial gradients) that
 * arrive, and puts sums into leaves.
 *
 * Note [Order of sums]. The walk gives each contribution to a buffer an ordinal that depends on the
 * structure of the graph alone. A buffer adds contributions by ascending ordinal, and contributions
 * that arrive early wait. So results don't depend on which device was faster.
 *
 * Note [Lock of a run]. run->lock guards the tasks' pending counts, the buffers' arrivals, the
 * queues' heaps, run->remaining and run->failed. Nothing is computed while it is held. Until all
 * contributions to a buffer have arrived, its sum belongs to the thread of the buffer's queue, and
 * afterwards to the thread that runs the task.
 *
 * Note [Nodes that meet]. If a node's operation has `meets`, its backward waits for the backward of
 * the corresponding node on all other ranks. All ranks must run these nodes in one order, whichever
 * of their queues is faster. So a pass runs them one after another over all queues, by descending
 * sequence number. This order never waits in a circle, because a node's gradients come from nodes
 * with larger numbers. The order is equal on all ranks if all recorded the nodes in one order,
 * which is why ek_check_meeting refuses to record them on concurrent threads. If a backward runs a
 * nested pass with such nodes, its operation must have `meets`, too, so that the nested pass has a
 * place in the order; a checkpoint's operation has it if the checkpoint's forward called one. On a
 * single queue every node has its place. Nodes that meet run even without a gradient, and are not
 * urgent.
 *
 * Note [Far ahead]. An urgent node sums gradients of all devices. Until the slowest device has
 * delivered its gradient, all others keep theirs. So that a fast device doesn't keep the gradients
 * of the whole module, its thread waits while it has delivered more than two buckets of gradients
 * (ek_lane_bucket) to urgent nodes that have not run, and another queue with a task is less far
 * ahead. The queue that is least far ahead never waits, so that the pass never stops. */
#ifndef EK_AUTOGRAD_RUN_H
#define EK_AUTOGRAD_RUN_H

#include <pthread.h>

#include "autograd/grad_hook.h"
#include "autograd/graph.h"
#include "core/lane.h"
#include "core/map.h"

typedef struct ek_task ek_task;

typedef struct ek_contribution {
    ek_tensor *gradient;              /* one reference; NULL counts as zero */
    const ek_slice_attributes *slice; /* where the gradient lies in the whole; NULL: everywhere */
    bool arrived;
} ek_contribution;

typedef struct ek_buffer {
    ek_contribution *contributions; /* indexed by ordinal */
    int expected, summed;
    int queue;      /* the queue whose thread adds */
    ek_tensor *sum; /* sum of the first `summed` contributions; one reference */
    /* If `partial`, only elements [begin, end) of the sum along `dim` are set; others are zeros
     * that are not written yet. */
    bool partial;
    int dim;
    int64_t begin, end;
    bool capture;        /* true for an input of ek_grad */
    ek_tensor *captured; /* the final sum if capture; one reference */
} ek_buffer;

/* The buffer to which the gradient of a node's input goes. Task NULL: the gradient isn't wanted. */
typedef struct ek_route {
    ek_task *task;
    int buffer, ordinal;
} ek_route;

/* A hook of leaves that take part. */
typedef struct ek_run_hook {
    struct ek_run_hook *next;
    ek_grad_hook *hook; /* one reference */
    int *leaves;        /* indices of the leaves that take part, ascending */
    int count;
    bool begun; /* begin succeeded, so that finish follows */
} ek_run_hook;

struct ek_task {
    ek_node *node;     /* borrowed; NULL if the task is a leaf's */
    ek_tensor *leaf;   /* borrowed; NULL if the task is a node's */
    bool runs;         /* a backward or an accumulation follows the sums */
    bool needed;       /* the task runs, or a buffer of it is captured */
    bool visited;      /* the walk has been here */
    int device_walk;   /* number of the last walk for one device that has been here */
    bool leads;        /* an edge leads to the device of that walk */
    bool meets;        /* a node that runs and meets other ranks */
    bool some;         /* a leaf that got a gradient */
    uint64_t priority; /* the ready task with the largest runs first */
    int queue;
    int pending; /* contributions that are still to come */
    int buffer_count;
    union {
        int next_edge;  /* of a node: the edge that the walk looks at next */
        int hook_index; /* of a leaf: the hook's number of it */
    };
    ek_buffer *buffers; /* one per output of the node; one for a leaf */
    ek_route *routes;   /* one per input of the node */
    ek_run_hook *hook;  /* of a leaf; NULL: none */
    /* For an urgent node in a threaded run, one event per queue; else NULL. After the thread of
     * queue q has delivered a gradient, it records arrivals[q] in the compute stream of the queue's
     * device. */
    ek_event **arrivals;
    size_t
        *ahead; /* per queue: bytes delivered to an urgent node on the queue's device; else NULL */
    bool mixed; /* a gradient was delivered by the thread of another queue than its device's */
};

/* A cast list holds gradients of at most this many bytes, so that a pass frees memory while it
 * runs. Larger gradients are cast at once: a launch is cheap compared with their cast. */
enum { EK_CAST_LIST_TENSORS = 64, EK_CAST_LIST_BYTES = 8 << 20 };

/* Casts of leaves' gradients, from one dtype and on one device, which one launch will do
 * (cast_list.c). */
typedef struct ek_cast_list {
    struct ek_cast_list *outer;
    ek_tensor *to[EK_CAST_LIST_TENSORS], *from[EK_CAST_LIST_TENSORS]; /* one reference each */
    int count;
    size_t nbytes; /* the sum of from's sizes */
} ek_cast_list;

/* The tasks of one device that can run. */
typedef struct ek_ready_queue {
    ek_dev *dev;
    ek_task **ready; /* a heap by priority */
    int ready_count;
    pthread_cond_t wake;
    bool runs;    /* its thread runs a task */
    size_t ahead; /* bytes on the device for urgent nodes that have not run (Note [Far ahead]) */
    size_t most_ahead; /* if `ahead` is more, the thread may have to wait; two buckets */
    ek_tensor **gradients, **results; /* room for the widest node */
    ek_cast_list casts;               /* only the thread that runs the tasks uses it */
} ek_ready_queue;

typedef struct ek_run {
    uint64_t number;
    bool create_graph, retain_graph;
    bool accumulate; /* true: leaves get gradients; false: only captured ones are wanted */

    struct ek_block *blocks; /* owned: memory of tasks, buffers and ready queues */
    ek_map tasks;            /* tasks by node or leaf */
    ek_task **order;
    int count, order_room;
    int widest; /* most inputs or outputs of a node */
    int needed_count;
    size_t contribution_count; /* contributions to all buffers */
    ek_task **meetings;        /* the tasks that meet, by descending sequence number */
    int meeting_count;
    ek_run_hook *hooks; /* in the order in which the walk found their leaves */

    ek_ready_queue *queues;
    int queue_count;
    ek_dev **devs; /* the queues' devices, if the run is threaded */
    bool threaded; /* one thread per queue; else all tasks are on queue 0 and nothing is locked */
    ek_thread_modes modes; /* thread modes of the backwards */
    pthread_mutex_t lock;
    int remaining; /* needed tasks that have not run */
    int met;       /* how many of `meetings` have run; meetings[met] is the next */
    bool failed;
} ek_run;

/* ---- walk.c ---- */

/* Zeroed memory that is freed with the run. */
void *ek_run_alloc(ek_run *run, size_t nbytes);

/* Returns the buffer in which the gradient of `tensor` is summed, and its task. Makes both if they
 * don't exist. NULL with an error. */
ek_buffer *ek_run_buffer(ek_run *run, const ek_tensor *tensor, ek_task **task);

/* Finds the tasks that the gradients of `roots` reach, counts contributions and gives them
 * ordinals. Roots are tensors that require a gradient, and may repeat. routes[i] becomes the route
 * of root i's gradient. */
int ek_run_walk(ek_run *run, ek_tensor *const *roots, int root_count, ek_route *routes);

/* Frees everything that the run still holds. */
void ek_run_free(ek_run *run);

/* ---- gradients.c ---- */

/* Adds the contributions that have arrived in a buffer of the task, up to the first that is missing
 * (Note [Order of sums]). Called by the thread to which the sum belongs (Note [Lock of a run]). */
int ek_buffer_sum(ek_run *run, const ek_task *task, ek_buffer *buffer);

/* Adds `gradient` to the leaf's gradient. Takes the reference. With `unset`, `gradient` becomes the
 * leaf's first gradient, and its elements will be written later. */
int ek_accumulate(ek_tensor *leaf, ek_tensor *gradient, bool create_graph, bool unset);

/* ---- cast_list.c ---- */

/* Makes a list the innermost list of the thread until ek_cast_list_close, which flushes the list.
 */
void ek_cast_list_open(ek_cast_list *list);
int ek_cast_list_close(ek_cast_list *list);
int ek_cast_list_flush(ek_cast_list *list);
/* Returns true if the tensor is the result of a cast that hasn't run yet. */
bool ek_cast_list_has(const ek_cast_list *list, const ek_tensor *tensor);

/* ---- grad_hook.c ---- */

/* ek_run_collect_hook records the hook of a leaf that takes part; the walk calls it leaf by leaf.
 * ek_run_list_hooked then lists the leaves of every hook. */
int ek_run_collect_hook(ek_run *run, ek_task *task);
int ek_run_list_hooked(ek_run *run);
void ek_run_drop_hooks(ek_run *run);

/* Make the calls of Note [Calls of a grad hook]. ek_run_finish_hooks takes the pass's status. It
 * returns that status, or, if it is 0, the status of the first finish that failed. */
int ek_run_begin_hooks(ek_run *run);
int ek_run_leaf_arrived(const ek_run *run, const ek_task *task, bool some);
int ek_run_finish_hooks(ek_run *run, int status);

/* ---- tensor_hook.c ---- */

/* Calls the hooks of the tensor whose gradient is summed in buffer `index` of the task. The sum is
 * complete; hooks may replace it. */
int ek_run_call_tensor_hooks(const ek_run *run, const ek_task *task, int index);

/* ---- queue.c ---- */

/* Gives every task and buffer its ready queue. Each accelerator in the graph has a queue; tasks of
 * cpu use the first. If the calling thread is a job of a group (ek_jobs_run), all tasks share one
 * queue. If ek_run_open_queues succeeds, ek_run_close_queues must follow. */
int ek_run_open_queues(ek_run *run);
void ek_run_close_queues(ek_run *run);

/* See Note [Lock of a run]. They do nothing if the run has one thread. */
static inline void ek_run_lock(ek_run *run)
{
    if (run->threaded)
        pthread_mutex_lock(&run->lock);
}

static inline void ek_run_unlock(ek_run *run)
{
    if (run->threaded)
        pthread_mutex_unlock(&run->lock);
}

/* The thread of `queue` puts a task whose contributions have all arrived on the task's queue. A
 * node that meets stays off the queue until all meetings before it have run. The lock is held. */
void ek_queue_ready(ek_run *run, int queue, ek_task *task);

/* Counts a gradient (NULL: none) that was delivered to an urgent task (`ahead` isn't NULL) for the
 * device of `queue`. The lock is held. */
void ek_queue_delivered(ek_run *run, int queue, ek_task *task, const ek_tensor *gradient);

/* Counts the task `done` (NULL: none yet), which the thread of `queue` has run with this status.
 * Returns the thread's next task, after a wait if necessary. Returns NULL if the pass is done or a
 * task of any queue has failed. Takes the lock. */
ek_task *ek_queue_next(ek_run *run, int queue, const ek_task *done, int status);

/* ---- execution.c ---- */

/* A call of a node's backward. The calls of nested passes form a list on the thread's stack. */
typedef struct ek_execution {
    const ek_run *run;
    const ek_task *task;
    struct ek_execution *outer;
} ek_execution;

/* Makes the execution the innermost execution of the thread until ek_execution_end. */
void ek_execution_begin(ek_execution *execution);
void ek_execution_end(const ek_execution *execution);

/* Returns the leaf whose whole gradient the node's input gradient becomes, if the leaf has no
 * gradient yet and nobody reads it before the pass ends; else NULL. */
const ek_tensor *ek_node_unseen_leaf(const ek_node *node, int input);

/* ---- engine.c ---- */

/* Runs all tasks. gradients[i], whose reference is taken, goes to routes[i]. A negative root_count
 * is the status of a pass that has failed before its execution: grad hooks get this status, and it
 * is returned. */
int ek_run_execute(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count);

#endif

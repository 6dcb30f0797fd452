/* run.h: one backward pass.
 *
 * walk.c makes a task for every node and leaf that takes part, with an input buffer for each
 * gradient that will arrive there. Each device has a ready queue (queue.c), and a thread on which
 * engine.c runs the queue's tasks. gradients.c adds the contributions (partial gradients) that
 * arrive, and puts sums into leaves.
 *
 * Note [Order of sums]. The walk gives each contribution to a buffer an ordinal that follows from
 * the structure of the graph alone. A buffer adds contributions in that order, and early ones wait,
 * so that results don't depend on which device was faster.
 *
 * Note [Lock of a run]. run->lock guards the tasks' pending counts, the buffers' arrivals, the
 * queues' heaps, run->remaining and run->failed. Nothing is computed while it is held. A buffer's
 * sum belongs to the thread of the buffer's queue until all contributions have arrived, then to the
 * thread that runs the task.
 *
 * Note [Nodes that meet]. The backward of a node whose operation `meets` waits for that of the same
 * node on the other ranks. So all ranks run these nodes in one order, whichever queue of theirs is
 * faster: one after another over all queues, by descending sequence number. The order is possible,
 * because a node's gradients come from nodes that were recorded later. It is the same on all ranks
 * if these recorded the nodes in the same order, which is why ek_check_meeting refuses to record
 * them on threads that run side by side. A backward that makes a pass with such nodes has to be of
 * an operation that meets itself, so that the pass has its place in the order; a checkpoint's is,
 * if its forward called one. On a single queue every node has its place. Nodes that meet are
 * neither skipped for want of a gradient nor urgent. */
#ifndef EK_AUTOGRAD_RUN_H
#define EK_AUTOGRAD_RUN_H

#include <pthread.h>

#include "autograd/grad_hook.h"
#include "autograd/graph.h"
#include "core/lane.h"
#include "core/map.h"

typedef struct ek_task ek_task;

typedef struct ek_contribution {
    ek_tensor *gradient; /* one reference; NULL counts as zero */
    bool arrived;
} ek_contribution;

typedef struct ek_buffer {
    ek_contribution *contributions; /* indexed by ordinal */
    int expected, summed;
    int queue;           /* the queue whose thread adds */
    ek_tensor *sum;      /* sum of the first `summed` contributions; one reference */
    bool capture;        /* true for an input of ek_grad */
    ek_tensor *captured; /* the final sum if capture; one reference */
} ek_buffer;

/* Where the gradient of a node's input goes; nowhere if task is NULL. */
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
    /* Of an urgent node in a threaded run, one per queue; else NULL. arrivals[q] is recorded by the
     * thread of queue q, in its device's compute stream, when it has delivered a gradient. */
    ek_event **arrivals;
    bool mixed; /* a gradient came from another thread than that of its device */
};

/* A list keeps gradients in 16 bits up to this many bytes, so that a pass frees memory as it goes.
 * Larger gradients are cast at once: their launch costs nothing beside the cast. */
enum { EK_CAST_LIST_TENSORS = 64, EK_CAST_LIST_BYTES = 8 << 20 };

/* Casts of leaves' gradients that wait for each other (cast_list.c), from one dtype, on one device.
 */
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
    int met;       /* meetings that are over: it is the turn of meetings[met] */
    bool failed;
} ek_run;

/* ---- walk.c ---- */

/* Zeroed memory that is freed with the run. */
void *ek_run_alloc(ek_run *run, size_t nbytes);

/* The buffer, and its task, in which the gradient of `tensor` is summed. Both are made if they
 * aren't there. NULL with an error. */
ek_buffer *ek_run_buffer(ek_run *run, const ek_tensor *tensor, ek_task **task);

/* Finds the tasks behind `roots`, counts contributions and gives them ordinals. Roots are tensors
 * that require a gradient, and may repeat. routes[i] gets the way of root i's own gradient. */
int ek_run_walk(ek_run *run, ek_tensor *const *roots, int root_count, ek_route *routes);

/* Gives back everything that the run still holds. */
void ek_run_free(ek_run *run);

/* ---- gradients.c ---- */

/* Adds what has arrived in a buffer of the task, up to the first gap (Note [Order of sums]). To be
 * called by the thread to which the sum belongs (Note [Lock of a run]). */
int ek_buffer_sum(ek_run *run, const ek_task *task, ek_buffer *buffer);

/* Adds `gradient` to the leaf's gradient. Takes the reference. With `unset` the elements of what
 * becomes the leaf's first gradient are still to be written. */
int ek_accumulate(ek_tensor *leaf, ek_tensor *gradient, bool create_graph, bool unset);

/* ---- cast_list.c ---- */

/* Makes a list the innermost one of the thread, until ek_cast_list_close, which flushes it. */
void ek_cast_list_open(ek_cast_list *list);
int ek_cast_list_close(ek_cast_list *list);
int ek_cast_list_flush(ek_cast_list *list);
/* True if the tensor is the result of a cast that is still to be made. */
bool ek_cast_list_has(const ek_cast_list *list, const ek_tensor *tensor);

/* ---- grad_hook.c ---- */

/* Notes the hook of a leaf that takes part, in the order of the walk; then lists the leaves of
 * every hook. */
int ek_run_collect_hook(ek_run *run, ek_task *task);
int ek_run_list_hooked(ek_run *run);
void ek_run_drop_hooks(ek_run *run);

/* The calls of Note [Calls of a grad hook]. ek_run_finish_hooks takes the pass's status, and
 * returns it, or that of the first finish that failed. */
int ek_run_begin_hooks(ek_run *run);
int ek_run_leaf_arrived(const ek_run *run, const ek_task *task, bool some);
int ek_run_finish_hooks(ek_run *run, int status);

/* ---- tensor_hook.c ---- */

/* Calls the hooks of the tensor behind buffer `index` of the task on its complete sum, which they
 * may replace. */
int ek_run_call_tensor_hooks(const ek_run *run, const ek_task *task, int index);

/* ---- queue.c ---- */

/* Gives every task and buffer its ready queue. Each accelerator in the graph has one; tasks of cpu
 * use the first. If the calling thread is a job of a group (ek_jobs_run), all tasks share one
 * queue. What it opens, ek_run_close_queues closes, but for a failure. */
int ek_run_open_queues(ek_run *run);
void ek_run_close_queues(ek_run *run);

/* Note [Lock of a run]. A run of one thread has nothing to lock. */
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

/* Puts a task whose contributions have all arrived on its queue, for the thread of `queue`. A node
 * that meets waits for its turn. The lock is held. */
void ek_queue_ready(ek_run *run, int queue, ek_task *task);

/* Counts the task that the thread of `queue` has run, with its status (NULL: none yet), and returns
 * the next one, for which it may wait. NULL: the pass is done, or a task of any queue has failed.
 * Takes the lock. */
ek_task *ek_queue_next(ek_run *run, int queue, const ek_task *done, int status);

/* ---- execution.c ---- */

/* One call of a node's backward. Those of nested passes form a list on the thread's stack. */
typedef struct ek_execution {
    const ek_run *run;
    const ek_task *task;
    struct ek_execution *outer;
} ek_execution;

/* Makes the execution the innermost one of the thread, until ek_execution_end. */
void ek_execution_begin(ek_execution *execution);
void ek_execution_end(const ek_execution *execution);

/* The leaf whose gradient the node's input alone becomes, if it has none yet and nobody sees the
 * gradient before the pass ends; else NULL. */
const ek_tensor *ek_node_unseen_leaf(const ek_node *node, int input);

/* ---- engine.c ---- */

/* Runs all tasks. gradients[i], whose reference is taken, goes to routes[i]. A negative root_count
 * is the status of a pass that has failed before: grad hooks are told of it, and it is returned. */
int ek_run_execute(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count);

#endif

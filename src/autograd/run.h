/* run.h: one backward pass.
 *
 * walk.c makes a task for every node and leaf that takes part, with a place for each gradient that
 * will arrive there; engine.c runs the tasks on one lane per device; gradients.c sums what arrives
 * and puts the sums into leaves.
 *
 * Order of sums. The walk gives each contribution to a buffer an ordinal that follows from the
 * structure of the graph alone. A buffer adds contributions in that order and holds early ones
 * back, so that results don't depend on which device was faster.
 *
 * Lock rule: `lock` guards the tasks' pending counts, the buffers' arrivals and the lanes' heaps;
 * nothing is computed under it. A buffer's sum belongs to its lane's thread until all its
 * contributions have arrived, then to the thread that runs the task. */
#ifndef EK_AUTOGRAD_RUN_H
#define EK_AUTOGRAD_RUN_H

#include <pthread.h>

#include "autograd/graph.h"
#include "core/map.h"

typedef struct ek_task ek_task;

typedef struct ek_contribution {
    ek_tensor *gradient; /* a reference; NULL: zero */
    bool arrived;
} ek_contribution;

typedef struct ek_buffer {
    ek_contribution *contributions; /* by ordinal */
    int expected, summed;
    int lane;            /* whose thread adds */
    ek_tensor *sum;      /* of the first `summed`; a reference */
    bool capture;        /* an input of ek_grad: */
    ek_tensor *captured; /* the sum, a reference */
} ek_buffer;

/* Where the gradient of a node's input goes; no task: nowhere. */
typedef struct ek_route {
    ek_task *task;
    int buffer, ordinal;
} ek_route;

struct ek_task {
    ek_node *node;     /* or */
    ek_tensor *leaf;   /* whose gradients meet here */
    bool runs;         /* there is something to compute after the sum */
    bool needed;       /* runs, or is captured */
    bool visited;      /* lies behind a root */
    uint64_t priority; /* of the ready tasks, the largest runs first */
    int lane;
    int pending; /* contributions that are still to come */
    int buffer_count;
    ek_buffer *buffers; /* per output; one for a leaf */
    ek_route *routes;   /* per input of the node */
    int next_edge;      /* the walk's */
};

typedef struct ek_lane {
    ek_dev *dev;
    ek_task **ready; /* heap */
    int ready_count;
    pthread_cond_t wake;
    ek_tensor **gradients, **results; /* room for the widest node */
} ek_lane;

typedef struct ek_run {
    bool create_graph, retain_graph;
    bool accumulate; /* leaves' gradients, else captured ones */

    /* The walk's: tasks by node or leaf, and in an order in which inputs come before what uses
     * them. */
    struct ek_block *blocks; /* memory of all below */
    ek_map tasks;            /* by node or leaf */
    ek_task **order;
    int count, order_room;
    int widest; /* inputs or outputs of one node */
    int needed_count;

    ek_lane *lanes;
    int lane_count;
    bool threaded; /* one thread per lane; else all tasks are on lane 0 and nothing is locked */
    ek_thread_modes modes; /* that backwards run under */
    pthread_mutex_t lock;
    int remaining; /* tasks that have not run */
    bool failed;
} ek_run;

/* ---- walk.c ---- */

/* Zeroed memory that ends with the run. */
void *ek_run_alloc(ek_run *run, size_t nbytes);

/* The task and buffer where the gradient of `tensor` meets; made if need be; NULL with an error. */
ek_buffer *ek_run_buffer(ek_run *run, const ek_tensor *tensor, ek_task **task);

/* Finds what takes part behind `roots` (tensors that require a gradient; they may repeat), counts
 * contributions and gives ordinals. The root's own contribution has route[i]. */
int ek_run_walk(ek_run *run, ek_tensor *const *roots, int root_count, ek_route *routes);

/* Gives back everything that the run still holds. */
void ek_run_free(ek_run *run);

/* ---- gradients.c ---- */

/* Adds what has arrived, in order, up to the first gap. For the buffer's thread. */
int ek_buffer_sum(ek_run *run, ek_buffer *buffer);

/* Adds a gradient (takes the reference) to the leaf's. */
int ek_accumulate(ek_tensor *leaf, ek_tensor *gradient, bool create_graph);

/* ---- engine.c ---- */

/* Runs all tasks, the roots' contributions being `gradients` (references are taken). */
int ek_run_execute(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count);

#endif

/* execution.c: the backward calls that a thread is in, and the questions that a running backward
 * may ask about its call. */
#include "autograd/run.h"

static _Thread_local ek_execution *execution_current; /* the innermost of this thread */

void ek_execution_begin(ek_execution *execution)
{
    execution->outer = execution_current;
    execution_current = execution;
}

void ek_execution_end(const ek_execution *execution)
{
    execution_current = execution->outer;
}

/* ---- what a backward asks ---- */

/* Returns the innermost backward call of `node` on this thread, or NULL. */
static const ek_execution *execution_of(const ek_node *node)
{
    const ek_execution *execution = execution_current;
    while (execution && execution->task->node != node)
        execution = execution->outer;
    return execution;
}

bool ek_node_needs(const ek_node *node, int input)
{
    const ek_edge *edge = &node->edges[input];
    if (!edge->node && !edge->leaf)
        return false;
    const ek_execution *execution = execution_of(node);
    return !execution || execution->task->routes[input].task;
}

uint64_t ek_node_pass(const ek_node *node)
{
    const ek_execution *execution = execution_of(node);
    return execution ? execution->run->number : 0;
}

bool ek_node_is_last_use(const ek_node *node)
{
    const ek_execution *execution = execution_of(node);
    return execution && !execution->run->create_graph && !execution->run->retain_graph;
}

/* Returns the leaf to which the gradient of the node's input goes, if the leaf gets no other
 * gradient in this pass and the pass records nothing; else NULL. */
static const ek_tensor *execution_leaf_behind(const ek_node *node, int input)
{
    const ek_execution *execution = execution_of(node);
    if (!execution || !execution->run->accumulate || execution->run->create_graph)
        return NULL;
    const ek_task *task = execution->task->routes[input].task;
    return task && task->leaf && task->buffers[0].expected == 1 && !task->leaf->hooks ? task->leaf
                                                                                      : NULL;
}

const ek_tensor *ek_node_unseen_leaf(const ek_node *node, int input)
{
    const ek_tensor *leaf = execution_leaf_behind(node, input);
    return leaf && !leaf->grad && !execution_of(node)->task->routes[input].task->hook ? leaf : NULL;
}

ek_tensor *ek_node_destination(ek_node *node, int input)
{
    const ek_tensor *leaf = execution_leaf_behind(node, input);
    return leaf && !leaf->grad ? leaf->grad_buffer : NULL;
}

ek_deferral ek_node_arrivals(const ek_node *node)
{
    const ek_execution *execution = execution_of(node);
    if (!execution || !execution->task->arrivals || execution->task->mixed)
        return (ek_deferral){NULL, NULL, 0};
    return (ek_deferral){execution->run->devs, execution->task->arrivals,
                         execution->run->queue_count};
}

bool ek_node_accumulates(const ek_node *node, int input)
{
    const ek_tensor *leaf = execution_leaf_behind(node, input);
    return leaf && leaf->grad;
}

/* Returns the innermost backward call of this thread that belongs to a pass with several concurrent
 * queues; NULL if there is none. */
static const ek_execution *execution_beside(void)
{
    const ek_execution *execution = execution_current;
    while (execution && !execution->run->threaded)
        execution = execution->outer;
    return execution;
}

int ek_check_meeting(const char *operation)
{
    const ek_execution *execution = execution_beside();
    const ek_group_rank *rank = &ek_thread_self()->rank;
    if (execution ? execution->task->meets : !rank->barrier || rank->leads)
        return 0;
    if (execution)
        return EK_FAIL(EK_E_STATE,
                       "%s meets other ranks, which is impossible in backward of %s beside other "
                       "devices' backward, because each rank would meet in another order; "
                       "ek_function.meets gives a backward its turn",
                       operation, execution->task->node->operation->name);
    return EK_FAIL(EK_E_STATE,
                   "%s meets other ranks, which is impossible in one of several replicas side by "
                   "side, because each rank would meet in another order",
                   operation);
}

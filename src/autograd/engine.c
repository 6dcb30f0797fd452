/* engine.c: running the tasks of a backward pass. */
#include <string.h>

#include "autograd/run.h"
#include "core/part.h"
#include "core/trace.h"
#include "core/worker.h"

/* The backward that the calling thread is in; nested passes form a list on the stack. */
typedef struct ek_execution {
    const ek_run *run;
    const ek_task *task;
    struct ek_execution *outer;
} ek_execution;

static _Thread_local ek_execution *current;

static void lock(ek_run *run)
{
    if (run->threaded)
        pthread_mutex_lock(&run->lock);
}

static void unlock(ek_run *run)
{
    if (run->threaded)
        pthread_mutex_unlock(&run->lock);
}

/* ---- what backwards ask ---- */

/* The task that runs `node` on this thread, in the innermost pass. */
static const ek_execution *execution_of(const ek_node *node)
{
    const ek_execution *execution = current;
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

ek_tensor *ek_node_destination(ek_node *node, int input)
{
    const ek_execution *execution = execution_of(node);
    if (!execution || !execution->run->accumulate || execution->run->create_graph)
        return NULL;
    const ek_task *task = execution->task->routes[input].task;
    if (!task || !task->leaf || !task->leaf->grad_absent || task->slots[0].expected != 1)
        return NULL;
    return task->leaf->grad;
}

/* ---- gradients on their way ---- */

int ek_run_deliver(ek_run *run, int lane, const ek_route *route, ek_tensor *gradient)
{
    ek_task *task = route->task;
    int rc = 0;
    if (!task) {
        ek_release(gradient);
        return 0;
    }
    ek_slot *slot = &task->slots[route->slot];
    lock(run);
    slot->contributions[route->ordinal] = (ek_contribution){gradient, true};
    if (slot->lane == lane) {
        /* The task cannot start before this contribution is counted: the sum is this thread's. */
        unlock(run);
        rc = ek_slot_fold(run, slot);
        lock(run);
    }
    if (--task->pending == 0) {
        ek_lane_push(&run->lanes[task->lane], task);
        if (run->threaded && task->lane != lane)
            pthread_cond_signal(&run->lanes[task->lane].wake);
    }
    unlock(run);
    return rc;
}

static int check_result(const ek_node *node, int input, const ek_tensor *result)
{
    const ek_edge *edge = &node->edges[input];
    ek_output_info leaf;
    const ek_output_info *wanted = edge->node ? &edge->node->outputs[edge->output] : &leaf;
    if (edge->leaf) {
        leaf.dev = ek_tensor_dev(edge->leaf);
        leaf.dtype = edge->leaf->dtype;
        leaf.shape = ek_tensor_shape(edge->leaf);
    }
    bool fits = result->ndim == wanted->shape.ndim && result->dtype == wanted->dtype &&
                ek_tensor_dev(result) == wanted->dev;
    for (int i = 0; fits && i < result->ndim; i++)
        fits = result->shape[i] == wanted->shape.dims[i];
    if (fits)
        return 0;
    char text[200], shape[160];
    return EK_FAIL(EK_E_AUTOGRAD, "the gradient of input %d is %s, but the input is %s%s on %s",
                   input, ek_tensor_text(result, text), ek_dtype_name(wanted->dtype),
                   ek_shape_text(&wanted->shape, shape), wanted->dev->name);
}

/* ---- tasks ---- */

/* Calls the backward and keeps the results that are wanted. */
static int call_backward(ek_run *run, ek_task *task, ek_tensor *const *gradients,
                         ek_tensor **results)
{
    ek_node *node = task->node;
    ek_execution execution = {run, task, current};
    current = &execution;
    int rc = node->operation->backward(node, gradients, results);
    current = execution.outer;
    rc = ek_error_outcome(rc);
    for (int i = 0; i < node->input_count; i++) {
        if (rc >= 0 && results[i] && task->routes[i].task)
            rc = check_result(node, i, results[i]);
        results[i] = rc >= 0 && task->routes[i].task ? ek_keep(results[i]) : NULL;
    }
    return rc;
}

static int run_node(ek_run *run, int lane, ek_task *task)
{
    ek_node *node = task->node;
    ek_tensor **gradients = run->lanes[lane].gradients;
    ek_tensor **results = run->lanes[lane].results;
    bool any = false;
    for (int i = 0; i < node->output_count; i++) {
        gradients[i] = task->slots[i].sum;
        task->slots[i].sum = NULL;
        any = any || gradients[i];
    }
    for (int i = 0; i < node->input_count; i++)
        results[i] = NULL;

    int rc = 0;
    if (any) { /* zero in, zero out */
        ek_scope scope = ek_scope_begin();
        rc = call_backward(run, task, gradients, results);
        ek_thread_self()->modes = run->modes;
        for (int i = 0; i < node->output_count; i++)
            ek_release(gradients[i]);
        ek_scope_end(&scope);
    }
    if (!run->retain_graph)
        ek_node_free_saved(node);
    ek_part_rest(); /* before others get the results */
    for (int i = 0; i < node->input_count; i++) {
        int status = ek_run_deliver(run, lane, &task->routes[i], results[i]);
        rc = rc < 0 ? rc : status;
    }
    return rc;
}

static int run_leaf(ek_run *run, ek_task *task)
{
    ek_tensor *sum = task->slots[0].sum;
    task->slots[0].sum = NULL;
    if (!sum)
        return 0;
    return ek_accumulate(task->leaf, sum, run->create_graph);
}

static int sum_and_run(ek_run *run, int lane, ek_task *task)
{
    for (int i = 0; i < task->slot_count; i++) {
        ek_slot *slot = &task->slots[i];
        if (!slot->expected)
            continue;
        EK_TRY(ek_slot_fold(run, slot));
        if (slot->capture)
            slot->captured = ek_keep(slot->sum);
    }
    if (task->runs)
        return task->node ? run_node(run, lane, task) : run_leaf(run, task);
    for (int i = 0; i < task->slot_count; i++) {
        ek_release(task->slots[i].sum);
        task->slots[i].sum = NULL;
    }
    return 0;
}

static int run_task(ek_run *run, int lane, ek_task *task)
{
    const int before = ek_error_status();
    ek_span span;
    if (task->node)
        ek_span_begin(&span, EK_SPAN_COMPUTE, "backward of", task->node->operation->name,
                      ek_node_dev(task->node));
    else
        ek_span_begin(&span, EK_SPAN_COMPUTE, "gradient of a parameter", NULL,
                      ek_tensor_dev(task->leaf));
    int rc = sum_and_run(run, lane, task);
    ek_span_end(&span);
    if (rc >= 0)
        return 0;
    char text[200];
    if (task->node)
        ek_error_prefix(before, "in backward of %s on %s", task->node->operation->name,
                        ek_node_dev(task->node)->name);
    else
        ek_error_prefix(before, "accumulating the gradient of %s",
                        ek_tensor_text(task->leaf, text));
    return rc;
}

/* ---- lanes ---- */

static void wake_all(ek_run *run)
{
    for (int i = 0; run->threaded && i < run->lane_count; i++)
        pthread_cond_signal(&run->lanes[i].wake);
}

/* Runs one lane's tasks until the whole pass is done or has failed somewhere. */
static int run_lane(void *user, int index)
{
    ek_run *run = user;
    ek_lane *lane = &run->lanes[index];
    ek_span span;
    int rc = 0;
    ek_span_begin(&span, EK_SPAN_COMPUTE, "backward", NULL, lane->dev);
    ek_thread_self()->modes = run->modes;
    lock(run);
    while (run->remaining > 0 && !run->failed) {
        if (!lane->ready_count && run->threaded) {
            ek_span wait;
            ek_span_begin(&wait, EK_SPAN_WAIT, "waiting for gradients", NULL, NULL);
            ek_part_wait(&lane->wake, &run->lock);
            ek_span_end(&wait);
            continue;
        }
        ek_task *task = ek_lane_pop(lane);
        unlock(run);
        rc = run_task(run, index, task);
        lock(run);
        run->remaining--;
        run->failed = run->failed || rc < 0;
        if (run->failed || run->remaining == 0)
            wake_all(run);
    }
    unlock(run);
    ek_span_end(&span);
    return rc;
}

int ek_run_execute(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count)
{
    ek_thread *self = ek_thread_self();
    ek_thread_modes before = self->modes;
    int rc = ek_run_assign_lanes(run);
    if (rc < 0) {
        for (int i = 0; i < root_count; i++)
            ek_release(gradients[i]);
        return rc;
    }
    run->modes = before;
    run->modes.category = EK_MEMORY_ACTIVATION;
    /* Gradients have the dtypes that the forward left: casts are nodes like any other. */
    run->modes.flags &= ~(unsigned)(EK_MODE_NO_GRAD | EK_MODE_AUTOCAST);
    run->modes.flags |= run->create_graph ? 0 : EK_MODE_NO_GRAD;
    run->modes.flags |= EK_MODE_BACKWARD;
    run->remaining = run->needed_count;
    /* Lane -1: no lane's thread; the lanes add. */
    for (int i = 0; i < root_count; i++)
        ek_run_deliver(run, -1, &routes[i], gradients[i]);

    if (run->threaded) {
        ek_dev **devs = ek_run_alloc(run, (size_t)run->lane_count * sizeof *devs);
        for (int i = 0; devs && i < run->lane_count; i++)
            devs[i] = run->lanes[i].dev;
        rc = devs ? ek_gang_run(devs, run->lane_count, run_lane, run, NULL) : ek_error_pending();
    } else {
        ek_part part;
        ek_part_begin(&part, run->lanes[0].dev);
        rc = run_lane(run, 0);
        ek_part_end(&part);
    }
    self->modes = before;
    ek_run_close_lanes(run);
    return rc;
}

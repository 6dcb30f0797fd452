/* engine.c: runs the tasks of a backward pass, on a thread per device.
 *
 * The road of a gradient, from the top down:
 *
 *     ek_backward_with   grad.c: the public calls; ek_grad_with wants single gradients
 *     grad_run           grad.c: makes the gradients of the roots
 *     ek_run_walk        walk.c: finds the tasks, and gives each contribution its ordinal
 *     ek_run_execute     here: gives tasks to ready queues (queue.c), and each queue a thread
 *     run_queue          runs the ready task of the highest priority until none remains
 *     task_sum_and_run   completes the sums of the task's input buffers (gradients.c), and calls
 *                        hooks of tensors with them (tensor_hook.c); then a node or a leaf:
 *     run_node           calls the node's backward (but for slices of their input, whose gradients
 *                        are summed without it); run_deliver puts the results into buffers
 *     run_leaf           hands the sum to ek_accumulate
 *     ek_accumulate      gradients.c: adds the sum to the leaf's gradient
 *     ek_run_leaf_arrived  grad_hook.c: calls the leaf's hook */
#include <string.h>

#include "autograd/anomaly.h"
#include "autograd/run.h"
#include "core/lane.h"
#include "core/trace.h"
#include "core/worker.h"

/* ---- gradients on their way ---- */

/* Puts a gradient (NULL: zero), or with `slice` the gradient of a slice, into its buffer, on the
 * thread of `queue`. Takes the reference. */
static int run_deliver(ek_run *run, int queue, const ek_route *route, ek_tensor *gradient,
                       const ek_slice_attributes *slice)
{
    ek_task *task = route->task;
    int rc = 0;
    if (!task) {
        ek_release(gradient);
        return 0;
    }
    ek_buffer *buffer = &task->buffers[route->buffer];
    ek_run_lock(run);
    buffer->contributions[route->ordinal] = (ek_contribution){gradient, slice, true};
    if (task->ahead)
        ek_queue_delivered(run, buffer->queue, task, gradient);
    if (buffer->queue == queue) {
        /* The sum belongs to this thread: the task cannot start before this contribution counts. */
        ek_run_unlock(run);
        rc = ek_buffer_sum(run, task, buffer);
        if (task->arrivals)
            ek_dev_record_event(run->queues[queue].dev, EK_STREAM_COMPUTE, &task->arrivals[queue]);
        ek_run_lock(run);
    } else {
        task->mixed = true;
    }
    if (--task->pending == 0)
        ek_queue_ready(run, queue, task);
    ek_run_unlock(run);
    return rc;
}

static int engine_result_check(const ek_node *node, int input, const ek_tensor *result)
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

/* Calls the node's backward. Afterwards results has one reference to each wanted gradient. */
static int engine_call_backward(ek_run *run, ek_task *task, ek_tensor *const *gradients,
                                ek_tensor **results)
{
    ek_node *node = task->node;
    ek_execution execution = {.run = run, .task = task};
    ek_execution_begin(&execution);
    int rc = node->operation->backward(node, gradients, results);
    ek_execution_end(&execution);
    rc = ek_error_outcome(rc);
    if (rc >= 0 && ek_checks_for(EK_CHECK_ANOMALY))
        ek_anomaly_check_backward(node, gradients, results);
    for (int i = 0; i < node->input_count; i++) {
        if (rc >= 0 && results[i] && task->routes[i].task)
            rc = engine_result_check(node, i, results[i]);
        results[i] = rc >= 0 && task->routes[i].task ? ek_keep(results[i]) : NULL;
    }
    return rc;
}

/* Makes zeros, one reference each, for outputs that carry a gradient and got none. */
static int engine_fill_gradients(ek_node *node, ek_tensor **gradients)
{
    for (int i = 0; i < node->output_count; i++) {
        const ek_output_info *output = &node->outputs[i];
        if (gradients[i] || !output->dev || !ek_dtype_is_floating(output->dtype))
            continue;
        gradients[i] = ek_keep(ek_node_zeros(node, i));
        if (!gradients[i])
            return ek_error_pending();
    }
    return 0;
}

static int run_node(ek_run *run, int queue, ek_task *task)
{
    ek_node *node = task->node;
    ek_tensor **gradients = run->queues[queue].gradients;
    ek_tensor **results = run->queues[queue].results;
    bool any = false;
    for (int i = 0; i < node->output_count; i++) {
        gradients[i] = task->buffers[i].sum;
        task->buffers[i].sum = NULL;
        any = any || gradients[i];
    }
    for (int i = 0; i < node->input_count; i++)
        results[i] = NULL;

    int rc = 0;
    const ek_slice_attributes *slice =
        node->operation->slices && !run->create_graph ? node->attributes : NULL;
    if (slice && task->routes[0].task) {
        results[0] = gradients[0];
    } else if (any || task->meets) { /* without any gradient all results are zero */
        ek_scope scope = ek_scope_begin();
        rc = task->meets ? engine_fill_gradients(node, gradients) : 0;
        if (rc >= 0)
            rc = engine_call_backward(run, task, gradients, results);
        ek_thread_self()->modes = run->modes;
        ek_thread_self()->modes.path = node->path;
        const ek_releaser outer = ek_release_named("the backward of", node->operation->name);
        for (int i = 0; i < node->output_count; i++)
            ek_release(gradients[i]);
        ek_scope_end(&scope);
        ek_release_end(&outer);
    }
    if (!run->retain_graph)
        ek_node_free_saved(node);
    ek_work_rest(); /* a slow device sleeps before others get the results */
    for (int i = 0; i < node->input_count; i++) {
        int status = run_deliver(run, queue, &task->routes[i], results[i], slice);
        rc = rc < 0 ? rc : status;
    }
    return rc;
}

static int run_leaf(ek_run *run, int queue, ek_task *task)
{
    ek_tensor *sum = task->buffers[0].sum;
    task->buffers[0].sum = NULL;
    task->some = sum;
    if (!sum)
        return 0;
    ek_section section;
    ek_dev *dev = ek_tensor_dev(sum);
    ek_section_go_on(&section, &dev, sum->storage->stream == EK_STREAM_EXCHANGE);
    int rc = ek_accumulate(task->leaf, sum, run->create_graph,
                           ek_cast_list_has(&run->queues[queue].casts, sum));
    ek_section_end(&section);
    return rc;
}

static int task_sum_and_run(ek_run *run, int queue, ek_task *task)
{
    for (int i = 0; i < task->buffer_count; i++) {
        ek_buffer *buffer = &task->buffers[i];
        if (!buffer->expected)
            continue;
        EK_TRY(ek_buffer_sum(run, task, buffer));
        EK_TRY(ek_run_call_tensor_hooks(run, task, i));
        if (buffer->capture)
            buffer->captured = ek_keep(buffer->sum);
    }
    if (task->runs)
        return task->node ? run_node(run, queue, task) : run_leaf(run, queue, task);
    for (int i = 0; i < task->buffer_count; i++) {
        ek_release(task->buffers[i].sum);
        task->buffers[i].sum = NULL;
    }
    return 0;
}

static int run_task(ek_run *run, int queue, ek_task *task)
{
    const int before = ek_error_status();
    ek_span span;
    ek_thread_self()->modes.path = task->node ? task->node->path : task->leaf->storage->path;
    if (task->node)
        ek_span_begin(&span, EK_SPAN_COMPUTE, "backward of", task->node->operation->name,
                      ek_node_dev(task->node));
    else
        ek_span_begin(&span, EK_SPAN_COMPUTE, "gradient of a parameter", NULL,
                      ek_tensor_dev(task->leaf));
    int rc = task_sum_and_run(run, queue, task);
    ek_span_end(&span);
    if (rc >= 0 && task->hook && ek_tensor_dev(task->leaf)->lane)
        ek_lane_join(ek_tensor_dev(task->leaf));
    else if (rc >= 0 && task->hook) /* on the host, to which any device may have sent it */
        ek_lane_join_all();
    if (rc >= 0) /* the hook's errors are its own */
        return task->hook ? ek_run_leaf_arrived(run, task, task->some) : 0;
    char text[200];
    if (task->node)
        ek_error_prefix(before, "in backward of %s on %s", task->node->operation->name,
                        ek_node_dev(task->node)->name);
    else
        ek_error_prefix(before, "accumulating the gradient of %s",
                        ek_tensor_text(task->leaf, text));
    return rc;
}

/* ---- a pass ---- */

/* Runs one queue's tasks until the pass is done or a task of any queue has failed. */
static int run_queue(void *user, int index)
{
    ek_run *run = user;
    ek_task *task = NULL;
    ek_span span;
    int rc = 0;
    ek_span_begin(&span, EK_SPAN_COMPUTE, "backward", NULL, run->queues[index].dev);
    ek_thread_self()->modes = run->modes;
    ek_cast_list_open(&run->queues[index].casts);
    while ((task = ek_queue_next(run, index, task, rc))) {
        rc = run_task(run, index, task);
        ek_thread_self()->modes.path = run->modes.path;
    }
    int made = ek_cast_list_close(&run->queues[index].casts);
    ek_span_end(&span);
    return rc < 0 ? rc : made;
}

/* Delivers the roots' gradients, and runs all queues until they have ended. */
static int run_queues(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count)
{
    /* The calling thread counts as queue -1, which adds nothing: the queues' threads add. */
    for (int i = 0; i < root_count; i++)
        run_deliver(run, -1, &routes[i], gradients[i], NULL);
    if (!run->threaded) {
        ek_work part;
        ek_work_begin(&part, run->queues[0].dev);
        int rc = run_queue(run, 0);
        ek_work_end(&part);
        return rc;
    }
    return ek_jobs_run(run->devs, run->queue_count, run_queue, run, NULL);
}

static void run_set_modes(ek_run *run)
{
    run->modes = ek_thread_self()->modes;
    run->modes.category = EK_MEMORY_ACTIVATION;
    /* Autocast is off, because the forward's casts are nodes of the graph. */
    run->modes.flags &= ~(unsigned)(EK_MODE_NO_GRAD | EK_MODE_AUTOCASTS);
    run->modes.flags |= run->create_graph ? 0 : EK_MODE_NO_GRAD;
    run->modes.flags |= EK_MODE_BACKWARD;
}

int ek_run_execute(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count)
{
    static atomic_uint_least64_t last_number;
    int rc = root_count < 0 ? root_count : ek_cast_lists_flush_all();
    run->number = atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1;
    if (rc >= 0 && run->meeting_count)
        rc = ek_check_meeting(run->meetings[0]->node->operation->name);
    bool assigned = rc >= 0 && (rc = ek_run_open_queues(run)) >= 0;
    run_set_modes(run);
    /* Hooks are called even if the pass has failed already, because other ranks may wait for this
     * rank. */
    ek_error_record error;
    ek_error_take(&error);
    int begun = ek_run_begin_hooks(run);
    if (rc < 0) {
        ek_error_clear();
        ek_error_raise(&error);
    } else {
        rc = begun;
    }
    if (rc >= 0) {
        ek_thread_modes before = ek_thread_self()->modes;
        rc = run_queues(run, routes, gradients, root_count);
        ek_thread_self()->modes = before;
        ek_lane_join_all();
    } else {
        for (int i = 0; i < root_count; i++)
            ek_release(gradients[i]);
    }
    rc = ek_run_finish_hooks(run, rc);
    if (assigned)
        ek_run_close_queues(run);
    return rc;
}

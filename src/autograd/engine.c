/* engine.c: runs the tasks of a backward pass, with a ready queue and a thread per device.
 *
 * The road of a gradient, from the top down:
 *
 *     ek_backward_with   grad.c: the public calls; ek_grad_with wants single gradients
 *     grad_run           grad.c: makes the gradients of the roots
 *     ek_run_walk        walk.c: finds the tasks, and gives each contribution its ordinal
 *     ek_run_execute     here: gives tasks to ready queues, and each queue a thread
 *     run_queue          takes the ready task of the highest priority until none remains
 *     task_sum_and_run   completes the sums of the task's input buffers, and shows them to hooks of
 *                        tensors (tensor_hook.c); then a node or a leaf:
 *     run_node           calls the node's backward; run_deliver puts the results into buffers
 *     run_leaf           hands the sum to ek_accumulate
 *     ek_accumulate      gradients.c: adds the sum to the leaf's gradient
 *     ek_run_leaf_arrived  grad_hook.c: tells who wants to know that the leaf has it */
#include <string.h>

#include "autograd/run.h"
#include "core/lane.h"
#include "core/trace.h"
#include "core/worker.h"

/* The backward call that this thread is in. Nested passes form a list on the stack. */
typedef struct ek_execution {
    const ek_run *run;
    const ek_task *task;
    struct ek_execution *outer;
} ek_execution;

static _Thread_local ek_execution *current;

static void run_lock(ek_run *run)
{
    if (run->threaded)
        pthread_mutex_lock(&run->lock);
}

static void run_unlock(ek_run *run)
{
    if (run->threaded)
        pthread_mutex_unlock(&run->lock);
}

/* ---- ready queues: which thread runs what, and in which order ---- */

/* Adds a task to the queue's heap. run->lock is held if the run is threaded. */
static void queue_push(ek_ready_queue *queue, ek_task *task)
{
    int at = queue->ready_count++;
    while (at > 0 && queue->ready[(at - 1) / 2]->priority < task->priority) {
        queue->ready[at] = queue->ready[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->ready[at] = task;
}

static ek_task *queue_pop(ek_ready_queue *queue)
{
    ek_task *top = queue->ready[0];
    ek_task *last = queue->ready[--queue->ready_count];
    int at = 0;
    for (int child = 1; child < queue->ready_count; child = 2 * at + 1) {
        if (child + 1 < queue->ready_count &&
            queue->ready[child + 1]->priority > queue->ready[child]->priority)
            child++;
        if (queue->ready[child]->priority <= last->priority)
            break;
        queue->ready[at] = queue->ready[child];
        at = child;
    }
    queue->ready[at] = last;
    return top;
}

/* Adds a device that tasks run on. cpu has no ready queue of its own. */
static void engine_add_dev(ek_dev_set *devs, ek_dev *dev)
{
    if (dev && dev->id.kind != EK_CPU)
        ek_dev_set_add(devs, dev);
}

static int queue_of(const ek_run *run, const ek_dev *dev)
{
    for (int i = 0; run->threaded && i < run->queue_count; i++)
        if (run->queues[i].dev == dev)
            return i;
    return 0;
}

static ek_dev *task_dev(const ek_task *task)
{
    return task->node ? ek_node_dev(task->node) : ek_tensor_dev(task->leaf);
}

/* Tasks that only sum, and leaves, come first, because they end the life of temporaries. Then come
 * urgent operations, those recorded first before others: buckets of gradients are recorded in the
 * order in which backward fills them. Then comes the node that was recorded last (Note [Nodes that
 * meet]). */
static uint64_t task_priority(const ek_task *task, int position)
{
    if (!task->runs || task->leaf)
        return UINT64_C(2) << 62 | (uint64_t)position;
    bool urgent = task->node->operation->urgent && !task->meets;
    return urgent ? (UINT64_C(1) << 62) + (UINT64_MAX >> 2) - task->node->sequence
                  : task->node->sequence;
}

static void task_assign(ek_run *run, ek_task *task, int position)
{
    task->priority = task_priority(task, position);
    task->queue = queue_of(run, task_dev(task));
    for (int i = 0; i < task->buffer_count; i++)
        task->buffers[i].queue =
            task->node ? queue_of(run, task->node->outputs[i].dev) : task->queue;
}

/* Makes room for the events of a task whose gradients go to deferred sections. */
static int task_expect_arrivals(ek_run *run, ek_task *task)
{
    if (!run->threaded || !task->runs || !task->node || !task->node->operation->urgent)
        return 0;
    task->arrivals = ek_run_alloc(run, (size_t)run->queue_count * sizeof(ek_event *));
    return task->arrivals ? 0 : ek_error_pending();
}

/* Gives every task and buffer its ready queue. Each accelerator in the graph has one; tasks of cpu
 * use the first. If the calling thread is a job of a group (ek_jobs_run), all tasks share one
 * queue. */
static int run_assign_queues(ek_run *run)
{
    ek_dev_set devs = {0};
    for (int t = 0; t < run->count; t++) {
        const ek_task *task = run->order[t];
        if (!task->needed)
            continue;
        engine_add_dev(&devs, task_dev(task));
        for (int i = 0; task->node && i < task->buffer_count; i++)
            engine_add_dev(&devs, task->buffers[i].expected ? task->node->outputs[i].dev : NULL);
    }
    ek_dev_set_sort(&devs);
    run->threaded = devs.count > 1 && !ek_thread_in_job();
    run->queue_count = run->threaded ? devs.count : 1;
    run->queues = ek_run_alloc(run, (size_t)run->queue_count * sizeof *run->queues);
    if (!run->queues)
        return ek_error_pending();

    int *tasks = ek_run_alloc(run, (size_t)run->queue_count * sizeof *tasks);
    if (!tasks)
        return ek_error_pending();
    run->devs = ek_run_alloc(run, (size_t)run->queue_count * sizeof(ek_dev *));
    if (!run->devs)
        return ek_error_pending();
    for (int l = 0; l < run->queue_count; l++)
        run->devs[l] = run->queues[l].dev = devs.devs[l]; /* NULL if there are none */
    for (int t = 0; t < run->count; t++) {
        task_assign(run, run->order[t], t);
        EK_TRY(task_expect_arrivals(run, run->order[t]));
        tasks[run->order[t]->queue] += run->order[t]->needed;
    }
    for (int l = 0; l < run->queue_count; l++) {
        ek_ready_queue *queue = &run->queues[l];
        queue->ready = ek_run_alloc(run, (size_t)tasks[l] * sizeof(ek_task *));
        queue->gradients = ek_run_alloc(run, (size_t)run->widest * sizeof(ek_tensor *));
        queue->results = ek_run_alloc(run, (size_t)run->widest * sizeof(ek_tensor *));
        if (!queue->ready || !queue->gradients || !queue->results)
            return ek_error_pending();
    }
    for (int l = 0; run->threaded && l < run->queue_count; l++)
        pthread_cond_init(&run->queues[l].wake, NULL);
    if (run->threaded)
        pthread_mutex_init(&run->lock, NULL);
    return 0;
}

static void run_close_queues(ek_run *run)
{
    for (int t = 0; run->threaded && t < run->count; t++)
        for (int l = 0; run->order[t]->arrivals && l < run->queue_count; l++)
            ek_dev_free_event(run->devs[l], run->order[t]->arrivals[l]);
    for (int l = 0; run->threaded && l < run->queue_count; l++)
        pthread_cond_destroy(&run->queues[l].wake);
    if (run->threaded)
        pthread_mutex_destroy(&run->lock);
}

/* ---- what a backward asks ---- */

/* The innermost backward call of `node` on this thread, or NULL. */
static const ek_execution *engine_execution_of(const ek_node *node)
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
    const ek_execution *execution = engine_execution_of(node);
    return !execution || execution->task->routes[input].task;
}

uint64_t ek_node_pass(const ek_node *node)
{
    const ek_execution *execution = engine_execution_of(node);
    return execution ? execution->run->number : 0;
}

/* The leaf that alone gets the gradient of the node's input, in an operation that isn't recorded;
 * NULL: none. */
static const ek_tensor *engine_leaf_behind(const ek_node *node, int input)
{
    const ek_execution *execution = engine_execution_of(node);
    if (!execution || !execution->run->accumulate || execution->run->create_graph)
        return NULL;
    const ek_task *task = execution->task->routes[input].task;
    return task && task->leaf && task->buffers[0].expected == 1 && !task->leaf->hooks ? task->leaf
                                                                                      : NULL;
}

ek_tensor *ek_node_destination(ek_node *node, int input)
{
    const ek_tensor *leaf = engine_leaf_behind(node, input);
    return leaf && !leaf->grad ? leaf->grad_buffer : NULL;
}

ek_deferral ek_node_arrivals(const ek_node *node)
{
    const ek_execution *execution = engine_execution_of(node);
    if (!execution || !execution->task->arrivals || execution->task->mixed)
        return (ek_deferral){NULL, NULL, 0};
    return (ek_deferral){execution->run->devs, execution->task->arrivals,
                         execution->run->queue_count};
}

bool ek_node_accumulates(const ek_node *node, int input)
{
    const ek_tensor *leaf = engine_leaf_behind(node, input);
    return leaf && leaf->grad;
}

/* The innermost backward call of this thread that runs beside those of other queues, or NULL. */
static const ek_execution *engine_execution_beside(void)
{
    const ek_execution *execution = current;
    while (execution && !execution->run->threaded)
        execution = execution->outer;
    return execution;
}

int ek_check_meeting(const char *operation)
{
    const ek_execution *execution = engine_execution_beside();
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

/* ---- gradients on their way ---- */

/* Puts a task whose contributions have all arrived on its queue, for the thread of `queue`. A node
 * that meets waits for its turn. run->lock is held if the run is threaded. */
static void run_make_ready(ek_run *run, int queue, ek_task *task)
{
    if (task->meets && task != run->meetings[run->met])
        return;
    queue_push(&run->queues[task->queue], task);
    if (run->threaded && task->queue != queue)
        pthread_cond_signal(&run->queues[task->queue].wake);
}

/* Ends the turn of a node that meets. run->lock is held if the run is threaded. */
static void run_end_turn(ek_run *run, int queue)
{
    if (++run->met < run->meeting_count && run->meetings[run->met]->pending == 0)
        run_make_ready(run, queue, run->meetings[run->met]);
}

/* Puts a gradient (NULL: zero) into its buffer, on the thread of `queue`. Takes the reference. */
static int run_deliver(ek_run *run, int queue, const ek_route *route, ek_tensor *gradient)
{
    ek_task *task = route->task;
    int rc = 0;
    if (!task) {
        ek_release(gradient);
        return 0;
    }
    ek_buffer *buffer = &task->buffers[route->buffer];
    run_lock(run);
    buffer->contributions[route->ordinal] = (ek_contribution){gradient, true};
    if (buffer->queue == queue) {
        /* The sum is this thread's: the task cannot start before this contribution is counted. */
        run_unlock(run);
        rc = ek_buffer_sum(run, task, buffer);
        if (task->arrivals)
            ek_dev_record_event(run->queues[queue].dev, EK_STREAM_COMPUTE, &task->arrivals[queue]);
        run_lock(run);
    } else {
        task->mixed = true;
    }
    if (--task->pending == 0)
        run_make_ready(run, queue, task);
    run_unlock(run);
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
    ek_execution execution = {run, task, current};
    current = &execution;
    int rc = node->operation->backward(node, gradients, results);
    current = execution.outer;
    rc = ek_error_outcome(rc);
    for (int i = 0; i < node->input_count; i++) {
        if (rc >= 0 && results[i] && task->routes[i].task)
            rc = engine_result_check(node, i, results[i]);
        results[i] = rc >= 0 && task->routes[i].task ? ek_keep(results[i]) : NULL;
    }
    return rc;
}

/* Makes zeros for outputs that carry a gradient and got none. One reference each. */
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
    if (any || task->meets) { /* without any gradient all results are zero */
        ek_scope scope = ek_scope_begin();
        rc = task->meets ? engine_fill_gradients(node, gradients) : 0;
        if (rc >= 0)
            rc = engine_call_backward(run, task, gradients, results);
        ek_thread_self()->modes = run->modes;
        for (int i = 0; i < node->output_count; i++)
            ek_release(gradients[i]);
        ek_scope_end(&scope);
    }
    if (!run->retain_graph)
        ek_node_free_saved(node);
    ek_work_rest(); /* a slow device sleeps before others get the results */
    for (int i = 0; i < node->input_count; i++) {
        int status = run_deliver(run, queue, &task->routes[i], results[i]);
        rc = rc < 0 ? rc : status;
    }
    return rc;
}

static int run_leaf(ek_run *run, ek_task *task)
{
    ek_tensor *sum = task->buffers[0].sum;
    task->buffers[0].sum = NULL;
    task->some = sum;
    if (!sum)
        return 0;
    ek_section section;
    ek_dev *dev = ek_tensor_dev(sum);
    ek_section_go_on(&section, &dev, sum->storage->stream == EK_STREAM_EXCHANGE);
    int rc = ek_accumulate(task->leaf, sum, run->create_graph);
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
        return task->node ? run_node(run, queue, task) : run_leaf(run, task);
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
    if (task->node)
        ek_span_begin(&span, EK_SPAN_COMPUTE, "backward of", task->node->operation->name,
                      ek_node_dev(task->node));
    else
        ek_span_begin(&span, EK_SPAN_COMPUTE, "gradient of a parameter", NULL,
                      ek_tensor_dev(task->leaf));
    int rc = task_sum_and_run(run, queue, task);
    ek_span_end(&span);
    if (rc >= 0 && task->hook)
        ek_lane_join(ek_tensor_dev(task->leaf));
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

static void run_wake_all(ek_run *run)
{
    for (int i = 0; run->threaded && i < run->queue_count; i++)
        pthread_cond_signal(&run->queues[i].wake);
}

/* Runs one queue's tasks until the pass is done or a task of any queue has failed. */
static int run_queue(void *user, int index)
{
    ek_run *run = user;
    ek_ready_queue *queue = &run->queues[index];
    ek_span span;
    int rc = 0;
    ek_span_begin(&span, EK_SPAN_COMPUTE, "backward", NULL, queue->dev);
    ek_thread_self()->modes = run->modes;
    run_lock(run);
    while (run->remaining > 0 && !run->failed) {
        if (!queue->ready_count && run->threaded) {
            ek_span wait;
            ek_span_begin(&wait, EK_SPAN_WAIT, "waiting for gradients", NULL, NULL);
            ek_work_wait(&queue->wake, &run->lock);
            ek_span_end(&wait);
            continue;
        }
        ek_task *task = queue_pop(queue);
        run_unlock(run);
        rc = run_task(run, index, task);
        run_lock(run);
        if (task->meets)
            run_end_turn(run, index);
        run->remaining--;
        run->failed = run->failed || rc < 0;
        if (run->failed || run->remaining == 0)
            run_wake_all(run);
    }
    run_unlock(run);
    ek_span_end(&span);
    return rc;
}

/* Delivers the roots' gradients, and runs all queues until they have ended. */
static int run_queues(ek_run *run, const ek_route *routes, ek_tensor **gradients, int root_count)
{
    run->remaining = run->needed_count;
    /* Queue -1 stands for the calling thread: the queues' own threads will add. */
    for (int i = 0; i < root_count; i++)
        run_deliver(run, -1, &routes[i], gradients[i]);
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
    int rc = root_count < 0 ? root_count : 0;
    run->number = atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1;
    if (rc >= 0 && run->meeting_count)
        rc = ek_check_meeting(run->meetings[0]->node->operation->name);
    bool assigned = rc >= 0 && (rc = run_assign_queues(run)) >= 0;
    run_set_modes(run);
    /* Hooks are told of a pass that has failed already, too: other ranks may wait for this one. */
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
        run_close_queues(run);
    return rc;
}

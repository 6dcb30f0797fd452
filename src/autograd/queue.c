/* queue.c: the ready queues of a pass: which thread runs which task, and in which order.
 *
 * ek_run_open_queues gives every task a queue and a priority. A task is ready when the last of its
 * contributions has arrived (ek_queue_ready), and its queue's thread takes it by ek_queue_next. The
 * run's lock guards heaps and counts (Note [Lock of a run]). The comment of each function tells
 * whether the function locks, or is called with the lock held. */
#include "autograd/run.h"
#include "core/trace.h"
#include "core/worker.h"

/* ---- the heap ---- */

/* Adds a task to the queue's heap. The lock is held. */
static void queue_push(ek_ready_queue *queue, ek_task *task)
{
    int at = queue->ready_count++;
    while (at > 0 && queue->ready[(at - 1) / 2]->priority < task->priority) {
        queue->ready[at] = queue->ready[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->ready[at] = task;
}

/* Takes the task of the highest priority. The lock is held. */
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

/* ---- a pass begins: one thread, without the lock ---- */

/* Adds a device on which tasks run, unless it is cpu, which has no ready queue. */
static void queue_add_dev(ek_dev_set *devs, ek_dev *dev)
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

static ek_dev *queue_task_dev(const ek_task *task)
{
    return task->node ? ek_node_dev(task->node) : ek_tensor_dev(task->leaf);
}

/* Returns the task's priority; a larger number runs first. Tasks that only sum, and leaves, come
 * first, because they end the life of temporaries. Leaves with hooks are the last of these: the
 * nested pass of a hook would overwrite sums in grad buffers of leaves that have no gradient yet.
 * Urgent operations follow, the earliest recorded first, because buckets of gradients are recorded
 * in the order in which backward fills them. All other nodes follow, the latest recorded first, as
 * Note [Nodes that meet] requires. */
static uint64_t queue_priority(const ek_task *task, int position)
{
    if (!task->runs || task->leaf)
        return (task->leaf && task->leaf->hooks ? UINT64_C(2) : UINT64_C(3)) << 62 |
               (uint64_t)position;
    bool urgent = task->node->operation->urgent && !task->meets;
    return urgent ? (UINT64_C(1) << 62) + (UINT64_MAX >> 2) - task->node->sequence
                  : task->node->sequence;
}

static void queue_assign(ek_run *run, ek_task *task, int position)
{
    task->priority = queue_priority(task, position);
    task->queue = queue_of(run, queue_task_dev(task));
    for (int i = 0; i < task->buffer_count; i++)
        task->buffers[i].queue =
            task->node ? queue_of(run, task->node->outputs[i].dev) : task->queue;
}

/* Makes room for the events and counts of an urgent node (ek_task's `arrivals` and `ahead`), if the
 * run is threaded. */
static int queue_expect_arrivals(ek_run *run, ek_task *task)
{
    if (!run->threaded || !task->runs || !task->node || !task->node->operation->urgent)
        return 0;
    task->arrivals = ek_run_alloc(run, (size_t)run->queue_count * sizeof(ek_event *));
    task->ahead = ek_run_alloc(run, (size_t)run->queue_count * sizeof *task->ahead);
    return task->arrivals && task->ahead ? 0 : ek_error_pending();
}

int ek_run_open_queues(ek_run *run)
{
    ek_dev_set devs = {0};
    for (int t = 0; t < run->count; t++) {
        const ek_task *task = run->order[t];
        if (!task->needed)
            continue;
        queue_add_dev(&devs, queue_task_dev(task));
        for (int i = 0; task->node && i < task->buffer_count; i++)
            queue_add_dev(&devs, task->buffers[i].expected ? task->node->outputs[i].dev : NULL);
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
    for (int q = 0; q < run->queue_count; q++)
        run->devs[q] = run->queues[q].dev = devs.devs[q]; /* NULL if there are none */
    for (int q = 0; run->threaded && q < run->queue_count; q++)
        run->queues[q].most_ahead = 2 * (size_t)ek_lane_bucket(devs.devs[q]);
    for (int t = 0; t < run->count; t++) {
        queue_assign(run, run->order[t], t);
        EK_TRY(queue_expect_arrivals(run, run->order[t]));
        tasks[run->order[t]->queue] += run->order[t]->needed;
    }
    for (int q = 0; q < run->queue_count; q++) {
        ek_ready_queue *queue = &run->queues[q];
        queue->ready = ek_run_alloc(run, (size_t)tasks[q] * sizeof(ek_task *));
        queue->gradients = ek_run_alloc(run, (size_t)run->widest * sizeof(ek_tensor *));
        queue->results = ek_run_alloc(run, (size_t)run->widest * sizeof(ek_tensor *));
        if (!queue->ready || !queue->gradients || !queue->results)
            return ek_error_pending();
    }
    for (int q = 0; run->threaded && q < run->queue_count; q++)
        pthread_cond_init(&run->queues[q].wake, NULL);
    if (run->threaded)
        pthread_mutex_init(&run->lock, NULL);
    run->remaining = run->needed_count;
    return 0;
}

void ek_run_close_queues(ek_run *run)
{
    for (int t = 0; run->threaded && t < run->count; t++)
        for (int q = 0; run->order[t]->arrivals && q < run->queue_count; q++)
            ek_dev_free_event(run->devs[q], run->order[t]->arrivals[q]);
    for (int q = 0; run->threaded && q < run->queue_count; q++)
        pthread_cond_destroy(&run->queues[q].wake);
    if (run->threaded)
        pthread_mutex_destroy(&run->lock);
}

/* ---- the threads of a pass ---- */

void ek_queue_ready(ek_run *run, int queue, ek_task *task)
{
    if (task->meets && task != run->meetings[run->met])
        return;
    queue_push(&run->queues[task->queue], task);
    if (run->threaded && task->queue != queue)
        pthread_cond_signal(&run->queues[task->queue].wake);
}

void ek_queue_delivered(ek_run *run, int queue, ek_task *task, const ek_tensor *gradient)
{
    if (!gradient)
        return;
    const size_t nbytes = (size_t)ek_count(gradient) * ek_dtype_size(gradient->dtype);
    task->ahead[queue] += nbytes;
    run->queues[queue].ahead += nbytes;
}

/* Ends the turn of a node that meets. The lock is held. */
static void queue_end_turn(ek_run *run, int queue)
{
    if (++run->met < run->meeting_count && run->meetings[run->met]->pending == 0)
        ek_queue_ready(run, queue, run->meetings[run->met]);
}

/* Finishes a task that has run on the thread of `queue`. The end of the pass wakes all threads. The
 * lock is held. */
static void queue_finish(ek_run *run, int queue, const ek_task *task, int status)
{
    if (task->meets)
        queue_end_turn(run, queue);
    run->remaining--;
    run->queues[queue].runs = false;
    run->failed = run->failed || status < 0;
    for (int q = 0; task->ahead && q < run->queue_count; q++)
        run->queues[q].ahead -= task->ahead[q];
    /* Queues that waited because they were far ahead look again. */
    for (int q = 0; run->threaded && q < run->queue_count; q++)
        if (q != queue && run->queues[q].ready_count > 0)
            pthread_cond_signal(&run->queues[q].wake);
    for (int i = 0; run->threaded && (run->failed || !run->remaining) && i < run->queue_count; i++)
        pthread_cond_signal(&run->queues[i].wake);
}

/* Returns true if a queue that runs a task, or has one ready, is less far ahead. The lock is held.
 */
static bool queue_is_awaited(const ek_run *run, const ek_ready_queue *queue)
{
    bool any = false;
    for (int q = 0; q < run->queue_count && !any; q++)
        any = (run->queues[q].runs || run->queues[q].ready_count > 0) &&
              run->queues[q].ahead < queue->ahead;
    return any;
}

/* Returns true if the thread of the queue may take a task (Note [Far ahead]). The lock is held. */
static bool queue_may_run(const ek_run *run, const ek_ready_queue *queue)
{
    return queue->ready_count > 0 &&
           (queue->ahead <= queue->most_ahead || queue->ready[0]->priority >= UINT64_C(1) << 62 ||
            queue->ready[0]->meets || !queue_is_awaited(run, queue));
}

/* Waits until the queue has a task that may run, or until no thread is to take another. The lock is
 * held. */
static void queue_wait(ek_run *run, ek_ready_queue *queue)
{
    while (run->threaded && !queue_may_run(run, queue) && run->remaining > 0 && !run->failed) {
        ek_span wait;
        ek_span_begin(&wait, EK_SPAN_WAIT, "waiting for gradients", NULL, NULL);
        ek_work_wait(&queue->wake, &run->lock);
        ek_span_end(&wait);
    }
}

ek_task *ek_queue_next(ek_run *run, int queue, const ek_task *done, int status)
{
    ek_task *next = NULL;
    ek_run_lock(run);
    if (done)
        queue_finish(run, queue, done, status);
    queue_wait(run, &run->queues[queue]);
    if (run->remaining > 0 && !run->failed)
        next = queue_pop(&run->queues[queue]);
    run->queues[queue].runs = next;
    ek_run_unlock(run);
    return next;
}

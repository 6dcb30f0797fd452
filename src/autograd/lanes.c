/* lanes.c: which thread runs what, and in which order. */
#include "autograd/run.h"

/* Accelerators of all kinds. */
enum { MAX_LANES = 2 * EK_MAX_DEVICES };

/* ---- ready tasks: a heap ---- */

void ek_lane_push(ek_lane *lane, ek_task *task)
{
    int at = lane->ready_count++;
    while (at > 0 && lane->ready[(at - 1) / 2]->priority < task->priority) {
        lane->ready[at] = lane->ready[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    lane->ready[at] = task;
}

ek_task *ek_lane_pop(ek_lane *lane)
{
    ek_task *top = lane->ready[0];
    ek_task *last = lane->ready[--lane->ready_count];
    int at = 0;
    for (int child = 1; child < lane->ready_count; child = 2 * at + 1) {
        if (child + 1 < lane->ready_count &&
            lane->ready[child + 1]->priority > lane->ready[child]->priority)
            child++;
        if (lane->ready[child]->priority <= last->priority)
            break;
        lane->ready[at] = lane->ready[child];
        at = child;
    }
    lane->ready[at] = last;
    return top;
}

/* ---- assignment ---- */

static bool comes_before(const ek_dev *a, const ek_dev *b)
{
    return a->id.kind != b->id.kind ? a->id.kind < b->id.kind : a->id.index < b->id.index;
}

/* Adds a device to the list in order. */
static void list_dev(ek_dev **devs, int *count, ek_dev *dev)
{
    int at = 0;
    if (!dev || dev->id.kind == EK_CPU)
        return;
    while (at < *count && comes_before(devs[at], dev))
        at++;
    if ((at < *count && devs[at] == dev) || *count == MAX_LANES)
        return;
    for (int i = *count; i > at; i--)
        devs[i] = devs[i - 1];
    devs[at] = dev;
    ++*count;
}

static int lane_of(const ek_run *run, const ek_dev *dev)
{
    for (int i = 0; run->threaded && i < run->lane_count; i++)
        if (run->lanes[i].dev == dev)
            return i;
    return 0;
}

static ek_dev *dev_of(const ek_task *task)
{
    return task->node ? ek_node_dev(task->node) : ek_tensor_dev(task->leaf);
}

/* Sums and leaves first: they end the life of temporaries. Then what is urgent, then what was
 * recorded last. */
static uint64_t priority_of(const ek_task *task, int position)
{
    if (!task->runs || task->leaf)
        return UINT64_C(2) << 62 | (uint64_t)position;
    return (task->node->operation->urgent ? UINT64_C(1) << 62 : 0) | task->node->sequence;
}

static void assign(ek_run *run, ek_task *task, int position)
{
    task->priority = priority_of(task, position);
    task->lane = lane_of(run, dev_of(task));
    for (int i = 0; i < task->slot_count; i++)
        task->slots[i].lane = task->node ? lane_of(run, task->node->outputs[i].dev) : task->lane;
}

int ek_run_assign_lanes(ek_run *run)
{
    ek_dev *devs[MAX_LANES];
    int count = 0;
    for (int t = 0; t < run->count; t++) {
        const ek_task *task = run->order[t];
        if (!task->needed)
            continue;
        list_dev(devs, &count, dev_of(task));
        for (int i = 0; task->node && i < task->slot_count; i++)
            list_dev(devs, &count, task->slots[i].expected ? task->node->outputs[i].dev : NULL);
    }
    run->threaded = count > 1 && !ek_thread_in_gang();
    run->lane_count = run->threaded ? count : 1;
    run->lanes = ek_run_alloc(run, (size_t)run->lane_count * sizeof *run->lanes);
    if (!run->lanes)
        return ek_error_pending();

    int *tasks = ek_run_alloc(run, (size_t)run->lane_count * sizeof *tasks);
    if (!tasks)
        return ek_error_pending();
    for (int l = 0; l < run->lane_count; l++)
        run->lanes[l].dev = count ? devs[l] : NULL;
    for (int t = 0; t < run->count; t++) {
        assign(run, run->order[t], t);
        tasks[run->order[t]->lane] += run->order[t]->needed;
    }
    for (int l = 0; l < run->lane_count; l++) {
        ek_lane *lane = &run->lanes[l];
        lane->ready = ek_run_alloc(run, (size_t)tasks[l] * sizeof(ek_task *));
        lane->gradients = ek_run_alloc(run, (size_t)run->widest * sizeof(ek_tensor *));
        lane->results = ek_run_alloc(run, (size_t)run->widest * sizeof(ek_tensor *));
        if (!lane->ready || !lane->gradients || !lane->results)
            return ek_error_pending();
    }
    for (int l = 0; run->threaded && l < run->lane_count; l++)
        pthread_cond_init(&run->lanes[l].wake, NULL);
    if (run->threaded)
        pthread_mutex_init(&run->lock, NULL);
    return 0;
}

void ek_run_close_lanes(ek_run *run)
{
    for (int l = 0; run->threaded && l < run->lane_count; l++)
        pthread_cond_destroy(&run->lanes[l].wake);
    if (run->threaded)
        pthread_mutex_destroy(&run->lock);
}

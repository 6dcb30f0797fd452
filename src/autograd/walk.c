/* walk.c: which nodes take part in a backward pass, and in which order gradients are summed.
 *
 * The walk is depth-first over the edges, with a list in place of recursion. Its order depends on
 * the structure of the graph alone, so that ordinals don't depend on the timing of replicas'
 * threads.
 *
 * Note [Order of contributions]
 *
 * Contributions to a buffer are added in the reverse of the order in which a walk finishes their
 * tasks. If a graph has several devices, each device has a separate walk: where a node's inputs lie
 * on several devices, the walk takes those of its device only. So a replica's contributions have
 * one order, whether the other replicas are other devices of the process or other ranks. */
#include <stdlib.h>
#include <string.h>

#include "autograd/run.h"

/* ---- memory ---- */

typedef struct ek_block {
    struct ek_block *next;
    size_t used, room;
    max_align_t data[];
} ek_block;

enum { LEAST_BLOCK_NBYTES = 1 << 12, MOST_FIRST_NBYTES = 1 << 24 };

/* How many bytes the last pass used. The next pass begins with a block of this size: malloc keeps a
 * single block, but may give the pages of several blocks back to the system when a pass ends. */
static atomic_size_t last_pass_nbytes;

void *ek_run_alloc(ek_run *run, size_t nbytes)
{
    nbytes = (nbytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    ek_block *block = run->blocks;
    if (!block || block->room - block->used < nbytes) {
        size_t last = atomic_load_explicit(&last_pass_nbytes, memory_order_relaxed);
        size_t first = last < MOST_FIRST_NBYTES ? last : MOST_FIRST_NBYTES;
        size_t room = block ? 2 * block->room : first;
        if (room < LEAST_BLOCK_NBYTES)
            room = LEAST_BLOCK_NBYTES;
        if (room < nbytes)
            room = nbytes;
        block = ek_realloc(NULL, sizeof *block + room);
        if (!block)
            return NULL;
        *block = (ek_block){.next = run->blocks, .room = room};
        run->blocks = block;
    }
    void *memory = (char *)block->data + block->used;
    block->used += nbytes;
    return memset(memory, 0, nbytes);
}

/* ---- tasks by node or leaf ---- */

static ek_task *walk_new_task(ek_run *run, ek_node *node, ek_tensor *leaf)
{
    int buffers = node ? node->output_count : 1;
    int routes = node ? node->input_count : 0;
    ek_task *task = ek_run_alloc(run, sizeof *task + (size_t)buffers * sizeof(ek_buffer) +
                                          (size_t)routes * sizeof(ek_route));
    if (!task)
        return NULL;
    task->node = node;
    task->leaf = node ? NULL : leaf;
    task->buffer_count = buffers;
    task->buffers = (ek_buffer *)(task + 1);
    task->routes = (ek_route *)(task->buffers + buffers);
    if (buffers > run->widest)
        run->widest = buffers;
    if (routes > run->widest)
        run->widest = routes;
    return task;
}

/* Returns the task of a node, or of a leaf if `node` is NULL. If there is no such task, makes it if
 * `make` is true, else returns NULL. */
static ek_task *walk_task_of(ek_run *run, ek_node *node, ek_tensor *leaf, bool make)
{
    const void *key = node ? (const void *)node : (const void *)leaf;
    if (!make)
        return ek_map_find(&run->tasks, key);
    void **task = ek_map_at(&run->tasks, key);
    if (task && !*task)
        *task = walk_new_task(run, node, leaf);
    return task ? *task : NULL;
}

ek_buffer *ek_run_buffer(ek_run *run, const ek_tensor *tensor, ek_task **task)
{
    *task = walk_task_of(run, (ek_node *)tensor->history, (ek_tensor *)tensor, true);
    if (!*task)
        return NULL;
    return &(*task)->buffers[tensor->history ? tensor->history_output : 0];
}

/* ---- the walk ---- */

typedef struct ek_stack {
    ek_task **tasks;
    int count, room;
} ek_stack;

static int walk_push(ek_stack *stack, ek_task *task)
{
    EK_TRY(ek_grow(&stack->tasks, &stack->room, stack->count + 1));
    task->visited = true;
    stack->tasks[stack->count++] = task;
    return 0;
}

static int walk_append(ek_run *run, ek_task *task)
{
    EK_TRY(ek_grow(&run->order, &run->order_room, run->count + 1));
    run->order[run->count++] = task;
    return 0;
}

/* Decides whether the task takes part. All tasks that its gradients reach are decided already. */
static void walk_decide(ek_run *run, ek_task *task)
{
    task->runs = task->leaf && run->accumulate;
    if (task->node) {
        for (int i = 0; i < task->node->input_count; i++)
            task->runs = task->runs || (task->routes[i].task && task->routes[i].task->needed);
    }
    task->needed = task->runs;
    task->meets = task->node && task->runs && task->node->operation->meets;
    run->meeting_count += task->meets;
    for (int i = 0; i < task->buffer_count; i++)
        task->needed = task->needed || task->buffers[i].capture;
    run->needed_count += task->needed;
}

/* Sets the route of input `index`. *next becomes the task at the route's end; NULL if there is no
 * task, or if the walk has visited the task. */
static int walk_visit_edge(ek_run *run, ek_task *task, int index, ek_task **next)
{
    const ek_edge *edge = &task->node->edges[index];
    *next = NULL;
    if (!edge->node && !edge->leaf)
        return 0;
    /* ek_grad has made tasks for the leaves that it wants, and ignores all others. A leaf whose
     * requires_grad was switched off after the forward is ignored, too. */
    bool make = edge->node || (run->accumulate && edge->leaf->requires_grad);
    ek_task *behind = walk_task_of(run, edge->node, edge->leaf, make);
    if (!behind)
        return make ? ek_error_pending() : 0;
    task->routes[index] = (ek_route){behind, edge->node ? edge->output : 0, 0};
    if (!behind->visited)
        *next = behind;
    return 0;
}

static int walk_from(ek_run *run, ek_task *root, ek_stack *stack)
{
    if (root->visited)
        return 0;
    EK_TRY(walk_push(stack, root));
    while (stack->count) {
        ek_task *task = stack->tasks[stack->count - 1];
        ek_task *next = NULL;
        while (!next && task->node && task->next_edge < task->node->input_count)
            EK_TRY(walk_visit_edge(run, task, task->next_edge++, &next));
        if (next) {
            EK_TRY(walk_push(stack, next));
            continue;
        }
        stack->count--;
        walk_decide(run, task);
        if (task->leaf && task->runs && task->leaf->grad_hook)
            EK_TRY(ek_run_collect_hook(run, task));
        EK_TRY(walk_append(run, task));
    }
    return 0;
}

/* Counts one more contribution to the route's buffer, with the next ordinal. */
static void walk_expect(ek_run *run, ek_route *route)
{
    ek_buffer *buffer = &route->task->buffers[route->buffer];
    route->ordinal = buffer->expected++;
    route->task->pending++;
    run->contribution_count++;
}

static ek_dev *walk_dev_of(const ek_route *route)
{
    const ek_task *task = route->task;
    return task->node ? task->node->outputs[route->buffer].dev : ek_tensor_dev(task->leaf);
}

/* Returns true if any of the routes leads to `dev`. */
static bool walk_leads_to(const ek_route *routes, int count, const ek_dev *dev)
{
    for (int i = 0; i < count; i++)
        if (routes[i].task && walk_dev_of(&routes[i]) == dev)
            return true;
    return false;
}

/* Returns true if a walk for `dev` takes the route. `leads` tells whether this route or one beside
 * it leads to `dev`. */
static bool walk_takes(const ek_route *route, const ek_dev *dev, bool leads)
{
    return route->task && (!leads || walk_dev_of(route) == dev);
}

/* Counts the contributions to the device's buffers from the tasks that a depth-first walk for the
 * device reaches (Note [Order of contributions]). `finished` has room for all tasks. */
static int walk_for_device(ek_run *run, int number, const ek_dev *dev, const ek_route *roots,
                           int root_count, ek_stack *stack, ek_task **finished)
{
    const bool leads = walk_leads_to(roots, root_count, dev);
    int count = 0;
    for (int r = 0; r < root_count; r++) {
        if (!walk_takes(&roots[r], dev, leads) || roots[r].task->device_walk == number)
            continue;
        ek_task *next = roots[r].task;
        while (next || stack->count) {
            if (next) {
                EK_TRY(walk_push(stack, next));
                next->device_walk = number;
                if (next->node) {
                    next->next_edge = 0;
                    next->leads = walk_leads_to(next->routes, next->node->input_count, dev);
                }
                next = NULL;
            }
            ek_task *task = stack->tasks[stack->count - 1];
            const int routes = task->node ? task->node->input_count : 0;
            for (int i; !next && (i = task->next_edge) < routes; task->next_edge++)
                if (walk_takes(&task->routes[i], dev, task->leads) &&
                    task->routes[i].task->device_walk != number)
                    next = task->routes[i].task;
            if (!next)
                finished[count++] = stack->tasks[--stack->count];
        }
    }
    for (int t = count - 1; t >= 0; t--)
        for (int i = 0; finished[t]->node && i < finished[t]->node->input_count; i++) {
            ek_route *route = &finished[t]->routes[i];
            if (route->task && route->ordinal < 0 && walk_dev_of(route) == dev)
                walk_expect(run, route);
        }
    return 0;
}

/* Drops the routes to tasks that take no part, and lists the devices of the others. */
static void walk_drop_routes(const ek_run *run, ek_dev_set *devs)
{
    for (int t = 0; t < run->count; t++) {
        ek_task *task = run->order[t];
        for (int i = 0; task->node && i < task->node->input_count; i++) {
            ek_route *route = &task->routes[i];
            if (route->task && !(task->runs && route->task->needed))
                route->task = NULL;
            route->ordinal = -1;
            if (route->task)
                ek_dev_set_add(devs, walk_dev_of(route));
        }
    }
}

static int walk_count_contributions(ek_run *run, int root_count, ek_route *routes)
{
    for (int i = 0; i < root_count; i++) {
        if (routes[i].task->needed)
            walk_expect(run, &routes[i]);
        else
            routes[i].task = NULL;
    }
    ek_dev_set devs = {0};
    walk_drop_routes(run, &devs);
    ek_task **finished =
        devs.count > 1 ? ek_run_alloc(run, (size_t)run->count * sizeof *finished) : NULL;
    int rc = finished || devs.count < 2 ? 0 : ek_error_pending();
    ek_stack stack = {0};
    for (int d = 0; d < devs.count && devs.count > 1 && rc >= 0; d++)
        rc = walk_for_device(run, d + 1, devs.devs[d], routes, root_count, &stack, finished);
    free(stack.tasks);
    EK_TRY(rc);
    for (int t = run->count - 1; t >= 0; t--)
        for (int i = 0; run->order[t]->node && i < run->order[t]->node->input_count; i++) {
            ek_route *route = &run->order[t]->routes[i];
            if (route->task && route->ordinal < 0)
                walk_expect(run, route);
        }
    ek_contribution *next = ek_run_alloc(run, run->contribution_count * sizeof *next);
    for (int t = 0; next && t < run->count; t++) {
        ek_task *task = run->order[t];
        for (int i = 0; i < task->buffer_count; i++) {
            task->buffers[i].contributions = next;
            next += task->buffers[i].expected;
        }
    }
    return next ? 0 : ek_error_pending();
}

static int walk_compare_meetings(const void *a, const void *b)
{
    uint64_t x = (*(ek_task *const *)a)->node->sequence, y = (*(ek_task *const *)b)->node->sequence;
    return (x < y) - (x > y);
}

static int walk_list_meetings(ek_run *run)
{
    int count = 0;
    if (!run->meeting_count)
        return 0;
    run->meetings = ek_run_alloc(run, (size_t)run->meeting_count * sizeof(ek_task *));
    if (!run->meetings)
        return ek_error_pending();
    for (int t = 0; t < run->count; t++)
        if (run->order[t]->meets)
            run->meetings[count++] = run->order[t];
    qsort(run->meetings, (size_t)count, sizeof(ek_task *), walk_compare_meetings);
    return 0;
}

int ek_run_walk(ek_run *run, ek_tensor *const *roots, int root_count, ek_route *routes)
{
    ek_stack stack = {0};
    int rc = 0;
    for (int i = 0; i < root_count && rc >= 0; i++) {
        ek_task *task;
        ek_buffer *buffer = ek_run_buffer(run, roots[i], &task);
        if (!buffer) {
            rc = ek_error_pending();
            break;
        }
        routes[i] = (ek_route){task, (int)(buffer - task->buffers), 0};
        rc = walk_from(run, task, &stack);
    }
    free(stack.tasks);
    EK_TRY(rc);
    EK_TRY(walk_count_contributions(run, root_count, routes));
    EK_TRY(walk_list_meetings(run));
    return ek_run_list_hooked(run);
}

void ek_run_free(ek_run *run)
{
    ek_run_drop_hooks(run);
    for (int t = 0; t < run->count; t++) {
        const ek_task *task = run->order[t];
        for (int i = 0; i < task->buffer_count; i++) {
            ek_buffer *buffer = &task->buffers[i];
            ek_release(buffer->sum);
            ek_release(buffer->captured);
            for (int k = buffer->summed; k < buffer->expected && buffer->contributions; k++)
                ek_release(buffer->contributions[k].gradient);
        }
    }
    free(run->order);
    ek_map_clear(&run->tasks);
    size_t used = 0;
    while (run->blocks) {
        ek_block *next = run->blocks->next;
        used += run->blocks->used;
        free(run->blocks);
        run->blocks = next;
    }
    atomic_store_explicit(&last_pass_nbytes, used, memory_order_relaxed);
}

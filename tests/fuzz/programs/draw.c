/* draw.c: programs from seeds, without contradictions. */
#include <string.h>

#include "program.h"

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int between(uint64_t *state, int low, int high)
{
    return low + (int)(draw(state) % (uint64_t)(high - low + 1));
}

static bool chance(uint64_t *state, int percent)
{
    return between(state, 1, 100) <= percent;
}

/* ---- layers ---- */

/* How often layers of each kind are drawn: for samples of some dimensions, and for flat ones. */
static const struct {
    int spatial, flat;
} layer_weights[LAYER_COUNT] = {
    [LAYER_LINEAR] = {2, 30},    [LAYER_CONV] = {30, 0},         [LAYER_TRANSPOSE] = {6, 0},
    [LAYER_BATCH_NORM] = {9, 8}, [LAYER_SYNC_NORM] = {4, 3},     [LAYER_LAYER_NORM] = {3, 6},
    [LAYER_GROUP_NORM] = {5, 2}, [LAYER_INSTANCE_NORM] = {4, 0}, [LAYER_RELU] = {7, 7},
    [LAYER_LEAKY_RELU] = {4, 4}, [LAYER_SIGMOID] = {3, 3},       [LAYER_TANH] = {5, 5},
    [LAYER_DROPOUT] = {2, 2},    [LAYER_IDENTITY] = {1, 1},      [LAYER_FLATTEN] = {1, 0},
    [LAYER_MAX_POOL] = {5, 0},   [LAYER_AVG_POOL] = {5, 0},      [LAYER_ADAPTIVE_POOL] = {2, 0},
    [LAYER_UPSAMPLE] = {3, 0},   [LAYER_GUARD] = {6, 6},         [LAYER_OPS] = {14, 14},
    [LAYER_MIX] = {3, 3},        [LAYER_SPARE] = {4, 4},         [LAYER_WRONG] = {0, 0},
};

static int draw_kind(uint64_t *state, bool spatial)
{
    int total = 0, kind;
    for (int i = 0; i < LAYER_COUNT; i++)
        total += spatial ? layer_weights[i].spatial : layer_weights[i].flat;
    int left = between(state, 0, total - 1);
    for (kind = 0; left >= 0; kind++)
        left -= spatial ? layer_weights[kind].spatial : layer_weights[kind].flat;
    return kind - 1;
}

static void draw_layers(uint64_t *state, program *p)
{
    p->layer_count = chance(state, 5) ? 0 : between(state, 1, MAX_LAYERS - 2);
    for (int i = 0; i < p->layer_count; i++)
        p->layers[i] = (layer){.kind = draw_kind(state, p->rank > 0),
                               .width = between(state, 1, 6),
                               .size = between(state, 1, 3),
                               .variant = between(state, 0, 1023),
                               .wrap = chance(state, 25) ? between(state, 1, 3) : WRAP_NONE,
                               .frozen = chance(state, 4)};
}

static void insert_layer(program *p, int index, layer inserted)
{
    memmove(p->layers + index + 1, p->layers + index,
            (size_t)(p->layer_count - index) * sizeof *p->layers);
    p->layers[index] = inserted;
    p->layer_count++;
}

/* ---- ways, steps ---- */

static void draw_way(uint64_t *state, way *w, int devices)
{
    w->wrapper = chance(state, 25)  ? WRAPPER_CLASSIC
                 : chance(state, 3) ? WRAPPER_ALONE
                 : chance(state, 3) ? WRAPPER_NONE
                                    : WRAPPER_BALANCED;
    w->count = chance(state, 15) ? 1 : between(state, devices > 1 ? 2 : 1, devices);
    for (int i = 0; i < MAX_DEVICES; i++) {
        int other = between(state, 0, i);
        w->on[i] = w->on[other];
        w->on[other] = i;
        w->shares[i] = chance(state, 20) ? 0 : between(state, 1, 5);
    }
    w->split = between(state, 0, 2);
    w->goal = between(state, 0, 1);
    w->plan = chance(state, 30) ? between(state, 1, 4) : PLAN_NONE;
    w->shard = chance(state, 60) ? between(state, 1, 2) : 0;
    w->offload = chance(state, 30);
    w->own = chance(state, 12);
    w->stats = chance(state, 30);
    w->gather = chance(state, 30) ? between(state, 1, 2) : GATHER_FIRST;
    w->patched = chance(state, 15);
    w->mean_of_means = chance(state, 3);
    w->micro = chance(state, 30) ? between(state, 2, 4) : 0;
}

static int draw_fault(uint64_t *state, const draw_options *options)
{
    if (!options->faults || !chance(state, 30))
        return FAULT_NONE;
    return chance(state, 35) ? FAULT_ALLOCATION : between(state, 1, FAULT_COUNT - 1);
}

static void draw_steps(uint64_t *state, program *p, const draw_options *options)
{
    p->step_count = between(state, 1, MAX_STEPS);
    for (int i = 0; i < p->step_count; i++)
        p->steps[i] =
            (step){.batch = chance(state, 12) ? between(state, 1, 3) : between(state, 4, 17),
                   .how = chance(state, 40) ? STEP_TRAIN : between(state, 0, STEP_COUNT - 2),
                   .event = chance(state, 45) ? between(state, 1, EVENT_COUNT - 1) : EVENT_NONE,
                   .fault = draw_fault(state, options),
                   .during = chance(state, 25) ? DURING_EVENT : DURING_STEP,
                   .at = between(state, 0, 100000)};
}

static bool is_users(int fault)
{
    return fault == FAULT_FORWARD || fault == FAULT_BACKWARD || fault == FAULT_SILENT;
}

/* What the user's modules do wrong needs one of the user's modules. */
static void draw_guard(uint64_t *state, program *p)
{
    bool needed = false;
    for (int i = 0; i < p->step_count; i++)
        needed = needed || is_users(p->steps[i].fault);
    if (needed)
        insert_layer(p, between(state, 0, p->layer_count),
                     (layer){LAYER_GUARD, 1, 1, between(state, 0, 3), WRAP_NONE, 0});
}

void program_draw(program *p, uint64_t seed, const draw_options *options)
{
    uint64_t state = seed;
    memset(p, 0, sizeof *p);
    p->seed = between(&state, 1, 1 << 30);
    p->devices = between(&state, 1, MAX_DEVICES);
    p->slow = chance(&state, 2);
    p->dtype = chance(&state, 80) ? DTYPE_F64 : DTYPE_F32;
    p->autocast = chance(&state, 30);
    p->rank = chance(&state, 35) ? 0 : chance(&state, 65) ? 2 : between(&state, 1, 3);
    p->channels = between(&state, 1, 4);
    p->size = p->rank == 3 ? between(&state, 2, 4) : between(&state, 3, 9);
    p->input = chance(&state, 20) ? between(&state, 1, 2) : INPUT_ONE;
    p->output = chance(&state, 20) ? between(&state, 1, 2) : OUTPUT_ONE;
    p->dense = chance(&state, 25);
    p->task = between(&state, 0, TASK_COUNT - 1);
    p->classes = between(&state, 1, 5);
    p->reduction = chance(&state, 25) ? between(&state, 1, 2) : REDUCE_MEAN;
    p->weighted = chance(&state, 30);
    p->ignored = chance(&state, 35) ? between(&state, 1, 2) : 0;
    p->smoothing = chance(&state, 30);
    p->penalty = between(&state, 0, 4);
    p->critic = between(&state, 0, 3);
    p->optimizer = between(&state, 0, OPTIMIZER_COUNT - 1);
    p->maximize = chance(&state, 5);
    p->groups = chance(&state, 20) ? 2 : 1;
    p->schedule = chance(&state, 20) ? between(&state, 1, 2) : SCHEDULE_NONE;
    p->clip = chance(&state, 25) ? between(&state, 1, 2) : CLIP_NONE;
    p->plain_norm = chance(&state, 6);
    p->judge = chance(&state, 8) ? JUDGE_ITSELF : JUDGE_ONE_DEVICE;
    p->build_fault = draw_fault(&state, options) == FAULT_ALLOCATION ? between(&state, 1, 400) : 0;
    p->order = between(&state, 0, 1000);
    for (int i = 0; i < WAYS; i++)
        draw_way(&state, &p->ways[i], p->devices);
    draw_layers(&state, p);
    draw_steps(&state, p, options);
    draw_guard(&state, p);
    program_settle(p);
    if (options->planted && p->ways[0].count > 1)
        insert_layer(p, between(&state, 0, p->layer_count), (layer){LAYER_WRONG, 1, 1, 0, 0, 0});
}

/* ---- contradictions ---- */

static bool has_layer(const program *p, int kind)
{
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].kind == kind)
            return true;
    return false;
}

bool program_sees_batch(const program *p)
{
    return has_layer(p, LAYER_BATCH_NORM) || has_layer(p, LAYER_SYNC_NORM) ||
           has_layer(p, LAYER_MIX);
}

/* Each device once, those there are. */
static void settle_devices(way *w, int devices)
{
    int kept = 0;
    bool taken[MAX_DEVICES] = {false};
    for (int i = 0; i < MAX_DEVICES; i++)
        if (w->on[i] < devices && !taken[w->on[i]]) {
            taken[w->on[i]] = true;
            w->on[kept++] = w->on[i];
        }
    for (int d = 0; d < MAX_DEVICES; d++)
        if (!taken[d])
            w->on[kept++] = d;
    if (w->count > devices)
        w->count = devices;
    if (w->wrapper == WRAPPER_NONE || w->wrapper == WRAPPER_ALONE)
        w->count = 1;
}

static void settle_way(program *p, way *w)
{
    int total = 0;
    settle_devices(w, p->devices);
    for (int i = 0; i < w->count; i++)
        total += w->shares[i];
    if (total == 0)
        w->shares[w->count - 1] = 1;
    if (w->plan != PLAN_NONE)
        w->split = SPLIT_CHUNK;
    if (w->own)
        w->stats = 0;
    if (w->wrapper != WRAPPER_CLASSIC)
        w->gather = GATHER_FIRST;
    if (w->wrapper != WRAPPER_BALANCED)
        w->mean_of_means = 0;
    if (w->wrapper == WRAPPER_NONE)
        w->patched = w->shard = w->offload = 0;
    if (p->task == TASK_CRITIC)
        w->micro = 0;
}

/* One device gives other numbers for other reasons than defects. */
static bool is_incomparable(const program *p)
{
    bool several = false, means = false;
    for (int i = 0; i < WAYS; i++) {
        several = several || p->ways[i].count > 1;
        means = means || p->ways[i].mean_of_means;
    }
    for (int i = 0; i < p->layer_count; i++)
        if (p->layers[i].kind == LAYER_DROPOUT && p->layers[i].variant % 2)
            return true;
    return p->autocast || means || (p->plain_norm && several && has_layer(p, LAYER_BATCH_NORM));
}

static void settle_step(const program *p, step *s)
{
    bool needs_number = s->how == STEP_TRAIN || s->how == STEP_LOADER || s->how == STEP_ACCUMULATE;
    if (p->task == TASK_CRITIC)
        s->how = STEP_PENALTY;
    else if (s->how == STEP_PENALTY || (needs_number && p->reduction == REDUCE_NONE))
        s->how = STEP_HAND;
    else if (s->how == STEP_LOADER && p->input != INPUT_ONE)
        s->how = STEP_TRAIN;
    if (s->fault == FAULT_FILE)
        s->during = DURING_EVENT;
    if (s->fault == FAULT_FILE && s->event != EVENT_CHECKPOINT)
        s->fault = FAULT_NONE;
    if (s->fault == FAULT_NONE ||
        (s->event != EVENT_CHECKPOINT && s->event != EVENT_EVALUATE && s->event != EVENT_FORWARD))
        s->during = DURING_STEP;
    if (s->fault == FAULT_NONE)
        s->at = 0;
}

static void settle_task(program *p)
{
    if (p->rank == 0)
        p->dense = 0;
    if (p->task == TASK_CRITIC) {
        p->input = INPUT_ONE;
        p->output = OUTPUT_ONE;
        p->classes = 1;
        p->dense = 0;
    }
    if (p->task == TASK_CRITIC || p->task == TASK_WEIGHTED || p->task == TASK_SAMPLES)
        p->reduction = REDUCE_MEAN;
    if (p->task != TASK_CROSS_ENTROPY && p->task != TASK_NLL)
        p->weighted = p->ignored = 0;
    if (p->task != TASK_CROSS_ENTROPY)
        p->smoothing = 0;
    if (p->dtype != DTYPE_F32)
        p->autocast = 0;
}

void program_settle(program *p)
{
    settle_task(p);
    for (int i = 0; i < WAYS; i++)
        settle_way(p, &p->ways[i]);
    for (int i = 0; i < p->step_count; i++)
        settle_step(p, &p->steps[i]);
    if (is_incomparable(p))
        p->judge = JUDGE_ITSELF;
    /* Plans that follow measurements differ from run to run: peaks depend on how the devices'
     * threads take turns. */
    for (int i = 0; i < WAYS; i++)
        if (p->judge == JUDGE_ITSELF && p->ways[i].split == SPLIT_AUTO)
            p->ways[i].split = SPLIT_EVEN;
    for (int i = 0; i < WAYS; i++)
        if (p->ways[i].split != SPLIT_AUTO)
            p->ways[i].goal = 0;
}

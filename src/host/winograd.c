/* winograd.c: convolution and its input gradient by Winograd's algorithms.
 *
 * A thread transforms the inputs of a block of tiles, multiplies them point by point by the
 * transformed weights, and transforms the products to outputs, all in its level 2 cache. A free
 * thread takes the next block. An output depends on its tile alone, and its sums run over channels
 * in order, so that results depend neither on blocks nor on threads. */
#include "host/winograd.h"

#include <stdatomic.h>
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/shared_weights.h"

enum {
    INPUTS_NBYTES = 192 << 10,   /* A block's transformed inputs: a part of level 2 cache. */
    FAR_INPUTS_NBYTES = 1 << 20, /* A block has so many if it reads weights from level 3 cache. */
    WEIGHTS_NBYTES = 2 << 20,    /* Transformed weights of this size stay in level 2 cache. */
    LEAST_TILES = 24,
    MOST_TILES = 96,
    FEW_BLOCKS = 8,        /* up to so many blocks for a thread, all threads get equally many */
    APART = 16,            /* floats between points, so that points don't share cache sets */
    SQUARE = 8,            /* lines and elements that ek_gemm_transpose_f32 transposes at a time */
    CHANNELS_AT_ONCE = 16, /* channels whose weights are one piece of work: a cache line */
    PIECE_LEAST = 2048,    /* weights whose transform is worth another thread */
    DEPTH_AT_ONCE = 256,   /* channels of a sum: a panel of so many fits level 1 cache */
    OUTPUTS_AT_ONCE = 64,  /* a multiple of every kernel's columns */
    MOST_TAPS = 9
};

/* ---- a call ---- */

typedef struct job {
    const ek_winograd *plan;
    const ek_gemm_kernel *kernel;
    bool by_inputs; /* w is (channels, window, outputs), else (outputs, window, channels) */
    const float *w;
    float *to;
    int64_t block, blocks;       /* tiles of a block, and blocks */
    int64_t columns;             /* outputs of a panel */
    int64_t first_panel, panels; /* weights of these panels are transformed */
    bool far;                    /* The weights don't fit into level 2 cache. */
    bool keep, kept; /* blocks keep their transformed inputs for further turns; they have them */
    /* Sizes at each point: weights (panels, slots, channels, columns); inputs (block, channels) for
     * each source; sums (block, OUTPUTS_AT_ONCE). */
    float *weights, *inputs, *sums;
    int64_t depth[EK_WINOGRAD_AREA]; /* channels of a tile at a point, from all sources */
    /* Where each point's values begin; the last entry is the size of all points. */
    int64_t weights_at[EK_WINOGRAD_AREA + 1], inputs_at[EK_WINOGRAD_AREA + 1],
        sums_at[EK_WINOGRAD_AREA + 1];
    const float *zeros, *start;
    float *unused; /* outputs beyond the result's end are written here */
    atomic_int next_part;
    _Atomic int64_t next_block;
} job;

/* Gathers the taps of `lanes` outputs, from `first` on, for SQUARE channels. */
static void winograd_pack_taps(const job *j, const int64_t *taps, int64_t first, int64_t lanes,
                               int64_t channel, float to[MOST_TAPS][SQUARE][EK_GEMM_COLUMNS])
{
    int64_t row = j->plan->window[0] * j->plan->window[1] * j->plan->channels;
    int count = j->plan->form->taps * j->plan->form->taps;
    for (int t = 0; t < count; t++) {
        if (taps[t] < 0)
            continue;
        const float *from = j->w + first * row + taps[t] * j->plan->channels + channel;
        int64_t o = 0;
        for (; o + 2 * SQUARE <= lanes; o += 2 * SQUARE)
            ek_gemm_transpose_16_f32(&to[t][0][o], EK_GEMM_COLUMNS, from + o * row, row, SQUARE);
        if (o < lanes)
            ek_gemm_transpose_f32(&to[t][0][o], EK_GEMM_COLUMNS, from + o * row, SQUARE, row,
                                  SQUARE);
    }
}

/* Transforms the weights of a panel in one part, for a range of channels. Lanes beyond the last
 * output become zero. */
static void winograd_transform_panel(const job *j, int64_t panel, int p0, int p1, int64_t channel,
                                     int64_t end)
{
    const ek_winograd *plan = j->plan;
    const int *slot = plan->slot[p0 * plan->parts + p1];
    int side = plan->form->taps;
    int64_t first = (j->first_panel + panel) * j->columns, taps[MOST_TAPS], at[EK_WINOGRAD_AREA];
    int64_t lanes = ek_smaller(j->columns, plan->outputs - first);
    ek_winograd_spread *spread = plan->form->weights[plan->ends[p0 * plan->parts + p1]];
    float *to = j->weights + channel * j->columns, packed[MOST_TAPS][SQUARE][EK_GEMM_COLUMNS];
    const float *from[MOST_TAPS];
    for (int t = 0; t < side * side; t++)
        taps[t] = ek_winograd_tap(plan, p0, p1, t / side, t % side);
    for (int i = 0; i < ek_winograd_area(plan); i++)
        at[i] = j->weights_at[i] + (panel * plan->slots[i] + slot[i]) * plan->channels * j->columns;
    for (int64_t c = channel; c < end; c++, to += j->columns) {
        const float *row = j->w + c * plan->window[0] * plan->window[1] * plan->outputs + first;
        if (!j->by_inputs && c % SQUARE == 0)
            winograd_pack_taps(j, taps, first, lanes, c, packed);
        for (int t = 0; t < side * side; t++)
            from[t] =
                j->by_inputs ? row + ek_larger(taps[t], 0) * plan->outputs : packed[t][c % SQUARE];
        spread(from, to, at, lanes);
        for (int i = 0; i < ek_winograd_area(plan) && lanes < j->columns; i++)
            if (slot[i] >= 0)
                memset(to + at[i] + lanes, 0, (size_t)(j->columns - lanes) * sizeof *to);
    }
}

static void winograd_transform_panels(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    int64_t channels = j->plan->channels, parts = j->plan->parts;
    int64_t pieces = ek_divide_up(channels, CHANNELS_AT_ONCE);
    for (int64_t i = begin; i < end; i++) {
        int64_t part = i / pieces, channel = i % pieces * CHANNELS_AT_ONCE;
        winograd_transform_panel(j, part / (parts * parts), (int)(part / parts % parts),
                                 (int)(part % parts), channel,
                                 ek_smaller(channel + CHANNELS_AT_ONCE, channels));
    }
}

/* Transforms the inputs of `count` tiles. Prefetches the next tile meanwhile, because a cache miss
 * takes as long as a transform. */
static void winograd_transform_inputs(const job *j, int64_t first, int64_t count, float *to)
{
    const ek_winograd *plan = j->plan;
    const float *from[2][EK_WINOGRAD_AREA];
    const int64_t *depth = j->depth;
    bool whole = ek_winograd_whole(plan);
    int area = ek_winograd_area(plan), sources = ek_winograd_sources(plan);
    ek_winograd_place place = ek_winograd_place_of(plan, first);
    int64_t steps = count * sources, at[EK_WINOGRAD_PARTS][EK_WINOGRAD_AREA];
    for (int s = 0; s < sources; s++)
        for (int i = 0; i < area; i++)
            at[s][i] = j->inputs_at[i] + plan->slot[s][i] * plan->channels;
    for (int64_t step = 0; step <= steps; step++) {
        int source = (int)(step % sources), before = (int)((step + sources - 1) % sources);
        if (step < steps)
            ek_winograd_inputs_ahead(plan, &place, source / plan->parts, source % plan->parts,
                                     j->zeros, 0, plan->channels, from[step % 2]);
        if (source == sources - 1)
            ek_winograd_step(plan, &place);
        if (step == 0)
            continue;
        plan->form->inputs[plan->spread ? 0 : plan->ends[before]](from[(step - 1) % 2], to,
                                                                  at[before], plan->channels);
        for (int i = 0; i < area && !whole; i++)
            at[before][i] += depth[i];
        if (whole && before == sources - 1)
            to += depth[0];
    }
}

/* Computes `call` for all rows of a block, and prefetches the weights of the `next` call. */
static void winograd_multiply_rows(const job *j, ek_gemm_call call, const ek_gemm_call *next,
                                   int64_t count)
{
    enum { LINE = 64 };
    const int64_t rows = j->kernel->rows, nbytes = next->k * j->columns * (int64_t)sizeof(float);
    const int64_t stretches = ek_divide_up(count, rows) * ek_divide_up(call.k, EK_GEMM_STRETCH);
    const bool ahead = j->far && nbytes > 0;
    ek_gemm_ahead none = {.runs = 0};
    ek_gemm_ahead weights = {.run = next->b, .lines = nbytes / LINE, .runs = ahead};
    weights.pace = ek_divide_up(weights.lines, stretches);
    call.next_a = &none;
    call.next_b = &weights;
    for (int64_t t = 0; t < count; t += rows) {
        j->kernel->inner[1][ek_smaller(rows, count - t) - 1](&call);
        call.a = (const float *)call.a + rows * call.a_row;
        call.c = (float *)call.c + rows * call.c_row;
    }
}

/* Multiplies a block by up to OUTPUTS_AT_ONCE / j->columns panels, at all points of a target. Adds
 * sums over DEPTH_AT_ONCE channels, which is more exact than one long sum. Far weights are
 * prefetched, because a block's first rows use them faster than level 3 cache delivers them. */
static void winograd_multiply(const job *j, int64_t panel, int64_t panels, int target,
                              int64_t count, const float *inputs, float *sums)
{
    const ek_winograd *plan = j->plan;
    ek_gemm_call now = {.k = 0},
                 next = {.a_depth = 1, .b_depth = j->columns, .c_row = OUTPUTS_AT_ONCE};
    for (int point = 0; point < ek_winograd_area(plan); point++) {
        int64_t depth = j->depth[point], slot = plan->slot[target][point];
        int64_t steps = slot < 0 ? 0 : panels * ek_divide_up(depth, DEPTH_AT_ONCE);
        for (int64_t i = 0; i < steps; i++) {
            int64_t p = i % panels, d = i / panels * DEPTH_AT_ONCE;
            int64_t line = ((panel + p) * plan->slots[point] + slot) * plan->channels + d;
            next.k = ek_smaller(DEPTH_AT_ONCE, depth - d);
            next.a = inputs + j->inputs_at[point] + d;
            next.a_row = depth;
            next.b = j->weights + j->weights_at[point] + line * j->columns;
            next.c = sums + j->sums_at[point] + p * j->columns;
            next.add = d > 0;
            if (now.k > 0)
                winograd_multiply_rows(j, now, &next, count);
            now = next;
        }
    }
    next.k = 0;
    winograd_multiply_rows(j, now, &next, count);
}

static void winograd_transform_sums(const job *j, int64_t panel, int target, int64_t first,
                                    int64_t count, const float *sums)
{
    const ek_winograd *plan = j->plan;
    int side = plan->form->outputs, p0 = target / plan->parts, p1 = target % plan->parts;
    int64_t output = (j->first_panel + panel) * j->columns;
    int64_t end = ek_smaller((j->first_panel + j->panels) * j->columns, plan->outputs);
    int64_t n = ek_smaller(OUTPUTS_AT_ONCE, end - output);
    ek_winograd_collect *results = plan->form->results[plan->spread ? plan->ends[target] : 0];
    ek_winograd_place place = ek_winograd_place_of(plan, first);
    int64_t position[EK_WINOGRAD_AREA];
    float *to[EK_WINOGRAD_AREA];
    for (int64_t t = 0; t < count; t++, ek_winograd_step(plan, &place)) {
        ek_winograd_outputs(plan, &place, p0, p1, position);
        for (int i = 0; i < side * side; i++)
            to[i] = position[i] < 0 ? j->unused : j->to + position[i] * plan->outputs + output;
        results(sums + t * OUTPUTS_AT_ONCE, j->sums_at, j->start + output, to, n);
    }
}

static void winograd_compute_blocks(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    int area = ek_winograd_area(j->plan), targets = ek_winograd_targets(j->plan);
    (void)begin, (void)end;
    int part = atomic_fetch_add(&j->next_part, 1);
    float *sums = j->sums + part * j->sums_at[area];
    for (;;) {
        int64_t block = atomic_fetch_add(&j->next_block, 1);
        if (block >= j->blocks)
            return;
        int64_t first = block * j->block, count = ek_smaller(j->block, j->plan->tiles - first);
        float *inputs = j->inputs + (j->keep ? block : part) * j->inputs_at[area];
        if (!j->kept)
            winograd_transform_inputs(j, first, count, inputs);
        for (int64_t panel = 0; panel < j->panels; panel += OUTPUTS_AT_ONCE / j->columns) {
            int64_t panels = ek_smaller(OUTPUTS_AT_ONCE / j->columns, j->panels - panel);
            for (int target = 0; target < targets; target++) {
                winograd_multiply(j, panel, panels, target, count, inputs, sums);
                winograd_transform_sums(j, panel, target, first, count, sums);
            }
        }
    }
}

/* Cuts the tiles into blocks, and the panels of outputs into turns, which are computed one after
 * another; shared weights have one turn. If blocks are few, all threads get equally many blocks of
 * one size, even if the blocks' last rows don't fill a kernel. Returns how many panels a turn has.
 */
static int64_t winograd_divide(job *j, int64_t all_panels, int64_t threads, bool shared)
{
    const ek_winograd *plan = j->plan;
    int64_t output = (int64_t)sizeof(float) * plan->channels * plan->products, tile = 0;
    for (int i = 0; i < ek_winograd_area(plan); i++) {
        j->depth[i] = (plan->spread ? 1 : plan->slots[i]) * plan->channels;
        tile += (int64_t)sizeof(float) * j->depth[i];
    }
    int64_t budget = ek_winograd_budget(plan);
    j->keep = plan->tiles * tile <= budget;
    if (!j->keep) /* each turn transforms the inputs again, so that fewer turns are better */
        budget = ek_larger(budget, ek_smaller(2 * budget, EK_WINOGRAD_MUCH));
    int64_t at_once = ek_larger(budget / (output * OUTPUTS_AT_ONCE), 1) * OUTPUTS_AT_ONCE;
    int64_t turns = ek_divide_up(plan->outputs, at_once);
    at_once = ek_divide_up(ek_divide_up(plan->outputs, turns), OUTPUTS_AT_ONCE) * OUTPUTS_AT_ONCE;
    int64_t panels = ek_smaller(at_once / j->columns, all_panels);
    j->far = all_panels * j->columns * output > WEIGHTS_NBYTES;
    const int64_t inputs = j->far ? FAR_INPUTS_NBYTES : INPUTS_NBYTES;
    j->block = ek_smaller(ek_larger(inputs / tile, LEAST_TILES), MOST_TILES);
    if (panels < all_panels)
        j->block = MOST_TILES; /* weights are read from level 3 cache once per block */
    if (shared)
        panels = all_panels;
    j->keep = j->keep && panels < all_panels;
    j->blocks = ek_divide_up(plan->tiles, j->block);
    int64_t rows = j->kernel->rows, equal = ek_divide_up(j->blocks, threads) * threads;
    if (threads > 1 && j->blocks <= FEW_BLOCKS * threads && plan->tiles >= equal * rows)
        j->block = ek_divide_up(plan->tiles, equal);
    else
        j->block = ek_divide_up(ek_divide_up(plan->tiles, j->blocks), rows) * rows;
    j->blocks = ek_divide_up(plan->tiles, j->block);
    return panels;
}

/* Finds the transformed weights of all panels that devices share, or NULL. What is shared takes at
 * most half as much memory as all devices would take alone, because their own workspaces stay as
 * large as other convolutions need them. */
static ek_shared_weights *winograd_share(const job *j, const ek_tensor *w, int64_t panels)
{
    const ek_winograd *plan = j->plan;
    const ek_winograd_line *line = plan->line;
    const ek_shared_key key = {plan->form,
                               0,
                               {j->by_inputs, j->columns, plan->channels, plan->outputs,
                                plan->window[0], plan->window[1], plan->parts, plan->spread,
                                line[0].first_tap, line[0].tap_step, line[1].first_tap,
                                line[1].tap_step}};
    const int64_t count = panels * plan->products * plan->channels * j->columns +
                          (int64_t)ek_winograd_area(plan) * APART;
    const int64_t nbytes = count * (int64_t)sizeof(float);
    return ek_shared_weights_take(w, key, (size_t)nbytes,
                                  (size_t)ek_smaller(nbytes, ek_winograd_budget(plan)) / 2);
}

/* Computes a convolution by a plan. `bias` may be NULL. */
static int winograd_run(ek_dev *dev, const ek_winograd *plan, bool by_inputs, const ek_tensor *w,
                        const float *bias, float *to)
{
    job j = {.plan = plan,
             .kernel = ek_gemm_kernel_best(EK_F32),
             .by_inputs = by_inputs,
             .w = ek_tensor_address(w),
             .to = to};
    int area = ek_winograd_area(plan);
    j.columns = j.kernel->columns;
    int64_t all_panels = ek_divide_up(plan->outputs, j.columns);
    int64_t threads = ek_parallel_threads(dev);
    ek_shared_weights *shared = winograd_share(&j, w, all_panels);
    int64_t panels = winograd_divide(&j, all_panels, threads, shared);
    int64_t parts = ek_smaller(threads, j.blocks);
    for (int i = 0; i < area; i++) {
        int64_t panel = plan->slots[i] * plan->channels * j.columns;
        j.weights_at[i + 1] = j.weights_at[i] + panels * panel + APART;
        j.inputs_at[i + 1] = j.inputs_at[i] + j.block * j.depth[i] + APART;
        j.sums_at[i + 1] = j.sums_at[i] + j.block * OUTPUTS_AT_ONCE + APART;
    }
    size_t weights = shared ? 0 : (size_t)j.weights_at[area],
           sums = (size_t)(parts * j.sums_at[area]);
    size_t inputs = (size_t)((j.keep ? j.blocks : parts) * j.inputs_at[area]);
    size_t zeros = (size_t)plan->channels, start = (size_t)(all_panels * j.columns);
    size_t nbytes = (weights + inputs + sums + zeros + start + OUTPUTS_AT_ONCE) * sizeof(float);
    void *workspace;
    int rc = ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace);
    if (rc < 0) {
        ek_object_release(shared);
        return rc;
    }
    j.weights = shared ? shared->data : workspace;
    j.inputs = (float *)workspace + weights;
    j.sums = j.inputs + inputs;
    j.zeros = memset(j.sums + sums, 0, (zeros + start) * sizeof(float));
    float *first = j.sums + sums + zeros;
    if (bias)
        memcpy(first, bias, (size_t)plan->outputs * sizeof *bias);
    j.start = first;
    j.unused = first + start;
    for (; j.first_panel < all_panels; j.first_panel += panels) {
        j.panels = ek_smaller(panels, all_panels - j.first_panel);
        const int64_t pieces =
            j.panels * plan->parts * plan->parts * ek_divide_up(plan->channels, CHANNELS_AT_ONCE);
        const int64_t grain = PIECE_LEAST / (CHANNELS_AT_ONCE * j.columns);
        if (shared)
            ek_shared_weights_make(dev, shared, pieces, grain, winograd_transform_panels, &j);
        else
            ek_parallel_for(dev, pieces, grain, winograd_transform_panels, &j);
        atomic_store(&j.next_part, 0);
        atomic_store(&j.next_block, 0);
        ek_parallel_for(dev, parts, 1, winograd_compute_blocks, &j);
        j.kept = j.keep;
    }
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    ek_object_release(shared);
    return 0;
}

int ek_conv_winograd(ek_dev *dev, const ek_conv *conv, int side)
{
    if (conv->kind == EK_CONV_WEIGHT_GRADIENT)
        return ek_winograd_weight(dev, conv, side);
    const bool forward = conv->kind == EK_CONV_FORWARD;
    const ek_tensor *to = forward ? conv->y : conv->x;
    const float *start = forward && conv->bias ? ek_tensor_address(conv->bias) : NULL;
    for (int part = 0; part < ek_winograd_problems(conv); part++) {
        ek_winograd plan = ek_winograd_plan(conv, side, part);
        if (plan.tiles > 0)
            EK_TRY(winograd_run(dev, &plan, !forward, conv->w, start, ek_tensor_address(to)));
    }
    return 0;
}

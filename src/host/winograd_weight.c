/* winograd_weight.c: convolution's weight gradient by Winograd's algorithms.
 *
 * The gradient is cut into blocks of channels and outputs. For a block, a thread goes over the
 * tiles in groups of a fixed number: it transforms the inputs of a group and the gradients of its
 * outputs, multiplies these point by point, and adds the products to sums, all in level 2
 * cache. Blocks transform inputs and gradients several times, because threads that shared
 * transforms would wait for each other's caches: on two cores of a Xeon that took twice as long.
 * The order of a sum over tiles depends on shapes alone. A small gradient has separate sums over
 * two pieces of the tiles, which are added at the end: two threads then transform different tiles.
 * The bias's gradient is a by-product: at point (1, 1) the transformed gradients of a tile are
 * their sum. */
#include <stdatomic.h>
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/winograd.h"

enum {
    GROUP_NBYTES = 512 << 10, /* about how much inputs and gradients of a group take */
    LEAST_TILES = 64,
    MOST_TILES = 512,
    /* Of a block's sums, for each column of a kernel: a part of level 2 cache, which is larger on
     * processors with wide vectors. */
    SUMS_NBYTES = 16 << 10,
    PIECES_NBYTES = 512 << 10, /* Gradients with larger sums have their tiles in one piece. */
    APART = 16,                /* floats between points, so that points don't share cache sets */
    LANES = 8,
    JOIN_LEAST = 16, /* Fewer outputs of joined sums aren't worth another thread. */
    MOST_TAPS = 9
};

typedef struct job {
    const ek_winograd *plan;
    const ek_gemm_kernel *kernel;
    const float *dy;
    float *dw, *db;        /* Db has (pieces, outputs); NULL: there is no bias. */
    int64_t columns;       /* inputs are in panels of so many columns */
    int64_t group;         /* the most tiles of a group */
    int64_t panels, lines; /* Panels of channels, and vectors of outputs. */
    int64_t blocks[2];     /* Blocks of channels, and of outputs. */
    int64_t pieces;        /* The tiles are cut into so many. */
    const float *zeros;
    float *workspace; /* Each part has its own. */
    int64_t workspace_stride;
    float *sums; /* Places (pieces, blocks) for sums; NULL if there is one piece. */
    int64_t sums_stride;
    atomic_int next_part;
    _Atomic int64_t next_block;
} job;

/* A block of the gradient, its piece of the tiles, and the tiles that are added at present. */
typedef struct block {
    const job *job;
    int64_t channel, channels, output, outputs;
    int64_t begin, end, first, count; /* tiles */
    int64_t lines; /* A part has so many lines in its panels: channels, or more. */
    int64_t gradients_row;
    int64_t panels[EK_WINOGRAD_AREA];
    /* The places of a part's inputs at each point, relative to the part's first line at point 0. */
    int64_t part[EK_WINOGRAD_PARTS][EK_WINOGRAD_AREA];
    /* The places of each point's values; the last entry is the size of all points. */
    int64_t inputs_at[EK_WINOGRAD_AREA + 1], gradients_at[EK_WINOGRAD_AREA + 1],
        sums_at[EK_WINOGRAD_AREA + 1];
    /* Sizes at each point: inputs (panels, group, columns); gradients (group, gradients_row); sums
     * (outputs, panels, columns). */
    float *inputs, *gradients, *sums;
    float *db; /* The piece's part of db; NULL: another block has it. */
} block;

/* ---- blocks ---- */

/* Returns block `index`, without memory. */
static block weight_block_at(const job *j, int64_t index)
{
    const ek_winograd *plan = j->plan;
    const int64_t c = index % j->blocks[0], o = index / j->blocks[0], vector = plan->form->lanes;
    const int area = ek_winograd_area(plan);
    block b = {.job = j,
               .channel = ek_part_of(j->panels, c, j->blocks[0]) * j->columns,
               .output = ek_part_of(j->lines, o, j->blocks[1]) * vector};
    b.channels =
        ek_smaller(ek_part_of(j->panels, c + 1, j->blocks[0]) * j->columns, plan->channels) -
        b.channel;
    b.outputs =
        ek_smaller(ek_part_of(j->lines, o + 1, j->blocks[1]) * vector, plan->outputs) - b.output;
    b.lines =
        ek_winograd_whole(plan) ? b.channels : ek_divide_up(b.channels, j->columns) * j->columns;
    b.gradients_row = b.outputs + APART;
    for (int i = 0; i < area; i++) {
        b.panels[i] = ek_divide_up(plan->slots[i] * b.lines, j->columns);
        const int64_t columns = b.panels[i] * j->columns;
        b.inputs_at[i + 1] = b.inputs_at[i] + columns * j->group + APART;
        b.gradients_at[i + 1] = b.gradients_at[i] + j->group * b.gradients_row + APART;
        b.sums_at[i + 1] = b.sums_at[i] + b.outputs * columns + APART;
    }
    for (int p = 0; p < plan->parts * plan->parts; p++)
        for (int i = 0; i < area; i++) /* lines are whole panels if slots differ */
            b.part[p][i] =
                b.inputs_at[i] + (plan->slot[p][i] - plan->slot[p][0]) * b.lines * j->group;
    return b;
}

/* Returns the most tiles of a group. It decides the order of sums, so that it depends on neither
 * blocks nor threads. */
static int64_t weight_group_of(const job *j)
{
    const block all = weight_block_at(j, 0); /* the whole gradient */
    const int area = ek_winograd_area(j->plan);
    int64_t values = area * all.outputs;
    for (int i = 0; i < area; i++)
        values += all.panels[i] * j->columns;
    const int64_t tiles = GROUP_NBYTES / ((int64_t)sizeof(float) * values);
    return ek_smaller(ek_smaller(ek_larger(tiles, LEAST_TILES), MOST_TILES), j->plan->tiles);
}

/* Chooses the number of blocks: the least work for the thread with the most, of blocks whose sums
 * fit into the cache. */
static void weight_choose_blocks(job *j, int64_t threads)
{
    const ek_winograd *plan = j->plan;
    const int64_t area = ek_winograd_area(plan), pieces = j->pieces;
    double least = 0;
    for (int64_t c = 1; c <= j->panels; c++)
        for (int64_t o = 1; o <= j->lines; o++) {
            const int64_t channels = ek_divide_up(j->panels, c) * j->columns;
            const int64_t outputs = ek_divide_up(j->lines, o) * plan->form->lanes;
            const int64_t nbytes = plan->products * channels * outputs * (int64_t)sizeof(float);
            if (nbytes > SUMS_NBYTES * j->columns && (c < j->panels || o < j->lines))
                continue;
            const double transforms = (double)(plan->products * channels + area * outputs) *
                                      EK_WINOGRAD_VALUE(j->columns);
            const double work = (double)ek_divide_up(c * o * pieces, threads) *
                                (transforms + (double)(plan->products * channels * outputs));
            if (least == 0 || work < least) {
                least = work;
                j->blocks[0] = c;
                j->blocks[1] = o;
            }
        }
}

/* ---- a group of tiles ---- */

/* Transforms the inputs `from` of one part. */
static void weight_transform_inputs(const block *b, int64_t tile, int part,
                                    const float *const *from)
{
    const job *j = b->job;
    const ek_winograd *plan = j->plan;
    ek_winograd_spread *spread = plan->form->inputs[plan->ends[part]];
    int64_t line = plan->slot[part][0] * b->lines;
    const float *channel[EK_WINOGRAD_AREA];
    for (int64_t c = 0, n; c < b->channels; c += n, line += n) {
        n = ek_smaller(j->columns - line % j->columns, b->channels - c);
        for (int i = 0; i < ek_winograd_area(plan); i++)
            channel[i] = from[i] + b->channel + c;
        float *to =
            b->inputs + (line / j->columns * j->group + tile) * j->columns + line % j->columns;
        spread(channel, to, b->part[part], n);
    }
    /* The columns of the part's last panel that the part doesn't fill become zero. A following part
     * in this panel overwrites them. */
    const int64_t used = line % j->columns;
    float *to = b->inputs + (line / j->columns * j->group + tile) * j->columns + used;
    for (int i = 0; i < ek_winograd_area(plan) && used > 0; i++)
        if (plan->slot[part][i] >= 0)
            memset(to + b->part[part][i], 0, (size_t)(j->columns - used) * sizeof *to);
}

/* Writes the addresses of the gradients of a tile's outputs to `from`, and prefetches the
 * gradients. */
static void weight_find_gradients(const block *b, const ek_winograd_place *place,
                                  const float **from)
{
    enum { LINE = 64 / sizeof(float) };
    const ek_winograd *plan = b->job->plan;
    const int side = plan->form->outputs;
    int64_t position[EK_WINOGRAD_AREA];
    ek_winograd_outputs(plan, place, 0, 0, position);
    for (int i = 0; i < side * side; i++) {
        from[i] =
            position[i] < 0 ? b->job->zeros : b->job->dy + position[i] * plan->outputs + b->output;
        for (int64_t o = 0; o < b->outputs; o += LINE)
            __builtin_prefetch(from[i] + o);
    }
}

/* Transforms the inputs and gradients of the group. Prefetches the next ones meanwhile, because a
 * cache miss takes as long as a transform. */
static void weight_transform(const block *b)
{
    const ek_winograd *plan = b->job->plan;
    const int parts = plan->parts * plan->parts;
    const float *inputs[2][EK_WINOGRAD_AREA], *gradients[2][EK_WINOGRAD_AREA];
    ek_winograd_place place = ek_winograd_place_of(plan, b->first);
    for (int64_t step = 0, last = b->count * parts; step <= last; step++) {
        const int64_t tile = step / parts, now = step - 1;
        const int part = (int)(step % parts);
        if (step < last) {
            ek_winograd_inputs_ahead(plan, &place, part / plan->parts, part % plan->parts,
                                     b->job->zeros, b->channel, b->channels, inputs[step % 2]);
            if (part == 0)
                weight_find_gradients(b, &place, gradients[tile % 2]);
            if (part == parts - 1)
                ek_winograd_step(plan, &place);
        }
        if (now < 0)
            continue;
        weight_transform_inputs(b, now / parts, (int)(now % parts), inputs[now % 2]);
        if (now % parts == 0)
            plan->form->gradients(gradients[now / parts % 2],
                                  b->gradients + now / parts * b->gradients_row, b->gradients_at,
                                  b->outputs);
    }
}

/* Adds the group's products to the sums. */
static void weight_multiply(const block *b)
{
    const job *j = b->job;
    ek_gemm_ahead none = {.runs = 0};
    ek_gemm_call call = {.k = b->count,
                         .a_row = 1,
                         .a_depth = b->gradients_row,
                         .b_depth = j->columns,
                         .add = b->first > b->begin,
                         .next_a = &none,
                         .next_b = &none};
    for (int point = 0; point < ek_winograd_area(j->plan); point++) {
        call.c_row = b->panels[point] * j->columns;
        for (int64_t panel = 0; panel < b->panels[point]; panel++) {
            call.b = b->inputs + b->inputs_at[point] + panel * j->group * j->columns;
            for (int64_t o = 0; o < b->outputs; o += j->kernel->rows) {
                call.a = b->gradients + b->gradients_at[point] + o;
                call.c = b->sums + b->sums_at[point] + o * call.c_row + panel * j->columns;
                j->kernel->inner[1][ek_smaller(j->kernel->rows, b->outputs - o) - 1](&call);
            }
        }
    }
}

/* Adds the group's gradients to those of the bias. */
EK_MULTIVERSION static void weight_add_bias(const block *b)
{
    const float *gradients = b->gradients + b->gradients_at[b->job->plan->form->points + 1];
    float *restrict db = b->db;
    for (int64_t o = 0; o < b->outputs; o += LANES) {
        float sum[LANES] = {0};
        for (int64_t t = 0; t < b->count; t++)
            for (int64_t i = 0; i < LANES; i++)
                sum[i] += gradients[t * b->gradients_row + o + i];
        for (int64_t i = 0; i < LANES; i++)
            db[o + i] = (b->first > b->begin ? db[o + i] : 0) + sum[i];
    }
}

/* Transforms a block's sums for one output to the gradient. */
static void weight_transform_sums(const block *b, int64_t o)
{
    const job *j = b->job;
    const ek_winograd *plan = j->plan;
    const int taps = plan->form->taps;
    const int64_t window = plan->window[0] * plan->window[1];
    float *to[MOST_TAPS], *dw = j->dw + (b->output + o) * window * plan->channels + b->channel;
    int64_t at[EK_WINOGRAD_AREA];
    for (int p = 0; p < plan->parts * plan->parts; p++) {
        int p0 = p / plan->parts, p1 = p % plan->parts;
        for (int t = 0; t < taps * taps; t++) {
            int64_t tap = ek_winograd_tap(plan, p0, p1, t / taps, t % taps);
            to[t] = dw + ek_larger(tap, 0) * plan->channels; /* -1 is left out */
        }
        for (int i = 0; i < ek_winograd_area(plan); i++)
            at[i] = b->sums_at[i] + o * b->panels[i] * j->columns + plan->slot[p][i] * b->lines;
        plan->form->sums[plan->ends[p]](b->sums, at, j->zeros, to, b->channels);
    }
}

static void weight_compute_blocks(void *context, int64_t begin, int64_t end)
{
    job *j = context;
    const int area = ek_winograd_area(j->plan);
    const int64_t blocks = j->blocks[0] * j->blocks[1];
    const int64_t groups = ek_divide_up(j->plan->tiles, j->group);
    (void)begin, (void)end;
    float *own = j->workspace + atomic_fetch_add(&j->next_part, 1) * j->workspace_stride;
    for (int64_t i; (i = atomic_fetch_add(&j->next_block, 1)) < blocks * j->pieces;) {
        const int64_t piece = i / blocks;
        block b = weight_block_at(j, i % blocks);
        b.begin = ek_part_of(groups, piece, j->pieces) * j->group;
        b.end = ek_smaller(ek_part_of(groups, piece + 1, j->pieces) * j->group, j->plan->tiles);
        b.inputs = own;
        b.gradients = b.inputs + b.inputs_at[area];
        b.sums = j->sums ? j->sums + i * j->sums_stride : b.gradients + b.gradients_at[area];
        b.db = j->db && b.channel == 0 ? j->db + piece * j->plan->outputs + b.output : NULL;
        for (b.first = b.begin; b.first < b.end; b.first += j->group) {
            b.count = ek_smaller(j->group, b.end - b.first);
            weight_transform(&b);
            weight_multiply(&b);
            if (b.db)
                weight_add_bias(&b);
        }
        for (int64_t o = 0; o < b.outputs && !j->sums; o++)
            weight_transform_sums(&b, o);
    }
}

/* Adds the sums of all pieces, and transforms them, for outputs that are counted through all
 * blocks, the blocks being as large as the largest. */
static void weight_join_pieces(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    const int64_t blocks = j->blocks[0] * j->blocks[1];
    const int64_t most = ek_divide_up(j->lines, j->blocks[1]) * j->plan->form->lanes;
    for (int64_t unit = begin, until; unit < end; unit = until) {
        const int64_t index = unit / most;
        block b = weight_block_at(j, index);
        b.sums = j->sums + index * j->sums_stride;
        until = ek_smaller((index + 1) * most, end);
        for (int64_t o = unit % most; o < ek_smaller(until - index * most, b.outputs); o++) {
            for (int point = 0; point < ek_winograd_area(j->plan); point++) {
                const int64_t row = b.panels[point] * j->columns;
                float *restrict to = b.sums + b.sums_at[point] + o * row;
                for (int64_t piece = 1; piece < j->pieces; piece++) {
                    const float *restrict from = to + piece * blocks * j->sums_stride;
                    for (int64_t i = 0; i < row; i++)
                        to[i] += from[i];
                }
            }
            weight_transform_sums(&b, o);
        }
    }
}

int ek_winograd_weight(ek_dev *dev, const ek_conv *conv, int side)
{
    ek_winograd plan = ek_winograd_plan(conv, side, 0);
    const int threads = ek_parallel_threads(dev), area = ek_winograd_area(&plan);
    job j = {.plan = &plan,
             .kernel = ek_gemm_kernel_best(EK_F32),
             .dy = ek_tensor_address(conv->y),
             .dw = ek_tensor_address(conv->w),
             .columns = ek_gemm_kernel_best(EK_F32)->columns,
             .blocks = {1, 1},
             .lines = ek_divide_up(plan.outputs, plan.form->lanes)};
    j.panels = ek_divide_up(plan.channels, j.columns);
    j.group = weight_group_of(&j);
    const int64_t all_nbytes =
        plan.products * plan.channels * plan.outputs * (int64_t)sizeof(float);
    j.pieces = all_nbytes <= PIECES_NBYTES && plan.tiles > j.group ? 2 : 1;
    weight_choose_blocks(&j, threads);
    const int64_t blocks = j.blocks[0] * j.blocks[1],
                  parts = ek_smaller(threads, blocks * j.pieces);
    for (int64_t i = 0; i < blocks; i++) {
        const block b = weight_block_at(&j, i);
        const int64_t values = b.inputs_at[area] + b.gradients_at[area];
        j.sums_stride = ek_larger(j.sums_stride, b.sums_at[area]);
        j.workspace_stride =
            ek_larger(j.workspace_stride, values + (j.pieces > 1 ? 0 : b.sums_at[area]));
    }
    j.workspace_stride = ek_divide_up(j.workspace_stride, APART) * APART;
    j.sums_stride = ek_divide_up(j.sums_stride, APART) * APART;
    const int64_t sums = j.pieces > 1 ? j.pieces * blocks * j.sums_stride : 0;
    const int64_t zeros = ek_larger(plan.channels, plan.outputs), db = j.pieces * plan.outputs;
    const size_t nbytes = (size_t)(parts * j.workspace_stride + sums + zeros + db) * sizeof(float);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j.workspace = workspace;
    float *after = j.workspace + parts * j.workspace_stride;
    j.sums = sums > 0 ? after : NULL;
    j.zeros = memset(after + sums, 0, (size_t)zeros * sizeof(float));
    j.db = conv->bias ? after + sums + zeros : NULL;
    ek_parallel_for(dev, parts, 1, weight_compute_blocks, &j);
    if (j.sums)
        ek_parallel_for(dev, blocks * ek_divide_up(j.lines, j.blocks[1]) * plan.form->lanes,
                        JOIN_LEAST, weight_join_pieces, &j);
    for (int64_t o = 0; o < plan.outputs && conv->bias; o++) {
        float *to = (float *)ek_tensor_address(conv->bias) + o;
        *to = j.db[o] + (j.pieces > 1 ? j.db[plan.outputs + o] : 0);
    }
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

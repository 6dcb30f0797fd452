/* winograd_weight.c: convolution's weight gradient by Winograd's algorithms.
 *
 * Tiles are computed in groups of a fixed number. All threads transform a group's inputs and the
 * gradients of its outputs, then multiply these point by point, and add the products to sums in
 * memory. The order of a sum over tiles depends on shapes alone. The bias's gradient is a
 * by-product: at point (1, 1) the transformed gradients of a tile are their sum. */
#include <stdatomic.h>
#include <string.h>

#include "host/host.h"
#include "host/parallel.h"
#include "host/winograd.h"

enum {
    GROUP_NBYTES = 512 << 10, /* about how much a group's inputs and gradients take */
    LEAST_TILES = 64,
    MOST_TILES = 512,
    TILES_AT_ONCE = 8,
    GROUPS_FOR_TWO = 4,        /* with so many groups or more, two buffers reduce waiting */
    LEAST_PRODUCT = 256 << 10, /* multiplications */
    LANES = 8,
    MOST_TAPS = 9
};

/* The progress of all threads: the next piece of work, and how many transforms, first products and
 * other products of all groups are done. */
typedef struct progress {
    _Atomic int64_t next, transformed, multiplied[2];
} progress;

/* The offsets of values from `inputs`, `gradients` and `sums`. */
typedef struct layout {
    int64_t panels[EK_WINOGRAD_AREA];
    /* Where a part's inputs begin at each point, relative to its first line at point 0. */
    int64_t part[EK_WINOGRAD_PARTS][EK_WINOGRAD_AREA];
    /* Where each point's values begin; the last entry is the size of all points. */
    int64_t inputs[EK_WINOGRAD_AREA + 1], gradients[EK_WINOGRAD_AREA + 1],
        sums[EK_WINOGRAD_AREA + 1];
} layout;

typedef struct job {
    const ek_winograd *plan;
    const ek_gemm_kernel *kernel;
    const float *dy;
    float *dw, *db;                /* db: NULL if there is no bias */
    int64_t first, count;          /* the group's tiles */
    int64_t group, groups;         /* the most tiles of a group, and groups */
    int64_t buffers;               /* groups whose inputs and gradients are held */
    int64_t first_output, outputs; /* the outputs that are computed at present */
    int64_t columns;               /* inputs are in panels of so many columns */
    int64_t lines;                 /* of a part in its panels: channels, or more */
    int64_t panels_at_once;        /* panels of a piece, of about LEAST_PRODUCT multiplications */
    int64_t products;              /* pieces of a group's products, and of its bias */
    bool again;                    /* the group's inputs are already transformed */
    /* Sizes at each point: inputs (panels, group, columns); gradients (group, gradients_row); sums
     * (outputs, panels, columns). */
    float *inputs, *gradients, *sums;
    int64_t gradients_row;
    const layout *at;
    const float *zeros;
    progress *progress;
} job;

/* Transforms the inputs `from` of one part. */
static void winograd_weight_inputs(const job *j, int64_t tile, int part, const float *const *from)
{
    const ek_winograd *plan = j->plan;
    ek_winograd_spread *spread = plan->form->inputs[plan->ends[part]];
    int64_t line = plan->slot[part][0] * j->lines;
    const float *channel[EK_WINOGRAD_AREA];
    for (int64_t c = 0, n; c < plan->channels; c += n, line += n) {
        n = ek_smaller(j->columns - line % j->columns, plan->channels - c);
        for (int i = 0; i < ek_winograd_area(plan); i++)
            channel[i] = from[i] + c;
        float *to =
            j->inputs + (line / j->columns * j->group + tile) * j->columns + line % j->columns;
        spread(channel, to, j->at->part[part], n);
    }
}

/* Sets the columns of a part's last panel that the part doesn't fill to zero. A following part in
 * this panel overwrites them. */
static void winograd_weight_pad(const job *j, int64_t tile, int part)
{
    const ek_winograd *plan = j->plan;
    int64_t line = plan->slot[part][0] * j->lines + plan->channels, used = line % j->columns;
    float *to = j->inputs + (line / j->columns * j->group + tile) * j->columns + used;
    for (int i = 0; i < ek_winograd_area(plan) && used > 0; i++)
        if (plan->slot[part][i] >= 0)
            memset(to + j->at->part[part][i], 0, (size_t)(j->columns - used) * sizeof *to);
}

/* Writes the addresses of the gradients of a tile's outputs to `from`, and prefetches the
 * gradients. */
static void winograd_weight_find(const job *j, int64_t tile, const float **from)
{
    enum { LINE = 64 / sizeof(float) };
    int side = j->plan->form->outputs;
    for (int i = 0; i < side * side; i++) {
        int64_t position = ek_winograd_output(j->plan, j->first + tile, 0, 0, i / side, i % side);
        from[i] = position < 0 ? j->zeros : j->dy + position * j->plan->outputs + j->first_output;
        for (int64_t o = 0; o < j->outputs; o += LINE)
            __builtin_prefetch(from[i] + o);
    }
}

/* Transforms the inputs and gradients of a tile. Prefetches those of tile `next`. */
static void winograd_weight_tile(const job *j, int64_t tile, int64_t next)
{
    const ek_winograd *plan = j->plan;
    const float *from[EK_WINOGRAD_AREA];
    if (next < j->count)
        winograd_weight_find(j, next, from);
    for (int p = 0; p < plan->parts * plan->parts && !j->again; p++) {
        int p0 = p / plan->parts, p1 = p % plan->parts;
        if (next < j->count)
            ek_winograd_inputs_ahead(plan, j->first + next, p0, p1, j->zeros, from);
        ek_winograd_inputs(plan, j->first + tile, p0, p1, j->zeros, from);
        winograd_weight_inputs(j, tile, p, from);
        winograd_weight_pad(j, tile, p);
    }
    winograd_weight_find(j, tile, from);
    plan->form->gradients(from, j->gradients + tile * j->gradients_row, j->at->gradients,
                          j->outputs);
}

/* Transforms one piece of the group's tiles. */
static void winograd_weight_transform(const job *j, int64_t piece)
{
    int64_t tile = piece * TILES_AT_ONCE, last = ek_smaller(tile + TILES_AT_ONCE, j->count);
    for (; tile < last; tile++)
        winograd_weight_tile(j, tile, tile + 1 < last ? tile + 1 : j->count);
}

/* Adds the group's gradients to db. */
EK_MULTIVERSION static void winograd_weight_bias(const job *j)
{
    const float *gradients = j->gradients + j->at->gradients[j->plan->form->points + 1];
    float *restrict db = j->db + j->first_output;
    for (int64_t o = 0; o < j->outputs; o += LANES) {
        float sum[LANES] = {0};
        for (int64_t t = 0; t < j->count; t++)
            for (int64_t i = 0; i < LANES; i++)
                sum[i] += gradients[t * j->gradients_row + o + i];
        for (int64_t i = 0; i < LANES; i++)
            db[o + i] = (j->first > 0 ? db[o + i] : 0) + sum[i];
    }
}

/* Returns how many pieces a point's products are cut into. */
static int64_t winograd_weight_pieces(const job *j, int point)
{
    return ek_divide_up(j->at->panels[point], j->panels_at_once);
}

/* Adds the products of one point and some panels of inputs. The piece after the last of the
 * products is the bias's gradient. */
static void winograd_weight_multiply(const job *j, int64_t piece)
{
    int point = 0, area = ek_winograd_area(j->plan);
    for (; point < area; point++) {
        int64_t pieces = winograd_weight_pieces(j, point);
        if (piece < pieces)
            break;
        piece -= pieces;
    }
    if (point == area) {
        if (j->db)
            winograd_weight_bias(j);
        return;
    }
    int64_t row = j->at->panels[point] * j->columns;
    int64_t panel = piece * j->panels_at_once;
    int64_t end = ek_smaller(panel + j->panels_at_once, j->at->panels[point]);
    ek_gemm_ahead none = {.runs = 0};
    ek_gemm_call call = {.k = j->count,
                         .a_row = 1,
                         .a_depth = j->gradients_row,
                         .b_depth = j->columns,
                         .c_row = row,
                         .add = j->first > 0,
                         .next_a = &none,
                         .next_b = &none};
    for (; panel < end; panel++) {
        call.b = j->inputs + j->at->inputs[point] + panel * j->group * j->columns;
        for (int64_t o = 0; o < j->outputs; o += j->kernel->rows) {
            call.a = j->gradients + j->at->gradients[point] + o;
            call.c = j->sums + j->at->sums[point] + o * row + panel * j->columns;
            j->kernel->inner[1][ek_smaller(j->kernel->rows, j->outputs - o) - 1](&call);
        }
    }
}

/* Returns the job for a group. With two buffers, groups alternate between them. */
static job winograd_weight_at(const job *j, int64_t group)
{
    job at = *j;
    int64_t buffer = group % j->buffers;
    int area = ek_winograd_area(j->plan);
    at.first = group * j->group;
    at.count = ek_smaller(j->group, j->plan->tiles - at.first);
    at.inputs += buffer * j->at->inputs[area];
    at.gradients += buffer * j->at->gradients[area];
    return at;
}

/* Takes pieces of work until none is left. Stage s is the first products of group s - 1, the
 * transforms of group s and the other products of group s - 1. Products wait for the transforms of
 * their group, and for the same products of the group before. Transforms wait for the products that
 * read their buffer before. With two buffers, the pieces that a piece needs were taken long before
 * it, so that threads hardly wait. */
static void winograd_weight_stages(void *context, int64_t begin, int64_t end)
{
    job *shared = context;
    progress *p = shared->progress;
    const int64_t transforms = ek_divide_up(shared->group, TILES_AT_ONCE);
    const int64_t products = shared->products;
    const int64_t first = shared->buffers > 1 ? products / 2 : products;
    const int64_t part[2] = {first, products - first}, pieces = transforms + products;
    (void)begin, (void)end;
    for (int64_t next; (next = atomic_fetch_add(&p->next, 1)) < (shared->groups + 1) * pieces;) {
        const int64_t stage = next / pieces, i = next % pieces;
        const bool transform = i >= first && i < first + transforms;
        const int64_t group = transform ? stage : stage - 1;
        if (group < 0 || group == shared->groups)
            continue;
        const job at = winograd_weight_at(shared, group);
        ek_parallel_wait(&p->transformed, stage * transforms);
        if (transform) {
            for (int h = 0; h < 2; h++)
                ek_parallel_wait(&p->multiplied[h], (stage + 1 - shared->buffers) * part[h]);
            winograd_weight_transform(&at, i - first);
            atomic_fetch_add(&p->transformed, 1);
        } else {
            const int h = i >= first;
            ek_parallel_wait(&p->multiplied[h], group * part[h]);
            winograd_weight_multiply(&at, h ? i - transforms : i);
            atomic_fetch_add(&p->multiplied[h], 1);
        }
    }
}

static void winograd_weight_results(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    const ek_winograd *plan = j->plan;
    int taps = plan->form->taps;
    int64_t window = plan->window[0] * plan->window[1];
    float *to[MOST_TAPS];
    int64_t at[EK_WINOGRAD_AREA];
    for (int64_t o = begin; o < end; o++) {
        float *dw = j->dw + (j->first_output + o) * window * plan->channels;
        for (int p = 0; p < plan->parts * plan->parts; p++) {
            int p0 = p / plan->parts, p1 = p % plan->parts;
            for (int t = 0; t < taps * taps; t++) {
                int64_t tap = ek_winograd_tap(plan, p0, p1, t / taps, t % taps);
                to[t] = dw + ek_larger(tap, 0) * plan->channels; /* -1 is left out */
            }
            for (int i = 0; i < ek_winograd_area(plan); i++)
                at[i] = j->at->sums[i] + o * j->at->panels[i] * j->columns +
                        plan->slot[p][i] * j->lines;
            plan->form->sums[plan->ends[p]](j->sums, at, j->zeros, to, plan->channels);
        }
    }
}

static void winograd_weight_run(ek_dev *dev, job *j, int64_t outputs)
{
    const ek_winograd *plan = j->plan;
    for (; j->first_output < plan->outputs; j->first_output += outputs) {
        progress p = {0};
        j->progress = &p;
        j->outputs = ek_smaller(outputs, plan->outputs - j->first_output);
        ek_parallel_for(dev, ek_parallel_threads(dev), 1, winograd_weight_stages, j);
        j->again = j->groups == 1;
        ek_parallel_for(dev, j->outputs, 1 + 256 / plan->channels, winograd_weight_results, j);
    }
}

int ek_winograd_weight(ek_dev *dev, int side, const ek_tensor *x, const ek_tensor *w,
                       const ek_tensor *bias, const ek_tensor *y, const ek_conv_params *params)
{
    ek_winograd plan = ek_winograd_plan(EK_CONV_WEIGHT_GRADIENT, side, 0, x, w, y, params);
    job j = {.plan = &plan,
             .kernel = ek_gemm_kernel_best(EK_F32),
             .dy = ek_tensor_address(y),
             .dw = ek_tensor_address(w),
             .db = bias ? ek_tensor_address(bias) : NULL,
             .columns = ek_gemm_kernel_best(EK_F32)->columns};
    enum { APART = 16 };
    int area = ek_winograd_area(&plan);
    layout at = {.inputs = {0}};
    j.at = &at;
    j.lines = ek_winograd_whole(&plan) ? plan.channels
                                       : ek_divide_up(plan.channels, j.columns) * j.columns;
    int64_t size = (int64_t)sizeof(float), depth = 0;
    for (int i = 0; i < area; i++) {
        at.panels[i] = ek_divide_up(plan.slots[i] * j.lines, j.columns);
        depth += at.panels[i] * j.columns;
    }
    int64_t outputs =
        ek_winograd_budget(&plan) / (size * depth) / plan.form->lanes * plan.form->lanes;
    outputs = ek_smaller(ek_larger(outputs, plan.form->lanes), plan.outputs);
    j.group = ek_larger(GROUP_NBYTES / (size * (depth + area * outputs)), LEAST_TILES);
    j.group = ek_smaller(ek_smaller(j.group, MOST_TILES), plan.tiles);
    j.groups = ek_divide_up(plan.tiles, j.group);
    j.buffers = ek_parallel_threads(dev) > 1 && j.groups >= GROUPS_FOR_TWO ? 2 : 1;
    j.panels_at_once = ek_divide_up(LEAST_PRODUCT, j.group * outputs * j.columns);
    j.products = 1;
    for (int i = 0; i < area; i++)
        j.products += winograd_weight_pieces(&j, i);
    j.gradients_row = outputs + APART;
    for (int i = 0; i < area; i++) {
        int64_t columns = at.panels[i] * j.columns;
        at.inputs[i + 1] = at.inputs[i] + columns * j.group + APART;
        at.gradients[i + 1] = at.gradients[i] + j.group * j.gradients_row + APART;
        at.sums[i + 1] = at.sums[i] + outputs * columns + APART;
    }
    for (int p = 0; p < plan.parts * plan.parts; p++)
        for (int i = 0; i < area; i++) /* lines are whole panels if slots differ */
            at.part[p][i] = at.inputs[i] + (plan.slot[p][i] - plan.slot[p][0]) * j.lines * j.group;
    size_t inputs = (size_t)(j.buffers * at.inputs[area]);
    size_t gradients = (size_t)(j.buffers * at.gradients[area]), sums = (size_t)at.sums[area];
    size_t zeros = (size_t)ek_larger(plan.channels, outputs);
    size_t nbytes = (inputs + gradients + sums + zeros) * sizeof(float);
    void *workspace;
    EK_TRY(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &workspace));
    j.inputs = workspace;
    j.gradients = j.inputs + inputs;
    j.sums = j.gradients + gradients;
    j.zeros = memset(j.sums + sums, 0, zeros * sizeof(float));
    winograd_weight_run(dev, &j, outputs);
    ek_dev_free(dev, workspace, nbytes, EK_MEMORY_WORKSPACE);
    return 0;
}

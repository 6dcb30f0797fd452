/* norm_plan.c: chooses the form in memory of a normalisation's tensors, and how threads share the
 * work. Each tensor keeps its strides if all tensors have one form. A tensor of another form or
 * dtype is copied. */
#include "cuda/norm.h"
#include "kernels/norm.h"

/* ---- forms ---- */

/* Returns the stride of the run that a form's dimensions are in row-major order; -1 if they are no
 * run. If they are one element, returns 0 for rows and 1 for other forms. */
static int64_t norm_run_stride(const ek_tensor *t, ek_norm_form form, bool batch)
{
    int order[EK_MAX_DIMS], count = 0; /* dimensions from the innermost on */
    if (form == EK_NORM_RUN_LAST)
        order[count++] = 1;
    for (int d = t->ndim - 1; d >= 2; d--)
        order[count++] = d;
    if (form == EK_NORM_RUN)
        order[count++] = 1;
    if (form == EK_NORM_ROWS && batch)
        order[count++] = 0;
    int64_t stride = form != EK_NORM_ROWS, next = 0;
    for (int i = 0; i < count; i++) {
        const int64_t size = t->shape[order[i]], own = t->stride[order[i]];
        if (size == 1)
            continue;
        if (next != 0 && own != next)
            return -1;
        stride = next == 0 ? own : stride;
        next = own * size;
        if (next <= 0) /* repeated elements are no run */
            return -1;
    }
    return stride;
}

bool ek_cuda_norm_fits(const ek_tensor *t, ek_norm_form form, bool batch)
{
    const int64_t stride = norm_run_stride(t, form, batch);
    return form == EK_NORM_ROWS ? stride >= 0 && (t->stride[1] == 1 || t->shape[1] == 1)
                                : stride == 1;
}

static ek_norm_form norm_form_of(const ek_tensor *const tensors[4], const ek_norm_geometry *g,
                                 bool runs)
{
    const ek_tensor *x = tensors[0];
    bool rows = x->ndim == 4 || x->ndim == 5; /* a copy can have channels innermost */
    if (runs && rows && !ek_cuda_norm_fits(x, EK_NORM_RUN, false) &&
        ek_cuda_norm_fits(x, EK_NORM_RUN_LAST, false))
        return EK_NORM_RUN_LAST;
    if (runs)
        return EK_NORM_RUN;
    if (g->inner == 1)
        return EK_NORM_ROWS;
    if (x->shape[1] == 1 || ek_cuda_norm_fits(x, EK_NORM_PLANES, g->batch))
        return EK_NORM_PLANES;
    if (rows)
        return EK_NORM_ROWS;
    for (int i = 0; i < 4; i++)
        if (tensors[i] && !ek_cuda_norm_fits(tensors[i], EK_NORM_ROWS, g->batch))
            return EK_NORM_PLANES;
    return EK_NORM_ROWS;
}

ek_norm_form ek_cuda_norm_choose(ek_cuda_norm *norm, const ek_tensor *const tensors[4],
                                 const ek_norm_geometry *g, bool runs)
{
    const ek_norm_form form = norm_form_of(tensors, g, runs);
    norm->planes = form != EK_NORM_ROWS;
    norm->samples = g->batch ? 1 : g->outer;
    norm->channels = runs ? g->groups : g->groups * g->each;
    norm->each = runs ? 1 : g->each;
    norm->rows = g->batch ? g->outer : 1;
    norm->inner = runs ? g->each * g->inner : g->inner;
    if (form == EK_NORM_ROWS) {
        norm->rows *= norm->inner;
        norm->inner = 1;
    }
    return form;
}

ek_norm_operand ek_cuda_norm_operand(const ek_tensor *t, ek_norm_form form, bool batch,
                                     int64_t inner)
{
    const int64_t sample = t->shape[0] > 1 ? t->stride[0] : 0;
    ek_norm_operand operand = {.data = ek_tensor_address(t), .sample = batch ? 0 : sample};
    if (form == EK_NORM_ROWS) {
        operand.row = norm_run_stride(t, form, batch);
    } else if (form == EK_NORM_PLANES) {
        operand.row = batch ? sample : 0;
        operand.channel = t->shape[1] > 1 ? t->stride[1] : 0;
    } else {
        operand.channel = inner;
    }
    return operand;
}

/* ---- cutting ---- */

enum {
    BLOCK = 256, /* threads of a block: launch.cuh's */
    WARP = 32,
    /* about how many blocks a sum has: fixed, for a fixed order of additions */
    BLOCKS = 512,
    SHORT_SUM = 8,   /* least loads that a thread sums up */
    LONG_SUM = 256,  /* most loads that a thread sums up in f32 */
    APPLY = 4,       /* least loads of a thread of a line, or of long planes */
    LOADS = 4,       /* loads of a thread that are on their way at once */
    ROW_BLOCKS = 396 /* blocks that sum up rows: three on each multiprocessor of an H200 */
};

static int64_t norm_quotient(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t norm_limited(int64_t value, int64_t low, int64_t high)
{
    value = value < high ? value : high;
    return value > low ? value : low;
}

/* Returns the smallest power of 2 that is at least n. */
static int64_t norm_power_of_2(int64_t n)
{
    int64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Returns the elements of one load: 16 bytes if every tensor allows it, else one element. */
static int norm_vector_of(const ek_cuda_norm *norm)
{
    const int width = 16 / (int)ek_dtype_size(norm->dtype);
    const ek_norm_operand *const operands[] = {&norm->x, &norm->dy, &norm->mask, &norm->y};
    const void *const elements[] = {norm->weight, norm->bias};
    bool wide = norm->planes
                    ? norm->inner % width == 0
                    : norm->channels % width == 0 && (norm->inner == 1 || norm->inner % width == 0);
    for (int i = 0; i < 4; i++)
        wide = wide && (uintptr_t)operands[i]->data % 16 == 0 && operands[i]->sample % width == 0 &&
               operands[i]->row % width == 0 && operands[i]->channel % width == 0;
    for (int i = 0; i < 2; i++)
        wide = wide && (!norm->element || (uintptr_t)elements[i] % 16 == 0);
    return wide ? width : 1;
}

/* Cuts rows into about `blocks` blocks. A thread of a part loads from `least` to `most` times. */
static void norm_cut_rows(ek_cuda_norm *norm, int64_t blocks, int64_t least, int64_t most)
{
    ek_norm_cut *cut = &norm->cut;
    const int vector = norm_vector_of(norm);
    const int64_t vectors = norm->channels / vector;
    const int64_t team = norm_limited(norm_power_of_2(vectors), 1, WARP), teams = BLOCK / team;
    *cut = (ek_norm_cut){.team = (int)team, .vector = vector, .rows = 1};
    cut->blocks = norm_quotient(vectors, team);
    int64_t spans = norm_limited(blocks / (cut->blocks * norm->samples), 1,
                                 norm_quotient(norm->rows, teams * least));
    spans = norm_limited(spans, norm_quotient(norm->rows, teams * most), norm->rows);
    cut->span = norm_quotient(norm->rows, spans);
    /* Spans are whole groups of loads, because a rest is loaded one by one, and each load is waited
     * for. */
    if (cut->span > teams * LOADS)
        cut->span = norm_quotient(cut->span, teams * LOADS) * teams * LOADS;
    cut->parts = cut->spans = norm_quotient(norm->rows, cut->span);
    cut->tasks = cut->blocks * cut->parts * norm->samples;
}

static void norm_cut_planes(ek_cuda_norm *norm, int64_t blocks, int64_t least, int64_t most)
{
    ek_norm_cut *cut = &norm->cut;
    const int vector = norm_vector_of(norm);
    const int64_t vectors = norm->inner / vector;
    /* Short planes take one load of each thread, longer ones several. */
    int64_t team = norm_limited(norm_power_of_2(vectors), 1, WARP);
    team = norm_limited(norm_power_of_2(norm_quotient(vectors, APPLY)), team, BLOCK);
    *cut = (ek_norm_cut){.team = (int)team, .vector = vector};
    cut->blocks = norm_quotient(norm->samples * norm->channels, BLOCK / team);
    const int64_t loads = norm_quotient(vectors, team), wanted = norm_quotient(blocks, cut->blocks);
    int64_t strips =
        norm_limited(wanted, 1, norm_quotient(norm->rows, norm_quotient(least, loads)));
    strips = norm_limited(strips, norm_quotient(norm->rows * loads, most), norm->rows);
    int64_t spans = norm_limited(norm_quotient(wanted, strips), 1, norm_quotient(loads, least));
    spans = norm_limited(spans, norm_quotient(loads, most), loads);
    cut->rows = norm_quotient(norm->rows, strips);
    strips = norm_quotient(norm->rows, cut->rows);
    cut->span = norm_quotient(loads, spans) * team * vector;
    cut->spans = norm_quotient(norm->inner, cut->span);
    cut->parts = cut->spans * strips;
    cut->tasks = cut->blocks * cut->parts;
}

void ek_cuda_norm_cut_sums(ek_cuda_norm *norm)
{
    (norm->planes ? norm_cut_planes : norm_cut_rows)(norm, BLOCKS, SHORT_SUM, LONG_SUM);
}

void ek_cuda_norm_cut_line(ek_cuda_norm *norm, int multiprocessors)
{
    (norm->planes ? norm_cut_planes : norm_cut_rows)(norm, (int64_t)multiprocessors * 16, APPLY,
                                                     INT64_MAX / (4 * BLOCK));
}

int64_t ek_cuda_norm_longest_row(ek_dtype dtype)
{
    return (dtype == EK_F64 ? EK_NORM_LONG / 2 : EK_NORM_LONG) * BLOCK;
}

bool ek_cuda_norm_cut_row(ek_cuda_norm *norm)
{
    const int vector = norm_vector_of(norm);
    int64_t values = ek_cuda_norm_longest_row(norm->dtype) / BLOCK;
    if (vector == 1)
        values = EK_NORM_LONG / 2;
    else if (norm->dtype != EK_F64 && norm->inner <= EK_NORM_SHORT * BLOCK)
        values = EK_NORM_SHORT;
    int64_t team = norm_limited(norm_power_of_2(norm_quotient(norm->inner, vector)), 1, WARP);
    team = norm_limited(norm_power_of_2(norm_quotient(norm->inner, values)), team, INT64_MAX);
    if (team > BLOCK)
        return false;
    const int64_t tiles = norm_quotient(norm->samples, BLOCK / team);
    norm->cut =
        (ek_norm_cut){.team = (int)team,
                      .vector = vector,
                      .values = (int)values,
                      .parts = norm_limited(ROW_BLOCKS, norm_quotient(tiles, LONG_SUM), tiles)};
    return true;
}

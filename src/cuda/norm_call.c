/* norm_call.c: the tensors of a normalisation's slot. Each tensor keeps its strides if all tensors
 * have one form. A tensor of another form or dtype is copied. */
#include "cuda/norm_call.h"

typedef enum form {
    FORM_ROWS,    /* channels are innermost, the other dimensions one run of equal strides */
    FORM_PLANES,  /* dimensions from 2 on are row-major without gaps */
    FORM_RUN,     /* dimensions from 1 on are row-major without gaps */
    FORM_RUN_LAST /* as FORM_RUN, with dimension 1 innermost */
} form;

/* ---- geometry ---- */

/* True if dimension d joins the run of `stride`, whose next stride would be *next. Dimensions are
 * visited from the innermost on. */
static bool norm_joins(const ek_tensor *t, int d, int64_t *stride, int64_t *next)
{
    if (t->shape[d] == 1)
        return true;
    if (*next == 0)
        *stride = t->stride[d];
    else if (t->stride[d] != *next)
        return false;
    *next = t->stride[d] * t->shape[d];
    return *next > 0; /* repeated elements are no run */
}

/* The stride of the run that dimensions from 2 on are, in row-major order. With `channels`
 * dimension 1 is part of it (innermost if `last`), with `samples` dimension 0. -1 if they are no
 * run, `otherwise` if they are one element. */
static int64_t norm_run_stride(const ek_tensor *t, bool samples, bool channels, bool last,
                               int64_t otherwise)
{
    int64_t stride = otherwise, next = 0;
    bool run = !channels || !last || norm_joins(t, 1, &stride, &next);
    for (int d = t->ndim - 1; d >= 2; d--)
        run = run && norm_joins(t, d, &stride, &next);
    run = run && (!channels || last || t->ndim < 2 || norm_joins(t, 1, &stride, &next));
    run = run && (!samples || norm_joins(t, 0, &stride, &next));
    return run ? stride : -1;
}

static bool norm_fits(const ek_tensor *t, form f, bool batch)
{
    switch (f) {
    case FORM_ROWS:
        return (t->stride[1] == 1 || t->shape[1] == 1) &&
               norm_run_stride(t, batch, false, false, 0) >= 0;
    case FORM_PLANES:
        return norm_run_stride(t, false, false, false, 1) == 1;
    case FORM_RUN:
        return norm_run_stride(t, false, true, false, 1) == 1;
    case FORM_RUN_LAST:
        return norm_run_stride(t, false, true, true, 1) == 1;
    }
    return false;
}

static bool norm_all_fit(const ek_tensor *const tensors[4], form f, bool batch)
{
    for (int i = 0; i < 4; i++)
        if (tensors[i] && !norm_fits(tensors[i], f, batch))
            return false;
    return true;
}

/* True if a copy can have channels innermost. */
static bool norm_copies_last(const ek_tensor *x)
{
    return x->ndim == 4 || x->ndim == 5;
}

static int64_t norm_inner_of(const ek_tensor *x)
{
    int64_t inner = 1;
    for (int d = 2; d < x->ndim; d++)
        inner *= x->shape[d];
    return inner;
}

bool ek_cuda_norm_has_rows(const ek_tensor *x)
{
    return norm_fits(x, FORM_ROWS, false) && !norm_fits(x, FORM_PLANES, false);
}

static form norm_choose(const ek_tensor *const tensors[4], ek_norm_kind kind)
{
    const ek_tensor *x = tensors[0];
    const bool batch = kind == EK_NORM_BATCH;
    if (kind == EK_NORM_RUNS) {
        bool last = !norm_fits(x, FORM_RUN, batch) && norm_fits(x, FORM_RUN_LAST, batch);
        return last && norm_copies_last(x) ? FORM_RUN_LAST : FORM_RUN;
    }
    if (norm_inner_of(x) == 1)
        return FORM_ROWS;
    if (x->shape[1] == 1 || norm_fits(x, FORM_PLANES, batch))
        return FORM_PLANES;
    return norm_copies_last(x) || norm_all_fit(tensors, FORM_ROWS, batch) ? FORM_ROWS : FORM_PLANES;
}

static ek_norm_operand norm_operand_of(const ek_tensor *t, form f, bool batch, int64_t channel)
{
    const int64_t sample = t->shape[0] > 1 ? t->stride[0] : 0;
    ek_norm_operand operand = {.data = ek_tensor_address(t)};
    if (f == FORM_ROWS) {
        operand.sample = batch ? 0 : sample;
        operand.row = norm_run_stride(t, batch, false, false, 0);
    } else if (f == FORM_PLANES) {
        operand.sample = batch ? 0 : sample;
        operand.row = batch ? sample : 0;
        operand.channel = t->shape[1] > 1 ? t->stride[1] : 0;
    } else {
        operand.sample = sample;
        operand.channel = channel;
    }
    return operand;
}

static void norm_set_shape(ek_cuda_norm *norm, const ek_tensor *x, form f, ek_norm_kind kind,
                           int64_t groups)
{
    const int64_t inner = norm_inner_of(x), samples = x->shape[0], channels = x->shape[1];
    norm->planes = f != FORM_ROWS;
    norm->samples = kind == EK_NORM_BATCH ? 1 : samples;
    norm->channels = kind == EK_NORM_RUNS ? groups : channels;
    norm->each = kind == EK_NORM_CHANNELS ? channels / groups : 1;
    norm->rows = kind == EK_NORM_BATCH ? samples : 1;
    norm->inner = kind == EK_NORM_RUNS ? channels * inner / groups : inner;
    if (f == FORM_ROWS) {
        norm->rows *= inner;
        norm->inner = 1;
    }
}

/* ---- a call ---- */

static bool norm_is_wide(const ek_norm_call *call)
{
    return call->norm.dtype == EK_F64;
}

static ek_dtype norm_computed(const ek_norm_call *call)
{
    return norm_is_wide(call) ? EK_F64 : EK_F32;
}

int ek_cuda_norm_begin(ek_norm_call *call, ek_dev *dev, const char *operation)
{
    call->dev = dev;
    call->operation = operation;
    call->norm = (ek_cuda_norm){.share = 0};
    call->stages = 0;
    call->last = false;
    call->nbytes = 0;
    return ek_cuda_begin(dev, &call->stream);
}

void ek_cuda_norm_free_sums(ek_norm_call *call)
{
    ek_cuda_scratch_free(call->dev, call->norm.first, call->nbytes);
    call->norm.first = call->norm.second = NULL;
    call->nbytes = 0;
}

int ek_cuda_norm_end(ek_norm_call *call, int rc)
{
    rc = ek_cuda_check(call->dev, call->operation, rc);
    ek_cuda_norm_free_sums(call);
    for (int i = 0; i < call->stages; i++)
        rc = ek_stage_end(&call->stage[i], call->dev, call->stage[i].original != NULL, rc);
    return ek_cuda_end(call->dev, &call->stream, call->operation, rc);
}

/* Takes a tensor in the form that kernels use: itself or a copy, which has its values if `load`. */
static int norm_take(ek_norm_call *call, const ek_tensor *t, ek_tensor *stored, bool load,
                     ek_dtype dtype, ek_memory_format format, bool keep, const ek_tensor **taken)
{
    ek_stage *stage = &call->stage[call->stages];
    EK_TRY(ek_stage_begin(stage, call->dev, t, dtype, ek_axis_of(format, t->ndim), keep, load));
    stage->original = stored;
    call->stages++;
    *taken = stage->tensor;
    return 0;
}

int ek_cuda_norm_take(ek_norm_call *call, ek_norm_kind kind, int64_t groups,
                      const ek_norm_tensors *tensors)
{
    const ek_tensor *const all[4] = {tensors->x, tensors->dy, tensors->mask, tensors->y};
    ek_cuda_norm *norm = &call->norm;
    ek_norm_operand *const operands[4] = {&norm->x, &norm->dy, &norm->mask, &norm->y};
    const bool batch = kind == EK_NORM_BATCH;
    const form f = norm_choose(all, kind);
    norm->dtype = tensors->x->dtype;
    for (int i = 1; i < 4; i++)
        if (all[i] && all[i]->dtype != norm->dtype)
            norm->dtype = norm_computed(call);
    norm_set_shape(norm, tensors->x, f, kind, groups);
    call->last = f == FORM_RUN_LAST;
    for (int i = 0; i < 4; i++) {
        const ek_tensor *taken;
        if (!all[i])
            continue;
        EK_TRY(norm_take(call, all[i], i == 3 ? tensors->y : NULL, i != 3, norm->dtype,
                         f == FORM_ROWS || f == FORM_RUN_LAST ? EK_CHANNELS_LAST : EK_CONTIGUOUS,
                         all[i]->dtype == norm->dtype && norm_fits(all[i], f, batch), &taken));
        *operands[i] = norm_operand_of(taken, f, batch, norm->inner);
    }
    return 0;
}

/* ---- parameters and results ---- */

static int norm_take_dense(ek_norm_call *call, const ek_tensor *t, ek_tensor *stored, bool load,
                           void **values)
{
    const ek_tensor *taken = NULL;
    *values = NULL;
    if (!t)
        return 0;
    EK_TRY(
        norm_take(call, t, stored, load, norm_computed(call), EK_CONTIGUOUS,
                  t->dtype == norm_computed(call) && norm_run_stride(t, true, true, false, 1) == 1,
                  &taken));
    *values = ek_tensor_address(taken);
    return 0;
}

int ek_cuda_norm_input(ek_norm_call *call, const ek_tensor *tensor, const void **values)
{
    void *taken;
    EK_TRY(norm_take_dense(call, tensor, NULL, true, &taken));
    *values = taken;
    return 0;
}

int ek_cuda_norm_output(ek_norm_call *call, ek_tensor *tensor, void **values)
{
    return norm_take_dense(call, tensor, tensor, false, values);
}

int ek_cuda_norm_take_update(ek_norm_call *call, const ek_norm_update *update)
{
    ek_norm_updating *into = &call->norm.update;
    if (!update)
        return 0;
    into->inverts = true;
    into->eps = update->eps;
    into->momentum = update->momentum;
    into->unbiased = update->count / (update->count - 1);
    if (update->average)
        into->average = ek_tensor_address(update->average);
    if (update->batches)
        into->batches = ek_tensor_address(update->batches);
    EK_TRY(norm_take_dense(call, update->running_mean, update->running_mean, true,
                           &into->running_mean));
    return norm_take_dense(call, update->running_var, update->running_var, true,
                           &into->running_var);
}

/* Takes a parameter. One per element becomes a batch of one sample, in the order of x's samples. */
static int norm_take_parameter(ek_norm_call *call, const ek_tensor *x, const ek_tensor *t,
                               bool stored, void **values)
{
    const ek_tensor *taken = NULL;
    if (!t || !call->norm.element)
        return norm_take_dense(call, t, stored ? (ek_tensor *)t : NULL, !stored, values);
    ek_tensor *wide = &call->wide[call->stages];
    *wide = (ek_tensor){.dtype = t->dtype,
                        .ndim = t->ndim + 1,
                        .shape = {1},
                        .offset = t->offset,
                        .storage = t->storage};
    for (int d = 0; d < t->ndim; d++) {
        wide->shape[d + 1] = t->shape[d];
        wide->stride[d + 1] = t->stride[d];
    }
    const bool last = call->last && wide->ndim == x->ndim;
    EK_TRY(norm_take(call, wide, stored ? wide : NULL, !stored, norm_computed(call),
                     last ? EK_CHANNELS_LAST : EK_CONTIGUOUS,
                     t->dtype == norm_computed(call) &&
                         norm_fits(wide, last ? FORM_RUN_LAST : FORM_RUN, false),
                     &taken));
    *values = ek_tensor_address(taken);
    return 0;
}

int ek_cuda_norm_parameter(ek_norm_call *call, const ek_tensor *x, const ek_tensor *tensor,
                           const void **values)
{
    void *taken;
    EK_TRY(norm_take_parameter(call, x, tensor, false, &taken));
    *values = taken;
    return 0;
}

int ek_cuda_norm_parameter_output(ek_norm_call *call, const ek_tensor *x, ek_tensor *tensor,
                                  void **values)
{
    return norm_take_parameter(call, x, tensor, true, values);
}

/* ---- cutting ---- */

enum {
    BLOCK = 256, /* threads of a block: launch.cuh's */
    WARP = 32,
    /* about how many blocks a sum has: fixed, for a fixed order of additions */
    BLOCKS = 512,
    SHORT_SUM = 8,  /* least loads that a thread sums up */
    LONG_SUM = 256, /* most loads that a thread sums up in f32 */
    APPLY = 4,
    LOADS = 4 /* loads of a thread that are on their way at once */
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

/* The smallest power of 2 from n on. */
static int64_t norm_power_of_2(int64_t n)
{
    int64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Elements of one load: 16 bytes if every tensor allows it. */
static int norm_vector_of(const ek_norm_call *call)
{
    const ek_cuda_norm *norm = &call->norm;
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
static void norm_cut_rows(ek_norm_call *call, int64_t blocks, int64_t least, int64_t most)
{
    ek_cuda_norm *norm = &call->norm;
    ek_norm_cut *cut = &norm->cut;
    const int vector = norm_vector_of(call);
    const int64_t vectors = norm->channels / vector;
    const int64_t team = norm_limited(norm_power_of_2(vectors), 1, WARP), teams = BLOCK / team;
    *cut = (ek_norm_cut){.team = (int)team, .vector = vector, .rows = 1, .strips = 1};
    cut->blocks = norm_quotient(vectors, team);
    int64_t spans = norm_limited(blocks / (cut->blocks * norm->samples), 1,
                                 norm_quotient(norm->rows, teams * least));
    spans = norm_limited(spans, norm_quotient(norm->rows, teams * most), norm->rows);
    cut->span = norm_quotient(norm->rows, spans);
    /* Spans are whole groups of loads, because the rest is loaded one by one, each waited for. */
    if (cut->span > teams * LOADS)
        cut->span = norm_quotient(cut->span, teams * LOADS) * teams * LOADS;
    cut->parts = cut->spans = norm_quotient(norm->rows, cut->span);
    cut->tasks = cut->blocks * cut->parts * norm->samples;
}

static void norm_cut_planes(ek_norm_call *call, int64_t blocks, int64_t least, int64_t most)
{
    ek_cuda_norm *norm = &call->norm;
    ek_norm_cut *cut = &norm->cut;
    const int vector = norm_vector_of(call);
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
    cut->strips = norm_quotient(norm->rows, cut->rows);
    cut->span = norm_quotient(loads, spans) * team * vector;
    cut->spans = norm_quotient(norm->inner, cut->span);
    cut->parts = cut->spans * cut->strips;
    cut->tasks = cut->blocks * cut->parts;
}

int ek_cuda_norm_cut_sums(ek_norm_call *call, bool direct)
{
    ek_cuda_norm *norm = &call->norm;
    (norm->planes ? norm_cut_planes : norm_cut_rows)(call, BLOCKS, SHORT_SUM, LONG_SUM);
    ek_cuda_norm_free_sums(call);
    if (direct && norm->each == 1 && norm->cut.parts == 1)
        return 0;
    const int64_t count = norm->samples * norm->cut.parts * norm->channels;
    void *room;
    call->nbytes = 2 * (size_t)count * sizeof(double);
    int rc = ek_cuda_scratch(call->dev, call->nbytes, &room);
    norm->first = room;
    norm->second = norm->first ? norm->first + count : NULL;
    return rc;
}

void ek_cuda_norm_cut_elements(ek_norm_call *call)
{
    const int64_t blocks = (int64_t)call->stream.multiprocessors * 16;
    (call->norm.planes ? norm_cut_planes : norm_cut_rows)(call, blocks, APPLY,
                                                          INT64_MAX / (4 * BLOCK));
}

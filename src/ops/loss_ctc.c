/* loss_ctc.c: connectionist temporal classification, by the forward recursion of Graves et al.
 * (2006) in logarithms. Its gradient is the backward recursion, which the graph makes; so there are
 * gradients of any order.
 *
 * A target of S classes has 2 S + 1 states: blanks, with the classes between them. From a frame to
 * the next a path stays in its state, advances by one state, or by two if it skips a blank between
 * different classes. An impossible path has the logarithm LEAST, because the gradients of -infinity
 * would be NaN: every logarithm of a sum stays finite, and an impossible path's share of it is 0.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/autocast.h"
#include "ops/loss.h"

static const double LEAST = -1e30;
/* Sums of possible paths are above this number, sums of impossible ones below. */
static const double POSSIBLE = -1e29;

static const char *const ctc_name = "ctc_loss";

/* The targets as the host knows them. Owned. */
typedef struct ctc_targets {
    int64_t frames, samples, classes, blank;
    int64_t states;  /* of the longest target */
    int64_t *labels; /* (samples, states): the class of each state, blank beyond the target */
    double *skips;   /* (samples, states): 0 if a frame may come from two states before, or LEAST */
    int64_t *lasts;  /* (samples, 2): the last two states */
    double *ends;    /* (samples, 2): 0 if the target may end there, or LEAST */
    int64_t *input_lengths, *target_lengths;
    int64_t least_frames; /* the smallest input length */
} ctc_targets;

static void ctc_free(ctc_targets *targets)
{
    free(targets->labels);
    free(targets->skips);
    free(targets->lasts);
    free(targets->ends);
    free(targets->input_lengths);
    free(targets->target_lengths);
}

/* Reads integers of a tensor on any device, row-major; owned by the caller. NULL with an error. The
 * memory has one element at least. */
static int64_t *ctc_read(const char *name, ek_tensor *x)
{
    x = ek_as_index(ctc_name, name, x);
    int64_t *values = x ? ek_calloc((size_t)ek_count(x) + 1, sizeof *values) : NULL;
    if (values && ek_to_data(x, values, (size_t)ek_count(x) * sizeof *values) < 0) {
        free(values);
        return NULL;
    }
    return values;
}

/* Reads lengths, which are (N), and checks that they are from 0 to `most`. */
static int64_t *ctc_read_lengths(const char *name, ek_tensor *lengths, int64_t samples,
                                 int64_t most)
{
    if (!ek_given(ctc_name, name, lengths) ||
        !ek_of_shape(ctc_name, name, lengths, &EK_SHAPE(samples)))
        return NULL;
    int64_t *values = ctc_read(name, lengths);
    for (int64_t i = 0; values && i < samples; i++)
        if (values[i] < 0 || values[i] > most) {
            EK_FAIL(EK_E_INVALID, "%s: %s has %lld for sample %lld; it must be from 0 to %lld",
                    ctc_name, name, (long long)values[i], (long long)i, (long long)most);
            free(values);
            return NULL;
        }
    return values;
}

/* Writes the states of one sample with `length` classes. */
static int ctc_write_states(ctc_targets *t, int64_t sample, const int64_t *classes, int64_t length)
{
    int64_t *labels = t->labels + sample * t->states;
    double *skips = t->skips + sample * t->states;
    for (int64_t s = 0; s < t->states; s++) {
        labels[s] = t->blank;
        skips[s] = LEAST;
    }
    for (int64_t i = 0; i < length; i++) {
        if (classes[i] < 0 || classes[i] >= t->classes)
            return EK_FAIL(EK_E_INVALID,
                           "%s: targets has %lld in sample %lld; it must be from 0 to %lld",
                           ctc_name, (long long)classes[i], (long long)sample,
                           (long long)t->classes - 1);
        labels[2 * i + 1] = classes[i];
        if (i > 0 && classes[i] != classes[i - 1])
            skips[2 * i + 1] = 0;
    }
    t->lasts[2 * sample] = 2 * length;
    t->lasts[2 * sample + 1] = length > 0 ? 2 * length - 1 : 0;
    t->ends[2 * sample] = 0;
    t->ends[2 * sample + 1] = length > 0 ? 0 : LEAST;
    return 0;
}

/* Fills *t, of which sizes and blank are set. The caller frees it, also after an error. */
static int ctc_read_targets(ctc_targets *t, const ek_ctc_options *options)
{
    const ek_tensor *targets = options->targets;
    if (!ek_given(ctc_name, "targets", targets))
        return ek_error_pending();
    const bool padded = targets->ndim == 2;
    if (targets->ndim != 1 && (!padded || targets->shape[0] != t->samples))
        return EK_FAIL(EK_E_SHAPE,
                       "%s: targets has shape %s; it must be (%lld, S), or have one dimension",
                       ctc_name, EK_SIZE_TEXT(targets), (long long)t->samples);
    const int64_t most = targets->shape[targets->ndim - 1];
    t->input_lengths =
        ctc_read_lengths("input_lengths", options->input_lengths, t->samples, t->frames);
    t->target_lengths =
        t->input_lengths
            ? ctc_read_lengths("target_lengths", options->target_lengths, t->samples, most)
            : NULL;
    int64_t *classes = t->target_lengths ? ctc_read("targets", options->targets) : NULL;
    int64_t longest = 0, sum = 0, start = 0;
    int status = classes ? 0 : ek_error_pending();
    t->least_frames = t->frames;
    for (int64_t i = 0; status == 0 && i < t->samples; i++) {
        longest = t->target_lengths[i] > longest ? t->target_lengths[i] : longest;
        if (t->input_lengths[i] < t->least_frames)
            t->least_frames = t->input_lengths[i];
        sum += t->target_lengths[i];
    }
    if (status == 0 && !padded && sum != most)
        status =
            EK_FAIL(EK_E_INVALID, "%s: targets has %lld classes, but target_lengths add up to %lld",
                    ctc_name, (long long)most, (long long)sum);
    t->states = 2 * longest + 1;
    const size_t count = (size_t)t->samples * (size_t)t->states + 1;
    if (status == 0 && (!(t->labels = ek_calloc(count, sizeof *t->labels)) ||
                        !(t->skips = ek_calloc(count, sizeof *t->skips)) ||
                        !(t->lasts = ek_calloc((size_t)t->samples + 1, 2 * sizeof *t->lasts)) ||
                        !(t->ends = ek_calloc((size_t)t->samples + 1, 2 * sizeof *t->ends))))
        status = ek_error_pending();
    for (int64_t i = 0; status == 0 && i < t->samples; i++) {
        status = ctc_write_states(t, i, classes + start, t->target_lengths[i]);
        start += padded ? most : t->target_lengths[i];
    }
    free(classes);
    return status;
}

/* ---- the recursion ---- */

/* Makes a tensor on x's device of numbers of the host; doubles are converted to x's dtype. */
static ek_tensor *ctc_tensor(const void *data, ek_shape shape, ek_dtype dtype, const ek_tensor *x)
{
    ek_tensor *y = ek_from_data(data, shape, dtype);
    return ek_to_device(dtype == EK_F64 ? ek_to_dtype(y, x->dtype) : y, ek_tensor_device(x));
}

/* Advances the states' sums by a frame, in logarithms: paths of `before` (N, states) advance by 0,
 * 1 or 2 states. `edge` (N, 2) is LEAST; `emitted` has the frame's logarithms of the states. */
static ek_tensor *ctc_step(ek_tensor *before, ek_tensor *edge, ek_tensor *skips, ek_tensor *emitted)
{
    if (!before || !emitted)
        return NULL;
    const int64_t states = before->shape[1];
    ek_tensor *line = ek_cat((ek_tensor *const[]){edge, before}, 2, 1);
    ek_tensor *ways[] = {before, ek_narrow(line, 1, 1, states),
                         ek_add(ek_narrow(line, 1, 0, states), skips)};
    if (!ways[1] || !ways[2])
        return NULL;
    ek_tensor *all = ek_stack(ways, 3, 0);
    return all ? ek_add(ek_logsumexp(all, EK_DIMS(0)), emitted) : NULL;
}

/* Returns a mask (N, 1) bool: 1 for samples with more frames than `frame`. */
static ek_tensor *ctc_counts(ek_tensor *lengths, int64_t frame)
{
    return lengths ? ek_gt_scalar(lengths, (double)frame) : NULL;
}

/* Advances `paths`, the sums before the first frame, by all frames. */
static ek_tensor *ctc_frames(const ctc_targets *t, ek_tensor *paths, ek_tensor *edge,
                             ek_tensor *skips, ek_tensor *emitted, ek_tensor *lengths)
{
    const int count = (int)t->frames;
    if (!paths || !emitted || count == 0)
        return emitted ? paths : NULL;
    ek_tensor **frames = ek_calloc((size_t)count, sizeof *frames);
    if (!frames)
        return NULL;
    if (ek_unbind(emitted, 0, frames, count) < 0)
        paths = NULL;
    for (int frame = 0; paths && frame < count; frame++) {
        ek_tensor *later = ctc_step(paths, edge, skips, frames[frame]);
        if (frame >= t->least_frames)
            later = ek_where(ctc_counts(lengths, frame), later, paths);
        paths = later;
    }
    free(frames);
    return paths;
}

/* Returns the logarithm of each sample's probability, (N). x is (T, N, C). */
static ek_tensor *ctc_forward(ek_tensor *x, const ctc_targets *t)
{
    const int64_t n = t->samples, states = t->states;
    ek_tensor *labels = ctc_tensor(t->labels, EK_SHAPE(1, n, states), EK_I64, x);
    ek_tensor *skips = ctc_tensor(t->skips, EK_SHAPE(n, states), EK_F64, x);
    ek_tensor *lasts = ctc_tensor(t->lasts, EK_SHAPE(n, 2), EK_I64, x);
    ek_tensor *ends = ctc_tensor(t->ends, EK_SHAPE(n, 2), EK_F64, x);
    ek_tensor *lengths = ctc_tensor(t->input_lengths, EK_SHAPE(n, 1), EK_I64, x);
    ek_shape edge_shape = EK_SHAPE(n, 2), one_state = EK_SHAPE(n, 1);
    ek_shape rest_shape = EK_SHAPE(n, states - 1);
    ek_tensor *edge = ek_filled(ek_tensor_dev(x), x->dtype, &edge_shape, LEAST);
    ek_tensor *start = ek_filled(ek_tensor_dev(x), x->dtype, &one_state, 0);
    ek_tensor *rest = ek_filled(ek_tensor_dev(x), x->dtype, &rest_shape, LEAST);
    if (!labels || !skips || !lasts || !ends || !lengths || !edge || !start || !rest)
        return NULL;
    labels = ek_expand(labels, EK_SHAPE(t->frames, n, states));
    ek_tensor *emitted = ek_gather_dim(ek_clamp(x, LEAST, (double)INFINITY), 2, labels);
    /* All paths begin in the first state, so that the first frame reaches the first two states. */
    ek_tensor *paths = ek_cat((ek_tensor *const[]){start, rest}, 2, 1);
    paths = ctc_frames(t, paths, edge, skips, emitted, lengths);
    ek_tensor *last = ek_add(ek_gather_dim(paths, 1, lasts), ends);
    return last ? ek_logsumexp(last, EK_DIMS(1)) : NULL;
}

/* Returns the losses from the sums. Samples without a possible path get infinity, or 0
 * with zero_infinity. */
static ek_tensor *ctc_loss_of(ek_tensor *sums, bool zero_infinity)
{
    if (!sums)
        return NULL;
    ek_tensor *possible = ek_gt_scalar(sums, POSSIBLE);
    ek_tensor *instead = ek_number_like(sums, zero_infinity ? 0 : (double)INFINITY);
    /* A NaN isn't above the bound, and stays. */
    ek_tensor *kept = ek_logical_or(possible, ek_isnan(sums));
    return ek_where(kept, ek_neg(sums), instead);
}

/* Returns the mean of the losses, each divided by the length of its target, at least 1. */
static ek_tensor *ctc_mean(ek_tensor *losses, const ctc_targets *t)
{
    for (int64_t i = 0; i < t->samples; i++)
        if (t->target_lengths[i] < 1)
            t->target_lengths[i] = 1;
    ek_tensor *lengths = ctc_tensor(t->target_lengths, EK_SHAPE(t->samples), EK_I64, losses);
    ek_tensor *quotients = ek_div(losses, ek_to_dtype(lengths, losses->dtype));
    return quotients ? ek_mean(quotients) : NULL;
}

static ek_tensor *ctc_checked(const ek_ctc_options *options)
{
    ek_tensor *x = options->log_probs;
    ctc_targets t = {.blank = options->blank};
    if (!ek_floating(ctc_name, "log_probs", x) ||
        !ek_loss_check_reduction(ctc_name, options->reduction))
        return NULL;
    if (x->ndim != 3 || x->shape[2] < 1)
        return EK_REFUSE(EK_E_SHAPE, "%s: log_probs has shape %s and must be %s", ctc_name,
                         EK_SIZE_TEXT(x), options->batch_first ? "(N, T, C)" : "(T, N, C)");
    const ek_dtype dtype = x->dtype;
    x = options->batch_first ? ek_transpose(x, 0, 1) : x;
    x = ek_to_dtype(x, ek_dtype_wide(dtype));
    if (!x)
        return NULL;
    t.frames = x->shape[0], t.samples = x->shape[1], t.classes = x->shape[2];
    if (t.blank < 0 || t.blank >= t.classes)
        return EK_REFUSE(EK_E_INVALID, "%s: blank is %lld; it must be from 0 to %lld", ctc_name,
                         (long long)t.blank, (long long)t.classes - 1);
    ek_tensor *loss = NULL;
    if (ctc_read_targets(&t, options) == 0)
        loss = ctc_loss_of(ctc_forward(x, &t), options->zero_infinity);
    if (loss)
        loss = options->reduction == EK_MEAN ? ctc_mean(loss, &t)
                                             : ek_loss_reduce(loss, options->reduction);
    ctc_free(&t);
    return ek_to_dtype(loss, dtype);
}

ek_tensor *ek_f_ctc_loss_with(ek_ctc_options options)
{
    ek_scope scope = ek_scope_begin();
    options.log_probs = ek_autocast_wide(options.log_probs);
    return ek_scope_return(&scope, ctc_checked(&options));
}

/* lbfgs.c: L-BFGS (Nocedal 1980; Liu and Nocedal 1989), as torch.optim.LBFGS.
 *
 * All parameters are one vector x, in the order of the group, on the device of the first. From the
 * last steps s and the changes y of the gradient g that they made, two loops make a direction
 * d = -H g, for H close to the inverse of the second derivatives; x moves by t d. A step of the
 * optimizer is several such iterations, and each of them evaluates the closure at least once.
 *
 * The road of a step, from the top down:
 *
 *     ek_step_closure     step.c: the public call
 *     ek_lbfgs_minimise   here: keeps the parameters, so that an error can bring them back
 *     lbfgs_iterate_all   iterations, until one of PyTorch's conditions ends them
 *     lbfgs_learn         a new pair (s, y) of the history
 *     lbfgs_direction     the two loops
 *     lbfgs_move          x + t d; with strong Wolfe conditions, t by a search (line_search.c) */
#include "optim/lbfgs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/line_search.h"

/* One step of the optimizer. */
typedef struct lbfgs_run {
    ek_optimizer *optimizer;
    const ek_optimizer_options *options;
    ek_closure *closure;
    void *user;
    ek_memory_category category; /* the caller's, which closures allocate in */
    bool has_moved;              /* parameters were written to */
    ek_lbfgs state;              /* a copy; becomes the optimizer's if the step ends well */
    ek_tensor *x;                /* the parameters before the iteration, in the scope */
    double loss;                 /* at the parameters as they are, as far as it was evaluated */
    ek_tensor *gradient;         /* one reference */
    int64_t evaluations;         /* this step's */
    bool has_converged;          /* no element of the gradient exceeds tolerance_grad */
} lbfgs_run;

/* ---- the state ---- */

void ek_lbfgs_clear(ek_lbfgs *self)
{
    ek_release(self->direction);
    ek_release(self->gradient);
    for (int i = 0; i < self->count; i++) {
        ek_release(self->pairs[i].y);
        ek_release(self->pairs[i].s);
    }
    free(self->pairs);
    *self = (ek_lbfgs){0};
}

/* A copy that shares the tensors, which are never written to. */
static int lbfgs_copy(const ek_lbfgs *self, ek_lbfgs *copy)
{
    *copy = *self;
    copy->pairs = ek_calloc((size_t)self->count + 1, sizeof *copy->pairs);
    if (!copy->pairs) {
        *copy = (ek_lbfgs){0};
        return EK_E_NO_MEMORY;
    }
    copy->room = self->count + 1;
    for (int i = 0; i < self->count; i++) {
        copy->pairs[i] = self->pairs[i];
        ek_keep(copy->pairs[i].y);
        ek_keep(copy->pairs[i].s);
    }
    if (copy->direction)
        ek_keep(copy->direction);
    if (copy->gradient)
        ek_keep(copy->gradient);
    return 0;
}

/* ---- vectors ---- */

int64_t ek_lbfgs_count(const ek_optimizer *optimizer)
{
    int64_t count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        count += ek_count(optimizer->slots[i]->parameter);
    return count;
}

/* Reads the number of a tensor of one element. NULL is the pending error. */
static int lbfgs_number(ek_tensor *tensor, double *number)
{
    return tensor ? ek_item(tensor, number) : ek_error_pending();
}

static int lbfgs_dot(ek_tensor *a, ek_tensor *b, double *dot)
{
    ek_scope scope = ek_scope_begin();
    int status = lbfgs_number(ek_sum(ek_mul(a, b)), dot);
    ek_scope_end(&scope);
    return status;
}

/* The largest element of |x|, and their sum. */
static int lbfgs_measure(ek_tensor *x, double *largest, double *sum)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *sizes = ek_abs(x);
    int status = lbfgs_number(ek_max(sizes), largest);
    if (status >= 0 && sum)
        status = lbfgs_number(ek_sum(sizes), sum);
    ek_scope_end(&scope);
    return status;
}

/* Parameters may change in closures: they may be moved, or sharded by a wrapper's first forward. */
static int lbfgs_check(const ek_optimizer *optimizer)
{
    const ek_tensor *first = optimizer->slot_count ? optimizer->slots[0]->parameter : NULL;
    char texts[2][200];
    if (!first || ek_lbfgs_count(optimizer) == 0)
        return EK_FAIL(EK_E_INVALID, "lbfgs: there are no parameters");
    for (int i = 0; i < optimizer->slot_count; i++) {
        const ek_tensor *parameter = optimizer->slots[i]->parameter;
        if (parameter->dtype != first->dtype || !ek_dtype_is_floating(parameter->dtype) ||
            ek_dtype_is_narrow(parameter->dtype))
            return EK_FAIL(EK_E_DTYPE,
                           "lbfgs: all parameters have to be f32, or all f64, but one is %s, the "
                           "first %s",
                           ek_tensor_text(parameter, texts[0]), ek_tensor_text(first, texts[1]));
        if (ek_leaf_shards(parameter))
            return EK_FAIL(
                EK_E_STATE,
                "lbfgs: %s is sharded, over devices or ranks, but a step needs the whole "
                "vector of all parameters; make the wrapper without .shard",
                ek_tensor_text(parameter, texts[0]));
    }
    return 0;
}

/* The parameters or their gradients as one vector, in the scope. A gradient that is absent is
 * zeros. */
static ek_tensor *lbfgs_gather(const ek_optimizer *optimizer, bool gradients)
{
    const ek_tensor *first = optimizer->slots[0]->parameter;
    ek_tensor *vector = ek_zeros(EK_SHAPE(ek_lbfgs_count(optimizer)), first->dtype,
                                 .device = ek_tensor_device(first));
    ek_scope scope = ek_scope_begin();
    bool written = vector != NULL;
    int64_t at = 0;
    for (int i = 0; i < optimizer->slot_count && written; i++) {
        ek_tensor *parameter = optimizer->slots[i]->parameter;
        ek_tensor *part = gradients ? ek_tensor_grad(parameter) : parameter;
        const int64_t count = ek_count(parameter);
        if (part && count > 0) {
            part = ek_reshape(ek_to_device(part, ek_tensor_device(first)), EK_SHAPE(-1));
            written = ek_copy_(ek_narrow(vector, 0, at, count), part) != NULL;
        }
        at += count;
    }
    ek_scope_end(&scope);
    return written ? vector : NULL;
}

/* Writes x + t d to the parameters. */
static int lbfgs_move(lbfgs_run *run, double t)
{
    const ek_optimizer *optimizer = run->optimizer;
    ek_scope scope = ek_scope_begin();
    ek_tensor *vector = ek_add_scaled(run->x, run->state.direction, t);
    run->has_moved = true;
    int64_t at = 0;
    int status = vector ? 0 : ek_error_pending();
    for (int i = 0; i < optimizer->slot_count && status >= 0; i++) {
        ek_tensor *parameter = optimizer->slots[i]->parameter;
        const int64_t count = ek_count(parameter);
        if (count > 0) {
            ek_tensor *part =
                ek_to_device(ek_narrow(vector, 0, at, count), ek_tensor_device(parameter));
            part = ek_reshape(part, ek_tensor_shape(parameter));
            status = ek_copy_(parameter, part) ? 0 : ek_error_pending();
        }
        at += count;
    }
    ek_scope_end(&scope);
    return status;
}

/* ---- evaluating ---- */

/* A step's vectors lie where its first evaluation left the parameters, so that later ones must not
 * move them. */
static int lbfgs_check_place(const lbfgs_run *run)
{
    const ek_tensor *first = run->optimizer->slots[0]->parameter, *gradient = run->gradient;
    char texts[2][200];
    if (!gradient ||
        (ek_tensor_dev(gradient) == ek_tensor_dev(first) && gradient->dtype == first->dtype))
        return 0;
    return EK_FAIL(EK_E_DEVICE,
                   "lbfgs: the parameters have moved within a step, the first one is %s, but the "
                   "step began with %s; move the model between steps",
                   ek_tensor_text(first, texts[0]), ek_tensor_text(gradient, texts[1]));
}

/* The loss and the gradient, with one reference, of the parameters as they are. */
static int lbfgs_evaluate(lbfgs_run *run, double *loss, ek_tensor **gradient)
{
    const int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    *gradient = NULL;
    ek_set_grad_enabled(true);
    ek_memory_set_category(run->category);
    int status = run->closure(loss, run->user);
    ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_set_grad_enabled(false);
    if (before == 0)
        status = ek_error_outcome(status);
    if (status < 0)
        ek_error_prefix(before, "lbfgs");
    if (status >= 0)
        status = lbfgs_check(run->optimizer);
    if (status >= 0)
        status = lbfgs_check_place(run);
    ek_tensor *gathered = status >= 0 ? lbfgs_gather(run->optimizer, true) : NULL;
    if (gathered)
        *gradient = ek_keep(gathered);
    ek_scope_end(&scope);
    run->evaluations++;
    return status < 0 ? status : *gradient ? 0 : ek_error_pending();
}

/* Evaluates at x + t d (ek_line_evaluate). */
static int lbfgs_evaluate_at(double t, ek_line_point *point, void *user)
{
    lbfgs_run *run = user;
    ek_scope scope = ek_scope_begin();
    int status = lbfgs_move(run, t);
    if (status >= 0)
        status = lbfgs_evaluate(run, &point->loss, &point->gradient);
    if (status >= 0)
        status = lbfgs_dot(point->gradient, run->state.direction, &point->slope);
    ek_scope_end(&scope);
    return status;
}

/* ---- directions ---- */

static void lbfgs_forget_oldest(ek_lbfgs *state)
{
    ek_release(state->pairs[0].y);
    ek_release(state->pairs[0].s);
    memmove(state->pairs, state->pairs + 1, (size_t)--state->count * sizeof *state->pairs);
}

/* Adds the last iteration's step and change of the gradient to the history, if the loss curves
 * upwards between the two points. */
static int lbfgs_learn(lbfgs_run *run)
{
    ek_lbfgs *state = &run->state;
    double curvature, square;
    ek_tensor *y = ek_sub(run->gradient, state->gradient),
              *s = ek_mul_scalar(state->direction, state->t);
    if (!y || !s)
        return ek_error_pending();
    EK_TRY(lbfgs_dot(y, s, &curvature));
    if (!(curvature > 1e-10))
        return 0;
    EK_TRY(lbfgs_dot(y, y, &square));
    EK_TRY(ek_grow(&state->pairs, &state->room, state->count + 1));
    while (state->count > 0 && state->count >= run->options->history_size)
        lbfgs_forget_oldest(state);
    state->pairs[state->count++] = (ek_lbfgs_pair){ek_keep(y), ek_keep(s), 1 / curvature};
    state->scale = curvature / square;
    return 0;
}

/* -H g by the two loops over the history; `weights` has room for a number per pair. */
static ek_tensor *lbfgs_direction(const lbfgs_run *run, double *weights)
{
    const ek_lbfgs *state = &run->state;
    ek_tensor *d = ek_neg(run->gradient);
    double dot;
    for (int i = state->count - 1; i >= 0 && d; i--) {
        const ek_lbfgs_pair *pair = &state->pairs[i];
        if (lbfgs_dot(pair->s, d, &dot) < 0)
            return NULL;
        weights[i] = dot * pair->ro;
        d = ek_add_scaled_(d, pair->y, -weights[i]);
    }
    d = d ? ek_mul_scalar_(d, state->scale) : NULL;
    for (int i = 0; i < state->count && d; i++) {
        const ek_lbfgs_pair *pair = &state->pairs[i];
        if (lbfgs_dot(pair->y, d, &dot) < 0)
            return NULL;
        d = ek_add_scaled_(d, pair->s, weights[i] - dot * pair->ro);
    }
    return d;
}

/* Makes the next direction, and notes where it begins. */
static int lbfgs_turn(lbfgs_run *run)
{
    ek_lbfgs *state = &run->state;
    if (state->iterations++ == 0)
        state->scale = 1;
    else
        EK_TRY(lbfgs_learn(run));
    double *weights = ek_calloc((size_t)state->count + 1, sizeof *weights);
    if (!weights)
        return EK_E_NO_MEMORY;
    ek_tensor *d = lbfgs_direction(run, weights);
    free(weights);
    if (!d)
        return ek_error_pending();
    ek_lbfgs_replace(&state->direction, d);
    ek_lbfgs_replace(&state->gradient, run->gradient);
    state->loss = run->loss;
    return 0;
}

/* ---- steps ---- */

static int lbfgs_judge(lbfgs_run *run)
{
    double largest;
    EK_TRY(lbfgs_measure(run->gradient, &largest, NULL));
    run->has_converged = largest <= run->options->tolerance_grad;
    return 0;
}

/* Moves to x + t d for a t that the search finds. */
static int lbfgs_search(lbfgs_run *run, double slope, double longest)
{
    ek_lbfgs *state = &run->state;
    const ek_line line = {.start = {0, run->loss, slope, run->gradient},
                          .first = state->t,
                          .longest = longest,
                          .evaluate = lbfgs_evaluate_at,
                          .user = run};
    ek_line_point found;
    EK_TRY(ek_line_search(&line, &found));
    state->t = found.t;
    run->loss = found.loss;
    ek_lbfgs_replace(&run->gradient, found.gradient);
    ek_line_point_clear(&found);
    return lbfgs_move(run, state->t);
}

/* Moves by t d. The last iteration of a step doesn't evaluate there, because in a stochastic
 * setting the next step begins with another loss. */
static int lbfgs_walk(lbfgs_run *run, bool is_last)
{
    ek_lbfgs *state = &run->state;
    ek_tensor *gradient;
    EK_TRY(lbfgs_move(run, state->t));
    if (is_last)
        return 0;
    EK_TRY(lbfgs_evaluate(run, &run->loss, &gradient));
    ek_lbfgs_replace(&run->gradient, gradient);
    ek_release(gradient);
    return 0;
}

/* One iteration. *ends tells if it is to be the step's last. */
static int lbfgs_iterate(lbfgs_run *run, bool is_last, bool *ends)
{
    const ek_optimizer_options *o = run->options;
    ek_lbfgs *state = &run->state;
    double slope, sum, longest;
    *ends = true;
    EK_TRY(lbfgs_turn(run));
    state->t = o->lr;
    if (state->iterations == 1) {
        EK_TRY(lbfgs_measure(run->gradient, &longest, &sum));
        state->t *= fmin(1, 1 / sum);
    }
    EK_TRY(lbfgs_dot(run->gradient, state->direction, &slope));
    if (slope > -o->tolerance_change)
        return 0;
    run->x = lbfgs_gather(run->optimizer, false);
    if (!run->x)
        return ek_error_pending();
    EK_TRY(lbfgs_measure(state->direction, &longest, NULL));
    EK_TRY(o->line_search == EK_STRONG_WOLFE ? lbfgs_search(run, slope, longest)
                                             : lbfgs_walk(run, is_last));
    EK_TRY(lbfgs_judge(run));
    *ends = is_last || run->evaluations >= o->max_eval || run->has_converged ||
            fabs(state->t) * longest <= o->tolerance_change ||
            fabs(run->loss - state->loss) < o->tolerance_change;
    return 0;
}

static int lbfgs_iterate_all(lbfgs_run *run, double *loss)
{
    EK_TRY(lbfgs_evaluate(run, &run->loss, &run->gradient));
    /* Parameters may have moved since the last step. */
    EK_TRY(ek_lbfgs_follow(&run->state, run->gradient));
    *loss = run->loss;
    EK_TRY(lbfgs_judge(run));
    bool ends = run->has_converged;
    for (int i = 1; i <= run->options->max_iter && !ends; i++) {
        ek_scope scope = ek_scope_begin();
        int status = lbfgs_iterate(run, i == run->options->max_iter, &ends);
        ek_scope_end(&scope);
        EK_TRY(status);
    }
    return 0;
}

/* The step's state becomes the optimizer's. */
static void lbfgs_commit(lbfgs_run *run)
{
    ek_lbfgs *state = run->optimizer->memory, before = *state;
    run->state.evaluations += run->evaluations;
    *state = run->state;
    run->state = before;
    for (int i = 0; i < run->optimizer->slot_count; i++)
        run->optimizer->slots[i]->step = state->iterations;
}

/* Brings the parameters back. The error that is pending stays. */
static void lbfgs_undo(const ek_optimizer *optimizer, ek_tensor *const *kept)
{
    ek_error_record reason;
    ek_error_take(&reason);
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_tensor *parameter = optimizer->slots[i]->parameter;
        ek_copy_(parameter, ek_to_device(kept[i], ek_tensor_device(parameter)));
    }
    ek_error_clear();
    ek_error_raise(&reason);
}

/* Copies of all parameters, in the scope; NULL with an error. */
static ek_tensor **lbfgs_keep(const ek_optimizer *optimizer)
{
    ek_tensor **kept = ek_calloc((size_t)optimizer->slot_count, sizeof *kept);
    for (int i = 0; kept && i < optimizer->slot_count; i++)
        if (!(kept[i] = ek_clone(optimizer->slots[i]->parameter))) {
            free(kept);
            kept = NULL;
        }
    return kept;
}

int ek_lbfgs_minimise(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss)
{
    EK_TRY(lbfgs_check(optimizer));
    lbfgs_run run = {.optimizer = optimizer,
                     .options = &optimizer->groups[0],
                     .closure = closure,
                     .user = user};
    const ek_lbfgs *state = ek_lbfgs_of(optimizer);
    EK_TRY(state ? lbfgs_copy(state, &run.state) : EK_E_NO_MEMORY);
    bool enabled = ek_set_grad_enabled(false);
    run.category = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_scope scope = ek_scope_begin();
    ek_tensor **kept = lbfgs_keep(optimizer);
    int status = kept ? lbfgs_iterate_all(&run, loss) : ek_error_pending();
    if (status >= 0)
        lbfgs_commit(&run);
    else if (run.has_moved)
        lbfgs_undo(optimizer, kept);
    free(kept);
    ek_release(run.gradient);
    ek_lbfgs_clear(&run.state);
    ek_scope_end(&scope);
    ek_memory_set_category(run.category);
    ek_set_grad_enabled(enabled);
    return status;
}

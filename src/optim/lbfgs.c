/* lbfgs.c: L-BFGS (Nocedal 1980; Liu and Nocedal 1989), as torch.optim.LBFGS.
 *
 * All parameters are one vector x, in the order of the group, on the device of the first. From the
 * last steps s, and the changes y of the gradient g between their ends, two loops compute a
 * direction d = -H g, where H is close to the inverse of the second derivatives. Then x moves by
 * t d. A step of the optimizer has several such iterations. Each iteration evaluates the closure at
 * least once.
 *
 * The road of a step, from the top down:
 *
 *     ek_step_closure        step.c: the public call
 *     ek_lbfgs_minimise      here: copies the parameters, so that an error can restore them
 *     lbfgs_iterate_all      iterates until one of PyTorch's conditions ends the step
 *     lbfgs_extend_history   adds a pair (s, y) to the history
 *     lbfgs_direction        computes d by the two loops
 *     lbfgs_move             writes x + t d; with strong Wolfe conditions, line_search.c chooses t
 */
#include "optim/lbfgs.h"

#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/line_search.h"

/* One step of the optimizer. */
typedef struct lbfgs_run {
    ek_optimizer *optimizer;
    const ek_optimizer_options *options;
    ek_closure *closure;
    void *user;
    ek_memory_category category; /* the caller's, in which closures allocate */
    bool has_moved;              /* true if parameters were written */
    ek_lbfgs state;              /* a copy, which becomes the optimizer's if the step succeeds */
    ek_tensor *x;                /* the parameters before the iteration, in the scope */
    double loss;                 /* the last evaluation's */
    ek_tensor *gradient;         /* the last evaluation's; one reference */
    int64_t evaluations;         /* count of this step's */
    bool has_converged;          /* true if no element of the gradient exceeds tolerance_grad */
} lbfgs_run;

/* ---- vectors ---- */

int64_t ek_lbfgs_count(const ek_optimizer *optimizer)
{
    int64_t count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        count += ek_count(optimizer->slots[i]->parameter);
    return count;
}

/* Reads the number of a tensor of one element. If `tensor` is NULL, returns the pending error. */
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

/* Writes the largest element of |x| and, if `sum` isn't NULL, the sum of |x|. */
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

/* Checks the parameters. Closures may change them: a closure may move the model, or call a wrapper
 * whose first forward shards the parameters. */
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
                "vector of all parameters; make the wrapper without .shard and .offload",
                ek_tensor_text(parameter, texts[0]));
    }
    return 0;
}

/* Returns the parameters or their gradients as one vector, in the scope. An absent gradient is
 * taken as zeros. */
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

/* Checks that no evaluation but a step's first has moved the parameters to another device or dtype.
 * The step's vectors lie where the first evaluation left the parameters. */
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

/* Writes the loss, and the gradient with one reference, at the parameters as they are now. */
static int lbfgs_evaluate(lbfgs_run *run, double *loss, ek_tensor **gradient)
{
    const int before = ek_error_status();
    ek_scope scope = ek_scope_begin();
    *gradient = NULL;
    ek_memory_set_category(run->category);
    int status = ek_closure_evaluate(run->closure, run->user, loss);
    ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    if (status < 0)
        ek_error_prefix(before, "lbfgs");
    if (status >= 0)
        status = lbfgs_check(run->optimizer);
    if (status >= 0)
        status = lbfgs_check_place(run);
    if (status >= 0)
        status = ek_lbfgs_replace(gradient, lbfgs_gather(run->optimizer, true));
    ek_scope_end(&scope);
    run->evaluations++;
    return status;
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

/* Adds the last iteration's step and change of the gradient to the history, if the loss curves
 * upwards between the two points. */
static int lbfgs_extend_history(lbfgs_run *run)
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
    while (state->y.count > 0 && state->y.count >= run->options->history_size)
        ek_lbfgs_drop_oldest(state);
    state->scale = curvature / square;
    return ek_lbfgs_append(state, y, s, 1 / curvature);
}

/* Returns -H g by the two loops over the history. `weights` has room for a number per pair. */
static ek_tensor *lbfgs_direction(const lbfgs_run *run, double *weights)
{
    const ek_lbfgs *state = &run->state;
    ek_tensor *const *y = state->y.tensors, *const *s = state->s.tensors;
    ek_tensor *d = ek_neg(run->gradient);
    double dot;
    for (int i = state->y.count - 1; i >= 0 && d; i--) {
        if (lbfgs_dot(s[i], d, &dot) < 0)
            return NULL;
        weights[i] = dot * state->ro[i];
        d = ek_add_scaled_(d, y[i], -weights[i]);
    }
    d = d ? ek_mul_scalar_(d, state->scale) : NULL;
    for (int i = 0; i < state->y.count && d; i++) {
        if (lbfgs_dot(y[i], d, &dot) < 0)
            return NULL;
        d = ek_add_scaled_(d, s[i], weights[i] - dot * state->ro[i]);
    }
    return d;
}

/* Computes the next direction, and notes where the iteration begins. */
static int lbfgs_begin_iteration(lbfgs_run *run)
{
    ek_lbfgs *state = &run->state;
    if (state->iterations++ == 0)
        state->scale = 1;
    else
        EK_TRY(lbfgs_extend_history(run));
    double *weights = ek_calloc((size_t)state->y.count + 1, sizeof *weights);
    if (!weights)
        return EK_E_NO_MEMORY;
    int status = ek_lbfgs_replace(&state->direction, lbfgs_direction(run, weights));
    free(weights);
    EK_TRY(status);
    state->loss = run->loss;
    return ek_lbfgs_replace(&state->gradient, run->gradient);
}

/* ---- steps ---- */

static int lbfgs_check_converged(lbfgs_run *run)
{
    double largest;
    EK_TRY(lbfgs_measure(run->gradient, &largest, NULL));
    run->has_converged = largest <= run->options->tolerance_grad;
    return 0;
}

/* Moves to x + t d for a t that the search finds. */
static int lbfgs_move_by_search(lbfgs_run *run, double slope, double longest)
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
    int status = ek_lbfgs_replace(&run->gradient, found.gradient);
    ek_line_point_clear(&found);
    return status < 0 ? status : lbfgs_move(run, state->t);
}

/* Moves to x + t d. The last iteration of a step doesn't evaluate there, because in a stochastic
 * setting the next step begins with another loss. */
static int lbfgs_move_by_rate(lbfgs_run *run, bool is_last)
{
    ek_tensor *gradient;
    EK_TRY(lbfgs_move(run, run->state.t));
    if (is_last)
        return 0;
    EK_TRY(lbfgs_evaluate(run, &run->loss, &gradient));
    ek_release(run->gradient);
    run->gradient = gradient;
    return 0;
}

/* Makes one iteration. Writes whether the iteration ends the step. */
static int lbfgs_iterate(lbfgs_run *run, bool is_last, bool *ends)
{
    const ek_optimizer_options *o = run->options;
    ek_lbfgs *state = &run->state;
    double slope, sum, longest;
    *ends = true;
    EK_TRY(lbfgs_begin_iteration(run));
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
    EK_TRY(o->line_search == EK_STRONG_WOLFE ? lbfgs_move_by_search(run, slope, longest)
                                             : lbfgs_move_by_rate(run, is_last));
    EK_TRY(lbfgs_check_converged(run));
    *ends = is_last || run->evaluations >= o->max_eval || run->has_converged ||
            fabs(state->t) * longest <= o->tolerance_change ||
            fabs(run->loss - state->loss) < o->tolerance_change;
    return 0;
}

/* Makes the iterations of a step. The state is copied to where the parameters are, because they
 * may have moved since the last step. */
static int lbfgs_iterate_all(lbfgs_run *run, double *loss)
{
    EK_TRY(lbfgs_evaluate(run, &run->loss, &run->gradient));
    EK_TRY(ek_lbfgs_copy(run->optimizer->memory, run->gradient, &run->state));
    *loss = run->loss;
    EK_TRY(lbfgs_check_converged(run));
    bool ends = run->has_converged;
    for (int i = 1; i <= run->options->max_iter && !ends; i++) {
        ek_scope scope = ek_scope_begin();
        int status = lbfgs_iterate(run, i == run->options->max_iter, &ends);
        ek_scope_end(&scope);
        EK_TRY(status);
    }
    return 0;
}

/* Exchanges the step's state for the optimizer's. */
static void lbfgs_commit(lbfgs_run *run)
{
    ek_lbfgs *state = run->optimizer->memory, before = *state;
    run->state.evaluations += (double)run->evaluations;
    *state = run->state;
    run->state = before;
    for (int i = 0; i < run->optimizer->slot_count; i++)
        run->optimizer->slots[i]->step = state->iterations;
}

/* Restores the parameters. The pending error stays pending. */
static void lbfgs_restore(const ek_optimizer *optimizer, ek_tensor *const *copies)
{
    ek_error_record reason;
    ek_error_take(&reason);
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_tensor *parameter = optimizer->slots[i]->parameter;
        ek_copy_(parameter, ek_to_device(copies[i], ek_tensor_device(parameter)));
    }
    ek_error_clear();
    ek_error_raise(&reason);
}

/* Returns copies of all parameters, in the scope, in an array that the caller frees; NULL with an
 * error. */
static ek_tensor **lbfgs_copy_parameters(const ek_optimizer *optimizer)
{
    ek_tensor **copies = ek_calloc((size_t)optimizer->slot_count, sizeof *copies);
    for (int i = 0; copies && i < optimizer->slot_count; i++)
        if (!(copies[i] = ek_clone(optimizer->slots[i]->parameter))) {
            free(copies);
            copies = NULL;
        }
    return copies;
}

int ek_lbfgs_minimise(ek_optimizer *optimizer, ek_closure *closure, void *user, double *loss)
{
    EK_TRY(lbfgs_check(optimizer));
    lbfgs_run run = {.optimizer = optimizer,
                     .options = &optimizer->groups[0],
                     .closure = closure,
                     .user = user};
    bool enabled = ek_set_grad_enabled(false);
    run.category = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_scope scope = ek_scope_begin();
    ek_tensor **copies = lbfgs_copy_parameters(optimizer);
    int status = copies ? lbfgs_iterate_all(&run, loss) : ek_error_pending();
    if (status >= 0)
        lbfgs_commit(&run);
    else if (run.has_moved)
        lbfgs_restore(optimizer, copies);
    free(copies);
    ek_release(run.gradient);
    ek_lbfgs_clear(&run.state);
    ek_scope_end(&scope);
    ek_memory_set_category(run.category);
    ek_set_grad_enabled(enabled);
    return status;
}

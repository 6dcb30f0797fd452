/* line_search.c: the line search of Nocedal and Wright (Numerical Optimization, 2006, algorithms
 * 3.5 and 3.6), with cubic interpolation. Constants and safeguards are those of torch.optim.LBFGS.
 *
 *     loss(t) <= loss(0) + DECREASE t slope(0)   sufficient decrease
 *     |slope(t)| <= CURVATURE |slope(0)|         both: the strong Wolfe conditions
 *
 * At first, step lengths grow until a point satisfies both conditions, or two points bracket such a
 * point. Then the bracket shrinks. Its end with the lower loss always satisfies the first
 * condition. */
#include "optim/line_search.h"

#include <math.h>

#define DECREASE 1e-4
#define CURVATURE 0.9
/* The search ends if no element would move by this much. PyTorch's search ignores the option
 * tolerance_change and uses this number, too. */
#define TOLERANCE_CHANGE 1e-9

enum { MOST_STEPS = 25 }; /* evaluations after the first */

typedef struct search {
    const ek_line *line;
    int steps;             /* evaluations after the first */
    ek_line_point ends[2]; /* of the bracket; ends[low] becomes the result */
    int low;               /* index of the end with the lower loss */
    bool is_found;         /* ends[low] satisfies both conditions */
} search;

/* ---- points ---- */

void ek_line_point_clear(ek_line_point *point)
{
    ek_release(point->gradient);
    *point = (ek_line_point){0};
}

static void point_set(ek_line_point *to, const ek_line_point *from)
{
    ek_tensor *gradient = from->gradient ? ek_keep(from->gradient) : NULL;
    ek_line_point_clear(to);
    *to = *from;
    to->gradient = gradient;
}

static int search_evaluate(const search *self, double t, ek_line_point *point)
{
    ek_line_point_clear(point);
    point->t = t;
    return self->line->evaluate(t, point, self->line->user);
}

static bool search_is_too_high(const search *self, const ek_line_point *point)
{
    const ek_line_point *start = &self->line->start;
    return point->loss > start->loss + DECREASE * point->t * start->slope;
}

static bool search_is_flat(const search *self, const ek_line_point *point)
{
    return fabs(point->slope) <= -CURVATURE * self->line->start.slope;
}

/* Returns where between `low` and `high` the cubic through a and b with their slopes is least. If
 * the cubic has no minimum, returns the middle. */
static double search_cubic(const ek_line_point *a, const ek_line_point *b, double low, double high)
{
    const ek_line_point *left = a->t <= b->t ? a : b, *right = a->t <= b->t ? b : a;
    const double width = right->t - left->t,
                 d1 = left->slope + right->slope - 3 * (left->loss - right->loss) / -width,
                 square = d1 * d1 - left->slope * right->slope;
    if (!(square >= 0))
        return (low + high) / 2;
    const double d2 = sqrt(square);
    const double t =
        right->t - width * ((right->slope + d2 - d1) / (right->slope - left->slope + 2 * d2));
    return t < low ? low : t > high ? high : t;
}

/* ---- the bracket ---- */

static void search_order(search *self)
{
    self->low = self->ends[0].loss <= self->ends[1].loss ? 0 : 1;
}

static void search_bracket_between(search *self, const ek_line_point *a, const ek_line_point *b)
{
    point_set(&self->ends[0], a);
    point_set(&self->ends[1], b);
    search_order(self);
}

/* Lets step lengths grow until two points bracket a point that satisfies both conditions, or `now`
 * satisfies both. `before` is the last point before `now`, at first the start. */
static int search_grow(search *self, ek_line_point *before, ek_line_point *now)
{
    EK_TRY(search_evaluate(self, self->line->first, now));
    for (; self->steps < MOST_STEPS; self->steps++) {
        const bool rises = self->steps > 1 && now->loss >= before->loss;
        self->is_found = !search_is_too_high(self, now) && !rises && search_is_flat(self, now);
        if (self->is_found) {
            point_set(&self->ends[0], now);
            return 0;
        }
        if (search_is_too_high(self, now) || rises || now->slope >= 0) {
            search_bracket_between(self, before, now);
            return 0;
        }
        const double next =
            search_cubic(before, now, now->t + 0.01 * (now->t - before->t), now->t * 10);
        point_set(before, now);
        EK_TRY(search_evaluate(self, next, now));
    }
    search_bracket_between(self, &self->line->start, now);
    return 0;
}

/* Returns the next step length within the bracket. If the least point of the cubic is an end, or is
 * close to an end for the second time in a row, the step length is a tenth of the bracket away from
 * that end. *is_close tells whether the last step length was close to an end, and is updated. */
static double search_choose(const search *self, bool *is_close)
{
    const ek_line_point *a = &self->ends[0], *b = &self->ends[1];
    const double low = fmin(a->t, b->t), high = fmax(a->t, b->t), margin = 0.1 * (high - low);
    const double t = search_cubic(a, b, low, high);
    const bool close = fmin(high - t, t - low) < margin;
    if (!close || !(*is_close || t >= high || t <= low)) {
        *is_close = close;
        return t;
    }
    *is_close = false;
    return fabs(t - high) < fabs(t - low) ? high - margin : low + margin;
}

/* Replaces an end of the bracket by a point within the bracket. */
static void search_narrow(search *self, const ek_line_point *now)
{
    ek_line_point *low = &self->ends[self->low], *high = &self->ends[1 - self->low];
    if (search_is_too_high(self, now) || now->loss >= low->loss) {
        point_set(high, now);
        search_order(self);
        return;
    }
    self->is_found = search_is_flat(self, now);
    if (!self->is_found && now->slope * (high->t - low->t) >= 0)
        point_set(high, low);
    point_set(low, now);
}

static int search_shrink(search *self, ek_line_point *now)
{
    bool is_close = false;
    for (; self->steps < MOST_STEPS && !self->is_found; self->steps++) {
        const double width = fabs(self->ends[1].t - self->ends[0].t);
        if (width * self->line->longest < TOLERANCE_CHANGE)
            return 0;
        EK_TRY(search_evaluate(self, search_choose(self, &is_close), now));
        search_narrow(self, now);
    }
    return 0;
}

int ek_line_search(const ek_line *line, ek_line_point *found)
{
    search self = {.line = line};
    ek_line_point before = {0}, now = {0};
    point_set(&before, &line->start);
    int status = search_grow(&self, &before, &now);
    if (status >= 0)
        status = search_shrink(&self, &now);
    *found = (ek_line_point){0};
    if (status >= 0)
        point_set(found, &self.ends[self.low]);
    ek_line_point_clear(&before);
    ek_line_point_clear(&now);
    ek_line_point_clear(&self.ends[0]);
    ek_line_point_clear(&self.ends[1]);
    return status < 0 ? status : self.steps + 1;
}

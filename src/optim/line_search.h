/* line_search.h: searches a line for a step length that satisfies the strong Wolfe conditions. */
#ifndef EK_OPTIM_LINE_SEARCH_H
#define EK_OPTIM_LINE_SEARCH_H

#include "core/tensor.h"

/* A point of the line. */
typedef struct ek_line_point {
    double t;            /* the step length from the start, as a multiple of the direction */
    double loss, slope;  /* the loss at t, and its derivative along the line */
    ek_tensor *gradient; /* one reference, or NULL */
} ek_line_point;

void ek_line_point_clear(ek_line_point *point);

/* Evaluates the loss, the slope and the gradient at step length t. The caller has set point->t.
 * Returns 0, or a negative status without a gradient. */
typedef int ek_line_evaluate(double t, ek_line_point *point, void *user);

typedef struct ek_line {
    ek_line_point start; /* at t = 0, with a negative slope; borrowed */
    double first;        /* the step length to try first */
    double longest;      /* the largest absolute value in the direction */
    ek_line_evaluate *evaluate;
    void *user;
} ek_line;

/* Writes a point that satisfies the conditions. If 26 evaluations find none, or no element would
 * move any more, writes the end of the bracket with the lower loss. The caller clears the point.
 * Returns the count of evaluations, or a negative status without a point. */
int ek_line_search(const ek_line *line, ek_line_point *found);

#endif

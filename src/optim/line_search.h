/* line_search.h: a step length on a line that satisfies the strong Wolfe conditions. */
#ifndef EK_OPTIM_LINE_SEARCH_H
#define EK_OPTIM_LINE_SEARCH_H

#include "core/tensor.h"

/* A point of the line. */
typedef struct ek_line_point {
    double t;            /* the step length: how far from the start, in directions */
    double loss, slope;  /* the loss there, and its derivative along the line */
    ek_tensor *gradient; /* one reference, or NULL */
} ek_line_point;

void ek_line_point_clear(ek_line_point *point);

/* Evaluates the loss at step length t; point->t is set already. Returns 0 or a negative status, and
 * then there is no gradient. */
typedef int ek_line_evaluate(double t, ek_line_point *point, void *user);

typedef struct ek_line {
    ek_line_point start; /* at t = 0, of a negative slope; borrowed */
    double first;        /* the step length to try first */
    double longest;      /* the largest element of the direction, without its sign */
    ek_line_evaluate *evaluate;
    void *user;
} ek_line;

/* Writes the point that was found, or the best one after 25 evaluations beyond the first, which the
 * caller clears. Returns how many evaluations it took, or a negative status without a point. */
int ek_line_search(const ek_line *line, ek_line_point *found);

#endif

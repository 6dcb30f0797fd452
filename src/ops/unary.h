/* unary.h: rows of functions of one tensor: y = f(x; a, b), element by element. */
#ifndef EK_OPS_UNARY_H
#define EK_OPS_UNARY_H

#include "ops/ops.h"

/* The tensor that a row saves for its gradient. */
typedef enum unary_saved { SAVED_nothing, SAVED_x, SAVED_y } unary_saved;

typedef struct unary_numbers {
    double a, b;
} unary_numbers;

typedef struct ek_unary_row {
    ek_operation operation;
    ek_unary formula;
    unary_saved saved;
    bool integers; /* integers are allowed */
    bool wide;     /* autocast computes the operation in f32 */
    int choices;   /* > 0: the operation has so many formulas, from `formula` on; a selects one */
} ek_unary_row;

/* Checks x, computes and records. */
ek_tensor *ek_unary_apply(const ek_unary_row *row, ek_tensor *x, double a, double b);

/* Defines `id_row`, whose formula is row NAME of kernels/elementwise.h. `gradient` is an expression
 * in differentiable operations of g (the gradient of y), the numbers a and b, and the tensor
 * `saved` (x, y or nothing). Further arguments are members of the row, as in `.wide = true`. */
#define UNARY_ROW(id, title, NAME, saved_, gradient, ...)                                     \
    static int id##_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results) \
    {                                                                                         \
        const unary_numbers *numbers = ek_node_attributes(node);                              \
        const double a = numbers->a, b = numbers->b;                                          \
        ek_tensor *g = gradients[0],                                                          \
                  *saved_ = SAVED_##saved_ != SAVED_nothing ? ek_node_saved(node, 0) : NULL;  \
        (void)a, (void)b;                                                                     \
        if (SAVED_##saved_ != SAVED_nothing && !saved_)                                       \
            return ek_error_pending();                                                        \
        results[0] = gradient;                                                                \
        return 0;                                                                             \
    }                                                                                         \
    static const ek_unary_row id##_row = {{.name = title, .backward = id##_backward},         \
                                          EK_UNARY_##NAME,                                    \
                                          SAVED_##saved_,                                     \
                                          __VA_ARGS__};

/* UNARY_ROW, and the function `ek_tensor *function(ek_tensor *x)`. */
#define UNARY_OPERATION(function, title, NAME, saved, gradient, ...) \
    UNARY_ROW(function, title, NAME, saved, gradient, __VA_ARGS__)   \
    ek_tensor *function(ek_tensor *x)                                \
    {                                                                \
        return ek_unary_apply(&function##_row, x, 0, 0);             \
    }

/* Returns the gradient of x from g, the gradient of composition(x, a), by one kernel: the binary
 * row `formula` of g and x. If gradient mode is on, computes the differentiable gradient of the
 * composition. */
ek_tensor *ek_fused_gradient(ek_tensor *g, ek_binary formula, ek_composition *composition,
                             ek_tensor *x, double a);

/* UNARY_ROW for a formula that equals `composition`, an expression of x and a in differentiable
 * operations, and whose gradient is the binary row NAME_GRADIENT. With `.choices` there is a row
 * NAME_GRADIENT per choice. `member` sets a member of the row, as in `.wide = true`. */
#define UNARY_FUSED(id, title, NAME, member, composition)                     \
    static const ek_unary_row id##_row;                                       \
    static ek_tensor *id##_composition(ek_tensor *x, double a)                \
    {                                                                         \
        (void)a;                                                              \
        return composition;                                                   \
    }                                                                         \
    UNARY_ROW(id, title, NAME, x,                                             \
              ek_fused_gradient(g,                                            \
                                (ek_binary)(EK_BINARY_##NAME##_GRADIENT +     \
                                            (id##_row.choices ? (int)a : 0)), \
                                id##_composition, x, a),                      \
              member)

/* UNARY_FUSED, and the function `ek_tensor *function(ek_tensor *x)`. */
#define UNARY_FUSED_OPERATION(function, title, NAME, member, composition) \
    UNARY_FUSED(function, title, NAME, member, composition)               \
    ek_tensor *function(ek_tensor *x)                                     \
    {                                                                     \
        return ek_unary_apply(&function##_row, x, 0, 0);                  \
    }

/* Defines `ek_tensor *function(ek_tensor *x, type choice)` for a row with `.choices`. The choice
 * becomes the row's number a. `names` lists the enumerators for the error sentence. */
#define UNARY_CHOICE(function, type, choice, names)                                        \
    ek_tensor *function(ek_tensor *x, type choice)                                         \
    {                                                                                      \
        const ek_unary_row *row = &function##_row;                                         \
        return ek_chosen(row->operation.name, #choice, (int)choice, row->choices, (names)) \
                   ? ek_unary_apply(row, x, choice, 0)                                     \
                   : NULL;                                                                 \
    }

#endif

/* rows.h: stages whose rows are operations: forward, gradient, and the gradient of the gradient. */
#ifndef EVENKEEL_TESTS_FAULT_ROWS_H
#define EVENKEEL_TESTS_FAULT_ROWS_H

#include "fault.h"

enum { ROWS_INPUTS = 4 };

/* Inputs as text, a word each: a letter, and sizes with x between them ("0" is a scalar's).
 *
 *     f2x3    normal numbers, with a gradient       p2x3    numbers in [1, 2), with a gradient
 *     c2x3    normal numbers, without               b2x3    u8, 0 or 1
 *     i2x3    i64 in [0, 3)
 */
typedef struct rows_operation {
    const char *name, *inputs;
    ek_tensor *(*apply)(ek_tensor *const *x);
} rows_operation;

/* Makes the operation's inputs, on host:0. */
int rows_set_up(const rows_operation *operation);
/* Notes the result, its gradient and that one's gradient. */
int rows_attempt(const rows_operation *operation);
/* Inputs stay as they are. */
int rows_world(void);
void rows_clear(void);

/* ROWS_STAGE(id, OPERATIONS): a stage from a list of X(name, inputs, expression of x). */
#define ROWS_FUNCTION(id, inputs, ...)                     \
    static ek_tensor *rows_apply_##id(ek_tensor *const *x) \
    {                                                      \
        return __VA_ARGS__;                                \
    }
#define ROWS_ENTRY(id, inputs, ...) {#id, inputs, rows_apply_##id},
#define ROWS_STAGE(id, OPERATIONS)                                                         \
    OPERATIONS(ROWS_FUNCTION)                                                              \
    static const rows_operation id##_rows[] = {OPERATIONS(ROWS_ENTRY)};                    \
    static int id##_set_up(int row)                                                        \
    {                                                                                      \
        return rows_set_up(&id##_rows[row]);                                               \
    }                                                                                      \
    static int id##_attempt(int row)                                                       \
    {                                                                                      \
        return rows_attempt(&id##_rows[row]);                                              \
    }                                                                                      \
    static int id##_world(int row)                                                         \
    {                                                                                      \
        return rows_world();                                                               \
    }                                                                                      \
    static void id##_clear(int row)                                                        \
    {                                                                                      \
        rows_clear();                                                                      \
    }                                                                                      \
    FAULT_STAGE(id, FAULT_ROWS(id##_rows), .set_up = id##_set_up, .attempt = id##_attempt, \
                .world = id##_world, .clear = id##_clear)

#endif

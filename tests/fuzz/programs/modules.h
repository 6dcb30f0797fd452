/* modules.h: modules, operations and criteria that a user of the library would write. Constructors
 * give NULL with an error; they take ownership of modules that they are given. */
#ifndef EK_TESTS_FUZZ_MODULES_H
#define EK_TESTS_FUZZ_MODULES_H

#include <evenkeel/module.h>

/* ---- layers ---- */

/* A chain of operations that keeps the shape of (N, C, ...). */
ek_module *ops_new(int variant);
enum { OPS_VARIANTS = 19 };
const char *ops_name(int variant);
/* Equal values become zero. */
bool ops_center(int variant);

/* x + x^3 / 10 by a custom operation, or by one of two outputs; the place where faults of the
 * user's code strike (faults.h). */
ek_module *guard_new(int variant);

/* x minus half the mean of the whole batch, by ek_allreduce between replicas. */
ek_module *mix_new(void);

/* x times a parameter; beside it a parameter that is never used and a buffer that counts calls. */
ek_module *spare_new(int features);

/* x, times 1.001 on one device: a defect on purpose. */
ek_module *wrong_new(void);
void wrong_set_device(ek_device device);

/* (x + body(x)) / 2 */
ek_module *residual_new(ek_module *body);

/* body(body(x)), the module being registered twice. */
ek_module *tied_new(ek_module *body);

/* ---- the net and its criterion ---- */

/* Adds up all tensors of its arguments, whatever their nest, and calls the body; gives its output
 * y, or y and 2 y - 1 as a list or as a dictionary. */
ek_module *nest_new(ek_module *body, int output);

/* Takes such outputs: the mean of the criterion's values of all tensors in them. The criterion is
 * called with the target that comes last. */
ek_module *nest_criterion_new(ek_module *criterion);

/* The mean of (y - t)^2 over the elements with t > 0.4: none of them may be in a chunk. */
ek_module *weighted_criterion_new(void);

/* Without a denominator: the mean over samples of the sum of |y - t|^3. */
ek_module *samples_criterion_new(void);

#endif

/* cases.h: runs the groups of a golden file ("conv/0", "conv/1", ...) against an operation: its
 * output and gradients in f64 and f32 and in both memory orders, then its first and second
 * derivative against finite differences. */
#ifndef EK_TESTS_OPS_CASES_H
#define EK_TESTS_OPS_CASES_H

#include <math.h>
#include <stdio.h>

#include "autograd/graph.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "unit.h"

#include "home.h"

enum { CASE_INPUTS = 4 };

typedef struct golden_case {
    const char *file;
    char prefix[64];
    /* Of this run: what the operation reads beside its inputs. Floating constants are of `dtype`;
     * NULL if the case has none. */
    ek_dtype dtype;
    double options[16];
    ek_tensor *constants[CASE_INPUTS];
} golden_case;

/* How a family is checked: inputs[] names those with a gradient, in the order the function reads
 * them; those that a case lacks are left out. */
typedef struct case_family {
    const char *file;
    const char *name;
    const char *inputs[CASE_INPUTS];
    const char *constants[CASE_INPUTS];
    ek_check_function *function; /* user: the golden_case */
    bool kinked;                 /* no finite differences */
} case_family;

static inline const char *case_path(const golden_case *which, const char *key, char text[96])
{
    snprintf(text, 96, "%s/%s", which->prefix, key);
    return text;
}

static inline bool case_has(const golden_case *which, const char *key)
{
    char text[96];
    return golden_has(which->file, case_path(which, key, text));
}

/* As it lies in the file, on the device that tests run on. */
static inline ek_tensor *case_tensor(const golden_case *which, const char *key)
{
    char text[96];
    ek_tensor *tensor = ek_to_device(golden(which->file, case_path(which, key, text)), test_home());
    assert_made(tensor);
    return tensor;
}

/* In the dtype of this run, if it is floating; NULL if the case has none. */
static inline ek_tensor *case_constant(const golden_case *which, const char *key)
{
    if (!case_has(which, key))
        return NULL;
    ek_tensor *tensor = case_tensor(which, key);
    return ek_dtype_is_floating(ek_tensor_dtype(tensor)) ? ek_to_dtype(tensor, which->dtype)
                                                         : tensor;
}

/* The case of this number, with its options and constants; false if there is none. */
static inline bool case_load(golden_case *which, const case_family *family, int number,
                             ek_dtype dtype)
{
    *which = (golden_case){.file = family->file, .dtype = dtype};
    snprintf(which->prefix, sizeof which->prefix, "%s/%d", family->name, number);
    if (!case_has(which, "y"))
        return false;
    if (case_has(which, "options")) {
        ek_tensor *options = case_tensor(which, "options");
        for (int64_t k = 0; k < ek_tensor_count(options) && k < 16; k++)
            which->options[k] = element(options, k);
    }
    for (int i = 0; i < CASE_INPUTS && family->constants[i]; i++)
        which->constants[i] = case_constant(which, family->constants[i]);
    return true;
}

/* A leaf of its own memory. */
static inline ek_tensor *case_leaf(const golden_case *which, const char *key,
                                   ek_memory_format format)
{
    ek_tensor *tensor = ek_to_dtype(case_tensor(which, key), which->dtype);
    if (ek_tensor_ndim(tensor) == 4)
        tensor = ek_contiguous(tensor, format);
    tensor = ek_detach(ek_clone(tensor));
    assert_made(tensor);
    assert_ok(ek_tensor_set_requires_grad(tensor, true));
    return tensor;
}

static inline void case_compare(const golden_case *which, ek_tensor *tensor, const char *key)
{
    assert_made(tensor);
    ek_tensor *wanted = ek_to_dtype(case_tensor(which, key), which->dtype);
    /* Values of about 1, sums of at most a few hundred. */
    double tolerance = which->dtype == EK_F64 ? 1e-12 : 2e-5;
    assert_close(tensor, wanted, tolerance, tolerance);
}

/* `differences`: against finite differences too. */
static inline void case_run(const case_family *family, golden_case *which, ek_memory_format format,
                            bool differences)
{
    ek_tensor *inputs[CASE_INPUTS], *gradients[CASE_INPUTS];
    const char *names[CASE_INPUTS];
    int count = 0;
    for (int i = 0; i < CASE_INPUTS && family->inputs[i]; i++)
        if (case_has(which, family->inputs[i])) {
            names[count] = family->inputs[i];
            inputs[count++] = case_leaf(which, family->inputs[i], format);
        }
    ek_tensor *y = family->function(inputs, count, which);
    assert_made(y);
    case_compare(which, y, "y");
    ek_tensor *dy = ek_to_dtype(case_tensor(which, "dy"), which->dtype);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = count,
                      .gradients = gradients, .grad_outputs = &dy));
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "d%s", names[i]);
        case_compare(which, gradients[i], key);
    }
    if (differences && !family->kinked) {
        assert_ok(ek_gradcheck(.function = family->function, .inputs = inputs, .input_count = count,
                               .user = which));
        assert_ok(ek_gradgradcheck(.function = family->function, .inputs = inputs,
                                   .input_count = count, .user = which));
    }
}

/* Runs every case of the family; a family without cases fails. */
static inline void case_run_all(const case_family *family)
{
    const ek_dtype dtypes[] = {EK_F64, EK_F32};
    for (int number = 0;; number++)
        for (int i = 0; i < 4; i++) {
            golden_case which;
            ek_scope scope = ek_scope_begin();
            if (!case_load(&which, family, number, dtypes[i / 2])) {
                ck_assert_int_gt(number, 0);
                return;
            }
            /* The orders of memory take turns: kernels differ, derivatives don't. */
            const int format = i % 2;
            const bool spatial = ek_tensor_ndim(case_tensor(&which, "x")) == 4;
            bool differences = which.dtype == EK_F64 && format == (spatial ? number % 2 : 0);
            if (spatial || format == EK_CONTIGUOUS)
                case_run(family, &which, (ek_memory_format)format, differences);
            ek_scope_end(&scope);
        }
}

/* ---- any order ---- */

/* The gradient of sum(f(inputs) c) by the first input, c constant: its own first and second
 * derivatives are f's second and third. */
typedef struct gradient_of {
    ek_check_function *function;
    void *user;
} gradient_of;

static inline ek_tensor *case_first_gradient(ek_tensor *const *inputs, int count, void *user)
{
    const gradient_of *of = user;
    ek_tensor *y = of->function(inputs, count, of->user);
    if (!y)
        return NULL;
    ek_tensor *weights = ek_arange(ek_tensor_count(y), EK_F64, test_home());
    weights = ek_reshape(ek_add_scalar(ek_mul_scalar(weights, 0.37), -1), ek_tensor_shape(y));
    ek_tensor *gradient = NULL;
    if (ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 1,
                .gradients = &gradient, .grad_outputs = &weights, .create_graph = true) < 0)
        return NULL;
    return gradient;
}

/* Third derivatives of one case, in f64. */
static inline void case_check_third(const case_family *family, int number)
{
    golden_case which;
    ck_assert(case_load(&which, family, number, EK_F64));
    ek_tensor *inputs[CASE_INPUTS];
    int count = 0;
    for (int i = 0; i < CASE_INPUTS && family->inputs[i]; i++)
        if (case_has(&which, family->inputs[i]))
            inputs[count++] = case_leaf(&which, family->inputs[i], EK_CHANNELS_LAST);
    gradient_of of = {family->function, &which};
    assert_ok(ek_gradgradcheck(.function = case_first_gradient, .inputs = inputs,
                               .input_count = count, .user = &of));
}

/* ---- gradients written where they shall lie ---- */

/* The gradients of parameters that have a slot are in it, none of its old content left, and are
 * those of parameters without. inputs[0] is no parameter. */
static inline void case_check_slots(const case_family *family, int number)
{
    golden_case which;
    ck_assert(case_load(&which, family, number, EK_F64));
    ek_tensor *inputs[CASE_INPUTS], *slots[CASE_INPUTS];
    int count = 0;
    for (; count < CASE_INPUTS && family->inputs[count]; count++) {
        inputs[count] = case_leaf(&which, family->inputs[count], EK_CHANNELS_LAST);
        slots[count] = ek_fill_(ek_detach(ek_clone(inputs[count])), NAN);
        assert_made(slots[count]);
        if (count > 0)
            assert_ok(ek_leaf_set_grad_slot(inputs[count], slots[count]));
    }
    ek_tensor *y = family->function(inputs, count, &which);
    assert_ok(ek_backward(y, case_tensor(&which, "dy")));
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "d%s", family->inputs[i]);
        ek_tensor *gradient = ek_tensor_grad(inputs[i]);
        case_compare(&which, gradient, key);
        if (i > 0)
            ck_assert_ptr_eq(ek_tensor_address(gradient), ek_tensor_address(slots[i]));
    }
}

#endif

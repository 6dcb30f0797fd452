/* second.h: second derivatives of a golden family against PyTorch's. */
#ifndef EK_TESTS_OPS_SECOND_H
#define EK_TESTS_OPS_SECOND_H

#include "cases.h"

/* The gradient of the sum of g^3 over the first gradients g, in one dtype and order of
 * memory: what a penalty on gradients asks for. */
static inline void case_second(const case_family *family, golden_case *which,
                               ek_memory_format format)
{
    ek_tensor *inputs[CASE_INPUTS], *gradients[CASE_INPUTS], *penalty = NULL;
    const char *names[CASE_INPUTS];
    int count = 0;
    for (int i = 0; i < CASE_INPUTS && family->inputs[i]; i++)
        if (case_has(which, family->inputs[i])) {
            names[count] = family->inputs[i];
            inputs[count++] = case_leaf(which, family->inputs[i], format);
        }
    ek_tensor *y = family->function(inputs, count, which);
    ek_tensor *dy = ek_to_dtype(case_tensor(which, "dy"), which->dtype);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = count,
                      .gradients = gradients, .grad_outputs = &dy, .create_graph = true));
    for (int i = 0; i < count; i++) {
        ek_tensor *sum = ek_sum(ek_pow_scalar(gradients[i], 3));
        penalty = penalty ? ek_add(penalty, sum) : sum;
    }
    assert_ok(ek_backward(penalty));
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "second_%s", names[i]);
        ek_tensor *gradient = ek_tensor_grad(inputs[i]);
        ek_tensor *wanted = ek_to_dtype(case_tensor(which, key), which->dtype);
        if (!gradient)
            gradient = ek_zeros(ek_tensor_shape(inputs[i]), which->dtype);
        /* Relative to the whole: an element of a second gradient is a sum that may cancel. */
        double size, tolerance = which->dtype == EK_F64 ? 1e-11 : 1e-4;
        assert_ok(ek_item(ek_sum(ek_square(wanted)), &size));
        if (size == 0)
            assert_close(gradient, wanted, 0, tolerance);
        else
            assert_close_norm(gradient, wanted, tolerance);
    }
}

/* Every case that has second derivatives; a family without such fails. */
static inline void case_run_second(const case_family *family)
{
    int found = 0;
    for (int number = 0;; number++)
        for (int i = 0; i < 4; i++) {
            golden_case which;
            ek_scope scope = ek_scope_begin();
            if (!case_load(&which, family, number, i / 2 ? EK_F32 : EK_F64)) {
                ck_assert_int_gt(found, 0);
                return;
            }
            const bool spatial = ek_tensor_ndim(case_tensor(&which, "x")) == 4;
            if (case_has(&which, "second_x") && (spatial || i % 2 == EK_CONTIGUOUS)) {
                case_second(family, &which, (ek_memory_format)(i % 2));
                found++;
            }
            ek_scope_end(&scope);
        }
}

#endif

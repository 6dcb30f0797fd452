/* check_op.h: one operation against PyTorch's numbers and against finite differences. */
#ifndef EK_TESTS_CHECK_OP_H
#define EK_TESTS_CHECK_OP_H

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "unit.h"

#include "home.h"

typedef struct op_case {
    const char *name; /* in ops.golden */
    ek_check_function *function;
    bool kinked; /* at a point without a derivative: no finite differences */
} op_case;

enum { OP_INPUTS = 4 };

/* The case's inputs in `inputs`, those that have a gradient of `dtype` on `device` and requiring
 * it. Returns how many. */
static inline int op_inputs(const op_case *c, ek_dtype dtype, ek_device device, ek_tensor **inputs)
{
    char name[80];
    int count = 0;
    for (; count < OP_INPUTS; count++) {
        snprintf(name, sizeof name, "%s/x%d", c->name, count);
        if (!golden_has("ops.golden", name))
            break;
        ek_tensor *x = golden("ops.golden", name);
        bool varies = ek_dtype_is_floating(ek_tensor_dtype(x));
        inputs[count] = ek_to_device(varies ? ek_to_dtype(x, dtype) : x, device);
        if (varies)
            assert_ok(ek_tensor_set_requires_grad(inputs[count], true));
    }
    ck_assert_int_gt(count, 0);
    return count;
}

/* Output and gradients, computed in `dtype` on `device`, are PyTorch's to a relative and absolute
 * `tolerance`. */
static inline void check_golden(const op_case *c, ek_dtype dtype, ek_device device,
                                double tolerance)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *inputs[OP_INPUTS], *varied[OP_INPUTS], *gradients[OP_INPUTS];
    int count = op_inputs(c, dtype, device, inputs), varied_count = 0;
    char name[80];
    ek_tensor *y = c->function(inputs, count, NULL);
    assert_made(y);
    snprintf(name, sizeof name, "%s/y", c->name);
    assert_close(ek_to_dtype(ek_to_device(y, ek_cpu()), EK_F64), golden("ops.golden", name),
                 tolerance, tolerance);
    for (int i = 0; i < count; i++)
        if (ek_tensor_requires_grad(inputs[i]))
            varied[varied_count++] = inputs[i];
    snprintf(name, sizeof name, "%s/g", c->name);
    ek_tensor *g = ek_to_device(ek_to_dtype(golden("ops.golden", name), dtype), device);
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = varied,
                      .input_count = varied_count, .gradients = gradients, .grad_outputs = &g));
    for (int i = 0, v = 0; i < count; i++) {
        if (!ek_tensor_requires_grad(inputs[i]))
            continue;
        snprintf(name, sizeof name, "%s/dx%d", c->name, i);
        assert_close(ek_to_dtype(ek_to_device(gradients[v++], ek_cpu()), EK_F64),
                     golden("ops.golden", name), tolerance, tolerance);
    }
    ek_scope_end(&scope);
}

/* First and second order finite differences. */
static inline void check_differences(const op_case *c)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *inputs[OP_INPUTS];
    int count = op_inputs(c, EK_F64, test_home(), inputs);
    assert_ok(ek_gradcheck(c->function, inputs, count));
    assert_ok(ek_gradgradcheck(c->function, inputs, count));
    ek_scope_end(&scope);
}

#endif

/* ek_checkpoint: what bodies may not do, and what is told about it. */
#include "checkpoint_setup.h"
#include "kit/models.h"

FIXTURE(setup, NULL)

/* Writes its input; or fails, or gives more, from the second call on. */
static int shared_calls;

typedef enum trouble { WRITES, FAILS, GIVES_MORE, GIVES_ELSEWHERE } trouble;

static ek_tensor *elsewhere;

typedef struct troubled {
    ek_module module;
    trouble trouble;
} troubled;

static ek_value troubled_forward(ek_module *module, const ek_args *args)
{
    const troubled *self = (troubled *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    bool again = shared_calls++ > 0;
    if (self->trouble == WRITES)
        ek_mul_scalar_(x, 2);
    if (self->trouble == FAILS && again)
        return fail_with("not twice");
    ek_tensor *y = ek_mul_scalar(x, 3);
    if (self->trouble == GIVES_ELSEWHERE)
        return EK_LIST(y, elsewhere, y);
    return self->trouble == GIVES_MORE && again ? EK_LIST(y, ek_exp(y)) : EK_VALUE(y);
}

MODULE_TYPE(troubled, troubled)

static ek_module *make_troubled(trouble what)
{
    troubled *self = (troubled *)ek_module_new(&troubled_type);
    self->trouble = what;
    shared_calls = 0;
    return ek_checkpoint(&self->module);
}

TEST(errors_reach_the_caller)
{
    ek_tensor *x = leaf_on(1, EK_SHAPE(3), ek_cpu());
    ek_module *module = make_troubled(WRITES);
    assert_refused(ek_apply(module, ek_mul_scalar(x, 1)), EK_E_AUTOGRAD,
                   "checkpoint: the forward modified an input, f64[3] on cpu");
    ek_module_free(module);

    module = make_troubled(FAILS);
    assert_refused(ek_backward(ek_sum(ek_apply(module, x))), EK_E_USER,
                   "in backward of checkpoint on cpu: troubled: not twice");
    ck_assert(ek_grad_enabled() && !(ek_thread_self()->modes.flags & EK_MODE_ALONE));
    ek_module_free(module);

    module = make_troubled(GIVES_MORE);
    assert_refused(ek_backward(ek_sum(ek_apply(module, x))), EK_E_STATE,
                   "the module gave 2 tensors when it was computed again, but 1");
    ek_module_free(module);

    assert_refused(ek_checkpoint(NULL), EK_E_INVALID, "checkpoint: the module is NULL");
    assert_refused(ek_checkpoint(ek_linear(0, 3)), EK_E_INVALID, "in_features 0");
}

/* A tensor that the module did not make keeps its own history. */
TEST(tensors_from_elsewhere)
{
    ek_tensor *x = leaf_on(1, EK_SHAPE(3), ek_cpu()), *other = leaf_on(2, EK_SHAPE(3), ek_cpu()),
              *gradients[2];
    elsewhere = ek_mul_scalar(other, 2);
    ek_module *module = make_troubled(GIVES_ELSEWHERE);
    ek_value value = ek_forward(module, x);
    ck_assert_ptr_eq(ek_value_tensor(ek_value_at(value, 1)), elsewhere);
    ek_tensor *y = ek_sum(ek_mul(ek_value_tensor(ek_value_at(value, 0)), elsewhere));
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = (ek_tensor *const[]){x, other},
                      .input_count = 2, .gradients = gradients));
    assert_close(gradients[0], ek_mul_scalar(ek_detach(other), 6), 1e-15, 0);
    assert_close(gradients[1], ek_mul_scalar(ek_detach(x), 6), 1e-15, 0);
    ek_module_free(module);
}

TEST(modified_inputs_are_told)
{
    ek_module *module = f64(ek_checkpoint(ek_linear(3, 2)));
    ek_tensor *x = ek_mul_scalar(leaf_on(1, EK_SHAPE(4, 3), ek_cpu()), 1);
    ek_tensor *y = ek_apply(module, x);
    assert_made(ek_mul_scalar_(x, 2));
    assert_refused(ek_backward(ek_sum(y)), EK_E_MODIFIED, "checkpoint saved f64[4, 3] on cpu");
    y = ek_apply(module, x);
    assert_ok(ek_backward(ek_sum(y)));
    assert_refused(ek_backward(ek_sum(y)), EK_E_STATE,
                   "the saved tensors of checkpoint were freed");
    ek_module_free(module);
}

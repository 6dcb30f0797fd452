/* step_check.c: the check of an optimizer step's operands, for all backends. */
#include "core/error.h"
#include "kernels/kernels.h"

int ek_step_check(ek_step_rule rule, int count, ek_tensor *const *parameters,
                  ek_tensor *const *const states[EK_STEP_STATES])
{
#define STEP_NAME(name, states) #name,
    static const char *const names[] = {EK_STEP_RULES(STEP_NAME)};
#undef STEP_NAME
    for (int i = 0; i < count; i++) {
        ek_dtype dtype = parameters[i]->dtype;
        if (dtype != EK_F32 && dtype != EK_F64)
            return EK_FAIL(EK_E_DTYPE, "%s steps parameters of f32 or f64, not %s", names[rule],
                           ek_dtype_name(dtype));
        for (int k = 0; k < ek_step_states(rule); k++)
            if (!states[k] || !states[k][i])
                return EK_FAIL(EK_E_INVALID, "%s needs %d states, and state %d is missing",
                               names[rule], ek_step_states(rule), k);
    }
    return 0;
}

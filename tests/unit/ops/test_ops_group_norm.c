/* test_ops_group_norm.c: layer, group and instance normalisation against PyTorch and finite
 * differences, to the third order; other orders of memory; what they refuse. */
#include <math.h>

#include "second.h"

static ek_tensor *input_or_null(ek_tensor *const *inputs, int count, int i)
{
    return i < count ? inputs[i] : NULL;
}

static ek_tensor *group(ek_tensor *const *inputs, int count, void *user)
{
    const golden_case *which = user;
    return ek_f_group_norm(inputs[0], (int64_t)which->options[0], input_or_null(inputs, count, 1),
                           input_or_null(inputs, count, 2), element(which->constants[0], 0));
}

static ek_tensor *instance(ek_tensor *const *inputs, int count, void *user)
{
    const golden_case *which = user;
    return ek_f_instance_norm(inputs[0], input_or_null(inputs, count, 1),
                              input_or_null(inputs, count, 2), element(which->constants[0], 0));
}

static ek_tensor *layer(ek_tensor *const *inputs, int count, void *user)
{
    const golden_case *which = user;
    return ek_f_layer_norm(inputs[0], (int)which->options[0], input_or_null(inputs, count, 1),
                           input_or_null(inputs, count, 2), element(which->constants[0], 0));
}

static const case_family families[] = {
    {.file = "norms.golden",
     .name = "group_norm",
     .inputs = {"x", "w", "b"},
     .constants = {"eps"},
     .function = group},
    {.file = "norms.golden",
     .name = "instance_norm",
     .inputs = {"x", "w", "b"},
     .constants = {"eps"},
     .function = instance},
    {.file = "norms.golden",
     .name = "layer_norm",
     .inputs = {"x", "w", "b"},
     .constants = {"eps"},
     .function = layer},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

START_TEST(match_pytorch_and_finite_differences)
{
    case_run_all(&families[_i]);
}
END_TEST

START_TEST(second_derivatives_match_pytorch)
{
    case_run_second(&families[_i]);
}
END_TEST

START_TEST(third_derivatives)
{
    for (int number = 0; number < 4; number++)
        case_check_third(&families[_i], number);
}
END_TEST

START_TEST(gradients_go_to_slots)
{
    case_check_slots(&families[_i], 0);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("ops/group_norm");
    TCase *t = tcase_create("group_norm");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, match_pytorch_and_finite_differences, 0, FAMILIES);
    tcase_add_loop_test(t, second_derivatives_match_pytorch, 0, FAMILIES);
    tcase_add_loop_test(t, third_derivatives, 0, FAMILIES);
    tcase_add_loop_test(t, gradients_go_to_slots, 0, FAMILIES);
    suite_add_tcase(s, t);
    return s;
}

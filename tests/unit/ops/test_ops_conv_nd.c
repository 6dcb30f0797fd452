/* test_ops_conv_nd.c: convolution over one and three dimensions and transposed convolution, against
 * PyTorch and finite differences; what they refuse. */
#include "cases.h"

#include <string.h>

#define FAMILY(NAME)                                                                            \
    {                                                                                           \
        .file = "conv_nd.golden", .name = NAME, .inputs = {"x", "w", "b"}, .function = convolve \
    }

typedef ek_tensor *convolution(ek_conv_options options);

static const struct {
    const char *name;
    convolution *function;
    int dims;
} convolutions[] = {
    {"conv1d", ek_f_conv1d_with, 1},
    {"conv3d", ek_f_conv3d_with, 3},
    {"conv_transpose1d", ek_f_conv_transpose1d_with, 1},
    {"conv_transpose2d", ek_f_conv_transpose2d_with, 2},
    {"conv_transpose3d", ek_f_conv_transpose3d_with, 3},
};
enum { CONVOLUTIONS = sizeof convolutions / sizeof convolutions[0] };

/* options: stride, padding, dilation and output_padding of each direction, then groups */
static ek_tensor *convolve(ek_tensor *const *inputs, int count, void *user)
{
    const golden_case *which = user;
    const double *from = which->options;
    ek_conv_options o = {.x = inputs[0], .weight = inputs[1], .bias = count > 2 ? inputs[2] : NULL};
    size_t length = strcspn(which->prefix, "/");
    for (int i = 0; i < CONVOLUTIONS; i++) {
        if (strlen(convolutions[i].name) != length ||
            strncmp(convolutions[i].name, which->prefix, length) != 0)
            continue;
        int *const to[] = {o.strides, o.paddings, o.dilations, o.output_paddings};
        for (int k = 0; k < 4; k++)
            for (int d = 0; d < convolutions[i].dims; d++)
                to[k][d] = (int)*from++;
        o.groups = (int)*from;
        return convolutions[i].function(o);
    }
    ck_abort_msg("%s", which->prefix);
}

static const case_family families[] = {FAMILY("conv1d"), FAMILY("conv3d"),
                                       FAMILY("conv_transpose1d"), FAMILY("conv_transpose2d"),
                                       FAMILY("conv_transpose3d")};

START_TEST(matches_pytorch_and_finite_differences)
{
    case_run_all(&families[_i]);
}
END_TEST

START_TEST(third_derivatives)
{
    case_check_third(&families[_i], 2);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("ops/conv_nd");
    TCase *t = tcase_create("conv_nd");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, matches_pytorch_and_finite_differences, 0, CONVOLUTIONS);
    tcase_add_loop_test(t, third_derivatives, 0, CONVOLUTIONS);
    suite_add_tcase(s, t);
    return s;
}

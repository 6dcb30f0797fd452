/* test_stylegan.c: the StyleGAN sample's numbers are PyTorch's; Frechet distances. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int stylegan_main(int argc, char **argv);
#define main stylegan_main
#include "stylegan.c"
#undef main
#include "program.h"

/* The sample's defaults, smaller. */
static void make_small(void)
{
    char name[] = "stylegan", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = test_kind();
    opt.dtype = EK_F64;
    opt.width = 2;
    opt.latent = 8;
    opt.seed = 5;
    opt.r1_every = 5;
    opt.path_every = 4;
    opt.judged = 0;
}

/* On uniform pictures in place of the files', in the same order in each pass. */
TEST(steps_are_those_of_pytorch)
{
    enum { PICTURES = 24 };
    static const char *const names[] = {"critic_losses", "generator_losses", "r1_penalties",
                                        "path_lengths"};
    run r = {.name = "test", .last = 20};
    make_small();
    opt.batch = 8;
    opt.mode = MODE_SINGLE;
    assert_ok(test_devices_configure("1"));
    stylegan s = {.generator = {.devices = ek_devices(test_kind(), 1)}};
    ek_generator *random = ek_generator_new(7);
    ek_tensor *pictures = ek_empty(EK_SHAPE(PICTURES, 1, STYLEGAN_SIDE, STYLEGAN_SIDE));
    assert_ok(ek_uniform_(pictures, -1, 1, random));
    ek_generator_free(random);
    s.loader = ek_data_loader(ek_tensor_dataset(pictures, ek_zeros(EK_SHAPE(PICTURES), EK_I64)),
                              .batch_size = opt.batch, .sampler = ek_sequential_sampler(PICTURES));
    assert_ok(stylegan_open_networks(&s, NULL));
    while (run_next(&r))
        stylegan_step(&s, &r);
    assert_ok(ek_error_status());
    for (int i = CRITIC_LOSSES; i <= PATH_LENGTHS; i++) {
        ek_tensor *wanted = golden("stylegan.golden", names[i]);
        ck_assert_int_eq(ek_tensor_count(wanted), r.series[i].count);
        assert_numbers(names[i], r.series[i].values, r.series[i].count, ek_tensor_data(wanted),
                       1e-10);
    }
    assert_numbers("path_mean", &s.path_mean, 1,
                   ek_tensor_data(golden("stylegan.golden", "path_mean")), 1e-10);
    stylegan_close(&s);
    series_free(r.series, SERIES);
    assert_ok(ek_shutdown());
}

/* A group's scores are its own, and depend on the group's other pictures. */
TEST(groups_are_apart)
{
    ek_manual_seed(1);
    ek_module *critic = stylegan_critic(2);
    const ek_shape shape = EK_SHAPE(2, STYLEGAN_GROUP, 1, STYLEGAN_SIDE, STYLEGAN_SIDE);
    ek_tensor *pictures = ek_randn_with((ek_tensor_options){.shape = shape});
    ek_tensor *first = ek_apply(critic, pictures);
    ek_tensor *alone = ek_apply(critic, ek_narrow(pictures, 0, 0, 1));
    assert_close(ek_narrow(first, 0, 0, 1), alone, 1e-5, 1e-5);
    bool had_gradients = ek_set_grad_enabled(false);
    ek_fill_(ek_select(ek_select(pictures, 0, 0), 0, 3), 0); /* the last of the first group */
    ek_set_grad_enabled(had_gradients);
    ek_tensor *second = ek_apply(critic, pictures);
    ck_assert(fabs(element(first, 0) - element(second, 0)) > 1e-4);
    ck_assert(fabs(element(first, 4) - element(second, 4)) < 1e-5);
    ek_module_free(critic);
}

/* m_x - m_y is (3, 0). Covariances are diag(1, 4) and diag(4, 1): 9 + 10 - 2 (2 + 2). */
TEST(distances_of_axes)
{
    const double x[] = {1, 0, -1, 0, 0, 2, 0, -2}, y[] = {5, 0, 1, 0, 3, 1, 3, -1};
    double distance;
    ek_tensor *a = tensor_of(x, EK_SHAPE(4, 2), EK_F64, ek_cpu());
    ek_tensor *b = tensor_of(y, EK_SHAPE(4, 2), EK_F64, ek_cpu());
    a = ek_mul_scalar(a, sqrt(1.5)); /* sums of squares are divided by 3 */
    b = ek_add(ek_mul_scalar(ek_sub(b, ek_mean(b, EK_DIMS(0), .keepdim = true)), sqrt(1.5)),
               ek_mean(b, EK_DIMS(0), .keepdim = true));
    assert_ok(frechet_distance(a, b, &distance));
    ck_assert_msg(fabs(distance - 11) <= 1e-12, "%.17g", distance);
    assert_ok(frechet_distance(a, a, &distance));
    ck_assert(fabs(distance) <= 1e-12);
}

/* The deviation and covariance of two columns, as sums over rows less their means, over N - 1. */
static double covariance_of(ek_tensor *x, int i, int j)
{
    const int64_t count = ek_tensor_size(x, 0);
    double sum_i = 0, sum_j = 0, product = 0;
    for (int64_t k = 0; k < count; k++) {
        sum_i += element(x, 2 * k + i);
        sum_j += element(x, 2 * k + j);
        product += element(x, 2 * k + i) * element(x, 2 * k + j);
    }
    return (product - sum_i * sum_j / (double)count) / (double)(count - 1);
}

/* Covariances that don't commute. Of matrices M of 2 x 2, trace(M^(1/2)) is
 * sqrt(trace(M) + 2 sqrt(det(M))). */
TEST(distances_of_slanted_features)
{
    const double slant[] = {1, 2, 0, 1};
    double a[3], b[3], distance;
    ek_manual_seed(3);
    ek_tensor *x = ek_randn(EK_SHAPE(50, 2), EK_F64), *y = ek_randn(EK_SHAPE(50, 2), EK_F64);
    y = ek_matmul(y, tensor_of(slant, EK_SHAPE(2, 2), EK_F64, ek_cpu()));
    y = ek_add(ek_sub(y, ek_mean(y, EK_DIMS(0), .keepdim = true)),
               ek_mean(x, EK_DIMS(0), .keepdim = true)); /* means are alike */
    for (int i = 0; i < 3; i++) {
        a[i] = covariance_of(x, i / 2, (i + 1) / 2);
        b[i] = covariance_of(y, i / 2, (i + 1) / 2);
    }
    const double trace = a[0] * b[0] + 2 * a[1] * b[1] + a[2] * b[2];
    const double det = (a[0] * a[2] - a[1] * a[1]) * (b[0] * b[2] - b[1] * b[1]);
    const double wanted = a[0] + a[2] + b[0] + b[2] - 2 * sqrt(trace + 2 * sqrt(det));
    assert_ok(frechet_distance(x, y, &distance));
    ck_assert_msg(fabs(distance - wanted) <= 1e-12 && wanted > 0.1, "%.17g, not %.17g", distance,
                  wanted);
}

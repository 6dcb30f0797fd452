/* test_gan.c: the parts of the GAN sample. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int gan_main(int argc, char **argv);
#define main gan_main
#include "gan.c"
#undef main
#include "program.h"

/* The sample's defaults, smaller. */
static void make_small(void)
{
    char name[] = "gan", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = test_kind();
    opt.width = 4;
    opt.batch = 10; /* does not divide by 3 and 4 */
    opt.critic_steps = 2;
    opt.steps = 4;
}

TEST(words_are_options)
{
    static const char *const words[] = {"red", "green", "blue", NULL};
    int chosen = 0;
    arg_spec table[] = {arg_word(colour, &chosen, NULL, words, "WORD", "of it"), arg_end};
    char program[] = "p", right[] = "--colour=blue", wrong[] = "--colour=yellow", *said = NULL;
    char *good[] = {program, right, NULL}, *bad[] = {program, wrong, NULL};
    size_t length;
    FILE *errors = stderr;
    ck_assert_int_eq(args_read(2, good, "", table), 0);
    ck_assert_int_eq(chosen, 2);
    stderr = open_memstream(&said, &length);
    ck_assert_int_eq(args_read(2, bad, "", table), -1);
    fclose(stderr);
    stderr = errors;
    ck_assert_str_eq(said, "p: --colour yellow: red, green or blue is needed\n");
    ck_assert_int_eq(chosen, 2);
    free(said);
}

TEST(pictures_are_padded)
{
    ek_tensor *pixels = ek_zeros(EK_SHAPE(2, 1, 28, 28), EK_U8);
    const int64_t order[] = {1, 0};
    ((uint8_t *)ek_tensor_data(pixels))[784] = 255;          /* the second picture's first */
    ((uint8_t *)ek_tensor_data(pixels))[784 + 27 * 28] = 51; /* its last row's first */
    ek_dataset *pictures =
        adversary_framed(ek_tensor_dataset(pixels, ek_zeros(EK_SHAPE(2), EK_I64)), GAN_SIDE);
    ek_value both = ek_dataset_get_batch(pictures, order, 2, ek_cpu());
    ek_tensor *batch = ek_value_tensor(ek_value_at(both, 0));
    assert_made(batch);
    ek_shape shape = ek_tensor_shape(batch), wanted = EK_SHAPE(2, 1, 32, 32);
    ck_assert(ek_shape_equal(&shape, &wanted));
    for (int i = 0; i < 2 * 1024; i++) {
        double value = i == 2 * 32 + 2 ? 1 : i == 29 * 32 + 2 ? -0.6 : -1;
        ck_assert_double_le(fabs(element(batch, i) - value), 1e-6);
    }
    ek_dataset_free(pictures);
}

TEST(networks_have_their_shapes)
{
    ek_tensor *noise = ek_randn(EK_SHAPE(3, GAN_NOISE, 1, 1));
    ek_module *generator = gan_generator(4);
    ek_tensor *made = ek_apply(generator, noise);
    assert_made(made);
    ek_shape shape = ek_tensor_shape(made), wanted = EK_SHAPE(3, 1, GAN_SIDE, GAN_SIDE);
    ck_assert(ek_shape_equal(&shape, &wanted));
    for (int norm = 0; norm < NORMS; norm++) {
        ek_module *critic = gan_critic(4, norm);
        ek_tensor *scores = ek_apply(critic, made);
        assert_made(scores);
        ek_shape of_scores = ek_tensor_shape(scores), one_each = EK_SHAPE(3, 1, 1, 1);
        ck_assert(ek_shape_equal(&of_scores, &one_each));
        ek_module_free(critic);
    }
    ek_module_free(generator);
}

TEST(records_have_a_median)
{
    double odd[] = {3, 0, 10}, even[] = {0, 1, 10, 3};
    ck_assert(series_median(&(series){.count = 0}) == 0);
    ck_assert(series_median(&(series){.values = odd, .count = 3}) == 3);
    ck_assert(series_median(&(series){.values = even, .count = 4}) == 2);
    ck_assert(even[1] == 1); /* they stay */
}

/* What is no number reaches no page. */
TEST(curves_leave_out_what_is_no_number)
{
    double values[] = {NAN, 1, INFINITY, 2, -INFINITY};
    char *text = NULL;
    size_t length;
    FILE *page = open_memstream(&text, &length);
    page_curves(page, "t", "step", &(series){"a", values, 5}, 1);
    fclose(page);
    ck_assert_ptr_nonnull(strstr(text, "\"values\": [null, 1, null, 2, null]"));
    free(text);
}

TEST(pictures_are_drawn_again)
{
    make_small();
    gan job = {.random = NULL};
    assert_ok(gan_open(&job, NULL));
    ek_tensor *drawn = gan_draw(&job);
    assert_close(drawn, gan_draw(&job), 0, 0);
    ck_assert_int_eq(ek_tensor_count(drawn), GRID * GRID * GAN_SIDE * GAN_SIDE);
    gan_close(&job);
    assert_ok(ek_shutdown());
}

TEST(losses_have_to_be_finite)
{
    const double losses[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        double value;
        ek_scope scope = ek_scope_begin();
        ek_tensor *loss = ek_full(losses[i], EK_SHAPE(1));
        ek_tensor_set_requires_grad(loss, true);
        ck_assert_int_eq(adversary_backward(ek_sum(loss), &value), EK_E_INVALID);
        ek_error_clear();
        ek_scope_end(&scope);
    }
}

/* test_diffusion.c: the diffusion sample's numbers are PyTorch's; noising, and pictures made of it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int diffusion_main(int argc, char **argv);
#define main diffusion_main
#include "diffusion.c"
#undef main
#include "program.h"

/* The sample's defaults, smaller; as in tests/golden/make_diffusion.py. */
static void make_small(void)
{
    char name[] = "diffusion", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = test_kind();
    opt.dtype = EK_F64;
    opt.batch = 5;
    opt.width = 8;
    opt.seed = 5;
    opt.noise_steps = 50;
    opt.class_dropout = 0.3;
    opt.warm_up = 6;
    opt.weight_decay = 0.01;
    opt.ema = 0.9;
    opt.sample_steps = 7;
    opt.eta = 0.5;
    opt.judged = 0;
}

/* Uniform pictures in place of the files', of all classes in turn. */
static ek_dataset *made_pictures(int64_t count)
{
    ek_generator *random = ek_generator_new(7);
    ek_tensor *pictures = ek_empty(EK_SHAPE(count, CHANNELS, SIDE, SIDE));
    assert_ok(ek_uniform_(pictures, -1, 1, random));
    ek_generator_free(random);
    int64_t classes[64];
    for (int64_t i = 0; i < count; i++)
        classes[i] = i % CLASSES;
    return ek_tensor_dataset(pictures, ek_from_data(classes, EK_SHAPE(count), EK_I64));
}

/* `steps` steps on 15 of these, in the same order in each pass. To be closed. */
static void run_made(diffusion *s, run *r, int steps)
{
    enum { PICTURES = 15 };
    *s = (diffusion){.job = {.devices = ek_devices(test_kind(), 1)}};
    *r = (run){.name = "test", .last = steps};
    opt.mode = MODE_SINGLE;
    s->job.loader = ek_data_loader(made_pictures(PICTURES), .batch_size = opt.batch,
                                   .sampler = ek_sequential_sampler(PICTURES));
    assert_ok(diffusion_open_network(s, NULL));
    while (run_next(r))
        diffusion_step(s, r);
    assert_ok(ek_error_status());
}

static void close_run(diffusion *s, run *r)
{
    diffusion_close(s);
    series_free(r->series, SERIES);
}

TEST(steps_are_those_of_pytorch)
{
    enum { STEPS = 20, MADE = 4 };
    diffusion s;
    run r;
    make_small();
    assert_ok(test_devices_configure("1"));
    run_made(&s, &r, STEPS);
    ek_tensor *losses = golden("diffusion.golden", "losses");
    ck_assert_int_eq(ek_tensor_count(losses), r.series[LOSSES].count);
    assert_numbers("losses", r.series[LOSSES].values, STEPS, ek_tensor_data(losses), 1e-10);
    ek_tensor *wanted = golden("diffusion.golden", "samples");
    ek_tensor *made = diffusion_sample(&s, MADE, 1.5);
    ck_assert(made && ek_tensor_count(made) == ek_tensor_count(wanted));
    assert_numbers("samples", ek_tensor_data(made), ek_tensor_count(made), ek_tensor_data(wanted),
                   1e-9);
    close_run(&s, &r);
    assert_ok(ek_shutdown());
}

TEST(shares_are_those_of_the_papers)
{
    static const char *const names[] = {"left/cosine/30", "left/cosine/1000", "left/linear/30",
                                        "left/linear/1000"};
    for (int i = 0; i < 4; i++) {
        noising steps;
        assert_ok(noising_open(&steps, i < 2 ? NOISING_COSINE : NOISING_LINEAR, i % 2 ? 1000 : 30));
        ek_tensor *wanted = golden("diffusion.golden", names[i]);
        ck_assert_int_eq(ek_tensor_count(wanted), steps.steps);
        assert_numbers(names[i], steps.left, steps.steps, ek_tensor_data(wanted), 1e-13);
        noising_close(&steps);
    }
}

/* Of the pictures all is left but the noise; classes are dropped or kept. */
TEST(inputs_are_pictures_and_noise)
{
    enum { COUNT = 40 };
    diffusion s = {0};
    make_small();
    assert_ok(noising_open(&s.noising, NOISING_LINEAR, opt.noise_steps));
    ek_dataset *set = made_pictures(COUNT);
    int64_t indices[COUNT];
    for (int i = 0; i < COUNT; i++)
        indices[i] = i;
    ek_value all = ek_dataset_get_batch(set, indices, COUNT, ek_cpu());
    const ek_batch batch = {.input = ek_value_at(all, 0),
                            .target = ek_value_at(all, 1),
                            .count = COUNT};
    ek_tensor *pictures = ek_value_tensor(batch.input);
    ek_generator *random = ek_generator_new(1);
    for (int dropout = 0; dropout <= 2; dropout++) {
        opt.class_dropout = dropout / 2.0;
        int dropped = 0;
        noised x = diffusion_noised(&s, &batch, random);
        ek_tensor *mixed = ek_value_tensor(ek_value_at(x.input, 0));
        ek_tensor *t = ek_value_tensor(ek_value_at(x.input, 1));
        ek_tensor *classes = ek_value_tensor(ek_value_at(x.input, 2));
        for (int i = 0; i < COUNT; i++) {
            const double left = s.noising.left[(int)element(t, i)];
            const int64_t last = (int64_t)(i + 1) * SIDE * SIDE - 1;
            const double wanted =
                sqrt(left) * element(pictures, last) + sqrt(1 - left) * element(x.noise, last);
            ck_assert(fabs(element(mixed, last) - wanted) <= 1e-12);
            dropped += element(classes, i) == NO_CLASS;
            ck_assert(element(classes, i) == NO_CLASS || element(classes, i) == i % CLASSES);
        }
        ck_assert_msg(dropout == 1 ? dropped > 10 && dropped < 30 : dropped == COUNT / 2 * dropout,
                      "%d dropped", dropped);
    }
    ek_generator_free(random);
    ek_dataset_free(set);
    noising_close(&s.noising);
}

static const noising *knowing; /* the noising that knowing_forward undoes */

/* Returns the exact noise of pictures whose pixels are all class / 20, or 0.2 without a class. */
static ek_value knowing_forward(ek_module *module, const ek_args *call)
{
    (void)module;
    ek_tensor *x = ek_arg_tensor(call, 0);
    const double left = knowing->left[(int)element(ek_arg_tensor(call, 1), 0)];
    const double class = element(ek_arg_tensor(call, 2), 0);
    const double picture = class == NO_CLASS ? 0.2 : class / 20;
    ek_tensor *noise = ek_add_scalar(x, -sqrt(left) * picture);
    return ek_value_of_tensor(ek_mul_scalar(noise, 1 / sqrt(1 - left)));
}

static const ek_module_type knowing_type = {.name = "knowing",
                                            .size = sizeof(ek_module),
                                            .forward = knowing_forward};

/* With a network that knows, pictures are what it knows in any number of steps, with any noise;
 * with guidance as far beyond as its weight says, within the range of pictures. */
TEST(knowing_networks_make_what_they_know)
{
    static const struct {
        int steps;
        double eta, guidance, class, wanted;
    } cases[] = {{1, 0, 1, 6, 0.3},   {7, 0, 1, 6, 0.3}, {50, 1, 1, 9, 0.45},
                 {7, 0.5, 2, 6, 0.4}, {7, 1, 0, 6, 0.2}, {7, 0, 100, 9, 1}};
    noising steps;
    assert_ok(noising_open(&steps, NOISING_COSINE, 50));
    knowing = &steps;
    ek_module *network = ek_module_finish(ek_module_new(&knowing_type));
    ek_generator *random = ek_generator_new(1);
    bool had_gradients = ek_set_grad_enabled(false);
    for (int i = 0; i < 6; i++) {
        const int64_t class = (int64_t)cases[i].class;
        const noising_sampling how = {.network = network,
                                      .device = ek_cpu(),
                                      .steps = cases[i].steps,
                                      .eta = cases[i].eta,
                                      .guidance = cases[i].guidance,
                                      .no_class = NO_CLASS};
        ek_tensor *made = noising_sample(&steps, &how, ek_from_data(&class, EK_SHAPE(1), EK_I64),
                                         EK_SHAPE(1, 1, 4, 4), EK_F64, random);
        ck_assert(made);
        for (int k = 0; k < 16; k++)
            ck_assert_msg(fabs(element(made, k) - cases[i].wanted) <= 1e-12, "case %d: %.17g", i,
                          element(made, k));
    }
    ek_set_grad_enabled(had_gradients);
    ek_generator_free(random);
    ek_module_free(network);
    noising_close(&steps);
}

/* A network that finds nothing has the mean square of the noise as its loss. */
TEST(test_losses_are_means_over_pixels)
{
    diffusion s;
    run r;
    double wanted = 0;
    make_small();
    assert_ok(test_devices_configure("1"));
    opt.tested = 3;
    run_made(&s, &r, 0);
    bool had_gradients = ek_set_grad_enabled(false);
    ek_module *out = ek_module_at(s.job.network, "out");
    ek_fill_(ek_module_tensor(out, "weight"), 0);
    ek_fill_(ek_module_tensor(out, "bias"), 0);
    ek_set_grad_enabled(had_gradients);
    assert_ok(ek_ema_update(s.average));
    const double found = diffusion_test(&s, made_pictures(5));
    assert_ok(ek_error_status());
    ek_generator *random = ek_generator_new(0);
    ek_tensor *t = ek_empty(EK_SHAPE(3), EK_I64),
              *noise = ek_empty(EK_SHAPE(3, 1, SIDE, SIDE), EK_F64);
    assert_ok(ek_random_(t, 0, opt.noise_steps, random));
    assert_ok(ek_normal_(noise, 0, 1, random));
    for (int64_t i = 0; i < ek_tensor_count(noise); i++)
        wanted += element(noise, i) * element(noise, i) / (double)ek_tensor_count(noise);
    ck_assert_msg(fabs(found - wanted) <= 1e-12, "%.17g, not %.17g", found, wanted);
    ek_generator_free(random);
    close_run(&s, &r);
    assert_ok(ek_shutdown());
}

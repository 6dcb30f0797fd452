/* test_draws.c: with Philox, replicas drop out what one module of the whole batch does. */
#include "core/world.h"
#include "kit/models.h"
#include "parallel/draws.h"
#include "parallel_setup.h"

enum { ROWS = 5, SIDE = 3 };

static void philox(void)
{
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_manual_seed(11);
}

/* Draws in all ways that modules do: elements, channels, noise of one's own, flattened batches. */
static ek_value noisy_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *y = ek_f_dropout(x, 0.4, true);
    ek_tensor *noise = ek_tensor_like(x);
    if (!y || !noise || ek_normal_(noise, 0, 1, NULL) < 0)
        return ek_value_error();
    ek_tensor *flat =
        ek_reshape(ek_add(y, noise), EK_SHAPE(ek_tensor_size(x, 0) * ROWS, SIDE * SIDE));
    return ek_value_of_tensor(ek_reshape(ek_f_dropout(flat, 0.5, true), ek_tensor_shape(x)));
}

MODULE_TYPE(noisy, ek_module)

static ek_module *noisy(bool checkpoint)
{
    ek_module *module = ek_module_new(&noisy_type);
    ek_module *body = ek_sequential(ek_dropout2d(0.3), module, ek_dropout(0.2));
    return checkpoint ? ek_checkpoint(body) : body;
}

static ek_tensor *batch_of(int64_t samples)
{
    ek_tensor *x = normal(3, EK_SHAPE(samples, ROWS, SIDE, SIDE), EK_F32, ek_cpu());
    assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

/* Two forwards of the model and the gradient, on cpu. */
static void run(ek_module *model, int64_t samples, float *values)
{
    const size_t nbytes = (size_t)samples * ROWS * SIDE * SIDE * sizeof *values;
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(11);
    ek_tensor *x = batch_of(samples);
    for (int turn = 0; turn < 2; turn++) {
        ek_tensor *y = ek_apply(model, x);
        assert_made(y);
        assert_ok(ek_to_data(ek_to_device(ek_detach(y), ek_cpu()), values, nbytes));
        values += nbytes / sizeof *values;
        assert_ok(ek_backward(ek_sum(y)));
    }
    assert_ok(ek_to_data(ek_tensor_grad(x), values, nbytes));
    values += nbytes / sizeof *values;
    assert_ok(ek_to_data(ek_rand(EK_SHAPE(4)), values, 4 * sizeof *values)); /* goes on alike */
    ek_scope_end(&scope);
}

enum { MOST = 8, ROOM = 3 * MOST * ROWS * SIDE * SIDE + 4 };

/* Equal chunks, uneven ones, fewer samples than devices; with a checkpoint too. */
static const struct {
    int samples, devices;
    ek_split_policy split;
    bool checkpoint;
} cases[] = {{8, 4, EK_SPLIT_CHUNK, false}, {8, 2, EK_SPLIT_CHUNK, true},
             {7, 4, EK_SPLIT_CHUNK, false}, {7, 3, EK_SPLIT_EVEN, true},
             {3, 4, EK_SPLIT_CHUNK, false}, {1, 4, EK_SPLIT_CHUNK, false},
             {6, 1, EK_SPLIT_CHUNK, false}};
enum { CASES = sizeof cases / sizeof *cases };

TEST_LOOP(many_devices_draw_what_one_does, 0, CASES)
{
    static float one[ROOM], many[ROOM];
    const int samples = cases[_i].samples;
    const size_t used = (size_t)(3 * samples * ROWS * SIDE * SIDE + 4) * sizeof *one;
    philox();
    ek_module *model = noisy(false);
    run(model, samples, one);
    ek_module_free(model);
    model = ek_data_parallel(noisy(cases[_i].checkpoint),
                             .device_ids = ek_devices(test_kind(), cases[_i].devices),
                             .split = cases[_i].split);
    assert_made(model);
    run(model, samples, many);
    ck_assert_mem_eq(many, one, used);
    ck_assert(memcmp(one, one + samples * ROWS * SIDE * SIDE, 64) != 0);
    ek_module_free(model);
}

/* Cut along the second dimension. */
TEST(batches_may_be_cut_elsewhere)
{
    static float one[4 * 9 * 5], many[4 * 9 * 5];
    philox();
    ek_manual_seed(2);
    ek_tensor *x = ek_ones(EK_SHAPE(4, 9, 5));
    assert_ok(ek_to_data(ek_f_dropout(x, 0.5, true), one, sizeof one));
    ek_module *model = held(ek_data_parallel(ek_sequential(ek_dropout(0.5)),
                                             .device_ids = ek_devices(test_kind(), 4), .dim = 1));
    ek_manual_seed(2);
    assert_ok(ek_to_data(ek_to_device(ek_apply(model, x), ek_cpu()), many, sizeof many));
    ck_assert_mem_eq(many, one, sizeof one);
}

/* What isn't part of the batch is the same on each replica. */
static ek_value common_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    ek_tensor *noise = ek_rand(EK_SHAPE(7), .device = ek_tensor_device(x));
    return ek_value_of_tensor(ek_add(x, noise));
}

MODULE_TYPE(common, ek_module)

TEST(other_tensors_are_common)
{
    philox();
    ek_tensor *noise = ek_rand(EK_SHAPE(7));
    philox();
    ek_module *model =
        held(ek_data_parallel(ek_module_new(&common_type), ek_devices(test_kind(), 2)));
    ek_tensor *y = ek_to_device(ek_apply(model, ek_zeros(EK_SHAPE(6, 7))), ek_cpu());
    for (int64_t i = 0; i < 42; i++)
        ck_assert(element(y, i) == element(noise, i % 7));
}

/* Rank r of R, with devices of its own or with cpu alone: its sample i is number i R + r of all. */
TEST_LOOP(ranks_draw_what_one_process_does, 0, 3)
{
    enum { RANKS = 3, EACH = 4, WIDTH = 10 };
    float whole[RANKS * EACH][WIDTH], part[EACH][WIDTH];
    const ek_world_place alone = ek_world;
    philox();
    assert_ok(ek_to_data(ek_f_dropout(ek_ones(EK_SHAPE(RANKS * EACH, WIDTH)), 0.5, true), whole,
                         sizeof whole));
    for (int rank = 0; rank < RANKS; rank++) {
        philox();
        ek_world.rank = rank;
        ek_world.size = RANKS;
        ek_module *model =
            _i == 0 ? ek_data_parallel(ek_sequential(ek_dropout(0.5)),
                                       .device_ids = (ek_device_list){1, {ek_cpu()}})
                    : ek_data_parallel(ek_sequential(ek_dropout(0.5)),
                                       .device_ids = ek_devices(test_kind(), _i == 1 ? 2 : 3));
        assert_made(model);
        ek_tensor *y = ek_apply(model, ek_ones(EK_SHAPE(EACH, WIDTH)));
        assert_ok(ek_to_data(ek_to_device(y, ek_cpu()), part, sizeof part));
        ek_module_free(model);
        ek_world = alone;
        for (int i = 0; i < EACH; i++)
            ck_assert_mem_eq(part[i], whole[i * RANKS + rank], sizeof part[i]);
    }
}

/* One replica draws tensors, another single words: neither comes again. */
TEST(words_and_tensors_are_counted_apart)
{
    enum { PARTS = 2, WORDS = 5 };
    ek_tensor *x = ek_ones(EK_SHAPE(2));
    const ek_args args[PARTS] = {{EK_VALUES(x), 1, ek_value_none()},
                                 {EK_VALUES(x), 1, ek_value_none()}};
    ek_draws draws;
    philox();
    for (int i = 0; i < WORDS; i++)
        (void)ek_random_u32(NULL);
    const uint32_t word = ek_random_u32(NULL);
    ek_manual_seed(11);
    assert_made(ek_rand(EK_SHAPE(2)));
    ek_tensor *next = ek_rand(EK_SHAPE(4));
    ek_manual_seed(11);
    assert_ok(ek_draws_begin(&draws, 0, args, PARTS));
    ek_generator *before = ek_draws_enter(&draws, 0);
    assert_made(ek_rand(EK_SHAPE(2)));
    ek_draws_leave(&draws, before);
    before = ek_draws_enter(&draws, 1);
    for (int i = 0; i < WORDS; i++)
        (void)ek_random_u32(NULL);
    ek_draws_leave(&draws, before);
    ek_draws_end(&draws);
    assert_close(ek_rand(EK_SHAPE(4)), next, 0, 0);
    ck_assert_uint_eq(ek_random_u32(NULL), word);
}

/* A failure in the replicas leaves the generator in one piece: it goes on. */
static ek_value failing_forward(ek_module *module, const ek_args *args)
{
    ek_f_dropout(ek_arg_tensor(args, 0), 0.5, true);
    return fail_with("no more");
}

MODULE_TYPE(failing, ek_module)

TEST(a_failure_leaves_the_generator)
{
    philox();
    ek_module *model =
        held(ek_data_parallel(ek_module_new(&failing_type), ek_devices(test_kind(), 2)));
    assert_refused(ek_apply(model, ek_ones(EK_SHAPE(4, 3))), EK_E_USER, "no more");
    ek_tensor *after = ek_rand(EK_SHAPE(9));
    philox();
    assert_made(ek_rand(EK_SHAPE(9)));
    assert_close(ek_rand(EK_SHAPE(9)), after, 0, 0);
}

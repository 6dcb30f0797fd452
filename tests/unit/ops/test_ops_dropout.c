/* test_ops_dropout.c: dropout by Philox, whose mask is made again in backward. */
#include "core/draw.h"
#include "ops/dropout.h"

#include "home.h"

static void begin(void)
{
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_manual_seed(5);
}

FIXTURE(begin, NULL)

/* Element i is kept if word i of the call is below 1 - p. */
TEST(the_mask_is_philoxs)
{
    const double p = 0.3;
    uint32_t words[40];
    ek_philox_plain_blocks(5, 0, 0, 10, words);
    for (int t = 0; t < 3; t++) {
        const ek_dtype dtype = (ek_dtype[]){EK_F32, EK_F64, EK_BF16}[t];
        ek_manual_seed(5);
        ek_tensor *y = ek_f_dropout(ek_full(3, EK_SHAPE(5, 8), dtype), p, true);
        assert_made(y);
        ck_assert_int_eq(ek_tensor_dtype(y), dtype);
        y = ek_to_device(y, ek_cpu());
        for (int i = 0; i < 40; i++) {
            double wanted = words[i] < (1 - p) * 0x1p32 ? 3 / (1 - p) : 0;
            ck_assert(fabs(element(y, i) - wanted) <= (t == 2 ? 0.02 : 1e-6));
        }
    }
}

/* The gradient's mask is the forward's, to any order, and no tensor is kept for it. */
TEST(gradients_have_the_same_mask)
{
    enum { COUNT = 100000 };
    ek_memory_stats before, after;
    ek_tensor *x = ek_ones(EK_SHAPE(100, COUNT / 100));
    assert_ok(ek_tensor_set_requires_grad(x, true));
    ek_tensor *y = ek_f_dropout(x, 0.25, true);
    assert_made(y);
    assert_ok(ek_memory_get_stats(test_home(), &before));
    ek_tensor *more = ek_f_dropout(x, 0.25, true);
    assert_ok(ek_memory_get_stats(test_home(), &after));
    ck_assert_uint_le(after.in_use - before.in_use, COUNT * sizeof(float) + 4096);
    assert_made(more);
    ek_tensor *direction = ek_full(2, EK_SHAPE(100, COUNT / 100));
    assert_ok(ek_tensor_set_requires_grad(direction, true));
    ek_tensor *first, *second;
    assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                      .grad_outputs = &direction, .create_graph = true, .gradients = &first));
    ek_tensor *loss = ek_sum(ek_square(first));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &direction, .input_count = 1,
                      .gradients = &second));
    y = ek_to_device(ek_detach(y), ek_cpu());
    first = ek_to_device(ek_detach(first), ek_cpu());
    second = ek_to_device(second, ek_cpu());
    const float *values = ek_tensor_data(y), *firsts = ek_tensor_data(first),
                *seconds = ek_tensor_data(second);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        wrong +=
            !(firsts[i] == 2 * values[i] && fabsf(seconds[i] - 4 * values[i] * values[i]) <= 1e-5f);
    ck_assert_int_eq(wrong, 0);
}

/* Numbers go in row-major order, and the result is laid out like x. */
TEST(layouts_do_not_matter)
{
    ek_tensor *rows = ek_rand(EK_SHAPE(2, 6, 3, 5));
    ek_tensor *last = ek_contiguous(rows, EK_CHANNELS_LAST);
    ek_tensor *turned = ek_contiguous(ek_permute(rows, EK_SHAPE(3, 2, 1, 0)), EK_CONTIGUOUS);
    turned = ek_permute(turned, EK_SHAPE(3, 2, 1, 0));
    ek_tensor *all[] = {rows, last, turned}, *first = NULL;
    for (int i = 0; i < 3; i++) {
        ek_manual_seed(9);
        assert_ok(ek_tensor_set_requires_grad(all[i] = ek_detach(all[i]), true));
        ek_tensor *y = ek_f_dropout(all[i], 0.5, true);
        assert_made(y);
        if (i == 1)
            ck_assert(ek_tensor_is_contiguous(y, EK_CHANNELS_LAST));
        assert_ok(ek_backward(ek_sum(ek_mul(y, y))));
        ek_tensor *outcome =
            ek_to_device(ek_cat((ek_tensor *[]){ek_detach(y), ek_tensor_grad(all[i])}, 2, 0),
                         ek_cpu());
        assert_made(outcome);
        first = first ? first : outcome;
        assert_close(outcome, first, 0, 0);
    }
}

/* A tensor (3, 4, 5, 7) of zeros: row-major, channels-last, or turned in a larger one (*around). */
static ek_tensor *laid_out(int layout, ek_dtype dtype, ek_device device, ek_tensor **around)
{
    if (layout < 2)
        return ek_zeros(EK_SHAPE(3, 4, 5, 7), dtype, device,
                        .format = layout ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
    *around = ek_permute(ek_zeros(EK_SHAPE(7, 5, 4, 6), dtype, device), EK_SHAPE(3, 2, 1, 0));
    return ek_narrow(*around, 0, 1, 3);
}

/* Fills give the bits that cpu gets, on any device and in any layout, and fill nothing else. */
TEST_LOOP(fills_are_the_same_on_every_device, 0, 4)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    for (int t = 0; t < 3; t++)
        for (int layout = 0; layout < 3; layout++) {
            unsigned char bytes[2][3 * 4 * 5 * 7 * 8];
            ek_tensor *around = NULL;
            for (int there = 0; there < 2; there++) {
                ek_tensor *x = laid_out(there ? layout : 0, dtypes[t],
                                        there ? test_home() : ek_cpu(), &around);
                assert_made(x);
                ek_manual_seed(4);
                assert_ok(_i == 0   ? ek_uniform_(x, -1, 2, NULL)
                          : _i == 1 ? ek_normal_(x, 1, 2, NULL)
                          : _i == 2 ? ek_random_(x, -7, 100, NULL)
                                    : ek_bernoulli_(x, 0.3, NULL));
                assert_ok(ek_to_data(x, bytes[there], 420 * ek_dtype_size(dtypes[t])));
            }
            ck_assert_mem_eq(bytes[1], bytes[0], 420 * ek_dtype_size(dtypes[t]));
            for (int part = 0; around && part < 6; part += part == 0 ? 4 : 1) {
                ek_tensor *rest = ek_to_device(ek_narrow(around, 0, part, 1), ek_cpu());
                assert_close(rest, ek_zeros(EK_SHAPE(1, 4, 5, 7), dtypes[t]), 0, 0);
            }
        }
}

/* All and nothing, and what isn't training. Only a draw counts as a call. */
TEST(edges)
{
    ek_tensor *x = ek_ones(EK_SHAPE(50)), *none = ek_ones(EK_SHAPE(0, 3));
    assert_close(ek_f_dropout(x, 0.5, false), x, 0, 0);
    ek_tensor *dropped = ek_to_device(ek_f_dropout(x, 1, true), ek_cpu());
    for (int i = 0; i < 50; i++)
        ck_assert(element(dropped, i) == 0);
    assert_made(ek_f_dropout(none, 0.5, true));
    ek_tensor *after = ek_rand(EK_SHAPE(5));
    ek_manual_seed(5);
    assert_made(ek_rand(EK_SHAPE(1)));
    assert_close(ek_rand(EK_SHAPE(5)), after, 0, 0);
    assert_refused(ek_f_dropout(x, 1.5, true), EK_E_INVALID, "1.5");
    assert_refused(ek_f_dropout(ek_ones(EK_SHAPE(2), EK_I64), 0.5, true), EK_E_DTYPE, "dropout");
}

/* ---- with a sum ---- */

typedef struct outcome {
    ek_tensor *y, *dx, *dr, *second;
} outcome;

/* residual + dropout(x), by one operation or by two; its gradients, and those of a gradient. */
static outcome add_dropped(bool fused, ek_tensor *residual, ek_tensor *x, double p, bool training)
{
    outcome got;
    ek_tensor *inputs[2], *gradients[2];
    assert_ok(ek_tensor_set_requires_grad(inputs[0] = ek_detach(x), true));
    assert_ok(ek_tensor_set_requires_grad(inputs[1] = ek_detach(residual), true));
    ek_manual_seed(7);
    got.y = fused ? ek_dropout_added(inputs[1], inputs[0], p, training)
                  : ek_add(inputs[1], ek_f_dropout(inputs[0], p, training));
    assert_made(got.y);
    ek_tensor *loss = ek_sum(ek_square(got.y));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = inputs, .input_count = 2,
                      .gradients = gradients, .create_graph = true));
    got.dx = gradients[0];
    got.dr = gradients[1];
    loss = ek_sum(ek_square(got.dx));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = inputs, .input_count = 1,
                      .gradients = &got.second));
    return got;
}

static void same(ek_tensor *a, ek_tensor *b)
{
    assert_close(ek_to_device(ek_detach(a), ek_cpu()), ek_to_device(ek_detach(b), ek_cpu()), 0, 0);
}

static void added_as_two(ek_tensor *residual, ek_tensor *x, double p, bool training)
{
    const outcome one = add_dropped(true, residual, x, p, training),
                  two = add_dropped(false, residual, x, p, training);
    same(one.y, two.y);
    same(one.dx, two.dx);
    same(one.dr, two.dr);
    same(one.second, two.second);
}

TEST_LOOP(sums_with_a_residual, 0, 4)
{
    const ek_dtype dtype = (ek_dtype[]){EK_F32, EK_F64, EK_BF16, EK_F16}[_i];
    ek_tensor *x = ek_randn(EK_SHAPE(2, 6, 3, 5), dtype),
              *residual = ek_randn(EK_SHAPE(2, 6, 3, 5), dtype);
    added_as_two(residual, x, 0.3, true);
    added_as_two(ek_contiguous(residual, EK_CHANNELS_LAST), x, 0.3, true);
    added_as_two(residual, ek_contiguous(x, EK_CHANNELS_LAST), 0.3, true);
    added_as_two(residual, x, 0.3, false);
    added_as_two(residual, x, 0, true);
    added_as_two(residual, x, 1, true);
    added_as_two(ek_randn(EK_SHAPE(5), dtype), x, 0.3, true);
    added_as_two(residual, ek_randn(EK_SHAPE(6, 1, 5), dtype), 0.3, true);
    added_as_two(ek_zeros(EK_SHAPE(0, 3), dtype), ek_zeros(EK_SHAPE(0, 3), dtype), 0.3, true);
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_TWISTER));
    added_as_two(residual, x, 0.3, true);
}

/* Autocast adds 16 bits to f32, and f32 to 16 bits. */
TEST_LOOP(sums_under_autocast, 0, 4)
{
    const ek_dtype narrow = _i / 2 ? EK_F16 : EK_BF16;
    ek_tensor *x = ek_randn(EK_SHAPE(7, 33), _i % 2 ? EK_F32 : narrow),
              *residual = ek_randn(EK_SHAPE(7, 33), _i % 2 ? narrow : EK_F32);
    ek_autocast autocast = ek_autocast_begin(narrow);
    added_as_two(residual, x, 0.3, true);
    added_as_two(residual, x, 0.3, false);
    ek_autocast_end(&autocast);
    assert_refused(ek_dropout_added(residual, x, 0.3, true), EK_E_DTYPE, "dtype");
}

TEST(sums_of_what_fails)
{
    ek_tensor *x = ek_ones(EK_SHAPE(4));
    assert_refused(ek_dropout_added(x, ek_ones(EK_SHAPE(3)), 0.3, true), EK_E_SHAPE, "add");
    assert_refused(ek_dropout_added(x, x, 1.5, true), EK_E_INVALID, "p is 1.5");
}

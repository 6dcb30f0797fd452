/* Gradients of slices of one tensor, in any order, beside and over each other, against the backward
 * that pads them with zeros, which create_graph takes. */
#include "autograd/graph.h"
#include "core/tensor.h"

#include "home.h"

static uint32_t drawn;

static int draw(int below)
{
    drawn = drawn * 1664525 + 1013904223;
    return (int)(drawn >> 16) % below;
}

static ek_tensor *whole_of(void)
{
    ek_shape shape = EK_SHAPE(4, 6, 5);
    return ek_reshape(ek_arange(120, EK_F32, test_home()), shape);
}

/* The sum of x times whole numbers, so that sums of gradients are exact in any order. */
static ek_tensor *weighted(ek_tensor *x)
{
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *numbers = ek_arange(ek_shape_count(&shape), EK_F32, test_home());
    return ek_sum(ek_mul(x, ek_add_scalar(ek_reshape(numbers, shape), 1 + draw(9))));
}

static ek_tensor *twice(ek_tensor *gradient, void *user)
{
    return ek_mul_scalar(gradient, 2);
}

/* A use of x: a slice along any dimension, with neighbours, gaps and overlaps, or all of x. */
static ek_tensor *used(ek_tensor *x, int kind)
{
    const int dim = kind < 6 ? 1 : draw(3);
    const int64_t size = ek_tensor_size(x, dim), start = draw((int)size);
    ek_tensor *part = kind < 6    ? ek_narrow(x, 1, kind / 2 * 2, 2)
                      : kind < 8  ? ek_select(x, dim, start)
                      : kind == 8 ? ek_slice(x, dim, start / 2, size, 2)
                      : kind == 9 ? x
                      : kind < 12 ? ek_narrow(x, dim, start, draw((int)(size - start) + 1))
                                  : ek_narrow(ek_narrow(x, 2, 1, 3), 1, start % 3, 2);
    assert_made(part);
    if (draw(4) == 0 && part != x)
        ck_assert_int_gt(ek_tensor_register_hook(part, twice, NULL), 0);
    return weighted(part);
}

/* The sum of some uses, by the same draws for each call with this seed. */
static ek_tensor *used_at_random(ek_tensor *x, int seed)
{
    drawn = (uint32_t)seed;
    const int kinds = seed % 3 == 0 ? 6 : 14, count = 1 + draw(7);
    ek_tensor *sum = used(x, draw(kinds));
    for (int i = 1; i < count; i++)
        sum = ek_add(sum, used(x, draw(kinds)));
    return sum;
}

static ek_tensor *gradient_of(ek_tensor *loss, ek_tensor *x, bool create_graph)
{
    ek_tensor *gradient = NULL;
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient, .create_graph = create_graph));
    assert_made(gradient);
    return ek_to_device(ek_detach(gradient), ek_cpu());
}

TEST(slices_in_any_order)
{
    for (int seed = 1; seed < 200; seed++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *leaf = whole_of();
        assert_ok(ek_tensor_set_requires_grad(leaf, true));
        ek_tensor *x = ek_mul_scalar(leaf, 1);
        if (seed % 5 == 0)
            ck_assert_int_gt(ek_tensor_register_hook(x, twice, NULL), 0);
        ek_tensor *wanted = gradient_of(used_at_random(x, seed), x, true);
        assert_close(gradient_of(used_at_random(x, seed), x, false), wanted, 0, 0);
        ek_scope_end(&scope);
    }
}

/* The leaf's gradient is summed in its grad buffer, once and then again. */
TEST_LOOP(slices_of_a_leaf, 0, 2)
{
    for (int seed = 1; seed < 60; seed++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *leaf = whole_of(), *buffer = whole_of();
        assert_ok(ek_tensor_set_requires_grad(leaf, true));
        if (_i)
            assert_ok(ek_leaf_set_grad_buffer(leaf, buffer));
        ek_tensor *wanted = gradient_of(used_at_random(leaf, seed), leaf, true);
        for (int pass = 1; pass <= 2; pass++) {
            assert_ok(ek_backward(used_at_random(leaf, seed)));
            ek_tensor *got = ek_to_device(ek_detach(ek_tensor_grad(leaf)), ek_cpu());
            assert_close(got, ek_mul_scalar(wanted, pass), 0, 0);
            ck_assert(!_i || ek_tensor_grad(leaf) == buffer);
        }
        assert_ok(ek_leaf_set_grad_buffer(leaf, NULL));
        ek_scope_end(&scope);
    }
}

/* A gradient that another tensor shares is not written to. */
TEST(shared_gradients_stay)
{
    for (int seed = 1; seed < 40; seed++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *both[] = {whole_of(), whole_of()}, *wanted[2], *got[2];
        for (int i = 0; i < 2; i++)
            assert_ok(ek_tensor_set_requires_grad(both[i], true));
        ek_tensor *sums[] = {weighted(ek_add(both[0], both[1])), used_at_random(both[0], seed)};
        ek_tensor *loss = ek_add(sums[seed % 2], sums[1 - seed % 2]);
        for (int create = 1; create >= 0; create--)
            assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = both, .input_count = 2,
                              .gradients = create ? wanted : got, .create_graph = create,
                              .retain_graph = true));
        for (int i = 0; i < 2; i++)
            assert_close(ek_to_device(got[i], ek_cpu()),
                         ek_to_device(ek_detach(wanted[i]), ek_cpu()), 0, 0);
        ek_scope_end(&scope);
    }
}

/* Slices of squares: the gradient's gradient. */
TEST(slices_to_second_order)
{
    for (int seed = 1; seed < 40; seed++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_fmod_scalar(whole_of(), 5), *first = NULL;
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *loss = used_at_random(ek_mul(ek_square(x), x), seed);
        assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                          .gradients = &first, .create_graph = true));
        ek_tensor *sum = used_at_random(first, seed + 1);
        ek_tensor *wanted = gradient_of(sum, x, true);
        assert_close(gradient_of(sum, x, false), wanted, 0, 0);
        ek_scope_end(&scope);
    }
}

static uint64_t peak(void)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(test_home(), &stats));
    return stats.peak;
}

/* Slices that cover the whole, in any order: backward needs memory for their gradients and for one
 * whole. */
TEST_LOOP(neighbours_share_one_buffer, 0, 3)
{
    enum { ROWS = 256, WIDTH = 64, NBYTES = ROWS * WIDTH * 4 };
    ek_tensor *leaf = ek_ones(EK_SHAPE(ROWS, 4 * WIDTH)), *loss = NULL;
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    ek_tensor *x = ek_mul_scalar(leaf, 2);
    for (int i = 0; i < 4; i++) {
        ek_tensor *part = ek_narrow(x, 1, (_i == 0 ? i : 3 - i) * WIDTH, WIDTH);
        ek_tensor *sum = ek_sum(_i == 2 ? ek_mul_scalar(part, 3) : part);
        loss = loss ? ek_add(loss, sum) : sum;
    }
    assert_ok(ek_synchronize(test_home()));
    assert_ok(ek_memory_reset_peak(test_home()));
    const uint64_t before = peak();
    ek_tensor *gradient = NULL;
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &x, .input_count = 1,
                      .gradients = &gradient));
    ck_assert_uint_le(peak() - before, 6 * NBYTES);
    assert_close(ek_to_device(gradient, ek_cpu()),
                 ek_full(_i == 2 ? 3 : 1, EK_SHAPE(ROWS, 4 * WIDTH), .device = ek_cpu()), 0, 0);
}

/* Batch normalisation in pieces: put together again it is batch normalisation. */
#include "evenkeel/autograd.h"
#include "evenkeel/device.h"
#include "evenkeel/ops.h"
#include "ops/batch_norm.h"
#include "unit.h"

#include "home.h"

enum { FIRST = 2, ALL = 5, CHANNELS = 3, SPACE = 2 };

/* inputs: x (ALL, ...), w, b, in chunks of FIRST and the others. */
static ek_tensor *in_pieces(ek_tensor *const *inputs, int count, void *user)
{
    const int64_t sizes[] = {FIRST, ALL - FIRST};
    const int64_t counts[] = {FIRST * SPACE, (ALL - FIRST) * SPACE};
    ek_tensor *parts[2], *moments[2];
    ek_channel_chunk chunks[2];
    ek_merged_moments merged;
    (void)user;
    if (ek_split_sizes(inputs[0], sizes, 2, 0, parts) < 0)
        return NULL;
    for (int i = 0; i < 2; i++) {
        if (ek_channel_moments(parts[i], &chunks[i]) < 0)
            return NULL;
        moments[i] = chunks[i].moments;
    }
    if (ek_merge_moments(ek_cat(moments, 2, 0), counts, 2, 1e-5, &merged) < 0)
        return NULL;
    for (int i = 0; i < 2; i++)
        parts[i] = ek_normalise_chunk(&chunks[i], merged.mean, merged.invstd,
                                      count > 1 ? inputs[1] : NULL, count > 2 ? inputs[2] : NULL);
    return ek_cat(parts, 2, 0);
}

static ek_tensor *in_one(ek_tensor *const *inputs, int count, void *user)
{
    ek_channel_chunk chunk;
    ek_merged_moments merged;
    (void)user;
    (void)count;
    if (ek_channel_moments(inputs[0], &chunk) < 0 ||
        ek_merge_moments(chunk.moments, (int64_t[]){ALL * SPACE}, 1, 1e-5, &merged) < 0)
        return NULL;
    return ek_normalise_chunk(&chunk, merged.mean, merged.invstd, inputs[1], inputs[2]);
}

static ek_tensor *whole(ek_tensor *const *inputs, int count, void *user)
{
    (void)user;
    return ek_f_batch_norm(.x = inputs[0], .weight = count > 1 ? inputs[1] : NULL,
                           .bias = count > 2 ? inputs[2] : NULL, .training = true);
}

static ek_tensor *normal(uint64_t seed, ek_shape shape, ek_dtype dtype, bool varies)
{
    ek_generator *generator = ek_generator_new(seed);
    ek_tensor *x = ek_empty(shape, .dtype = EK_F64);
    assert_ok(ek_normal_(x, 1, 2, generator));
    ek_generator_free(generator);
    x = ek_to_dtype(x, dtype);
    if (varies)
        assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

static void make_inputs(ek_tensor **inputs, ek_dtype dtype)
{
    ek_dtype channel = dtype == EK_BF16 ? EK_F32 : dtype;
    inputs[0] = normal(1, EK_SHAPE(ALL, CHANNELS, SPACE), dtype, true);
    inputs[1] = normal(2, EK_SHAPE(CHANNELS), channel, true);
    inputs[2] = normal(3, EK_SHAPE(CHANNELS), channel, true);
}

/* Output, gradients, and the gradients of their squares, of both. */
static void assert_same(ek_check_function *a, ek_check_function *b, ek_tensor *const *inputs,
                        int count, double relative)
{
    ek_tensor *results[2][8];
    for (int k = 0; k < 2; k++) {
        ek_tensor *y = (k ? b : a)(inputs, count, NULL), *penalty = NULL;
        assert_made(y);
        ek_tensor *g = normal(9, ek_tensor_shape(y), ek_tensor_dtype(y), false);
        results[k][0] = y;
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = count,
                          .gradients = results[k] + 1, .grad_outputs = &g, .retain_graph = EK_ON));
        ek_tensor *again[3];
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = count,
                          .gradients = again, .grad_outputs = &g, .create_graph = true));
        for (int i = 0; i < count; i++) {
            /* With a graph the same numbers as without. */
            assert_close_norm(again[i], results[k][1 + i], relative);
            ek_tensor *term = ek_sum(ek_square(ek_to_dtype(again[i], EK_F64)));
            penalty = penalty ? ek_add(penalty, term) : term;
        }
        /* What reaches x through y meets what reaches it through its gradient. */
        penalty = ek_add(penalty, ek_sum(ek_square(ek_to_dtype(y, EK_F64))));
        /* The bias has no part in a square of gradients but its own, a constant. */
        assert_ok(ek_grad(.outputs = &penalty, .output_count = 1, .inputs = inputs,
                          .input_count = count > 2 ? 2 : count, .gradients = results[k] + 4));
    }
    for (int i = 0; i < 1 + count; i++)
        assert_close_norm(results[0][i], results[1][i], relative);
    for (int i = 0; i < (count > 2 ? 2 : count); i++)
        assert_close_norm(results[0][4 + i], results[1][4 + i], 10 * relative);
}

START_TEST(pieces_make_the_whole)
{
    static const double tolerance[] = {1e-5, 1e-12, 2e-2};
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    ek_tensor *inputs[3];
    make_inputs(inputs, dtypes[_i]);
    assert_same(in_pieces, whole, inputs, 3, tolerance[_i]);
    assert_same(in_pieces, whole, inputs, 1, tolerance[_i]);
    assert_same(in_one, whole, inputs, 3, tolerance[_i]);
}
END_TEST

START_TEST(differences)
{
    ek_tensor *inputs[3];
    make_inputs(inputs, EK_F64);
    assert_ok(ek_gradcheck(.function = in_pieces, .inputs = inputs, .input_count = 3));
    assert_ok(ek_gradgradcheck(.function = in_pieces, .inputs = inputs, .input_count = 3));
    assert_ok(ek_gradcheck(.function = in_pieces, .inputs = inputs, .input_count = 1));
    assert_ok(ek_gradgradcheck(.function = in_pieces, .inputs = inputs, .input_count = 1));
}
END_TEST

/* Moments on their own, as nothing but a normalisation would use them. */
static ek_tensor *curved_moments(ek_tensor *const *inputs, int count, void *user)
{
    ek_channel_chunk chunk;
    (void)count;
    if (ek_channel_moments(inputs[0], &chunk) < 0)
        return NULL;
    ek_tensor *x = chunk.alias, *moments = ek_mul(ek_square(chunk.moments), chunk.moments);
    return user ? ek_add(ek_sum(moments), ek_sum(ek_mul(x, ek_square(x)))) : moments;
}

START_TEST(moments_alone)
{
    ek_tensor *inputs[3];
    make_inputs(inputs, EK_F64);
    bool with_x = true;
    assert_ok(ek_gradcheck(.function = curved_moments, .inputs = inputs, .input_count = 1));
    assert_ok(ek_gradgradcheck(.function = curved_moments, .inputs = inputs, .input_count = 1));
    assert_ok(ek_gradcheck(.function = curved_moments, .inputs = inputs, .input_count = 1,
                           .user = &with_x));
    assert_ok(ek_gradgradcheck(.function = curved_moments, .inputs = inputs, .input_count = 1,
                               .user = &with_x));
}
END_TEST

Suite *suite(void)
{
    Suite *suite = suite_create("batch norm in pieces");
    TCase *tcase = tcase_create("pieces");
    tcase_add_loop_test(tcase, pieces_make_the_whole, 0, 3);
    tcase_add_test(tcase, differences);
    tcase_add_test(tcase, moments_alone);
    suite_add_tcase(suite, tcase);
    return suite;
}

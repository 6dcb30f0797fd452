/* Batch normalisation in pieces: put together again it is batch normalisation. */
#include "kit/tensors.h"
#include "ops/norm.h"
#include "ops/ops.h"

#include "home.h"

enum { FIRST = 2, ALL = 5, CHANNELS = 3, SPACE = 2, MOST = 2 };

/* Every input gets the gradient of all outputs. */
static int joined_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor *sum = NULL;
    for (int i = 0; i < ek_node_output_count(node); i++)
        if (gradients[i])
            sum = sum ? ek_add(sum, gradients[i]) : gradients[i];
    for (int i = 0; i < ek_node_input_count(node); i++)
        results[i] = ek_itself(sum);
    return ek_error_status();
}

static const ek_operation joined_operation = {.name = "joined", .backward = joined_backward};

/* The chunks normalised together. */
static ek_tensor *together(ek_tensor *const *chunks, int count, ek_tensor *weight, ek_tensor *bias)
{
    const ek_norm_tracking none = {.mean = NULL};
    ek_tensor *moments[MOST], *shared[MOST], *parts[MOST];
    ek_norm_chunk own[MOST];
    int64_t counts[MOST], total = 0;
    for (int i = 0; i < count; i++) {
        counts[i] = ek_tensor_count(chunks[i]) / CHANNELS;
        total += counts[i];
        if (ek_norm_chunk_begin(chunks[i], &own[i]) < 0)
            return NULL;
        moments[i] = own[i].moments;
        shared[i] = ek_tensor_alias(own[i].statistics);
    }
    ek_tensor *all = ek_reshape(ek_cat(moments, count, 0), EK_SHAPE(count, 2, CHANNELS));
    if (ek_record_outputs(shared, count, &joined_operation,
                          &(const ek_record_options){.inputs = moments, .input_count = count}) < 0)
        return NULL;
    for (int i = 0; i < count; i++) {
        if (ek_norm_chunks_merge(own[i].statistics, all, counts, count, 1e-5, &none) < 0)
            return NULL;
        parts[i] = ek_norm_chunk_apply(&own[i], shared[i], total, weight, bias);
    }
    return ek_cat(parts, count, 0);
}

/* inputs: x (ALL, ...), w, b, in chunks of FIRST and the others. */
static ek_tensor *in_pieces(ek_tensor *const *inputs, int count, void *user)
{
    const int64_t sizes[] = {FIRST, ALL - FIRST};
    ek_tensor *chunks[2];
    if (ek_split_sizes(inputs[0], sizes, 2, 0, chunks) < 0)
        return NULL;
    return together(chunks, 2, count > 1 ? inputs[1] : NULL, count > 2 ? inputs[2] : NULL);
}

static ek_tensor *in_one(ek_tensor *const *inputs, int count, void *user)
{
    return together(inputs, 1, inputs[1], inputs[2]);
}

static ek_tensor *whole(ek_tensor *const *inputs, int count, void *user)
{
    return ek_f_batch_norm(.x = inputs[0], .weight = count > 1 ? inputs[1] : NULL,
                           .bias = count > 2 ? inputs[2] : NULL, .training = true);
}

static void make_inputs(ek_tensor **inputs, ek_dtype dtype)
{
    ek_dtype channel = dtype == EK_BF16 ? EK_F32 : dtype;
    inputs[0] = normal(1, EK_SHAPE(ALL, CHANNELS, SPACE), dtype, test_home());
    inputs[1] = normal(2, EK_SHAPE(CHANNELS), channel, test_home());
    inputs[2] = normal(3, EK_SHAPE(CHANNELS), channel, test_home());
    for (int i = 0; i < 3; i++)
        assert_ok(ek_tensor_set_requires_grad(inputs[i], true));
}

/* Output, gradients, and the gradients of their squares, of both. */
static void assert_same(ek_check_function *a, ek_check_function *b, ek_tensor *const *inputs,
                        int count, double relative)
{
    ek_tensor *results[2][8];
    for (int k = 0; k < 2; k++) {
        ek_tensor *y = (k ? b : a)(inputs, count, NULL), *penalty = NULL;
        assert_made(y);
        ek_tensor *g = normal(9, ek_tensor_shape(y), ek_tensor_dtype(y), test_home());
        results[k][0] = y;
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = count,
                          .gradients = results[k] + 1, .grad_outputs = &g, .retain_graph = true));
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

TEST_LOOP(pieces_make_the_whole, 0, 3)
{
    static const double tolerance[] = {1e-5, 1e-12, 2e-2};
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16};
    ek_tensor *inputs[3];
    make_inputs(inputs, dtypes[_i]);
    assert_same(in_pieces, whole, inputs, 3, tolerance[_i]);
    assert_same(in_pieces, whole, inputs, 1, tolerance[_i]);
    assert_same(in_one, whole, inputs, 3, tolerance[_i]);
}

TEST(differences)
{
    ek_tensor *inputs[3];
    make_inputs(inputs, EK_F64);
    assert_ok(ek_gradcheck(.function = in_pieces, .inputs = inputs, .input_count = 3));
    assert_ok(ek_gradgradcheck(.function = in_pieces, .inputs = inputs, .input_count = 3));
    assert_ok(ek_gradcheck(.function = in_pieces, .inputs = inputs, .input_count = 1));
    assert_ok(ek_gradgradcheck(.function = in_pieces, .inputs = inputs, .input_count = 1));
}

/* The gradient of a function of the gradient, which is differentiated twice again. */
static ek_tensor *penalty(ek_tensor *const *inputs, int count, void *user)
{
    ek_tensor *y = in_pieces(inputs, count, user), *gradients[3];
    ek_tensor *outputs[] = {y ? ek_mul(ek_square(y), y) : NULL};
    outputs[0] = outputs[0] ? ek_sum(outputs[0]) : NULL;
    if (!outputs[0] ||
        ek_grad(.outputs = outputs, .output_count = 1, .inputs = inputs, .input_count = count,
                .gradients = gradients, .create_graph = true) < 0)
        return NULL;
    return ek_sum(ek_mul(ek_square(gradients[0]), gradients[0]));
}

TEST(third_derivatives)
{
    ek_tensor *inputs[3];
    make_inputs(inputs, EK_F64);
    assert_ok(ek_gradcheck(.function = penalty, .inputs = inputs, .input_count = 2));
    assert_ok(ek_gradgradcheck(.function = penalty, .inputs = inputs, .input_count = 2));
}

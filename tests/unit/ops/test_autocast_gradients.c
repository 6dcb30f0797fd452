/* test_autocast_gradients.c: gradients of parameters that autocast computed in 16 bits are cast
 * together, and yet are whole wherever somebody may look. */
#include "autocast_setup.h"
#include "autograd/graph.h"

enum { LAYERS = 40, WIDTH = 6 };

typedef struct layers {
    ek_tensor *weights[LAYERS], *biases[LAYERS];
} layers;

static layers layers_new(void)
{
    layers all;
    for (int i = 0; i < LAYERS; i++) {
        all.weights[i] = parameter(EK_SHAPE(WIDTH, WIDTH));
        all.biases[i] = parameter(EK_SHAPE(WIDTH));
    }
    return all;
}

/* The mean square of all layers of x, in `dtype`. */
static ek_tensor *layers_loss(const layers *all, ek_dtype dtype)
{
    ek_autocast autocast = ek_autocast_begin(dtype);
    ek_tensor *x = uniform(EK_SHAPE(3, WIDTH), -1, 1);
    for (int i = 0; i < LAYERS && x; i++)
        x = ek_f_tanh(ek_f_linear(x, all->weights[i], all->biases[i]));
    ek_tensor *loss = ek_mean(ek_square(x));
    ek_autocast_end(&autocast);
    assert_made(loss);
    return loss;
}

static ek_tensor *unchanged(ek_tensor *gradient, void *user)
{
    return NULL;
}

/* A hook on a leaf makes its cast one of its own. */
static void layers_watch(const layers *all)
{
    for (int i = 0; i < LAYERS; i++) {
        ck_assert_int_gt(ek_tensor_register_hook(all->weights[i], unchanged, NULL), 0);
        ck_assert_int_gt(ek_tensor_register_hook(all->biases[i], unchanged, NULL), 0);
    }
}

static ek_tensor *here(ek_tensor *x)
{
    ek_tensor *y = ek_to_device(x, ek_cpu());
    assert_made(y);
    return y;
}

static void layers_same(const layers *a, const layers *b)
{
    for (int i = 0; i < LAYERS; i++) {
        assert_close(here(ek_tensor_grad(a->weights[i])), here(ek_tensor_grad(b->weights[i])), 0,
                     0);
        assert_close(here(ek_tensor_grad(a->biases[i])), here(ek_tensor_grad(b->biases[i])), 0, 0);
    }
}

/* More than one list; the second pass adds to gradients, the third has grad buffers. */
TEST_LOOP(together_as_one_by_one, 0, 2)
{
    const ek_dtype dtype = _i ? EK_F16 : EK_BF16;
    layers together = layers_new(), apart = layers_new();
    layers_watch(&apart);
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 2)
            for (int i = 0; i < LAYERS; i++) {
                assert_ok(ek_tensor_set_grad(together.weights[i], NULL));
                assert_ok(ek_tensor_set_grad(together.biases[i], NULL));
                assert_ok(ek_tensor_set_grad(apart.weights[i], NULL));
                assert_ok(ek_tensor_set_grad(apart.biases[i], NULL));
                assert_ok(ek_leaf_set_grad_buffer(together.weights[i],
                                                  ek_tensor_like(together.weights[i])));
            }
        assert_ok(ek_backward(layers_loss(&together, dtype)));
        assert_ok(ek_backward(layers_loss(&apart, dtype)));
        layers_same(&together, &apart);
        ck_assert_int_eq(ek_tensor_dtype(ek_tensor_grad(together.biases[0])), EK_F32);
    }
    ck_assert_ptr_eq(ek_tensor_grad(together.weights[1]), together.weights[1]->grad_buffer);
}

/* The gradients are parameters' memory of their own, and no narrow one is kept. */
TEST(memory)
{
    ek_memory_stats before, after;
    layers all = layers_new();
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_memory_get_stats(test_home(), &before));
    assert_ok(ek_backward(layers_loss(&all, EK_BF16)));
    ek_scope_end(&scope);
    assert_ok(ek_memory_get_stats(test_home(), &after));
    const int64_t elements = LAYERS * (WIDTH * WIDTH + WIDTH);
    const uint64_t grown = after.now[EK_MEMORY_GRADIENT] - before.now[EK_MEMORY_GRADIENT];
    ck_assert_uint_ge(grown, (uint64_t)elements * 4);
    ck_assert_uint_le(grown, (uint64_t)elements * 4 + 2 * LAYERS * 256);
    ck_assert_uint_eq(after.now[EK_MEMORY_ACTIVATION], before.now[EK_MEMORY_ACTIVATION]);
}

/* Large gradients aren't kept for later ones. */
TEST(large_gradients)
{
    ek_tensor *large = parameter(EK_SHAPE(2100, 2048)), *wanted = NULL;
    for (int pass = 0; pass < 2; pass++) {
        ek_autocast autocast = ek_autocast_begin(EK_BF16);
        ek_tensor *x = uniform(EK_SHAPE(1, 2048), -1, 1);
        ek_tensor *loss = ek_sum(ek_f_linear(x, large, NULL));
        ek_autocast_end(&autocast);
        assert_ok(ek_tensor_set_grad(large, NULL));
        if (pass == 1)
            ck_assert_int_gt(ek_tensor_register_hook(large, unchanged, NULL), 0);
        assert_ok(ek_backward(loss));
        ek_tensor *gradient = here(ek_tensor_grad(large));
        if (pass == 1)
            assert_close(gradient, wanted, 0, 0);
        wanted = gradient;
    }
}

/* ---- a user's code in the middle of a pass ---- */

/* A cast's bf16 gradient is 2 for each element. */
static ek_tensor *late, *seen;
static enum { READS, NESTS, FAILS } does;

static int look(void)
{
    if (does == FAILS)
        return EK_FAIL(EK_E_INVALID, "on purpose");
    if (does == NESTS) { /* adds 3 */
        bool before = ek_set_grad_enabled(true);
        int rc = ek_backward(ek_mul_scalar(ek_sum(late), 3));
        ek_set_grad_enabled(before);
        if (rc < 0)
            return rc;
    }
    seen = ek_keep(ek_clone(ek_detach(ek_tensor_grad(late))));
    return 0;
}

static int pass_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_clone(x[0]);
    return 0;
}

static int pass_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = dy[0];
    return look();
}

static ek_tensor *looks(ek_tensor *gradient, void *user)
{
    look();
    return NULL;
}

static const ek_function passes = {.name = "passes",
                                   .forward = pass_forward,
                                   .backward = pass_backward};

/* x first goes through what looks, then is multiplied by the leaf `late`: its gradient is cast
 * before somebody looks. */
static int run_looking(bool by_hook)
{
    ek_tensor *x = ek_ones(EK_SHAPE(5), .device = test_home(), .requires_grad = true), *y;
    late = parameter(EK_SHAPE(5));
    assert_ok(ek_leaf_set_grad_buffer(late, ek_full(NAN, EK_SHAPE(5), .device = test_home())));
    if (by_hook) {
        y = ek_mul_scalar(x, 1);
        ck_assert_int_gt(ek_tensor_register_hook(y, looks, NULL), 0);
    } else {
        assert_ok(ek_function_apply(&passes, &x, 1, &y));
    }
    /* Its backward comes first, because it was recorded last. */
    ek_tensor *wide = ek_to_dtype(ek_to_dtype(late, EK_BF16), EK_F32);
    ek_tensor *loss = ek_sum(ek_add(ek_mul_scalar(wide, 2), y));
    assert_made(loss);
    return ek_backward(loss);
}

static void expect_all(ek_tensor *x, double value)
{
    assert_close(here(x), ek_full(value, EK_SHAPE(5)), 0, 0);
}

TEST_LOOP(gradients_are_whole_for_those_who_look, 0, 2)
{
    does = READS;
    assert_ok(run_looking(_i));
    expect_all(seen, 2);
    expect_all(ek_tensor_grad(late), 2);
    ek_release(seen);
}

TEST_LOOP(passes_inside_of_a_pass, 0, 2)
{
    does = NESTS;
    assert_ok(run_looking(_i));
    expect_all(seen, 5);
    expect_all(ek_tensor_grad(late), 5);
    ek_release(seen);
}

TEST_LOOP(passes_that_fail, 0, 2)
{
    does = FAILS;
    ck_assert_int_eq(run_looking(_i), EK_E_INVALID);
    assert_error(EK_E_INVALID, "on purpose");
    expect_all(ek_tensor_grad(late), 2);
}

/* With create_graph, and in gradients that aren't a leaf's, casts are operations of the graph. */
TEST(second_order)
{
    ek_tensor *w = parameter(EK_SHAPE(3)), *narrow = ek_to_dtype(w, EK_BF16), *first, *second;
    ek_tensor *loss = ek_sum(ek_square(ek_square(narrow)));
    assert_made(loss);
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &first, .create_graph = true));
    loss = ek_sum(first);
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &w, .input_count = 1,
                      .gradients = &second));
    ek_tensor *wide = here(ek_to_dtype(narrow, EK_F32));
    assert_close(here(second), here(ek_mul_scalar(ek_square(wide), 12)), 0.02, 0);
}

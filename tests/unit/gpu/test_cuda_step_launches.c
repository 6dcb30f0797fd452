/* What a step of a network launches on a GPU: dropout and the sum after it are one launch, and so
 * are the casts of many parameters' gradients. The emulator counts them. With hooks that do nothing
 * each is an operation of its own, and gives the same numbers. */
#include "core/tensor.h"
#include "unit.h"

BEFORE_ALL(skip_without_gpu)

#ifdef EK_CUDA_EMULATED
#include <emulator.h>

enum { WIDTH = 16, TOKENS = 6 };

static int counted(void)
{
    ek_emulator_counters counters;
    assert_ok(ek_synchronize(ek_cuda(0)));
    ek_emulator_count(&counters);
    ek_emulator_reset_counters();
    return (int)(counters.kernels + counters.products + counters.copies + counters.fills);
}

static ek_value same_output(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    return output;
}

static ek_tensor *same_gradient(ek_tensor *gradient, void *user)
{
    return NULL;
}

static int watch_leaf(const char *path, ek_tensor *leaf, void *user)
{
    return ek_tensor_register_hook(leaf, same_gradient, NULL) > 0 ? 0 : ek_error_status();
}

static void watch_module(ek_module *net, const char *path)
{
    ek_module *module = ek_module_at(net, path);
    assert_made(module);
    ck_assert_int_gt(ek_module_register_forward_hook(module, same_output, NULL), 0);
}

typedef enum kind { ENCODER, GPT2, LAYERS } kind;

static ek_module *network(kind k)
{
    ek_manual_seed(3);
    ek_module *net =
        k == ENCODER
            ? ek_transformer_encoder_layer(WIDTH, 2, .dim_feedforward = 32, .batch_first = true)
        : k == GPT2 ? ek_gpt2(20, .context = TOKENS, .width = WIDTH, .layers = 2, .heads = 2)
                    : ek_sequential(ek_linear(WIDTH, WIDTH), ek_relu(), ek_linear(WIDTH, WIDTH),
                                    ek_relu(), ek_linear(WIDTH, WIDTH));
    assert_made(net);
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    return net;
}

static void watch(kind k, ek_module *net)
{
    static const char *const parts[][4] = {[ENCODER] = {"dropout1", "dropout2"},
                                           [GPT2] = {"h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp"},
                                           [LAYERS] = {NULL}};
    for (int i = 0; i < 4 && parts[k][i]; i++)
        watch_module(net, parts[k][i]);
    assert_ok(ek_module_parameters(net, watch_leaf, NULL));
}

typedef struct step {
    int forward, backward;
    ek_tensor *y;
} step;

/* The second of two steps. */
static step run(kind k, ek_module *net, bool bf16)
{
    step got = {0, 0, NULL};
    ek_tensor *x = k == GPT2 ? ek_full(7, EK_SHAPE(2, TOKENS), EK_I64, .device = ek_cuda(0))
                             : ek_ones(EK_SHAPE(2, TOKENS, WIDTH), .device = ek_cuda(0));
    for (int i = 0; i < 2; i++) {
        ek_module_zero_grad(net);
        counted();
        ek_manual_seed(9);
        ek_autocast autocast = ek_autocast_begin(bf16 ? EK_BF16 : EK_F32);
        got.y = ek_apply(net, x);
        ek_autocast_end(&autocast);
        assert_made(got.y);
        got.forward = counted();
        ek_tensor *loss = ek_sum(ek_to_dtype(got.y, EK_F32));
        counted();
        assert_ok(ek_backward(loss));
        got.backward = counted();
    }
    return got;
}

static int compare_leaf(const char *path, ek_tensor *leaf, void *user)
{
    ek_tensor *other = ek_module_tensor(user, path);
    ek_tensor *a = ek_to_device(ek_tensor_grad(leaf), ek_cpu());
    ek_tensor *b = ek_to_device(ek_tensor_grad(other), ek_cpu());
    assert_made(a);
    assert_made(b);
    assert_close(a, b, 0, 0);
    return 0;
}

/* Launches at most, and with hooks. */
static const struct {
    kind k;
    bool bf16;
    int forward, backward, watched_forward, watched_backward;
} limits[] = {
    {ENCODER, false, 15, 34, 17, 34}, {ENCODER, true, 25, 42, 29, 49},
    {GPT2, false, 30, 69, 34, 69},    {GPT2, true, 35, 75, 43, 94},
    {LAYERS, false, 3, 11, 3, 11},    {LAYERS, true, 4, 10, 4, 15},
};

TEST_LOOP(fewer_launches_and_the_same_numbers, 0, 12)
{
    const kind k = limits[_i / 2].k;
    ek_use_deterministic_algorithms(_i % 2);
    assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_PHILOX));
    ek_scope scope = ek_scope_begin();
    ek_module *net = network(k), *watched = network(k);
    watch(k, watched);
    const step got = run(k, net, limits[_i / 2].bf16);
    const step apart = run(k, watched, limits[_i / 2].bf16);
    assert_close(ek_to_device(ek_detach(got.y), ek_cpu()),
                 ek_to_device(ek_detach(apart.y), ek_cpu()), 0, 0);
    assert_ok(ek_module_parameters(net, compare_leaf, watched));
    ck_assert_msg(got.forward <= limits[_i / 2].forward && got.backward <= limits[_i / 2].backward,
                  "%d launches forward and %d backward, with hooks %d and %d", got.forward,
                  got.backward, apart.forward, apart.backward);
    ck_assert_int_ge(apart.forward - got.forward,
                     limits[_i / 2].watched_forward - limits[_i / 2].forward);
    ck_assert_int_ge(apart.backward - got.backward,
                     limits[_i / 2].watched_backward - limits[_i / 2].backward);
    ek_module_free(net);
    ek_module_free(watched);
    ek_scope_end(&scope);
    ek_use_deterministic_algorithms(false);
}

/* ---- clipping and unscaling: few launches for many gradients, and no copy to the host ---- */

enum { MOST_LAUNCHES = 12 };

static int give_gradient(const char *path, ek_tensor *leaf, void *user)
{
    ek_tensor *gradient = ek_full(0.01, ek_tensor_shape(leaf), .device = ek_cuda(0));
    assert_made(gradient);
    ++*(int *)user;
    return ek_tensor_set_grad(leaf, gradient);
}

TEST(lists_of_gradients)
{
    ek_module *net = ek_gpt2(20, .context = TOKENS, .width = WIDTH, .layers = 12, .heads = 2);
    int count = 0;
    double norm;
    assert_made(net);
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    assert_ok(ek_module_parameters(net, give_gradient, &count));
    ck_assert_int_eq(count, 148);
    ek_optimizer *optimizer = ek_sgd(net);
    ek_grad_scaler *scaler = ek_grad_scaler_new();
    ek_emulator_counters counters;
    counted();
    assert_ok(ek_clip_grad_norm(optimizer, 1e-3));
    ek_emulator_count(&counters);
    ck_assert_int_eq((int)counters.copies, 0);
    ck_assert_int_le(counted(), MOST_LAUNCHES);
    assert_ok(ek_grad_scaler_unscale(scaler, optimizer));
    ek_emulator_count(&counters);
    ck_assert_int_eq((int)counters.copies, 0);
    ck_assert_int_le(counted(), MOST_LAUNCHES);
    assert_ok(ek_clip_grad_norm(optimizer, 1, &norm));
    ck_assert_double_eq_tol(norm, 1e-3 / 65536, 1e-12);
    assert_ok(ek_grad_scaler_step(scaler, optimizer));
    assert_ok(ek_grad_scaler_update(scaler));
    ek_grad_scaler_free(scaler);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

/* Slices that cover a tensor: a copy each, without zeros or sums. */
TEST(slices_that_cover_a_tensor)
{
    ek_tensor *leaf = ek_ones(EK_SHAPE(8, 48), .device = ek_cuda(0)), *parts[3], *slopes[3];
    ek_tensor *gradient = NULL;
    assert_ok(ek_tensor_set_requires_grad(leaf, true));
    ek_tensor *x = ek_mul_scalar(leaf, 1);
    for (int i = 0; i < 3; i++) {
        parts[i] = ek_narrow(x, 1, 16 * i, 16);
        slopes[i] = ek_full(i, EK_SHAPE(8, 16), .device = ek_cuda(0));
    }
    counted();
    assert_ok(ek_grad(.outputs = parts, .output_count = 3, .inputs = &x, .input_count = 1,
                      .grad_outputs = slopes, .gradients = &gradient));
    ck_assert_int_eq(counted(), 3);
    ck_assert_double_eq(element(ek_to_device(gradient, ek_cpu()), 40), 2);
}
#endif

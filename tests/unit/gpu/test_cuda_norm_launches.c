/* How many kernels normalisation launches on a GPU: no more than are listed here. The emulator
 * counts them. Sums over the whole batch are cut into parts, which takes the most. */
#include "core/tensor.h"
#include "unit.h"

BEFORE_ALL(skip_without_gpu)

#ifdef EK_CUDA_EMULATED
#include <emulator.h>

enum { REPLICAS = 4 };

typedef enum kind {
    BATCH,
    BATCH_RELU,
    BATCH_EVALUATED, /* running statistics, nothing recorded */
    SYNCHRONISED,
    GROUP,
    INSTANCE,
    LAYER,      /* images with weights in another order of memory, which are copied */
    LAYER_ROWS, /* the last dimension */
    KINDS
} kind;

/* Launches of a forward, of the backward to x, weight and bias, and of the gradients of the square
 * of the gradient of x. */
typedef struct launches {
    int forward, backward, second;
} launches;

static const struct {
    const char *name;
    launches most;
} limits[KINDS] = {
    [BATCH] = {"batch_norm", {3, 3, 25}},
    [BATCH_RELU] = {"batch_norm and relu", {3, 3, 25}},
    [BATCH_EVALUATED] = {"batch_norm, evaluated", {2, 0, 0}},
    [SYNCHRONISED] = {"sync_batch_norm", {3 * REPLICAS + 1, 2 * REPLICAS + 3, 183}},
    [GROUP] = {"group_norm", {3, 4, 30}},
    [INSTANCE] = {"instance_norm", {2, 4, 23}},
    [LAYER] = {"layer_norm", {3, 5, 28}},
    [LAYER_ROWS] = {"layer_norm of rows", {1, 2, 28}},
};

static const ek_dtype dtypes[] = {EK_F32, EK_BF16};

static void finish(void)
{
    for (int i = 0; i < ek_device_count(EK_CUDA); i++)
        assert_ok(ek_synchronize(ek_cuda(i)));
}

/* Kernels since the last call. */
static int launched(void)
{
    ek_emulator_counters counters;
    finish();
    ek_emulator_count(&counters);
    ek_emulator_reset_counters();
    return (int)counters.kernels;
}

static ek_module *network(kind k)
{
    ek_module *net = NULL;
    switch (k) {
    case BATCH:
    case BATCH_EVALUATED:
        net = ek_batch_norm2d(16);
        break;
    case BATCH_RELU:
        net = ek_sequential(ek_batch_norm2d(16), ek_relu());
        break;
    case SYNCHRONISED:
        net = ek_sync_batch_norm(16);
        break;
    case GROUP:
        net = ek_group_norm(4, 16);
        break;
    case INSTANCE:
        net = ek_instance_norm2d(16, .affine = true);
        break;
    case LAYER_ROWS:
        net = ek_layer_norm(EK_SHAPE(16));
        break;
    default:
        net = ek_layer_norm(EK_SHAPE(16, 16, 16));
    }
    assert_made(net);
    if (k != SYNCHRONISED)
        assert_ok(ek_module_to_device(net, ek_cuda(0)));
    return net;
}

static launches count(kind k, ek_dtype dtype)
{
    launches got;
    ek_module *net = network(k), *model = net;
    if (k == SYNCHRONISED)
        model = ek_data_parallel(net, .device_ids = ek_devices(EK_CUDA, REPLICAS));
    assert_made(model);
    ek_module_train(model, k != BATCH_EVALUATED);
    ek_tensor *x = ek_to_dtype(ek_randn(EK_SHAPE(8, 16, 16, 16), .device = ek_cuda(0)), dtype);
    if (k != LAYER_ROWS)
        x = ek_contiguous(x, EK_CHANNELS_LAST);
    ek_tensor *g = ek_clone(x);
    assert_made(g);
    if (k != BATCH_EVALUATED)
        assert_ok(ek_tensor_set_requires_grad(x, true));
    bool before = ek_set_grad_enabled(k != BATCH_EVALUATED);
    assert_made(ek_apply(model, x)); /* the first time, libraries and replicas are made */
    launched();
    ek_tensor *y = ek_apply(model, x);
    assert_made(y);
    got.forward = launched();
    ek_set_grad_enabled(before);
    got.backward = got.second = 0;
    if (k != BATCH_EVALUATED) {
        ek_tensor *inputs[3] = {x, ek_module_tensor(net, k == BATCH_RELU ? "0.weight" : "weight"),
                                ek_module_tensor(net, k == BATCH_RELU ? "0.bias" : "bias")};
        ek_tensor *gradients[3];
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 3,
                          .gradients = gradients, .grad_outputs = &g, .retain_graph = true));
        got.backward = launched();
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 1,
                          .gradients = gradients, .grad_outputs = &g, .create_graph = true));
        launched();
        assert_ok(ek_grad(.outputs = gradients, .output_count = 1, .inputs = inputs,
                          .input_count = 2, .gradients = gradients + 1, .grad_outputs = &g));
        got.second = launched();
    }
    ek_module_free(model);
    return got;
}

TEST_LOOP(no_more_launches, 0, KINDS * 2)
{
    const kind k = (kind)(_i / 2);
    const ek_dtype dtype = dtypes[_i % 2];
    const launches most = limits[k].most;
    ek_manual_seed(1);
    assert_ok(ek_cuda_devices_configure("0,0,0,0"));
    ek_scope scope = ek_scope_begin();
    const launches got = count(k, dtype);
    ek_scope_end(&scope);
    ck_assert_msg(got.forward <= most.forward && got.backward <= most.backward &&
                      got.second <= most.second,
                  "%s of %s: %d launches forward, %d backward, %d of second order; at most %d, %d "
                  "and %d before",
                  limits[k].name, ek_dtype_name(dtype), got.forward, got.backward, got.second,
                  most.forward, most.backward, most.second);
}

/* ---- a layer of GPT-2: its norms, and the sum of a residual and a norm, are one launch each ----
 */

static launches count_gpt2(int layers)
{
    launches got = {0, 0, 0};
    ek_scope scope = ek_scope_begin();
    ek_module *net =
        ek_gpt2(64, .context = 16, .width = 32, .layers = layers, .heads = 2, .dropout = 0);
    assert_made(net);
    assert_ok(ek_module_to_device(net, ek_cuda(0)));
    ek_tensor *tokens = ek_zeros(EK_SHAPE(2, 16), EK_I64, ek_cuda(0));
    for (int run = 0; run < 2; run++) { /* the first time, libraries are opened */
        ek_module_zero_grad(net);
        launched();
        const ek_autocast region = ek_autocast_begin(EK_BF16);
        ek_tensor *loss = ek_f_token_cross_entropy(ek_apply(net, tokens), tokens);
        ek_autocast_end(&region);
        assert_made(loss);
        got.forward = launched();
        assert_ok(ek_backward(loss));
        got.backward = launched();
    }
    ek_scope_end(&scope);
    ek_module_free(net);
    return got;
}

TEST(a_layer_of_gpt2)
{
    const launches most = {8, 18, 0}, one = count_gpt2(1), two = count_gpt2(2);
    const int forward = two.forward - one.forward, backward = two.backward - one.backward;
    ck_assert_msg(forward <= most.forward && backward <= most.backward,
                  "%d launches forward, %d backward; at most %d and %d before", forward, backward,
                  most.forward, most.backward);
}
#endif

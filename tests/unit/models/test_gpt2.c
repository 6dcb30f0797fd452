/* test_gpt2.c: GPT-2 beside its twin in torch (tests/golden/make_gpt2.py): from the same seed the
 * same parameters, outputs, gradients and losses. */
#include "unit.h"

#define SMALL 19, .context = 10, .width = 12, .layers = 3, .heads = 2

/* The mean over all tokens but the first, each of which the ones before it are to tell. */
static ek_tensor *next_loss(ek_tensor *logits, ek_tensor *tokens, bool logits_for_all)
{
    const int64_t length = ek_tensor_size(tokens, 1) - 1;
    if (logits_for_all)
        logits = ek_narrow(logits, 1, 0, length);
    return ek_f_cross_entropy(ek_f_flatten(logits, 0, 1),
                              ek_f_flatten(ek_narrow(tokens, 1, 1, length), 0, 1));
}

static ek_value looked(ek_module *module, const ek_args *args, ek_value output, void *user)
{
    (void)module, (void)args, (void)output;
    ++*(int *)user;
    return ek_value_none();
}

/* GELU is one operation with the projection before it, but not if a hook looks in between. */
TEST(a_projection_before_gelu_calls_its_hooks)
{
    int calls = 0;
    ek_module *net = ek_gpt2(SMALL), *projection = ek_module_at(net, "h.1.mlp.c_fc");
    ek_module_train(net, false);
    ek_tensor *tokens = ek_zeros(EK_SHAPE(2, 5), EK_I64), *y = ek_apply(net, tokens);
    ck_assert_int_gt(ek_module_register_forward_hook(projection, looked, &calls), 0);
    assert_close(ek_apply(net, tokens), y, 0, 0);
    ck_assert_int_eq(calls, 1);
    ek_module_free(net);
}

/* ---- names and initial values ---- */

typedef struct listing {
    char text[1 << 13];
    size_t length;
    ek_tensor *sums;
    int count;
} listing;

static int list_tensor(const char *path, ek_tensor *tensor, void *user)
{
    listing *l = user;
    double sum = 0, wanted = element(l->sums, l->count++);
    l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "%s%s",
                                  l->length ? "\n" : "", path);
    for (int i = 0; i < ek_tensor_ndim(tensor); i++)
        l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, " %lld",
                                      (long long)ek_tensor_size(tensor, i));
    ek_scope scope = ek_scope_begin();
    assert_ok(ek_item(ek_sum(ek_abs(ek_to_dtype(ek_detach(tensor), EK_F64))), &sum));
    ek_scope_end(&scope);
    ck_assert_msg(fabs(sum - wanted) <= 1e-9 * fabs(wanted), "%s: %.17g, not %.17g", path, sum,
                  wanted);
    return 0;
}

TEST(names_and_initial_values)
{
    static listing l;
    l = (listing){.sums = golden("gpt2.golden", "sums")};
    ek_manual_seed(7);
    ek_module *net = ek_gpt2(SMALL);
    assert_made(net);
    assert_ok(ek_module_parameters(net, list_tensor, &l));
    ek_tensor *names = golden("gpt2.golden", "names");
    ck_assert_int_eq((int)l.length, (int)ek_tensor_count(names));
    ck_assert_mem_eq(l.text, ek_tensor_data(names), l.length);
    ck_assert_int_eq(l.count, (int)ek_tensor_count(l.sums));
    ek_module_free(net);
}

TEST(the_defaults_are_the_smallest_published_model)
{
    ek_module *net = ek_gpt2();
    assert_made(net);
    ck_assert_int_eq(ek_module_numel(net), 124439808);
    ek_module_free(net);
}

/* ---- outputs and gradients ---- */

static int disturb(const char *path, ek_tensor *tensor, void *user)
{
    const ek_shape shape = ek_tensor_shape(tensor);
    ek_scope scope = ek_scope_begin();
    ek_tensor *noise = ek_randn(shape, .dtype = EK_F64);
    ek_tensor *moved = ek_copy_(tensor, ek_add(ek_detach(tensor), ek_mul_scalar(noise, 0.3)));
    ek_scope_end(&scope);
    return moved ? 0 : ek_error_status();
}

static int check_gradient(const char *path, ek_tensor *tensor, void *user)
{
    char name[80];
    snprintf(name, sizeof name, "gradient/%s", path);
    assert_close_norm(ek_tensor_grad(tensor), golden("gpt2.golden", name), 1e-12);
    return 0;
}

/* In f64, with parameters as in the golden. */
static ek_module *disturbed(void)
{
    ek_manual_seed(7);
    ek_module *net = ek_gpt2(SMALL);
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_set_grad_enabled(false);
    assert_ok(ek_module_parameters(net, disturb, NULL));
    ek_set_grad_enabled(true);
    ek_module_train(net, false);
    return net;
}

TEST(outputs_and_gradients)
{
    ek_module *net = disturbed();
    ek_tensor *tokens = golden("gpt2.golden", "tokens");
    ek_tensor *y = ek_apply(net, tokens);
    assert_close_norm(ek_detach(y), golden("gpt2.golden", "y"), 1e-12);
    assert_ok(ek_backward(next_loss(y, tokens, true)));
    assert_ok(ek_module_parameters(net, check_gradient, NULL));
    ek_module_free(net);
}

TEST(one_text_without_a_batch)
{
    ek_module *net = disturbed();
    ek_tensor *tokens = ek_narrow(ek_select(golden("gpt2.golden", "tokens"), 0, 1), 0, 0, 4);
    ek_tensor *y = ek_detach(ek_apply(net, tokens));
    ck_assert_int_eq(ek_tensor_ndim(y), 2);
    ek_tensor *wanted = ek_narrow(ek_select(golden("gpt2.golden", "y"), 0, 1), 0, 0, 4);
    assert_close_norm(y, wanted, 1e-12);
    ek_module_free(net);
}

/* ---- errors ---- */

TEST(options_that_make_no_sense_are_refused)
{
    ck_assert_ptr_null(ek_gpt2(0));
    assert_error(EK_E_INVALID, "vocabulary 0");
    ck_assert_ptr_null(ek_gpt2(19, .context = -1));
    assert_error(EK_E_INVALID, "context -1");
    ck_assert_ptr_null(ek_gpt2(19, .width = INT64_MAX));
    assert_error(EK_E_INVALID, "width 9223372036854775807");
    ck_assert_ptr_null(ek_gpt2(19, .layers = 0));
    assert_error(EK_E_INVALID, "layers 0");
    ck_assert_ptr_null(ek_gpt2(19, .width = 12, .heads = 5));
    assert_error(EK_E_INVALID, "width 12 has to be a multiple of heads, which is 5");
    ck_assert_ptr_null(ek_gpt2(SMALL, .inner = -4));
    assert_error(EK_E_INVALID, "inner -4");
    ck_assert_ptr_null(ek_gpt2(SMALL, .dropout = 1.5));
    assert_error(EK_E_INVALID, "not 1.5");
    ck_assert_ptr_null(ek_gpt2(SMALL, .layer_norm_eps = -1));
    assert_error(EK_E_INVALID, "eps -1");
}

TEST(texts_that_are_too_long_are_refused)
{
    ek_module *net = ek_gpt2(SMALL);
    assert_made(net);
    ck_assert_ptr_null(ek_apply(net, ek_zeros(EK_SHAPE(2, 11), EK_I64)));
    assert_error(EK_E_SHAPE, "[2, 11]; (N, L) or (L) with L at most 10");
    ck_assert_ptr_null(ek_apply(net, ek_zeros(EK_SHAPE(1, 2, 3), EK_I64)));
    assert_error(EK_E_SHAPE, "[1, 2, 3]");
    ck_assert_ptr_null(ek_apply(net, ek_full(19, EK_SHAPE(1, 2), EK_I64)));
    assert_error(EK_E_INVALID, "19");
    ek_module_free(net);
}

/* ---- training ---- */

/* Dropout of embeddings, probabilities and branches draws what torch draws. */
TEST(losses_of_twenty_steps)
{
    ek_tensor *losses = golden("gpt2.golden", "losses");
    ek_manual_seed(8);
    ek_module *net = ek_gpt2(SMALL, .dropout = 0.2);
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    ek_optimizer *adamw = ek_adamw(net, .lr = 0.01);
    for (int step = 0; step < 20; step++) {
        double value = 0;
        ek_scope scope = ek_scope_begin();
        ek_tensor *tokens = ek_randint(0, 19, EK_SHAPE(4, 9));
        ek_zero_grad(adamw);
        ek_tensor *loss = next_loss(ek_apply(net, ek_narrow(tokens, 1, 0, 8)), tokens, false);
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(adamw));
        assert_ok(ek_item(loss, &value));
        ek_scope_end(&scope);
        ck_assert_msg(fabs(value - element(losses, step)) <= 1e-10 * fabs(value),
                      "step %d: %.17g, not %.17g", step, value, element(losses, step));
    }
    ek_optimizer_free(adamw);
    ek_module_free(net);
}

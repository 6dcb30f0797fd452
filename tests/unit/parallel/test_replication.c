/* The replication callback: who is called, in which order, with what, and how long contexts live.
 */
#include <stdatomic.h>

#include "kit/models.h"
#include "parallel_setup.h"

/* A module that notes how it is called. It gives x + index. */
typedef struct watched {
    ek_module module;
    ek_module *left, *right;
    int name;
    int index;           /* of the replica, as it was told; -1 if it was not */
    int callback_fails;  /* the replica whose callback fails: 1, 2 without a sentence, or 3 with
                            a sentence and without a status */
    int forward_fails;   /* the replica whose forward fails */
    atomic_int *context; /* counts the forwards that saw it */
} watched;

/* What was called, in order. */
static struct {
    int name, index, count;
    const ek_module *replica, *original;
    bool had_context;
} calls[64];
static int call_count, release_count, forwards_at_release;
static atomic_int forward_count;

static void release(void *context)
{
    release_count++;
    forwards_at_release += atomic_load((atomic_int *)context);
    free(context);
}

static int watched_replicated(ek_module *module, ek_replication *replication)
{
    watched *self = (watched *)module;
    calls[call_count].name = self->name;
    calls[call_count].index = replication->index;
    calls[call_count].count = replication->count;
    calls[call_count].replica = module;
    calls[call_count].original = replication->original;
    calls[call_count++].had_context = replication->context;
    if (!replication->context) {
        replication->context = calloc(1, sizeof(atomic_int));
        replication->release = release;
    }
    self->index = replication->index;
    self->context = replication->context;
    if (self->callback_fails == 1 && replication->index == 1)
        return ek_error(EK_E_USER, "not today");
    if (self->callback_fails == 3 && replication->index == 3)
        ek_error(EK_E_USER, "a quiet no");
    return self->callback_fails == 2 && replication->index == 2 ? EK_E_USER : 0;
}

static ek_value watched_forward(ek_module *module, const ek_args *args)
{
    watched *self = (watched *)module;
    ek_tensor *x = ek_arg_tensor(args, 0);
    atomic_fetch_add(&forward_count, 1);
    if (self->context)
        atomic_fetch_add(self->context, 1);
    if (self->forward_fails && self->index == self->forward_fails)
        return fail_with("no forward");
    if (self->left)
        x = ek_apply(self->left, x);
    if (self->right)
        x = ek_apply(self->right, x);
    return ek_value_of_tensor(ek_add_scalar(x, self->index));
}

MODULE_TYPE_WITH(watched, watched, .replicated = watched_replicated)

static watched *make_watched(int name, ek_module *left, ek_module *right)
{
    watched *self = new_module(&watched_type);
    self->name = name;
    self->index = -1;
    if (left)
        assert_ok(ek_register_module(&self->module, "left", &self->left, left));
    if (right)
        assert_ok(ek_register_module(&self->module, "right", &self->right, right));
    return self;
}

static void forget_calls(void)
{
    call_count = release_count = forwards_at_release = 0;
    atomic_store(&forward_count, 0);
}

/* 0 { 1 { 3 }, linear { 2 { 3 } } }: 3 stands in two places. */
static watched *make_tree(watched *parts[4])
{
    forget_calls();
    parts[3] = make_watched(3, NULL, NULL);
    parts[1] = make_watched(1, &parts[3]->module, NULL);
    parts[2] = make_watched(2, &parts[3]->module, NULL);
    ek_module *plain = ek_sequential(ek_relu(), &parts[2]->module);
    assert_made(plain);
    return parts[0] = make_watched(0, &parts[1]->module, plain);
}

TEST(in_order_of_replicas_and_registration)
{
    static const int order[] = {0, 1, 3, 2};
    watched *parts[4];
    ek_module *model =
        held(ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 4)));
    assert_ok(ek_patch_replication_callback(model));
    for (int forward = 0; forward < 2; forward++) {
        forget_calls();
        /* Seven samples: chunks of 2, 2, 2, 1; five: of 2, 2, 1. */
        ek_tensor *x = ek_zeros(EK_SHAPE(forward ? 5 : 7, 1));
        int replicas = forward ? 3 : 4;
        ek_tensor *out = ek_apply(model, x);
        assert_made(out);
        ck_assert_int_eq(call_count, 4 * replicas);
        for (int i = 0; i < call_count; i++) {
            int name = order[i % 4];
            ck_assert_int_eq(calls[i].name, name);
            ck_assert_int_eq(calls[i].index, i / 4);
            ck_assert_int_eq(calls[i].count, replicas);
            ck_assert_ptr_eq(calls[i].original, &parts[name]->module);
            ck_assert_ptr_ne(calls[i].replica, calls[i].original);
            ck_assert(calls[i].had_context == (i >= 4));
        }
        /* Each replica ran with its own index: 0, 1, 3 (twice) and 2 add it. */
        for (int i = 0; i < ek_tensor_size(out, 0); i++)
            ck_assert_double_eq(element(out, i), 5 * (i / 2));
        /* One context per place, released when all forwards had run. */
        ck_assert_int_eq(release_count, 4);
        ck_assert_int_eq(forwards_at_release, 5 * replicas);
    }
    ck_assert_int_eq(parts[0]->index, -1);
}

TEST(only_where_modules_are_replicated)
{
    watched *parts[4];
    ek_tensor *x = ek_zeros(EK_SHAPE(6, 1));
    ek_module *model = ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 3));
    assert_made(ek_apply(model, x));
    ck_assert_int_eq(call_count, 0); /* not patched */
    assert_ok(ek_patch_replication_callback(model));
    assert_made(ek_apply(model, ek_zeros(EK_SHAPE(1, 1))));
    ck_assert_int_eq(call_count, 0); /* one chunk */
    assert_ok(ek_patch_replication_callback(model));
    assert_made(ek_apply(model, x));
    ck_assert_int_eq(call_count, 12); /* once, though patched twice */
    /* The inner wrapper's replicas call their module plainly; the outer one is not patched. */
    forget_calls();
    ek_module *outer = ek_data_parallel(ek_sequential(model), ek_devices(test_kind(), 2));
    assert_made(ek_apply(outer, x));
    ck_assert_int_eq(call_count, 0);
    assert_ok(ek_patch_replication_callback(outer));
    assert_made(ek_apply(outer, x));
    ck_assert_int_eq(call_count, 8);
    ek_module_free(outer);

    ek_module *one = held(ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 1)));
    assert_ok(ek_patch_replication_callback(one));
    assert_made(ek_apply(one, x));
    ck_assert_int_eq(call_count, 0);
}

TEST(evaluation_and_no_gradients_replicate_too)
{
    watched *parts[4];
    ek_module *model =
        held(ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 2)));
    assert_ok(ek_patch_replication_callback(model));
    ek_module_train(model, false);
    bool before = ek_set_grad_enabled(false);
    assert_made(ek_apply(model, ek_zeros(EK_SHAPE(4, 1))));
    ek_set_grad_enabled(before);
    ck_assert_int_eq(call_count, 8);
    ck_assert_int_eq(release_count, 4);
}

TEST(a_failing_callback_fails_the_forward)
{
    watched *parts[4];
    ek_module *model =
        held(ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 4)));
    assert_ok(ek_patch_replication_callback(model));
    ek_tensor *x = ek_zeros(EK_SHAPE(8, 1));
    parts[3]->callback_fails = 1;
    assert_refused(
        ek_apply(model, x), EK_E_USER,
        "data_parallel: replica 1 on host:1: replication callback of watched: not today");
    ck_assert_int_eq(call_count, 4 + 3);
    ck_assert_int_eq(release_count, 4);
    ck_assert_int_eq(atomic_load(&forward_count), 0);
    forget_calls();
    parts[3]->callback_fails = 0;
    parts[0]->callback_fails = 2;
    assert_refused(ek_apply(model, x), EK_E_USER,
                   "replica 2 on host:2: replication callback of watched: it failed with "
                   "EK_E_USER without saying why");
    ck_assert_int_eq(call_count, 4 + 4 + 1);
    ck_assert_int_eq(release_count, 4);
    forget_calls();
    parts[0]->callback_fails = 3;
    assert_refused(ek_apply(model, x), EK_E_USER,
                   "replica 3 on host:3: replication callback of watched: a quiet no");
    ck_assert_int_eq(call_count, 4 + 4 + 4 + 1);
    ck_assert_int_eq(atomic_load(&forward_count), 0);
    forget_calls();
    parts[0]->callback_fails = 0;
    assert_made(ek_apply(model, x));
    ck_assert_int_eq(release_count, 4);
}

TEST(contexts_are_released_after_failing_forwards)
{
    watched *parts[4];
    ek_module *model =
        held(ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 4)));
    assert_ok(ek_patch_replication_callback(model));
    parts[2]->forward_fails = 1;
    assert_refused(ek_apply(model, ek_zeros(EK_SHAPE(8, 1))), EK_E_USER, "replica 1 on host:1: ");
    ck_assert_int_eq(release_count, 4);
    /* The others had ended: 4 of 5 modules where 2 failed before its part 3. */
    ck_assert_int_eq(forwards_at_release, 4 * 5 - 1);
}

TEST(a_first_error_stays)
{
    watched *parts[4];
    ek_module *model =
        held(ek_data_parallel(&make_tree(parts)->module, ek_devices(test_kind(), 2)));
    assert_ok(ek_patch_replication_callback(model));
    parts[0]->callback_fails = 1;
    ek_tensor *x = ek_zeros(EK_SHAPE(8, 1));
    ek_error(EK_E_USER, "from before");
    ck_assert_ptr_null(ek_apply(model, x));
    ck_assert_str_eq(ek_error_message(), strstr(ek_error_message(), "from before"));
    ek_error_clear();
    ck_assert_int_eq(release_count, 4);
}

TEST(other_modules_cannot_be_patched)
{
    ek_module *net = held(make_net());
    assert_refused(ek_patch_replication_callback(net), EK_E_INVALID,
                   "sequential is no data-parallel wrapper");
    assert_refused(ek_patch_replication_callback(NULL), EK_E_INVALID,
                   "NULL is no data-parallel wrapper");
    ek_data_parallel_stats stats;
    assert_refused(ek_data_parallel_get_stats(net, &stats), EK_E_INVALID,
                   "sequential is no data-parallel wrapper");
}

/* ---- what is sent ---- */

enum { FEATURES = 3, CHANNELS = 4 };

static ek_module *make_bn_net(void)
{
    ek_manual_seed(7);
    ek_module *net = ek_sequential(ek_linear(FEATURES, CHANNELS), ek_batch_norm1d(CHANNELS));
    assert_made(net);
    return net;
}

static ek_data_parallel_stats stats_of(ek_module *model)
{
    ek_data_parallel_stats stats;
    assert_ok(ek_data_parallel_get_stats(model, &stats));
    return stats;
}

/* parameter -= 0.1 gradient, for all. */
static int descend(const char *path, ek_tensor *parameter, void *user)
{
    assert_made(ek_add_scaled_(parameter, ek_tensor_grad(parameter), -0.1));
    return 0;
}

static const bool switches[] = {true, false};

TEST_LOOP(parameters_are_sent_once_per_step, 0, 2)
{
    enum { DEVICES = 3, FORWARDS = 3, STEPS = 4 };
    const uint64_t parameters = 4 * (FEATURES * CHANNELS + CHANNELS + 2 * CHANNELS);
    const uint64_t buffers = 4 * 2 * CHANNELS + 8;
    ek_module *model = held(ek_data_parallel(make_bn_net(), ek_devices(test_kind(), DEVICES),
                                             .broadcast_buffers = switches[_i]));
    for (uint64_t step = 1; step <= STEPS; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *sum = NULL;
        for (uint64_t forward = 0; forward < FORWARDS; forward++) {
            ek_tensor *x = ek_to_dtype(normal(step * FORWARDS + forward, EK_SHAPE(8, FEATURES),
                                              EK_F64, ek_cpu()),
                                       EK_F32);
            ek_tensor *loss = ek_mean(ek_square(ek_add_scalar(ek_apply(model, x), 1)));
            sum = sum ? ek_add(sum, loss) : loss;
            ek_data_parallel_stats now = stats_of(model);
            ck_assert_uint_eq(now.forwards, (step - 1) * FORWARDS + forward + 1);
            ck_assert_uint_eq(now.parameter_broadcasts, step);
            ck_assert_uint_eq(now.parameter_nbytes, step * parameters * (DEVICES - 1));
            /* Every forward writes them. */
            uint64_t sent = switches[_i] == true ? now.forwards : 1;
            ck_assert_uint_eq(now.buffer_nbytes, sent * buffers * (DEVICES - 1));
        }
        ek_module_zero_grad(model);
        assert_ok(ek_backward(sum));
        bool before = ek_set_grad_enabled(false);
        assert_ok(ek_module_parameters(model, descend, NULL));
        ek_set_grad_enabled(before);
        ek_scope_end(&scope);
    }
}

TEST(what_does_not_change_is_not_sent)
{
    ek_module *model = ek_data_parallel(make_bn_net(), ek_devices(test_kind(), 4));
    ek_tensor *x = ek_zeros(EK_SHAPE(8, FEATURES));
    ck_assert_uint_eq(stats_of(model).forwards, 0);
    ek_module_train(model, false);
    assert_made(ek_apply(model, ek_zeros(EK_SHAPE(1, FEATURES)))); /* the module itself */
    ck_assert_uint_eq(stats_of(model).forwards, 0);
    ck_assert_uint_eq(stats_of(model).parameter_nbytes, 0);
    for (int i = 0; i < 3; i++)
        assert_made(ek_apply(model, x));
    ck_assert_uint_eq(stats_of(model).forwards, 3);
    ck_assert_uint_eq(stats_of(model).parameter_broadcasts, 1);
    ck_assert_uint_eq(stats_of(model).buffer_nbytes, 3 * (4 * 2 * CHANNELS + 8));
    /* One parameter was written: it alone is sent. */
    uint64_t before = stats_of(model).parameter_nbytes;
    ek_tensor_touch(ek_module_tensor(model, "0.bias"));
    assert_made(ek_apply(model, x));
    ck_assert_uint_eq(stats_of(model).parameter_nbytes - before, 3 * 4 * CHANNELS);
    ck_assert_uint_eq(stats_of(model).parameter_broadcasts, 2);
    /* Two chunks: the other devices get nothing, and catch up later. */
    ek_tensor_touch(ek_module_tensor(model, "0.bias"));
    assert_made(ek_apply(model, ek_zeros(EK_SHAPE(2, FEATURES))));
    ck_assert_uint_eq(stats_of(model).parameter_nbytes - before, (3 + 1) * 4 * CHANNELS);
    assert_made(ek_apply(model, x));
    ck_assert_uint_eq(stats_of(model).parameter_nbytes - before, (3 + 3) * 4 * CHANNELS);
    ek_module_free(model);

    model = ek_data_parallel(make_bn_net(), ek_devices(test_kind(), 1));
    assert_made(ek_apply(model, x));
    ck_assert_uint_eq(stats_of(model).forwards, 0);
    assert_refused(ek_data_parallel_get_stats(model, NULL), EK_E_INVALID, "stats is NULL");
    ek_module_free(model);
}

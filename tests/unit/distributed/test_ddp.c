/* ek_distributed_data_parallel over ranks that are threads, against one process with all samples.
 */
#include "core/tensor.h"
#include "group/world.h"
#include "kit/exact.h"
#include "kit/same.h"
#include "train/reducer.h"

enum { HIDDEN = 300, STEPS = 5, EACH = 4 };

static ek_tensor *numbers(int64_t rows, int64_t columns, ek_dtype dtype, int64_t from)
{
    return ek_to_device(same_rows(rows, columns, dtype, from), test_home());
}

typedef struct setting {
    ek_dtype dtype;
    double cap; /* MiB of a bucket */

    ek_tensor *parameters[16]; /* what one process has after the steps; kept */
    int count;
} setting;

/* The middle layer makes more than one bucket of 1 KiB. `other`: with random parameters. */
static ek_module *make_net(ek_dtype dtype, bool other)
{
    ek_module *net = ek_sequential(ek_linear(IN, HIDDEN), ek_tanh(), ek_linear(HIDDEN, OUT));
    if (net && (other || exact_fill(net) >= 0) && ek_module_to_dtype(net, dtype) >= 0 &&
        ek_module_to_device(net, test_home()) >= 0)
        return net;
    ek_module_free(net);
    return NULL;
}

static ek_tensor *loss_of(ek_module *model, const setting *s, int step, int64_t first, int64_t rows)
{
    ek_tensor *x = numbers(rows, IN, s->dtype, first + 100 * step);
    ek_tensor *y = numbers(rows, OUT, s->dtype, first + 100 * step + 50);
    ek_tensor *difference = ek_sub(ek_apply(model, x), y);
    return ek_mean(ek_mul(difference, difference));
}

/* STEPS steps of the model on some of the samples. */
static int train(ek_module *model, const setting *s, int64_t first, int64_t rows)
{
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.1, .momentum = 0.9);
    int rc = optimizer ? 0 : -1;
    for (int step = 0; step < STEPS && rc >= 0; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *loss = loss_of(model, s, step, first, rows);
        ek_zero_grad(optimizer);
        rc = ek_backward(loss);
        if (rc >= 0)
            rc = ek_step(optimizer);
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
    return rc;
}

static double distance(const ek_tensor *a, const ek_tensor *b)
{
    double sum = 0, norm = 0;
    for (int64_t i = 0; i < ek_count(a); i++) {
        double x = element(a, i), y = element(b, i);
        sum += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(sum / norm);
}

static const char *ddp_trains(ek_process_group *world, void *user)
{
    const setting *s = user;
    ek_module *net = make_net(s->dtype, world->rank > 0); /* rank 0's values become all ranks' */
    ek_module *model =
        ek_distributed_data_parallel(net, .process_group = world, .bucket_cap_mb = s->cap);
    LOOP_CHECK(model);
    RANKS_OK(train(model, s, world->rank * EACH, EACH));
    tensor_list l = parameters_of(model);
    for (int i = 0; i < l.count; i++) {
        double tolerance = s->dtype == EK_F64 ? 1e-12 : 1e-5;
        LOOP_CHECK(distance(l.tensors[i], s->parameters[i]) <= tolerance);
        ek_tensor *first = ek_clone(ek_detach(l.tensors[i])); /* equal to the bit on all ranks */
        RANKS_OK(ek_dist_broadcast(first, 0, .group = world));
        LOOP_CHECK(first && same_bits(first, l.tensors[i]));
    }
    ek_module_free(model);
    return NULL;
}

/* Parameters of one process after the same steps with all ranks' samples. */
static void reference(setting *s, int ranks)
{
    ek_module *net = make_net(s->dtype, false);
    assert_made(net);
    assert_ok(train(net, s, 0, ranks * EACH));
    tensor_list l = parameters_of(net);
    s->count = l.count;
    for (int i = 0; i < l.count; i++)
        s->parameters[i] = ek_keep(ek_clone(ek_detach(l.tensors[i])));
    ek_module_free(net);
}

static void forget(setting *s)
{
    for (int i = 0; i < s->count; i++)
        ek_release(s->parameters[i]);
}

TEST_LOOP(ranks_train_as_one_process, 0, 8)
{
    setting s = {.dtype = _i % 2 ? EK_F32 : EK_F64, .cap = _i < 4 ? 25 : 0.001};
    int ranks = 2 + _i / 2 % 2;
    reference(&s, ranks);
    ranks_check(ranks, (uint64_t)_i, ddp_trains, &s);
    forget(&s);
}

/* ---- the buckets ---- */

enum { MOST_LEAVES = 64 };

/* Cuts `count` leaves of so many bytes; the buckets have sizes[] leaves each, and all of them. */
static void check_cut(const size_t *nbytes, int count, size_t cap, const int *sizes, int buckets)
{
    ek_bucket cut[MOST_LEAVES];
    ck_assert_int_eq(ek_reducer_cut(nbytes, 0, count, cap, true, cut), buckets);
    for (int b = 0, end = count; b < buckets; end = cut[b++].first) {
        ck_assert_int_eq(cut[b].end, end);
        ck_assert_int_eq(cut[b].end - cut[b].first, sizes[b]);
    }
    ck_assert_int_eq(cut[buckets - 1].first, 0);
}

TEST(buckets_are_small_at_first_and_taper)
{
    size_t mib = 1 << 20, nbytes[MOST_LEAVES];
    for (int i = 0; i < MOST_LEAVES; i++)
        nbytes[i] = mib;
    check_cut(nbytes, 64, 25 * mib, (const int[]){1, 25, 19, 9, 5, 2, 1, 1, 1}, 9);
    check_cut(nbytes, 5, mib / 2, (const int[]){1, 1, 1, 1, 1}, 5);
    nbytes[1] = 100 * mib; /* no leaf is cut */
    nbytes[3] = mib / 2;
    nbytes[4] = mib / 4;
    check_cut(nbytes, 5, 25 * mib, (const int[]){2, 1, 1, 1}, 4);
}

TEST(a_stretch_of_leaves_is_cut_alone)
{
    size_t nbytes[] = {1, 2, 3, 4, 5};
    ek_bucket cut[2];
    ck_assert_int_eq(ek_reducer_cut(nbytes, 1, 4, 100, false, cut), 1);
    ck_assert_int_eq(cut[0].first, 1);
    ck_assert_int_eq(cut[0].end, 4);
    ck_assert_int_eq(ek_reducer_cut(nbytes, 1, 4, 7, false, cut), 2);
    ck_assert_int_eq(cut[0].first, 2);
    ck_assert_int_eq(cut[1].end, 2);
}

TEST(large_leaves_are_several_buckets)
{
    const size_t mib = 1 << 20, nbytes[] = {mib, 20 * mib, 8 * mib};
    ek_bucket cut[5];
    ck_assert_int_eq(ek_reducer_cut(nbytes, 0, 3, 25 * mib, false, cut), 5);
    ck_assert_int_eq(cut[0].first, 2);
    ck_assert_int_eq(cut[0].pieces, 1);
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(cut[1 + k].first, 1);
        ck_assert_int_eq(cut[1 + k].end, 2);
        ck_assert_int_eq(cut[1 + k].piece, k);
        ck_assert_int_eq(cut[1 + k].pieces, 3);
    }
    ck_assert_int_eq(cut[4].end, 1);
}

/* ---- the end of a wrapper ---- */

/* Rank 0 frees its wrapper, and goes on, before the others free theirs. */
RANKS_LOOP(a_wrapper_is_freed_without_the_others, 3, 0, 3)
{
    ek_module *model =
        ek_distributed_data_parallel(make_net(EK_F32, false), .process_group = world);
    LOOP_CHECK(model);
    if (world->rank == 0)
        ek_module_free(model);
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank > 0)
        ek_module_free(model);
    return NULL;
}

/* Wrappers live on after the world: they can be freed, and called as the module that they wrap. */
static ek_module *kept[3];

static const char *keep(ek_process_group *world, void *user)
{
    kept[world->rank] =
        ek_distributed_data_parallel(make_net(EK_F32, false), .process_group = world);
    LOOP_CHECK(kept[world->rank]);
    return NULL;
}

TEST(a_wrapper_outlives_the_world)
{
    ranks_check(3, 1, keep, NULL);
    for (int rank = 0; rank < 3; rank++) {
        ek_tensor *x = numbers(2, IN, EK_F32, 0);
        assert_refused(ek_apply(kept[rank], x), EK_E_STATE, "was destroyed");
        ek_distributed_stats stats;
        assert_ok(ek_distributed_get_stats(kept[rank], &stats));
        ck_assert_int_eq(stats.waited_for, -1);
        bool enabled = ek_set_grad_enabled(false);
        assert_made(ek_apply(kept[rank], x));
        ek_set_grad_enabled(enabled);
        ek_module_free(kept[rank]);
    }
}

/* ---- wrappers that differ ---- */

static int freeze(const char *path, ek_tensor *parameter, void *user)
{
    const char *frozen = user;
    return strcmp(path, frozen) == 0 ? ek_tensor_set_requires_grad(parameter, false) : 0;
}

/* Rank 1 makes its wrapper otherwise; all ranks are told of it, and the group works on. */
RANKS_LOOP(wrappers_that_differ_are_refused_everywhere, 3, 0, 5)
{
    int how = *(int *)user, other = world->rank == 1;
    static const char *const sentences[] = {
        "bucket_cap_mb in bytes is 26214400 on rank 0 and 1048576 on rank 1",
        "bf16_gradients is 0 on rank 0 and 1 on rank 1", "shard is 0 on rank 0 and ",
        "require a gradient is 4 on rank 0 and 3 on rank 1",
        "which parameters require a gradient is "};
    ek_module *net = make_net(EK_F32, false);
    LOOP_CHECK(net);
    if (how == 3 && other)
        RANKS_OK(ek_module_parameters(net, freeze, (void *)(uintptr_t) "0.bias"));
    if (how == 4)
        RANKS_OK(
            ek_module_parameters(net, freeze, (void *)(uintptr_t)(other ? "2.bias" : "0.bias")));
    ek_module *model = ek_distributed_data_parallel(net, .process_group = world,
                                                    .bucket_cap_mb = how == 0 && other ? 1 : 25,
                                                    .bf16_gradients = how == 1 && other,
                                                    .shard = how == 2 && other ? EK_SHARD_OPTIMIZER
                                                                               : EK_SHARD_NONE);
    LOOP_CHECK(!model);
    LOOP_PASS(ranks_expect(ek_error_status(), EK_E_STATE, sentences[how]));
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}

/* Rank 1 moves a parameter after wrapping. Its backward is refused, and the others' end with that
 */
RANKS_TEST(a_backward_that_cannot_begin_on_one_rank_ends_on_all, 3, 1)
{
    setting s = {.dtype = EK_F32};
    ek_module *net = make_net(EK_F32, false);
    ek_module *model = ek_distributed_data_parallel(net, .process_group = world);
    LOOP_CHECK(model);
    if (world->rank == 1)
        RANKS_OK(ek_module_to_dtype(net, EK_F64));
    if (world->rank == 1)
        RANKS_OK(ek_module_to_dtype(net, EK_F32));
    ek_tensor *loss = loss_of(model, &s, 0, world->rank * EACH, EACH);
    LOOP_CHECK(loss);
    int rc = ek_backward(loss);
    LOOP_PASS(
        ranks_expect(rc, world->rank == 1 ? EK_E_STATE : EK_E_ABORTED, "wrap the module anew"));
    RANKS_OK(ek_dist_barrier(.group = world));
    ek_module_free(model);
    return NULL;
}

/* ---- one device ---- */

RANKS_LOOP(inputs_are_moved_to_the_one_device, 2, 0, 3)
{
    const ek_shard_policy shard = (ek_shard_policy) * (const int *)user;
    ek_module *net = make_net(EK_F64, false);
    ek_module *model = ek_distributed_data_parallel(net, .process_group = world, .shard = shard,
                                                    .device_ids = EK_DEVICES(test_device(0)));
    LOOP_CHECK(model && ek_data_parallel_module(model) == net);
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.1);
    ek_tensor *y = ek_apply(model, same_rows(EACH, IN, EK_F64, 0));
    LOOP_CHECK(y && ek_device_equal(ek_tensor_device(y), test_device(0)));
    RANKS_OK(ek_backward(ek_mean(y)));
    RANKS_OK(ek_step(optimizer));
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    return NULL;
}

RANKS_TEST(a_wrapper_shows_the_module_within, 2, 1)
{
    ek_module *net = make_net(EK_F64, false);
    ek_module *model = ek_distributed_data_parallel(net, .process_group = world);
    LOOP_CHECK(model && ek_data_parallel_module(model) == net);
    RANKS_EXPECT(ek_data_parallel_unwrap(model) ? 0 : ek_error_status(), EK_E_INVALID,
                 "distributed_data_parallel is no data-parallel wrapper");
    ek_module_free(model);
    net = make_net(EK_F64, false);
    model = ek_distributed_data_parallel(ek_data_parallel_model(net), .process_group = world);
    LOOP_CHECK(model && ek_data_parallel_module(model) == net);
    ek_module_free(model);
    ek_module *loss = ek_mse_loss(),
              *criterion = ek_distributed_criterion(loss, .process_group = world);
    LOOP_CHECK(criterion && ek_data_parallel_module(criterion) == loss);
    ek_module_free(criterion);
    return NULL;
}

/* ---- closures ---- */

typedef struct fit {
    ek_process_group *world;
    ek_module *model;
    ek_optimizer *optimizer;
    int calls, fails_at; /* rank 1 fails in this call; 0: none */
} fit;

/* The mean of all ranks' losses. A rank that fails by itself tells the others. */
static int fit_evaluate(double *loss, void *user)
{
    fit *f = user;
    setting s = {.dtype = EK_F64};
    if (++f->calls == f->fails_at && f->world->rank == 1) /* as ek_dist_raise */
        return ek_world_outcome(f->world, ek_error(EK_E_USER, "sample 17 is broken"));
    ek_zero_grad(f->optimizer);
    ek_tensor *l = loss_of(f->model, &s, 0, f->world->rank * EACH, EACH);
    if (ek_backward(l) < 0)
        return ek_error_status();
    ek_tensor *mean = ek_clone(ek_detach(l));
    if (ek_dist_all_reduce(mean, .op = EK_DIST_AVG, .group = f->world) < 0)
        return ek_error_status();
    return ek_item(mean, loss);
}

/* The distance of all parameters from those in `before`, and from rank 0's. */
static const char *fit_compare(const fit *f, ek_tensor **before, double *moved)
{
    tensor_list l = parameters_of(f->model);
    *moved = 0;
    for (int i = 0; i < l.count; i++) {
        ek_tensor *own = ek_clone(ek_detach(l.tensors[i])), *first = ek_clone(own);
        RANKS_OK(ek_dist_broadcast(first, 0, .group = f->world));
        LOOP_CHECK(distance(ek_to_device(own, ek_cpu()), ek_to_device(first, ek_cpu())) == 0);
        if (before[i])
            *moved += distance(ek_to_device(own, ek_cpu()), before[i]);
        before[i] = ek_to_device(own, ek_cpu());
    }
    return NULL;
}

/* A step of LBFGS has the same end on all ranks, whichever evaluation fails on one of them. */
RANKS_LOOP(a_closure_that_fails_on_one_rank_fails_on_all, 3, 1, 5)
{
    fit f = {.world = world, .fails_at = *(const int *)user};
    ek_tensor *before[16] = {NULL};
    double moved;
    ek_module *net = make_net(EK_F64, false);
    f.model = ek_distributed_data_parallel(net, .process_group = world);
    LOOP_CHECK(f.model);
    f.optimizer = ek_lbfgs(f.model, .lr = 0.5, .max_iter = 4);
    LOOP_CHECK(f.optimizer);
    LOOP_PASS(fit_compare(&f, before, &moved));
    RANKS_EXPECT(ek_step_closure(f.optimizer, fit_evaluate, &f, NULL),
                 world->rank == 1 ? EK_E_USER : EK_E_ABORTED, "sample 17 is broken");
    LOOP_CHECK(f.calls == f.fails_at);
    LOOP_PASS(fit_compare(&f, before, &moved));
    LOOP_CHECK(moved == 0);
    RANKS_OK(ek_step_closure(f.optimizer, fit_evaluate, &f, NULL));
    LOOP_PASS(fit_compare(&f, before, &moved));
    LOOP_CHECK(moved > 0);
    ek_optimizer_free(f.optimizer);
    ek_module_free(f.model);
    return NULL;
}

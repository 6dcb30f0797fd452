/* Sharded state through the lives of its modules, wrappers and optimizers: what is made, changed
 * and freed in between, in any order. */
#include "kit/exact.h"
#include "nn/module_table.h"
#include "sharded.h"

/* ---- wrappers that come and go ---- */

static const char *unwrap(same_pair *pair, int step)
{
    for (int way = 0; way < WAYS; way++) {
        ek_tensor *first = same_parameters(pair, way).tensors[0];
        ek_scope scope = ek_scope_begin();
        if (!pair->group) { /* the wrapper goes with a gradient in place */
            RANKS_OK(same_come(pair, way, step));
            same_unwrap(pair, way);
            LOOP_CHECK(ek_tensor_grad(first));
            RANKS_OK(ek_step(pair->optimizers[way]));
        } else {
            same_unwrap(pair, way);
        }
        RANKS_OK(same_step_alike(pair, way, step));
        ek_scope_end(&scope);
    }
    return same_compare(pair, "without a wrapper");
}

/* Sharded, then whole without a wrapper, then sharded otherwise: the state follows. A wrapper that
 * has gone leaves nothing on other devices than the first. */
static const char *wraps_anew(same_pair *pair)
{
    static const int devices[] = {0, 0, 2, 0, 4, 0};
    for (int way = 0; way < WAYS && pair->setting.variant; way++) { /* the optimizer comes first */
        same_unwrap(pair, way);
        ek_optimizer_free(pair->optimizers[way]);
        LOOP_CHECK(pair->optimizers[way] = same_optimizer_new(pair, way));
        RANKS_OK(same_wrap(pair, way));
    }
    for (int step = 0; step < 6; step++) {
        if (step % 2 == 0 && step > 0) {
            LOOP_PASS(unwrap(pair, step));
            for (int d = 1; d < 4 && !pair->group; d++) {
                LOOP_CHECK_EQ(bytes_now(test_device(d), EK_MEMORY_PARAMETER), 0);
                LOOP_CHECK_EQ(bytes_now(test_device(d), EK_MEMORY_GRADIENT), 0);
            }
            pair->setting.cap = 0.0005 * step;
            if (!pair->group)
                pair->setting.devices = devices[step];
            RANKS_OK(same_wrap(pair, WHOLE));
            RANKS_OK(same_wrap(pair, SHARDED));
        }
        LOOP_PASS(same_steps(pair, step));
    }
    return NULL;
}

TEST_LOOP(the_state_follows_the_wrapper, 0, 6)
{
    same_setting s = anyone(_i, (same_setting){.cap = 0.001});
    if (s.ranks)
        s.devices = 0;
    same_check(&s, (uint64_t)_i, wraps_anew);
}

TEST_LOOP(the_state_of_every_algorithm_follows, 0, 2 * ALGORITHMS)
{
    same_check(&(same_setting){.devices = 3,
                               .algorithm = _i / 2,
                               .groups = true,
                               .how = EACH_ITSELF,
                               .variant = _i % 2},
               0, wraps_anew);
}

/* A module that is moved or converted has whole parameters, and no gradients. */
SAME_LOOP(a_moved_module_is_whole, 0, 2, .devices = 3, .balanced = _i, .algorithm = ADAM)
{
    tensor_list list = same_parameters(pair, SHARDED);
    LOOP_PASS(same_steps(pair, 0));
    for (int turn = 0; turn < 3; turn++) {
        for (int way = 0; way < WAYS; way++) {
            RANKS_OK(same_come(pair, way, turn));
            RANKS_OK(turn == 1 ? ek_module_to_dtype(pair->nets[way], EK_F64)
                               : ek_module_to_device(pair->nets[way], test_device(turn ? 2 : 1)));
        }
        for (int i = 0; i < list.count; i++)
            LOOP_CHECK(!ek_leaf_shards(list.tensors[i]) && !ek_gather_grad(list.tensors[i]));
        for (int way = 0; way < WAYS; way++)
            RANKS_OK(ek_module_to_device(pair->nets[way], test_device(0)));
        LOOP_PASS(same_steps(pair, turn + 1));
    }
    return NULL;
}

SAME_LOOP(all_orders_of_freeing, 0, 4, .devices = 3, .balanced = true, .net = PICTURES,
          .algorithm = ADAM, .variant = _i)
{
    int order = pair->setting.variant;
    RANKS_OK(same_step(pair, SHARDED, 0));
    ek_tensor *loss = same_loss(pair, SHARDED, 7, 1);
    ek_optimizer *optimizer = pair->optimizers[SHARDED];
    if (order & 1)
        RANKS_OK(ek_backward(loss));
    pair->optimizers[SHARDED] = NULL;
    if (order & 2)
        ek_optimizer_free(optimizer);
    same_unwrap(pair, SHARDED);
    ek_module_free(pair->nets[SHARDED]);
    pair->nets[SHARDED] = NULL;
    if (!(order & 2)) {
        ek_zero_grad(optimizer);
        ek_optimizer_free(optimizer);
    }
    if (!(order & 1)) /* the graph still has the shards */
        RANKS_OK(ek_backward(loss));
    return NULL;
}

/* ---- several wrappers of one module ---- */

SAME_TEST(a_module_is_divided_once, .devices = 3, .balanced = true, .net = PICTURES,
          .algorithm = ADAM)
{
    ek_module *net = pair->nets[SHARDED];
    ek_tensor *weight = ek_module_tensor(net, "0.weight");
    ek_device_list devices = ek_devices(test_kind(), 2);
    LOOP_CHECK(!ek_data_parallel(net, .device_ids = devices, .shard = EK_SHARD_OPTIMIZER));
    RANKS_EXPECT(ek_error_status(), EK_E_STATE,
                 "parameter \"0.weight\" is sharded by another wrapper");
    RANKS_OK(same_step(pair, SHARDED, 0));
    ek_module *beside = ek_data_parallel(net, .device_ids = devices);
    LOOP_CHECK(beside);
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(pair->optimizers[SHARDED]);
    RANKS_OK(ek_backward(ek_sum(ek_apply(beside, ek_ones(EK_SHAPE(7, 1, 16, 16))))));
    LOOP_CHECK(ek_tensor_grad(weight));
    RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    LOOP_CHECK(!ek_tensor_grad(weight));
    ek_scope_end(&scope);
    ek_module_free(beside);
    same_unwrap(pair, SHARDED);
    RANKS_OK(same_wrap(pair, SHARDED));
    return same_step(pair, SHARDED, 1) < 0 ? ek_error_message() : NULL;
}

/* One parameter that fills its memory to the last byte looks like one that lies in no slab; its
 * shards stay on it whoever wraps its module beside. */
TEST_LOOP(divided_parameters_stay_where_they_are, 0, 2)
{
    ek_module *net = ek_linear(16, 4, .bias = false);
    ek_device_list devices = ek_devices(test_kind(), 2);
    ek_module *model =
        ek_data_parallel(ek_module_retain(net), .device_ids = devices, .shard = EK_SHARD_OPTIMIZER);
    ek_optimizer *optimizer = ek_sgd(net, .lr = 1);
    ek_module *beside = NULL;
    if (_i == 0)
        beside = ek_data_parallel(net, .device_ids = devices);
    else
        ck_assert_ptr_null(
            ek_data_parallel(net, .device_ids = devices, .shard = EK_SHARD_OPTIMIZER));
    ek_error_clear();
    ek_scope scope = ek_scope_begin();
    ek_tensor *weight = ek_module_tensor(net, "weight");
    assert_ok(ek_init_constant(weight, 3));
    assert_ok(ek_backward(ek_sum(ek_apply(model, ek_ones(EK_SHAPE(2, 16))))));
    assert_ok(ek_step(optimizer)); /* a gradient of 2 everywhere */
    weight = ek_to_device(weight, ek_cpu());
    for (int64_t i = 0; i < 64; i++)
        ck_assert_double_eq(element(weight, i), 1);
    ek_scope_end(&scope);
    ek_module_free(beside);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_module_free(net);
}

static ek_module *wrapped(same_pair *pair, ek_shard_policy inside, ek_shard_policy outside)
{
    ek_module *net = ek_data_parallel(same_net_new(&pair->setting),
                                      .device_ids = same_devices(pair), .shard = inside);
    return ek_distributed_data_parallel(net, .process_group = pair->group, .shard = outside);
}

/* Every rank refuses by itself and tells the others. A rank that is ahead must not tell of its next
 * refusal before the others have made this one, which takes the place of theirs: a barrier keeps
 * the ranks in step. */
static const char *refuses(same_pair *pair, ek_shard_policy inside, ek_shard_policy outside,
                           const char *sentence)
{
    LOOP_CHECK(!wrapped(pair, inside, outside));
    RANKS_EXPECT(ek_error_status(), EK_E_INVALID, sentence);
    RANKS_OK(ek_dist_barrier(.group = pair->group));
    return NULL;
}

static const char *is_refused(same_pair *pair)
{
    ek_shard_policy none = EK_SHARD_NONE, sharded = EK_SHARD_OPTIMIZER;
    LOOP_PASS(refuses(pair, sharded, none, "a wrapper shards the module's parameters"));
    LOOP_PASS(refuses(pair, sharded, sharded, "leave .shard out there, and give it here"));
    LOOP_PASS(refuses(pair, none, (ek_shard_policy)7, "7 is no shard policy"));
    ek_module *model = wrapped(pair, none, sharded);
    LOOP_CHECK(model);
    ek_module_free(model);
    RANKS_OK(ek_dist_barrier(.group = pair->group));
    LOOP_CHECK(!ek_distributed_data_parallel(same_net_new(&pair->setting),
                                             .process_group = pair->group,
                                             .offload = (ek_offload_policy)7));
    RANKS_EXPECT(ek_error_status(), EK_E_INVALID, "7 is no offload policy");
    return NULL;
}

TEST(wrappers_that_do_not_go_together)
{
    same_check(&(same_setting){.ranks = 2, .devices = 2}, 6, is_refused);
    assert_refused(ek_data_parallel(ek_linear(2, 2), .device_ids = ek_devices(test_kind(), 2),
                                    .shard = (ek_shard_policy)7),
                   EK_E_INVALID, "data_parallel: 7 is no shard policy");
}

/* A rank alone has its devices share; a device alone owns all there is. Or cpu has it all. */
TEST_LOOP(one_rank_shares_over_its_devices, 0, 4)
{
    const int devices = 1 + _i % 2;
    const bool offloads = _i / 2, plain = devices == 1 && !offloads;
    assert_ok(ek_dist_init_process_group());
    ek_scope scope = ek_scope_begin();
    ek_module *net = same_net_new(&(same_setting){.net = TERMS});
    ek_module *model =
        ek_distributed_data_parallel(net, .device_ids = ek_devices(test_kind(), devices),
                                     .shard = offloads ? EK_SHARD_NONE : EK_SHARD_OPTIMIZER,
                                     .offload = offloads ? EK_OFFLOAD_OPTIMIZER : EK_OFFLOAD_NONE);
    assert_made(model);
    ek_tensor *weight = ek_module_tensor(net, "main.0.weight");
    ek_tensor *x = same_rows(4, IN, EK_F32, 0);
    ek_optimizer *optimizer = ek_adam(model);
    assert_ok(ek_backward(ek_sum(ek_apply(model, plain ? ek_to_device(x, test_device(0)) : x))));
    ck_assert_int_eq(ek_tensor_grad(weight) != NULL, plain);
    assert_ok(ek_step(optimizer));
    for (int k = 0; k < devices; k++)
        ck_assert_int_eq(bytes_now(test_device(k), EK_MEMORY_OPTIMIZER) > 0, !offloads);
    ck_assert_int_eq(bytes_now(ek_cpu(), EK_MEMORY_OPTIMIZER) > 0, offloads);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_scope_end(&scope);
}

/* ---- changes within a step ---- */

/* What is frozen between forward and backward gets no gradient either. */
static const char *freezes_late(same_pair *pair)
{
    tensor_list list = same_parameters(pair, SHARDED);
    ek_tensor *loss = same_loss(pair, SHARDED, 7, 0);
    RANKS_OK(ek_tensor_set_requires_grad(list.tensors[0], false));
    RANKS_OK(ek_backward(loss));
    LOOP_CHECK(!ek_gather_grad(list.tensors[0]) && ek_gather_grad(list.tensors[1]));
    return NULL;
}

/* A graph that saved the parameter, or a shard, must not use what the step made of it. */
static const char *graphs_notice(same_pair *pair)
{
    ek_tensor *p = same_parameters(pair, SHARDED).tensors[0], *losses[1 + EK_MAX_DEVICES];
    RANKS_OK(same_backward(pair, SHARDED, 0));
    int count = ek_leaf_shard_count(p);
    LOOP_CHECK(count > 1);
    for (int k = 0; k <= count; k++) {
        ek_tensor *saved = k < count ? ek_leaf_shard(p, k).tensor : p;
        losses[k] = ek_sum(ek_mul(saved, saved));
    }
    uint64_t version = ek_tensor_version(p);
    RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    LOOP_CHECK(ek_tensor_version(p) > version);
    for (int k = 0; k <= count; k++)
        RANKS_EXPECT(ek_backward(losses[k]), EK_E_MODIFIED, "the optimizer's step");
    return NULL;
}

static const char *zeroes(same_pair *pair)
{
    tensor_list list = same_parameters(pair, SHARDED);
    RANKS_OK(same_backward(pair, SHARDED, 0));
    ek_zero_grad(pair->optimizers[SHARDED]);
    for (int i = 0; i < list.count; i++) {
        LOOP_CHECK(!ek_gather_grad(list.tensors[i]));
        for (int k = 0; k < ek_leaf_shard_count(list.tensors[i]); k++)
            LOOP_CHECK(!ek_tensor_grad(ek_leaf_shard(list.tensors[i], k).tensor));
    }
    RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    pair->losses[SHARDED] = 0;
    return same_compare(pair, "without gradients");
}

TEST_LOOP(changes_within_a_step, 0, 3)
{
    static same_body *const bodies[] = {freezes_late, graphs_notice, zeroes};
    same_check(&(same_setting){.devices = 3, .balanced = true, .hidden = 200, .algorithm = ADAM}, 0,
               bodies[_i]);
}

/* ---- modules that change between two steps ---- */

/* Replaces the last layer. The first two have one weight until step 1, and from step 3 on. */
static int change(same_pair *pair, int way, int step)
{
    ek_module *net = pair->nets[way], *layer = ek_linear(IN, OUT);
    ek_dtype dtype = pair->setting.dtype;
    ek_tensor *weight =
        step == 1 ? ek_full(0.3, EK_SHAPE(IN, IN), .dtype = dtype, .device = test_device(0))
                  : ek_module_tensor(net, "0.weight");
    int rc = exact_fill(layer);
    if (rc >= 0)
        rc = ek_module_to_dtype(layer, dtype);
    if (rc >= 0)
        rc = ek_module_to_device(layer, test_device(0));
    if (rc >= 0)
        rc = ek_module_set(net, "4", layer);
    if (rc >= 0)
        rc = ek_module_set_tensor(net, "2.weight", weight);
    ek_optimizer_free(pair->optimizers[way]);
    pair->optimizers[way] = same_optimizer_new(pair, way);
    return rc < 0 || pair->optimizers[way] ? rc : ek_error_status();
}

static const char *changes(same_pair *pair)
{
    for (int step = 0; step < 5; step++) {
        for (int way = 0; way < WAYS && step % 2; way++)
            RANKS_OK(change(pair, way, step));
        LOOP_PASS(same_steps(pair, step));
        LOOP_CHECK(parameters_of(pair->models[SHARDED]).count == (step == 1 || step == 2 ? 5 : 4));
    }
    return NULL;
}

TEST_LOOP(modules_that_change_between_steps, 0, 6)
{
    same_check(&(same_setting){.devices = 1 + _i % 4,
                               .balanced = _i % 2,
                               .net = TIED,
                               .algorithm = _i < 3 ? ADAM : MOMENTUM,
                               .batch = 7},
               0, changes);
}

/* No rank may train a parameter whose gradient the others don't see. */
static const char *is_refused_over_ranks(same_pair *pair)
{
    LOOP_PASS(same_steps(pair, 0));
    ek_module *net = pair->nets[SHARDED], *layer = ek_linear(IN, OUT);
    ek_module_set_requires_grad(layer, false);
    RANKS_OK(ek_module_to_device(layer, ek_tensor_device(ek_module_tensor(net, "4.weight"))));
    RANKS_OK(ek_module_set(net, "4", layer));
    RANKS_OK(same_step(pair, SHARDED, 1)); /* without the last layer's gradients */
    ek_module_set_requires_grad(layer, true);
    bool before = ek_set_grad_enabled(false);
    LOOP_CHECK(same_loss(pair, SHARDED, 3, 0));
    ek_set_grad_enabled(before);
    LOOP_CHECK(!same_loss(pair, SHARDED, 3, 0));
    RANKS_EXPECT(ek_error_status(), EK_E_STATE, "parameter \"4.weight\" was put into the module");
    return NULL;
}

/* A norm without parameters may come later, and has statistics of all ranks' samples. */
static const char *norms_join_ranks(same_pair *pair)
{
    ek_module *norm = ek_sync_batch_norm(IN, .affine = false);
    RANKS_OK(ek_module_to_dtype(norm, pair->setting.dtype));
    RANKS_OK(ek_module_set(pair->nets[SHARDED], "1", norm));
    RANKS_OK(same_step(pair, SHARDED, 0));
    ek_tensor *mean = ek_module_tensor(norm, "running_mean"), *first = ek_clone(mean);
    LOOP_CHECK(element(mean, 0) != 0);
    RANKS_OK(ek_dist_broadcast(first, 0, .group = pair->group));
    LOOP_CHECK(same_bits(first, mean));
    return NULL;
}

TEST(norms_that_come_later_join_the_ranks)
{
    same_check(&(same_setting){.ranks = 2, .net = TIED, .dtype = EK_F64}, 1, norms_join_ranks);
}

TEST_LOOP(changes_are_refused_over_ranks, 0, 2)
{
    same_check(&(same_setting){.ranks = 2,
                               .net = TIED,
                               .policy = _i ? EK_SHARD_PARAMETERS : EK_SHARD_OPTIMIZER},
               (uint64_t)_i, is_refused_over_ranks);
}

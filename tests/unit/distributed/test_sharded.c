/* Optimizers that are sharded over devices, over ranks, and over both: numbers are those of whole
 * optimizers, to the bit, in whatever way gradients come. */
#include "nn/module_table.h"
#include "sharded.h"

COST(15)

/* Every other pair of seeds has gradients that travel as messages, instead of shared memory. */
static void check(uint64_t seed, same_setting setting)
{
    setenv("EVENKEEL_DIST_SHARED_MEMORY", seed / 2 % 2 ? "0" : "1", 1);
    same_check(&setting, seed, same_trains);
}

static int step_count(void)
{
    return test_is_short() ? 3 : 6;
}

/* ---- devices of one process ---- */

static const int64_t batches[] = {8, 10, 3, 1};

/* Over 2, 3 and 4 devices. */
TEST_LOOP(training_over_devices, 0, 12)
{
    for (int k = 0; k < 4; k++)
        check(0, (same_setting){.devices = 2 + _i / 4,
                                .balanced = k % 2,
                                .net = (k + _i) / 2 % 2 ? TERMS : PICTURES,
                                .dtype = (k + _i / 2) % 2 ? EK_F64 : EK_F32,
                                .algorithm = (k / 2 + _i) % 2 ? ADAM : MOMENTUM,
                                .batch = batches[_i % 4],
                                .steps = step_count()});
}

/* Parameters lie in one shard or in several, on 1 to 4 devices. */
TEST_LOOP(every_algorithm_over_devices, 0, ALGORITHMS)
{
    for (int devices = 1; devices <= 4; devices++)
        for (int f64 = 0; f64 < 2; f64++)
            check(0, (same_setting){.devices = devices,
                                    .balanced = f64,
                                    .dtype = f64 ? EK_F64 : EK_F32,
                                    .algorithm = _i,
                                    .groups = true,
                                    .batch = 5,
                                    .how = EACH_ITSELF,
                                    .steps = 6});
}

/* Several buckets and owners; the workers share the work of a step. */
TEST_LOOP(large_parameters_over_devices, 0, test_is_short() ? 1 : 2)
{
    check(0, (same_setting){.devices = 2 + 2 * _i,
                            .balanced = true,
                            .inputs = 400,
                            .hidden = 2000,
                            .algorithm = ADAM,
                            .batch = 5,
                            .steps = 2});
}

/* A device may own a range and have no samples. */
TEST_LOOP(idle_devices_own_their_range, 0, 5)
{
    static const char *const plans[] = {"0,4,4", "4,0,4", "0,8,0", "8,0,0", "0,0,8; 2: 3,5,0"};
    check(0, (same_setting){.devices = 3,
                            .balanced = _i % 2 == 0,
                            .net = PICTURES,
                            .algorithm = ADAM,
                            .batch = 8,
                            .plan = plans[_i],
                            .steps = 6});
}

TEST_LOOP(gradients_in_some_way_over_devices, 0, 4 * ON_DEVICES)
{
    same_setting s = {.devices = 2 + _i % 3,
                      .balanced = _i % 2,
                      .net = _i % 4 < 2 ? PICTURES : TERMS,
                      .algorithm = _i % 4 == 1 ? MOMENTUM : ADAM,
                      .batch = 7,
                      .how = (same_coming)(_i / 4),
                      .steps = 6};
    if (s.how == THAWED)
        s.net = TERMS;
    if (s.how != ANYWHERE)
        check(0, s);
}

TEST_LOOP(gradient_penalties_over_devices, 0, 4)
{
    check(0, (same_setting){.devices = 3,
                            .balanced = _i % 2,
                            .net = CRITIC,
                            .dtype = _i / 2 ? EK_F64 : EK_F32,
                            .algorithm = ADAM,
                            .batch = 7,
                            .steps = 4});
}

TEST_LOOP(tied_weights_over_devices, 0, 12)
{
    static const same_coming ways[] = {ONCE, TWICE, HISTORY, KEPT, EACH_ITSELF, FROZEN};
    check(0, (same_setting){.devices = 1 + _i % 4,
                            .balanced = _i % 2,
                            .net = TIED,
                            .dtype = _i / 2 % 2 ? EK_F64 : EK_F32,
                            .algorithm = _i % 3 ? ADAM : MOMENTUM,
                            .batch = 7,
                            .how = ways[_i / 2],
                            .steps = 6});
}

/* ---- ranks ---- */

TEST_LOOP(tied_weights_over_ranks, 0, 12)
{
    check((uint64_t)_i,
          (same_setting){.ranks = 2 + _i % 2,
                         .net = TIED,
                         .policy = _i % 4 < 2 ? EK_SHARD_OPTIMIZER : EK_SHARD_PARAMETERS,
                         .dtype = _i % 3 ? EK_F64 : EK_F32,
                         .algorithm = ADAM,
                         .devices = _i / 4,
                         .cap = _i % 2 ? 0.0005 : 25,
                         .how = _i == 5 ? EMPTY : ONCE});
}

TEST_LOOP(every_algorithm_over_ranks, 0, 2 * ALGORITHMS)
{
    check((uint64_t)_i, (same_setting){.ranks = 2,
                                       .dtype = _i % 2 ? EK_F32 : EK_F64,
                                       .algorithm = _i / 2,
                                       .groups = _i % 3 == 0,
                                       .cap = _i % 2 ? 0.001 : 0});
}

/* Ranks times devices; small buckets are cut in many places, and the large one in few. */
TEST_LOOP(ranks_and_devices, 0, 12)
{
    check((uint64_t)_i, (same_setting){.ranks = 2 + _i % 2,
                                       .dtype = _i % 4 < 2 ? EK_F32 : EK_F64,
                                       .algorithm = ADAM,
                                       .devices = _i / 4,
                                       .groups = _i % 3 == 0,
                                       .cap = _i % 2 ? 0.0005 : 25});
}

TEST_LOOP(modules_on_several_devices, 0, 4)
{
    check((uint64_t)_i, (same_setting){.ranks = 2 + _i % 2,
                                       .dtype = _i % 2 ? EK_F32 : EK_F64,
                                       .algorithm = _i % 2 ? ADAM : MOMENTUM,
                                       .spans = true,
                                       .cap = _i / 2 ? 0.001 : 25,
                                       .how = _i == 3 ? TWICE : UNUSED});
}

TEST_LOOP(gradients_in_some_way_over_ranks, 0, 3 * COMINGS)
{
    same_coming how = (same_coming)(_i / 3);
    bool f32 = _i % 3 > 0, two = _i % 3 == 2;
    if (how < ANYWHERE || how > ON_DEVICES)
        check((uint64_t)_i, (same_setting){.ranks = two ? 2 : 2 + _i % 2,
                                           .dtype = f32 ? EK_F32 : EK_F64,
                                           .algorithm = two   ? ADAM
                                                        : f32 ? ADAMW
                                                              : MOMENTUM,
                                           .devices = two           ? 2
                                                      : _i % 4 == 3 ? 2
                                                                    : 0,
                                           .cap = _i % 3 ? 0.001 : 0,
                                           .how = how,
                                           .steps = 4});
}

TEST_LOOP(narrow_gradients, 0, 4)
{
    check((uint64_t)_i, (same_setting){.ranks = 2 + _i % 2,
                                       .algorithm = ADAM,
                                       .devices = _i / 2 * 2,
                                       .narrow = true,
                                       .cap = 0.001});
}

/* ---- both ---- */

/* What is not finite on one rank's part is so on all. */
static const char *clip_infinity(same_pair *pair)
{
    ek_tensor *p = same_parameters(pair, SHARDED).tensors[0];
    bool first = !pair->group || pair->group->rank == 0;
    RANKS_OK(
        ek_tensor_set_grad(p, ek_full(first ? INFINITY : 0, ek_tensor_shape(p),
                                      .dtype = ek_tensor_dtype(p), .device = ek_tensor_device(p))));
    RANKS_EXPECT(ek_clip_grad_norm(pair->optimizers[SHARDED], 1, .error_if_nonfinite = true),
                 EK_E_INVALID, "the norm of the gradients is inf");
    return NULL;
}

static const char *clips(same_pair *pair)
{
    double tolerance = pair->setting.dtype == EK_F64 ? 1e-14 : 1e-6;
    double norms[WAYS], largest[WAYS], again;
    for (int way = 0; way < WAYS; way++) {
        ek_optimizer *optimizer = pair->optimizers[way];
        RANKS_OK(same_backward(pair, way, 5));
        RANKS_OK(
            ek_clip_grad_norm(optimizer, INFINITY, .norm = &largest[way], .norm_type = INFINITY));
        if (way == SHARDED)
            LOOP_PASS(same_compare(pair, "before clipping"));
    }
    for (int way = 0; way < WAYS; way++) {
        RANKS_OK(ek_clip_grad_norm(pair->optimizers[way], 0.1, .norm = &norms[way]));
        RANKS_OK(ek_clip_grad_norm(pair->optimizers[way], 0.2, .norm = &again));
        LOOP_CHECK(fabs(again - 0.1) < 1e-5); /* below the limit nothing is scaled */
    }
    LOOP_CHECK(largest[WHOLE] > 0 && largest[WHOLE] < norms[WHOLE] && norms[WHOLE] > 0.1);
    LOOP_CHECK(fabs(largest[SHARDED] - largest[WHOLE]) <= largest[WHOLE] * tolerance);
    LOOP_CHECK(fabs(norms[SHARDED] - norms[WHOLE]) <= norms[WHOLE] * tolerance);
    if (pair->group) { /* one number everywhere */
        ek_tensor *all = ek_scalar(norms[SHARDED], EK_F64, ek_cpu());
        RANKS_OK(ek_dist_broadcast(all, 0, .group = pair->group));
        LOOP_CHECK(element(all, 0) == norms[SHARDED]);
    }
    tensor_list whole = same_parameters(pair, WHOLE), sharded = same_parameters(pair, SHARDED);
    for (int i = 0; i < whole.count; i++) {
        ek_tensor *a = ek_tensor_grad(whole.tensors[i]), *b = ek_gather_grad(sharded.tensors[i]);
        LOOP_CHECK(!a == !b && !(b && !pair->group && ek_tensor_grad(sharded.tensors[i])));
        for (int64_t k = 0; a && k < ek_count(a); k++)
            LOOP_CHECK(fabs(element(a, k) - element(b, k)) <= fabs(element(a, k)) * tolerance);
    }
    return clip_infinity(pair);
}

TEST_LOOP(the_norm_is_that_of_all_owners, 0, 12)
{
    same_setting s = anyone(_i, (same_setting){.batch = _i / 6 ? 1 : 6});
    if (s.ranks)
        s.devices = 0;
    same_check(&s, (uint64_t)_i, clips);
}

static int train_in_parts(same_pair *pair, int way, int step)
{
    const same_setting *s = &pair->setting;
    ek_dtype dtype = s->dtype;
    int64_t rows = pair->group ? 2 + 3 * pair->group->rank : 7;
    ek_module *criterion = ek_mse_loss();
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    if (pair->group)
        criterion = ek_distributed_criterion(criterion, .process_group = pair->group);
    else if (s->balanced)
        criterion = ek_data_parallel_criterion(criterion, .device_ids = same_devices(pair));
    for (int once = 0; once < 1 + (step == 2) && rc >= 0; once++) /* earlier gradients are kept */
        rc = ek_train_step(&pair->losses[way], .model = pair->models[way], .criterion = criterion,
                           .optimizer = pair->optimizers[way],
                           .input = EK_VALUE(same_rows(rows, IN, dtype, 40 * step + once)),
                           .target = EK_VALUE(same_rows(rows, OUT, dtype, 40 * step + once)),
                           .micro_batches = 1 + step % 3, .accumulate_only = step == 2);
    if (step == 2 && rc >= 0)
        rc = ek_step(pair->optimizers[way]);
    ek_module_free(criterion);
    ek_scope_end(&scope);
    return rc;
}

static const char *steps_in_parts(same_pair *pair)
{
    for (int step = 0; step < 4; step++) {
        for (int way = 0; way < WAYS; way++)
            RANKS_OK(train_in_parts(pair, way, step));
        LOOP_PASS(same_compare(pair, "after ek_train_step"));
    }
    return NULL;
}

TEST_LOOP(training_steps, 0, 12)
{
    same_setting s = anyone(_i, (same_setting){.batch = 7});
    same_check(&s, (uint64_t)_i, steps_in_parts);
}

/* Parameters that are written between steps. */
static const char *writes(same_pair *pair)
{
    for (int step = 0; step < 3; step++) {
        for (int way = 0; way < WAYS; way++) {
            RANKS_OK(same_step(pair, way, step));
            ek_scope scope = ek_scope_begin();
            tensor_list list = same_parameters(pair, way);
            bool enabled = ek_set_grad_enabled(false);
            for (int i = step % 2; i < list.count; i++)
                LOOP_CHECK(ek_mul_scalar_(list.tensors[i], step == 1 ? -2 : 0.75));
            ek_set_grad_enabled(enabled);
            ek_scope_end(&scope);
        }
        LOOP_PASS(same_compare(pair, "after writing"));
    }
    return same_steps(pair, 3);
}

TEST_LOOP(what_is_written_between_steps_counts, 0, 12)
{
    same_setting s = anyone(_i, (same_setting){.net = _i % 3 ? TERMS : PICTURES});
    same_check(&s, (uint64_t)_i, writes);
}

/* Another optimizer has one parameter, and leaves the rest unchanged: also their versions. */
static int step_of_one(same_pair *pair, int way, ek_optimizer *other, int step)
{
    tensor_list list = same_parameters(pair, way);
    uint64_t versions[MOST];
    ek_scope scope = ek_scope_begin();
    int rc = same_come(pair, way, step), wrong = 0;
    for (int i = 0; i < list.count; i++)
        versions[i] = ek_tensor_version(list.tensors[i]);
    if (rc >= 0)
        rc = ek_step(other);
    for (int i = 0; i < list.count; i++)
        wrong += (versions[i] == ek_tensor_version(list.tensors[i])) != (i != 2);
    if (step % 2 && rc >= 0)
        rc = ek_step(pair->optimizers[way]);
    ek_scope_end(&scope);
    return rc >= 0 && wrong ? ek_error(EK_E_STATE, "%d versions are wrong", wrong) : rc;
}

static const char *steps_by_turns(same_pair *pair)
{
    ek_optimizer *others[WAYS];
    for (int way = 0; way < WAYS; way++) {
        ek_tensor *one = same_parameters(pair, way).tensors[2];
        LOOP_CHECK(others[way] = ek_adam(NULL, .lr = 0.1));
        RANKS_OK(ek_optimizer_add_group(others[way], &one, 1));
    }
    for (int step = 0; step < 6; step++) {
        for (int way = 0; way < WAYS; way++)
            RANKS_OK(step_of_one(pair, way, others[way], step));
        LOOP_PASS(same_compare(pair, "after two optimizers' steps"));
    }
    for (int way = 0; way < WAYS; way++)
        ek_optimizer_free(others[way]);
    return NULL;
}

TEST_LOOP(optimizers_can_share_a_module, 0, 6)
{
    same_setting s = anyone(_i, (same_setting){.net = TERMS});
    same_check(&s, (uint64_t)_i, steps_by_turns);
}

/* One optimizer has the parameters of two models. */
static int step_two_models(same_pair *pair, same_pair *second, int way, int step)
{
    ek_optimizer *optimizer = pair->optimizers[way];
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(optimizer);
    int rc = step == 1 ? 0 : same_backward(pair, way, 10 * step); /* no gradients of the first */
    if (rc >= 0)
        rc = same_backward(second, way, 10 * step + 1);
    if (rc >= 0)
        rc = ek_clip_grad_value(optimizer, 0.1);
    if (rc >= 0)
        rc = ek_step(optimizer);
    ek_scope_end(&scope);
    return rc;
}

static const char *steps_two_models(same_pair *pair)
{
    same_pair second;
    LOOP_PASS(same_make(&second, pair->group, &pair->setting));
    for (int way = 0; way < WAYS; way++) {
        tensor_list list = same_parameters(&second, way);
        RANKS_OK(add_group_with(pair->optimizers[way], list.tensors, list.count, "lr", 0.03));
        ek_optimizer_free(second.optimizers[way]);
        second.optimizers[way] = pair->optimizers[way];
    }
    for (int step = 0; step < 3; step++) {
        for (int way = 0; way < WAYS; way++)
            RANKS_OK(step_two_models(pair, &second, way, step));
        LOOP_PASS(same_compare(pair, "of two"));
        LOOP_PASS(same_compare(&second, "of two"));
    }
    double norm = 0;
    RANKS_OK(ek_clip_grad_norm(pair->optimizers[SHARDED], 1, .norm = &norm));
    LOOP_CHECK(norm > 0);
    for (int way = 0; way < WAYS && pair->group; way++) {
        ek_distributed_stats stats;
        RANKS_OK(ek_distributed_get_stats(pair->models[way], &stats));
        /* What is frozen is not sent; padding may be. */
        uint64_t elements = (uint64_t)(ek_module_numel(pair->models[way]) - OUT);
        uint64_t least = way == SHARDED ? 2 * ek_dtype_size(pair->setting.dtype) * elements : 0;
        LOOP_CHECK(stats.shared_nbytes >= least && stats.shared_nbytes <= least + least / 20);
    }
    second.optimizers[WHOLE] = second.optimizers[SHARDED] = NULL;
    same_free(&second);
    return NULL;
}

TEST_LOOP(one_optimizer_of_two_models, 0, 6)
{
    same_setting s = anyone(_i, (same_setting){.net = TERMS});
    s.dtype = EK_F64;
    same_check(&s, (uint64_t)_i, steps_two_models);
}

/* ---- other uses of the module ---- */

/* The module beside its replicas: its gradients are whole, and added before the step. That changes
 * the order of additions, so that numbers are close and not equal to the bit. */
static const char *uses_the_module(same_pair *pair)
{
    for (int step = 0; step < 5; step++) {
        for (int way = 0; way < WAYS; way++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *x = ek_to_device(same_rows(6, IN, EK_F64, step), test_device(0));
            ek_tensor *y = ek_apply(ek_data_parallel_module(pair->models[way]), x);
            RANKS_OK(ek_backward(ek_mul_scalar(ek_sum(ek_square(y)), 1e-2)));
            if (step % 2)
                RANKS_OK(same_backward(pair, way, step));
            RANKS_OK(ek_step(pair->optimizers[way]));
            ek_zero_grad(pair->optimizers[way]);
            ek_scope_end(&scope);
        }
        LOOP_CHECK(fabs(pair->losses[WHOLE] - pair->losses[SHARDED]) <= 1e-12);
    }
    return NULL;
}

TEST(the_module_can_be_used_itself)
{
    same_check(&(same_setting){.devices = 4, .balanced = true, .dtype = EK_F64, .batch = 6}, 0,
               uses_the_module);
}

static const char *evaluates(same_pair *pair)
{
    LOOP_PASS(same_trains(pair));
    bool before = ek_set_grad_enabled(false);
    for (int way = 0; way < WAYS; way++) {
        ek_module_train(pair->models[way], false);
        RANKS_OK(ek_item(same_loss(pair, way, 7, 3), &pair->losses[way]));
    }
    ek_set_grad_enabled(before);
    return same_compare(pair, "in evaluation");
}

TEST_LOOP(evaluation_is_the_same, 0, 2)
{
    same_check(&(same_setting){.devices = 3, .balanced = _i, .net = PICTURES, .batch = 7}, 0,
               evaluates);
}

/* Inside another wrapper's replicas the call of a wrapper is plain: gradients are whole until the
 * step. */
SAME_TEST(wrappers_can_be_nested, .devices = 3, .algorithm = ADAM, .batch = 7)
{
    for (int way = 0; way < WAYS; way++) {
        ek_module *outer = ek_data_parallel(ek_module_retain(pair->models[way]),
                                            .device_ids = ek_devices(test_kind(), 2));
        LOOP_CHECK(outer);
        for (int step = 0; step < 4; step++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *y = ek_apply(outer, same_rows(7, IN, EK_F32, step));
            ek_zero_grad(pair->optimizers[way]);
            RANKS_OK(ek_backward(ek_mul_scalar(ek_sum(ek_square(y)), 1e-2)));
            RANKS_OK(ek_step(pair->optimizers[way]));
            RANKS_OK(same_step(pair, way, step));
            ek_scope_end(&scope);
        }
        ek_module_free(outer);
    }
    return same_compare(pair, "inside of another wrapper");
}

/* What reaches only the shards is no gradient of the parameter. */
SAME_TEST(single_gradients_are_asked_for_otherwise, .devices = 3, .balanced = true)
{
    ek_tensor *loss = same_loss(pair, SHARDED, 6, 0), *gradient = NULL;
    ek_tensor *weight = same_parameters(pair, SHARDED).tensors[0];
    RANKS_EXPECT(ek_grad(.outputs = &loss, .output_count = 1, .inputs = &weight, .input_count = 1,
                         .gradients = &gradient),
                 EK_E_AUTOGRAD, "is sharded over devices, and gradients go to its shards");
    LOOP_CHECK(!gradient);
    return NULL;
}

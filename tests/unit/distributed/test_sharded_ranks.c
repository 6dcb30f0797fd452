/* ek_distributed_data_parallel with EK_SHARD_OPTIMIZER: numbers are those of whole optimizers, to
 * the bit, in whatever way gradients come. */
#include <stdlib.h>

#include "kit/optimizers.h"
#include "sharded_ranks.h"

static void six_devices(void)
{
    assert_ok(test_devices_configure("6"));
}

static void no_devices(void)
{
    assert_ok(ek_shutdown());
}

FIXTURE(six_devices, no_devices)

/* ---- how gradients come in one step ---- */

typedef enum coming {
    ONCE,
    AFTER_NO_SYNC,  /* a backward of each rank alone, then one of all */
    TWICE,          /* two of all, without ek_zero_grad between */
    NO_SYNC_AMIDST, /* one of all, one of each rank alone, one of all */
    UNEVEN,         /* ranks have 1, 2, 3 samples */
    EMPTY,          /* rank 1 has none */
    UNUSED,         /* a term is not used, in every other step */
    HALF_UNUSED,    /* ... on the last rank alone */
    HISTORY,        /* with create_graph */
    GIVEN,          /* set by hand, in place of what came */
    KEPT,           /* those of the steps before are still there */
    CUT,            /* ek_clip_grad_value */
    NOWHERE,        /* in every other step there are none */
    COMINGS
} coming;

static int come(const model_pair *pair, int way, coming how, int step)
{
    int rank = pair->group->rank;
    int64_t rows = how == UNEVEN ? rank + 1 : how == EMPTY && rank == 1 ? 0 : 3, at = 7 * step;
    two_ways *net = pair->nets[way];
    net->alone =
        (how == UNUSED && step % 2) || (how == HALF_UNUSED && rank == pair->group->size - 1);
    if (how != KEPT)
        ek_zero_grad(pair->optimizers[way]);
    if (how == NOWHERE && step % 2)
        return 0;
    int rc = 0;
    if (how == TWICE || how == NO_SYNC_AMIDST)
        rc = pair_backward(pair, way, rows, at + 1000);
    if (how == AFTER_NO_SYNC || how == NO_SYNC_AMIDST) {
        ek_no_sync no_sync = ek_no_sync_begin(pair->models[way]);
        for (int i = 0; i < (how == AFTER_NO_SYNC ? 2 : 1) && rc >= 0; i++)
            rc = pair_backward(pair, way, rows, at + 2000 + 10 * i);
        ek_no_sync_end(&no_sync);
    }
    if (rc >= 0)
        rc = how == HISTORY
                 ? ek_backward(loss_of(pair, way, rows, at + 100 * rank), .create_graph = true)
                 : pair_backward(pair, way, rows, at);
    tensor_list list = parameters_of(pair->models[way]);
    for (int i = 0; i < list.count && how == GIVEN && rc >= 0; i++)
        rc = ek_tensor_set_grad(list.tensors[i], ek_mul_scalar(ek_detach(list.tensors[i]), 0.5));
    if (how == CUT && rc >= 0)
        rc = ek_clip_grad_value(pair->optimizers[way], 0.05);
    return rc;
}

typedef struct training {
    pair_setting setting;
    coming how;
    int steps;
} training;

static const char *trains(ek_process_group *world, void *user)
{
    const training *t = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, &t->setting));
    for (int step = 0; step < t->steps; step++) {
        for (int way = 0; way < WAYS; way++) {
            ek_scope scope = ek_scope_begin();
            RANKS_OK(come(&pair, way, t->how, step));
            RANKS_OK(ek_step(pair.optimizers[way]));
            ek_scope_end(&scope);
        }
        LOOP_PASS(pair_compare(&pair, "after a step"));
    }
    pair_free(&pair);
    return NULL;
}

/* Every other pair of seeds has gradients that travel as messages, instead of shared memory. */
static void check(int ranks, uint64_t seed, training t)
{
    setenv("EVENKEEL_DIST_SHARED_MEMORY", seed / 2 % 2 ? "0" : "1", 1);
    t.steps = t.steps ? t.steps : 3;
    ranks_check(ranks, seed, trains, &t);
}

TEST_LOOP(every_algorithm, 0, 2 * ALGORITHMS)
{
    check(2, (uint64_t)_i,
          (training){.setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                                 .algorithm = _i / 2,
                                 .groups = _i % 3 == 0,
                                 .cap = _i % 2 ? 0.001 : 0}});
}

/* Ranks times devices; small buckets are cut in many places, and the large one in few. */
TEST_LOOP(ranks_and_devices, 0, 12)
{
    check(2 + _i % 2, (uint64_t)_i,
          (training){.setting = {.dtype = _i % 4 < 2 ? EK_F32 : EK_F64,
                                 .algorithm = ADAM,
                                 .devices = _i / 4,
                                 .groups = _i % 3 == 0,
                                 .cap = _i % 2 ? 0.0005 : 25}});
}

TEST_LOOP(modules_on_several_devices, 0, 4)
{
    check(2 + _i % 2, (uint64_t)_i,
          (training){.setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                                 .algorithm = _i % 2 ? ADAM : MOMENTUM,
                                 .spans = true,
                                 .cap = _i / 2 ? 0.001 : 25},
                     .how = _i == 3 ? TWICE : UNUSED});
}

TEST_LOOP(gradients_that_come_in_some_way, 0, 2 * COMINGS)
{
    check(2 + _i % 2, (uint64_t)_i,
          (training){.setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                                 .algorithm = _i % 2 ? ADAMW : MOMENTUM,
                                 .devices = _i % 4 == 3 ? 2 : 0,
                                 .cap = _i % 3 ? 0.001 : 0},
                     .how = (coming)(_i / 2),
                     .steps = 4});
}

TEST_LOOP(gradients_in_some_way_over_two_devices, 0, COMINGS)
{
    check(2, (uint64_t)_i,
          (training){.setting = {.dtype = EK_F32, .algorithm = ADAM, .devices = 2, .cap = 0.001},
                     .how = (coming)_i,
                     .steps = 4});
}

TEST_LOOP(narrow_gradients, 0, 4)
{
    check(2 + _i % 2, (uint64_t)_i,
          (training){.setting = {.dtype = EK_F32,
                                 .algorithm = ADAM,
                                 .devices = _i / 2 * 2,
                                 .narrow = true,
                                 .cap = 0.001}});
}

/* ---- the norm of all gradients ---- */

static const char *clips(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    double norms[WAYS], largest[WAYS];
    LOOP_PASS(pair_make(&pair, world, setting));
    for (int way = 0; way < WAYS; way++) {
        RANKS_OK(pair_backward(&pair, way, 3, 5));
        RANKS_OK(ek_clip_grad_norm(pair.optimizers[way], INFINITY, .norm = &largest[way],
                                   .norm_type = INFINITY));
        RANKS_OK(ek_clip_grad_norm(pair.optimizers[way], 0.1, .norm = &norms[way]));
    }
    LOOP_CHECK(largest[WHOLE] > 0 && largest[WHOLE] < norms[WHOLE]);
    LOOP_CHECK(fabs(largest[SHARDED] - largest[WHOLE]) <=
               largest[WHOLE] * (setting->dtype == EK_F64 ? 1e-14 : 1e-6));
    LOOP_CHECK(fabs(norms[SHARDED] - norms[WHOLE]) <=
               norms[WHOLE] * (setting->dtype == EK_F64 ? 1e-14 : 1e-6));
    ek_tensor *all = ek_scalar(norms[SHARDED], EK_F64, ek_cpu()); /* one number everywhere */
    RANKS_OK(ek_dist_broadcast(all, 0, .group = world));
    LOOP_CHECK(element(all, 0) == norms[SHARDED]);
    tensor_list whole = parameters_of(pair.models[WHOLE]);
    tensor_list sharded = parameters_of(pair.models[SHARDED]);
    for (int i = 0; i < whole.count; i++) {
        ek_tensor *a = ek_tensor_grad(whole.tensors[i]), *b = ek_gather_grad(sharded.tensors[i]);
        LOOP_CHECK(!a == !b);
        for (int64_t k = 0; a && k < ek_count(a); k++)
            LOOP_CHECK(fabs(element(a, k) - element(b, k)) <=
                       fabs(element(a, k)) * (setting->dtype == EK_F64 ? 1e-14 : 1e-6));
    }
    /* What is not finite on one rank's part is so on all. */
    if (world->rank == 0)
        ek_tensor_set_grad(sharded.tensors[0],
                           ek_full(INFINITY, ek_tensor_shape(sharded.tensors[0]),
                                   .dtype = setting->dtype, .device = ek_cpu()));
    else
        RANKS_OK(ek_tensor_set_grad(sharded.tensors[0],
                                    ek_zeros(ek_tensor_shape(sharded.tensors[0]),
                                             .dtype = setting->dtype, .device = ek_cpu())));
    RANKS_EXPECT(ek_clip_grad_norm(pair.optimizers[SHARDED], 1, .error_if_nonfinite = true),
                 EK_E_INVALID, "the norm of the gradients is inf");
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(the_norm_is_that_of_all_ranks, 0, 4)
{
    pair_setting setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                            .algorithm = MOMENTUM,
                            .cap = _i / 2 ? 0.001 : 25};
    ranks_check(2 + _i % 2, (uint64_t)_i, clips, &setting);
}

/* ---- whole training steps ---- */

static const char *steps_in_parts(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, setting));
    int64_t rows = 2 + 3 * world->rank;
    for (int step = 0; step < 4; step++) {
        double losses[WAYS];
        for (int way = 0; way < WAYS; way++) {
            ek_scope scope = ek_scope_begin();
            ek_module *criterion = ek_distributed_criterion(ek_mse_loss(), .process_group = world);
            for (int once = 0; once < 1 + (step == 2); once++) /* gradients from before are kept */
                RANKS_OK(ek_train_step(
                    &losses[way], .model = pair.models[way], .criterion = criterion,
                    .optimizer = pair.optimizers[way],
                    .input = EK_VALUE(rows_of(rows, IN, setting->dtype, 40 * step + once)),
                    .target = EK_VALUE(rows_of(rows, OUT, setting->dtype, 40 * step + once)),
                    .micro_batches = 1 + step % 3, .accumulate_only = step == 2));
            if (step == 2)
                RANKS_OK(ek_step(pair.optimizers[way]));
            ek_module_free(criterion);
            ek_scope_end(&scope);
        }
        LOOP_CHECK(losses[WHOLE] == losses[SHARDED]);
        LOOP_PASS(pair_compare(&pair, "after ek_train_step"));
    }
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(training_steps, 0, 6)
{
    pair_setting setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                            .algorithm = _i % 2 ? ADAM : MOMENTUM,
                            .devices = _i / 3 * 2,
                            .cap = 0.001};
    ranks_check(2 + _i % 2, (uint64_t)_i, steps_in_parts, &setting);
}

/* ---- parameters that are written between steps, and optimizers of a part ---- */

static const char *writes(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, setting));
    for (int step = 0; step < 3; step++) {
        for (int way = 0; way < WAYS; way++) {
            ek_scope scope = ek_scope_begin();
            RANKS_OK(come(&pair, way, ONCE, step));
            RANKS_OK(ek_step(pair.optimizers[way]));
            tensor_list list = parameters_of(pair.models[way]);
            bool enabled = ek_set_grad_enabled(false);
            for (int i = 0; i < list.count; i++)
                LOOP_CHECK(ek_mul_scalar_(list.tensors[i], 0.75));
            ek_set_grad_enabled(enabled);
            ek_scope_end(&scope);
        }
        LOOP_PASS(pair_compare(&pair, "after writing"));
    }
    /* Another optimizer has one parameter, and leaves the rest as it is: also its versions. */
    for (int way = 0; way < WAYS; way++) {
        tensor_list list = parameters_of(pair.models[way]);
        uint64_t versions[MOST];
        RANKS_OK(come(&pair, way, ONCE, 9));
        ek_optimizer *other = ek_adam(NULL, .lr = 0.1);
        LOOP_CHECK(other);
        RANKS_OK(ek_optimizer_add_group(other, &list.tensors[2], 1));
        for (int i = 0; i < list.count; i++)
            versions[i] = ek_tensor_version(list.tensors[i]);
        RANKS_OK(ek_step(other));
        for (int i = 0; i < list.count; i++)
            LOOP_CHECK((versions[i] == ek_tensor_version(list.tensors[i])) == (i != 2));
        ek_optimizer_free(other);
    }
    LOOP_PASS(pair_compare(&pair, "after another optimizer's step"));
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(what_is_written_between_steps_counts, 0, 3)
{
    pair_setting setting = {.dtype = EK_F32,
                            .algorithm = ADAM,
                            .devices = _i,
                            .cap = _i == 1 ? 25 : 0.001};
    ranks_check(2, (uint64_t)_i, writes, &setting);
}

/* ---- several models, and what is sent ---- */

/* One optimizer has the parameters of two models. */
static const char *steps_two_models(ek_process_group *world, void *user)
{
    model_pair pairs[2];
    for (int k = 0; k < 2; k++)
        LOOP_PASS(pair_make(&pairs[k], world, user));
    for (int way = 0; way < WAYS; way++) {
        tensor_list list = parameters_of(pairs[1].models[way]);
        RANKS_OK(add_group_with(pairs[0].optimizers[way], list.tensors, list.count, "lr", 0.03));
        ek_optimizer_free(pairs[1].optimizers[way]);
        pairs[1].optimizers[way] = pairs[0].optimizers[way];
    }
    for (int step = 0; step < 3; step++) {
        for (int way = 0; way < WAYS; way++) {
            ek_scope scope = ek_scope_begin();
            ek_zero_grad(pairs[0].optimizers[way]);
            for (int k = step == 1; k < 2; k++) /* the first has no gradients in the second step */
                RANKS_OK(pair_backward(&pairs[k], way, 3, 10 * step + k));
            RANKS_OK(ek_clip_grad_value(pairs[0].optimizers[way], 0.1));
            RANKS_OK(ek_step(pairs[0].optimizers[way]));
            ek_scope_end(&scope);
        }
        for (int k = 0; k < 2; k++)
            LOOP_PASS(pair_compare(&pairs[k], "of two"));
    }
    double norm = 0;
    RANKS_OK(ek_clip_grad_norm(pairs[0].optimizers[SHARDED], 1, .norm = &norm));
    LOOP_CHECK(norm > 0);
    for (int way = 0; way < WAYS; way++) {
        pairs[1].optimizers[way] = NULL;
        ek_distributed_stats stats;
        RANKS_OK(ek_distributed_get_stats(pairs[0].models[way], &stats));
        /* What is frozen is not sent; padding may be. */
        uint64_t elements = (uint64_t)(ek_module_numel(pairs[0].models[way]) - OUT);
        uint64_t least = way == SHARDED ? 2 * 8 * elements : 0;
        LOOP_CHECK(stats.shared_nbytes >= least && stats.shared_nbytes <= least + least / 20);
    }
    for (int k = 1; k >= 0; k--)
        pair_free(&pairs[k]);
    return NULL;
}

TEST_LOOP(one_optimizer_of_two_models, 0, 2)
{
    pair_setting setting = {.dtype = EK_F64,
                            .algorithm = ADAM,
                            .devices = 2 * _i,
                            .cap = _i ? 0.001 : 25};
    ranks_check(2 + _i % 2, (uint64_t)_i, steps_two_models, &setting);
}

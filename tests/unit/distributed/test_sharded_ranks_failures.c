/* Steps of sharded parameters that fail on a rank, and ranks whose steps differ: an error on all
 * of them, and the next step is that of ranks that never failed. */
#include "autograd/shards.h"
#include "core/error.h"
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

/* All gradients of a step, and their step. */
static int train(const model_pair *pair, int way, int step)
{
    ek_scope scope = ek_scope_begin();
    ek_zero_grad(pair->optimizers[way]);
    int rc = pair_backward(pair, way, 3, 7 * step);
    if (rc >= 0)
        rc = ek_step(pair->optimizers[way]);
    ek_scope_end(&scope);
    return rc;
}

static const char *train_both(const model_pair *pair, int step)
{
    RANKS_OK(train(pair, WHOLE, step));
    RANKS_OK(train(pair, SHARDED, step));
    return pair_compare(pair, "after a step");
}

enum { FAILURES = 6 };

/* ---- one rank has no memory for its state ---- */

static int limit(const model_pair *pair, bool none)
{
    ek_device device = devices_of(pair->group, pair->setting.devices).devices[0];
    ek_memory_stats stats;
    EK_TRY(ek_memory_trim(device));
    EK_TRY(ek_memory_get_stats(device, &stats));
    return ek_memory_set_capacity(device, none ? stats.in_use : 0);
}

static const char *lacks_memory(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    bool wrong = world->rank == 1;
    LOOP_PASS(pair_make(&pair, world, setting));
    for (int way = 0; way < WAYS; way++) /* the module is as it was: the first step makes state */
        RANKS_OK(pair_backward(&pair, way, 3, 5));
    tensor_list list = parameters_of(pair.models[SHARDED]);
    ek_tensor *before[MOST];
    for (int i = 0; i < list.count; i++)
        before[i] = ek_clone(ek_detach(list.tensors[i]));
    if (wrong)
        RANKS_OK(limit(&pair, true));
    /* The others may hear of two failures as one, but of none twice. Their first success is rank
     * 1's too. */
    int errors = 0;
    while (errors < FAILURES || !wrong) {
        int rc = ek_step(pair.optimizers[SHARDED]);
        if (rc >= 0 && !wrong && errors > 0)
            break;
        RANKS_EXPECT(rc, wrong ? EK_E_OUT_OF_MEMORY : EK_E_ABORTED,
                     wrong ? "out of memory" : "rank 1 on ");
        LOOP_CHECK(++errors <= FAILURES);
        for (int i = 0; i < list.count; i++) {
            LOOP_CHECK(same_bits(before[i], list.tensors[i]));
            LOOP_CHECK_EQ(ek_optimizer_steps(pair.optimizers[SHARDED], list.tensors[i]), 0);
        }
    }
    if (wrong) {
        RANKS_OK(limit(&pair, false));
        RANKS_OK(ek_step(pair.optimizers[SHARDED]));
    }
    RANKS_OK(ek_step(pair.optimizers[WHOLE])); /* the gradients are still there */
    LOOP_PASS(pair_compare(&pair, "after the failures"));
    LOOP_PASS(train_both(&pair, 1));
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(memory_that_one_rank_lacks, 0, 4)
{
    pair_setting setting = {.dtype = EK_F64,
                            .algorithm = _i % 2 ? ADAM : MOMENTUM,
                            .devices = 1 + _i / 2,
                            .cap = _i % 2 ? 0.001 : 25};
    ranks_check(2 + _i % 2, (uint64_t)_i, lacks_memory, &setting);
}

/* ---- one rank does not come to its step ---- */

typedef enum elsewhere {
    IN_FORWARD,
    IN_TRAIN_STEP, /* its criterion fails; the others are in backward, and then in the step */
    BEFORE_CLIP,   /* the others are in ek_clip_grad_norm */
    BEFORE_STEP,
    ELSEWHERE
} elsewhere;

static int raise_own(const ek_process_group *world)
{
    ek_error_record error = {.status = EK_E_USER, .message = "out of luck"};
    return ek_communication_raise(world->communication, &error);
}

static int train_step(const model_pair *pair, bool wrong)
{
    double loss;
    ek_module *criterion = ek_distributed_criterion(ek_mse_loss(), .process_group = pair->group);
    int rc = ek_train_step(&loss, .model = pair->models[SHARDED], .criterion = criterion,
                           .optimizer = pair->optimizers[SHARDED],
                           .input = EK_VALUE(rows_of(2, IN, EK_F32, 1)),
                           .target = EK_VALUE(rows_of(2, wrong ? OUT + 1 : OUT, EK_F32, 1)));
    ek_module_free(criterion);
    return rc;
}

static int go_until(const model_pair *pair, elsewhere where, bool wrong)
{
    if (where == IN_TRAIN_STEP)
        return train_step(pair, wrong);
    pair->nets[SHARDED]->fails = wrong && where == IN_FORWARD;
    int rc = pair_backward(pair, SHARDED, 3, 7);
    pair->nets[SHARDED]->fails = false;
    EK_TRY(rc);
    if (wrong)
        return raise_own(pair->group);
    return where == BEFORE_CLIP ? ek_clip_grad_norm(pair->optimizers[SHARDED], 1)
                                : ek_step(pair->optimizers[SHARDED]);
}

static const char *comes_not(ek_process_group *world, void *user)
{
    const pair_setting setting = {.dtype = EK_F32, .algorithm = ADAM, .cap = 0.001};
    model_pair pair;
    bool wrong = world->rank == 1;
    LOOP_PASS(pair_make(&pair, world, &setting));
    LOOP_PASS(train_both(&pair, 0));
    for (int round = 0; round < 2; round++) {
        ek_scope scope = ek_scope_begin();
        ek_zero_grad(pair.optimizers[SHARDED]);
        int rc = go_until(&pair, *(const elsewhere *)user, wrong);
        ek_scope_end(&scope);
        LOOP_CHECK(rc < 0);
        if (!wrong)
            RANKS_EXPECT(rc, EK_E_ABORTED, "rank 1 on ");
        ek_error_clear();
        ek_zero_grad(pair.optimizers[WHOLE]);
        ek_zero_grad(pair.optimizers[SHARDED]);
        LOOP_PASS(pair_compare(&pair, "after a failure"));
        LOOP_PASS(train_both(&pair, 1 + round));
    }
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(a_rank_that_does_not_come, 0, 2 * ELSEWHERE)
{
    elsewhere where = (elsewhere)(_i / 2);
    ranks_check(2 + _i % 2, (uint64_t)_i, comes_not, &where);
}

/* ---- a rank whose update fails, when all ranks are in theirs ---- */

static const char *breaks_off(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    bool wrong = world->rank == 1;
    LOOP_PASS(pair_make(&pair, world, setting));
    tensor_list list = parameters_of(pair.models[SHARDED]);
    ek_shards *shards = ek_leaf_shards(list.tensors[0]);
    RANKS_OK(shards->enter(shards));
    for (int i = 0; i < shards->leaf_count; i++)
        shards->stepped[i] = true;
    RANKS_OK(shards->refresh(shards));
    RANKS_OK(shards->agree(shards, 0));
    bool enabled = ek_set_grad_enabled(false);
    for (int k = 0; k < shards->count; k++) /* each rank writes its number */
        LOOP_CHECK(ek_fill_(shards->all[k].tensor, world->rank + 1));
    ek_set_grad_enabled(enabled);
    int rc = shards->publish(shards, wrong ? ek_error(EK_E_USER, "the kernel is broken") : 0);
    shards->leave(shards);
    RANKS_EXPECT(rc, wrong ? EK_E_USER : EK_E_ABORTED, "the kernel is broken");
    /* All ranks have what there is. */
    double sum = 0, least = 1e9, most = 0;
    for (int i = 0; i < list.count; i++) {
        ek_tensor *first =
            ek_contiguous(ek_to_device(ek_detach(list.tensors[i]), ek_cpu()), EK_CONTIGUOUS);
        ek_tensor *other = ek_clone(first);
        RANKS_OK(ek_dist_broadcast(other, 0, .group = world));
        LOOP_CHECK(same_bits(first, other));
        for (int64_t k = 0; ek_tensor_requires_grad(list.tensors[i]) && k < ek_count(first); k++) {
            double x = element(first, k);
            sum += x;
            least = fmin(least, x);
            most = fmax(most, x);
        }
    }
    LOOP_CHECK(least == 1 && most == world->size && sum > 0);
    RANKS_OK(train(&pair, SHARDED, 0)); /* and go on */
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(an_update_that_fails, 0, 3)
{
    pair_setting setting = {.dtype = EK_F32, .algorithm = ADAM, .devices = _i, .cap = 0.001};
    ranks_check(2 + _i % 2, (uint64_t)_i, breaks_off, &setting);
}

/* ---- ranks that differ ---- */

static const char *differ(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, setting));
    LOOP_PASS(train_both(&pair, 0));
    tensor_list list = parameters_of(pair.models[SHARDED]);
    bool wrong = world->rank == 1;
    RANKS_OK(pair_backward(&pair, SHARDED, 3, 1));
    if (wrong)
        RANKS_OK(ek_tensor_set_grad(list.tensors[1], NULL));
    RANKS_EXPECT(ek_step(pair.optimizers[SHARDED]), EK_E_STATE,
                 "rank 0 has gradients of 5, and rank 1 of 4; a step is of the same parameters");
    if (!wrong)
        RANKS_OK(ek_tensor_set_grad(list.tensors[0], NULL));
    RANKS_EXPECT(ek_step(pair.optimizers[SHARDED]), EK_E_STATE, "and rank 1 of 4 others");
    ek_zero_grad(pair.optimizers[WHOLE]);
    ek_zero_grad(pair.optimizers[SHARDED]);
    LOOP_PASS(pair_compare(&pair, "after differences"));
    /* A step on one rank alone meets another call of the others. */
    RANKS_OK(pair_backward(&pair, SHARDED, 3, 1));
    if (wrong) {
        RANKS_EXPECT(ek_step(pair.optimizers[SHARDED]), EK_E_STATE, "the optimizer's step");
    } else {
        ek_zero_grad(pair.optimizers[SHARDED]);
        RANKS_EXPECT(pair_backward(&pair, SHARDED, 3, 1), EK_E_STATE, "the optimizer's step");
    }
    LOOP_PASS(train_both(&pair, 2));
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(ranks_that_step_otherwise, 0, 3)
{
    pair_setting setting = {.dtype = EK_F32, .algorithm = ADAM, .cap = 0.001};
    ranks_check(2, (uint64_t)_i, differ, &setting);
}

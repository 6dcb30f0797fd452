/* Sharded state where something fails: memory, copies between devices, ranks that do not come to
 * their step or whose steps differ. There is an error on all ranks, and the next step is that of a
 * training that never failed. */
#include "core/device.h"
#include "core/error.h"
#include "core/thread.h"
#include "kit/remote.h"
#include "nn/module_table.h"
#include "sharded.h"

/* ---- memory ---- */

/* No more than `room` bytes beside those in use. */
static int limit(ek_device device, uint64_t room)
{
    ek_memory_stats stats;
    EK_TRY(ek_memory_trim(device));
    EK_TRY(ek_memory_get_stats(device, &stats));
    return ek_memory_set_capacity(device, stats.in_use + room);
}

SAME_LOOP(out_of_memory_is_survived, 0, 4, .devices = 4, .balanced = true, .net = PICTURES,
          .dtype = EK_F64, .algorithm = ADAM, .batch = 7, .variant = _i)
{
    LOOP_PASS(same_steps(pair, 0));
    for (int d = 0; d < 4; d++) {
        ek_memory_stats stats;
        RANKS_OK(ek_memory_get_stats(test_device(d), &stats));
        RANKS_OK(
            ek_memory_set_capacity(test_device(d),
                                   stats.peak + (uint64_t)pair->setting.variant * 20000 + 30000));
    }
    pair->setting.batch = 64;
    RANKS_EXPECT(same_step(pair, SHARDED, 1), EK_E_OUT_OF_MEMORY, "is out of memory");
    for (int d = 0; d < 4; d++)
        RANKS_OK(ek_memory_set_capacity(test_device(d), 0));
    pair->setting.batch = 7;
    /* Running statistics have seen some of the large batch: losses are compared, not they. */
    for (int step = 1; step < 5; step++) {
        RANKS_OK(same_step(pair, WHOLE, step));
        RANKS_OK(same_step(pair, SHARDED, step));
        LOOP_CHECK(pair->losses[WHOLE] == pair->losses[SHARDED]);
    }
    return NULL;
}

/* No memory for copies, slots: there is no wrapper, and the module is whole. */
static const char *cannot_be_made(same_pair *pair)
{
    ek_device device = test_device(pair->setting.variant % 3);
    ek_module *net = same_net_new(&pair->setting);
    ek_device_list devices = same_devices(pair);
    RANKS_OK(limit(device, pair->setting.variant < 3 ? 100000 : 400000));
    LOOP_CHECK(!ek_data_parallel(ek_module_retain(net), .device_ids = devices,
                                 .shard = EK_SHARD_OPTIMIZER));
    RANKS_EXPECT(ek_error_status(), EK_E_OUT_OF_MEMORY, "out of memory");
    RANKS_OK(ek_memory_set_capacity(device, 0));
    ek_module *model = ek_data_parallel(net, .device_ids = devices, .shard = EK_SHARD_OPTIMIZER);
    LOOP_CHECK(model);
    ek_module_free(model);
    ek_module_free(net);
    return NULL;
}

TEST_LOOP(a_wrapper_that_cannot_be_made_leaves_the_module_whole, 0, 6)
{
    same_check(&(same_setting){.devices = 3, .inputs = 256, .hidden = 300, .variant = _i}, 0,
               cannot_be_made);
}

/* Room on one device for what settles the gradient, and for one of the states. */
SAME_LOOP(nothing_changes_where_an_owner_has_no_room, 0, 2, .devices = 3, .inputs = 400,
          .hidden = 500, .algorithm = ADAM, .stays = true, .variant = _i)
{
    uint64_t share = (uint64_t)ek_module_numel(pair->nets[WHOLE]) / 3 * sizeof(float), states[3];
    for (int way = 0; way < WAYS; way++) {
        if (pair->setting.variant) { /* there is a state, as a whole */
            same_unwrap(pair, way);
            RANKS_OK(same_step_alike(pair, way, 0));
            RANKS_OK(same_wrap(pair, way));
        }
        RANKS_OK(same_backward(pair, way, 0));
    }
    for (int d = 0; d < 3; d++)
        states[d] = bytes_now(test_device(d), EK_MEMORY_OPTIMIZER);
    RANKS_OK(limit(test_device(2), share + 4096));
    RANKS_EXPECT(ek_step(pair->optimizers[SHARDED]), EK_E_OUT_OF_MEMORY, device_text("host:2"));
    for (int d = 0; d < 3; d++)
        LOOP_CHECK_EQ(bytes_now(test_device(d), EK_MEMORY_OPTIMIZER), states[d]);
    LOOP_PASS(same_compare(pair, "after the failure"));
    RANKS_OK(ek_memory_set_capacity(test_device(2), 0));
    RANKS_OK(ek_step(pair->optimizers[WHOLE]));
    RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    return same_compare(pair, "with room");
}

enum { FAILURES = 6 };

SAME_LOOP(memory_that_one_rank_lacks, 0, 4, .ranks = 2 + _i % 2, .dtype = EK_F64, .stays = true,
          .algorithm = _i % 2 ? ADAM : MOMENTUM, .devices = 1 + _i / 2, .cap = _i % 2 ? 0.001 : 25)
{
    int rank = pair->group->rank, errors = 0;
    bool wrong = rank == 1;
    ek_device device = same_devices(pair).devices[0];
    tensor_list list = same_parameters(pair, SHARDED), whole = same_parameters(pair, WHOLE);
    for (int way = 0; way < WAYS; way++) /* the first step makes state */
        RANKS_OK(same_backward(pair, way, 5));
    if (wrong)
        RANKS_OK(limit(device, 0));
    /* The others may hear of two failures as one, but of none twice. Their first success is rank
     * 1's too. */
    while (errors < FAILURES || !wrong) {
        int rc = ek_step(pair->optimizers[SHARDED]);
        if (rc >= 0 && !wrong && errors > 0)
            break;
        RANKS_EXPECT(rc, wrong ? EK_E_OUT_OF_MEMORY : EK_E_ABORTED,
                     wrong ? "out of memory" : "rank 1 on ");
        LOOP_CHECK(++errors <= FAILURES);
        for (int i = 0; i < list.count; i++) {
            LOOP_CHECK(same_bits(whole.tensors[i], list.tensors[i]));
            LOOP_CHECK_EQ(ek_optimizer_steps(pair->optimizers[SHARDED], list.tensors[i]), 0);
        }
    }
    if (wrong) {
        RANKS_OK(ek_memory_set_capacity(device, 0));
        RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    }
    RANKS_OK(ek_step(pair->optimizers[WHOLE])); /* the gradients are still there */
    LOOP_PASS(same_compare(pair, "after the failures"));
    return same_steps(pair, 1);
}

/* ---- backends of other kinds ---- */

static const char *trains_to(same_pair *pair)
{
    static char plain[65];
    char digest[65];
    pair->setting.steps = 4;
    LOOP_PASS(same_trains(pair));
    RANKS_OK(ek_module_sha256(pair->nets[SHARDED], pair->setting.variant ? digest : plain));
    LOOP_CHECK(!pair->setting.variant || strcmp(digest, plain) == 0);
    return NULL;
}

TEST_LOOP(devices_that_do_not_reach_each_other, 0, test_kind() == EK_HOST ? 4 : 0)
{
    same_setting s = {.devices = 3 + _i / 2,
                      .balanced = true,
                      .net = _i / 2 ? TERMS : PICTURES,
                      .hidden = 2000,
                      .algorithm = ADAM,
                      .batch = 7};
    same_check(&s, 0, trains_to);
    make_remote(s.devices, _i % 2 ? EK_COLLECTIVE_MOVES : EK_COLLECTIVE_NONE);
    s.variant = 1;
    same_check(&s, 0, trains_to);
    ck_assert_int_eq(atomic_load(&exchanges) > 0, _i % 2);
}

static atomic_int failing = -1; /* the device that gets nothing */

static int failing_copy(ek_dev *to, void *to_data, ek_dev *from, const void *from_data,
                        size_t nbytes)
{
    if (to != from && from->id.kind != EK_CPU && to->id.index == atomic_load(&failing))
        return EK_FAIL(EK_E_BACKEND, "a cable is loose");
    return remote_real->copy(to, to_data, from, from_data, nbytes);
}

static const char *step_unshared(same_pair *pair, int device)
{
    for (int way = 0; way < WAYS; way++) {
        ek_scope scope = ek_scope_begin();
        RANKS_OK(same_come(pair, way, 1));
        atomic_store(&failing, way == SHARDED ? device : -1);
        int rc = ek_step(pair->optimizers[way]);
        atomic_store(&failing, -1);
        if (way == SHARDED)
            RANKS_EXPECT(rc, EK_E_BACKEND, "a cable is loose");
        else
            RANKS_OK(rc);
        ek_scope_end(&scope);
    }
    return NULL;
}

/* What was stepped and could not be shared is shared before it is used. Without the wrapper the
 * module has the whole step, too. What a user writes after the step is what counts. */
static const char *shares_later(same_pair *pair)
{
    enum { UNWRAPPED = 1, WRITTEN };
    int then = pair->setting.variant / 3;
    ek_tensor *before[MOST];
    tensor_list list = same_parameters(pair, WHOLE);
    LOOP_PASS(same_steps(pair, 0));
    for (int i = 0; i < list.count; i++)
        before[i] = ek_clone(ek_detach(list.tensors[i]));
    LOOP_PASS(step_unshared(pair, pair->setting.variant % 3));
    for (int way = 0; way < WAYS; way++) {
        if (then == UNWRAPPED)
            same_unwrap(pair, way);
        list = same_parameters(pair, way);
        for (int i = 0; i < list.count && then == WRITTEN; i++)
            LOOP_CHECK(ek_copy_(ek_detach(list.tensors[i]), before[i]));
    }
    ek_zero_grad(pair->optimizers[WHOLE]);
    ek_zero_grad(pair->optimizers[SHARDED]);
    if (then)
        LOOP_PASS(same_compare(pair, "after a failure"));
    LOOP_PASS(same_steps(pair, 2));
    return same_steps(pair, 3);
}

TEST_LOOP(a_share_that_fails_is_made_up_for, 0, test_kind() == EK_HOST ? 9 : 0)
{
    make_remote(4, EK_COLLECTIVE_NONE);
    remote.copy = failing_copy;
    same_check(&(same_setting){.devices = 3,
                               .balanced = true,
                               .policy = EK_SHARD_OPTIMIZER,
                               .net = PICTURES,
                               .algorithm = ADAM,
                               .batch = 7,
                               .variant = _i},
               0, shares_later);
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

static int train_step(const same_pair *pair, bool wrong)
{
    double loss;
    ek_module *criterion = ek_distributed_criterion(ek_mse_loss(), .process_group = pair->group);
    int rc = ek_train_step(&loss, .model = pair->models[SHARDED], .criterion = criterion,
                           .optimizer = pair->optimizers[SHARDED],
                           .input = EK_VALUE(same_rows(2, IN, EK_F32, 1)),
                           .target = EK_VALUE(same_rows(2, wrong ? OUT + 1 : OUT, EK_F32, 1)));
    ek_module_free(criterion);
    return rc;
}

static int go_until(same_pair *pair, elsewhere where, bool wrong)
{
    two_terms *net = (two_terms *)pair->nets[SHARDED];
    if (where == IN_TRAIN_STEP)
        return train_step(pair, wrong);
    net->fails = wrong && where == IN_FORWARD;
    int rc = same_backward(pair, SHARDED, 7);
    net->fails = false;
    EK_TRY(rc);
    if (wrong)
        return raise_own(pair->group);
    return where == BEFORE_CLIP ? ek_clip_grad_norm(pair->optimizers[SHARDED], 1)
                                : ek_step(pair->optimizers[SHARDED]);
}

SAME_LOOP(a_rank_that_does_not_come, 0, 2 * ELSEWHERE, .ranks = 2 + _i % 2, .algorithm = ADAM,
          .cap = 0.001, .variant = _i / 2)
{
    bool wrong = pair->group->rank == 1;
    LOOP_PASS(same_steps(pair, 0));
    for (int round = 0; round < 2; round++) {
        ek_scope scope = ek_scope_begin();
        ek_zero_grad(pair->optimizers[SHARDED]);
        int rc = go_until(pair, (elsewhere)pair->setting.variant, wrong);
        ek_scope_end(&scope);
        LOOP_CHECK(rc < 0);
        if (!wrong)
            RANKS_EXPECT(rc, EK_E_ABORTED, "rank 1 on ");
        ek_error_clear();
        ek_zero_grad(pair->optimizers[WHOLE]);
        ek_zero_grad(pair->optimizers[SHARDED]);
        pair->losses[SHARDED] = pair->losses[WHOLE];
        LOOP_PASS(same_compare(pair, "after a failure"));
        LOOP_PASS(same_steps(pair, 1 + round));
    }
    return NULL;
}

/* ---- a rank whose update fails, when all ranks are in theirs ---- */

static int update_badly(ek_shards *shards, int rank)
{
    EK_TRY(shards->enter(shards));
    for (int i = 0; i < shards->leaf_count; i++)
        shards->stepped[i] = true;
    EK_TRY(shards->refresh(shards));
    EK_TRY(shards->agree(shards, 0));
    bool enabled = ek_set_grad_enabled(false);
    for (int k = 0; k < shards->count; k++) /* each rank writes its number */
        ek_fill_(shards->all[k].tensor, rank + 1);
    ek_set_grad_enabled(enabled);
    int rc = shards->publish(shards, rank == 1 ? ek_error(EK_E_USER, "the kernel is broken") : 0);
    shards->leave(shards);
    return rc;
}

SAME_LOOP(an_update_that_fails, 0, 3, .ranks = 2 + _i % 2, .algorithm = ADAM, .devices = _i,
          .cap = 0.001)
{
    ek_process_group *world = pair->group;
    tensor_list list = same_parameters(pair, SHARDED);
    double least = 1e9, most = 0;
    RANKS_EXPECT(update_badly(ek_leaf_shards(list.tensors[0]), world->rank),
                 world->rank == 1 ? EK_E_USER : EK_E_ABORTED, "the kernel is broken");
    for (int i = 0; i < list.count; i++) { /* all ranks have what there is */
        ek_tensor *p = list.tensors[i];
        ek_tensor *first = ek_contiguous(ek_to_device(ek_detach(p), ek_cpu()), EK_CONTIGUOUS);
        ek_tensor *other = ek_clone(first);
        RANKS_OK(ek_dist_broadcast(other, 0, .group = world));
        LOOP_CHECK(same_bits(first, other));
        for (int64_t k = 0; ek_tensor_requires_grad(p) && k < ek_count(first); k++) {
            least = fmin(least, element(first, k));
            most = fmax(most, element(first, k));
        }
    }
    LOOP_CHECK(least == 1 && most == world->size);
    RANKS_OK(same_step(pair, SHARDED, 0));
    return NULL;
}

/* ---- ranks that differ ---- */

static const char *differ(same_pair *pair)
{
    ek_optimizer *optimizer = pair->optimizers[SHARDED];
    tensor_list list = same_parameters(pair, SHARDED);
    bool wrong = pair->group->rank == 1;
    LOOP_PASS(same_steps(pair, 0));
    ek_zero_grad(optimizer);
    RANKS_OK(same_backward(pair, SHARDED, 1));
    if (wrong)
        RANKS_OK(ek_tensor_set_grad(list.tensors[1], NULL));
    RANKS_EXPECT(ek_step(optimizer), EK_E_STATE,
                 "rank 0 has gradients of 5, and rank 1 of 4; a step is of the same parameters");
    if (!wrong)
        RANKS_OK(ek_tensor_set_grad(list.tensors[0], NULL));
    RANKS_EXPECT(ek_step(optimizer), EK_E_STATE, "and rank 1 of 4 others");
    ek_zero_grad(pair->optimizers[WHOLE]);
    ek_zero_grad(optimizer);
    pair->losses[SHARDED] = pair->losses[WHOLE];
    LOOP_PASS(same_compare(pair, "after differences"));
    /* A step on one rank alone meets another call of the others. */
    RANKS_OK(same_backward(pair, SHARDED, 1));
    if (!wrong)
        ek_zero_grad(optimizer);
    RANKS_EXPECT(wrong ? ek_step(optimizer) : same_backward(pair, SHARDED, 1), EK_E_STATE,
                 "the optimizer's step");
    return same_steps(pair, 2);
}

TEST_LOOP(ranks_that_step_otherwise, 0, 3)
{
    same_check(&(same_setting){.ranks = 2, .algorithm = ADAM, .cap = 0.001}, (uint64_t)_i, differ);
}

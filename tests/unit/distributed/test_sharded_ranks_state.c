/* The state of optimizers that are sharded over ranks: how much of it there is, files, wrappers
 * that come and go, and refusals. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "balance/balance.h"
#include "nn/module_table.h"
#include "sharded_ranks.h"

static char folder[64], path[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/evenkeel-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    assert_ok(test_devices_configure("6"));
}

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
    assert_ok(ek_shutdown());
}

FIXTURE(make_folder, remove_folder)

/* Both ways, from one gradient per parameter and step that is the same on all ranks. */
static int step_alike(const model_pair *pair, int way, int step)
{
    tensor_list list = parameters_of(pair->models[way]);
    ek_scope scope = ek_scope_begin();
    int rc = 0;
    for (int i = 0; i < list.count && rc >= 0; i++) {
        ek_tensor *p = list.tensors[i];
        if (ek_tensor_requires_grad(p))
            rc = ek_tensor_set_grad(p, ek_mul_scalar(ek_detach(p), 0.3 + 0.1 * step + 0.01 * i));
    }
    if (rc >= 0)
        rc = ek_step(pair->optimizers[way]);
    ek_scope_end(&scope);
    return rc;
}

/* ---- how much there is ---- */

static uint64_t state_nbytes(const model_pair *pair)
{
    uint64_t nbytes = 0;
    ek_device_list devices = devices_of(pair->group, pair->setting.devices);
    for (int k = 0; k < devices.count; k++) {
        ek_memory_stats stats;
        if (ek_memory_get_stats(devices.devices[k], &stats) >= 0)
            nbytes += stats.now[EK_MEMORY_OPTIMIZER];
    }
    return nbytes;
}

static const char *takes_a_share(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, setting));
    uint64_t before = state_nbytes(&pair);
    RANKS_OK(step_alike(&pair, WHOLE, 0));
    uint64_t whole = state_nbytes(&pair) - before;
    RANKS_OK(step_alike(&pair, SHARDED, 0));
    uint64_t sharded = state_nbytes(&pair) - before - whole;
    LOOP_CHECK(whole >= 2 * 4 * (IN * HIDDEN + HIDDEN * OUT)); /* Adam has two of f32 */
    uint64_t most = whole / (uint64_t)world->size;
    if (sharded > most + most / 4 || sharded < most / 2)
        return loop_failure(__FILE__, __LINE__, "%d bytes of %d", (int)sharded, (int)whole);
    /* Of several devices each has its share. */
    for (int k = 0; k < setting->devices; k++) {
        ek_memory_stats stats;
        RANKS_OK(ek_memory_get_stats(devices_of(world, setting->devices).devices[k], &stats));
        uint64_t own = stats.now[EK_MEMORY_OPTIMIZER] - (k == 0 ? whole : 0);
        uint64_t share = most / (uint64_t)setting->devices;
        if (own > share + share / 2 || own < share / 2)
            return loop_failure(__FILE__, __LINE__, "%d bytes of %d on device %d", (int)own,
                                (int)share, k);
    }
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(a_rank_has_its_share_of_the_state, 0, 6)
{
    pair_setting setting = {.dtype = EK_F32, .algorithm = ADAM, .devices = 1 + _i / 3, .cap = 25};
    ranks_check(1 + _i % 3 > 1 ? 1 + _i % 3 : 2, (uint64_t)_i, takes_a_share, &setting);
}

/* ---- files ---- */

typedef struct file_case {
    pair_setting setting;
    bool saves, sharded; /* or loads, with such an optimizer */
} file_case;

static ek_archive *archive_of(const model_pair *pair, int way)
{
    ek_archive *archive = ek_archive_new();
    if (ek_archive_put_module(archive, "model", pair->models[way]) >= 0 &&
        ek_archive_put_optimizer(archive, "optimizer", pair->optimizers[way], pair->models[way]) >=
            0)
        return archive;
    ek_archive_free(archive);
    return NULL;
}

static int load(const model_pair *pair, int way)
{
    ek_archive *archive = ek_archive_open(path);
    int rc =
        archive ? ek_archive_load_module(archive, "model", pair->models[way]) : ek_error_status();
    if (rc >= 0)
        rc = ek_archive_load_optimizer(archive, "optimizer", pair->optimizers[way],
                                       pair->models[way]);
    ek_archive_free(archive);
    return rc;
}

/* Three steps, of which the last two are made from a file. */
static const char *saves_and_loads(ek_process_group *world, void *user)
{
    const file_case *c = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, &c->setting));
    int way = c->sharded ? SHARDED : WHOLE;
    RANKS_OK(step_alike(&pair, WHOLE, 0));
    RANKS_OK(step_alike(&pair, WHOLE, 1));
    if (c->saves) {
        if (c->sharded) {
            RANKS_OK(step_alike(&pair, SHARDED, 0));
            RANKS_OK(step_alike(&pair, SHARDED, 1));
        }
        ek_archive *archive = archive_of(&pair, way);
        LOOP_CHECK(archive);
        RANKS_OK(ek_dist_archive_save(archive, path, world->size - 1, world));
        ek_archive_free(archive);
    } else {
        RANKS_OK(step_alike(&pair, SHARDED, 5)); /* which is forgotten */
        RANKS_OK(load(&pair, SHARDED));
    }
    if (c->sharded) {
        ek_module_zero_grad(pair.models[WHOLE]);
        ek_module_zero_grad(pair.models[SHARDED]);
        LOOP_PASS(pair_compare(&pair, c->saves ? "after saving" : "after loading"));
        RANKS_OK(step_alike(&pair, WHOLE, 2));
        RANKS_OK(step_alike(&pair, SHARDED, 2));
        LOOP_PASS(pair_compare(&pair, "after going on"));
    }
    pair_free(&pair);
    return NULL;
}

/* One rank without a world, with a whole optimizer: what two sharded ranks have saved. */
static void load_alone(const pair_setting *setting)
{
    two_ways *nets[2];
    ek_optimizer *optimizers[2];
    for (int k = 0; k < 2; k++) {
        nets[k] = two_ways_new(setting->dtype, ek_cpu());
        assert_made(nets[k]);
        optimizers[k] = optimizer_new(setting, &nets[k]->module);
    }
    model_pair pair = {.setting = *setting,
                       .nets = {nets[0], nets[1]},
                       .models = {&nets[0]->module, &nets[1]->module},
                       .optimizers = {optimizers[0], optimizers[1]}};
    assert_ok(step_alike(&pair, 0, 0));
    assert_ok(step_alike(&pair, 0, 1));
    assert_ok(load(&pair, 1));
    assert_ok(step_alike(&pair, 0, 2));
    assert_ok(step_alike(&pair, 1, 2));
    ck_assert_pstr_eq(pair_compare(&pair, "alone"), NULL);
    pair_free(&pair);
}

TEST_LOOP(files_of_any_ranks_for_any_ranks, 0, 4)
{
    pair_setting setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                            .algorithm = _i % 2 ? ADAM : MOMENTUM,
                            .devices = _i / 2 * 2,
                            .groups = true,
                            .cap = 0.001};
    ranks_check(2, (uint64_t)_i, saves_and_loads, &(file_case){setting, true, true});
    load_alone(&setting);
    ranks_check(3, (uint64_t)_i, saves_and_loads, &(file_case){setting, false, true});
    ranks_check(3, (uint64_t)_i, saves_and_loads, &(file_case){setting, true, false});
    ranks_check(2, (uint64_t)_i, saves_and_loads, &(file_case){setting, false, true});
}

static const char *saves_wrongly(ek_process_group *world, void *user)
{
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, user));
    RANKS_OK(step_alike(&pair, SHARDED, 0));
    ek_archive *archive = archive_of(&pair, SHARDED);
    LOOP_CHECK(archive);
    RANKS_EXPECT(ek_archive_save(archive, path), EK_E_STATE, "is divided over several processes");
    bool lacks = world->rank == 1;
    RANKS_EXPECT(ek_dist_archive_save(lacks ? NULL : archive, path, 0, world), EK_E_STATE,
                 "has 10 states that are divided over ranks, that of rank 1 0");
    RANKS_EXPECT(ek_dist_archive_save(archive, "/tmp/no/such/folder", 0, world),
                 world->rank == 0 ? EK_E_IO : EK_E_ABORTED, "/tmp/no/such/folder");
    RANKS_OK(ek_dist_archive_save(archive, path, 0, world));
    ek_archive_free(archive);
    pair_free(&pair);
    return NULL;
}

TEST(files_that_cannot_be_written)
{
    pair_setting setting = {.dtype = EK_F32, .algorithm = ADAM};
    ranks_check(2, 4, saves_wrongly, &setting);
}

/* ---- wrappers that come and go ---- */

/* Sharded, then whole without a wrapper, then sharded otherwise: the state follows. */
static const char *wraps_anew(ek_process_group *world, void *user)
{
    const pair_setting *setting = user;
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, setting));
    for (int step = 0; step < 6; step++) {
        if (step % 2 == 0 && step > 0) {
            for (int way = 0; way < WAYS; way++) {
                ek_module *net = ek_module_retain(&pair.nets[way]->module);
                ek_module_free(pair.models[way]);
                pair.models[way] = net;
            }
            RANKS_OK(step_alike(&pair, WHOLE, step));
            RANKS_OK(step_alike(&pair, SHARDED, step));
            LOOP_PASS(pair_compare(&pair, "without a wrapper"));
            for (int way = 0; way < WAYS; way++) {
                ek_module *net = pair.models[way]; /* it had a parent: the new one shares it */
                pair.models[way] =
                    ek_distributed_data_parallel(net, .process_group = world,
                                                 .bucket_cap_mb = 0.0005 * step,
                                                 .shard = way == SHARDED ? EK_SHARD_OPTIMIZER
                                                                         : EK_SHARD_NONE);
                ek_module_free(net);
            }
            LOOP_CHECK(pair.models[WHOLE] && pair.models[SHARDED]);
        }
        for (int way = 0; way < WAYS; way++) {
            ek_scope scope = ek_scope_begin();
            ek_zero_grad(pair.optimizers[way]);
            RANKS_OK(pair_backward(&pair, way, 3, step));
            RANKS_OK(ek_step(pair.optimizers[way]));
            ek_scope_end(&scope);
        }
        LOOP_PASS(pair_compare(&pair, "with a wrapper"));
    }
    pair_free(&pair);
    return NULL;
}

TEST_LOOP(the_state_follows_the_wrapper, 0, 4)
{
    pair_setting setting = {.dtype = _i % 2 ? EK_F32 : EK_F64,
                            .algorithm = _i % 2 ? ADAM : MOMENTUM,
                            .cap = 0.001};
    ranks_check(2 + _i / 2, (uint64_t)_i, wraps_anew, &setting);
}

/* ---- a state that is saved in memory ---- */

/* Generators are the process's, in which the ranks are threads. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static ek_training_state *save_state(const model_pair *pair, int way)
{
    pthread_mutex_lock(&one_at_a_time);
    ek_training_state *state = ek_training_state_save(pair->models[way], pair->optimizers[way]);
    pthread_mutex_unlock(&one_at_a_time);
    return state;
}

static int restore_state(ek_training_state *state)
{
    pthread_mutex_lock(&one_at_a_time);
    int rc = ek_training_state_restore(state);
    pthread_mutex_unlock(&one_at_a_time);
    return rc;
}

static const char *goes_back(ek_process_group *world, void *user)
{
    model_pair pair;
    LOOP_PASS(pair_make(&pair, world, user));
    for (int way = 0; way < WAYS; way++) {
        RANKS_OK(step_alike(&pair, way, 0));
        ek_training_state *state = save_state(&pair, way);
        LOOP_CHECK(state);
        if (way == SHARDED) { /* and forward again, to be undone */
            RANKS_OK(pair_backward(&pair, way, 3, 1));
            RANKS_OK(ek_step(pair.optimizers[way]));
            RANKS_OK(restore_state(state));
        }
        ek_training_state_free(state);
        ek_zero_grad(pair.optimizers[way]);
    }
    LOOP_PASS(pair_compare(&pair, "after going back"));
    pair_free(&pair);
    return NULL;
}

TEST(a_training_state_is_each_ranks_own)
{
    pair_setting setting = {.dtype = EK_F64, .algorithm = ADAM, .cap = 0.001};
    ranks_check(3, 5, goes_back, &setting);
}

/* ---- refusals ---- */

static ek_module *wrapped(ek_process_group *world, ek_shard_policy inside, ek_shard_policy outside)
{
    ek_module *net = ek_data_parallel(&two_ways_new(EK_F32, ek_cpu())->module,
                                      .device_ids = devices_of(world, 2), .shard = inside);
    return ek_distributed_data_parallel(net, .process_group = world, .shard = outside);
}

/* Every rank refuses by itself and tells the others. A rank that is ahead must not tell of its next
 * refusal before the others have made this one, which takes the place of theirs: a barrier keeps
 * the ranks in step. */
static const char *refuses(ek_process_group *world, ek_shard_policy inside, ek_shard_policy outside,
                           const char *sentence)
{
    LOOP_CHECK(!wrapped(world, inside, outside));
    RANKS_EXPECT(ek_error_status(), EK_E_INVALID, sentence);
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}

static const char *is_refused(ek_process_group *world, void *user)
{
    (void)user;
    ek_shard_policy none = EK_SHARD_NONE, sharded = EK_SHARD_OPTIMIZER;
    LOOP_PASS(refuses(world, sharded, none, "a wrapper shards the module's parameters"));
    LOOP_PASS(refuses(world, sharded, sharded, "leave .shard out there, and give it here"));
    LOOP_PASS(refuses(world, none, (ek_shard_policy)7, "7 is no shard policy"));
    ek_module *model = wrapped(world, none, sharded);
    LOOP_CHECK(model);
    ek_module_free(model);
    return NULL;
}

TEST(wrappers_that_do_not_go_together)
{
    ranks_check(2, 6, is_refused, NULL);
}

/* With one rank it is the rank's devices that share. */
TEST(one_rank_shares_over_its_devices)
{
    assert_ok(ek_dist_init_process_group());
    ek_module *model = ek_distributed_data_parallel(&two_ways_new(EK_F32, ek_cpu())->module,
                                                    .device_ids = ek_devices(test_kind(), 2),
                                                    .shard = EK_SHARD_OPTIMIZER);
    assert_made(model);
    ek_optimizer *optimizer = ek_adam(model);
    assert_ok(ek_backward(ek_sum(ek_apply(model, rows_of(4, IN, EK_F32, 0)))));
    assert_ok(ek_step(optimizer));
    ek_memory_stats stats[2];
    for (int k = 0; k < 2; k++)
        assert_ok(ek_memory_get_stats(test_device(k), &stats[k]));
    ck_assert(stats[0].now[EK_MEMORY_OPTIMIZER] > 0 && stats[1].now[EK_MEMORY_OPTIMIZER] > 0);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
}

/* The state of sharded optimizers: how much memory it takes and where, how it goes from one
 * optimizer to another, and files. */
#include <pthread.h>

#include "balance/balance.h"
#include "kit/files.h"
#include "sharded.h"

/* ---- memory ---- */

/* The pair has the sharded way alone. */
static void keep_sharded(same_pair *pair)
{
    same_unwrap(pair, WHOLE);
    ek_optimizer_free(pair->optimizers[WHOLE]);
    ek_module_free(pair->nets[WHOLE]);
    pair->optimizers[WHOLE] = NULL;
    pair->nets[WHOLE] = NULL;
}

static const same_setting large = {.devices = 4,
                                   .balanced = true,
                                   .policy = EK_SHARD_OPTIMIZER,
                                   .inputs = 256,
                                   .hidden = 500,
                                   .algorithm = ADAM,
                                   .batch = 8};

/* A device that is ahead in backward holds gradients until the others have theirs: peaks differ by
 * some of them, from run to run. */
static const char *is_level(same_pair *pair)
{
    keep_sharded(pair);
    uint64_t all = (uint64_t)ek_module_numel(pair->nets[SHARDED]) * sizeof(float);
    uint64_t share = all / 4, most = 0, sum = 0, slack = 4 * 64;
    RANKS_OK(same_step(pair, SHARDED, 0));
    for (int d = 0; d < 4; d++)
        RANKS_OK(ek_memory_reset_peak(test_device(d)));
    RANKS_OK(same_step(pair, SHARDED, 1));
    for (int d = 0; d < 4; d++) {
        ek_memory_stats stats;
        RANKS_OK(ek_memory_get_stats(test_device(d), &stats));
        uint64_t parameters = stats.now[EK_MEMORY_PARAMETER];
        uint64_t gradients = stats.now[EK_MEMORY_GRADIENT];
        uint64_t states = stats.now[EK_MEMORY_OPTIMIZER];
        LOOP_CHECK(parameters >= all && parameters <= all + slack);
        LOOP_CHECK(gradients + slack >= share && gradients <= share + slack);
        LOOP_CHECK(states + 2 * slack >= 2 * share && states <= 2 * (share + slack));
        most = stats.peak > most ? stats.peak : most;
        sum += stats.peak;
    }
    LOOP_CHECK((double)most / ((double)sum / 4) <= 1.1);
    return NULL;
}

TEST(ledgers_are_level)
{
    same_check(&large, 0, is_level);
}

static const char *shares_once(same_pair *pair)
{
    ek_data_parallel_stats stats;
    ek_module *net = pair->nets[SHARDED];
    uint64_t all = (uint64_t)ek_module_numel(net) * sizeof(float), frozen = OUT * sizeof(float);
    for (uint64_t step = 0; step < 3; step++) {
        RANKS_OK(same_step(pair, SHARDED, (int)step));
        RANKS_OK(ek_data_parallel_get_stats(pair->models[SHARDED], &stats));
        LOOP_CHECK_EQ(stats.forwards, 1 + step);
        LOOP_CHECK_EQ(stats.parameter_broadcasts, 1);
        LOOP_CHECK_EQ(stats.parameter_nbytes, 3 * all);
        LOOP_CHECK_EQ(stats.shared_nbytes, 3 * (all - frozen) * (1 + step));
    }
    ek_zero_grad(pair->optimizers[SHARDED]); /* nothing to step: nothing is sent */
    RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    RANKS_OK(ek_data_parallel_get_stats(pair->models[SHARDED], &stats));
    LOOP_CHECK_EQ(stats.shared_nbytes, 3 * 3 * (all - frozen));
    return NULL;
}

TEST(a_step_is_shared_once)
{
    same_check(&large, 0, shares_once);
}

SAME_LOOP(memory_does_not_grow, 0, 2, .devices = 3, .balanced = _i, .net = PICTURES,
          .algorithm = ADAM, .batch = 7)
{
    uint64_t warm[3] = {0};
    for (int step = 0; step < 12; step++) {
        RANKS_OK(same_step(pair, SHARDED, step));
        for (int d = 0; d < 3; d++) {
            if (step < 2)
                warm[d] = bytes_in_use(test_device(d));
            LOOP_CHECK_EQ(bytes_in_use(test_device(d)), warm[d]);
        }
    }
    return NULL;
}

static int state_nbytes(const same_pair *pair, uint64_t nbytes[EK_MAX_DEVICES])
{
    ek_device_list devices = same_devices(pair);
    for (int k = 0; k < devices.count; k++) {
        ek_memory_stats stats;
        int rc = ek_memory_get_stats(devices.devices[k], &stats);
        if (rc < 0)
            return rc;
        nbytes[k] = stats.now[EK_MEMORY_OPTIMIZER];
    }
    return 0;
}

/* The whole state lies on the first device. */
SAME_LOOP(a_rank_has_its_share_of_the_state, 0, 4, .ranks = 2 + _i % 2, .devices = 1 + _i / 2,
          .algorithm = ADAM, .stays = true)
{
    uint64_t whole[EK_MAX_DEVICES] = {0}, both[EK_MAX_DEVICES] = {0}, sum = 0;
    int devices = pair->setting.devices;
    RANKS_OK(same_step_alike(pair, WHOLE, 0));
    RANKS_OK(state_nbytes(pair, whole));
    RANKS_OK(same_step_alike(pair, SHARDED, 0));
    RANKS_OK(state_nbytes(pair, both));
    LOOP_CHECK(whole[0] >= 2 * 4 * (IN * 40 + 40 * OUT)); /* Adam has two of f32 */
    uint64_t most = whole[0] / (uint64_t)pair->setting.ranks, share = most / (uint64_t)devices;
    for (int k = 0; k < devices; k++) {
        uint64_t own = both[k] - whole[k];
        sum += own;
        LOOP_CHECK(own <= share + share / 2 && own >= share / 2);
    }
    LOOP_CHECK(sum <= most + most / 4 && sum >= most / 2);
    return NULL;
}

/* The devices have the whole optimizer's state only. */
SAME_LOOP(offloaded_state_is_on_no_device, 0, 3, .ranks = _i < 2 ? 2 : 0, .devices = 1 + _i % 2,
          .policy = EK_SHARD_OPTIMIZER, .offload = EK_OFFLOAD_OPTIMIZER, .algorithm = ADAM)
{
    uint64_t whole[EK_MAX_DEVICES] = {0}, both[EK_MAX_DEVICES] = {0};
    RANKS_OK(same_step_alike(pair, WHOLE, 0));
    RANKS_OK(state_nbytes(pair, whole));
    RANKS_OK(same_step_alike(pair, SHARDED, 0));
    RANKS_OK(state_nbytes(pair, both));
    LOOP_CHECK(whole[0] > 0);
    for (int k = 0; k < pair->setting.devices; k++)
        LOOP_CHECK_EQ(both[k], whole[k]);
    return same_compare(pair, "after a step");
}

/* ---- from one optimizer to another ---- */

static int carry_over(ek_optimizer *from, ek_tensor *p, ek_optimizer *to, ek_tensor *q)
{
    const char *names[4], *name;
    ek_tensor *states[4];
    int count = 0;
    for (int i = 0; (name = ek_optimizer_state_name(from, i)); i++) {
        ek_tensor *state = ek_optimizer_state(from, p, name);
        if (!state)
            continue;
        names[count] = name;
        states[count++] = ek_clone(ek_contiguous(state, EK_CONTIGUOUS));
    }
    return ek_error_status() < 0
               ? ek_error_status()
               : ek_optimizer_set_state(to, q, ek_optimizer_steps(from, p), names, states, count);
}

/* What was set is where the step looks for it: the step allocates nothing. */
static const char *step_in_place(same_pair *pair)
{
    ek_memory_stats before, after[3];
    RANKS_OK(same_step(pair, WHOLE, 2));
    RANKS_OK(same_come(pair, SHARDED, 2));
    uint64_t states[3], peaks[3];
    for (int d = 0; d < 3; d++) {
        RANKS_OK(ek_memory_reset_peak(test_device(d)));
        RANKS_OK(ek_memory_get_stats(test_device(d), &before));
        states[d] = before.now[EK_MEMORY_OPTIMIZER];
        peaks[d] = before.peak;
    }
    RANKS_OK(ek_step(pair->optimizers[SHARDED]));
    for (int d = 0; d < 3; d++) {
        RANKS_OK(ek_memory_get_stats(test_device(d), &after[d]));
        LOOP_CHECK_EQ(after[d].now[EK_MEMORY_OPTIMIZER], states[d]);
        LOOP_CHECK_EQ(after[d].peak, peaks[d]);
    }
    return same_compare(pair, "in place");
}

/* After two steps a new optimizer of one way continues from the state of the other way. */
static const char *exchanges(same_pair *pair)
{
    int way = pair->setting.variant, from = 1 - way;
    tensor_list renewed = same_parameters(pair, way), other = same_parameters(pair, from);
    ek_optimizer *own = pair->optimizers[way];
    LOOP_PASS(same_steps(pair, 0));
    LOOP_PASS(same_steps(pair, 1));
    ek_optimizer *next = same_optimizer_new(pair, way);
    LOOP_CHECK(next);
    for (int i = renewed.count - 1; i >= 0; i--)
        RANKS_OK(carry_over(own, renewed.tensors[i], own, renewed.tensors[i]));
    for (int i = renewed.count - 1; i >= 0; i--)
        RANKS_OK(carry_over(pair->optimizers[from], other.tensors[i], next, renewed.tensors[i]));
    ek_optimizer_free(own);
    pair->optimizers[way] = next;
    LOOP_PASS(same_compare(pair, "with another's state"));
    if (!pair->group && way == SHARDED && pair->setting.how == ONCE)
        LOOP_PASS(step_in_place(pair));
    for (int step = 3; step < 6; step++)
        LOOP_PASS(same_steps(pair, step));
    return NULL;
}

TEST_LOOP(state_is_the_same_for_both_kinds, 0, 2 * ALGORITHMS)
{
    same_setting s = {.devices = 3, .groups = true, .algorithm = _i / 2, .variant = _i % 2};
    same_check(&s, 0, exchanges);
    s.how = EACH_ITSELF;
    same_check(&s, 0, exchanges);
    s = (same_setting){.ranks = 2, .algorithm = _i / 2, .cap = 0.001, .variant = _i % 2};
    same_check(&s, (uint64_t)_i, exchanges);
}

SAME_TEST(state_of_the_whole_is_a_copy, .devices = 2, .algorithm = ADAM)
{
    ek_optimizer *optimizer = pair->optimizers[SHARDED];
    tensor_list list = same_parameters(pair, SHARDED);
    ek_tensor *p = list.tensors[0];
    LOOP_CHECK(!ek_optimizer_state(optimizer, p, "exp_avg"));
    RANKS_OK(ek_error_status());
    RANKS_OK(same_step_alike(pair, SHARDED, 0));
    ek_tensor *state = ek_optimizer_state(optimizer, p, "exp_avg");
    LOOP_CHECK(state && ek_device_equal(ek_tensor_device(state), ek_cpu()));
    LOOP_CHECK(ek_same_layout(state, p));
    LOOP_CHECK(ek_fill_(state, 3));
    LOOP_CHECK(element(ek_optimizer_state(optimizer, p, "exp_avg"), 0) != 3);
    LOOP_CHECK(
        !ek_optimizer_state(optimizer, list.tensors[list.count - 1], "exp_avg")); /* frozen */
    LOOP_CHECK(!ek_optimizer_state(optimizer, p, "momentum_buffer"));
    return NULL;
}

/* ---- a state that is saved in memory ---- */

/* Generators are the process's, in which the ranks are threads. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

SAME_LOOP(a_training_state_is_each_ranks_own, 0, 2, .ranks = 3 * _i, .devices = 3 - 3 * _i,
          .dtype = EK_F64, .algorithm = ADAM, .cap = 0.001)
{
    for (int way = 0; way < WAYS; way++) {
        RANKS_OK(same_step_alike(pair, way, 0));
        pthread_mutex_lock(&one_at_a_time);
        ek_training_state *state = ek_training_state_save(pair->nets[way], pair->optimizers[way]);
        pthread_mutex_unlock(&one_at_a_time);
        LOOP_CHECK(state);
        if (way == SHARDED) { /* forward again, to be undone */
            RANKS_OK(same_step(pair, way, 1));
            pthread_mutex_lock(&one_at_a_time);
            int rc = ek_training_state_restore(state);
            pthread_mutex_unlock(&one_at_a_time);
            RANKS_OK(rc);
            pair->losses[way] = 0;
        }
        ek_training_state_free(state);
        ek_zero_grad(pair->optimizers[way]);
    }
    return same_compare(pair, "after going back");
}

/* ---- files ---- */

static char path[96], pth[96];

static void make_folder(void)
{
    make_directory();
    snprintf(path, sizeof path, "%s/file", directory);
    snprintf(pth, sizeof pth, "%s/file.pth", directory);
    six_devices();
}

static void remove_folder(void)
{
    empty_directory();
    shut_down();
}

FIXTURE(make_folder, remove_folder)

enum { LOADS = 2 }; /* of a variant: way + LOADS */

static ek_archive *archive_of(const same_pair *pair, int way)
{
    ek_archive *archive = ek_archive_new();
    ek_module *net = pair->nets[way];
    if (ek_archive_put_module(archive, "model", net) >= 0 &&
        ek_archive_put_optimizer(archive, "optimizer", pair->optimizers[way], net) >= 0)
        return archive;
    ek_archive_free(archive);
    return NULL;
}

static bool in_parts; /* the first file is a set */

/* Writes a file of safetensors and one of torch.save. */
static int save(const same_pair *pair, int way)
{
    const char *const paths[] = {path, pth};
    ek_archive *archive = archive_of(pair, way);
    int rc = archive ? 0 : ek_error_status();
    for (int i = 0; i < 2 && rc >= 0; i++)
        rc = pair->group ? ek_dist_archive_save(archive, paths[i], pair->group->size - 1,
                                                pair->group, .parts = in_parts && i == 0)
                         : ek_archive_save(archive, paths[i]);
    ek_archive_free(archive);
    return rc;
}

static int load(const same_pair *pair, int way)
{
    ek_archive *archive = ek_archive_open(way == WHOLE || in_parts ? path : pth);
    int rc =
        archive ? ek_archive_load_module(archive, "model", pair->nets[way]) : ek_error_status();
    if (rc >= 0)
        rc =
            ek_archive_load_optimizer(archive, "optimizer", pair->optimizers[way], pair->nets[way]);
    ek_archive_free(archive);
    return rc;
}

/* Three steps, of which one way makes the last from a file, or writes the file before the last. */
static const char *saves_or_loads(same_pair *pair)
{
    int way = pair->setting.variant % WAYS;
    bool loads = pair->setting.variant >= LOADS;
    for (int step = 0; step < 2; step++)
        RANKS_OK(same_step_alike(pair, 1 - way, step));
    if (loads) {
        RANKS_OK(same_step_alike(pair, way, 5)); /* which is forgotten */
        RANKS_OK(load(pair, way));
    } else {
        RANKS_OK(same_step_alike(pair, way, 0));
        RANKS_OK(same_step_alike(pair, way, 1));
        RANKS_OK(save(pair, way));
    }
    ek_zero_grad(pair->optimizers[WHOLE]);
    ek_zero_grad(pair->optimizers[SHARDED]);
    LOOP_PASS(same_compare(pair, loads ? "after loading" : "after saving"));
    RANKS_OK(same_step_alike(pair, WHOLE, 2));
    RANKS_OK(same_step_alike(pair, SHARDED, 2));
    return same_compare(pair, "after going on");
}

/* Each file is read by those that follow it. In the second half of the cases ranks write sets. */
TEST_LOOP(files_of_anyone_for_anyone, 0, 8)
{
    in_parts = _i >= 4;
    static const struct {
        int ranks, variant;
    } files[] = {{2, SHARDED},         {0, WHOLE + LOADS},   {3, SHARDED + LOADS},
                 {0, SHARDED + LOADS}, {3, WHOLE},           {2, SHARDED + LOADS},
                 {0, SHARDED + LOADS}, {0, SHARDED},         {0, WHOLE + LOADS},
                 {2, SHARDED + LOADS}, {0, SHARDED + LOADS}, {0, WHOLE},
                 {0, SHARDED + LOADS}};
    for (size_t k = 0; k < sizeof files / sizeof *files; k++)
        same_check(&(same_setting){.ranks = files[k].ranks,
                                   .devices = files[k].ranks ? _i % 4 / 2 * 2 : 3,
                                   .dtype = _i % 2 ? EK_F32 : EK_F64,
                                   .algorithm = _i % 2 ? ADAM : MOMENTUM,
                                   .groups = true,
                                   .cap = 0.001,
                                   .variant = files[k].variant},
                   (uint64_t)_i, saves_or_loads);
}

SAME_TEST(files_that_cannot_be_written, .ranks = 2, .algorithm = ADAM)
{
    ek_process_group *world = pair->group;
    RANKS_OK(same_step_alike(pair, SHARDED, 0));
    ek_archive *archive = archive_of(pair, SHARDED);
    LOOP_CHECK(archive);
    RANKS_EXPECT(ek_archive_save(archive, path), EK_E_STATE, "is divided over several processes");
    bool lacks = world->rank == 1;
    RANKS_EXPECT(ek_dist_archive_save(lacks ? NULL : archive, path, 0, world), EK_E_STATE,
                 "has 10 states that are divided over ranks, that of rank 1 0");
    RANKS_EXPECT(ek_dist_archive_save(archive, "/tmp/no/such/folder", 0, world),
                 world->rank == 0 ? EK_E_IO : EK_E_ABORTED, "/tmp/no/such/folder");
    RANKS_OK(ek_dist_archive_save(archive, path, 0, world));
    ek_archive_free(archive);
    return NULL;
}

/* What rails are like when all is not well: groups whose calls come in any order, ranks that NCCL
 * does not serve, failures. */
#include "rails_setup.h"

/* ---- the order of jobs ---- */

/* Groups that share GPUs, whose calls the ranks start in different orders. */
static const char *interleaved(ek_process_group *world, void *user)
{
    enum { CALLS = 12 };
    ek_process_group *groups[3] = {world};
    for (int g = 1; g < 3; g++)
        groups[g] = ek_communication_new_group(world->communication, (int[]){0, 1, 2}, 3, 60);
    LOOP_CHECK(groups[1] && groups[2]);
    ek_dist_work *works[3][CALLS];
    ek_tensor *x[3][CALLS];
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < CALLS; i++)
            x[g][i] =
                on_gpu(ek_full(world->rank + g, EK_SHAPE(500 + i), .device = ek_cpu()), world);
    for (int g = 0; g < 3; g++) /* rails are made together */
        RANKS_OK(ek_dist_broadcast(x[g][0], 0, .group = groups[g]));
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < CALLS; i++) {
            int g = (k + world->rank) % 3;
            RANKS_OK(ek_dist_all_reduce(x[g][i], .group = groups[g], .work = &works[g][i]));
        }
    for (int k = 0; k < 3; k++)
        for (int i = CALLS - 1; i >= 0; i--)
            RANKS_OK(ek_dist_wait(works[(k + world->rank) % 3][i]));
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < CALLS; i++)
            LOOP_CHECK(element(x[g][i], 499 + i) == (i ? 3 + 3 * g : 3 * g));
    for (int g = 1; g < 3; g++)
        ek_communication_destroy_group(groups[g]);
    return NULL;
}

TEST_LOOP(groups_that_share_gpus_don_t_wait_in_a_circle, 0, 8)
{
    if (enough(3))
        ranks_check(3, (uint64_t)_i, interleaved, NULL);
}

/* ---- whom NCCL does not serve ---- */

typedef struct refusal {
    const char *reason;
    bool own; /* each rank has a GPU of its own */
} refusal;

static const char *refused(ek_process_group *world, void *user)
{
    const refusal *why = user;
    ek_tensor *x =
        ek_to_device(numbers(EK_F32, world->rank, 1000), ek_cuda(why->own ? world->rank : 0));
    ek_tensor *y = numbers(EK_F32, world->rank, 1000);
    RANKS_OK(ek_dist_all_reduce(x, .group = world));
    RANKS_OK(ek_dist_all_reduce(y, .group = world));
    LOOP_CHECK(same(x, y));
    LOOP_CHECK(world->rails && !world->rails->rail);
    world->communication->backend = EK_DIST_NCCL;
    RANKS_EXPECT(ek_dist_all_reduce(x, .group = world), EK_E_BACKEND,
                 "between the ranks of the world, as a call before");
    ek_process_group *group =
        ek_communication_new_group(world->communication, (int[]){0, 1}, 2, 60);
    LOOP_CHECK(group);
    RANKS_EXPECT(ek_dist_all_reduce(x, .group = group), EK_E_BACKEND, why->reason);
    RANKS_OK(ek_dist_all_reduce(y, .group = group)); /* the host's by MPI */
    ek_communication_destroy_group(group);
    return NULL;
}

TEST(ranks_on_one_gpu_are_staged)
{
    ranks_check(2, 1, refused, &(refusal){"ranks 0 and 1 share a GPU", false});
}

TEST(ranks_without_nccl_are_staged)
{
    setenv("EVENKEEL_CUDA_WITHOUT", "nccl", 1);
    ranks_check(2, 1, refused, &(refusal){"rank 0: EVENKEEL_CUDA_WITHOUT names it", false});
}

/* One rank's tensor is on a GPU, the other's is not: a call that differs. */
static const char *mixed(ek_process_group *world, void *user)
{
    ek_tensor *x = numbers(EK_F32, world->rank, 1000);
    RANKS_EXPECT(ek_dist_all_reduce(world->rank ? on_gpu(x, world) : x, .group = world), EK_E_STATE,
                 "rank 1 the first use of a GPU");
    RANKS_OK(ek_dist_all_reduce(on_gpu(x, world), .group = world));
    RANKS_EXPECT(ek_dist_all_reduce(world->rank ? on_gpu(x, world) : x, .group = world), EK_E_STATE,
                 "rank 1 all_reduce of f32[1000] by SUM between GPUs");
    RANKS_OK(ek_dist_all_reduce(ek_to_device(x, ek_cuda(2 + world->rank)), .group = world));
    RANKS_EXPECT(ek_dist_all_reduce(ek_to_device(x, ek_cuda(3 * world->rank)), .group = world),
                 EK_E_STATE, "between GPUs (set 2 of them)");
    RANKS_OK(ek_dist_all_reduce(on_gpu(x, world), .group = world));
    return NULL;
}

TEST(a_gpu_meets_no_host)
{
    if (enough(4))
        ranks_check(2, 1, mixed, NULL);
}

#ifdef EK_CUDA_EMULATED

/* ---- failures ---- */

typedef struct failing {
    const char *function;
    int error, after;
} failing;

/* One rank's NCCL fails; all ranks have an error, and go on with new communicators. */
static const char *fails(ek_process_group *world, void *user)
{
    const failing *f = user;
    ek_tensor *x = on_gpu(numbers(EK_F32, world->rank, 1000), world);
    RANKS_OK(ek_dist_all_reduce(x, .group = world));
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 0)
        ek_emulator_fail_next(f->function, f->error, f->after);
    RANKS_OK(ek_dist_barrier(.group = world));
    int rc = ek_dist_all_reduce(x, .group = world);
    if (rc >= 0) /* it was over here before the others failed */
        rc = ek_dist_barrier(.group = world);
    LOOP_CHECK(rc == EK_E_BACKEND || rc == EK_E_ABORTED);
    LOOP_CHECK(strstr(ek_error_message(), "NCCL"));
    ek_error_clear();
    ek_tensor *y = numbers(EK_F32, world->rank + 5, 1000), *z = on_gpu(y, world);
    RANKS_OK(ek_dist_all_reduce(y, .group = world));
    RANKS_OK(ek_dist_all_reduce(z, .group = world));
    LOOP_CHECK(same(z, y));
    return NULL;
}

static const failing failures[] = {{"ncclGroupEnd", 3, 0},
                                   {"ncclGroupEnd", 3, 2},
                                   {"ncclSend", 4, 1},
                                   {"ncclCommGetAsyncError", 6, 0},
                                   {"ncclCommGetAsyncError", 6, 4}};

TEST_LOOP(a_failure_ends_communicators, 0, (int)(sizeof failures / sizeof *failures))
{
    failing f = failures[_i];
    ranks_check(2 + _i % 2, (uint64_t)_i, fails, &f);
}

/* A rank whose GPU is lost tells the others, which do not wait for it. */
static const char *loses_gpu(ek_process_group *world, void *user)
{
    ek_tensor *x = on_gpu(numbers(EK_F32, world->rank, 1000), world);
    ek_tensor *y = numbers(EK_F32, world->rank, 1000);
    RANKS_OK(ek_dist_all_reduce(x, .group = world));
    RANKS_OK(ek_dist_barrier(.group = world));
    if (world->rank == 1) {
        ek_emulator_fail_next("kernel", 700, 0); /* an illegal address */
        ek_add_(x, x);
    }
    int rc = ek_dist_all_reduce(x, .group = world);
    if (rc >= 0)
        rc = ek_dist_barrier(.group = world);
    LOOP_CHECK(rc == EK_E_BACKEND || rc == EK_E_ABORTED);
    LOOP_CHECK(strstr(ek_error_message(), "cuda:1"));
    ek_error_clear();
    RANKS_OK(ek_dist_all_reduce(y, .group = world));
    return NULL;
}

TEST_LOOP(a_lost_gpu_is_told_to_all, 2, 4)
{
    ranks_check(_i, (uint64_t)_i, loses_gpu, NULL);
    ek_emulator_recover();
}

/* One rank can make no id, or no communicator. */
TEST_LOOP(ranks_whose_communicators_fail_are_staged, 0, 2)
{
    const char *function = _i ? "ncclCommInitRankConfig" : "ncclGetUniqueId";
    for (int i = 0; i < 2; i++)
        ek_emulator_fail_next(function, 2, i * _i);
    ranks_check(2, 1, refused, &(refusal){"unhandled system error", true});
}

#endif

/* ---- EK_DIST_NCCL ---- */

TEST(nccl_that_is_missing_is_told_at_the_beginning)
{
    setenv("EVENKEEL_CUDA_WITHOUT", "nccl", 1);
    assert_refused(ek_dist_init_process_group(.backend = EK_DIST_NCCL), EK_E_BACKEND,
                   "NCCL cannot be used: EVENKEEL_CUDA_WITHOUT names it");
    ck_assert(!ek_dist_is_initialized());
    assert_ok(ek_dist_init_process_group());
}

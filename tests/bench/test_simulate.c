/* The simulated schedule against schedules worked out by hand, and against closed forms. */
#include "simulate.h"

#include <math.h>

#include "unit.h"

FIXTURE(NULL, NULL)

#define CHECK_NEAR(a, b) ck_assert_double_eq_tol(a, b, 1e-9)

/* Nodes of one rank: messages of 2 + 3 n seconds, 5 seconds per byte of a term. */
static const sim_cluster plain = {.network = {2, 3}, .per_node = 1, .threads = 1, .add = 5};

static void check_cost(sim_cost cost, double spread, double add, double collect)
{
    CHECK_NEAR(cost.spread, spread);
    CHECK_NEAR(cost.add, add);
    CHECK_NEAR(cost.collect, collect);
}

TEST(sums_cost_what_the_formulas_say)
{
    check_cost(sim_sum_cost(&plain, SIM_TREE, 4, 8), 24, 30, 24);
    check_cost(sim_sum_cost(&plain, SIM_TREE, 3, 9), 22, 30, 22);
    check_cost(sim_sum_cost(&plain, SIM_RING, 4, 8), 24, 30, 24);
    check_cost(sim_sum_cost(&plain, SIM_SENT, 4, 8), 24, 30, 24);
    /* Four ranks at once, then halves: messages of 2, and of 1 byte. */
    check_cost(sim_sum_cost(&plain, SIM_TREE, 8, 8), 3 * (2 + 6) + 2 + 3, 30 + 5, 29);
    check_cost(sim_sum_cost(&plain, SIM_LIBRARY, 4, 8), 74, 0, 0);    /* halving and doubling */
    check_cost(sim_sum_cost(&plain, SIM_LIBRARY, 4, 0.1), 5.6, 0, 0); /* recursive doubling */
    for (int sum = 0; sum < SIM_SUMS; sum++)
        check_cost(sim_sum_cost(&plain, (sim_sum)sum, 1, 8), 0, 0, 0);
}

TEST(the_ranks_of_a_node_share_its_network)
{
    sim_cluster cluster = plain;
    cluster.per_node = 2;
    cluster.local = (sim_link){1, 1};
    check_cost(sim_sum_cost(&cluster, SIM_TREE, 4, 8), 5 + 14, 30, 5 + 14);
    check_cost(sim_sum_cost(&cluster, SIM_RING, 4, 8), 24, 30, 24);
    check_cost(sim_sum_cost(&cluster, SIM_LIBRARY, 4, 8), 6 + 8 + 24 + 30, 0, 0);
    /* All on one node: nothing passes the network. */
    check_cost(sim_sum_cost(&cluster, SIM_TREE, 2, 8), 5, 20, 5);
}

TEST(shared_memory_is_added_in_place)
{
    sim_cluster cluster = plain;
    cluster.per_node = 4;
    cluster.shared = 7;
    check_cost(sim_sum_cost(&cluster, SIM_TREE, 4, 8), 0, 56, 0);
    check_cost(sim_sum_cost(&cluster, SIM_TREE, 2, 8), 0, 56, 0);
    check_cost(sim_sum_cost(&cluster, SIM_SENT, 2, 8), 4 * cluster.local.per_byte, 20, 0);
    /* Two nodes: each rank's quarter is halved, while four ranks share the network. */
    check_cost(sim_sum_cost(&cluster, SIM_TREE, 8, 8), 2 + 3 * 4, 56 + 5, 14);
    cluster.per_node = 1;
    check_cost(sim_sum_cost(&cluster, SIM_TREE, 4, 8), 24, 30, 24);
}

/* At equal bytes, latency decides: a ring's grows with the ranks, that of the tree and of the
 * library with their logarithm. */
TEST(many_ranks_are_for_trees)
{
    sim_cluster fast = {.network = {2e-6, 8e-11}, .per_node = 1, .threads = 1};
    sim_cost ring = sim_sum_cost(&fast, SIM_RING, 4096, 25e6);
    sim_cost tree = sim_sum_cost(&fast, SIM_TREE, 4096, 25e6);
    sim_cost library = sim_sum_cost(&fast, SIM_LIBRARY, 4096, 25e6);
    CHECK_NEAR(ring.spread + ring.collect, 2 * 4095 * (2e-6 + 25e6 / 4096 * 8e-11));
    CHECK_NEAR(tree.spread + tree.collect, 2 * 13 * 2e-6 + 2 * 4095.0 / 4096 * 25e6 * 8e-11);
    CHECK_NEAR(library.spread, 2 * 12 * 2e-6 + 2 * 4095.0 / 4096 * 25e6 * 8e-11);
}

static sim_profile profile_of(double ready, double nbytes)
{
    return (sim_profile){.forward = 1,
                         .backward = 2,
                         .optimizer = 3,
                         .bucket_count = 1,
                         .buckets = {{ready, nbytes}}};
}

static const sim_run four = {.ranks = 4, .in_flight = 1, .steps = 1};

TEST(one_rank_has_its_own_work_alone)
{
    sim_profile profile = profile_of(2, 8);
    sim_result result = sim_simulate(&profile, &plain, (sim_run){.ranks = 1, .steps = 1});
    CHECK_NEAR(result.step, 6);
    CHECK_NEAR(result.exposed, 0);
    CHECK_NEAR(result.efficiency, 1);
}

TEST(a_bucket_that_is_ready_last_is_exposed_whole)
{
    sim_profile profile = profile_of(2, 8);
    sim_cluster cluster = plain;
    double agreement = 2 * 2, sum = 24 + 30 + 24, report = 2 * 2;
    sim_result result = sim_simulate(&profile, &cluster, four);
    CHECK_NEAR(result.step, 1 + agreement + sum + report + 3);
    CHECK_NEAR(result.exposed, agreement + sum + report - 2);
    CHECK_NEAR(result.efficiency, 6 / result.step);
    profile.descriptor_nbytes = 10;
    profile.report_nbytes = 100;
    cluster.turn = 0.5;
    double bytes = 2 * 3 * 110;
    CHECK_NEAR(sim_simulate(&profile, &cluster, four).step, result.step + bytes + 4 * 0.5);
    profile.buckets[0].ready = 7; /* none comes after backward's end */
    CHECK_NEAR(sim_simulate(&profile, &cluster, four).step, result.step + bytes + 4 * 0.5);
}

TEST(what_is_ready_early_is_hidden)
{
    sim_profile profile = profile_of(1, 8);
    profile.backward = 100;
    sim_result result = sim_simulate(&profile, &plain, four);
    CHECK_NEAR(result.exposed, 2 * 2); /* the reports */
    CHECK_NEAR(result.step, 1 + 100 + 4 + 3);
}

/* A library's sum is one call, without an addition of ours. */
TEST(a_library_has_one_stage)
{
    sim_profile profile = profile_of(2, 8);
    sim_run run = four;
    run.sum = SIM_LIBRARY;
    sim_cluster cluster = plain;
    cluster.turn = 0.5;
    CHECK_NEAR(sim_simulate(&profile, &cluster, run).step, 1 + 4 + 74 + 4 + 3 + 3 * 0.5);
}

/* Three buckets on two ranks: spread, addition and collection take 2 seconds each. */
static const sim_profile three = {.backward = 3,
                                  .bucket_count = 3,
                                  .buckets = {{1, 4}, {2, 4}, {3, 4}}};
static const sim_cluster unit = {.network = {0, 1}, .per_node = 1, .threads = 1, .add = 1};

static sim_result run_three(const sim_cluster *cluster, int in_flight)
{
    return sim_simulate(&three, cluster, (sim_run){.ranks = 2, .in_flight = in_flight, .steps = 1});
}

TEST(buckets_go_one_after_another)
{
    sim_result result = run_three(&unit, 1);
    CHECK_NEAR(result.step, 1 + 3 * 6);
    CHECK_NEAR(result.exposed, result.step - 3);
}

/* Spreads at 1, 3, 7; additions at 3, 5, 9; collections at 5, 9, 11. */
TEST(two_in_flight_add_while_the_link_is_used)
{
    CHECK_NEAR(run_three(&unit, 2).step, 13);
}

/* Spreads at 1, 3, 5; additions at 3, 5, 7; collections at 7, 9, 11. */
TEST(three_in_flight_use_all_of_the_link)
{
    CHECK_NEAR(run_three(&unit, 3).step, 13);
}

/* Two: spreads at 2, 4, 10; collections at 7, 12, 15. Three: spreads at 2, 4, 6; collections at 8,
 * 10, 12. The reports have a turn too. */
TEST(turns_pass_while_others_use_the_link)
{
    sim_cluster cluster = unit;
    cluster.turn = 1;
    CHECK_NEAR(run_three(&cluster, 1).step, 1 + 3 * 8 + 1);
    CHECK_NEAR(run_three(&cluster, 2).step, 17 + 1);
    CHECK_NEAR(run_three(&cluster, 3).step, 14 + 1);
}

TEST(a_thread_that_adds_copies_nothing)
{
    sim_cluster cluster = unit;
    cluster.load = 1;
    for (int in_flight = 1; in_flight <= 3; in_flight++)
        CHECK_NEAR(run_three(&cluster, in_flight).step, 19);
}

/* The core is never idle, whatever the order. */
TEST(a_single_core_does_one_thing_at_a_time)
{
    sim_cluster cluster = unit;
    cluster.load = cluster.cores = 1;
    for (int in_flight = 1; in_flight <= 3; in_flight++)
        CHECK_NEAR(run_three(&cluster, in_flight).step, 3 + 18);
    CHECK_NEAR(run_three(&cluster, 1).exposed, 16);
}

/* A transfer that takes half a core, beside a thread that computes on the same one: the backward
 * has 2/3 of it, the transfer goes at 4/5 of its speed. */
TEST(transfers_may_take_a_part_of_a_core)
{
    sim_profile profile = {.backward = 2, .bucket_count = 1, .buckets = {{0, 3.2}}};
    sim_cluster cluster = {.network = {0, 1}, .per_node = 1, .threads = 1, .cores = 1, .load = 0.5};
    sim_result result =
        sim_simulate(&profile, &cluster, (sim_run){.ranks = 2, .in_flight = 1, .steps = 1});
    CHECK_NEAR(result.step, 2 + 1 + 0.8);
    CHECK_NEAR(result.exposed, 0.8);
}

TEST(ranks_share_the_cores_of_their_node)
{
    sim_profile profile = profile_of(1, 8);
    sim_cluster cluster = {.per_node = 4, .cores = 2, .threads = 1};
    CHECK_NEAR(sim_simulate(&profile, &cluster, four).step, 12);
    cluster.threads = 2;
    CHECK_NEAR(sim_simulate(&profile, &cluster, four).step, 24);
    cluster.per_node = 1;
    CHECK_NEAR(sim_simulate(&profile, &cluster, four).step, 6);
}

TEST(buffers_come_before_the_forward)
{
    sim_profile profile = profile_of(1, 8);
    sim_cluster cluster = plain;
    cluster.turn = 0.5;
    double without = sim_simulate(&profile, &cluster, four).step;
    profile.buffer_nbytes = 7;
    double agreement = 2 * 2, tree = 2 * (2 + 7 * 3);
    CHECK_NEAR(sim_simulate(&profile, &cluster, four).step, without + agreement + tree + 2 * 0.5);
}

/* The mean of the largest of N normal deviates is 1.4236 for 8 and 2.3438 for 64. */
TEST(the_slowest_rank_is_waited_for)
{
    sim_profile profile = {.backward = 1, .bucket_count = 1, .buckets = {{0, 1}}};
    sim_cluster free = {.per_node = 1, .threads = 1};
    sim_run run = {.ranks = 8, .in_flight = 1, .sigma = 0.01, .steps = 4000, .seed = 3};
    double eight = sim_simulate(&profile, &free, run).step;
    CHECK_NEAR(eight, sim_simulate(&profile, &free, run).step);
    ck_assert_double_eq_tol(eight, 1.014236, 5e-4);
    run.ranks = 64;
    ck_assert_double_eq_tol(sim_simulate(&profile, &free, run).step, 1.023438, 5e-4);
    run.ranks = 1;
    ck_assert_double_eq_tol(sim_simulate(&profile, &free, run).step, 1, 5e-4);
    run.sigma = 0;
    CHECK_NEAR(sim_simulate(&profile, &free, run).step, 1);
}

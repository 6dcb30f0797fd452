/* Reports of several ranks: what is gathered, who writes, and what is written. */
#include <stdatomic.h>
#include <unistd.h>

#include "json_tree.h"
#include "kit/ranks.h"

enum { RANKS = 2 };

static char directory[64], path[128];

static void setup(void)
{
    strcpy(directory, "/tmp/evenkeel-ranks-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
    assert_ok(ek_host_devices_configure("2x1M"));
}

static void teardown(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(directory), 0);
    assert_ok(ek_shutdown());
}

FIXTURE(setup, teardown)

/* Returns this rank's report. One report collects at a time in a process, so that the ranks collect
 * one after another. Rank r uses host:r and has r + 2 steps. */
static ek_report *make_report(ek_process_group *world)
{
    ek_report *report = NULL;
    for (int turn = 0; turn < RANKS; turn++) {
        const bool mine = turn == world->rank;
        if (mine)
            report = ek_report_start(.name = "run", .process_group = world,
                                     .device_ids = EK_DEVICES(ek_host(turn)));
        for (int call = 0; call < 3; call++)
            if (ek_dist_barrier(.group = world) < 0)
                return NULL;
        ek_scope scope = ek_scope_begin();
        ek_thread_self()->modes.path = ek_path_join(ek_path_root, turn ? "second" : "first");
        for (int step = 0; mine && report && step < turn + 2; step++)
            if (!ek_zeros(EK_SHAPE(1000 * (turn + 1)), .device = ek_host(turn)) ||
                ek_report_step(report) < 0)
                return NULL;
        if (mine && ek_zeros(EK_SHAPE(1 << 30), .device = ek_host(turn)))
            return NULL;
        ek_error_clear();
        ek_thread_self()->modes.path = ek_path_root;
        ek_scope_end(&scope);
        if ((mine && ek_report_stop(report) < 0) || ek_dist_barrier(.group = world) < 0)
            return NULL;
    }
    return report;
}

/* Checks that the gathered report has the data of all ranks. */
static const char *knows_all(const ek_report *report)
{
    ek_memory_sample samples[64];
    LOOP_CHECK_EQ(ek_report_rank_count(report), RANKS);
    LOOP_CHECK_EQ(ek_report_device_count(report), RANKS);
    for (int r = 0; r < RANKS; r++) {
        ek_rank_report rank;
        ek_device_report device;
        RANKS_OK(ek_report_get_rank(report, r, &rank));
        RANKS_OK(ek_report_get_device(report, r, &device));
        LOOP_CHECK_EQ(rank.rank, r);
        LOOP_CHECK_EQ(rank.steps, r + 2);
        LOOP_CHECK(rank.seconds > 0 && rank.exposed > 0 && rank.exposed <= rank.seconds);
        LOOP_CHECK(rank.host[0] && rank.calls >= 2 && rank.last <= rank.calls);
        LOOP_CHECK_EQ(device.rank, r);
        LOOP_CHECK(ek_device_equal(device.device, ek_host(r)));
        LOOP_CHECK(device.peak.in_use >= 4000u * ((unsigned)r + 1));
        LOOP_CHECK(device.holder_count == 1 && device.out_of_memory.holder_count == 1);
        LOOP_CHECK(strcmp(device.holders[0].path, r ? "second" : "first") == 0);
        LOOP_CHECK_EQ(device.holders[0].nbytes, device.peak.in_use);
        LOOP_CHECK(strcmp(device.out_of_memory.holders[0].path, r ? "second" : "first") == 0);
        LOOP_CHECK(ek_report_memory(report, r, samples, 64) > 1);
        LOOP_CHECK_EQ(samples[0].in_use, 0);
    }
    ek_device_report device;
    RANKS_EXPECT(ek_report_get_device(report, RANKS, &device), EK_E_INVALID, "no device 2");
    LOOP_CHECK(ek_report_imbalance(report) > 1);
    return NULL;
}

RANKS_LOOP(a_report_takes_in_all_ranks, RANKS, 0, 3)
{
    ek_report *report = make_report(world);
    LOOP_CHECK(report);
    ek_rank_report rank;
    LOOP_CHECK_EQ(ek_report_device_count(report), 1);
    LOOP_CHECK_EQ(ek_report_rank_count(report), 1);
    RANKS_OK(ek_report_get_rank(report, 0, &rank));
    LOOP_CHECK_EQ(rank.rank, world->rank);
    RANKS_OK(ek_report_gather(report));
    LOOP_PASS(knows_all(report));
    RANKS_OK(ek_report_gather(report)); /* sends each rank's data again */
    LOOP_PASS(knows_all(report));
    ek_report_free(report);
    return NULL;
}

/* Sets an expectation of the rank's device. */
static const char *expects(ek_report *report, int rank)
{
    const uint64_t peak = 100u * ((unsigned)rank + 1);
    const ek_expectation e = {
        .batch = 10 + rank,
        .device_count = 1,
        .devices = {{.device = ek_host(rank), .peak = peak, .now = {[EK_MEMORY_GATHERED] = peak}}}};
    RANKS_OK(ek_report_expect(report, &e));
    return NULL;
}

RANKS_TEST(expectations_of_devices_travel, RANKS, 1)
{
    ek_report *report = make_report(world);
    LOOP_CHECK(report);
    LOOP_PASS(expects(report, world->rank));
    RANKS_OK(ek_report_gather(report));
    for (int r = 0; r < RANKS; r++) {
        ek_device_report device;
        RANKS_OK(ek_report_get_device(report, r, &device));
        LOOP_CHECK_EQ(device.expected.in_use, 100u * ((unsigned)r + 1));
        LOOP_CHECK_EQ(device.expected.now[EK_MEMORY_GATHERED], device.expected.in_use);
    }
    ek_report_free(report);
    return NULL;
}

/* ---- writing ---- */

/* A live page is not collective: rank 0 writes alone, and calls of rank 1 write nothing. */
RANKS_TEST(rank_0_writes_the_live_page, RANKS, 1)
{
    for (int turn = 0; turn < RANKS; turn++) {
        if (turn == world->rank) {
            const int written = turn == 0 ? 0 : -1;
            ek_report *report =
                ek_report_start(.process_group = world, .device_ids = EK_DEVICES(ek_host(turn)));
            RANKS_OK(ek_report_live(report, path, &(ek_report_page){.every = 1e-9}));
            LOOP_CHECK_EQ(unlink(path), written);
            RANKS_OK(ek_report_step(report));
            LOOP_CHECK_EQ(unlink(path), written);
            RANKS_OK(ek_report_stop(report));
            LOOP_CHECK_EQ(unlink(path), written);
            ek_report_free(report);
        }
        RANKS_OK(ek_dist_barrier(.group = world));
    }
    return NULL;
}

RANKS_TEST(rank_0_prints_the_table, RANKS, 1)
{
    char *text = NULL;
    size_t length = 0;
    ek_report *report = make_report(world);
    FILE *stream = open_memstream(&text, &length);
    LOOP_CHECK(report && stream);
    RANKS_OK(ek_report_table(report, stream));
    fclose(stream);
    if (world->rank == 0) {
        LOOP_CHECK(strstr(text, "run: 2 steps, "));
        LOOP_CHECK(strstr(text, "; 2 ranks\n"));
        LOOP_CHECK(strstr(text, "\nrank 0 host:0 "));
        LOOP_CHECK(strstr(text, "\nrank 1 host:1 "));
        LOOP_CHECK(strstr(text, "exposed"));
    } else {
        LOOP_CHECK_EQ(length, 0);
    }
    free(text);
    ek_report_free(report);
    return NULL;
}

static const char *writes(ek_process_group *world, void *user)
{
    ek_report *report = make_report(world);
    LOOP_CHECK(report);
    LOOP_PASS(expects(report, world->rank));
    RANKS_OK(ek_report_json(path, &report, 1));
    LOOP_CHECK(access(path, F_OK) == 0); /* rank 0 has written it before any rank returns */
    ek_report_free(report);
    return NULL;
}

TEST(the_json_has_ranks_and_their_devices)
{
    json_tree tree;
    ranks_check(RANKS, 1, writes, NULL);
    const json_node *report = json_item(json_at(json_load(&tree, path), "reports"), 0);
    for (int r = 0; r < RANKS; r++) {
        const json_node *rank = json_item(json_at(report, "ranks"), r);
        const json_node *device = json_item(json_at(report, "devices"), r);
        ck_assert(json_number_at(rank, "rank") == r);
        ck_assert(json_number_at(rank, "steps") == r + 2);
        ck_assert(json_number_at(rank, "exposed") > 0);
        ck_assert(json_number_at(rank, "calls") >= 2);
        ck_assert(json_number_at(rank, "last") <= json_number_at(rank, "calls"));
        ck_assert(json_number_at(rank, "waited_for") >= -1);
        ck_assert(json_text_at(rank, "host")[0]);
        ck_assert(json_number_at(device, "rank") == r);
        ck_assert(json_number_at(json_at(device, "expected"), "in_use") == 100 * (r + 1));
        ck_assert_str_eq(json_text_at(device, "device"), r ? "host:1" : "host:0");
    }
    ck_assert(json_number_at(json_at(report, "expected"), "batch") == 10); /* rank 0's */
    json_free(&tree);
}

static const char *traces(ek_process_group *world, void *user)
{
    ek_report *report = make_report(world);
    LOOP_CHECK(report);
    RANKS_OK(ek_report_trace(path, report));
    ek_report_free(report);
    return NULL;
}

TEST(a_trace_has_a_process_per_rank)
{
    json_tree tree;
    int names = 0, counters[RANKS + 1] = {0};
    ranks_check(RANKS, 1, traces, NULL);
    const json_node *events = json_at(json_load(&tree, path), "traceEvents");
    json_each(event, events)
    {
        int pid = (int)json_number_at(event, "pid");
        ck_assert(pid >= 1 && pid <= RANKS);
        names += strcmp(json_text_at(event, "name"), "process_name") == 0;
        counters[pid] += strcmp(json_text_at(event, "ph"), "C") == 0;
    }
    ck_assert_int_eq(names, RANKS);
    ck_assert(counters[1] > 0 && counters[2] > 0);
    json_free(&tree);
}

/* ---- errors ---- */

static atomic_int told;

RANKS_TEST(an_error_of_a_rank_is_an_error_of_all, RANKS, 1)
{
    ek_report *report = make_report(world), *none = NULL;
    LOOP_CHECK(report);
    int own = world->rank == 0 ? EK_E_IO : EK_E_ABORTED;
    RANKS_EXPECT(ek_report_json("/nowhere/x.json", &report, 1), own, "/nowhere/x.json");
    own = world->rank == 1 ? EK_E_INVALID : EK_E_ABORTED;
    RANKS_EXPECT(ek_report_html(world->rank == 1 ? "" : path, &report, 1), own, "no path");
    LOOP_CHECK(access(path, F_OK) < 0);
    RANKS_EXPECT(ek_report_json(path, &none, 1), EK_E_INVALID,
                 "is NULL"); /* refused without the other ranks */
    double patience = world->timeout;
    if (world->rank == 0) {
        world->timeout = 0.3;
        RANKS_EXPECT(ek_report_json(path, &report, 1), EK_E_TIMEOUT, "rank 1 on ");
        world->timeout = patience;
        atomic_store(&told, 1);
    } else {
        while (!atomic_load(&told))
            usleep(1000);
        RANKS_EXPECT(ek_dist_barrier(.group = world), EK_E_TIMEOUT, "rank 1 on ");
    }
    LOOP_CHECK(access(path, F_OK) < 0);
    RANKS_OK(ek_report_gather(report));
    ek_report_free(report);
    return NULL;
}

/* Plans as text, and planners that hold them. */
#include "plan/plan_text.h"
#include "plan/planner.h"
#include "unit.h"

#define SIZES(...)    \
    (const int64_t[]) \
    {                 \
        __VA_ARGS__   \
    }

static void assert_sizes(const int64_t *sizes, int devices, const int64_t *wanted)
{
    for (int i = 0; i < devices; i++)
        ck_assert_int_eq(sizes[i], wanted[i]);
}

/* ---- text ---- */

TEST(text_is_read_and_written)
{
    static const char *const same[] = {"12,20,20", "16,16,16; 4: 22,13,13",
                                       "0,0,1; 7: 1,0,0; 8: 1,1,1",
                                       "1000000000000000,0,0; 1000000000000000000: 1,2,3"};
    char text[200];
    ek_plans plans;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_ok(ek_plan_check(same[i], 3));
        assert_ok(ek_plans_parse(&plans, same[i], 3));
        ck_assert_uint_eq(ek_plans_write(&plans, text, sizeof text), strlen(same[i]));
        ck_assert_str_eq(text, same[i]);
        ek_plans_free(&plans);
    }
    assert_ok(ek_plans_parse(&plans, "\t 0 : 16 ,16,\n16 ;4:22,13,13 ", 3));
    ck_assert_uint_eq(ek_plans_write(&plans, NULL, 0), 21);
    char narrow[6] = "xxxxx";
    ck_assert_uint_eq(ek_plans_write(&plans, narrow, 5), 21);
    ck_assert_str_eq(narrow, "16,1");
    assert_sizes(ek_plans_at(&plans, 0), 3, SIZES(16, 16, 16));
    assert_sizes(ek_plans_at(&plans, 3), 3, SIZES(16, 16, 16));
    assert_sizes(ek_plans_at(&plans, 4), 3, SIZES(22, 13, 13));
    assert_sizes(ek_plans_at(&plans, INT64_MAX), 3, SIZES(22, 13, 13));
    ek_plans_free(&plans);
}

TEST(faults_are_named_with_their_position)
{
    static const struct {
        const char *text, *part;
    } faults[] = {
        {"", "a number of samples wanted at position 1"},
        {"   ", "a number of samples wanted at position 4"},
        {"1,2", "has 2 sizes, but there are 3 devices; a comma is wanted at position 4"},
        {"1,2,3,4", "has more than 3 sizes"},
        {"1,,2", "a number of samples wanted at position 3"},
        {"1,-2,3", "a number of samples wanted at position 3"},
        {"1,2,3.5", "a semicolon or the end wanted at position 6"},
        {"0,0,0", "position 1 gives no device a sample"},
        {"1,2,3; 0,1,2", "the number of a forward and a colon wanted at position 7"},
        {"1,2,3;", "the number of a forward and a colon wanted at position 7"},
        {"1,2,3; 4: ", "a number of samples wanted at position 11"},
        {"1,2,3; 0: 1,2,3", "at position 8 is for forward 0, the one before it for 0"},
        {"1,2,3; 5: 1,2,3; 4: 1,2,3", "at position 18 is for forward 4, the one before it for 5"},
        {"2: 1,2,3", "it must be for forward 0"},
        {": 1,2,3", "the number of a forward wanted at position 1"},
        {"1000000000000001,2,3", "position 1 (\"1000000000000001,2,3\") is above"},
        {"99999999999999999999999999999999,2,3", "is above 1000000000000000"},
        {"1,2,3; 99999999999999999999: 1,2,3", "is above 1000000000000000000"},
        {"\xff\xfe", "a number of samples wanted at position 1"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        ck_assert_msg(ek_plan_check(faults[i].text, 3) == EK_E_INVALID, "%s", faults[i].text);
        assert_error(EK_E_INVALID, faults[i].part);
    }
    assert_refused(ek_plan_check(NULL, 3), EK_E_INVALID, "the plan is NULL");
    assert_refused(ek_plan_check("1", 0), EK_E_INVALID, "between 1 and 64 devices, not for 0");
    assert_refused(ek_plan_check("1", 65), EK_E_INVALID, "not for 65");
}

/* Long and hostile text is refused or taken, and never read beyond its end. */
TEST(hostile_text_does_no_harm)
{
    static const char alphabet[] = "0123456789,,,;:  \t-+.eEx%n\x80";
    uint64_t state = 5;
    int taken = 0;
    for (int round = 0; round < 20000; round++) {
        size_t length = (size_t)(round % 90);
        char *text = malloc(length + 1);
        for (size_t i = 0; i < length; i++) {
            state = state * UINT64_C(6364136223846793005) + 1;
            text[i] = alphabet[(state >> 33) % (round % 2 ? 18 : sizeof alphabet - 1)];
        }
        text[length] = '\0';
        int rc = ek_plan_check(text, 1 + round % 3);
        taken += rc == 0;
        ck_assert(rc == 0 || rc == EK_E_INVALID);
        ck_assert_int_eq(ek_error_status(), rc);
        ek_error_clear();
        free(text);
    }
    ck_assert_int_gt(taken, 10);
    const int entries = 100000;
    char *text = malloc((size_t)entries * 20);
    size_t used = (size_t)sprintf(text, "1,2");
    for (int i = 1; i < entries; i++)
        used += (size_t)sprintf(text + used, "; %d: %d,%d", i, i, i + 1);
    assert_ok(ek_plan_check(text, 2));
    memset(text, '7', used);
    ck_assert_int_eq(ek_plan_check(text, 2), EK_E_INVALID);
    ek_error_clear();
    free(text);
}

/* ---- planners ---- */

#define CHUNKS(...) ((const int64_t[EK_MAX_DEVICES]){__VA_ARGS__})
#define WEIGHTS(...) ((const double[EK_MAX_DEVICES]){__VA_ARGS__})
#define FIRST(samples) (&(const int64_t){samples})

static ek_planner *planner_of(const ek_split_options *options, int devices)
{
    ek_planner *planner = ek_planner_new("data_parallel", options, devices);
    assert_made(planner);
    return planner;
}

static void assert_begins(ek_planner *planner, int64_t batch, int devices, const int64_t *wanted)
{
    ek_dev *devs[EK_MAX_DEVICES] = {NULL};
    int64_t sizes[EK_MAX_DEVICES];
    assert_ok(ek_planner_peek(planner, devs, batch, sizes));
    assert_sizes(sizes, devices, wanted);
    assert_ok(ek_planner_begin(planner, devs, batch, sizes));
    assert_sizes(sizes, devices, wanted);
}

static void assert_text(const ek_planner *planner, const char *wanted)
{
    char text[200] = "?";
    ck_assert_uint_eq(ek_planner_text(planner, text, sizeof text), strlen(wanted));
    ck_assert_str_eq(text, wanted);
}

TEST(wishes_become_sizes)
{
    ek_planner *planner = planner_of(&(ek_split_options){0}, 3);
    ck_assert(ek_planner_is_chunk(planner));
    assert_begins(planner, 10, 3, SIZES(4, 4, 2));
    assert_text(planner, "");
    ek_planner_free(planner);

    planner = planner_of(&(ek_split_options){.policy = EK_SPLIT_EVEN}, 3);
    ck_assert(!ek_planner_is_chunk(planner));
    assert_begins(planner, 10, 3, SIZES(4, 3, 3));
    assert_begins(planner, 2, 3, SIZES(1, 1, 0));
    assert_text(planner, "1,1,1");
    ek_planner_free(planner);

    planner = planner_of(&(ek_split_options){.chunks = CHUNKS(12, 0, 20)}, 3);
    assert_begins(planner, 32, 3, SIZES(12, 0, 20));
    assert_begins(planner, 16, 3, SIZES(6, 0, 10));
    assert_text(planner, "12,0,20");
    ek_planner_free(planner);

    planner = planner_of(&(ek_split_options){.weights = WEIGHTS(0.5, 1, 1)}, 3);
    assert_begins(planner, 10, 3, SIZES(2, 4, 4));
    assert_text(planner, "1,2,2");
    ek_planner_free(planner);

    planner = planner_of(&(ek_split_options){.first_device_batch = FIRST(3)}, 4);
    assert_begins(planner, 30, 4, SIZES(3, 9, 9, 9));
    assert_text(planner, "");
    ek_planner_free(planner);

    planner = planner_of(&(ek_split_options){.first_device_batch = FIRST(0)}, 4);
    assert_begins(planner, 60, 4, SIZES(0, 20, 20, 20));
    ek_planner_free(planner);
}

TEST(a_plan_is_replayed)
{
    char text[] = "16,16,16; 2: 22,13,13";
    ek_planner *planner = planner_of(&(ek_split_options){.plan = text}, 3);
    memset(text, 0, sizeof text);
    assert_begins(planner, 48, 3, SIZES(16, 16, 16));
    assert_begins(planner, 24, 3, SIZES(8, 8, 8));
    assert_begins(planner, 48, 3, SIZES(22, 13, 13));
    assert_begins(planner, 24, 3, SIZES(11, 7, 6));
    assert_text(planner, "16,16,16; 2: 22,13,13");
    ek_planner_free(planner);
}

/* Text says what any weights give, to the bit. */
TEST(weights_are_replayed)
{
    uint64_t state = 11;
    for (int round = 0; round < 300; round++) {
        double weights[EK_MAX_DEVICES] = {0};
        for (int i = 0; i < 5; i++) {
            state = state * UINT64_C(6364136223846793005) + 1;
            weights[i] = (double)(state >> 11) * 0x1p-53;
        }
        ek_planner *planner = planner_of(&(ek_split_options){.weights = weights}, 5);
        char text[200];
        ck_assert_uint_lt(ek_planner_text(planner, text, sizeof text), sizeof text);
        ek_planner *again = planner_of(&(ek_split_options){.plan = text}, 5);
        int64_t sizes[EK_MAX_DEVICES];
        ek_dev *devs[EK_MAX_DEVICES] = {NULL};
        for (int64_t batch = 1; batch < 200; batch += 7) {
            assert_ok(ek_planner_begin(planner, devs, batch, sizes));
            assert_begins(again, batch, 5, sizes);
        }
        ek_planner_free(planner);
        ek_planner_free(again);
    }
}

static void assert_plan_refused(const ek_split_options *options, int devices, const char *part)
{
    assert_refused(ek_planner_new("data_parallel", options, devices), EK_E_INVALID, part);
}

TEST(contradictions_are_refused)
{
    assert_plan_refused(&(ek_split_options){.chunks = CHUNKS(1), .weights = WEIGHTS(1)}, 2,
                        "data_parallel: one way to split is possible, not .chunks .weights");
    assert_plan_refused(&(ek_split_options){.policy = EK_SPLIT_AUTO, .chunks = CHUNKS(1)}, 2,
                        "not EK_SPLIT_AUTO .chunks");
    assert_plan_refused(&(ek_split_options){.policy = EK_SPLIT_AUTO,
                                            .plan = "1,1",
                                            .chunks = CHUNKS(1)},
                        2, "not EK_SPLIT_AUTO .chunks .plan");
    assert_plan_refused(&(ek_split_options){.policy = EK_SPLIT_AUTO, .plan = "1,1,"}, 2,
                        "data_parallel: .plan: plan \"1,1,\"");
    assert_plan_refused(&(ek_split_options){.policy = EK_SPLIT_EVEN, .plan = "1,1"}, 2,
                        "not EK_SPLIT_EVEN .plan");
    assert_plan_refused(&(ek_split_options){.policy = EK_SPLIT_EVEN,
                                            .first_device_batch = FIRST(2)},
                        2, "not EK_SPLIT_EVEN .first_device_batch");
    assert_plan_refused(&(ek_split_options){.policy = 3}, 2, "3 is no way to split");
    assert_plan_refused(&(ek_split_options){.goal = 2}, 2, "2 is no goal");
    assert_plan_refused(&(ek_split_options){.goal = EK_GOAL_TIME}, 2, "add .split = EK_SPLIT_AUTO");
    assert_plan_refused(&(ek_split_options){.chunks = CHUNKS(1, 2, 3)}, 2,
                        ".chunks[2] is 3, but there are 2");
    assert_plan_refused(&(ek_split_options){.chunks = CHUNKS(1, -2)}, 2, ".chunks[1] is -2");
    assert_plan_refused(&(ek_split_options){.chunks = CHUNKS(0)}, 2,
                        ".chunks gives no device a sample");
    assert_plan_refused(&(ek_split_options){.weights = WEIGHTS(1, -0.5)}, 2, ".weights[1] is -0.5");
    assert_plan_refused(&(ek_split_options){.weights = WEIGHTS(1, 1 / 0.0)}, 2,
                        ".weights[1] is inf");
    assert_plan_refused(&(ek_split_options){.weights = WEIGHTS(1, 0 / 0.0)}, 2, ".weights[1] is ");
    assert_plan_refused(&(ek_split_options){.first_device_batch = FIRST(-1)}, 2,
                        ".first_device_batch is -1");
    assert_plan_refused(&(ek_split_options){.plan = "1,2,3"}, 2,
                        "data_parallel: .plan: plan \"1,2,3\": the entry at position 1 has more");
    assert_plan_refused(&(ek_split_options){0}, 0, "between 1 and 64 devices, not for 0");
    ek_planner *planner = planner_of(&(ek_split_options){0}, 2);
    int64_t sizes[2];
    ek_dev *devs[2] = {NULL};
    assert_refused(ek_planner_begin(planner, devs, 0, sizes), EK_E_INVALID, "a batch of 0 samples");
    ek_planner_free(planner);
    ek_planner_free(NULL);
}

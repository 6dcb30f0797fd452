/* Rendezvous: parts of a gang that meet, and every way in which they don't. */
#include <stdatomic.h>

#include "core/object.h"
#include "core/rendezvous.h"
#include "core/tensor.h"
#include "core/worker.h"
#include "unit.h"

enum { DEVICES = 4, ROUNDS = 1000 };
static ek_dev *devs[DEVICES];

static void setup(void)
{
    assert_ok(ek_host_devices_configure("4"));
    for (int i = 0; i < DEVICES; i++) {
        devs[i] = ek_dev_get(ek_host(i));
        assert_made(devs[i]);
    }
}

FIXTURE(setup, NULL)

/* What a part brings: a number, and room for the sum of all. */
typedef struct number {
    int value, sum, count;
} number;

static int add(void *const *parts, int count)
{
    int sum = 0;
    for (int i = 0; i < count; i++)
        sum = 10 * sum + ((number *)parts[i])->value;
    for (int i = 0; i < count; i++) {
        ((number *)parts[i])->sum = sum;
        ((number *)parts[i])->count = count;
    }
    ek_empty(EK_SHAPE(100), .device = ek_host(0)); /* gone with the scope */
    return 0;
}

static int meet(const char *name, uint64_t place, int value, int sum)
{
    number mine = {.value = value};
    int rc = ek_rendezvous(name, place, &mine, add);
    if (rc >= 0 && mine.sum != sum)
        rc = ek_error(EK_E_USER, "the sum is %d, not %d", mine.sum, sum);
    return rc;
}

/* The gang is usable again after whatever happened. */
static int meet_once(void *user, int index)
{
    return meet("again", 1, index, 123);
}

static void assert_usable(void)
{
    assert_ok(ek_jobs_run(devs, DEVICES, meet_once, NULL, "replica"));
}

/* ---- meeting ---- */

static int meet_often(void *user, int index)
{
    int rc = 0;
    if (ek_rendezvous_count() != DEVICES)
        return ek_error(EK_E_USER, "%d parts", ek_rendezvous_count());
    for (int i = 0; i < ROUNDS && rc >= 0; i++)
        rc = meet(i % 2 ? "odd" : "even", (uint64_t)i, index + i % 3, (i % 3) * 1111 + 123);
    return rc;
}

TEST(parts_meet_in_order_as_often_as_they_like)
{
    assert_ok(ek_jobs_run(devs, DEVICES, meet_often, NULL, "replica"));
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(ek_host(0), &stats));
    ck_assert_uint_eq(stats.in_use, 0);
}

static int inner_part(void *user, int index)
{
    (void)index; /* of the inner gang: 0 */
    return meet("inner", 3, *(int *)user, 5678);
}

static int nest_single(void *user, int index)
{
    int value = index + 5;
    return ek_jobs_run(&devs[index], 1, inner_part, &value, "inner");
}

TEST(a_gang_of_one_belongs_to_the_gang_around_it)
{
    assert_ok(ek_jobs_run(devs, DEVICES, nest_single, NULL, "replica"));
}

TEST(one_thread_meets_itself)
{
    ck_assert_int_eq(ek_rendezvous_count(), 1);
    assert_ok(meet("alone", 1, 7, 7));
    ek_thread_self()->modes.flags = EK_MODE_ALONE;
    assert_ok(meet("alone", 1, 7, 7));
    ek_thread_self()->modes.flags = 0;
    int value = 5678; /* the sum of one part */
    assert_ok(ek_jobs_run(&devs[1], 1, inner_part, &value, "replica"));
}

TEST(cpu_meets_the_others_on_the_callers_thread)
{
    ek_dev *const mixed[] = {devs[2], ek_dev_get(ek_cpu()), devs[0], devs[1]};
    for (int i = 0; i < 100; i++)
        assert_ok(ek_jobs_run(mixed, 4, meet_once, NULL, "replica"));
    ck_assert_int_eq(ek_rendezvous_count(), 1);
}

/* ---- failing ---- */

typedef struct plan {
    int failing; /* this part fails, or ends well where status is 0 */
    int status;
    int meetings; /* before */
    atomic_int seen[DEVICES];
} plan;

static int fail_or_wait(void *user, int index)
{
    plan *p = user;
    for (int i = 0; i < p->meetings; i++) {
        int rc = meet("before", (uint64_t)i, index, 123);
        if (rc < 0)
            return rc;
    }
    if (index == p->failing)
        return p->status ? ek_error(p->status, "part %d gives up", index) : 0;
    int rc = meet("after", 9, index, 0);
    atomic_store(&p->seen[index], rc);
    if (rc >= 0)
        return ek_error(EK_E_USER, "it took place");
    /* Later ones fail too, with a sentence, though the first was swallowed. */
    char first[1024];
    strcpy(first, ek_error_message());
    ek_error_clear();
    if (meet("later", 10, index, 0) >= 0)
        return ek_error(EK_E_USER, "a later one took place");
    ek_error_clear();
    if (!strstr(first, "replica"))
        return ek_error(EK_E_USER, "no sentence: %s", first);
    return meet("after", 9, index, 0);
}

TEST(a_part_that_fails_ends_the_waiting)
{
    for (int i = 0; i < ROUNDS; i++) {
        plan p = {.failing = i % DEVICES, .status = EK_E_USER, .meetings = i % 3};
        ck_assert_int_eq(ek_jobs_run(devs, DEVICES, fail_or_wait, &p, "replica"), EK_E_USER);
        char sentence[64];
        snprintf(sentence, sizeof sentence, "replica %d on host:%d: part %d gives up", p.failing,
                 p.failing, p.failing);
        assert_error(EK_E_USER, sentence);
        for (int d = 0; d < DEVICES; d++)
            if (d != p.failing)
                ck_assert_int_eq(atomic_load(&p.seen[d]), EK_E_ABORTED);
    }
    assert_usable();
}

TEST(a_part_that_ends_well_ends_the_waiting)
{
    for (int i = 0; i < ROUNDS; i++) {
        plan p = {.failing = 1, .meetings = i % 2};
        assert_refused(ek_jobs_run(devs, DEVICES, fail_or_wait, &p, "replica"), EK_E_STATE,
                       "replica 1 on host:1 ended without taking part in");
        ck_assert_int_eq(atomic_load(&p.seen[1]), 0);
        ck_assert_int_lt(atomic_load(&p.seen[2]), 0);
    }
    assert_usable();
}

static int go_different_ways(void *user, int index)
{
    int rc = index == *(int *)user ? meet("left", 1, index, 0) : meet("right", 2, index, 0);
    if (rc != EK_E_STATE || !strstr(ek_error_message(), "left (1)") ||
        !strstr(ek_error_message(), "right (2)")) {
        char text[1024];
        strcpy(text, ek_error_message());
        ek_error_clear();
        return ek_error(EK_E_USER, "part %d got %d: %s", index, rc, text);
    }
    return rc;
}

TEST(parts_at_different_places_are_told_of_both)
{
    for (int i = 0; i < ROUNDS; i++) {
        int odd = i % DEVICES;
        assert_refused(ek_jobs_run(devs, DEVICES, go_different_ways, &odd, "replica"), EK_E_STATE,
                       "replica 0 on host:0");
    }
    assert_usable();
}

static int same_name_other_place(void *user, int index)
{
    return meet("norm", (uint64_t)index / 2, index, 0);
}

TEST(a_name_does_not_make_a_place)
{
    assert_refused(ek_jobs_run(devs, DEVICES, same_name_other_place, NULL, "replica"), EK_E_STATE,
                   "norm (1)");
    assert_usable();
}

static atomic_int calls;

static int cannot(void *const *parts, int count)
{
    atomic_fetch_add(&calls, 1);
    return ek_error(EK_E_SHAPE, "%d parts don't fit", count);
}

static int fails_without_a_sentence(void *const *parts, int count)
{
    return EK_E_DTYPE;
}

static int call_what_fails(void *user, int index)
{
    int rc = ek_rendezvous("common", 1, &index, *(bool *)user ? cannot : fails_without_a_sentence);
    if (rc >= 0 || ek_error_status() >= 0)
        return ek_error(EK_E_USER, "it took place");
    return rc;
}

TEST(everybody_gets_the_error_of_the_common_work)
{
    bool sentence = true;
    for (int i = 0; i < ROUNDS; i++) {
        assert_refused(ek_jobs_run(devs, DEVICES, call_what_fails, &sentence, "replica"),
                       EK_E_SHAPE, "replica 0 on host:0: 4 parts don't fit");
    }
    ck_assert_int_eq(atomic_load(&calls), ROUNDS);
    sentence = false;
    assert_refused(ek_jobs_run(devs, DEVICES, call_what_fails, &sentence, "replica"), EK_E_STATE,
                   "without saying why");
    int value = 0;
    assert_refused(ek_rendezvous("common", 1, &value, cannot), EK_E_SHAPE, "1 parts");
    assert_usable();
}

static int fail_all(void *user, int index)
{
    if (index < 2) /* 0 may hear of 3's error, or of 2's: it gives up because of the others */
        return meet("after", 9, index, 0);
    return ek_error(index == 2 ? EK_E_USER : EK_E_IO, "part %d fails", index);
}

TEST(the_first_error_that_is_not_a_consequence_is_raised)
{
    for (int i = 0; i < ROUNDS; i++) {
        assert_refused(ek_jobs_run(devs, DEVICES, fail_all, NULL, "replica"), EK_E_USER,
                       "replica 2 on host:2: part 2 fails");
    }
}

static int come_with_an_error(void *user, int index)
{
    if (index == 3)
        ek_error(EK_E_IO, "older");
    return meet("late", 1, index, 0);
}

TEST(a_pending_error_does_not_meet)
{
    assert_refused(ek_jobs_run(devs, DEVICES, come_with_an_error, NULL, "replica"), EK_E_IO,
                   "replica 3 on host:3: older");
    assert_usable();
}

/* ---- where parts cannot meet ---- */

static int nest_several(void *user, int index)
{
    return ek_jobs_run(devs, 2, meet_once, NULL, "inner");
}

TEST(a_gang_within_a_gang_cannot_meet)
{
    assert_refused(ek_jobs_run(devs, DEVICES, nest_several, NULL, "replica"), EK_E_STATE,
                   "replica 0 on host:0: inner 0 on host:0: again waits for the other "
                   "replicas, which is impossible here: the jobs of a group within a group");
    /* Nor within the part that cpu has, whose thread is the caller's. */
    ek_dev *const mixed[] = {ek_dev_get(ek_cpu()), devs[0]};
    assert_refused(ek_jobs_run(mixed, 2, nest_several, NULL, "replica"), EK_E_STATE,
                   "a group within a group");
    assert_usable();
}

TEST(parts_on_one_device_cannot_meet)
{
    ek_dev *const twice_cpu[] = {devs[0], ek_dev_get(ek_cpu()), ek_dev_get(ek_cpu()), devs[1]};
    ek_dev *const twice[] = {devs[0], devs[1], devs[0], devs[2]};
    assert_refused(ek_jobs_run(twice_cpu, 4, meet_once, NULL, "replica"), EK_E_STATE,
                   "two of them are on one device");
    assert_refused(ek_jobs_run(twice, 4, meet_once, NULL, "replica"), EK_E_STATE,
                   "two of them are on one device");
    assert_usable();
}

TEST(what_is_computed_again_cannot_meet)
{
    ek_thread_self()->modes.flags = EK_MODE_ALONE;
    assert_refused(ek_jobs_run(devs, DEVICES, meet_once, NULL, "replica"), EK_E_STATE,
                   "again waits for the other replicas, which is impossible inside "
                   "ek_checkpoint: its recomputation in backward has no others to meet");
    ek_thread_self()->modes.flags = EK_MODE_BACKWARD;
    assert_refused(ek_jobs_run(devs, DEVICES, meet_once, NULL, "replica"), EK_E_STATE,
                   "impossible in backward");
    ek_thread_self()->modes.flags = 0;
    assert_usable();
}

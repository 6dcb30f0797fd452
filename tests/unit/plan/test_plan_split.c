/* The arithmetic of plans: proportions, first devices, levels. */
#include "plan/split.h"
#include "unit.h"

static uint64_t state;

static uint64_t random_bits(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state >> 33;
}

static int64_t below(int64_t limit)
{
    return (int64_t)(random_bits() % (uint64_t)limit);
}

static void assert_sizes(const int64_t *sizes, int devices, const int64_t *wanted)
{
    for (int i = 0; i < devices; i++)
        ck_assert_msg(sizes[i] == wanted[i], "device %d: %lld instead of %lld", i,
                      (long long)sizes[i], (long long)wanted[i]);
}

static void assert_sum(const int64_t *sizes, int devices, int64_t batch)
{
    int64_t sum = 0;
    for (int i = 0; i < devices; i++) {
        ck_assert_int_ge(sizes[i], 0);
        sum += sizes[i];
    }
    ck_assert_int_eq(sum, batch);
}

#define SIZES(...)    \
    (const int64_t[]) \
    {                 \
        __VA_ARGS__   \
    }

/* ---- chunks, even, first ---- */

TEST(chunks_are_those_of_torch)
{
    int64_t sizes[EK_MAX_DEVICES];
    ek_split_chunk(10, 4, sizes);
    assert_sizes(sizes, 4, SIZES(3, 3, 3, 1));
    ek_split_chunk(9, 4, sizes);
    assert_sizes(sizes, 4, SIZES(3, 3, 3, 0));
    ek_split_chunk(2, 4, sizes);
    assert_sizes(sizes, 4, SIZES(1, 1, 0, 0));
    ek_split_chunk(0, 2, sizes);
    assert_sizes(sizes, 2, SIZES(0, 0));
    ek_split_even(10, 4, sizes);
    assert_sizes(sizes, 4, SIZES(3, 3, 2, 2));
}

TEST(the_first_device_is_relieved_as_published)
{
    static const struct {
        int64_t batch, first, wanted[4];
        int devices;
    } cases[] = {
        {30, 3, {3, 9, 9, 9}, 4},
        {31, 2, {2, 10, 10, 9}, 4},
        {60, 0, {0, 20, 20, 20}, 4},
        {12, 4, {3, 3, 3, 3}, 4},
        {10, 1, {1, 3, 3, 3}, 4},
        {10, 3, {10}, 1},
        {10, 0, {10}, 1},
        {1, 3, {1, 0, 0, 0}, 4},
        {1, 0, {0, 1, 0, 0}, 4},
        {10, 1000, {3, 3, 3, 1}, 4},
        {2, 1, {1, 1}, 2},
        {3, 1, {1, 2}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t sizes[EK_MAX_DEVICES];
        ek_split_first(cases[i].batch, cases[i].devices, cases[i].first, sizes);
        assert_sizes(sizes, cases[i].devices, cases[i].wanted);
    }
}

/* ---- proportions ---- */

static void split_weights(int64_t batch, int devices, const double *weights, int64_t *sizes)
{
    int64_t whole[EK_MAX_DEVICES];
    ek_split_whole(devices, weights, whole);
    ek_split_chunks(batch, devices, whole, sizes);
}

TEST(shares_are_rounded_by_the_largest_remainder)
{
    int64_t sizes[EK_MAX_DEVICES];
    split_weights(10, 3, (const double[]){1, 1, 1}, sizes);
    assert_sizes(sizes, 3, SIZES(4, 3, 3));
    split_weights(52, 3, (const double[]){0.12, 0.2, 0.2}, sizes);
    assert_sizes(sizes, 3, SIZES(12, 20, 20));
    split_weights(7, 3, (const double[]){0, 1e-300, 3e-300}, sizes);
    assert_sizes(sizes, 3, SIZES(0, 2, 5));
    split_weights(6, 2, (const double[]){1e308, 1e308}, sizes);
    assert_sizes(sizes, 2, SIZES(3, 3));
    ek_split_chunks(52, 3, SIZES(12, 20, 20), sizes);
    assert_sizes(sizes, 3, SIZES(12, 20, 20));
    ek_split_chunks(26, 3, SIZES(12, 20, 20), sizes);
    assert_sizes(sizes, 3, SIZES(6, 10, 10));
    /* 1.5, 2.25, 2.25: the one left goes to the first. */
    ek_split_chunks(6, 3, SIZES(4, 6, 6), sizes);
    assert_sizes(sizes, 3, SIZES(2, 2, 2));
    int64_t whole[4];
    ek_split_whole(4, (const double[]){0.5, 1.5, 0, 3}, whole);
    assert_sizes(whole, 4, SIZES(1, 3, 0, 6));
}

/* Each size is its exact share rounded down or up, and smaller batches never give a device more:
 * if there is room for a batch there is room for a part of it. */
TEST(shares_are_exact)
{
    state = 1;
    for (int round = 0; round < 4000; round++) {
        int64_t chunks[EK_MAX_DEVICES], sizes[EK_MAX_DEVICES], sum = 0;
        int devices = 1 + (int)below(EK_MAX_DEVICES);
        for (int i = 0; i < devices; i++)
            sum += chunks[i] = below(4) ? below(INT64_C(1) << (1 + below(40))) : 0;
        if (!sum)
            continue;
        ek_split_chunks(sum, devices, chunks, sizes);
        assert_sizes(sizes, devices, chunks);
        int64_t batch = below(INT64_C(1) << (1 + below(30))) * 1024 + below(1024);
        ek_split_chunks(batch, devices, chunks, sizes);
        assert_sum(sizes, devices, batch);
        for (int i = 0; i < devices; i++) {
            long double share = (long double)batch * (long double)chunks[i] / (long double)sum;
            ck_assert(fabsl((long double)sizes[i] - share) < 1);
            if (batch <= sum)
                ck_assert_int_le(sizes[i], chunks[i]);
        }
    }
}

/* ---- levels ---- */

static double largest_cost(int devices, const ek_cost *costs, const int64_t *sizes)
{
    double largest = -INFINITY;
    for (int i = 0; i < devices; i++) {
        double cost = costs[i].fixed + costs[i].per_sample * (double)sizes[i];
        if (sizes[i] > 0 && cost > largest)
            largest = cost;
    }
    return largest;
}

/* The best of all ways to divide the batch. */
static double best_cost(int64_t batch, int devices, const ek_cost *costs, int64_t *sizes, int at)
{
    if (at == devices - 1) {
        sizes[at] = batch;
        return batch <= costs[at].most ? largest_cost(devices, costs, sizes) : INFINITY;
    }
    double best = INFINITY;
    for (int64_t n = 0; n <= batch && n <= costs[at].most; n++) {
        sizes[at] = n;
        double cost = best_cost(batch - n, devices, costs, sizes, at + 1);
        best = cost < best ? cost : best;
    }
    return best;
}

TEST(levels_are_the_best)
{
    state = 7;
    int unlimited = 0;
    for (int round = 0; round < 6000; round++) {
        ek_cost costs[4];
        int64_t sizes[4], trial[4];
        int devices = 1 + (int)below(4);
        int64_t batch = 1 + below(14), room = 0;
        for (int i = 0; i < devices; i++) {
            costs[i] = (ek_cost){.fixed = (double)below(12) - 2,
                                 .per_sample = below(5) ? 0.25 * (double)(1 + below(9)) : 0,
                                 .most = below(3) ? INT64_MAX : below(9)};
            room += costs[i].most < batch ? costs[i].most : batch;
        }
        bool fits = ek_split_level(batch, devices, costs, sizes);
        assert_sum(sizes, devices, batch);
        ck_assert_int_eq(fits, room >= batch);
        for (int i = 0; i < devices; i++) {
            if (fits)
                ck_assert_int_le(sizes[i], costs[i].most);
            else
                costs[i].most = INT64_MAX;
        }
        unlimited += !fits;
        double best = best_cost(batch, devices, costs, trial, 0);
        double got = largest_cost(devices, costs, sizes);
        ck_assert_msg(got == best, "round %d: %g instead of %g", round, got, best);
        /* A device that is cheaper than the level has no room below it. */
        for (int i = 0; i < devices; i++) {
            double next = costs[i].fixed + costs[i].per_sample * (double)(sizes[i] + 1);
            if (sizes[i] < costs[i].most)
                ck_assert_msg(next >= got, "round %d: device %d would take more", round, i);
        }
    }
    ck_assert_int_gt(unlimited, 100);
}

TEST(ties_are_even_and_begin_with_the_first)
{
    int64_t sizes[EK_MAX_DEVICES];
    ek_cost alike[4], flat[3];
    for (int i = 0; i < 4; i++)
        alike[i] = (ek_cost){5, 1, INT64_MAX};
    ck_assert(ek_split_level(10, 4, alike, sizes));
    assert_sizes(sizes, 4, SIZES(3, 3, 2, 2));
    for (int i = 0; i < 3; i++)
        flat[i] = (ek_cost){1, 0, i == 0 ? 2 : INT64_MAX};
    ck_assert(ek_split_level(11, 3, flat, sizes));
    assert_sizes(sizes, 3, SIZES(2, 5, 4));
    ck_assert(ek_split_level(0, 3, flat, sizes));
    assert_sizes(sizes, 3, SIZES(0, 0, 0));
}

TEST(large_batches_are_levelled)
{
    int64_t sizes[EK_MAX_DEVICES];
    ek_cost costs[EK_MAX_DEVICES];
    const int64_t batch = INT64_C(1) << 40;
    state = 3;
    for (int i = 0; i < EK_MAX_DEVICES; i++)
        costs[i] = (ek_cost){(double)below(1 << 30), 1 + (double)below(1 << 20) / 1024, INT64_MAX};
    ck_assert(ek_split_level(batch, EK_MAX_DEVICES, costs, sizes));
    assert_sum(sizes, EK_MAX_DEVICES, batch);
    double level = largest_cost(EK_MAX_DEVICES, costs, sizes);
    for (int i = 0; i < EK_MAX_DEVICES; i++)
        ck_assert(costs[i].fixed + costs[i].per_sample * (double)(sizes[i] + 1) >= level);
    /* A device that is full without a sample gets none while others have room. */
    costs[3].fixed = 1e18;
    ck_assert(ek_split_level(batch, EK_MAX_DEVICES, costs, sizes));
    ck_assert_int_eq(sizes[3], 0);
    assert_sum(sizes, EK_MAX_DEVICES, batch);
}

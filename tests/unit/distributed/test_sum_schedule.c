/* The schedule of sums over ranks, followed by hand: whoever owns an element has the sum of the
 * fixed tree to the bit, and ranks send as few bytes as is possible. */
#include "group/sum_schedule.h"

#include "unit.h"

NAMES_DEVICES

FIXTURE(NULL, NULL)

enum { MOST_RANKS = 128, COUNT = 128 * 16 * 2 };

/* What all ranks have. */
typedef struct job {
    int ranks;
    int64_t count;
    ek_sum_schedule *schedules[MOST_RANKS];
    int levels[MOST_RANKS];    /* that are passed */
    int64_t sent[MOST_RANKS];  /* elements */
    int64_t taken[MOST_RANKS]; /* elements that were received */
    int messages[MOST_RANKS];
    float values[MOST_RANKS][COUNT], after[COUNT];
} job;

static float term(int rank, int64_t i)
{
    uint32_t x = (uint32_t)(rank * 7919 + i) * 2654435761U;
    return (float)(x >> 8) * 1e-3F * (x & 1 ? 1 : -1);
}

/* The sum of terms lo to hi - 1 by its definition. */
static float tree(const float *terms, int lo, int hi)
{
    int mid = lo + 1;
    if (hi - lo == 1)
        return terms[lo];
    while (2 * (mid - lo) < hi - lo)
        mid = lo + 2 * (mid - lo);
    return tree(terms, lo, mid) + tree(terms, mid, hi);
}

/* Writes who owns each element in a node. */
static void list_owners(const job *j, const ek_sum_node *node, int *owners)
{
    ek_interval slice;
    for (int64_t i = 0; i < j->count; i = slice.end) {
        int owner = node->owners[ek_sum_node_find(node, j->count, i, &slice)];
        ek_interval own = ek_sum_node_slice(node, j->count, owner);
        ck_assert(slice.begin == i && own.begin == i && slice.end == own.end);
        for (int64_t k = i; k < own.end; k++)
            owners[k] = owner;
    }
}

/* Joins the level's sides on all its ranks. */
static void pass_level(job *j, const ek_sum_level *level)
{
    static int owners[COUNT], from[MOST_RANKS][COUNT];
    int last[MOST_RANKS][MOST_RANKS] = {{0}}; /* from, to: the last element that was sent, + 1 */
    list_owners(j, &level->node, owners);
    for (int s = 0; s < level->count; s++)
        list_owners(j, &level->sides[s], from[s]);
    for (int64_t i = 0; i < j->count; i++) {
        float terms[MOST_RANKS];
        for (int s = 0; s < level->count; s++) {
            const int to = owners[i], of = from[s][i];
            terms[s] = j->values[of][i];
            if (of == to)
                continue;
            j->sent[of]++;
            j->taken[to]++;
            j->messages[of] += last[of][to] == 0 || last[of][to] != i;
            last[of][to] = (int)i + 1;
        }
        j->after[i] = tree(terms, 0, level->count);
    }
    for (int64_t i = 0; i < j->count; i++)
        j->values[owners[i]][i] = j->after[i];
    for (int r = level->node.first; r < level->node.first + level->node.size; r++)
        j->levels[r]++;
}

static const ek_sum_level *next_level(const job *j, int rank)
{
    const ek_sum_schedule *schedule = j->schedules[rank];
    return j->levels[rank] < schedule->count ? &schedule->levels[j->levels[rank]] : NULL;
}

/* Passes a level whose ranks all come to it. Returns false if there is none. */
static bool pass_any(job *j)
{
    for (int r = 0; r < j->ranks; r++) {
        const ek_sum_level *level = next_level(j, r);
        bool all = level && level->node.first == r;
        for (int k = r; all && k < r + level->node.size; k++) {
            const ek_sum_level *other = next_level(j, k);
            all = other && other->node.first == r && other->node.size == level->node.size &&
                  other->count == level->count;
            if (all) {
                const ek_sum_node *side = &other->sides[other->own];
                ck_assert(side->first <= k && k < side->first + side->size);
            }
        }
        if (!all)
            continue;
        pass_level(j, level);
        return true;
    }
    return false;
}

/* Gives each element of a block to its owner there, as shared memory does. */
static void share_blocks(job *j, int block)
{
    for (int r = 0; r < j->ranks; r++) {
        ek_sum_node base = j->schedules[r]->base;
        ck_assert_int_eq(base.first, r / block * block);
        ek_interval own = ek_sum_node_slice(&base, j->count, r);
        for (int64_t i = own.begin; i < own.end; i++) {
            float terms[MOST_RANKS];
            for (int k = 0; k < base.size; k++)
                terms[k] = term(base.first + k, i);
            j->values[r][i] = tree(terms, 0, base.size);
        }
    }
}

static void run(job *j, int ranks, int64_t count, int block, ek_sum_way way)
{
    j->ranks = ranks;
    j->count = count;
    for (int r = 0; r < ranks; r++)
        j->levels[r] = j->messages[r] = (int)(j->sent[r] = j->taken[r] = 0);
    for (int r = 0; r < ranks; r++) {
        j->schedules[r] = ek_sum_schedule_new(ranks, r, block, way);
        for (int64_t i = 0; i < count; i++)
            j->values[r][i] = term(r, i);
    }
    if (way == EK_SUM_SHARED)
        share_blocks(j, block);
    while (pass_any(j))
        ;
    const ek_sum_node whole = {0, ranks, NULL};
    int64_t owned = 0;
    for (int r = 0; r < ranks; r++) {
        ek_interval own = ek_sum_node_slice(&whole, count, r);
        ck_assert_int_eq(j->levels[r], j->schedules[r]->count);
        for (int64_t i = own.begin; i < own.end; i++) {
            float terms[MOST_RANKS];
            for (int k = 0; k < ranks; k++)
                terms[k] = term(k, i);
            ck_assert(j->values[r][i] == tree(terms, 0, ranks));
        }
        owned += own.end - own.begin;
        free(j->schedules[r]);
    }
    ck_assert_int_eq(owned, count);
}

static job all;

static const int special[] = {64, 100, 128};

static bool is_power(int n)
{
    return (n & (n - 1)) == 0;
}

TEST_LOOP(every_element_is_the_sum_of_the_tree, 1, 44)
{
    const int ranks = _i <= 40 ? _i : special[_i - 41];
    job *j = &all;
    for (int way = EK_SUM_DIRECT; way <= EK_SUM_SENT; way++) {
        run(j, ranks, COUNT, 1, (ek_sum_way)way);
        /* Results travel back as partial sums came. */
        const double least = 2.0 * (ranks - 1) / ranks * COUNT;
        double most = 0, sum = 0;
        for (int r = 0; r < ranks; r++) {
            double sent = (double)(j->sent[r] + j->taken[r]);
            most = sent > most ? sent : most;
            sum += sent;
        }
        const bool even = is_power(ranks);
        ck_assert(sum <= (even ? 2.0 : 2.1) * (ranks - 1) * COUNT);
        ck_assert(most <= (even ? 1.1 : 1.25) * least);
    }
    for (int count = 1; count < 2000; count += count < 100 ? 14 : 613) /* some ranks own nothing */
        run(j, ranks, count, 1, EK_SUM_SENT);
}

TEST(ranks_send_a_message_for_each_doubling)
{
    job *j = &all;
    run(j, 128, COUNT, 1, EK_SUM_SENT);
    for (int r = 0; r < 128; r++) /* the first four ranks are joined at once */
        ck_assert_int_eq(j->messages[r], 3 + 5);
}

/* Ranks of machines: 2 to 16 on each, fewer on the last. */
TEST_LOOP(blocks_are_joined, 1, 5)
{
    const int block = 1 << _i;
    job *j = &all;
    for (int ranks = block + 1; ranks <= 5 * block && ranks < MOST_RANKS; ranks += 1 + ranks / 9) {
        run(j, ranks, COUNT, block, EK_SUM_SENT);
        run(j, ranks, COUNT, block, EK_SUM_SHARED);
        int64_t sent = 0; /* by the ranks of the first machine to others */
        for (int r = 0; r < block; r++)
            sent += j->sent[r] + j->taken[r];
        const int machines = (ranks + block - 1) / block;
        ck_assert(sent <= 2 * COUNT * (machines > 2 && ranks % block ? 1.6 : 1.05));
    }
}

/* ---- who owns what ---- */

TEST(slices_nest_where_ranks_are_powers_of_two)
{
    const int64_t count = 16 * 1000 + 3;
    for (int ranks = 1; ranks < 64; ranks *= 2)
        for (int r = 0; r < 2 * ranks; r++) {
            ek_interval outer = ek_slab_slice(count, 16, ranks, r % ranks);
            ek_interval inner = ek_slab_slice(count, 16, 2 * ranks, r);
            ck_assert(outer.begin <= inner.begin && inner.end <= outer.end);
            ck_assert(inner.begin == outer.begin || inner.end == outer.end);
        }
    ck_assert_int_eq(ek_slab_place(8, 1), 4);
    ck_assert_int_eq(ek_slab_place(8, 6), 3);
}

TEST_LOOP(ranks_own_every_element_once, 1, 70)
{
    int at[70] = {0};
    for (int r = 0; r < _i; r++)
        at[ek_slab_place(_i, r)]++;
    for (int p = 0; p < _i; p++)
        ck_assert_int_eq(at[p], 1);
    for (int count = 0; count < 2000; count += 77)
        for (int r = 0; r < _i; r++) {
            ek_interval own = ek_slab_slice(count, 16, _i, r);
            ck_assert(own.end - own.begin <= ek_slab_slice(count, 16, _i, 0).end);
        }
}

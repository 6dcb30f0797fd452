/* Exchanges in rounds: every rank gets all blocks or their combination, in lg P messages. */
#include <sched.h>

#include "kit/loop.h"
#include "link/communication.h"

NAMES_DEVICES

enum { SEEDS = 2, TAG = EK_ROUNDS_TAG };

static const int sizes[] = {1, 2, 3, 5, 8, 9, 12, 16, 17, 33};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* A group whose communicator is the world's. The test's thread makes the calls. */
typedef struct place {
    ek_communication communication;
    ek_process_group group;
} place;

typedef const char *body(ek_process_group *group, loop *l);
typedef struct job {
    loop *loop;
    body *body;
} job;

static const char *with_group(int rank, void *user)
{
    const job *this = user;
    static _Thread_local place at;
    ek_world_place world;
    memset(&at, 0, sizeof at);
    at.communication.transport = loop_transport();
    at.group.communication = &at.communication;
    LOOP_TRY(loop_transport()->open(loop_rank(this->loop, rank), &at.group.communicator, &world));
    at.group.rank = rank;
    at.group.size = world.size;
    LOOP_PASS(this->body(&at.group, this->loop));
    LOOP_TRY(loop_transport()->close(at.group.communicator));
    return NULL;
}

static void run(int index, body *what)
{
    loop *l = loop_new(sizes[index / SEEDS], (uint64_t)(index % SEEDS));
    assert_loop(l, with_group, (&(job){l, what}));
    ck_assert_int_eq(loop_strays(l), 0);
    loop_free(l);
}

static const char *finish(ek_rounds *rounds, const ek_process_group *group)
{
    int rc = 0;
    while (rc == 0) {
        LOOP_TRY(rc = ek_rounds_test(rounds, group));
        sched_yield();
    }
    LOOP_CHECK(!ek_rounds_are_open(rounds));
    return NULL;
}

/* Returns lg P, rounded up. */
static int rounds_of(int size)
{
    int count = 0;
    while (1 << count < size)
        count++;
    return count;
}

/* ---- gatherings ---- */

/* Rank r gives r % 4 bytes, all of them r, in the first of several gatherings in a row. */
static const char *gathers(ek_process_group *group, loop *l)
{
    unsigned char all[3 * 33];
    size_t at[34] = {0};
    for (int turn = 0; turn < 4; turn++) {
        for (int r = 0; r < group->size; r++)
            at[r + 1] = at[r] + (size_t)((r + turn) % 4);
        memset(all, 255, sizeof all);
        memset(all + at[group->rank], group->rank, at[group->rank + 1] - at[group->rank]);
        ek_rounds rounds;
        LOOP_TRY(ek_rounds_gather(&rounds, group, TAG, all, at));
        LOOP_PASS(finish(&rounds, group));
        for (int r = 0; r < group->size; r++)
            for (size_t i = at[r]; i < at[r + 1]; i++)
                LOOP_CHECK_EQ(all[i], r);
    }
    int most = group->size <= EK_ROUNDS_DIRECT ? group->size - 1 : 2 * rounds_of(group->size);
    LOOP_CHECK(loop_transfers(l, group->rank) <= 4 * most);
    return NULL;
}

TEST_LOOP(every_rank_gets_all_blocks, 0, SIZES *SEEDS)
{
    run(_i, gathers);
}

/* ---- reductions ---- */

typedef struct block {
    int64_t least, most;
    uint64_t bits;
} block;

static void combine(void *into, const void *other, size_t nbytes)
{
    block *a = into;
    const block *b = other;
    if (nbytes != sizeof *a)
        return;
    a->least = b->least < a->least ? b->least : a->least;
    a->most = b->most > a->most ? b->most : a->most;
    a->bits |= b->bits;
}

static block block_of(int rank, int turn)
{
    return (block){rank * 7 % 33 + turn, rank * 5 % 33 + turn, UINT64_C(1) << (rank + turn) % 64};
}

static const char *check(const block *found, int size, int turn)
{
    block wanted = block_of(0, turn);
    for (int r = 1; r < size; r++) {
        block one = block_of(r, turn);
        combine(&wanted, &one, sizeof one);
    }
    LOOP_CHECK_EQ(found->least, wanted.least);
    LOOP_CHECK_EQ(found->most, wanted.most);
    LOOP_CHECK(found->bits == wanted.bits);
    return NULL;
}

static const char *reduces(ek_process_group *group, loop *l)
{
    int size = group->size;
    for (int turn = 0; turn < 4; turn++) {
        block blocks[EK_ROUNDS_DIRECT] = {block_of(group->rank, turn)};
        ek_rounds rounds;
        LOOP_TRY(ek_rounds_reduce(&rounds, group, TAG, blocks, sizeof *blocks, combine));
        LOOP_PASS(finish(&rounds, group));
        LOOP_PASS(check(blocks, size, turn));
    }
    int each = size <= EK_ROUNDS_DIRECT ? size - 1 : rounds_of(size);
    LOOP_CHECK_EQ(loop_transfers(l, group->rank), 4 * each);
    return NULL;
}

TEST_LOOP(every_rank_gets_the_combination, 0, SIZES *SEEDS)
{
    run(_i, reduces);
}

/* ---- two at a time ---- */

static const char *overlap(ek_process_group *group, loop *l)
{
    block blocks[2][EK_ROUNDS_DIRECT];
    ek_rounds rounds[2];
    for (int turn = 0; turn < 2; turn++) {
        blocks[turn][0] = block_of(group->rank, turn);
        LOOP_TRY(ek_rounds_reduce(&rounds[turn], group, TAG + turn, blocks[turn], sizeof **blocks,
                                  combine));
    }
    for (int i = 0; i < 2; i++) { /* ranks end them in different orders */
        int turn = (i + group->rank) % 2;
        while (ek_rounds_are_open(&rounds[turn])) {
            LOOP_TRY(ek_rounds_test(&rounds[turn], group));
            if (ek_rounds_are_open(&rounds[!turn]))
                LOOP_TRY(ek_rounds_test(&rounds[!turn], group));
            sched_yield();
        }
    }
    LOOP_PASS(check(blocks[0], group->size, 0));
    return check(blocks[1], group->size, 1);
}

TEST_LOOP(exchanges_of_different_tags_overlap, 0, SIZES *SEEDS)
{
    run(_i, overlap);
}

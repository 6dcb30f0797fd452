/* Segments: blocks don't overlap, merge again, and the best one is taken. */
#include "core/segments.h"

#include "core/device.h"
#include "unit.h"

enum { SIZE = 1 << 20, UNIT = 64 };

/* Addresses that are never read. */
static char *place(int segment)
{
    return (char *)((uintptr_t)1 << 40) + (size_t)segment * SIZE; /* side by side */
}

static ek_dev *host(void)
{
    ek_dev *dev = ek_dev_get(ek_host(0));
    assert_made(dev);
    return dev;
}

static void close_segments(ek_segments *s)
{
    while (s->idle)
        ek_segments_remove(s, ek_segments_idle(s, 0));
    ck_assert_uint_eq(ek_segments_largest(s), 0);
    ek_segments_close(s);
}

/* Every unit of two segments belongs to nobody or to one block, whatever is taken and given back.
 */
TEST(blocks_never_overlap_and_merge_again)
{
    enum { LIVE = 200, TURNS = 20000, UNITS = 2 * SIZE / UNIT };
    static bool held[UNITS];
    ek_block *live[LIVE] = {NULL};
    ek_segments s = {0};
    uint64_t state = 1;
    size_t used = 0, refused = 0;
    ck_assert(ek_segments_add(&s, EK_STREAM_COMPUTE, false, place(0), SIZE));
    ck_assert(ek_segments_add(&s, EK_STREAM_COMPUTE, false, place(1), SIZE));
    for (int turn = 0; turn < TURNS; turn++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        ek_block **at = &live[(state >> 33) % LIVE];
        if (*at) {
            size_t first = (size_t)((*at)->start - place(0)) / UNIT, count = (*at)->nbytes / UNIT;
            for (size_t i = 0; i < count; i++)
                held[first + i] = false;
            used -= (*at)->nbytes;
            ek_segments_give(host(), &s, *at);
            *at = NULL;
            continue;
        }
        size_t nbytes = (1 + (state >> 40) % (turn % 7 ? 100 : 2000)) * UNIT;
        *at = ek_segments_take(&s, EK_STREAM_COMPUTE, false, nbytes, false);
        refused += *at == NULL;
        if (!*at) {
            ck_assert_uint_lt(ek_segments_largest(&s), nbytes);
            continue;
        }
        size_t first = (size_t)((*at)->start - place(0)) / UNIT;
        ck_assert_uint_le((first * UNIT) % SIZE + nbytes, SIZE);
        for (size_t i = 0; i < nbytes / UNIT; i++) {
            ck_assert(!held[first + i]);
            held[first + i] = true;
        }
        used += nbytes;
    }
    ck_assert_uint_gt(used, SIZE / 2);
    ck_assert_uint_gt(refused, 10);
    for (int i = 0; i < LIVE; i++)
        if (live[i])
            ek_segments_give(host(), &s, live[i]);
    ck_assert_uint_eq(s.idle, 2 * SIZE);
    ck_assert_uint_eq(ek_segments_largest(&s), SIZE);
    close_segments(&s);
}

/* The smallest that is large enough, and of those the one at the lowest address. */
TEST(the_best_block_is_taken)
{
    static const size_t sizes[] = {640, 64, 512, 64, 576, 64, 512, 64};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    ek_block *blocks[COUNT];
    ek_segments s = {0};
    ck_assert(ek_segments_add(&s, EK_STREAM_COMPUTE, true, place(0), SIZE));
    for (int i = 0; i < COUNT; i++)
        blocks[i] = ek_segments_take(&s, EK_STREAM_COMPUTE, true, sizes[i], false);
    char *const small = blocks[2]->start, *const middle = blocks[4]->start;
    for (int i = 0; i < COUNT; i += 2)
        ek_segments_give(host(), &s, blocks[i]);
    ck_assert_ptr_null(
        ek_segments_take(&s, EK_STREAM_COMPUTE, true, 448, true)); /* none as whole */
    ck_assert_ptr_null(ek_segments_take(&s, EK_STREAM_COMPUTE, false, 448, false));
    ck_assert_ptr_null(ek_segments_take(&s, EK_STREAM_UPLOAD, true, 448, false));
    ek_block *first = ek_segments_take(&s, EK_STREAM_COMPUTE, true, 448, false);
    ck_assert_ptr_eq(first->start, small);
    ek_block *second = ek_segments_take(&s, EK_STREAM_COMPUTE, true, 576, true);
    ck_assert_ptr_eq(second->start, middle);
    ek_segments_give(host(), &s, first);
    ek_segments_give(host(), &s, second);
    for (int i = 1; i < COUNT; i += 2)
        ek_segments_give(host(), &s, blocks[i]);
    ck_assert_uint_eq(s.idle, SIZE);
    close_segments(&s);
}

/* The smallest idle segment that is enough, else the largest. */
TEST(idle_segments_are_chosen_by_size)
{
    ek_segments s = {0};
    for (int i = 0; i < 4; i++)
        ck_assert(ek_segments_add(&s, (ek_stream)(i % 2), i / 2, place(i), (size_t)(4 - i) << 16));
    ek_block *used = ek_segments_take(&s, EK_STREAM_COMPUTE, false, 64, false);
    ck_assert_ptr_eq(used->start, place(0));
    ck_assert_uint_eq(s.idle, 6 << 16);
    ck_assert_ptr_eq(ek_segments_idle(&s, 0)->start, place(3));
    ck_assert_ptr_eq(ek_segments_idle(&s, (1 << 16) + 1)->start, place(2));
    ck_assert_ptr_eq(ek_segments_idle(&s, 1 << 30)->start, place(1));
    ek_segments_give(host(), &s, used);
    ck_assert_ptr_eq(ek_segments_idle(&s, 1 << 30)->start, place(0));
    close_segments(&s);
}

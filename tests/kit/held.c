/* held.c: see held.h. */
#include "kit/held.h"

enum { MOST_HELD = 64 };

static struct {
    void *object;
    void (*release)(void *object);
} all[MOST_HELD];
static int count;

void held_add(void *object, void (*release)(void *object))
{
    ck_assert_int_lt(count, MOST_HELD);
    all[count].object = object;
    all[count++].release = release;
}

void free_held(void)
{
    for (; count > 0; count--)
        all[count - 1].release(all[count - 1].object);
}

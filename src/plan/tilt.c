/* tilt.c: samples that move between neighbours. */
#include "plan/tilt.h"

static void move(double part, int64_t room, int64_t *from, int64_t *to)
{
    int64_t smaller = *from < *to ? *from : *to, count = (int64_t)((double)smaller * part + 0.5);
    if (!smaller) /* one that takes no part stays out */
        return;
    count = count < 1 ? 1 : count;
    count = count < *from - 1 ? count : *from - 1;
    count = count < room - *to ? count : room - *to;
    if (count > 0) {
        *from -= count;
        *to += count;
    }
}

void ek_tilt(int tilt, double part, int devices, const int64_t *room, int64_t *sizes)
{
    if (tilt >= EK_TILTS - 1 || devices < 2)
        return;
    for (int i = 0; i < devices; i += 2) {
        /* The last of an odd number is the first one's second neighbour. */
        int up = i + 1 < devices ? i : 0, down = i + 1 < devices ? i + 1 : i;
        if (tilt == 1)
            move(part, room[down], &sizes[up], &sizes[down]);
        else
            move(part, room[up], &sizes[down], &sizes[up]);
    }
}

/* sum_order.h: the order in which terms are added, so that sums have equal bits everywhere.
 *
 * Note [Order of a sum]
 *
 * The sum of terms lo to hi - 1 is a fixed binary tree:
 *
 *     s(lo, hi) = s(lo, mid) + s(mid, hi)    mid = lo + the largest power of two below hi - lo
 *
 * A leaf is one term. If a term is absent, the other side of its addition is passed on. Terms are
 * those of a process's devices, then those of ranks. With M devices on each rank and M a power of
 * two, the sum of N ranks is the sum of NM devices to the bit, because each rank's sum is a
 * subtree. A sum of n terms has a rounding error of order log n.
 *
 * A stack computes the tree: push the terms one after another, and after each push replace the two
 * topmost entries by their sum ek_sum_joins times. */
#ifndef EK_CORE_SUM_ORDER_H
#define EK_CORE_SUM_ORDER_H

/* Most entries of the stack. There are less than 2^EK_SUM_DEPTH terms. */
enum { EK_SUM_DEPTH = 17 };

/* Returns how many additions follow the push of term t of `count` terms. */
static inline int ek_sum_joins(int t, int count)
{
    int joins = 0;
    /* Each set bit of t is an entry below term t. Trailing ones are entries of the term's size. */
    for (int entries = t; t + 1 < count ? entries & 1 : entries; entries >>= 1)
        joins += entries & 1;
    return joins;
}

#endif

/* split.c: computes how many samples of a batch each device gets, from proportions or from costs.
 * Batches are cut in proportions by whole-number arithmetic, so equal proportions give equal sizes
 * on every machine. */

#include "plan/split.h"

#include <math.h>
#include <string.h>

/* Holds the product of a batch and a share. */
__extension__ typedef unsigned __int128 wide;

void ek_split_chunk(int64_t batch, int devices, int64_t *sizes)
{
    int64_t chunk = batch / devices + (batch % devices != 0);
    for (int i = 0; i < devices; i++) {
        sizes[i] = batch < chunk ? batch : chunk;
        batch -= sizes[i];
    }
}

void ek_split_even(int64_t batch, int devices, int64_t *sizes)
{
    for (int i = 0; i < devices; i++)
        sizes[i] = batch / devices + (i < batch % devices);
}

void ek_split_first(int64_t batch, int devices, int64_t first, int64_t *sizes)
{
    if (devices > 1 && (first == 0 || (first < batch && first < (batch - first) / (devices - 1)))) {
        sizes[0] = first;
        ek_split_even(batch - first, devices - 1, sizes + 1);
    } else {
        ek_split_chunk(batch, devices, sizes);
    }
}

/* ---- proportions ---- */

void ek_split_chunks(int64_t batch, int devices, const int64_t *chunks, int64_t *sizes)
{
    wide sum = 0, remainders[EK_MAX_DEVICES];
    int64_t left = batch;
    for (int i = 0; i < devices; i++)
        sum += (wide)chunks[i];
    for (int i = 0; i < devices; i++) {
        wide share = (wide)batch * (wide)chunks[i];
        sizes[i] = (int64_t)(share / sum);
        remainders[i] = share % sum;
        left -= sizes[i];
    }
    /* At least `left` devices have a remainder, so no device gets two of the samples that are
     * left. */
    for (; left > 0; left--) {
        int largest = 0;
        for (int i = 1; i < devices; i++)
            if (remainders[i] > remainders[largest])
                largest = i;
        sizes[largest]++;
        remainders[largest] = 0;
    }
}

static int64_t split_common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void ek_split_whole(int devices, const double *weights, int64_t *whole)
{
    double largest = 0;
    for (int i = 0; i < devices; i++)
        largest = weights[i] > largest ? weights[i] : largest;
    int exponent;
    frexp(largest, &exponent);
    int64_t divisor = 0;
    for (int i = 0; i < devices; i++) {
        whole[i] = llrint(ldexp(weights[i], 49 - exponent));
        divisor = split_common_divisor(whole[i], divisor);
    }
    for (int i = 0; i < devices && divisor; i++)
        whole[i] /= divisor;
}

/* ---- levels: a level is a cost that no device may exceed ---- */

/* Maps doubles to whole numbers in the same order, so that a level can be bisected exactly. */
static int64_t split_rank_of(double number)
{
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits < 0 ? INT64_MIN - bits : bits;
}

static double split_of_rank(int64_t rank)
{
    int64_t bits = rank < 0 ? INT64_MIN - rank : rank;
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static double split_cost(const ek_cost *cost, int64_t n)
{
    return cost->fixed + cost->per_sample * (double)n;
}

/* Returns the largest number of samples, up to `most`, whose cost is at most `split_level`. */
static int64_t split_taken_at(const ek_cost *cost, int64_t most, double split_level)
{
    int64_t low = 0, high = most;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (split_cost(cost, middle) <= split_level)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Writes how many samples each device can take at this level. Returns true if together the devices
 * take the whole batch. */
static bool split_take(int64_t batch, int devices, const ek_cost *costs, double split_level,
                       int64_t *taken)
{
    int64_t left = batch;
    for (int i = 0; i < devices; i++) {
        int64_t most = costs[i].most < batch ? costs[i].most : batch;
        taken[i] = split_taken_at(&costs[i], most < 0 ? 0 : most, split_level);
        left -= taken[i] < left ? taken[i] : left;
    }
    return left == 0;
}

/* Distributes `left` more samples. Every size below a common height becomes that height, or the
 * device's limit if the limit is lower. The samples that remain go, one each, to the first devices
 * that have the common height and are below their limit. */
static void split_fill(int64_t left, int devices, const int64_t *limits, int64_t *sizes)
{
    int64_t low = 0, high = INT64_MAX;
    while (low < high) { /* finds the largest height that needs at most `left` samples */
        int64_t height = low + (high - low) / 2 + 1, room = left;
        for (int i = 0; i < devices && room >= 0; i++) {
            int64_t top = limits[i] < height ? limits[i] : height;
            room -= top > sizes[i] ? top - sizes[i] : 0;
        }
        if (room >= 0)
            low = height;
        else
            high = height - 1;
    }
    for (int i = 0; i < devices; i++) {
        int64_t top = limits[i] < low ? limits[i] : low;
        if (top > sizes[i]) {
            left -= top - sizes[i];
            sizes[i] = top;
        }
    }
    for (int i = 0; i < devices && left > 0; i++) {
        if (sizes[i] == low && limits[i] > low) {
            sizes[i]++;
            left--;
        }
    }
}

static bool split_level(int64_t batch, int devices, const ek_cost *costs, int64_t *sizes)
{
    int64_t taken[EK_MAX_DEVICES], low = split_rank_of(costs[0].fixed), high = low;
    for (int i = 0; i < devices; i++) {
        int64_t least = split_rank_of(costs[i].fixed),
                most = split_rank_of(split_cost(&costs[i], batch));
        low = least < low ? least : low;
        high = most > high ? most : high;
    }
    if (!split_take(batch, devices, costs, split_of_rank(high), taken))
        return false;
    low--;
    while (low < high - 1) { /* level `high` takes the whole batch, level `low` less */
        int64_t middle = low + (int64_t)(((uint64_t)high - (uint64_t)low) / 2);
        if (split_take(batch, devices, costs, split_of_rank(middle), taken))
            high = middle;
        else
            low = middle;
    }
    int64_t left = batch;
    split_take(batch, devices, costs, split_of_rank(high), taken);
    split_take(batch, devices, costs, split_of_rank(high - 1), sizes);
    for (int i = 0; i < devices; i++)
        left -= sizes[i];
    split_fill(left, devices, taken, sizes);
    return true;
}

bool ek_split_level(int64_t batch, int devices, const ek_cost *costs, int64_t *sizes)
{
    if (batch == 0) {
        memset(sizes, 0, (size_t)devices * sizeof *sizes);
        return true;
    }
    if (split_level(batch, devices, costs, sizes))
        return true;
    ek_cost free_costs[EK_MAX_DEVICES];
    for (int i = 0; i < devices; i++) {
        free_costs[i] = costs[i];
        free_costs[i].most = INT64_MAX;
    }
    split_level(batch, devices, free_costs, sizes);
    return false;
}

/* ---- probes ---- */

static void split_move(double part, int64_t room, int64_t *from, int64_t *to)
{
    int64_t smaller = *from < *to ? *from : *to, count = (int64_t)((double)smaller * part + 0.5);
    if (!smaller) /* a device without samples gets none */
        return;
    count = count < 1 ? 1 : count;
    count = count < *from - 1 ? count : *from - 1;
    count = count < room - *to ? count : room - *to;
    if (count > 0) {
        *from -= count;
        *to += count;
    }
}

void ek_split_probe(int probe, double part, int devices, const int64_t *room, int64_t *sizes)
{
    if (probe >= EK_SPLIT_PROBES - 1 || devices < 2)
        return;
    for (int i = 0; i < devices; i += 2) {
        /* With an odd number of devices, the last device exchanges with the first. */
        int up = i + 1 < devices ? i : 0, down = i + 1 < devices ? i + 1 : i;
        if (probe == 1)
            split_move(part, room[down], &sizes[up], &sizes[down]);
        else
            split_move(part, room[up], &sizes[down], &sizes[up]);
    }
}

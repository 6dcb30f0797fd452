/* tape.c: see tape.h. */
#include "tape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

const char *tape_kind_name(tape_kind kind)
{
    static const char *const names[] = {"loss", "gradients", "parameters", "buffers", "outputs"};
    return names[kind];
}

void tape_begin(tape *t, tape_kind kind, int step, bool open)
{
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 16;
        t->entries = realloc(t->entries, (size_t)t->room * sizeof *t->entries);
        fuzz_require(t->entries != NULL, "there is memory for a tape");
    }
    t->entries[t->count++] = (tape_entry){.kind = kind, .step = step, .open = open};
}

void tape_add(tape *t, const double *values, int count)
{
    tape_entry *e = &t->entries[t->count - 1];
    e->values = realloc(e->values, (size_t)(e->count + count + 1) * sizeof *e->values);
    fuzz_require(e->values != NULL, "there is memory for numbers");
    memcpy(e->values + e->count, values, (size_t)count * sizeof *values);
    e->count += count;
}

void tape_clear(tape *t)
{
    for (int i = 0; i < t->count; i++)
        free(t->entries[i].values);
    free(t->entries);
    *t = (tape){.entries = NULL};
}

double tape_distance(const tape_entry *a, const tape_entry *b)
{
    double difference = 0, size = 0;
    if (a->count != b->count)
        return INFINITY;
    for (int i = 0; i < a->count; i++) {
        double x = a->values[i], y = b->values[i];
        if (isfinite(x) && isfinite(y)) {
            difference += (x - y) * (x - y);
            size += y * y;
        } else if (!(isnan(x) && isnan(y)) && x != y) {
            return INFINITY;
        }
    }
    return sqrt(difference) / (sqrt(size) + 1e-3);
}

bool tape_equal(const tape_entry *a, const tape_entry *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->values, b->values, (size_t)a->count * sizeof(double)) == 0);
}

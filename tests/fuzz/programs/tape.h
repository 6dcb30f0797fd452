/* tape.h: the numbers of a run, in the order in which it made them. */
#ifndef EK_TESTS_FUZZ_TAPE_H
#define EK_TESTS_FUZZ_TAPE_H

#include <stdbool.h>

typedef enum tape_kind {
    TAPE_LOSS,
    TAPE_GRADIENTS,
    TAPE_PARAMETERS,
    TAPE_BUFFERS,
    TAPE_OUTPUTS /* in evaluation */
} tape_kind;

typedef struct tape_entry {
    tape_kind kind;
    int step;
    bool open; /* no numbers to compare: something that failed may have changed them */
    int count;
    double *values;
} tape_entry;

typedef struct tape {
    tape_entry *entries;
    int count, room;
} tape;

const char *tape_kind_name(tape_kind kind);

/* A new entry, to which tape_add adds. */
void tape_begin(tape *t, tape_kind kind, int step, bool open);
void tape_add(tape *t, const double *values, int count);
void tape_clear(tape *t);

/* |a - b| / (|b| + 1e-3), in the 2-norm; infinite if one has NaN, or another number of values,
 * and the other has not. */
double tape_distance(const tape_entry *a, const tape_entry *b);

/* The same bits. */
bool tape_equal(const tape_entry *a, const tape_entry *b);

#endif

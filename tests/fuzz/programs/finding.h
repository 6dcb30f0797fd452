/* finding.h: what came of a program. */
#ifndef EK_TESTS_FUZZ_FINDING_H
#define EK_TESTS_FUZZ_FINDING_H

#include <evenkeel/base.h>

typedef enum finding_kind {
    FOUND_NOTHING = 0,
    FOUND_NO_PROGRAM,    /* no finding: one device can't run it either */
    FOUND_ILL_CONDITION, /* no finding: rounding alone makes such a difference */
    FOUND_NUMBERS,       /* other numbers than the reference */
    FOUND_ERROR,         /* an error out of nothing */
    FOUND_SENTENCE,      /* a failure without a sentence, or with another status than its cause */
    FOUND_PENDING,       /* a success that left an error */
    FOUND_STATE,         /* a failure that changed what it may not change */
    FOUND_REMAINDER,     /* memory, threads or descriptors that are left */
    FOUND_LEAK,
    FOUND_DEATH,
    FOUND_HANG
} finding_kind;

typedef struct finding {
    finding_kind kind;
    char sentence[1400];
} finding;

/* Keeps the first. Returns -1. */
int found(finding *f, finding_kind kind, const char *format, ...) EK_PRINTF(3, 4);

static inline bool is_finding(const finding *f)
{
    return f->kind > FOUND_ILL_CONDITION;
}

/* Most likely of one cause: the same kind, and the same sentence but for its numbers. */
bool findings_alike(const finding *a, const finding *b);

#endif

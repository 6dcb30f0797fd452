/* shrink.c: simpler programs are tried one after the other: without a step or a layer, with a field
 * at its simplest value or on the way there. What still shows the finding is kept, and all begins
 * again, until nothing simpler does. */
#include "shrink.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

typedef struct shrinking {
    verdict *best, *trial;
    int attempts;
    double end;
    bool improved;
} shrinking;

/* Simpler by the sum of what its fields are away from their simplest values, layers and steps
 * counting most, so that settling contradictions can't lead round in circles. */
static long complexity_of(const field *fields, const void *record)
{
    long sum = 0;
    for (const field *f = fields; f->name; f++) {
        const int *values = (const int *)(const void *)((const char *)record + f->offset);
        for (int i = 0; i < f->count; i++)
            sum += labs((long)values[i] - (f->simplest + f->slope * i)) +
                   (values[i] != f->simplest + f->slope * i);
    }
    return sum;
}

static long complexity(const program *p)
{
    long sum = complexity_of(program_fields, p);
    for (int i = 0; i < WAYS; i++)
        sum += complexity_of(way_fields, &p->ways[i]);
    for (int i = 0; i < p->layer_count; i++)
        sum += complexity_of(layer_fields, &p->layers[i]) + (1L << 32);
    for (int i = 0; i < p->step_count; i++)
        sum += complexity_of(step_fields, &p->steps[i]) + (1L << 32);
    return sum;
}

/* Keeps the candidate if it shows the like. */
static bool try_candidate(shrinking *s, program *candidate)
{
    program_settle(candidate);
    if (s->attempts <= 0 || supervise_now() > s->end ||
        complexity(candidate) >= complexity(&s->best->program))
        return false;
    s->attempts--;
    supervise_program(candidate, s->trial);
    if (!findings_alike(&s->trial->found, &s->best->found))
        return false;
    s->trial->seed = s->best->seed;
    verdict *before = s->best;
    s->best = s->trial;
    s->trial = before;
    return s->improved = true;
}

static void drop_steps(shrinking *s)
{
    for (int i = s->best->program.step_count - 1; i >= 0; i--) {
        program candidate = s->best->program;
        if (candidate.step_count < 2)
            return;
        candidate.step_count--;
        memmove(candidate.steps + i, candidate.steps + i + 1,
                (size_t)(candidate.step_count - i) * sizeof *candidate.steps);
        try_candidate(s, &candidate);
    }
}

/* From `length` on the way down to 1 so many at once. */
static void drop_layers(shrinking *s)
{
    for (int length = s->best->program.layer_count; length > 0; length /= 2)
        for (int i = s->best->program.layer_count - length; i >= 0; i--) {
            program candidate = s->best->program;
            if (i + length > candidate.layer_count)
                continue;
            candidate.layer_count -= length;
            memmove(candidate.layers + i, candidate.layers + i + length,
                    (size_t)(candidate.layer_count - i) * sizeof *candidate.layers);
            try_candidate(s, &candidate);
        }
}

/* The record of the program at the same place. */
static void *record_in(program *p, size_t offset)
{
    return (char *)p + offset;
}

static void simplify_value(shrinking *s, const field *f, size_t record, int index)
{
    int simplest = f->simplest + f->slope * index;
    for (int value = simplest;;) {
        program candidate = s->best->program;
        int *at = &field_values(f, record_in(&candidate, record))[index], before = *at;
        if (before == simplest || value == before)
            return;
        *at = value;
        if (!try_candidate(s, &candidate)) /* half of the way back */
            value = f->words ? before : before > value ? value + (before - value + 1) / 2 : before;
    }
}

static void simplify_record(shrinking *s, const field *fields, size_t record)
{
    for (const field *f = fields; f->name; f++)
        for (int i = 0; i < f->count; i++)
            simplify_value(s, f, record, i);
}

static void simplify_all(shrinking *s)
{
    for (int i = 0; i < s->best->program.step_count; i++)
        simplify_record(s, step_fields, offsetof(program, steps) + (size_t)i * sizeof(step));
    for (int i = WAYS - 1; i >= 0; i--)
        simplify_record(s, way_fields, offsetof(program, ways) + (size_t)i * sizeof(way));
    simplify_record(s, program_fields, 0);
    for (int i = 0; i < s->best->program.layer_count; i++)
        simplify_record(s, layer_fields, offsetof(program, layers) + (size_t)i * sizeof(layer));
}

int shrink(verdict *v, int attempts, double seconds)
{
    verdict *both = malloc(2 * sizeof *both);
    fuzz_require(both != NULL, "there is memory for verdicts");
    shrinking s = {&both[0], &both[1], attempts, supervise_now() + seconds, true};
    both[0] = *v;
    while (s.improved && s.attempts > 0 && supervise_now() < s.end) {
        s.improved = false;
        drop_steps(&s);
        drop_layers(&s);
        simplify_all(&s);
    }
    *v = *s.best;
    free(both);
    return attempts - s.attempts;
}

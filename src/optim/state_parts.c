/* state_parts.c: a division of a state that outlives its optimizer. */
#include "optim/state_parts.h"

#include <stdlib.h>
#include <string.h>

#include "optim/optimizer.h"

typedef struct state_parts {
    ek_object object;
    ek_slot slot; /* the parameter alone */
    ek_slot_division division;
    int state;
} state_parts;

static void destroy_parts(ek_object *object)
{
    state_parts *parts = (state_parts *)object;
    for (int i = 0; i < parts->division.count; i++)
        ek_object_release(parts->division.pieces[i].state[parts->state]);
    free(parts->division.pieces);
    ek_object_release(parts->slot.parameter);
    free(parts);
}

static state_parts *parts_of(const ek_slot *slot, int s)
{
    const ek_slot_division *from = &slot->division;
    state_parts *parts = ek_calloc(1, sizeof *parts);
    ek_slot_piece *pieces = ek_calloc((size_t)from->count, sizeof *pieces);
    if (!parts || !pieces) {
        free(parts);
        free(pieces);
        return NULL;
    }
    ek_object_init(&parts->object, destroy_parts);
    parts->slot.parameter = ek_object_retain(slot->parameter);
    parts->state = s;
    parts->division = *from;
    parts->division.pieces = pieces;
    for (int i = 0; i < from->count; i++) {
        pieces[i] = (ek_slot_piece){.begin = from->pieces[i].begin, .end = from->pieces[i].end};
        pieces[i].state[s] = ek_object_retain(from->pieces[i].state[s]);
    }
    return parts;
}

int ek_optimizer_state_parts(const ek_optimizer *optimizer, const ek_tensor *parameter,
                             const char *name, ek_object **parts, ek_dtype *dtype)
{
    const ek_slot *slot = ek_map_find(&optimizer->index, parameter);
    *parts = NULL;
    if (!slot)
        return 0;
    for (int s = 0; s < EK_STATES && optimizer->algorithm->state_names[s]; s++) {
        if (strcmp(optimizer->algorithm->state_names[s], name) != 0)
            continue;
        const ek_tensor *first = slot->division.pieces[0].state[s];
        if (slot->step == 0 || !slot->division.serial || !first)
            return 0;
        *dtype = first->dtype;
        *parts = (ek_object *)parts_of(slot, s);
        return *parts ? 0 : ek_error_pending();
    }
    return 0;
}

ek_tensor *ek_state_parts_gather(ek_object *parts)
{
    const state_parts *p = (state_parts *)parts;
    return ek_slot_gather_state(&p->slot, &p->division, p->state);
}

/* optimizer.h: what the algorithms and the stepping share. */
#ifndef EK_OPTIM_OPTIMIZER_H
#define EK_OPTIM_OPTIMIZER_H

#include "core/keywords.h"
#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/optim.h"

enum { EK_STATES = 3 }; /* at most, of one parameter */

typedef struct ek_algorithm {
    const char *name;
    const char *state_names[EK_STATES]; /* NULL at the end */

    /* Checks `given` and fills *resolved with plain numbers: what is left out comes from
     * `defaults`, or if that is NULL from the algorithm's own. */
    int (*resolve)(const ek_optimizer_options *given, const ek_optimizer_options *defaults,
                   ek_optimizer_options *resolved);

    /* How many of the states these options need. */
    int (*state_count)(const ek_optimizer_options *options);

    /* Parameters may share a kernel call where this number is equal; `step` counts from 1. */
    int64_t (*phase)(const ek_optimizer_options *options, int64_t step);

    /* True if zeros with a zero gradient and zero state stay zeros: a slab's padding. */
    bool (*keeps_zeros)(const ek_optimizer_options *options);

    /* One update of each of `count` flat ranges, of one device and dtype. state[s] has as many;
     * what the options don't need is NULL. */
    int (*update)(const ek_optimizer_options *options, int64_t step, int count,
                  ek_tensor *const *parameters, ek_tensor *const *gradients,
                  ek_tensor *const *const *state);
} ek_algorithm;

/* What is stepped in one place: a whole parameter, or one shard of a divided one
 * (autograd/shards.h). */
typedef struct ek_slot_piece {
    struct ek_slot *slot;
    int64_t begin, end;          /* elements of the parameter, in order of its memory */
    ek_tensor *state[EK_STATES]; /* references, where the piece lies and laid out as it is; NULL or
                                    zeros before the first update */
    ek_tensor *fresh[EK_STATES]; /* references: memory that becomes the state's, or not */
    /* Where the piece lay when the table was sorted, and its place there. */
    const ek_storage *storage;
    int64_t offset;
    int row;
} ek_slot_piece;

typedef struct ek_slot_division {
    uint64_t serial;             /* of the shards; 0: one piece, which is the parameter */
    int64_t stride[EK_MAX_DIMS]; /* the parameter's, for the order of elements */
    int count;
    ek_slot_piece *pieces; /* NULL: no division */
} ek_slot_division;

/* One parameter. */
typedef struct ek_slot {
    ek_tensor *parameter; /* a reference */
    int group;
    int64_t step; /* how many updates it had */
    ek_slot_division division;
    ek_slot_division before; /* during a change: the division until then, which has the state */
    bool takes_part;         /* in this step */
} ek_slot;

struct ek_optimizer {
    const ek_algorithm *algorithm;
    ek_optimizer_options defaults; /* resolved, for groups to come */
    ek_optimizer_options *groups;  /* resolved */
    int group_count;
    ek_slot **slots;
    int slot_count;
    ek_map index; /* parameter to slot */
    /* All pieces by group and place in memory (layout.c). */
    ek_slot_piece **table;
    int piece_count;
    bool table_is_current;
    bool changing; /* some piece has fresh memory, or some slot a division before */
};

/* Makes an optimizer of `options`, with the module's parameters as group 0 if there is one. */
ek_optimizer *ek_optimizer_new(const ek_algorithm *algorithm, const ek_optimizer_options *options);

/* ---- pieces.c: parameters and their pieces ---- */

ek_slot *ek_slot_new(ek_tensor *parameter, int group);
void ek_slot_free(ek_slot *slot);

/* Where the piece lies now; NULL if its parameter has been divided otherwise since. */
ek_tensor *ek_piece_tensor(const ek_slot_piece *piece);
bool ek_slot_is_current(const ek_slot *slot);

/* Gives the slot the pieces that its parameter has now. State that it has stays with the division
 * before, until ek_optimizer_end_change. */
int ek_slot_divide(ek_optimizer *optimizer, ek_slot *slot);

/* Copies the state of the division before to where the pieces' is to lie. */
int ek_slot_carry_state(ek_slot *slot);

/* Fresh memory and new divisions become valid (all state has been carried over), or all is as it
 * was before. */
void ek_optimizer_end_change(ek_optimizer *optimizer, bool keep);

/* State s as one tensor on cpu, in the scope: shaped as the parameter, of the state's dtype. */
ek_tensor *ek_slot_gather_state(const ek_slot *slot, const ek_slot_division *division, int s);
/* A tensor of the parameter's shape on cpu, in the parameter's dtype and order of memory: `state`
 * itself if it is so and no part of the slot's state, else a copy in the scope. */
ek_tensor *ek_slot_convert_state(const ek_slot *slot, ek_tensor *state);
/* Copies such a tensor to state s of all pieces. */
int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole);

/* What state s is after the change, if there is one. */
static inline ek_tensor *ek_piece_state(const ek_slot_piece *piece, int s)
{
    return piece->fresh[s] ? piece->fresh[s] : piece->state[s];
}

/* ---- layout.c: places in memory ---- */

/* A row of the segment table: a piece that is stepped. */
typedef struct ek_row {
    ek_slot_piece *piece;
    ek_tensor *tensor;   /* where it lies */
    ek_tensor *gradient; /* in its order of memory; NULL: none, and no slot for one */
} ek_row;

/* Brings the table of pieces up to date: by group and place in memory. */
int ek_optimizer_sort(ek_optimizer *optimizer);

/* May b be stepped by the call that steps a, as far as parameter and gradient go? */
bool ek_rows_join(const ek_optimizer *optimizer, const ek_row *a, const ek_row *b);
/* And as far as `count` states go? */
bool ek_states_join(const ek_row *a, const ek_row *b, int count);

/* Memory for all states of the rows (zeros where there was none), in one slab for what joins. What
 * changes is fresh until ek_optimizer_end_change. */
int ek_optimizer_prepare_state(ek_optimizer *optimizer, const ek_row *rows, int count);
/* The same for the slot, in the place where the next step will look for it: with its neighbours',
 * as if all had gradients. */
int ek_optimizer_reserve_state(ek_optimizer *optimizer, const ek_slot *slot);

/* The tensor as a flat handle in the scope; it must be dense. `count` may reach beyond its end,
 * over a slab's following members. */
ek_tensor *ek_flat_range(const ek_tensor *tensor, int64_t count);

#endif

/* optimizer.h: what optimizers are made of, for this folder and for checkpoints.
 *
 * An optimizer has a slot per parameter. A slot has a segment for each place where its parameter is
 * stepped: one if the parameter is whole, and one per shard if it is divided (autograd/shards.h).
 * The optimizer's table has all segments in the order of memory: what follows each other there is
 * stepped as one range, with state that is laid out like the parameters. */
#ifndef EK_OPTIM_OPTIMIZER_H
#define EK_OPTIM_OPTIMIZER_H

#include "autograd/shards.h"
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

    /* Parameters may share a kernel call if this number is equal; `step` counts from 1. */
    int64_t (*phase)(const ek_optimizer_options *options, int64_t step);

    /* True if zeros with a zero gradient and zero state stay zeros: a slab's padding. */
    bool (*keeps_zeros)(const ek_optimizer_options *options);

    /* One update of each of `count` flat ranges, of one device and dtype. state[s] has as many;
     * what the options don't need is NULL. */
    int (*update)(const ek_optimizer_options *options, int64_t step, int count,
                  ek_tensor *const *parameters, ek_tensor *const *gradients,
                  ek_tensor *const *const *state);
} ek_algorithm;

/* Elements of a parameter that are stepped in one place. */
typedef struct ek_segment {
    struct ek_slot *slot;
    ek_shard shard; /* as the last ek_optimizer_sort found it. The piece is borrowed: where the
                       segment lies; NULL if its parameter has been divided otherwise since */
    ek_tensor *state[EK_STATES]; /* references, on the piece's device and laid out as it is; NULL or
                                    zeros before the first update */
    ek_tensor *gradient; /* of this step, in the piece's order of memory, borrowed; NULL: none */
} ek_segment;

/* All segments of one parameter. */
typedef struct ek_cut {
    uint64_t id;                 /* of the division; 0: one segment, which is the parameter */
    int64_t stride[EK_MAX_DIMS]; /* the parameter's, for the order of elements */
    int count;
    ek_segment *segments; /* NULL: no cut */
} ek_cut;

/* One parameter. */
typedef struct ek_slot {
    ek_tensor *parameter; /* a reference */
    int group;
    int64_t step; /* how many updates it had */
    ek_cut cut;
    bool takes_part; /* in this step */
} ek_slot;

struct ek_optimizer {
    const ek_algorithm *algorithm;
    ek_optimizer_options defaults; /* resolved, for groups to come */
    ek_optimizer_options *groups;  /* resolved */
    int group_count;
    ek_slot **slots;
    int slot_count;
    ek_map index;       /* parameter to slot */
    ek_segment **table; /* all segments by group and place in memory */
    int segment_count;
    bool table_is_current;
};

/* 0, or the error of an optimizer that is NULL or could not be made. */
int ek_optimizer_check(const ek_optimizer *optimizer);

/* EK_E_INVALID unless the option is 0 or more. */
int ek_optimizer_check_option(const char *algorithm, const char *what, double value);

/* Makes an optimizer of `options`, with the module's parameters as group 0 if there is one. */
ek_optimizer *ek_optimizer_new(const ek_algorithm *algorithm, const ek_optimizer_options *options);

/* ---- flat.c: segments, and where their state lies ---- */

ek_slot *ek_slot_new(ek_tensor *parameter, int group);
void ek_slot_free(ek_slot *slot);

/* Gives the slot the segments that its parameter has now, if these have changed, with the state
 * that it has. On an error all is as before. */
int ek_slot_recut(ek_optimizer *optimizer, ek_slot *slot);

/* Brings the table up to date: by group and place in memory. */
int ek_optimizer_sort(ek_optimizer *optimizer);

/* True if b, the next of those that are stepped, follows a in memory: parameter, gradient and
 * `states` states. */
bool ek_segments_join(const ek_optimizer *optimizer, const ek_segment *a, const ek_segment *b,
                      int states);

/* Memory for all states of these segments, a run of the table: in one slab for neighbours, zeros if
 * there was no state. If `slot` isn't NULL, only for neighbours of its segments. */
int ek_optimizer_lay_out(ek_optimizer *optimizer, ek_segment *const *segments, int count,
                         const ek_slot *slot);

/* Memory that parameters got for their first update, which didn't come, is given back. */
void ek_optimizer_forget_unused_state(ek_optimizer *optimizer);

/* A parameter that was never updated. */
void ek_slot_forget_state(ek_slot *slot);

/* State s of the segments as one counted object, of which the caller owns a reference: optimizer
 * and parameter may go. NULL with an error. */
ek_object *ek_slot_state_parts(const ek_slot *slot, int s);
/* The whole, on cpu, in the scope: shaped as the parameter, of the state's dtype. */
ek_tensor *ek_state_parts_gather(ek_object *parts);
ek_tensor *ek_slot_gather_state(const ek_slot *slot, int s);
/* A tensor of the parameter's shape on cpu, in the parameter's dtype and order of memory: `state`
 * itself if it is so and no part of the slot's state, else a copy in the scope. */
ek_tensor *ek_slot_convert_state(const ek_slot *slot, ek_tensor *state);
/* Copies such a tensor to state s of all segments. */
int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole);

/* ---- for checkpoints ---- */

/* As ek_slot_state_parts; *parts is NULL if the parameter is whole or there is no state. Returns 0
 * or a negative status. */
int ek_optimizer_state_parts(const ek_optimizer *optimizer, const ek_tensor *parameter,
                             const char *name, ek_object **parts, ek_dtype *dtype);

ek_optimizer *ek_schedule_optimizer(const ek_schedule *schedule);

/* The rates that it began with, of the `*count` groups that it has seen. */
const double *ek_schedule_initial(const ek_schedule *schedule, int *count);

/* Makes it one of `count` groups with these, after `steps` steps. Rates of the optimizer stay. */
int ek_schedule_restore(ek_schedule *schedule, int64_t steps, const double *initial, int count);

#endif

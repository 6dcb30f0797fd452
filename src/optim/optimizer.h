/* optimizer.h: what optimizers are made of, for this folder and for checkpoints.
 *
 * An optimizer has a slot per parameter. A slot has one part if its parameter is whole, and one per
 * shard if the parameter is sharded (autograd/shards.h). The optimizer's table has all parts in the
 * order of memory. Parts that are neighbours in memory are stepped as one range. Their states are
 * laid out like their parameters. */
#ifndef EK_OPTIM_OPTIMIZER_H
#define EK_OPTIM_OPTIMIZER_H

#include "autograd/shards.h"
#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/optim.h"

enum { EK_STATES = 3 }; /* the most states of one parameter */

typedef struct ek_algorithm ek_algorithm; /* algorithm.h */

/* The options of all algorithms as numbers. Options that a group's algorithm lacks are 0. */
typedef struct ek_optimizer_options {
    double lr, momentum, dampening, weight_decay, nesterov, beta1, beta2, eps, amsgrad, maximize;
    double alpha, centered, lr_decay, initial_accumulator_value, rho, momentum_decay;
    double eta_minus, eta_plus, step_min, step_max, lambd, t0;
    double max_iter, max_eval, tolerance_grad, tolerance_change, history_size, line_search;
} ek_optimizer_options;

/* The index of an option in ek_optimizer_options. */
#define EK_OPTION(member) (offsetof(ek_optimizer_options, member) / sizeof(double))
enum { EK_OPTIMIZER_OPTION_COUNT = sizeof(ek_optimizer_options) / sizeof(double) };

/* A whole parameter, or one of its shards. */
typedef struct ek_part {
    struct ek_slot *slot;
    /* The shard, as of the last ek_optimizer_sort. The tensor is borrowed. If the parameter's
     * shards have changed since the part was made, the tensor is NULL. */
    ek_shard shard;
    /* The states, laid out like the shard; one reference each. NULL or zeros before the first
     * update. */
    ek_tensor *state[EK_STATES];
    /* This step's gradient, in the shard's order of memory; borrowed, or NULL. */
    ek_tensor *gradient;
} ek_part;

/* One parameter. */
typedef struct ek_slot {
    ek_tensor *parameter; /* one reference */
    int group;
    int64_t step;    /* count of the parameter's updates */
    double carried;  /* a number that the algorithm passes from step to step */
    bool takes_part; /* true if this step updates the parameter */

    /* The parameter's shards and layout when its parts were made. */
    uint64_t shards;             /* id of the ek_shards; 0: it was whole */
    ek_ranks *ranks;             /* of the sharding; one reference, or NULL */
    int64_t stride[EK_MAX_DIMS]; /* the order of elements in memory */
    int part_count;
    ek_part *parts; /* owned */
} ek_slot;

struct ek_optimizer {
    const ek_algorithm *algorithm;
    ek_optimizer_options defaults; /* of groups that are added later */
    ek_optimizer_options *groups;  /* by group */
    double *initial_lr; /* by group: the rate before the first schedule; NaN: no schedule */
    int group_count;
    unsigned changed; /* a bit per option that ek_optimizer_set has changed; lr has none */
    ek_slot **slots;
    int slot_count;
    ek_map index;    /* from parameter to slot */
    ek_part **table; /* all parts, sorted by group and place in memory */
    int part_count;
    bool table_is_current;
    bool warned;  /* the last step has found no gradient, and a warning was logged */
    void *memory; /* the state of an ek_vector_algorithm, or NULL */
};

/* Returns 0, or the error of an optimizer that is NULL or could not be made. */
int ek_optimizer_check(const ek_optimizer *optimizer);

/* Returns 0, or EK_E_INVALID if the algorithm needs a closure, which ek_step doesn't have, or if
 * max_norm is below 0. `what` begins the sentence: "" or "train_step: ". */
int ek_optimizer_check_step(const ek_optimizer *optimizer, const char *what, double max_norm);

/* Makes a step, after ek_clip_grad_norm if max_norm is above 0. A norm that is not finite is an
 * error, and no step is made. */
int ek_step_clipped(ek_optimizer *optimizer, double max_norm);

/* Clips as ek_clip_grad_norm does if the norm is finite, else leaves gradients unchanged. Writes
 * the norm. */
int ek_clip_finite(ek_optimizer *optimizer, double max_norm, double *norm);
/* Returns 0, or EK_E_INVALID for a norm that is not finite. */
int ek_clip_check(double norm);

/* Does for a scaled loss what ek_step_clipped does: unscales the gradients, clips them, makes the
 * step or skips it, and updates the scaler. On an error the scaler is unchanged. */
int ek_grad_scaler_step_clipped(ek_grad_scaler *scaler, ek_optimizer *optimizer, double max_norm);

/* Returns 0, or EK_E_INVALID if there is no such group. */
int ek_optimizer_check_group(const ek_optimizer *optimizer, int group);

/* ---- parts.c: parts, and where their state lies ---- */

ek_slot *ek_slot_new(ek_tensor *parameter, int group);
void ek_slot_free(ek_slot *slot);

/* If the parameter's shards have changed, makes the parts anew and moves their state. On an error
 * nothing has changed. */
int ek_slot_recut(ek_optimizer *optimizer, ek_slot *slot);

/* Sorts the table by group and place in memory. */
int ek_optimizer_sort(ek_optimizer *optimizer);

/* Returns true if part b follows part a in memory: their parameters, their gradients, and those of
 * their states whose bits are set in `states`. */
bool ek_parts_join(const ek_optimizer *optimizer, const ek_part *a, const ek_part *b,
                   unsigned states);

/* Gives these parts, which follow each other in the table, memory for the states that their
 * groups' options need. Neighbours share a slab, and new state is zeros. If `slot` isn't NULL, only
 * its parts and their neighbours get memory. */
int ek_optimizer_lay_out(ek_optimizer *optimizer, ek_part *const *parts, int count,
                         const ek_slot *slot);

/* Frees the state of parameters that were never updated. */
void ek_optimizer_forget_unused_state(ek_optimizer *optimizer);

/* Frees the slot's state and sets its step to 0. */
void ek_slot_forget_state(ek_slot *slot);

/* Returns state s of all parts as one object, which may outlive optimizer and parameter. One
 * reference; NULL with an error. */
ek_object *ek_slot_state_parts(const ek_slot *slot, int s);
/* Returns the whole state on cpu, in the scope, of the parameter's shape and the state's dtype. If
 * the state is sharded over ranks, all ranks must call the function. */
ek_tensor *ek_state_parts_gather(ek_object *parts);
ek_tensor *ek_slot_gather_state(const ek_slot *slot, int s);
/* Returns this process's elements of a state, on cpu, in the scope. Elements of other processes are
 * zeros. The slot must have the state. */
ek_tensor *ek_slot_own_state(const ek_slot *slot, int s);
/* Returns true if the state is sharded over ranks. */
bool ek_state_parts_have_ranks(const ek_object *parts);
/* Returns a state on cpu, in the parameter's shape, dtype and order of memory. Returns `state`
 * itself if it has all these and shares no memory with the slot's states, else a copy in the
 * scope. */
ek_tensor *ek_slot_convert_state(const ek_slot *slot, ek_tensor *state);
/* Copies a tensor from ek_slot_convert_state to state s of all parts. */
int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole);

/* ---- for checkpoints ---- */

/* Writes the state of this name as an object of ek_slot_state_parts, and the state's dtype. If the
 * parameter is whole or has no such state, *parts is NULL. Returns 0 or a negative status. */
int ek_optimizer_state_parts(const ek_optimizer *optimizer, const ek_tensor *parameter,
                             const char *name, ek_object **parts, ek_dtype *dtype);

/* Returns a state as ek_optimizer_state does, but calls no other rank: elements that other ranks
 * own are zeros. ek_optimizer_set_state can restore this process's state from the result. */
ek_tensor *ek_optimizer_own_state(ek_optimizer *optimizer, ek_tensor *parameter, const char *name);

/* Returns the name of the index-th option, not counting lr, and writes whether ek_optimizer_set has
 * changed the option. Returns NULL past the last. */
const char *ek_optimizer_changeable(const ek_optimizer *optimizer, int index, bool *changed);

/* Sets an option of all groups: that of group i to values[i]. On an error nothing has changed. */
int ek_optimizer_set_all(ek_optimizer *optimizer, const char *name, const double *values);

ek_optimizer *ek_schedule_optimizer(const ek_schedule *schedule);

/* Returns the initial rates of the *count groups that the schedule has seen. Borrowed. */
const double *ek_schedule_initial(const ek_schedule *schedule, int *count);

/* Returns the child schedule at `index`; NULL past the last child. */
ek_schedule *ek_schedule_child(const ek_schedule *schedule, int index);

/* Returns the schedule's state without its count of steps: *count numbers. Most schedules have
 * none. */
double *ek_schedule_memory(ek_schedule *schedule, int *count);

/* Gives the schedule `count` groups with these initial rates, and sets its count of steps. Sets the
 * optimizer's momentum to the schedule's, but leaves the optimizer's rates unchanged. */
int ek_schedule_restore(ek_schedule *schedule, int64_t steps, const double *initial, int count);

#endif

/* optimizer.h: what optimizers are made of, for this folder and for checkpoints.
 *
 * An optimizer has a slot per parameter. A slot has one part if its parameter is whole, and one per
 * shard if the parameter is sharded (autograd/shards.h). The optimizer's table has all parts in the
 * order of memory. Neighbours there are stepped as one range, with state that is laid out like the
 * parameters. */
#ifndef EK_OPTIM_OPTIMIZER_H
#define EK_OPTIM_OPTIMIZER_H

#include "autograd/shards.h"
#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/optim.h"

enum { EK_STATES = 3 }; /* most states of one parameter */

typedef struct ek_algorithm ek_algorithm; /* algorithm.h */

/* The options of a group as numbers, those of all algorithms side by side. Options that the
 * algorithm lacks are 0. */
typedef struct ek_optimizer_options {
    double lr, momentum, dampening, weight_decay, nesterov, beta1, beta2, eps, amsgrad, maximize;
    double alpha, centered, lr_decay, initial_accumulator_value, rho, momentum_decay;
    double eta_minus, eta_plus, step_min, step_max, lambd, t0;
    double max_iter, max_eval, tolerance_grad, tolerance_change, history_size, line_search;
} ek_optimizer_options;

/* An option's place among them. */
#define EK_OPTION(member) (offsetof(ek_optimizer_options, member) / sizeof(double))
enum { EK_OPTIMIZER_OPTION_COUNT = sizeof(ek_optimizer_options) / sizeof(double) };

/* A whole parameter, or one of its shards. */
typedef struct ek_part {
    struct ek_slot *slot;
    /* The shard as the last ek_optimizer_sort found it. Its tensor is borrowed, and NULL if the
     * parameter's shards have changed since. */
    ek_shard shard;
    /* One reference each, laid out like the shard. NULL or zeros before the first update. */
    ek_tensor *state[EK_STATES];
    /* This step's gradient, in the shard's order of memory. Borrowed; NULL: none. */
    ek_tensor *gradient;
} ek_part;

/* One parameter. */
typedef struct ek_slot {
    ek_tensor *parameter; /* one reference */
    int group;
    int64_t step;    /* count of the parameter's updates */
    double carried;  /* the algorithm's number that goes from step to step */
    bool takes_part; /* true if this step updates the parameter */

    /* What the parameter was when its parts were made. */
    uint64_t shards;             /* id of its ek_shards; 0: it was whole */
    ek_ranks *ranks;             /* over which it was sharded; one reference, or NULL */
    int64_t stride[EK_MAX_DIMS]; /* for the order of elements */
    int part_count;
    ek_part *parts; /* owned */
} ek_slot;

struct ek_optimizer {
    const ek_algorithm *algorithm;
    ek_optimizer_options defaults; /* of groups to come */
    ek_optimizer_options *groups;  /* of each group */
    double *initial_lr;            /* by group: the rate when a schedule first saw it, or NaN */
    int group_count;
    unsigned changed; /* a bit per option, but lr, that ek_optimizer_set has changed in a group */
    ek_slot **slots;
    int slot_count;
    ek_map index;    /* parameter to slot */
    ek_part **table; /* all parts by group and place in memory */
    int part_count;
    bool table_is_current;
    bool warned;  /* that no parameter has a gradient; until one has */
    void *memory; /* of an algorithm that steps all parameters as one vector, or NULL */
};

/* 0, or the error of an optimizer that is NULL or could not be made. */
int ek_optimizer_check(const ek_optimizer *optimizer);

/* EK_E_INVALID for an algorithm that ek_step can't do, because it needs a closure. `what` begins
 * the sentence, "" or "train_step: ". */
int ek_optimizer_check_step(const ek_optimizer *optimizer, const char *what);

/* EK_E_INVALID unless there is such a group. */
int ek_optimizer_check_group(const ek_optimizer *optimizer, int group);

/* ---- parts.c: parts, and where their state lies ---- */

ek_slot *ek_slot_new(ek_tensor *parameter, int group);
void ek_slot_free(ek_slot *slot);

/* Makes the parts anew, and moves their state, if the parameter's shards have changed. On an error
 * nothing has changed. */
int ek_slot_recut(ek_optimizer *optimizer, ek_slot *slot);

/* Sorts the table by group and place in memory. */
int ek_optimizer_sort(ek_optimizer *optimizer);

/* True if b, the next part to step, follows a in memory with its parameter, its gradient and the
 * states whose bits are set. */
bool ek_parts_join(const ek_optimizer *optimizer, const ek_part *a, const ek_part *b,
                   unsigned states);

/* Gives memory for all states to these parts, a run of the table: neighbours share a slab, and new
 * state is zeros. If `slot` isn't NULL, only neighbours of its parts get memory. */
int ek_optimizer_lay_out(ek_optimizer *optimizer, ek_part *const *parts, int count,
                         const ek_slot *slot);

/* Frees the state of parameters that were never updated. */
void ek_optimizer_forget_unused_state(ek_optimizer *optimizer);

/* Frees the slot's state and sets its step to 0. */
void ek_slot_forget_state(ek_slot *slot);

/* State s of all parts as one object, which may outlive optimizer and parameter. One reference;
 * NULL with an error. */
ek_object *ek_slot_state_parts(const ek_slot *slot, int s);
/* The whole state on cpu, in the scope, of the parameter's shape and the state's dtype. If it is
 * sharded over ranks, all of them call it. */
ek_tensor *ek_state_parts_gather(ek_object *parts);
ek_tensor *ek_slot_gather_state(const ek_slot *slot, int s);
/* What this process has of a state that there is, on cpu, in the scope; the rest is zeros. */
ek_tensor *ek_slot_own_state(const ek_slot *slot, int s);
bool ek_state_parts_have_ranks(const ek_object *parts);
/* `state` on cpu, in the parameter's shape, dtype and order of memory: itself if it is that already
 * and shares no memory with the slot's state, else a copy in the scope. */
ek_tensor *ek_slot_convert_state(const ek_slot *slot, ek_tensor *state);
/* Copies a tensor from ek_slot_convert_state to state s of all parts. */
int ek_slot_put_state(const ek_slot *slot, int s, ek_tensor *whole);

/* ---- for checkpoints ---- */

/* As ek_slot_state_parts, for a parameter and the name of a state. *parts is NULL if the parameter
 * is whole or has no such state. Returns 0 or a negative status. */
int ek_optimizer_state_parts(const ek_optimizer *optimizer, const ek_tensor *parameter,
                             const char *name, ek_object **parts, ek_dtype *dtype);

/* As ek_optimizer_state, but without a call of other ranks: what they own is zeros. Enough for
 * ek_optimizer_set_state to bring back. */
ek_tensor *ek_optimizer_own_state(ek_optimizer *optimizer, ek_tensor *parameter, const char *name);

/* The name of the index-th option but lr, and if ek_optimizer_set has changed it; NULL past the
 * last.
 */
const char *ek_optimizer_changeable(const ek_optimizer *optimizer, int index, bool *changed);

/* Sets an option of all groups, values[i] for group i. On an error nothing has changed. */
int ek_optimizer_set_all(ek_optimizer *optimizer, const char *name, const double *values);

ek_optimizer *ek_schedule_optimizer(const ek_schedule *schedule);

/* The initial rates of the *count groups that the schedule has seen. Borrowed. */
const double *ek_schedule_initial(const ek_schedule *schedule, int *count);

/* Returns the child schedule at `index`; NULL past the last child. */
ek_schedule *ek_schedule_child(const ek_schedule *schedule, int index);

/* Returns the schedule's state beside its count of steps: *count numbers, 0 for most schedules. */
double *ek_schedule_memory(ek_schedule *schedule, int *count);

/* Sets the schedule to `count` groups with these initial rates, after `steps` steps. The
 * optimizer's rates stay, and its momentum becomes the schedule's. */
int ek_schedule_restore(ek_schedule *schedule, int64_t steps, const double *initial, int count);

#endif

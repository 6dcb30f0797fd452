/* divided.h: parameters whose optimizer's state is divided over the devices of all ranks.
 *
 * Note [Divided parameters]
 *
 * Parameters are whole on every rank and device, and so are the gradients of each rank's own
 * backward. What is divided is their sum over ranks, and the state of optimizers. Each bucket
 * (reducer.h) is cut into a slice per rank, as for its sum (sum.h), and each slice into a range per
 * device of the rank. The parts of parameters in a rank's ranges are its shards
 * (autograd/shards.h): flat leaves, on the device of their range, that optimizers step.
 *
 *     backward    each rank gets its slice of the mean, and with it the gradients of its shards
 *     ek_step     all ranks agree; each steps its shards; then all get all parameters
 *
 * A slice is added in the order of ranks and stepped element by element, as the whole would be, so
 * that numbers are the same to the bit. Each parameter has a shard on each rank, although it may
 * have no elements: so ranks have the same parameters with gradients, and the same step counts.
 *
 * Shards on the parameter's own device are the parameter's memory, and their gradients the memory
 * of its grad buffer. A backward that finds such gradients either brings the mean back to all ranks
 * first, and adds to it, or, if it is not reduced itself, moves them out of the way.
 *
 * The step and the publication are one call of all ranks (divided_step.c). By communication.h's
 * Note [Agreement] no rank steps unless all of them do, and all of them are in the publication
 * then, so that a failure leaves all ranks with equal parameters. */
#ifndef EK_DISTRIBUTED_DIVIDED_H
#define EK_DISTRIBUTED_DIVIDED_H

#include "autograd/shards.h"
#include "comm/exchange.h"
#include "comm/ranks.h"
#include "parallel/call_guard.h"
#include "train/reducer.h"

/* What is known of a shard. */
typedef struct ek_divided_part {
    int leaf;        /* of the reducer */
    int device;      /* of `devs` */
    ek_tensor *mean; /* where its gradient's mean is after a pass; one reference */
    ek_tensor *sent; /* where its elements are sent from; ditto */
    ek_tensor *home; /* its elements in the parameter, if the shard has others; else NULL; ditto */
    uint64_t seen;   /* the parameter's version when `home` and the shard were equal */
} ek_divided_part;

/* Leaves of one bucket that follow each other and are sent together. */
typedef struct ek_divided_run {
    int bucket;
    int64_t begin, end; /* elements of the bucket's range */
} ek_divided_run;

typedef struct ek_divided {
    ek_flat flat; /* segment i is the reducer's leaf i */
    ek_reducer *reducer;
    ek_ranks *ranks; /* one reference */
    ek_call_guard guard;
    int devices; /* of this rank, each with a range of every slice */
    ek_dev *devs[EK_MAX_DEVICES];
    ek_divided_part *parts; /* per shard */
    /* Per bucket: the host's memory through which its parameters are sent: the parameters' own, or
     * a copy. One reference. */
    ek_tensor **memory;
    bool *in_place; /* per bucket: it is their own */
    /* Per leaf: flat handles on the parameter, and on its elements in `memory`. One reference. */
    ek_tensor **wholes, **copies;
    ek_move *moves; /* room for one per shard or leaf */

    /* The step under way. */
    ek_dist_work *work;
    ek_divided_run *runs; /* room for one per leaf */
    int run_count;
    int run;        /* the communication thread's */
    bool committed; /* under the communication's lock: all ranks are in the call */
    bool closed;    /* under the reducer's lock: this rank's part can be sent */
} ek_divided;

/* Divides the reducer's parameters over the ranks, which are those of its group, and this rank's
 * devices, the same number on each rank; devices == 0: each parameter's own. Writes
 * reducer->divided. EK_E_STATE if a parameter is sharded already. NULL with an error. */
ek_divided *ek_divided_new(ek_reducer *reducer, ek_ranks *ranks, ek_dev *const *devs, int devices);
/* Makes the parameters whole again, without the gradients that were divided. NULL is ignored. */
void ek_divided_end(ek_divided *divided);

/* ---- for the reducer ---- */

/* Before a pass: makes whole gradients of those that are divided, with the other ranks; or, if the
 * pass is not reduced, makes room for it. */
int ek_divided_begin(ek_divided *divided, bool reduced);
/* After a pass: what came to this rank's slice becomes the gradient of the leaf's shards. */
int ek_divided_take(ek_divided *divided, int leaf);

/* ---- divided_step.c: for the optimizer's step, as members of the flat ---- */

int ek_divided_agree(ek_flat *flat, int status);
int ek_divided_publish(ek_flat *flat, int status);

#endif

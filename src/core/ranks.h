/* ranks.h: what lies beyond this process, for folders that don't know processes.
 *
 * Modules and operations that take other processes into account hold an ek_ranks. src/distributed
 * makes them of process groups. NULL stands for a process without others, so that a holder asks
 * `if (ranks)` and else does nothing. The calls are collective: all ranks make them in the same
 * order. An error of one rank is an error of all. */
#ifndef EK_CORE_RANKS_H
#define EK_CORE_RANKS_H

#include "core/object.h"
#include "core/thread.h"
#include "evenkeel/tensor.h"

enum { EK_RANKS_COUNTS = 16 }; /* numbers that a rank can give to `gather` */

/* Calls that all ranks of a group made together, and to which one rank came last. */
typedef struct ek_ranks_wait {
    uint64_t calls;
    uint64_t waited; /* nanoseconds that this process waited for that rank then */
} ek_ranks_wait;

typedef struct ek_ranks {
    ek_object object;
    int rank, size;   /* size > 1 */
    const char *host; /* the name of this process's machine */
    bool ended;       /* true once the group was destroyed; calls are errors then */
    /* All ranks' tensors one after another along dim; ek_dist_join. Sizes along dim may differ.
     * `sizes`: those of all ranks, if each rank knows them and dim >= 0, which saves a round; or
     * NULL. In the scope. */
    ek_tensor *(*join)(struct ek_ranks *ranks, ek_tensor *x, int dim, const int64_t *sizes);
    /* The sum over all ranks; ek_dist_sum. */
    ek_tensor *(*sum)(struct ek_ranks *ranks, ek_tensor *x);
    /* Every rank gives `count` numbers and gets those of all: all[r * count + i] is number i of
     * rank r. */
    int (*gather)(struct ek_ranks *ranks, const int64_t *mine, int count, int64_t *all);
    /* What has become of something that each rank has done for itself: rc is the rank's outcome,
     * and if it is negative, its error is pending. 0 if all went well; else an error on all ranks.
     */
    int (*agree)(struct ek_ranks *ranks, int rc);
    /* Writes for each rank how often it came last so far; no call of all ranks. Returns the
     * nanoseconds that this process's calls have waited for communication. */
    uint64_t (*waits)(struct ek_ranks *ranks, ek_ranks_wait *of);
} ek_ranks;

/* The ranks of a group; NULL: the world. One object per group, which must not be used after the
 * group's end; one reference. NULL without an error if there are no others. src/distributed sets
 * it; NULL in programs without it. */
extern ek_ranks *(*ek_ranks_of)(ek_process_group *group);

/* EK_E_STATE if the group was destroyed. For optimizers, whose state may outlive the group. */
int ek_ranks_check(const ek_ranks *ranks);

/* A call of all ranks: *value becomes the sum of their values, or the largest (NaN if there is
 * one). `status` is this rank's outcome so far; if it is negative, the error is pending, and *value
 * is not read. */
int ek_ranks_combine(ek_ranks *ranks, int status, double *value, bool largest);

/* For an outcome that all ranks have found alike: if it is negative, its error needs no telling.
 * Returns rc. */
static inline int ek_ranks_alike(int rc)
{
    if (rc < 0)
        ek_thread_self()->error.told = true;
    return rc;
}

struct ek_module;

/* The ranks that a distributed wrapper (ddp.h) goes over, and the module that it wraps; both are
 * borrowed. NULL for other modules, whose *child is the module itself, and if there are no other
 * ranks. src/distributed sets it; NULL in programs without it. */
extern ek_ranks *(*ek_ranks_of_wrapper)(struct ek_module *module, struct ek_module **child);
/* Whether backwards through the next forwards of an ek_distributed_data_parallel average gradients;
 * returns what held before. */
extern bool (*ek_ranks_set_sync)(struct ek_module *model, bool sync);

/* The same in all programs. */
static inline ek_ranks *ek_ranks_around(struct ek_module *module, struct ek_module **child)
{
    *child = module;
    return module && ek_ranks_of_wrapper ? ek_ranks_of_wrapper(module, child) : NULL;
}

#endif

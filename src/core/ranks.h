/* ranks.h: what lies beyond this process, for folders that don't know processes.
 *
 * Modules and operations that compute over several processes hold an ek_ranks, which
 * src/distributed makes of a process group. NULL means a single process: the holder then does
 * nothing. Calls are collective: all ranks make them in one order. An error of one rank becomes an
 * error of all. */
#ifndef EK_CORE_RANKS_H
#define EK_CORE_RANKS_H

#include "core/object.h"
#include "core/thread.h"
#include "evenkeel/tensor.h"

enum { EK_RANKS_COUNTS = 16 }; /* how many numbers a rank can give to `gather` at most */

/* At how many collective calls one rank arrived last, and the time that this cost. */
typedef struct ek_ranks_wait {
    uint64_t calls;
    uint64_t waited; /* nanoseconds that this process waited for that rank in these calls */
} ek_ranks_wait;

typedef struct ek_ranks {
    ek_object object;
    int rank, size;   /* size > 1 */
    const char *host; /* the name of this process's machine */
    bool ended;       /* true once the group was destroyed; every call is then an error */
    /* Concatenates all ranks' tensors along dim (ek_dist_join). Sizes along dim may differ. If
     * every rank knows the sizes of all ranks and dim >= 0, `sizes` holds them, which saves a
     * round; else it is NULL. The result is in the scope. */
    ek_tensor *(*join)(struct ek_ranks *ranks, ek_tensor *x, int dim, const int64_t *sizes);
    /* Returns the sum over all ranks (ek_dist_sum). */
    ek_tensor *(*sum)(struct ek_ranks *ranks, ek_tensor *x);
    /* Gathers `count` numbers from every rank: all[r * count + i] becomes number i of rank r. */
    int (*gather)(struct ek_ranks *ranks, const int64_t *mine, int count, int64_t *all);
    /* Makes an error of one rank an error of all ranks. rc is this rank's outcome; if it is
     * negative, its error is pending. Returns 0 if all ranks succeeded. */
    int (*agree)(struct ek_ranks *ranks, int rc);
    /* Writes how often each rank came last so far, and how long that took. Not collective. Returns
     * the nanoseconds that this process's calls have waited for communication. */
    uint64_t (*waits)(struct ek_ranks *ranks, ek_ranks_wait *of);
} ek_ranks;

/* Returns one reference to the ranks of a group (NULL: the world), which must not be used after the
 * group's end. Returns NULL without an error if the group has one rank. src/distributed sets this
 * pointer; in programs without it the pointer is NULL. */
extern ek_ranks *(*ek_ranks_of)(ek_process_group *group);

/* Fails with EK_E_STATE if the group was destroyed. For optimizers, whose state may outlive the
 * group. */
int ek_ranks_check(const ek_ranks *ranks);

/* Collective: *value becomes the sum of all ranks' values, or, with `largest`, the largest value
 * (NaN if any value is NaN). `status` is this rank's outcome so far; if it is negative, its error
 * is pending and *value is not read. */
int ek_ranks_combine(ek_ranks *ranks, int status, double *value, bool largest);

/* Marks the pending error of a negative rc as known to all ranks, each of which found it itself.
 * Returns rc. */
static inline int ek_ranks_alike(int rc)
{
    if (rc < 0)
        ek_thread_self()->error.told = true;
    return rc;
}

struct ek_module;

/* Returns the ranks of a distributed wrapper (ddp.h), and in *child the module that it wraps; both
 * are borrowed. If there are no other ranks, or if the module is no such wrapper, returns NULL, and
 * *child becomes the module itself. src/distributed sets this pointer; in programs without it the
 * pointer is NULL. */
extern ek_ranks *(*ek_ranks_of_wrapper)(struct ek_module *module, struct ek_module **child);
/* Make a model and a criterion of all ranks of a group (NULL: the world):
 * ek_distributed_data_parallel with these policies, ek_distributed_criterion. The wrapper owns the
 * module. src/distributed sets these pointers. */
extern struct ek_module *(*ek_ranks_wrap_model)(struct ek_module *module, ek_process_group *group,
                                                int shard, int offload);
extern struct ek_module *(*ek_ranks_wrap_criterion)(struct ek_module *module,
                                                    ek_process_group *group);
/* Sets whether backward averages the gradients of an ek_distributed_data_parallel's next forwards.
 * Returns the setting before. */
extern bool (*ek_ranks_set_sync)(struct ek_module *model, bool sync);

/* Does what ek_ranks_of_wrapper does; also in programs without src/distributed, and for NULL. */
static inline ek_ranks *ek_ranks_around(struct ek_module *module, struct ek_module **child)
{
    *child = module;
    return module && ek_ranks_of_wrapper ? ek_ranks_of_wrapper(module, child) : NULL;
}

#endif

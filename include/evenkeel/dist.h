/** @file
 * dist.h: several processes: ranks, groups, messages and collectives.
 *
 * A launcher (mpirun) starts the same program several times. Each process has a rank, and any
 * number of devices. Without a launcher, ek_dist_init_process_group makes a world of one rank, in
 * which every call below is allowed and has nothing to wait for; then no MPI is needed.
 *
 * Semantics are those of torch.distributed. All ranks of a group make the same collective calls in
 * the same order. The ranks compare each call before they issue it: calls that differ are
 * EK_E_STATE on every rank, in a sentence with both calls, and the group can still be used.
 * Collectives change tensors in place, without history. Sums and other combinations are made in one
 * order: the first half of the ranks' terms (the largest power of two below their number) is added,
 * then the rest, then both sums, each half in the same way. So they are the same to the bit in
 * every run and with every MPI. bf16 and f16 are added in f32 and rounded once.
 *
 * If one rank fails, all ranks get an error: EK_E_ABORTED, with the failed rank and its error
 * sentence. A rank gets it from the call that it is in, or from its next call. Afterwards the
 * groups can be used again. If a process dies, the launcher ends all of them.
 *
 * All calls below are for one thread at a time. The ranks src and dst are ranks of the world, even
 * in calls on a group. A NULL group is the world. A call on a group that this rank is not in does
 * nothing, writes a log line and returns 0. */
#ifndef EVENKEEL_DIST_H
#define EVENKEEL_DIST_H
#pragma GCC system_header /* see base.h */

#include <stdio.h>

#include "evenkeel/device.h"
#include "evenkeel/tensor.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

/* ---- process groups ---- */

/* An ek_process_group (base.h) is owned by the library until it is destroyed. */

/** What carries tensors. */
typedef enum ek_dist_backend {
    /** MPI for tensors of the host. NCCL for tensors of GPUs if all ranks of the group have it and
     * a GPU of their own, else MPI through page-locked memory of the host. */
    EK_DIST_AUTO = 0,
    EK_DIST_MPI, /**< for all tensors */
    /** EK_DIST_AUTO with EK_E_BACKEND if NCCL can't carry a GPU's tensor. MPI still carries
     * messages between two ranks, values, gradients of sharded optimizers, and tensors of at most
     * 128 bytes. */
    EK_DIST_NCCL
} ek_dist_backend;

typedef struct ek_dist_options {
    int begin; /**< no option, see base.h */
    ek_dist_backend backend;
    /** "env://" or NULL: rank and world size are the launcher's. Others are EK_E_INVALID. */
    const char *init_method;
    /** Seconds that a call waits for other ranks. After that it fails with EK_E_TIMEOUT and names
     * the missing ranks and their machines. EK_UNSET: the environment's EVENKEEL_DIST_TIMEOUT, or
     * 1800. */
    double timeout EK_IS(EK_UNSET);
    int world_size EK_IS(EK_UNSET); /**< if given, it must be the launcher's */
    int rank EK_IS(EK_UNSET);       /**< if given, it must be the launcher's */
    bool check
        EK_IS(true); /**< the ranks compare calls (above). False: only their number and kind */
} ek_dist_options;
#define EK_DEFAULTS_ek_dist_options                                                              \
    EK_DEFAULT(timeout, EK_UNSET), EK_DEFAULT(world_size, EK_UNSET), EK_DEFAULT(rank, EK_UNSET), \
        EK_DEFAULT(check, true)

EK_API int ek_dist_init_process_group_with(ek_dist_options options);
/** Joins the processes that the launcher has started. EK_E_STATE if the process has joined already;
 * EK_E_BACKEND, with the package to install, if there is a launcher but its MPI is missing. While
 * the call waits it catches SIGCONT, unless the program does: Open MPI's launcher sends this signal
 * before it ends the other processes because a rank has ended early. */
#define ek_dist_init_process_group(...) \
    EK_CALL(ek_dist_init_process_group_with, ek_dist_options, __VA_ARGS__)

/** Destroys a group; NULL: all groups and the world. All ranks of the group call it. Destroying a
 * group waits for no other rank; a rank that still calls the group gets EK_E_STATE. ek_shutdown
 * destroys the world. */
EK_API int ek_dist_destroy_process_group(ek_process_group *group);

/** True from ek_dist_init_process_group until the world is destroyed. */
EK_API bool ek_dist_is_initialized(void);

/** The group of all ranks; NULL if ek_dist_init_process_group was not called. */
EK_API ek_process_group *ek_dist_world(void);

/** This process's rank in the group, and the group's size; -1 if the process is not in it. Without
 * ek_dist_init_process_group, the world is rank 0 of 1. */
EK_API int ek_dist_get_rank(const ek_process_group *group);
EK_API int ek_dist_get_world_size(const ek_process_group *group);

/** Rank and number of processes among those on this machine. */
EK_API int ek_dist_local_rank(void);
EK_API int ek_dist_local_size(void);

/** The name of the machine that a rank of the world runs on; NULL if there is no such rank. */
EK_API const char *ek_dist_host(int rank);

/** The devices of a kind that this process should use: its share of the GPUs among the processes of
 * this machine, or all of its logical devices of the host. */
EK_API ek_device_list ek_dist_devices(ek_device_kind kind);

typedef struct ek_group_options {
    int begin;        /**< no option, see base.h */
    const int *ranks; /**< ranks of the world, which are sorted; NULL: all. See EK_RANKS */
    int count;
    double timeout EK_IS(EK_UNSET); /**< seconds; EK_UNSET: the world's */
} ek_group_options;
#define EK_DEFAULTS_ek_group_options EK_DEFAULT(timeout, EK_UNSET)

/** Members of ek_group_options: ek_dist_new_group(EK_RANKS(0, 1)). */
#define EK_RANKS(...) .ranks = EK_ITEMS(int, __VA_ARGS__), .count = EK_COUNT(int, __VA_ARGS__)

EK_API ek_process_group *ek_dist_new_group_with(ek_group_options options);
/** Makes a group. All ranks of the world call it with equal lists, members and others alike. NULL
 * with an error. */
#define ek_dist_new_group(...) EK_CALL(ek_dist_new_group_with, ek_group_options, __VA_ARGS__)

/** ek_dist_group_rank converts a rank of the world to the rank in the group, ek_dist_global_rank
 * the reverse. EK_E_INVALID if there is no such rank. */
EK_API int ek_dist_group_rank(const ek_process_group *group, int rank);
EK_API int ek_dist_global_rank(const ek_process_group *group, int group_rank);

/* ---- calls on one tensor ---- */

typedef enum ek_dist_op {
    EK_DIST_SUM = 0,
    EK_DIST_AVG, /**< the sum divided by the number of ranks; floating dtypes */
    EK_DIST_PRODUCT,
    EK_DIST_MIN, /**< EK_DIST_MIN and EK_DIST_MAX: NaN if any is NaN */
    EK_DIST_MAX,
    EK_DIST_BAND, /**< bitwise and, or, exclusive or; integer dtypes */
    EK_DIST_BOR,
    EK_DIST_BXOR
} ek_dist_op;

enum { EK_DIST_ANY = -1 }; /**< a receive: from any rank */

/** A call that has been started. */
typedef struct ek_dist_work ek_dist_work;

/* Options of all calls. `group`: NULL is the world. `work` is PyTorch's async_op: the call only
 * starts and stores itself in *work; ek_dist_wait ends it. Until then tensors that are sent must
 * not be written, and tensors that are received must not be read. `tensor` has any layout, and lies
 * on GPUs on all ranks, or on none. `src` and `dst` are ranks of the world. */

/** Waits until the call that stored itself in `work` has ended, and frees `work`; NULL is a call
 * that has ended. Returns 0; for a receive, the sender's rank. EK_E_MODIFIED if the tensor was
 * written during the call. */
EK_API int ek_dist_wait(ek_dist_work *work);
/** 1 if ek_dist_wait would not wait, else 0. */
EK_API int ek_dist_is_completed(const ek_dist_work *work);

typedef struct ek_dist_message_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    int rank; /**< the other rank, of the world: the receiver (send) or the sender (recv) */
    ek_process_group *group;
    int tag; /**< not negative */
    ek_dist_work **work;
} ek_dist_message_options;
#define EK_DEFAULTS_ek_dist_message_options EK_NO_DEFAULTS
EK_API int ek_dist_send_with(ek_dist_message_options options);
EK_API int ek_dist_recv_with(ek_dist_message_options options);
/** Sends and receives messages: ek_dist_send(x, 1, .tag = 3). Messages of one tag from one rank to
 * another keep their order. Shape and dtype must agree, else EK_E_SHAPE or EK_E_DTYPE on both
 * ranks. A send ends when the receiver has the message. A receive from rank EK_DIST_ANY takes a
 * message of any rank and returns the sender's rank. With .work = &work they are PyTorch's isend
 * and irecv. */
#define ek_dist_send(...) \
    EK_CALL_2(ek_dist_send_with, ek_dist_message_options, tensor, rank, __VA_ARGS__)
#define ek_dist_recv(...) \
    EK_CALL_2(ek_dist_recv_with, ek_dist_message_options, tensor, rank, __VA_ARGS__)

typedef struct ek_dist_broadcast_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    int src;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_broadcast_options;
#define EK_DEFAULTS_ek_dist_broadcast_options EK_NO_DEFAULTS
EK_API int ek_dist_broadcast_with(ek_dist_broadcast_options options);
/** Gives all ranks the tensor of rank src: ek_dist_broadcast(x, 0). */
#define ek_dist_broadcast(...) \
    EK_CALL_2(ek_dist_broadcast_with, ek_dist_broadcast_options, tensor, src, __VA_ARGS__)

typedef struct ek_dist_all_reduce_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    ek_dist_op op;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_all_reduce_options;
#define EK_DEFAULTS_ek_dist_all_reduce_options EK_NO_DEFAULTS
EK_API int ek_dist_all_reduce_with(ek_dist_all_reduce_options options);
/** Gives all ranks the sum over all ranks: ek_dist_all_reduce(x), or ek_dist_all_reduce(x,
 * EK_DIST_MAX). */
#define ek_dist_all_reduce(...) \
    EK_CALL_2(ek_dist_all_reduce_with, ek_dist_all_reduce_options, tensor, op, __VA_ARGS__)

typedef struct ek_dist_reduce_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    int dst;
    ek_dist_op op;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_reduce_options;
#define EK_DEFAULTS_ek_dist_reduce_options EK_NO_DEFAULTS
EK_API int ek_dist_reduce_with(ek_dist_reduce_options options);
/** Gives the sum (or `op`) over all ranks to rank dst; the other ranks' tensors are unchanged. */
#define ek_dist_reduce(...) \
    EK_CALL_3(ek_dist_reduce_with, ek_dist_reduce_options, tensor, dst, op, __VA_ARGS__)

typedef struct ek_dist_barrier_options {
    int begin; /**< no option, see base.h */
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_barrier_options;
#define EK_DEFAULTS_ek_dist_barrier_options EK_NO_DEFAULTS
EK_API int ek_dist_barrier_with(ek_dist_barrier_options options);
/** Waits until all ranks of the group have called ek_dist_barrier. */
#define ek_dist_barrier(...) EK_CALL(ek_dist_barrier_with, ek_dist_barrier_options, __VA_ARGS__)
/** A barrier with a time-out in seconds: EK_E_TIMEOUT names the first missing rank; with
 * wait_all_ranks all missing ranks. */
EK_API int ek_dist_monitored_barrier(double seconds, bool wait_all_ranks, ek_process_group *group);

/* ---- calls on a tensor per rank ---- */

/* A `list` has a tensor per rank of the group, in the order of ranks. Shapes may differ from rank
 * to rank, but must agree between sender and receiver (reduce_scatter: among all tensors that are
 * added). EK_E_SHAPE or EK_E_DTYPE on all ranks names two ranks that do not agree. */

typedef struct ek_dist_all_gather_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    ek_tensor *const *list;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_all_gather_options;
#define EK_DEFAULTS_ek_dist_all_gather_options EK_NO_DEFAULTS
EK_API int ek_dist_all_gather_with(ek_dist_all_gather_options options);
/** Copies every rank's tensor to the list of each rank. */
#define ek_dist_all_gather(...) \
    EK_CALL_2(ek_dist_all_gather_with, ek_dist_all_gather_options, tensor, list, __VA_ARGS__)

typedef struct ek_dist_gather_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    ek_tensor *const *list;
    int dst;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_gather_options;
#define EK_DEFAULTS_ek_dist_gather_options EK_NO_DEFAULTS
EK_API int ek_dist_gather_with(ek_dist_gather_options options);
/** Collects all ranks' tensors in the list of rank dst. The list is NULL on other ranks. */
#define ek_dist_gather(...) \
    EK_CALL_3(ek_dist_gather_with, ek_dist_gather_options, tensor, list, dst, __VA_ARGS__)

typedef struct ek_dist_scatter_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    ek_tensor *const *list;
    int src;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_scatter_options;
#define EK_DEFAULTS_ek_dist_scatter_options EK_NO_DEFAULTS
EK_API int ek_dist_scatter_with(ek_dist_scatter_options options);
/** Sends tensor r of the list of rank src to the tensor of rank r. The list is NULL on other ranks.
 */
#define ek_dist_scatter(...) \
    EK_CALL_3(ek_dist_scatter_with, ek_dist_scatter_options, tensor, list, src, __VA_ARGS__)

typedef struct ek_dist_reduce_scatter_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    ek_tensor *const *list;
    ek_dist_op op;
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_reduce_scatter_options;
#define EK_DEFAULTS_ek_dist_reduce_scatter_options EK_NO_DEFAULTS
EK_API int ek_dist_reduce_scatter_with(ek_dist_reduce_scatter_options options);
/** Sets rank r's tensor to the sum (or `op`) over all ranks of their list[r]. */
#define ek_dist_reduce_scatter(...)                                                          \
    EK_CALL_3(ek_dist_reduce_scatter_with, ek_dist_reduce_scatter_options, tensor, list, op, \
              __VA_ARGS__)

typedef struct ek_dist_all_to_all_options {
    int begin;                /**< no option, see base.h */
    ek_tensor *const *list;   /**< tensors to receive */
    ek_tensor *const *inputs; /**< tensors to send */
    ek_process_group *group;
    ek_dist_work **work;
} ek_dist_all_to_all_options;
#define EK_DEFAULTS_ek_dist_all_to_all_options EK_NO_DEFAULTS
EK_API int ek_dist_all_to_all_with(ek_dist_all_to_all_options options);
/** ek_dist_all_to_all(.inputs = out, .list = in): sets list[r] to the tensor that rank r has for
 * this rank in its inputs. */
#define ek_dist_all_to_all(...) \
    EK_CALL(ek_dist_all_to_all_with, ek_dist_all_to_all_options, __VA_ARGS__)

/* ---- values ---- */

/* Trees of tensors of any shape, dtype and device, of numbers, lists, dictionaries and none.
 * Results are new values in the scope, with tensors on cpu and without history. A value that holds
 * a pointer is EK_E_INVALID on its rank, and an error on all ranks. */

/** Returns the value of rank src on all ranks; values of other ranks are not read. EK_VALUE_ERROR
 * with an error. EK_VALUE_NONE if this rank is not in the group. */
EK_API ek_value ek_dist_broadcast_value(ek_value value, int src, ek_process_group *group);
/** Writes every rank's value to values[0 .. size of the group), in the order of ranks. */
EK_API int ek_dist_all_gather_value(ek_value value, ek_value *values, ek_process_group *group);

/* ---- operations of the graph ---- */

/* Functions of all ranks' tensors, differentiable to any order: if all ranks call ek_backward, each
 * from its loss, gradients are those of the sum of all ranks' losses. Results are in the scope.
 * NULL with an error, which is an error of all ranks.
 *
 * All ranks make these calls in one order, in backward, too: they record equal graphs, and take the
 * gradients of all of these calls or of none. If the tensor of one rank requires a gradient, the
 * results of all ranks do. Gradient mode must be on on all ranks, or off on all, else EK_E_STATE.
 * The group must exist as long as the graph. In a group of one rank, and on a rank that is not in
 * the group, the result is x. */

/** The sum over all ranks, whose tensors have one shape and dtype. */
EK_API ek_tensor *ek_dist_sum(ek_tensor *x, ek_process_group *group);
/** The sum over all ranks divided by the number of ranks; floating dtypes. */
EK_API ek_tensor *ek_dist_mean(ek_tensor *x, ek_process_group *group);
/** Concatenates all ranks' tensors along dim, as ek_cat does. Sizes along dim may differ, and may
 * be 0; other sizes and dtypes must agree, else EK_E_SHAPE or EK_E_DTYPE. The gradient is this
 * rank's part of the sum of all ranks' gradients. */
EK_API ek_tensor *ek_dist_join(ek_tensor *x, int dim, ek_process_group *group);

/* ---- errors ---- */

/** Makes this rank's pending error an error of all ranks. Returns its status; 0 if none is pending.
 * For a rank that fails outside of the library while other ranks continue. */
EK_API int ek_dist_raise(void);

/** The rank on which the calling thread's pending error began; -1: this rank, or no error. */
EK_API int ek_dist_error_rank(void);

/** Prints the pending error with its rank, on the rank on which it began, and clears it on the
 * others. If that rank can't print it, another rank does. So each error is printed once. */
EK_API void ek_dist_print_error(FILE *stream);

EK_END_DECLARATIONS
#endif

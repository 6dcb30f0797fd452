/* parallel.h: one process, many devices: replicate, parallel_apply, data_parallel.
 *
 * Each device has one long-lived worker thread that runs its replica's forward and its part of
 * backward. An error in one replica is raised in the caller with replica and device in its
 * sentence, after all replicas have finished; if several fail in forward, the first by index is
 * raised, in backward one of those that failed first. */
#ifndef EVENKEEL_PARALLEL_H
#define EVENKEEL_PARALLEL_H

#include "evenkeel/comm.h"
#include "evenkeel/module.h"
#include "evenkeel/nn.h"
#include "evenkeel/plan.h"

EK_BEGIN_DECLARATIONS

/* Makes one replica of `module` per device. Parameters are broadcast differentiably (unless
 * gradient mode is off): gradients of replicas add up in the module's own. Replica 0 on the
 * module's device shares its memory; what it does to buffers in place stays. The module's
 * parameters and buffers must lie on devices->devices[0]. Replicas are the caller's: free each with
 * ek_module_free. On an error none is made, and none in `replicas` points to what was freed. */
EK_API int ek_replicate(ek_module *module, const ek_device_list *devices, ek_module **replicas);

/* Runs modules[i] on args[i] on the worker of devices->devices[i], all side by side, in the
 * caller's gradient mode; one module runs on the caller's thread. Outputs are handed to the
 * caller's scope in order. On a worker (nested) it runs inline. */
EK_API int ek_parallel_apply(ek_module *const *modules, const ek_args *args, int count,
                             const ek_device_list *devices, ek_value *outputs);

/* What the buffers that replicas write in training (running statistics) become. */
typedef enum ek_running_stats {
    EK_RUNNING_STATS_FIRST = 0,  /* those of the first replica that takes part, wherever it runs.
                                    (PyTorch loses them if device 0 takes no part.) */
    EK_RUNNING_STATS_AVERAGE = 1 /* the average over the replicas that took part, weighted by their
                                    samples: of batch norm, (1 - m) r + m times the weighted mean of
                                    the replicas' batch statistics. Floating buffers without a
                                    gradient that a replica wrote; integer ones stay the first
                                    replica's. Needs broadcast_buffers. */
} ek_running_stats;

/* What is divided over the devices instead of lying on the first. */
typedef enum ek_shard_policy {
    EK_SHARD_NONE = 0,
    /* Gradients and the optimizer's state of the parameters: each device owns a range of them. It
     * gets the sum of its range while backward goes on, steps it, and the others get the result.
     * Numbers are those of the undivided run, to the bit. Parameters stay whole on every device,
     * and checkpoints are the same. With one device there is nothing to divide.
     *
     * ek_tensor_grad of such a parameter is NULL unless somebody has set one or used the module
     * itself (that gradient is whole, on device_ids[0], until the step adds it to the others');
     * ek_gather_grad gives the whole gradient, and ek_grad reaches such a parameter only if the
     * module itself was used. Parameters that don't require a gradient when the wrapper is made
     * stay whole; what is converted, moved or replaced is divided anew at the next forward.
     *
     * One wrapper at a time divides a parameter: a second with this policy is EK_E_STATE, and one
     * without it leaves whole gradients on its first device. When the wrapper is freed, parameters
     * and their gradients are whole again, and from its next step on the optimizer's state too. */
    EK_SHARD_OPTIMIZER = 1
} ek_shard_policy;

typedef struct ek_data_parallel_options {
    const char *keywords;
    ek_module *module;         /* ownership passes to the wrapper */
    ek_device_list device_ids; /* empty: all accelerators */
    ek_device output_device;   /* ek_data_parallel: where outputs meet; default: device_ids[0] */
    bool output_on_cpu;        /* ek_data_parallel: the plain memory device as output_device */
    int dim;                   /* along which inputs are cut and outputs joined */
    /* How inputs are cut (evenkeel/plan.h): by a policy, or by one of the four below it. Devices
     * that get no sample take no part: no replica is made there. Inputs that are scattered already
     * keep their sizes, and their devices if each lies on another one in this order; from
     * elsewhere they go to the first devices. Without gradient mode a forward follows the plan,
     * but, as those of scattered inputs, is neither counted nor measured. */
    ek_split_policy split;
    ek_plan_goal goal;              /* EK_SPLIT_AUTO */
    int64_t chunks[EK_MAX_DEVICES]; /* {12, 20, 20}: samples per device; batches of another sum are
                                       cut in these proportions */
    double weights[EK_MAX_DEVICES]; /* {1, 2, 2}: shares per device */
    int64_t first_device_batch; /* so many on the first device if that relieves it, the rest even
                                   on the others. A written 0: none there; left out: equal shares */
    const char *plan; /* as text, to replay: ek_data_parallel_plan. With EK_SPLIT_AUTO a run goes on
                         from its last entry, as from a checkpoint's, instead of from capacities,
                         and measures as any other */
    ek_shard_policy shard;
    /* Default on: device 0's buffers are sent at every forward. Off: each replica goes on with its
     * own, and the module shows those of the first that took part in the last forward. */
    ek_switch broadcast_buffers;
    ek_running_stats running_stats;
    bool plain; /* ek_data_parallel_model: run the plain module on device_ids[0] */
} ek_data_parallel_options;

/* torch.nn.DataParallel: scatter, replicate, apply, gather onto output_device. Moves the module to
 * device_ids[0]; for several devices, what of it is not on cpu has to lie on one device before
 * (EK_E_INVALID names a parameter or buffer on another). With one device it is a plain call there
 * (its output still goes to output_device), with no accelerator a plain call on cpu. Batches
 * smaller than the device count use fewer replicas, and a plan may leave devices out, the first as
 * well. Parameter paths are the module's own.
 *
 * Parameters move into one slab per dtype; handles stay valid, so that optimizers may be made
 * before or after. Only what was written is sent to the replicas again: whoever writes to
 * parameters or buffers by other means than the library's says so with ek_tensor_touch.
 *
 * A wrapper of any kind is for one thread at a time. While a thread calls it, trains it
 * (ek_train_step) or steps its shared state, other threads' calls are EK_E_STATE ("... is in a call
 * on another thread ..."), and nothing of it has changed. */
EK_API ek_module *ek_data_parallel_with(ek_data_parallel_options options);
#define ek_data_parallel(...) \
    ek_data_parallel_with(EK_OPTIONS_1(ek_data_parallel_options, module, __VA_ARGS__))

/* The wrapped module of a data-parallel wrapper of any kind; EK_E_INVALID for other modules. */
EK_API ek_module *ek_data_parallel_module(ek_module *data_parallel);

/* What a wrapper has sent to its replicas so far. */
typedef struct ek_data_parallel_stats {
    uint64_t forwards;             /* that replicated: not those of device 0 alone */
    uint64_t parameter_broadcasts; /* times that parameters were sent: at most one per forward */
    uint64_t parameter_nbytes;     /* over all devices */
    uint64_t buffer_nbytes;        /* over all devices */
    uint64_t shared_nbytes;        /* of divided parameters, after steps, over all devices */
} ek_data_parallel_stats;
/* EK_E_INVALID for a module that is no data-parallel wrapper. */
EK_API int ek_data_parallel_get_stats(ek_module *data_parallel, ek_data_parallel_stats *stats);

/* The plans so far of a wrapper (of its criterion none: targets are cut as outputs are) as text for
 * .plan (evenkeel/plan.h). Writes at most `room` bytes with the NUL and returns the length that the
 * text has, as snprintf does; EK_E_INVALID for a module that is no data-parallel wrapper. */
EK_API int64_t ek_data_parallel_plan(ek_module *data_parallel, char *text, size_t room);
/* How many samples each device (one number per device_ids) would get of a batch now, in a call that
 * is cut; none of a batch of 0. */
EK_API int ek_data_parallel_sizes(ek_module *data_parallel, int64_t batch, int64_t *sizes);

/* ---- what crosses replicas ---- */

/* From now on each replication of this wrapper (ek_data_parallel, _model or _criterion) calls the
 * `replicated` slot of the modules that have one, on every replica, in the calling thread, before
 * any forward: first replica first, for all of its modules depth first in order of registration
 * (shared ones once), then the second's, and so on. An error there fails the forward with its
 * sentence, replica and device.
 *
 * A module's ek_replication is shared by its replicas of one forward. Contexts are released when
 * all replicas have run, also after errors; what runs again in backward (ek_checkpoint) no longer
 * has them. Where the module itself runs, nothing is replicated and nothing is called: with one
 * device or a batch of device 0 alone (PyTorch makes one replica there), as the plain module of
 * ek_data_parallel_model, and as a wrapper within a replica. EK_E_INVALID for a module that is no
 * data-parallel wrapper. */
EK_API int ek_patch_replication_callback(ek_module *data_parallel);

/* Batch normalisation (options as in ek_batch_norm2d) with the statistics of the whole batch:
 * replicas of one forward merge theirs, weighted by their number of values (Chan et al. 1983), so
 * that any chunks, fewer chunks than devices, and single samples give one device's numbers, in
 * gradients of any order too. x is (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W). Running
 * statistics move by the whole batch's mean and unbiased variance. In evaluation, and in one
 * replica, it is plain batch normalisation. */
EK_API ek_module *ek_sync_batch_norm_with(ek_norm_options options);
#define ek_sync_batch_norm(...) \
    ek_sync_batch_norm_with(EK_OPTIONS_1(ek_norm_options, features, __VA_ARGS__))

/* Turns every batch normalisation in `module`, itself included, into a synchronised one with the
 * same parameters, buffers, options and mode, and returns `module`. They turn in place, so
 * that pointers to modules and tensors (an optimizer's, a wrapper's) stay valid; inputs have as
 * many dimensions as before. NULL gives the pending error. */
EK_API ek_module *ek_convert_sync_batch_norm(ek_module *module);

EK_END_DECLARATIONS
#endif

/** @file
 * parallel.h: data parallelism in one process: replicate, parallel_apply, data_parallel.
 *
 * Each device has one long-lived worker thread, which runs its replica's forward and its part of
 * backward. When all replicas have finished, an error of one becomes the caller's, with replica and
 * device in its sentence. If several fail, the caller gets the error of the first by index in
 * forward, and that of one of the first to fail in backward. */
#ifndef EVENKEEL_PARALLEL_H
#define EVENKEEL_PARALLEL_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/comm.h"
#include "evenkeel/module.h"
#include "evenkeel/nn.h"
#include "evenkeel/plan.h"

EK_BEGIN_DECLARATIONS

/** Makes one replica of `module` per device. The module's parameters and buffers must lie on
 * devices->devices[0]. Parameters are broadcast differentiably unless gradient mode is off:
 * gradients of the replicas add up in the module's. Replica 0 shares the module's memory, so that
 * its writes to buffers stay. The caller owns the replicas: free each with ek_module_free. On an
 * error none is made. */
EK_API int ek_replicate(ek_module *module, const ek_device_list *devices, ek_module **replicas);

/** Runs modules[i] on args[i] on the worker of devices->devices[i], all in parallel, in the
 * caller's gradient mode. Outputs are in the caller's scope. A single module, and any call on a
 * worker, runs on the calling thread. */
EK_API int ek_parallel_apply(ek_module *const *modules, const ek_args *args, int count,
                             const ek_device_list *devices, ek_value *outputs);

/** How the module's buffers are set from those that replicas wrote in training (running
 * statistics). */
typedef enum ek_running_stats {
    /** The module gets the buffers of the first replica that takes part, on whatever device.
     * (PyTorch loses the replicas' changes if device 0 takes no part.) */
    EK_RUNNING_STATS_FIRST = 0,
    /** The average over the replicas that take part, weighted by their samples. For batch norm with
     * momentum m and running statistic r it is (1 - m) * r + m * s, with s the weighted mean of the
     * replicas' batch statistics. Averaged are floating buffers without a gradient that a replica
     * has written; integer buffers are the first replica's. Needs broadcast_buffers. */
    EK_RUNNING_STATS_AVERAGE = 1
} ek_running_stats;

/** What is sharded over the devices instead of lying on the first. */
typedef enum ek_shard_policy {
    EK_SHARD_NONE = 0,
    /** Gradients and optimizer state (ZeRO-1): each device owns a range of the parameters. It gets
     * the summed gradient of its range during backward and updates this range in ek_step; then the
     * other devices get the result. Parameters stay whole on every device. Results and checkpoints
     * are the same to the bit as without sharding. With one device nothing is sharded, unless it
     * is offloaded (ek_offload_policy). Sharding over the devices of all ranks: see
     * ek_distributed_data_parallel (ddp.h).
     *
     * ek_gather_grad returns the whole gradient of a sharded parameter. ek_tensor_grad is NULL,
     * unless a gradient was set or the wrapped module was called directly: such a gradient is
     * whole, on device_ids[0], until ek_step adds it to the shards'. ek_grad reaches a sharded
     * parameter only through direct calls of the wrapped module. Parameters that don't require a
     * gradient when the wrapper is made stay whole. Parameters that are converted, moved or
     * replaced are sharded anew at the next forward.
     *
     * A parameter is sharded by one wrapper at a time: a second wrapper with this policy is
     * EK_E_STATE, and a wrapper without the policy leaves whole gradients on its first device. When
     * the sharding wrapper is freed, gradients become whole; the optimizer's state becomes whole at
     * its next step. */
    EK_SHARD_OPTIMIZER = 1,
    /** Parameters, too (ZeRO-3, FSDP): each device keeps the elements of its range only. A unit of
     * parameters (ek_shard_unit) is gathered on a device when the device uses it, in forward and
     * again in backward. Its memory is taken when the device uses other units: a device has no more
     * parameters than its range and the two largest units. So a model may be larger than a device.
     * The wrapper takes a module on cpu without ever having it whole on a device. Results are those
     * of EK_SHARD_OPTIMIZER, to the bit, but for sums over all parameters, such as a clipped norm,
     * whose last bits may differ.
     *
     * Parameters can be read and written as always, one unit at a time: a copy or an operation
     * gathers the unit, which stays until the scope ends. Frozen parameters are sharded, too; those
     * that aren't floating lie whole on every device. If the wrapper is freed and the module
     * lives on, its parameters become whole on device_ids[0], if they fit. Otherwise they can be
     * read, written and wrapped again, but an optimizer refuses to step them (EK_E_STATE).
     *
     * Over the devices of all ranks: see ek_distributed_data_parallel (ddp.h). */
    EK_SHARD_PARAMETERS = 2
} ek_shard_policy;

/** What lies in plain memory of the host (cpu) instead of the devices' memory. */
typedef enum ek_offload_policy {
    EK_OFFLOAD_NONE = 0,
    /** The optimizer's state, the summed gradients and a copy of the parameters. During backward
     * each bucket's summed gradient is copied to cpu. ek_step updates the parameters there, with
     * cpu's threads, and sends them to the devices. So a device has memory for parameters,
     * activations and a few buckets of gradients only. No device's capacity counts the memory of
     * cpu. For GPUs gradients and parameters on cpu are page-locked, but for
     * parameters that the ranks of a machine share. With EK_SHARD_PARAMETERS units
     * are gathered from cpu, and a device keeps two units and no other parameters.
     *
     * If .shard is EK_SHARD_NONE, parameters are sharded as by EK_SHARD_OPTIMIZER. A single device
     * is offloaded, too. All that is said of shards above holds, and every shard lies on cpu. With
     * devices of the host, results and checkpoints are the same to the bit as without offloading.
     * The last bits of a step on a GPU may differ from those of a step on cpu. If the wrapper is
     * freed, the gradients move to the first device, and the state at the optimizer's next step. */
    EK_OFFLOAD_OPTIMIZER = 1
} ek_offload_policy;

typedef struct ek_data_parallel_options {
    int begin;                 /**< no option, see base.h */
    ek_module *module;         /**< ownership passes to the wrapper */
    ek_device_list device_ids; /**< empty: all accelerators */
    ek_device output_device; /**< ek_data_parallel: gathers outputs here; default: device_ids[0] */
    bool output_on_cpu;      /**< ek_data_parallel: gathers outputs on cpu instead */
    int dim; /**< dimension of cuts and joins, except for marked tensors (ek_value_batched) */
    /** How inputs are cut (evenkeel/plan.h): by this policy, or by one of chunks, weights,
     * first_device_batch and plan. A device without samples takes no part: no replica is made
     * there. Inputs that are scattered already keep their sizes; they keep their devices if these
     * are distinct and in the order of device_ids, else they go to the first devices. Forwards
     * without gradient mode follow the plan. Forwards without gradient mode or with scattered
     * inputs are not counted or measured for the plan. */
    ek_split_policy split;
    ek_plan_goal goal; /**< EK_SPLIT_AUTO optimises it */
    /** {12, 20, 20}: samples per device. Batches of other sizes than the sum are cut in proportion.
     */
    int64_t chunks[EK_MAX_DEVICES] EK_IS({EK_UNSET});
    double
        weights[EK_MAX_DEVICES] EK_IS({EK_UNSET}); /**< {1, 2, 2}: shares of the batch per device */
    /** Samples on the first device. If this is less than an equal share, the other devices share
     * the rest evenly, else the batch is cut as by EK_SPLIT_CHUNK. EK_UNSET: not given. */
    int64_t first_device_batch EK_IS(EK_UNSET);
    /** A plan as text (ek_data_parallel_plan), which is replayed. With EK_SPLIT_AUTO it is not
     * replayed: planning starts from its last entry, as after a checkpoint. */
    const char *plan;
    ek_shard_policy shard;
    ek_offload_policy offload;
    /** True: device 0's buffers are sent to the replicas at every forward. False: each replica
     * keeps its own, and the module shows those of the first replica that took part in the last
     * forward. */
    bool broadcast_buffers EK_IS(true);
    ek_running_stats running_stats;
    bool plain; /**< ek_data_parallel_model: runs the plain module on device_ids[0] */
} ek_data_parallel_options;
#define EK_DEFAULTS_ek_data_parallel_options                           \
    EK_DEFAULT(chunks[0], EK_UNSET), EK_DEFAULT(weights[0], EK_UNSET), \
        EK_DEFAULT(first_device_batch, EK_UNSET), EK_DEFAULT(broadcast_buffers, true)

EK_API ek_module *ek_data_parallel_with(ek_data_parallel_options options);
/** torch.nn.DataParallel: scatter, replicate, apply, gather onto output_device. The module is moved
 * to device_ids[0]. For several devices, the module's tensors must all lie on one device before
 * (else EK_E_INVALID names a tensor); some may lie on cpu. With one device the module itself is
 * called there, and its output goes to output_device; without accelerators, it is called on cpu.
 * Small batches use fewer replicas, and a plan may leave out any device, also the first. Parameter
 * paths are the wrapped module's.
 *
 * Parameters move into one slab per dtype. Handles stay valid, so that optimizers may be made
 * before or after. Replicas are sent only what was written since: after writing to a parameter or
 * buffer yourself, call ek_tensor_touch.
 *
 * A wrapper of any kind is for one thread at a time. While one thread calls it, trains it
 * (ek_train_step) or steps its sharded state, calls of other threads are EK_E_STATE ("... is in a
 * call on another thread ...") and change nothing. */
#define ek_data_parallel(...) \
    EK_CALL_1(ek_data_parallel_with, ek_data_parallel_options, module, __VA_ARGS__)

/** The wrapped module of a data-parallel wrapper of any kind (borrowed); NULL with EK_E_INVALID for
 * other modules. For a wrapper of ddp.h around another wrapper it is the module within both. */
EK_API ek_module *ek_data_parallel_module(ek_module *data_parallel);
/** Takes the wrapped module out of its wrapper, which is freed; the caller then owns the module.
 * Handles stay valid; the parameters are on the first device, and whole. NULL with an error; then
 * nothing has changed. */
EK_API ek_module *ek_data_parallel_unwrap(ek_module *data_parallel);

/** What a wrapper has sent to its replicas so far; bytes are summed over devices. Parameters that
 * replicas on host devices read in the module's memory count as sent. */
typedef struct ek_data_parallel_stats {
    uint64_t forwards;             /**< forwards with replicas, not those on device 0 alone */
    uint64_t parameter_broadcasts; /**< how often parameters were sent: at most once per forward */
    uint64_t parameter_nbytes;
    uint64_t buffer_nbytes;
    uint64_t shared_nbytes;   /**< bytes of sharded parameters that were sent after steps */
    uint64_t gathered_nbytes; /**< bytes of units that were gathered (EK_SHARD_PARAMETERS) */
} ek_data_parallel_stats;
/** EK_E_INVALID for a module that is no data-parallel wrapper. */
EK_API int ek_data_parallel_get_stats(ek_module *data_parallel, ek_data_parallel_stats *stats);

/** The plans of a wrapper so far, as text for .plan (evenkeel/plan.h). A criterion has none,
 * because targets are cut as outputs are. Writes at most `room` bytes, the NUL included, and
 * returns the length of the whole text, as snprintf. EK_E_INVALID for a module that is no
 * data-parallel wrapper. */
EK_API int64_t ek_data_parallel_plan(ek_module *data_parallel, char *text, size_t room);
/** Writes how many samples each of device_ids would get if the wrapper were called now with a batch
 * of this size. */
EK_API int ek_data_parallel_sizes(ek_module *data_parallel, int64_t batch, int64_t *sizes);

/** Makes the module a unit of EK_SHARD_PARAMETERS: its parameters, but for those of units inside of
 * it, are gathered together. For wrappers that are made later. Modules without a unit are cut into
 * units by size, along the tree of modules: a unit has at most a sixteenth of all bytes, or one
 * module's own parameters. */
EK_API int ek_shard_unit(ek_module *module);

/* ---- modules that know their replicas ---- */

/** From now on, each forward of this wrapper (ek_data_parallel, _model or _criterion) that makes
 * replicas calls `replicated` for every module in the replicas whose type has this function. The
 * calling thread does so before any replica's forward: for the modules of the first replica, depth
 * first in order of registration, shared modules once; then for those of the second replica, and so
 * on. An error fails the forward, with replica and device in its sentence.
 *
 * The replicas of a module in one forward share one ek_replication. Its context is released when
 * all replicas have run, also after errors; forwards that ek_checkpoint runs again in backward have
 * none. Nothing is called if the module itself runs instead of replicas: with one device, for a
 * batch on device 0 alone (where PyTorch makes one replica), with .plain, and in a wrapper within a
 * replica. EK_E_INVALID for a module that is no data-parallel wrapper. */
EK_API int ek_patch_replication_callback(ek_module *data_parallel);

typedef struct ek_sync_batch_norm_options {
    int begin;        /**< no option, see base.h */
    int64_t features; /**< channels */
    double eps EK_IS(1e-5);
    double momentum EK_IS(0.1);
    bool affine EK_IS(true);
    bool track_running_stats EK_IS(true);
    /** The processes whose chunks share statistics. NULL: those of the ek_distributed_data_parallel
     * around the module, if there is one. */
    ek_process_group *process_group;
} ek_sync_batch_norm_options;
#define EK_DEFAULTS_ek_sync_batch_norm_options                                  \
    EK_DEFAULT(eps, 1e-5), EK_DEFAULT(momentum, 0.1), EK_DEFAULT(affine, true), \
        EK_DEFAULT(track_running_stats, true)
EK_API ek_module *ek_sync_batch_norm_with(ek_sync_batch_norm_options options);
/** Batch normalisation over the whole batch, with the options of ek_batch_norm2d. The replicas of
 * one forward merge their statistics, weighted by their numbers of values (Chan et al. 1983). So
 * results and gradients of any order are those of one device, for any chunks, single samples
 * included. x is (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W). Running statistics are updated
 * by the mean and unbiased variance of the whole batch. In evaluation, and without other replicas
 * or ranks, it is ordinary batch normalisation.
 *
 * With .process_group, or inside of ek_distributed_data_parallel, the batch is that of all ranks of
 * the group; some ranks may have no samples. All ranks make the same forwards and backwards.
 * Replicas use the given group too, and it must exist as long as the module and its graphs. */
#define ek_sync_batch_norm(...) \
    EK_CALL_1(ek_sync_batch_norm_with, ek_sync_batch_norm_options, features, __VA_ARGS__)

/** Turns every batch normalisation in `module`, itself included, into a synchronised one with the
 * same parameters, buffers, options and mode; returns `module`. Modules are changed in place, so
 * that pointers to modules and tensors (an optimizer's, a wrapper's) stay valid. Inputs must have
 * as many dimensions as before. NULL gives the pending error. */
EK_API ek_module *ek_convert_sync_batch_norm(ek_module *module);
/** ek_convert_sync_batch_norm with the option .process_group, which synchronised batch norms in
 * `module` get, too. */
EK_API ek_module *ek_convert_sync_batch_norm_over(ek_module *module, ek_process_group *group);

EK_END_DECLARATIONS
#endif

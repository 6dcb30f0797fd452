/** @file
 * ddp.h: training over several processes (dist.h): gradients that are averaged over ranks.
 *
 * ek_distributed_data_parallel is torch.nn.parallel.DistributedDataParallel: every rank has the
 * whole module and a batch of its own, and after each ek_backward all ranks have the mean of their
 * gradients, so that their optimizers do the same. The mean is that of the ranks' losses: if each
 * rank's loss is the mean over its samples and all have as many, it is the loss of all samples.
 *
 * Ranks and devices are equal to the bit. A training on N ranks of M host devices each has the
 * parameters, gradients and statistics of NM devices of one process, and of NM ranks, if N and M
 * are powers of two, each device gets the same samples, and the losses are those of
 * ek_data_parallel_model, ek_data_parallel_criterion and ek_distributed_criterion. Synchronised
 * batch normalisation and gradient penalties are included. Last bits differ if the number of ranks
 * is no power of two, because the mean over ranks is rounded. They may differ where the devices'
 * outputs are joined before the loss, where a module adds numbers of its replicas by other means
 * than ek_allreduce, with bf16_gradients (each rank's sum is rounded), and if devices compute with
 * different numbers of threads.
 *
 *     ek_dist_init_process_group();
 *     ek_module *model = ek_distributed_data_parallel(net);
 *     ... forward, loss, ek_zero_grad, ek_backward, ek_step, as in one process ... */
#ifndef EVENKEEL_DDP_H
#define EVENKEEL_DDP_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/archive.h"
#include "evenkeel/balance.h"
#include "evenkeel/dist.h"
#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_distributed_options {
    int begin; /**< no option, see base.h */
    /** Ownership passes to the wrapper. A plain module; one whose parameters lie on several
     * devices; or a data-parallel wrapper of this process's devices (parallel.h, balance.h). */
    ek_module *module;
    /** ek_data_parallel over these devices inside of the rank: module and inputs are moved to one
     * device, or inputs are cut for several. EK_E_INVALID if the module lies on several devices or
     * is a wrapper, as for output_device. */
    ek_device_list device_ids;
    ek_device output_device; /**< where outputs of device_ids go; default: the first device */
    int dim;                 /**< the dimension along which inputs are cut for several devices */
    /** True: before each forward in training mode with gradient mode on, all ranks get rank 0's
     * buffers (running statistics). Never in evaluation. */
    bool broadcast_buffers EK_IS(true);
    ek_process_group *process_group;
    double bucket_cap_mb EK_IS(25); /**< gradients travel in pieces of at most this */
    bool init_sync EK_IS(true);     /**< all ranks get rank 0's parameters and buffers now */
    /** EK_SHARD_OPTIMIZER: the optimizer's state is sharded over the devices of all ranks (below);
     * EK_SHARD_PARAMETERS: parameters, too. With one rank, over those of device_ids. */
    ek_shard_policy shard;
    /** EK_OFFLOAD_OPTIMIZER: each rank's part of the state, of the averaged gradients and of the
     * parameters to step lies on cpu, and is stepped there (ek_offload_policy). It implies
     * EK_SHARD_OPTIMIZER. With several ranks the gradients of a rank's own backward are whole on
     * the device. */
    ek_offload_policy offload;
    bool bf16_gradients; /**< f32 gradients travel in bf16 and are added in f32 */
    /** True: the module's synchronised batch normalisations (ek_sync_batch_norm) that have no
     * process group of their own get this one, as long as the wrapper exists. */
    bool sync_statistics EK_IS(true);
} ek_distributed_options;
#define EK_DEFAULTS_ek_distributed_options                              \
    EK_DEFAULT(broadcast_buffers, true), EK_DEFAULT(bucket_cap_mb, 25), \
        EK_DEFAULT(init_sync, true), EK_DEFAULT(sync_statistics, true)

EK_API ek_module *ek_distributed_data_parallel_with(ek_distributed_options options);
/** Wraps a module; all ranks of the group do so, with modules of the same parameters (else
 * EK_E_STATE names the first that differs). Parameter paths are the wrapped module's.
 *
 * Backward. Gradients are averaged in buckets while backward runs. All ranks take part in every
 * ek_backward that reaches the module's parameters: each rank makes equally many, in the same
 * order. If a parameter got a gradient only on some ranks, the others count as zero; if it got none
 * on any rank, it has no gradient afterwards. Gradients from before the backward are averaged with
 * the new ones, which does not change what is equal on all ranks. With create_graph the averaged
 * gradients can be differentiated again. ek_grad averages nothing. A failed backward is an error on
 * all ranks, and drops the gradients of its parameters.
 *
 * ek_module_free of the wrapper waits for no other rank; a rank that goes on training with its own
 * wrapper then gets an error. Parameters that are frozen, moved or replaced after wrapping need a
 * new wrapper: a forward in gradient mode is EK_E_STATE if the module has got another parameter
 * that requires a gradient. With one rank nothing is sent: over several devices it is
 * ek_data_parallel. NULL with an error; the module is freed.
 *
 * With EK_SHARD_OPTIMIZER (ZeRO-1) each device of each rank owns a range of every bucket. After a
 * backward each rank has its ranges of the averaged gradients, ek_step updates these ranges of
 * parameters and state on their devices, and then all ranks get all parameters. Communication is as
 * much as without sharding, and each rank holds only its share of the state. Parameters and state
 * are the same to the bit as without sharding, with any optimizer, with ek_no_sync and
 * ek_train_step; but ek_clip_grad_norm adds the ranges' squares, so that the norm's last bits may
 * differ (it is the same on all ranks).
 *
 * With EK_SHARD_OPTIMIZER all ranks must make these calls together: ek_step of an optimizer that
 * has sharded parameters with gradients (the same parameters on all ranks, else EK_E_STATE);
 * ek_clip_grad_norm; ek_gather_grad and ek_optimizer_state, which gather all ranges; and a backward
 * that finds averaged gradients from an earlier one. If a rank fails before its update, all
 * parameters and states are unchanged; if a rank fails later, all ranks get an error and have equal
 * parameters. ek_tensor_grad is NULL except for gradients that are not averaged yet, or were set. A
 * backward inside of ek_no_sync after a backward that was averaged, without ek_zero_grad between
 * them, adds up in another order, so that last bits may differ if several such backwards follow
 * each other. Gradients with a history (create_graph) are whole on each rank until the step.
 *
 * Checkpoints are ek_dist_archive_save's, of any number of ranks and loaded on any number. When the
 * wrapper is freed, averaged gradients are dropped, and the state becomes whole at the optimizer's
 * next step, which is a call of all ranks once more, before the process group is destroyed. A
 * wrapper of this process's devices that is wrapped must not have .shard itself (EK_E_INVALID),
 * unless both have EK_SHARD_PARAMETERS.
 *
 * With EK_SHARD_PARAMETERS (ZeRO-3, FSDP) each device of each rank also keeps only its range of the
 * parameters, and gathers a unit (ek_shard_unit) when it uses it, so that a model may be larger
 * than a device. What stands above of calls that all ranks make together, of checkpoints and of
 * failures holds. The module may be on cpu: with device_ids it never lies whole on a device.
 * Results are those of EK_SHARD_OPTIMIZER to the bit, if each step has one backward; gradients of
 * several are averaged one by one, also in ek_train_step's micro-batches, so that last bits may
 * differ. Between ek_no_sync_begin and end, gradients are whole on each rank.
 *
 * Forwards need no other rank's program: one rank alone may evaluate. A program that writes to
 * parameters (loads a checkpoint, shows averages) does so on all ranks, with the same values; the
 * next forward or step, which all ranks make then, brings them to all. Until then parameters that
 * one rank reads may mix old and new values. If the wrapper is freed and the module lives on, its
 * parameters become whole, if they fit; the others can't be read any more (EK_E_STATE). */
#define ek_distributed_data_parallel(...) \
    EK_CALL_1(ek_distributed_data_parallel_with, ek_distributed_options, module, __VA_ARGS__)

typedef struct ek_distributed_criterion_options {
    int begin;         /**< no option, see base.h */
    ek_module *module; /**< any criterion, also ek_data_parallel_criterion; ownership passes */
    ek_process_group *process_group;
    /** EK_EXACT: the sum over all ranks divided by the weight of all: the loss and gradient of one
     * process, for any batches and any ignored targets. EK_MEAN_OF_MEANS: the mean of the losses of
     * the ranks that have samples, as with PyTorch's DDP. */
    ek_loss_reduction reduction;
    int dim; /**< the batch's dimension */
} ek_distributed_criterion_options;
#define EK_DEFAULTS_ek_distributed_criterion_options EK_NO_DEFAULTS

EK_API ek_module *ek_distributed_criterion_with(ek_distributed_criterion_options options);
/** A criterion for the outputs of ek_distributed_data_parallel. All ranks call it, with the
 * arguments of the wrapped criterion, also in evaluation and without gradient mode. The result is
 * the loss of all ranks' samples, the same number on each rank; the mean of the ranks' gradients is
 * its gradient, to any order. A rank whose batch is empty, or has only ignored targets, adds
 * nothing, but runs forward and backward as the others do. If no rank adds anything, the loss is
 * NaN and gradients are 0. Losses that are no scalars (reduction none) are returned unchanged,
 * without communication. With one rank the wrapped criterion is called alone. NULL with an error;
 * the module is freed. */
#define ek_distributed_criterion(...) \
    EK_CALL_1(ek_distributed_criterion_with, ek_distributed_criterion_options, module, __VA_ARGS__)

/** Between begin and end, gradients add up on each rank alone. The first backward whose forward ran
 * after the end averages the sums. As in PyTorch, the time of the forward decides. */
typedef struct ek_no_sync {
    ek_module *model;
    bool before;
} ek_no_sync;
EK_API ek_no_sync ek_no_sync_begin(ek_module *model);
EK_API void ek_no_sync_end(ek_no_sync *no_sync);

/** What a wrapper has sent so far. Seconds are those of this rank. */
typedef struct ek_distributed_stats {
    uint64_t backwards;     /**< backward passes whose gradients were averaged */
    uint64_t buckets;       /**< buckets of all these passes */
    uint64_t nbytes;        /**< bytes of gradients that were averaged */
    uint64_t buffer_nbytes; /**< bytes of buffers that rank 0 has sent */
    uint64_t shared_nbytes; /**< bytes of sharded parameters that all ranks got after steps */
    double communicating;   /**< seconds in which averages were under way */
    double exposed;         /**< seconds that backward waited for averages after its own work */
    /** waited: seconds of `exposed` in which averages waited for ranks whose backward ended later.
     * waited_for: the rank of the world whose backward most often ended last; -1: none so far. Both
     * exclude the last backward, because ranks exchange their times in the next one. */
    double waited;
    int waited_for;
    bool shares_memory; /**< the ranks of a machine add up gradients in memory that they share. The
                           environment's EVENKEEL_DIST_SHARED_MEMORY=0 has gradients travel as
                           messages instead */
} ek_distributed_stats;
/** EK_E_INVALID for a module that is no distributed wrapper. */
EK_API int ek_distributed_get_stats(ek_module *model, ek_distributed_stats *stats);

/** Replaces the gradients of the module's parameters by their mean over the ranks of the group, so
 * that an optimizer's step is the same on all. For a loop without a wrapper: after ek_backward.
 *
 * All ranks call it with modules of the same parameters, else EK_E_STATE. A gradient that only some
 * ranks have counts as zeros on the others, and all have it afterwards; one that no rank has stays
 * absent. Many gradients travel as one message. Means have no history. Gradients may lie on any
 * devices and be sharded. After an error some gradients may have been averaged; a repeated call
 * averages the others too, and changes the averaged ones only by rounding. */
EK_API int ek_dist_average_gradients(ek_module *module, ek_process_group *group);

typedef struct ek_dist_archive_options {
    int begin; /**< no option, see base.h */
    ek_archive *archive;
    const char *path;
    int rank; /**< of the world */
    ek_process_group *group;
    bool parts;          /**< each rank writes a part of the archive: a set of files */
    ek_dist_work **work; /**< PyTorch's async_save: the files are written beside the next steps */
} ek_dist_archive_options;
#define EK_DEFAULTS_ek_dist_archive_options EK_NO_DEFAULTS

EK_API int ek_dist_archive_save_with(ek_dist_archive_options options);
/** ek_dist_archive_save(archive, path, 0): ek_archive_save on rank 0, which all ranks of the group
 * call. The other ranks' archives may be NULL, unless states are sharded over ranks
 * (EK_SHARD_OPTIMIZER): then each rank puts these states into its own archive, and the file gets
 * the whole states, so that it can be loaded on any number of ranks, sharded or not. Nothing else
 * of the other ranks' archives is read. Only one whole state at a time takes memory. The call
 * returns when the file is written: any rank may then open it. If the file cannot be written, all
 * ranks get an error.
 *
 * With .parts each rank puts the same into its own archive and writes some of the parameters,
 * states of optimizers and averages, of equal bytes as nearly as whole tensors allow. Everything
 * else, buffers included, is written by `rank` from its archive. For the path "run.safetensors" the
 * files are "run-00001-of-00002.safetensors" and so on (or "run.1-00001-...", in turn with the
 * last save), and "run.safetensors.index.json", which lists them: Hugging Face's layout.
 * ek_archive_open and ek_dist_archive_open load "run.safetensors" or the index, on any number of
 * ranks and devices. All ranks write to one directory that they share. If each machine has a disk
 * of its own, bring the files together before loading: an index names the machine that wrote a
 * missing file. A save replaces the set whole: parts first, then the index, then older parts and a
 * plain file at `path` are removed. If a rank is killed or its disk is full, the older set stays.
 *
 * With .work the call copies what this rank writes, once, into the host's memory (with .parts about
 * the archive's bytes divided by the number of ranks; without .parts all of them on `rank`), stores
 * the work and returns. Then training may go on, and archives may be freed. A thread writes the
 * copy. ek_dist_wait returns 0 once the whole set is in place, else the first failed rank's error
 * on all ranks. Failures of other calls do not stop the save. A save waits until this rank's
 * earlier one has ended, and so does ek_shutdown.
 *
 * EK_E_INVALID for .parts or .work with a path of torch.save's files (.pth, .pt). */
#define ek_dist_archive_save(...) \
    EK_CALL_3(ek_dist_archive_save_with, ek_dist_archive_options, archive, path, rank, __VA_ARGS__)

/** ek_archive_open for all ranks of the group: the rank `rank` of the world reads whatever
 * ek_archive_open reads, and the other ranks need no file; their paths are not read and may be
 * NULL. Each rank owns the archive that it gets, and uses and frees it without the others. Ranks on
 * the machine of `rank` share its file. Each other machine gets one copy, in a file without a name
 * in the environment's TMPDIR or in /tmp: the file's bytes of disk, and 8 MiB of memory while it is
 * sent. NULL with an error on all ranks if the file cannot be read or copied. */
EK_API ek_archive *ek_dist_archive_open(const char *path, int rank, ek_process_group *group);

EK_END_DECLARATIONS
#endif

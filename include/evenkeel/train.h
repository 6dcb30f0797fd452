/** @file
 * train.h: training steps, in micro-batches if memory is short; the largest batch that fits. */
#ifndef EVENKEEL_TRAIN_H
#define EVENKEEL_TRAIN_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/balance.h"
#include "evenkeel/optim.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_train_options {
    int begin;            /**< no option, see base.h */
    ek_module *model;     /**< any module, data-parallel or not */
    ek_module *criterion; /**< called as ek_loss(criterion, output, target) */
    ek_optimizer *optimizer;
    ek_value input; /**< EK_VALUE(x): a tensor or a tree; each element of a list is one argument */
    /** EK_VALUE(y), or EK_LIST(a, b) for several targets; cut as the input is. None: the criterion
     * takes the output alone. */
    ek_value target;
    int dim; /**< where the batch is in tensors that ek_value_batched has not marked */
    /** The batch is cut into so many parts, as by torch.chunk, which go forward and backward one
     * after the other. Their gradients add up before the single step, so that activations take the
     * memory of one part. Loss and gradients are those of the whole batch: sums are divided by the
     * weight of all parts (ek_module_type.loss_sum). Only layers with statistics of a batch (batch
     * norm) see the parts. The criterion's loss must be a scalar. 0 and 1: the batch is not cut.
     *
     * With an ek_distributed_data_parallel or an ek_distributed_criterion, all ranks give the same
     * number and make as many parts, the last of which may be empty. Gradients are averaged once,
     * in the last part's backward. */
    int micro_batches;
    /** > 0: ek_clip_grad_norm is called before the step. A norm that is not finite is EK_E_INVALID:
     * no step is made, and parameters and state are unchanged. */
    double max_norm;
    /** True: no step is made, and gradients are added to those that parameters have. If the batch
     * is cut, the earlier gradients are kept meanwhile in additional memory. */
    bool accumulate_only;
} ek_train_options;
#define EK_DEFAULTS_ek_train_options EK_NO_DEFAULTS

EK_API int ek_train_step_with(double *loss, ek_train_options options);
/** ek_train_step(&loss, .model = m, .criterion = c, .optimizer = o, .input = EK_VALUE(x), ...):
 * zero_grad, forward, loss, backward, step. Writes the loss to *loss; NULL saves waiting for it. On
 * an error parameters are as before and gradients are removed, so that a smaller step can be tried.
 * Buffers (running statistics) keep the updates of forwards that ran.
 *
 * Over ranks, an error up to the last backward is an error of all ranks, and no rank makes the
 * step. A rank that fails after the last backward (in reading its loss or in clipping, for lack of
 * memory) makes no step, while the other ranks may have made theirs: their next call returns this
 * rank's error, and their parameters may differ from this rank's. A new wrapper sends rank 0's
 * parameters. */
#define ek_train_step(loss, ...) \
    EK_CALL_AFTER(ek_train_step_with, (loss), ek_train_options, __VA_ARGS__)

/** Runs one or more training steps with a batch of this size, on any data. Returns 0 or a negative
 * status with the error set. */
typedef int ek_batch_function(int64_t batch, void *user);

typedef struct ek_find_batch_options {
    int begin; /**< no option, see base.h */
    ek_batch_function *function;
    void *user;
    /** Devices that must not run out of memory; empty: all accelerators. */
    ek_device_list device_ids;
    ek_module *model; /**< the steps change it; it is restored after the search; may be NULL */
    ek_optimizer *optimizer;   /**< the optimizer likewise; may be NULL */
    int64_t first EK_IS(1);    /**< the batch that is tried first */
    int64_t most EK_IS(65536); /**< the largest batch to try */
    int64_t
        multiple EK_IS(1); /**< only multiples of this are tried: first is rounded up, most down */
} ek_find_batch_options;
#define EK_DEFAULTS_ek_find_batch_options \
    EK_DEFAULT(first, 1), EK_DEFAULT(most, 65536), EK_DEFAULT(multiple, 1)

EK_API int64_t ek_find_batch_with(ek_find_batch_options options);
/** The largest batch that `function` runs without EK_E_OUT_OF_MEMORY. Batches are made larger until
 * one fails, in steps that the memory used so far suggests. Then the gap between the largest that
 * fitted and the one that failed is halved again and again. Returns 0 if not even the first fits,
 * and a negative status for any other error, which ends the search.
 *
 * The batch will also fit in later steps: each batch is run twice, so that the second run has the
 * optimizer's state, which the first step makes. So `function` may make a single step. If the model
 * plans automatically (EK_SPLIT_AUTO), each batch is run four times so that the plan settles, and a
 * batch that failed is tried again as long as its failure changed the plan, at most eight times.
 *
 * If the model is an ek_distributed_data_parallel all ranks search together, with the same options:
 * a batch fits if it fits on every rank, and all get the same result, the batch size of one rank.
 *
 * Afterwards parameters, buffers, gradients, the optimizer's state and step counts, random
 * generators, learning rates and devices' peaks are as before; copies are kept on cpu meanwhile.
 * Objects that a wrapper makes in its first forward (replicas, room for gradients) stay. If
 * something cannot be restored because memory is short, that error is returned and all else is
 * restored. */
#define ek_find_batch(...) EK_CALL(ek_find_batch_with, ek_find_batch_options, __VA_ARGS__)

EK_END_DECLARATIONS
#endif

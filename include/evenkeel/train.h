/* train.h: a whole training step, in micro-batches if memory is short, and the largest batch
 * that fits. */
#ifndef EVENKEEL_TRAIN_H
#define EVENKEEL_TRAIN_H

#include "evenkeel/balance.h"
#include "evenkeel/optim.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_train_options {
    const char *keywords;
    ek_module *model;     /* any module, data-parallel or not */
    ek_module *criterion; /* called as (output, target) */
    ek_optimizer *optimizer;
    ek_value input; /* EK_VALUE(x): a tensor or a nest; a list is one argument per element */
    ek_value
        target; /* EK_VALUE(y), cut as the input is; none: the criterion gets the output only */
    int dim;    /* along which both are cut */
    /* So many parts, cut as torch.chunk does, go forward and backward one after the other, and
     * their gradients add up before the one step: memory of activations is that of a part. Loss and
     * gradients are those of the whole batch, sums being divided by the weight of all parts
     * (ek_module_type.loss_sum); what looks at the whole batch (batch normalisation) sees parts.
     * A criterion's loss has to be one number. 0 and 1: the batch as it is. */
    int micro_batches;
    /* > 0: ek_clip_grad_norm before the step. A norm that is not finite is EK_E_INVALID: no step is
     * taken, parameters and state stay. */
    double max_norm;
    /* No step, and gradients are kept for one. This call's batch is one loss: what it gives is
     * added to gradients that are there already, which wait in memory of their own if the batch
     * is cut. */
    bool accumulate_only;
} ek_train_options;

/* ek_train_step(.model = m, .criterion = c, .optimizer = o, .input = EK_VALUE(x), ...): zero_grad,
 * forward, loss, backward, step. Writes the loss to *loss (may be NULL, and then nobody waits for
 * it). On an error parameters are as before and gradients are removed, so that the step can be
 * tried again smaller. Buffers (running statistics) stay as the forwards that ran have left them.
 */
EK_API int ek_train_step_with(ek_train_options options, double *loss);
#define ek_train_step(loss, ...) \
    ek_train_step_with(EK_OPTIONS(ek_train_options, __VA_ARGS__), (loss))

/* One or more training steps with a batch of this size, on whatever data: returns 0 or a negative
 * status with the error set. */
typedef int ek_batch_function(int64_t batch, void *user);

typedef struct ek_find_batch_options {
    const char *keywords;
    ek_batch_function *function;
    void *user;
    ek_device_list device_ids; /* whose memory decides; empty: all accelerators */
    ek_module *model;          /* what the steps change and what is put back; may be NULL */
    ek_optimizer *optimizer;   /* the same */
    int64_t first;             /* tried first; default 1 */
    int64_t most;              /* default 65536 */
    int64_t multiple;          /* only multiples of this are tried (first is rounded up, most
                                  down); default 1 */
} ek_find_batch_options;

/* The largest batch that `function` runs without EK_E_OUT_OF_MEMORY: the batch grows, as far as the
 * memory that it took lets hope for, until one fails, then the bracket is halved. 0 if not even
 * the first fits; negative for other errors, which end the search.
 *
 * The batch lasts: each is run twice in a row, so that the optimizer's state, which the first step
 * makes, is there in the second; `function` need not take more than one step. Where the model plans
 * by itself (EK_SPLIT_AUTO), each batch is run four times, so that the plan settles, and one that
 * failed is tried again as long as the failure changed the plan (eight times at the most).
 *
 * Leaves no trace: parameters, buffers, gradients, the optimizer's state and step counts, random
 * generators, learning rates and devices' peaks are as before; copies of them wait on cpu
 * meanwhile. What a wrapper makes with its first forward and keeps (replicas, room for gradients)
 * stays. If something can't be put back for want of memory that error is returned, and all else is
 * as before. */
EK_API int64_t ek_find_batch_with(ek_find_batch_options options);
#define ek_find_batch(...) ek_find_batch_with(EK_OPTIONS(ek_find_batch_options, __VA_ARGS__))

EK_END_DECLARATIONS
#endif

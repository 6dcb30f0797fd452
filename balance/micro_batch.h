/* micro_batch.h: a batch in parts that go one after the other. */
#ifndef EK_BALANCE_MICRO_BATCH_H
#define EK_BALANCE_MICRO_BATCH_H

#include "evenkeel/value.h"

/* How a batch is cut: parts of `size` samples along `dim`, the last may be smaller. */
typedef struct ek_micro_batches {
    int dim, parts;
    int64_t size, total;
} ek_micro_batches;

/* As torch.chunk cuts into `wanted` parts; one part where there is nothing to cut. EK_E_SHAPE where
 * tensors of input and target differ in size along dim, EK_E_INVALID for lists that are scattered
 * already. Batches that are to be one part are not looked at. */
int ek_micro_batches_plan(ek_value input, ek_value target, int dim, int wanted,
                          ek_micro_batches *plan);

/* How many samples part `index` has. */
int64_t ek_micro_batch_length(const ek_micro_batches *plan, int index);

/* Part `index` of a nest: its tensors are views, everything else is repeated. */
ek_value ek_micro_batch(const ek_micro_batches *plan, ek_value value, int index);

#endif

/* sums.h: sums of lists of tensors on one device, below the graph. */
#ifndef EK_COMM_SUMS_H
#define EK_COMM_SUMS_H

#include "core/tensor.h"

/* As ek_comm_reduce, but without history: out[i] gets a reference, or NULL where there is nothing
 * to add. After an error some may be there. */
int ek_comm_sum(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                ek_dev *destination, ek_tensor *const *into, ek_tensor **out);

#endif

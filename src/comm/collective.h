/* collective.h: lists of tensors by the backend's collectives (NCCL), where it has them for the
 * devices at hand. */
#ifndef EK_COMM_COLLECTIVE_H
#define EK_COMM_COLLECTIVE_H

#include "comm/transport.h"

/* True where there are collectives for these devices; *status negative after an error. */
bool ek_comm_has_collective(ek_dev *const *devs, int devices, int *status);

/* Copies from[i], on devs[0], to to[d][i] on devs[d] for each d > 0 (to[0] is not read). The lists
 * of all d are laid out alike: made of the same tensors by the same means. Any dtypes. */
int ek_comm_spread(ek_dev *const *devs, int devices, ek_tensor *const *const *to,
                   ek_tensor *const *from, int count);

/* Writes to out[i], on devs[0], the sum of lists[d][i] over d in this order of additions (but where
 * the library's own order is asked for). All floating, of one dtype; nothing is NULL. Each device
 * adds a slice of the whole and sends it to the first. */
int ek_comm_sum_slices(ek_dev *const *devs, int devices, ek_tensor **const *lists, int count,
                       ek_tensor *const *out);

#endif

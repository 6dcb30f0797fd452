/* layout.h: modules of several ranks: that they are alike, and that they become equal. */
#ifndef EK_TRAIN_LAYOUT_H
#define EK_TRAIN_LAYOUT_H

#include "evenkeel/module.h"
#include "link/communication.h"

/* Checks that the module's parameters and buffers have equal paths, dtypes and shapes on all ranks.
 * If not, fails with EK_E_STATE on all ranks. The sentence begins with `what` and names the first
 * difference. */
int ek_layout_agree(const char *what, ek_module *module, ek_process_group *group);

/* Gives all ranks the elements of rank `root` of the group (a rank in the group) of all these
 * tensors, as one message. Writes the number of bytes to *nbytes, if it isn't NULL. */
int ek_layout_broadcast(ek_tensor *const *tensors, int count, int root, ek_process_group *group,
                        uint64_t *nbytes);

#endif

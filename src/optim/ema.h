/* ema.h: access to averages for checkpoints. */
#ifndef EK_OPTIM_EMA_H
#define EK_OPTIM_EMA_H

#include "evenkeel/ema.h"

/* Writes the path and the average of an entry, borrowed. Returns false past the last entry. */
bool ek_ema_entry(const ek_ema *ema, int index, const char **path, ek_tensor **average);

/* Sets the count of updates and all averages, in the order of entries. Each tensor must have the
 * shape of its average. */
int ek_ema_set(ek_ema *ema, int64_t updates, ek_tensor *const *averages);

#endif

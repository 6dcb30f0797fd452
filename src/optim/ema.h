/* ema.h: what checkpoints need of averages. */
#ifndef EK_OPTIM_EMA_H
#define EK_OPTIM_EMA_H

#include "evenkeel/ema.h"

/* The path and the average of an entry, borrowed; false past the last. */
bool ek_ema_entry(const ek_ema *ema, int index, const char **path, ek_tensor **average);

/* Sets all averages, in the order of entries, and the count of updates. Shapes must be the
 * averages'. On an error nothing has changed. */
int ek_ema_set(ek_ema *ema, int64_t updates, ek_tensor *const *averages);

#endif

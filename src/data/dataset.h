/* dataset.h: what the data sets of this folder share. */
#ifndef EK_DATA_DATASET_H
#define EK_DATA_DATASET_H

#include <stdatomic.h>

#include "core/tensor.h"
#include "evenkeel/dataset.h"

/* The first of `count` parts that ends behind sample `index`: the last if none does. */
int64_t ek_dataset_part(const int64_t *ends, int64_t count, int64_t index);

/* The device of a batch; NULL with EK_E_DEVICE if the CPU cannot write to its memory. */
ek_dev *ek_batch_dev(ek_device device, const char *caller);

/* `tensor` itself if it is row-major and lies on `dev`, whose memory the CPU can write to; else
 * a copy there, in the scope. */
ek_tensor *ek_row_major(ek_tensor *tensor, ek_dev *dev);

/* get_batch by get for each sample and ek_collate; samples are in range. Gives all that get leaves
 * in the scope back. */
ek_value ek_dataset_batch_by_samples(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device);

/* ek_collate whose sentences call samples[i] numbers[i], or i where `numbers` is NULL. */
ek_value ek_collate_numbered(const ek_value *samples, const int64_t *numbers, int64_t count,
                             ek_device device);

/* The same nest with what `function` makes of each tensor; NULL is an error. */
typedef ek_tensor *ek_batch_function(ek_tensor *tensor, ek_dev *dev);
ek_value ek_batch_map(ek_value batch, ek_batch_function *function, ek_dev *dev);

/* For batches that nobody waits for any more. From now on this thread asks data sets for no further
 * sample of a batch once *stop is true; NULL: never stops. Returns what was set before. */
const atomic_bool *ek_dataset_stop_when(const atomic_bool *stop);
bool ek_dataset_stopped(void);

#endif

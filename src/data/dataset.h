/* dataset.h: what the data sets of this folder share. */
#ifndef EK_DATA_DATASET_H
#define EK_DATA_DATASET_H

#include <stdatomic.h>

#include "core/tensor.h"
#include "evenkeel/dataset.h"

/* 0, or for a NULL in place of a data set the pending error, which is made up if none is. */
int ek_dataset_given(const ek_dataset *dataset, const char *caller);

/* 0, or EK_E_INVALID unless there are `count` >= 1 samples, all of them in [0, length). */
int ek_dataset_check_samples(ek_dataset *dataset, const int64_t *samples, int64_t count);

/* The device of a batch; NULL with EK_E_DEVICE if the CPU cannot write to its memory. */
ek_dev *ek_batch_dev(ek_device device, const char *caller);

/* get_batch by get for each sample and ek_collate; samples are in range. Gives all that get leaves
 * in the scope back. */
ek_value ek_dataset_batch_by_samples(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device);

/* ek_collate whose sentences call samples[i] numbers[i], or i where `numbers` is NULL. */
ek_value ek_collate_numbered(const ek_value *samples, const int64_t *numbers, int64_t count,
                             ek_device device);

/* For batches that nobody waits for any more. From now on this thread asks data sets for no further
 * sample of a batch once *stop is true; NULL: never stops. Returns what was set before. */
const atomic_bool *ek_dataset_stop_when(const atomic_bool *stop);
bool ek_dataset_stopped(void);

#endif

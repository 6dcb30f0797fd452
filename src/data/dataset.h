/* dataset.h: what the data sets of this folder share. */
#ifndef EK_DATA_DATASET_H
#define EK_DATA_DATASET_H

#include <stdatomic.h>

#include "core/tensor.h"
#include "evenkeel/iterable.h"

/* Returns the first of `count` parts whose end is behind sample `index`, or else the last one. */
int64_t ek_dataset_part(const int64_t *ends, int64_t count, int64_t index);

/* Returns the device of a batch. NULL with EK_E_DEVICE if the CPU cannot write to its memory. */
ek_dev *ek_batch_dev(ek_device device, const char *caller);

/* Returns `tensor` itself if it is row-major and lies on `dev`, else a copy on `dev` in the scope.
 * The CPU must be able to write to the memory of `dev`. */
ek_tensor *ek_row_major(ek_tensor *tensor, ek_dev *dev);

/* Makes a batch by `get` for each sample and ek_collate. The samples are in range. All that `get`
 * leaves in the scope is released. */
ek_value ek_dataset_batch_by_samples(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device);

/* As ek_collate, but error messages call samples[i] by numbers[i]; by i if `numbers` is NULL. */
ek_value ek_collate_numbered(const ek_value *samples, const int64_t *numbers, int64_t count,
                             ek_device device);

/* Reads the next sample of an iterator before it is converted; otherwise as ek_iterator_next. */
int ek_iterator_read(ek_iterator *iterator, ek_value *sample);
/* Does what is left to be done with a sample that was read. It is moved to the caller's scope. */
ek_value ek_dataset_convert(ek_dataset *dataset, ek_value sample);

typedef ek_tensor *ek_batch_function(ek_tensor *tensor, ek_dev *dev);
/* Returns the same tree with function(tensor, dev) for each tensor; an error if that is NULL. */
ek_value ek_batch_map(ek_value batch, ek_batch_function *function, ek_dev *dev);

/* For batches that nobody waits for any more: from now on, once *stop is true, this thread gets no
 * further sample of a batch. NULL ends that. Returns the previous pointer. */
const atomic_bool *ek_dataset_stop_when(const atomic_bool *stop);
bool ek_dataset_stopped(void);

#endif

/* dataset.h: functions that the data sets of this folder share. */
#ifndef EK_DATA_DATASET_H
#define EK_DATA_DATASET_H

#include <stdatomic.h>

#include "core/tensor.h"
#include "evenkeel/iterable.h"

/* Returns the first of `count` parts that ends after sample `index`; the last part if none does. */
int64_t ek_dataset_part(const int64_t *ends, int64_t count, int64_t index);

/* Returns the device of a batch. NULL with EK_E_DEVICE if the CPU cannot write to its memory. */
ek_dev *ek_batch_dev(ek_device device, const char *caller);

/* Returns `tensor` itself if it is row-major and lies on `dev`, else a copy on `dev` in the scope.
 * The CPU must be able to write to the memory of `dev`. */
ek_tensor *ek_row_major(ek_tensor *tensor, ek_dev *dev);

/* Makes a batch by `get` for each sample and ek_collate. The samples are in range. Releases all
 * objects that `get` leaves in the scope. */
ek_value ek_dataset_batch_by_samples(ek_dataset *dataset, const int64_t *samples, int64_t count,
                                     ek_device device);

/* ek_collate with error messages that call samples[i] by numbers[i]; by i if `numbers` is NULL. */
ek_value ek_collate_numbered(const ek_value *samples, const int64_t *numbers, int64_t count,
                             ek_device device);

/* ek_iterator_next that returns the sample before its conversion (ek_dataset_convert). */
int ek_iterator_read(ek_iterator *iterator, ek_value *sample);
/* Converts a sample that ek_iterator_read has read. The result is in the caller's scope. */
ek_value ek_dataset_convert(ek_dataset *dataset, ek_value sample);

typedef ek_tensor *ek_batch_function(ek_tensor *tensor, ek_dev *dev);
/* Returns the batch with function(tensor, dev) in place of each tensor; an error value if a result
 * is NULL. */
ek_value ek_batch_map(ek_value batch, ek_batch_function *function, ek_dev *dev);

/* Makes this thread stop getting samples of a batch once *stop is true, for batches that are no
 * longer needed. NULL ends this. Returns the previous pointer. */
const atomic_bool *ek_dataset_stop_when(const atomic_bool *stop);
bool ek_dataset_stopped(void);

#endif

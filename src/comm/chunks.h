/* chunks.h: cutting tensors into chunks and joining them, and what nests share with that. */
#ifndef EK_COMM_CHUNKS_H
#define EK_COMM_CHUNKS_H

#include "core/tensor.h"
#include "evenkeel/comm.h"

/* A dimension in [0, ndim) from one that may count from the end, or EK_E_SHAPE. */
int ek_comm_dim(const char *what, const ek_tensor *tensor, int dim);

/* The sizes of the chunks of n elements for `devices` devices: as given, checked, or (NULL) as
 * torch.chunk. Writes them and returns how many there are. An empty dimension gives every device an
 * empty chunk. */
int ek_comm_chunk_sizes(const char *what, int64_t n, int devices, const int64_t *given,
                        int64_t *sizes);

#endif

/* pack.h: tensors that travel between ranks as one. */
#ifndef EK_TRAIN_PACK_H
#define EK_TRAIN_PACK_H

#include "core/tensor.h"

typedef struct ek_pack {
    ek_tensor *memory;         /* the tensors' elements, one tensor after another; one reference */
    ek_tensor *const *tensors; /* borrowed */
    int count;
} ek_pack;

/* The device of all tensors if that is a GPU, else cpu. There is at least one tensor. */
ek_device ek_common_device(ek_tensor *const *tensors, int count);

/* Makes memory for the tensors on their common device. Those of several dtypes travel as bytes
 * (EK_U8), each from a multiple of 64 bytes on. */
int ek_pack_open(ek_pack *pack, ek_dtype dtype, ek_tensor *const *tensors, int count);
void ek_pack_close(ek_pack *pack);

/* Copies the tensors to the memory, which has them when this returns if it is the host's. */
int ek_pack_fill(const ek_pack *pack);
/* Copies the memory to the tensors, which the call `what` has written. */
int ek_pack_deliver(const ek_pack *pack, const char *what);

#endif

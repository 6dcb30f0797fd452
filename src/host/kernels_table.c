/* kernels_table.c: the host's kernels by slot; `cpu` computes with the same. */
#include "host/host.h"

#define FILLED(slot) .slot = ek_host_##slot,

const ek_kernels ek_host_kernels = {EK_KERNELS(FILLED)};

/* host.h: the kernels of the host backend: ek_host_<slot> for each slot of kernels/kernels.h, where
 * its contract stands. */
#ifndef EK_HOST_HOST_H
#define EK_HOST_HOST_H

#include "kernels/kernels.h"

extern const ek_kernels ek_host_kernels;

#define EK_HOST_KERNEL(slot) ek_##slot##_kernel ek_host_##slot;
EK_KERNELS(EK_HOST_KERNEL)
#undef EK_HOST_KERNEL

#endif

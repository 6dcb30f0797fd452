/* remote.h: host devices whose backend says that neither the CPU nor other devices can read their
 * memory, and counts its calls. */
#ifndef EK_TESTS_KIT_REMOTE_H
#define EK_TESTS_KIT_REMOTE_H

#include <stdatomic.h>

#include "core/backend.h"

extern ek_backend remote; /* the devices' backend, which a test may change further */
extern const ek_backend *remote_real;
extern atomic_int copies; /* between devices, without copies from cpu, which zero new slabs */
extern atomic_int broadcasts, exchanges, library_sums;

/* Makes the first devices remote, with these collectives. The counts begin at 0. The sum adds f32
 * from the last device to the first, so that its order can be told from others. */
void make_remote(int devices, ek_collective offer);
void end_remote(void);

#endif

/* remote.h: host devices whose backend says that the CPU can't read their memory, nor they each
 * other's, and counts what is asked of it. */
#ifndef EK_TESTS_KIT_REMOTE_H
#define EK_TESTS_KIT_REMOTE_H

#include <stdatomic.h>

#include "core/backend.h"

extern ek_backend remote; /* the devices' table: a test may change it further */
extern const ek_backend *remote_real;
extern atomic_int copies; /* between devices; those from cpu are zeros for new slabs */
extern atomic_int broadcasts, exchanges, library_sums;

/* The first devices become remote and offer these collectives. The counts begin at 0. The sum adds
 * f32 from the last device to the first, so that its order can be told from others. */
void make_remote(int devices, ek_collective offer);
void end_remote(void);

#endif

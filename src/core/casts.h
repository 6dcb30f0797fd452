/* casts.h: parameters in another dtype, remembered by the thread between the outermost
 * ek_autocast_begin and its end; elsewhere, as in jobs on workers, nothing is. */
#ifndef EK_CORE_CASTS_H
#define EK_CORE_CASTS_H

#include "core/tensor.h"

/* The cast of `leaf` as it is now, in the scope; NULL where there is none. `graph`: with history.
 */
ek_tensor *ek_cast_find(const ek_tensor *leaf, bool graph);

/* In place of what is remembered of the leaf under this `graph`. Without memory nothing is. */
void ek_cast_remember(ek_tensor *leaf, bool graph, ek_tensor *cast);

/* Forgets all of the thread's. */
void ek_casts_forget(ek_thread *thread);

#endif

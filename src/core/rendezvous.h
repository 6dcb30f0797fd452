/* rendezvous.h: where the parts of a gang wait for each other.
 *
 * A rendezvous is complete when every part of the gang has arrived at the same place; the last one
 * to arrive does the common work, the others wait, then all go on with what it left for them. A
 * part that has ended, well or not, can no longer arrive: whoever waits for it gets its error. So
 * nobody waits for ever, whatever a part does, except where it doesn't end. */
#ifndef EK_CORE_RENDEZVOUS_H
#define EK_CORE_RENDEZVOUS_H

#include "core/thread.h"

/* The common work: parts[i] is what part i brought. Runs once, in the last part's thread, in a
 * scope of its own; what shall outlive it is retained by it. Returns 0 or a negative status with
 * the error set, which every part gets. */
typedef int ek_rendezvous_function(void *const *parts, int count);

/* Parts that meet when the calling thread calls ek_rendezvous: those of its gang; 1 on threads
 * without a gang and in a part that runs alone. */
int ek_rendezvous_count(void);

/* Meets the other parts. `place` tells one rendezvous from another: parts that meet at different
 * ones are EK_E_STATE with both names. With one part the work is done at once. EK_E_STATE where
 * parts run one after the other (a gang within a gang, two parts on cpu), so that they cannot meet,
 * and where modes carry EK_MODE_ALONE. */
int ek_rendezvous(const char *name, uint64_t place, void *mine, ek_rendezvous_function *function);

#endif

/* state_parts.h: states of divided parameters, to be put together when they are written. */
#ifndef EK_OPTIM_STATE_PARTS_H
#define EK_OPTIM_STATE_PARTS_H

#include "core/object.h"
#include "evenkeel/optim.h"

/* Writes the pieces of the state as one counted object, of which the caller owns a reference:
 * optimizer and parameter may go. *parts is NULL if the parameter is whole or there is no state.
 * Returns 0 or a negative status. */
int ek_optimizer_state_parts(const ek_optimizer *optimizer, const ek_tensor *parameter,
                             const char *name, ek_object **parts, ek_dtype *dtype);

/* The whole, on cpu, in the scope: shaped as the parameter. */
ek_tensor *ek_state_parts_gather(ek_object *parts);

#endif

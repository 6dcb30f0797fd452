/* ddp.h: training over several processes (dist.h): gradients that are averaged over ranks. */
#ifndef EVENKEEL_DDP_H
#define EVENKEEL_DDP_H

#include "evenkeel/dist.h"
#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

/* Replaces the gradients of the module's parameters by their mean over the ranks of the group, so
 * that an optimizer's step is the same on all. For a loop without a wrapper: after ek_backward.
 *
 * All ranks call it with modules of the same parameters, else EK_E_STATE. A gradient that only some
 * ranks have counts as zeros on the others, and all have it afterwards; one that no rank has stays
 * absent. Many gradients travel as one message. Means have no history. Gradients may lie on any
 * devices and be sharded. After an error some of them may have been averaged; a repeated call
 * averages the others too, and leaves these as they are but for rounding. */
EK_API int ek_dist_average_gradients(ek_module *module, ek_process_group *group);

EK_END_DECLARATIONS
#endif

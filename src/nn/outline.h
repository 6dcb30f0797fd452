/* outline.h: a nest without its tensors: what stays of arguments that are given again later. */
#ifndef EK_NN_OUTLINE_H
#define EK_NN_OUTLINE_H

#include "evenkeel/value.h"
#include "nn/module_walk.h"

/* The nest with a place where each tensor was, in the scope; an error for one. The tensors go to
 * `list`, each once. Places are for ek_outline_fill alone. */
ek_value ek_outline_of(ek_value value, ek_tensor_list *list);
/* The nest of this outline with tensors[i] where the list had its tensor i, in the scope. */
ek_value ek_outline_fill(ek_value outline, ek_tensor *const *tensors);

#endif

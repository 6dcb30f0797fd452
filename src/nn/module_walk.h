/* module_walk.h: a module's tensors as a list. */
#ifndef EK_NN_MODULE_WALK_H
#define EK_NN_MODULE_WALK_H

#include "evenkeel/module.h"

/* Tensors without references of the list's own. All zero is an empty one. */
typedef struct ek_tensor_list {
    ek_tensor **tensors;
    int count, capacity;
} ek_tensor_list;

/* Appends the parameters, then the buffers, each once. Where it fails the list is emptied. */
int ek_module_collect(ek_module *module, bool parameters, bool buffers, ek_tensor_list *list);
/* Appends one; 0 or EK_E_NO_MEMORY. */
int ek_tensor_list_append(ek_tensor_list *list, ek_tensor *tensor);
void ek_tensor_list_clear(ek_tensor_list *list);

#endif

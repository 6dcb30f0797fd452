/* transformer.h: keyword arguments of modules. */
#ifndef EK_NN_TRANSFORMER_H
#define EK_NN_TRANSFORMER_H

#include "nn/nn.h"

/* Writes the keyword arguments of these names; EK_VALUE_NONE for those that aren't given. A keyword
 * of another name is EK_E_INVALID. */
int ek_keywords_of(const ek_module *module, const ek_args *args, const char *const *names,
                   int count, ek_value *values);

#endif

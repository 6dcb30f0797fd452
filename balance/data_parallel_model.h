/* data_parallel_model.h: what gradient penalties ask of the balanced wrapper. */
#ifndef EK_BALANCE_DATA_PARALLEL_MODEL_H
#define EK_BALANCE_DATA_PARALLEL_MODEL_H

#include "parallel/wrapper.h"

/* The wrapper in `module` where its calls leave one output per device: an ek_data_parallel_model of
 * several devices in training and not .plain. NULL, without an error, for everything else. */
ek_wrapper *ek_data_parallel_model_apart(ek_module *module);

#endif

/* parallel.h: one process, many devices: replicate, parallel_apply, data_parallel.
 *
 * Each device has one long-lived worker thread that runs its replica's forward and its part of
 * backward. An error in one replica is raised in the caller with replica and device in its
 * sentence, after all replicas have finished; where several fail, the first by index is raised. */
#ifndef EVENKEEL_PARALLEL_H
#define EVENKEEL_PARALLEL_H

#include "evenkeel/comm.h"
#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

/* Makes one replica of `module` per device. Parameters are broadcast differentiably (unless
 * gradient mode is off): gradients of replicas add up in the module's own. Replica 0 on the
 * module's device shares its memory; what it does to buffers in place stays. The module's
 * parameters and buffers must lie on devices->devices[0]. Replicas are the caller's: free each with
 * ek_module_free. */
EK_API int ek_replicate(ek_module *module, const ek_device_list *devices, ek_module **replicas);

/* Runs modules[i] on args[i] on the worker of devices->devices[i], all side by side, in the
 * caller's gradient mode; one module runs on the caller's thread. Outputs are handed to the
 * caller's scope in order. On a worker (nested) it runs inline. */
EK_API int ek_parallel_apply(ek_module *const *modules, const ek_args *args, int count,
                             const ek_device_list *devices, ek_value *outputs);

typedef enum ek_split_policy { EK_SPLIT_CHUNK = 0, EK_SPLIT_EVEN = 1 } ek_split_policy;

typedef struct ek_data_parallel_options {
    int keywords;
    ek_module *module;         /* ownership passes to the wrapper */
    ek_device_list device_ids; /* empty: all accelerators */
    ek_device output_device;   /* ek_data_parallel: where outputs meet; default: device_ids[0] */
    bool output_on_cpu;        /* ek_data_parallel: the plain memory device as output_device */
    int dim;                   /* along which inputs are cut and outputs joined */
    ek_split_policy split;
    ek_switch broadcast_buffers; /* default on: device 0's buffers are sent at every forward */
    bool plain;                  /* ek_data_parallel_model: run the plain module on device_ids[0] */
} ek_data_parallel_options;

/* torch.nn.DataParallel: scatter, replicate, apply, gather onto output_device. Moves the module to
 * device_ids[0]. With one device it is a plain call there (its output still goes to
 * output_device), with no accelerator a plain call on cpu. Batches smaller than the device count
 * use fewer replicas. Parameter paths are the module's own.
 *
 * Parameters move into one slab per dtype; handles stay valid, so that optimizers may be made
 * before or after. Only what was written is sent to the replicas again: whoever writes to
 * parameters or buffers by other means than the library's says so with ek_tensor_touch. One call at
 * a time. */
EK_API ek_module *ek_data_parallel_with(ek_data_parallel_options options);
#define ek_data_parallel(...) \
    ek_data_parallel_with((ek_data_parallel_options){.keywords = 0, __VA_ARGS__})

/* The wrapped module of a data-parallel wrapper of any kind; EK_E_INVALID for other modules. */
EK_API ek_module *ek_data_parallel_module(ek_module *data_parallel);

EK_END_DECLARATIONS
#endif

/* data_parallel_model.c: outputs stay on the devices that made them. */
#include "balance/balance.h"

#include "core/thread.h"
#include "evenkeel/balance.h"

typedef struct data_parallel_model {
    ek_wrapper wrapper;
    bool plain;
} data_parallel_model;

/* Returns true if a call runs the module without replicas, on the first device. */
static bool model_is_plain(const data_parallel_model *self)
{
    return self->plain || !self->wrapper.module.training || ek_wrapper_is_plain(&self->wrapper);
}

static ek_value model_call(ek_module *module, const ek_args *args)
{
    data_parallel_model *self = (data_parallel_model *)module;
    if (model_is_plain(self))
        return ek_wrapper_call_plain(&self->wrapper, args, ek_part_forward, NULL);
    ek_value outputs[EK_MAX_DEVICES];
    int parts = ek_wrapper_apply(&self->wrapper, args, outputs);
    return parts < 0                          ? ek_value_error()
           : self->wrapper.devices.count == 1 ? outputs[0]
                                              : ek_value_per_device(outputs, parts);
}

static ek_value model_forward(ek_module *module, const ek_args *args)
{
    return ek_wrapper_call_alone((ek_wrapper *)module, args, model_call);
}

static const ek_module_type data_parallel_model_type = {.name = "data_parallel_model",
                                                        .size = sizeof(data_parallel_model),
                                                        .forward = model_forward,
                                                        .destroy = ek_wrapper_destroy,
                                                        .family = ek_wrapper_family};

ek_wrapper *ek_data_parallel_model_apart(ek_module *module)
{
    if (module->type != &data_parallel_model_type || model_is_plain((data_parallel_model *)module))
        return NULL;
    ek_wrapper *wrapper = (ek_wrapper *)module;
    return wrapper->devices.count > 1 ? wrapper : NULL;
}

ek_module *ek_data_parallel_model_with(ek_data_parallel_options options)
{
    if (options.output_on_cpu || options.output_device.kind != EK_CPU) {
        EK_FAIL(EK_E_INVALID,
                "data_parallel_model: outputs stay on their devices; an output device "
                "is an option of ek_data_parallel");
        ek_module_discard(options.module);
        return NULL;
    }
    ek_wrapper *wrapper = ek_wrapper_new(&data_parallel_model_type, &options);
    if (!wrapper)
        return NULL;
    ((data_parallel_model *)wrapper)->plain = options.plain;
    if (!options.plain)
        ek_wrapper_warn(wrapper, &options);
    return &wrapper->module;
}

/* data_parallel.c: ek_data_parallel, whose outputs are gathered on one device. */
#include "comm/tree.h"
#include "core/thread.h"
#include "evenkeel/parallel.h"
#include "nn/module_table.h"
#include "parallel/wrapper.h"

typedef struct data_parallel {
    ek_wrapper wrapper;
    ek_device output_device;
} data_parallel;

static ek_value data_parallel_call(ek_module *module, const ek_args *args)
{
    data_parallel *self = (data_parallel *)module;
    ek_wrapper *wrapper = &self->wrapper;
    if (ek_wrapper_is_plain(wrapper)) {
        ek_value output = ek_wrapper_call_plain(wrapper, args, ek_part_forward, NULL);
        /* In a replica, and if the output device is the first device, the output stays where the
         * module made it. */
        if (module->is_replica || ek_device_equal(self->output_device, wrapper->devices.devices[0]))
            return output;
        return ek_value_to_device(output, self->output_device, wrapper->dim);
    }
    ek_value outputs[EK_MAX_DEVICES];
    int parts = ek_wrapper_apply(wrapper, args, outputs);
    if (parts < 0)
        return ek_value_error();
    return ek_gather_value(outputs, parts, self->output_device, wrapper->dim);
}

static ek_value data_parallel_forward(ek_module *module, const ek_args *args)
{
    return ek_wrapper_call_alone((ek_wrapper *)module, args, data_parallel_call);
}

static const ek_module_type data_parallel_type = {.name = "data_parallel",
                                                  .size = sizeof(data_parallel),
                                                  .forward = data_parallel_forward,
                                                  .destroy = ek_wrapper_destroy,
                                                  .family = ek_wrapper_family};

void ek_data_parallel_output(const ek_module *module, ek_device *device)
{
    if (module->type == &data_parallel_type)
        *device = ((const data_parallel *)module)->output_device;
}

ek_module *ek_data_parallel_with(ek_data_parallel_options options)
{
    if (options.plain) {
        EK_FAIL(EK_E_INVALID, "data_parallel: .plain is an option of ek_data_parallel_model");
        ek_module_discard(options.module);
        return NULL;
    }
    ek_wrapper *wrapper = ek_wrapper_new(&data_parallel_type, &options);
    if (!wrapper)
        return NULL;
    data_parallel *self = (data_parallel *)wrapper;
    ek_wrapper_warn(wrapper, &options);
    self->output_device = options.output_device;
    if (options.output_on_cpu)
        self->output_device = ek_cpu();
    else if (options.output_device.kind == EK_CPU && wrapper->devices.count)
        self->output_device = wrapper->devices.devices[0];
    if (ek_dev_get(self->output_device))
        return &wrapper->module;
    ek_module_free(&wrapper->module);
    return NULL;
}

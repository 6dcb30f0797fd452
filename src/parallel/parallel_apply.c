/* parallel_apply.c: modules on their devices, side by side. */
#include "comm/collectives.h"
#include "comm/nest.h"
#include "core/worker.h"
#include "evenkeel/parallel.h"
#include "parallel/wrapper.h"

typedef struct apply_call {
    ek_module *const *modules;
    const ek_args *args;
    ek_part_function *function;
    void *user;
    ek_value *outputs;
} apply_call;

ek_value ek_part_forward(ek_module *module, const ek_args *args, void *user)
{
    (void)user;
    return ek_module_forward(module, args);
}

static int apply_one(void *user, int index)
{
    const apply_call *call = user;
    ek_value output = call->function(call->modules[index], &call->args[index], call->user);
    if (output.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    call->outputs[index] = ek_value_keep(output); /* the job's scope ends with it */
    return 0;
}

int ek_apply_parts(ek_module *const *modules, const ek_args *args, ek_dev *const *devs, int count,
                   ek_part_function *function, void *user, ek_value *outputs)
{
    apply_call call = {modules, args, function, user, outputs};
    for (int i = 0; i < count; i++)
        outputs[i] = ek_value_none();
    int rc = ek_gang_run(devs, count, apply_one, &call, "replica");
    for (int i = 0; i < count; i++) {
        ek_value output = outputs[i];
        if (rc >= 0 && ek_nest_adopt(output).kind == EK_VALUE_ERROR)
            rc = ek_error_pending();
        ek_value_release(output);
    }
    for (int i = 0; rc < 0 && i < count; i++)
        outputs[i] = ek_value_error();
    return rc;
}

int ek_parallel_apply(ek_module *const *modules, const ek_args *args, int count,
                      const ek_device_list *devices, ek_value *outputs)
{
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("parallel_apply", devices, devs));
    if (count < 1 || count > devices->count)
        return EK_FAIL(EK_E_INVALID, "parallel_apply: %d modules for %d devices", count,
                       devices->count);
    EK_TRY(ek_check_pointer("parallel_apply", "the array of modules", modules));
    EK_TRY(ek_check_pointer("parallel_apply", "the array of arguments", args));
    EK_TRY(ek_check_pointer("parallel_apply", "the array for the outputs", outputs));
    return ek_apply_parts(modules, args, devs, count, ek_part_forward, NULL, outputs);
}

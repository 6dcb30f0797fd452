/* replicate.c: replicate, for callers. */
#include "comm/collectives.h"
#include "evenkeel/parallel.h"
#include "parallel/replica_set.h"

/* A set for one use: the replicas' memory is theirs alone once it is gone. */
int ek_replicate(ek_module *module, const ek_device_list *devices, ek_module **replicas)
{
    if (!module)
        return EK_FAIL(EK_E_INVALID, "replicate: module is NULL");
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("replicate", devices, devs));
    EK_TRY(ek_check_home(module, devs[0]));
    ek_replica_set *set = ek_replica_set_new(module, devices->count, true);
    if (!set)
        return ek_error_pending();
    ek_places places = {.count = devices->count};
    for (int i = 0; i < places.count; i++)
        places.at[i] = i;
    int rc = ek_replica_set_make(set, devs, &places, replicas);
    ek_replica_set_free(set);
    return rc;
}

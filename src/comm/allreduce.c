/* allreduce.c: sums over devices, on each of them. */
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "core/object.h"
#include "core/rendezvous.h"
#include "core/trace.h"
#include "evenkeel/autograd.h"
#include "evenkeel/comm.h"

static const char what[] = "allreduce";

static int allreduce_check_devices(ek_dev *const *devs, int devices)
{
    for (int d = 0; d < devices; d++)
        for (int other = 0; other < d; other++)
            if (devs[d] == devs[other])
                return EK_FAIL(EK_E_DEVICE,
                               "allreduce: lists %d and %d are both on %s; each needs a device of "
                               "its own",
                               other, d, devs[d]->name);
    return 0;
}

/* Adds the lists on the first list's device, then broadcasts the sums. tensors[d * count + i] is
 * tensor i of device d; `out` has the same order. */
static int allreduce_sum_lists(ek_tensor *const *tensors, int devices, int count, ek_tensor **out)
{
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_check_lists(what, tensors, devices, count, devs));
    if (count == 0)
        return 0;
    EK_TRY(allreduce_check_devices(devs, devices));
    ek_device_list list = {.count = devices};
    for (int d = 0; d < devices; d++)
        list.devices[d] = devs[d]->id;
    ek_tensor **sums = ek_calloc((size_t)count, sizeof(ek_tensor *));
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, what, NULL, devs[0]);
    int rc = sums ? ek_reduce_add_coalesced(tensors, devices, count, list.devices[0], 0, sums)
                  : ek_error_pending();
    if (rc >= 0)
        rc = ek_broadcast_coalesced(sums, count, &list, 0, out);
    ek_span_end(&span);
    free(sums);
    return rc;
}

/* What a replica brings to the rendezvous. */
typedef struct share {
    ek_tensor *const *tensors;
    int count;
    ek_tensor **out; /* one reference each */
} share;

/* Sums all replicas' tensors. Runs on any replica's thread, with gradient mode on; replicas whose
 * gradient mode is off bring tensors without history. */
static int allreduce_sum_shares(void *const *brought, int parts)
{
    share *const *shares = (share *const *)brought;
    int count = shares[0]->count, rc = 0;
    size_t total = (size_t)parts * (size_t)count;
    for (int p = 1; p < parts; p++)
        if (shares[p]->count != count)
            return EK_FAIL(EK_E_INVALID,
                           "allreduce: replica 0 brings %d tensors, but replica %d brings %d",
                           count, p, shares[p]->count);
    ek_tensor **tensors = ek_calloc(total + 1, sizeof *tensors);
    ek_tensor **out = ek_calloc(total + 1, sizeof *out);
    if (!tensors || !out)
        rc = ek_error_pending();
    for (int k = 0; k < parts * count && rc >= 0; k++)
        tensors[k] = shares[k / count]->tensors[k % count];
    bool before = ek_set_grad_enabled(true);
    if (rc >= 0)
        rc = allreduce_sum_lists(tensors, parts, count, out);
    ek_set_grad_enabled(before);
    for (int k = 0; k < parts * count && rc >= 0; k++)
        shares[k / count]->out[k % count] = ek_keep(out[k]);
    free(out);
    free(tensors);
    return rc;
}

/* Detaches the tensors if gradient mode is off. Fails if a tensor is NULL. */
static int allreduce_detach_all(ek_tensor **tensors, int count)
{
    for (int i = 0; i < count; i++) {
        EK_TRY(ek_check_alive("allreduce", "a tensor", tensors[i]));
        if (!ek_grad_enabled() && tensors[i])
            tensors[i] = ek_detach(tensors[i]);
        if (!tensors[i]) {
            EK_FAIL(EK_E_INVALID, "allreduce: tensor %d is NULL", i);
            return ek_error_pending();
        }
    }
    return 0;
}

static int allreduce_meet(ek_tensor *const *tensors, int count, ek_tensor **out)
{
    ek_tensor **own = ek_calloc((size_t)count, sizeof(ek_tensor *));
    if (!own)
        return ek_error_pending();
    if (count > 0)
        memcpy(own, tensors, (size_t)count * sizeof(ek_tensor *));
    share mine = {own, count, out};
    int rc = allreduce_detach_all(own, count);
    if (rc >= 0)
        rc = ek_rendezvous(what, 0, &mine, allreduce_sum_shares);
    for (int i = 0; i < count && rc >= 0; i++)
        out[i] = ek_scope_adopt(out[i]);
    if (rc >= 0)
        rc = allreduce_detach_all(out, count);
    free(own);
    return rc;
}

int ek_allreduce(ek_tensor *const *tensors, int num_inputs, int count, ek_tensor **out)
{
    EK_TRY(ek_error_status());
    if (num_inputs < 0 || count < 0)
        return EK_FAIL(EK_E_INVALID, "allreduce: num_inputs is %d and count %d; both are 0 or more",
                       num_inputs, count);
    if (num_inputs == 0 ? count != 0 : count % num_inputs != 0)
        return EK_FAIL(
            EK_E_INVALID,
            "allreduce: %d tensors can't be num_inputs = %d of each device; count has to be "
            "a multiple of num_inputs",
            count, num_inputs);
    if (count > 0) {
        EK_TRY(ek_check_pointer(what, "the array of tensors", tensors));
        EK_TRY(ek_check_pointer(what, "the array for the sums", out));
    }
    if (count > 0)
        memset(out, 0, (size_t)count * sizeof(ek_tensor *));
    /* In backward the threads of a group serve ready queues (run.h), and are not replicas. So a
     * full list is summed by the calling thread alone. */
    bool in_backward = (ek_thread_self()->modes.flags & EK_MODE_BACKWARD) && count != num_inputs;
    if (in_backward || ek_rendezvous_count() == 1)
        return num_inputs > 0 ? allreduce_sum_lists(tensors, count / num_inputs, num_inputs, out)
                              : 0;
    if (count != num_inputs)
        return EK_FAIL(EK_E_INVALID,
                       "allreduce: in a replica's forward the tensors are this replica's alone: "
                       "count has to be num_inputs, %d, not %d",
                       num_inputs, count);
    return allreduce_meet(tensors, count, out);
}

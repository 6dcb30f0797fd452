/* broadcast.c: copies of tensors on every device. */
#include <stdlib.h>

#include "comm/buckets.h"
#include "comm/lists.h"
#include "comm/transport.h"
#include "evenkeel/comm.h"
#include "ops/ops.h"

int ek_broadcast(ek_tensor *tensor, const ek_device_list *devices, ek_tensor **out)
{
    EK_TRY(ek_check_pointer("broadcast", "the array for the copies", out));
    if (!ek_given("broadcast", "tensor", tensor))
        return ek_error_pending();
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("broadcast", devices, devs));
    return ek_comm_broadcast(ek_tensor_dev(tensor), &tensor, 1, devs, devices->count, NULL, out);
}

/* One call of broadcast_coalesced. */
typedef struct call {
    ek_tensor *const *tensors;
    int count;
    ek_dev *devs[EK_MAX_DEVICES];
    int devices;
    ek_tensor **out;
} call;

static int broadcast_bucket(void *user, const int *indices, int count)
{
    call *c = user;
    ek_tensor **part = ek_calloc((size_t)count * (size_t)(c->devices + 1), sizeof(ek_tensor *));
    if (!part)
        return ek_error_pending();
    ek_tensor **sent = part + count;
    for (int i = 0; i < count; i++)
        part[i] = c->tensors[indices[i]];
    int rc = ek_comm_broadcast(c->devs[0], part, count, c->devs, c->devices, NULL, sent);
    for (int d = 0; d < c->devices && rc >= 0; d++)
        for (int i = 0; i < count; i++)
            c->out[d * c->count + indices[i]] = sent[d * count + i];
    free(part);
    return rc;
}

int ek_broadcast_coalesced(ek_tensor *const *tensors, int count, const ek_device_list *devices,
                           size_t buffer_nbytes, ek_tensor **out)
{
    call c = {.tensors = tensors, .count = count, .out = out};
    EK_TRY(ek_comm_devices("broadcast_coalesced", devices, c.devs));
    if (count > 0) {
        EK_TRY(ek_check_pointer("broadcast_coalesced", "the array of tensors", tensors));
        EK_TRY(ek_check_pointer("broadcast_coalesced", "the array for the copies", out));
    }
    c.devices = devices->count;
    for (int i = 0; i < count; i++) {
        char text[200];
        if (!tensors[i]) {
            EK_FAIL(EK_E_INVALID, "broadcast_coalesced: tensor %d is NULL", i);
            return ek_error_pending();
        }
        if (ek_tensor_dev(tensors[i]) != c.devs[0])
            return EK_FAIL(EK_E_DEVICE,
                           "broadcast_coalesced: all tensors must be on devices[0], which is %s; "
                           "tensor %d is %s",
                           c.devs[0]->name, i, ek_tensor_text(tensors[i], text));
    }
    return ek_buckets_for_broadcast(tensors, count,
                                    buffer_nbytes ? buffer_nbytes : EK_COMM_BUFFER_BYTES,
                                    broadcast_bucket, &c);
}

/* coalesced.c: broadcast and reduce_add of one tensor, and of lists in buckets. */
#include "comm/coalesced.h"

#include <stdlib.h>

#include "comm/collectives.h"
#include "comm/layout.h"
#include "evenkeel/comm.h"
#include "ops/ops.h"

/* ---- buckets ---- */

typedef struct bucket {
    int *indices;
    int count;
    size_t nbytes;
} bucket;

static int bucket_close(bucket *b, ek_bucket_function *function, void *user)
{
    int rc = b->count > 0 ? function(user, b->indices, b->count) : 0;
    b->count = 0;
    b->nbytes = 0;
    return rc;
}

int ek_buckets(ek_bucket_rule rule, ek_tensor *const *tensors, int count, size_t limit,
               ek_bucket_function *function, void *user)
{
    bucket buckets[EK_DTYPES] = {{0}};
    int seen[EK_DTYPES], seen_count = 0, rc = 0;
    int *room = ek_calloc((size_t)EK_DTYPES * (size_t)count + 1, sizeof *room);
    if (!room)
        return ek_error_pending();
    for (int i = 0; i < count && rc == 0; i++) {
        int dtype = (int)tensors[i]->dtype;
        bucket *b = &buckets[dtype];
        size_t nbytes = ek_comm_nbytes(tensors[i]);
        if (rule == EK_BUCKETS_OF_REDUCE && b->count > 0 && b->nbytes + nbytes > limit)
            rc = bucket_close(b, function, user);
        if (!b->indices)
            seen[seen_count++] = dtype;
        b->indices = room + (ptrdiff_t)dtype * count;
        b->indices[b->count++] = i;
        b->nbytes += nbytes;
        if (rule == EK_BUCKETS_OF_BROADCAST && b->nbytes >= limit)
            rc = bucket_close(b, function, user);
    }
    for (int k = 0; k < seen_count && rc == 0 && rule == EK_BUCKETS_OF_REDUCE; k++)
        rc = bucket_close(&buckets[seen[k]], function, user);
    for (int dtype = 0; dtype < EK_DTYPES && rc == 0; dtype++)
        rc = bucket_close(&buckets[dtype], function, user);
    free(room);
    return rc;
}

/* ---- broadcast ---- */

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
typedef struct broadcast_call {
    ek_tensor *const *tensors;
    int count;
    ek_dev *devs[EK_MAX_DEVICES];
    int devices;
    ek_tensor **out;
} broadcast_call;

static int broadcast_bucket(void *user, const int *indices, int count)
{
    broadcast_call *c = user;
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
    broadcast_call c = {.tensors = tensors, .count = count, .out = out};
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
    return ek_buckets(EK_BUCKETS_OF_BROADCAST, tensors, count,
                      buffer_nbytes ? buffer_nbytes : EK_COMM_BUFFER_BYTES, broadcast_bucket, &c);
}

/* ---- reduce_add ---- */

/* Tensor i of every device: given, of one shape and dtype. */
static int check_alike(const char *what, ek_tensor *const *inputs, int devices, int count, int i)
{
    const ek_tensor *first = inputs[i];
    for (int d = 0; d < devices; d++) {
        const ek_tensor *input = inputs[d * count + i];
        char text[200], expected[200];
        if (!input) {
            EK_FAIL(EK_E_INVALID, "%s: input %d is NULL", what, d);
            return ek_error_pending();
        }
        if (input->dtype != first->dtype)
            return EK_FAIL(EK_E_DTYPE, "%s: input %d is %s, but input 0 is %s", what, d,
                           ek_tensor_text(input, text), ek_tensor_text(first, expected));
        if (!ek_same_shape(input, first))
            return EK_FAIL(EK_E_SHAPE, "%s: input %d has an invalid size: it is %s, expected is %s",
                           what, d, ek_tensor_text(input, text), ek_tensor_text(first, expected));
    }
    return 0;
}

int ek_comm_check_lists(const char *what, ek_tensor *const *inputs, int devices, int count,
                        ek_dev **devs)
{
    if (devices < 1 || devices > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_INVALID, "%s: 1 to %d inputs are needed, not %d", what, EK_MAX_DEVICES,
                       devices);
    if (count > 0)
        EK_TRY(ek_check_pointer(what, "the array of tensors", inputs));
    for (int i = 0; i < count; i++)
        EK_TRY(check_alike(what, inputs, devices, count, i));
    for (int d = 0; d < devices && count > 0; d++) {
        devs[d] = ek_tensor_dev(inputs[d * count]);
        for (int i = 1; i < count; i++)
            if (ek_tensor_dev(inputs[d * count + i]) != devs[d])
                return EK_FAIL(EK_E_DEVICE,
                               "%s: tensor %d of list %d is on %s, but tensor 0 is on %s", what, i,
                               d, ek_tensor_dev(inputs[d * count + i])->name, devs[d]->name);
    }
    return 0;
}

/* The destination, which must be one of the devices. */
static ek_dev *root_of(const char *what, ek_device destination, ek_dev *const *devs, int devices)
{
    ek_dev *root = ek_dev_get(destination);
    for (int d = 0; d < devices && root; d++)
        if (devs[d] == root)
            return root;
    if (root)
        EK_FAIL(EK_E_DEVICE, "%s: the destination %s must hold one of the inputs", what,
                root->name);
    return NULL;
}

ek_tensor *ek_reduce_add(ek_tensor *const *tensors, int count, ek_device destination)
{
    ek_dev *devs[EK_MAX_DEVICES];
    if (ek_comm_check_lists("reduce_add", tensors, count, 1, devs) < 0)
        return NULL;
    ek_dev *root = root_of("reduce_add", destination, devs, count);
    if (!root)
        return NULL;
    if (count == 1)
        return ek_scope_adopt(ek_object_retain(tensors[0]));
    ek_tensor *sum = NULL;
    return ek_comm_reduce(tensors, count, 1, devs, root, NULL, &sum) < 0 ? NULL : sum;
}

ek_tensor *ek_reduce(ek_tensor *const *tensors, int count)
{
    ek_dev *devs[EK_MAX_DEVICES];
    if (ek_comm_check_lists("reduce", tensors, count, 1, devs) < 0)
        return NULL;
    return ek_reduce_add(tensors, count, ek_tensor_device(tensors[0]));
}

/* One call of reduce_add_coalesced. */
typedef struct reduce_call {
    ek_tensor *const *inputs;
    int devices, count;
    ek_dev *devs[EK_MAX_DEVICES];
    ek_dev *root;
    ek_tensor **out;
} reduce_call;

static int reduce_bucket(void *user, const int *indices, int count)
{
    reduce_call *c = user;
    ek_tensor **part = ek_calloc((size_t)count * (size_t)(c->devices + 1), sizeof(ek_tensor *));
    if (!part)
        return ek_error_pending();
    ek_tensor **sums = part + (ptrdiff_t)count * c->devices;
    for (int d = 0; d < c->devices; d++)
        for (int i = 0; i < count; i++)
            part[d * count + i] = c->inputs[d * c->count + indices[i]];
    int rc = ek_comm_reduce(part, c->devices, count, c->devs, c->root, NULL, sums);
    for (int i = 0; i < count && rc >= 0; i++)
        c->out[indices[i]] = sums[i];
    free(part);
    return rc;
}

int ek_reduce_add_coalesced(ek_tensor *const *inputs, int devices, int count, ek_device destination,
                            size_t buffer_nbytes, ek_tensor **out)
{
    reduce_call c = {.inputs = inputs, .devices = devices, .count = count, .out = out};
    EK_TRY(ek_comm_check_lists("reduce_add_coalesced", inputs, devices, count, c.devs));
    if (count == 0)
        return 0;
    EK_TRY(ek_check_pointer("reduce_add_coalesced", "the array for the sums", out));
    c.root = root_of("reduce_add_coalesced", destination, c.devs, devices);
    if (!c.root)
        return ek_error_pending();
    if (devices == 1) {
        for (int i = 0; i < count; i++) {
            out[i] = ek_scope_adopt(ek_object_retain(inputs[i]));
            if (!out[i])
                return ek_error_pending();
        }
        return 0;
    }
    return ek_buckets(EK_BUCKETS_OF_REDUCE, inputs, count,
                      buffer_nbytes ? buffer_nbytes : EK_COMM_BUFFER_BYTES, reduce_bucket, &c);
}

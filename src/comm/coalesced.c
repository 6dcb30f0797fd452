/* coalesced.c: broadcast and reduce_add of one tensor, and of lists of tensors in buckets. */
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "comm/exchange.h"
#include "evenkeel/comm.h"
#include "ops/ops.h"

/* ---- buckets ---- */

/* The open bucket of each dtype, and the closed buckets. */
typedef struct bucket_list {
    struct {
        int *indices, count;
        size_t nbytes;
    } open[EK_DTYPES];
    int *order, *ends;
    int ordered, closed;
} bucket_list;

static void bucket_close(bucket_list *list, int dtype)
{
    int count = list->open[dtype].count;
    if (count == 0)
        return;
    memcpy(list->order + list->ordered, list->open[dtype].indices, (size_t)count * sizeof(int));
    list->ends[list->closed++] = list->ordered += count;
    list->open[dtype].count = 0;
    list->open[dtype].nbytes = 0;
}

int ek_buckets(ek_bucket_rule rule, ek_tensor *const *tensors, int count, size_t limit, int *order,
               int *ends)
{
    bucket_list list = {.order = order, .ends = ends};
    int seen[EK_DTYPES], seen_count = 0;
    int *room = ek_calloc((size_t)EK_DTYPES * (size_t)count + 1, sizeof *room);
    if (!room)
        return ek_error_pending();
    for (int i = 0; i < count; i++) {
        int dtype = (int)tensors[i]->dtype;
        size_t nbytes = ek_comm_nbytes(tensors[i]);
        if (rule == EK_BUCKETS_OF_REDUCE && list.open[dtype].nbytes + nbytes > limit)
            bucket_close(&list, dtype);
        if (!list.open[dtype].indices)
            seen[seen_count++] = dtype;
        list.open[dtype].indices = room + (ptrdiff_t)dtype * count;
        list.open[dtype].indices[list.open[dtype].count++] = i;
        list.open[dtype].nbytes += nbytes;
        if (rule == EK_BUCKETS_OF_BROADCAST && list.open[dtype].nbytes >= limit)
            bucket_close(&list, dtype);
    }
    for (int k = 0; k < seen_count && rule == EK_BUCKETS_OF_REDUCE; k++)
        bucket_close(&list, seen[k]);
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        bucket_close(&list, dtype);
    free(room);
    return list.closed;
}

/* Broadcasts or sums lists of all->count whole tensors, bucket by bucket. A broadcast reads one
 * list from `in` and writes a list per device to `out`; a sum reads a list per device and writes
 * one list. `limit` 0 means the default limit. */
static int bucket_each(ek_bucket_rule rule, const ek_placement *all, ek_tensor *const *in,
                       size_t limit, ek_tensor **out)
{
    bool sums = rule == EK_BUCKETS_OF_REDUCE;
    int count = all->count, in_lists = sums ? all->devices : 1, out_lists = sums ? 1 : all->devices;
    int *order = ek_calloc((size_t)count + 1, sizeof *order);
    int *ends = ek_calloc((size_t)count + 1, sizeof *ends);
    ek_tensor **own = ek_calloc((size_t)count * ((size_t)all->devices + 1) + 1, sizeof *own);
    int buckets =
        order && ends && own
            ? ek_buckets(rule, in, count, limit ? limit : EK_COMM_BUFFER_BYTES, order, ends)
            : ek_error_pending();
    int rc = buckets < 0 ? buckets : 0;
    for (int b = 0, begin = 0; b < buckets && rc >= 0; begin = ends[b++]) {
        int n = ends[b] - begin;
        ek_placement bucket = ek_placement_whole(all->root, all->devs, all->devices, n);
        ek_tensor **made = own + (ptrdiff_t)in_lists * n;
        for (int k = 0; k < in_lists * n; k++)
            own[k] = in[k / n * count + order[begin + k % n]];
        rc = sums ? ek_comm_reduce_scatter(&bucket, own, NULL, NULL, made)
                  : ek_comm_all_gather(&bucket, own, NULL, made);
        for (int k = 0; k < out_lists * n && rc >= 0; k++)
            out[k / n * count + order[begin + k % n]] = made[k];
    }
    free(order);
    free(ends);
    free(own);
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
    ek_placement whole = ek_placement_whole(ek_tensor_dev(tensor), devs, devices->count, 1);
    return ek_comm_all_gather(&whole, &tensor, NULL, out);
}

int ek_broadcast_coalesced(ek_tensor *const *tensors, int count, const ek_device_list *devices,
                           size_t buffer_nbytes, ek_tensor **out)
{
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_devices("broadcast_coalesced", devices, devs));
    if (count > 0) {
        EK_TRY(ek_check_pointer("broadcast_coalesced", "the array of tensors", tensors));
        EK_TRY(ek_check_pointer("broadcast_coalesced", "the array for the copies", out));
    }
    for (int i = 0; i < count; i++) {
        char text[200];
        if (!tensors[i]) {
            EK_FAIL(EK_E_INVALID, "broadcast_coalesced: tensor %d is NULL", i);
            return ek_error_pending();
        }
        EK_TRY(ek_check_alive("broadcast_coalesced", "a tensor", tensors[i]));
        if (ek_tensor_dev(tensors[i]) != devs[0])
            return EK_FAIL(EK_E_DEVICE,
                           "broadcast_coalesced: all tensors must be on devices[0], which is %s; "
                           "tensor %d is %s",
                           devs[0]->name, i, ek_tensor_text(tensors[i], text));
    }
    ek_placement whole = ek_placement_whole(devs[0], devs, devices->count, count);
    return bucket_each(EK_BUCKETS_OF_BROADCAST, &whole, tensors, buffer_nbytes, out);
}

/* ---- reduce_add ---- */

/* Checks that tensor i of every device isn't NULL, and that all have one shape and dtype. */
static int coalesced_check_alike(const char *what, ek_tensor *const *inputs, int devices, int count,
                                 int i)
{
    const ek_tensor *first = inputs[i];
    for (int d = 0; d < devices; d++) {
        const ek_tensor *input = inputs[d * count + i];
        char text[200], expected[200];
        if (!input) {
            EK_FAIL(EK_E_INVALID, "%s: input %d is NULL", what, d);
            return ek_error_pending();
        }
        EK_TRY(ek_check_alive(what, "an input", input));
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
        EK_TRY(coalesced_check_alike(what, inputs, devices, count, i));
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

/* Returns the device `destination`, which must be one of devs; NULL with an error. */
static ek_dev *coalesced_root_of(const char *what, ek_device destination, ek_dev *const *devs,
                                 int devices)
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
    ek_tensor *sum = NULL;
    ek_dev *devs[EK_MAX_DEVICES];
    if (ek_comm_check_lists("reduce_add", tensors, count, 1, devs) < 0)
        return NULL;
    ek_dev *root = coalesced_root_of("reduce_add", destination, devs, count);
    if (!root)
        return NULL;
    if (count == 1)
        return ek_itself(tensors[0]);
    ek_placement whole = ek_placement_whole(root, devs, count, 1);
    return ek_comm_reduce_scatter(&whole, tensors, NULL, NULL, &sum) < 0 ? NULL : sum;
}

int ek_reduce_add_coalesced(ek_tensor *const *inputs, int devices, int count, ek_device destination,
                            size_t buffer_nbytes, ek_tensor **out)
{
    ek_dev *devs[EK_MAX_DEVICES];
    EK_TRY(ek_comm_check_lists("reduce_add_coalesced", inputs, devices, count, devs));
    if (count == 0)
        return 0;
    EK_TRY(ek_check_pointer("reduce_add_coalesced", "the array for the sums", out));
    ek_dev *root = coalesced_root_of("reduce_add_coalesced", destination, devs, devices);
    if (!root)
        return ek_error_pending();
    for (int i = 0; i < count && devices == 1; i++) {
        out[i] = ek_itself(inputs[i]);
        if (!out[i])
            return ek_error_pending();
    }
    ek_placement whole = ek_placement_whole(root, devs, devices, count);
    return devices == 1 ? 0 : bucket_each(EK_BUCKETS_OF_REDUCE, &whole, inputs, buffer_nbytes, out);
}

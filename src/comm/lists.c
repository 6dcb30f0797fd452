/* lists.c: broadcast and reduce over lists of tensors. */
#include "comm/lists.h"

#include <stdlib.h>
#include <string.h>

#include "comm/collective.h"
#include "core/trace.h"
#include "kernels/kernels.h"

/* Attributes of both operations. */
typedef struct routes {
    ek_dev *root; /* where a broadcast starts and a reduction ends */
    int devices, count;
    ek_dev *devs[EK_MAX_DEVICES];
} routes;

static routes routes_of(ek_dev *root, ek_dev *const *devs, int devices, int count)
{
    routes r = {.root = root, .devices = devices, .count = count};
    memcpy(r.devs, devs, (size_t)devices * sizeof *devs);
    return r;
}

int ek_comm_devices(const char *what, const ek_device_list *devices, ek_dev **devs)
{
    if (!devices || devices->count < 1 || devices->count > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_INVALID, "%s: a list of 1 to %d devices is needed, not of %d", what,
                       EK_MAX_DEVICES, devices ? devices->count : 0);
    for (int d = 0; d < devices->count; d++) {
        devs[d] = ek_dev_get(devices->devices[d]);
        if (!devs[d])
            return ek_error_pending();
    }
    return 0;
}

/* ---- broadcast ---- */

static int broadcast_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const routes *r = ek_node_attributes(node);
    size_t inputs = (size_t)r->devices * (size_t)r->count;
    ek_tensor **parts = ek_calloc(inputs + (size_t)r->count, sizeof(ek_tensor *));
    if (!parts)
        return ek_error_pending();
    ek_tensor **into = parts + inputs;
    for (int i = 0; i < r->count; i++) {
        if (!ek_node_needs(node, i))
            continue;
        into[i] = ek_node_destination(node, i);
        for (int d = 0; d < r->devices; d++)
            parts[d * r->count + i] = gradients[d * r->count + i];
    }
    int rc = ek_comm_reduce(parts, r->devices, r->count, r->devs, r->root, into, results);
    free(parts);
    return rc;
}

/* Urgent: replicas' gradients meet and are freed while the rest of backward goes on. */
static const ek_operation broadcast_operation = {.name = "broadcast",
                                                 .backward = broadcast_backward,
                                                 .urgent = true};

int ek_comm_record_broadcast(ek_dev *source, ek_tensor *const *tensors, int count,
                             ek_dev *const *devs, int devices, ek_tensor *const *out)
{
    if (!ek_records(tensors, count))
        return 0;
    /* What doesn't require a gradient has no part in the node. */
    ek_tensor **outputs = ek_calloc((size_t)devices * (size_t)count, sizeof *outputs);
    if (!outputs)
        return ek_error_pending();
    for (int d = 0; d < devices; d++)
        for (int i = 0; i < count; i++)
            if (tensors[i] && ek_records(&tensors[i], 1))
                outputs[d * count + i] = out[d * count + i];
    routes r = routes_of(source, devs, devices, count);
    int rc = ek_record_outputs(outputs, devices * count, &broadcast_operation,
                               &(const ek_record_options){.inputs = tensors,
                                                          .input_count = count,
                                                          EK_ATTRIBUTES(r)});
    free(outputs);
    return rc;
}

/* Makes room on dev for the tensors (no NULLs), in one slab where they are several: out[i]. */
static int make_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out)
{
    if (count == 1) {
        out[0] = ek_comm_like(tensors[0], NULL, dev);
        return out[0] ? 0 : ek_error_pending();
    }
    ek_slab *slab = ek_slab_new(dev, tensors, count);
    int rc = slab ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc == 0; i++) {
        out[i] = ek_scope_adopt(ek_object_retain(slab->members[i]));
        rc = out[i] ? 0 : ek_error_pending();
    }
    ek_object_release(slab);
    return rc;
}

/* Copies those of one device that are wanted; `work` has room for 2 * count handles. */
static int broadcast_to(ek_dev *dev, ek_tensor *const *tensors, int count, const bool *wanted,
                        ek_tensor **work, ek_tensor **out)
{
    int n = 0;
    for (int i = 0; i < count; i++)
        if (tensors[i] && (!wanted || wanted[i]))
            work[n++] = tensors[i];
    if (n == 0)
        return 0;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "broadcast", NULL, dev);
    int rc = make_room(dev, work, n, work + count);
    if (rc >= 0)
        rc = ek_comm_send(work + count, work, n);
    ek_span_end(&span);
    EK_TRY(rc);
    n = 0;
    for (int i = 0; i < count; i++)
        if (tensors[i] && (!wanted || wanted[i]))
            out[i] = work[count + n++];
    return 0;
}

/* What a collective broadcast needs: the source first, then the others, who all want the same. */
typedef struct audience {
    int devices;
    ek_dev *devs[EK_MAX_DEVICES];
    int place[EK_MAX_DEVICES]; /* in the list of devices */
} audience;

/* False where there are no others, or some want what others don't, or no collective serves them. */
static bool make_audience(ek_dev *source, ek_dev *const *devs, int devices, int count,
                          const bool *wanted, audience *a, int *status)
{
    int first = -1;
    a->devs[0] = source;
    a->devices = 1;
    *status = 0;
    for (int d = 0; d < devices; d++) {
        if (devs[d] == source)
            continue;
        if (first < 0)
            first = d;
        if (a->devices == EK_MAX_DEVICES ||
            (wanted && memcmp(wanted + (ptrdiff_t)d * count, wanted + (ptrdiff_t)first * count,
                              (size_t)count * sizeof *wanted) != 0))
            return false;
        a->place[a->devices] = d;
        a->devs[a->devices++] = devs[d];
    }
    return a->devices > 1 && ek_comm_has_collective(a->devs, a->devices, status);
}

/* out[place * count + i] for all of the audience at once. */
static int broadcast_at_once(const audience *a, ek_tensor *const *tensors, int count,
                             const bool *wanted, ek_tensor **out)
{
    ek_tensor **lists[EK_MAX_DEVICES] = {0};
    ek_tensor **work = ek_calloc((size_t)a->devices * (size_t)count, sizeof *work);
    if (!work)
        return ek_error_pending();
    const bool *wanted_there = wanted ? wanted + (ptrdiff_t)a->place[1] * count : NULL;
    int n = 0, rc = 0;
    for (int i = 0; i < count; i++)
        if (tensors[i] && (!wanted_there || wanted_there[i]))
            work[n++] = tensors[i];
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "broadcast", NULL, a->devs[0]);
    for (int d = 1; d < a->devices && rc >= 0 && n > 0; d++) {
        lists[d] = work + (ptrdiff_t)d * count;
        rc = make_room(a->devs[d], work, n, lists[d]);
    }
    if (rc >= 0 && n > 0)
        rc = ek_comm_spread(a->devs, a->devices, (ek_tensor *const *const *)lists, work, n);
    ek_span_end(&span);
    for (int d = 1; d < a->devices && rc >= 0 && n > 0; d++)
        for (int i = 0, next = 0; i < count; i++)
            if (tensors[i] && (!wanted_there || wanted_there[i]))
                out[(ptrdiff_t)a->place[d] * count + i] = lists[d][next++];
    free(work);
    return rc;
}

int ek_comm_broadcast(ek_dev *source, ek_tensor *const *tensors, int count, ek_dev *const *devs,
                      int devices, const bool *wanted, ek_tensor **out)
{
    memset(out, 0, (size_t)devices * (size_t)count * sizeof(ek_tensor *));
    if (count == 0)
        return 0;
    ek_tensor **work = ek_calloc(2 * (size_t)count, sizeof *work);
    if (!work)
        return ek_error_pending();
    audience a;
    int rc;
    bool at_once = make_audience(source, devs, devices, count, wanted, &a, &rc);
    if (at_once)
        rc = broadcast_at_once(&a, tensors, count, wanted, out);
    for (int d = 0; d < devices && rc >= 0; d++) {
        ek_tensor **there = out + (ptrdiff_t)d * count;
        const bool *wanted_there = wanted ? wanted + (ptrdiff_t)d * count : NULL;
        if (devs[d] != source && at_once)
            continue;
        if (devs[d] != source) {
            rc = broadcast_to(devs[d], tensors, count, wanted_there, work, there);
            continue;
        }
        for (int i = 0; i < count && rc >= 0; i++) {
            if (!tensors[i] || (wanted_there && !wanted_there[i]))
                continue;
            there[i] = ek_tensor_alias(tensors[i]);
            rc = there[i] ? 0 : ek_error_pending();
        }
    }
    free(work);
    if (rc >= 0)
        rc = ek_comm_record_broadcast(source, tensors, count, devs, devices, out);
    return rc < 0 ? rc : 0;
}

/* ---- reduce ---- */

static int reduce_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const routes *r = ek_node_attributes(node);
    int outputs = r->devices * r->count;
    bool *wanted = ek_calloc((size_t)outputs, sizeof *wanted);
    if (!wanted)
        return ek_error_pending();
    for (int i = 0; i < outputs; i++)
        wanted[i] = ek_node_needs(node, i);
    int rc = ek_comm_broadcast(r->root, gradients, r->count, r->devs, r->devices, wanted, results);
    free(wanted);
    return rc;
}

static const ek_operation reduce_operation = {.name = "reduce_add", .backward = reduce_backward};

/* The order of summation: the last list on `destination` first, the others ascending by device. */
static void sum_order(ek_dev *const *devs, int devices, const ek_dev *destination, int *order)
{
    int root = -1;
    for (int d = 0; d < devices; d++)
        if (devs[d] == destination)
            root = d;
    int n = 0;
    if (root >= 0)
        order[n++] = root;
    int first = n;
    for (int d = 0; d < devices; d++) {
        if (d == root)
            continue;
        int at = n++;
        for (; at > first; at--) {
            ek_device before = devs[order[at - 1]]->id, id = devs[d]->id;
            if (before.kind < id.kind || (before.kind == id.kind && before.index <= id.index))
                break;
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
}

/* The destination waits for the devices whose memory it reads, or (afterwards) they for it. */
static int order_all(ek_dev *const *devs, int devices, ek_dev *destination, bool before)
{
    for (int d = 0; d < devices; d++)
        EK_TRY(before ? ek_dev_order(destination, devs[d]) : ek_dev_order(devs[d], destination));
    return 0;
}

/* Brings the lists of devices whose memory the destination can't read there: parts[d * count + i].
 */
static int fetch(ek_tensor **parts, int devices, int count, ek_dev *const *devs,
                 ek_dev *destination)
{
    for (int d = 0; d < devices; d++) {
        if (ek_dev_reaches(destination, devs[d]))
            continue;
        ek_tensor **work = ek_calloc(2 * (size_t)count, sizeof *work);
        if (!work)
            return ek_error_pending();
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
        int rc = broadcast_to(destination, parts + (ptrdiff_t)d * count, count, NULL, work,
                              parts + (ptrdiff_t)d * count);
        ek_memory_set_category(before);
        free(work);
        EK_TRY(rc);
    }
    return 0;
}

/* Adds parts 1 ... to part 0 for dtypes that add_n doesn't take. */
static int add_in_turn(ek_dev *dev, ek_tensor *out, ek_tensor *const *parts, int count)
{
    EK_TRY(ek_comm_copy(out, parts[0]));
    for (int i = 1; i < count; i++)
        EK_TRY(dev->backend->kernels->binary(dev, EK_BINARY_ADD, out, out, parts[i], 1));
    return 0;
}

/* The sum of the parts (at least one, readable from the destination), in their order. */
static ek_tensor *sum(ek_tensor **parts, int count, ek_dev *destination, ek_tensor *into)
{
    if (count == 1 && !into && ek_tensor_dev(parts[0]) == destination)
        return ek_tensor_alias(parts[0]);
    ek_tensor *out = into ? into : ek_comm_like(parts[0], NULL, destination);
    if (!out)
        return NULL;
    if (count == 1)
        return ek_comm_copy(out, parts[0]) < 0 ? NULL : out;
    /* One layout for all: gradients may come expanded or transposed. */
    for (int i = 0; i < count; i++) {
        if (ek_same_layout(parts[i], out) && ek_is_dense(parts[i]))
            continue;
        ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
        ek_tensor *dense = ek_comm_like(out, NULL, destination);
        ek_memory_set_category(before);
        if (!dense || ek_comm_copy(dense, parts[i]) < 0)
            return NULL;
        parts[i] = dense;
    }
    int rc = ek_dtype_is_floating(out->dtype)
                 ? destination->backend->kernels->add_n(destination, out,
                                                        (const ek_tensor *const *)parts, count)
                 : add_in_turn(destination, out, parts, count);
    return rc < 0 ? NULL : out;
}

/* All of one floating dtype, and none missing. */
static bool can_slice(ek_tensor *const *parts, int total)
{
    for (int i = 0; i < total; i++)
        if (!parts[i] || !ek_dtype_is_floating(parts[i]->dtype) ||
            parts[i]->dtype != parts[0]->dtype)
            return false;
    return total > 0;
}

/* Where the sums go: `into`, and room of their own for the others. In the scope. */
static int make_sums(ek_dev *destination, ek_tensor *const *like, int count, ek_tensor *const *into,
                     ek_tensor **sums)
{
    bool given = false;
    for (int i = 0; i < count; i++)
        given = given || (into && into[i]);
    if (!given)
        return make_room(destination, like, count, sums);
    for (int i = 0; i < count; i++) {
        sums[i] = into[i] ? into[i] : ek_comm_like(like[i], NULL, destination);
        if (!sums[i])
            return ek_error_pending();
    }
    return 0;
}

/* The sums by a collective; out[i] gets a reference. Buckets are made from the last parameter to
 * the first: their lists are turned round, so that they are runs. */
static int sum_at_once(ek_tensor *const *parts, int devices, int count, ek_dev *const *devs,
                       const int *order, ek_tensor *const *into, ek_tensor **out)
{
    ek_dev *ordered[EK_MAX_DEVICES];
    ek_tensor **lists[EK_MAX_DEVICES];
    ek_tensor **work = ek_calloc((size_t)(devices + 2) * (size_t)count, sizeof *work);
    if (!work)
        return ek_error_pending();
    ek_tensor **sums = work, **turned = work + count;
    int rc = make_sums(devs[order[0]], parts + (ptrdiff_t)order[0] * count, count, into, sums);
    bool turn = rc >= 0 && count > 1 &&
                (char *)ek_tensor_address(sums[1]) < (char *)ek_tensor_address(sums[0]);
    for (int i = 0; i < count && rc >= 0; i++)
        turned[turn ? count - 1 - i : i] = sums[i];
    for (int d = 0; d < devices && rc >= 0; d++) {
        ordered[d] = devs[order[d]];
        lists[d] = work + (ptrdiff_t)(d + 2) * count;
        for (int i = 0; i < count; i++)
            lists[d][turn ? count - 1 - i : i] = parts[(ptrdiff_t)order[d] * count + i];
    }
    if (rc >= 0)
        rc = ek_comm_sum_slices(ordered, devices, lists, count, turned);
    for (int i = 0; i < count && rc >= 0; i++)
        out[i] = ek_keep(sums[i]);
    free(work);
    return rc;
}

/* The sums of what the destination can read; out[i] gets a reference. */
static int reduce_each(ek_tensor *const *parts, int devices, int count, const int *order,
                       ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    for (int i = 0; i < count; i++) {
        ek_tensor *present[EK_MAX_DEVICES];
        int n = 0;
        for (int d = 0; d < devices; d++)
            if (parts[order[d] * count + i])
                present[n++] = parts[order[d] * count + i];
        if (n == 0)
            continue;
        ek_scope scope = ek_scope_begin();
        out[i] = ek_keep(sum(present, n, destination, into ? into[i] : NULL));
        ek_scope_end(&scope);
        if (!out[i])
            return ek_error_pending();
    }
    return 0;
}

/* All sums; out[i] gets a reference. What was fetched and made dense ends with the caller's scope.
 */
static int reduce_all(ek_tensor **parts, int devices, int count, ek_dev *const *devs,
                      ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    int order[EK_MAX_DEVICES] = {0};
    sum_order(devs, devices, destination, order);
    if (devs[order[0]] == destination && can_slice(parts, devices * count)) {
        ek_dev *ordered[EK_MAX_DEVICES];
        int status;
        for (int d = 0; d < devices; d++)
            ordered[d] = devs[order[d]];
        if (ek_comm_has_collective(ordered, devices, &status))
            return sum_at_once(parts, devices, count, devs, order, into, out);
        EK_TRY(status);
    }
    EK_TRY(fetch(parts, devices, count, devs, destination));
    EK_TRY(order_all(devs, devices, destination, true));
    int rc = reduce_each(parts, devices, count, order, destination, into, out);
    /* Also after an error: sums that were issued still read the others' memory. */
    int ordered = order_all(devs, devices, destination, false);
    return rc < 0 ? rc : ordered;
}

int ek_comm_reduce(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                   ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    size_t total = (size_t)devices * (size_t)count;
    ek_tensor **parts = ek_calloc(total + 1, sizeof *parts);
    if (!parts)
        return ek_error_pending();
    memcpy(parts, inputs, total * sizeof *parts);
    memset(out, 0, (size_t)count * sizeof(ek_tensor *));
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "reduce", NULL, destination);
    ek_scope scope = ek_scope_begin();
    int rc = reduce_all(parts, devices, count, devs, destination, into, out);
    ek_scope_end(&scope);
    ek_span_end(&span);
    free(parts);
    for (int i = 0; i < count; i++)
        if (out[i] && !ek_scope_adopt(out[i]))
            rc = ek_error_pending();
    EK_TRY(rc);
    routes r = routes_of(destination, devs, devices, count);
    return ek_record_outputs(out, count, &reduce_operation,
                             &(const ek_record_options){.inputs = inputs,
                                                        .input_count = devices * count,
                                                        EK_ATTRIBUTES(r)});
}

/* lists.c: broadcast and reduce over lists of tensors. */
#include "comm/lists.h"

#include <stdlib.h>
#include <string.h>

#include "comm/collective.h"
#include "comm/sums.h"
#include "core/trace.h"

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
    if (devices)
        EK_TRY(ek_device_list_check(what, devices));
    if (!devices || devices->count == 0)
        return EK_FAIL(EK_E_INVALID, "%s: a list of 1 to %d devices is needed, not of 0", what,
                       EK_MAX_DEVICES);
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
    int rc = ek_comm_room(dev, work, n, work + count);
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
        rc = ek_comm_room(a->devs[d], work, n, lists[d]);
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

int ek_comm_reduce(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                   ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "reduce", NULL, destination);
    ek_scope scope = ek_scope_begin();
    int rc = ek_comm_sum(inputs, devices, count, devs, destination, into, out);
    ek_scope_end(&scope);
    ek_span_end(&span);
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

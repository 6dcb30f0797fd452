/* collectives.c: broadcast and reduce of lists: which moves and which sums they are. */
#include "comm/collectives.h"

#include <stdlib.h>
#include <string.h>

#include "comm/sum.h"
#include "core/object.h"

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

void ek_comm_sum_order(ek_dev *const *devs, int count, const ek_dev *first, int *order)
{
    int root = -1, n = 0;
    for (int d = 0; d < count; d++)
        if (devs[d] == first)
            root = d;
    if (root >= 0)
        order[n++] = root;
    for (int d = 0, begin = n; d < count; d++) {
        if (d == root)
            continue;
        int at = n++;
        for (; at > begin; at--) {
            ek_device before = devs[order[at - 1]]->id, id = devs[d]->id;
            if (before.kind < id.kind || (before.kind == id.kind && before.index <= id.index))
                break;
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
}

bool *ek_comm_needed_inputs(const ek_node *node)
{
    int count = ek_node_input_count(node);
    bool *needed = ek_calloc((size_t)count + 1, sizeof *needed);
    for (int i = 0; needed && i < count; i++)
        needed[i] = ek_node_needs(node, i);
    return needed;
}

/* ---- broadcast ---- */

/* Attributes of broadcast and reduce. */
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

/* Room on one device for the tensors that it gets, and the moves that bring them. Returns how many
 * moves there are by now. `work` has room for two lists. */
static int broadcast_room(ek_dev *dev, ek_tensor *const *tensors, int count, const bool *wanted,
                          ek_tensor **work, ek_move *moves, int n, ek_tensor **out)
{
    int own = 0;
    ek_tensor **there = work + count;
    for (int i = 0; i < count; i++)
        if (tensors[i] && (!wanted || wanted[i]))
            work[own++] = tensors[i];
    EK_TRY(own > 0 ? ek_comm_room(dev, work, own, there) : 0);
    for (int i = 0, next = 0; i < count; i++) {
        if (!tensors[i] || (wanted && !wanted[i]))
            continue;
        out[i] = there[next];
        moves[n++] = (ek_move){there[next++], tensors[i]};
    }
    return n;
}

static int broadcast_aliases(ek_tensor *const *tensors, int count, const bool *wanted,
                             ek_tensor **out)
{
    for (int i = 0; i < count; i++) {
        if (!tensors[i] || (wanted && !wanted[i]))
            continue;
        out[i] = ek_tensor_alias(tensors[i]);
        if (!out[i])
            return ek_error_pending();
    }
    return 0;
}

int ek_comm_broadcast(ek_dev *source, ek_tensor *const *tensors, int count, ek_dev *const *devs,
                      int devices, const bool *wanted, ek_tensor **out)
{
    size_t total = (size_t)devices * (size_t)count;
    memset(out, 0, total * sizeof(ek_tensor *));
    ek_move *moves = ek_calloc(total + 1, sizeof *moves);
    ek_tensor **work = ek_calloc(2 * (size_t)count + 1, sizeof *work);
    int n = moves && work ? 0 : ek_error_pending();
    for (int d = 0; d < devices && n >= 0; d++) {
        const bool *there = wanted ? wanted + (ptrdiff_t)d * count : NULL;
        ek_tensor **own = out + (ptrdiff_t)d * count;
        if (devs[d] != source)
            n = broadcast_room(devs[d], tensors, count, there, work, moves, n, own);
        else if (broadcast_aliases(tensors, count, there, own) < 0)
            n = ek_error_pending();
    }
    int rc = n < 0 ? n : ek_exchange("broadcast", moves, n);
    free(moves);
    free(work);
    EK_TRY(rc);
    return ek_comm_record_broadcast(source, tensors, count, devs, devices, out);
}

/* ---- reduce ---- */

static int reduce_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const routes *r = ek_node_attributes(node);
    bool *wanted = ek_comm_needed_inputs(node);
    if (!wanted)
        return ek_error_pending();
    int rc = ek_comm_broadcast(r->root, gradients, r->count, r->devs, r->devices, wanted, results);
    free(wanted);
    return rc;
}

static const ek_operation reduce_operation = {.name = "reduce_add", .backward = reduce_backward};

/* The sum of n terms, or the one that is there already. */
static int plan_sum(ek_dev *destination, ek_tensor *into, ek_tensor *const *terms, int n,
                    ek_tensor **out, ek_addition *sums, int *count)
{
    if (n == 0)
        return 0;
    if (n == 1 && !into && ek_tensor_dev(terms[0]) == destination) {
        *out = ek_tensor_alias(terms[0]);
    } else {
        *out = into ? ek_scope_adopt(ek_object_retain(into))
                    : ek_comm_like(terms[0], NULL, destination);
        sums[(*count)++] = (ek_addition){*out, terms, n};
    }
    return *out ? 0 : ek_error_pending();
}

static int reduce(ek_tensor *const *inputs, const routes *r, ek_tensor *const *into,
                  ek_addition *sums, ek_tensor **terms, ek_tensor **out)
{
    int order[EK_MAX_DEVICES] = {0}, count = 0;
    ek_comm_sum_order(r->devs, r->devices, r->root, order);
    for (int i = 0; i < r->count; i++) {
        ek_tensor **present = terms + (ptrdiff_t)i * r->devices;
        int n = 0;
        for (int d = 0; d < r->devices; d++)
            if (inputs[order[d] * r->count + i])
                present[n++] = inputs[order[d] * r->count + i];
        EK_TRY(plan_sum(r->root, into ? into[i] : NULL, present, n, &out[i], sums, &count));
    }
    return ek_add_all("reduce", sums, count);
}

int ek_comm_reduce(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                   ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    size_t total = (size_t)devices * (size_t)count;
    routes r = routes_of(destination, devs, devices, count);
    memset(out, 0, (size_t)count * sizeof(ek_tensor *));
    ek_addition *sums = ek_calloc((size_t)count + 1, sizeof *sums);
    ek_tensor **terms = ek_calloc(total + 1, sizeof *terms);
    int rc = sums && terms ? reduce(inputs, &r, into, sums, terms, out) : ek_error_pending();
    free(sums);
    free(terms);
    EK_TRY(rc);
    return ek_record_outputs(out, count, &reduce_operation,
                             &(const ek_record_options){.inputs = inputs,
                                                        .input_count = devices * count,
                                                        EK_ATTRIBUTES(r)});
}

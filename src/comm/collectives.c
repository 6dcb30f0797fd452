/* collectives.c: broadcast, reduce_add, all_gather and reduce_scatter as moves and sums. */
#include "comm/collectives.h"

#include <stdlib.h>
#include <string.h>

#include "comm/exchange.h"
#include "core/lane.h"
#include "ops/ops.h"

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
    for (int d = count - 1; d >= 0; d--)
        if (devs[d] == first)
            root = d;
    if (root >= 0)
        order[n++] = root;
    for (int d = 0, begin = n; d < count; d++) {
        if (d == root)
            continue;
        int at = n++;
        for (; at > begin && ek_dev_compare(devs[order[at - 1]], devs[d]) > 0; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
}

/* ---- placements ---- */

ek_placement ek_placement_whole(ek_dev *root, ek_dev *const *devs, int devices, int count)
{
    return (ek_placement){
        .devs = devs, .devices = devices, .count = count, .slice_count = count, .root = root};
}

static int placement_tensor(const ek_placement *placement, int slice)
{
    return placement->slices ? placement->slices[slice].tensor : slice;
}

/* The attributes of a node. Tensors in `shapes` have dtype, shape and strides, and no memory. */
typedef struct placement_kept {
    ek_placement placement;
    ek_dev *devs[EK_MAX_DEVICES];
    ek_comm_slice *slices; /* owned, as are `shapes` and `like`; NULL if slices are whole */
    ek_tensor *shapes, **like;
} placement_kept;

static void placement_forget(void *attributes)
{
    placement_kept *kept = attributes;
    free(kept->slices);
    free(kept->shapes);
    free(kept->like);
}

static int placement_keep(const ek_placement *from, placement_kept *kept)
{
    *kept = (placement_kept){.placement = *from};
    memcpy(kept->devs, from->devs, (size_t)from->devices * sizeof(ek_dev *));
    if (!from->slices)
        return 0;
    kept->slices = ek_calloc((size_t)from->slice_count + 1, sizeof(ek_comm_slice));
    kept->shapes = ek_calloc((size_t)from->count + 1, sizeof(ek_tensor));
    kept->like = ek_calloc((size_t)from->count + 1, sizeof(ek_tensor *));
    if (!kept->slices || !kept->shapes || !kept->like) {
        placement_forget(kept);
        return ek_error_pending();
    }
    memcpy(kept->slices, from->slices, (size_t)from->slice_count * sizeof(ek_comm_slice));
    for (int i = 0; i < from->count; i++) {
        kept->like[i] = &kept->shapes[i];
        kept->like[i]->dtype = from->like[i]->dtype;
        kept->like[i]->ndim = from->like[i]->ndim;
        memcpy(kept->like[i]->shape, from->like[i]->shape, sizeof from->like[i]->shape);
        memcpy(kept->like[i]->stride, from->like[i]->stride, sizeof from->like[i]->stride);
    }
    return 0;
}

static ek_placement placement_of(const ek_node *node)
{
    const placement_kept *kept = ek_node_attributes(node);
    ek_placement placement = kept->placement;
    placement.devs = kept->devs;
    placement.slices = kept->slices;
    placement.like = kept->like;
    return placement;
}

/* Records operations[0] if slices are whole, else operations[1], whose backward runs on the thread
 * of `dev` (NULL: by outputs). Does nothing if no input is to be recorded. */
static int placement_record(const ek_placement *placement, ek_tensor *const *inputs,
                            int input_count, const ek_operation *operations, ek_dev *dev,
                            ek_tensor *const *outputs, int output_count)
{
    placement_kept kept;
    if (!ek_records(inputs, input_count))
        return 0;
    EK_TRY(placement_keep(placement, &kept));
    return ek_record_outputs(outputs, output_count, &operations[placement->slices != NULL],
                             &(const ek_record_options){.inputs = inputs,
                                                        .input_count = input_count,
                                                        .dev = dev,
                                                        EK_ATTRIBUTES(kept)});
}

/* Returns an array that is true for each input of the node whose gradient is wanted; the caller
 * frees it. */
static bool *placement_wanted_inputs(const ek_node *node)
{
    int count = ek_node_input_count(node);
    bool *wanted = ek_calloc((size_t)count + 1, sizeof *wanted);
    for (int i = 0; wanted && i < count; i++)
        wanted[i] = ek_node_needs(node, i);
    return wanted;
}

/* ---- slices to all devices ---- */

/* Sums the gradients of the results. The sums are deferred (Note [Deferred sections] in
 * core/lane.h) if only leaves get them: if each sum is written to a leaf's grad buffer, or added to
 * the gradient of a whole leaf. */
static int gather_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_placement placement = placement_of(node);
    ek_tensor **into = ek_calloc((size_t)placement.slice_count + 1, sizeof *into);
    bool *wanted = placement_wanted_inputs(node);
    int rc = into && wanted ? 0 : ek_error_pending();
    bool deferred = true;
    for (int p = 0; p < placement.slice_count && rc >= 0; p++) {
        into[p] = wanted[p] ? ek_node_destination(node, p) : NULL;
        deferred = deferred &&
                   (into[p] || !wanted[p] || (!placement.slices && ek_node_accumulates(node, p)));
    }
    if (rc >= 0) {
        ek_deferral deferral = ek_node_arrivals(node);
        const ek_deferral *before = ek_section_defer(deferred ? &deferral : NULL);
        rc = ek_comm_reduce_scatter(&placement, gradients, wanted, into, results);
        ek_section_defer(before);
    }
    for (int d = 0; d < placement.devices && deferred; d++)
        ek_lane_park(placement.devs[d], gradients + (ptrdiff_t)d * placement.count,
                     placement.count);
    free(wanted);
    free(into);
    return rc;
}

/* Urgent, so that replicas' gradients are summed and freed while the rest of backward runs. */
static const ek_operation gather_operations[] = {
    {.name = "broadcast", .backward = gather_backward, .destroy = placement_forget, .urgent = true},
    {.name = "all_gather",
     .backward = gather_backward,
     .destroy = placement_forget,
     .urgent = true},
};

int ek_comm_record_all_gather(const ek_placement *placement, ek_tensor *const *slices,
                              ek_tensor *const *whole)
{
    int count = placement->count, outputs = placement->devices * count;
    if (!ek_records(slices, placement->slice_count))
        return 0;
    /* Results whose slices require no gradient are left out of the node. */
    ek_tensor **out = ek_calloc((size_t)outputs + 1, sizeof *out);
    if (!out)
        return ek_error_pending();
    for (int p = 0; p < placement->slice_count; p++)
        for (int at = placement_tensor(placement, p); at < outputs && ek_records(&slices[p], 1);
             at += count)
            out[at] = whole[at];
    ek_dev *adder = placement->slices ? placement->slices[0].adder : NULL;
    int rc = placement_record(placement, slices, placement->slice_count, gather_operations, adder,
                              out, outputs);
    free(out);
    return rc;
}

/* Makes device d's tensors, whole[0 .. count): if the slices are whole and the device is the root,
 * aliases of the slices, else new memory. Appends the moves that fill new memory to `moves`, which
 * holds n moves, and returns the new number of moves. `work` has room for two lists. */
static int gather_room(const ek_placement *placement, ek_tensor *const *slices, const bool *wanted,
                       int d, ek_tensor **work, ek_move *moves, int n, ek_tensor **whole)
{
    int made = 0;
    ek_dev *dev = placement->devs[d];
    ek_tensor **room = work + placement->count;
    bool aliases = !placement->slices && dev == placement->root;
    for (int p = 0; p < placement->slice_count; p++) {
        int i = placement_tensor(placement, p);
        if (!slices[p] || (wanted && !wanted[i]))
            continue;
        whole[i] = aliases             ? ek_tensor_alias(slices[p])
                   : placement->slices ? placement->like[i]
                                       : slices[p];
        if (!whole[i])
            return ek_error_pending();
    }
    if (aliases)
        return n;
    for (int i = 0; i < placement->count; i++)
        if (whole[i])
            work[made++] = whole[i];
    EK_TRY(made ? ek_comm_room(dev, work, made, room) : 0);
    for (int i = 0; i < placement->count; i++)
        if (whole[i])
            whole[i] = *room++;
    for (int p = 0; p < placement->slice_count; p++) {
        ek_tensor *place = whole[placement_tensor(placement, p)];
        if (!place)
            continue;
        if (placement->slices)
            place = ek_comm_flat(place, placement->slices[p].begin, placement->slices[p].end);
        if (!place)
            return ek_error_pending();
        if (slices[p])
            moves[n++] = (ek_move){place, slices[p]};
        else
            EK_TRY(ek_dev_zero(dev, ek_tensor_address(place), ek_comm_nbytes(place)));
    }
    return n;
}

int ek_comm_all_gather(const ek_placement *placement, ek_tensor *const *slices, const bool *wanted,
                       ek_tensor **whole)
{
    int count = placement->count, n = 0;
    size_t devices = (size_t)placement->devices;
    memset(whole, 0, devices * (size_t)count * sizeof *whole);
    ek_move *moves = ek_calloc(devices * (size_t)placement->slice_count + 1, sizeof *moves);
    ek_tensor **work = ek_calloc(2 * (size_t)count + 1, sizeof *work);
    int rc = moves && work ? 0 : ek_error_pending();
    for (int d = 0; d < placement->devices && rc >= 0; d++) {
        const bool *own = wanted ? wanted + (ptrdiff_t)d * count : NULL;
        rc = n =
            gather_room(placement, slices, own, d, work, moves, n, whole + (ptrdiff_t)d * count);
    }
    if (rc >= 0)
        rc = ek_exchange(placement->slices ? "all_gather" : "broadcast", moves, n);
    free(moves);
    free(work);
    if (rc >= 0)
        rc = ek_comm_record_all_gather(placement, slices, whole);
    if (rc < 0)
        memset(whole, 0, devices * (size_t)count * sizeof *whole);
    return rc;
}

/* ---- sums of all devices ---- */

static int reduce_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_placement placement = placement_of(node);
    bool *wanted = placement_wanted_inputs(node);
    int rc =
        wanted ? ek_comm_all_gather(&placement, gradients, wanted, results) : ek_error_pending();
    free(wanted);
    return rc;
}

static const ek_operation reduce_operations[] = {
    {.name = "reduce_add", .backward = reduce_backward, .destroy = placement_forget},
    {.name = "reduce_scatter", .backward = reduce_backward, .destroy = placement_forget},
};

/* Writes the terms of slice p's sum to `terms`, which has room for one of each device, in the order
 * of Note [Order of terms]; absent terms are NULL. Returns their number: 0 if all are absent, 1 if
 * one is present. */
static int reduce_terms(const ek_placement *placement, ek_tensor *const *whole, const int *order,
                        int p, ek_tensor **terms)
{
    int n = 0, present = 0;
    for (int d = 0; d < placement->devices; d++) {
        terms[d] = whole[order[d] * placement->count + placement_tensor(placement, p)];
        present += terms[d] != NULL;
        n = terms[d] ? d + 1 : n;
    }
    if (present == 1)
        terms[0] = terms[n - 1];
    return present == 1 ? 1 : n;
}

static ek_tensor *reduce_first(ek_tensor *const *terms)
{
    while (!*terms)
        terms++;
    return *terms;
}

/* Returns memory for slice p's sum: `into` if it isn't NULL; an alias of the term, if slices are
 * whole and the only term lies on the root; else a new tensor. */
static ek_tensor *reduce_room(const ek_placement *placement, int p, ek_tensor *into,
                              ek_tensor *const *terms, int n)
{
    if (into)
        return ek_itself(into);
    if (placement->slices) {
        const ek_comm_slice *slice = &placement->slices[p];
        return ek_tensor_new(slice->dev, reduce_first(terms)->dtype,
                             &(ek_shape){1, {slice->end - slice->begin}}, EK_CONTIGUOUS);
    }
    if (n == 1 && ek_tensor_dev(terms[0]) == placement->root)
        return ek_tensor_alias(terms[0]);
    ek_thread_modes *modes = &ek_thread_self()->modes;
    unsigned before = modes->stream;
    modes->stream = ek_section_stream(placement->devs, placement->devices);
    ek_tensor *room = ek_comm_like(reduce_first(terms), placement->root);
    modes->stream = before;
    return room;
}

/* Sums elements [begin, end), counted in the order of memory of `out`, for terms with other
 * layouts. Whole rows of the slowest dimension are added at once; a row that is cut is split along
 * the next dimension. `out` needs memory for the elements [begin, end) only. */
static int reduce_rows(const ek_addition *sum, int64_t begin, int64_t end)
{
    int dim = ek_comm_slowest(sum->out);
    int64_t row = dim < 0 ? 1 : sum->out->stride[dim], length;
    for (; begin < end; begin += length) {
        ek_addition part = *sum;
        ek_tensor *terms[EK_MAX_DEVICES];
        int64_t skipped = begin % row, rows = skipped ? 0 : (end - begin) / row;
        if (dim >= 0)
            EK_TRY(ek_addition_part(sum, dim, begin / row, rows ? rows : 1, terms, &part));
        length = rows ? rows * row : row - skipped;
        length = length < end - begin ? length : end - begin;
        EK_TRY(rows ? ek_add_all("reduce_scatter", &part, 1)
                    : reduce_rows(&part, skipped, skipped + length));
    }
    return 0;
}

/* Replaces each term by its range for slice p and returns the number of terms. If a term has
 * another layout than the placement's tensor, computes the sum at once and returns 0. */
static int reduce_range(const ek_placement *placement, int p, ek_tensor *out, ek_tensor **terms,
                        int n)
{
    const ek_comm_slice *slice = &placement->slices[p];
    const ek_tensor *like = placement->like[slice->tensor];
    bool alike = true;
    for (int t = 0; t < n; t++)
        alike = alike && (!terms[t] || ek_comm_alike(terms[t], like));
    if (!alike) {
        ek_tensor *whole =
            ek_tensor_view(out, like->ndim, like->shape, like->stride, out->offset - slice->begin);
        return whole ? reduce_rows(&(ek_addition){whole, terms, n, NULL}, slice->begin, slice->end)
                     : ek_error_pending();
    }
    for (int t = 0; t < n; t++)
        if (terms[t] && !(terms[t] = ek_comm_flat(terms[t], slice->begin, slice->end)))
            return ek_error_pending();
    return n;
}

static int reduce_all(const ek_placement *placement, ek_tensor *const *whole, const int *order,
                      ek_tensor *const *slices, ek_addition *sums, ek_tensor **terms)
{
    int count = 0;
    for (int p = 0; p < placement->slice_count; p++) {
        int n = slices[p] ? reduce_terms(placement, whole, order, p, terms) : 0;
        if (n == 0 || (n == 1 && slices[p]->version == terms[0]->version))
            continue;
        if (placement->slices)
            n = reduce_range(placement, p, slices[p], terms, n);
        EK_TRY(n);
        if (n > 0)
            sums[count++] = (ek_addition){slices[p], terms, n,
                                          placement->slices ? placement->slices[p].adder : NULL};
        terms += n;
    }
    return ek_add_all(placement->slices ? "reduce_scatter" : "reduce", sums, count);
}

int ek_comm_reduce_scatter(const ek_placement *placement, ek_tensor *const *whole,
                           const bool *wanted, ek_tensor *const *into, ek_tensor **slices)
{
    int order[EK_MAX_DEVICES] = {0}, count = placement->slice_count;
    ek_comm_sum_order(placement->devs, placement->devices, placement->root, order);
    memset(slices, 0, (size_t)count * sizeof *slices);
    ek_addition *sums = ek_calloc((size_t)count + 1, sizeof *sums);
    ek_tensor **terms = ek_calloc((size_t)count * (size_t)placement->devices + 1, sizeof *terms);
    int rc = sums && terms ? 0 : ek_error_pending();
    for (int p = 0; p < count && rc >= 0; p++) {
        int n = !wanted || wanted[p] ? reduce_terms(placement, whole, order, p, terms) : 0;
        if (n > 0 && !(slices[p] = reduce_room(placement, p, into ? into[p] : NULL, terms, n)))
            rc = ek_error_pending();
    }
    ek_scope scope = ek_scope_begin();
    if (rc >= 0)
        rc = reduce_all(placement, whole, order, slices, sums, terms);
    ek_scope_end(&scope);
    free(terms);
    free(sums);
    EK_TRY(rc);
    return placement_record(placement, whole, placement->devices * placement->count,
                            reduce_operations, NULL, slices, count);
}

/* sums.c: sums of lists on one device, without room for the lists there.
 *
 * What the destination can't read in place, or what is laid out otherwise than the sum, comes there
 * through buffers of EK_COMM_BUFFER_BYTES in all: lists in groups of tensors, and a tensor that
 * doesn't fit in slices. Every element is added in the same order whatever the slices. */
#include "comm/sums.h"

#include <stdlib.h>
#include <string.h>

#include "comm/collective.h"
#include "comm/transport.h"
#include "kernels/kernels.h"

enum { SLICE_ELEMENTS = 64 }; /* slices of flat tensors begin at multiples */

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

/* ---- one tensor ---- */

/* Adds parts 1 ... to part 0 for dtypes that add_n doesn't take. */
static int add_in_turn(ek_dev *dev, ek_tensor *out, ek_tensor *const *parts, int count)
{
    EK_TRY(ek_comm_copy(out, parts[0]));
    for (int i = 1; i < count; i++)
        EK_TRY(dev->backend->kernels->binary(dev, EK_BINARY_ADD, out, out, parts[i], 1));
    return 0;
}

/* True where the kernel can read the part as it is. */
static bool is_direct(const ek_tensor *part, const ek_tensor *out)
{
    return ek_dev_reaches(ek_tensor_dev(out), ek_tensor_dev(part)) && ek_is_dense(part) &&
           ek_same_layout(part, out);
}

/* A copy of the part as the sum is laid out, beside it, in the scope. */
static ek_tensor *stage(const ek_tensor *part, const ek_tensor *out)
{
    ek_tensor *dense = ek_comm_like(out, NULL, ek_tensor_dev(out));
    return dense && ek_comm_copy(dense, part) >= 0 ? dense : NULL;
}

/* One slice, or all: what is not direct is staged. */
static int add_staged(ek_tensor *out, ek_tensor *const *parts, int count)
{
    ek_dev *dev = ek_tensor_dev(out);
    ek_tensor *readable[EK_MAX_DEVICES];
    for (int i = 0; i < count; i++) {
        readable[i] = is_direct(parts[i], out) ? parts[i] : stage(parts[i], out);
        if (!readable[i])
            return ek_error_pending();
    }
    return ek_dtype_is_floating(out->dtype)
               ? dev->backend->kernels->add_n(dev, 1, &out, (const ek_tensor *const *)readable,
                                              count)
               : add_in_turn(dev, out, readable, count);
}

/* Halves the tensors until what has to be staged fits `limit`, all of it together. */
static int add_in_slices(ek_tensor *out, ek_tensor *const *parts, int count, size_t limit)
{
    size_t staged = 0;
    for (int i = 0; i < count; i++)
        staged += is_direct(parts[i], out) ? 0 : ek_comm_nbytes(out);
    int dim = ek_comm_slowest(out);
    if (staged <= limit || dim < 0)
        return add_staged(out, parts, count);
    int64_t size = out->shape[dim], half = size / 2;
    if (out->ndim == 1 && half >= SLICE_ELEMENTS)
        half = half / SLICE_ELEMENTS * SLICE_ELEMENTS;
    for (int64_t start = 0; start < size; start += half, half = size - half) {
        ek_tensor *slices[EK_MAX_DEVICES];
        ek_scope scope = ek_scope_begin();
        ek_tensor *target = ek_comm_part(out, dim, start, half);
        int rc = target ? 0 : ek_error_pending();
        for (int i = 0; i < count && rc >= 0; i++) {
            slices[i] = ek_comm_part(parts[i], dim, start, half);
            rc = slices[i] ? 0 : ek_error_pending();
        }
        if (rc >= 0)
            rc = add_in_slices(target, slices, count, limit);
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return 0;
}

static ek_tensor *flat(const ek_tensor *dense)
{
    int64_t count = ek_count(dense), stride = 1;
    return ek_tensor_view(dense, 1, &count, &stride, dense->offset);
}

/* Tensors of one layout are slices of one dimension, however few their rows. */
static int add(ek_tensor *out, ek_tensor *const *parts, int count)
{
    ek_tensor *flats[EK_MAX_DEVICES];
    bool alike = true;
    for (int i = 0; i < count; i++)
        alike = alike && ek_is_dense(parts[i]) && ek_same_layout(parts[i], out);
    if (!alike || ek_comm_nbytes(out) == 0)
        return add_in_slices(out, parts, count, EK_COMM_BUFFER_BYTES);
    ek_tensor *target = flat(out);
    for (int i = 0; i < count && target; i++) {
        flats[i] = flat(parts[i]);
        target = flats[i] ? target : NULL;
    }
    return target ? add_in_slices(target, flats, count, EK_COMM_BUFFER_BYTES) : ek_error_pending();
}

/* The sum of the parts (at least one), in their order. */
static ek_tensor *sum_of(ek_tensor *const *parts, int count, ek_dev *destination, ek_tensor *into)
{
    if (count == 1 && !into && ek_tensor_dev(parts[0]) == destination)
        return ek_tensor_alias(parts[0]);
    ek_tensor *out = into ? into : ek_comm_like(parts[0], NULL, destination);
    if (!out)
        return NULL;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    int rc = count == 1 ? ek_comm_copy(out, parts[0]) : add(out, parts, count);
    ek_memory_set_category(before);
    return rc < 0 ? NULL : out;
}

/* ---- lists by collectives ---- */

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
        return ek_comm_room(destination, like, count, sums);
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

/* ---- lists by copies ---- */

/* Brings a device's list to the destination in one copy where it is packed or a run: parts[i]. */
static int bring(ek_dev *destination, ek_tensor **parts, int count)
{
    int n = 0, rc = 0;
    ek_tensor **work = ek_calloc(2 * (size_t)count, sizeof *work);
    if (!work)
        return ek_error_pending();
    for (int i = 0; i < count; i++)
        if (parts[i])
            work[n++] = parts[i];
    if (n > 0)
        rc = ek_comm_room(destination, work, n, work + count);
    if (rc >= 0 && n > 0)
        rc = ek_comm_send(work + count, work, n);
    for (int i = 0, next = 0; i < count && rc >= 0; i++)
        if (parts[i])
            parts[i] = work[count + next++];
    free(work);
    return rc;
}

/* Several tensors of devices whose memory the destination can't read travel together. */
static int fetch(ek_tensor **parts, int devices, int count, ek_dev *const *devs,
                 ek_dev *destination)
{
    int rc = 0;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    for (int d = 0; d < devices && count > 1 && rc >= 0; d++)
        if (!ek_dev_reaches(destination, devs[d]))
            rc = bring(destination, parts + (ptrdiff_t)d * count, count);
    ek_memory_set_category(before);
    return rc;
}

/* The parts of sum i that there are, in the order of addition. */
static int find_present(ek_tensor *const *parts, int devices, int count, const int *order, int i,
                        ek_tensor **present)
{
    int n = 0;
    for (int d = 0; d < devices; d++)
        if (parts[order[d] * count + i])
            present[n++] = parts[order[d] * count + i];
    return n;
}

/* Sums of which the kernel reads all parts where they are: one launch. */
typedef struct together {
    int count;
    int *indices; /* in the lists */
    ek_tensor **sums;
    const ek_tensor **parts; /* as the kernel wants them */
} together;

static bool joins(const together *t, ek_tensor *const *present, int n, const ek_tensor *out)
{
    bool fits = n > 1 && ek_dtype_is_floating(out->dtype) &&
                (t->count == 0 || t->sums[0]->dtype == out->dtype);
    for (int p = 0; p < n && fits; p++)
        fits = is_direct(present[p], out);
    return fits;
}

static int add_together(const together *t, ek_tensor *const *parts, int devices, int count,
                        const int *order, ek_dev *destination)
{
    for (int p = 0; p < devices; p++)
        for (int k = 0; k < t->count; k++)
            t->parts[(ptrdiff_t)p * t->count + k] = parts[order[p] * count + t->indices[k]];
    return t->count ? destination->backend->kernels->add_n(destination, t->count, t->sums, t->parts,
                                                           devices)
                    : 0;
}

/* out[i] gets a reference. */
static int sum_lists(ek_tensor *const *parts, int devices, int count, const int *order,
                     ek_dev *destination, ek_tensor *const *into, ek_tensor **out, together *t)
{
    for (int i = 0; i < count; i++) {
        ek_tensor *present[EK_MAX_DEVICES];
        int n = find_present(parts, devices, count, order, i, present);
        if (n == 0)
            continue;
        ek_scope scope = ek_scope_begin();
        ek_tensor *sum = into && into[i] ? into[i] : NULL;
        if (n > 1 && !sum)
            sum = ek_comm_like(present[0], NULL, destination);
        if (n == devices && sum && joins(t, present, n, sum)) {
            t->indices[t->count] = i;
            t->sums[t->count++] = sum;
        } else if (n == 1 || sum) {
            sum = sum_of(present, n, destination, sum);
        }
        out[i] = ek_keep(sum);
        ek_scope_end(&scope);
        if (!out[i])
            return ek_error_pending();
    }
    return add_together(t, parts, devices, count, order, destination);
}

/* out[i] gets a reference. */
static int sum_each(ek_tensor *const *parts, int devices, int count, const int *order,
                    ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    together t = {.indices = ek_calloc((size_t)count, sizeof *t.indices),
                  .sums = ek_calloc((size_t)count, sizeof *t.sums),
                  .parts = ek_calloc((size_t)count * (size_t)devices, sizeof *t.parts)};
    int rc = t.indices && t.sums && t.parts
                 ? sum_lists(parts, devices, count, order, destination, into, out, &t)
                 : ek_error_pending();
    free(t.indices);
    free(t.sums);
    free(t.parts);
    return rc;
}

static int sum_by_copies(ek_tensor **parts, int devices, int count, ek_dev *const *devs,
                         const int *order, ek_dev *destination, ek_tensor *const *into,
                         ek_tensor **out)
{
    EK_TRY(fetch(parts, devices, count, devs, destination));
    EK_TRY(order_all(devs, devices, destination, true));
    int rc = sum_each(parts, devices, count, order, destination, into, out);
    /* Also after an error: sums that were issued still read the others' memory. */
    int ordered = order_all(devs, devices, destination, false);
    return rc < 0 ? rc : ordered;
}

/* ---- groups ---- */

/* 1: there is a collective for the list; 0: there is none; or an error. */
static int find_collective(ek_tensor *const *parts, int devices, int count, ek_dev *const *devs,
                           const int *order, const ek_dev *destination)
{
    ek_dev *ordered[EK_MAX_DEVICES] = {NULL};
    int status;
    if (devs[order[0]] != destination || !can_slice(parts, devices * count))
        return 0;
    for (int d = 0; d < devices; d++)
        ordered[d] = devs[order[d]];
    return ek_comm_has_collective(ordered, devices, &status) ? 1 : status < 0 ? status : 0;
}

/* Bytes of tensor i on one device: 0 where no device has it. */
static size_t nbytes_of(ek_tensor *const *parts, int devices, int count, int i)
{
    for (int d = 0; d < devices; d++)
        if (parts[d * count + i])
            return ek_comm_nbytes(parts[d * count + i]);
    return 0;
}

/* How many tensors from `first` on go together: at least one, and no more than `limit` bytes. */
static int group_length(ek_tensor *const *parts, int devices, int count, int first, size_t limit)
{
    size_t nbytes = 0;
    int end = first;
    for (; end < count; end++) {
        nbytes += nbytes_of(parts, devices, count, end);
        if (nbytes > limit && end > first)
            break;
    }
    return end - first;
}

/* A collective that has to pack a tensor on every device is no help for one of many bytes. */
static bool is_large(ek_tensor *const *parts, int devices)
{
    bool packs = false;
    for (int d = 0; d < devices; d++)
        packs = packs || !ek_is_dense(parts[d]) || !ek_same_layout(parts[d], parts[0]);
    return packs && ek_comm_nbytes(parts[0]) > EK_COMM_BUFFER_BYTES;
}

/* One group, a list of its own in `parts`, which it changes. */
static int sum_group(ek_tensor **parts, int devices, int count, ek_dev *const *devs,
                     const int *order, ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    int collective = find_collective(parts, devices, count, devs, order, destination);
    EK_TRY(collective);
    if (collective && !(count == 1 && is_large(parts, devices)))
        return sum_at_once(parts, devices, count, devs, order, into, out);
    return sum_by_copies(parts, devices, count, devs, order, destination, into, out);
}

/* How many bytes of a list may go together. */
static size_t group_limit(ek_dev *const *devs, int devices, ek_dev *destination, bool collective)
{
    size_t remote = 0;
    for (int d = 0; d < devices; d++)
        remote += !ek_dev_reaches(destination, devs[d]);
    if (collective)
        return EK_COMM_BUFFER_BYTES;
    return remote ? (size_t)EK_COMM_BUFFER_BYTES / remote : SIZE_MAX;
}

int ek_comm_sum(ek_tensor *const *inputs, int devices, int count, ek_dev *const *devs,
                ek_dev *destination, ek_tensor *const *into, ek_tensor **out)
{
    int order[EK_MAX_DEVICES] = {0};
    sum_order(devs, devices, destination, order);
    memset(out, 0, (size_t)count * sizeof(ek_tensor *));
    int collective = find_collective(inputs, devices, count, devs, order, destination);
    EK_TRY(collective);
    size_t limit = group_limit(devs, devices, destination, collective == 1);
    ek_tensor **parts = ek_calloc((size_t)devices * (size_t)count + 1, sizeof *parts);
    if (!parts)
        return ek_error_pending();
    int rc = 0;
    for (int first = 0, n; first < count && rc >= 0; first += n) {
        n = group_length(inputs, devices, count, first, limit);
        for (int d = 0; d < devices; d++)
            memcpy(parts + (ptrdiff_t)d * n, inputs + (ptrdiff_t)d * count + first,
                   (size_t)n * sizeof *parts);
        ek_scope scope = ek_scope_begin();
        rc = sum_group(parts, devices, n, devs, order, destination, into ? into + first : NULL,
                       out + first);
        ek_scope_end(&scope);
    }
    free(parts);
    return rc;
}

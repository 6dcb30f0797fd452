/* shards.c: all_gather and reduce_scatter of divided tensors. */
#include "comm/shards.h"

#include <stdlib.h>
#include <string.h>

#include "comm/collective.h"
#include "core/trace.h"
#include "evenkeel/comm.h"
#include "kernels/kernels.h"

/* ---- divisions that outlive the call ---- */

/* The attributes of both operations. */
typedef struct routes {
    ek_division division; /* of the arrays below, which one block holds */
    void *block;
} routes;

static size_t aligned(size_t nbytes)
{
    return (nbytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
}

static int keep(const ek_division *from, routes *to)
{
    size_t devs = aligned((size_t)from->devices * sizeof(ek_dev *));
    size_t handles = aligned((size_t)from->count * sizeof(ek_tensor *));
    size_t geometry = aligned((size_t)from->count * sizeof(ek_tensor));
    char *block =
        ek_calloc(1, devs + handles + geometry + (size_t)from->piece_count * sizeof(ek_piece));
    if (!block)
        return ek_error_pending();
    ek_tensor **like = (ek_tensor **)(block + devs);
    ek_tensor *shapes = (ek_tensor *)(block + devs + handles);
    /* Of these only dtype, shape and strides are looked at: they hold no memory. */
    for (int i = 0; i < from->count; i++) {
        shapes[i].dtype = from->like[i]->dtype;
        shapes[i].ndim = from->like[i]->ndim;
        memcpy(shapes[i].shape, from->like[i]->shape, sizeof shapes[i].shape);
        memcpy(shapes[i].stride, from->like[i]->stride, sizeof shapes[i].stride);
        like[i] = &shapes[i];
    }
    memcpy(block, from->devs, (size_t)from->devices * sizeof(ek_dev *));
    if (from->piece_count)
        memcpy(block + devs + handles + geometry, from->pieces,
               (size_t)from->piece_count * sizeof(ek_piece));
    *to = (routes){{(ek_dev **)block, from->devices, like, from->count,
                    (ek_piece *)(block + devs + handles + geometry), from->piece_count},
                   block};
    return 0;
}

static void forget(void *attributes)
{
    free(((routes *)attributes)->block);
}

/* ---- parts of tensors ---- */

/* Elements [begin, end) of a dense tensor's memory. In the scope. */
static ek_tensor *flat(const ek_tensor *tensor, int64_t begin, int64_t end)
{
    ek_shape shape = {1, {end - begin}};
    int64_t stride = 1;
    return ek_tensor_member(tensor->storage, tensor->dtype, &shape, &stride,
                            tensor->offset + begin);
}

static ek_tensor *flat_new(ek_dev *dev, ek_dtype dtype, int64_t count)
{
    ek_shape shape = {1, {count}};
    return ek_tensor_new(dev, dtype, &shape, EK_CONTIGUOUS);
}

static bool is_laid_out_as(const ek_tensor *tensor, const ek_tensor *like)
{
    return ek_same_layout(tensor, like) && ek_is_dense(tensor);
}

/* Elements [begin, end) of the tensor in the order of `like`, flat and on its device. Where it is
 * laid out otherwise, a copy of the rows they are in. In the scope. */
static ek_tensor *slice_of(const ek_tensor *tensor, const ek_tensor *like, int64_t begin,
                           int64_t end)
{
    if (is_laid_out_as(tensor, like))
        return flat(tensor, begin, end);
    ek_shape shape = {.ndim = like->ndim};
    memcpy(shape.dims, like->shape, sizeof shape.dims);
    int dim = ek_comm_slowest(like);
    int64_t skipped = 0;
    if (dim >= 0) {
        int64_t row = like->stride[dim], first = begin / row, last = (end + row - 1) / row;
        shape.dims[dim] = last - first;
        skipped = first * row;
        tensor = ek_comm_part(tensor, dim, first, last - first);
    }
    ek_tensor *dense = tensor ? ek_comm_like(like, &shape, ek_tensor_dev(tensor)) : NULL;
    if (!dense || ek_comm_copy(dense, tensor) < 0)
        return NULL;
    return flat(dense, begin - skipped, end - skipped);
}

/* ---- all_gather ---- */

static int all_gather_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_division *division = &((const routes *)ek_node_attributes(node))->division;
    int count = division->piece_count;
    ek_tensor **into = ek_calloc((size_t)count + 1, sizeof(ek_tensor *));
    if (!into)
        return ek_error_pending();
    for (int p = 0; p < count; p++)
        into[p] = ek_node_needs(node, p) ? ek_node_destination(node, p) : NULL;
    int rc = ek_comm_reduce_scatter(division, gradients, into, results);
    free(into);
    return rc;
}

/* Urgent: replicas' gradients meet and are freed while the rest of backward goes on. */
static const ek_operation all_gather_operation = {.name = "all_gather",
                                                  .backward = all_gather_backward,
                                                  .destroy = forget,
                                                  .urgent = true};

/* Pieces of tensor i begin at *p; moves *p behind them. True where one of them is given. */
static bool is_given(const ek_division *division, ek_tensor *const *pieces, int i, int *p)
{
    bool given = false;
    for (; *p < division->piece_count && division->pieces[*p].tensor == i; ++*p)
        given = given || pieces[*p];
    return given;
}

int ek_comm_record_all_gather(const ek_division *division, ek_tensor *const *pieces,
                              ek_tensor *const *whole)
{
    int count = division->count, outputs = division->devices * count;
    if (!ek_records(pieces, division->piece_count))
        return 0;
    /* What doesn't require a gradient has no part in the node. */
    ek_tensor **out = ek_calloc((size_t)outputs + 1, sizeof *out);
    if (!out)
        return ek_error_pending();
    for (int i = 0, p = 0; i < count; i++) {
        int first = p;
        if (!is_given(division, pieces, i, &p) || !ek_records(pieces + first, p - first))
            continue;
        for (int d = 0; d < division->devices; d++)
            out[d * count + i] = whole[d * count + i];
    }
    routes r;
    int rc = keep(division, &r);
    if (rc >= 0)
        rc = ek_record_outputs(out, outputs, &all_gather_operation,
                               &(const ek_record_options){.inputs = pieces,
                                                          .input_count = division->piece_count,
                                                          EK_ATTRIBUTES(r)});
    free(out);
    return rc;
}

/* Tensor i on a device, of its pieces from `first` on. In the scope. */
static ek_tensor *join(const ek_division *division, ek_tensor *const *pieces, int i, int first,
                       ek_dev *dev)
{
    ek_tensor *whole = ek_comm_like(division->like[i], NULL, dev);
    for (int p = first; whole && p < division->piece_count; p++) {
        const ek_piece *piece = &division->pieces[p];
        if (piece->tensor != i)
            break;
        ek_tensor *place = flat(whole, piece->begin, piece->end);
        int rc = place ? 0 : ek_error_pending();
        if (rc >= 0 && pieces[p])
            rc = ek_comm_copy(place, pieces[p]);
        else if (rc >= 0)
            rc = ek_dev_zero(dev, ek_tensor_address(place), ek_comm_nbytes(place));
        if (rc < 0)
            return NULL;
    }
    return whole;
}

int ek_comm_all_gather(const ek_division *division, ek_tensor *const *pieces, const bool *wanted,
                       ek_tensor **whole)
{
    int count = division->count;
    memset(whole, 0, (size_t)division->devices * (size_t)count * sizeof(ek_tensor *));
    for (int i = 0, p = 0; i < count; i++) {
        int first = p;
        if (!is_given(division, pieces, i, &p))
            continue;
        for (int d = 0; d < division->devices; d++) {
            if (wanted && !wanted[d * count + i])
                continue;
            ek_span span;
            ek_span_begin(&span, EK_SPAN_COMMUNICATE, "all_gather", NULL, division->devs[d]);
            whole[d * count + i] = join(division, pieces, i, first, division->devs[d]);
            ek_span_end(&span);
            if (!whole[d * count + i])
                return ek_error_pending();
        }
    }
    return ek_comm_record_all_gather(division, pieces, whole);
}

/* ---- reduce_scatter ---- */

static int reduce_scatter_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_division *division = &((const routes *)ek_node_attributes(node))->division;
    int outputs = division->devices * division->count;
    bool *wanted = ek_calloc((size_t)outputs + 1, sizeof *wanted);
    if (!wanted)
        return ek_error_pending();
    for (int i = 0; i < outputs; i++)
        wanted[i] = ek_node_needs(node, i);
    int rc = ek_comm_all_gather(division, gradients, wanted, results);
    free(wanted);
    return rc;
}

static const ek_operation reduce_scatter_operation = {.name = "reduce_scatter",
                                                      .backward = reduce_scatter_backward,
                                                      .destroy = forget};

/* A stretch of one piece that is summed at a time. */
typedef struct stretch {
    int piece;
    int64_t begin, end; /* elements of the tensor */
} stretch;

enum { MOST_STRETCHES = 64 };

/* Sums for one device that are made together: what must be fetched comes in one copy a device. */
typedef struct batch {
    const ek_division *division;
    ek_tensor *const *whole;
    ek_tensor *const *sums; /* by piece */
    ek_dev *dev;            /* where they are made; NULL while the batch is empty */
    ek_dtype dtype;
    bool collective; /* devices exchange what they fetch */
    int count;
    size_t nbytes; /* of the stretches, one device's */
    stretch stretches[MOST_STRETCHES];
    ek_tensor **parts; /* [d * MOST_STRETCHES + k]: of stretch k, on device d or fetched */
} batch;

static ek_tensor *part_of(const batch *b, int k, int d)
{
    return b->whole[d * b->division->count + b->division->pieces[b->stretches[k].piece].tensor];
}

static bool is_fetched(const batch *b, int d)
{
    const ek_dev *dev = b->division->devs[d];
    return dev != b->dev && (b->collective || !ek_dev_reaches(b->dev, dev));
}

/* Device d's parts, where they are: parts[k], NULL where there is none. */
static int cut(const batch *b, int d, ek_tensor **parts)
{
    for (int k = 0; k < b->count; k++) {
        const stretch *s = &b->stretches[k];
        const ek_tensor *tensor = part_of(b, k, d);
        const ek_tensor *like = b->division->like[b->division->pieces[s->piece].tensor];
        parts[k] = tensor ? slice_of(tensor, like, s->begin, s->end) : NULL;
        if (tensor && !parts[k])
            return ek_error_pending();
    }
    return 0;
}

/* Puts room on the batch's device in the place of device d's parts, and notes the one move that
 * brings them: packed before, where they lie apart. */
static int plan_fetch(const batch *b, ek_tensor **parts, ek_move *move)
{
    ek_tensor *from[MOST_STRETCHES], *packed[MOST_STRETCHES], *to[MOST_STRETCHES];
    ek_tensor **source = from;
    int n = 0;
    for (int k = 0; k < b->count; k++)
        if (parts[k])
            from[n++] = parts[k];
    if (n == 0)
        return 0;
    EK_TRY(ek_comm_room(b->dev, from, n, to));
    if (ek_comm_run_length(to, from, n) != n) {
        EK_TRY(ek_comm_room(ek_tensor_dev(from[0]), from, n, packed));
        EK_TRY(ek_comm_copy_list(packed, from, n));
        source = packed;
    }
    *move = (ek_move){b->dev, ek_tensor_dev(source[0]), ek_tensor_address(to[0]),
                      ek_tensor_address(source[0]), ek_comm_run_nbytes(source, n)};
    for (int k = 0, next = 0; k < b->count; k++)
        if (parts[k])
            parts[k] = to[next++];
    return 0;
}

static int fetch(const batch *b)
{
    ek_move moves[EK_MAX_DEVICES];
    int count = 0;
    for (int d = 0; d < b->division->devices; d++) {
        ek_tensor **parts = b->parts + (ptrdiff_t)d * MOST_STRETCHES;
        EK_TRY(cut(b, d, parts));
        if (!is_fetched(b, d))
            continue;
        moves[count].nbytes = 0;
        EK_TRY(plan_fetch(b, parts, &moves[count]));
        count += moves[count].nbytes > 0;
    }
    if (b->collective && count)
        return b->dev->backend->exchange(moves, count);
    for (int i = 0; i < count; i++)
        EK_TRY(ek_dev_copy(moves[i].to, moves[i].target, moves[i].from, moves[i].source,
                           moves[i].nbytes));
    return 0;
}

static int add_stretch(const batch *b, int k)
{
    const ek_tensor *present[EK_MAX_DEVICES];
    const stretch *s = &b->stretches[k];
    int64_t start = b->division->pieces[s->piece].begin;
    int n = 0;
    for (int d = 0; d < b->division->devices; d++)
        if (b->parts[d * MOST_STRETCHES + k])
            present[n++] = b->parts[d * MOST_STRETCHES + k];
    ek_tensor *out = flat(b->sums[s->piece], s->begin - start, s->end - start);
    if (!out)
        return ek_error_pending();
    if (n == 1)
        return ek_comm_copy(out, present[0]);
    return b->dev->backend->kernels->add_n(b->dev, 1, &out, present, n);
}

static int order_all(const batch *b, bool before)
{
    for (int d = 0; d < b->division->devices; d++) {
        ek_dev *dev = b->division->devs[d];
        if (!is_fetched(b, d))
            EK_TRY(before ? ek_dev_order(b->dev, dev) : ek_dev_order(dev, b->dev));
    }
    return 0;
}

/* Makes the batch's sums and empties it. */
static int flush(batch *b)
{
    if (b->count == 0)
        return 0;
    ek_span span;
    ek_span_begin(&span, EK_SPAN_COMMUNICATE, "reduce_scatter", NULL, b->dev);
    ek_memory_category category = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    ek_scope scope = ek_scope_begin();
    int rc = fetch(b);
    if (rc >= 0)
        rc = order_all(b, true);
    for (int k = 0; k < b->count && rc >= 0; k++)
        rc = add_stretch(b, k);
    /* Also after an error: sums that were issued still read the others' memory. */
    int ordered = order_all(b, false);
    ek_scope_end(&scope);
    ek_memory_set_category(category);
    ek_span_end(&span);
    b->count = 0;
    b->nbytes = 0;
    b->dev = NULL;
    return rc < 0 ? rc : ordered;
}

/* True where a part of the piece can be added from where it lies. */
static bool needs_no_room(const batch *b, const ek_piece *piece)
{
    for (int d = 0; d < b->division->devices; d++) {
        const ek_tensor *tensor = b->whole[d * b->division->count + piece->tensor];
        if (tensor &&
            (is_fetched(b, d) || !is_laid_out_as(tensor, b->division->like[piece->tensor])))
            return false;
    }
    return true;
}

static int append(batch *b, int p)
{
    const ek_piece *piece = &b->division->pieces[p];
    ek_dtype dtype = b->division->like[piece->tensor]->dtype;
    if (b->count && (b->dev != piece->dev || b->dtype != dtype))
        EK_TRY(flush(b));
    size_t size = ek_dtype_size(dtype);
    /* A device holds at most one buffer for each and, with rows that are cut, a little more. */
    size_t limit = (size_t)EK_COMM_BUFFER_BYTES / ((size_t)b->division->devices + 1);
    b->dev = piece->dev;
    b->dtype = dtype;
    bool free_of_room = needs_no_room(b, piece);
    for (int64_t begin = piece->begin, end; begin < piece->end; begin = end) {
        int64_t most = (int64_t)((limit - b->nbytes) / size);
        end = free_of_room || piece->end - begin <= most ? piece->end : begin + most;
        b->dev = piece->dev;
        if (end > begin)
            b->stretches[b->count++] = (stretch){p, begin, end};
        b->nbytes += free_of_room ? 0 : (size_t)(end - begin) * size;
        if (b->count == MOST_STRETCHES || end < piece->end)
            EK_TRY(flush(b));
    }
    return 0;
}

/* True where backends have collectives for all who take part. */
static bool has_collective(const ek_division *division, int *status)
{
    ek_dev *devs[EK_MAX_DEVICES];
    int n = 0;
    *status = 0;
    for (int k = 0; k < division->devices + division->piece_count; k++) {
        ek_dev *dev =
            k < division->devices ? division->devs[k] : division->pieces[k - division->devices].dev;
        int at = 0;
        while (at < n && devs[at] != dev)
            at++;
        if (at < n)
            continue;
        if (n == EK_MAX_DEVICES)
            return false;
        devs[n++] = dev;
    }
    return ek_comm_has_collective(devs, n, status);
}

/* Where each sum that is not nothing goes, in the scope: sums[p]. */
static int make_sums(const ek_division *division, ek_tensor *const *whole, ek_tensor *const *into,
                     ek_tensor **sums)
{
    for (int p = 0; p < division->piece_count; p++) {
        const ek_piece *piece = &division->pieces[p];
        bool given = false;
        for (int d = 0; d < division->devices; d++)
            given = given || whole[d * division->count + piece->tensor];
        if (!given)
            continue;
        sums[p] = into && into[p] ? into[p]
                                  : flat_new(piece->dev, division->like[piece->tensor]->dtype,
                                             piece->end - piece->begin);
        if (!sums[p])
            return ek_error_pending();
    }
    return 0;
}

int ek_comm_reduce_scatter(const ek_division *division, ek_tensor *const *whole,
                           ek_tensor *const *into, ek_tensor **pieces)
{
    memset(pieces, 0, (size_t)division->piece_count * sizeof(ek_tensor *));
    batch *b = ek_calloc(1, sizeof *b);
    ek_tensor **parts = ek_calloc((size_t)division->devices * MOST_STRETCHES, sizeof *parts);
    int rc = b && parts ? make_sums(division, whole, into, pieces) : ek_error_pending();
    if (rc >= 0) {
        *b = (batch){.division = division, .whole = whole, .sums = pieces, .parts = parts};
        b->collective = has_collective(division, &rc);
    }
    for (int p = 0; p < division->piece_count && rc >= 0; p++)
        if (pieces[p])
            rc = append(b, p);
    if (rc >= 0)
        rc = flush(b);
    free(parts);
    free(b);
    EK_TRY(rc);
    int inputs = division->devices * division->count;
    if (!ek_records(whole, inputs))
        return 0;
    routes r;
    EK_TRY(keep(division, &r));
    return ek_record_outputs(pieces, division->piece_count, &reduce_scatter_operation,
                             &(const ek_record_options){.inputs = whole,
                                                        .input_count = inputs,
                                                        EK_ATTRIBUTES(r)});
}

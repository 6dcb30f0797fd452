/* all_gather.c: all_gather and reduce_scatter of divided tensors: which moves and which sums they
 * are. */
#include <stdlib.h>
#include <string.h>

#include "comm/collectives.h"
#include "comm/sum.h"
#include "core/object.h"

/* ---- divisions that outlive the call ---- */

/* The attributes of all_gather and reduce_scatter. */
typedef struct kept_division {
    ek_division division; /* of the arrays below, which one block holds */
    void *block;
} kept_division;

static size_t aligned(size_t nbytes)
{
    return (nbytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
}

static int keep(const ek_division *from, kept_division *to)
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
    *to = (kept_division){{(ek_dev **)block, from->devices, like, from->count,
                           (ek_piece *)(block + devs + handles + geometry), from->piece_count},
                          block};
    return 0;
}

static void forget(void *attributes)
{
    free(((kept_division *)attributes)->block);
}

static const ek_division *division_of(const ek_node *node)
{
    return &((const kept_division *)ek_node_attributes(node))->division;
}

static int record_division(const ek_division *division, ek_tensor *const *inputs, int input_count,
                           const ek_operation *operation, ek_tensor *const *outputs,
                           int output_count)
{
    kept_division kept;
    EK_TRY(keep(division, &kept));
    return ek_record_outputs(outputs, output_count, operation,
                             &(const ek_record_options){.inputs = inputs,
                                                        .input_count = input_count,
                                                        EK_ATTRIBUTES(kept)});
}

/* ---- all_gather ---- */

static int all_gather_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_division *division = division_of(node);
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

/* Urgent as a broadcast is. */
static const ek_operation all_gather_operation = {.name = "all_gather",
                                                  .backward = all_gather_backward,
                                                  .destroy = forget,
                                                  .urgent = true};

/* Pieces of tensor i begin at *p; moves *p behind them. True if one of them is given. */
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
    int rc = record_division(division, pieces, division->piece_count, &all_gather_operation, out,
                             outputs);
    free(out);
    return rc;
}

/* Tensor i on a device, of its pieces from `first` on, and the moves that fill it. Returns how many
 * moves there are by now. */
static int plan_join(const ek_division *division, ek_tensor *const *pieces, int i, int first,
                     ek_dev *dev, ek_tensor **whole, ek_move *moves, int n)
{
    *whole = ek_comm_like(division->like[i], NULL, dev);
    for (int p = first; p < division->piece_count && division->pieces[p].tensor == i; p++) {
        const ek_piece *piece = &division->pieces[p];
        ek_tensor *place = *whole ? ek_comm_flat(*whole, piece->begin, piece->end) : NULL;
        if (!place)
            return ek_error_pending();
        if (pieces[p])
            moves[n++] = (ek_move){place, pieces[p]};
        else
            EK_TRY(ek_dev_zero(dev, ek_tensor_address(place), ek_comm_nbytes(place)));
    }
    return n;
}

int ek_comm_all_gather(const ek_division *division, ek_tensor *const *pieces, const bool *wanted,
                       ek_tensor **whole)
{
    int count = division->count, n = 0;
    memset(whole, 0, (size_t)division->devices * (size_t)count * sizeof(ek_tensor *));
    ek_move *moves =
        ek_calloc((size_t)division->devices * (size_t)division->piece_count + 1, sizeof *moves);
    if (!moves)
        return ek_error_pending();
    for (int d = 0; d < division->devices; d++) {
        for (int i = 0, p = 0; i < count && n >= 0; i++) {
            int first = p;
            if (is_given(division, pieces, i, &p) && (!wanted || wanted[d * count + i]))
                n = plan_join(division, pieces, i, first, division->devs[d], &whole[d * count + i],
                              moves, n);
        }
    }
    int rc = n < 0 ? n : ek_exchange("all_gather", moves, n);
    free(moves);
    EK_TRY(rc);
    return ek_comm_record_all_gather(division, pieces, whole);
}

/* ---- reduce_scatter ---- */

static int reduce_scatter_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const ek_division *division = division_of(node);
    bool *wanted = ek_comm_needed_inputs(node);
    if (!wanted)
        return ek_error_pending();
    int rc = ek_comm_all_gather(division, gradients, wanted, results);
    free(wanted);
    return rc;
}

static const ek_operation reduce_scatter_operation = {.name = "reduce_scatter",
                                                      .backward = reduce_scatter_backward,
                                                      .destroy = forget};

/* Elements [begin, end) of the tensor in the order of `like`, flat and on its device. If it is laid
 * out otherwise, a copy of the rows they are in. In the scope. */
static ek_tensor *slice_of(const ek_tensor *tensor, const ek_tensor *like, int64_t begin,
                           int64_t end)
{
    if (ek_comm_alike(tensor, like))
        return ek_comm_flat(tensor, begin, end);
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
    return ek_comm_flat(dense, begin - skipped, end - skipped);
}

/* Elements [begin, end) of a tensor on all devices that have it: terms[0 .. returned). */
static int slices_of(const ek_division *division, ek_tensor *const *whole, int tensor,
                     int64_t begin, int64_t end, ek_tensor **terms)
{
    int n = 0;
    for (int d = 0; d < division->devices; d++) {
        const ek_tensor *there = whole[d * division->count + tensor];
        if (!there)
            continue;
        terms[n] = slice_of(there, division->like[tensor], begin, end);
        if (!terms[n++])
            return ek_error_pending();
    }
    return n;
}

/* A piece of which a device has rows in another order: a stretch at a time, so that copies of the
 * rows are bounded as well. */
static int add_turned(const ek_division *division, ek_tensor *const *whole, const ek_piece *piece,
                      const ek_tensor *out)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    size_t limit = (size_t)EK_COMM_BUFFER_BYTES / (2 * (size_t)division->devices + 1);
    int64_t most = (int64_t)(limit / ek_dtype_size(out->dtype)), end;
    int rc = 0;
    for (int64_t begin = piece->begin; begin < piece->end && rc >= 0; begin = end) {
        ek_tensor *terms[EK_MAX_DEVICES];
        end = piece->end - begin > most ? begin + most : piece->end;
        ek_scope scope = ek_scope_begin();
        rc = slices_of(division, whole, piece->tensor, begin, end, terms);
        ek_tensor *part = ek_comm_flat(out, begin - piece->begin, end - piece->begin);
        if (rc >= 0)
            rc = part ? ek_add_all("reduce_scatter", &(ek_addition){part, terms, rc}, 1)
                      : ek_error_pending();
        ek_scope_end(&scope);
    }
    ek_memory_set_category(before);
    return rc;
}

static bool is_turned(const ek_division *division, ek_tensor *const *whole, int i)
{
    bool turned = false;
    for (int d = 0; d < division->devices; d++) {
        const ek_tensor *there = whole[d * division->count + i];
        turned = turned || (there && !ek_comm_alike(there, division->like[i]));
    }
    return turned;
}

/* Memory for each sum that is not nothing: pieces[p]. */
static int make_sums(const ek_division *division, ek_tensor *const *whole, ek_tensor *const *into,
                     ek_tensor **pieces)
{
    for (int p = 0; p < division->piece_count; p++) {
        const ek_piece *piece = &division->pieces[p];
        ek_shape shape = {1, {piece->end - piece->begin}};
        bool given = false;
        for (int d = 0; d < division->devices; d++)
            given = given || whole[d * division->count + piece->tensor];
        if (!given)
            continue;
        pieces[p] = into && into[p]
                        ? into[p]
                        : ek_tensor_new(piece->dev, division->like[piece->tensor]->dtype, &shape,
                                        EK_CONTIGUOUS);
        if (!pieces[p])
            return ek_error_pending();
    }
    return 0;
}

static int add_pieces(const ek_division *division, ek_tensor *const *whole,
                      ek_tensor *const *pieces, ek_addition *sums, ek_tensor **terms)
{
    int count = 0;
    for (int p = 0; p < division->piece_count; p++) {
        const ek_piece *piece = &division->pieces[p];
        if (!pieces[p])
            continue;
        if (is_turned(division, whole, piece->tensor)) {
            EK_TRY(add_turned(division, whole, piece, pieces[p]));
            continue;
        }
        int n = slices_of(division, whole, piece->tensor, piece->begin, piece->end, terms);
        EK_TRY(n);
        sums[count++] = (ek_addition){pieces[p], terms, n};
        terms += n;
    }
    return ek_add_all("reduce_scatter", sums, count);
}

int ek_comm_reduce_scatter(const ek_division *division, ek_tensor *const *whole,
                           ek_tensor *const *into, ek_tensor **pieces)
{
    size_t total = (size_t)division->piece_count;
    int inputs = division->devices * division->count;
    memset(pieces, 0, total * sizeof(ek_tensor *));
    ek_addition *sums = ek_calloc(total + 1, sizeof *sums);
    ek_tensor **terms = ek_calloc(total * (size_t)division->devices + 1, sizeof *terms);
    int rc = sums && terms ? make_sums(division, whole, into, pieces) : ek_error_pending();
    ek_scope scope = ek_scope_begin();
    if (rc >= 0)
        rc = add_pieces(division, whole, pieces, sums, terms);
    ek_scope_end(&scope);
    free(terms);
    free(sums);
    EK_TRY(rc);
    return ek_records(whole, inputs)
               ? record_division(division, whole, inputs, &reduce_scatter_operation, pieces,
                                 division->piece_count)
               : 0;
}

/* moves.c: see moves.h, and the tensors and parts of exchange.h. */
#include "comm/moves.h"

#include "core/slab.h"
#include "ops/ops.h"

/* ---- memory for copies, and parts ---- */

ek_tensor *ek_comm_like(const ek_tensor *like, ek_dev *dev)
{
    ek_shape shape = ek_tensor_shape(like);
    return ek_repeats(like) ? ek_tensor_new(dev, like->dtype, &shape, EK_CONTIGUOUS)
                            : ek_tensor_like_on(like, like->dtype, dev);
}

int ek_comm_room(ek_dev *dev, ek_tensor *const *tensors, int count, ek_tensor **out)
{
    if (count == 1) {
        out[0] = ek_comm_like(tensors[0], dev);
        return out[0] ? 0 : ek_error_pending();
    }
    ek_slab *slab = ek_slab_new(dev, tensors, count);
    int rc = slab ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc == 0; i++) {
        out[i] = ek_itself(slab->members[i]);
        rc = out[i] ? 0 : ek_error_pending();
    }
    ek_object_release(slab);
    return rc;
}

ek_tensor *ek_comm_part(const ek_tensor *tensor, int dim, int64_t start, int64_t length)
{
    ek_shape shape = ek_tensor_shape(tensor);
    shape.dims[dim] = length;
    return ek_tensor_view(tensor, tensor->ndim, shape.dims, tensor->stride,
                          tensor->offset + start * tensor->stride[dim]);
}

ek_tensor *ek_comm_flat(const ek_tensor *dense, int64_t begin, int64_t end)
{
    return ek_tensor_member(dense->storage, dense->dtype, &(ek_shape){1, {end - begin}},
                            &(int64_t){1}, dense->offset + begin);
}

int ek_comm_slowest(const ek_tensor *tensor)
{
    int slowest = -1;
    for (int dim = 0; dim < tensor->ndim; dim++)
        if (tensor->shape[dim] > 1 &&
            (slowest < 0 || tensor->stride[dim] > tensor->stride[slowest]))
            slowest = dim;
    return slowest;
}

bool ek_comm_alike(const ek_tensor *a, const ek_tensor *b)
{
    return ek_same_layout(a, b) && ek_is_dense(a) && ek_is_dense(b);
}

ptrdiff_t ek_comm_step(const ek_tensor *tensor, const ek_tensor *next)
{
    const char *begin = ek_tensor_address(tensor), *end = ek_tensor_address(next);
    ptrdiff_t step = end - begin, gap = step - (ptrdiff_t)ek_comm_nbytes(tensor);
    return tensor->storage == next->storage && gap >= 0 && gap < EK_COMM_ALIGNMENT ? step : -1;
}

/* ---- one move ---- */

/* Copies through blocks of limited size, for targets that can't be written in place. */
static int move_copy_in_parts(ek_tensor *to, const ek_tensor *from)
{
    int dim = ek_comm_slowest(to);
    if (ek_comm_alike(to, from) || dim < 0 || ek_comm_nbytes(to) <= EK_COMM_BUFFER_BYTES) {
        ek_scope scope = ek_scope_begin();
        int rc = ek_transfer(to, from);
        ek_scope_end(&scope);
        return rc;
    }
    int64_t size = to->shape[dim], half = size / 2;
    for (int64_t start = 0; start < size; start += half, half = size - half) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *target = ek_comm_part(to, dim, start, half);
        ek_tensor *source = ek_comm_part(from, dim, start, half);
        int rc = target && source ? move_copy_in_parts(target, source) : ek_error_pending();
        ek_scope_end(&scope);
        EK_TRY(rc);
    }
    return 0;
}

int ek_comm_copy(ek_tensor *to, const ek_tensor *from)
{
    size_t nbytes = ek_comm_nbytes(from);
    if (nbytes == 0)
        return 0;
    EK_TRY(ek_tensor_hold(from));
    EK_TRY(ek_tensor_hold(to));
    EK_TRY(ek_tensor_unshare(to));
    if (ek_comm_alike(to, from))
        return ek_dev_copy(ek_tensor_dev(to), ek_tensor_address(to), ek_tensor_dev(from),
                           ek_tensor_address(from), nbytes);
    ek_dev *dev = ek_tensor_dev(to), *source = ek_tensor_dev(from);
    if (!ek_dev_reaches(dev, source))
        return move_copy_in_parts(to, from);
    EK_TRY(ek_dev_wait(dev, source));
    EK_TRY(ek_kernels_of(to)->copy(dev, to, from));
    return ek_dev_wait(source, dev);
}

/* ---- runs: moves that are one copy ---- */

int ek_moves_run(const ek_move *moves, int count)
{
    int n = 1;
    if (!ek_comm_alike(moves[0].to, moves[0].from))
        return 1;
    for (; n < count; n++) {
        const ek_move *move = &moves[n - 1], *next = &moves[n];
        ptrdiff_t step = ek_comm_step(move->to, next->to);
        if (!ek_comm_alike(next->to, next->from) || step < 0 ||
            step != ek_comm_step(move->from, next->from))
            break;
    }
    return n;
}

int ek_moves_packable(const ek_move *moves, int count)
{
    int n = 1;
    size_t nbytes = ek_comm_nbytes(moves[0].to);
    if (!ek_is_dense(moves[0].to))
        return 0;
    for (; n < count && n < EK_MOVES_AT_ONCE; n++) {
        const ek_tensor *before = moves[n - 1].to, *to = moves[n].to;
        size_t step = (ek_comm_nbytes(before) + EK_COMM_ALIGNMENT - 1) / EK_COMM_ALIGNMENT;
        nbytes += ek_comm_nbytes(to);
        if (!ek_is_dense(to) || to->dtype != before->dtype || nbytes > EK_COMM_BUFFER_BYTES ||
            ek_comm_step(before, to) != (ptrdiff_t)step * EK_COMM_ALIGNMENT)
            break;
    }
    return n;
}

int ek_moves_pack(const ek_move *moves, int count, ek_tensor **packed)
{
    ek_tensor *to[EK_MOVES_AT_ONCE];
    for (int i = 0; i < count; i++)
        to[i] = moves[i].to;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_COMMUNICATION);
    int rc = ek_comm_room(ek_tensor_dev(moves[0].from), to, count, packed);
    ek_memory_set_category(before);
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_comm_copy(packed[i], moves[i].from);
    return rc;
}

ek_block_move ek_moves_block(const ek_move *moves, int count)
{
    const ek_tensor *to = moves[0].to, *from = moves[0].from, *last = moves[count - 1].to;
    ptrdiff_t before_last = (char *)ek_tensor_address(last) - (char *)ek_tensor_address(to);
    return (ek_block_move){ek_tensor_dev(to), ek_tensor_dev(from), ek_tensor_address(to),
                           ek_tensor_address(from), (size_t)before_last + ek_comm_nbytes(last)};
}

bool ek_moves_same_route(const ek_move *a, const ek_move *b)
{
    return ek_tensor_dev(a->to) == ek_tensor_dev(b->to) &&
           ek_tensor_dev(a->from) == ek_tensor_dev(b->from);
}

int ek_moves_route(const ek_move *moves, int count)
{
    int n = 1;
    while (n < count && ek_moves_same_route(&moves[0], &moves[n]))
        n++;
    return n;
}

bool ek_move_is_block(const ek_move *move)
{
    return ek_is_dense(move->to) && (ek_comm_alike(move->to, move->from) ||
                                     ek_comm_nbytes(move->to) <= EK_COMM_BUFFER_BYTES);
}

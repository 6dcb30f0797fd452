/* layout.c: where parameters, gradients and state lie in memory.
 *
 * The table has all pieces by group and place in memory. Rows that follow each other within one
 * slab form a block, whose state is laid out like it: with a slab of state for each kind. */
#include <stdlib.h>

#include "core/slab.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/optimizer.h"

enum { MEMBER_ALIGNMENT = 64 }; /* of a slab's members, in bytes */

/* ---- the table ---- */

static int compare_pieces(const void *x, const void *y)
{
    const ek_slot_piece *a = *(ek_slot_piece *const *)x, *b = *(ek_slot_piece *const *)y;
    if (a->slot->group != b->slot->group)
        return a->slot->group < b->slot->group ? -1 : 1;
    if (a->storage != b->storage)
        return (uintptr_t)a->storage < (uintptr_t)b->storage ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    /* What has no elements begins where its neighbour does. */
    int64_t p = a->end - a->begin, q = b->end - b->begin;
    return (p > q) - (p < q);
}

static int fill_table(ek_optimizer *optimizer)
{
    size_t count = 0;
    for (int i = 0; i < optimizer->slot_count; i++)
        count += (size_t)optimizer->slots[i]->division.count;
    ek_slot_piece **table = ek_realloc(optimizer->table, (count + 1) * sizeof(ek_slot_piece *));
    if (!table)
        return EK_E_NO_MEMORY;
    optimizer->table = table;
    optimizer->piece_count = 0;
    for (int i = 0; i < optimizer->slot_count; i++) {
        ek_slot_division *division = &optimizer->slots[i]->division;
        for (int p = 0; p < division->count; p++)
            table[optimizer->piece_count++] = &division->pieces[p];
    }
    optimizer->table_is_current = true;
    return 0;
}

int ek_optimizer_sort(ek_optimizer *optimizer)
{
    bool sorted = true;
    if (!optimizer->table_is_current)
        EK_TRY(fill_table(optimizer));
    ek_slot_piece **table = optimizer->table;
    for (int i = 0; i < optimizer->piece_count; i++) {
        const ek_tensor *tensor = ek_piece_tensor(table[i]);
        table[i]->storage = tensor ? tensor->storage : NULL;
        table[i]->offset = tensor ? tensor->offset : 0;
        sorted = sorted && (i == 0 || compare_pieces(&table[i - 1], &table[i]) <= 0);
    }
    /* Between steps the order hardly ever changes. */
    if (!sorted)
        qsort(table, (size_t)optimizer->piece_count, sizeof *table, compare_pieces);
    for (int i = 0; i < optimizer->piece_count; i++)
        table[i]->row = i;
    return 0;
}

/* ---- neighbours ---- */

/* From the start of a slab's member to that of the next, in elements. */
static int64_t pitch_of(const ek_tensor *tensor)
{
    int64_t unit = MEMBER_ALIGNMENT / (int64_t)ek_dtype_size(tensor->dtype);
    return (ek_count(tensor) + unit - 1) / unit * unit;
}

static bool follows(const ek_tensor *a, const ek_tensor *b, int64_t pitch)
{
    return a->storage == b->storage && b->offset - a->offset == pitch;
}

/* What lies between two members is padding if a slab's slot for gradients vouches for it, and it
 * isn't another's shard of the same parameter. */
bool ek_rows_join(const ek_optimizer *optimizer, const ek_row *a, const ek_row *b)
{
    const ek_tensor *p = a->tensor, *q = b->tensor;
    const ek_slot *slot = a->piece->slot;
    if (!p || !q || slot->group != b->piece->slot->group || p->dtype != q->dtype)
        return false;
    int64_t pitch = pitch_of(p);
    bool is_padded = pitch != ek_count(p);
    return follows(p, q, pitch) && a->gradient && b->gradient && a->gradient == p->grad_slot &&
           b->gradient == q->grad_slot && follows(a->gradient, b->gradient, pitch) &&
           (!is_padded || (a->piece->end == ek_count(slot->parameter) &&
                           optimizer->algorithm->keeps_zeros(&optimizer->groups[slot->group])));
}

bool ek_states_join(const ek_row *a, const ek_row *b, int count)
{
    int64_t pitch = pitch_of(a->tensor);
    for (int s = 0; s < count; s++) {
        const ek_tensor *x = ek_piece_state(a->piece, s), *y = ek_piece_state(b->piece, s);
        if (!x || !y || !follows(x, y, pitch))
            return false;
    }
    return true;
}

ek_tensor *ek_flat_range(const ek_tensor *tensor, int64_t count)
{
    int64_t stride = 1;
    return ek_tensor_view(tensor, 1, &count, &stride, tensor->offset);
}

/* ---- state ---- */

/* One slab of state for the pieces of rows [begin, end): what state they have is carried over. */
static int lay_out_state(ek_optimizer *optimizer, const ek_row *rows, int begin, int end, int s)
{
    int count = end - begin;
    ek_tensor **tensors = ek_calloc((size_t)count, sizeof *tensors);
    if (!tensors)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        tensors[i] = rows[begin + i].tensor;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_slab *slab = ek_slab_new(ek_tensor_dev(tensors[0]), tensors, count);
    ek_memory_set_category(before);
    free(tensors);
    if (!slab)
        return ek_error_pending();
    int status = 0;
    bool grad_enabled = ek_set_grad_enabled(false);
    optimizer->changing = true;
    for (int i = 0; i < count && status == 0; i++) {
        ek_slot_piece *piece = rows[begin + i].piece;
        if (piece->state[s] && !ek_copy_(slab->members[i], piece->state[s]))
            status = ek_error_pending();
        ek_object_release(piece->fresh[s]);
        piece->fresh[s] = ek_object_retain(slab->members[i]);
    }
    ek_set_grad_enabled(grad_enabled);
    ek_object_release(slab); /* members that became state keep the storage */
    return status;
}

/* True if the piece's own state lies as it does. */
static bool fits(const ek_row *row, int s)
{
    const ek_tensor *tensor = row->tensor, *state = ek_piece_state(row->piece, s);
    return state && state->dtype == tensor->dtype && ek_same_layout(state, tensor) &&
           ek_tensor_dev(state) == ek_tensor_dev(tensor);
}

/* True if the state of rows [begin, end) lies as their pieces do. */
static bool is_laid_out(const ek_row *rows, int begin, int end, int s)
{
    for (int i = begin; i < end; i++) {
        if (!fits(&rows[i], s))
            return false;
        if (i > begin && !follows(ek_piece_state(rows[i - 1].piece, s),
                                  ek_piece_state(rows[i].piece, s), pitch_of(rows[i - 1].tensor)))
            return false;
    }
    return true;
}

static int state_count(const ek_optimizer *optimizer, const ek_row *row)
{
    return optimizer->algorithm->state_count(&optimizer->groups[row->piece->slot->group]);
}

int ek_optimizer_prepare_state(ek_optimizer *optimizer, const ek_row *rows, int count)
{
    for (int begin = 0, end; begin < count; begin = end) {
        end = begin + 1;
        while (end < count && ek_rows_join(optimizer, &rows[end - 1], &rows[end]))
            end++;
        int states = state_count(optimizer, &rows[begin]);
        for (int s = 0; s < states; s++)
            if (!is_laid_out(rows, begin, end, s))
                EK_TRY(lay_out_state(optimizer, rows, begin, end, s));
    }
    return 0;
}

/* Row `at` of the table, as if all had gradients; the piece may have no place. */
static ek_row row_at(const ek_optimizer *optimizer, int at)
{
    ek_slot_piece *piece = optimizer->table[at];
    ek_tensor *tensor = ek_piece_tensor(piece);
    return (ek_row){piece, tensor, tensor ? tensor->grad_slot : NULL};
}

static bool joins_next(const ek_optimizer *optimizer, int at)
{
    if (at < 0 || at + 1 >= optimizer->piece_count)
        return false;
    ek_row a = row_at(optimizer, at), b = row_at(optimizer, at + 1);
    return ek_rows_join(optimizer, &a, &b);
}

/* True if a step with all gradients will find the state of row `at` laid out with its
 * neighbours'. */
static bool is_placed(const ek_optimizer *optimizer, int at)
{
    ek_row row = row_at(optimizer, at);
    int states = state_count(optimizer, &row);
    for (int s = 0; s < states; s++)
        if (!fits(&row, s))
            return false;
    for (int side = -1; side <= 0; side++) {
        if (!joins_next(optimizer, at + side))
            continue;
        ek_row a = row_at(optimizer, at + side), b = row_at(optimizer, at + side + 1);
        if (!ek_states_join(&a, &b, states))
            return false;
    }
    return true;
}

static int reserve_block(ek_optimizer *optimizer, int at)
{
    int begin = at, end = at + 1;
    while (joins_next(optimizer, begin - 1))
        begin--;
    while (joins_next(optimizer, end - 1))
        end++;
    ek_row *rows = ek_calloc((size_t)(end - begin), sizeof *rows);
    if (!rows)
        return EK_E_NO_MEMORY;
    for (int i = begin; i < end; i++)
        rows[i - begin] = row_at(optimizer, i);
    int status = ek_optimizer_prepare_state(optimizer, rows, end - begin);
    free(rows);
    return status;
}

/* For many parameters in turn: the table is sorted anew only if one has moved, and a block is
 * laid out once. */
int ek_optimizer_reserve_state(ek_optimizer *optimizer, const ek_slot *slot)
{
    const ek_slot_division *division = &slot->division;
    bool is_sorted = optimizer->table_is_current;
    for (int i = 0; i < division->count && is_sorted; i++) {
        const ek_tensor *tensor = ek_piece_tensor(&division->pieces[i]);
        is_sorted = division->pieces[i].storage == tensor->storage &&
                    division->pieces[i].offset == tensor->offset;
    }
    if (!is_sorted)
        EK_TRY(ek_optimizer_sort(optimizer));
    for (int i = 0; i < division->count; i++)
        if (!is_placed(optimizer, division->pieces[i].row))
            EK_TRY(reserve_block(optimizer, division->pieces[i].row));
    return 0;
}

/* axis.c: see axis.h. */
#include "host/axis.h"

#include "host/parallel.h"

enum { SHORT_BLOCK = 512 }; /* elements of a block of short rows along the dimension */

ek_axis_operand ek_axis_operand_of(const ek_axis *axis, int index, const ek_tensor *tensor, int dim)
{
    return (ek_axis_operand){.operand = ek_operand_of(&axis->walk, index, tensor),
                             .stride = tensor->ndim == 0 ? 1 : tensor->stride[dim]};
}

static bool axis_is_in_place(const ek_axis *axis, const ek_axis_operand *operand, int64_t rows)
{
    const ek_operand *o = &operand->operand;
    return ek_class_is_dtype(axis->type, o->dtype) && (operand->stride == 1 || axis->size == 1) &&
           (rows == 1 || axis->walk.stride[o->index][axis->walk.ndim - 1] == axis->size);
}

int ek_axis_begin(ek_axis *axis, ek_dev *dev, const ek_tensor *const *tensors, const bool *has_axis,
                  int count, int dim)
{
    int64_t shape[EK_MAX_DIMS], stride[EK_WALK_OPERANDS][EK_MAX_DIMS];
    const int64_t *strides[EK_WALK_OPERANDS];
    int ndim = 0;
    const ek_tensor *first = tensors[0];
    for (int d = 0; d < first->ndim; d++) {
        if (d == dim)
            continue;
        shape[ndim] = first->shape[d];
        for (int k = 0; k < count; k++)
            stride[k][ndim] = tensors[k]->stride[has_axis[k] ? d : ndim];
        ndim++;
    }
    for (int k = 0; k < count; k++)
        strides[k] = stride[k];
    ek_walk_init_raw(&axis->walk, count, ndim, shape, strides);
    axis->size = first->ndim == 0 ? 1 : first->shape[dim];
    axis->type = ek_class_of(first->dtype);
    axis->rows = axis->size > 0 && axis->size < SHORT_BLOCK ? SHORT_BLOCK / axis->size : 1;
    int64_t most = axis->walk.count * axis->size / 8192 + 1;
    most = most < axis->walk.count || axis->walk.count == 0 ? most : axis->walk.count;
    axis->parts = ek_parallel_threads(dev);
    axis->parts = axis->parts < most ? axis->parts : most;
    axis->slots = 0;
    for (int k = 0; k < count; k++) {
        ek_axis_operand operand = ek_axis_operand_of(axis, k, tensors[k], has_axis[k] ? dim : 0);
        bool needs = has_axis[k] && !axis_is_in_place(axis, &operand, axis->rows);
        axis->slot_of[k] = needs ? axis->slots++ : -1;
    }
    axis->slot_nbytes = (size_t)(axis->rows * axis->size) * ek_class_size(axis->type);
    axis->scratch_nbytes = (size_t)(axis->parts * axis->slots) * axis->slot_nbytes;
    void *scratch = NULL;
    if (axis->scratch_nbytes)
        EK_TRY(ek_dev_alloc(dev, axis->scratch_nbytes, EK_MEMORY_WORKSPACE, &scratch));
    axis->scratch = scratch;
    return 0;
}

void ek_axis_end(ek_axis *axis, ek_dev *dev)
{
    if (axis->scratch_nbytes)
        ek_dev_free(dev, axis->scratch, axis->scratch_nbytes, EK_MEMORY_WORKSPACE);
}

typedef struct axis_job {
    const ek_axis *axis;
    ek_axis_body *body;
    void *context;
} axis_job;

static void axis_run_parts(void *context, int64_t begin, int64_t end)
{
    const axis_job *job = context;
    const ek_axis *axis = job->axis;
    for (int64_t part = begin; part < end; part++) {
        void *slots[EK_WALK_OPERANDS] = {NULL};
        for (int k = 0; k < axis->walk.operands; k++)
            if (axis->slot_of[k] >= 0)
                slots[k] = axis->scratch +
                           (size_t)(part * axis->slots + axis->slot_of[k]) * axis->slot_nbytes;
        job->body(job->context, slots, axis->walk.count * part / axis->parts,
                  axis->walk.count * (part + 1) / axis->parts);
    }
}

void ek_axis_for(const ek_axis *axis, ek_dev *dev, ek_axis_body *body, void *context)
{
    axis_job job = {axis, body, context};
    ek_parallel_for(dev, axis->parts, 1, axis_run_parts, &job);
}

static char *axis_address(const ek_axis *axis, const ek_cursor *cursor,
                          const ek_axis_operand *operand, int64_t row)
{
    const ek_operand *o = &operand->operand;
    int64_t stride = axis->walk.stride[o->index][axis->walk.ndim - 1];
    return (char *)o->data +
           (cursor->offset[o->index] + row * stride) * (int64_t)ek_dtype_size(o->dtype);
}

/* Returns true if positions are neighbours in memory. If so, axis_move moves the elements of all
 * rows at one index of the dimension together, in the order of memory, and transposes them in the
 * slot. */
static bool axis_is_across(const ek_axis *axis, const ek_axis_operand *operand, int64_t rows)
{
    return rows > 1 && axis->walk.stride[operand->operand.index][axis->walk.ndim - 1] == 1 &&
           operand->stride != 1;
}

#define MOVE_ACROSS(type)           \
    for (int64_t r = 0; r < n; r++) \
        ((type *)to)[r * to_stride] = ((const type *)from)[r * from_stride];

static void axis_move_across(ek_class class, void *to, int64_t to_stride, const void *from,
                             int64_t from_stride, int64_t n)
{
    if (class == EK_CLASS_F32)
        MOVE_ACROSS(float)
    else
        MOVE_ACROSS(double)
}

/* Copies `rows` rows from the operand's memory to the slot; without `load`, from the slot to the
 * memory. */
static void axis_move(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                      int64_t rows, char *slot, bool load)
{
    size_t size = ek_class_size(axis->type);
    ek_dtype dtype = operand->operand.dtype;
    char *memory = axis_address(axis, cursor, operand, 0);
    if (!axis_is_across(axis, operand, rows)) {
        for (int64_t r = 0; r < rows; r++) {
            char *row = slot + (size_t)(r * axis->size) * size;
            char *at = axis_address(axis, cursor, operand, r);
            if (load)
                ek_row_load(axis->type, row, dtype, at, operand->stride, axis->size);
            else
                ek_row_store(axis->type, row, dtype, at, operand->stride, axis->size);
        }
        return;
    }
    ek_tile tile;
    for (int64_t c = 0; c < axis->size; c++) {
        char *column = slot + (size_t)c * size;
        char *at = memory + c * operand->stride * (int64_t)ek_dtype_size(dtype);
        if (load) {
            ek_row_load(axis->type, &tile, dtype, at, 1, rows);
            axis_move_across(axis->type, column, axis->size, &tile, 1, rows);
        } else {
            axis_move_across(axis->type, &tile, 1, column, axis->size, rows);
            ek_row_store(axis->type, &tile, dtype, at, 1, rows);
        }
    }
}

const void *ek_axis_load(const ek_axis *axis, const ek_cursor *cursor,
                         const ek_axis_operand *operand, int64_t rows, void *slot)
{
    if (axis_is_in_place(axis, operand, rows))
        return axis_address(axis, cursor, operand, 0);
    axis_move(axis, cursor, operand, rows, slot, true);
    return slot;
}

void *ek_axis_target(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                     int64_t rows, void *slot)
{
    return axis_is_in_place(axis, operand, rows) ? axis_address(axis, cursor, operand, 0) : slot;
}

void ek_axis_store(const ek_axis *axis, const ek_cursor *cursor, const ek_axis_operand *operand,
                   int64_t rows, const void *target, void *slot)
{
    if (target == slot)
        axis_move(axis, cursor, operand, rows, slot, false);
}

/* index_list.c: elements at lists of indices, one for each dimension. The indexed dimensions are
 * moved to the front and joined to one, along which slices are read or written at row-major
 * positions. */
#include "ops/autocast.h"
#include "ops/ops.h"

typedef struct list_plan {
    ek_tensor *index[EK_MAX_DIMS]; /* of a dimension, i64; NULL: the whole dimension */
    ek_shape picked;               /* the indices' common shape */
    int indexed;                   /* number of indexed dimensions */
    int first;                     /* the place of the indexed dimensions in the result */
    ek_shape order, inverse;       /* x's dimensions, the indexed ones first; and back */
    ek_shape front;                /* x's sizes in this order */
    int64_t slices;                /* product of the indexed sizes */
    ek_tensor *positions;          /* row-major positions over the indexed dimensions, flat */
} list_plan;

/* Adds a mask at dimension `dim` of x as the positions of its ones, a list for each of its
 * dimensions. */
static bool list_add_mask(list_plan *plan, const ek_tensor *x, ek_tensor *mask, int dim)
{
    bool fits = dim + mask->ndim <= x->ndim;
    for (int d = 0; fits && d < mask->ndim; d++)
        fits = mask->shape[d] == x->shape[dim + d];
    if (!fits || mask->ndim == 0)
        return EK_REFUSE(EK_E_SHAPE,
                         "index: a mask of shape %s for dimensions %d on of x, which has %s",
                         EK_SIZE_TEXT(mask), dim, EK_SIZE_TEXT(x));
    ek_tensor *found = ek_nonzero(mask);
    for (int d = 0; found && d < mask->ndim; d++)
        if (!(plan->index[dim + d] = ek_select(found, 1, d)))
            return false;
    return found;
}

/* Reads the list of indices, and gives them their common shape. */
static bool list_read(list_plan *plan, ek_tensor *x, ek_tensor *const *indices, int count)
{
    int dim = 0;
    if (count < 1 || !indices)
        return EK_REFUSE(EK_E_INVALID, "index: there are no indices");
    for (int i = 0; i < count; i++) {
        ek_tensor *index = indices[i];
        bool masks = index && (index->dtype == EK_BOOL || index->dtype == EK_U8);
        int taken = masks ? index->ndim : 1;
        if (dim + taken > x->ndim)
            return EK_REFUSE(EK_E_SHAPE, "index: more indices than x, of shape %s, has dimensions",
                             EK_SIZE_TEXT(x));
        if (index && !ek_same_device("index", x, index))
            return false;
        if (masks) {
            if (!list_add_mask(plan, x, index, dim))
                return false;
        } else if (index && !(index = ek_as_index("index", "an index", index))) {
            return false;
        } else {
            plan->index[dim] = index;
        }
        dim += taken;
    }
    for (int d = 0; d < x->ndim; d++) {
        if (!plan->index[d])
            continue;
        ek_shape own = ek_tensor_shape(plan->index[d]);
        if (plan->indexed++ == 0)
            plan->picked = own;
        else if (ek_broadcast_shapes("index", &plan->picked, &own, &plan->picked) < 0)
            return false;
    }
    return plan->indexed > 0 || EK_REFUSE(EK_E_INVALID, "index: all indices are NULL");
}

static void list_arrange(list_plan *plan, const ek_tensor *x)
{
    int at = 0, low = x->ndim, high = 0;
    plan->order.ndim = plan->inverse.ndim = plan->front.ndim = x->ndim;
    plan->slices = 1;
    for (int indexed = 1; indexed >= 0; indexed--)
        for (int d = 0; d < x->ndim; d++) {
            if ((plan->index[d] != NULL) != indexed)
                continue;
            plan->order.dims[at] = d;
            plan->inverse.dims[d] = at;
            plan->front.dims[at++] = x->shape[d];
            if (indexed) {
                plan->slices *= x->shape[d];
                low = d < low ? d : low;
                high = d;
            }
        }
    plan->first = high - low + 1 == plan->indexed ? low : 0;
}

/* Computes the joint row-major positions of all indices. Each index looks its part up in a table,
 * so that the kernel checks the index's bounds. */
static bool list_find_positions(list_plan *plan, ek_tensor *x)
{
    int64_t stride = 1;
    ek_device device = ek_tensor_dev(x)->id;
    for (int d = x->ndim - 1; d >= 0; d--) {
        if (!plan->index[d])
            continue;
        int64_t size = x->shape[d];
        ek_tensor *index = ek_reshape(ek_expand(plan->index[d], plan->picked), EK_SHAPE(-1));
        ek_tensor *negative = ek_lt(index, ek_scalar(0, EK_I64, ek_cpu()));
        index = ek_where(negative, ek_add_scalar(index, (double)size), index);
        ek_tensor *table = ek_mul_scalar(ek_arange(size, EK_I64, device), (double)stride);
        ek_tensor *part = ek_index_select(table, 0, index);
        plan->positions = plan->positions ? ek_add(plan->positions, part) : part;
        if (!part || !plan->positions)
            return false;
        stride *= size;
    }
    return true;
}

static bool list_make(list_plan *plan, ek_tensor *x, ek_tensor *const *indices, int count)
{
    *plan = (list_plan){.indexed = 0};
    if (!ek_given("index", "x", x) || !list_read(plan, x, indices, count))
        return false;
    list_arrange(plan, x);
    if (plan->picked.ndim + x->ndim - plan->indexed > EK_MAX_DIMS)
        return EK_REFUSE(EK_E_SHAPE, "index: the result has more than %d dimensions", EK_MAX_DIMS);
    return list_find_positions(plan, x);
}

/* x as (slices, elements of a slice). */
static ek_tensor *list_slices(const list_plan *plan, ek_tensor *x)
{
    ek_shape shape = plan->front;
    int64_t rest = 1;
    for (int d = plan->indexed; d < shape.ndim; d++)
        rest *= shape.dims[d];
    return ek_reshape(ek_permute(x, plan->order), EK_SHAPE(plan->slices, rest));
}

/* Returns the result's shape with the indexed dimensions in front, and in *order the permutation
 * that moves them to their place. */
static ek_shape list_result(const list_plan *plan, ek_shape *order)
{
    ek_shape shape = plan->picked;
    int picked = plan->picked.ndim;
    for (int d = plan->indexed; d < plan->front.ndim; d++)
        shape.dims[shape.ndim++] = plan->front.dims[d];
    order->ndim = shape.ndim;
    for (int d = 0; d < shape.ndim; d++)
        order->dims[d] = d < plan->first            ? picked + d
                         : d < plan->first + picked ? d - plan->first
                                                    : d;
    return shape;
}

ek_tensor *ek_index(ek_tensor *x, ek_tensor *const *indices, int count)
{
    list_plan plan;
    ek_shape order;
    if (!list_make(&plan, x, indices, count))
        return NULL;
    ek_shape shape = list_result(&plan, &order);
    ek_tensor *rows = ek_index_select(list_slices(&plan, x), 0, plan.positions);
    return ek_permute(ek_reshape(rows, shape), order);
}

ek_tensor *ek_index_put(ek_tensor *x, ek_tensor *const *indices, int count, ek_tensor *values,
                        bool accumulate)
{
    list_plan plan;
    ek_shape order, expanded = {.ndim = 0}, inverse;
    ek_autocast_promote(&x, &values);
    if (!list_make(&plan, x, indices, count) || !ek_given("index_put", "values", values) ||
        !ek_alike("index_put", x, values))
        return NULL;
    ek_shape shape = list_result(&plan, &order);
    expanded.ndim = inverse.ndim = shape.ndim;
    for (int d = 0; d < shape.ndim; d++) {
        expanded.dims[d] = shape.dims[order.dims[d]];
        inverse.dims[order.dims[d]] = d;
    }
    ek_tensor *rows = list_slices(&plan, x);
    values = ek_permute(ek_expand(values, expanded), inverse);
    if (!rows || !values)
        return NULL;
    values = ek_reshape(values, EK_SHAPE(ek_count(plan.positions), rows->shape[1]));
    rows = accumulate ? ek_index_add(rows, 0, plan.positions, values, 1)
                      : ek_index_copy(rows, 0, plan.positions, values);
    return ek_permute(ek_reshape(rows, plan.front), plan.inverse);
}

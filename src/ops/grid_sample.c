/* grid_sample.c: images at places between their pixels, and the places of affine maps.
 *
 * y = S(g) x is linear in x. Its derivative by a coordinate of g is S, differentiated once more in
 * that direction. So three operations, each with an order of differentiation as attribute, give
 * gradients of any order: S x; its adjoint S' dy; and the slope, which for each coordinate is the
 * sum over channels of dy (dS x). */
#include "kernels/grid_sample.h"
#include "ops/autocast.h"
#include "ops/ops.h"

typedef struct grid_attributes {
    ek_grid_params params;
    ek_shape x; /* the images' shape */
    ek_memory_format format;
} grid_attributes;

/* x at the places; S' dy; the slope. */
static ek_tensor *grid_sample(ek_tensor *x, ek_tensor *grid, const grid_attributes *a);
static ek_tensor *grid_adjoint(ek_tensor *dy, ek_tensor *grid, const grid_attributes *a);
static ek_tensor *grid_slope(ek_tensor *dy, ek_tensor *x, ek_tensor *grid,
                             const grid_attributes *a);

/* ---- derivatives ---- */

/* saved: grid, x if the grid wants a gradient */
static int grid_sample_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const grid_attributes *a = ek_node_attributes(node);
    ek_tensor *grid = ek_node_saved(node, 0);
    if (ek_node_needs(node, 0))
        results[0] = grid_adjoint(gradients[0], grid, a);
    if (ek_node_needs(node, 1))
        results[1] = grid_slope(gradients[0], ek_node_saved(node, 1), grid, a);
    return 0;
}

/* The backward of the adjoint. Saved grid, and dy if the grid wants a gradient. */
static int grid_adjoint_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const grid_attributes *a = ek_node_attributes(node);
    ek_tensor *grid = ek_node_saved(node, 0);
    if (ek_node_needs(node, 0))
        results[0] = grid_sample(gradients[0], grid, a);
    if (ek_node_needs(node, 1))
        results[1] = grid_slope(ek_node_saved(node, 1), gradients[0], grid, a);
    return 0;
}

static void grid_add(ek_tensor **sum, ek_tensor *term)
{
    *sum = *sum ? ek_add(*sum, term) : term;
}

/* Adds one direction's part to the slope's gradients. Saved dy, x, grid. */
static int grid_slope_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const grid_attributes *a = ek_node_attributes(node);
    const int dims = a->params.dims;
    ek_tensor *dy = ek_node_saved(node, 0), *x = ek_node_saved(node, 1);
    ek_tensor *grid = ek_node_saved(node, 2);
    for (int d = 0; d < dims; d++) {
        grid_attributes more = *a;
        if (ek_grid_is_flat(a->params.mode, more.params.order[d]++))
            continue;
        ek_tensor *g = ek_unsqueeze(ek_select(gradients[0], -1, dims - 1 - d), 1);
        if (ek_node_needs(node, 0))
            grid_add(&results[0], ek_mul(grid_sample(x, grid, &more), g));
        ek_tensor *scaled = ek_node_needs(node, 1) || ek_node_needs(node, 2) ? ek_mul(dy, g) : NULL;
        if (ek_node_needs(node, 1))
            grid_add(&results[1], grid_adjoint(scaled, grid, &more));
        if (ek_node_needs(node, 2))
            grid_add(&results[2], grid_slope(scaled, x, grid, &more));
    }
    return 0;
}

EK_OPERATION(grid_sample, "grid_sample", grid_sample_backward);
EK_OPERATION(grid_adjoint, "grid_sample_adjoint", grid_adjoint_backward);
EK_OPERATION(grid_slope, "grid_sample_slope", grid_slope_backward);

/* ---- the three operations ---- */

/* The shape of y: x's with the grid's sizes. */
static ek_shape grid_output(const ek_tensor *grid, const grid_attributes *a)
{
    ek_shape shape = a->x;
    for (int d = 0; d < a->params.dims; d++)
        shape.dims[2 + d] = grid->shape[1 + d];
    return shape;
}

static ek_tensor *grid_sample(ek_tensor *x, ek_tensor *grid, const grid_attributes *a)
{
    if (!x || !grid)
        return NULL;
    const ek_shape shape = grid_output(grid, a);
    ek_tensor *y = ek_tensor_new(ek_tensor_dev(x), x->dtype, &shape, a->format);
    return EK_RECORD(EK_RUN(y, grid_sample, x, grid, &a->params), &grid_sample_operation,
                     EK_INPUTS(x, grid), EK_SAVED(grid, ek_wants(grid) ? x : NULL),
                     EK_ATTRIBUTES(*a));
}

static ek_tensor *grid_adjoint(ek_tensor *dy, ek_tensor *grid, const grid_attributes *a)
{
    if (!dy || !grid)
        return NULL;
    ek_tensor *dx = ek_tensor_new(ek_tensor_dev(dy), dy->dtype, &a->x, a->format);
    return EK_RECORD(EK_RUN(dx, grid_sample_adjoint, dy, grid, &a->params), &grid_adjoint_operation,
                     EK_INPUTS(dy, grid), EK_SAVED(grid, ek_wants(grid) ? dy : NULL),
                     EK_ATTRIBUTES(*a));
}

static ek_tensor *grid_slope(ek_tensor *dy, ek_tensor *x, ek_tensor *grid, const grid_attributes *a)
{
    if (!dy || !x || !grid)
        return NULL;
    const ek_shape shape = ek_tensor_shape(grid);
    bool flat = true;
    for (int d = 0; d < a->params.dims; d++)
        flat = flat && ek_grid_is_flat(a->params.mode, a->params.order[d]);
    if (flat)
        return ek_filled(ek_tensor_dev(grid), grid->dtype, &shape, 0);
    ek_tensor *dgrid = ek_tensor_new(ek_tensor_dev(grid), grid->dtype, &shape, EK_CONTIGUOUS);
    return EK_RECORD(EK_RUN(dgrid, grid_sample_slope, dy, x, grid, &a->params),
                     &grid_slope_operation, EK_INPUTS(dy, x, grid), EK_SAVED(dy, x, grid),
                     EK_ATTRIBUTES(*a));
}

/* ---- the public operations ---- */

static bool grid_check(const ek_tensor *x, const ek_tensor *grid, ek_grid_mode mode)
{
    const char *name = "grid_sample";
    const int dims = x->ndim == 5 ? 3 : 2;
    if (ek_spatial_check(name, x, dims) < 0 || !ek_alike(name, x, grid))
        return false;
    if (mode == EK_GRID_BICUBIC && dims == 3)
        return EK_REFUSE(EK_E_SHAPE, "%s: EK_GRID_BICUBIC is for x of 4 dimensions, got %s", name,
                         EK_TENSOR_TEXT(x));
    if (grid->ndim != x->ndim || grid->shape[0] != x->shape[0] || grid->shape[dims + 1] != dims)
        return EK_REFUSE(EK_E_SHAPE,
                         "%s: for x of shape %s the grid must be (%lld, %s, %d), got %s", name,
                         EK_SIZE_TEXT(x), (long long)x->shape[0],
                         dims == 2 ? "height, width" : "depth, height, width", dims,
                         EK_SIZE_TEXT(grid));
    for (int i = 0; i < dims; i++)
        if (x->shape[2 + i] < 1)
            return EK_REFUSE(EK_E_SHAPE, "%s: x must have at least one pixel, got %s", name,
                             EK_TENSOR_TEXT(x));
    return true;
}

ek_tensor *ek_f_grid_sample_with(ek_grid_sample_options o)
{
    const char *name = "grid_sample";
    if (!ek_given(name, "x", o.x) || !ek_given(name, "grid", o.grid) ||
        !ek_chosen(name, "mode", (int)o.mode, 3,
                   "EK_GRID_BILINEAR, EK_GRID_NEAREST or EK_GRID_BICUBIC") ||
        !ek_chosen(name, "padding_mode", (int)o.padding_mode, 3,
                   "EK_GRID_ZEROS, EK_GRID_BORDER or EK_GRID_REFLECTION"))
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = o.x, *grid = o.grid, *y = NULL;
    if (ek_autocast_mixes((ek_tensor *const[]){x, grid}, 2))
        ek_autocast_promote(&x, &grid);
    if (x && grid && grid_check(x, grid, o.mode)) {
        grid_attributes a = {.params = {.dims = x->ndim - 2,
                                        .mode = o.mode,
                                        .padding = o.padding_mode,
                                        .align_corners = o.align_corners},
                             .x = ek_tensor_shape(x),
                             .format = ek_spatial_format(x)};
        const ek_dtype dtype = x->dtype;
        /* Places need more digits than 16 bits hold: narrow dtypes are sampled in f32. */
        if (ek_dtype_is_narrow(dtype)) {
            y = grid_sample(ek_to_dtype(x, EK_F32), ek_to_dtype(grid, EK_F32), &a);
            y = ek_to_dtype(y, dtype);
        } else {
            y = grid_sample(x, grid, &a);
        }
    }
    return ek_scope_return(&scope, y);
}

/* The coordinates of `count` pixels. */
static ek_tensor *affine_coordinates(const ek_tensor *theta, int64_t count, bool align_corners)
{
    const ek_device device = ek_tensor_dev(theta)->id;
    const double end = count == 1 ? 0 : align_corners ? 1 : (double)(count - 1) / (double)count;
    return ek_linspace(-end, end, count, theta->dtype, device);
}

/* Returns column j of theta (N, dims, dims + 1) in a shape that broadcasts over all places. */
static ek_tensor *affine_column(ek_tensor *theta, int64_t j, int dims)
{
    ek_tensor *column = ek_select(theta, 2, (int)j);
    for (int d = 0; d < dims && column; d++)
        column = ek_unsqueeze(column, 1);
    return column;
}

ek_tensor *ek_f_affine_grid(ek_tensor *theta, ek_shape size, bool align_corners)
{
    const char *name = "affine_grid";
    if (!ek_floating(name, "theta", theta))
        return NULL;
    if (size.ndim != 4 && size.ndim != 5)
        return EK_REFUSE(EK_E_SHAPE, "%s: the size must be (N, C, H, W) or (N, C, D, H, W), got %s",
                         name, EK_SHAPE_TEXT(&size));
    const int dims = size.ndim - 2;
    if (!ek_of_shape(name, "theta", theta, &EK_SHAPE(size.dims[0], dims, dims + 1)) ||
        ek_spatial_least(name, "the size", dims, size.dims + 2, 1) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_tensor *places = affine_column(theta, dims, dims);
    /* Broadcasting makes only the last sum as large as the grid. */
    for (int j = 0; j < dims && places; j++) {
        ek_shape shape = {.ndim = dims + 2};
        for (int d = 0; d < shape.ndim; d++)
            shape.dims[d] = d == dims - j ? size.dims[1 + d] : 1;
        ek_tensor *along =
            ek_reshape(affine_coordinates(theta, size.dims[1 + dims - j], align_corners), shape);
        places = ek_add(places, ek_mul(along, affine_column(theta, j, dims)));
    }
    return ek_scope_return(&scope, places);
}

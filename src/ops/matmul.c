/* matmul.c: matrix products and the linear layer. Transposed operands are strided views, which are
 * multiplied without a copy. */
#include "ops/autocast.h"
#include "ops/linear.h"
#include "ops/ops.h"

/* ---- out = x y [+ bias], two or three dimensions ---- */

/* x as (B, rows, columns). For kernels only. */
static ek_tensor matmul_batch(const ek_tensor *x)
{
    ek_tensor view;
    ek_borrow(&view, x);
    return x->ndim == 3 ? view : ek_batch_of_matrix(x, false);
}

/* Writes the matrix product of x and y to `out`. */
static int run_matmul(ek_tensor *out, const ek_tensor *x, const ek_tensor *y)
{
    ek_dev *dev = ek_tensor_dev(out);
    const ek_kernels *kernels = ek_kernels_of(out);
    ek_tensor out_batch = matmul_batch(out), x_batch = matmul_batch(x), y_batch = matmul_batch(y);
    if (ek_count(out) == 0)
        return 0;
    if (x_batch.shape[2] == 0) /* sums of no products are 0 */
        return kernels->fill(dev, out, 0);
    return kernels->matmul(dev, &out_batch, &x_batch, &y_batch, NULL, false);
}

static ek_tensor *matmul_matrix_of(const ek_tensor *x, int64_t rows, int64_t columns)
{
    return ek_tensor_new(ek_tensor_dev(x), x->dtype, &EK_SHAPE(rows, columns), EK_CONTIGUOUS);
}

/* Returns the product of two matrices, or of two batches of equal size. The gradients of the
 * product are products of this kind again. */
static ek_tensor *matmul_product(ek_tensor *x, ek_tensor *y);

/* `view` shows x with its last two dimensions exchanged; for kernels only. */
static void matmul_borrow_transposed(ek_tensor *view, const ek_tensor *x)
{
    ek_borrow(view, x);
    for (int i = x->ndim - 2; i < x->ndim; i++) {
        view->shape[i] = x->shape[2 * x->ndim - 3 - i];
        view->stride[i] = x->stride[2 * x->ndim - 3 - i];
    }
}

/* Returns x with its last two dimensions exchanged: a recorded view if a graph is recorded, else
 * `view` on the caller's stack. NULL for NULL. */
static ek_tensor *matmul_transposed(ek_tensor *view, ek_tensor *x)
{
    if (!x || ek_grad_enabled())
        return x ? ek_transpose(x, -2, -1) : NULL;
    matmul_borrow_transposed(view, x);
    return view;
}

static int product_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    ek_tensor view, *g = gradients[0];
    if (ek_node_needs(node, 0))
        results[0] = matmul_product(g, matmul_transposed(&view, ek_node_saved(node, 1)));
    if (ek_node_needs(node, 1))
        results[1] = matmul_product(matmul_transposed(&view, ek_node_saved(node, 0)), g);
    return 0;
}

EK_OPERATION(product, "matmul", product_backward);

static ek_tensor *matmul_product(ek_tensor *x, ek_tensor *y)
{
    if (!x || !y)
        return NULL;
    int64_t rows = x->shape[x->ndim - 2], columns = y->shape[y->ndim - 1];
    ek_tensor *out = x->ndim == 2
                         ? matmul_matrix_of(x, rows, columns)
                         : ek_tensor_new(ek_tensor_dev(x), x->dtype,
                                         &EK_SHAPE(x->shape[0], rows, columns), EK_CONTIGUOUS);
    if (!out || run_matmul(out, x, y) < 0)
        return NULL;
    return EK_RECORD(out, &product_operation, EK_INPUTS(x, y),
                     EK_SAVED(ek_wants(y) ? x : NULL, ek_wants(x) ? y : NULL));
}

/* ---- matmul: operands of other dimensions become two or three ---- */

/* Returns x with its leading dimensions expanded to `batch` and joined to one dimension. */
static ek_tensor *matmul_with_batch(ek_tensor *x, ek_shape batch)
{
    ek_shape expanded = batch;
    for (int i = -2; i < 0; i++)
        expanded.dims[expanded.ndim++] = x->shape[x->ndim + i];
    ek_shape shape = EK_SHAPE(ek_shape_count(&batch), x->shape[x->ndim - 2], x->shape[x->ndim - 1]);
    return ek_reshape(ek_expand(x, expanded), shape);
}

static ek_shape matmul_batch_of(const ek_tensor *x)
{
    ek_shape shape = ek_tensor_shape(x);
    shape.ndim -= 2;
    return shape;
}

static ek_tensor *matmul_batched(ek_tensor *x, ek_tensor *y)
{
    ek_shape x_batch = matmul_batch_of(x), y_batch = matmul_batch_of(y), batch;
    if (ek_broadcast_shapes("matmul", &x_batch, &y_batch, &batch) < 0)
        return NULL;
    ek_shape result = batch;
    result.dims[result.ndim++] = x->shape[x->ndim - 2];
    result.dims[result.ndim++] = y->shape[y->ndim - 1];
    return ek_reshape(matmul_product(matmul_with_batch(x, batch), matmul_with_batch(y, batch)),
                      result);
}

/* Returns the product of operands of two or more dimensions. */
static ek_tensor *matmul(ek_tensor *x, ek_tensor *y)
{
    if (x->ndim == 2 && y->ndim == 2)
        return matmul_product(x, y);
    if (y->ndim > 2)
        return matmul_batched(x, y);
    /* y is one matrix: the batches of x are more rows. */
    ek_shape shape = ek_tensor_shape(x);
    int64_t columns = shape.dims[x->ndim - 1], rows = 1;
    for (int i = 0; i < x->ndim - 1; i++)
        rows *= shape.dims[i];
    ek_tensor *out = matmul_product(ek_reshape(x, EK_SHAPE(rows, columns)), y);
    shape.dims[x->ndim - 1] = y->shape[1];
    return ek_reshape(out, shape);
}

static ek_tensor *checked_matmul(ek_tensor *x, ek_tensor *y)
{
    if (!ek_floating("matmul", "x", x) || !ek_given("matmul", "y", y) || !ek_alike("matmul", x, y))
        return NULL;
    if (x->ndim == 0 || y->ndim == 0)
        return EK_REFUSE(EK_E_SHAPE,
                         "matmul: operands must have one dimension or more, got %s and %s",
                         EK_TENSOR_TEXT(x), EK_TENSOR_TEXT(y));
    if (x->shape[x->ndim - 1] != y->shape[y->ndim > 1 ? y->ndim - 2 : 0])
        return EK_REFUSE(EK_E_SHAPE, "matmul: the inner sizes differ: %s times %s",
                         EK_TENSOR_TEXT(x), EK_TENSOR_TEXT(y));
    const bool row = x->ndim == 1, column = y->ndim == 1;
    if (row)
        x = ek_unsqueeze(x, 0);
    if (column)
        y = ek_unsqueeze(y, 1);
    ek_tensor *out = x && y ? matmul(x, y) : NULL;
    if (column)
        out = ek_squeeze(out, -1);
    if (row)
        out = ek_squeeze(out, column ? -1 : -2);
    return out;
}

ek_tensor *ek_matmul(ek_tensor *x, ek_tensor *y)
{
    ek_scope scope = ek_scope_begin();
    x = ek_autocast_narrow(x);
    y = ek_autocast_narrow(y);
    return ek_scope_return(&scope, checked_matmul(x, y));
}

/* ---- linear: y = x w' + b for x (n, in), w (out, in), b (out), with an activation or without
 * ---- */

static int run_linear(ek_tensor *y, const ek_tensor *x, const ek_tensor *w, const ek_tensor *bias,
                      bool relu)
{
    ek_dev *dev = ek_tensor_dev(y);
    const ek_kernels *kernels = ek_kernels_of(y);
    if (ek_count(y) == 0)
        return 0;
    if (x->shape[1] > 0)
        return kernels->linear(dev, y, x, w, bias, relu);
    /* Sums of no products are 0. */
    ek_shape shape = ek_tensor_shape(y);
    ek_tensor rows;
    if (bias)
        ek_borrow_expanded(&rows, bias, &shape);
    EK_TRY(bias ? kernels->copy(dev, y, &rows) : kernels->fill(dev, y, 0));
    return relu ? kernels->unary(dev, EK_UNARY_RELU, y, y, 0, 0) : 0;
}

/* Sums the rows of dy (n, out) into db (out). */
static int linear_sum_rows(ek_tensor *db, const ek_tensor *dy)
{
    ek_tensor row;
    ek_borrow_expanded(&row, db, &EK_SHAPE(1, db->shape[0]));
    return ek_kernels_of(dy)->reduce(ek_tensor_dev(dy), EK_REDUCE_SUM, &row, dy);
}

int ek_linear_run_gradients(ek_tensor *dw, ek_tensor *db, const ek_tensor *x, const ek_tensor *dy)
{
    ek_tensor dy_transposed;
    if (dw && db && ek_count(dw) > 0 && dy->shape[0] > 0)
        return ek_kernels_of(dw)->linear_weight_gradient(ek_tensor_dev(dw), dw, db, x, dy);
    matmul_borrow_transposed(&dy_transposed, dy);
    if (dw)
        EK_TRY(run_matmul(dw, &dy_transposed, x));
    return db ? linear_sum_rows(db, dy) : 0;
}

typedef struct linear_attributes {
    bool relu;
    bool turned; /* the weight's columns, not its rows, are contiguous in memory */
} linear_attributes;

/* Returns memory for the weight's gradient in the weight's order, so that the gradient of a
 * transposed parameter needs no copy. */
static ek_tensor *linear_gradient_of(const ek_tensor *dy, int64_t columns, bool turned)
{
    ek_shape shape = EK_SHAPE(dy->shape[1], columns);
    const int64_t stride[] = {1, dy->shape[1]};
    return turned ? ek_tensor_new_strided(ek_tensor_dev(dy), dy->dtype, &shape, stride)
                  : matmul_matrix_of(dy, dy->shape[1], columns);
}

/* Computes the gradients of w and of the bias. No graph is recorded. */
static int linear_gradients(ek_node *node, ek_tensor *x, ek_tensor *dy, ek_tensor **results)
{
    const linear_attributes *attributes = ek_node_attributes(node);
    ek_tensor *dw = ek_node_destination(node, 1), *db = ek_node_destination(node, 2);
    bool want_db = ek_node_needs(node, 2);
    if (!dw)
        dw = linear_gradient_of(dy, x ? x->shape[1] : 0, attributes->turned);
    if (want_db && !db)
        db = ek_tensor_new(ek_tensor_dev(dy), dy->dtype, &EK_SHAPE(dy->shape[1]), EK_CONTIGUOUS);
    if (!x || !dw || (want_db && !db))
        return ek_error_pending();
    results[1] = dw;
    results[2] = want_db ? db : NULL;
    return ek_linear_run_gradients(dw, results[2], x, dy);
}

/* Saved x, w, and y with a ReLU. */
static int linear_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const bool relu = ((const linear_attributes *)ek_node_attributes(node))->relu;
    ek_tensor *dy = relu ? ek_relu_gradient(gradients[0], ek_node_saved(node, 2), 0) : gradients[0];
    if (!dy)
        return ek_error_pending();
    if (ek_node_needs(node, 1) && !ek_grad_enabled()) {
        EK_TRY(linear_gradients(node, ek_node_saved(node, 0), dy, results));
    } else {
        ek_tensor view, *db = ek_node_destination(node, 2);
        if (ek_node_needs(node, 1))
            results[1] = matmul_product(matmul_transposed(&view, dy), ek_node_saved(node, 0));
        if (ek_node_needs(node, 2) && db)
            EK_TRY(linear_sum_rows(db, dy));
        if (ek_node_needs(node, 2))
            results[2] = db ? db : ek_sum(dy, EK_DIMS(0));
    }
    if (ek_node_needs(node, 0))
        results[0] = matmul_product(dy, ek_node_saved(node, 1));
    return 0;
}

EK_OPERATION(linear, "linear", linear_backward);
EK_OPERATION(linear_relu, "linear_relu", linear_backward);

/* What a linear layer's result passes through. */
typedef enum linear_activation {
    LINEAR_ALONE,
    LINEAR_RELU,
    LINEAR_GELU /* plus an ek_gelu_approximate */
} linear_activation;

static ek_tensor *linear_record(ek_tensor *out, ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                                bool relu)
{
    const linear_attributes attributes = {relu, w->stride[0] == 1 && w->stride[1] == w->shape[0] &&
                                                    w->shape[0] > 1 && w->shape[1] > 1};
    return EK_RECORD(out, relu ? &linear_relu_operation : &linear_operation, EK_INPUTS(x, w, bias),
                     EK_SAVED(ek_wants(w) ? x : NULL, ek_wants(x) ? w : NULL, relu ? out : NULL),
                     EK_ATTRIBUTES(attributes));
}

/* Computes out = x w' + b, and y = gelu(out). y may be `out`. */
static int run_linear_gelu(ek_tensor *y, ek_tensor *out, const ek_tensor *x, const ek_tensor *w,
                           const ek_tensor *bias, ek_gelu_approximate approximate)
{
    const ek_kernels *kernels = ek_kernels_of(y);
    ek_dev *dev = ek_tensor_dev(y);
    if (ek_count(y) == 0)
        return 0;
    if (x->shape[1] > 0)
        return kernels->linear_gelu(dev, y, out, x, w, bias, approximate == EK_GELU_TANH);
    EK_TRY(run_linear(out, x, w, bias, false));
    return kernels->unary(dev, (ek_unary)(EK_UNARY_GELU + (int)approximate), y, out, 0, 0);
}

static ek_tensor *linear_gelu(ek_tensor *out, ek_tensor *x, ek_tensor *w, ek_tensor *bias,
                              ek_gelu_approximate approximate)
{
    /* Without a graph nobody reads the layer's result but gelu, which overwrites it. */
    const bool read = ek_records((ek_tensor *const[]){x, w, bias}, 3) ||
                      ek_thread_self()->observer || ek_checks_for(EK_CHECK_ANOMALY);
    ek_tensor *y = read ? ek_tensor_like(out) : out;
    if (!y || run_linear_gelu(y, out, x, w, bias, approximate) < 0)
        return NULL;
    if (!read)
        return y;
    out = linear_record(out, x, w, bias, false);
    return out ? ek_gelu_recorded(y, out, approximate) : NULL;
}

static ek_tensor *linear(ek_tensor *x, ek_tensor *w, ek_tensor *bias, linear_activation activation)
{
    ek_tensor *out = matmul_matrix_of(x, x->shape[0], w->shape[0]);
    const bool relu = activation == LINEAR_RELU;
    if (!out)
        return NULL;
    if (activation >= LINEAR_GELU)
        return linear_gelu(out, x, w, bias, (ek_gelu_approximate)(activation - LINEAR_GELU));
    return run_linear(out, x, w, bias, relu) < 0 ? NULL : linear_record(out, x, w, bias, relu);
}

static ek_tensor *matmul_checked_linear(ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                                        linear_activation activation)
{
    if (!ek_floating("linear", "x", x) || !ek_given("linear", "weight", weight) ||
        !ek_optional(bias) || !ek_alike("linear", x, weight) ||
        (bias && !ek_alike("linear", x, bias)))
        return NULL;
    if (weight->ndim != 2)
        return EK_REFUSE(EK_E_SHAPE, "linear: expected a weight of 2 dimensions (out, in), got %s",
                         EK_TENSOR_TEXT(weight));
    if (x->ndim == 0 || x->shape[x->ndim - 1] != weight->shape[1])
        return EK_REFUSE(EK_E_SHAPE,
                         "linear: weight %s expects x's last dimension to be %lld, got %s",
                         EK_TENSOR_TEXT(weight), (long long)weight->shape[1], EK_TENSOR_TEXT(x));
    if (bias && !ek_of_shape("linear", "bias", bias, &EK_SHAPE(weight->shape[0])))
        return NULL;
    if (x->ndim == 2)
        return linear(x, weight, bias, activation);
    ek_shape shape = ek_tensor_shape(x);
    int64_t rows = 1;
    for (int i = 0; i < x->ndim - 1; i++)
        rows *= shape.dims[i];
    shape.dims[x->ndim - 1] = weight->shape[0];
    ek_tensor *flat = ek_reshape(x, EK_SHAPE(rows, weight->shape[1]));
    return flat ? ek_reshape(linear(flat, weight, bias, activation), shape) : NULL;
}

static ek_tensor *linear_narrowed(ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                                  linear_activation activation)
{
    ek_scope scope = ek_scope_begin();
    x = ek_autocast_narrow(x);
    weight = ek_autocast_narrow(weight);
    bias = ek_autocast_narrow(bias);
    return ek_scope_return(&scope, matmul_checked_linear(x, weight, bias, activation));
}

ek_tensor *ek_linear_activated(ek_tensor *x, ek_tensor *weight, ek_tensor *bias, bool relu)
{
    return linear_narrowed(x, weight, bias, relu ? LINEAR_RELU : LINEAR_ALONE);
}

ek_tensor *ek_linear_gelu(ek_tensor *x, ek_tensor *weight, ek_tensor *bias,
                          ek_gelu_approximate approximate)
{
    return linear_narrowed(x, weight, bias, (linear_activation)(LINEAR_GELU + (int)approximate));
}

ek_tensor *ek_f_linear(ek_tensor *x, ek_tensor *weight, ek_tensor *bias)
{
    return ek_linear_activated(x, weight, bias, false);
}

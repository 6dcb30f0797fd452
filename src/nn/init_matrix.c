/* init_matrix.c: initial values that are computed on the host in double: truncated normal,
 * orthogonal, identities, sparse. Random numbers are drawn in the order of torch.nn.init. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/random.h"
#include "nn/nn.h"

/* ---- elements as an array of doubles, row-major ---- */

static int matrix_check(const char *name, const ek_tensor *tensor, int least, int most)
{
    char text[200], limit[32] = " or more";
    if (!tensor)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "%s: the tensor is NULL", name);
    EK_TRY(ek_check_alive(name, "the tensor", tensor));
    if (most == least)
        limit[0] = '\0';
    else if (most < EK_MAX_DIMS)
        snprintf(limit, sizeof limit, " to %d", most);
    if (tensor->ndim < least || tensor->ndim > most)
        return EK_FAIL(EK_E_SHAPE, "%s: a tensor of %d%s dimensions is needed, not %s", name, least,
                       limit, ek_tensor_text(tensor, text));
    if (!ek_dtype_is_floating(tensor->dtype))
        return EK_FAIL(EK_E_DTYPE, "%s: a floating tensor is needed, not %s", name,
                       ek_tensor_text(tensor, text));
    return 0;
}

/* Returns the elements, which the caller frees; NULL with an error. */
static double *matrix_read(ek_tensor *tensor)
{
    size_t count = (size_t)ek_count(tensor);
    double *values = ek_calloc(count + 1, sizeof *values);
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_tensor *wide = values ? ek_to_dtype(ek_to_device(tensor, ek_cpu()), EK_F64) : NULL;
    if (!wide || ek_to_data(wide, values, count * sizeof *values) < 0) {
        free(values);
        values = NULL;
    }
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    return values;
}

/* Writes and frees the elements. If `values` is NULL, returns the pending error. */
static int matrix_write(ek_tensor *tensor, double *values)
{
    if (!values)
        return ek_error_pending();
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_tensor *source = ek_from_data(values, ek_tensor_shape(tensor), EK_F64);
    bool written = source && ek_copy_(tensor, source);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    free(values);
    return written ? 0 : ek_error_pending();
}

/* ---- truncated normal ---- */

/* Returns the inverse of erf, by a rational function (Giles 2012) and two steps of Newton's
 * method. */
static double matrix_erfinv(double y)
{
    if (y <= -1 || y >= 1)
        return y < -1 || y > 1 ? NAN : y * INFINITY;
    double w = -log((1 - y) * (1 + y)), p, x;
    if (w < 5) {
        w -= 2.5;
        p = 2.81022636e-08;
        p = 3.43273939e-07 + p * w;
        p = -3.5233877e-06 + p * w;
        p = -4.39150654e-06 + p * w;
        p = 0.00021858087 + p * w;
        p = -0.00125372503 + p * w;
        p = -0.00417768164 + p * w;
        p = 0.246640727 + p * w;
        p = 1.50140941 + p * w;
    } else {
        w = sqrt(w) - 3;
        p = -0.000200214257;
        p = 0.000100950558 + p * w;
        p = 0.00134934322 + p * w;
        p = -0.00367342844 + p * w;
        p = 0.00573950773 + p * w;
        p = -0.0076224613 + p * w;
        p = 0.00943887047 + p * w;
        p = 1.00167406 + p * w;
        p = 2.83297682 + p * w;
    }
    x = p * y;
    for (int i = 0; i < 2; i++) /* the derivative of erf is 2 / sqrt(pi) exp(-x^2) */
        x -= (erf(x) - y) / (1.12837916709551257 * exp(-x * x));
    return x;
}

int ek_init_trunc_normal(ek_tensor *tensor, double mean, double std, double low, double high)
{
    EK_TRY(matrix_check("init_trunc_normal", tensor, 0, EK_MAX_DIMS));
    if (!(std > 0) || !(low <= high))
        return EK_FAIL(
            EK_E_INVALID,
            "init_trunc_normal: std %g has to be more than 0, and low %g at most high %g", std, low,
            high);
    const double begin = (1 + erf((low - mean) / std / sqrt(2.0))) / 2;
    const double end = (1 + erf((high - mean) / std / sqrt(2.0))) / 2;
    EK_TRY(ek_uniform_(tensor, 2 * begin - 1, 2 * end - 1, NULL));
    double *values = matrix_read(tensor);
    for (int64_t i = 0; values && i < ek_count(tensor); i++) {
        double x = matrix_erfinv(values[i]) * (std * sqrt(2.0)) + mean;
        values[i] = x < low ? low : x > high ? high : x;
    }
    return matrix_write(tensor, values);
}

/* ---- orthogonal ---- */

/* Reflects columns [first, cols) of a (rows x cols), row-major, by I - 2 v v^T with v in rows
 * [first, rows) of column `first` of `vectors`. */
static void matrix_reflect(double *a, const double *vectors, int64_t rows, int64_t cols,
                           int64_t first, int64_t from)
{
    for (int64_t j = from; j < cols; j++) {
        double dot = 0;
        for (int64_t i = first; i < rows; i++)
            dot += vectors[i * cols + first] * a[i * cols + j];
        for (int64_t i = first; i < rows; i++)
            a[i * cols + j] -= 2 * dot * vectors[i * cols + first];
    }
}

/* Replaces a (rows x cols, rows >= cols) by Q of its decomposition QR for which R's diagonal is
 * positive, by Householder's reflections. `vectors` has room for as many numbers. */
static void matrix_orthogonalise(double *a, double *vectors, int64_t rows, int64_t cols,
                                 double *signs)
{
    for (int64_t k = 0; k < cols; k++) {
        double norm = 0, length = 0;
        for (int64_t i = k; i < rows; i++)
            norm = hypot(norm, a[i * cols + k]);
        const double diagonal = a[k * cols + k] > 0 ? -norm : norm; /* of R */
        for (int64_t i = k; i < rows; i++) {
            vectors[i * cols + k] = a[i * cols + k] - (i == k ? diagonal : 0);
            length = hypot(length, vectors[i * cols + k]);
        }
        for (int64_t i = k; i < rows; i++)
            vectors[i * cols + k] /= length > 0 ? length : 1;
        matrix_reflect(a, vectors, rows, cols, k, k);
        signs[k] = (diagonal > 0) - (diagonal < 0);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            a[i * cols + j] = i == j;
    for (int64_t k = cols - 1; k >= 0; k--)
        matrix_reflect(a, vectors, rows, cols, k, k);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            a[i * cols + j] *= signs[j];
}

static void matrix_transpose(const double *a, int64_t rows, int64_t cols, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[j * rows + i] = a[i * cols + j];
}

int ek_init_orthogonal(ek_tensor *tensor, double gain)
{
    EK_TRY(matrix_check("init_orthogonal", tensor, 2, EK_MAX_DIMS));
    const int64_t count = ek_count(tensor);
    if (count == 0)
        return 0;
    const int64_t rows = tensor->shape[0], cols = count / rows;
    const bool wide = rows < cols;
    ek_scope scope = ek_scope_begin();
    ek_tensor *drawn =
        ek_empty(EK_SHAPE(rows, cols), .dtype = tensor->dtype, .device = ek_tensor_device(tensor));
    double *a = drawn && ek_normal_(drawn, 0, 1, NULL) >= 0 ? matrix_read(drawn) : NULL;
    ek_scope_end(&scope);
    double *tall = ek_calloc((size_t)(2 * count + (wide ? rows : cols)), sizeof *tall);
    if (!a || !tall) {
        free(a);
        free(tall);
        return ek_error_pending();
    }
    double *vectors = tall + count, *signs = vectors + count;
    if (wide) {
        matrix_transpose(a, rows, cols, tall);
        matrix_orthogonalise(tall, vectors, cols, rows, signs);
        matrix_transpose(tall, cols, rows, a);
    } else {
        matrix_orthogonalise(a, vectors, rows, cols, signs);
    }
    free(tall);
    for (int64_t i = 0; i < count; i++)
        a[i] *= gain;
    return matrix_write(tensor, a);
}

/* ---- identities ---- */

int ek_init_eye(ek_tensor *tensor)
{
    EK_TRY(matrix_check("init_eye", tensor, 2, 2));
    const int64_t rows = tensor->shape[0], cols = tensor->shape[1];
    double *values = ek_calloc((size_t)ek_count(tensor) + 1, sizeof *values);
    for (int64_t i = 0; values && i < rows && i < cols; i++)
        values[i * cols + i] = 1;
    return matrix_write(tensor, values);
}

int ek_init_dirac(ek_tensor *tensor, int64_t groups)
{
    EK_TRY(matrix_check("init_dirac", tensor, 3, 5));
    const int64_t outs = tensor->shape[0], ins = tensor->shape[1];
    if (groups < 1 || outs % groups != 0)
        return EK_FAIL(EK_E_INVALID,
                       "init_dirac: %lld output channels can't be divided into %lld groups",
                       (long long)outs, (long long)groups);
    int64_t field = 1, center = 0; /* the kernel's size, and its middle */
    for (int i = 2; i < tensor->ndim; i++) {
        field *= tensor->shape[i];
        center = center * tensor->shape[i] + tensor->shape[i] / 2;
    }
    double *values = ek_calloc((size_t)ek_count(tensor) + 1, sizeof *values);
    const int64_t each = outs / groups, passed = each < ins ? each : ins;
    for (int64_t g = 0; values && field > 0 && g < groups; g++)
        for (int64_t d = 0; d < passed; d++)
            values[((g * each + d) * ins + d) * field + center] = 1;
    return matrix_write(tensor, values);
}

/* ---- sparse ---- */

int ek_init_sparse(ek_tensor *tensor, double sparsity, double std)
{
    EK_TRY(matrix_check("init_sparse", tensor, 2, 2));
    if (!(sparsity >= 0 && sparsity <= 1))
        return EK_FAIL(EK_E_INVALID, "init_sparse: sparsity has to be 0 to 1, not %g", sparsity);
    const int64_t rows = tensor->shape[0], cols = tensor->shape[1];
    const int64_t zeros = (int64_t)ceil(sparsity * (double)rows);
    EK_TRY(ek_normal_(tensor, 0, std, NULL));
    int64_t *order = ek_calloc((size_t)rows + 1, sizeof *order);
    double *values = order ? matrix_read(tensor) : NULL;
    int status = values ? 0 : ek_error_pending();
    for (int64_t j = 0; j < cols && status == 0; j++) {
        status = ek_randperm(rows, order, NULL);
        for (int64_t i = 0; i < zeros && status == 0; i++)
            values[order[i] * cols + j] = 0;
    }
    free(order);
    if (status == 0)
        return matrix_write(tensor, values);
    free(values);
    return status;
}

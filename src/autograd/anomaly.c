/* anomaly.c: see anomaly.h. */
#include "autograd/anomaly.h"

#include <stdlib.h>
#include <string.h>

/* What a tensor has, the worst last. */
typedef enum anomaly { FINITE, AN_INFINITY, A_NAN, KINDS } anomaly;

/* ---- what tensors have ---- */

static anomaly anomaly_of_value(double value)
{
    return value - value == 0 ? FINITE : value != value ? A_NAN : AN_INFINITY;
}

static anomaly anomaly_of_elements(const char *elements, int64_t count, ek_dtype dtype)
{
    const size_t size = ek_dtype_size(dtype);
    anomaly worst = FINITE;
    for (int64_t i = 0; i < count && worst < A_NAN; i++) {
        const anomaly here =
            anomaly_of_value(ek_element_double(elements + (size_t)i * size, dtype));
        worst = here > worst ? here : worst;
    }
    return worst;
}

/* Returns what the tensor has; FINITE for NULL, for integers and if the tensor cannot be read. */
static anomaly anomaly_of(const ek_tensor *x)
{
    if (!x || !ek_dtype_is_floating(x->dtype) || ek_count(x) == 0)
        return FINITE;
    if (ek_dev_is_host(ek_tensor_dev(x)) && ek_is_dense(x) && x->storage->data)
        return anomaly_of_elements(ek_tensor_address(x), ek_count(x), x->dtype);
    ek_error_record before;
    ek_error_take(&before);
    const size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(x->dtype);
    char *elements = malloc(nbytes);
    anomaly worst = FINITE;
    if (elements && ek_to_data(x, elements, nbytes) == 0)
        worst = anomaly_of_elements(elements, ek_count(x), x->dtype);
    free(elements);
    ek_error_clear();
    ek_error_raise(&before);
    return worst;
}

static anomaly anomaly_of_all(ek_tensor *const *tensors, int count)
{
    anomaly worst = FINITE;
    for (int i = 0; i < count && worst < A_NAN; i++) {
        const anomaly here = anomaly_of(tensors[i]);
        worst = here > worst ? here : worst;
    }
    return worst;
}

/* Returns the first of the tensors that has `wanted`. */
static const ek_tensor *anomaly_find(ek_tensor *const *tensors, int count, anomaly wanted)
{
    int i = 0;
    while (i < count - 1 && anomaly_of(tensors[i]) != wanted)
        i++;
    return tensors[i];
}

/* ---- reports ---- */

static void anomaly_warn(anomaly found, bool in_backward, const char *operation,
                         const ek_tensor *result)
{
    static atomic_bool told[2][KINDS];
    char text[200];
    if (atomic_exchange(&told[in_backward][found], true))
        return;
    const ek_thread *self = ek_thread_self();
    const char *path = *self->modes.path     ? self->modes.path
                       : self->checks.module ? self->checks.module
                                             : "";
    ek_check_warn("%s%s has made %s of finite %s: %s%s%s", in_backward ? "the backward of " : "",
                  operation, found == A_NAN ? "a NaN" : "an infinity",
                  in_backward ? "gradients" : "operands", ek_tensor_text(result, text),
                  *path ? ", in " : "", path);
}

/* ---- forward ---- */

/* The tensor that the thread's next operation in place writes, and whether it was finite. */
static _Thread_local const ek_tensor *written;
static _Thread_local bool written_was_finite;

void ek_anomaly_note(const ek_tensor *x)
{
    written = x;
    written_was_finite = anomaly_of(x) == FINITE;
}

static bool anomaly_is_among(const ek_tensor *x, ek_tensor *const *tensors, int count)
{
    int i = 0;
    while (i < count && tensors[i] != x)
        i++;
    return i < count;
}

/* Returns true if all tensors that aren't outputs are finite. An output among them was written in
 * place, and is finite if it was finite before. */
static bool anomaly_were_finite(ek_tensor *const *tensors, int count, ek_tensor *const *outputs,
                                int output_count, bool are_inputs)
{
    for (int i = 0; i < count; i++) {
        const bool is_output = tensors[i] && anomaly_is_among(tensors[i], outputs, output_count);
        if (is_output ? are_inputs && (tensors[i] != written || !written_was_finite)
                      : anomaly_of(tensors[i]) != FINITE)
            return false;
    }
    return true;
}

/* Returns true if the call has given the operation numbers that aren't finite: among the
 * attributes, or as the number that fills or pads. */
static bool anomaly_was_given(const ek_operation *operation, const ek_record_options *options)
{
    const char *attributes = options->attributes;
    for (size_t at = 0; at + sizeof(double) <= options->attributes_size; at += sizeof(double)) {
        uint64_t bits;
        memcpy(&bits, attributes + at, sizeof bits);
        if (bits << 1 == UINT64_C(0x7ff0000000000000) << 1)
            return true;
    }
    return strcmp(operation->name, "fill_") == 0 || strcmp(operation->name, "pad") == 0;
}

void ek_anomaly_check(ek_tensor *const *outputs, int output_count, const ek_operation *operation,
                      const ek_record_options *options)
{
    if (ek_thread_self()->modes.flags & EK_MODE_BACKWARD)
        return; /* ek_anomaly_check_backward looks at what comes of it */
    const anomaly found = anomaly_of_all(outputs, output_count);
    if (found != FINITE && !anomaly_was_given(operation, options) &&
        anomaly_were_finite(options->inputs, options->input_count, outputs, output_count, true) &&
        anomaly_were_finite(options->saved, options->saved_count, outputs, output_count, false))
        anomaly_warn(found, false, operation->name, anomaly_find(outputs, output_count, found));
    if (anomaly_is_among(written, outputs, output_count))
        written = NULL; /* other operations prepare the operands of one in place */
}

/* ---- backward ---- */

static bool anomaly_saved_is_finite(ek_node *node)
{
    bool finite = true;
    ek_scope scope = ek_scope_begin();
    for (int i = 0; i < node->saved_count && finite; i++)
        finite = anomaly_of(ek_node_saved(node, i)) == FINITE;
    ek_scope_end(&scope);
    return finite;
}

/* In f16 infinities are gradients that were scaled too far, for which ek_grad_scaler looks. */
void ek_anomaly_check_backward(ek_node *node, ek_tensor *const *gradients,
                               ek_tensor *const *results)
{
    const anomaly found = anomaly_of_all(results, node->input_count);
    if (found == FINITE || ek_error_status() < 0)
        return;
    const ek_tensor *result = anomaly_find(results, node->input_count, found);
    if ((found == AN_INFINITY && result->dtype == EK_F16) ||
        anomaly_of_all(gradients, node->output_count) != FINITE || !anomaly_saved_is_finite(node))
        return;
    anomaly_warn(found, true, node->operation->name, result);
}

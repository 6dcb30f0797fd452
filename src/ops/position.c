/* position.c: rotary positions and embeddings. */
#include <math.h>

#include "evenkeel/attention.h"
#include "ops/attributes.h"
#include "ops/autocast.h"
#include "ops/ops.h"

/* ---- rotary positions ---- */

int ek_rotary_tables(int64_t length, int64_t dim, double base, ek_tensor **cosine, ek_tensor **sine)
{
    if (!cosine || !sine)
        return EK_FAIL(EK_E_INVALID, "rotary_tables: the address for a table is NULL");
    *cosine = *sine = NULL;
    if (length < 0 || dim < 2 || dim % 2 != 0)
        return EK_FAIL(EK_E_INVALID,
                       "rotary_tables: length %lld must not be negative, and dim %lld must be even "
                       "and at least 2",
                       (long long)length, (long long)dim);
    if (base == 0)
        base = 10000;
    if (!(base > 0))
        return EK_FAIL(EK_E_INVALID, "rotary_tables: base %g must be above 0", base);
    const int64_t half = dim / 2;
    ek_tensor *c = ek_empty(EK_SHAPE(length, half)), *s = ek_empty(EK_SHAPE(length, half));
    if (!c || !s)
        return ek_error_pending();
    float *c_data = ek_tensor_data(c), *s_data = ek_tensor_data(s);
    for (int64_t l = 0; l < length; l++)
        for (int64_t i = 0; i < half; i++) {
            const double angle = (double)l / pow(base, 2 * (double)i / (double)dim);
            c_data[l * half + i] = (float)cos(angle);
            s_data[l * half + i] = (float)sin(angle);
        }
    *cosine = c;
    *sine = s;
    return 0;
}

static ek_tensor *rotary_turned(ek_tensor *x, ek_tensor *cosine, ek_tensor *sine,
                                ek_rotary_attributes attributes);

/* A rotation's adjoint is the rotation back. Saved cosine, sine. */
EK_BACKWARD(rotary, ek_rotary_attributes,
            rotary_turned(g, ek_node_saved(node, 0), ek_node_saved(node, 1),
                          ((ek_rotary_attributes){a->pairs, !a->back})))
EK_OPERATION(rotary, "rotary", rotary_backward);

/* One half of the pairs, as a view. */
static ek_tensor *rotary_half(ek_tensor *x, int which, ek_rotary_pairs pairs)
{
    const int64_t size = x->shape[x->ndim - 1];
    return pairs == EK_ROTARY_INTERLEAVED ? ek_slice(x, -1, which, size, 2)
                                          : ek_narrow(x, -1, which * (size / 2), size / 2);
}

/* Writes a cosine -+ b sine to a half of y. */
static int rotary_write(ek_tensor *half, ek_tensor *a, ek_tensor *cosine, ek_tensor *b,
                        ek_tensor *sine, double sign)
{
    ek_tensor *turned =
        half && a && b ? ek_add_scaled(ek_mul(a, cosine), ek_mul(b, sine), sign) : NULL;
    return turned ? ek_transfer(half, turned) : ek_error_pending();
}

static ek_tensor *rotary_turned(ek_tensor *x, ek_tensor *cosine, ek_tensor *sine,
                                ek_rotary_attributes attributes)
{
    if (!x || !cosine || !sine)
        return NULL;
    ek_tensor *y = ek_result(x, NULL, NULL, x->dtype);
    if (!y)
        return NULL;
    ek_scope scope = ek_scope_begin();
    const bool before = ek_set_grad_enabled(false);
    const double sign = attributes.back ? -1 : 1;
    ek_tensor *first = rotary_half(x, 0, attributes.pairs);
    ek_tensor *second = rotary_half(x, 1, attributes.pairs);
    int rc = rotary_write(rotary_half(y, 0, attributes.pairs), first, cosine, second, sine, -sign);
    if (rc >= 0)
        rc = rotary_write(rotary_half(y, 1, attributes.pairs), second, cosine, first, sine, sign);
    ek_set_grad_enabled(before);
    ek_scope_end(&scope);
    return rc < 0 ? NULL
                  : EK_RECORD(y, &rotary_operation, EK_INPUTS(x), EK_SAVED(cosine, sine),
                              EK_ATTRIBUTES(attributes));
}

static bool rotary_table_fits(const char *name, const ek_tensor *table, const ek_tensor *x)
{
    if (!ek_floating("rotary", name, table) || !ek_same_device("rotary", x, table))
        return false;
    ek_shape all, own = ek_tensor_shape(table), wanted = ek_tensor_shape(x);
    wanted.dims[x->ndim - 1] /= 2;
    return (ek_broadcast_shapes("rotary", &own, &wanted, &all) >= 0 &&
            ek_shape_equal(&all, &wanted)) ||
           EK_REFUSE(EK_E_SHAPE, "rotary: %s of shape %s doesn't broadcast to %s", name,
                     EK_SHAPE_TEXT(&own), EK_SHAPE_TEXT(&wanted)) != NULL;
}

ek_tensor *ek_f_rotary(ek_tensor *x, ek_tensor *cosine, ek_tensor *sine, ek_rotary_pairs pairs)
{
    if (!ek_floating("rotary", "x", x) ||
        !ek_chosen("rotary", "pairs", (int)pairs, 2, "EK_ROTARY_HALVES, EK_ROTARY_INTERLEAVED"))
        return NULL;
    if (x->ndim < 1 || x->shape[x->ndim - 1] % 2 != 0)
        return EK_REFUSE(EK_E_SHAPE, "rotary: x needs a last dimension of even size, got %s",
                         EK_TENSOR_TEXT(x));
    if (!rotary_table_fits("cosine", cosine, x) || !rotary_table_fits("sine", sine, x))
        return NULL;
    ek_scope scope = ek_scope_begin();
    cosine = ek_to_dtype(ek_detach(cosine), x->dtype);
    sine = ek_to_dtype(ek_detach(sine), x->dtype);
    return ek_scope_return(&scope,
                           rotary_turned(x, cosine, sine, (ek_rotary_attributes){pairs, false}));
}

/* ---- embeddings ---- */

typedef struct embedding_attributes {
    ek_shape shape;      /* of the weight */
    int64_t padding_idx; /* -1: none */
} embedding_attributes;

/* g with rows of the padding 0. */
static ek_tensor *embedding_unpadded(ek_tensor *g, ek_tensor *index, int64_t padding_idx)
{
    if (!g || !index || padding_idx < 0)
        return g;
    ek_tensor *counts = ek_ne(index, ek_number_like(index, (double)padding_idx));
    return counts ? ek_where(ek_unsqueeze(counts, 1), g, ek_number_like(g, 0)) : NULL;
}

/* Saved the index, of one dimension. */
EK_BACKWARD(embedding, embedding_attributes,
            ek_index_sum(embedding_unpadded(g, ek_node_saved(node, 0), a->padding_idx), 0,
                         ek_node_saved(node, 0), &a->shape))
EK_OPERATION(embedding, "embedding", embedding_backward);

static ek_tensor *embedding(const ek_embedding_options *o)
{
    ek_tensor *weight = o->weight, *index = NULL;
    if (!ek_floating("embedding", "weight", weight) ||
        !(index = ek_as_index("embedding", "index", o->index)) ||
        !ek_same_device("embedding", weight, index))
        return NULL;
    if (weight->ndim != 2)
        return EK_REFUSE(EK_E_SHAPE, "embedding: expected a weight of 2 dimensions, got %s",
                         EK_TENSOR_TEXT(weight));
    const int64_t padding = o->padding_idx, rows = weight->shape[0];
    embedding_attributes attributes = {ek_tensor_shape(weight), -1};
    if (padding != EK_UNSET) {
        attributes.padding_idx = padding < 0 ? padding + rows : padding;
        if (attributes.padding_idx < 0 || attributes.padding_idx >= rows)
            return EK_REFUSE(EK_E_INVALID,
                             "embedding: padding_idx is %lld, but the weight has %lld rows",
                             (long long)padding, (long long)rows);
    }
    ek_shape shape = ek_tensor_shape(index);
    if (shape.ndim == EK_MAX_DIMS)
        return EK_REFUSE(EK_E_SHAPE, "embedding: an index may have %d dimensions, got %s",
                         EK_MAX_DIMS - 1, EK_TENSOR_TEXT(index));
    shape.dims[shape.ndim++] = weight->shape[1];
    const bool before = ek_set_grad_enabled(false);
    ek_tensor *flat = ek_reshape(index, EK_SHAPE(ek_count(index)));
    ek_tensor *y = flat ? ek_index_select(weight, 0, flat) : NULL;
    ek_set_grad_enabled(before);
    return ek_reshape(EK_RECORD(y, &embedding_operation, EK_INPUTS(weight), EK_SAVED(flat),
                                EK_ATTRIBUTES(attributes)),
                      shape);
}

ek_tensor *ek_f_embedding_with(ek_embedding_options options)
{
    ek_scope scope = ek_scope_begin();
    return ek_scope_return(&scope, embedding(&options));
}

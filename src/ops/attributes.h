/* attributes.h: attributes of recorded operations that others read (autograd/observer.h). The
 * attributes of elementwise operations are in unary.h, those of normalisation in norm.h, those of
 * attention in attention_second.h. Operations that are not here have none, or one public type. */
#ifndef EK_OPS_ATTRIBUTES_H
#define EK_OPS_ATTRIBUTES_H

#include "autograd/graph.h"
#include "evenkeel/attention.h"
#include "kernels/params.h"

/* slice, select: ek_slice_attributes (autograd/graph.h). */

/* pad. */
typedef struct ek_pad_attributes {
    int64_t before[EK_MAX_DIMS], after[EK_MAX_DIMS]; /* of each dimension; negative ones cut */
    double value;
} ek_pad_attributes;

/* roll. */
typedef struct ek_roll_attributes {
    int dim;
    int64_t shift; /* from 0 to size - 1 */
} ek_roll_attributes;

/* index_select, index_add, gather, scatter. */
typedef struct ek_index_attributes {
    ek_shape shape; /* the input's shape */
    int dim;
} ek_index_attributes;

/* sum. */
typedef struct ek_sum_attributes {
    ek_shape whole; /* the input's shape */
    ek_shape kept;  /* `whole` with size 1 in reduced dimensions */
} ek_sum_attributes;

/* var. */
typedef struct ek_variance_attributes {
    unsigned mask;
    double share; /* 1 / (n - correction); infinite if that is not above 0, which gives NaN */
} ek_variance_attributes;

/* softmax, log_softmax. */
typedef struct ek_softmax_attributes {
    int dim;
    bool logarithm;
} ek_softmax_attributes;

/* rotary. */
typedef struct ek_rotary_attributes {
    ek_rotary_pairs pairs;
    bool back; /* the other way round */
} ek_rotary_attributes;

/* conv1d to conv_transpose3d: shapes of a convolution from x to y, which a transposed convolution
 * maps back. A convolution of one dimension is lifted to two. */
typedef struct ek_conv_attributes {
    const struct conv_family *family;
    ek_conv_params params;
    ek_shape x, w, y;
} ek_conv_attributes;

/* max_pool1d to adaptive_avg_pool3d: a pool maps images of `x` to images of `y`. */
typedef struct ek_pool_attributes {
    const struct pool_family *family;
    ek_pool_params params; /* dims is 0 for adaptive pools */
    ek_shape x, y;
    ek_memory_format format;
} ek_pool_attributes;

/* interpolate: maps images of `from` to images of `to`. */
typedef struct ek_interpolate_attributes {
    ek_resample_params params;
    ek_shape from, to;
    ek_memory_format format;
} ek_interpolate_attributes;

#endif

/* ops.c: a module per chain of operations. Each chain treats samples one by one. */
#include <evenkeel/ops.h>

#include "modules.h"
#include "program.h"

typedef struct ops_module {
    ek_module module;
    int variant;
} ops_module;

/* Writes all dimensions but the first; returns how many there are. */
static int per_sample(ek_tensor *x, int dims[EK_MAX_DIMS])
{
    int count = 0;
    for (int i = 1; i < ek_tensor_ndim(x); i++)
        dims[count++] = i;
    return count;
}

static ek_tensor *bounded(ek_tensor *x)
{
    return ek_exp(ek_clamp(x, -2, 1.5));
}

static ek_tensor *softplus(ek_tensor *x)
{
    return ek_f_softplus(x);
}

static ek_tensor *softmax(ek_tensor *x)
{
    return ek_f_softmax(x, 1);
}

static ek_tensor *log_softmax(ek_tensor *x)
{
    return ek_f_log_softmax(x, 1);
}

static ek_tensor *squashed(ek_tensor *x)
{
    return ek_div(x, ek_sqrt(ek_add_scalar(ek_square(x), 1)));
}

static ek_tensor *centered(ek_tensor *x)
{
    ek_reduce_options options = EK_DEFAULTS(ek_reduce_options);
    options.x = x;
    options.keepdim = true;
    options.dim_count = per_sample(x, options.dims);
    return ek_sub(x, ek_mean_with(options));
}

static ek_tensor *unit(ek_tensor *x)
{
    ek_p_norm_options options = EK_DEFAULTS(ek_p_norm_options);
    options.x = x;
    options.keepdim = true;
    options.dim_count = per_sample(x, options.dims);
    return ek_div(x, ek_add_scalar(ek_norm_with(options), 1));
}

static ek_tensor *rolled(ek_tensor *x)
{
    int64_t n = ek_tensor_size(x, 1), half = n / 2;
    ek_tensor *parts[2] = {ek_narrow(x, 1, half, n - half), ek_narrow(x, 1, 0, half)};
    return half ? ek_cat(parts, 2, 1) : ek_clone(x);
}

static ek_tensor *chosen(ek_tensor *x)
{
    ek_tensor *shifted = ek_add_scalar(rolled(x), 0.05);
    return ek_where(ek_gt(x, shifted), ek_mul_scalar(x, 0.3), shifted);
}

static ek_tensor *limited(ek_tensor *x)
{
    ek_tensor *y = ek_maximum(x, ek_add_scalar(ek_mul_scalar(x, 0.3), -0.1));
    return ek_minimum(y, ek_add_scalar(ek_neg(y), 3));
}

static ek_tensor *turned(ek_tensor *x)
{
    ek_tensor *y = ek_contiguous(ek_transpose(x, 1, -1), EK_CONTIGUOUS);
    return ek_transpose(ek_mul_scalar(y, 1.1), 1, -1);
}

static ek_tensor *stacked(ek_tensor *x)
{
    ek_tensor *both[2] = {x, ek_f_tanh(x)};
    return ek_mean(ek_stack(both, 2, 1), EK_DIMS(1));
}

/* The other way round along dimension 1. */
static ek_tensor *reversal(ek_tensor *x)
{
    int64_t n = ek_tensor_size(x, 1);
    ek_tensor *index = ek_arange(n, EK_I64, ek_cpu());
    int64_t *data = index ? ek_tensor_data(index) : NULL;
    for (int64_t i = 0; data && i < n; i++)
        data[i] = n - 1 - i;
    if (index)
        ek_tensor_touch(index);
    return ek_to_device(index, ek_tensor_device(x));
}

static ek_tensor *selected(ek_tensor *x)
{
    return ek_index_select(ek_mul_scalar(x, 0.9), 1, reversal(x));
}

static ek_tensor *gathered(ek_tensor *x)
{
    ek_shape flat = {2, {ek_tensor_size(x, 0), -1}};
    ek_tensor *y = ek_reshape(x, flat), *index = y ? reversal(y) : NULL;
    index = y ? ek_contiguous(ek_expand(index, ek_tensor_shape(y)), EK_CONTIGUOUS) : NULL;
    y = ek_gather_dim(y, 1, index);
    y = y ? ek_scatter_add_dim(ek_square(y), 1, index, ek_tensor_shape(y)) : NULL;
    return ek_reshape(ek_f_tanh(y), ek_tensor_shape(x));
}

/* A product of matrices per sample. */
static ek_tensor *attended(ek_tensor *x)
{
    ek_shape matrix = {3, {ek_tensor_size(x, 0), ek_tensor_size(x, 1), -1}};
    ek_tensor *y = ek_reshape(x, matrix);
    ek_tensor *weight = ek_f_softmax(ek_matmul(y, ek_transpose(y, 1, 2)), -1);
    return ek_reshape(ek_matmul(weight, y), ek_tensor_shape(x));
}

static ek_tensor *from_largest(ek_tensor *x)
{
    return ek_sub(x, ek_max_dim(x, 1, true));
}

static ek_tensor *in_pieces(ek_tensor *x)
{
    ek_tensor *pieces[3], *turned_round[3];
    int count = ek_chunk(x, 3, 1, pieces, 3);
    for (int i = 0; i < count; i++)
        turned_round[i] = ek_mul_scalar(pieces[count - 1 - i], 1 + 0.1 * i);
    return count < 0 ? NULL : ek_cat(turned_round, count, 1);
}

static ek_tensor *powers(ek_tensor *x)
{
    ek_tensor *y = ek_pow_scalar(ek_add_scalar(ek_square(x), 1), 0.75);
    return ek_mul(ek_log(y), ek_add_scaled(ek_reciprocal(y), ek_sign(ek_add_scalar(x, 9)), 0.5));
}

static ek_tensor *in_place(ek_tensor *x)
{
    ek_tensor *y = ek_mul_scalar(x, 1);
    y = ek_add_(ek_mul_scalar_(y, 0.7), ek_f_sigmoid(x));
    return ek_contiguous(y, ek_tensor_ndim(x) == 4 ? EK_CHANNELS_LAST : EK_CONTIGUOUS);
}

static const struct {
    const char *name;
    ek_tensor *(*apply)(ek_tensor *x);
} chains[OPS_VARIANTS] = {
    {"bounded", bounded},     {"softplus", softplus},
    {"softmax", softmax},     {"log_softmax", log_softmax},
    {"squashed", squashed},   {"centered", centered},
    {"unit", unit},           {"rolled", rolled},
    {"chosen", chosen},       {"limited", limited},
    {"turned", turned},       {"stacked", stacked},
    {"selected", selected},   {"gathered", gathered},
    {"attended", attended},   {"from_largest", from_largest},
    {"in_pieces", in_pieces}, {"powers", powers},
    {"in_place", in_place},
};

const char *ops_name(int variant)
{
    return chains[variant % OPS_VARIANTS].name;
}

bool ops_center(int variant)
{
    return chains[variant % OPS_VARIANTS].apply == centered ||
           chains[variant % OPS_VARIANTS].apply == from_largest;
}

static ek_value ops_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0);
    return x ? ek_value_of_tensor(chains[((ops_module *)module)->variant].apply(x))
             : ek_value_error();
}

static const ek_module_type ops_type = {.name = "ops",
                                        .size = sizeof(ops_module),
                                        .forward = ops_forward};

ek_module *ops_new(int variant)
{
    ops_module *self = (ops_module *)ek_module_new(&ops_type);
    if (self)
        self->variant = variant % OPS_VARIANTS;
    return self ? &self->module : NULL;
}

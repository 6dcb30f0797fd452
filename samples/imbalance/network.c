/* network.c: the segmentation network and its criterion, against the public headers alone. */
#include "imbalance/network.h"

/* ---- network ---- */

static ek_module *stage(int in, int out, int stride)
{
    return ek_sequential(ek_conv2d(in, out, 3, .stride = stride, .padding = 1),
                         ek_batch_norm2d(out), ek_relu());
}

ek_module *segmentation_network(int width)
{
    return ek_sequential(stage(1, width, 2), stage(width, 2 * width, 2),
                         stage(2 * width, 2 * width, 1), stage(2 * width, 4 * width, 2),
                         stage(4 * width, 4 * width, 1), stage(4 * width, 6 * width, 1),
                         ek_conv2d(6 * width, CLASSES, 1));
}

/* ---- criterion ---- */

typedef struct criterion {
    ek_module module;
    int64_t ignore_index;
    ek_reduction reduction;
} criterion;

/* Targets are kept and sent as bytes; the loss takes i64. */
static ek_tensor *class_indices(const ek_args *args)
{
    return ek_to_dtype(ek_arg_tensor(args, 1), EK_I64);
}

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    criterion *self = (criterion *)module;
    ek_tensor *target = class_indices(args);
    if (!target)
        return ek_value_error();
    if (ek_tensor_ndim(target) != 3) {
        ek_error(EK_E_SHAPE, "criterion_ce: the target has %d dimensions; (N, H, W) is wanted",
                 ek_tensor_ndim(target));
        return ek_value_error();
    }
    ek_tensor *logits = ek_f_upsample(ek_arg_tensor(args, 0), ek_tensor_size(target, 1),
                                      ek_tensor_size(target, 2), EK_BILINEAR, true);
    return ek_value_of_tensor(ek_f_cross_entropy(logits, target, .reduction = self->reduction,
                                                 .ignore_index = self->ignore_index));
}

/* The mean is over pixels that are not ignored; said here, means over uneven devices stay exact. */
static ek_tensor *criterion_denominator(ek_module *module, const ek_args *args)
{
    criterion *self = (criterion *)module;
    ek_tensor *logits = ek_arg_tensor(args, 0);

    return logits ? ek_target_weight(class_indices(args), NULL, self->ignore_index,
                                     ek_tensor_dtype(logits))
                  : NULL;
}

static const ek_module_type criterion_type = {
    .name = "criterion_ce",
    .size = sizeof(criterion),
    .forward = criterion_forward,
    .denominator = criterion_denominator,
};

ek_module *criterion_ce_with(criterion_ce_options options)
{
    criterion *self = (criterion *)ek_module_new(&criterion_type);

    if (!self)
        return NULL;
    int64_t ignored = EK_GIVEN(&options, ignore_index, 0);
    self->ignore_index = ignored == 0 ? -100 : ignored == EK_ZERO ? 0 : ignored;
    self->reduction = options.per_pixel ? EK_NONE : EK_MEAN;
    return &self->module;
}

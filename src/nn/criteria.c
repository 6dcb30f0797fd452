/* criteria.c: losses as modules, called as ek_loss(criterion, input, target). */
#include "core/tensor.h"
#include "nn/nn.h"

typedef struct criterion {
    ek_module module;
    ek_tensor *weight;     /* per class, or for bce per element; may be NULL */
    ek_tensor *pos_weight; /* bce: per positive target; may be NULL */
    ek_reduction reduction;
    int64_t ignore_index; /* 0: default; EK_ZERO: 0 (EK_GIVEN) */
    double label_smoothing;
} criterion;

static ek_loss_options criterion_loss_options(ek_module *module, const ek_args *args)
{
    const criterion *self = (criterion *)module;
    if (ek_check_inputs(module, args, 2) < 0)
        return (ek_loss_options){0};
    return (ek_loss_options){.input = ek_arg_tensor(args, 0),
                             .target = ek_arg_tensor(args, 1),
                             .weight = self->weight,
                             .reduction = self->reduction,
                             .ignore_index = self->ignore_index,
                             .label_smoothing = self->label_smoothing,
                             .pos_weight = self->pos_weight};
}

static bool criterion_is_sum(ek_module *module)
{
    return ((criterion *)module)->reduction == EK_SUM;
}

/* ---- denominators: f32 for bf16 inputs, because bf16 cannot count ---- */

static ek_dtype criterion_counting_dtype(const ek_tensor *input)
{
    return input->dtype == EK_F64 ? EK_F64 : EK_F32;
}

/* The sum of the weights of the targets that count. */
static ek_tensor *criterion_class_denominator(ek_module *module, const ek_args *args)
{
    const criterion *self = (criterion *)module;
    ek_loss_options options = criterion_loss_options(module, args);
    if (!options.input || !options.target)
        return NULL;
    return ek_target_weight(options.target, self->weight, ek_integer_or(self->ignore_index, -100),
                            criterion_counting_dtype(options.input));
}

/* How many elements input and target have when broadcast together. A double, because views that
 * repeat elements can have more than an integer holds. */
static double criterion_element_count(const ek_tensor *x, const ek_tensor *y)
{
    double count = 1;
    for (int i = 1; i <= x->ndim || i <= y->ndim; i++) {
        int64_t a = i <= x->ndim ? x->shape[x->ndim - i] : 1;
        int64_t b = i <= y->ndim ? y->shape[y->ndim - i] : 1;
        count *= (double)(a == 1 ? b : a);
    }
    return count;
}

static ek_tensor *criterion_element_denominator(ek_module *module, const ek_args *args)
{
    ek_loss_options options = criterion_loss_options(module, args);
    const ek_tensor *x = options.input, *y = options.target;
    if (!x || !y)
        return NULL;
    return ek_scalar(criterion_element_count(x, y), criterion_counting_dtype(x),
                     x->storage->dev->id);
}

/* ---- the criteria ---- */

typedef ek_tensor *loss_function(ek_loss_options options);

/* The loss as a sum and a weight. A sum, or a loss per element, has no weight. A count of elements
 * needs no kernel, and stays on cpu. */
static int criterion_loss_sum(ek_module *module, const ek_args *args, loss_function *function,
                              ek_loss_sum *loss)
{
    ek_loss_options options = criterion_loss_options(module, args);
    bool is_mean = options.reduction == EK_MEAN;
    if (is_mean)
        options.reduction = EK_SUM;
    loss->sum = function(options);
    if (!loss->sum || !is_mean)
        return loss->sum ? 0 : ek_error_pending();
    if (module->type->denominator == criterion_class_denominator)
        loss->weight = criterion_class_denominator(module, args);
    else
        loss->weight =
            ek_scalar(criterion_element_count(options.input, options.target), EK_F64, ek_cpu());
    return loss->weight ? 0 : ek_error_pending();
}

#define EK_CRITERION(criterion_name, function, denominator_function)                            \
    static ek_value criterion_name##_forward(ek_module *module, const ek_args *args)            \
    {                                                                                           \
        return ek_value_of_tensor(function(criterion_loss_options(module, args)));              \
    }                                                                                           \
    static int criterion_name##_loss_sum(ek_module *module, const ek_args *args,                \
                                         ek_loss_sum *loss)                                     \
    {                                                                                           \
        return criterion_loss_sum(module, args, function, loss);                                \
    }                                                                                           \
    static const ek_module_type criterion_name##_type = {.name = #criterion_name,               \
                                                         .size = sizeof(criterion),             \
                                                         .forward = criterion_name##_forward,   \
                                                         .loss_sum = criterion_name##_loss_sum, \
                                                         .denominator = denominator_function,   \
                                                         .is_sum = criterion_is_sum};

EK_CRITERION(cross_entropy_loss, ek_f_cross_entropy_with, criterion_class_denominator)
EK_CRITERION(nll_loss, ek_f_nll_loss_with, criterion_class_denominator)
EK_CRITERION(mse_loss, ek_f_mse_loss_with, criterion_element_denominator)
EK_CRITERION(l1_loss, ek_f_l1_loss_with, criterion_element_denominator)
EK_CRITERION(bce_with_logits_loss, ek_f_bce_with_logits_with, criterion_element_denominator)

static ek_module *criterion_new(const ek_module_type *type, const ek_criterion_options *options,
                                bool takes_weight)
{
    bool classes = type->denominator == criterion_class_denominator;
    bool smooths = type == &cross_entropy_loss_type;
    bool has_positives = type == &bce_with_logits_loss_type;
    if ((unsigned)options->reduction > EK_NONE)
        EK_FAIL(EK_E_INVALID, "%s: reduction %d is none of EK_MEAN, EK_SUM, EK_NONE", type->name,
                (int)options->reduction);
    else if (EK_GIVEN(options, ignore_index, 1) != 0 && !classes)
        EK_FAIL(EK_E_INVALID, "%s has no ignore_index: its targets are no classes", type->name);
    else if (options->label_smoothing != 0 && !smooths)
        EK_FAIL(EK_E_INVALID, "%s has no label_smoothing; cross_entropy_loss has", type->name);
    else if (!(options->label_smoothing >= 0 && options->label_smoothing <= 1))
        EK_FAIL(EK_E_INVALID, "%s: label_smoothing has to be between 0 and 1, not %g", type->name,
                options->label_smoothing);
    else if (options->weight && !takes_weight)
        EK_FAIL(EK_E_INVALID, "%s takes no weight", type->name);
    else if (options->pos_weight && !has_positives)
        EK_FAIL(EK_E_INVALID, "%s takes no pos_weight; bce_with_logits_loss does", type->name);
    if (ek_error_status() < 0)
        return NULL;
    criterion *self = (criterion *)ek_module_new(type);
    if (!self)
        return NULL;
    self->reduction = options->reduction;
    self->ignore_index = EK_GIVEN(options, ignore_index, 1);
    self->label_smoothing = options->label_smoothing;
    if (takes_weight)
        ek_register_buffer(&self->module, "weight", &self->weight, options->weight);
    if (has_positives)
        ek_register_buffer(&self->module, "pos_weight", &self->pos_weight, options->pos_weight);
    return ek_module_finish(&self->module);
}

ek_module *ek_cross_entropy_loss_with(ek_criterion_options options)
{
    return criterion_new(&cross_entropy_loss_type, &options, true);
}

ek_module *ek_nll_loss_with(ek_criterion_options options)
{
    return criterion_new(&nll_loss_type, &options, true);
}

ek_module *ek_mse_loss_with(ek_criterion_options options)
{
    return criterion_new(&mse_loss_type, &options, false);
}

ek_module *ek_l1_loss_with(ek_criterion_options options)
{
    return criterion_new(&l1_loss_type, &options, false);
}

ek_module *ek_bce_with_logits_loss_with(ek_criterion_options options)
{
    return criterion_new(&bce_with_logits_loss_type, &options, true);
}

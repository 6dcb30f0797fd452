/* criteria.c: losses as modules, called as ek_loss(criterion, input, target).
 *
 * A criterion is a row: the number of tensors it is called with, the divisor of its mean, the
 * places of some of its options, and the call of its function. To add a criterion, add a row here,
 * and its options and constructor in criteria.h. */
#include <stddef.h>
#include <string.h>

#include "core/tensor.h"
#include "core/value.h"
#include "nn/nn.h"

enum { CRITERION_INPUTS = 4 };

/* The first members of all criteria. A criterion's options follow. */
typedef struct criterion {
    ek_module module;
    ek_reduction reduction;
} criterion;

typedef struct criterion_kind {
    ek_module_type type; /* first: a module's type leads to its kind */
    int inputs;

    /* Offsets of options in the criterion; 0: it has no such option. Tensors become buffers. */
    size_t weight, pos_weight, ignore_index, label_smoothing, batch_first;

    /* Computes the loss. x has `inputs` tensors. */
    ek_tensor *(*call)(const criterion *self, ek_tensor *const *x, ek_reduction reduction);

    /* Returns the divisor of a mean. NULL: the divisor is the sum of the targets' weights. */
    double (*count)(const criterion *self, ek_tensor *const *x);

    bool scales;     /* the sum is the mean times the divisor, and isn't computed separately */
    bool batch_mean; /* EK_BATCH_MEAN is one of its reductions */
} criterion_kind;

static const criterion_kind *criterion_kind_of(const ek_module *module)
{
    return (const criterion_kind *)module->type;
}

/* Returns the address of the option at this offset. */
static void *criterion_option(const criterion *self, size_t place)
{
    return (char *)self + place;
}

/* Spreads lists as ek_loss does, but turns (list of two outputs, target) into (output, target,
 * output): gaussian_nll_loss has its variance last. */
static int criterion_spread(const ek_args *args, ek_args *own)
{
    const ek_value outputs = args->count == 2 ? args->inputs[0] : ek_value_none();
    const bool turns =
        outputs.kind == EK_VALUE_LIST && !outputs.per_device && ek_value_length(outputs) == 2;
    ek_value list = turns
                        ? EK_LIST(ek_value_at(outputs, 0), args->inputs[1], ek_value_at(outputs, 1))
                        : ek_spread(args->inputs, args->count);
    if (list.kind == EK_VALUE_ERROR)
        return ek_error_pending();
    own->inputs = ek_value_items(list);
    own->count = ek_value_length(list);
    return 0;
}

/* Reads the tensors that the criterion is called with. */
static bool criterion_inputs(ek_module *module, const ek_args *args, ek_tensor **x)
{
    const criterion_kind *kind = criterion_kind_of(module);
    ek_args own = *args;
    if (kind->type.takes_lists && criterion_spread(args, &own) < 0)
        return false;
    if (ek_check_inputs(module, &own, kind->inputs) < 0)
        return false;
    for (int i = 0; i < kind->inputs; i++)
        if (!(x[i] = ek_arg_tensor(&own, i)))
            return false;
    return true;
}

static bool criterion_is_sum(ek_module *module)
{
    return ((criterion *)module)->reduction == EK_SUM;
}

/* ---- by what means divide ---- */

/* Returns how many elements the tensors have when broadcast together, without their last `dropped`
 * dimensions. A double, because views that repeat elements can have more than an integer holds. */
static double criterion_broadcast_count(ek_tensor *const *x, int tensors, int dropped)
{
    double count = 1;
    for (int i = dropped + 1; i <= EK_MAX_DIMS; i++) {
        int64_t size = 1;
        for (int t = 0; t < tensors; t++)
            if (i <= x[t]->ndim && size == 1)
                size = x[t]->shape[x[t]->ndim - i];
        count *= (double)size;
    }
    return count;
}

static double criterion_count_elements(const criterion *self, ek_tensor *const *x)
{
    (void)self;
    return criterion_broadcast_count(x, 2, 0);
}

static double criterion_count_of_three(const criterion *self, ek_tensor *const *x)
{
    (void)self;
    return criterion_broadcast_count(x, 3, 0);
}

static double criterion_count_rows(const criterion *self, ek_tensor *const *x)
{
    (void)self;
    return criterion_broadcast_count(x, 1, 1);
}

static double criterion_count_triplets(const criterion *self, ek_tensor *const *x)
{
    (void)self;
    return criterion_broadcast_count(x, 3, 1);
}

static double criterion_count_of_reduction(const criterion *self, ek_tensor *const *x)
{
    if (self->reduction == EK_BATCH_MEAN)
        return x[0]->ndim > 0 ? (double)x[0]->shape[0] : 1;
    return criterion_count_elements(self, x);
}

static double criterion_count_sequences(const criterion *self, ek_tensor *const *x)
{
    if (x[0]->ndim < 2)
        return 0; /* the call refuses it */
    const bool *batch_first = criterion_option(self, criterion_kind_of(&self->module)->batch_first);
    return (double)x[0]->shape[*batch_first ? 0 : 1];
}

/* Returns the dtype for counts: f32 for bf16 inputs, because bf16 doesn't hold all small integers.
 */
static ek_dtype criterion_counting_dtype(const ek_tensor *input)
{
    return input->dtype == EK_F64 ? EK_F64 : EK_F32;
}

/* Returns the divisor of the mean. A count is made without a kernel, with this dtype and device. */
static ek_tensor *criterion_weight(const criterion *self, ek_tensor *const *x, ek_dtype dtype,
                                   ek_device device)
{
    const criterion_kind *kind = criterion_kind_of(&self->module);
    if (kind->count)
        return ek_scalar(kind->count(self, x), dtype, device);
    if (ek_dtype_is_floating(x[1]->dtype) && x[0]->ndim > 1) /* probabilities of classes */
        return ek_scalar((double)ek_count(x[0]) / (double)(x[0]->shape[1] ? x[0]->shape[1] : 1),
                         dtype, device);
    ek_tensor *const *weight = criterion_option(self, kind->weight);
    const int64_t *ignore_index = criterion_option(self, kind->ignore_index);
    return ek_target_weight(x[1], *weight, *ignore_index, criterion_counting_dtype(x[0]));
}

/* ---- what all criteria do ---- */

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    const criterion *self = (criterion *)module;
    ek_tensor *x[CRITERION_INPUTS];
    if (!criterion_inputs(module, args, x))
        return ek_value_error();
    return ek_value_of_tensor(criterion_kind_of(module)->call(self, x, self->reduction));
}

static ek_tensor *criterion_denominator(ek_module *module, const ek_args *args)
{
    ek_tensor *x[CRITERION_INPUTS];
    if (!criterion_inputs(module, args, x))
        return NULL;
    return criterion_weight((criterion *)module, x, criterion_counting_dtype(x[0]),
                            x[0]->storage->dev->id);
}

/* Computes the loss as a sum and a weight. With reduction EK_SUM or EK_NONE it has no weight. */
static int criterion_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *loss)
{
    const criterion *self = (criterion *)module;
    const criterion_kind *kind = criterion_kind_of(module);
    const ek_reduction reduction = self->reduction;
    const bool is_mean = reduction == EK_MEAN || reduction == EK_BATCH_MEAN;
    ek_tensor *x[CRITERION_INPUTS];
    if (!criterion_inputs(module, args, x))
        return ek_error_pending();
    loss->sum = kind->call(self, x, is_mean && !kind->scales ? EK_SUM : reduction);
    if (loss->sum && is_mean)
        loss->weight = criterion_weight(self, x, EK_F64, ek_cpu());
    if (!loss->sum || (is_mean && !loss->weight))
        return ek_error_pending();
    if (is_mean && kind->scales)
        loss->sum = ek_mul_scalar(loss->sum, kind->count(self, x));
    return loss->sum ? 0 : ek_error_pending();
}

/* ---- making ---- */

static int criterion_check(const criterion_kind *kind, const criterion *made)
{
    const char *name = kind->type.name;
    if ((unsigned)made->reduction > EK_BATCH_MEAN)
        return EK_FAIL(EK_E_INVALID, "%s: reduction %d is none of EK_MEAN, EK_SUM, EK_NONE", name,
                       (int)made->reduction);
    if (made->reduction == EK_BATCH_MEAN && !kind->batch_mean)
        return EK_FAIL(EK_E_INVALID, "%s: EK_BATCH_MEAN is a reduction of kl_div_loss", name);
    const double *smoothing = criterion_option(made, kind->label_smoothing);
    if (kind->label_smoothing && !(*smoothing >= 0 && *smoothing <= 1))
        return EK_FAIL(EK_E_INVALID, "%s: label_smoothing has to be between 0 and 1, not %g", name,
                       *smoothing);
    return ek_error_status();
}

/* Registers the tensor at this offset as a buffer, if the criterion has the option. */
static void criterion_register(criterion *self, const char *name, size_t place)
{
    ek_tensor **member = criterion_option(self, place);
    if (!place)
        return;
    ek_tensor *given = *member;
    *member = NULL;
    ek_register_buffer(&self->module, name, member, given);
}

/* Makes a criterion that is a copy of `made`, in which everything but the module is set. */
static ek_module *criterion_new(const criterion_kind *kind, const criterion *made)
{
    if (criterion_check(kind, made) < 0)
        return NULL;
    criterion *self = (criterion *)ek_module_new(&kind->type);
    if (!self)
        return NULL;
    memcpy(&self->module + 1, &made->module + 1, kind->type.size - sizeof(ek_module));
    criterion_register(self, "weight", kind->weight);
    criterion_register(self, "pos_weight", kind->pos_weight);
    return ek_module_finish(&self->module);
}

/* ---- the criteria ---- */

/* Defines a criterion: its struct, its kind and its constructor. `call` is an expression of o (its
 * options), x and reduction. Further arguments are members of the kind. */
#define CRITERION(id, options_, call_, ...)                                                    \
    typedef struct id##_criterion {                                                            \
        criterion base;                                                                        \
        options_ options;                                                                      \
    } id##_criterion;                                                                          \
    static ek_tensor *id##_call(const criterion *self, ek_tensor *const *x,                    \
                                ek_reduction reduction)                                        \
    {                                                                                          \
        const options_ *o = &((const id##_criterion *)self)->options;                          \
        (void)o;                                                                               \
        return call_;                                                                          \
    }                                                                                          \
    static const criterion_kind id##_kind = {.type = {.name = #id,                             \
                                                      .size = sizeof(id##_criterion),          \
                                                      .forward = criterion_forward,            \
                                                      .loss_sum = criterion_loss_sum,          \
                                                      .denominator = criterion_denominator,    \
                                                      .is_sum = criterion_is_sum},             \
                                             .call = id##_call,                                \
                                             __VA_ARGS__};                                     \
    ek_module *ek_##id##_with(options_ options)                                                \
    {                                                                                          \
        const id##_criterion made = {.base.reduction = options.reduction, .options = options}; \
        return criterion_new(&id##_kind, &made.base);                                          \
    }
#define PLACE(id, option) .option = offsetof(id##_criterion, options.option)

CRITERION(cross_entropy_loss, ek_cross_entropy_criterion_options,
          ek_f_cross_entropy(x[0], x[1], .weight = o->weight, .reduction = reduction,
                             .ignore_index = o->ignore_index,
                             .label_smoothing = o->label_smoothing),
          .inputs = 2, PLACE(cross_entropy_loss, weight), PLACE(cross_entropy_loss, ignore_index),
          PLACE(cross_entropy_loss, label_smoothing))
CRITERION(token_cross_entropy_loss, ek_cross_entropy_criterion_options,
          ek_f_token_cross_entropy(x[0], x[1], .weight = o->weight, .reduction = reduction,
                                   .ignore_index = o->ignore_index,
                                   .label_smoothing = o->label_smoothing),
          .inputs = 2, PLACE(token_cross_entropy_loss, weight),
          PLACE(token_cross_entropy_loss, ignore_index),
          PLACE(token_cross_entropy_loss, label_smoothing))
CRITERION(nll_loss, ek_nll_criterion_options,
          ek_f_nll_loss(x[0], x[1], .weight = o->weight, .reduction = reduction,
                        .ignore_index = o->ignore_index),
          .inputs = 2, PLACE(nll_loss, weight), PLACE(nll_loss, ignore_index))

CRITERION(mse_loss, ek_criterion_options, ek_f_mse_loss(x[0], x[1], .reduction = reduction),
          .inputs = 2, .count = criterion_count_elements)
CRITERION(l1_loss, ek_criterion_options, ek_f_l1_loss(x[0], x[1], .reduction = reduction),
          .inputs = 2, .count = criterion_count_elements)
CRITERION(smooth_l1_loss, ek_smooth_l1_criterion_options,
          ek_f_smooth_l1_loss(x[0], x[1], .reduction = reduction, .beta = o->beta), .inputs = 2,
          .count = criterion_count_elements)
CRITERION(huber_loss, ek_huber_criterion_options,
          ek_f_huber_loss(x[0], x[1], .reduction = reduction, .delta = o->delta), .inputs = 2,
          .count = criterion_count_elements)

CRITERION(bce_with_logits_loss, ek_bce_with_logits_criterion_options,
          ek_f_bce_with_logits(x[0], x[1], .weight = o->weight, .reduction = reduction,
                               .pos_weight = o->pos_weight),
          .inputs = 2, PLACE(bce_with_logits_loss, weight), PLACE(bce_with_logits_loss, pos_weight),
          .count = criterion_count_elements)
CRITERION(bce_loss, ek_weighted_criterion_options,
          ek_f_bce(x[0], x[1], .weight = o->weight, .reduction = reduction), .inputs = 2,
          PLACE(bce_loss, weight), .count = criterion_count_elements)
CRITERION(soft_margin_loss, ek_criterion_options,
          ek_f_soft_margin_loss(x[0], x[1], .reduction = reduction), .inputs = 2,
          .count = criterion_count_elements)
CRITERION(multilabel_soft_margin_loss, ek_weighted_criterion_options,
          ek_f_multilabel_soft_margin_loss(x[0], x[1], .weight = o->weight, .reduction = reduction),
          .inputs = 2, PLACE(multilabel_soft_margin_loss, weight), .count = criterion_count_rows)

CRITERION(kl_div_loss, ek_kl_div_criterion_options,
          ek_f_kl_div(x[0], x[1], .reduction = reduction, .log_target = o->log_target), .inputs = 2,
          .batch_mean = true, .count = criterion_count_of_reduction)
CRITERION(poisson_nll_loss, ek_poisson_nll_criterion_options,
          ek_f_poisson_nll_loss(x[0], x[1], .reduction = reduction, .log_input = o->log_input,
                                .eps = o->eps, .full = o->full),
          .inputs = 2, .count = criterion_count_elements)
CRITERION(gaussian_nll_loss, ek_gaussian_nll_criterion_options,
          ek_f_gaussian_nll_loss(x[0], x[1], x[2], .reduction = reduction, .eps = o->eps,
                                 .full = o->full),
          .inputs = 3, .type.takes_lists = true, .count = criterion_count_elements)

CRITERION(margin_ranking_loss, ek_margin_criterion_options,
          ek_f_margin_ranking_loss(x[0], x[1], x[2], .reduction = reduction, .margin = o->margin),
          .inputs = 3, .count = criterion_count_of_three)
CRITERION(hinge_embedding_loss, ek_hinge_embedding_criterion_options,
          ek_f_hinge_embedding_loss(x[0], x[1], .reduction = reduction, .margin = o->margin),
          .inputs = 2, .count = criterion_count_elements)
CRITERION(cosine_embedding_loss, ek_margin_criterion_options,
          ek_f_cosine_embedding_loss(x[0], x[1], x[2], .reduction = reduction, .margin = o->margin),
          .inputs = 3, .count = criterion_count_rows)
CRITERION(triplet_margin_loss, ek_triplet_margin_criterion_options,
          ek_f_triplet_margin_loss(x[0], x[1], x[2], .reduction = reduction, .margin = o->margin,
                                   .p = o->p, .eps = o->eps, .swap = o->swap),
          .inputs = 3, .count = criterion_count_triplets)
CRITERION(multi_margin_loss, ek_multi_margin_criterion_options,
          ek_f_multi_margin_loss(x[0], x[1], .weight = o->weight, .reduction = reduction, .p = o->p,
                                 .margin = o->margin),
          .inputs = 2, PLACE(multi_margin_loss, weight), .count = criterion_count_rows)
CRITERION(multilabel_margin_loss, ek_criterion_options,
          ek_f_multilabel_margin_loss(x[0], x[1], .reduction = reduction), .inputs = 2,
          .count = criterion_count_rows)

CRITERION(ctc_loss, ek_ctc_criterion_options,
          ek_f_ctc_loss(x[0], x[1], x[2], .target_lengths = x[3], .reduction = reduction,
                        .blank = o->blank, .zero_infinity = o->zero_infinity,
                        .batch_first = o->batch_first),
          .inputs = 4, PLACE(ctc_loss, batch_first), .count = criterion_count_sequences,
          .scales = true)

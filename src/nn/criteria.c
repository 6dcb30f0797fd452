/* criteria.c: losses as modules, called as ek_loss(criterion, input, target).
 *
 * A criterion is a row: how many tensors it is called with, which options it takes, by what its
 * mean divides, and the call of its function. To add one: a row here and its constructor in
 * criteria.h. */
#include "core/keywords.h"
#include "core/tensor.h"
#include "nn/nn.h"

/* The options that not all criteria take, in the order of ek_criterion_options, from its second
 * member on; and who takes them. */
#define CRITERION_OPTIONS(X)                                       \
    X(ignore_index, "the cross entropies and nll_loss do")         \
    X(weight, "the losses of classes, labels and bce do")          \
    X(label_smoothing, "the cross entropies do")                   \
    X(pos_weight, "bce_with_logits_loss does")                     \
    X(beta, "smooth_l1_loss does")                                 \
    X(delta, "huber_loss does")                                    \
    X(margin, "the losses of margins and hinge_embedding_loss do") \
    X(p, "triplet_margin_loss and multi_margin_loss do")           \
    X(eps, "triplet_margin, poisson_nll and gaussian_nll_loss do") \
    X(log_target, "kl_div_loss does")                              \
    X(log_input, "poisson_nll_loss does")                          \
    X(full, "poisson_nll_loss and gaussian_nll_loss do")           \
    X(swap, "triplet_margin_loss does")                            \
    X(blank, "ctc_loss does")                                      \
    X(zero_infinity, "ctc_loss does")                              \
    X(batch_first, "ctc_loss does")

#define CRITERION_BIT_NUMBER(name, takers) BIT_##name,
#define CRITERION_BIT(name, takers) TAKES_##name = 1 << BIT_##name,
enum { CRITERION_OPTIONS(CRITERION_BIT_NUMBER) OPTION_COUNT };
enum { CRITERION_OPTIONS(CRITERION_BIT) TAKES_batch_mean = 1 << OPTION_COUNT };

enum { CRITERION_INPUTS = 4 };

typedef struct criterion {
    ek_module module;
    ek_tensor *weight;     /* per class, or per element; may be NULL */
    ek_tensor *pos_weight; /* bce with logits: per positive target; may be NULL */
    ek_criterion_options
        options; /* numbers as EK_GIVEN has them, switches on or off; no tensors, no keywords */
} criterion;

typedef struct criterion_kind {
    ek_module_type type; /* first: a module's type leads to its kind */
    int inputs;
    unsigned takes;

    /* Computes the loss. x has `inputs` tensors. */
    ek_tensor *(*call)(const criterion *self, ek_tensor *const *x, ek_reduction reduction);

    /* By what a mean divides, if the host knows it. Else NULL: the weights of the targets. */
    double (*count)(const criterion *self, ek_tensor *const *x);

    bool scales; /* the mean isn't the sum divided by this number: it is multiplied with it */
} criterion_kind;

static const criterion_kind *criterion_kind_of(const ek_module *module)
{
    return (const criterion_kind *)module->type;
}

/* Reads the tensors that the criterion is called with. */
static bool criterion_inputs(ek_module *module, const ek_args *args, ek_tensor **x)
{
    const int count = criterion_kind_of(module)->inputs;
    if (ek_check_inputs(module, args, count) < 0)
        return false;
    for (int i = 0; i < count; i++)
        if (!(x[i] = ek_arg_tensor(args, i)))
            return false;
    return true;
}

static bool criterion_is_sum(ek_module *module)
{
    return ((criterion *)module)->options.reduction == EK_SUM;
}

/* ---- by what means divide ---- */

/* How many elements tensors have when broadcast together, without their last `dropped` dimensions.
 * A double, because views that repeat elements can have more than an integer holds. */
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
    if (self->options.reduction == EK_BATCH_MEAN)
        return x[0]->ndim > 0 ? (double)x[0]->shape[0] : 1;
    return criterion_count_elements(self, x);
}

static double criterion_count_sequences(const criterion *self, ek_tensor *const *x)
{
    if (x[0]->ndim < 2)
        return 0; /* the call refuses it */
    return (double)x[0]->shape[self->options.batch_first ? 0 : 1];
}

/* f32 for bf16 inputs, because bf16 cannot count. */
static ek_dtype criterion_counting_dtype(const ek_tensor *input)
{
    return input->dtype == EK_F64 ? EK_F64 : EK_F32;
}

/* The number by which the mean divides. A count needs no kernel, and has this dtype and device. */
static ek_tensor *criterion_weight(const criterion *self, ek_tensor *const *x, ek_dtype dtype,
                                   ek_device device)
{
    const criterion_kind *kind = criterion_kind_of(&self->module);
    if (kind->count)
        return ek_scalar(kind->count(self, x), dtype, device);
    if (ek_dtype_is_floating(x[1]->dtype) && x[0]->ndim > 1) /* probabilities of classes */
        return ek_scalar((double)ek_count(x[0]) / (double)(x[0]->shape[1] ? x[0]->shape[1] : 1),
                         dtype, device);
    return ek_target_weight(x[1], self->weight, ek_integer_or(self->options.ignore_index, -100),
                            criterion_counting_dtype(x[0]));
}

/* ---- what all criteria do ---- */

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    const criterion *self = (criterion *)module;
    ek_tensor *x[CRITERION_INPUTS];
    if (!criterion_inputs(module, args, x))
        return ek_value_error();
    return ek_value_of_tensor(criterion_kind_of(module)->call(self, x, self->options.reduction));
}

static ek_tensor *criterion_denominator(ek_module *module, const ek_args *args)
{
    ek_tensor *x[CRITERION_INPUTS];
    if (!criterion_inputs(module, args, x))
        return NULL;
    return criterion_weight((criterion *)module, x, criterion_counting_dtype(x[0]),
                            x[0]->storage->dev->id);
}

/* The loss as a sum and a weight. A sum, or a loss per element, has no weight. */
static int criterion_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *loss)
{
    const criterion *self = (criterion *)module;
    const criterion_kind *kind = criterion_kind_of(module);
    const ek_reduction reduction = self->options.reduction;
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

/* Checks that all options that are given are among those that the criterion takes. */
static int criterion_check_options(const criterion_kind *kind, const ek_criterion_options *o)
{
#define CRITERION_OPTION_NAME(name, takers) {#name, takers},
#define CRITERION_OPTION_GIVEN(name, takers)                                              \
    (unsigned)(o->name != 0 || ek_keyword_is_written(o->keywords, #name, BIT_##name + 1)) \
            << BIT_##name |
    static const struct {
        const char *name, *takers;
    } options[] = {CRITERION_OPTIONS(CRITERION_OPTION_NAME)};
    const unsigned given = CRITERION_OPTIONS(CRITERION_OPTION_GIVEN) 0u;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (given & ~kind->takes & 1u << i)
            return EK_FAIL(EK_E_INVALID, "%s takes no %s; %s", kind->type.name, options[i].name,
                           options[i].takers);
    return 0;
}

static int criterion_check(const criterion_kind *kind, const ek_criterion_options *options)
{
    const char *name = kind->type.name;
    if ((unsigned)options->reduction > EK_BATCH_MEAN)
        return EK_FAIL(EK_E_INVALID, "%s: reduction %d is none of EK_MEAN, EK_SUM, EK_NONE", name,
                       (int)options->reduction);
    if (options->reduction == EK_BATCH_MEAN && !(kind->takes & TAKES_batch_mean))
        return EK_FAIL(EK_E_INVALID, "%s: EK_BATCH_MEAN is a reduction of kl_div_loss", name);
    EK_TRY(criterion_check_options(kind, options));
    if (!(options->label_smoothing >= 0 && options->label_smoothing <= 1) &&
        options->label_smoothing != EK_ZERO)
        return EK_FAIL(EK_E_INVALID, "%s: label_smoothing has to be between 0 and 1, not %g", name,
                       options->label_smoothing);
    return ek_error_status();
}

static ek_module *criterion_new(const criterion_kind *kind, const ek_criterion_options *options)
{
    ek_criterion_options read = *options;
    if (criterion_check(kind, options) < 0 ||
        EK_READ_SWITCH(kind->type.name, &read, log_input, BIT_log_input + 1, EK_ON) < 0)
        return NULL;
    criterion *self = (criterion *)ek_module_new(&kind->type);
    if (!self)
        return NULL;
    ek_criterion_options *own = &self->options;
    *own = read;
    own->keywords = NULL;
    own->weight = own->pos_weight = NULL;
    own->ignore_index = EK_GIVEN(options, ignore_index, BIT_ignore_index + 1);
    own->beta = EK_GIVEN(options, beta, BIT_beta + 1);
    own->delta = EK_GIVEN(options, delta, BIT_delta + 1);
    own->margin = EK_GIVEN(options, margin, BIT_margin + 1);
    own->p = EK_GIVEN(options, p, BIT_p + 1);
    own->eps = EK_GIVEN(options, eps, BIT_eps + 1);
    if (kind->takes & TAKES_weight)
        ek_register_buffer(&self->module, "weight", &self->weight, options->weight);
    if (kind->takes & TAKES_pos_weight)
        ek_register_buffer(&self->module, "pos_weight", &self->pos_weight, options->pos_weight);
    return ek_module_finish(&self->module);
}

/* ---- the criteria ---- */

/* Defines a criterion: its kind and its constructor. The rest are the members of the kind, of which
 * `call` is an expression of self, o (its options), x and reduction. */
#define CRITERION(id, call_, ...)                                                           \
    static ek_tensor *id##_call(const criterion *self, ek_tensor *const *x,                 \
                                ek_reduction reduction)                                     \
    {                                                                                       \
        const ek_criterion_options *o = &self->options;                                     \
        (void)o;                                                                            \
        return call_;                                                                       \
    }                                                                                       \
    static const criterion_kind id##_kind = {.type = {.name = #id,                          \
                                                      .size = sizeof(criterion),            \
                                                      .forward = criterion_forward,         \
                                                      .loss_sum = criterion_loss_sum,       \
                                                      .denominator = criterion_denominator, \
                                                      .is_sum = criterion_is_sum},          \
                                             .call = id##_call,                             \
                                             __VA_ARGS__};                                  \
    ek_module *ek_##id##_with(ek_criterion_options options)                                 \
    {                                                                                       \
        return criterion_new(&id##_kind, &options);                                         \
    }

#define NUMBER(name, fallback) ek_number_or(o->name, fallback)
#define CLASSES                                                                                \
    x[0], x[1], self->weight, reduction, .ignore_index = ek_integer_or(o->ignore_index, -100), \
                                         .label_smoothing = NUMBER(label_smoothing, 0)

CRITERION(cross_entropy_loss, ek_f_cross_entropy(CLASSES), .inputs = 2,
          .takes = TAKES_weight | TAKES_ignore_index | TAKES_label_smoothing)
CRITERION(token_cross_entropy_loss, ek_f_token_cross_entropy(CLASSES), .inputs = 2,
          .takes = TAKES_weight | TAKES_ignore_index | TAKES_label_smoothing)
CRITERION(nll_loss,
          ek_f_nll_loss(x[0], x[1], self->weight, reduction, ek_integer_or(o->ignore_index, -100)),
          .inputs = 2, .takes = TAKES_weight | TAKES_ignore_index)

CRITERION(mse_loss, ek_f_mse_loss(x[0], x[1], reduction), .inputs = 2,
          .count = criterion_count_elements)
CRITERION(l1_loss, ek_f_l1_loss(x[0], x[1], reduction), .inputs = 2,
          .count = criterion_count_elements)
CRITERION(smooth_l1_loss, ek_f_smooth_l1_loss(x[0], x[1], reduction, NUMBER(beta, 1)), .inputs = 2,
          .takes = TAKES_beta, .count = criterion_count_elements)
CRITERION(huber_loss, ek_f_huber_loss(x[0], x[1], reduction, NUMBER(delta, 1)), .inputs = 2,
          .takes = TAKES_delta, .count = criterion_count_elements)

CRITERION(bce_with_logits_loss,
          ek_f_bce_with_logits(x[0], x[1], self->weight, reduction, self->pos_weight), .inputs = 2,
          .takes = TAKES_weight | TAKES_pos_weight, .count = criterion_count_elements)
CRITERION(bce_loss, ek_f_bce(x[0], x[1], self->weight, reduction), .inputs = 2,
          .takes = TAKES_weight, .count = criterion_count_elements)
CRITERION(soft_margin_loss, ek_f_soft_margin_loss(x[0], x[1], reduction), .inputs = 2,
          .count = criterion_count_elements)
CRITERION(multilabel_soft_margin_loss,
          ek_f_multilabel_soft_margin_loss(x[0], x[1], self->weight, reduction), .inputs = 2,
          .takes = TAKES_weight, .count = criterion_count_rows)

CRITERION(kl_div_loss, ek_f_kl_div(x[0], x[1], reduction, o->log_target), .inputs = 2,
          .takes = TAKES_log_target | TAKES_batch_mean, .count = criterion_count_of_reduction)
CRITERION(poisson_nll_loss,
          ek_f_poisson_nll_loss(x[0], x[1], reduction, o->log_input != EK_OFF, NUMBER(eps, 1e-8),
                                o->full),
          .inputs = 2, .takes = TAKES_log_input | TAKES_eps | TAKES_full,
          .count = criterion_count_elements)
CRITERION(gaussian_nll_loss,
          ek_f_gaussian_nll_loss(x[0], x[1], x[2], reduction, NUMBER(eps, 1e-6), o->full),
          .inputs = 3, .takes = TAKES_eps | TAKES_full, .count = criterion_count_elements)

CRITERION(margin_ranking_loss,
          ek_f_margin_ranking_loss(x[0], x[1], x[2], reduction, NUMBER(margin, 0)), .inputs = 3,
          .takes = TAKES_margin, .count = criterion_count_of_three)
CRITERION(hinge_embedding_loss, ek_f_hinge_embedding_loss(x[0], x[1], reduction, NUMBER(margin, 1)),
          .inputs = 2, .takes = TAKES_margin, .count = criterion_count_elements)
CRITERION(cosine_embedding_loss,
          ek_f_cosine_embedding_loss(x[0], x[1], x[2], reduction, NUMBER(margin, 0)), .inputs = 3,
          .takes = TAKES_margin, .count = criterion_count_rows)
CRITERION(triplet_margin_loss,
          ek_f_triplet_margin_loss(x[0], x[1], x[2], reduction, NUMBER(margin, 1), NUMBER(p, 2),
                                   NUMBER(eps, 1e-6), o->swap),
          .inputs = 3, .takes = TAKES_margin | TAKES_p | TAKES_eps | TAKES_swap,
          .count = criterion_count_triplets)
CRITERION(multi_margin_loss,
          ek_f_multi_margin_loss(x[0], x[1], self->weight, reduction, NUMBER(p, 1),
                                 NUMBER(margin, 1)),
          .inputs = 2, .takes = TAKES_weight | TAKES_margin | TAKES_p,
          .count = criterion_count_rows)
CRITERION(multilabel_margin_loss, ek_f_multilabel_margin_loss(x[0], x[1], reduction), .inputs = 2,
          .count = criterion_count_rows)

CRITERION(ctc_loss,
          ek_f_ctc_loss(x[0], x[1], x[2], x[3], reduction, .blank = o->blank,
                        .zero_infinity = o->zero_infinity, .batch_first = o->batch_first),
          .inputs = 4, .takes = TAKES_blank | TAKES_zero_infinity | TAKES_batch_first,
          .count = criterion_count_sequences, .scales = true)

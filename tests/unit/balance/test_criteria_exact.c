/* Each criterion under ek_data_parallel_criterion: loss and gradients are one device's, for uneven
 * chunks. */
#include "balance_setup.h"

enum { SAMPLES = 10, INPUTS = 4 };

typedef struct criterion_case {
    const char *name;
    ek_module *(*make)(ek_reduction reduction);
    int (*others)(ek_tensor **x); /* what follows the output; returns how many */
    bool flat;                    /* the output is (N, CLASSES) instead of (N, POINTS, CLASSES) */
} criterion_case;

/* Probabilities (n, CLASSES), or (n, POINTS, CLASSES). */
static ek_module *make_net(bool flat)
{
    ek_manual_seed(7);
    ek_module *net =
        ek_sequential(flat ? ek_flatten(1, -1) : ek_identity(),
                      ek_linear(flat ? POINTS * FEATURES : FEATURES, CLASSES), ek_sigmoid());
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, EK_F64));
    return net;
}

/* Numbers from 0.2 to 1.2. */
static ek_tensor *numbers(ek_shape shape)
{
    return ek_add_scalar(ek_rand(shape, EK_F64), 0.2);
}

static ek_tensor *signs(ek_shape shape)
{
    return ek_sign(ek_sub_scalar(ek_rand(shape, EK_F64), 0.5));
}

static ek_tensor *whole(ek_shape shape, int64_t below)
{
    return ek_randint(0, below, shape, EK_I64);
}

#define ROWS EK_SHAPE(SAMPLES, CLASSES)
#define OTHERS(name, count, ...)          \
    static int name(ek_tensor **x)        \
    {                                     \
        ek_tensor *all[] = {__VA_ARGS__}; \
        for (int i = 0; i < (count); i++) \
            assert_made(x[i] = all[i]);   \
        return (count);                   \
    }
OTHERS(values, 1, numbers(ROWS))
OTHERS(truths, 1, ek_to_dtype(whole(ROWS, 2), EK_F64))
OTHERS(answers, 1, signs(ROWS))
OTHERS(values_and_variances, 2, numbers(ROWS), numbers(EK_SHAPE(SAMPLES, 1)))
OTHERS(values_and_answers, 2, numbers(ROWS), signs(ROWS))
OTHERS(values_and_answer, 2, numbers(ROWS), signs(EK_SHAPE(SAMPLES)))
OTHERS(two_values, 2, numbers(ROWS), numbers(ROWS))
OTHERS(classes, 1, whole(EK_SHAPE(SAMPLES), CLASSES))
OTHERS(tokens, 1, whole(EK_SHAPE(SAMPLES, POINTS), CLASSES))
OTHERS(lists, 1, ek_sub_scalar(whole(ROWS, CLASSES + 1), 1))
OTHERS(sequences, 3, whole(EK_SHAPE(SAMPLES, 2), CLASSES),
       ek_add_scalar(whole(EK_SHAPE(SAMPLES), 2), POINTS - 1), whole(EK_SHAPE(SAMPLES), 3))

static ek_tensor *class_weight(void)
{
    return tensor_of((double[]){1, 2, 0.5, 3}, EK_SHAPE(CLASSES), EK_F64, ek_cpu());
}

#define CASES(X)                                                                         \
    X(smooth_l1, values, true, ek_smooth_l1_loss(r, .beta = 0.3))                        \
    X(huber, values, true, ek_huber_loss(r, .delta = 0.2))                               \
    X(bce, truths, true, ek_bce_loss(r, .weight = class_weight()))                       \
    X(soft_margin, answers, true, ek_soft_margin_loss(r))                                \
    X(multilabel_soft, truths, true, ek_multilabel_soft_margin_loss(r))                  \
    X(kl_div, values, true, ek_kl_div_loss(r, .log_target = true))                       \
    X(poisson, values, true, ek_poisson_nll_loss(r, .log_input = false, .full = true))   \
    X(gaussian, values_and_variances, true, ek_gaussian_nll_loss(r, .eps = 0.3))         \
    X(ranking, values_and_answers, true, ek_margin_ranking_loss(r, .margin = 0.3))       \
    X(hinge, answers, true, ek_hinge_embedding_loss(r, .margin = 0.7))                   \
    X(cosine, values_and_answer, true, ek_cosine_embedding_loss(r, .margin = 0.1))       \
    X(triplet, two_values, true, ek_triplet_margin_loss(r, .margin = 0.4, .swap = true)) \
    X(multi, classes, true, ek_multi_margin_loss(r, .p = 2, .weight = class_weight()))   \
    X(multilabel, lists, true, ek_multilabel_margin_loss(r))                             \
    X(probabilities, values, true,                                                       \
      ek_cross_entropy_loss(r, .weight = class_weight(), .label_smoothing = 0.1))        \
    X(tokens, tokens, false,                                                             \
      ek_token_cross_entropy_loss(r, .weight = class_weight(), .ignore_index = 1))       \
    X(ctc, sequences, false, ek_ctc_loss(r, .batch_first = true, .zero_infinity = true, .blank = 0))

#define MAKE(id, others, flat, call)            \
    static ek_module *make_##id(ek_reduction r) \
    {                                           \
        return call;                            \
    }
#define ENTRY(id, others, flat, call) {#id, make_##id, others, flat},
CASES(MAKE)
static const criterion_case cases[] = {CASES(ENTRY)};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

static ek_tensor *loss_of(ek_module *criterion, ek_value output, ek_tensor *const *x, int count)
{
    ek_value values[INPUTS] = {output};
    for (int i = 0; i < count; i++)
        values[i + 1] = ek_value_of_tensor(x[i]);
    const ek_args args = {values, count + 1, ek_value_none()};
    return ek_value_tensor(ek_module_forward(criterion, &args));
}

static void check_exact(const criterion_case *c, ek_reduction reduction)
{
    static const char *const paths[] = {"1.weight", "1.bias"};
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_tensor *x = make_inputs(SAMPLES), *others[INPUTS];
    ek_manual_seed(11);
    int count = c->others(others);
    ek_module *net = make_net(c->flat), *criterion = c->make(reduction);
    ek_module *model = ek_data_parallel_model(make_net(c->flat), devices);
    ek_module *balanced = ek_data_parallel_criterion(c->make(reduction), devices);
    if (!criterion || !balanced)
        ck_abort_msg("%s: %s", c->name, ek_error_message());
    ek_tensor *loss = loss_of(criterion, ek_forward(net, x), others, count);
    ek_tensor *shared = loss_of(balanced, ek_forward(model, x), others, count);
    if (!loss || !shared)
        ck_abort_msg("%s: %s", c->name, ek_error_message());
    ck_assert_msg(value_of(loss) != 0, "%s", c->name);
    assert_near(value_of(shared), value_of(loss), 1e-13);
    assert_ok(ek_backward(loss));
    assert_ok(ek_backward(shared));
    ek_module *inner = ek_data_parallel_module(model);
    for (int i = 0; i < 2; i++)
        assert_close(ek_tensor_grad(ek_module_tensor(inner, paths[i])),
                     ek_tensor_grad(ek_module_tensor(net, paths[i])), 1e-13, 1e-12);

    /* Its sum divided by its denominator is the mean. */
    if (reduction != EK_SUM) {
        ek_value values[INPUTS] = {ek_forward(net, x)};
        for (int i = 0; i < count; i++)
            values[i + 1] = ek_value_of_tensor(others[i]);
        const ek_args args = {values, count + 1, ek_value_none()};
        ek_loss_sum sum;
        assert_ok(criterion->type->loss_sum(criterion, &args, &sum));
        double divisor = value_of(criterion->type->denominator(criterion, &args));
        assert_near(value_of(sum.sum) / divisor, value_of(loss), 1e-13);
        assert_near(divisor, value_of(sum.weight), 1e-15);
    }
    ek_module_free(net);
    ek_module_free(criterion);
    ek_module_free(model);
    ek_module_free(balanced);
}

TEST_LOOP(devices_give_the_loss_of_one, 0, CASE_COUNT)
{
    check_exact(&cases[_i], EK_MEAN);
    check_exact(&cases[_i], EK_SUM);
}

TEST(batch_means_are_exact)
{
    check_exact(&(criterion_case){"kl_div", make_kl_div, values, true}, EK_BATCH_MEAN);
}

TEST(criteria_refuse_what_they_do_not_take)
{
    assert_refused(ek_huber_loss(EK_BATCH_MEAN), EK_E_INVALID, "a reduction of kl_div_loss");
    ek_module *huber = held(ek_huber_loss(.delta = 0));
    ek_tensor *x = ek_ones(EK_SHAPE(2));
    assert_refused(ek_loss(huber, x, x), EK_E_INVALID, "huber_loss: delta is 0");
    ek_module *triplet = held(ek_triplet_margin_loss(.margin = 0));
    assert_refused(ek_loss(triplet, x, x), EK_E_INVALID, "takes 3 inputs, not 2");
    assert_near(value_of(ek_loss(triplet, x, x, ek_add_scalar(x, 1))) + 1, 1, 1e-5);
}

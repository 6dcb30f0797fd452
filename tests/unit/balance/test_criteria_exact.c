/* Each criterion in every way: loss and gradients are those of one device and the whole batch, for
 * uneven chunks and targets on cpu. */
#include "balance_setup.h"
#include "nn/nn.h"

enum { SAMPLES = 10, INPUTS = 4 };

typedef struct criterion_case {
    const char *name;
    ek_module *(*make)(ek_reduction reduction);
    int (*others)(ek_tensor **x); /* what follows the output; returns how many */
    bool flat;                    /* the output is (N, CLASSES) instead of (N, POINTS, CLASSES) */
    ek_value (*outputs)(ek_tensor *y); /* what the net makes of it; NULL: nothing else */
} criterion_case;

/* ---- nets ---- */

/* Probabilities (n, CLASSES), or (n, POINTS, CLASSES), and what is made of them. */
typedef struct shaped {
    ek_module module;
    ek_module *body;
    ek_value (*outputs)(ek_tensor *y);
} shaped;

static ek_value shaped_forward(ek_module *module, const ek_args *args)
{
    const shaped *self = (shaped *)module;
    ek_tensor *y = ek_apply(self->body, ek_arg_tensor(args, 0));
    return self->outputs ? self->outputs(y) : ek_value_of_tensor(y);
}

MODULE_TYPE(shaped, shaped)

static ek_module *make_net(const criterion_case *c)
{
    ek_manual_seed(7);
    shaped *self = new_module(&shaped_type);
    ek_module *body =
        ek_sequential(c->flat ? ek_flatten(1, -1) : ek_identity(),
                      ek_linear(c->flat ? POINTS * FEATURES : FEATURES, CLASSES), ek_sigmoid());
    assert_ok(ek_register_module(&self->module, "body", &self->body, body));
    assert_ok(ek_module_to_dtype(&self->module, EK_F64));
    self->outputs = c->outputs;
    return &self->module;
}

static ek_value two_outputs(ek_tensor *y)
{
    return EK_LIST(y, ek_add_scalar(ek_square(y), 0.2));
}

static ek_value three_outputs(ek_tensor *y)
{
    return EK_LIST(y, ek_square(y), ek_sqrt(y));
}

/* (POINTS, n, CLASSES), as recurrent networks have it. */
static ek_value frames(ek_tensor *y)
{
    return ek_value_batched(EK_VALUE(ek_transpose(y, 0, 1)), 1);
}

/* A user's criterion of (list of outputs, target): the mean of their squared errors. */
static ek_value errors_forward(ek_module *module, const ek_args *args)
{
    const ek_value outputs = ek_arg(args, 0);
    ek_tensor *sum = NULL, *target = ek_arg_tensor(args, 1);
    for (int i = 0; i < ek_value_length(outputs); i++) {
        ek_tensor *error = ek_f_mse_loss(ek_value_tensor(ek_value_at(outputs, i)), target);
        sum = i ? ek_add(sum, error) : error;
    }
    return ek_value_of_tensor(sum);
}

MODULE_TYPE_WITH(errors, ek_module, .takes_lists = true)

/* A user's criterion of (output, output, target, target), a mean over samples. */
static ek_value pairs_forward(ek_module *module, const ek_args *args)
{
    ck_assert_int_eq(args->count, 4);
    ek_tensor *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = ek_arg_tensor(args, i);
    return ek_value_of_tensor(ek_add(ek_f_mse_loss(x[0], x[2]), ek_f_l1_loss(x[1], x[3])));
}

MODULE_TYPE(pairs, ek_module)

/* ---- criteria ---- */

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
OTHERS(answer, 1, signs(EK_SHAPE(SAMPLES)))
OTHERS(classes, 1, whole(EK_SHAPE(SAMPLES), CLASSES))
OTHERS(tokens, 1, whole(EK_SHAPE(SAMPLES, POINTS), CLASSES))
OTHERS(lists, 1, ek_sub_scalar(whole(ROWS, CLASSES + 1), 1))
OTHERS(nothing, 0, NULL)
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
    X(ctc, sequences, false, ek_ctc_loss(r, .batch_first = true, .zero_infinity = true))
#define LISTS(X)                                                                                \
    X(ctc_of_frames, sequences, false, frames, ek_ctc_loss(r, .zero_infinity = true))           \
    X(gaussian_of_two, values, true, two_outputs, ek_gaussian_nll_loss(r, .eps = 0.3))          \
    X(ranking_of_two, answers, true, two_outputs, ek_margin_ranking_loss(r, .margin = 0.3))     \
    X(cosine_of_two, answer, true, two_outputs, ek_cosine_embedding_loss(r, .margin = 0.1))     \
    X(triplet_of_three, nothing, true, three_outputs, ek_triplet_margin_loss(r, .margin = 0.4)) \
    X(users_of_a_list, values, true, three_outputs, users(&errors_type, r))                     \
    X(users_of_arguments, two_values, true, two_outputs, users(&pairs_type, r))

static ek_module *users(const ek_module_type *type, ek_reduction r)
{
    (void)r;
    return ek_module_new(type);
}

#define MAKE(id, others, flat, call)            \
    static ek_module *make_##id(ek_reduction r) \
    {                                           \
        return call;                            \
    }
#define MAKE_LIST(id, others, flat, outputs, call) MAKE(id, others, flat, call)
#define ENTRY(id, others, flat, call) {#id, make_##id, others, flat, NULL},
#define ENTRY_LIST(id, others, flat, outputs, call) {#id, make_##id, others, flat, outputs},
CASES(MAKE)
LISTS(MAKE_LIST)
static const criterion_case cases[] = {CASES(ENTRY) LISTS(ENTRY_LIST)};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

/* A net, what trains it, and the targets on cpu. */
typedef struct trainer {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
    ek_value targets[INPUTS];
    int count;
} trainer;

/* CUT: classic, with targets that are cut for devices as a loader cuts them. */
typedef enum way { WHOLE, BARE, CLASSIC, CUT, BALANCED } way;

static ek_value cut_for(const ek_device_list *devices, ek_tensor *x)
{
    ek_value parts[EK_MAX_DEVICES];
    int count = ek_scatter_value(EK_VALUE(x), devices, NULL, 0, parts);
    assert_ok(count < 0 ? count : 0);
    return ek_value_per_device(parts, count);
}

static trainer make_trainer(const criterion_case *c, ek_reduction reduction, way how, int devices)
{
    ek_device_list list = ek_devices(test_kind(), devices);
    trainer t = {.net = make_net(c), .criterion = c->make(reduction)};
    t.model = t.net;
    if (how != WHOLE && how != BALANCED)
        assert_ok(ek_module_to_device(t.criterion, test_device(0)));
    if (how == BARE)
        assert_ok(ek_module_to_device(t.net, test_device(0)));
    if (how == CLASSIC || how == CUT)
        t.model = ek_data_parallel(t.net, list);
    if (how == BALANCED) {
        t.model = ek_data_parallel_model(t.net, list);
        t.criterion = ek_data_parallel_criterion(t.criterion, list);
    }
    t.optimizer = ek_sgd(t.model);
    if (!t.criterion || !t.optimizer)
        ck_abort_msg("%s: %s", c->name, ek_error_message());
    ek_tensor *others[INPUTS];
    ek_manual_seed(11);
    t.count = c->others(others);
    for (int i = 0; i < t.count; i++)
        t.targets[i] = how == CUT ? cut_for(&list, others[i]) : ek_value_of_tensor(others[i]);
    return t;
}

static void free_trainer(trainer *t)
{
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->model);
    ek_module_free(t->criterion);
}

static double loss_by_call(const trainer *t, way how)
{
    ek_tensor *x = make_inputs(SAMPLES);
    ek_value values[INPUTS] = {
        ek_forward(t->model, how == BARE ? ek_to_device(x, test_device(0)) : x)};
    for (int i = 0; i < t->count; i++)
        values[i + 1] = t->targets[i];
    ek_tensor *loss = ek_loss_of(t->criterion, values, t->count + 1);
    const double value = value_of(loss);
    assert_ok(ek_backward(loss));
    return value;
}

static double loss_by_step(const trainer *t, int parts)
{
    double loss;
    ek_value target = t->count == 1 ? t->targets[0]
                      : t->count    ? ek_value_list(t->targets, t->count)
                                    : ek_value_none();
    assert_ok(ek_train_step(&loss, .model = t->model, .criterion = t->criterion,
                            .optimizer = t->optimizer, .input = EK_VALUE(make_inputs(SAMPLES)),
                            .target = target, .micro_batches = parts, .accumulate_only = true));
    return loss;
}

static void check_same(const criterion_case *c, const trainer *t, double loss,
                       const trainer *wanted, double wanted_loss)
{
    static const char *const paths[] = {"body.1.weight", "body.1.bias"};
    ck_assert_msg(wanted_loss != 0, "%s", c->name);
    assert_near(loss, wanted_loss, 1e-13);
    for (int i = 0; i < 2; i++)
        assert_close(ek_to_device(ek_tensor_grad(ek_module_tensor(t->net, paths[i])), ek_cpu()),
                     ek_tensor_grad(ek_module_tensor(wanted->net, paths[i])), 1e-12, 1e-12);
    ek_module_zero_grad(t->net);
}

static void check_way(const criterion_case *c, ek_reduction reduction, way how, int devices)
{
    trainer wanted = make_trainer(c, reduction, WHOLE, 1),
            t = make_trainer(c, reduction, how, devices);
    const double loss = loss_by_call(&wanted, WHOLE);
    check_same(c, &t, loss_by_call(&t, how), &wanted, loss);
    for (int parts = 1; parts <= (how == CUT ? 1 : 4); parts++)
        check_same(c, &t, loss_by_step(&t, parts), &wanted, loss);
    free_trainer(&wanted);
    free_trainer(&t);
}

/* The sum divided by the denominator is the mean. */
static void check_sum(const criterion_case *c)
{
    trainer t = make_trainer(c, EK_MEAN, WHOLE, 1);
    ek_value values[INPUTS] = {ek_forward(t.model, make_inputs(SAMPLES))};
    for (int i = 0; i < t.count; i++)
        values[i + 1] = t.targets[i];
    const ek_args given = {values, t.count + 1, ek_value_none()};
    ek_args args;
    ek_loss_sum sum;
    assert_ok(ek_criterion_args(t.criterion, &given, &args));
    assert_ok(t.criterion->type->loss_sum(t.criterion, &args, &sum));
    double divisor = value_of(t.criterion->type->denominator(t.criterion, &args));
    assert_near(value_of(sum.sum) / divisor, value_of(ek_loss_of(t.criterion, values, t.count + 1)),
                1e-13);
    assert_near(divisor, value_of(sum.weight), 1e-15);
    free_trainer(&t);
}

TEST_LOOP(every_way_gives_the_loss_of_one_device, 0, CASE_COUNT)
{
    const criterion_case *c = &cases[_i];
    for (ek_reduction reduction = EK_MEAN; reduction <= EK_SUM; reduction++) {
        check_way(c, reduction, BARE, 1);
        check_way(c, reduction, CLASSIC, 3);
        check_way(c, reduction, CUT, 3);
        for (int devices = 1; devices <= 4; devices++)
            check_way(c, reduction, BALANCED, devices);
    }
    if (c->make != make_users_of_a_list && c->make != make_users_of_arguments)
        check_sum(c);
}

TEST(batch_means_are_exact)
{
    check_way(&(criterion_case){"kl_div", make_kl_div, values, true, NULL}, EK_BATCH_MEAN, BALANCED,
              4);
    check_way(&(criterion_case){"kl_div", make_kl_div, values, true, NULL}, EK_BATCH_MEAN, BARE, 1);
}

/* ---- targets ---- */

static const ek_tensor *given[3];

static ek_value noting_forward(ek_module *module, const ek_args *args)
{
    for (int i = 0; i < 3; i++)
        given[i] = ek_arg_tensor(args, i);
    return ek_value_of_tensor(ek_mean(ek_arg_tensor(args, 0)));
}

MODULE_TYPE(noting, ek_module)

/* A target that is where the output is comes as it is. Tensors with a gradient stay where they are,
 * and others come from any device. */
TEST(targets_follow_the_output)
{
    ek_module *noting = held(ek_module_new(&noting_type));
    ek_tensor *x = ek_ones(EK_SHAPE(2), .device = test_device(1)), *there = ek_ones(EK_SHAPE(2));
    ek_tensor *other = ek_ones(EK_SHAPE(2), .device = test_device(2)),
              *wanting = ek_ones(EK_SHAPE(2), .device = test_device(0), .requires_grad = true);
    there = ek_to_device(there, test_device(1));
    assert_made(ek_loss(noting, x, there, other));
    ck_assert_ptr_eq(given[0], x);
    ck_assert_ptr_eq(given[1], there);
    ck_assert(ek_device_equal(ek_tensor_device(given[2]), test_device(1)));
    assert_made(ek_loss(noting, EK_LIST(x, other), wanting));
    ck_assert_ptr_eq(given[1], other); /* an output */
    ck_assert_ptr_eq(given[2], wanting);
    ek_module *mse = held(ek_mse_loss());
    assert_refused(ek_loss(mse, x, wanting), EK_E_DEVICE, "move one with ek_to_device");
}

/* Moved copies are freed with the call, also without a scope around it. */
TEST(moved_targets_are_freed)
{
    ek_module *mse = held(ek_mse_loss());
    ek_tensor *x = ek_ones(EK_SHAPE(1000), .device = test_device(0)), *y = ek_ones(EK_SHAPE(1000));
    for (int i = 0; i < 2; i++) {
        const uint64_t before = bytes_in_use(test_device(0));
        assert_near(value_of(ek_loss(mse, x, y)) + 1, 1, 0);
        ck_assert_uint_le(bytes_in_use(test_device(0)) - before, 2000);
    }
}

TEST(gaussian_nll_takes_its_two_outputs_in_both_ways)
{
    ek_module *gaussian = held(ek_gaussian_nll_loss());
    ek_tensor *mean = numbers(ROWS), *variance = numbers(ROWS), *target = numbers(ROWS);
    assert_near(value_of(ek_loss(gaussian, EK_LIST(mean, variance), target)),
                value_of(ek_loss(gaussian, mean, target, variance)), 0);
    assert_refused(ek_loss(gaussian, EK_LIST(mean), target), EK_E_INVALID, "takes 3 inputs, not 2");
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

/* step_setup.h: the same training step in every way, against one device's whole batch. */
#ifndef EK_TESTS_STEP_SETUP_H
#define EK_TESTS_STEP_SETUP_H

#include "balance_setup.h"
#include "core/device.h"
#include "kit/models.h"

typedef enum way { PLAIN, ONE_DEVICE, CLASSIC, BALANCED, SHARDED, WAYS } way;

typedef enum loss_kind {
    CROSS_ENTROPY,
    WEIGHTED,
    SUM,
    SQUARES,
    BINARY,
    USERS_COUNTED, /* of the user's own, with a denominator */
    USERS_MEAN,    /* and without */
    USERS_SUM,     /* and one that tells its sum and weight */
    LOSS_KINDS
} loss_kind;

static const char *const scorer_paths[] = {"hidden.weight", "hidden.bias", "last.weight",
                                           "last.bias"};

/* The mean over points that aren't ignored of the squared score of class 0. */
static inline ek_tensor *counted_points(ek_module *module, const ek_args *args)
{
    ek_tensor *target = ek_arg_tensor(args, 1);
    return target ? ek_target_weight(target, NULL, IGNORED, EK_F64) : NULL;
}

static inline ek_tensor *counted_sum(const ek_args *args)
{
    ek_tensor *scores = ek_arg_tensor(args, 0), *target = ek_arg_tensor(args, 1);
    if (!scores || !target)
        return NULL;
    ek_tensor *ignored = ek_scalar(IGNORED, EK_I64, ek_tensor_device(target));
    ek_tensor *counts = ek_to_dtype(ek_ne(target, ignored), ek_tensor_dtype(scores));
    ek_tensor *first = ek_select(scores, 1, 0);
    return ek_sum(ek_mul(ek_mul(first, first), counts));
}

static inline ek_value counted_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *sum = counted_sum(args);
    ek_dtype dtype = sum ? ek_tensor_dtype(sum) : EK_F64;
    return ek_value_of_tensor(ek_div(sum, ek_to_dtype(counted_points(module, args), dtype)));
}

static inline int counted_loss_sum(ek_module *module, const ek_args *args, ek_loss_sum *loss)
{
    *loss = (ek_loss_sum){counted_sum(args), counted_points(module, args)};
    return ek_error_status();
}

MODULE_TYPE_WITH(counted, ek_module, .denominator = counted_points)

static const ek_module_type counted_sum_type = {.name = "counted_sum",
                                                .size = sizeof(ek_module),
                                                .forward = counted_forward,
                                                .loss_sum = counted_loss_sum};

/* The mean over samples of the sums over points: output only. */
static inline ek_value samples_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *scores = ek_arg_tensor(args, 0);
    if (!scores)
        return ek_value_error();
    double samples = (double)ek_tensor_size(scores, 0);
    return ek_value_of_tensor(ek_mul_scalar(ek_sum(ek_mul(scores, scores)), 1 / samples));
}

MODULE_TYPE(samples, ek_module)

static inline ek_module *make_criterion(loss_kind kind, ek_dtype dtype)
{
    const double weights[CLASSES] = {0.5, 1, 3, 0.25};
    switch (kind) {
        CASE_IS(CROSS_ENTROPY, ek_cross_entropy_loss(.ignore_index = IGNORED));
        CASE_IS(WEIGHTED, ek_cross_entropy_loss(.ignore_index = IGNORED,
                                                .weight = tensor_of(weights, EK_SHAPE(CLASSES),
                                                                    dtype, ek_cpu())));
        CASE_IS(SUM, ek_cross_entropy_loss(.ignore_index = IGNORED, .reduction = EK_SUM));
        CASE_IS(SQUARES, ek_mse_loss());
        CASE_IS(BINARY, ek_bce_with_logits_loss());
        CASE_IS(USERS_COUNTED, ek_module_new(&counted_type));
        CASE_IS(USERS_SUM, ek_module_new(&counted_sum_type));
    default:
        return ek_module_new(&samples_type);
    }
}

static inline ek_value make_target(loss_kind kind, int n, ek_dtype dtype)
{
    if (kind == USERS_MEAN)
        return ek_value_none();
    if (kind != SQUARES && kind != BINARY)
        return ek_value_of_tensor(make_targets(n, n / 3, n / 3 + 2));
    ek_generator *generator = ek_generator_new(11);
    ek_tensor *target = ek_empty(EK_SHAPE(n, CLASSES, POINTS), .dtype = EK_F64);
    assert_made(target);
    assert_ok(ek_uniform_(target, 0, 1, generator));
    ek_generator_free(generator);
    return ek_value_of_tensor(ek_to_dtype(target, dtype));
}

/* A model with its criterion and optimizer. */
typedef struct job {
    ek_module *net, *model, *criterion;
    ek_optimizer *optimizer;
} job;

static inline job make_job(way how, loss_kind kind, ek_dtype dtype)
{
    job j = {.net = make_scorer(), .criterion = make_criterion(kind, dtype)};
    ek_device_list devices = ek_devices(test_kind(), how == ONE_DEVICE ? 1 : 3);
    assert_made(j.criterion);
    assert_ok(ek_module_to_dtype(j.net, dtype));
    if (how >= BALANCED) {
        ek_shard_policy shard = how == SHARDED ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE;
        j.model = ek_data_parallel_model(j.net, .device_ids = devices, .shard = shard);
        j.criterion = ek_data_parallel_criterion(j.criterion, .device_ids = devices);
    } else {
        assert_ok(ek_module_to_device(j.criterion, how == PLAIN ? test_home() : test_device(0)));
        if (how == PLAIN)
            assert_ok(ek_module_to_device(j.net, test_home()));
        j.model = how == PLAIN ? j.net : ek_data_parallel(j.net, .device_ids = devices);
    }
    assert_made(j.model);
    assert_made(j.criterion);
    j.optimizer = ek_sgd(j.model, .lr = 0.1, .momentum = 0.9);
    assert_made(j.optimizer);
    return j;
}

static inline void free_job(job *j)
{
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->model);
    ek_module_free(j->criterion);
}

/* ek_train_step of the job; further options follow. */
#define train_job(loss, job, ...)                                               \
    ek_train_step((loss), .model = (job)->model, .criterion = (job)->criterion, \
                  .optimizer = (job)->optimizer, __VA_ARGS__)

/* Loss and gradients of the whole batch by hand. */
static inline double whole_batch(job *j, ek_value input, ek_value target)
{
    ek_value output = ek_forward(j->net, ek_value_to_device(input, test_home(), 0));
    ek_tensor *loss = target.kind == EK_VALUE_NONE ? ek_loss(j->criterion, output)
                                                   : ek_loss(j->criterion, output, target);
    double value = value_of(loss);
    assert_ok(ek_backward(loss));
    return value;
}

/* |a - b| / |b| over the whole vectors of gradients; NaN if there is one. */
static inline double gradient_distance(ek_module *a, ek_module *b)
{
    double difference = 0, size = 0;
    for (int p = 0; p < 4; p++) {
        ek_tensor *of_a = ek_gather_grad(ek_module_tensor(a, scorer_paths[p]));
        ek_tensor *of_b = ek_gather_grad(ek_module_tensor(b, scorer_paths[p]));
        assert_made(of_a);
        assert_made(of_b);
        of_a = ek_to_dtype(ek_to_device(of_a, ek_cpu()), EK_F64);
        of_b = ek_to_dtype(ek_to_device(of_b, ek_cpu()), EK_F64);
        for (int64_t i = 0; i < ek_tensor_count(of_b); i++) {
            difference += pow(element(of_a, i) - element(of_b, i), 2);
            size += pow(element(of_b, i), 2);
        }
    }
    return sqrt(difference / size);
}

static inline void assert_at_most(double value, double limit)
{
    if (!(value <= limit))
        ck_abort_msg("%g, at most %g is expected", value, limit);
}

#endif

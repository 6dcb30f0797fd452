/* test_lbfgs_devices.c: L-BFGS of a network whose batch is divided over devices. */
#include "balance_setup.h"

enum { SAMPLES = 11, STEPS = 4 };

typedef enum way_kind { ONE, CLASSIC, BALANCED, MICRO_BATCHES, WAYS } way_kind;

typedef struct job {
    way_kind way;
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *x, *target;
    int calls;
} job;

static int job_evaluate(double *loss, void *user)
{
    job *j = user;
    j->calls++;
    ek_zero_grad(j->optimizer);
    if (j->way == MICRO_BATCHES)
        return ek_train_step(loss, .model = j->model, .criterion = j->criterion,
                             .optimizer = j->optimizer, .input = EK_VALUE(j->x),
                             .target = EK_VALUE(j->target), .micro_batches = 3,
                             .accumulate_only = true);
    ek_value output = ek_forward(j->model, j->x);
    ek_tensor *l = ek_loss(j->criterion, output, j->target);
    return ek_backward(l) < 0 ? ek_error_status() : ek_item(l, loss);
}

static job job_begin(way_kind way, int devices, ek_shard_policy shard)
{
    ek_device_list ids = ek_devices(test_kind(), devices);
    job j = {.way = way, .x = make_inputs(SAMPLES), .target = make_targets(SAMPLES, 2, 4)};
    j.model = make_scorer();
    j.criterion = ek_cross_entropy_loss(.ignore_index = IGNORED);
    if (way == CLASSIC) {
        j.model = ek_data_parallel(j.model, ids, .shard = shard);
        j.target = ek_to_device(j.target, test_device(0));
    } else if (way != ONE) {
        j.model = ek_data_parallel_model(j.model, ids, .shard = shard);
        j.criterion = ek_data_parallel_criterion(j.criterion, ids);
    }
    j.optimizer = ek_lbfgs(j.model, .max_iter = 3, .line_search = EK_STRONG_WOLFE);
    assert_made(j.model);
    assert_made(j.criterion);
    assert_made(j.optimizer);
    return j;
}

static void job_end(job *j)
{
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->criterion);
    ek_module_free(j->model);
}

static int compare_parameter(const char *path, ek_tensor *tensor, void *user)
{
    assert_close_norm(ek_to_device(ek_detach(ek_module_tensor(user, path)), ek_cpu()),
                      ek_detach(tensor), 1e-11);
    return 0;
}

TEST(devices_equal_one)
{
    for (int way = CLASSIC; way < WAYS; way++)
        for (int devices = 2; devices <= 3; devices++) {
            job one = job_begin(ONE, 1, EK_SHARD_NONE), j = job_begin(way, devices, EK_SHARD_NONE);
            for (int step = 0; step < STEPS; step++) {
                double loss, wanted;
                assert_ok(ek_step_closure(one.optimizer, job_evaluate, &one, &wanted));
                assert_ok(ek_step_closure(j.optimizer, job_evaluate, &j, &loss));
                assert_near(loss, wanted, 1e-11);
                assert_ok(ek_module_parameters(one.model, compare_parameter, j.model));
            }
            ck_assert_int_eq(j.calls, one.calls);
            job_end(&one);
            job_end(&j);
        }
}

TEST(sharded_parameters_are_refused)
{
    job j = job_begin(BALANCED, 2, EK_SHARD_OPTIMIZER);
    ek_tensor *weight = ek_module_tensor(j.model, "hidden.weight");
    ek_tensor *before = ek_clone(ek_detach(weight));
    for (int call = 0; call < 2; call++) {
        assert_refused(ek_step_closure(j.optimizer, job_evaluate, &j, NULL), EK_E_STATE,
                       "is sharded, over devices or ranks");
        assert_close(ek_detach(weight), before, 0, 0);
        ck_assert_int_eq(ek_optimizer_steps(j.optimizer, weight), 0);
    }
    job_end(&j);
}

/* Before anything ran: gradients are what they were. */
TEST(training_steps_refuse_it)
{
    double loss;
    job j = job_begin(ONE, 1, EK_SHARD_NONE);
    assert_ok(job_evaluate(&loss, &j));
    ek_tensor *weight = ek_module_tensor(j.model, "hidden.weight"),
              *before = ek_clone(ek_tensor_grad(weight));
    j.x = ek_mul_scalar(j.x, 2);
    assert_refused(ek_train_step(&loss, .model = j.model, .criterion = j.criterion,
                                 .optimizer = j.optimizer, .input = EK_VALUE(j.x),
                                 .target = EK_VALUE(j.target)),
                   EK_E_INVALID,
                   "train_step: lbfgs evaluates the loss several times in a step; "
                   "call ek_step_closure");
    assert_close(ek_tensor_grad(weight), before, 0, 0);
    job_end(&j);
}

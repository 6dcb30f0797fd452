/* Training goes on without a GPU that was lost in the midst of a step: nothing hangs, the step's
 * error names it, and the others can be used for a new data-parallel module. */
#include "cuda/nccl.h"
#include "unit.h"

BEFORE_ALL(skip_without_gpu)

#ifdef EK_CUDA_EMULATED
#include <emulator.h>

OWN_PROCESSES /* a lost GPU stays lost */

    enum {
        GPUS = 4,
        BATCH = 12
    };

typedef struct job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *input, *target;
} job;

static void open_job(job *j, ek_device_list devices, bool balanced)
{
    ek_manual_seed(3);
    ek_module *net = ek_sequential(ek_linear(6, 8), ek_relu(), ek_linear(8, 3));
    j->criterion = ek_cross_entropy_loss();
    if (balanced) {
        j->model = ek_data_parallel_model(net, .device_ids = devices);
        j->criterion = ek_data_parallel_criterion(j->criterion, .device_ids = devices);
    } else {
        j->model = ek_data_parallel(net, .device_ids = devices);
    }
    j->optimizer = ek_sgd(j->model, .lr = 0.1);
    assert_made(j->optimizer);
    ek_scope scope = ek_scope_begin();
    j->input = ek_keep(ek_randn(EK_SHAPE(BATCH, 6)));
    ek_tensor *target = ek_randint(0, 3, EK_SHAPE(BATCH));
    j->target = ek_keep(balanced ? target : ek_to_device(target, devices.devices[0]));
    assert_made(j->target);
    ek_scope_end(&scope);
}

static void close_job(job *j)
{
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->criterion);
    ek_module_free(j->model);
    ek_release(j->input);
    ek_release(j->target);
}

/* The loss, read, or an error from any of its calls. */
static int step(job *j, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *l = ek_loss(j->criterion, ek_forward(j->model, j->input), j->target);
    ek_zero_grad(j->optimizer);
    int rc = ek_backward(l);
    if (rc >= 0)
        rc = ek_step(j->optimizer);
    if (rc >= 0)
        rc = ek_item(l, loss);
    ek_scope_end(&scope);
    return rc;
}

static double losses(job *j, int steps)
{
    double loss = 0;
    for (int i = 0; i < steps; i++)
        assert_ok(step(j, &loss));
    return loss;
}

/* What three of four GPUs compute, none of them lost. */
static double wanted_loss(bool balanced)
{
    const ek_device three[] = {ek_cuda(0), ek_cuda(1), ek_cuda(3)};
    job j;
    open_job(&j, ek_device_list_of(three, 3), balanced);
    double loss = losses(&j, 3);
    close_job(&j);
    return loss;
}

TEST_LOOP(a_new_module_goes_on_without_a_lost_gpu, 0, 4)
{
    bool balanced = _i % 2;
    job j;
    double loss = 0;
    setenv("EK_EMULATOR_DEVICES", "4", 1);
    if (_i >= 2)
        setenv("EVENKEEL_COMM", "nccl-sum", 1);
    assert_ok(ek_cuda_devices_configure("0,1,2,3"));
    double wanted = wanted_loss(balanced);
    open_job(&j, ek_devices(EK_CUDA, GPUS), balanced);
    losses(&j, 2);
    ck_assert_uint_gt(ek_emulator_live_communicators(), 0);
    /* A kernel of some device fails; which, the emulator knows. */
    ek_emulator_fail_next("kernel", cudaErrorIllegalAddress, 20);
    int rc = 0;
    for (int i = 0; i < 3 && rc >= 0; i++)
        rc = step(&j, &loss);
    ck_assert_int_eq(rc, EK_E_BACKEND);
    /* The call that meets the failure names it, all later ones say that the GPU was lost. */
    ek_error_clear();
    assert_refused(step(&j, &loss), EK_E_BACKEND, "was lost when ");
    close_job(&j);
    /* Every device says once that something is missing, or, the lost one, that it is lost. */
    int lost = -1;
    for (int i = 0; i < GPUS; i++) {
        ek_synchronize(ek_cuda(i));
        ek_error_clear();
        if (ek_synchronize(ek_cuda(i)) < 0) {
            ck_assert_int_eq(lost, -1);
            lost = i;
            ek_error_clear();
        }
    }
    ck_assert_int_ge(lost, 0);
    ek_device left[GPUS];
    for (int i = 0, n = 0; i < GPUS; i++)
        if (i != lost)
            left[n++] = ek_cuda(i);
    open_job(&j, ek_device_list_of(left, 3), balanced);
    ck_assert_double_eq(losses(&j, 3), wanted);
    close_job(&j);
    assert_ok(ek_shutdown());
    ck_assert_uint_eq(ek_emulator_live_communicators(), 0);
}

#endif

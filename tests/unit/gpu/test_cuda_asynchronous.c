/* A training step issues work and returns: nothing in it waits for a device. The devices' streams
 * are held by a function that waits for a flag, and a warm step must be back before it is set. */
#include "held_stream.h"

BEFORE_ALL(skip_without_gpu)

enum { DEVICES = 2, BATCH = 6, PATIENCE = 20, WARM_STEPS = 6, HELD_STEPS = 2 };

static void hold_all(hold *h)
{
    for (int i = 0; i < DEVICES; i++)
        hold_compute(ek_dev_get(ek_cuda(i)), h);
}

/* ---- what is trained ---- */

typedef enum way {
    CLASSIC,
    BALANCED,
    SYNCHRONISED,
    AUTOCAST,
    SHARDED,
    FED, /* by a loader that sends batches ahead */
    MEASURED,
    WAYS
} way;

#ifdef EK_CUDA_EMULATED /* there asking how far a stream is drives it on */
enum { WAYS_HERE = MEASURED };
#else
enum { WAYS_HERE = WAYS };
#endif

typedef struct job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_tensor *input, *target;
    ek_loader *loader;
} job;

/* All steps' batches, which are one and the same, made before the last step: a worker asks for what
 * has become of its memory. */
static ek_loader *open_loader(const job *j, ek_device_list devices)
{
    enum { BATCHES = WARM_STEPS + HELD_STEPS + 1 };
    const struct timespec moment = {0, 100000000};
    ek_dataset *sets[BATCHES];
    ek_batch batch;
    for (int b = 0; b < BATCHES; b++)
        sets[b] = b ? ek_dataset_keep(sets[0]) : ek_tensor_dataset(j->input, j->target);
    ek_loader *loader = ek_data_loader(ek_concat_dataset_of(sets, BATCHES), .batch_size = BATCH,
                                       .workers = 1, .prefetch = BATCHES, .device_ids = devices);
    assert_made(loader);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    nanosleep(&moment, NULL);
    return loader;
}

static void open_job(job *j, way how)
{
    ek_device_list devices = ek_devices(EK_CUDA, DEVICES);
    ek_manual_seed(3);
    ek_module *net = ek_sequential(ek_conv2d(2, 4, 3, .padding = 1), ek_batch_norm2d(4), ek_relu(),
                                   ek_max_pool2d(2), ek_flatten(1, -1), ek_linear(4 * 4 * 4, 5));
    if (how == SYNCHRONISED)
        net = ek_convert_sync_batch_norm(net);
    ek_module *criterion = ek_cross_entropy_loss();
    if (how == CLASSIC) {
        j->model = ek_data_parallel(net, .device_ids = devices);
        j->criterion = criterion;
    } else {
        j->model =
            ek_data_parallel_model(net, .device_ids = devices,
                                   .shard = how == SHARDED ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE,
                                   .split = how == MEASURED ? EK_SPLIT_AUTO : EK_SPLIT_CHUNK,
                                   .goal = how == MEASURED ? EK_GOAL_TIME : EK_GOAL_MEMORY);
        j->criterion = ek_data_parallel_criterion(criterion, .device_ids = devices);
    }
    j->optimizer = ek_adam(j->model, .lr = 1e-2);
    j->input = ek_keep(ek_randn(EK_SHAPE(BATCH, 2, 8, 8)));
    ek_scope scope = ek_scope_begin();
    ek_tensor *target = ek_randint(0, 5, EK_SHAPE(BATCH));
    j->target = ek_keep(how == CLASSIC ? ek_to_device(target, ek_cuda(0)) : target);
    ek_scope_end(&scope);
    assert_made(j->optimizer);
    assert_made(j->target);
    j->loader = how == FED ? open_loader(j, devices) : NULL;
}

static void close_job(job *j)
{
    ek_loader_free(j->loader);
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->criterion);
    ek_module_free(j->model);
    ek_release(j->input);
    ek_release(j->target);
}

/* One step; the loss, which nobody has read, lives in the caller's scope. */
static ek_tensor *step(job *j, way how)
{
    ek_batch batch = {.input = ek_value_of_tensor(j->input),
                      .target = ek_value_of_tensor(j->target)};
    if (how == FED)
        ck_assert_int_eq(ek_loader_next(j->loader, &batch), 1);
    ek_autocast autocast = ek_autocast_begin(how == AUTOCAST ? EK_BF16 : EK_F32);
    ek_tensor *loss = ek_loss(j->criterion, ek_forward(j->model, batch.input), batch.target);
    ek_autocast_end(&autocast);
    ek_zero_grad(j->optimizer);
    assert_ok(ek_backward(loss));
    assert_ok(ek_step(j->optimizer));
    return loss;
}

/* Steps with batches of all sizes up to `most`. What is used for the first time may wait for the
 * whole GPU: a kernel that isn't loaded, the plan of a convolution. A split that is measured may
 * change while the streams are held, so that devices get other chunks than before. */
static void warm_sizes(job *j, way how, int64_t most)
{
    job part = *j;
    for (int64_t rows = 1; rows <= most; rows++) {
        double loss;
        ek_scope scope = ek_scope_begin();
        part.input = ek_narrow(ek_repeat(j->input, EK_SHAPE(2, 1, 1, 1)), 0, 0, rows);
        part.target = ek_narrow(ek_repeat(j->target, EK_SHAPE(2)), 0, 0, rows);
        assert_ok(ek_item(step(&part, how), &loss));
        ek_scope_end(&scope);
    }
}

TEST_LOOP(steps_return_before_they_have_run, 0, WAYS_HERE)
{
    job j;
    hold h = {.patience = PATIENCE};
    double warm, held;
    assert_ok(ek_cuda_devices_configure("0,0"));
    open_job(&j, (way)_i);
    if (_i == MEASURED)
        warm_sizes(&j, (way)_i, 2 * BATCH);
    for (int i = 0; i < WARM_STEPS; i++)
        assert_ok(ek_item(step(&j, (way)_i), &warm));
    for (int i = 0; i < DEVICES; i++)
        assert_ok(ek_synchronize(ek_cuda(i)));
    hold_all(&h);
    ek_tensor *loss = NULL;
    for (int i = 0; i < HELD_STEPS; i++)
        loss = step(&j, (way)_i);
    ck_assert_msg(!atomic_load(&h.gave_up), "the step waited for the device");
    atomic_store(&h.released, true);
    assert_ok(ek_item(loss, &held));
    ck_assert_double_lt(held, warm); /* it learns: the step did run */
    close_job(&j);
}

/* A wrapper that two threads use at the same time: the second is refused, and nobody waits. */
#include <pthread.h>

#include "kit/models.h"

enum { BATCH = 8, WIDTH = 3, DEVICES = 3 };

/* ---- modules that wait until the other thread has its answer ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, inside, answered; /* guarded by lock */
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, false};

static void arm(bool armed)
{
    pthread_mutex_lock(&gate.lock);
    gate.armed = armed;
    gate.inside = gate.answered = false;
    pthread_mutex_unlock(&gate.lock);
}

static void pass_the_gate(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.inside = true;
    pthread_cond_broadcast(&gate.changed);
    while (gate.armed && !gate.answered)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void wait_until_somebody_is_inside(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.inside)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void let_go(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.answered = true;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

typedef struct patient {
    ek_module module;
    ek_module *body;
} patient;

static ek_value patient_forward(ek_module *module, const ek_args *args)
{
    patient *self = (patient *)module;
    pass_the_gate();
    return ek_value_of_tensor(ek_apply(self->body, ek_arg_tensor(args, 0)));
}

MODULE_TYPE(patient, patient)

static ek_value patient_loss_forward(ek_module *module, const ek_args *args)
{
    pass_the_gate();
    return ek_value_of_tensor(ek_mean(ek_square(ek_arg_tensor(args, 0))));
}

MODULE_TYPE(patient_loss, ek_module)

/* ---- what two threads do ---- */

typedef enum model_kind { CLASSIC, BALANCED, SHARDED, SINGLE } model_kind;
typedef enum act { CALL, TRAIN, LOSS, STEP, PENALTY, SIZES, STATS, PLAN } act;

static ek_module *model, *criterion;
static ek_optimizer *optimizer;

static void make(model_kind kind)
{
    patient *net = (patient *)ek_module_new(&patient_type);
    ek_device_list devices = ek_devices(test_kind(), kind == SINGLE ? 1 : DEVICES);
    assert_made(net);
    assert_ok(ek_register_module(&net->module, "body", &net->body, ek_linear(WIDTH, 1)));
    ek_module *loss = ek_module_new(&patient_loss_type);
    if (kind == CLASSIC || kind == SINGLE) {
        model = ek_data_parallel(&net->module, .device_ids = devices);
        criterion = loss;
    } else {
        model =
            ek_data_parallel_model(&net->module, .device_ids = devices,
                                   .shard = kind == SHARDED ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE);
        criterion = ek_data_parallel_criterion(loss, .device_ids = devices);
    }
    assert_made(model);
    assert_made(criterion);
    optimizer = ek_adam(model);
    assert_made(optimizer);
}

static void free_all(void)
{
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    ek_module_free(criterion);
}

/* The outputs of a balanced model, without one. */
static ek_value outputs(void)
{
    ek_value parts[DEVICES];
    for (int d = 0; d < DEVICES; d++)
        parts[d] = ek_value_of_tensor(ek_ones(EK_SHAPE(2, 1), .device = test_device(d)));
    return EK_SCATTERED(parts[0], parts[1], parts[2]);
}

static int status_of(bool well)
{
    return well ? 0 : ek_error_status();
}

static int do_act(act what)
{
    int64_t sizes[EK_MAX_DEVICES];
    ek_data_parallel_stats stats;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_ones(EK_SHAPE(BATCH, WIDTH));
    int rc = 0;
    switch (what) {
    case CALL:
        rc = status_of(ek_forward(model, x).kind != EK_VALUE_ERROR);
        break;
    case TRAIN:
        rc = ek_train_step(NULL, .model = model, .criterion = criterion, .optimizer = optimizer,
                           .input = EK_VALUE(x));
        break;
    case LOSS:
        rc = status_of(ek_loss(criterion, outputs()));
        break;
    case STEP:
        rc = ek_step(optimizer);
        break;
    case PENALTY:
        rc = status_of(ek_gradient_penalty(.critic = model, .real = x, .fake = x));
        break;
    case SIZES:
        rc = ek_data_parallel_sizes(model, BATCH, sizes);
        break;
    case STATS:
        rc = ek_data_parallel_get_stats(model, &stats);
        break;
    default:
        rc = ek_data_parallel_plan(model, NULL, 0) < 0 ? ek_error_status() : 0;
        break;
    }
    ek_scope_end(&scope);
    return rc;
}

/* ---- the second thread ---- */

typedef struct second {
    act what;
    int status;
    ek_error_record error;
} second;

static void *come_second(void *user)
{
    second *s = user;
    wait_until_somebody_is_inside();
    s->status = do_act(s->what);
    ek_error_take(&s->error);
    let_go();
    return NULL;
}

static void *come_later(void *user)
{
    second *s = user;
    s->status = do_act(s->what);
    ek_error_take(&s->error);
    return NULL;
}

static void join(second *s, void *(*function)(void *user), act first)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, function, s), 0);
    if (function == come_second)
        assert_ok(do_act(first));
    pthread_join(thread, NULL);
}

static const struct {
    model_kind kind;
    act first, second;
    const char *sentence;
} meetings[] = {
    {CLASSIC, CALL, CALL, "data_parallel: it is in a call on another thread; one thread at a time"},
    {CLASSIC, CALL, SIZES, "data_parallel is in a call on another thread"},
    {CLASSIC, CALL, STATS, "data_parallel is in a call on another thread"},
    {CLASSIC, CALL, PLAN, "data_parallel is in a call on another thread"},
    {CLASSIC, TRAIN, CALL, "data_parallel: it is in a call on another thread"},
    {CLASSIC, CALL, TRAIN, "train_step: data_parallel is in a call on another thread"},
    {CLASSIC, TRAIN, TRAIN, "train_step: data_parallel is in a call on another thread"},
    {BALANCED, CALL, CALL, "data_parallel_model: it is in a call on another thread"},
    {BALANCED, TRAIN, CALL, "data_parallel_model: it is in a call on another thread"},
    {BALANCED, CALL, PENALTY, "gradient penalty: data_parallel_model is in a call on another"},
    {BALANCED, PENALTY, CALL, "data_parallel_model: it is in a call on another thread"},
    {BALANCED, LOSS, LOSS, "data_parallel_criterion: it is in a call on another thread"},
    {BALANCED, LOSS, TRAIN, "train_step: data_parallel_criterion is in a call on another thread"},
    {BALANCED, TRAIN, LOSS, "data_parallel_criterion: it is in a call on another thread"},
    {SHARDED, CALL, STEP, "adam: the sharded model is in a call on another thread"},
    {SHARDED, TRAIN, STEP, "adam: the sharded model is in a call on another thread"},
    {SHARDED, CALL, CALL, "data_parallel_model: it is in a call on another thread"},
    {SINGLE, CALL, CALL, "data_parallel: it is in a call on another thread"},
};
enum { MEETINGS = sizeof meetings / sizeof *meetings };

TEST_LOOP(the_second_thread_is_refused, 0, MEETINGS)
{
    char before[65], after[65];
    assert_ok(test_devices_configure("3"));
    make(meetings[_i].kind);
    assert_ok(do_act(TRAIN));
    int64_t steps = ek_optimizer_steps(optimizer, ek_module_tensor(model, "body.weight"));
    assert_ok(ek_module_sha256(model, before));
    arm(true);
    second other = {.what = meetings[_i].second};
    join(&other, come_second, meetings[_i].first);
    arm(false);
    ck_assert_int_eq(other.status, EK_E_STATE);
    ck_assert_msg(strncmp(other.error.message, meetings[_i].sentence,
                          strlen(meetings[_i].sentence)) == 0,
                  "%s", other.error.message);
    /* Nothing was lost: what the first thread did is all that has happened. */
    bool trained = meetings[_i].first == TRAIN;
    ck_assert_int_eq(ek_optimizer_steps(optimizer, ek_module_tensor(model, "body.weight")),
                     steps + trained);
    assert_ok(ek_module_sha256(model, after));
    ck_assert_int_eq(strcmp(before, after) != 0, trained);
    /* One after the other any thread may. */
    join(&other, come_later, CALL);
    ck_assert_int_eq(other.status, 0);
    assert_ok(do_act(meetings[_i].first));
    free_all();
}

/* ---- calls within calls ---- */

/* Asks its own wrapper, which is in a call of the same thread. */
static ek_value curious_forward(ek_module *module, const ek_args *args)
{
    int64_t sizes[EK_MAX_DEVICES];
    if (ek_data_parallel_sizes(model, 5, sizes) < 0)
        return ek_value_error();
    return args->inputs[0];
}

MODULE_TYPE(curious, ek_module)

TEST(one_thread_may_enter_again)
{
    assert_ok(test_devices_configure("3"));
    model =
        ek_data_parallel(ek_module_new(&curious_type), .device_ids = ek_devices(test_kind(), 1));
    for (int i = 0; i < 3; i++)
        assert_made(ek_apply(model, ek_ones(EK_SHAPE(BATCH, WIDTH))));
    ek_module_free(model);
    /* After an error nobody is inside any more. */
    make(CLASSIC);
    ck_assert_ptr_null(ek_apply(model, ek_ones(EK_SHAPE(BATCH, WIDTH + 1))));
    ek_error_clear();
    second other = {.what = CALL};
    join(&other, come_later, CALL);
    ck_assert_int_eq(other.status, 0);
    free_all();
}

/* ---- plain modules: several threads may read ---- */

enum { READERS = 3, PASSES = 20 };

typedef struct reader {
    ek_module *net;
    double sum; /* of the last pass */
} reader;

static void *read_it(void *user)
{
    reader *r = user;
    ek_set_grad_enabled(false);
    for (int i = 0; i < PASSES; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *y = ek_apply(r->net, ek_ones(EK_SHAPE(BATCH, WIDTH)));
        if (!y || ek_item(ek_sum(y), &r->sum) < 0)
            r->sum = -1;
        ek_scope_end(&scope);
    }
    return NULL;
}

TEST(several_threads_may_read_a_plain_module)
{
    ek_manual_seed(3);
    ek_module *net = ek_sequential(ek_linear(WIDTH, 4), ek_batch_norm1d(4), ek_sigmoid());
    assert_made(net);
    ek_module_train(net, false);
    reader alone = {.net = net}, readers[READERS];
    pthread_t threads[READERS];
    read_it(&alone);
    for (int i = 0; i < READERS; i++) {
        readers[i] = (reader){.net = net};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_it, &readers[i]), 0);
    }
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_double_gt(alone.sum, 0);
    for (int i = 0; i < READERS; i++)
        ck_assert_double_eq(readers[i].sum, alone.sum);
    ek_module_free(net);
}

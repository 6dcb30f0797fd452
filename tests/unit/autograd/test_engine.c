/* Backward over several devices: the same bits whatever arrives first, errors from any device,
 * several callers at a time, passes inside of jobs. */
#include <pthread.h>

#include "toy.h"

enum { DEVICES = 4 };
static ek_dev *devs[DEVICES];

static void setup(void)
{
    assert_ok(test_devices_configure("4"));
    for (int i = 0; i < DEVICES; i++) {
        devs[i] = ek_dev_get(test_device(i));
        assert_made(devs[i]);
        devs[i]->threads = 1;
    }
}

FIXTURE(setup, NULL)

/* A sum of x over several devices, in which each device's part of x's gradient has another size:
 * only one order of summation gives the same bits. Naps shuffle the order of arrival. */
static ek_tensor *shuffled(ek_tensor *x, const unsigned *naps)
{
    static const double factors[DEVICES - 1] = {1e16, -1.0 / 3, -1e16};
    ek_tensor *sum = toy_scale(x, 1.0 / 7);
    for (int i = 1; i < DEVICES; i++) {
        ek_tensor *there = toy_scale(toy_to(x, devs[i], naps[i]), factors[i - 1]);
        sum = ek_fold_add(sum, toy_to(there, devs[0], 0));
    }
    return toy_sum(sum);
}

TEST(sums_do_not_depend_on_arrival)
{
    static const double values[2] = {1, 2};
    static const unsigned naps[][DEVICES] = {
        {0, 0, 0, 0}, {0, 3000, 0, 0}, {0, 0, 3000, 0}, {0, 0, 0, 3000}, {0, 6000, 3000, 0}};
    double first = 0;
    for (int round = 0; round < 20; round++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = toy_leaf(values, 2, test_device(0));
        assert_ok(ek_backward(shuffled(x, naps[round % 5])));
        double gradient = element(ek_tensor_grad(x), 1);
        if (round == 0)
            first = gradient;
        ck_assert_mem_eq(&gradient, &first, sizeof first);
        ek_scope_end(&scope);
    }
}

static int grad_in_job(void *user, int index)
{
    static const double values[2] = {1, 2};
    static const unsigned naps[DEVICES];
    double *results = user;
    ek_tensor *x = toy_leaf(values, 2, test_device(0));
    results[index] = element(toy_grad(shuffled(x, naps), x, false), 1);
    return 0;
}

TEST(passes_inside_of_jobs_run_on_their_thread)
{
    double results[DEVICES], outside;
    grad_in_job(&outside, 0);
    assert_ok(ek_jobs_run(devs, DEVICES, grad_in_job, results, NULL));
    for (int i = 0; i < DEVICES; i++)
        ck_assert_mem_eq(&results[i], &outside, sizeof outside);
}

/* ---- the thread of each node ---- */

static ek_dev *ran_on[DEVICES];

static int witness_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    const int *index = ek_node_attributes(node);
    ran_on[*index] = ek_thread_self()->own_device;
    results[0] = gradients[0];
    return 0;
}

static ek_tensor *witness(ek_tensor *x, int index)
{
    static const ek_operation operation = {.name = "witness", .backward = witness_backward};
    ek_tensor *y = ek_fold_copy(ek_detach(x), x);
    return EK_RECORD(y, &operation, EK_INPUTS(x), EK_ATTRIBUTES(index));
}

TEST(nodes_run_on_the_worker_of_their_device)
{
    static const double values[2] = {1, 2};
    ek_tensor *x = toy_leaf(values, 2, ek_cpu());
    ek_tensor *sum = NULL;
    for (int i = 0; i < DEVICES; i++) {
        ek_tensor *there = toy_to(witness(toy_to(x, devs[i], 0), i), ek_tensor_dev(x), 0);
        sum = sum ? ek_fold_add(sum, there) : there;
    }
    assert_ok(ek_backward(toy_sum(sum)));
    ck_assert_double_eq(element(ek_tensor_grad(x), 0), DEVICES);
    for (int i = 0; i < DEVICES; i++)
        ck_assert_ptr_eq(ran_on[i], devs[i]);

    /* One device: the caller's own thread. */
    x = toy_leaf(values, 2, test_device(1));
    assert_ok(ek_backward(toy_sum(witness(x, 1))));
    ck_assert_ptr_null(ran_on[1]);
}

TEST(one_node_over_several_devices)
{
    static const double values[2] = {1, 2};
    for (int used = 1; used <= DEVICES; used++) {
        ek_tensor *x = toy_leaf(values, 2, test_device(0));
        ek_tensor *copies[DEVICES], *sum = NULL;
        assert_ok(toy_broadcast(x, devs, DEVICES, copies));
        /* The first `used` replicas contribute, device 3's twice. */
        for (int i = 0; i < used; i++) {
            ek_tensor *part = toy_sum(toy_mul(copies[i], copies[i]));
            if (i == 3)
                part = ek_fold_add(part, toy_sum(copies[i]));
            part = toy_to(part, devs[0], 0);
            sum = sum ? ek_fold_add(sum, part) : part;
        }
        assert_ok(ek_backward(sum));
        ck_assert_int_eq(toy_broadcast_missing, DEVICES - used);
        double wanted = 2 * 2 * used + (used == DEVICES);
        ck_assert_double_eq(element(ek_tensor_grad(x), 1), wanted);
    }
}

TEST(second_order_over_devices)
{
    static const double values[2] = {1, 2};
    ek_tensor *x = toy_leaf(values, 2, test_device(0));
    ek_tensor *copies[DEVICES], *sum = NULL;
    assert_ok(toy_broadcast(x, devs, DEVICES, copies));
    for (int i = 0; i < DEVICES; i++) {
        ek_tensor *part = toy_mul(toy_mul(copies[i], copies[i]), copies[i]);
        part = toy_to(toy_sum(part), devs[0], 0);
        sum = sum ? ek_fold_add(sum, part) : part;
    }
    /* The gradients at the replicas, then their sum of squares differentiated again: a penalty. */
    ek_tensor *gradients[DEVICES], *penalty = NULL;
    assert_ok(ek_grad(.outputs = &sum, .output_count = 1, .inputs = copies, .input_count = DEVICES,
                      .gradients = gradients, .create_graph = true));
    for (int i = 0; i < DEVICES; i++) {
        ek_tensor *part = toy_to(toy_sum(toy_mul(gradients[i], gradients[i])), devs[0], 0);
        penalty = penalty ? ek_fold_add(penalty, part) : part;
    }
    assert_ok(ek_backward(penalty));
    /* d (3 x^2)^2 / dx = 36 x^3, from each device */
    for (int i = 0; i < 2; i++)
        ck_assert_double_eq_tol(element(ek_tensor_grad(x), i),
                                DEVICES * 36 * values[i] * values[i] * values[i], 1e-9);
}

TEST(failures_on_any_device_stop_all)
{
    static const double values[2] = {1, 2};
    for (int round = 0; round < 30; round++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = toy_leaf(values, 2, test_device(0)), *sum = NULL;
        int broken = 1 + round % 3;
        for (int i = 0; i < DEVICES; i++) {
            ek_tensor *there = toy_to(x, devs[i], i == round % 4 ? 500 : 0);
            for (int k = 0; k < 20; k++)
                there = toy_exp(toy_scale(there, 0.1));
            if (i == broken || (round % 2 && i == 3))
                there = toy_fail(there, TOY_FAIL_STATUS);
            there = toy_to(toy_sum(there), devs[0], 0);
            sum = sum ? ek_fold_add(sum, there) : there;
        }
        ck_assert_int_eq(ek_backward(sum), EK_E_USER);
        ck_assert_ptr_nonnull(
            strstr(ek_error_message(), device_text("in backward of toy_fail on host:")));
        assert_error(EK_E_USER, "the toy is broken");
        ck_assert_ptr_null(ek_tensor_grad(x));
        /* The engine goes on working. */
        static const unsigned naps[DEVICES];
        assert_ok(ek_backward(shuffled(x, naps)));
        ek_scope_end(&scope);
        for (int i = 0; i < DEVICES; i++)
            ck_assert_uint_eq(toy_memory(test_device(i)).in_use, 0);
    }
}

TEST(out_of_memory_in_backward_can_be_retried)
{
    static const double values[2] = {1, 2};
    enum { COUNT = 4096 };
    ek_tensor *x = toy_leaf(values, 2, test_device(0));
    ek_scope scope = ek_scope_begin();
    ek_tensor *large = toy_full(1, EK_SHAPE(COUNT), test_device(2));
    assert_ok(ek_tensor_set_requires_grad(large, true));
    ek_tensor *y = toy_to(toy_sum(toy_exp(large)), devs[0], 0);
    y = ek_fold_add(y, toy_sum(toy_to(toy_exp(toy_to(x, devs[1], 0)), devs[0], 0)));
    uint64_t in_use = toy_memory(test_device(2)).in_use;
    assert_ok(ek_memory_set_capacity(test_device(2), in_use + 1024));
    ck_assert_int_eq(ek_backward(y), EK_E_OUT_OF_MEMORY);
    ck_assert_ptr_nonnull(
        strstr(ek_error_message(), device_text("in backward of toy_exp on host:2")));
    assert_error(EK_E_OUT_OF_MEMORY, "host:2 is out of memory");
    ck_assert_ptr_null(ek_tensor_grad(large));
    ek_scope_end(&scope);
    ck_assert_uint_eq(toy_memory(test_device(2)).in_use, 0);

    scope = ek_scope_begin();
    ek_tensor *small = toy_full(1, EK_SHAPE(COUNT / 4), test_device(2));
    assert_ok(ek_tensor_set_requires_grad(small, true));
    assert_ok(ek_backward(toy_sum(toy_exp(small))));
    ck_assert_double_eq(element(ek_tensor_grad(small), COUNT / 4 - 1), element(toy_exp(small), 0));
    ek_scope_end(&scope);
    assert_ok(ek_memory_set_capacity(test_device(2), 0));
}

/* ---- several callers ---- */

typedef struct caller {
    pthread_t thread;
    int first; /* device */
    int rounds;
    int failed; /* rounds that went wrong */
    double gradient;
} caller;

/* Each on three devices of four: they meet on two. */
static void *call_backward(void *user)
{
    caller *self = user;
    static const double values[2] = {1, 2};
    for (int round = 0; round < self->rounds; round++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_keep(ek_empty(EK_SHAPE(2), .dtype = EK_F64,
                                        .device = test_device(self->first), .requires_grad = true));
        ek_tensor *copies[3], *sum = NULL;
        int rc = ek_set_data(x, values, sizeof values);
        rc = rc < 0 ? rc : toy_broadcast(x, devs + self->first, 3, copies);
        for (int i = 0; i < 3 && rc >= 0; i++) {
            ek_tensor *part = toy_mul(toy_exp(copies[i]), copies[i]);
            part = toy_to(toy_sum(toy_scale(part, 1 + i)), devs[self->first], 0);
            sum = sum ? ek_fold_add(sum, part) : part;
        }
        rc = rc < 0 ? rc : ek_backward(sum);
        double gradients[2] = {0};
        rc = rc < 0 ? rc : ek_to_data(ek_tensor_grad(x), gradients, sizeof gradients);
        double gradient = gradients[1];
        if (round == 0)
            self->gradient = gradient;
        self->failed += rc < 0 || memcmp(&gradient, &self->gradient, sizeof gradient) != 0;
        ek_release(x);
        ek_scope_end(&scope);
        ek_error_clear();
    }
    return NULL;
}

TEST(callers_do_not_get_in_each_others_way)
{
#ifdef EK_SANITIZED
    enum { ROUNDS = 50 };
#else
    enum { ROUNDS = 300 };
#endif
    caller callers[2] = {{.first = 0, .rounds = ROUNDS}, {.first = 1, .rounds = ROUNDS}};
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, call_backward, &callers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(callers[i].thread, NULL);
    ck_assert_int_eq(callers[0].failed, 0);
    ck_assert_int_eq(callers[1].failed, 0);
    /* 6 (x + 1) e^x at 2 */
    ck_assert_double_eq_tol(callers[0].gradient, 6 * 3 * 7.38905609893065, 1e-9);
    ck_assert_mem_eq(&callers[0].gradient, &callers[1].gradient, sizeof(double));
}

/* allreduce: from one thread, and by the parts of a gang, each of which brings its own. */
#include "autograd/graph.h"
#include "comm_setup.h"
#include "core/object.h"
#include "core/rendezvous.h"
#include "core/tensor.h"
#include "core/worker.h"

/* ---- from one thread ---- */

TEST_LOOP(every_device_gets_the_sums, 0, 6)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_F64, EK_BF16, EK_I64, EK_F16, EK_I32};
    ek_tensor *x[6], *out[6];
    for (int d = 0; d < 3; d++) {
        ek_device device = test_device((d + 2) % 3); /* the first list needn't be on host:0 */
        x[2 * d] = ramp(d, d + 1, EK_SHAPE(2, 3), dtypes[_i], device);
        x[2 * d + 1] = ramp(10 * d, 1, EK_SHAPE(4), dtypes[_i], device);
    }
    assert_ok(ek_allreduce(x, 2, 6, out));
    for (int d = 0; d < 3; d++) {
        assert_on(out[2 * d], test_device((d + 2) % 3));
        assert_ramp(out[2 * d], 3, 6);
        assert_ramp(out[2 * d + 1], 30, 3);
        assert_ramp(x[2 * d], d, d + 1); /* inputs stay */
    }
    assert_ok(ek_allreduce(x, 2, 2, out)); /* one device */
    assert_ramp(out[0], 0, 1);
    assert_ok(ek_allreduce(NULL, 0, 0, NULL));
}

TEST(long_lists_travel_in_buffers)
{
    enum { COUNT = 3, ELEMENTS = 2000000 }; /* 8 MB each: a buffer holds one */
    ek_tensor *x[2 * COUNT], *out[2 * COUNT];
    for (int i = 0; i < 2 * COUNT; i++) {
        x[i] = ek_full(i, EK_SHAPE(ELEMENTS), .device = test_device(i / COUNT));
        assert_ok(ek_tensor_set_requires_grad(x[i], true));
    }
    assert_ok(ek_allreduce(x, COUNT, 2 * COUNT, out));
    for (int i = 0; i < 2 * COUNT; i++)
        ck_assert_double_eq(element(ek_narrow(out[i], 0, ELEMENTS - 1, 1), 0),
                            2 * (i % COUNT) + COUNT);
    ck_assert_ptr_eq(out[0]->history, out[1]->history); /* a bucket closes once it is full */
    ck_assert_ptr_ne(out[0]->history, out[2]->history);
}

TEST(wrong_lists_are_refused)
{
    ek_tensor *a = ramp(0, 1, EK_SHAPE(2), EK_F32, test_device(0));
    ek_tensor *b = ramp(0, 1, EK_SHAPE(2), EK_F32, test_device(1));
    ek_tensor *long_b = ramp(0, 1, EK_SHAPE(3), EK_F32, test_device(1));
    ek_tensor *f64 = ramp(0, 1, EK_SHAPE(2), EK_F64, test_device(1));
    ek_tensor *out[4];
    assert_refused(ek_allreduce((ek_tensor *[]){a, b, a}, 2, 3, out), EK_E_INVALID,
                   "allreduce: 3 tensors can't be num_inputs = 2 of each device; count has to be a "
                   "multiple of num_inputs");
    assert_refused(ek_allreduce((ek_tensor *[]){a}, 0, 1, out), EK_E_INVALID,
                   "num_inputs = 0 of each device");
    assert_refused(ek_allreduce((ek_tensor *[]){a}, -1, 1, out), EK_E_INVALID,
                   "allreduce: num_inputs is -1 and count 1; both are 0 or more");
    assert_refused(ek_allreduce(NULL, 1, 2, out), EK_E_INVALID,
                   "allreduce: the array of tensors is NULL");
    assert_refused(ek_allreduce((ek_tensor *[]){a, b}, 1, 2, NULL), EK_E_INVALID,
                   "allreduce: the array for the sums is NULL");
    assert_refused(ek_allreduce((ek_tensor *[]){a, long_b}, 1, 2, out), EK_E_SHAPE,
                   "allreduce: input 1 has an invalid size");
    assert_refused(ek_allreduce((ek_tensor *[]){a, f64}, 1, 2, out), EK_E_DTYPE,
                   "allreduce: input 1 is");
    assert_refused(ek_allreduce((ek_tensor *[]){a, NULL}, 1, 2, out), EK_E_INVALID,
                   "allreduce: input 1 is NULL");
    assert_refused(ek_allreduce((ek_tensor *[]){a, b, a}, 1, 3, out), EK_E_DEVICE,
                   "allreduce: lists 0 and 2 are both on host:0");
    assert_refused(ek_allreduce((ek_tensor *[]){a, a, b, a}, 2, 4, out), EK_E_DEVICE,
                   "allreduce: tensor 1 of list 1 is on host:0");
    ek_tensor *many[EK_MAX_DEVICES + 1];
    for (int i = 0; i <= EK_MAX_DEVICES; i++)
        many[i] = a;
    assert_refused(ek_allreduce(many, 1, EK_MAX_DEVICES + 1, (ek_tensor * [EK_MAX_DEVICES + 1]){0}),
                   EK_E_INVALID, "allreduce: 1 to");
    ek_error(EK_E_IO, "older");
    assert_refused(ek_allreduce((ek_tensor *[]){a, b}, 1, 2, out), EK_E_IO, "older");
}

/* ---- by the parts of a gang ---- */

enum { PARTS = 3 };

/* What the parts do: part d cubes its sum of what all bring, with factors of its own. */
typedef struct job {
    ek_tensor *const *inputs; /* two of each part */
    ek_tensor *outputs[PARTS];
    bool no_grad[PARTS];
    int fails;      /* this part, before it meets the others; -1: none */
    int forgets;    /* this part ends well instead; -1: none */
    int brings_one; /* this part brings one tensor instead of two; -1: none */
} job;

static ek_tensor *curve(ek_tensor *x, int d)
{
    return ek_mul(ek_mul_scalar(ek_square(x), d + 1), x);
}

static int run_job(void *user, int d)
{
    job *j = user;
    if (d == j->fails)
        return ek_error(EK_E_USER, "part %d fails", d);
    if (d == j->forgets)
        return 0;
    bool before = ek_set_grad_enabled(ek_grad_enabled() && !j->no_grad[d]);
    ek_tensor *own[2] = {curve(j->inputs[2 * d], d), curve(j->inputs[2 * d + 1], 1)}, *sums[2];
    int count = d == j->brings_one ? 1 : 2;
    int rc = ek_allreduce(own, count, count, sums);
    if (rc >= 0) {
        if (ek_tensor_device(sums[0]).index != d || ek_tensor_device(sums[1]).index != d)
            rc = ek_error(EK_E_USER, "a sum is not on its part's device");
        if (j->no_grad[d] && ek_tensor_requires_grad(sums[0]))
            rc = ek_error(EK_E_USER, "a sum requires a gradient");
        j->outputs[d] = ek_keep(ek_mul(ek_mul(sums[0], sums[1]), own[0]));
    }
    ek_set_grad_enabled(before);
    return rc;
}

static const job whole = {.fails = -1, .forgets = -1, .brings_one = -1};

/* `used` parts' outputs become the result. */
static ek_tensor *together(ek_tensor *const *inputs, int count, void *user)
{
    job j = *(const job *)user;
    j.inputs = inputs;
    ek_dev *devs[PARTS];
    for (int d = 0; d < PARTS; d++)
        devs[d] = ek_dev_get(test_device(d));
    int rc = ek_jobs_run(devs, PARTS, run_job, &j, "replica");
    ek_tensor *y = NULL;
    for (int d = 0; d < PARTS; d++) {
        ek_scope_adopt(j.outputs[d]);
        /* The second part's output has no part in the loss. */
        if (rc >= 0 && d != 1) {
            ek_tensor *term = ek_to_device(j.outputs[d], test_device(0));
            y = y ? ek_add(y, term) : term;
        }
    }
    return rc < 0 ? NULL : y;
}

static void make_inputs(ek_tensor **inputs)
{
    for (int i = 0; i < 2 * PARTS; i++) {
        ek_generator *generator = ek_generator_new(50 + (uint64_t)i);
        inputs[i] = ek_empty(EK_SHAPE(2), .dtype = EK_F64, .device = test_device(i / 2));
        assert_made(inputs[i]);
        assert_ok(ek_normal_(inputs[i], 0, 1, generator));
        ek_generator_free(generator);
        assert_ok(ek_tensor_set_requires_grad(inputs[i], true));
    }
}

TEST(parts_get_the_sums_of_all)
{
    ek_tensor *inputs[2 * PARTS];
    make_inputs(inputs);
    job j = whole;
    ek_tensor *y = together(inputs, 2 * PARTS, &j);
    assert_made(y);
    for (int e = 0; e < 2; e++) {
        double sums[2] = {0, 0}, own[PARTS];
        for (int d = 0; d < PARTS; d++) {
            double a = element(inputs[2 * d], e), b = element(inputs[2 * d + 1], e);
            own[d] = (d + 1) * a * a * a;
            sums[0] += own[d];
            sums[1] += 2 * b * b * b;
        }
        ck_assert_double_eq_tol(element(y, e), sums[0] * sums[1] * (own[0] + own[2]), 1e-12);
    }
}

static ek_tensor *one_thread(ek_tensor *const *inputs, int count, void *user)
{
    ek_tensor *curves[2 * PARTS], *sums[2 * PARTS], *y = NULL;
    for (int i = 0; i < count; i++)
        curves[i] = curve(inputs[i], i);
    if (ek_allreduce(curves, 2, count, sums) < 0)
        return NULL;
    for (int d = 0; d < PARTS; d += 2) { /* the second device's have no part */
        ek_tensor *term = ek_mul(ek_mul(sums[2 * d], sums[2 * d + 1]), inputs[2 * d]);
        term = ek_to_device(term, test_device(0));
        y = y ? ek_add(y, term) : term;
    }
    return y;
}

TEST_LOOP(gradients_to_second_order, 0, 2)
{
    ek_tensor *inputs[2 * PARTS];
    make_inputs(inputs);
    job j = whole;
    ek_check_function *function = _i ? together : one_thread;
    assert_ok(
        ek_gradcheck(.function = function, .inputs = inputs, .input_count = 2 * PARTS, .user = &j));
    assert_ok(ek_gradgradcheck(.function = function, .inputs = inputs, .input_count = 2 * PARTS,
                               .user = &j));
}

TEST(a_part_may_go_without_gradients)
{
    /* Whoever comes last: its share is a constant to the others, and the sum to itself. */
    ek_tensor *inputs[2 * PARTS], *gradients[2 * PARTS];
    make_inputs(inputs);
    for (int round = 0; round < 50; round++) {
        ek_scope scope = ek_scope_begin();
        job j = whole;
        j.no_grad[2] = true;
        ek_tensor *y = together(inputs, 2 * PARTS, &j);
        assert_made(y);
        assert_ok(ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs,
                          .input_count = 2 * PARTS, .gradients = gradients,
                          .grad_outputs = (ek_tensor *[]){ek_full(1, EK_SHAPE(2), .dtype = EK_F64,
                                                                  .device = test_device(0))},
                          .allow_unused = true));
        for (int i = 0; i < 2 * PARTS; i++)
            ck_assert(i / 2 == 2 ? !gradients[i] : gradients[i] != NULL);
        ek_scope_end(&scope);
    }
}

TEST(no_graph_without_gradient_mode)
{
    ek_tensor *inputs[2 * PARTS];
    make_inputs(inputs);
    ek_set_grad_enabled(false);
    job j = whole;
    ek_tensor *y = together(inputs, 2 * PARTS, &j);
    assert_made(y);
    ck_assert(!ek_tensor_requires_grad(y));
    ek_set_grad_enabled(true);
}

TEST(failures_arrive)
{
    ek_tensor *inputs[2 * PARTS];
    make_inputs(inputs);
    for (int round = 0; round < 200; round++) {
        job j = whole;
        j.fails = round % PARTS;
        assert_refused(together(inputs, 2 * PARTS, &j), EK_E_USER, "fails");
        j = whole;
        j.forgets = round % PARTS;
        assert_refused(together(inputs, 2 * PARTS, &j), EK_E_STATE,
                       "ended without taking part in allreduce");
        j = whole;
        j.brings_one = 1;
        assert_refused(together(inputs, 2 * PARTS, &j), EK_E_INVALID,
                       "allreduce: replica 0 brings 2 tensors, but replica 1 brings 1");
    }
    job j = whole;
    assert_made(together(inputs, 2 * PARTS, &j));
}

TEST(parts_must_agree)
{
    ek_tensor *inputs[2 * PARTS];
    make_inputs(inputs);
    inputs[4] = ramp(1, 1, EK_SHAPE(3), EK_F64, test_device(2));
    job j = whole;
    assert_refused(together(inputs, 2 * PARTS, &j), EK_E_SHAPE,
                   "allreduce: input 2 has an invalid size");
    make_inputs(inputs);
    inputs[4] = ramp(1, 1, EK_SHAPE(2), EK_F64, test_device(1));
    inputs[5] = ramp(1, 1, EK_SHAPE(2), EK_F64, test_device(1));
    assert_refused(together(inputs, 2 * PARTS, &j), EK_E_DEVICE,
                   "allreduce: lists 1 and 2 are both on host:1");
}

static int bring_all(void *user, int d)
{
    ek_tensor *out[4];
    return ek_allreduce(user, 1, 4, out) + 0 * d;
}

TEST(a_part_brings_its_own_alone)
{
    ek_tensor *x[4];
    ek_dev *devs[4];
    for (int d = 0; d < 4; d++) {
        x[d] = ramp(0, 1, EK_SHAPE(2), EK_F64, test_device(d));
        devs[d] = ek_dev_get(test_device(d));
    }
    assert_refused(ek_jobs_run(devs, 4, bring_all, x, "replica"), EK_E_INVALID,
                   "this replica's alone: count has to be num_inputs, 1, not 4");
}

/* ---- in backward ---- */

static int meeting_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return ek_allreduce(gradients, 1, 1, results);
}

static const ek_operation meeting_operation = {.name = "meeting", .backward = meeting_backward};

TEST(lanes_of_backward_are_no_replicas)
{
    ek_tensor *terms[3];
    for (int d = 0; d < 3; d++) {
        ek_tensor *x = ramp(0, 1, EK_SHAPE(2), EK_F64, test_device(d));
        assert_ok(ek_tensor_set_requires_grad(x, true));
        ek_tensor *y = ek_tensor_alias(x);
        terms[d] = EK_RECORD(y, &meeting_operation, EK_INPUTS(x));
        assert_made(terms[d]);
    }
    assert_refused(ek_backward(ek_sum(ek_reduce_add(terms, 3, ek_tensor_device(terms[0])))),
                   EK_E_STATE,
                   "allreduce waits for the other replicas, which is impossible in "
                   "backward");
    ck_assert_int_eq(ek_rendezvous_count(), 1);
}

/* One node with a tensor on each of two devices: its backward has the whole list. */
static int listing_backward(ek_node *node, ek_tensor *const *gradients, ek_tensor **results)
{
    return ek_allreduce(gradients, 1, 2, results);
}

static const ek_operation listing_operation = {.name = "listing", .backward = listing_backward};

TEST(a_backward_may_sum_a_whole_list)
{
    ek_tensor *x[2], *y[2], *gradients[2];
    for (int d = 0; d < 2; d++) {
        x[d] = ramp(0, 1, EK_SHAPE(2), EK_F64, test_device(d));
        assert_ok(ek_tensor_set_requires_grad(x[d], true));
        y[d] = ek_tensor_alias(x[d]);
    }
    assert_ok(ek_record_outputs(y, 2, &listing_operation,
                                &(const ek_record_options){EK_INPUTS(x[0], x[1])}));
    ek_tensor *terms[] = {ek_sum(ek_mul_scalar(y[0], 3)), ek_sum(ek_mul_scalar(y[1], 4))};
    ek_tensor *loss = ek_reduce_add(terms, 2, ek_tensor_device(terms[0]));
    assert_ok(ek_grad(.outputs = &loss, .output_count = 1, .inputs = x, .input_count = 2,
                      .gradients = gradients));
    for (int d = 0; d < 2; d++)
        assert_close(gradients[d],
                     ek_full(7, EK_SHAPE(2), .dtype = EK_F64, .device = test_device(d)), 0, 0);
}

/* The largest batch: exact, and nothing is left behind. */
#include "core/generator.h"
#include "core/tensor.h"
#include "step_setup.h"

NAMES_DEVICES

/* ---- the search alone: a function that fits up to a limit ---- */

typedef struct limited {
    int64_t limit, tried[200];
    int runs[200]; /* of that batch, in a row */
    int tries;
} limited;

static int fits_up_to(int64_t batch, void *user)
{
    limited *l = user;
    ck_assert_int_lt(l->tries, 200);
    if (l->tries == 0 || l->tried[l->tries - 1] != batch)
        l->tried[l->tries++] = batch;
    l->runs[l->tries - 1]++;
    return batch <= l->limit ? 0 : ek_error(EK_E_OUT_OF_MEMORY, "no room for %d", (int)batch);
}

TEST(finds_any_limit)
{
    static const int64_t multiples[] = {1, 3, 8};
    for (int k = 0; k < 3; k++)
        for (int64_t limit = 0; limit < 150; limit++) {
            int64_t multiple = multiples[k];
            limited l = {.limit = limit};
            int64_t expected =
                limit < 100 ? limit / multiple * multiple : 100 / multiple * multiple;
            ck_assert_int_eq(ek_find_batch(.function = fits_up_to, .user = &l, .most = 100,
                                           .multiple = multiple),
                             expected);
            ck_assert_int_eq(l.tried[0], multiple);
            for (int i = 0; i < l.tries; i++) {
                ck_assert_int_eq(l.tried[i] % multiple, 0);
                ck_assert_int_le(l.tried[i], 100);
                ck_assert_int_eq(l.runs[i], l.tried[i] <= limit ? 2 : 1);
                for (int before = 0; before < i; before++)
                    ck_assert_int_ne(l.tried[i], l.tried[before]);
            }
            ck_assert_int_le(l.tries, 14);
            ck_assert_int_eq(ek_error_status(), 0);
        }
}

TEST(begins_where_it_is_told)
{
    limited l = {.limit = 1000};
    ck_assert_int_eq(ek_find_batch(.function = fits_up_to, .user = &l, .first = 20, .most = 21),
                     21);
    ck_assert_int_eq(l.tried[0], 20);
    l = (limited){.limit = 19};
    ck_assert_int_eq(ek_find_batch(.function = fits_up_to, .user = &l, .first = 20), 0);
    ck_assert_int_eq(l.tries, 1);
    l = (limited){.limit = 1000};
    ck_assert_int_eq(ek_find_batch(.function = fits_up_to, .user = &l, .first = 20, .multiple = 16),
                     992);
    ck_assert_int_eq(l.tried[0], 32);
    l = (limited){.limit = INT64_MAX};
    ck_assert_int_eq(ek_find_batch(.function = fits_up_to, .user = &l), 65536);
}

/* ---- against brute force ---- */

typedef struct work {
    job *j;
    loss_kind kind;
    int calls;
    int fail_at; /* this call fails otherwise; 0: none does */
} work;

/* Two steps: the second has the optimizer's state beside it. */
static int train_twice(int64_t batch, void *user)
{
    work *w = user;
    if (++w->calls == w->fail_at)
        return ek_error(EK_E_FORMAT, "a file is broken");
    for (int step = 0; step < 2; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = ek_randn(EK_SHAPE(batch, POINTS, FEATURES), .dtype = EK_F64);
        ek_tensor *target = ek_randint(0, CLASSES, EK_SHAPE(batch, POINTS));
        int rc = ek_train_step(NULL, .model = w->j->model, .criterion = w->j->criterion,
                               .optimizer = w->j->optimizer, .input = EK_VALUE(x),
                               .target = EK_VALUE(target));
        ek_scope_end(&scope);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void set_capacities(uint64_t first, uint64_t others)
{
    for (int d = 0; d < 4; d++)
        assert_ok(ek_memory_set_capacity(test_device(d), d == 0 ? first : others));
}

static int64_t find(job *j, work *w, int64_t multiple, int64_t most)
{
    *w = (work){.j = j};
    return ek_find_batch(.function = train_twice, .user = w, .model = j->model,
                         .optimizer = j->optimizer, .multiple = multiple,
                         .most = most ? most : 65536);
}

/* One after the other, each with a job of its own. */
static int64_t brute_force(way how, int64_t most)
{
    for (int64_t batch = 1; batch <= most; batch++) {
        job j = make_job(how, CROSS_ENTROPY, EK_F64);
        work w = {.j = &j};
        int rc = train_twice(batch, &w);
        free_job(&j);
        if (rc < 0) {
            ck_assert_int_eq(rc, EK_E_OUT_OF_MEMORY);
            ek_error_clear();
            return batch - 1;
        }
    }
    return most;
}

TEST_LOOP(is_exact, ONE_DEVICE, WAYS)
{
    static const uint64_t capacities[][2] = {{40000, 40000}, {60000, 20000}, {25000, 80000}};
    for (int c = 0; c < 3; c++) {
        work w;
        set_capacities(capacities[c][0], capacities[c][1]);
        job j = make_job((way)_i, CROSS_ENTROPY, EK_F64);
        int64_t found = find(&j, &w, 1, 0);
        ck_assert_int_ge(found, 0);
        free_job(&j);
        ck_assert_int_gt(found, 4);
        /* Owners of shards get other devices' gradients while they compute: how many of these are
         * there at the peak varies by some samples. */
        ck_assert_int_le(llabs(found - brute_force((way)_i, 1000)), (way)_i == SHARDED ? 6 : 0);
        ck_assert_int_le(w.calls, 2 * 14);
    }
}

/* ---- Adam: the first step makes its state ---- */

static int adam_step(int64_t batch, void *user)
{
    job *j = user;
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_randn(EK_SHAPE(batch, POINTS, FEATURES), .dtype = EK_F64);
    ek_tensor *target = ek_randint(0, CLASSES, EK_SHAPE(batch, POINTS));
    int rc = train_job(NULL, j, .input = EK_VALUE(x), .target = EK_VALUE(target));
    ek_scope_end(&scope);
    return rc;
}

static void use_adam(job *j)
{
    ek_optimizer_free(j->optimizer);
    j->optimizer = ek_adam(j->model);
    assert_made(j->optimizer);
}

/* Steps in a row, at most `most`, until one finds no memory; as nothing else is done in between,
 * cached blocks stay where they are. */
static int steps_in_a_row(way how, int64_t batch, int most)
{
    int steps = 0;
    job j = make_job(how, CROSS_ENTROPY, EK_F64);
    use_adam(&j);
    while (steps < most && adam_step(batch, &j) >= 0)
        steps++;
    if (steps < most)
        ck_assert_int_eq(ek_error_status(), EK_E_OUT_OF_MEMORY);
    ek_error_clear();
    free_job(&j);
    return steps;
}

TEST_LOOP(what_it_finds_lasts, ONE_DEVICE, WAYS)
{
    static const uint64_t capacities[][2] = {{20000, 20000}, {30000, 24000}};
    way how = (way)_i;
    for (int c = 0; c < 2; c++) {
        set_capacities(capacities[c][0], capacities[c][1]);
        job j = make_job(how, CROSS_ENTROPY, EK_F64);
        use_adam(&j);
        int64_t found = ek_find_batch(.function = adam_step, .user = &j, .model = j.model,
                                      .optimizer = j.optimizer);
        /* The same job goes on, too. */
        for (int step = 0; step < 4; step++)
            assert_ok(adam_step(found, &j));
        free_job(&j);
        ck_assert_int_gt(found, 4);
        ck_assert_int_eq(steps_in_a_row(how, found, 6), 6);
        ck_assert_int_lt(steps_in_a_row(how, found + 1, 6), 6);
        set_capacities(0, 0);
    }
}

/* A model that plans by itself: where devices differ it takes more than equal chunks do. */
TEST(plans_settle_while_it_searches)
{
    int64_t found[2];
    for (int k = 0; k < 2; k++) {
        work w;
        set_capacities(90000, 30000);
        ek_device_list devices = ek_devices(test_kind(), 3);
        job j = {.net = make_scorer()};
        j.model = ek_data_parallel_model(j.net, .device_ids = devices,
                                         .split = k ? EK_SPLIT_AUTO : EK_SPLIT_CHUNK);
        j.criterion = ek_data_parallel_criterion(ek_cross_entropy_loss(), .device_ids = devices);
        assert_made(j.model);
        assert_made(j.criterion);
        j.optimizer = ek_sgd(j.model, .momentum = 0.9);
        found[k] = find(&j, &w, 1, 0);
        set_capacities(0, 0);
        free_job(&j);
    }
    ck_assert_int_gt(found[0], 10);
    ck_assert_int_gt(found[1], found[0] * 5 / 4);
}

TEST_LOOP(nothing_fits, ONE_DEVICE, WAYS)
{
    work w;
    job j = make_job((way)_i, CROSS_ENTROPY, EK_F64);
    set_capacities(2000, 2000);
    ck_assert_int_eq(find(&j, &w, 1, 0), 0);
    ck_assert_int_eq(ek_error_status(), 0);
    set_capacities(0, 0);
    free_job(&j);
}

/* ---- no trace ---- */

typedef struct traces {
    char parameters[65];
    double momentum, gradient, generator_next, buffer;
    bool has_gradient;
    int64_t steps;
    ek_memory_stats stats[4];
} traces;

static double sum_of(ek_tensor *tensor)
{
    double sum = 0;
    if (!tensor)
        return -1;
    tensor = ek_to_device(tensor, ek_cpu());
    for (int64_t i = 0; i < ek_tensor_count(tensor); i++)
        sum += element(tensor, i) * (double)(i + 1);
    return sum;
}

static traces look(const job *j)
{
    traces t;
    ek_scope scope = ek_scope_begin();
    memset(&t, 0, sizeof t);
    ek_tensor *weight = ek_module_tensor(j->net, "last.weight");
    assert_ok(ek_module_sha256(j->net, t.parameters));
    t.momentum = sum_of(ek_optimizer_state(j->optimizer, weight, "momentum_buffer"));
    t.has_gradient = ek_gather_grad(weight) != NULL;
    t.gradient = sum_of(ek_gather_grad(weight));
    t.steps = ek_optimizer_steps(j->optimizer, weight);
    ek_scope_end(&scope);
    for (int d = 0; d < 4; d++) {
        assert_ok(ek_memory_trim(test_device(d)));
        assert_ok(ek_memory_get_stats(test_device(d), &t.stats[d]));
    }
    return t;
}

static void assert_same(const traces *a, const traces *b, bool memory)
{
    ck_assert_str_eq(a->parameters, b->parameters);
    ck_assert_double_eq(a->momentum, b->momentum);
    ck_assert_int_eq(a->has_gradient, b->has_gradient);
    ck_assert_double_eq(a->gradient, b->gradient);
    ck_assert_int_eq(a->steps, b->steps);
    for (int d = 0; d < 4 && memory; d++) {
        ck_assert_uint_eq(a->stats[d].in_use, b->stats[d].in_use);
        ck_assert_uint_eq(a->stats[d].peak, b->stats[d].peak);
        ck_assert_int_eq(memcmp(a->stats[d].now, b->stats[d].now, sizeof a->stats[d].now), 0);
        ck_assert_int_eq(memcmp(a->stats[d].at_peak, b->stats[d].at_peak, sizeof a->stats[d].now),
                         0);
    }
}

/* After a step (state, gradients, replicas), and before the first. */
TEST_LOOP(leaves_no_trace, 2 * ONE_DEVICE, 2 * WAYS)
{
    bool stepped = _i % 2;
    way how = (way)(_i / 2);
    job j = make_job(how, CROSS_ENTROPY, EK_F64);
    work w = {.j = &j};
    if (stepped)
        assert_ok(train_twice(5, &w));
    set_capacities(60000, 60000);
    assert_ok(ek_optimizer_set(j.optimizer, 0, "lr", 0.125));
    ek_random_u32(NULL);
    ek_generators *generators = ek_generators_save();
    uint32_t next = ek_random_u32(NULL);
    ek_generators_restore(generators);
    free(generators);
    traces before = look(&j), after;
    ck_assert_int_gt(find(&j, &w, 1, 0), 4);
    after = look(&j);
    /* The first step of all makes replicas and room for gradients, which stay. */
    assert_same(&before, &after, stepped);
    ck_assert_double_eq(ek_optimizer_lr(j.optimizer, 0), 0.125);
    ck_assert_uint_eq(ek_random_u32(NULL), next);
    set_capacities(0, 0);
    free_job(&j);
}

/* Training goes on as it would have, to the bit. */
TEST_LOOP(training_goes_on_as_before, ONE_DEVICE, WAYS)
{
    char hashes[2][65];
    for (int searched = 0; searched < 2; searched++) {
        ek_manual_seed(99);
        job j = make_job((way)_i, CROSS_ENTROPY, EK_F64);
        ek_manual_seed(98);
        work w = {.j = &j};
        assert_ok(train_twice(6, &w));
        if (searched) {
            set_capacities(60000, 60000);
            ck_assert_int_gt(find(&j, &w, 1, 0), 4);
            set_capacities(0, 0);
        }
        assert_ok(train_twice(6, &w));
        assert_ok(ek_module_sha256(j.net, hashes[searched]));
        free_job(&j);
    }
    ck_assert_str_eq(hashes[0], hashes[1]);
}

/* Dropout draws on every device's own generator. */
static int draw_on_devices(job *j, double *sum)
{
    ek_scope scope = ek_scope_begin();
    ek_value out = ek_forward(j->model, make_inputs(8));
    int rc = out.kind == EK_VALUE_ERROR ? ek_error_status() : 0;
    if (rc == 0)
        *sum = sum_of(ek_value_tensor(ek_value_to_device(out, ek_cpu(), 0)));
    ek_scope_end(&scope);
    return rc;
}

static int draw(int64_t batch, void *user)
{
    double sum;
    ek_set_grad_enabled(false); /* and left so */
    return batch > 5 ? ek_error(EK_E_OUT_OF_MEMORY, "enough") : draw_on_devices(user, &sum);
}

TEST(devices_generators_go_on_as_before)
{
    double sums[2];
    for (int searched = 0; searched < 2; searched++) {
        ek_manual_seed(5);
        ek_module *net = ek_sequential(ek_linear(FEATURES, 7), ek_dropout(0.5));
        assert_made(net);
        assert_ok(ek_module_to_dtype(net, EK_F64));
        job j = {.net = net, .model = ek_data_parallel(net)};
        assert_made(j.model);
        assert_ok(draw_on_devices(&j, &sums[searched]));
        if (searched)
            ck_assert_int_eq(ek_find_batch(.function = draw, .user = &j, .model = j.model), 5);
        ck_assert(ek_grad_enabled());
        assert_ok(draw_on_devices(&j, &sums[searched]));
        ek_module_free(j.model);
    }
    ck_assert_double_eq(sums[1], sums[0]);
}

/* ---- memory that is gone when something is put back ---- */

enum { WIDE = 64, SMALL = 4096 /* bytes */ };

/* Takes the gradients' memory away but for a little. */
static int leave_little(int64_t batch, void *user)
{
    ek_memory_stats stats;
    ek_zero_grad(user);
    EK_TRY(ek_memory_get_stats(test_device(0), &stats));
    return ek_memory_set_capacity(test_device(0), stats.in_use + SMALL);
}

/* The first gradient is too large; what comes after it is put back all the same. */
TEST(what_cannot_come_back_keeps_nothing_else)
{
    set_capacities(0, 0);
    ek_module *net = held(ek_sequential(ek_linear(WIDE, WIDE), ek_linear(WIDE, 2)));
    assert_ok(ek_module_to_device(net, test_device(0)));
    ek_optimizer *optimizer = ek_sgd(net, .momentum = 0.9);
    assert_made(optimizer);
    ek_tensor *x = ek_randn(EK_SHAPE(3, WIDE), .device = test_device(0));
    assert_ok(ek_backward(ek_sum(ek_apply(net, x))));
    assert_ok(ek_step(optimizer));
    ek_tensor *last = ek_module_tensor(net, "1.weight"), *first = ek_module_tensor(net, "0.weight");
    double before = sum_of(ek_tensor_grad(last));
    int64_t found = ek_find_batch(.function = leave_little, .user = optimizer, .model = net,
                                  .optimizer = optimizer, .most = 1);
    ck_assert_int_eq(found, EK_E_OUT_OF_MEMORY);
    assert_error(EK_E_OUT_OF_MEMORY, "out of memory");
    set_capacities(0, 0);
    ck_assert_ptr_null(ek_tensor_grad(first));
    ck_assert_ptr_nonnull(ek_tensor_grad(last));
    ck_assert_double_eq(sum_of(ek_tensor_grad(last)), before);
    ek_optimizer_free(optimizer);
}

/* ---- errors ---- */

TEST(other_errors_end_it)
{
    job j = make_job(BALANCED, CROSS_ENTROPY, EK_F64);
    work w = {.j = &j};
    assert_ok(train_twice(4, &w));
    traces before = look(&j), after;
    w = (work){.j = &j, .fail_at = 3};
    assert_refused(ek_find_batch(.function = train_twice, .user = &w, .model = j.model,
                                 .optimizer = j.optimizer),
                   EK_E_FORMAT, "a file is broken");
    ck_assert_int_eq(w.calls, 3);
    after = look(&j);
    assert_same(&before, &after, true);
    free_job(&j);
}

static void expect_invalid(ek_find_batch_options options, const char *text)
{
    assert_refused(ek_find_batch_with(options), EK_E_INVALID, text);
}

TEST(wrong_options)
{
    expect_invalid(EK_OPTIONS(ek_find_batch_options, .first = 1), "the function");
    expect_invalid(EK_OPTIONS(ek_find_batch_options, .function = fits_up_to, .first = -1),
                   "first -1");
    expect_invalid(EK_OPTIONS(ek_find_batch_options, .function = fits_up_to, .multiple = -8),
                   "multiple -8");
    expect_invalid(EK_OPTIONS(ek_find_batch_options, .function = fits_up_to, .first = 9, .most = 8),
                   "the first batch, 9,");
    expect_invalid(EK_OPTIONS(ek_find_batch_options, .function = fits_up_to, .most = 7,
                              .multiple = 8),
                   "the first batch, 8,");
    expect_invalid(EK_OPTIONS(ek_find_batch_options, .function = fits_up_to, .first = INT64_MAX,
                              .multiple = 2),
                   "the first batch");
}

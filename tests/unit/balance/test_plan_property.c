/* Loss and gradients are one device's for any plan: thousands of random cases.
 *
 * A group of cases is a seed: it says the network, the loss, the devices and their plans, and from
 * then on batches, targets and which of them are ignored. A failure tells it, and what came of it;
 * try_groups(seed, 1, whether the network is number 2) repeats the group alone. */
#include <inttypes.h>

#include "balance_setup.h"

enum { MOST_SAMPLES = 40, MOST_PARAMETERS = 400, PLANS = 3, BATCHES = 6, SIDE = 3 };
enum { GROUPS = 16, LOOPS = 8, SYNC_GROUPS = 12 };

/* ---- random numbers: splitmix64 ---- */

static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int below(uint64_t *state, int n)
{
    return (int)(draw(state) % (uint64_t)n);
}

/* About normal: the sum of some uniform numbers. */
static double number(uint64_t *state)
{
    double sum = -2;
    for (int i = 0; i < 4; i++)
        sum += (double)(draw(state) >> 11) * 0x1p-53;
    return 1.7 * sum;
}

/* ---- networks ---- */

typedef enum net_kind { POINTWISE, IMAGES, SYNC, NETS } net_kind;
typedef enum loss_kind { CLASSES_MEAN, CLASSES_WEIGHTED, CLASSES_SUM, SQUARES, LOSSES } loss_kind;

/* All networks of a group begin with the same numbers. `alone`: for one device. */
static ek_module *make_net(net_kind kind, ek_dtype dtype, bool alone)
{
    ek_module *net;
    ek_manual_seed(7);
    if (kind == POINTWISE)
        net = ek_sequential(ek_linear(FEATURES, 6), ek_tanh(), ek_linear(6, CLASSES));
    else if (kind == IMAGES)
        net = ek_sequential(ek_conv2d(FEATURES, 4, 3, .padding = 1), ek_tanh(),
                            ek_conv2d(4, CLASSES, 2));
    else
        net = ek_sequential(ek_conv2d(FEATURES, 4, 2), ek_batch_norm2d(4), ek_tanh(),
                            ek_conv2d(4, CLASSES, 1));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, dtype));
    return kind == SYNC && !alone ? ek_convert_sync_batch_norm(net) : net;
}

static ek_module *make_criterion(loss_kind kind, ek_dtype dtype)
{
    ek_module *criterion = NULL;
    ek_tensor *weight = tensor_of((double[]){1, 2, 0.5, 3}, EK_SHAPE(CLASSES), dtype, ek_cpu());
    if (kind == SQUARES)
        criterion = ek_mse_loss();
    else if (kind == CLASSES_WEIGHTED)
        criterion = ek_cross_entropy_loss(.ignore_index = IGNORED, .weight = weight);
    else
        criterion = ek_cross_entropy_loss(.ignore_index = IGNORED,
                                          .reduction = kind == CLASSES_SUM ? EK_SUM : EK_MEAN);
    assert_made(criterion);
    return criterion;
}

/* Places of a sample that have a target each. */
static int places_of(net_kind kind)
{
    return kind == POINTWISE ? 1 : (SIDE - 1) * (SIDE - 1);
}

static ek_tensor *make_inputs_of(net_kind kind, ek_dtype dtype, int samples, uint64_t *state)
{
    double values[MOST_SAMPLES * FEATURES * SIDE * SIDE];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = number(state);
    return kind == POINTWISE
               ? tensor_of(values, EK_SHAPE(samples, FEATURES), dtype, ek_cpu())
               : tensor_of(values, EK_SHAPE(samples, FEATURES, SIDE, SIDE), dtype, ek_cpu());
}

static ek_tensor *make_classes(net_kind kind, int samples, const bool *ignored, uint64_t *state)
{
    int64_t values[MOST_SAMPLES * SIDE * SIDE];
    int places = places_of(kind);
    for (int i = 0; i < samples * places; i++) {
        values[i] = below(state, CLASSES);
        if (ignored[i / places])
            values[i] = IGNORED;
    }
    return kind == POINTWISE
               ? ek_from_data(values, EK_SHAPE(samples), .dtype = EK_I64)
               : ek_from_data(values, EK_SHAPE(samples, SIDE - 1, SIDE - 1), .dtype = EK_I64);
}

static ek_tensor *make_aims(net_kind kind, ek_dtype dtype, int samples, uint64_t *state)
{
    double values[MOST_SAMPLES * CLASSES * SIDE * SIDE];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = number(state);
    return kind == POINTWISE
               ? tensor_of(values, EK_SHAPE(samples, CLASSES), dtype, ek_cpu())
               : tensor_of(values, EK_SHAPE(samples, CLASSES, SIDE - 1, SIDE - 1), dtype, ek_cpu());
}

/* ---- plans ---- */

/* Words for numbers: ".chunks = {3, 0, 1}" or "3,0,1". */
static int write_numbers(char *text, size_t room, const char *begin, const double *numbers,
                         int count, const char *between, const char *end)
{
    int length = snprintf(text, room, "%s", begin);
    for (int i = 0; i < count; i++)
        length +=
            snprintf(text + length, room - (size_t)length, "%s%.17g", i ? between : "", numbers[i]);
    return length + snprintf(text + length, room - (size_t)length, "%s", end);
}

/* Some of them zero, not all. */
static void draw_shares(uint64_t *state, int devices, bool whole, double *shares)
{
    double sum = 0;
    while (sum == 0) {
        for (int d = 0; d < devices; d++) {
            shares[d] = below(state, 3) == 0 ? 0
                        : whole              ? below(state, 12)
                                             : 4 * fabs(number(state));
            sum += shares[d];
        }
    }
}

/* One way to cut, and how a user would write it. */
typedef struct wish {
    ek_data_parallel_options options;
    char text[200], plan[200];
} wish;

static void draw_wish(uint64_t *state, int devices, wish *w)
{
    double shares[EK_MAX_DEVICES];
    ek_data_parallel_options *options = &w->options;
    int kind = below(state, 7), length;
    *w = (wish){.options = EK_OPTIONS(ek_data_parallel_options)};
    options->device_ids = ek_devices(test_kind(), devices);
    switch (kind) {
    case 0:
        options->split = (ek_split_policy)below(state, 2);
        snprintf(w->text, sizeof w->text, ".split = %d", (int)options->split);
        break;
    case 1:
        options->split = EK_SPLIT_AUTO;
        options->goal = (ek_plan_goal)below(state, 2);
        snprintf(w->text, sizeof w->text, ".split = EK_SPLIT_AUTO, .goal = %d", (int)options->goal);
        break;
    case 2:
    case 3:
        draw_shares(state, devices, true, shares);
        for (int d = 0; d < devices; d++)
            options->chunks[d] = (int64_t)shares[d];
        write_numbers(w->text, sizeof w->text, ".chunks = {", shares, devices, ", ", "}");
        break;
    case 4:
        draw_shares(state, devices, false, shares);
        memcpy(options->weights, shares, sizeof(double) * (size_t)devices);
        write_numbers(w->text, sizeof w->text, ".weights = {", shares, devices, ", ", "}");
        break;
    case 5:
        length = below(state, 8);
        options->first_device_batch = length;
        snprintf(w->text, sizeof w->text, ".first_device_batch = %d", length);
        break;
    default:
        draw_shares(state, devices, true, shares);
        length = write_numbers(w->plan, sizeof w->plan, "", shares, devices, ",", "; 2: ");
        draw_shares(state, devices, true, shares);
        write_numbers(w->plan + length, sizeof w->plan - (size_t)length, "", shares, devices, ",",
                      "");
        options->plan = w->plan;
        snprintf(w->text, sizeof w->text, ".plan = \"%.180s\"", w->plan);
    }
}

/* ---- results ---- */

typedef struct result {
    double loss;
    double gradient[MOST_PARAMETERS]; /* of all parameters */
    int count;
} result;

static int append_gradient(const char *path, ek_tensor *parameter, void *user)
{
    result *r = user;
    double values[MOST_PARAMETERS];
    ek_tensor *gradient = ek_gather_grad(parameter);
    int count = (int)ek_tensor_count(parameter);
    if (!gradient)
        ck_abort_msg("%s has no gradient", path);
    ck_assert_int_le(r->count + count, MOST_PARAMETERS);
    gradient = ek_to_dtype(ek_to_device(gradient, ek_cpu()), EK_F64);
    assert_ok(ek_to_data(gradient, values, sizeof *values * (size_t)count));
    memcpy(r->gradient + r->count, values, sizeof *values * (size_t)count);
    r->count += count;
    return 0;
}

static result finish(ek_module *net, ek_tensor *loss)
{
    result r = {.loss = value_of(loss)};
    assert_ok(ek_backward(loss));
    assert_ok(ek_module_parameters(net, append_gradient, &r));
    ek_module_zero_grad(net);
    return r;
}

static double norm_of(const double *a, const double *b, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (a[i] - (b ? b[i] : 0)) * (a[i] - (b ? b[i] : 0));
    return sqrt(sum);
}

/* If nothing is left to average both have no number, in the same elements. */
static bool same_without_numbers(const result *a, const result *b)
{
    bool same = isnan(a->loss) && isnan(b->loss);
    for (int i = 0; i < a->count; i++)
        same = same && isnan(a->gradient[i]) == isnan(b->gradient[i]) &&
               (isnan(a->gradient[i]) || a->gradient[i] == b->gradient[i]);
    return same;
}

static bool same(const result *a, const result *b, double relative)
{
    if (a->count != b->count)
        return false;
    if (isnan(b->loss))
        return same_without_numbers(a, b);
    return fabs(a->loss - b->loss) <= relative * fabs(b->loss) &&
           norm_of(a->gradient, b->gradient, a->count) <=
               relative * norm_of(b->gradient, NULL, b->count);
}

/* ---- groups of cases ---- */

/* One plan's wrappers. */
typedef struct wrappers {
    wish wish;
    ek_module *models[2], *criteria[2]; /* classic, balanced */
} wrappers;

typedef struct group {
    uint64_t seed, state;
    net_kind net;
    loss_kind loss;
    ek_dtype dtype;
    int devices;
    ek_module *alone, *criterion;
    wrappers plans[PLANS];
} group;

static void make_wrappers(group *g, wrappers *w)
{
    draw_wish(&g->state, g->devices, &w->wish);
    w->wish.options.shard = (ek_shard_policy)below(&g->state, 3);
    for (int balanced = 0; balanced < 2; balanced++) {
        ek_data_parallel_options options = w->wish.options;
        options.module = make_net(g->net, g->dtype, false);
        w->models[balanced] =
            balanced ? ek_data_parallel_model_with(options) : ek_data_parallel_with(options);
        assert_made(w->models[balanced]);
    }
    w->criteria[0] = make_criterion(g->loss, g->dtype);
    assert_ok(ek_module_to_device(w->criteria[0], test_device(0)));
    w->criteria[1] =
        ek_data_parallel_criterion(make_criterion(g->loss, g->dtype), w->wish.options.device_ids);
    assert_made(w->criteria[1]);
}

static void begin_group(group *g, uint64_t seed, bool sync)
{
    memset(g, 0, sizeof *g);
    g->seed = g->state = seed;
    g->net = sync ? SYNC : (net_kind)below(&g->state, SYNC);
    g->loss = (loss_kind)below(&g->state, LOSSES);
    g->dtype = below(&g->state, 2) || sync ? EK_F64 : EK_F32;
    g->devices = 2 + below(&g->state, 3);
    g->alone = make_net(g->net, g->dtype, true);
    g->criterion = make_criterion(g->loss, g->dtype);
    for (int p = 0; p < PLANS; p++)
        make_wrappers(g, &g->plans[p]);
}

static void end_group(group *g)
{
    ek_module_free(g->alone);
    ek_module_free(g->criterion);
    for (int p = 0; p < PLANS; p++) {
        for (int i = 0; i < 2; i++) {
            ek_module_free(g->plans[p].models[i]);
            ek_module_free(g->plans[p].criteria[i]);
        }
    }
}

/* Which samples' targets are ignored: none, some, those of one device by one of the plans, all. */
static void draw_ignored(group *g, int samples, bool *ignored)
{
    int64_t sizes[EK_MAX_DEVICES];
    int how = below(&g->state, 8), device = below(&g->state, g->devices);
    memset(ignored, 0, MOST_SAMPLES * sizeof *ignored);
    assert_ok(ek_data_parallel_sizes(g->plans[below(&g->state, PLANS)].models[1], samples, sizes));
    int begin = 0;
    for (int d = 0; d < device; d++)
        begin += (int)sizes[d];
    for (int i = 0; i < samples; i++)
        ignored[i] = how == 7 || (how >= 5 && i >= begin && i < begin + sizes[device]) ||
                     (how >= 3 && how < 7 && below(&g->state, 3) == 0);
}

static void assert_case(const group *g, const wrappers *w, int balanced, const int64_t *sizes,
                        int samples, const result *got, const result *wanted)
{
    char cut[200];
    double numbers[EK_MAX_DEVICES];
    double relative = g->dtype == EK_F64 ? 1e-10 : 1e-5;
    if (same(got, wanted, relative))
        return;
    for (int d = 0; d < g->devices; d++)
        numbers[d] = (double)sizes[d];
    write_numbers(cut, sizeof cut, "", numbers, g->devices, " ", "");
    ck_abort_msg("seed %" PRIu64 ", network %d, loss %d, %s, %s, %s, .shard = %d: %d samples cut "
                 "%s: loss %.17g, wanted %.17g; gradient %.3g apart of %.3g",
                 g->seed, (int)g->net, (int)g->loss, g->dtype == EK_F64 ? "f64" : "f32",
                 balanced ? "balanced" : "classic", w->wish.text, (int)w->wish.options.shard,
                 samples, cut, got->loss, wanted->loss,
                 norm_of(got->gradient, wanted->gradient, got->count),
                 norm_of(wanted->gradient, NULL, wanted->count));
}

static void assert_same_statistics(ek_module *a, ek_module *b)
{
    static const char *const paths[] = {"1.running_mean", "1.running_var", "1.num_batches_tracked"};
    for (int i = 0; i < 3; i++)
        assert_close_norm(ek_to_device(ek_module_tensor(a, paths[i]), ek_cpu()),
                          ek_to_device(ek_module_tensor(b, paths[i]), ek_cpu()), 1e-10);
}

/* One batch in all ways. */
static void try_batch(group *g)
{
    bool ignored[MOST_SAMPLES];
    int samples = 1 + below(&g->state, MOST_SAMPLES);
    draw_ignored(g, samples, ignored);
    ek_tensor *x = make_inputs_of(g->net, g->dtype, samples, &g->state);
    ek_tensor *target = g->loss == SQUARES ? make_aims(g->net, g->dtype, samples, &g->state)
                                           : make_classes(g->net, samples, ignored, &g->state);
    result wanted = finish(g->alone, ek_loss(g->criterion, ek_forward(g->alone, x), target));
    ek_tensor *there = ek_to_device(target, test_device(0));
    for (int p = 0; p < PLANS; p++) {
        const wrappers *w = &g->plans[p];
        for (int balanced = 0; balanced < 2; balanced++) {
            int64_t sizes[EK_MAX_DEVICES];
            ek_module *model = w->models[balanced];
            assert_ok(ek_data_parallel_sizes(model, samples, sizes));
            ek_tensor *loss =
                ek_loss(w->criteria[balanced], ek_forward(model, x), balanced ? target : there);
            ck_assert(ek_device_equal(ek_tensor_device(loss), test_device(0)));
            result got = finish(model, loss);
            assert_case(g, w, balanced, sizes, samples, &got, &wanted);
            if (g->net == SYNC)
                assert_same_statistics(model, g->alone);
        }
    }
}

static void try_groups(uint64_t first, int groups, bool sync)
{
    for (int i = 0; i < (test_is_short() ? 1 : groups); i++) {
        group g;
        begin_group(&g, first + (uint64_t)i, sync);
        for (int batch = 0; batch < BATCHES; batch++) {
            ek_scope scope = ek_scope_begin();
            try_batch(&g);
            ek_scope_end(&scope);
        }
        end_group(&g);
    }
}

TEST_LOOP(any_plan_gives_one_devices_numbers, 0, LOOPS)
{
    try_groups(1000 * (uint64_t)(_i + 1), GROUPS, false); /* 36 cases in a group */
}

TEST(with_synchronised_batch_norm_too)
{
    try_groups(100000, SYNC_GROUPS, true);
}

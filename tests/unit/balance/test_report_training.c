/* What a report says of real training: every byte, every millisecond, in the classic way and in the
 * balanced one. */
#include <unistd.h>

#include "core/thread.h"
#include "core/trace.h"
#include "core/worker.h"
#include "json_tree.h"
#include "kit/devices.h"
#include "kit/segmentation.h"

enum { DEVICES = 4, BATCH = 32, CHUNK = BATCH / DEVICES, STEPS = 3, ROOM = 4096 };

static ek_memory_sample samples[ROOM];

FIXTURE(four_devices, NULL)

typedef struct job {
    trainer trainer;
    ek_tensor *images, *target;
} job;

static job make_job(train_mode mode)
{
    job j = {.trainer = make_trainer(mode, make_net(true, EK_F32), DEVICES, EK_EXACT)};
    make_batch(BATCH, CHUNK, NONE_IGNORED, EK_F32, 1, &j.images, &j.target);
    return j;
}

static void free_job(job *j)
{
    ek_release(j->images);
    ek_release(j->target);
    free_trainer(&j->trainer);
}

static double step_of(const job *j)
{
    double loss;
    assert_ok(train_step(&j->trainer, j->images, j->target, &loss));
    return loss;
}

/* ---- what a report has to be ---- */

static void assert_sums(const ek_memory_sample *sample)
{
    uint64_t sum = 0;
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        sum += sample->now[c];
    if (sum != sample->in_use)
        ck_abort_msg("the categories add up to %llu, in use are %llu", (unsigned long long)sum,
                     (unsigned long long)sample->in_use);
}

static void assert_memory(const ek_report *report, int index)
{
    ek_device_report device;
    assert_ok(ek_report_get_device(report, index, &device));
    assert_sums(&device.peak);
    const int count = ek_report_memory(report, index, samples, ROOM);
    ck_assert(count > 0 && count <= ROOM);
    uint64_t most = 0;
    for (int i = 0; i < count; i++) {
        assert_sums(&samples[i]);
        if (i && !(samples[i].seconds > samples[i - 1].seconds))
            ck_abort_msg("sample %d of %d isn't later than the one before", i, count);
        most = samples[i].in_use > most ? samples[i].in_use : most;
    }
    ck_assert_uint_eq(most, device.peak.in_use);
}

static void assert_times(const ek_report *report)
{
    const double seconds = ek_report_seconds(report);
    for (int d = 0; d < DEVICES; d++) {
        ek_device_report device;
        assert_ok(ek_report_get_device(report, d, &device));
        ck_assert(device.computing >= 0 && device.communicating >= 0 && device.waiting >= 0);
        ck_assert(fabs(device.computing + device.communicating + device.waiting - seconds) <=
                  1e-9 * seconds);
    }
}

static const json_node *written(ek_report *report, json_tree *tree)
{
    char path[] = "/tmp/evenkeel-report-XXXXXX";
    close(mkstemp(path));
    assert_ok(ek_report_json(path, &report, 1));
    const json_node *root = json_load(tree, path);
    unlink(path);
    return root;
}

/* Returns what a label says after the module's path. */
static const char *without_path(const char *label)
{
    const char *end = strstr(label, ": ");
    return end ? end + 2 : label;
}

/* Spans of a device in the last step whose label begins so, after a path. */
static int labelled(const json_node *root, int device, const char *label)
{
    const json_node *report = json_item(json_at(root, "reports"), 0);
    int count = 0;
    json_each(span, json_at(json_at(report, "last_step"), "spans")) count +=
        (int)json_number_at(span, "device") == device &&
        strncmp(without_path(json_text_at(span, "label")), label, strlen(label)) == 0;
    return count;
}

/* Spans of a device in the last step with this label. */
static int named(const json_node *root, int device, const char *label)
{
    const json_node *report = json_item(json_at(root, "reports"), 0);
    int count = 0;
    json_each(span, json_at(json_at(report, "last_step"), "spans")) count +=
        (int)json_number_at(span, "device") == device &&
        strcmp(json_text_at(span, "label"), label) == 0;
    return count;
}

/* ---- training ---- */

static const char *const operations[] = {"forward of ", "backward of ", "gather",
                                         "scatter",     "broadcast",    "reduce",
                                         "step of ",    "copy to ",     "gradient of"};

static void assert_operation(const char *operation)
{
    bool known = false;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        known =
            known || strncmp(without_path(operation), operations[i], strlen(operations[i])) == 0;
    ck_assert_msg(known, "the peak came with \"%s\"", operation);
}

/* The holders at the peak are no more than there was, and one is a layer. */
static void assert_holders(const ek_device_report *device)
{
    uint64_t sum = 0;
    bool layers = false;
    ck_assert(device->holder_count > 3 && device->holder_count <= EK_MEMORY_HOLDERS);
    for (int i = 0; i < device->holder_count; i++) {
        sum += device->holders[i].nbytes;
        layers = layers || device->holders[i].path[0];
        ck_assert(i == 0 || device->holders[i].nbytes <= device->holders[i - 1].nbytes);
    }
    ck_assert(layers && sum <= device->peak.in_use);
    ck_assert(device->holder_count == EK_MEMORY_HOLDERS || sum == device->peak.in_use);
}

static void assert_labels(ek_report *report, train_mode mode)
{
    json_tree tree;
    const json_node *root = written(report, &tree);
    for (int d = 0; d < DEVICES; d++) {
        ck_assert_int_eq(labelled(root, d, "forward of conv2d"), 3);
        ck_assert_int_ge(labelled(root, d, "backward of conv2d"), 3);
        ck_assert_int_eq(named(root, d, "3: forward of conv2d"), 1);
        ck_assert_int_eq(named(root, d, "3: backward of conv2d"), 1);
        ck_assert_int_eq(labelled(root, d, "replica"), mode == CLASSIC ? 1 : 2);
        ck_assert_int_ge(labelled(root, d, "scatter"), 1);
        ck_assert_int_eq(labelled(root, d, "forward of criterion"), mode == BALANCED || d == 0);
    }
    ck_assert_int_ge(labelled(root, 0, "step of sgd"), 1);
    ck_assert_int_ge(labelled(root, 0, "reduce"), 1);
    ck_assert_int_eq(labelled(root, 0, "gather") > 0, mode == CLASSIC);
    json_free(&tree);
}

static void check_training(train_mode mode)
{
    job j = make_job(mode);
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_memory_reset_peak(test_device(d)));
    ek_report *report = ek_report_start();
    assert_made(report);
    for (int i = 0; i < STEPS; i++) {
        step_of(&j);
        assert_ok(ek_report_step(report));
    }
    assert_ok(ek_report_stop(report));
    ck_assert_int_eq(ek_report_step_count(report), STEPS);
    ck_assert(ek_report_step_seconds(report) > 0);
    for (int d = 0; d < DEVICES; d++) {
        ek_device_report device;
        ek_memory_stats stats;
        assert_memory(report, d);
        assert_ok(ek_report_get_device(report, d, &device));
        assert_ok(ek_memory_get_stats(test_device(d), &stats));
        ck_assert_uint_eq(device.peak.in_use, stats.peak);
        for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
            ck_assert_uint_eq(device.peak.now[c], stats.at_peak[c]);
        assert_operation(device.peak_operation);
        assert_holders(&device);
        ck_assert(device.computing > 0 && device.communicating > 0);
        if (mode == CLASSIC && d == 0)
            ck_assert_str_eq(device.peak_operation, "forward of criterion");
    }
    assert_times(report);
    assert_labels(report, mode);
    ck_assert(mode == CLASSIC ? ek_report_imbalance(report) > 1.5
                              : ek_report_imbalance(report) < 1.5);
    ek_report_free(report);
    free_job(&j);
}

TEST(the_classic_way)
{
    check_training(CLASSIC);
}

TEST(the_balanced_way)
{
    check_training(BALANCED);
}

/* ---- errors ---- */

/* On its worker: nothing is open but the part. */
static int look(void *user, int index)
{
    bool *clean = user;
    const ek_span *span = ek_thread_self()->span;
    clean[index] = span && !span->outer;
    return 0;
}

static void assert_nothing_open(void)
{
    ek_dev *devs[DEVICES];
    bool clean[DEVICES] = {false};
    for (int d = 0; d < DEVICES; d++)
        devs[d] = ek_dev_get(test_device(d));
    ck_assert_ptr_null(ek_thread_self()->span);
    assert_ok(ek_jobs_run(devs, DEVICES, look, clean, NULL));
    for (int d = 0; d < DEVICES; d++)
        ck_assert(clean[d]);
}

/* With more and more memory until a step fits: what fails does so in each of its phases. */
static void check_failures(train_mode mode)
{
    job j = make_job(mode);
    int failures = 0;
    bool done = false;
    ek_report *report = ek_report_start();
    assert_made(report);
    for (uint64_t capacity = 64 << 10; !done; capacity += 24 << 10) {
        double loss;
        for (int d = 0; d < DEVICES; d++) {
            assert_ok(ek_memory_trim(test_device(d)));
            assert_ok(ek_memory_set_capacity(test_device(d), capacity));
        }
        const int rc = train_step(&j.trainer, j.images, j.target, &loss);
        done = rc >= 0;
        if (!done)
            assert_error(EK_E_OUT_OF_MEMORY, "out of memory");
        failures += !done;
        ek_zero_grad(j.trainer.optimizer);
        assert_nothing_open();
        assert_ok(ek_report_step(report));
        assert_times(report);
        for (int d = 0; d < DEVICES; d++) {
            ek_device_report device;
            assert_memory(report, d);
            assert_ok(ek_report_get_device(report, d, &device));
            ck_assert_uint_eq(device.capacity, capacity);
            ck_assert_uint_le(device.peak.in_use, capacity);
        }
    }
    ck_assert_int_ge(failures, 5);
    ck_assert_int_eq(ek_report_step_count(report), failures + 1);
    ek_report_free(report);
    for (int d = 0; d < DEVICES; d++)
        assert_ok(ek_memory_set_capacity(test_device(d), 0));
    free_job(&j);
}

TEST(memory_runs_out_in_the_classic_way)
{
    check_failures(CLASSIC);
}

TEST(memory_runs_out_in_the_balanced_way)
{
    check_failures(BALANCED);
}

/* ---- coming and going ---- */

TEST(reports_change_no_number)
{
    double losses[6];
    ek_use_deterministic_algorithms(true); /* sums of convolutions on GPUs may differ otherwise */
    job j = make_job(BALANCED);
    for (int i = 0; i < 6; i++)
        losses[i] = step_of(&j);
    free_job(&j);
    j = make_job(BALANCED);
    for (int i = 0; i < 6; i++) {
        ek_report *report = i % 3 ? ek_report_start() : NULL;
        if (report) {
            assert_refused(ek_report_start(), EK_E_STATE, "report_start");
        }
        ck_assert(step_of(&j) == losses[i]);
        if (report)
            assert_ok(ek_report_step(report));
        ek_report_free(report);
    }
    free_job(&j);
}

/* ---- operations of the user's own ---- */

typedef struct own {
    char name[32];
} own;

static int double_forward(ek_function_call *call, ek_tensor *const *x, ek_tensor **y)
{
    y[0] = ek_mul_scalar(x[0], 2);
    return 0;
}

static int double_backward(ek_function_call *call, ek_tensor *const *dy, ek_tensor **dx)
{
    dx[0] = ek_mul_scalar(dy[0], 2);
    return 0;
}

/* The name ends with the graph. */
TEST(operations_names_are_kept)
{
    ek_report *report = ek_report_start();
    assert_made(report);
    ek_scope scope = ek_scope_begin();
    own *function = malloc(sizeof *function);
    ck_assert_ptr_nonnull(function);
    strcpy(function->name, "double");
    ek_tensor *x = ek_ones(EK_SHAPE(5), .device = test_device(0)), *y;
    assert_made(x);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    const ek_function doubling = {.name = function->name,
                                  .forward = double_forward,
                                  .backward = double_backward,
                                  .destroy = free};
    assert_ok(ek_function_apply_user(&doubling, &x, 1, &y, function));
    assert_ok(ek_backward(ek_sum(y)));
    ek_scope_end(&scope);
    assert_ok(ek_report_step(report));
    json_tree tree;
    const json_node *root = written(report, &tree);
    ck_assert_int_eq(labelled(root, 0, "forward of double"), 1);
    ck_assert_int_eq(labelled(root, 0, "backward of double"), 1);
    ck_assert_int_eq(labelled(root, 0, "gradient of"), 1);
    json_free(&tree);
    ek_report_free(report);
}

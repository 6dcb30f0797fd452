/* What a report writes: the table, JSON, and a trace that viewers take. */
#include <math.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/trace.h"
#include "core/worker.h"
#include "json_tree.h"
#include "report/report.h"

enum { DEVICES = 3, STEPS = 3 };

static char directory[64], path[96];

static void setup(void)
{
    strcpy(directory, "/tmp/evenkeel-report-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
    assert_ok(ek_host_devices_configure("2x1M,1M@0.5"));
}

/* Checks that the directory has no other file. */
static void teardown(void)
{
    unlink(path);
    ck_assert_int_eq(rmdir(directory), 0);
    assert_ok(ek_shutdown());
}

FIXTURE(setup, teardown)

static void pass(uint64_t microseconds)
{
    const uint64_t end = ek_clock_ns() + 1000 * microseconds;
    while (ek_clock_ns() < end)
        ;
}

/* Allocates in spans within spans, half of it for a module, and once more than there is. */
static int part(void *user, int index)
{
    ek_dev *dev = ek_dev_get(ek_host(index));
    const char *const paths[] = {ek_path_root, ek_path_join(ek_path_root, "layer")};
    ek_span large;
    void *memory[8], *none;
    for (int i = 0; i < 8; i++) {
        ek_span outer, inner;
        ek_thread_self()->modes.path = paths[i % 2];
        ek_span_begin(&outer, EK_SPAN_COMPUTE, "forward of", "net \"1\"\n", dev);
        EK_TRY(ek_dev_alloc(dev, 4096, i % EK_MEMORY_CATEGORIES, &memory[i]));
        ek_span_begin(&inner, i % EK_SPAN_KINDS, "part", "\xFF", dev); /* no UTF-8 */
        pass(20);
        ek_span_end(&inner);
        ek_span_end(&outer);
    }
    ek_span_begin(&large, EK_SPAN_COMPUTE, "large", NULL, dev);
    int rc = ek_dev_alloc(dev, 2 << 20, EK_MEMORY_WORKSPACE, &none);
    ek_span_end(&large);
    ek_error_clear();
    for (int i = 0; i < 8; i++)
        ek_dev_free(dev, memory[i], 4096, i % EK_MEMORY_CATEGORIES);
    return rc == EK_E_OUT_OF_MEMORY ? 0 : EK_E_STATE;
}

static ek_report *make_report(const char *name)
{
    ek_dev *devs[DEVICES];
    ek_report *report = ek_report_start(.name = name, .device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    for (int d = 0; d < DEVICES; d++)
        devs[d] = ek_dev_get(ek_host(d));
    for (int i = 0; i < STEPS; i++) {
        ek_span span;
        ek_span_begin(&span, EK_SPAN_COMPUTE, "all", NULL, devs[1]);
        assert_ok(ek_jobs_run(devs, DEVICES, part, NULL, "replica"));
        ek_span_end(&span);
        assert_ok(ek_report_step(report));
    }
    return report;
}

static void assert_equal(double number, double wanted)
{
    if (!(fabs(number - wanted) <= 1e-9 * fabs(wanted)))
        ck_abort_msg("%.17g, wanted %.17g", number, wanted);
}

/* Returns an expectation of the first and the third device. */
static ek_expectation expectation(void)
{
    ek_expectation e = {.batch = 64, .step_seconds = 0.25, .device_count = 2, .means_count = 2};
    for (int i = 0; i < 2; i++) {
        e.devices[i].device = ek_host(2 * i);
        e.devices[i].now[EK_MEMORY_GATHERED] = 1 << 20;
        e.devices[i].now[EK_MEMORY_ACTIVATION] = (uint64_t)i << 20;
        e.devices[i].peak = (uint64_t)(i + 1) << 20;
        e.means[i] = (ek_expected_means){.name = "sharded parameters",
                                         .saved = i ? -(3 << 20) : 3 << 20,
                                         .seconds = i ? -0.5 : 0.125};
    }
    strcpy(e.means[1].name, "recomputation \"all\"");
    return e;
}

/* ---- JSON ---- */

static void assert_sample(const json_node *json, const ek_memory_sample *sample)
{
    assert_equal(json_number_at(json, "seconds"), sample->seconds);
    assert_equal(json_number_at(json, "step"), (double)sample->step);
    assert_equal(json_number_at(json, "in_use"), (double)sample->in_use);
    const json_node *categories = json_at(json, "categories");
    ck_assert_int_eq(json_count(categories), EK_MEMORY_CATEGORIES);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        assert_equal(json_number_at(categories, ek_memory_category_name(c)),
                     (double)sample->now[c]);
}

static void assert_holders(const json_node *json, const ek_memory_holder *holders, int count)
{
    ck_assert_int_eq(json_count(json), count);
    for (int i = 0; i < count; i++) {
        const json_node *holder = json_item(json, i);
        ck_assert_str_eq(json_text_at(holder, "path"), holders[i].path);
        ck_assert_str_eq(json_text_at(holder, "category"),
                         ek_memory_category_name(holders[i].category));
        assert_equal(json_number_at(holder, "nbytes"), (double)holders[i].nbytes);
    }
}

static void assert_device(const json_node *json, const ek_report *report, int index)
{
    enum { ROOM = 2048 };
    static ek_memory_sample samples[ROOM];
    ek_device_report device;
    char name[16];
    assert_ok(ek_report_get_device(report, index, &device));
    ck_assert_str_eq(json_text_at(json, "device"), ek_device_name(device.device, name));
    ck_assert_str_eq(json_text_at(json, "peak_operation"), device.peak_operation);
    assert_equal(json_number_at(json, "capacity"), (double)device.capacity);
    assert_equal(json_number_at(json, "reserved_peak"), (double)device.reserved_peak);
    assert_equal(json_number_at(json, "reserved_at_peak"), (double)device.reserved_at_peak);
    assert_equal(json_number_at(json, "largest_free"), (double)device.largest_free);
    assert_equal(json_number_at(json, "system"), (double)device.system);
    assert_equal(json_number_at(json, "dropped"), (double)device.dropped);
    assert_equal(json_number_at(json, "computing"), device.computing);
    assert_equal(json_number_at(json, "communicating"), device.communicating);
    assert_equal(json_number_at(json, "waiting"), device.waiting);
    assert_sample(json_at(json, "peak"), &device.peak);
    assert_holders(json_at(json, "holders"), device.holders, device.holder_count);
    const json_node *lack = json_at(json, "out_of_memory");
    assert_equal(json_number_at(lack, "requested"), 2 << 20);
    ck_assert_str_eq(json_text_at(lack, "category"), "workspace");
    ck_assert_str_eq(json_text_at(lack, "operation"), "layer: large");
    assert_sample(json_at(lack, "at"), &device.out_of_memory.at);
    assert_holders(json_at(lack, "holders"), device.out_of_memory.holders, 8);
    const json_node *memory = json_at(json, "memory");
    const int count = ek_report_memory(report, index, samples, ROOM);
    ck_assert_int_eq(json_count(memory), count);
    for (int i = 0; i < count; i++)
        assert_sample(json_item(memory, i), &samples[i]);
    ck_assert_int_eq(json_count(json_at(json, "step_memory")),
                     ek_report_step_memory(report, index, samples, ROOM));
}

TEST(json_has_all_numbers_of_all_reports)
{
    ek_report *reports[2];
    for (int r = 0; r < 2; r++) {
        reports[r] = make_report(r ? "second" : "first");
        assert_ok(ek_report_stop(reports[r]));
    }
    ek_report_set_largest_batch(reports[1], 96);
    assert_ok(ek_report_json(path, reports, 2));
    json_tree tree;
    const json_node *root = json_load(&tree, path), *array = json_at(root, "reports");
    ck_assert_str_eq(json_text_at(root, "format"), "evenkeel-report-1");
    ck_assert_int_eq(json_count(array), 2);
    for (int r = 0; r < 2; r++) {
        const json_node *json = json_item(array, r);
        ck_assert_str_eq(json_text_at(json, "name"), r ? "second" : "first");
        assert_equal(json_number_at(json, "steps"), STEPS);
        assert_equal(json_number_at(json, "seconds"), ek_report_seconds(reports[r]));
        assert_equal(json_number_at(json, "step_seconds"), ek_report_step_seconds(reports[r]));
        assert_equal(json_number_at(json, "imbalance"), ek_report_imbalance(reports[r]));
        assert_equal(json_number_at(json, "largest_batch"), r ? 96 : 0);
        for (int d = 0; d < DEVICES; d++)
            assert_device(json_item(json_at(json, "devices"), d), reports[r], d);
        int count;
        double seconds;
        ek_report_spans(reports[r], &count, &seconds);
        const json_node *last = json_at(json, "last_step");
        assert_equal(json_number_at(last, "seconds"), seconds);
        assert_equal(json_number_at(last, "dropped"), 0);
        ck_assert_int_eq(json_count(json_at(last, "spans")), count);
        ck_assert_int_eq(json_count(json_at(last, "threads")), DEVICES + 1);
        int workers = 0;
        json_each(span, json_at(last, "spans"))
        {
            const int thread = (int)json_number_at(span, "thread");
            const ek_json_value *name = &json_item(json_at(last, "threads"), thread)->value;
            const bool worker = strcmp(name->text, "worker") == 0;
            ck_assert(worker || strcmp(name->text, "caller") == 0);
            ck_assert(worker == (strcmp(json_text_at(span, "label"), "replica") == 0) ||
                      json_number_at(span, "depth") > 0);
            workers += worker;
        }
        ck_assert_int_gt(workers, 0);
    }
    json_free(&tree);
    ek_report_free(reports[0]);
    ek_report_free(reports[1]);
}

static void assert_expected(const json_node *json, const ek_expectation *e)
{
    const json_node *expected = json_at(json, "expected"), *means = json_at(expected, "means");
    assert_equal(json_number_at(expected, "batch"), (double)e->batch);
    assert_equal(json_number_at(expected, "step_seconds"), e->step_seconds);
    ck_assert_int_eq(json_count(means), e->means_count);
    for (int m = 0; m < e->means_count; m++) {
        ck_assert_str_eq(json_text_at(json_item(means, m), "name"), e->means[m].name);
        assert_equal(json_number_at(json_item(means, m), "saved"), (double)e->means[m].saved);
        assert_equal(json_number_at(json_item(means, m), "seconds"), e->means[m].seconds);
    }
}

TEST(json_has_what_was_expected)
{
    ek_report *report = make_report("planned");
    ek_expectation e = {.means_count = 1}; /* the second expectation replaces it */
    assert_ok(ek_report_expect(report, &e));
    e = expectation();
    assert_ok(ek_report_expect(report, &e));
    assert_ok(ek_report_json(path, &report, 1));
    json_tree tree;
    const json_node *json = json_item(json_at(json_load(&tree, path), "reports"), 0);
    assert_expected(json, &e);
    for (int d = 0; d < DEVICES; d++) {
        ek_device_report device;
        const json_node *written = json_item(json_at(json, "devices"), d);
        assert_ok(ek_report_get_device(report, d, &device));
        ck_assert_uint_eq(device.expected.in_use, d == 1 ? 0 : e.devices[d / 2].peak);
        if (d == 1)
            ck_assert_ptr_null(json_find(written, "expected"));
        else
            assert_sample(json_at(written, "expected"), &device.expected);
        for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
            ck_assert_uint_eq(device.expected.now[c], d == 1 ? 0 : e.devices[d / 2].now[c]);
    }
    json_free(&tree);
    ek_report_free(report);
}

/* ---- the trace ---- */

enum { THREADS = 8, DEPTHS = 8 };

/* The open events of one thread. */
typedef struct nest {
    int64_t ends[DEPTHS]; /* nanoseconds */
    int depth;
} nest;

static int64_t nanoseconds(double microseconds)
{
    return (int64_t)llround(1000 * microseconds);
}

static void take_span(nest *nests, const json_node *event)
{
    const int thread = (int)json_number_at(event, "tid");
    ck_assert(thread >= 1 && thread < THREADS);
    nest *n = &nests[thread];
    const int64_t begin = nanoseconds(json_number_at(event, "ts"));
    const int64_t end = begin + nanoseconds(json_number_at(event, "dur"));
    ck_assert(json_number_at(event, "dur") >= 0);
    while (n->depth > 0 && n->ends[n->depth - 1] <= begin && n->ends[n->depth - 1] < end)
        n->depth--;
    if (n->depth > 0 && end > n->ends[n->depth - 1])
        ck_abort_msg("\"%s\" ends %lld ns after what it lies in", json_text_at(event, "name"),
                     (long long)(end - n->ends[n->depth - 1]));
    ck_assert_int_lt(n->depth, DEPTHS);
    n->ends[n->depth++] = end;
}

/* Returns the number `index` of a point of a curve; NAN if the JSON has null. */
static double point_number(const json_node *points, int point, int index)
{
    const json_node *number = json_item(json_item(points, point), index);
    return number->value.kind == EK_JSON_NULL ? NAN : strtod(number->value.text, NULL);
}

/* The curve of 100,000 values has few points, which have the extremes of all values. */
TEST(curves_of_long_runs_are_merged)
{
    enum { VALUES = 100000 };
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0)));
    assert_made(report);
    for (int step = 1; step <= VALUES; step++)
        assert_ok(ek_report_scalar(report, "loss", step, step == 4321 ? 9 : step == 77 ? NAN : 2));
    assert_ok(ek_report_scalar(report, "accuracy", 5, INFINITY));
    assert_ok(ek_report_stop(report));
    assert_ok(ek_report_scalar(report, "accuracy", 5, 0.5));
    assert_ok(ek_report_json(path, &report, 1));
    json_tree tree;
    const json_node *root = json_item(json_at(json_load(&tree, path), "reports"), 0);
    const json_node *loss = json_item(json_at(root, "scalars"), 0);
    const json_node *points = json_at(loss, "points");
    const int count = json_count(points);
    double most = 0;
    ck_assert_str_eq(json_text_at(loss, "name"), "loss");
    ck_assert(count > 512 && count <= 1024);
    for (int i = 0; i < count; i++) {
        most = fmax(most, point_number(points, i, 3));
        ck_assert(point_number(points, i, 2) == 2);
        ck_assert(point_number(points, i, 1) >= 2 && point_number(points, i, 1) < 2.1);
    }
    ck_assert(most == 9 && point_number(points, count - 1, 0) == VALUES);
    points = json_at(json_item(json_at(root, "scalars"), 1), "points");
    ck_assert(isnan(point_number(points, 0, 1)) && point_number(points, 1, 1) == 0.5);
    json_free(&tree);
    ek_report_free(report);
}

TEST(the_trace_is_sorted_and_nests)
{
    ek_report *report = make_report("traced");
    assert_ok(ek_report_trace(path, report));
    json_tree tree;
    const json_node *root = json_load(&tree, path);
    nest nests[THREADS] = {{{0}, 0}};
    int counts[128] = {0}, names = 0;
    double last = 0;
    json_each(event, json_at(root, "traceEvents"))
    {
        const char phase = json_text_at(event, "ph")[0];
        counts[(int)phase]++;
        ck_assert_int_eq((int)json_number_at(event, "pid"), 1);
        if (phase == 'M') {
            names += strcmp(json_text_at(event, "name"), "thread_name") == 0;
            continue;
        }
        ck_assert(json_number_at(event, "ts") >= last);
        last = json_number_at(event, "ts");
        if (phase == 'X')
            take_span(nests, event);
        else
            ck_assert_int_eq(json_count(json_at(event, "args")), EK_MEMORY_CATEGORIES);
    }
    ck_assert_int_eq(counts['X'],
                     2 + DEVICES * (1 + 2 * 8 + 1)); /* the caller waits for the parts */
    ck_assert_int_ge(counts['C'], DEVICES * 3);
    ck_assert_int_eq(names, DEVICES + 1);
    ck_assert_int_eq(counts['M'], names + 1);
    json_free(&tree);
    ek_report_free(report);
}

/* ---- the table ---- */

TEST(the_table_names_devices_and_operations)
{
    char text[4096] = "";
    ek_report *report = make_report("tabled");
    ek_report_set_largest_batch(report, 96);
    FILE *stream = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(stream);
    ck_assert_ptr_null(ek_add(NULL, NULL)); /* a pending error doesn't fail the report */
    ck_assert_int_eq(ek_report_table(report, stream), 0);
    ck_assert_int_lt(ek_error_status(), 0);
    ek_error_clear();
    fclose(stream);
    const char *const parts[] = {"tabled: 3 steps",
                                 "largest batch 96",
                                 "imbalance 1.00",
                                 "host:0",
                                 "host:2",
                                 "0.03",
                                 "3 %",
                                 "waiting",
                                 "layer: forward of net",
                                 "The largest holders",
                                 "host:0   no module (parameter) 0.00, no module (gradient) 0.00,",
                                 "communicating",
                                 "reserved",
                                 "system",
                                 "dropped"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(text, parts[i]) != NULL, "there is no \"%s\" in\n%s", parts[i], text);
    stream = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(stream);
    assert_refused(ek_report_table(report, stream), EK_E_IO, "report_table");
    fclose(stream);
    ek_report_free(report);
}

/* The first table is written before ek_report_expect, the second after. */
TEST(the_table_has_what_was_expected)
{
    char text[2][4096] = {"", ""};
    ek_report *report = make_report("tabled");
    ek_expectation e = expectation();
    for (int i = 0; i < 2; i++) {
        FILE *stream = fmemopen(text[i], sizeof text[i], "w");
        ck_assert_ptr_nonnull(stream);
        assert_ok(ek_report_table(report, stream));
        fclose(stream);
        assert_ok(ek_report_expect(report, &e));
    }
    const char *const parts[] = {"ms (250.00 expected); imbalance 1.00; planned for batch 64\n",
                                 "peak  expected capacity",
                                 "0.03      1.00",
                                 "0.03      2.00",
                                 "\nsharded parameters                    3.00    125.00\n",
                                 "\nrecomputation \"all\"                  -3.00   -500.00\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(text[1], parts[i]), "there is no \"%s\" in\n%s", parts[i], text[1]);
    ck_assert_ptr_null(strstr(text[0], "expected"));
    ek_report_free(report);
}

/* ---- what cannot be written ---- */

TEST(files_are_written_whole_or_not_at_all)
{
    char missing[128];
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    assert_refused(ek_report_trace(path, report), EK_E_STATE, "no step");
    ek_report_free(report);
    report = make_report("written");
    snprintf(missing, sizeof missing, "%s/no/file", directory);
    assert_refused(ek_report_json(missing, &report, 1), EK_E_IO, "No such file");
    assert_refused(ek_report_trace(missing, report), EK_E_IO, missing);
    assert_refused(ek_report_json(directory, &report, 1), EK_E_IO, "directory");
    assert_refused(ek_report_json(path, &report, 0), EK_E_INVALID, "no report");
    ek_report *none = NULL;
    assert_refused(ek_report_json(path, &none, 1), EK_E_INVALID, "report 0 is NULL");
    assert_refused(ek_report_json(NULL, &report, 1), EK_E_INVALID, "path");
    ck_assert_int_ne(access(path, F_OK), 0);
    ek_report_free(report);
}

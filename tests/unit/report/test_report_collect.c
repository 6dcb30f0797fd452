/* What a report collects: memory over time, peaks, steps' time, spans. */
#include <pthread.h>
#include <time.h>

#include "collect_setup.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/worker.h"
#include "report/history.h"
#include "report/report.h"

enum { ROOM = 4096 };

static ek_memory_sample samples[ROOM];

static uint64_t sum_of(const ek_memory_sample *sample)
{
    uint64_t sum = 0;
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        sum += sample->now[c];
    return sum;
}

/* For so long the thread computes, as far as anybody knows. */
static void pass(uint64_t microseconds)
{
    const uint64_t end = ek_clock_ns() + 1000 * microseconds;
    while (ek_clock_ns() < end)
        ;
}

static void work(int index, ek_span_kind kind, const char *what, const char *name,
                 uint64_t microseconds)
{
    ek_span span;
    ek_span_begin(&span, kind, what, name, index < 0 ? ek_dev_get(ek_cpu()) : host(index));
    pass(microseconds);
    ek_span_end(&span);
}

/* Computing, communicating and waiting are all the time there was. */
static void assert_times_add_up(const ek_report *report)
{
    const double seconds = ek_report_seconds(report);
    for (int d = 0; d < ek_report_device_count(report); d++) {
        const ek_device_report device = device_of(report, d);
        ck_assert(device.computing >= 0 && device.communicating >= 0 && device.waiting >= 0);
        ck_assert(fabs(device.computing + device.communicating + device.waiting - seconds) <=
                  1e-9 * seconds + 1e-12);
    }
}

TEST(the_peak_has_its_moment_and_operation)
{
    assert_ok(ek_host_devices_configure("2x1M"));
    void *before = take(0, 4096, EK_MEMORY_PARAMETER);
    ek_report *report = ek_report_start(.name = "one", .device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    ck_assert_str_eq(ek_report_name(report), "one");
    ck_assert_int_eq(ek_report_device_count(report), 2);
    ck_assert_uint_eq(device_of(report, 0).peak.in_use, 4096);
    ck_assert_str_eq(device_of(report, 0).peak_operation, "");
    assert_ok(ek_report_step(report));

    ek_span outer, inner;
    ek_span_begin(&outer, EK_SPAN_COMPUTE, "forward of", "net", host(0));
    ek_span_begin(&inner, EK_SPAN_COMPUTE, "forward of", "conv2d", NULL);
    void *more = take(0, 1024, EK_MEMORY_ACTIVATION);
    ek_span_end(&inner);
    give(0, more, 1024, EK_MEMORY_ACTIVATION);
    more = take(0, 512, EK_MEMORY_ACTIVATION);
    ek_span_end(&outer);
    give(0, more, 512, EK_MEMORY_ACTIVATION);
    assert_ok(ek_report_step(report));

    ek_device_report device = device_of(report, 0);
    ck_assert_uint_eq(device.peak.in_use, 5120);
    ck_assert_uint_eq(device.peak.now[EK_MEMORY_PARAMETER], 4096);
    ck_assert_uint_eq(device.peak.now[EK_MEMORY_ACTIVATION], 1024);
    ck_assert_int_eq(device.peak.step, 1);
    ck_assert_str_eq(device.peak_operation, "forward of conv2d");
    ck_assert_uint_eq(device.capacity, 1 << 20);
    ck_assert_uint_ge(device.reserved_peak, 5120);
    ck_assert_uint_eq(device_of(report, 1).peak.in_use, 0);
    ck_assert(fabs(ek_report_imbalance(report) - 2) <= 1e-12);
    ck_assert_int_eq(ek_report_step_count(report), 2);

    /* The devices' own peaks go on untouched, and end the report's in no way. */
    assert_ok(ek_memory_reset_peak(ek_host(0)));
    ck_assert_uint_eq(device_of(report, 0).peak.in_use, 5120);
    give(0, before, 4096, EK_MEMORY_PARAMETER);
    assert_ok(ek_report_stop(report));
    ck_assert_uint_eq(device_of(report, 0).peak.in_use, 5120);
    assert_ok(ek_shutdown());
    ck_assert_uint_eq(device_of(report, 0).peak.in_use, 5120);
    ek_report_free(report);
}

TEST(every_change_is_a_sample)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    void *memory = take(0, 4096, EK_MEMORY_ACTIVATION);
    int count = ek_report_memory(report, 0, samples, ROOM);
    ck_assert_uint_eq(samples[count - 1].now[EK_MEMORY_ACTIVATION], 4096);
    ek_dev_assign(host(0), memory, 4096, EK_MEMORY_ACTIVATION, EK_MEMORY_GRADIENT, ek_path_root);
    count = ek_report_memory(report, 0, samples, ROOM);
    ck_assert_uint_eq(samples[count - 1].now[EK_MEMORY_GRADIENT], 4096);
    ck_assert_uint_eq(samples[count - 1].in_use, 4096);
    give(0, memory, 4096, EK_MEMORY_GRADIENT);
    count = ek_report_memory(report, 0, samples, ROOM);
    ck_assert_uint_eq(samples[count - 1].in_use, 0);
    ck_assert_int_eq(ek_report_memory(report, 0, NULL, 0) > 1, 1);

    /* The step has the same, from its begin on. */
    assert_ok(ek_report_step(report));
    count = ek_report_step_memory(report, 0, samples, ROOM);
    ck_assert_int_ge(count, 2);
    ck_assert_uint_eq(samples[count - 1].in_use, 0);
    assert_ok(ek_report_step(report));
    count = ek_report_step_memory(report, 0, samples, ROOM);
    for (int i = 0; i < count; i++)
        ck_assert(samples[i].in_use == 0 && samples[i].step == 1);
    ek_report_free(report);
}

TEST(spans_are_told_to_the_device_that_works)
{
    assert_ok(ek_host_devices_configure("2"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    ck_assert_str_eq(ek_report_name(report), "run");
    ek_span outer, inner, wait;
    ek_span_begin(&outer, EK_SPAN_COMPUTE, "forward of", "net", host(0));
    ek_span_begin(&inner, EK_SPAN_COMMUNICATE, "copy to", "host:1", host(1));
    ek_span_begin(&wait, EK_SPAN_WAIT, "waiting", NULL, NULL); /* of the span around it */
    pass(300);
    ek_span_end(&wait);
    pass(200);
    ek_span_end(&inner);
    pass(100);
    ek_span_end(&outer);
    work(0, EK_SPAN_WAIT, NULL, "nothing", 100);
    work(-1, EK_SPAN_COMPUTE, "on", "cpu", 100); /* not in the report */
    assert_ok(ek_report_step(report));

    int count;
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    ck_assert_int_eq(count, 4);
    ck_assert_str_eq(spans[0].label, "forward of net");
    ck_assert_str_eq(spans[1].label, "copy to host:1");
    ck_assert_str_eq(spans[2].label, "waiting");
    ck_assert_str_eq(spans[3].label, "nothing");
    const int devices[] = {0, 1, 1, 0}, depths[] = {0, 0, 1, 0};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(spans[i].device, devices[i]);
        ck_assert_int_eq(spans[i].depth, depths[i]);
        ck_assert_int_eq(spans[i].thread, spans[0].thread);
        ck_assert(spans[i].begin >= 0 && spans[i].end <= seconds);
    }
    double lengths[4];
    for (int i = 0; i < 4; i++)
        lengths[i] = spans[i].end - spans[i].begin;
    const ek_device_report first = device_of(report, 0), second = device_of(report, 1);
    ck_assert(fabs(first.computing - (lengths[0] - lengths[1])) <= 1e-8);
    ck_assert(first.communicating == 0);
    ck_assert(second.computing == 0);
    ck_assert(fabs(second.communicating - (lengths[1] - lengths[2])) <= 1e-8);
    assert_times_add_up(report);

    /* Another step has its own. */
    assert_ok(ek_report_step(report));
    ck_assert(device_of(report, 0).computing == first.computing);
    ck_assert_ptr_null(ek_report_spans(report, &count, &seconds));
    ck_assert_int_eq(count, 0);
    ek_report_free(report);
}

/* ---- long runs ---- */

/* A run that is known in full: in_use as it was from times[i] on. */
enum { CHANGES = 200000 };
static uint64_t times[CHANGES], levels[CHANGES];

static uint64_t most_within(uint64_t begin, uint64_t end, int *from)
{
    uint64_t most = 0;
    while (*from + 1 < CHANGES && times[*from + 1] <= begin)
        ++*from;
    for (int i = *from; i < CHANGES && (i == *from || times[i] < end); i++)
        most = levels[i] > most ? levels[i] : most;
    return most;
}

static void fill_series(ek_series *series, unsigned seed)
{
    uint64_t state = seed, now = 0;
    assert_ok(ek_series_init(series));
    for (int i = 0; i < CHANGES; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        /* Bursts, and now and then a long while in which nothing changes. */
        now += (state >> 33) % 1000 + ((state >> 50) % 1000 == 0 ? 3000000 : 0);
        ek_moment moment = {.ns = now, .step = i / 1000, .in_use = (state >> 40) % 100000 * 64};
        moment.now[i % EK_MEMORY_CATEGORIES] = moment.in_use;
        times[i] = now;
        levels[i] = moment.in_use;
        ek_series_note(series, &moment);
    }
}

TEST_LOOP(no_moment_is_lost_that_is_the_fullest_of_its_stretch, 1, 5)
{
    ek_series series;
    fill_series(&series, (unsigned)_i);
    const uint64_t end = times[CHANGES - 1] + 12345, width = UINT64_C(1) << series.shift;
    ck_assert_int_gt(series.count, EK_SERIES_STRETCHES / 4);
    ck_assert_int_le(series.count, EK_SERIES_STRETCHES);
    ck_assert_uint_gt(times[CHANGES - 1], width * EK_SERIES_STRETCHES / 2);
    int at = 0, from = 0;
    uint64_t held = 0;
    for (uint64_t begin = 0; begin < end; begin += width) {
        const uint64_t most = most_within(begin, begin + width, &from);
        if (at < series.count && series.stretches[at].fullest.ns < begin + width) {
            const ek_stretch *stretch = &series.stretches[at++];
            ck_assert(stretch->fullest.ns >= begin && stretch->fullest.in_use == most);
            held = stretch->last.in_use;
        } else if (most != held) {
            ck_abort_msg("between %llu and %llu there were %llu, not %llu",
                         (unsigned long long)begin, (unsigned long long)(begin + width),
                         (unsigned long long)most, (unsigned long long)held);
        }
    }
    ck_assert_int_eq(at, series.count);
    const int count = ek_series_read(&series, end, samples, ROOM);
    ck_assert_int_gt(count, series.count);
    ck_assert_int_le(count, 2 * series.count + 1);
    ck_assert_uint_eq(samples[count - 1].in_use, levels[CHANGES - 1]);
    for (int i = 0; i < count; i++)
        if (sum_of(&samples[i]) != samples[i].in_use ||
            (i && !(samples[i].seconds > samples[i - 1].seconds)))
            ck_abort_msg("sample %d of %d", i, count);
    ek_series_free(&series);
}

TEST(steps_sums_stay_exact)
{
    enum { STEPS = 5000, DEVICES = 3 };
    ek_steps steps;
    ek_busy busy[DEVICES], sums[DEVICES] = {{0, 0}};
    uint64_t ns = 0, state = 7;
    assert_ok(ek_steps_init(&steps, DEVICES));
    for (int i = 0; i < STEPS; i++) {
        const uint64_t length = 1000 + (state = state * 1103515245 + 12345) % 1000;
        for (int d = 0; d < DEVICES; d++) {
            busy[d] = (ek_busy){length / (unsigned)(d + 2), length / 7};
            sums[d].computing += busy[d].computing;
            sums[d].communicating += busy[d].communicating;
        }
        ek_steps_add(&steps, length, busy);
        ns += length;
    }
    ck_assert_int_eq(steps.total, STEPS);
    ck_assert_int_le(steps.count, EK_STEP_RECORDS);
    ck_assert_int_gt(steps.count, EK_STEP_RECORDS / 2);
    ck_assert_uint_eq(steps.ns, ns);
    int64_t first = 0;
    for (int i = 0; i < steps.count; i++) {
        ck_assert_int_eq(steps.records[i].first, first);
        first += steps.records[i].count;
        ns -= steps.records[i].ns;
        for (int d = 0; d < DEVICES; d++)
            sums[d].computing -= steps.busy[i * DEVICES + d].computing;
    }
    ck_assert_int_eq(first, STEPS);
    ck_assert_uint_eq(ns, 0);
    for (int d = 0; d < DEVICES; d++)
        ck_assert_uint_eq(sums[d].computing, 0);
    ck_assert(ek_steps_median(&steps) > 1.3e-6 && ek_steps_median(&steps) < 1.7e-6);

    /* Two threads for one device: no more than the time there was. */
    const ek_busy before = steps.sums[0];
    busy[0] = (ek_busy){3000, 1000};
    ek_steps_add(&steps, 1000, busy);
    ck_assert_uint_eq(steps.sums[0].computing - before.computing, 750);
    ck_assert_uint_eq(steps.sums[0].communicating - before.communicating, 250);
    ek_steps_free(&steps);
}

TEST(spans_without_room_are_counted)
{
    enum { SPANS = 40000 };
    assert_ok(ek_host_devices_configure("1"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < SPANS; i++)
            work(0, EK_SPAN_COMPUTE, "one of", "many", 0);
        assert_ok(ek_report_step(report));
    }
    int count;
    double seconds;
    assert_made(ek_report_spans(report, &count, &seconds));
    ck_assert_int_eq(count, 1 << 15);
    ck_assert_int_eq(ek_report_spans_dropped(report), SPANS - (1 << 15));
    assert_times_add_up(report);
    ck_assert_int_ne(count, SPANS);
    assert_ok(ek_report_step(report));
    ck_assert_int_eq(ek_report_spans_dropped(report), 0);
    ek_report_free(report);
}

TEST(what_lies_before_the_step_counts_in_none)
{
    assert_ok(ek_host_devices_configure("1"));
    ek_span before, across;
    ek_span_begin(&before, EK_SPAN_COMPUTE, "before", NULL, host(0)); /* nobody collects */
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    ek_span_end(&before);
    ek_span_begin(&across, EK_SPAN_COMPUTE, "across", NULL, host(0));
    pass(2000);
    assert_ok(ek_report_step(report));
    ck_assert(device_of(report, 0).computing == 0);
    pass(100);
    ek_span_end(&across);
    pass(2000);
    assert_ok(ek_report_step(report));
    const ek_device_report device = device_of(report, 0);
    int count;
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    ck_assert_int_eq(count, 1);
    ck_assert(spans[0].begin == 0);
    ck_assert(device.computing > 0 && device.computing <= spans[0].end + 1e-8);
    assert_times_add_up(report);

    /* What is open when collecting ends is told to nobody, and goes on. */
    ek_span_begin(&across, EK_SPAN_COMPUTE, "open", NULL, host(0));
    assert_ok(ek_report_stop(report));
    ek_report *next = ek_report_start(.name = "next", .device_ids = ek_devices(EK_HOST, 0));
    assert_made(next);
    void *memory = take(0, 64, EK_MEMORY_WORKSPACE);
    ck_assert_str_eq(device_of(next, 0).peak_operation, "open");
    ek_span_end(&across);
    give(0, memory, 64, EK_MEMORY_WORKSPACE);
    assert_ok(ek_report_step(next));
    ck_assert_int_eq(ek_report_step_count(report), 2);
    ek_report_free(next);
    ek_report_free(report);
}

TEST(labels_have_an_end)
{
    char longest[300];
    assert_ok(ek_host_devices_configure("1"));
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    for (size_t i = 0; i + 3 <= sizeof longest; i += 2)
        memcpy(longest + i, "\xC3\xA4", 3); /* a letter of two bytes */
    work(0, EK_SPAN_COMPUTE, "of", longest, 1);
    work(0, EK_SPAN_COMPUTE, "off", longest, 1);
    work(0, EK_SPAN_COMPUTE, NULL, NULL, 1);
    assert_ok(ek_report_step(report));
    int count;
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    ck_assert_int_eq(count, 3);
    ck_assert_uint_eq(strlen(spans[0].label), 3 + 90);
    ck_assert_uint_eq(strlen(spans[1].label), 4 + 90);
    ck_assert_str_eq(spans[2].label, "");
    ek_report_free(report);
}

/* ---- threads ---- */

enum { WORKERS = 4 };
static atomic_bool stop;

/* Allocates, frees and computes until it is told not to. */
static void *keep_busy(void *user)
{
    const int index = *(int *)user;
    unsigned state = (unsigned)index;
    while (!atomic_load(&stop)) {
        ek_span span, inner;
        ek_span_begin(&span, EK_SPAN_COMPUTE, "thread's", "work", host(index));
        void *memory[8];
        size_t sizes[8];
        for (int i = 0; i < 8; i++) {
            state = state * 1103515245 + 12345;
            sizes[i] = 64 * (1 + state % 64);
            ek_span_begin(&inner, EK_SPAN_COMMUNICATE, "allocation", NULL, NULL);
            memory[i] = take(index, sizes[i], i % EK_MEMORY_CATEGORIES);
            ek_span_end(&inner);
        }
        ek_dev_assign(host(index), memory[0], sizes[0], EK_MEMORY_PARAMETER, EK_MEMORY_WORKSPACE,
                      ek_path_root);
        give(index, memory[0], sizes[0], EK_MEMORY_WORKSPACE);
        for (int i = 1; i < 8; i++)
            give(index, memory[i], sizes[i], i % EK_MEMORY_CATEGORIES);
        ek_span_end(&span);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* for others on few cores */
    }
    return NULL;
}

static void assert_samples(const ek_report *report, int index)
{
    const int count = ek_report_memory(report, index, samples, ROOM);
    const ek_device_report device = device_of(report, index);
    uint64_t most = 0;
    ck_assert_int_gt(count, 0);
    ck_assert_int_le(count, 2 * EK_SERIES_STRETCHES + 1);
    for (int i = 0; i < count; i++) {
        if (sum_of(&samples[i]) != samples[i].in_use)
            ck_abort_msg("sample %d of %d doesn't add up", i, count);
        if (i && !(samples[i].seconds > samples[i - 1].seconds &&
                   samples[i].step >= samples[i - 1].step))
            ck_abort_msg("sample %d of %d doesn't come after the one before", i, count);
        most = samples[i].in_use > most ? samples[i].in_use : most;
    }
    ck_assert_uint_eq(sum_of(&device.peak), device.peak.in_use);
    ck_assert_uint_ge(device.peak.in_use, most);
}

static void start_threads(pthread_t *threads, int *indices)
{
    for (int i = 0; i < 2 * WORKERS; i++) {
        indices[i] = i % WORKERS; /* two for each device */
        ck_assert_int_eq(pthread_create(&threads[i], NULL, keep_busy, &indices[i]), 0);
    }
}

static void join_threads(pthread_t *threads)
{
    atomic_store(&stop, true);
    for (int i = 0; i < 2 * WORKERS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop, false);
}

TEST(threads_go_on_while_reports_come_and_go)
{
    pthread_t threads[2 * WORKERS];
    int indices[2 * WORKERS];
    assert_ok(ek_host_devices_configure("4"));
    for (int i = 0; i < WORKERS; i++)
        assert_made(host(i)); /* open */
    start_threads(threads, indices);
    for (int round = 0; round < 24; round++) {
        ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
        assert_made(report);
        for (int step = 0; step < 5; step++) {
            pass(200);
            assert_ok(ek_report_step(report));
            assert_samples(report, step % WORKERS);
        }
        int count;
        double seconds;
        if (round % 4 == 0)
            ek_report_spans(report, &count, &seconds);
        if (round % 2)
            assert_ok(ek_report_stop(report));
        for (int d = 0; d < WORKERS; d++)
            assert_samples(report, d);
        assert_times_add_up(report);
        ek_report_free(report);
    }
    join_threads(threads);
}

/* On a worker everything is within the part, whatever device it names. */
static int part(void *user, int index)
{
    work(3 - index, EK_SPAN_COMPUTE, "forward of", "net", 200);
    return 0;
}

TEST(workers_are_their_devices)
{
    assert_ok(ek_host_devices_configure("4"));
    ek_dev *devs[4];
    for (int i = 0; i < 4; i++)
        devs[i] = host(i);
    ek_report *report = ek_report_start(.device_ids = ek_devices(EK_HOST, 0));
    assert_made(report);
    assert_ok(ek_jobs_run(devs, 4, part, NULL, "replica"));
    assert_ok(ek_report_step(report));
    int count, seen[4] = {0};
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &count, &seconds);
    ck_assert_int_eq(count, 8);
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(ek_report_thread_device(report, spans[i].thread), spans[i].device);
        ck_assert_str_eq(spans[i].label, spans[i].depth ? "forward of net" : "replica");
        seen[spans[i].device]++;
    }
    for (int d = 0; d < 4; d++)
        ck_assert_int_eq(seen[d], 2);
    assert_times_add_up(report);
    ek_report_free(report);
}

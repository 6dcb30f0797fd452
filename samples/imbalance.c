/* imbalance.c: trains the same network on a single device and in several data-parallel ways, and
 * compares memory, time and result. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/devices.h"
#include "common/interrupt.h"
#include "common/pictures.h"
#include "imbalance/train.h"

/* Exit statuses: 0 well, 1 the job failed, 2 it was not begun, interrupt_status() where a
 * signal stopped it. */
enum { FAILED = 1, REFUSED = 2 };

/* Both sets of scenes; they differ in pictures, and in seed. */
static int make_scenes(const run_settings *settings, scene_set *train, scene_set *test)
{
    uint64_t seed = (uint64_t)settings->seed;
    int rc =
        scenes_make(train, settings->data, "train", settings->scenes, (int)settings->size, seed);

    if (rc == 0)
        rc = scenes_make(test, settings->data, "t10k", settings->test_scenes, (int)settings->size,
                         seed + 1);
    return rc;
}

/* Ctrl-C: what is lost by it. Modes that were finished before are worth their rows. */
static int explain_stop(const run_settings *settings, const mode_result *results, int count)
{
    ek_error_record error;

    ek_error_take(&error);
    if (settings->find_batch && count > 0)
        report_batches(stdout, results, count);
    else if (count > 0)
        report_table(stdout, results, count);
    printf("Stopped: %s\n", error.message);
    if (settings->json || settings->html || settings->trace)
        puts("No file was written");
    return interrupt_status();
}

/* After an error of a mode: its sentence and, where memory was short, what would have fitted. */
static int explain(const run_settings *settings, const scene_set *train, train_mode mode)
{
    ek_error_record error;

    ek_error_take(&error);
    fprintf(stderr, "%s: %s\n", mode_names[mode], error.message);
    if (error.status != EK_E_OUT_OF_MEMORY)
        return FAILED;
    fprintf(stderr, "%s: looking for the largest batch that fits ...\n", mode_names[mode]);
    int64_t fits = train_largest_batch(settings, train, mode, settings->batch);
    if (fits < 0 && *settings->stopped)
        return explain_stop(settings, NULL, 0);
    if (fits < 0) {
        ek_print_error(stderr);
    } else if (fits == 0) {
        fprintf(stderr,
                "%s: not even a batch of 1 fits; give more with --cap, or a smaller --width\n",
                mode_names[mode]);
    } else {
        fprintf(stderr, "%s: the largest batch that would fit is %lld (--batch %lld)\n",
                mode_names[mode], (long long)fits, (long long)fits);
    }
    return FAILED;
}

static int train_all(const run_settings *settings, const scene_set *train, const scene_set *test,
                     mode_result *results, int *count)
{
    for (int mode = 0; mode < MODES; mode++) {
        if (!settings->runs[mode])
            continue;
        if (train_run(settings, train, test, (train_mode)mode, &results[*count]) < 0)
            return *settings->stopped ? explain_stop(settings, results, *count)
                                      : explain(settings, train, (train_mode)mode);
        ++*count;
    }
    return 0;
}

/* Without a capacity by option or list: three times the state of a single device. */
static int choose_capacity(run_settings *settings, const scene_set *train)
{
    uint64_t state;
    ek_memory_stats stats;
    ek_device_list devices = devices_open_text(settings->kind, settings->device_text);

    int rc = devices.count > 0 ? ek_memory_get(devices.devices[0], &stats) : ek_error_status();
    if (rc < 0 || settings->capacity || stats.capacity)
        return rc;
    rc = train_state_nbytes(settings, train, &state);
    settings->capacity = 3 * state;
    if (rc == 0)
        printf("Capacity: %.2f MiB per device, three times what single holds without a scene\n",
               (double)settings->capacity / (1 << 20));
    return rc;
}

static int find_all(run_settings *settings, const scene_set *train, mode_result *results,
                    int *count)
{
    int rc = choose_capacity(settings, train);

    for (int mode = 0; mode < MODES && rc == 0; mode++) {
        if (!settings->runs[mode])
            continue;
        rc = train_find_batch(settings, train, (train_mode)mode, &results[*count]);
        *count += rc == 0;
    }
    if (rc < 0 && *settings->stopped)
        return explain_stop(settings, results, *count);
    if (rc < 0)
        ek_print_error(stderr);
    return rc < 0 ? FAILED : 0;
}

/* The last report there is. */
static int write_trace(const run_settings *settings, const mode_result *results, int count)
{
    while (count > 0 && !results[count - 1].report)
        count--;
    if (!settings->trace || count == 0)
        return 0;
    if (ek_report_trace(settings->trace, results[count - 1].report) < 0) {
        ek_print_error(stderr);
        return FAILED;
    }
    printf("Trace of %s: %s\n", results[count - 1].name, settings->trace);
    return 0;
}

static int report(const run_settings *settings, const mode_result *results, int count)
{
    if (settings->find_batch)
        report_batches(stdout, results, count);
    else
        report_table(stdout, results, count);
    if (settings->json && report_json(settings->json, settings, results, count) < 0) {
        fprintf(stderr, "%s: %s\n", settings->json, strerror(errno));
        return FAILED;
    }
    if (settings->html && report_html(settings->html, settings, results, count) < 0) {
        ek_print_error(stderr);
        return FAILED;
    }
    if (settings->html)
        printf("Charts: %s\n", settings->html);
    return write_trace(settings, results, count);
}

/* Plans and warnings. */
static void show_log(ek_log_level level, const char *line, void *user)
{
    (void)user;
    if (level >= EK_LOG_INFO)
        fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
    run_settings settings;
    scene_set train = {0}, test = {0};
    mode_result results[MODES] = {{0}};
    int count = 0, rc = settings_parse(&settings, argc, argv);

    if (rc != 0)
        return rc == SETTINGS_HELP ? 0 : REFUSED;
    settings.stopped = interrupt_catch();
    if (make_scenes(&settings, &train, &test) < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], ek_error_message());
        pictures_explain(argv[0], settings.data);
        ek_error_clear();
        scenes_free(&train);
        return REFUSED;
    }
    printf("Scenes: %lld for training, %lld for testing, %lld x %lld pixels\n",
           (long long)train.count, (long long)test.count, (long long)settings.size,
           (long long)settings.size);
    fflush(stdout);
    ek_set_log(show_log, NULL);
    if (settings.find_batch)
        rc = find_all(&settings, &train, results, &count);
    else
        rc = train_all(&settings, &train, &test, results, &count);
    if (rc == 0)
        rc = report(&settings, results, count);
    for (int m = 0; m < count; m++)
        mode_result_free(&results[m]);
    scenes_free(&train);
    scenes_free(&test);
    return rc;
}

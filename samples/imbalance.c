/* imbalance.c: trains the same network on a single device and in several data-parallel ways, and
 * compares memory, time and result. */
#include "imbalance.h"

#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

static const char about[] =
    "Trains a segmentation network on scenes made of Fashion-MNIST pictures, from the same seed, "
    "and\ncompares memory, time and result of: a single device; several with outputs and loss on "
    "device\n0 (classic); with the loss on every device (balanced); with shares of the batch that "
    "follow from\nmeasurements (balanced-auto); with gradients and optimizer state sharded "
    "(sharded).\n\n";

/* Reads "classic,balanced" into runs[]. */
static int settings_parse_modes(run_settings *s)
{
    const char *text = s->modes;
    do {
        size_t length = strcspn(text, ",");
        int mode = 0;
        while (mode < MODES &&
               (strlen(mode_names[mode]) != length || strncmp(mode_names[mode], text, length) != 0))
            mode++;
        if (mode == MODES)
            return args_complain("--modes %s: some of " ALL_MODES " are needed", s->modes);
        s->runs[mode] = true;
        text += length;
    } while (*text++ == ',');
    return 0;
}

static int settings_parse(run_settings *s, int argc, char **argv)
{
    static const volatile sig_atomic_t never;
    static run_settings opt;
    arg_spec table[] = {IMBALANCE_OPTIONS(arg_row) arg_end};
    opt = (run_settings){.lr = -1, .stopped = &never};
    int rc = args_read(argc, argv, about, table);
    *s = opt;
    if (rc != 0)
        return rc;
    s->adam = strcmp(s->optimizer, "adam") == 0;
    if (!s->adam && strcmp(s->optimizer, "sgd") != 0)
        return args_complain("--optimizer %s: sgd or adam is needed", s->optimizer);
    if (s->lr < 0)
        s->lr = s->adam ? 0.001 : 0.05;
    if (settings_parse_modes(s) < 0 || args_check_output("json", s->json) < 0 ||
        args_check_output("html", s->html) < 0 || args_check_output("trace", s->trace) < 0)
        return -1;
    if (s->fit_batch && world_size() > 1)
        return args_complain("--fit-batch is for one process");
    s->device_count = devices_check(s->device, s->devices, false, s->plan);
    return s->device_count < 0 ? -1 : 0;
}

int settings_steps(const run_settings *s)
{
    enum { DEFAULT_STEPS = 128 };
    int64_t per_epoch = (s->scenes + s->batch - 1) / s->batch, steps = s->steps;
    if (s->epochs && (steps == 0 || s->epochs * per_epoch < steps))
        steps = s->epochs * per_epoch;
    return (int)(steps ? steps : DEFAULT_STEPS);
}

/* ---- the program ---- */

static void print_results(const run_settings *s, const mode_result *results, int count)
{
    if (s->find_batch)
        report_batches(results, count);
    else
        report_table(results, count);
}

/* Tells what Ctrl-C has lost, below the rows of the modes that were finished before. */
static int explain_stop(const run_settings *s, const mode_result *results, int count)
{
    ek_error_record error;
    ek_error_take(&error);
    if (count > 0)
        print_results(s, results, count);
    printf("Stopped: %s\n", error.message);
    if (s->json || s->html || s->trace)
        puts("No file was written");
    return interrupt_status();
}

/* Prints a mode's error and, if memory was short, the largest batch that fits. */
static int explain(const run_settings *s, ek_dataset *train, train_mode mode)
{
    ek_error_record error;
    const bool says = world_says_error();
    ek_error_take(&error);
    if (says)
        fprintf(stderr, "%s: %s\n", mode_names[mode], error.message);
    if (world_most(error.status == EK_E_OUT_OF_MEMORY) <= 0)
        return FAILED;
    if (says)
        fprintf(stderr, "%s: looking for the largest batch that fits ...\n", mode_names[mode]);
    int64_t fits = mode_largest_batch(s, train, mode, s->batch);
    if (fits < 0 && *s->stopped)
        return explain_stop(s, NULL, 0);
    if (fits < 0)
        return world_fail(FAILED);
    if (!says)
        return FAILED;
    if (fits == 0)
        fprintf(stderr,
                "%s: not even a batch of 1 fits; give more with --cap, or a smaller --width\n",
                mode_names[mode]);
    else
        fprintf(stderr, "%s: the largest batch that would fit is %lld (--batch %lld)\n",
                mode_names[mode], (long long)fits, (long long)fits);
    return FAILED;
}

/* Trains in every mode, or finds its largest batch; *count modes were finished. Returns the exit
 * status. */
static int run_all(run_settings *s, ek_dataset *train, ek_dataset *test, mode_result *results,
                   int *count)
{
    int mode = 0, rc = s->find_batch || s->fit_batch ? mode_choose_capacity(s, train) : 0;
    if (rc == 0 && s->fit_batch)
        return mode_fit_batch(s, train) < 0 ? world_fail(FAILED) : 0;
    for (; mode < MODES && rc == 0; mode++) {
        if (!s->runs[mode])
            continue;
        mode_result *result = &results[*count];
        rc = s->find_batch ? mode_find_batch(s, train, (train_mode)mode, result)
                           : mode_train(s, train, test, (train_mode)mode, result);
        *count += rc == 0;
    }
    if (rc < 0 && *s->stopped)
        return explain_stop(s, results, *count);
    if (rc < 0 && !s->find_batch)
        return explain(s, train, (train_mode)(mode - 1));
    return rc < 0 ? world_fail(FAILED) : 0;
}

static int report(const run_settings *s, const mode_result *results, int count)
{
    print_results(s, results, count);
    int rc = s->json && world_is_first() ? report_json(s->json, s, results, count) : 0;
    if (world_most(rc < 0) != 0 || (s->html && report_html(s->html, s, results, count) < 0))
        return world_fail(FAILED);
    if (s->html)
        printf("Charts: %s\n", s->html);
    while (count > 0 && !results[count - 1].report)
        count--;
    if (!s->trace || count == 0)
        return 0;
    if (ek_report_trace(s->trace, results[count - 1].report) < 0)
        return world_fail(FAILED);
    printf("Trace of %s: %s\n", results[count - 1].name, s->trace);
    return 0;
}

/* Prints plans and warnings. */
static void show_log(ek_log_level level, const char *line, void *user)
{
    (void)user;
    if (level >= EK_LOG_INFO && world_is_first())
        fprintf(stderr, "%s\n", line);
}

static int run_program(int argc, char **argv)
{
    run_settings settings;
    mode_result results[MODES] = {{0}};
    int count = 0, rc = settings_parse(&settings, argc, argv);
    if (rc == ARGS_HELP)
        return 0;
    rc = world_refuses(rc < 0);
    if (rc != 0)
        return rc > 0 ? REFUSED : world_fail(REFUSED);
    const run_settings *s = &settings;
    settings.stopped = interrupt_catch();
    ek_dataset *train =
        scenes_make(s->data, true, SCENE_DARK, s->scenes, s->size, (uint64_t)s->seed);
    ek_dataset *test = NULL; /* other pictures, and another seed */
    if (train)
        test =
            scenes_make(s->data, false, SCENE_DARK, s->test_scenes, s->size, (uint64_t)s->seed + 1);
    if (world_most(!test) != 0) {
        world_fail(REFUSED);
        args_complain(PICTURES_HINT, s->data);
        ek_dataset_free(train);
        ek_dataset_free(test);
        return REFUSED;
    }
    printf("Scenes: %lld for training, %lld for testing, %lld x %lld pixels\n",
           (long long)s->scenes, (long long)s->test_scenes, (long long)s->size, (long long)s->size);
    fflush(stdout);
    ek_set_log(show_log, NULL);
    rc = run_all(&settings, train, test, results, &count);
    if (rc == 0 && !s->fit_batch)
        rc = report(s, results, count);
    for (int m = 0; m < MODES; m++)
        mode_result_free(&results[m]);
    ek_dataset_free(train);
    ek_dataset_free(test);
    return rc;
}

int main(int argc, char **argv)
{
    int status = world_join() < 0 ? args_fail(REFUSED) : run_program(argc, argv);
    return ek_shutdown() < 0 && status == 0 ? args_fail(FAILED) : status;
}

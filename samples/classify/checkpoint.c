#include "classify/checkpoint.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static const char format[] = "evenkeel classify 1";

/* ---- what decides the numbers ---- */

enum { MOST_KEYS = 24 };

typedef struct run_texts {
    const char *keys[MOST_KEYS]; /* those of the command line */
    char texts[MOST_KEYS][32];
    int count;
} run_texts;

static void add_text(run_texts *texts, const char *key, const char *pattern, ...) EK_PRINTF(3, 4);
static void add_text(run_texts *texts, const char *key, const char *pattern, ...)
{
    va_list arguments;

    va_start(arguments, pattern);
    vsnprintf(texts->texts[texts->count], sizeof(texts->texts[0]), pattern, arguments);
    va_end(arguments);
    texts->keys[texts->count++] = key;
}

static void describe(run_texts *texts, const run_settings *settings)
{
    *texts = (run_texts){.count = 0};
    add_text(texts, "dataset", "%s", set_names[settings->set]);
    add_text(texts, "train-samples", "%" PRId64, settings->train_samples);
    add_text(texts, "plain", "%s", settings->plain ? "on" : "off");
    add_text(texts, "seed", "%" PRId64, settings->seed);
    add_text(texts, "epochs", "%" PRId64, settings->epochs);
    add_text(texts, "batch", "%" PRId64, settings->batch);
    add_text(texts, "width", "%" PRId64, settings->width);
    add_text(texts, "blocks", "%" PRId64, settings->blocks);
    add_text(texts, "norm", "%s", norm_names[settings->norm]);
    add_text(texts, "optimizer", "%s", optimizer_names[settings->optimizer]);
    add_text(texts, "lr", "%.17g", settings->lr);
    add_text(texts, "momentum", "%.17g", settings->momentum);
    add_text(texts, "weight-decay", "%.17g", settings->weight_decay);
    add_text(texts, "schedule", "%s", schedule_names[settings->schedule]);
    add_text(texts, "step-epochs", "%" PRId64, settings->step_epochs);
    add_text(texts, "gamma", "%.17g", settings->gamma);
    add_text(texts, "smoothing", "%.17g", settings->smoothing);
}

static int compare(const ek_archive *archive, const run_settings *settings)
{
    const char *path = settings->resume, *of_format = ek_archive_text(archive, "format");
    run_texts own;

    if (!of_format || strcmp(of_format, format) != 0)
        return ek_error(EK_E_FORMAT,
                        "%s: its format is \"%s\"; a checkpoint of this program (%s) "
                        "is needed",
                        path, of_format ? of_format : "", format);
    describe(&own, settings);
    for (int i = 0; i < own.count; i++) {
        char name[64];
        snprintf(name, sizeof(name), "settings.%s", own.keys[i]);
        const char *found = ek_archive_text(archive, name);
        if (!found)
            return ek_error(EK_E_FORMAT,
                            "%s: no \"%s\" in it; a checkpoint of this program is "
                            "needed",
                            path, name);
        if (strcmp(found, own.texts[i]) != 0)
            return ek_error(EK_E_INVALID,
                            "%s was made with --%s %s, not %s; it goes on with that "
                            "only",
                            path, own.keys[i], found, own.texts[i]);
    }
    return 0;
}

ek_archive *checkpoint_open(const run_settings *settings)
{
    ek_archive *archive = ek_archive_open(settings->resume);

    if (archive && compare(archive, settings) < 0) {
        ek_archive_free(archive);
        return NULL;
    }
    return archive;
}

const char *checkpoint_plan(const ek_archive *archive, int devices)
{
    const char *plan = archive ? ek_archive_text(archive, "plan") : NULL;

    if (!plan || !*plan)
        return NULL;
    if (ek_plan_check(plan, devices) == 0)
        return plan;
    ek_error_clear();
    return NULL;
}

/* ---- saving ---- */

static int put_settings(ek_archive *archive, const run_settings *settings)
{
    run_texts own;
    int rc = ek_archive_put_text(archive, "format", format);

    describe(&own, settings);
    for (int i = 0; i < own.count && rc == 0; i++) {
        char name[64];
        snprintf(name, sizeof(name), "settings.%s", own.keys[i]);
        rc = ek_archive_put_text(archive, name, own.texts[i]);
    }
    return rc;
}

static int put_records(ek_archive *archive, const run_records *records)
{
    int64_t best = records_best(records);
    ek_tensor *now = ek_from_data(&records->now, EK_SHAPE(SUMS_NUMBERS), EK_F64);
    int rc = ek_archive_put(archive, "epoch_so_far", ek_value_of_tensor(now));

    if (rc < 0 || best < 0)
        return rc;
    ek_tensor *epochs =
        ek_from_data(records->epochs, EK_SHAPE(records->count, RECORD_NUMBERS), EK_F64);
    rc = ek_archive_put(archive, "epochs", ek_value_of_tensor(epochs));
    return rc == 0 ? ek_archive_put(archive, "best_accuracy",
                                    ek_value_of_float(records->epochs[best].test_accuracy))
                   : rc;
}

static int put_all(ek_archive *archive, const train_run *run)
{
    const train_job *job = &run->job;
    int rc = put_settings(archive, &run->settings);

    if (rc == 0)
        rc = ek_archive_put_module(archive, "model", job->network);
    if (rc == 0)
        rc = ek_archive_put_optimizer(archive, "optimizer", job->optimizer, job->network);
    if (rc == 0 && job->schedule)
        rc = ek_archive_put_schedule(archive, "schedule", job->schedule);
    if (rc == 0)
        rc = ek_archive_put_random(archive, "random");
    if (rc == 0)
        rc = ek_archive_put(archive, "loader", ek_loader_state(run->training));
    if (rc == 0)
        rc = ek_archive_put(archive, "step", ek_value_of_int(run->step));
    if (rc == 0)
        rc = put_records(archive, &run->records);
    if (rc == 0 && job->settings.mode == MODE_AUTO)
        rc = ek_archive_put_plan(archive, "plan", job->model);
    return rc;
}

int checkpoint_save(const char *path, const train_run *run)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *archive = ek_archive_new();
    int rc = archive ? put_all(archive, run) : ek_error_status();

    if (rc == 0)
        rc = ek_archive_save(archive, path);
    ek_archive_free(archive);
    ek_scope_end(&scope);
    return rc;
}

/* ---- loading ---- */

/* `room` numbers at most; *count says how many there are. */
static int load_numbers(const ek_archive *archive, const char *name, double *numbers, int64_t room,
                        int64_t *count)
{
    ek_tensor *found = ek_value_tensor(ek_archive_get(archive, name));

    if (!found)
        return ek_error_status();
    *count = ek_tensor_count(found);
    if (*count > room || ek_tensor_dtype(found) != EK_F64)
        return ek_error(EK_E_FORMAT,
                        "checkpoint: %s holds %lld numbers (%s); at most %lld (f64) "
                        "are wanted",
                        name, (long long)*count, ek_dtype_name(ek_tensor_dtype(found)),
                        (long long)room);
    return ek_to_data(found, numbers, (size_t)*count * sizeof(double));
}

static int load_records(const ek_archive *archive, run_records *records)
{
    int64_t count = 0;
    int rc = load_numbers(archive, "epoch_so_far", (double *)&records->now, SUMS_NUMBERS, &count);

    count = 0;
    if (rc == 0 && ek_archive_has(archive, "epochs"))
        rc = load_numbers(archive, "epochs", (double *)records->epochs,
                          records->room * RECORD_NUMBERS, &count);
    records->count = count / RECORD_NUMBERS;
    return rc;
}

static int check_step(const train_run *run)
{
    if (run->step < 0 || run->step / run->epoch_steps != run->records.count)
        return ek_error(EK_E_FORMAT,
                        "%s: step %lld of %lld an epoch and %lld epochs don't belong together",
                        run->settings.resume, (long long)run->step, (long long)run->epoch_steps,
                        (long long)run->records.count);
    if (run->step > run->last_step)
        return ek_error(EK_E_INVALID, "%s is at step %lld; --steps %lld asks for fewer",
                        run->settings.resume, (long long)run->step, (long long)run->last_step);
    return 0;
}

int checkpoint_load(const ek_archive *archive, train_run *run)
{
    train_job *job = &run->job;
    ek_scope scope = ek_scope_begin();
    int rc = ek_archive_get_int(archive, "step", &run->step);

    if (rc == 0)
        rc = load_records(archive, &run->records);
    if (rc == 0)
        rc = check_step(run);
    if (rc == 0)
        rc = ek_archive_load_module(archive, "model", job->network);
    if (rc == 0)
        rc = ek_archive_load_optimizer(archive, "optimizer", job->optimizer, job->network);
    if (rc == 0 && job->schedule)
        rc = ek_archive_load_schedule(archive, "schedule", job->schedule);
    if (rc == 0)
        rc = ek_archive_load_random(archive, "random");
    if (rc == 0)
        rc = ek_loader_load_state(run->training, ek_archive_get(archive, "loader"));
    ek_scope_end(&scope);
    return rc;
}

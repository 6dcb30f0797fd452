#include "gan/checkpoint.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- what decides the numbers ---- */

enum { KEYS = 12 };

typedef struct run_description {
    struct {
        const char *key; /* as on the command line */
        char text[32];
    } entries[KEYS];
    int count;
} run_description;

static void add_text(run_description *own, const char *key, const char *format, ...)
    EK_PRINTF(3, 4);
static void add_text(run_description *own, const char *key, const char *format, ...)
{
    char *text = own->entries[own->count].text;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(own->entries[0].text), format, arguments);
    va_end(arguments);
    own->entries[own->count++].key = key;
}

/* "format" and "step" first. */
static void describe(run_description *own, const run_settings *settings, int64_t step)
{
    *own = (run_description){.count = 0};
    add_text(own, "format", "evenkeel gan 1");
    add_text(own, "step", "%" PRId64, step);
    add_text(own, "seed", "%" PRId64, settings->seed);
    add_text(own, "dtype", "%s", ek_dtype_name(settings->dtype));
    add_text(own, "width", "%" PRId64, settings->width);
    add_text(own, "critic-norm", "%s", norm_names[settings->norm]);
    add_text(own, "penalty", "%s", penalty_names[settings->penalty]);
    add_text(own, "weight", "%.17g", settings->weight);
    add_text(own, "loss", "%s", loss_names[settings->loss]);
    add_text(own, "batch", "%" PRId64, settings->batch);
    add_text(own, "critic-steps", "%" PRId64, settings->critic_steps);
    add_text(own, "lr", "%.17g", settings->lr);
}

static int put_description(ek_archive *archive, const run_settings *settings, int64_t step)
{
    run_description own;
    int rc = 0;

    describe(&own, settings, step);
    for (int i = 0; i < own.count && rc == 0; i++)
        rc = ek_archive_put_text(archive, own.entries[i].key, own.entries[i].text);
    return rc;
}

static int compare(const char *path, const ek_archive *archive, const run_settings *settings,
                   int64_t *step)
{
    run_description own;

    describe(&own, settings, 0);
    for (int i = 0; i < own.count; i++) {
        const char *key = own.entries[i].key, *value = own.entries[i].text;
        const char *found = ek_archive_text(archive, key);
        if (!found)
            return ek_error(EK_E_FORMAT,
                            "%s: no \"%s\" in it; a checkpoint of this program is needed", path,
                            key);
        if (strcmp(key, "step") == 0)
            *step = strtoll(found, NULL, 10);
        else if (strcmp(found, value) != 0)
            return ek_error(EK_E_INVALID,
                            "%s was made with --%s %s, not %s; it goes on with that only", path,
                            key, found, value);
    }
    if (*step < 0 || *step > settings->steps)
        return ek_error(EK_E_INVALID, "%s is at step %lld; --steps %lld asks for fewer", path,
                        (long long)*step, (long long)settings->steps);
    return 0;
}

/* ---- records ---- */

static int put_series(ek_archive *archive, const run_records *records, record_series series)
{
    char name[64];

    snprintf(name, sizeof(name), "records.%s", series_names[series]);
    ek_tensor *values =
        ek_from_data(records->values[series], EK_SHAPE(records->counts[series]), EK_F64);
    return values ? ek_archive_put(archive, name, EK_VALUE(values)) : ek_error_status();
}

/* `wanted` numbers. */
static int load_series(const char *path, const ek_archive *archive, run_records *records,
                       record_series series, int64_t wanted)
{
    char name[64];

    snprintf(name, sizeof(name), "records.%s", series_names[series]);
    ek_tensor *values = ek_value_tensor(ek_archive_get(archive, name));
    if (!values)
        return ek_error_status();
    int64_t count = ek_tensor_count(values);
    if (count != wanted || count > records->room[series] || ek_tensor_dtype(values) != EK_F64)
        return ek_error(EK_E_FORMAT, "%s: %s has %lld numbers (%s); %lld of f64 are wanted", path,
                        name, (long long)count, ek_dtype_name(ek_tensor_dtype(values)),
                        (long long)wanted);
    records->counts[series] = count;
    return ek_to_data(values, records->values[series], (size_t)count * sizeof(double));
}

/* ---- saving ---- */

static int put_all(ek_archive *archive, gan_job *job, const run_records *records, int64_t step)
{
    int rc = put_description(archive, &job->settings, step);

    if (rc == 0)
        rc = ek_archive_put_module(archive, "generator", job->generator);
    if (rc == 0)
        rc = ek_archive_put_optimizer(archive, "generator_optimizer", job->generator_optimizer,
                                      job->generator);
    if (rc == 0)
        rc = ek_archive_put_module(archive, "critic", job->critic);
    if (rc == 0)
        rc = ek_archive_put_optimizer(archive, "critic_optimizer", job->critic_optimizer,
                                      job->critic);
    if (rc == 0)
        rc = ek_archive_put_generator(archive, "random", job->random);
    for (int s = 0; s < SERIES && rc == 0; s++)
        rc = put_series(archive, records, (record_series)s);
    if (rc == 0 && job->settings.automatic)
        rc = ek_archive_put_plan(archive, "generator_plan", job->generator_model);
    if (rc == 0 && job->settings.automatic)
        rc = ek_archive_put_plan(archive, "critic_plan", job->critic_model);
    return rc;
}

int checkpoint_save(const char *path, gan_job *job, const run_records *records, int64_t step)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *archive = ek_archive_new();
    int rc = archive ? put_all(archive, job, records, step) : ek_error_status();

    if (rc == 0)
        rc = ek_archive_save(archive, path);
    ek_archive_free(archive);
    ek_scope_end(&scope);
    return rc;
}

/* ---- loading ---- */

char *checkpoint_plan(const char *path, const char *which)
{
    ek_archive *archive = ek_archive_open(path);
    const char *found = archive ? ek_archive_text(archive, which) : NULL;
    char *plan = found ? strdup(found) : NULL;

    ek_archive_free(archive);
    return plan;
}

static int load_all(const char *path, const ek_archive *archive, gan_job *job, run_records *records,
                    int64_t *step)
{
    int rc = compare(path, archive, &job->settings, step);

    if (rc == 0)
        rc = ek_archive_load_module(archive, "generator", job->generator);
    if (rc == 0)
        rc = ek_archive_load_optimizer(archive, "generator_optimizer", job->generator_optimizer,
                                       job->generator);
    if (rc == 0)
        rc = ek_archive_load_module(archive, "critic", job->critic);
    if (rc == 0)
        rc = ek_archive_load_optimizer(archive, "critic_optimizer", job->critic_optimizer,
                                       job->critic);
    if (rc == 0)
        rc = ek_archive_load_generator(archive, "random", job->random);
    for (int s = 0; s < SERIES && rc == 0; s++)
        rc = load_series(path, archive, records, (record_series)s,
                         s < CRITIC_SERIES ? *step * job->settings.critic_steps : *step);
    return rc;
}

int checkpoint_load(const char *path, gan_job *job, run_records *records, int64_t *step)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *archive = ek_archive_open(path);
    int rc = archive ? load_all(path, archive, job, records, step) : ek_error_status();

    ek_archive_free(archive);
    ek_scope_end(&scope);
    return rc;
}

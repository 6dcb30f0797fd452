/* checkpoint.c: writes checkpoints of a run, and reads them. */
#include <inttypes.h>
#include <string.h>

#include "run.h"

/* ---- parts ---- */

static run_part *run_part_add(run *r, const char *name)
{
    static run_part none;
    if (r->part_count == RUN_PARTS) {
        ek_error(EK_E_STATE, "\"%s\": a checkpoint has at most %d parts", name, RUN_PARTS);
        return &none;
    }
    run_part *part = &r->parts[r->part_count++];
    part->name = name;
    return part;
}

void run_keep(run *r, const char *name, ek_training_state state)
{
    run_part_add(r, name)->state = state;
}

void run_keep_plan(run *r, const char *name, ek_module *parallel)
{
    run_part_add(r, name)->planned = parallel;
}

void run_keep_numbers(run *r, const char *name, double *numbers, int count)
{
    run_part *part = run_part_add(r, name);
    part->numbers = numbers;
    part->count = count;
}

void run_keep_job(run *r, const train_job *job)
{
    run_keep(r, "",
             (ek_training_state){.model = job->network,
                                 .optimizer = job->optimizer,
                                 .schedule = job->schedule,
                                 .loader = job->loader,
                                 .random = true});
    if (job->mode == MODE_AUTO)
        run_keep_plan(r, "plan", job->parallel);
}

/* The digest is FNV-1a of 64 bits. */
void run_keep_digest(run *r, const char *name, const void *data, size_t nbytes, const char *what,
                     const char *path)
{
    const uint8_t *bytes = data;
    uint64_t sum = 0xcbf29ce484222325u;
    run_part *part = run_part_add(r, name);
    for (size_t i = 0; i < nbytes; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    snprintf(part->digest, sizeof part->digest, "%016" PRIx64 " of %zu bytes", sum, nbytes);
    part->what = what;
    part->path = path;
}

static void run_put_part(const run_part *part, ek_archive *archive)
{
    if (part->planned)
        ek_archive_put_plan(archive, part->name, part->planned);
    else if (part->digest[0])
        ek_archive_put_text(archive, part->name, part->digest);
    else if (part->numbers)
        ek_archive_put(archive, part->name,
                       EK_VALUE(ek_from_data(part->numbers, EK_SHAPE(part->count), EK_F64)));
    else
        ek_archive_put_training(archive, part->name, part->state);
}

/* Returns the numbers of that name, f64 on cpu. */
static ek_tensor *run_get_numbers(const run *r, const char *name)
{
    return ek_to_dtype(ek_value_tensor(ek_archive_get(r->from, name)), EK_F64);
}

static void run_load_part(const run *r, const run_part *part)
{
    const char *found = part->digest[0] ? ek_archive_get_text(r->from, part->name) : NULL;
    if (part->planned)
        return; /* job_saved_plan has read the plan before the wrapper was made */
    if (part->numbers)
        ek_to_data(run_get_numbers(r, part->name), part->numbers,
                   (size_t)part->count * sizeof *part->numbers);
    else if (!part->digest[0])
        ek_archive_load_training(r->from, part->name, part->state);
    else if (!found || strcmp(found, part->digest) != 0)
        ek_error(EK_E_INVALID,
                 "%s was made with another %s than that of --data %s; it goes on with that only",
                 r->resume, part->what, part->path);
}

/* Writes "records.<name>". */
static char *run_series_key(const series *numbers, char key[64])
{
    snprintf(key, 64, "records.%s", numbers->name);
    return key;
}

static void run_put_series(const series *numbers, ek_archive *archive)
{
    const double none = 0;
    char key[64];
    ek_archive_put(archive, run_series_key(numbers, key),
                   EK_VALUE(ek_from_data(numbers->count > 0 ? numbers->values : &none,
                                         EK_SHAPE(numbers->count), EK_F64)));
}

static void run_load_series(const run *r, series *numbers)
{
    char key[64];
    ek_tensor *stored = run_get_numbers(r, run_series_key(numbers, key));
    const int64_t count = stored ? ek_tensor_count(stored) : 0;
    numbers->count = 0;
    while (numbers->count < count && series_add(numbers, 0) == 0)
        ;
    if (count > 0 && numbers->count == count)
        ek_to_data(stored, numbers->values, (size_t)count * sizeof *numbers->values);
}

/* ---- the file ---- */

/* Writes "settings.<option>". */
static char *run_setting_key(const arg_spec *arg, char key[64])
{
    snprintf(key, 64, "settings.%s", arg->name);
    return key;
}

int run_save(run *r, const char *path)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *archive = ek_archive_new();
    const char *names = r->deciding;
    char key[64], text[64];
    ek_archive_put_text(archive, "format", r->format);
    for (const arg_spec *arg; (arg = args_next(r->args, &names));)
        ek_archive_put_text(archive, run_setting_key(arg, key), arg_value_text(arg, text));
    ek_archive_put(archive, "step", ek_value_of_int(r->step));
    for (int i = 0; i < r->part_count; i++)
        run_put_part(&r->parts[i], archive);
    for (int i = 0; i < r->series_count; i++)
        run_put_series(&r->series[i], archive);
    int rc = ek_error_status();
    if (rc == 0)
        rc = world_size() == 1 ? ek_archive_save(archive, path)
                               : ek_dist_archive_save(archive, path, 0);
    ek_archive_free(archive);
    ek_scope_end(&scope);
    return rc;
}

int run_load(run *r)
{
    ek_scope scope = ek_scope_begin();
    int rc = ek_archive_get_int(r->from, "step", &r->step);
    if (rc == 0 && (r->step < 0 || r->step > r->last))
        rc = ek_error(EK_E_INVALID,
                      "%s is at step %lld; a run that ends at step %lld asks for fewer", r->resume,
                      (long long)r->step, (long long)r->last);
    for (int i = 0; i < r->part_count && ek_error_status() == 0; i++)
        run_load_part(r, &r->parts[i]);
    for (int i = 0; i < r->series_count && ek_error_status() == 0; i++)
        run_load_series(r, &r->series[i]);
    ek_scope_end(&scope);
    return ek_error_status();
}

/* Fails with EK_E_FORMAT for a file of another program, with EK_E_INVALID for other settings. */
int run_open(run *r)
{
    const char *path = r->resume, *names = r->deciding;
    r->from = world_size() == 1 ? ek_archive_open(path) : ek_dist_archive_open(path, 0, NULL);
    if (!r->from)
        return ek_error_status();
    const char *found = ek_archive_get_text(r->from, "format");
    if (!found || strcmp(found, r->format) != 0)
        return ek_error(EK_E_FORMAT,
                        "%s: its format is \"%s\"; a checkpoint of this program (%s) is needed",
                        path, found ? found : "", r->format);
    for (const arg_spec *arg; (arg = args_next(r->args, &names));) {
        char key[64], text[64];
        found = ek_archive_get_text(r->from, run_setting_key(arg, key));
        if (!found)
            return ek_error(EK_E_FORMAT,
                            "%s: no \"%s\" in it; a checkpoint of this program is needed", path,
                            key);
        if (strcmp(found, arg_value_text(arg, text)) != 0)
            return ek_error(EK_E_INVALID,
                            "%s was made with --%s %s, not %s; it goes on with that only", path,
                            arg->name, found, text);
    }
    return 0;
}

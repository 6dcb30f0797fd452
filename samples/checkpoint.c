/* checkpoint.c: what a run keeps, and how one goes on from it. */
#include <inttypes.h>
#include <string.h>

#include "run.h"

/* ---- parts ---- */

void checkpoint_job(const checkpoint *file, const train_job *job)
{
    checkpoint_part(file, module, "model", job->network);
    checkpoint_part(file, optimizer, "optimizer", job->optimizer, job->network);
    if (job->schedule)
        checkpoint_part(file, schedule, "schedule", job->schedule);
    if (job->mode == MODE_AUTO && !file->path) /* read before the model is made */
        ek_archive_put_plan(file->archive, "plan", job->parallel);
}

void checkpoint_loader(const checkpoint *file, const char *name, ek_loader *loader)
{
    if (file->path)
        ek_loader_load_state(loader, ek_archive_get(file->archive, name));
    else
        ek_archive_put(file->archive, name, ek_loader_state(loader));
}

/* f64 on cpu. */
static ek_tensor *checkpoint_read(const checkpoint *file, const char *name)
{
    return ek_to_dtype(ek_value_tensor(ek_archive_get(file->archive, name)), EK_F64);
}

void checkpoint_numbers(const checkpoint *file, const char *name, double *values, ek_shape shape)
{
    if (file->path)
        ek_to_data(checkpoint_read(file, name), values,
                   (size_t)ek_shape_count(&shape) * sizeof *values);
    else
        ek_archive_put(file->archive, name, EK_VALUE(ek_from_data(values, shape, EK_F64)));
}

void checkpoint_series(const checkpoint *file, const char *name, series *numbers)
{
    double none = 0;
    if (file->path) {
        ek_tensor *stored = checkpoint_read(file, name);
        int64_t count = stored ? ek_tensor_count(stored) : 0;
        numbers->count = 0;
        while (numbers->count < count && series_add(numbers, 0) == 0)
            ;
        if (numbers->count < count)
            return;
    }
    checkpoint_numbers(file, name, numbers->count ? numbers->values : &none,
                       EK_SHAPE(numbers->count));
}

void checkpoint_records(const checkpoint *file, series *list, int count)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "records.%s", list[i].name);
        checkpoint_series(file, name, &list[i]);
    }
}

/* FNV-1a, 64 bits: other data have another sum but for chance. */
void checkpoint_digest(const checkpoint *file, const char *name, const void *data, size_t nbytes,
                       const char *what, const char *path)
{
    const uint8_t *bytes = data;
    uint64_t sum = 0xcbf29ce484222325u;
    char text[64];
    for (size_t i = 0; i < nbytes; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    snprintf(text, sizeof text, "%016" PRIx64 " of %zu bytes", sum, nbytes);
    if (!file->path) {
        ek_archive_put_text(file->archive, name, text);
        return;
    }
    const char *found = ek_archive_get_text(file->archive, name);
    if (!found || strcmp(found, text) != 0)
        ek_error(EK_E_INVALID,
                 "%s was made with another %s than that of --data %s; it goes on "
                 "with that only",
                 file->path, what, path);
}

/* ---- the file ---- */

/* Lists what all programs have in common, and the program's own. */
static void run_list(const run_kind *kind, run_state *run, const checkpoint *file)
{
    int rc = 0;
    if (!file->path)
        ek_archive_put(file->archive, "step", ek_value_of_int(run->step));
    else
        rc = ek_archive_get_int(file->archive, "step", &run->step);
    if (rc == 0 && (run->step < 0 || run->step > run->last))
        rc = ek_error(EK_E_INVALID,
                      "%s is at step %lld; a run that ends at step %lld asks for fewer", file->path,
                      (long long)run->step, (long long)run->last);
    if (rc == 0)
        kind->list(run, file);
}

int run_save(const run_kind *kind, run_state *run, const char *path)
{
    ek_scope scope = ek_scope_begin();
    checkpoint file = {ek_archive_new(), NULL};
    const char *names = kind->deciding;
    ek_archive_put_text(file.archive, "format", kind->format);
    for (const arg_spec *arg; (arg = args_next(kind->args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "settings.%s", arg->name);
        ek_archive_put_text(file.archive, key, arg_value_text(arg, text));
    }
    run_list(kind, run, &file);
    int rc = ek_error_status();
    if (rc == 0)
        rc = world_size() == 1 ? ek_archive_save(file.archive, path)
                               : ek_dist_archive_save(file.archive, path, 0, NULL);
    ek_archive_free(file.archive);
    ek_scope_end(&scope);
    return rc;
}

/* EK_E_FORMAT for a file of another program; EK_E_INVALID for one of a run with other settings. */
static int run_check_file(const run_kind *kind, const ek_archive *archive)
{
    const char *path = kind->files->resume, *names = kind->deciding;
    const char *found = ek_archive_get_text(archive, "format");
    if (!found || strcmp(found, kind->format) != 0)
        return ek_error(EK_E_FORMAT,
                        "%s: its format is \"%s\"; a checkpoint of this program (%s) is needed",
                        path, found ? found : "", kind->format);
    for (const arg_spec *arg; (arg = args_next(kind->args, &names));) {
        char key[64], text[64];
        snprintf(key, sizeof key, "settings.%s", arg->name);
        found = ek_archive_get_text(archive, key);
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

int run_open(const run_kind *kind, run_state *run)
{
    memset(run, 0, kind->size);
    const char *path = kind->files->resume;
    ek_scope scope = ek_scope_begin();
    ek_archive *from = path ? ek_archive_open(path) : NULL;
    if (from)
        run_check_file(kind, from);
    int rc = ek_error_status();
    if (rc == 0)
        rc = kind->open(run, from);
    if (rc == 0 && from)
        run_list(kind, run, &(checkpoint){from, path});
    ek_archive_free(from);
    ek_scope_end(&scope);
    return rc < 0 ? rc : ek_error_status();
}

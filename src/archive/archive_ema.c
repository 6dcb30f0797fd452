/* archive_ema.c: averages of parameters, by their paths. */
#include <stdlib.h>

#include "archive/archive.h"
#include "core/error.h"
#include "core/tensor.h"
#include "optim/ema.h"

int ek_archive_put_ema(ek_archive *archive, const char *name, ek_ema *ema)
{
    const ek_archive_put_call put = {archive, "archive_put_ema", name};
    const char *path;
    ek_tensor *average;
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the ema", ema));
    ek_archive_mark mark = ek_archive_begin(archive);
    int64_t updates = ek_ema_updates(ema);
    int status =
        ek_archive_add_data(&put, "updates", &updates, ek_scalar_shape(), EK_I64, ek_cpu());
    for (int i = 0; status == 0 && ek_ema_entry(ema, i, &path, &average); i++)
        status = ek_archive_add(&put, path, average, ek_tensor_device(average));
    ek_archive_set_alike(archive, mark);
    return ek_archive_end(archive, mark, status);
}

/* Reads the averages of all paths, in the scope. */
static int ema_read(const ek_archive_get_call *get, const ek_ema *ema, ek_tensor **averages)
{
    char texts[2][200];
    const char *path;
    ek_tensor *average;
    for (int i = 0; ek_ema_entry(ema, i, &path, &average); i++) {
        char *full = ek_archive_join(get->name, path);
        if (!full)
            return EK_E_NO_MEMORY;
        averages[i] = ek_safetensors_read(get->archive->file, full);
        free(full);
        if (!averages[i])
            return ek_error_pending();
        if (!ek_same_shape(averages[i], average))
            return EK_FAIL_IN(EK_E_SHAPE, get, "\"%.100s.%s\" is %s, the average %s", get->name,
                              path, ek_tensor_text(averages[i], texts[0]),
                              ek_tensor_text(average, texts[1]));
    }
    return 0;
}

int ek_archive_load_ema(const ek_archive *archive, const char *name, ek_ema *ema)
{
    ek_archive_get_call get = {archive, "archive_load_ema", name, NULL};
    int64_t updates = 0;
    int count = 0;
    const char *path;
    ek_tensor *average;
    EK_TRY(ek_archive_check_get(&get));
    EK_TRY(ek_check_handle(get.what, "the ema", ema));
    EK_TRY(ek_archive_view_int(&get, "updates", &updates));
    if (updates < 0 || updates == INT64_MAX)
        return EK_FAIL_IN(EK_E_FORMAT, &get, "\"%.200s\" is of an ema after %lld updates", name,
                          (long long)updates);
    while (ek_ema_entry(ema, count, &path, &average))
        count++;
    ek_tensor **averages = ek_calloc((size_t)count + 1, sizeof(ek_tensor *));
    if (!averages)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    int status = ema_read(&get, ema, averages);
    if (status == 0)
        status = ek_ema_set(ema, updates, averages);
    ek_scope_end(&scope);
    free(averages);
    return status;
}

/* archive_random.c: writes and loads random generators, in the form of ek_generator_get_state. */
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/error.h"
#include "core/generator.h"
#include "core/python_random.h"

/* ---- writing ---- */

static int random_put(const ek_archive_put_call *put, const char *path, ek_generator *generator)
{
    unsigned char state[EK_GENERATOR_STATE_BYTES];
    EK_TRY(ek_generator_get_state(generator, state, sizeof state));
    return ek_archive_add_data(put, path, state, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8,
                               ek_cpu());
}

/* Adds the devices' generators that are seeded. The other ones are seeded from the default
 * generator when they draw. */
static int random_put_devices(const ek_archive_put_call *put)
{
    for (int kind = EK_HOST; kind <= EK_CUDA; kind++)
        for (int index = 0; index < EK_MAX_DEVICES; index++) {
            ek_device device = {(ek_device_kind)kind, index};
            ek_generator *own = ek_device_generator(device);
            char text[16];
            if (own)
                EK_TRY(random_put(put, ek_device_name(device, text), own));
        }
    return 0;
}

int ek_archive_put_random(ek_archive *archive, const char *name)
{
    const ek_archive_put_call put = {archive, "archive_put_random", name};
    EK_TRY(ek_archive_check_put(&put));
    char *devices = ek_archive_join(name, "devices");
    if (!devices)
        return ek_archive_noted(archive, EK_E_NO_MEMORY);
    ek_archive_mark mark = ek_archive_begin(archive);
    int status = random_put(&put, "default", NULL);
    if (status == 0)
        status = random_put(&put, "python", ek_python_generator());
    if (status == 0)
        status = random_put(&put, "numpy", ek_numpy_generator());
    if (status == 0)
        status = random_put_devices(&(ek_archive_put_call){archive, put.what, devices});
    free(devices);
    return ek_archive_end(archive, mark, status);
}

int ek_archive_put_generator(ek_archive *archive, const char *name, ek_generator *generator)
{
    const ek_archive_put_call put = {archive, "archive_put_generator", name};
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the generator", generator));
    return ek_archive_noted(archive, random_put(&put, "", generator));
}

/* ---- loading ---- */

static int random_read(const ek_archive_get_call *get, const char *path, ek_generator *generator)
{
    const int before = ek_error_status();
    const char *file = get->archive->path, *dot = *get->name && *path ? "." : "";
    unsigned char state[EK_GENERATOR_STATE_BYTES];
    ek_array_view view = {0};
    EK_TRY(ek_archive_view(get, path, &view));
    if (view.dtype != EK_U8 || view.shape.ndim != 1 || view.nbytes != EK_GENERATOR_STATE_BYTES)
        return EK_FAIL_IN(EK_E_FORMAT, get,
                          "\"%.100s%s%s\" is no generator's state, which is %d bytes (u8)",
                          get->name, dot, path, EK_GENERATOR_STATE_BYTES);
    ek_array_copy(&view, state); /* a tensor of a .pth file can have strides */
    int status = ek_generator_set_state(generator, state, sizeof state);
    if (status < 0)
        ek_error_prefix(before, "%s: %.200s: \"%.100s%s%s\"", get->what, file, get->name, dot,
                        path);
    return status;
}

/* All generators of the file. All are read before any generator is set. */
typedef struct generators {
    ek_generator shared, python, numpy;
    int count;
    ek_device devices[2 * EK_MAX_DEVICES];
    ek_generator own[2 * EK_MAX_DEVICES];
} generators;

static int random_read_device(const ek_archive_get_call *get, const char *text, generators *all)
{
    char again[16];
    ek_device device;
    if (strlen(text) >= sizeof again || ek_device_parse(text, &device) < 0 ||
        device.kind == EK_CPU || strcmp(ek_device_name(device, again), text) != 0) {
        ek_error_clear();
        return EK_FAIL_IN(EK_E_FORMAT, get, "\"%.100s.%.100s\" is of no device", get->name, text);
    }
    EK_TRY(random_read(get, text, &all->own[all->count]));
    if (device.index < ek_device_count(device.kind))
        all->devices[all->count++] = device;
    return 0;
}

static int random_read_all(const ek_archive_get_call *get, generators *all)
{
    EK_TRY(random_read(get, "default", &all->shared));
    EK_TRY(random_read(get, "python", &all->python));
    EK_TRY(random_read(get, "numpy", &all->numpy));
    char *name = ek_archive_join(get->name, "devices");
    if (!name)
        return EK_E_NO_MEMORY;
    const ek_archive_get_call devices = {get->archive, get->what, name, get->path};
    int status = 0;
    ek_archive_range range = ek_archive_below(get->archive, name);
    for (int i = range.begin; i < range.end && status == 0; i++) {
        const char *full = ek_safetensors_sorted(get->archive->file, i);
        status = random_read_device(&devices, full + strlen(name) + 1, all);
    }
    free(name);
    return status;
}

int ek_archive_load_random(const ek_archive *archive, const char *name)
{
    ek_archive_get_call get = {archive, "archive_load_random", name, NULL};
    EK_TRY(ek_archive_check_get(&get));
    generators *all = ek_calloc(1, sizeof *all);
    if (!all)
        return EK_E_NO_MEMORY;
    int status = random_read_all(&get, all);
    if (status == 0) {
        ek_generators_load(&all->shared, all->devices, all->own, all->count);
        *ek_python_generator() = all->python;
        *ek_numpy_generator() = all->numpy;
    }
    free(all);
    return status;
}

int ek_archive_load_generator(const ek_archive *archive, const char *name, ek_generator *generator)
{
    ek_archive_get_call get = {archive, "archive_load_generator", name, NULL};
    EK_TRY(ek_archive_check_get(&get));
    EK_TRY(ek_check_handle(get.what, "the generator", generator));
    return random_read(&get, "", generator);
}

/* archive_random.c: generators of random numbers, in the form of ek_generator_get_state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/generator.h"
#include "core/python_random.h"
#include "core/tensor.h"

/* ---- out ---- */

static int put_state(ek_archive *archive, const char *what, const char *name, const char *path,
                     ek_generator *generator)
{
    unsigned char state[EK_GENERATOR_STATE_BYTES];
    EK_TRY(ek_generator_get_state(generator, state, sizeof state));
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = ek_from_data(state, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8);
    int status = ek_archive_add(archive, what, name, path, tensor, ek_cpu());
    ek_scope_end(&scope);
    return status;
}

/* Devices whose generator would be seeded from the default one at its next draw need no state. */
static int put_devices(ek_archive *archive, const char *what, const char *name)
{
    for (int kind = EK_HOST; kind <= EK_CUDA; kind++)
        for (int index = 0; index < EK_MAX_DEVICES; index++) {
            ek_device device = {(ek_device_kind)kind, index};
            ek_generator *own = ek_device_generator(device);
            char text[16], path[32];
            snprintf(path, sizeof path, "devices.%s", ek_device_name(device, text));
            if (own)
                EK_TRY(put_state(archive, what, name, path, own));
        }
    return 0;
}

int ek_archive_put_random(ek_archive *archive, const char *name)
{
    static const char what[] = "archive_put_random";
    EK_TRY(ek_archive_check_written(archive, what, name));
    ek_archive_mark mark = ek_archive_begin(archive);
    int status = put_state(archive, what, name, "default", NULL);
    if (status == 0)
        status = put_state(archive, what, name, "python", ek_python_generator());
    if (status == 0)
        status = put_state(archive, what, name, "numpy", ek_numpy_generator());
    if (status == 0)
        status = put_devices(archive, what, name);
    return ek_archive_end(archive, mark, status);
}

int ek_archive_put_generator(ek_archive *archive, const char *name, ek_generator *generator)
{
    static const char what[] = "archive_put_generator";
    EK_TRY(ek_archive_check_written(archive, what, name));
    EK_TRY(ek_archive_check_given(generator, what, "generator"));
    return put_state(archive, what, name, "", generator);
}

/* ---- in ---- */

static int read_state(const ek_archive *archive, const char *what, const char *name,
                      const char *path, ek_generator *generator)
{
    const int before = ek_error_status();
    ek_array_view view;
    EK_TRY(ek_archive_view(archive, what, name, path, &view));
    if (view.dtype != EK_U8 || view.shape.ndim != 1 || view.nbytes != EK_GENERATOR_STATE_BYTES)
        return EK_FAIL(EK_E_FORMAT,
                       "%s: %s: \"%.100s%s%s\" is no generator's state, which is %d bytes (u8)",
                       what, archive->path, name, *name && *path ? "." : "", path,
                       EK_GENERATOR_STATE_BYTES);
    int status = ek_generator_set_state(generator, view.elements, view.nbytes);
    if (status < 0)
        ek_error_prefix(before, "%s: %.200s: \"%.100s%s%s\"", what, archive->path, name,
                        *name && *path ? "." : "", path);
    return status;
}

/* All generators, before any of them is used. */
typedef struct generators {
    ek_generator shared, python, numpy;
    int count;
    ek_device devices[2 * EK_MAX_DEVICES];
    ek_generator own[2 * EK_MAX_DEVICES];
} generators;

static int read_device(const ek_archive *archive, const char *name, const char *text,
                       generators *all)
{
    static const char what[] = "archive_load_random";
    char path[32], again[16];
    ek_device device;
    if (strlen(text) >= sizeof again || ek_device_parse(text, &device) < 0 ||
        device.kind == EK_CPU || strcmp(ek_device_name(device, again), text) != 0) {
        ek_error_clear();
        return EK_FAIL(EK_E_FORMAT, "%s: %s: \"%.100s.devices.%.100s\" is of no device", what,
                       archive->path, name, text);
    }
    snprintf(path, sizeof path, "devices.%s", text);
    EK_TRY(read_state(archive, what, name, path, &all->own[all->count]));
    if (device.index < ek_device_count(device.kind))
        all->devices[all->count++] = device;
    return 0;
}

static int read_all(const ek_archive *archive, const char *name, generators *all)
{
    static const char what[] = "archive_load_random";
    EK_TRY(read_state(archive, what, name, "default", &all->shared));
    EK_TRY(read_state(archive, what, name, "python", &all->python));
    EK_TRY(read_state(archive, what, name, "numpy", &all->numpy));
    char *below = ek_archive_join(name, "devices");
    if (!below)
        return EK_E_NO_MEMORY;
    int status = 0;
    ek_archive_range range = ek_archive_below(archive, below);
    for (int i = range.begin; i < range.end && status == 0; i++) {
        const char *full = ek_safetensors_sorted(archive->file, i);
        status = read_device(archive, name, full + strlen(below) + 1, all);
    }
    free(below);
    return status;
}

int ek_archive_load_random(const ek_archive *archive, const char *name)
{
    EK_TRY(ek_archive_check_read(archive, "archive_load_random", name));
    generators *all = ek_calloc(1, sizeof *all);
    if (!all)
        return EK_E_NO_MEMORY;
    int status = read_all(archive, name, all);
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
    EK_TRY(ek_archive_check_read(archive, "archive_load_generator", name));
    EK_TRY(ek_archive_check_given(generator, "archive_load_generator", "generator"));
    return read_state(archive, "archive_load_generator", name, "", generator);
}

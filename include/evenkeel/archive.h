/* archive.h: all that a run needs to go on as if it had not been stopped, in one file: a
 * checkpoint.
 *
 *     ek_archive *a = ek_archive_new();
 *     ek_archive_put_module(a, "model", net);
 *     ek_archive_put_optimizer(a, "optimizer", optimizer, net);
 *     ek_archive_put_random(a, "random");
 *     ek_archive_put(a, "loader", ek_loader_state(loader));
 *     ek_archive_put(a, "step", ek_value_of_int(step));
 *     int rc = ek_archive_save(a, "run.safetensors");
 *     ek_archive_free(a);
 *
 *     ek_archive *a = ek_archive_open("run.safetensors");
 *     ek_archive_load_module(a, "model", net);
 *     ...
 *
 * The file is a safetensors file (evenkeel/data.h), which Python's `safetensors` reads too: one
 * tensor per parameter, buffer, state and number, under dotted names ("model.0.weight",
 * "optimizer.0.weight.exp_avg"), texts as metadata. Tensors of all devices, divided ones
 * (EK_SHARD_OPTIMIZER) put together, are written as wholes, so that a file can be loaded into
 * another number of devices, divided or not. Wrappers (data parallel and the like) are seen
 * through: names are the wrapped module's own.
 *
 * Every function returns 0 or a negative status, and does nothing with a pending error if the
 * archive is NULL because making or opening it failed. A load that fails has changed nothing of
 * what it was to load into. */
#ifndef EVENKEEL_ARCHIVE_H
#define EVENKEEL_ARCHIVE_H

#include "evenkeel/module.h"
#include "evenkeel/optim.h"
#include "evenkeel/random.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_archive ek_archive;

EK_API void ek_archive_free(ek_archive *archive); /* NULL is ignored */

/* ---- writing ----
 *
 * A put notes references; elements are read by ek_archive_save, so that no step may come
 * between (modules and optimizers may be freed). "" puts without a prefix. EK_E_INVALID for a name
 * that is taken already, that is a tensor's and has others below it, that has an empty part
 * ("a..b") or more than 128 parts. A put that fails has put nothing. */

EK_API ek_archive *ek_archive_new(void);
/* A tensor, a number (an i64 or f64 tensor of one element and no dimension), or a dictionary or
 * list of such: their elements as "name.key" and "name.0". None puts nothing. (ek_archive_get gives
 * lists back as dictionaries of "0", "1", ..., and numbers as tensors.) */
EK_API int ek_archive_put(ek_archive *archive, const char *name, ek_value value);
/* Texts nest in nothing: "a" and "a.b" may both be there. Names that begin with "evenkeel." are the
 * archive's own. */
EK_API int ek_archive_put_text(ek_archive *archive, const char *name, const char *text);
/* Parameters and buffers by their paths; absent ones (a bias that is off) are left out, and one
 * that stands in several places (tied weights) is written once, under the path that walks give it.
 */
EK_API int ek_archive_put_module(ek_archive *archive, const char *name, ek_module *module);
/* Per parameter of `module` that the optimizer has: "<name>.<path>.steps" and its states; per group
 * "<name>.lr". A parameter of the optimizer that is none of the module's is EK_E_INVALID. */
EK_API int ek_archive_put_optimizer(ek_archive *archive, const char *name, ek_optimizer *optimizer,
                                    ek_module *module);
/* Steps, the rates that it began with ("initial_lr"), and the rates of now ("lr"). */
EK_API int ek_archive_put_schedule(ek_archive *archive, const char *name, ek_schedule *schedule);
/* The default generator, the devices' own, Python's and NumPy's (evenkeel/random.h). No work may
 * run. */
EK_API int ek_archive_put_random(ek_archive *archive, const char *name);
/* One generator of the caller's. */
EK_API int ek_archive_put_generator(ek_archive *archive, const char *name, ek_generator *generator);
/* The plans of a data-parallel wrapper as text, for .plan: read with ek_archive_get_text. Nothing
 * if there are none so far. */
EK_API int ek_archive_put_plan(ek_archive *archive, const char *name, ek_module *data_parallel);

/* Writes all to `path` whole or not at all: who is killed, or loses power, at any moment leaves the
 * file as it was or as it is to be. A symbolic link is replaced, not followed. EK_E_IO with the
 * system's reason. */
EK_API int ek_archive_save(ek_archive *archive, const char *path);

/* ---- reading ---- */

/* Maps the file; tensors are read when they are loaded. Files of others (Python's) do as well.
 * EK_E_IO; EK_E_FORMAT as ek_safetensors_open. */
EK_API ek_archive *ek_archive_open(const char *path);

/* There is a tensor, a text, or something below the name. */
EK_API bool ek_archive_has(const ek_archive *archive, const char *name);
/* All below `name` as a dictionary of tensors on cpu, nested by the dots of their names, or the
 * tensor itself; an error if there is nothing. Keys that are numbers come first and by value,
 * then the others as strcmp orders them. EK_E_FORMAT if files of others have tensors below a
 * tensor's name, or names of more than 128 parts. In the scope. */
EK_API ek_value ek_archive_get(const ek_archive *archive, const char *name);
/* A number that was put as one. EK_E_INVALID if there is none, EK_E_DTYPE and EK_E_SHAPE for
 * other tensors. */
EK_API int ek_archive_get_int(const ek_archive *archive, const char *name, int64_t *value);
EK_API int ek_archive_get_float(const ek_archive *archive, const char *name, double *value);
/* A text, as long as the archive is; NULL without an error if there is none. */
EK_API const char *ek_archive_get_text(const ek_archive *archive, const char *name);

/* From which device to which: as torch.load's map_location. */
typedef struct ek_device_map {
    int count;
    struct {
        ek_device from, to;
    } pairs[EK_MAX_DEVICES];
} ek_device_map;
/* A tensor on the device that it was put on, or where the map sends that (NULL: no map).
 * EK_E_DEVICE if there is no such device here: the sentence names it. Files of others are on
 * cpu. */
EK_API ek_tensor *ek_archive_tensor(const ek_archive *archive, const char *name,
                                    const ek_device_map *map);

typedef struct ek_load_report {
    int loaded, missing,
        unexpected; /* tensors: found in both, in the module only, in the file only */
    char first_missing[256], first_unexpected[256];
} ek_load_report;

typedef struct ek_load_options {
    const char *keywords;
    ek_module *module;
    /* Default on: tensors that only the file, or only the module, has are an error that lists them.
     * Off: those that both have are loaded. Another shape is an error always; dtypes are converted.
     */
    ek_switch strict;
    ek_load_report *report; /* may be NULL */
} ek_load_options;

/* Into parameters and buffers where they are, on their devices; handles, gradients and optimizers
 * stay, and all replicas have the new values at the next forward, those too that go on with buffers
 * of their own. Names in the file with or without "module." at their front (below `name`) do. Tied
 * weights load from any of their paths; if the file has several, those that differ from the
 * first are unexpected. EK_E_INVALID for names, EK_E_SHAPE, EK_E_DTYPE for dtypes of the format
 * that are not read. The report is filled even if names or shapes are an error (0 loaded). */
EK_API int ek_archive_load_module_with(const ek_archive *archive, const char *name,
                                       ek_load_options options);
/* ek_archive_load_module(a, "model", net, .strict = EK_OFF) */
#define ek_archive_load_module(archive, name, ...) \
    ek_archive_load_module_with((archive), (name), \
                                EK_OPTIONS_1(ek_load_options, module, __VA_ARGS__))
/* Rates, step counts and states, for the module's parameters that the optimizer has; all of them
 * have to be there, with as many groups. Other options are those of the optimizer. */
EK_API int ek_archive_load_optimizer(const ek_archive *archive, const char *name,
                                     ek_optimizer *optimizer, ek_module *module);
/* The rates of the optimizer become those of then. */
EK_API int ek_archive_load_schedule(const ek_archive *archive, const char *name,
                                    ek_schedule *schedule);
/* Devices that there are fewer of now are left out; further ones follow the default generator's
 * seed. No work may run. */
EK_API int ek_archive_load_random(const ek_archive *archive, const char *name);
EK_API int ek_archive_load_generator(const ek_archive *archive, const char *name,
                                     ek_generator *generator);

EK_END_DECLARATIONS
#endif

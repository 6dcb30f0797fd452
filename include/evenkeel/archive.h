/** @file
 * archive.h: checkpoints: one file with all that a run needs to go on as if it had not been
 * stopped.
 *
 *     ek_training_state state = {.model = net, .optimizer = optimizer, .loader = loader,
 *                                .random = true};
 *     ek_archive *a = ek_archive_new();
 *     ek_archive_put_training(a, "", state);
 *     ek_archive_put(a, "step", ek_value_of_int(step));
 *     int rc = ek_archive_save(a, "run.safetensors");
 *     ek_archive_free(a);
 *
 *     ek_archive *a = ek_archive_open("run.safetensors");
 *     ek_archive_load_training(a, "", state);
 *     ...
 *
 * The file is a safetensors file (evenkeel/data.h), which Python's `safetensors` reads too. Each
 * parameter, buffer, optimizer state and number is one tensor with a dotted name ("model.0.weight",
 * "optimizer.0.weight.exp_avg"); texts are metadata. Tensors are written whole, sharded ones too
 * (EK_SHARD_OPTIMIZER), so that a file can be loaded with any number of devices, sharded or not.
 * Several ranks use ek_dist_archive_save and ek_dist_archive_open (ddp.h). A name that ends in
 * .pth or .pt makes a file of PyTorch's instead (ek_archive_save).
 * Names skip wrappers such as data parallel: they are those of the wrapped module.
 *
 * Functions return 0 or a negative status. If the archive is NULL because it could not be made or
 * opened, they do nothing and return that error. A load that fails has changed nothing. */
#ifndef EVENKEEL_ARCHIVE_H
#define EVENKEEL_ARCHIVE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/ema.h"
#include "evenkeel/loader.h"
#include "evenkeel/module.h"
#include "evenkeel/optim.h"
#include "evenkeel/random.h"
#include "evenkeel/scaler.h"
#include "evenkeel/value.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_archive ek_archive;

/** The parts from which a training is resumed; NULL parts are left out. Each comment shows the
 * part's name in the archive. */
typedef struct ek_training_state {
    ek_module *model;        /**< "model" */
    ek_optimizer *optimizer; /**< "optimizer", of parameters of the model */
    ek_schedule *schedule;   /**< "schedule" */
    ek_ema *ema;             /**< "ema" */
    ek_grad_scaler *scaler;  /**< "scaler" */
    ek_generator *generator; /**< "generator": a generator that the caller owns */
    ek_loader *loader;       /**< "loader": its position */
    bool random;             /**< "random": all generators of ek_archive_put_random */
} ek_training_state;

EK_API void ek_archive_free(ek_archive *archive); /**< NULL is ignored */
#define ek_archive_free(archive) ek_archive_free(EK_PLACED(archive))

/* ---- writing ----
 *
 * A put keeps references to tensors, and ek_archive_save reads their elements: no training step may
 * run between put and save, but modules and optimizers may be freed. The name "" means no prefix.
 * EK_E_INVALID if a name is taken, if a tensor's name is also a prefix of others, and for a name
 * with an empty part ("a..b") or more than 128 parts. A put that fails has put nothing; while its
 * error is pending, ek_archive_save fails with this error and writes nothing. */

/** Makes an empty archive, owned by the caller; NULL with an error. */
EK_API ek_archive *ek_archive_new(void);
/** Puts a tensor, a number, or a dictionary or list of these. A number becomes an i64 or f64 tensor
 * without dimensions. Elements get the names "name.key" and "name.0". For EK_VALUE_NONE nothing is
 * put. ek_archive_get returns a list as a dictionary with keys "0", "1", ..., and a number as a
 * tensor. */
EK_API int ek_archive_put(ek_archive *archive, const char *name, ek_value value);
/** Puts a text. Texts do not nest: "a" and "a.b" may both exist. Names "evenkeel.*" are reserved.
 */
EK_API int ek_archive_put_text(ek_archive *archive, const char *name, const char *text);
/** Puts parameters and buffers by their paths. An absent parameter (a bias that is off) is left
 * out. A parameter with several paths (tied weights, a shared module) is written under each of
 * them, as in PyTorch's state_dict. To load it, one of them is enough. */
EK_API int ek_archive_put_module(ek_archive *archive, const char *name, ek_module *module);
/** Puts "<name>.<path>.steps" and the states of each parameter of `module` that the optimizer has,
 * "<name>.lr" per group, and options that ek_optimizer_set has changed ("<name>.momentum").
 * EK_E_INVALID if the optimizer has a parameter that the module lacks. */
EK_API int ek_archive_put_optimizer(ek_archive *archive, const char *name, ek_optimizer *optimizer,
                                    ek_module *module);
/** Puts the number of steps, the first learning rates ("initial_lr"), the present ones ("lr"), and
 * the state of schedules that follow a measure or are made of other schedules. */
EK_API int ek_archive_put_schedule(ek_archive *archive, const char *name, ek_schedule *schedule);
/** Puts the averages by their paths, and the number of updates. */
EK_API int ek_archive_put_ema(ek_archive *archive, const char *name, ek_ema *ema);
/** Puts the scale, and the number of updates since the scale changed (scaler.h). */
EK_API int ek_archive_put_grad_scaler(ek_archive *archive, const char *name,
                                      ek_grad_scaler *scaler);
/** Puts all generators: the default one, devices', Python's, NumPy's (random.h). No device may be
 * computing meanwhile. */
EK_API int ek_archive_put_random(ek_archive *archive, const char *name);
/** Puts one generator that the caller owns. */
EK_API int ek_archive_put_generator(ek_archive *archive, const char *name, ek_generator *generator);
/** Puts the plans of a data-parallel wrapper as a text: ek_archive_get_text reads it, and the
 * option .plan takes it. If there are no plans yet, puts nothing. */
EK_API int ek_archive_put_plan(ek_archive *archive, const char *name, ek_module *data_parallel);
/** Puts all parts of a training by the functions above, "<name>.model" and so on. EK_E_INVALID for
 * an optimizer without its model. */
EK_API int ek_archive_put_training(ek_archive *archive, const char *name, ek_training_state state);

/** Writes the file at `path` whole or not at all: a kill or a loss of power leaves the old file or
 * the new one. A symbolic link is replaced, not followed. EK_E_IO with the system's reason.
 *
 * If the path ends in .pth or .pt, the file is one of torch.save, which torch.load reads, in
 * PyTorch 2 with weights_only=True, too. It holds a dictionary. The name that a put was given nests
 * at its dots, and paths of parameters stay whole: ek_archive_put_module(a, "model", net) makes
 * {"model":
 * {"0.weight": ..., "0.bias": ...}}, whose element "model" is a state_dict, and the name "" makes
 * the state_dict itself. Keys of dictionaries that are put stay whole too, if a tensor or a number
 * lies there. Numbers are int and float, texts are str under their whole names, and a tensor that
 * was put twice is one in both places. An optimizer's state has keys such as "0.weight.exp_avg" and
 * is no state_dict of PyTorch's optimizers. Devices are not noted: every tensor is of cpu.
 * ek_archive_open gives all names back. EK_E_INVALID if a text has the name of a dictionary. */
EK_API int ek_archive_save(ek_archive *archive, const char *path);

/* ---- reading ---- */

/** Opens and maps a file; tensors are read when they are loaded. Any safetensors file can be
 * opened, also a file that Python wrote. EK_E_IO and EK_E_FORMAT as in ek_safetensors_open. If
 * another process truncates the file, readers are killed (SIGBUS).
 *
 * A set of safetensors files is opened by its index ("model.safetensors.index.json", Hugging Face's
 * layout), or by the index's path without ".index.json" if there is no file of this name. All its
 * tensors and texts are then in one archive. EK_E_IO names a part that is missing, and the machine
 * that wrote it if the index says so.
 *
 * A file of torch.save (.pth, .pt) can be opened too. Nested entries get dotted names:
 * {"model": {"0.weight": w}, "epoch": 7} has the tensor "model.0.weight" and the number "epoch".
 * Texts are read by ek_archive_get_text. A module that was saved whole has the names of its state
 * dictionary. The file's pickle is read as data: no class is looked up, no function called. None,
 * numbers beyond 64 bits, objects of other classes, and quantized and sparse tensors are left out,
 * with a line in the log. EK_E_FORMAT for files that PyTorch would not write, for
 * TorchScript files, and for compressed or big-endian tensors. Checksums are not verified. Expanded
 * and shared tensors count with all their elements: a tensor that brings the sum of all tensors
 * above 16 times the file's size plus 4 MiB is EK_E_FORMAT when it is used. */
EK_API ek_archive *ek_archive_open(const char *path);

/** True if the archive has a tensor or text `name`, or one whose name begins with "<name>.". */
EK_API bool ek_archive_has(const ek_archive *archive, const char *name);
/** Returns the name of tensor `index`, counted from 0 in the order of strcmp, valid as long as the
 * archive, which must have been opened; NULL without an error if there are no more. The names of
 * texts are listed likewise. */
EK_API const char *ek_archive_name(const ek_archive *archive, int index);
EK_API const char *ek_archive_text_name(const ek_archive *archive, int index);
/** Returns the tensor `name` on cpu, or a dictionary of all tensors below `name`, nested by the
 * dots of their names. In the scope; an error if there is no such tensor. Keys that are numbers
 * come first, by value; the others follow in the order of strcmp. EK_E_FORMAT for a file that has
 * tensors below a tensor's name, or a name of more than 128 parts. */
EK_API ek_value ek_archive_get(const ek_archive *archive, const char *name);
/** Reads the number `name`. EK_E_INVALID if the name is missing; EK_E_DTYPE or EK_E_SHAPE if its
 * tensor is not a single i64 (get_int) or f64 (get_float). */
EK_API int ek_archive_get_int(const ek_archive *archive, const char *name, int64_t *value);
EK_API int ek_archive_get_float(const ek_archive *archive, const char *name, double *value);
/** Returns the text `name`, valid as long as the archive; NULL without an error if it is missing.
 */
EK_API const char *ek_archive_get_text(const ek_archive *archive, const char *name);

/** Pairs of devices, as torch.load's map_location: a tensor saved from `from` is loaded to `to`. */
typedef struct ek_device_map {
    int count;
    struct {
        ek_device from, to;
    } pairs[EK_MAX_DEVICES];
} ek_device_map;
/** Returns the tensor `name`, in the scope, on the device where it lay when it was put, or, if the
 * map (NULL: none) has that device, on the device that it is mapped to. EK_E_DEVICE if the device
 * does not exist. A tensor that another program wrote counts as one of cpu. */
EK_API ek_tensor *ek_archive_tensor(const ek_archive *archive, const char *name,
                                    const ek_device_map *map);

typedef struct ek_load_report {
    /** How many tensors both have, only the module has, and only the file has. */
    int loaded, missing, unexpected;
    char first_missing[256], first_unexpected[256];
} ek_load_report;

typedef struct ek_load_options {
    int begin; /**< no option, see base.h */
    const ek_archive *archive;
    const char *name;
    ek_module *module;
    /** True: tensors that only the file or only the module has are an error, which lists
     * them. False: the tensors that both have are loaded. Shapes must agree in both cases; dtypes
     * are converted. */
    bool strict EK_IS(true);
    ek_load_report *report; /**< may be NULL */
} ek_load_options;
#define EK_DEFAULTS_ek_load_options EK_DEFAULT(strict, true)

EK_API int ek_archive_load_module_with(ek_load_options options);
/** ek_archive_load_module(a, "model", net, .strict = false) */
/** Loads parameters and buffers in place, on their devices. Handles, gradients and optimizers are
 * unchanged. All replicas have the new values at the next forward, also with .broadcast_buffers
 * off. Names in the file may begin with "module." after `name`. Tied weights load from any of their
 * paths. If the file has several of these paths, tensors that differ from the first are unexpected.
 * EK_E_INVALID if names do not match, EK_E_SHAPE, and EK_E_DTYPE for dtypes that cannot be read. If
 * names or shapes are an error, the report is filled too, with 0 loaded. */
#define ek_archive_load_module(...) \
    EK_CALL_3(ek_archive_load_module_with, ek_load_options, archive, name, module, __VA_ARGS__)
/** Loads learning rates, step counts and states for those parameters of the module that the
 * optimizer has, and the options that were changed before saving; other options are unchanged. The
 * file must have the states of all these parameters, and the optimizer's number of groups. */
EK_API int ek_archive_load_optimizer(const ek_archive *archive, const char *name,
                                     ek_optimizer *optimizer, ek_module *module);
/** Loads a schedule and sets the optimizer's learning rates to the saved ones. */
EK_API int ek_archive_load_schedule(const ek_archive *archive, const char *name,
                                    ek_schedule *schedule);
/** Loads averages and the number of updates. The file must have all averages, in their shapes. */
EK_API int ek_archive_load_ema(const ek_archive *archive, const char *name, ek_ema *ema);
/** Loads the scale and the number of updates. Factors and interval are unchanged. */
EK_API int ek_archive_load_grad_scaler(const ek_archive *archive, const char *name,
                                       ek_grad_scaler *scaler);
/** Loads the generators that ek_archive_put_random has put. Devices that do not exist here are
 * skipped; devices that the file lacks are seeded from the default generator. No device may be
 * computing meanwhile. */
EK_API int ek_archive_load_random(const ek_archive *archive, const char *name);
EK_API int ek_archive_load_generator(const ek_archive *archive, const char *name,
                                     ek_generator *generator);
/** Loads the parts that `state` has, in its order. If a part fails, the parts before it have been
 * loaded. The archive may hold more parts. */
EK_API int ek_archive_load_training(const ek_archive *archive, const char *name,
                                    ek_training_state state);

EK_END_DECLARATIONS
#endif

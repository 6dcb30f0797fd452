/** @file
 * ema.h: averages of a module's parameters over training, as torch.optim.swa_utils.AveragedModel
 * keeps them: moving (exponential) ones, or equal ones of all updates. The averages are the
 * object's own; the module goes on training and can be a data-parallel wrapper or be wrapped later.
 * Call ek_ema_update after each ek_step; the first update copies. For one thread at a time. */
#ifndef EVENKEEL_EMA_H
#define EVENKEEL_EMA_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_ema ek_ema;

typedef enum ek_ema_buffers {
    EK_EMA_BUFFERS_COPY,   /**< each update copies the module's buffers */
    EK_EMA_BUFFERS_AVERAGE /**< floating buffers are averaged too (use_buffers), others copied */
} ek_ema_buffers;

typedef struct ek_ema_options {
    int begin;                 /**< no option, see base.h */
    ek_module *module;         /**< borrowed: it may be freed before */
    double decay EK_IS(0.999); /**< average = decay * average + (1 - decay) * parameter */
    bool equal;                /**< equal weights for all updates, without decay (SWA) */
    ek_ema_buffers buffers;
} ek_ema_options;
#define EK_DEFAULTS_ek_ema_options EK_DEFAULT(decay, 0.999)

EK_API ek_ema *ek_ema_new_with(ek_ema_options options);
/** ek_ema_new(net, .decay = 0.9999): owned by the caller. Averages begin as copies, on the
 * parameters' devices, or on cpu if these are gathered unit by unit (EK_SHARD_PARAMETERS). NULL
 * with EK_E_DTYPE if a parameter is not f32 or f64, EK_E_INVALID if one is a view with gaps or the
 * decay is not in [0, 1]. */
#define ek_ema_new(...) EK_CALL_1(ek_ema_new_with, ek_ema_options, module, __VA_ARGS__)
/** NULL is ignored. */
EK_API void ek_ema_free(ek_ema *ema);
#define ek_ema_free(ema) ek_ema_free(EK_PLACED(ema))

/** Adds the parameters' present values to the averages. If there is not enough memory, nothing has
 * changed. After an error of a device some averages may be updated, but ek_ema_updates doesn't
 * count this update. */
EK_API int ek_ema_update(ek_ema *ema);
EK_API int64_t ek_ema_updates(const ek_ema *ema);

/** Puts the averages into the module, for evaluation and saving, until ek_ema_restore puts the
 * module's values back. EK_E_STATE for an apply when the averages are in the module already, for a
 * restore when they are not, and for updates in between. If the parameters are gathered from
 * several ranks, all ranks make these calls. */
EK_API int ek_ema_apply(ek_ema *ema);
EK_API int ek_ema_restore(ek_ema *ema);

/** Copies the averages to another module with the same paths and shapes, as from ek_module_copy. */
EK_API int ek_ema_copy_to(ek_ema *ema, ek_module *module);

/** The average of the parameter or buffer of this path, borrowed; NULL with EK_E_INVALID. */
EK_API ek_tensor *ek_ema_tensor(ek_ema *ema, const char *path);

EK_END_DECLARATIONS
#endif

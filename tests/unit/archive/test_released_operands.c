/* With EVENKEEL_CHECK=1: a released handle for each operand of every public function but those of
 * ranks. None is taken for one that lives: each call fails, or a warning tells. */
#pragma GCC diagnostic ignored "-Wpedantic" /* function pointers as void *, which no call follows \
                                             */
#define OR_NULL(...) (null_here() ? RELEASED(__VA_ARGS__) : (__VA_ARGS__))
#define NULL_ENDED_WELL released_was_told
#define NULL_CALLS 1000
#include <stdbool.h>

static bool released_was_told(const char *call);
#include "core/check.h"
#include "null_setup.h"

/* ---- operands ---- */

static bool released, told;

#define RELEASES(type, function)                        \
    static inline type *released_##function(type *made) \
    {                                                   \
        released = made != NULL;                        \
        function(made);                                 \
        return made;                                    \
    }
RELEASES(ek_tensor, ek_release)
RELEASES(ek_module, ek_module_free)
RELEASES(ek_optimizer, ek_optimizer_free)
RELEASES(ek_schedule, ek_schedule_free)
RELEASES(ek_generator, ek_generator_free)
RELEASES(ek_dataset, ek_dataset_free)
RELEASES(ek_sampler, ek_sampler_free)
RELEASES(ek_loader, ek_loader_free)
RELEASES(ek_archive, ek_archive_free)
RELEASES(ek_report, ek_report_free)
RELEASES(ek_grad_scaler, ek_grad_scaler_free)
RELEASES(ek_ema, ek_ema_free)
RELEASES(ek_transform, ek_transform_free)

/* The last of several is released. */
static inline ek_tensor *const *released_tensors(ek_tensor *const *made)
{
    released_ek_release(made[1]);
    return made;
}

static inline ek_module *const *released_modules(ek_module *const *made)
{
    released_ek_module_free(made[1]);
    return made;
}

/* Other operands are NULL. */
static inline void *released_nothing(const volatile void *made)
{
    (void)made;
    return NULL;
}

#define RELEASED(x)                                      \
    _Generic((x), ek_tensor *                            \
             : released_ek_release, ek_module *          \
             : released_ek_module_free, ek_optimizer *   \
             : released_ek_optimizer_free, ek_schedule * \
             : released_ek_schedule_free, ek_generator * \
             : released_ek_generator_free, ek_dataset *  \
             : released_ek_dataset_free, ek_sampler *    \
             : released_ek_sampler_free, ek_loader *     \
             : released_ek_loader_free, ek_archive *     \
             : released_ek_archive_free, ek_report *     \
             : released_ek_report_free, ek_grad_scaler * \
             : released_ek_grad_scaler_free, ek_ema *    \
             : released_ek_ema_free, ek_transform *      \
             : released_ek_transform_free, default       \
             : released_others(x))(x)
#define released_others(x) \
    _Generic((x), ek_tensor *const *              \
             : released_tensors, ek_module *const * \
             : released_modules, default          \
             : released_nothing)

/* ---- the judge ---- */

static void note_line(ek_log_level level, const char *line, void *user)
{
    told = told || strstr(line, "was released");
}

static void begin(void)
{
    setenv("EVENKEEL_CHECK", "1", 1);
    ek_checks_read();
    ek_set_log(note_line, NULL);
}

BEFORE_ALL(begin)

/* These look at the handle later, or not at all: values and samplers hold it, and the transforms of
 * the call draw nothing. */
static const char *const late[] = {"ek_value_of_tensor", "ek_subset_random_sampler",
                                   "ek_weighted_random_sampler", "ek_transform_apply"};

static bool released_was_told(const char *call)
{
    for (size_t i = 0; i < sizeof late / sizeof *late; i++)
        if (strncmp(call, late[i], strlen(late[i])) == 0)
            return true;
    return !released || told || ek_error_status() < 0;
}

#include "null_calls.h"

NAMES_DEVICES

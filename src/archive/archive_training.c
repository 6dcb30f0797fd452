/* archive_training.c: all that a training goes on from, in one call. */
#include <stdlib.h>

#include "archive/archive.h"
#include "core/error.h"

/* The parts, in the order in which they are put and loaded. */
typedef enum training_part {
    TRAINING_MODEL,
    TRAINING_OPTIMIZER,
    TRAINING_SCHEDULE,
    TRAINING_EMA,
    TRAINING_SCALER,
    TRAINING_GENERATOR,
    TRAINING_LOADER,
    TRAINING_RANDOM,
    TRAINING_PARTS
} training_part;

static const char *const training_names[TRAINING_PARTS] = {"model",  "optimizer", "schedule",
                                                           "ema",    "scaler",    "generator",
                                                           "loader", "random"};

/* Whether the training has the part. */
static bool training_has(const ek_training_state *of, training_part part)
{
    const void *const parts[TRAINING_PARTS] = {of->model,    of->optimizer,
                                               of->schedule, of->ema,
                                               of->scaler,   of->generator,
                                               of->loader,   of->random ? of : NULL};
    return parts[part] != NULL;
}

static int training_put(ek_archive *archive, const char *name, const ek_training_state *of,
                        training_part part)
{
    switch (part) {
    case TRAINING_MODEL:
        return ek_archive_put_module(archive, name, of->model);
    case TRAINING_OPTIMIZER:
        return ek_archive_put_optimizer(archive, name, of->optimizer, of->model);
    case TRAINING_SCHEDULE:
        return ek_archive_put_schedule(archive, name, of->schedule);
    case TRAINING_EMA:
        return ek_archive_put_ema(archive, name, of->ema);
    case TRAINING_SCALER:
        return ek_archive_put_grad_scaler(archive, name, of->scaler);
    case TRAINING_GENERATOR:
        return ek_archive_put_generator(archive, name, of->generator);
    case TRAINING_LOADER:
        return ek_archive_put(archive, name, ek_loader_state(of->loader));
    default:
        return ek_archive_put_random(archive, name);
    }
}

static int training_load(const ek_archive *archive, const char *name, const ek_training_state *of,
                         training_part part)
{
    switch (part) {
    case TRAINING_MODEL:
        return ek_archive_load_module(archive, name, of->model);
    case TRAINING_OPTIMIZER:
        return ek_archive_load_optimizer(archive, name, of->optimizer, of->model);
    case TRAINING_SCHEDULE:
        return ek_archive_load_schedule(archive, name, of->schedule);
    case TRAINING_EMA:
        return ek_archive_load_ema(archive, name, of->ema);
    case TRAINING_SCALER:
        return ek_archive_load_grad_scaler(archive, name, of->scaler);
    case TRAINING_GENERATOR:
        return ek_archive_load_generator(archive, name, of->generator);
    case TRAINING_LOADER:
        return ek_loader_load_state(of->loader, ek_archive_get(archive, name));
    default:
        return ek_archive_load_random(archive, name);
    }
}

int ek_archive_put_training(ek_archive *archive, const char *name, ek_training_state state)
{
    const ek_archive_put_call put = {archive, "archive_put_training", name};
    EK_TRY(ek_archive_check_put(&put));
    const ek_archive_mark mark = ek_archive_begin(archive);
    ek_scope scope = ek_scope_begin();
    int status = 0;
    for (int part = 0; part < TRAINING_PARTS && status == 0; part++) {
        if (!training_has(&state, (training_part)part))
            continue;
        char *path = ek_archive_join(name, training_names[part]);
        status = path ? training_put(archive, path, &state, (training_part)part) : EK_E_NO_MEMORY;
        free(path);
    }
    ek_scope_end(&scope);
    return ek_archive_end(archive, mark, status);
}

int ek_archive_load_training(const ek_archive *archive, const char *name, ek_training_state state)
{
    ek_archive_get_call get = {archive, "archive_load_training", name, NULL};
    EK_TRY(ek_archive_check_get(&get));
    ek_scope scope = ek_scope_begin();
    int status = 0;
    for (int part = 0; part < TRAINING_PARTS && status == 0; part++) {
        if (!training_has(&state, (training_part)part))
            continue;
        char *path = ek_archive_join(name, training_names[part]);
        status = path ? training_load(archive, path, &state, (training_part)part) : EK_E_NO_MEMORY;
        free(path);
    }
    ek_scope_end(&scope);
    return status;
}

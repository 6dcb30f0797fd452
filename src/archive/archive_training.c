/* archive_training.c: puts and loads all that a training continues from, in one call. */
#include <stdlib.h>

#include "archive/archive.h"
#include "core/error.h"

/* A row per part, in the order of putting and loading: the member of ek_training_state, whose name
 * is also the part's name in the archive, and the calls that put and load the part. */
#define TRAINING_PARTS(X)                                                           \
    X(model, ek_archive_put_module(archive, name, of->model),                       \
      ek_archive_load_module(archive, name, of->model))                             \
    X(optimizer, ek_archive_put_optimizer(archive, name, of->optimizer, of->model), \
      ek_archive_load_optimizer(archive, name, of->optimizer, of->model))           \
    X(schedule, ek_archive_put_schedule(archive, name, of->schedule),               \
      ek_archive_load_schedule(archive, name, of->schedule))                        \
    X(ema, ek_archive_put_ema(archive, name, of->ema),                              \
      ek_archive_load_ema(archive, name, of->ema))                                  \
    X(scaler, ek_archive_put_grad_scaler(archive, name, of->scaler),                \
      ek_archive_load_grad_scaler(archive, name, of->scaler))                       \
    X(generator, ek_archive_put_generator(archive, name, of->generator),            \
      ek_archive_load_generator(archive, name, of->generator))                      \
    X(loader, ek_archive_put(archive, name, ek_loader_state(of->loader)),           \
      ek_loader_load_state(of->loader, ek_archive_get(archive, name)))              \
    X(random, ek_archive_put_random(archive, name), ek_archive_load_random(archive, name))

/* Puts or loads a part if the training has the part. */
#define TRAINING_CALLS(part, put, load)                                          \
    static int training_put_##part(ek_archive *archive, const char *name,        \
                                   const ek_training_state *of)                  \
    {                                                                            \
        return of->part ? put : 0;                                               \
    }                                                                            \
    static int training_load_##part(const ek_archive *archive, const char *name, \
                                    const ek_training_state *of)                 \
    {                                                                            \
        return of->part ? load : 0;                                              \
    }
TRAINING_PARTS(TRAINING_CALLS)

typedef struct training_part {
    const char *name;
    int (*put)(ek_archive *archive, const char *name, const ek_training_state *of);
    int (*load)(const ek_archive *archive, const char *name, const ek_training_state *of);
} training_part;

#define TRAINING_ROW(part, put, load) {#part, training_put_##part, training_load_##part},
static const training_part training_parts[] = {TRAINING_PARTS(TRAINING_ROW)};
enum { TRAINING_PART_COUNT = sizeof training_parts / sizeof *training_parts };

int ek_archive_put_training(ek_archive *archive, const char *name, ek_training_state state)
{
    const ek_archive_put_call put = {archive, "archive_put_training", name};
    EK_TRY(ek_archive_check_put(&put));
    const ek_archive_mark mark = ek_archive_begin(archive);
    ek_scope scope = ek_scope_begin();
    int status = 0;
    for (int i = 0; i < TRAINING_PART_COUNT && status == 0; i++) {
        char *path = ek_archive_join(name, training_parts[i].name);
        status = path ? training_parts[i].put(archive, path, &state) : EK_E_NO_MEMORY;
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
    for (int i = 0; i < TRAINING_PART_COUNT && status == 0; i++) {
        char *path = ek_archive_join(name, training_parts[i].name);
        status = path ? training_parts[i].load(archive, path, &state) : EK_E_NO_MEMORY;
        free(path);
    }
    ek_scope_end(&scope);
    return status;
}

/* ema.c: averages of parameters. An update calls the kernel of optimizers once per device and
 * dtype. */
#include "optim/ema.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/shards.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"

typedef struct ema_entry {
    char *path;         /* owned */
    ek_tensor *source;  /* the module's tensor; one reference */
    ek_tensor *average; /* one reference */
    bool averages;      /* false: each update copies the source */
    bool done; /* true if this update has written the average; after an error the next call resumes
                */
} ema_entry;

struct ek_ema {
    ema_entry *entries;
    int count, room;
    ek_ema_options options; /* module unused */
    int64_t updates;
    bool is_applied;
};

static int ema_check(const ek_ema *ema)
{
    if (ema && ek_check_alive("ema", "the ema", ema) < 0)
        return ek_error_pending();
    if (ema)
        return ek_fork_check();
    return ek_error_status() < 0 ? ek_error_pending() : EK_FAIL(EK_E_INVALID, "the ema is NULL");
}

/* ---- making ---- */

/* Returns true if the source has memory only while it is held. An update reads such a source alone,
 * so that not all sources need memory at a time. */
static bool ema_is_gathered(const ek_tensor *source)
{
    return source->storage->residence;
}

/* Returns the device of a source's average: the source's, or cpu if the source is gathered, because
 * such parameters may be larger than their device. */
static ek_dev *ema_home(const ek_tensor *source)
{
    return ema_is_gathered(source) ? ek_dev_get(ek_cpu()) : ek_tensor_dev(source);
}

/* Returns a dense copy of `values` for an average of the source. If the source is dense, the copy
 * has its layout, so that a kernel reads both in the order of memory. Gathered values are held only
 * meanwhile. */
static ek_tensor *ema_copy_of(const ek_tensor *source, ek_tensor *values)
{
    ek_scope scope = ek_scope_begin();
    ek_dev *home = ema_home(source);
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_OPTIMIZER);
    ek_tensor *copy = home ? ek_tensor_like_on(source, source->dtype, home) : NULL;
    ek_memory_set_category(before);
    return ek_scope_return(&scope, copy ? ek_copy_(copy, values) : NULL);
}

static int ema_add(ek_ema *ema, const char *path, ek_tensor *source, bool averages)
{
    char text[200];
    if (averages && source->dtype != EK_F32 && source->dtype != EK_F64)
        return EK_FAIL(EK_E_DTYPE, "ema: \"%s\" is %s; it has to be f32 or f64 to be averaged",
                       path, ek_tensor_text(source, text));
    if (averages && !ek_is_dense(source))
        return EK_FAIL(EK_E_INVALID, "ema: \"%s\", %s, is a view with gaps", path,
                       ek_tensor_text(source, text));
    EK_TRY(ek_grow(&ema->entries, &ema->room, ema->count + 1));
    ema_entry entry = {.path = ek_strdup(path), .averages = averages};
    ek_tensor *average = entry.path ? ema_copy_of(source, source) : NULL;
    if (!average) {
        free(entry.path);
        return ek_error_pending();
    }
    entry.source = ek_object_retain(source);
    entry.average = ek_object_retain(average);
    ema->entries[ema->count++] = entry;
    return 0;
}

static int ema_add_parameter(const char *path, ek_tensor *tensor, void *user)
{
    return ema_add(user, path, tensor, true);
}

static int ema_add_buffer(const char *path, ek_tensor *tensor, void *user)
{
    ek_ema *ema = user;
    return ema_add(ema, path, tensor,
                   ema->options.buffers == EK_EMA_BUFFERS_AVERAGE &&
                       (tensor->dtype == EK_F32 || tensor->dtype == EK_F64) && ek_is_dense(tensor));
}

ek_ema *ek_ema_new_with(ek_ema_options options)
{
    const double decay = options.decay;
    if (ek_check_handle("ema", "the module", options.module) < 0)
        return NULL;
    if (!(decay >= 0 && decay <= 1))
        return EK_FAIL_NULL(EK_E_INVALID, "ema: decay has to be 0 to 1, not %g", decay);
    if (options.buffers != EK_EMA_BUFFERS_COPY && options.buffers != EK_EMA_BUFFERS_AVERAGE)
        return EK_FAIL_NULL(EK_E_INVALID, "ema: there is no %d for buffers", (int)options.buffers);
    ek_ema *ema = ek_calloc(1, EK_RETIRABLE(sizeof *ema));
    if (!ema)
        return NULL;
    ema->options = options;
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = ek_module_parameters(options.module, ema_add_parameter, ema);
    if (status == 0)
        status = ek_module_buffers(options.module, ema_add_buffer, ema);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    if (status == 0)
        return ema;
    ek_ema_free(ema);
    return NULL;
}

void ek_ema_free(ek_ema *ema)
{
    EK_RELEASES("ek_ema_free", ema);
    for (int i = 0; i < ema->count; i++) {
        free(ema->entries[i].path);
        ek_object_release(ema->entries[i].source);
        ek_object_release(ema->entries[i].average);
    }
    free(ema->entries);
    ek_retire(ema, EK_RETIRABLE(sizeof *ema), "ema", ema);
}

/* ---- updates ---- */

/* If the source has changed its device, dtype or layout, moves the average there. Modules can be
 * moved and converted between updates. */
static int ema_move(ema_entry *entry)
{
    char text[200];
    const ek_tensor *source = entry->source, *average = entry->average;
    if (average->dtype == source->dtype && ek_tensor_dev(average) == ema_home(source) &&
        (!entry->averages || ek_same_layout(average, source)))
        return 0;
    if (entry->averages &&
        ((source->dtype != EK_F32 && source->dtype != EK_F64) || !ek_is_dense(source)))
        return EK_FAIL(EK_E_DTYPE, "ema: \"%s\" has become %s; it has to be f32 or f64, and dense",
                       entry->path, ek_tensor_text(source, text));
    ek_tensor *moved = ema_copy_of(source, entry->average);
    if (!moved)
        return ek_error_pending();
    ek_object_retain(moved);
    ek_object_release(entry->average);
    entry->average = moved;
    return 0;
}

/* Updates all averages of the device and dtype of entry `first` in one call. */
static int ema_update_alike(ek_ema *ema, int first, ek_step_rule rule,
                            const ek_step_numbers *numbers, ek_tensor **room)
{
    ek_tensor **averages = room, **sources = room + ema->count;
    const ek_tensor *like = ema->entries[first].average;
    ek_tensor *const *const states[EK_STEP_STATES] = {NULL};
    int count = 0;
    for (int i = first; i < ema->count; i++) {
        ema_entry *entry = &ema->entries[i];
        if (entry->done || !entry->averages || entry->average->dtype != like->dtype ||
            ek_tensor_dev(entry->average) != ek_tensor_dev(like))
            continue;
        if (i > first &&
            (ema_is_gathered(entry->source) || ema_is_gathered(ema->entries[first].source)))
            continue;
        averages[count] = entry->average;
        sources[count++] = entry->source;
    }
    ek_scope scope = ek_scope_begin();
    if (ema_is_gathered(sources[0]))
        sources[0] = ema_copy_of(sources[0], sources[0]);
    int rc = sources[0] ? 0 : ek_error_pending();
    for (int i = 0; i < count && rc >= 0; i++)
        rc = ek_tensor_unshare(averages[i]);
    if (rc >= 0)
        rc = ek_kernels_of(like)->step_list(ek_tensor_dev(like), rule, count, averages, sources,
                                            states, numbers);
    ek_scope_end(&scope);
    EK_TRY(rc);
    for (int i = first, k = 0; k < count; i++) {
        if (ema->entries[i].average != averages[k])
            continue;
        ema->entries[i].done = true;
        ek_tensor_written(averages[k++], "ek_ema_update");
    }
    return 0;
}

/* Updates all averages. All memory is allocated before the first write, but for that of gathered
 * sources. */
static int ema_update(ek_ema *ema, ek_tensor **room)
{
    const ek_step_numbers numbers = {.keep1 = ema->options.decay,
                                     .add1 = 1 - ema->options.decay,
                                     .rate = (double)(ema->updates + 1)};
    const bool mean = ema->options.equal || ema->updates == 0;
    for (int i = 0; i < ema->count; i++)
        EK_TRY(ema_move(&ema->entries[i]));
    for (int i = 0; i < ema->count; i++) {
        ema_entry *entry = &ema->entries[i];
        if (!entry->averages) {
            if (!ek_copy_(entry->average, entry->source))
                return ek_error_pending();
        } else if (!entry->done) {
            EK_TRY(ema_update_alike(ema, i, mean ? EK_STEP_MEAN : EK_STEP_AVERAGE, &numbers, room));
        }
    }
    for (int i = 0; i < ema->count; i++)
        ema->entries[i].done = false;
    ema->updates++;
    return 0;
}

int ek_ema_update(ek_ema *ema)
{
    EK_TRY(ema_check(ema));
    if (ema->is_applied)
        return EK_FAIL(EK_E_STATE,
                       "ema_update: the module shows the averages; call ek_ema_restore");
    ek_tensor **room = ek_calloc(2 * (size_t)ema->count + 1, sizeof *room);
    if (!room)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = ema_update(ema, room);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    free(room);
    return status;
}

int64_t ek_ema_updates(const ek_ema *ema)
{
    EK_TRY(ema_check(ema));
    return ema->updates;
}

/* ---- showing averages ---- */

/* Called between reading all sources and writing them. If sources are sharded over ranks, waits for
 * all ranks, which may still read them. */
static int ema_agree(const ek_ema *ema, int status)
{
    ek_ranks *ranks = NULL;
    for (int i = 0; i < ema->count && !ranks; i++)
        ranks =
            ema_is_gathered(ema->entries[i].source) ? ek_leaf_ranks(ema->entries[i].source) : NULL;
    return ranks ? ranks->agree(ranks, status) : status;
}

/* Swaps the values of all parameters and buffers with the averages. All memory is allocated before
 * the first write. */
static int ema_swap(ek_ema *ema)
{
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    ek_tensor **kept = ek_calloc((size_t)ema->count + 1, sizeof *kept);
    int status = kept ? 0 : EK_E_NO_MEMORY;
    for (int i = 0; i < ema->count && status == 0; i++) {
        status = ema_move(&ema->entries[i]);
        ek_tensor *source = ema->entries[i].source;
        if (status == 0 && !(kept[i] = ema_copy_of(source, source)))
            status = ek_error_pending();
    }
    status = ema_agree(ema, status);
    for (int i = 0; i < ema->count && status == 0; i++) {
        ema_entry *entry = &ema->entries[i];
        ek_scope one = ek_scope_begin(); /* gathered sources are held one after the other */
        if (!ek_copy_(entry->source, entry->average) || !ek_copy_(entry->average, kept[i]))
            status = ek_error_pending();
        ek_scope_end(&one);
    }
    free(kept);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    return status;
}

static int ema_show(ek_ema *ema, bool applied)
{
    EK_TRY(ema_check(ema));
    if (ema->is_applied == applied)
        return EK_FAIL(EK_E_STATE, applied ? "ema_apply: the module shows the averages already"
                                           : "ema_restore: the module shows its own values");
    EK_TRY(ema_swap(ema));
    ema->is_applied = applied;
    return 0;
}

int ek_ema_apply(ek_ema *ema)
{
    return ema_show(ema, true);
}

int ek_ema_restore(ek_ema *ema)
{
    return ema_show(ema, false);
}

/* Returns the tensor that has the average's values. While averages are applied, the module's tensor
 * has them. */
static ek_tensor *ema_average(const ek_ema *ema, int index)
{
    const ema_entry *entry = &ema->entries[index];
    return ema->is_applied ? entry->source : entry->average;
}

int ek_ema_copy_to(ek_ema *ema, ek_module *module)
{
    char texts[2][200];
    EK_TRY(ema_check(ema));
    for (int i = 0; i < ema->count; i++) {
        ek_tensor *to = ek_module_tensor(module, ema->entries[i].path), *from = ema_average(ema, i);
        if (!to)
            return ek_error_pending();
        if (!ek_same_shape(to, from))
            return EK_FAIL(EK_E_SHAPE, "ema_copy_to: \"%s\" is %s, its average %s",
                           ema->entries[i].path, ek_tensor_text(to, texts[0]),
                           ek_tensor_text(from, texts[1]));
    }
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = 0;
    for (int i = 0; i < ema->count && status == 0; i++)
        if (!ek_copy_(ek_module_tensor(module, ema->entries[i].path), ema_average(ema, i)))
            status = ek_error_pending();
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    return status;
}

ek_tensor *ek_ema_tensor(ek_ema *ema, const char *path)
{
    if (ema_check(ema) < 0)
        return NULL;
    for (int i = 0; path && i < ema->count; i++)
        if (strcmp(ema->entries[i].path, path) == 0)
            return ema_average(ema, i);
    return EK_FAIL_NULL(EK_E_INVALID, "ema: there is no parameter or buffer \"%.200s\"",
                        path ? path : "NULL");
}

/* ---- for checkpoints ---- */

bool ek_ema_entry(const ek_ema *ema, int index, const char **path, ek_tensor **average)
{
    if (index >= ema->count)
        return false;
    *path = ema->entries[index].path;
    *average = ema_average(ema, index);
    return true;
}

int ek_ema_set(ek_ema *ema, int64_t updates, ek_tensor *const *averages)
{
    if (ema->is_applied)
        return EK_FAIL(EK_E_STATE, "ema: the module shows the averages; call ek_ema_restore");
    for (int i = 0; i < ema->count; i++)
        EK_TRY(ema_move(&ema->entries[i]));
    bool grad_enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < ema->count; i++)
        ema->entries[i].done = false;
    int status = 0;
    for (int i = 0; i < ema->count && status == 0; i++)
        if (!ek_copy_(ema->entries[i].average, averages[i]))
            status = ek_error_pending();
    ek_set_grad_enabled(grad_enabled);
    if (status == 0)
        ema->updates = updates;
    return status;
}

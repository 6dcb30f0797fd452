/* archive_optim.c: states of optimizers, by their parameters' paths, options, and scalers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/error.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/optimizer.h"

/* ---- options that were changed, each with a number per group ---- */

static int options_put(const ek_archive_put_call *put, const ek_optimizer *optimizer)
{
    const char *name;
    bool changed;
    for (int k = 0; (name = ek_optimizer_changeable(optimizer, k, &changed)); k++) {
        double *values = changed ? ek_calloc((size_t)optimizer->group_count, sizeof *values) : NULL;
        int status = changed && !values ? EK_E_NO_MEMORY : 0;
        for (int i = 0; values && status == 0 && i < optimizer->group_count; i++)
            status = ek_optimizer_get(optimizer, i, name, &values[i]);
        if (values && status == 0)
            status = ek_archive_add_data(put, name, values, EK_SHAPE(optimizer->group_count),
                                         EK_F64, ek_cpu());
        free(values);
        EK_TRY(status);
    }
    return 0;
}

/* Sets the options that the file has. `values` has room for a number per group. */
static int options_load(const ek_archive_get_call *get, ek_optimizer *optimizer, double *values)
{
    const int before = ek_error_status();
    const char *name;
    bool changed;
    for (int k = 0; (name = ek_optimizer_changeable(optimizer, k, &changed)); k++) {
        char *full = ek_archive_join(get->name, name);
        bool has = full && ek_archive_has(get->archive, full);
        if (!full)
            return EK_E_NO_MEMORY;
        free(full);
        if (!has)
            continue;
        int count = ek_archive_view_floats(get, name, values, optimizer->group_count);
        int status = count < 0 ? count : 0;
        if (count >= 0 && count < optimizer->group_count)
            status = EK_FAIL_IN(EK_E_SHAPE, get,
                                "\"%.100s.%s\" is of %d groups, and the optimizer has %d",
                                get->name, name, count, optimizer->group_count);
        if (status == 0 && (status = ek_optimizer_set_all(optimizer, name, values)) < 0)
            ek_error_prefix(before, "%s: %.200s", get->what, get->path);
        EK_TRY(status);
    }
    return 0;
}

/* ---- optimizers: writing ---- */

typedef struct writer {
    ek_archive_put_call put;
    ek_optimizer *optimizer;
    int count; /* how many parameters were written */
} writer;

/* Adds a parameter's state, and notes the parameter's device. Sharded states are assembled when
 * they are written. */
static int writer_put_state(const writer *w, const char *path, ek_tensor *parameter,
                            const char *state)
{
    ek_device device = ek_tensor_device(parameter);
    ek_archive_entry entry = {.make = ek_state_parts_gather,
                              .shape = ek_tensor_shape(parameter),
                              .device = device};
    EK_TRY(ek_optimizer_state_parts(w->optimizer, parameter, state, &entry.object, &entry.dtype));
    if (entry.object) {
        entry.has_ranks = ek_state_parts_have_ranks(entry.object);
        int status = ek_archive_add_made(&w->put, path, entry);
        ek_object_release(entry.object);
        return status;
    }
    ek_tensor *tensor = ek_optimizer_state(w->optimizer, parameter, state);
    if (!tensor)
        return ek_error_status(); /* 0 if the parameter's group has no such state */
    return ek_archive_add(&w->put, path, tensor, device);
}

/* Adds a parameter's number of steps if there is no `state`, else this state. */
static int writer_put_part(const writer *w, const char *path, ek_tensor *parameter,
                           const char *state)
{
    char *joined = ek_archive_join(path, state ? state : "steps");
    if (!joined)
        return EK_E_NO_MEMORY;
    int64_t steps = ek_optimizer_steps(w->optimizer, parameter);
    int status = state ? writer_put_state(w, joined, parameter, state)
                       : ek_archive_add_data(&w->put, joined, &steps, ek_scalar_shape(), EK_I64,
                                             ek_tensor_device(parameter));
    free(joined);
    return status;
}

static int writer_put_parameter(const char *path, ek_tensor *parameter, void *user)
{
    writer *w = user;
    const char *state = NULL;
    if (!ek_optimizer_has(w->optimizer, parameter))
        return 0;
    int status = writer_put_part(w, path, parameter, NULL);
    for (int s = 0; status == 0 && (state = ek_optimizer_state_name(w->optimizer, s)); s++)
        status = writer_put_part(w, path, parameter, state);
    w->count++;
    return status;
}

static int writer_put_all(writer *w, ek_module *module)
{
    const ek_archive_mark mark = ek_archive_begin(w->put.archive);
    EK_TRY(ek_module_parameters(module, writer_put_parameter, w));
    ek_archive_set_alike(w->put.archive, mark);
    int all = ek_optimizer_parameter_count(w->optimizer);
    if (w->count != all)
        return EK_FAIL(EK_E_INVALID,
                       "%s: \"%.200s\": %d of the optimizer's %d parameters are none of the "
                       "module's; put it with the module that holds all",
                       w->put.what, w->put.name, all - w->count, all);
    EK_TRY(options_put(&w->put, w->optimizer));
    return ek_archive_put_rates(&w->put, w->optimizer);
}

int ek_archive_put_optimizer(ek_archive *archive, const char *name, ek_optimizer *optimizer,
                             ek_module *module)
{
    writer w = {{archive, "archive_put_optimizer", name}, optimizer, 0};
    EK_TRY(ek_archive_check_put(&w.put));
    EK_TRY(ek_archive_check_given(&w.put, "the optimizer", optimizer));
    EK_TRY(ek_archive_check_given(&w.put, "the module", module));
    ek_archive_mark mark = ek_archive_begin(archive);
    return ek_archive_end(archive, mark, writer_put_all(&w, module));
}

/* ---- optimizers: loading ---- */

enum { MOST_STATES = 12 };

/* The state of one parameter. */
typedef struct state_set {
    int64_t steps;
    int count;
    const char *names[MOST_STATES];
    ek_tensor *tensors[MOST_STATES]; /* in the scope */
} state_set;

typedef struct parameter_entry {
    char *path; /* owned */
    ek_tensor *parameter;
    state_set before;
    bool changed;
} parameter_entry;

typedef struct reader {
    ek_archive_get_call get;
    ek_optimizer *optimizer;
    parameter_entry *entries;
    int count, room;
} reader;

static int reader_note(const char *path, ek_tensor *parameter, void *user)
{
    reader *r = user;
    if (!ek_optimizer_has(r->optimizer, parameter))
        return 0;
    EK_TRY(ek_grow(&r->entries, &r->room, r->count + 1));
    char *copy = ek_strdup(path);
    if (!copy)
        return EK_E_NO_MEMORY;
    r->entries[r->count++] = (parameter_entry){.path = copy, .parameter = parameter};
    return 0;
}

/* Copies the parameter's present state to cpu. */
static int reader_note_before(const reader *r, parameter_entry *entry)
{
    state_set *before = &entry->before;
    const char *state;
    before->steps = ek_optimizer_steps(r->optimizer, entry->parameter);
    for (int s = 0; (state = ek_optimizer_state_name(r->optimizer, s)); s++) {
        ek_tensor *tensor = ek_optimizer_own_state(r->optimizer, entry->parameter, state);
        if (!tensor && ek_error_status() == 0)
            continue; /* the parameter's group has no such state */
        ek_tensor *copy = tensor ? ek_clone(ek_to_device(tensor, ek_cpu())) : NULL;
        if (!copy)
            return ek_error_pending();
        before->names[before->count] = state;
        before->tensors[before->count++] = copy;
    }
    return 0;
}

/* Reads the tensors directly below the parameter's name, all but "steps". */
static int reader_read_states(const ek_archive_get_call *get, state_set *set)
{
    const ek_archive *archive = get->archive;
    ek_archive_range range = ek_archive_below(archive, get->name);
    for (int i = range.begin; i < range.end; i++) {
        const char *full = ek_safetensors_sorted(archive->file, i);
        const char *state = full + strlen(get->name) + 1;
        if (strcmp(state, "steps") == 0)
            continue;
        if (set->count == MOST_STATES)
            return EK_FAIL_IN(EK_E_FORMAT, get, "more than %d states below \"%.200s\"", MOST_STATES,
                              get->name);
        set->names[set->count] = state;
        set->tensors[set->count] = ek_safetensors_read(archive->file, full);
        if (!set->tensors[set->count++])
            return ek_error_pending();
    }
    return 0;
}

/* Loads one parameter. An error's message begins with the file and the parameter. */
static int reader_load_states(const reader *r, const ek_archive_get_call *get, ek_tensor *parameter)
{
    const int before = ek_error_status();
    state_set set = {0};
    EK_TRY(ek_archive_view_int(get, "steps", &set.steps));
    EK_TRY(reader_read_states(get, &set));
    int status = ek_optimizer_set_state(r->optimizer, parameter, set.steps, set.names, set.tensors,
                                        set.count);
    if (status < 0)
        ek_error_prefix(before, "%s: %.200s: \"%.200s\"", get->what, get->archive->path, get->name);
    return status;
}

static int reader_load_parameter(const reader *r, parameter_entry *entry)
{
    char *name = ek_archive_join(r->get.name, entry->path);
    if (!name)
        return EK_E_NO_MEMORY;
    const ek_archive_get_call get = {r->get.archive, r->get.what, name, r->get.path};
    ek_scope scope = ek_scope_begin();
    int status = reader_load_states(r, &get, entry->parameter);
    ek_scope_end(&scope);
    free(name);
    entry->changed = status >= 0;
    return status;
}

/* Restores every changed parameter. Allocates nothing, because each state that it restores existed
 * before the load. */
static void reader_undo(const reader *r)
{
    ek_error_record reason;
    ek_error_take(&reason);
    for (int i = r->count - 1; i >= 0; i--) {
        const parameter_entry *entry = &r->entries[i];
        const state_set *before = &entry->before;
        if (entry->changed)
            ek_optimizer_set_state(r->optimizer, entry->parameter, before->steps, before->names,
                                   before->tensors, before->count);
    }
    ek_error_clear();
    ek_error_raise(&reason);
}

/* Loads parameters without a state first, because only they allocate and may run out of memory. */
static int reader_load_all(const reader *r)
{
    int status = 0;
    for (int i = 0; i < r->count && status >= 0; i++)
        status = reader_note_before(r, &r->entries[i]);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->count && status >= 0; i++)
            if ((r->entries[i].before.steps > 0) == (pass == 1))
                status = reader_load_parameter(r, &r->entries[i]);
    if (status < 0)
        reader_undo(r);
    return status;
}

static int reader_load(reader *r, ek_module *module)
{
    int groups = ek_optimizer_group_count(r->optimizer);
    EK_TRY(ek_module_parameters(module, reader_note, r));
    if (r->count == 0)
        return EK_FAIL(EK_E_INVALID, "%s: the optimizer has none of the module's parameters",
                       r->get.what);
    double *rates = ek_calloc(2 * (size_t)groups, sizeof *rates);
    ek_optimizer_options *before = ek_calloc((size_t)groups, sizeof *before);
    int status = rates && before ? ek_archive_read_rates(&r->get, rates, groups) : EK_E_NO_MEMORY;
    for (int i = 0; before && i < groups; i++)
        before[i] = r->optimizer->groups[i];
    if (status == 0)
        status = options_load(&r->get, r->optimizer, rates + groups);
    if (status == 0)
        status = reader_load_all(r);
    for (int i = 0; before && status < 0 && i < groups; i++)
        r->optimizer->groups[i] = before[i];
    if (status == 0)
        ek_archive_set_rates(r->optimizer, rates);
    free(before);
    free(rates);
    return status;
}

int ek_archive_load_optimizer(const ek_archive *archive, const char *name, ek_optimizer *optimizer,
                              ek_module *module)
{
    reader r = {.get = {archive, "archive_load_optimizer", name, NULL}, .optimizer = optimizer};
    EK_TRY(ek_archive_check_get(&r.get));
    EK_TRY(ek_check_handle(r.get.what, "the optimizer", optimizer));
    EK_TRY(ek_check_handle(r.get.what, "the module", module));
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = reader_load(&r, module);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    for (int i = 0; i < r.count; i++)
        free(r.entries[i].path);
    free(r.entries);
    return status;
}

/* ---- scalers: the scale, updates since it changed ---- */

int ek_archive_put_grad_scaler(ek_archive *archive, const char *name, ek_grad_scaler *scaler)
{
    const ek_archive_put_call put = {archive, "archive_put_grad_scaler", name};
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the scaler", scaler));
    ek_archive_mark mark = ek_archive_begin(archive);
    double scale = ek_grad_scaler_factor(scaler);
    int64_t tracker = ek_grad_scaler_tracker(scaler);
    int status = ek_archive_add_data(&put, "scale", &scale, EK_SHAPE(1), EK_F64, ek_cpu());
    if (status == 0)
        status =
            ek_archive_add_data(&put, "tracker", &tracker, ek_scalar_shape(), EK_I64, ek_cpu());
    return ek_archive_end(archive, mark, status);
}

int ek_archive_load_grad_scaler(const ek_archive *archive, const char *name, ek_grad_scaler *scaler)
{
    ek_archive_get_call get = {archive, "archive_load_grad_scaler", name, NULL};
    double scale = 0;
    int64_t tracker = 0;
    EK_TRY(ek_archive_check_get(&get));
    EK_TRY(ek_check_handle(get.what, "the scaler", scaler));
    int count = ek_archive_view_floats(&get, "scale", &scale, 1);
    EK_TRY(count);
    EK_TRY(ek_archive_view_int(&get, "tracker", &tracker));
    if (count == 0 || !(scale > 0) || !isfinite((float)scale) || tracker < 0)
        return EK_FAIL_IN(EK_E_FORMAT, &get, "\"%.200s\" has scale %g after %lld updates", get.name,
                          scale, (long long)tracker);
    return ek_grad_scaler_set(scaler, scale, tracker);
}

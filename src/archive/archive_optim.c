/* archive_optim.c: states of optimizers by the paths of their parameters, and schedules. */
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "optim/optimizer.h"

/* ---- rates of all groups ---- */

static int put_rates(ek_archive *archive, const char *what, const char *name,
                     const ek_optimizer *optimizer)
{
    int count = ek_optimizer_group_count(optimizer);
    double *rates = ek_calloc((size_t)count, sizeof *rates);
    if (!rates)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        rates[i] = ek_optimizer_lr(optimizer, i);
    int status = ek_archive_add_floats(archive, what, name, "lr", rates, count);
    free(rates);
    return status;
}

/* Fills `values`, at most `room`, that have to be rates; returns how many. */
static int read_rates(const ek_archive *archive, const char *what, const char *name,
                      const char *path, double *values, int room)
{
    int count = ek_archive_view_floats(archive, what, name, path, values, room);
    for (int i = 0; i < count; i++)
        if (!(values[i] >= 0))
            return EK_FAIL(EK_E_FORMAT,
                           "%s: %s: \"%.100s.%s\" of group %d is %g; a rate is 0 or more", what,
                           archive->path, name, path, i, values[i]);
    return count;
}

/* Of as many groups as there are. */
static int read_all_rates(const ek_archive *archive, const char *what, const char *name,
                          double *values, int groups)
{
    int count = read_rates(archive, what, name, "lr", values, groups);
    if (count >= 0 && count < groups)
        return EK_FAIL(EK_E_SHAPE,
                       "%s: %s: \"%.100s.lr\" is of %d groups, and the optimizer has %d", what,
                       archive->path, name, count, groups);
    return count < 0 ? count : 0;
}

/* They were checked. */
static void set_rates(ek_optimizer *optimizer, const double *values)
{
    for (int i = 0; i < ek_optimizer_group_count(optimizer); i++)
        ek_optimizer_set_lr(optimizer, i, values[i]);
}

/* ---- optimizers: out ---- */

typedef struct writer {
    ek_archive *archive;
    const char *name;
    ek_optimizer *optimizer;
    int count; /* of parameters */
} writer;

/* Divided ones are put together when they are written. They are noted where the parameter lies. */
static int put_state(const writer *w, const char *path, ek_tensor *parameter, const char *state)
{
    static const char what[] = "archive_put_optimizer";
    ek_device device = ek_tensor_device(parameter);
    ek_archive_entry entry = {.make = ek_state_parts_gather,
                              .shape = ek_tensor_shape(parameter),
                              .device = device};
    EK_TRY(ek_optimizer_state_parts(w->optimizer, parameter, state, &entry.object, &entry.dtype));
    char *below = ek_archive_join(path, state);
    int status = below ? 0 : EK_E_NO_MEMORY;
    if (status == 0 && entry.object) {
        status = ek_archive_add_made(w->archive, what, entry, w->name, below);
    } else if (status == 0) {
        ek_tensor *tensor = ek_optimizer_state(w->optimizer, parameter, state);
        if (tensor)
            status = ek_archive_add(w->archive, what, w->name, below, tensor, device);
        else
            status = ek_error_status(); /* 0: its group needs none */
    }
    ek_object_release(entry.object);
    free(below);
    return status;
}

static int put_parameter(const char *path, ek_tensor *parameter, void *user)
{
    writer *w = user;
    const char *state;
    if (!ek_optimizer_has(w->optimizer, parameter))
        return 0;
    int64_t steps = ek_optimizer_steps(w->optimizer, parameter);
    char *of_steps = ek_archive_join(path, "steps");
    int status = of_steps ? ek_archive_add_int(w->archive, "archive_put_optimizer", w->name,
                                               of_steps, steps, ek_tensor_device(parameter))
                          : EK_E_NO_MEMORY;
    free(of_steps);
    for (int s = 0; status == 0 && (state = ek_optimizer_state_name(w->optimizer, s)); s++)
        status = put_state(w, path, parameter, state);
    w->count++;
    return status;
}

static int put_optimizer(writer *w, ek_module *module)
{
    EK_TRY(ek_module_parameters(module, put_parameter, w));
    int all = ek_optimizer_parameter_count(w->optimizer);
    if (w->count != all)
        return EK_FAIL(EK_E_INVALID,
                       "archive_put_optimizer: \"%.200s\": %d of the optimizer's %d parameters are "
                       "none of the module's; put it with the module that holds all",
                       w->name, all - w->count, all);
    return put_rates(w->archive, "archive_put_optimizer", w->name, w->optimizer);
}

int ek_archive_put_optimizer(ek_archive *archive, const char *name, ek_optimizer *optimizer,
                             ek_module *module)
{
    static const char what[] = "archive_put_optimizer";
    EK_TRY(ek_archive_check_written(archive, what, name));
    EK_TRY(ek_archive_check_given(optimizer, what, "optimizer"));
    EK_TRY(ek_archive_check_given(module, what, "module"));
    writer w = {archive, name, optimizer, 0};
    ek_archive_mark mark = ek_archive_begin(archive);
    return ek_archive_end(archive, mark, put_optimizer(&w, module));
}

/* ---- optimizers: in ---- */

enum { MOST_STATES = 8 };

/* What a parameter's state is, or was before. */
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
    const ek_archive *archive;
    const char *name;
    ek_optimizer *optimizer;
    parameter_entry *entries;
    int count, room;
} reader;

static const char what_load[] = "archive_load_optimizer";

static int note_parameter(const char *path, ek_tensor *parameter, void *user)
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

/* A copy of what the parameter has, on cpu: nothing if it was never updated. */
static int note_before(const reader *r, parameter_entry *entry)
{
    state_set *before = &entry->before;
    const char *state;
    before->steps = ek_optimizer_steps(r->optimizer, entry->parameter);
    for (int s = 0; before->steps > 0 && (state = ek_optimizer_state_name(r->optimizer, s)); s++) {
        ek_tensor *tensor = ek_optimizer_state(r->optimizer, entry->parameter, state);
        if (!tensor && ek_error_status() == 0)
            continue; /* its group needs none */
        ek_tensor *copy = tensor ? ek_clone(ek_to_device(tensor, ek_cpu())) : NULL;
        if (!copy)
            return ek_error_pending();
        before->names[before->count] = state;
        before->tensors[before->count++] = copy;
    }
    return 0;
}

/* The tensors of the file right below the parameter's name, but for the steps. */
static int read_states(const reader *r, const char *name, state_set *set)
{
    ek_archive_range range = ek_archive_below(r->archive, name);
    for (int i = range.begin; i < range.end; i++) {
        const char *full = ek_safetensors_sorted(r->archive->file, i);
        const char *state = full + strlen(name) + 1;
        if (strcmp(state, "steps") == 0)
            continue;
        if (set->count == MOST_STATES)
            return EK_FAIL(EK_E_FORMAT, "%s: %s has more than %d states below \"%.200s\"",
                           what_load, r->archive->path, MOST_STATES, name);
        set->names[set->count] = state;
        set->tensors[set->count] = ek_safetensors_read(r->archive->file, full);
        if (!set->tensors[set->count++])
            return ek_error_pending();
    }
    return 0;
}

/* With the file and the parameter before the sentence of what failed. */
static int load_states(const reader *r, const parameter_entry *entry, const char *name)
{
    const int before = ek_error_status();
    state_set set = {0};
    EK_TRY(ek_archive_view_int(r->archive, what_load, name, "steps", &set.steps));
    EK_TRY(read_states(r, name, &set));
    int status = ek_optimizer_set_state(r->optimizer, entry->parameter, set.steps, set.names,
                                        set.tensors, set.count);
    if (status < 0)
        ek_error_prefix(before, "%s: %.200s: \"%.200s\"", what_load, r->archive->path, name);
    return status;
}

static int load_parameter(const reader *r, parameter_entry *entry)
{
    char *name = ek_archive_join(r->name, entry->path);
    if (!name)
        return EK_E_NO_MEMORY;
    ek_scope scope = ek_scope_begin();
    int status = load_states(r, entry, name);
    ek_scope_end(&scope);
    free(name);
    entry->changed = status >= 0;
    return status;
}

/* The memory for what was there before is there. */
static void undo(const reader *r)
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

/* Those that have no state yet first: if memory lacks, it does there. */
static int load_all(const reader *r)
{
    int status = 0;
    for (int i = 0; i < r->count && status >= 0; i++)
        status = note_before(r, &r->entries[i]);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < r->count && status >= 0; i++)
            if ((r->entries[i].before.steps > 0) == (pass == 1))
                status = load_parameter(r, &r->entries[i]);
    if (status < 0)
        undo(r);
    return status;
}

static int load_optimizer(reader *r, ek_module *module)
{
    int groups = ek_optimizer_group_count(r->optimizer);
    EK_TRY(ek_module_parameters(module, note_parameter, r));
    if (r->count == 0)
        return EK_FAIL(EK_E_INVALID, "%s: the optimizer has none of the module's parameters",
                       what_load);
    double *rates = ek_calloc((size_t)groups, sizeof *rates);
    int status =
        rates ? read_all_rates(r->archive, what_load, r->name, rates, groups) : EK_E_NO_MEMORY;
    if (status == 0)
        status = load_all(r);
    if (status == 0)
        set_rates(r->optimizer, rates);
    free(rates);
    return status;
}

int ek_archive_load_optimizer(const ek_archive *archive, const char *name, ek_optimizer *optimizer,
                              ek_module *module)
{
    EK_TRY(ek_archive_check_read(archive, what_load, name));
    EK_TRY(ek_archive_check_given(optimizer, what_load, "optimizer"));
    EK_TRY(ek_archive_check_given(module, what_load, "module"));
    reader r = {.archive = archive, .name = name, .optimizer = optimizer};
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = load_optimizer(&r, module);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    for (int i = 0; i < r.count; i++)
        free(r.entries[i].path);
    free(r.entries);
    return status;
}

/* ---- schedules: steps, the rates it began with, the rates now ---- */

int ek_archive_put_schedule(ek_archive *archive, const char *name, ek_schedule *schedule)
{
    static const char what[] = "archive_put_schedule";
    int count;
    EK_TRY(ek_archive_check_written(archive, what, name));
    EK_TRY(ek_archive_check_given(schedule, what, "schedule"));
    ek_archive_mark mark = ek_archive_begin(archive);
    const double *initial = ek_schedule_initial(schedule, &count);
    int status =
        ek_archive_add_int(archive, what, name, "steps", ek_schedule_steps(schedule), ek_cpu());
    if (status == 0)
        status = ek_archive_add_floats(archive, what, name, "initial_lr", initial, count);
    if (status == 0)
        status = put_rates(archive, what, name, ek_schedule_optimizer(schedule));
    return ek_archive_end(archive, mark, status);
}

static int load_schedule(const ek_archive *archive, const char *name, ek_schedule *schedule,
                         double *initial, double *rates, int groups)
{
    static const char what[] = "archive_load_schedule";
    int64_t steps = 0;
    EK_TRY(ek_archive_view_int(archive, what, name, "steps", &steps));
    if (steps < 0 || steps == INT64_MAX)
        return EK_FAIL(EK_E_FORMAT, "%s: %s: \"%.200s\" is of a schedule after %lld steps", what,
                       archive->path, name, (long long)steps);
    int count = read_rates(archive, what, name, "initial_lr", initial, groups);
    if (count < 0)
        return count;
    EK_TRY(read_all_rates(archive, what, name, rates, groups));
    EK_TRY(ek_schedule_restore(schedule, steps, initial, count));
    set_rates(ek_schedule_optimizer(schedule), rates);
    return 0;
}

int ek_archive_load_schedule(const ek_archive *archive, const char *name, ek_schedule *schedule)
{
    EK_TRY(ek_archive_check_read(archive, "archive_load_schedule", name));
    EK_TRY(ek_archive_check_given(schedule, "archive_load_schedule", "schedule"));
    int groups = ek_optimizer_group_count(ek_schedule_optimizer(schedule));
    double *numbers = ek_calloc(2 * (size_t)groups, sizeof *numbers);
    if (!numbers)
        return EK_E_NO_MEMORY;
    int status = load_schedule(archive, name, schedule, numbers, numbers + groups, groups);
    free(numbers);
    return status;
}

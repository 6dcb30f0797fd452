#include "gan/checkpoint.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- what decides the numbers ---- */

enum { KEYS = 12, PLANS = 2 };

typedef struct run_metadata {
    ek_metadata entries[KEYS + PLANS]; /* keys are those of the command line, then plans */
    char texts[KEYS][32];
    char *plans[PLANS]; /* owned */
    int count;
} run_metadata;

static void add_text(run_metadata *metadata, const char *key, const char *format, ...)
    EK_PRINTF(3, 4);
static void add_text(run_metadata *metadata, const char *key, const char *format, ...)
{
    char *text = metadata->texts[metadata->count];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(metadata->texts[0]), format, arguments);
    va_end(arguments);
    metadata->entries[metadata->count++] = (ek_metadata){key, text};
}

/* "format" and "step" first. */
static void describe(run_metadata *metadata, const run_settings *settings, int64_t step)
{
    *metadata = (run_metadata){.count = 0};
    add_text(metadata, "format", "evenkeel gan 1");
    add_text(metadata, "step", "%" PRId64, step);
    add_text(metadata, "seed", "%" PRId64, settings->seed);
    add_text(metadata, "dtype", "%s", ek_dtype_name(settings->dtype));
    add_text(metadata, "width", "%" PRId64, settings->width);
    add_text(metadata, "critic-norm", "%s", norm_names[settings->norm]);
    add_text(metadata, "penalty", "%s", penalty_names[settings->penalty]);
    add_text(metadata, "weight", "%.17g", settings->weight);
    add_text(metadata, "loss", "%s", loss_names[settings->loss]);
    add_text(metadata, "batch", "%" PRId64, settings->batch);
    add_text(metadata, "critic-steps", "%" PRId64, settings->critic_steps);
    add_text(metadata, "lr", "%.17g", settings->lr);
}

static int compare(const char *path, const ek_safetensors *file, const run_settings *settings,
                   int64_t *step)
{
    run_metadata own;

    describe(&own, settings, 0);
    for (int i = 0; i < own.count; i++) {
        const char *key = own.entries[i].key, *value = own.entries[i].value;
        const char *found = ek_safetensors_metadata(file, key);
        if (!found)
            return ek_error(EK_E_FORMAT,
                            "%s: no \"%s\" in it; a checkpoint of this program is needed", path,
                            key);
        if (strcmp(key, "step") == 0)
            *step = strtoll(found, NULL, 10);
        else if (strcmp(found, value) != 0)
            return ek_error(EK_E_INVALID,
                            "%s was made with --%s %s, not %s; it goes on with that only", path,
                            key, found, value);
    }
    if (*step < 0 || *step > settings->steps)
        return ek_error(EK_E_INVALID, "%s is at step %lld; --steps %lld asks for fewer", path,
                        (long long)*step, (long long)settings->steps);
    return 0;
}

/* ---- what is in a file, said once for both directions ---- */

typedef struct transfer {
    gan_job *job;
    run_records *records;
    const ek_safetensors *file; /* to load from; NULL: tensors are collected */
    ek_named_tensor *tensors;   /* names are owned */
    int count, room;
    const char *prefix;      /* of the module being walked */
    ek_optimizer *optimizer; /* its optimizer; NULL for its tensors */
} transfer;

static int collect(transfer *t, const char *name, ek_tensor *tensor)
{
    if (t->count == t->room) {
        int room = t->room ? 2 * t->room : 64;
        ek_named_tensor *grown = realloc(t->tensors, (size_t)room * sizeof(*grown));
        if (!grown)
            return ek_error(EK_E_NO_MEMORY, "no memory for a checkpoint of %d tensors", room);
        t->tensors = grown;
        t->room = room;
    }
    char *copy = strdup(name);
    if (!tensor || !copy) {
        free(copy);
        return ek_error(EK_E_NO_MEMORY, "no memory for %s", name);
    }
    t->tensors[t->count++] = (ek_named_tensor){copy, tensor};
    return 0;
}

/* A tensor of the file whose shape and dtype must be `like`'s. */
static ek_tensor *read_like(const transfer *t, const char *name, const ek_tensor *like)
{
    ek_tensor *found = ek_safetensors_read(t->file, name);
    char text[160], wanted_text[160];

    if (!found)
        return NULL;
    ek_shape shape = ek_tensor_shape(found), wanted = ek_tensor_shape(like);
    if (ek_shape_equal(&shape, &wanted) && ek_tensor_dtype(found) == ek_tensor_dtype(like))
        return found;
    ek_error(EK_E_SHAPE, "checkpoint: %s is %s %s, but %s %s is needed", name,
             ek_dtype_name(ek_tensor_dtype(found)), ek_shape_text(&shape, text),
             ek_dtype_name(ek_tensor_dtype(like)), ek_shape_text(&wanted, wanted_text));
    return NULL;
}

static int tensor_visitor(const char *path, ek_tensor *tensor, void *user)
{
    transfer *t = user;
    char name[256];

    snprintf(name, sizeof(name), "%s.%s", t->prefix, path);
    if (!t->file)
        return collect(t, name, tensor);
    ek_tensor *found = read_like(t, name, tensor);
    return found && ek_copy_(tensor, found) ? 0 : ek_error_status();
}

/* How many updates a parameter had, and its states. */
static int save_state(transfer *t, const char *path, ek_tensor *parameter)
{
    int64_t steps = ek_optimizer_steps(t->optimizer, parameter);
    const char *state;
    char name[256];

    snprintf(name, sizeof(name), "%s_optimizer.%s.steps", t->prefix, path);
    int rc = collect(t, name, ek_from_data(&steps, EK_SHAPE(1), EK_I64));
    for (int i = 0; rc == 0 && steps > 0 && (state = ek_optimizer_state_name(t->optimizer, i));
         i++) {
        snprintf(name, sizeof(name), "%s_optimizer.%s.%s", t->prefix, path, state);
        rc = collect(t, name, ek_optimizer_state(t->optimizer, parameter, state));
    }
    return rc;
}

static int load_state(transfer *t, const char *path, ek_tensor *parameter)
{
    enum { MOST = 8 };
    const char *names[MOST];
    ek_tensor *states[MOST];
    int count = 0;
    double steps;
    char name[256];

    snprintf(name, sizeof(name), "%s_optimizer.%s.steps", t->prefix, path);
    ek_tensor *of_steps = ek_safetensors_read(t->file, name);
    int rc = of_steps ? ek_item(of_steps, &steps) : ek_error_status();
    while (rc == 0 && steps > 0 && count < MOST &&
           (names[count] = ek_optimizer_state_name(t->optimizer, count))) {
        snprintf(name, sizeof(name), "%s_optimizer.%s.%s", t->prefix, path, names[count]);
        states[count] = read_like(t, name, parameter);
        rc = states[count++] ? 0 : ek_error_status();
    }
    return rc == 0 ? ek_optimizer_set_state(t->optimizer, parameter, (int64_t)steps, names, states,
                                            count)
                   : rc;
}

static int state_visitor(const char *path, ek_tensor *parameter, void *user)
{
    transfer *t = user;

    return t->file ? load_state(t, path, parameter) : save_state(t, path, parameter);
}

static int transfer_network(transfer *t, const char *prefix, ek_module *network,
                            ek_optimizer *optimizer)
{
    t->prefix = prefix;
    t->optimizer = optimizer;
    int rc = ek_module_parameters(network, tensor_visitor, t);
    if (rc == 0)
        rc = ek_module_buffers(network, tensor_visitor, t);
    return rc == 0 ? ek_module_parameters(network, state_visitor, t) : rc;
}

static int transfer_random(transfer *t)
{
    uint8_t state[EK_GENERATOR_STATE_BYTES];

    if (!t->file) {
        int rc = ek_generator_get_state(t->job->random, state, sizeof(state));
        return rc == 0 ? collect(t, "random",
                                 ek_from_data(state, EK_SHAPE(EK_GENERATOR_STATE_BYTES), EK_U8))
                       : rc;
    }
    ek_tensor *found = ek_safetensors_read(t->file, "random");
    int rc = found ? ek_to_data(found, state, sizeof(state)) : ek_error_status();
    return rc == 0 ? ek_generator_set_state(t->job->random, state, sizeof(state)) : rc;
}

static int transfer_series(transfer *t, record_series series)
{
    run_records *records = t->records;
    char name[64];

    snprintf(name, sizeof(name), "records.%s", series_names[series]);
    if (!t->file)
        return collect(t, name,
                       ek_from_data(records->values[series], EK_SHAPE(records->counts[series]),
                                    EK_F64));
    ek_tensor *found = ek_safetensors_read(t->file, name);
    if (!found)
        return ek_error_status();
    int64_t count = ek_tensor_count(found);
    if (count > records->room[series] || ek_tensor_dtype(found) != EK_F64)
        return ek_error(EK_E_INVALID, "checkpoint: %s holds %lld numbers; there is room for %lld",
                        name, (long long)count, (long long)records->room[series]);
    records->counts[series] = count;
    return ek_to_data(found, records->values[series], (size_t)count * sizeof(double));
}

static int transfer_all(transfer *t)
{
    gan_job *job = t->job;
    bool had_gradients = ek_set_grad_enabled(false);
    int rc = transfer_network(t, "generator", job->generator, job->generator_optimizer);

    if (rc == 0)
        rc = transfer_network(t, "critic", job->critic, job->critic_optimizer);
    if (rc == 0)
        rc = transfer_random(t);
    for (int s = 0; s < SERIES && rc == 0; s++)
        rc = transfer_series(t, (record_series)s);
    ek_set_grad_enabled(had_gradients);
    return rc;
}

/* ---- plans ---- */

static int add_plan(run_metadata *metadata, int index, const char *key, ek_module *model)
{
    int64_t length = ek_data_parallel_plan(model, NULL, 0);
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);

    if (!text)
        return length < 0 ? ek_error_status() : ek_error(EK_E_NO_MEMORY, "no memory for a plan");
    ek_data_parallel_plan(model, text, (size_t)length + 1);
    metadata->plans[index] = text;
    metadata->entries[metadata->count++] = (ek_metadata){key, text};
    return 0;
}

static int add_plans(run_metadata *metadata, const gan_job *job)
{
    if (!job->settings.automatic)
        return 0;
    int rc = add_plan(metadata, 0, "generator_plan", job->generator_model);
    return rc == 0 ? add_plan(metadata, 1, "critic_plan", job->critic_model) : rc;
}

char *checkpoint_plan(const char *path, const char *which)
{
    ek_safetensors *file = ek_safetensors_open(path);
    const char *found = file ? ek_safetensors_metadata(file, which) : NULL;
    char *plan = found && *found ? strdup(found) : NULL;

    ek_safetensors_close(file);
    return plan;
}

/* ---- saving and loading ---- */

int checkpoint_save(const char *path, gan_job *job, const run_records *records, int64_t step)
{
    run_metadata metadata;
    run_records copy = *records; /* its arrays are only read */
    transfer t = {.job = job, .records = &copy};
    ek_scope scope = ek_scope_begin();

    describe(&metadata, &job->settings, step);
    int rc = transfer_all(&t);
    if (rc == 0)
        rc = add_plans(&metadata, job);
    if (rc == 0)
        rc = ek_safetensors_save(path, t.tensors, t.count, metadata.entries, metadata.count);
    for (int i = 0; i < t.count; i++)
        free((char *)t.tensors[i].name);
    free(t.tensors);
    for (int i = 0; i < PLANS; i++)
        free(metadata.plans[i]);
    ek_scope_end(&scope);
    return rc;
}

int checkpoint_load(const char *path, gan_job *job, run_records *records, int64_t *step)
{
    transfer t = {.job = job, .records = records, .file = ek_safetensors_open(path)};
    ek_scope scope = ek_scope_begin();
    int rc = t.file ? compare(path, t.file, &job->settings, step) : ek_error_status();

    if (rc == 0)
        rc = transfer_all(&t);
    for (int i = 0; i < SERIES && rc == 0; i++) {
        int64_t wanted = i < CRITIC_SERIES ? *step * job->settings.critic_steps : *step;
        if (records->counts[i] != wanted)
            rc = ek_error(EK_E_FORMAT, "%s: %s has %lld numbers; %lld belong to step %lld", path,
                          series_names[i], (long long)records->counts[i], (long long)wanted,
                          (long long)*step);
    }
    ek_scope_end(&scope);
    ek_safetensors_close((ek_safetensors *)t.file);
    return rc;
}

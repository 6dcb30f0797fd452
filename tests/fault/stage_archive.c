/* stage_archive.c: archive.h: saving and loading a run, for other devices too. */
#include <string.h>

#include "fault.h"

typedef struct archive_row {
    const char *name;
    bool save;    /* else load */
    bool sharded; /* the optimizer that is saved, or loaded into */
    bool other;   /* loads into another number of devices */
    bool pth;     /* a file of torch.save */
} archive_row;

static const archive_row rows[] = {
    {"save", true, false, false, false},         {"save-sharded", true, true, false, false},
    {"save-pth", true, true, false, true},       {"load", false, false, false, false},
    {"load-sharded", false, true, false, false}, {"load-other-devices", false, true, true, false},
    {"load-pth", false, false, true, true},
};

typedef struct archive_run {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
    ek_grad_scaler *scaler;
    ek_loader *loader;
    ek_generator *generator;
} archive_run;

static archive_run run;

static ek_loader *make_loader(void)
{
    ek_tensor *x = ek_randn(EK_SHAPE(6, 2));
    return ek_data_loader(ek_tensor_dataset(x), .batch_size = 2, .shuffle = true);
}

static int make(archive_run *r, int devices, bool sharded)
{
    ek_device_list list = ek_devices(EK_HOST, devices);
    r->model =
        ek_data_parallel_model(ek_sequential(ek_linear(2, 3), ek_batch_norm1d(3), ek_linear(3, 1)),
                               .device_ids = list,
                               .shard = sharded ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE,
                               .split = EK_SPLIT_EVEN);
    r->criterion = ek_data_parallel_criterion(ek_mse_loss(), .device_ids = list);
    r->optimizer = ek_adam(r->model, .lr = 0.01);
    r->schedule = r->optimizer ? ek_step_lr(r->optimizer, 2, 0.5) : NULL;
    r->scaler = r->optimizer ? ek_grad_scaler_new(.init_scale = 512) : NULL;
    r->loader = make_loader();
    r->generator = ek_generator_new(11);
    return ek_error_status();
}

static int step(archive_run *r)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_randn(EK_SHAPE(6, 2)), *y = ek_randn(EK_SHAPE(6, 1));
    int status =
        ek_train_step(NULL, .model = r->model, .criterion = r->criterion, .optimizer = r->optimizer,
                      .input = EK_VALUE(x), .target = EK_VALUE(y));
    ek_scope_end(&scope);
    return status < 0 ? status : ek_schedule_step(r->schedule);
}

static void give_back(archive_run *r)
{
    ek_loader_free(r->loader);
    ek_schedule_free(r->schedule);
    ek_grad_scaler_free(r->scaler);
    ek_optimizer_free(r->optimizer);
    ek_module_free(r->model);
    ek_module_free(r->criterion);
    ek_generator_free(r->generator);
    memset(r, 0, sizeof *r);
}

/* ---- saving ---- */

/* Each put tells what it could not do; none may leave an error behind a 0. */
static int put_all(ek_archive *a)
{
    FAULT_TRY(ek_archive_put_module(a, "model", run.model));
    FAULT_TRY(ek_archive_put_optimizer(a, "optimizer", run.optimizer, run.model));
    if (ek_error_status() < 0)
        fault_broken("a put that gives 0 leaves no error pending");
    FAULT_TRY(ek_archive_put_schedule(a, "schedule", run.schedule));
    FAULT_TRY(ek_archive_put_grad_scaler(a, "scaler", run.scaler));
    FAULT_TRY(ek_archive_put_random(a, "random"));
    FAULT_TRY(ek_archive_put_generator(a, "generator", run.generator));
    FAULT_TRY(ek_archive_put_plan(a, "plan", run.model));
    FAULT_TRY(ek_archive_put(a, "loader", ek_loader_state(run.loader)));
    FAULT_TRY(ek_archive_put(a, "step", ek_value_of_int(12)));
    FAULT_TRY(ek_archive_put(a, "rate", ek_value_of_float(0.5)));
    return ek_archive_put_text(a, "text", "a \"text\"\n");
}

static int save(const char *path)
{
    ek_archive *a = ek_archive_new();
    int status = a ? put_all(a) : ek_error_status();
    if (status >= 0)
        status = ek_archive_save(a, path);
    ek_archive_free(a);
    return status;
}

/* ---- loading ---- */

/* Everything is loaded, or nothing of what failed: the order is that of what must not change. */
static int load_all(ek_archive *a)
{
    int64_t number = 0;
    double rate = 0;
    ek_load_report report;
    FAULT_TRY(ek_archive_get_int(a, "step", &number));
    FAULT_TRY(ek_archive_get_float(a, "rate", &rate));
    FAULT_TRY(fault_note_value(ek_archive_get(a, "loader")));
    FAULT_TRY(fault_note_tensor(ek_archive_tensor(a, "model.0.weight", NULL)));
    FAULT_TRY(ek_loader_load_state(run.loader, ek_archive_get(a, "loader")));
    FAULT_TRY(ek_archive_load_generator(a, "generator", run.generator));
    FAULT_TRY(ek_archive_load_random(a, "random"));
    FAULT_TRY(ek_archive_load_schedule(a, "schedule", run.schedule));
    FAULT_TRY(ek_archive_load_grad_scaler(a, "scaler", run.scaler));
    FAULT_TRY(ek_archive_load_optimizer(a, "optimizer", run.optimizer, run.model));
    FAULT_TRY(ek_archive_load_module(a, "model", run.model, .report = &report));
    fault_note((double)number + rate);
    return 0;
}

static int load(const char *path)
{
    ek_archive *a = ek_archive_open(path);
    int status = a ? load_all(a) : ek_error_status();
    for (int i = 0; i < 2 && status >= 0; i++)
        fault_note(ek_archive_name(a, i) ? (double)strlen(ek_archive_name(a, i)) : 0);
    if (status >= 0 && !ek_archive_text_name(a, 0))
        status = ek_error(EK_E_USER, "the name of the text is lost");
    if (status >= 0 && (!ek_archive_has(a, "text") || !ek_archive_get_text(a, "text")))
        status = ek_error(EK_E_USER, "the text is lost");
    ek_archive_free(a);
    return status;
}

/* ---- the stage ---- */

static const char *path_of(int row)
{
    return fault_path(rows[row].pth ? "run.pth" : "run.safetensors");
}

static int archive_set_up(int row)
{
    const archive_row *r = &rows[row];
    int status = make(&run, 3, r->sharded && r->save);
    for (int i = 0; i < 2 && status >= 0; i++)
        status = step(&run);
    if (status >= 0)
        status = save(path_of(row));
    if (status < 0 || r->save)
        return status;
    give_back(&run);
    return make(&run, r->other ? 2 : 3, r->sharded);
}

static int archive_attempt(int row)
{
    const char *path = path_of(row);
    return rows[row].save ? save(path) : load(path);
}

/* After a failed save the file is the old one or, if only its directory could not be synchronised,
 * the new one, always whole. After a failed load the module is as before. */
static int archive_world(int row)
{
    if (!rows[row].save) {
        int status = fault_note_parameters(run.model);
        return status < 0 ? status : fault_note_buffers(run.model);
    }
    ek_archive *a = ek_archive_open(path_of(row));
    int status = a ? fault_note_value(ek_archive_get(a, "")) : ek_error_status();
    ek_archive_free(a);
    return status;
}

static void archive_clear(int row)
{
    give_back(&run);
}

FAULT_STAGE(archive, FAULT_ROWS(rows), .set_up = archive_set_up, .attempt = archive_attempt,
            .world = archive_world, .clear = archive_clear, .files = true, .may_be_done = true);

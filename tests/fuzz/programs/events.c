/* events.c: see events.h. */
#include "events.h"

#include <string.h>

#include "steps.h"

static const char *checkpoint_file = "fuzz_programs.safetensors";

void run_set_file(const char *path)
{
    checkpoint_file = path;
}

/* ---- forwards ---- */

static int sum_of_squares(ek_value value, double *sum)
{
    double part;
    int rc = 0;
    if (value.kind == EK_VALUE_TENSOR) {
        rc = ek_item(ek_sum(ek_square(value.as.tensor)), &part);
        *sum += rc < 0 ? 0 : part;
    } else if (value.kind == EK_VALUE_ERROR) {
        return ek_error_status();
    }
    for (int i = 0; rc >= 0 && i < ek_value_length(value); i++)
        rc = sum_of_squares(ek_value_at(value, i), sum);
    return rc;
}

int event_evaluate(runner *r, const step *s, int number)
{
    ek_scope scope = ek_scope_begin();
    bool before = ek_set_grad_enabled(false);
    ek_module_train(r->t.model, false);
    r->output = 0;
    ek_value output = step_forward(&r->t, s, 100 + number);
    int rc = sum_of_squares(ek_value_to_device(output, ek_cpu(), 0), &r->output);
    ek_module_train(r->t.model, true);
    ek_set_grad_enabled(before);
    ek_scope_end(&scope);
    return rc;
}

int event_forward(runner *r, const step *s, int number)
{
    ek_scope scope = ek_scope_begin();
    bool before = ek_set_grad_enabled(number % 2);
    ek_value output = step_forward(&r->t, s, 200 + number);
    ek_set_grad_enabled(before);
    ek_scope_end(&scope);
    return output.kind == EK_VALUE_ERROR ? ek_error_status() : 0;
}

int event_hold(runner *r, const step *s, int number)
{
    ek_scope scope = ek_scope_begin();
    ek_value output = step_forward(&r->t, s, 300 + number);
    if (output.kind != EK_VALUE_ERROR) {
        ek_value_release(r->t.held);
        r->t.held = ek_value_keep(output);
    }
    ek_scope_end(&scope);
    return output.kind == EK_VALUE_ERROR ? ek_error_status() : 0;
}

/* ---- checkpoints ---- */

static int save(trainer *t)
{
    ek_archive *a = ek_archive_new();
    int rc = a ? ek_archive_put_module(a, "model", t->model) : ek_error_status();
    if (rc >= 0)
        rc = ek_archive_put_optimizer(a, "optimizer", t->optimizer, t->model);
    if (rc >= 0 && t->schedule)
        rc = ek_archive_put_schedule(a, "schedule", t->schedule);
    if (rc >= 0)
        rc = ek_archive_put_random(a, "random");
    if (rc >= 0)
        rc = ek_archive_save(a, checkpoint_file);
    ek_archive_free(a);
    return rc;
}

static int load(trainer *t)
{
    ek_archive *a = ek_archive_open(checkpoint_file);
    int rc = a ? ek_archive_load_module(a, "model", t->model) : ek_error_status();
    if (rc >= 0)
        rc = ek_archive_load_optimizer(a, "optimizer", t->optimizer, t->model);
    if (rc >= 0 && t->schedule)
        rc = ek_archive_load_schedule(a, "schedule", t->schedule);
    if (rc >= 0)
        rc = ek_archive_load_random(a, "random");
    ek_archive_free(a);
    return rc;
}

int event_checkpoint(runner *r, const step *s, int number)
{
    trainer other;
    int next = 1 - r->way;
    int rc = save(&r->t);
    if (rc >= 0)
        rc = trainer_open(&other, r->p, r->options->one_device ? &one_device : &r->p->ways[next]);
    if (rc < 0)
        return rc;
    rc = load(&other);
    if (rc < 0) {
        trainer_close(&other, r->p->order);
        return rc;
    }
    other.report = r->t.report;
    r->t.report = NULL;
    trainer_close(&r->t, r->p->order + number);
    r->t = other;
    r->way = next;
    return 0;
}

/* ---- others ---- */

int event_report(runner *r, const step *s, int number)
{
    if (r->options->one_device)
        return 0;
    if (!r->t.report) {
        r->t.report = ek_report_start(.name = "fuzz");
        return r->t.report ? 0 : ek_error_status();
    }
    FILE *nowhere = fopen("/dev/null", "w");
    int rc = ek_report_stop(r->t.report);
    if (rc >= 0 && nowhere)
        rc = ek_report_table(r->t.report, nowhere);
    if (nowhere)
        fclose(nowhere);
    ek_report_free(r->t.report);
    r->t.report = NULL;
    return rc;
}

static int try_batch(int64_t batch, void *user)
{
    runner *r = user;
    double loss;
    step s = r->p->steps[r->number];
    s.batch = (int)batch;
    return step_do(&r->t, &s, 400 + r->number, 0, &loss);
}

/* On a device that has room for some batches. What the search may not change shows later. */
int event_find_batch(runner *r, const step *s, int number)
{
    char before[65], after[65];
    ek_memory_stats stats;
    ek_device device = ek_host(r->t.w->on[0]);
    if (r->options->one_device)
        return 0;
    if (ek_module_sha256(r->t.model, before) < 0 || ek_memory_get_stats(device, &stats) < 0)
        return ek_error_status();
    ek_memory_set_capacity(device, stats.in_use + stats.peak);
    int64_t batch = ek_find_batch(.function = try_batch, .user = r, .model = r->t.model,
                                  .optimizer = r->t.optimizer, .first = 2, .most = 6 + number);
    ek_memory_set_capacity(device, 0);
    if (batch < 0 || ek_module_sha256(r->t.model, after) < 0)
        return ek_error_status();
    if (strcmp(before, after) != 0)
        return ek_error(EK_E_STATE, "find_batch has changed parameters");
    return 0;
}

int event_rate(runner *r, const step *s, int number)
{
    return ek_optimizer_set(r->t.optimizer, 0, "lr", 0.02 / (1 + number));
}

static int shrink_parameter(const char *path, ek_tensor *tensor, void *user)
{
    return ek_mul_scalar_(tensor, 0.95) ? 0 : ek_error_status();
}

int event_touch(runner *r, const step *s, int number)
{
    bool before = ek_set_grad_enabled(false);
    int rc = ek_module_parameters(r->t.model, shrink_parameter, NULL);
    ek_set_grad_enabled(before);
    return rc;
}

static int perturb_parameter(const char *path, ek_tensor *tensor, void *user)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *noise = ek_rand(ek_tensor_shape(tensor), ek_tensor_dtype(tensor));
    noise = ek_add_scalar(ek_mul_scalar(noise, *(const double *)user), 1);
    int rc = ek_mul_(tensor, ek_to_device(noise, ek_tensor_device(tensor))) ? 0 : ek_error_status();
    ek_scope_end(&scope);
    return rc;
}

int event_perturb(runner *r)
{
    double size = r->options->perturbation;
    bool before = ek_set_grad_enabled(false);
    int rc = ek_module_parameters(r->t.model, perturb_parameter, &size);
    ek_set_grad_enabled(before);
    return rc;
}

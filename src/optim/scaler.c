/* scaler.c: scales losses for gradients in f16, and skips steps whose gradients are not finite. */
#include "evenkeel/scaler.h"

#include <math.h>
#include <stdlib.h>

#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "kernels/kernels.h"
#include "optim/gradient_list.h"

/* An optimizer whose gradients were unscaled since the last update. */
typedef struct scaler_entry {
    const ek_optimizer *optimizer; /* compared by its address, never read */
    /* The gradients' norm, in which the largest element counts; one reference. NULL: `finite` is
     * known. */
    ek_tensor *largest;
    bool finite, stepped;
} scaler_entry;

struct ek_grad_scaler {
    float scale;
    double growth_factor, backoff_factor;
    int64_t growth_interval, tracker, skipped;
    bool enabled;
    scaler_entry *entries; /* one per optimizer */
    int entry_count, entry_room;
};

static int scaler_check_options(const ek_grad_scaler *scaler)
{
    if (!(scaler->scale > 0) || !isfinite(scaler->scale))
        return EK_FAIL(EK_E_INVALID, "grad_scaler: init_scale is %g; it has to be above 0",
                       (double)scaler->scale);
    if (!(scaler->growth_factor > 1) || !isfinite(scaler->growth_factor))
        return EK_FAIL(EK_E_INVALID, "grad_scaler: growth_factor is %g; it has to be above 1",
                       scaler->growth_factor);
    if (!(scaler->backoff_factor > 0 && scaler->backoff_factor < 1))
        return EK_FAIL(EK_E_INVALID,
                       "grad_scaler: backoff_factor is %g; it has to lie between 0 and 1",
                       scaler->backoff_factor);
    if (scaler->growth_interval < 1)
        return EK_FAIL(EK_E_INVALID, "grad_scaler: growth_interval is %lld; it has to be 1 or more",
                       (long long)scaler->growth_interval);
    return 0;
}

/* Empties the list of optimizers. */
static void scaler_forget(ek_grad_scaler *scaler)
{
    while (scaler->entry_count > 0)
        ek_release(scaler->entries[--scaler->entry_count].largest);
}

ek_grad_scaler *ek_grad_scaler_new_with(ek_grad_scaler_options options)
{
    ek_grad_scaler *scaler = ek_calloc(1, EK_RETIRABLE(sizeof *scaler));
    if (!scaler)
        return NULL;
    scaler->enabled = options.enabled;
    scaler->scale = (float)options.init_scale;
    scaler->growth_factor = options.growth_factor;
    scaler->backoff_factor = options.backoff_factor;
    scaler->growth_interval = options.growth_interval;
    if (scaler_check_options(scaler) == 0)
        return scaler;
    ek_grad_scaler_free(scaler);
    return NULL;
}

void ek_grad_scaler_free(ek_grad_scaler *scaler)
{
    EK_RELEASES("ek_grad_scaler_free", scaler);
    scaler_forget(scaler);
    free(scaler->entries);
    ek_retire(scaler, EK_RETIRABLE(sizeof *scaler), "scaler", scaler);
}

/* Returns 0, or the error of a scaler that is NULL. */
static int scaler_check(const char *what, const ek_grad_scaler *scaler)
{
    EK_TRY(ek_check_pointer(what, "the scaler", scaler));
    EK_TRY(ek_check_alive(what, "the scaler", scaler));
    return ek_fork_check();
}

ek_tensor *ek_grad_scaler_scale(ek_grad_scaler *scaler, ek_tensor *loss)
{
    if (scaler_check("grad_scaler_scale", scaler) < 0)
        return NULL;
    return scaler->enabled ? ek_mul_scalar(loss, (double)scaler->scale) : loss;
}

/* ---- gradients ---- */

/* Divides the gradients by the scale. Returns the largest element that they had, as
 * ek_gradients_norm does, one reference; NULL with an error. Doesn't wait for devices. */
static ek_tensor *scaler_divide(const ek_grad_scaler *scaler, ek_optimizer *optimizer)
{
    ek_gradient_list list = {.name = "grad_scaler_unscale"};
    const double factor = (double)(float)(1 / (double)scaler->scale);
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = ek_gradients_open(&list, optimizer, NULL, NULL, 0);
    if (status >= 0)
        status = ek_gradients_collect(&list);
    ek_tensor *largest = ek_gradients_norm(&list, status, INFINITY, INFINITY);
    if (largest && ek_gradients_scale(&list, NULL, factor) < 0)
        largest = NULL;
    ek_keep(largest);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    ek_gradients_free(&list);
    return largest;
}

/* Waits for the largest element, and notes whether the gradients were finite. */
static int scaler_settle(scaler_entry *entry)
{
    double values[EK_NORM_NUMBERS];
    if (!entry->largest)
        return 0;
    EK_TRY(ek_to_data(entry->largest, values, sizeof values));
    entry->finite = isfinite(values[EK_NORM_VALUE]);
    ek_release(entry->largest);
    entry->largest = NULL;
    return 0;
}

static scaler_entry *scaler_find(const ek_grad_scaler *scaler, const ek_optimizer *optimizer)
{
    for (int i = 0; i < scaler->entry_count; i++)
        if (scaler->entries[i].optimizer == optimizer)
            return &scaler->entries[i];
    return NULL;
}

/* Unscales the optimizer's gradients, and adds the optimizer to the list. */
static int scaler_unscale(ek_grad_scaler *scaler, ek_optimizer *optimizer)
{
    ek_tensor *largest = NULL;
    EK_TRY(ek_grow(&scaler->entries, &scaler->entry_room, scaler->entry_count + 1));
    if (scaler->enabled && !(largest = scaler_divide(scaler, optimizer)))
        return ek_error_pending();
    scaler->entries[scaler->entry_count++] = (scaler_entry){optimizer, largest, true, false};
    return 0;
}

int ek_grad_scaler_unscale(ek_grad_scaler *scaler, ek_optimizer *optimizer)
{
    EK_TRY(scaler_check("grad_scaler_unscale", scaler));
    EK_TRY(ek_optimizer_check(optimizer));
    const scaler_entry *entry = scaler_find(scaler, optimizer);
    if (entry)
        return EK_FAIL(EK_E_STATE,
                       "grad_scaler_unscale: this optimizer's gradients were %s since the last "
                       "update",
                       entry->stepped ? "stepped with" : "unscaled");
    return scaler_unscale(scaler, optimizer);
}

/* Makes the step of an optimizer whose gradients are unscaled, or skips it. If they are clipped,
 * the wait for the norm is the only one, because a finite norm has finite elements. */
static int scaler_step(ek_grad_scaler *scaler, scaler_entry *entry, ek_optimizer *optimizer,
                       double max_norm)
{
    double norm = INFINITY;
    if (max_norm > 0)
        EK_TRY(ek_clip_finite(optimizer, max_norm, &norm));
    if (!isfinite(norm))
        EK_TRY(scaler_settle(entry));
    if (max_norm > 0 && entry->finite)
        EK_TRY(ek_clip_check(norm));
    if (entry->finite)
        EK_TRY(ek_step(optimizer));
    entry->stepped = true;
    scaler->skipped += !entry->finite;
    return 0;
}

int ek_grad_scaler_step(ek_grad_scaler *scaler, ek_optimizer *optimizer)
{
    EK_TRY(scaler_check("grad_scaler_step", scaler));
    EK_TRY(ek_optimizer_check(optimizer));
    EK_TRY(ek_optimizer_check_step(optimizer, "grad_scaler_step: ", 0));
    scaler_entry *entry = scaler_find(scaler, optimizer);
    if (entry && entry->stepped)
        return EK_FAIL(EK_E_STATE,
                       "grad_scaler_step: this optimizer has stepped since the last update");
    if (!entry) {
        EK_TRY(scaler_unscale(scaler, optimizer));
        entry = scaler_find(scaler, optimizer);
    }
    return scaler_step(scaler, entry, optimizer, 0);
}

int ek_grad_scaler_step_clipped(ek_grad_scaler *scaler, ek_optimizer *optimizer, double max_norm)
{
    EK_TRY(ek_grad_scaler_unscale(scaler, optimizer));
    scaler_entry *entry = scaler_find(scaler, optimizer);
    int rc = scaler_step(scaler, entry, optimizer, max_norm);
    if (rc >= 0)
        return ek_grad_scaler_update(scaler);
    ek_release(entry->largest);
    *entry = scaler->entries[--scaler->entry_count];
    return rc;
}

/* ---- the scale ---- */

int ek_grad_scaler_update(ek_grad_scaler *scaler)
{
    bool finite = true;
    EK_TRY(scaler_check("grad_scaler_update", scaler));
    if (scaler->entry_count == 0 && scaler->enabled)
        return EK_FAIL(EK_E_STATE, "grad_scaler_update: no optimizer's gradients were unscaled "
                                   "since the last update");
    for (int i = 0; i < scaler->entry_count; i++) {
        if (!scaler->entries[i].stepped)
            EK_TRY(scaler_settle(&scaler->entries[i]));
        finite = finite && scaler->entries[i].finite;
    }
    scaler_forget(scaler);
    if (!scaler->enabled)
        return 0;
    if (!finite) {
        scaler->scale = (float)((double)scaler->scale * scaler->backoff_factor);
        scaler->tracker = 0;
    } else if (++scaler->tracker >= scaler->growth_interval) {
        float grown = (float)((double)scaler->scale * scaler->growth_factor);
        scaler->scale = isfinite(grown) ? grown : scaler->scale;
        scaler->tracker = 0;
    }
    return 0;
}

double ek_grad_scaler_factor(const ek_grad_scaler *scaler)
{
    return !scaler || scaler_check("grad_scaler_factor", scaler) < 0 ? 0
           : scaler->enabled                                         ? (double)scaler->scale
                                                                     : 1;
}

int64_t ek_grad_scaler_tracker(const ek_grad_scaler *scaler)
{
    return scaler && scaler_check("grad_scaler_tracker", scaler) == 0 ? scaler->tracker : 0;
}

int64_t ek_grad_scaler_skipped(const ek_grad_scaler *scaler)
{
    return scaler && scaler_check("grad_scaler_skipped", scaler) == 0 ? scaler->skipped : 0;
}

int ek_grad_scaler_set(ek_grad_scaler *scaler, double scale, int64_t tracker)
{
    EK_TRY(scaler_check("grad_scaler_set", scaler));
    if (!(scale > 0) || !isfinite((float)scale) || tracker < 0 || tracker == INT64_MAX)
        return EK_FAIL(EK_E_INVALID,
                       "grad_scaler_set: scale %g after %lld updates; a scale is above 0, and "
                       "updates are 0 or more and below 2^63 - 1",
                       scale, (long long)tracker);
    scaler->scale = (float)scale;
    scaler->tracker = tracker;
    return 0;
}

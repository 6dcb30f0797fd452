#include "gan/train.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/progress.h"
#include "gan/chart.h"
#include "gan/checkpoint.h"
#include "gan/picture.h"

/* ---- opening and closing ---- */

/* Takes the batches that `steps` generator steps have used. */
static int skip(train_run *run, int64_t steps)
{
    int64_t taken;

    for (int64_t i = 0; i < steps * run->settings.critic_steps; i++)
        if (!order_take(&run->order, run->settings.batch, &taken))
            return ek_error_status();
    return 0;
}

int train_open(train_run *run, const run_settings *settings, const ek_device_list *devices)
{
    *run = (train_run){.settings = *settings};
    int rc = data_open(&run->data, settings->data);
    if (rc == 0)
        rc = job_open(&run->job, settings, devices);
    if (rc == 0)
        rc = records_open(&run->records, settings->steps, settings->critic_steps);
    if (rc == 0)
        rc = order_open(&run->order, run->data.count, settings->seed);
    if (rc == 0 && settings->resume)
        rc = checkpoint_load(settings->resume, &run->job, &run->records, &run->step);
    return rc == 0 ? skip(run, run->step) : rc;
}

int train_close(train_run *run)
{
    order_close(&run->order);
    records_close(&run->records);
    job_close(&run->job);
    data_close(&run->data);
    return ek_shutdown();
}

/* ---- files ---- */

static void path_in(const train_run *run, const char *name, char *path, size_t nbytes)
{
    snprintf(path, nbytes, "%s/%s", run->settings.out, name);
}

void train_checkpoint_path(const train_run *run, char *path, size_t nbytes)
{
    path_in(run, "checkpoint.safetensors", path, nbytes);
}

static int write_picture(train_run *run)
{
    static uint8_t pixels[GRID_SIDE * GRID_SIDE];
    char name[64], path[4096];

    snprintf(name, sizeof(name), "samples-%06" PRId64 ".png", run->step);
    path_in(run, name, path, sizeof(path));
    int rc = picture_grid(&run->job, pixels);
    return rc == 0 ? picture_write(path, pixels, GRID_SIDE, GRID_SIDE) : rc;
}

int train_write(train_run *run)
{
    char path[4096];
    int rc = write_picture(run);

    path_in(run, "losses.html", path, sizeof(path));
    if (rc == 0 && chart_write(path, &run->settings, run->job.devices.count, &run->records) < 0)
        rc = ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    train_checkpoint_path(run, path, sizeof(path));
    return rc == 0 ? checkpoint_save(path, &run->job, &run->records, run->step) : rc;
}

/* ---- steps ---- */

static int critic_step(train_run *run)
{
    ek_scope scope = ek_scope_begin();
    critic_record record;
    int64_t taken;
    const int64_t *which = order_take(&run->order, run->settings.batch, &taken);
    ek_tensor *real = which ? data_batch(&run->data, which, taken, run->settings.dtype) : NULL;
    int rc = real ? job_critic_step(&run->job, real, &record) : ek_error_status();

    ek_scope_end(&scope);
    if (rc == 0) {
        records_add(&run->records, CRITIC_LOSSES, record.loss);
        records_add(&run->records, PENALTIES, record.penalty);
        records_add(&run->records, WASSERSTEIN, record.wasserstein);
        records_add(&run->records, GRADIENT_NORMS, record.gradient_norm);
    }
    return rc;
}

int train_step(train_run *run)
{
    double begin = seconds_now(), loss;
    int rc = 0;

    for (int64_t i = 0; i < run->settings.critic_steps && rc == 0; i++)
        rc = critic_step(run);
    if (rc == 0)
        rc = job_generator_step(&run->job, run->settings.batch, &loss);
    if (rc == 0) {
        records_add(&run->records, GENERATOR_LOSSES, loss);
        records_add(&run->records, SECONDS, seconds_now() - begin);
        run->step++;
    }
    return rc;
}

static void show(progress_bar *bar, const train_run *run)
{
    char note[96];

    snprintf(note, sizeof(note), "critic %.3f  penalty %.3f  W %.3f",
             records_last(&run->records, CRITIC_LOSSES), records_last(&run->records, PENALTIES),
             records_last(&run->records, WASSERSTEIN));
    progress_show(bar, (int)run->step, note);
}

int train_steps(train_run *run, const volatile sig_atomic_t *stopped)
{
    const run_settings *settings = &run->settings;
    progress_bar bar = progress_begin(mode_names[settings->mode], (int)settings->steps,
                                      (int)(settings->batch * settings->critic_steps));
    int64_t written = -1; /* the last step with files: none of this run yet */
    int rc = 0;

    bar.first = (int)run->step;
    while (rc == 0 && run->step < settings->steps && !*stopped) {
        rc = train_step(run);
        if (rc == 0)
            show(&bar, run);
        if (rc == 0 && settings->out && run->step % settings->every == 0) {
            rc = train_write(run);
            written = run->step;
        }
    }
    progress_end(&bar);
    if (rc == 0 && settings->out && written < run->step)
        rc = train_write(run);
    return rc;
}

#include "classify/train.h"

#include <inttypes.h>

#include "classify/checkpoint.h"
#include "common/progress.h"

/* ---- opening and closing ---- */

/* Both sets, before anything else: a run without them is not begun. */
static int open_data(train_run *run, ek_dataset **training, ek_dataset **testing)
{
    *training = data_open(&run->settings, true);
    *testing = *training ? data_open(&run->settings, false) : NULL;
    if (!*testing)
        return ek_error_status();
    run->has_data = true;
    run->train_count = ek_dataset_length(*training);
    if (run->train_count < 1 || ek_dataset_length(*testing) < 1)
        return ek_error(EK_E_INVALID, "%s: there are no pictures in it", run->settings.data);
    run->epoch_steps = (run->train_count + run->settings.batch - 1) / run->settings.batch;
    run->last_step = run->settings.epochs * run->epoch_steps;
    if (run->settings.steps > 0 && run->settings.steps < run->last_step)
        run->last_step = run->settings.steps;
    return 0;
}

/* Job and loaders; the checkpoint, where there is one, says which plan was followed. */
static int open_parts(train_run *run, const ek_device_list *devices, ek_archive *from,
                      ek_dataset **training, ek_dataset **testing)
{
    const run_settings *settings = &run->settings;
    const char *plan = settings->plan ? settings->plan : checkpoint_plan(from, devices->count);

    int rc = job_open(&run->job, settings, devices, plan, run->epoch_steps);
    if (rc < 0)
        return rc;
    data_parts parts = job_parts(&run->job);
    run->test_random = ek_generator_new((uint64_t)settings->seed);
    run->training = data_training(settings, *training, &parts);
    *training = NULL; /* the loader's */
    run->testing = data_testing(settings, *testing, run->test_random, devices->devices[0]);
    *testing = NULL;
    return ek_error_status();
}

int train_open(train_run *run, const run_settings *settings, const ek_device_list *devices)
{
    ek_dataset *training = NULL, *testing = NULL;
    ek_archive *from = NULL;

    *run = (train_run){.settings = *settings};
    int rc = open_data(run, &training, &testing);
    if (rc == 0)
        rc = records_open(&run->records, settings->epochs);
    if (rc == 0 && settings->resume) {
        from = checkpoint_open(settings);
        rc = from ? 0 : ek_error_status();
    }
    if (rc == 0)
        rc = open_parts(run, devices, from, &training, &testing);
    if (rc == 0 && from)
        rc = checkpoint_load(from, run);
    ek_archive_free(from);
    ek_dataset_free(training);
    ek_dataset_free(testing);
    return rc;
}

int train_close(train_run *run)
{
    ek_loader_free(run->training);
    ek_loader_free(run->testing);
    ek_generator_free(run->test_random);
    job_close(&run->job);
    records_close(&run->records);
    return ek_shutdown();
}

void train_checkpoint_path(const train_run *run, char *path, size_t nbytes)
{
    snprintf(path, nbytes, "%s/checkpoint.safetensors", run->settings.out);
}

/* ---- a step ---- */

/* Seconds that the training loader has been waited for so far. */
static int waited(const train_run *run, double *seconds)
{
    ek_loader_stats stats;
    int rc = ek_loader_get_stats(run->training, &stats);

    *seconds = rc == 0 ? 1e-9 * (double)stats.waited_ns : 0;
    return rc;
}

/* The end of a pass comes between its last batch and the next one's first. */
static int next_batch(train_run *run, ek_batch *batch)
{
    int rc = ek_loader_next(run->training, batch);

    if (rc == 0)
        rc = ek_loader_next(run->training, batch);
    return rc == 0 ? ek_error(EK_E_STATE, "the loader has no batches") : rc;
}

static int run_step(train_run *run)
{
    ek_scope scope = ek_scope_begin();
    double begin = seconds_now(), before, after = 0, loss = 0;
    ek_batch batch;

    int rc = waited(run, &before);
    if (rc == 0)
        rc = next_batch(run, &batch);
    if (rc >= 0)
        rc = job_step(&run->job, &batch, &loss);
    if (rc == 0)
        rc = waited(run, &after);
    if (rc == 0) {
        records_add(&run->records, loss, batch.count, seconds_now() - begin, after - before);
        run->step++;
    }
    ek_scope_end(&scope);
    return rc;
}

static int end_epoch(train_run *run)
{
    int rc = evaluate(run->job.network, run->testing, &run->tested);

    if (rc == 0)
        records_end_epoch(&run->records, run->tested.loss, run->tested.accuracy);
    return rc;
}

int train_step(train_run *run)
{
    int rc = run_step(run);

    run->tested.count = 0; /* what was tested has changed */
    return rc == 0 && run->step % run->epoch_steps == 0 ? end_epoch(run) : rc;
}

/* ---- steps ---- */

static int save(const train_run *run)
{
    char path[4096];

    train_checkpoint_path(run, path, sizeof(path));
    return checkpoint_save(path, run);
}

/* After an epoch a line that stays. */
static void show(progress_bar *bar, const train_run *run)
{
    const run_records *records = &run->records;
    char note[64];

    if (run->step % run->epoch_steps == 0 && records->count > 0) {
        const epoch_record *last = &records->epochs[records->count - 1];
        progress_end(bar);
        printf("Epoch %" PRId64 " of %" PRId64
               ": training loss %.4f, test loss %.4f, accuracy %.2f %%, %.0f s\n",
               records->count, run->settings.epochs, last->train_loss, last->test_loss,
               100 * last->test_accuracy, last->seconds);
        fflush(stdout);
        return;
    }
    snprintf(note, sizeof(note), "epoch %" PRId64 ", loss %.4f", records->count + 1,
             records->now.loss / records->now.samples);
    progress_show(bar, (int)run->step, note);
}

static double trained_seconds(const train_run *run)
{
    return records_total(&run->records).seconds;
}

int train_steps(train_run *run, const volatile sig_atomic_t *stopped)
{
    const run_settings *settings = &run->settings;
    progress_bar bar =
        progress_begin(mode_names[settings->mode], (int)run->last_step, (int)settings->batch);
    const int64_t first = run->step;
    const double before = trained_seconds(run);
    int64_t written = -1; /* the last step that was written: none of this run yet */
    int rc = 0;

    bar.first = (int)first;
    while (rc == 0 && run->step < run->last_step && !*stopped) {
        rc = train_step(run);
        if (rc < 0)
            break;
        show(&bar, run);
        bool due = run->step % run->epoch_steps == 0 ||
                   (settings->every > 0 && run->step % settings->every == 0);
        if (settings->out && due) {
            rc = save(run);
            written = run->step;
        }
    }
    progress_end(&bar);
    double seconds = trained_seconds(run) - before;
    run->speed = seconds > 0 ? (double)((run->step - first) * settings->batch) / seconds : 0;
    if (rc == 0 && settings->out && written < run->step)
        rc = save(run);
    if (rc == 0 && run->step >= run->last_step && run->tested.count == 0)
        rc = evaluate(run->job.network, run->testing, &run->tested);
    return rc;
}

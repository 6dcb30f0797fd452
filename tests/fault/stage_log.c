/* stage_log.c: log.h: a log that is written and one that is resumed; a line of progress. */
#include <stdlib.h>
#include <string.h>

#include "fault.h"

static FILE *stream;

/* Notes steps and values of the CSV file; its times differ. */
static void note_scalars(const char *directory)
{
    char path[160], row[200];
    snprintf(path, sizeof path, "%s/scalars.csv", directory);
    FILE *file = fopen(path, "r");
    while (file && fgets(row, sizeof row, file)) {
        fault_note(atof(row));
        fault_note(atof(strrchr(row, ',') + 1));
    }
    if (file)
        fclose(file);
}

/* Opens a log, writes an entry of each kind for two steps, and closes it. */
static int write_log(const char *name, int64_t resume_step)
{
    char directory[128];
    snprintf(directory, sizeof directory, "%s", fault_path(name));
    ek_tensor *x = ek_full(0.5, EK_SHAPE(3, 4, 4), .device = ek_host(1));
    ek_run_log *log = ek_log_open(directory, .resume_step = resume_step);
    if (!log)
        return ek_error_status();
    int status = 0;
    for (int64_t step = resume_step + 1; step <= resume_step + 2 && status >= 0; step++) {
        status = ek_log_scalar(log, "loss", step, 0.25);
        if (status >= 0)
            status = ek_log_text(log, "text", step, "text");
        if (status >= 0)
            status = ek_log_image(log, "picture", step, x);
        if (status >= 0)
            status = ek_log_histogram(log, "histogram", step, x);
    }
    const int closed = ek_log_close(log);
    if (status < 0 && closed != status)
        fault_broken("ek_log_close returns the first error");
    if (closed >= 0)
        note_scalars(directory);
    return closed;
}

static int write_new(void)
{
    return write_log("log", -1);
}

static int write_resumed(void)
{
    return write_log("resumed", 1);
}

static int show_progress(void)
{
    ek_progress *progress = ek_progress_begin(2, .name = "run", .stream = stream);
    if (!progress)
        return ek_error_status();
    ek_progress_step(progress, 1, "loss %g", 0.5);
    ek_progress_print(progress, "line %d", 1);
    ek_progress_step(progress, 1, NULL);
    ek_progress_end(progress);
    return 0;
}

static const struct {
    const char *name;
    int (*attempt)(void);
} rows[] = {{"new", write_new}, {"resumed", write_resumed}, {"progress", show_progress}};

static int log_set_up(int row)
{
    stream = fopen("/dev/null", "w");
    return rows[row].attempt == write_resumed ? write_log("resumed", -1) : 0;
}

static int log_attempt(int row)
{
    return rows[row].attempt();
}

static void log_clear(int row)
{
    if (stream)
        fclose(stream);
    stream = NULL;
}

FAULT_STAGE(log, FAULT_ROWS(rows), .set_up = log_set_up, .attempt = log_attempt, .clear = log_clear,
            .files = true);

/* log.c: logs: opened, also after a crash; numbers, texts and pictures; closed.
 *
 * Roads:
 *     ek_log_open_with -> log_open_rows (CSV, JSON lines) -> rows_trim -> ek_log_open_file
 *                      -> ek_log_open_events              -> ek_log_open_file
 *     ek_log_scalar    -> ek_log_row_begin -> ek_log_row_end -> each file: ek_appended_add */
#include "log/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/world.h"
#include "data/image.h"

/* ---- rows of an earlier run ---- */

/* The rows of a file, one per line. */
typedef struct rows {
    ek_mapped text;
    int64_t resume_step;
    size_t kept; /* bytes of the rows that are kept */
} rows;

/* Tells whether a row is kept. Each row begins with its step. The CSV file's first row has no step
 * and is kept. */
static bool rows_keep(const rows *of, const char *row)
{
    static const char key[] = "{\"step\":";
    const char *digits = strncmp(row, key, sizeof key - 1) == 0 ? row + sizeof key - 1 : row;
    char *end;
    const long long step = strtoll(digits, &end, 10);
    return end == digits || of->resume_step == EK_UNSET || step <= of->resume_step;
}

/* Counts the bytes of [from, to), and writes them if there is a file. */
static int rows_put(rows *of, const ek_file *file, const char *from, const char *to)
{
    of->kept += (size_t)(to - from);
    return file ? ek_file_write(file, from, (size_t)(to - from)) : 0;
}

/* Writes the rows that are kept, without a last row that was cut off. If `file` is NULL, only
 * counts their bytes. */
static int rows_write(const ek_file *file, void *user)
{
    rows *of = user;
    const char *row = (const char *)of->text.bytes, *end = row + of->text.nbytes, *newline;
    const char *kept = row; /* the first of the rows before `row` that are kept and not written */
    of->kept = 0;
    for (; row < end && (newline = memchr(row, '\n', (size_t)(end - row))); row = newline + 1) {
        if (rows_keep(of, row))
            continue;
        EK_TRY(rows_put(of, file, kept, row));
        kept = newline + 1;
    }
    return rows_put(of, file, kept, row);
}

static int rows_trim(const char *path, int64_t resume_step)
{
    rows of = {.resume_step = resume_step};
    EK_TRY(ek_file_map("log_open", path, &of.text));
    int rc = rows_write(NULL, &of);
    if (of.kept < of.text.nbytes)
        rc = ek_file_replace("log_open", path, rows_write, &of);
    ek_file_unmap(&of.text);
    return rc;
}

/* ---- opening and closing ---- */

/* Returns "DIRECTORY/NAME", owned by the caller; NULL if memory is short. */
static char *log_path(const ek_run_log *log, const char *name)
{
    const size_t room = strlen(log->directory) + strlen(name) + 2;
    char *path = ek_calloc(room, 1);
    if (path)
        snprintf(path, room, "%s/%s", log->directory, name);
    return path;
}

int ek_log_open_file(ek_run_log *log, ek_log_kind kind, const char *name)
{
    char *path = log_path(log, name);
    int rc = path ? ek_appended_open(&log->files[kind], "log_open", path) : EK_E_NO_MEMORY;
    if (rc >= 0)
        log->paths[kind] = path;
    else
        free(path);
    return rc;
}

static int log_open_rows(ek_run_log *log, ek_log_kind kind, const char *name, int64_t resume_step)
{
    char *path = log_path(log, name);
    int rc = path ? 0 : EK_E_NO_MEMORY;
    if (path && access(path, F_OK) == 0)
        rc = rows_trim(path, resume_step);
    else if (path && errno != ENOENT)
        rc = ek_file_fail("log_open", "read", path);
    free(path);
    return rc < 0 ? rc : ek_log_open_file(log, kind, name);
}

static int log_open(ek_run_log *log, const ek_run_log_options *options)
{
    static const char columns[] = "step,wall_time,tag,value\n";
    const int64_t step = options->resume_step;
    ek_appended *csv = &log->files[EK_LOG_CSV];
    EK_TRY(ek_check_pointer("log_open", "the directory", options->directory));
    if (options->rank >= 0 && options->rank != ek_world.rank)
        return 0;
    log->directory = ek_strdup(options->directory);
    if (!log->directory)
        return EK_E_NO_MEMORY;
    if (options->csv || options->jsonl || options->tensorboard)
        EK_TRY(ek_file_make_directory("log_open", log->directory));
    if (options->csv)
        EK_TRY(log_open_rows(log, EK_LOG_CSV, "scalars.csv", step));
    if (options->csv && csv->nbytes == 0)
        EK_TRY(ek_appended_add(csv, columns, sizeof columns - 1));
    if (options->jsonl)
        EK_TRY(log_open_rows(log, EK_LOG_JSONL, "log.jsonl", step));
    return options->tensorboard ? ek_log_open_events(log, step) : 0;
}

ek_run_log *ek_log_open_with(ek_run_log_options options)
{
    ek_run_log *log = ek_calloc(1, sizeof *log);
    if (log && log_open(log, &options) < 0) {
        ek_log_close(log);
        log = NULL;
    }
    return log;
}

int ek_log_close(ek_run_log *log)
{
    if (!log)
        return ek_error_status();
    for (int kind = 0; kind < EK_LOG_FILES; kind++) {
        log->files[kind].file.what = "log_close";
        if (log->paths[kind])
            ek_log_note_error(log, ek_appended_close(&log->files[kind]));
        free(log->paths[kind]);
    }
    int rc = log->first.status;
    if (rc < 0)
        ek_error_raise(&log->first);
    free(log->directory);
    free(log);
    return rc;
}

/* ---- entries ---- */

static void members_of_scalar(ek_json_writer *json, const void *of)
{
    ek_json_put_real(json, "value", *(const double *)of, 17);
}

int ek_log_scalar(ek_run_log *log, const char *tag, int64_t step, double value)
{
    enum { SIMPLE_VALUE = 2 };
    ek_log_row row;
    int rc = ek_log_row_begin(&row, "log_scalar", log, tag, step);
    if (rc <= 0)
        return rc;
    ek_protobuf_float(&row.value, SIMPLE_VALUE, (float)value);
    row.members = members_of_scalar;
    row.of = row.number = &value;
    return ek_log_row_end(&row, 0);
}

static void members_of_text(ek_json_writer *json, const void *of)
{
    ek_json_put_text(json, "text", of);
}

/* A text is a tensor of one string. TensorBoard's plugin "text" shows the tensor. */
static void log_put_text(ek_protobuf *value, const char *text)
{
    enum { TENSOR = 8, METADATA = 9, DTYPE = 1, SHAPE = 2, STRINGS = 8, STRING = 7 };
    ek_protobuf size = {0}, shape = {0}, tensor = {0}, plugin = {0}, metadata = {0};
    ek_protobuf_int(&size, 1, 1);
    ek_protobuf_message(&shape, 2, &size);
    ek_protobuf_int(&tensor, DTYPE, STRING);
    ek_protobuf_message(&tensor, SHAPE, &shape);
    ek_protobuf_text(&tensor, STRINGS, text);
    ek_protobuf_text(&plugin, 1, "text");
    ek_protobuf_message(&metadata, 1, &plugin);
    ek_protobuf_message(value, TENSOR, &tensor);
    ek_protobuf_message(value, METADATA, &metadata);
}

int ek_log_text(ek_run_log *log, const char *tag, int64_t step, const char *text)
{
    ek_log_row row;
    int rc = ek_log_row_begin(&row, "log_text", log, tag, step);
    if (rc <= 0)
        return rc;
    rc = ek_check_pointer("log_text", "the text", text);
    if (rc >= 0 && !ek_utf8_is_valid(text))
        rc = EK_FAIL(EK_E_INVALID, "log_text: %s: the text is not UTF-8", tag);
    if (rc >= 0)
        log_put_text(&row.value, text);
    row.members = members_of_text;
    row.of = text;
    return ek_log_row_end(&row, rc);
}

/* ---- pictures ---- */

static void members_of_image(ek_json_writer *json, const void *of)
{
    ek_json_put_text(json, "picture", of);
}

/* Writes "pictures/TAG-STEP.png". A '/' of the tag becomes %2F and a '%' becomes %25, so that
 * different tags have different files. */
static void image_name(const char *tag, int64_t step, char name[800])
{
    char *at = name + snprintf(name, 800, "pictures/");
    for (; *tag; tag++)
        at += snprintf(at, 4, *tag == '/' || *tag == '%' ? "%%%02X" : "%c", (unsigned char)*tag);
    snprintf(at, 32, "-%06" PRId64 ".png", step);
}

/* Writes the file that the JSON line names. */
static int image_save(const ek_run_log *log, const char *name, ek_png *png)
{
    char *pictures = log_path(log, "pictures"), *path = log_path(log, name);
    int rc = pictures && path ? ek_file_make_directory("log_image", pictures) : EK_E_NO_MEMORY;
    if (rc >= 0)
        rc = ek_png_save("log_image", path, png);
    free(path);
    free(pictures);
    return rc;
}

static void log_put_image(ek_protobuf *value, const ek_png *png)
{
    enum { IMAGE = 4, HEIGHT = 1, WIDTH, COLORSPACE, ENCODED };
    ek_protobuf image = {0};
    ek_protobuf_int(&image, HEIGHT, png->height);
    ek_protobuf_int(&image, WIDTH, png->width);
    ek_protobuf_int(&image, COLORSPACE, png->channels);
    ek_protobuf_bytes(&image, ENCODED, png->bytes, png->nbytes);
    ek_protobuf_message(value, IMAGE, &image);
}

int ek_log_image(ek_run_log *log, const char *tag, int64_t step, ek_tensor *pictures)
{
    const ek_grid_options grid = EK_OPTIONS(ek_grid_options, pictures);
    char name[800];
    ek_png png;
    ek_log_row row;
    int rc = ek_log_row_begin(&row, "log_image", log, tag, step);
    if (rc <= 0)
        return rc;
    rc = ek_png_of_grid("log_image", &grid, &png);
    image_name(tag, step, name);
    if (rc >= 0 && log->paths[EK_LOG_JSONL])
        rc = image_save(log, name, &png);
    if (rc >= 0)
        log_put_image(&row.value, &png);
    free(png.bytes);
    row.members = members_of_image;
    row.of = name;
    return ek_log_row_end(&row, rc);
}

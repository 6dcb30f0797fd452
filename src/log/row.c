/* row.c: entries of a log: checked, and written to the CSV file, the JSON lines and the events. */
#include "log/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/locale.h"

enum { TAG_MOST = 200, SUMMARY_TAG = 1 };

double ek_log_wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int row_check_tag(const char *what, const char *tag)
{
    EK_TRY(ek_check_pointer(what, "the tag", tag));
    const size_t length = strlen(tag);
    bool good = length > 0 && length <= TAG_MOST && ek_utf8_is_valid(tag);
    for (const char *c = tag; good && *c; c++)
        good = (unsigned char)*c >= ' ' && *c != 0x7f;
    if (good)
        return 0;
    return EK_FAIL(EK_E_INVALID,
                   "%s: tag \"%.*s\": a tag has 1 to %d bytes of UTF-8 without control characters",
                   what, TAG_MOST, ek_utf8_is_valid(tag) ? tag : "?", TAG_MOST);
}

int ek_log_note_error(ek_run_log *log, int rc)
{
    if (rc < 0 && log->first.status == 0) {
        ek_error_take(&log->first);
        ek_error_raise(&log->first);
    }
    return rc;
}

int ek_log_row_begin(ek_log_row *row, const char *what, ek_run_log *log, const char *tag,
                     int64_t step)
{
    if (!log)
        return ek_error_status();
    *row = (ek_log_row){.log = log, .what = what, .tag = tag, .step = step};
    if (!log->directory)
        return 0;
    int rc = ek_log_note_error(log, row_check_tag(what, tag));
    if (rc < 0)
        return rc;
    for (int kind = 0; kind < EK_LOG_FILES; kind++)
        log->files[kind].file.what = what;
    row->wall_time = ek_log_wall_time();
    ek_protobuf_text(&row->value, SUMMARY_TAG, tag);
    return 1;
}

/* ---- CSV ---- */

/* Writes the tag, in quotation marks if it has a comma or a quotation mark (RFC 4180). */
static void row_quote(const char *tag, char text[2 * TAG_MOST + 3])
{
    const bool plain = tag[strcspn(tag, ",\"")] == '\0';
    if (!plain)
        *text++ = '"';
    for (; *tag; tag++) {
        if (*tag == '"')
            *text++ = '"';
        *text++ = *tag;
    }
    if (!plain)
        *text++ = '"';
    *text = '\0';
}

static int row_add_csv(const ek_log_row *row)
{
    char tag[2 * TAG_MOST + 3], line[sizeof tag + 100];
    row_quote(row->tag, tag);
    size_t nbytes = ek_format(line, sizeof line, "%" PRId64 ",%.6f,%s,%.17g\n", row->step,
                              row->wall_time, tag, *row->number);
    return ek_appended_add(&row->log->files[EK_LOG_CSV], line, nbytes);
}

/* ---- JSON ---- */

static void row_put_json(const ek_log_row *row, ek_json_writer *json)
{
    ek_json_begin(json, NULL, '{');
    ek_json_put_integer(json, "step", row->step);
    ek_json_put_real(json, "wall_time", row->wall_time, 16);
    ek_json_put_text(json, "tag", row->tag);
    row->members(json, row->of);
    ek_json_close(json, '}');
}

static int row_add_json(const ek_log_row *row)
{
    ek_json_writer counted = {0}, json = {0};
    row_put_json(row, &counted);
    json.bytes = ek_calloc(counted.nbytes + 1, 1);
    if (!json.bytes)
        return EK_E_NO_MEMORY;
    row_put_json(row, &json);
    json.bytes[json.nbytes++] = '\n';
    int rc = ek_appended_add(&row->log->files[EK_LOG_JSONL], json.bytes, json.nbytes);
    free(json.bytes);
    return rc;
}

/* ---- all files ---- */

int ek_log_row_end(ek_log_row *row, int rc)
{
    ek_run_log *log = row->log;
    if (rc >= 0 && log->paths[EK_LOG_CSV] && row->number)
        rc = row_add_csv(row);
    if (rc >= 0 && log->paths[EK_LOG_JSONL])
        rc = row_add_json(row);
    if (rc >= 0 && log->paths[EK_LOG_EVENTS])
        rc = ek_log_add_event(row);
    ek_protobuf_clear(&row->value);
    return ek_log_note_error(log, rc);
}

/* log.h: logs and their entries. ek_log_row_begin begins an entry, the function of the entry's kind
 * (log.c, histogram.c) fills the entry, and ek_log_row_end writes it. events.c has TensorBoard's
 * format. */
#ifndef EK_LOG_LOG_H
#define EK_LOG_LOG_H

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/protobuf.h"
#include "evenkeel/log.h"

typedef enum ek_log_kind { EK_LOG_CSV, EK_LOG_JSONL, EK_LOG_EVENTS, EK_LOG_FILES } ek_log_kind;

struct ek_run_log {
    char *directory;           /* owned; NULL: another rank writes */
    char *paths[EK_LOG_FILES]; /* owned; NULL: the file is not written */
    ek_appended files[EK_LOG_FILES];
    ek_error_record first; /* the first error of all calls; status 0: none */
};

typedef struct ek_log_row {
    ek_run_log *log;
    const char *what, *tag; /* the function, for errors; the entry's tag */
    int64_t step;
    double wall_time; /* seconds since 1970 */
    /* Set by the function of the entry's kind: TensorBoard's Summary.Value without the tag; the
     * members of the JSON object after the tag; the number for the CSV file, NULL: none. */
    ek_protobuf value;
    void (*members)(ek_json_writer *json, const void *of);
    const void *of;
    const double *number;
} ek_log_row;

/* Begins an entry. Returns 1; 0 if nothing is to be written; or a negative status. After 1 the
 * caller calls ek_log_row_end. */
int ek_log_row_begin(ek_log_row *row, const char *what, ek_run_log *log, const char *tag,
                     int64_t step);
/* Writes the entry if rc, the outcome of filling it, is 0. Returns 0 or the error. */
int ek_log_row_end(ek_log_row *row, int rc);

/* Keeps the pending error of a negative rc if the error is the log's first. Returns rc. */
int ek_log_note_error(ek_run_log *log, int rc);
double ek_log_wall_time(void);

/* Opens a file of the log's directory. */
int ek_log_open_file(ek_run_log *log, ek_log_kind kind, const char *name);
/* Opens a new file of events, which begins with the format's version. If the run is resumed, the
 * next event has the first step whose entries TensorBoard drops from earlier files. */
int ek_log_open_events(ek_run_log *log, int64_t resume_step);
/* Appends the entry as an event, and empties row->value. */
int ek_log_add_event(ek_log_row *row);

#endif

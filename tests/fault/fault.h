/* fault.h: stages, in which every call that can fail fails once.
 *
 * A stage is a table of rows. For each point of a row (inject.h) the judge sets the row up, has it
 * attempted while that point fails, and looks: an error has a sentence and a status that fits; what
 * it left is as before, and a second attempt gives what an undisturbed one does, to the bit; a
 * success has done so at once. Then all is cleared, and nothing may be left. */
#ifndef EVENKEEL_TESTS_FAULT_FAULT_H
#define EVENKEEL_TESTS_FAULT_FAULT_H

#include <evenkeel/evenkeel.h>

#include "inject.h"

/* A callback has all parameters of its type. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { FAULT_DEVICES = 3, FAULT_MOST_ROWS = 256 };

typedef struct fault_stage {
    const char *name;
    int rows;
    const void *names; /* rows of so many bytes, whose first member is a name (FAULT_ROWS) */
    size_t stride;
    /* What an attempt starts from; NULL: nothing. Nothing fails in it. */
    int (*set_up)(int row);
    /* Runs in a scope of its own and notes what it computes. 0 or a negative status; it can be
     * called again. */
    int (*attempt)(int row);
    /* What a failed attempt leaves as it was, by fault_note and the like; NULL: nothing. */
    int (*world)(int row);
    /* Frees all that is left; NULL: nothing. */
    void (*clear)(int row);
    bool may_be_done; /* what failed may have been done all the same, as a whole */
    bool files;       /* reads or writes files: points of io count */
    bool cold;        /* begins, each time, as the process does: without devices and threads */
    bool keeps_world; /* a call that succeeds leaves the world as it was, to the bit */
    double tolerance; /* relative, of the numbers noted, where digests may differ; 0: to the bit */
    struct fault_stage *next;
} fault_stage;

/* Members of a stage whose rows are an array of structs that begin with a name. */
#define FAULT_ROWS(array) \
    .rows = sizeof(array) / sizeof *(array), .names = (array), .stride = sizeof *(array)
const char *fault_row_name(const fault_stage *stage, int row);

void fault_register(fault_stage *stage);
fault_stage *fault_stages(void); /* in the order of their names */

/* FAULT_STAGE(name, FAULT_ROWS(rows), .attempt = ...): enters a stage in the table. */
#define FAULT_STAGE(id, ...)                                           \
    static fault_stage fault_stage_##id = {.name = #id, __VA_ARGS__};  \
    static void __attribute__((constructor)) fault_register_##id(void) \
    {                                                                  \
        fault_register(&fault_stage_##id);                             \
    }                                                                  \
    struct fault_stage /* a semicolon follows */

/* ---- for stages ---- */

/* Returns a negative status from the function at hand. */
#define FAULT_TRY(call)            \
    do {                           \
        int fault_status = (call); \
        if (fault_status < 0)      \
            return fault_status;   \
    } while (0)

/* All host devices, FAULT_DEVICES of them. */
ek_device_list fault_devices(void);
/* Each computes with one thread, so that the order of calls repeats. The judge has done this, but
 * for stages that begin without devices. */
int fault_use_one_thread(void);
/* A file in this run's folder; the text is valid until the fourth call from now. */
const char *fault_path(const char *name);

/* What is noted is compared; what follows fault_note_part bears its name. Those that return int
 * give 0 or a negative status. */
void fault_note_part(const char *name);
/* A promise that was broken: an anomaly, whatever the attempt gives. */
void fault_broken(const char *promise);
void fault_note(double number);
void fault_note_bytes(const void *data, size_t nbytes);
int fault_note_tensor(ek_tensor *tensor); /* also NULL without an error: none */
int fault_note_numbers(
    ek_tensor *tensor);               /* its elements as numbers: at most FAULT_NUMBERS in all */
int fault_note_value(ek_value value); /* the tensors and numbers of a nest */
int fault_note_parameters(ek_module *module);
int fault_note_buffers(ek_module *module);
int fault_note_gradients(ek_module *module);
/* Rates, step counts and states. */
int fault_note_optimizer(ek_optimizer *optimizer, ek_module *module);

/* ---- for the judge ---- */

enum { FAULT_NUMBERS = 96, FAULT_PARTS = 8 };

typedef struct fault_notes {
    double numbers[FAULT_NUMBERS];
    int count;
    const char *parts[FAULT_PARTS]; /* the first is "result" */
    unsigned long long digests[FAULT_PARTS];
    int part;           /* the last one */
    const char *broken; /* a promise, by fault_broken; NULL: none */
} fault_notes;
void fault_notes_begin(void);
fault_notes fault_notes_end(void);

/* The folder for files; what is in it. */
int fault_folder_make(void);
void fault_folder_remove(void);
/* The names of all files in one text; the caller's to free. */
char *fault_folder_names(void);

/* A hang ends the process with the point and its stack. `where` is "" between points. */
void fault_watch_start(void);
void fault_watch(const char *where);

typedef struct fault_run {
    inject_series series;
    bool persist;
    int every, from, to; /* points from, from + every, ... counted over all rows; to 0: all */
    int only;            /* a row, or -1 */
    bool verbose;
} fault_run;

typedef struct fault_tally {
    long points, tried, errors, survived, anomalies;
} fault_tally;

/* Runs a stage's points of one series. */
fault_tally fault_judge(const fault_stage *stage, const fault_run *run);

#endif

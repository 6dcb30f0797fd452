/* imbalance.h: what the main job is made of: the task that it trains (imbalance_task.c), its modes
 * and their results (imbalance.c), and the reports of these (imbalance_report.c). */
#ifndef SAMPLES_IMBALANCE_H
#define SAMPLES_IMBALANCE_H

#include "networks.h"
#include "run.h"

/* ---- the task: segmentation of scenes of Fashion-MNIST's pictures ---- */

enum { PICTURE = 28, THRESHOLD = 64 }; /* height and width; brightness */

/* A data set: samples are f32 (1, size, size) brightness in [0, 1] and i64 (size, size) labels. In
 * the process's own memory, which outlives ek_shutdown. */
typedef struct scene_set {
    ek_dataset dataset;
    int64_t count, size; /* height and width in pixels */
    uint8_t *images;     /* count x size x size, brightness; owned */
    uint8_t *labels;     /* the same: 0 ground, 1..10 the pictures' classes, SCENE_IGNORED within a
                            pixel of a border */
} scene_set;

/* Makes `count` scenes of the pictures for training or of those for testing: 4 to 6 pictures each
 * on a dark ground, later ones over earlier ones if they are brighter than THRESHOLD. The same
 * seed gives the same scenes. NULL on an error. */
ek_dataset *scenes_make(const char *directory, bool train, int64_t count, int64_t size,
                        uint64_t seed);
/* The first `count` scenes, collated on cpu; behind the last comes the first again. */
ek_value scenes_first(ek_dataset *scenes, int64_t count);

/* Over all pixels of all scenes that are not ignored: the part that is labelled right, and the mean
 * over classes of intersection over union (without classes that neither occur nor are predicted).
 * The network is called in evaluation mode on `device`. */
int evaluate(ek_module *network, ek_device device, ek_dataset *scenes, double *pixel_accuracy,
             double *mean_iou);

/* ---- modes and their results ---- */

typedef struct run_settings {
    int64_t batch, steps, epochs, size, width, scenes, test_scenes, seed;
    double lr, momentum;
    uint64_t capacity; /* bytes per device; 0: as `device_text` says */
    const char *modes, *optimizer, *data, *json, *html, *trace;
    const char *device_text; /* a number or a list */
    const char *plan;        /* for balanced-auto, in place of measuring; NULL: none */
    bool adam;               /* from `optimizer` */
    bool find_batch;         /* find the largest batches instead of training */
    bool runs[MODES];        /* from `modes` */
    int goal;                /* of balanced-auto: an ek_plan_goal */
    int64_t devices;         /* from `device_text` */
    int kind;
    const volatile sig_atomic_t *stopped; /* set when the run is to end after the step at hand */
} run_settings;

/* Steps of one mode: --steps, or --epochs passes over the training scenes, whichever ends first. */
int settings_steps(const run_settings *settings);

typedef struct mode_result {
    const char *name;
    ek_report *report;   /* owned: memory and time per device */
    int64_t batch;       /* the batch that was trained with */
    int64_t largest;     /* the largest that fits, if it was looked for; else -1 */
    int64_t *share;      /* each device's share of the batch at the end; owned */
    char plan[512];      /* the plan of balanced-auto; "" in other modes */
    double step_seconds; /* median */
    double samples_per_second;
    series losses, seconds;          /* one value per step; owned */
    double pixel_accuracy, mean_iou; /* on the test scenes */
    int64_t parameters;
    char sha256[65]; /* of the parameters; "" if only the largest batch was looked for */
} mode_result;

/* ---- reports ---- */

void report_table(const mode_result *results, int count);
/* Of largest batches: what --find-batch prints. */
void report_batches(const mode_result *results, int count);
/* 0 or a negative status. */
int report_json(const char *path, const run_settings *settings, const mode_result *results,
                int count);
int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count);

#endif

/* settings.h: what the command line says. */
#ifndef CLASSIFY_SETTINGS_H
#define CLASSIFY_SETTINGS_H

#include <evenkeel/evenkeel.h>

typedef enum train_mode {
    MODE_SINGLE,
    MODE_CLASSIC,  /* outputs and loss on device 0 */
    MODE_BALANCED, /* the loss where the outputs are */
    MODE_AUTO,     /* balanced, each device's share of the batch by measurement */
    MODE_SHARDED,  /* balanced, gradients and the optimizer's state divided */
    MODES
} train_mode;
typedef enum picture_set { FASHION_MNIST, CIFAR10, PICTURE_SETS } picture_set;
typedef enum optimizer_kind { SGD, ADAM, ADAMW, OPTIMIZERS } optimizer_kind;
typedef enum schedule_kind {
    SCHEDULE_COSINE,
    SCHEDULE_STEP,
    SCHEDULE_NONE,
    SCHEDULES
} schedule_kind;
typedef enum norm_kind {
    NORM_SYNC_BATCH, /* over the whole batch */
    NORM_BATCH,      /* per device */
    NORMS
} norm_kind;

/* Words of the command line; NULL stands at the end of each list. */
extern const char *const mode_names[MODES + 1];
extern const char *const set_names[PICTURE_SETS + 1];
extern const char *const optimizer_names[OPTIMIZERS + 1];
extern const char *const schedule_names[SCHEDULES + 1];
extern const char *const norm_names[NORMS + 1];

typedef struct run_settings {
    picture_set set;
    train_mode mode;
    optimizer_kind optimizer;
    schedule_kind schedule;
    norm_kind norm;
    ek_plan_goal goal; /* of balanced-auto */
    ek_device_kind kind;
    const char *device_text; /* a number or a list; NULL: all there are */
    const char *plan;        /* for balanced-auto, in place of measuring; NULL: none */
    int64_t batch, epochs, steps, width, blocks, seed;
    int64_t step_epochs;                 /* of the step schedule */
    int64_t train_samples, test_samples; /* 0: all */
    int64_t workers, every;
    double lr, momentum, weight_decay, gamma, smoothing;
    bool plain; /* pictures as they are: no crops, no flips */
    const char *data, *out, *json, *resume;
} run_settings;

enum { SETTINGS_HELP = 1 };

/* Returns 0; SETTINGS_HELP after printing the help; -1 after printing what is wrong and what would
 * be right to standard error. */
int settings_parse(run_settings *settings, int argc, char **argv);

/* The devices to train on (common/devices.h): call before anything lives there. A single host
 * device computes with all cores. An empty list with an error. */
ek_device_list settings_devices(const run_settings *settings);

#endif

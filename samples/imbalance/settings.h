/* settings.h: what the command line says. */
#ifndef IMBALANCE_SETTINGS_H
#define IMBALANCE_SETTINGS_H

#include <evenkeel/evenkeel.h>
#include <signal.h>

typedef enum train_mode {
    MODE_SINGLE,
    MODE_CLASSIC,  /* outputs and loss on device 0 */
    MODE_BALANCED, /* the loss where the outputs are */
    MODE_AUTO,     /* balanced, each device's share of the batch by measurement */
    MODE_SHARDED,  /* balanced, gradients and the optimizer's state divided */
    MODES
} train_mode;

extern const char *const mode_names[MODES];

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
    ek_plan_goal goal;       /* of balanced-auto */
    int64_t devices;         /* from `device_text` */
    ek_device_kind kind;
    const volatile sig_atomic_t *stopped; /* set when the run is to end after the step at hand */
} run_settings;

enum { SETTINGS_HELP = 1 };

/* Returns 0; SETTINGS_HELP after printing the help; -1 after printing what is wrong and what would
 * be right to standard error. */
int settings_parse(run_settings *settings, int argc, char **argv);

/* Steps of one mode: --steps, or --epochs passes over the training scenes, whichever ends first. */
int settings_steps(const run_settings *settings);

#endif

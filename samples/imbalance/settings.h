/* settings.h: what the command line says. */
#ifndef IMBALANCE_SETTINGS_H
#define IMBALANCE_SETTINGS_H

#include <evenkeel/evenkeel.h>

typedef enum train_mode { MODE_SINGLE, MODE_CLASSIC, MODE_BALANCED, MODES } train_mode;

extern const char *const mode_names[MODES];

typedef struct run_settings {
    int64_t devices, batch, steps, epochs, size, width, scenes, test_scenes, seed;
    double lr, momentum;
    uint64_t capacity; /* bytes per device; 0: none */
    const char *modes, *optimizer, *data, *json, *html;
    bool adam;        /* from `optimizer` */
    bool fit;         /* find the largest batches instead of training */
    bool runs[MODES]; /* from `modes` */
    ek_device_kind kind;
} run_settings;

enum { SETTINGS_HELP = 1 };

/* Returns 0; SETTINGS_HELP after printing the help; -1 after printing what is wrong and what would
 * be right to standard error. */
int settings_parse(run_settings *settings, int argc, char **argv);

/* Steps of one mode: --steps, or --epochs passes over the training scenes, whichever ends first. */
int settings_steps(const run_settings *settings);

#endif

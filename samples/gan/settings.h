/* settings.h: what the command line says. */
#ifndef GAN_SETTINGS_H
#define GAN_SETTINGS_H

#include <evenkeel/evenkeel.h>

typedef enum train_mode { MODE_SINGLE, MODE_CLASSIC, MODE_BALANCED, MODES } train_mode;
typedef enum critic_norm {
    NORM_NONE,
    NORM_LAYER, /* over a whole sample: group normalisation with one group */
    NORM_INSTANCE,
    NORM_BATCH,      /* per device */
    NORM_SYNC_BATCH, /* over the whole batch */
    NORMS
} critic_norm;

enum { PENALTY_KINDS = EK_PENALTY_R1 + 1, LOSS_KINDS = EK_GAN_LOGISTIC + 1 };

/* Words of the command line; NULL stands at the end of each list. */
extern const char *const mode_names[MODES + 1];
extern const char *const norm_names[NORMS + 1];
extern const char *const penalty_names[PENALTY_KINDS + 1];
extern const char *const loss_names[LOSS_KINDS + 1];

typedef struct run_settings {
    ek_penalty_kind penalty;
    critic_norm norm;
    train_mode mode;
    ek_gan_loss_kind loss;
    ek_dtype dtype;
    ek_device_kind kind;
    int64_t devices; /* 0: all there are */
    int64_t batch, critic_steps, steps, width, every, seed;
    double lr, weight;
    bool automatic; /* each device's share of a batch by measurement */
    bool sharded;   /* gradients and optimizer state divided */
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

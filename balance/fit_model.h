/* fit_model.h: trials of trainings, and what they say about other trainings: memory and time.
 *
 * A training is a combination of means to save memory (levels), a number of parts of the batch
 * (micro-batches) and the samples of a part that each device gets. Trainings with equal levels are
 * of one kind. What the trials of a kind have measured is interpolated in the samples of a device.
 *
 * A kind without trials is estimated from the base kind and from those that differ from the base in
 * one level: differences of memory add up, and ratios of time multiply. */
#ifndef EK_BALANCE_FIT_MODEL_H
#define EK_BALANCE_FIT_MODEL_H

#include "evenkeel/fit.h"

/* The means. Level 0 is the training without the means; the highest level needs least memory. */
typedef enum ek_fit_factor {
    EK_FIT_CHECKPOINTS, /* how many steps of the ladder of modules are checkpointed (fit_ladder.c)
                         */
    EK_FIT_SHARD,       /* an ek_shard_policy */
    EK_FIT_OFFLOAD,     /* an ek_offload_policy */
    EK_FIT_AUTOCAST,    /* 1: to bf16 */
    EK_FIT_PARTS,       /* 1: several parts, which needs the memory of a part and whole gradients */
    EK_FIT_FACTORS
} ek_fit_factor;

typedef struct ek_fit_training {
    int levels[EK_FIT_FACTORS];
    int parts;
    int64_t sizes[EK_MAX_DEVICES]; /* samples of a part per device */
} ek_fit_training;

/* What a training step needs, measured or estimated. */
typedef struct ek_fit_need {
    double seconds; /* a whole step */
    uint64_t peaks[EK_MAX_DEVICES];
} ek_fit_need;

typedef struct ek_fit_trial {
    ek_fit_training training;
    int times;                     /* how often it was tried */
    bool ran;                      /* false: memory ran out */
    bool short_of[EK_MAX_DEVICES]; /* devices that ran out of memory */
    ek_fit_need need;
    double update_seconds;                              /* the optimizer's part of the step */
    double busy_seconds[EK_MAX_DEVICES];                /* how long the devices worked in a step */
    uint64_t now[EK_MAX_DEVICES][EK_MEMORY_CATEGORIES]; /* at the peaks */
} ek_fit_trial;

typedef struct ek_fit_estimator {
    int devices;
    uint64_t limits[EK_MAX_DEVICES]; /* bytes that may be used; UINT64_MAX: any */
    double costs[EK_MAX_DEVICES];    /* time per sample, relative to other devices */
    int levels[EK_FIT_FACTORS];      /* how many levels each means has */
    int base[EK_FIT_FACTORS];        /* the base kind */
    bool only_known;                 /* kinds without trials are not chosen */
    int most_parts;
    ek_fit_trial *trials; /* owned */
    int count, room;
} ek_fit_estimator;

/* Adds a trial. Another trial of the same training adds to the first one: the least time and the
 * largest peaks count. */
int ek_fit_add_trial(ek_fit_estimator *model, const ek_fit_trial *trial);

/* Returns the trial of exactly this training, or NULL. */
const ek_fit_trial *ek_fit_trial_of(const ek_fit_estimator *model, const ek_fit_training *training);

/* Returns the seconds of a step, and a little more for each means, so that of equals the plainest
 * is chosen. */
double ek_fit_rating(const ek_fit_trial *trial);

/* Returns how many trials of this kind there are, also those that ran out of memory. */
int ek_fit_trials_of_kind(const ek_fit_estimator *model, const int *levels);

/* Estimates what a training needs, or returns what its trial has measured. */
ek_fit_need ek_fit_estimate(const ek_fit_estimator *model, const ek_fit_training *training);

/* Returns how many bytes the device that lacks most lacks, and in *device its index. 0: all have
 * enough. */
uint64_t ek_fit_missing(const ek_fit_estimator *model, const ek_fit_need *need, int *device);

/* Finds the training of a batch that fits and takes least time. Returns true and writes it. If none
 * fits, returns false and writes the training that lacks least. */
bool ek_fit_choose(const ek_fit_estimator *model, int64_t batch, ek_fit_training *training);

/* Returns the training without one of its means: with even sizes if the factor is EK_FIT_FACTORS.
 */
ek_fit_training ek_fit_without(const ek_fit_estimator *model, const ek_fit_training *training,
                               int64_t batch, ek_fit_factor factor);

#endif

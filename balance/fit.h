/* fit.h: the parts of ek_fit. The road of a call:
 *
 *     ek_fit_with          fit.c: the search
 *     ek_fit_find_ladder   fit_ladder.c: which modules to checkpoint
 *     ek_fit_try           fit_measure.c: a training that takes a few steps
 *     ek_fit_choose        fit_model.c: the best training by the trials so far
 *     ek_fit_fill          fit_result.c: what was chosen and is expected
 *     ek_fit_describe      fit_text.c: a training in words */
#ifndef EK_BALANCE_FIT_H
#define EK_BALANCE_FIT_H

#include "balance/fit_model.h"
#include "core/device.h"
#include "core/ranks.h"

/* The ladder: level k of EK_FIT_CHECKPOINTS checkpoints the first counts[k] modules. Those that
 * save most bytes per second of recomputation come first. */
enum { EK_FIT_LEVELS = 5, EK_FIT_MODULES = 64 };
typedef struct ek_fit_ladder {
    char *paths[EK_FIT_MODULES]; /* owned */
    int counts[EK_FIT_LEVELS];
} ek_fit_ladder;

/* With ranks the trials have the largest needs of all ranks, and `now` is this rank's. */
typedef struct ek_fit_search {
    const ek_fit_options *options;
    ek_device_list devices;
    ek_dev *devs[EK_MAX_DEVICES];
    ek_ranks *ranks; /* one reference; NULL: this process alone */
    int64_t batch;   /* samples of the whole batch */
    ek_fit_ladder ladder;
    ek_fit_estimator estimator;
} ek_fit_search;

/* Returns the first samples of a value of the batch, as views. */
ek_value ek_fit_first(const ek_fit_search *search, ek_value value, int64_t samples);

/* Fills the ladder, and sets how many levels EK_FIT_CHECKPOINTS has. A copy of the module runs a
 * forward of a few samples on cpu. */
int ek_fit_find_ladder(ek_fit_search *search);
void ek_fit_free_ladder(ek_fit_ladder *ladder);

/* Trains a copy of the module for a few steps on the first samples of the batch, as many as the
 * training takes, and adds the trial. Returns 1 if the training ran, 0 if memory ran out, and a
 * negative status for other errors, for which no trial is added. Everything is freed. */
int ek_fit_try(ek_fit_search *search, const ek_fit_training *training);

/* Writes the options of a training, but for what is measured. */
void ek_fit_apply(const ek_fit_search *search, const ek_fit_training *training,
                  ek_fit_result *result);

/* Writes the whole result of the training that was chosen, of which there is a trial. */
void ek_fit_fill(const ek_fit_search *search, const ek_fit_training *training,
                 ek_fit_result *result);

/* Writes what a training is, in words: "3 micro-batches, sharded parameters". */
void ek_fit_describe(const ek_fit_search *search, const ek_fit_training *training, char *text,
                     size_t room);
/* Writes the name of one of its means; of the cut if the factor is EK_FIT_FACTORS. */
void ek_fit_name_means(const ek_fit_search *search, const ek_fit_training *training,
                       ek_fit_factor factor, char *text, size_t room);
/* Writes a number of bytes with a unit: "1.50 MiB". Returns `text`. */
char *ek_fit_bytes(uint64_t nbytes, char text[24]);

#endif

/* train.h: runs one mode, and finds the largest batch that one could run. */
#ifndef IMBALANCE_TRAIN_H
#define IMBALANCE_TRAIN_H

#include "imbalance/result.h"
#include "imbalance/scenes.h"

/* Trains and evaluates. On success the result is to be freed. Returns a negative status with the
 * sentence set; memory is given back in any case. */
int train_run(const run_settings *settings, const scene_set *train, const scene_set *test,
              train_mode mode, mode_result *result);

/* Finds the largest batch, and where there is one trains a few steps with it, so that the result
 * shows what it takes. result->largest is 0 where not even one scene fits. */
int train_find_batch(const run_settings *settings, const scene_set *train, train_mode mode,
                     mode_result *result);

/* The largest batch that a mode could run, by trying, below one that is known not to fit; 0 where
 * not even one scene fits; negative on an error that is not about memory. */
int64_t train_largest_batch(const run_settings *settings, const scene_set *train, train_mode mode,
                            int64_t failing);

/* What a single device holds when no scene is there, once it has trained: parameters, gradients and
 * the optimizer's state. */
int train_state_nbytes(const run_settings *settings, const scene_set *train, uint64_t *nbytes);

#endif

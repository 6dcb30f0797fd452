/* train.h: runs one mode, and finds the largest batch that one could run. */
#ifndef IMBALANCE_TRAIN_H
#define IMBALANCE_TRAIN_H

#include "imbalance/result.h"
#include "imbalance/scenes.h"

/* Trains and evaluates. On success the result's losses are to be freed. Returns a negative status
 * with the sentence set; memory is given back in any case. */
int train_run(const run_settings *settings, const scene_set *train, const scene_set *test,
              train_mode mode, mode_result *result);

/* The largest batch of which two steps run under --cap, by trying; 0 where not even one scene fits;
 * negative on an error that is not about memory. `failing` is a batch known not to fit, or 0. */
int64_t train_largest_batch(const run_settings *settings, const scene_set *train, train_mode mode,
                            int64_t failing);

#endif

/* scale_profile.h: what one rank does in a step (simulate.h): measured here, from the size of a
 * model, or from a file. */
#ifndef BENCH_SCALE_PROFILE_H
#define BENCH_SCALE_PROFILE_H

#include <stdio.h>

#include "job.h"
#include "simulate.h"

/* Trains the workload on one device of so many threads for about `budget` seconds, in `copies`
 * processes at a time, as the ranks of one machine do, and takes the shortest of each phase.
 * Nothing may have called the library before. Each bucket has at most cap_mb MiB. 0 or a negative
 * status. */
int profile_measure(sim_profile *profile, const workload *load, int threads, int copies,
                    double budget, double cap_mb);

/* A language model of 100.8 million parameters (12 blocks of width 768, 20000 words, whose
 * embedding is the output layer too), which works on `tokens` of them at flops per second. */
void profile_transformer(sim_profile *profile, double tokens, double flops, double cap_mb);

/* As if the rank were `times` as fast. */
void profile_speed_up(sim_profile *profile, double times);

/* Reads what `write` has written; a complaint and -1 if that is impossible. */
int profile_read(sim_profile *profile, const char *path);
void profile_write(const sim_profile *profile, FILE *stream);

#endif

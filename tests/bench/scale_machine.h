/* scale_machine.h: what transfers between the ranks of this machine cost (simulate.h). */
#ifndef BENCH_SCALE_MACHINE_H
#define BENCH_SCALE_MACHINE_H

#include <stdio.h>

#include "simulate.h"

/* Measures between the ranks of the world for about `budget` seconds; all call it. Every rank lies
 * on one node: both links, `per_node`, `load`, `add`, `shared` and `turn` are filled. 0 or a
 * negative status. */
int machine_measure(sim_cluster *cluster, double budget);

/* Reads what `write` has written; a complaint and -1 if that is impossible. */
int machine_read(sim_cluster *cluster, const char *path);
void machine_write(const sim_cluster *cluster, FILE *stream);

#endif

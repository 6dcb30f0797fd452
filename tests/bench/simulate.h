/* simulate.h: what a training step takes over any number of ranks, by arithmetic alone.
 *
 * A rank's own work is measured: seconds of forward, backward and optimizer, and when in its
 * backward each bucket of gradients becomes ready. Its transfers are costed in the terms of Thakur,
 * Rabenseifner and Gropp (2005): a message of n bytes takes alpha + n beta, a rank sends one and
 * receives one at a time, and a byte of a term that is added takes gamma.
 *
 * Note [Schedule of a simulated step]
 *
 * The calls of a pass are those of the communication thread (distributed/train/reducer_pass.c), in
 * one order on all ranks: an agreement when backward begins; for each bucket the levels of its
 * schedule forward, additions, and the levels backward; the reports after the last. With k buckets
 * in flight the messages of bucket b + k - 1 go forward before those of bucket b go backward. A
 * call begins after the call before has begun, and a bucket after the bucket k places before has
 * ended. Transfers take the link in turn; the thread adds for one bucket at a time.
 *
 * A collective call ends when the slowest rank has brought its part, so that one rank is followed:
 * the slowest of all. Its work takes as much longer as the largest of N draws from a log-normal
 * distribution of mean 1 says.
 *
 * Cores are shared evenly by the threads of a node that want one: those that compute, and the
 * communication thread while it adds, and while it copies what no network carries for it. */
#ifndef BENCH_SIMULATE_H
#define BENCH_SIMULATE_H

#include <stddef.h>
#include <stdint.h>

enum { SIM_MOST_BUCKETS = 256 };

typedef struct sim_bucket {
    double ready; /* seconds after the backward's begin */
    double nbytes;
} sim_bucket;

/* What one rank does in a step by itself, in seconds. */
typedef struct sim_profile {
    double forward, backward, optimizer;
    double sigma;             /* of the logarithm of a step's seconds, from step to step */
    double buffer_nbytes;     /* that rank 0 sends to all before a forward */
    double descriptor_nbytes; /* of a rank's descriptor in an agreement */
    double report_nbytes;     /* of a rank's report at the end of a pass */
    int bucket_count;
    sim_bucket buckets[SIM_MOST_BUCKETS]; /* in the order in which they are averaged */
} sim_profile;

/* A message of n bytes takes latency + n per_byte seconds. */
typedef struct sim_link {
    double latency, per_byte;
} sim_link;

typedef struct sim_cluster {
    sim_link network; /* between nodes; a node's ranks share it */
    sim_link local;   /* between two ranks of a node */
    int per_node;     /* ranks */
    double cores;     /* of a node; 0: always enough */
    double threads;   /* of a rank, that compute */
    double load;   /* of a core, by a transfer under way: 0 if a network carries it, 1 if a core */
    double add;    /* seconds per byte of a term */
    double shared; /* seconds per byte of a bucket that lies in memory which the ranks of a node
                      share (distributed/train/reducer.h): a rank's, for its slice; 0: they send */
    double turn;   /* seconds that a call waits for the communication thread */
} sim_cluster;

/* How the ranks' gradients are added. Seconds for n bytes on N ranks, each on a node of its own:
 *
 *     tree       2 lg N alpha + 2 (N-1)/N n beta + (N-1)/N n gamma: the levels of the real schedule
 *                (group/sum_schedule.h), followed by rank 0; a node's ranks add in shared memory
 *     sent       the tree with messages inside of nodes, too
 *     ring       2 (N-1) alpha + 2 (N-1)/N n beta + (N-1)/N n gamma (Patarasuk and Yuan 2009); of a
 *                node's ranks one alone sends to the next node
 *     library    the least of a ring, recursive doubling: lg N (alpha + n beta + n gamma), and
 *                halving and doubling, near ranks first: 2 lg N alpha + 2 (N-1)/N n beta +
 *                (N-1)/N n gamma (Thakur, Rabenseifner and Gropp 2005) */
typedef enum sim_sum { SIM_TREE, SIM_SENT, SIM_RING, SIM_LIBRARY, SIM_SUMS } sim_sum;
extern const char *const sim_sum_names[SIM_SUMS];

/* Seconds of a sum's three stages. Sums with one stage have it as `spread`. */
typedef struct sim_cost {
    double spread, add, collect;
} sim_cost;
sim_cost sim_sum_cost(const sim_cluster *cluster, sim_sum sum, int ranks, double nbytes);

/* Seconds in which all ranks combine nbytes by recursive doubling: an agreement, or reports. */
double sim_call_cost(const sim_cluster *cluster, int ranks, double nbytes);

typedef struct sim_run {
    int ranks;
    sim_sum sum;
    int in_flight; /* buckets, at least 1 */
    double sigma;  /* of the logarithm of a rank's seconds */
    int steps;     /* the result is their mean; at least 1 */
    uint64_t seed;
} sim_run;

typedef struct sim_result {
    double step;       /* seconds */
    double exposed;    /* of them, those in which backward has ended and averaging has not */
    double efficiency; /* a rank's own work over the step */
} sim_result;
sim_result sim_simulate(const sim_profile *profile, const sim_cluster *cluster, sim_run run);

#endif

/* scale_machine.c: see scale_machine.h.
 *
 * Latency is half the way of a small message there and back, and what a barrier takes beyond its
 * messages is a turn of the communication thread. Sums of several sizes, less the additions, which
 * are timed by themselves, give the seconds per byte: in the same calls, chunks and naps in which
 * gradients travel. */
#include "scale_machine.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "args.h"
#include "core/tensor.h"
#include "core/thread.h"
#include "job.h"
#include "link/combine.h"
#include "train/window.h"

enum { MACHINE_SIZES = 5, MACHINE_MOST_ROUNDS = 1000, MACHINE_SMALL = 101, MACHINE_TERM = 1 << 21 };
static const double machine_mib[MACHINE_SIZES] = {2, 4, 8, 16, 24};

static double machine_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a barrier. */
static int machine_barrier(double *seconds)
{
    double samples[MACHINE_SMALL];
    for (int i = 0; i < MACHINE_SMALL; i++) {
        double began = job_now();
        if (ek_dist_barrier() < 0)
            return -1;
        samples[i] = job_now() - began;
    }
    *seconds = job_median(samples, MACHINE_SMALL);
    return 0;
}

/* Seconds of a message from rank 0 to rank 1, or back. */
static int machine_ping(double *seconds)
{
    double samples[MACHINE_SMALL] = {0};
    int rank = ek_dist_get_rank(NULL), rc = 0;
    ek_scope scope = ek_scope_begin();
    ek_tensor *ball = ek_zeros(EK_SHAPE(1), EK_F32, .device = ek_cpu());
    for (int i = 0; i < MACHINE_SMALL && rank < 2 && rc >= 0; i++) {
        double began = job_now();
        if (rank == 0 && (rc = ek_dist_send(ball, 1)) >= 0)
            rc = ek_dist_recv(ball, 1);
        else if (rank == 1 && (rc = ek_dist_recv(ball, 0)) >= 0)
            rc = ek_dist_send(ball, 0);
        samples[i] = (job_now() - began) / 2;
    }
    ek_scope_end(&scope);
    *seconds = job_median(samples, MACHINE_SMALL);
    return rc < 0 ? rc : ek_dist_barrier();
}

/* Seconds per byte of a term that is added, while all ranks add. */
static int machine_add(double *seconds)
{
    double samples[MACHINE_SMALL];
    ek_scope scope = ek_scope_begin();
    const void *terms[2];
    for (int i = 0; i < 2; i++) {
        ek_tensor *term = ek_zeros(EK_SHAPE(MACHINE_TERM), EK_F32, .device = ek_cpu());
        terms[i] = term ? ek_tensor_address(term) : NULL;
    }
    void *out = (void *)(uintptr_t)terms[0];
    int rc = terms[0] && terms[1] ? ek_dist_barrier() : ek_error_status();
    for (int i = 0; i < MACHINE_SMALL && rc >= 0; i++) {
        double began = job_now();
        ek_combine(EK_DIST_AVG, EK_F32, terms, 2, &out, 1, MACHINE_TERM);
        samples[i] = job_now() - began;
    }
    ek_scope_end(&scope);
    if (rc >= 0)
        *seconds = job_median(samples, MACHINE_SMALL) / (MACHINE_TERM * sizeof(float));
    return rc;
}

/* Seconds per byte of a bucket in memory that the ranks share; 0 if they cannot. */
static int machine_shared(double *seconds)
{
    double samples[MACHINE_SMALL];
    ek_process_group *world = ek_dist_world();
    ek_window *window;
    int64_t slice = MACHINE_TERM / world->size;
    EK_TRY(ek_window_open(world, MACHINE_TERM * sizeof(float), true, &window));
    void **terms = ek_calloc((size_t)world->size, sizeof *terms);
    int rc = terms ? 0 : ek_error_status();
    for (int i = 0; i < MACHINE_SMALL && window && rc >= 0; i++) {
        for (int r = 0; r < world->size; r++)
            terms[r] = (float *)(void *)ek_window_memory(window, r) + slice * world->rank;
        rc = ek_dist_barrier();
        double began = job_now();
        ek_combine(EK_DIST_AVG, EK_F32, (const void *const *)terms, world->size, terms, world->size,
                   slice);
        samples[i] = job_now() - began;
    }
    if (window && rc >= 0)
        *seconds = job_median(samples, MACHINE_SMALL) / (MACHINE_TERM * sizeof(float));
    free(terms);
    ek_object_release(window);
    return rc;
}

/* The sums of all sizes, in turn. */
typedef struct machine_sums {
    double seconds[MACHINE_SIZES][MACHINE_MOST_ROUNDS];
    double wall, cpu; /* of all */
    int rounds;
} machine_sums;

static int machine_round(machine_sums *sums, ek_tensor *const *tensors)
{
    for (int i = 0; i < MACHINE_SIZES; i++) {
        if (ek_dist_barrier() < 0)
            return -1;
        double cpu = machine_cpu(), began = job_now();
        if (ek_dist_all_reduce(tensors[i], .op = EK_DIST_AVG) < 0)
            return -1;
        double seconds = job_now() - began;
        sums->seconds[i][sums->rounds] = seconds;
        sums->wall += seconds;
        sums->cpu += machine_cpu() - cpu;
    }
    sums->rounds++;
    return 0;
}

/* As many rounds as rank 0 has time for. */
static int machine_sum(machine_sums *sums, double budget)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensors[MACHINE_SIZES];
    ek_tensor *more = ek_zeros(EK_SHAPE(1), EK_F64, .device = ek_cpu());
    int rc = more ? 0 : ek_error_status();
    for (int i = 0; i < MACHINE_SIZES && rc >= 0; i++) {
        int64_t count = (int64_t)(machine_mib[i] * (1 << 20) / sizeof(float));
        tensors[i] = ek_zeros(EK_SHAPE(count), EK_F32, .device = ek_cpu());
        rc = tensors[i] ? 0 : ek_error_status();
    }
    double start = job_now(), goes_on = 1;
    if (rc >= 0)
        rc = machine_round(sums, tensors); /* memory is touched, connections are made */
    *sums = (machine_sums){0};
    while (rc >= 0 && goes_on > 0) {
        rc = machine_round(sums, tensors);
        ek_fill_(more, sums->rounds < MACHINE_MOST_ROUNDS && job_now() - start < budget);
        if (rc >= 0)
            rc = ek_dist_broadcast(more, 0);
        if (rc >= 0)
            rc = ek_item(more, &goes_on);
    }
    ek_scope_end(&scope);
    return rc;
}

/* Seconds per byte that is summed, from the shortest sum of each size: what disturbs a sum makes it
 * longer. */
static double machine_per_byte(const machine_sums *sums)
{
    double nbytes = 0, seconds = 0;
    for (int i = 0; i < MACHINE_SIZES; i++) {
        double shortest = INFINITY;
        for (int k = 0; k < sums->rounds; k++)
            shortest = fmin(shortest, sums->seconds[i][k]);
        nbytes += machine_mib[i] * (1 << 20);
        seconds += shortest;
    }
    return seconds / nbytes;
}

int machine_measure(sim_cluster *cluster, double budget)
{
    static machine_sums sums;
    double barrier = 0, ping = 0, others = ek_dist_get_world_size(NULL) - 1;
    if (others < 1)
        return args_complain("one rank has nobody to send to: start it by samples/mpirun -n 2");
    if (machine_barrier(&barrier) < 0 || machine_ping(&ping) < 0 ||
        machine_add(&cluster->add) < 0 || machine_shared(&cluster->shared) < 0 ||
        machine_sum(&sums, budget) < 0)
        return -1;
    double moved = others / (others + 1);
    double rounds = ceil(log2(others + 1));
    cluster->local.latency = fmin(ping, barrier / rounds);
    cluster->turn = barrier - rounds * cluster->local.latency;
    cluster->local.per_byte = fmax(machine_per_byte(&sums) - moved * cluster->add, 0) / (2 * moved);
    cluster->load = fmin(sums.cpu / sums.wall, 1);
    cluster->network = cluster->local;
    cluster->per_node = INT_MAX;
    return 0;
}

void machine_write(const sim_cluster *cluster, FILE *stream)
{
    fprintf(stream, "latency %.4g per_byte %.4g add %.4g shared %.4g turn %.4g load %.3f\n",
            cluster->local.latency, cluster->local.per_byte, cluster->add, cluster->shared,
            cluster->turn, cluster->load);
}

int machine_read(sim_cluster *cluster, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return args_complain("%s cannot be opened", path);
    sim_link *link = &cluster->local;
    bool ok = fscanf(file, "latency %lf per_byte %lf add %lf shared %lf turn %lf load %lf",
                     &link->latency, &link->per_byte, &cluster->add, &cluster->shared,
                     &cluster->turn, &cluster->load) == 6 &&
              link->latency >= 0 && link->per_byte >= 0 && cluster->add >= 0 &&
              cluster->shared >= 0 && cluster->turn >= 0 && cluster->load >= 0 &&
              cluster->load <= 1;
    fclose(file);
    cluster->network = *link;
    cluster->per_node = INT_MAX;
    return ok ? 0 : args_complain("%s is nothing that bench_scale --calibrate has written", path);
}

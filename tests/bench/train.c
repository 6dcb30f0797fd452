/* train.c: seconds of one training step (forward, loss, zero_grad, backward, optimizer).
 *
 *     [DEVICE=host|cuda] train NET[-bf16|-tf32|-fast|-default][-adam][-clip][@BATCH[xLENGTH]]
 * DEVICES THREADS [SECONDS]
 *
 * prints "NET DEVICESxTHREADS MEDIAN_SECONDS STEPS LOSS CPU_SECONDS WHOLE ADDED", where LOSS is
 * that of the fourth step, equal to the twin's: both draw the same weights and data from seed 0.
 * CPU_SECONDS is the median processor time of a step, of all threads. WHOLE is the process's peak
 * of resident memory in megabytes, ADDED what of it the making of the model and the training add
 * (job_resident_peak). With -bf16 forward and loss run under autocast, with -tf32 products and
 * convolutions may round to it, with -fast convolutions may take F(4x4, 3x3)
 * (ek_allow_fast_convolution), with -clip gradients are clipped to a norm of 1. With -default all
 * switches are as a process finds them. On GPUs (DEVICES may be more than there are; THREADS is
 * nothing then) cuDNN's algorithms are timed (ek_benchmark_convolution; not with -default), and
 * steps in blocks, at whose ends all is waited for.
 *
 *     samples/mpirun -n RANKS train NET DEVICES THREADS [SECONDS [none|optimizer|parameters]]
 *
 * does so on several ranks, each with its part of the batch. Rank 0 also prints the share of the
 * step in which it waited for gradients to be averaged. If the last argument names what is sharded,
 * rank 0 also prints the megabytes that its training takes at most, with and without the making of
 * the model (job_resident_peak). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "job.h"

enum { WARMUP_STEPS = 3, CUDA_BLOCK = 10, MOST_BLOCKS = 10000 };

/* What is timed, and how. */
typedef struct setting {
    const char *name;
    workload load;
    ek_device_kind kind;
    ek_device_list devices;
    int threads; /* of each host device */
    int ranks;
    double budget;
    ek_shard_policy shard;
    bool weighs; /* true if memory is printed */
} setting;

typedef struct result {
    double median, fourth_loss;
    double cpu;     /* processor seconds of a step */
    double exposed; /* share of the time in which backward waited for other ranks */
    double before, making, stepping; /* bytes: resident before the model, and peaks after */
    int steps;
} result;

/* Returns the mean seconds of a step in a block of steps, negative on error. */
static double block_seconds(training *job, const setting *how, int steps)
{
    double begin = job_now();
    for (int i = 0; i < steps; i++)
        if (job_step(job, NULL) < 0)
            return -1;
    return job_settle(&how->devices) < 0 ? -1 : (job_now() - begin) / steps;
}

/* Returns how many more blocks of so many seconds fit in the budget; all ranks get one number. */
static int agree_on_blocks(const setting *how, double seconds)
{
    ek_scope scope = ek_scope_begin();
    double wanted = how->budget / seconds, count = 0;
    ek_tensor *blocks = ek_scalar(wanted < MOST_BLOCKS ? wanted : MOST_BLOCKS, EK_F64, ek_cpu());
    int rc = ek_dist_broadcast(blocks, 0);
    if (rc >= 0)
        rc = ek_item(blocks, &count);
    ek_scope_end(&scope);
    return rc < 0 ? rc : (int)count;
}

/* Replaces a number of this rank by the mean over all ranks. */
static int average(double *number)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *mean = ek_scalar(*number, EK_F64, ek_cpu());
    int rc = ek_dist_all_reduce(mean, .op = EK_DIST_AVG);
    if (rc >= 0)
        rc = ek_item(mean, number);
    ek_scope_end(&scope);
    return rc;
}

/* Returns true if more blocks must be timed. */
static bool goes_on(const setting *how, int count, int least, int agreed, double start)
{
    if (how->ranks > 1)
        return count < least || count < agreed;
    return count < MOST_BLOCKS && (count < least || job_now() - start < how->budget);
}

/* Returns the seconds that all threads of the process have computed. */
static double processor_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int measure(training *job, const setting *how, result *r)
{
    static double seconds[MOST_BLOCKS], cpu[MOST_BLOCKS];
    int block = how->kind == EK_CUDA ? CUDA_BLOCK : 1;
    int least = how->budget < 1 ? 1 : 5, count = 0;
    for (int i = 0; i < WARMUP_STEPS + 1; i++)
        if (job_step(job, &r->fourth_loss) < 0)
            return -1;
    if (average(&r->fourth_loss) < 0 || job_settle(&how->devices) < 0)
        return -1;
    r->making = job_resident_peak(how->ranks);
    ek_distributed_stats before = {0}, after = {0};
    if (how->ranks > 1 && ek_distributed_get_stats(job->model, &before) < 0)
        return -1;
    double start = job_now();
    for (int agreed = 0; goes_on(how, count, least, agreed, start);) {
        const double begin = processor_now();
        seconds[count] = block_seconds(job, how, block);
        cpu[count] = (processor_now() - begin) / block;
        if (seconds[count++] < 0)
            return -1;
        if (count == 1 && how->ranks > 1 && (agreed = agree_on_blocks(how, seconds[0])) < 0)
            return -1;
    }
    if (how->ranks > 1 && ek_distributed_get_stats(job->model, &after) < 0)
        return -1;
    r->exposed = (after.exposed - before.exposed) / (job_now() - start);
    r->median = job_median(seconds, count);
    r->steps = count * block;
    r->cpu = job_median(cpu, count);
    r->stepping = job_resident_peak(how->ranks);
    return 0;
}

/* Writes the policy of that name. Returns false if there is none. */
static bool parse_shard(const char *name, ek_shard_policy *policy)
{
    static const char *const names[] = {"none", "optimizer", "parameters"};
    for (int i = 0; i < 3; i++) {
        *policy = (ek_shard_policy)i;
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/* Returns false if the arguments are wrong. */
static bool parse(int argc, char **argv, setting *how, int *devices)
{
    const char *device = getenv("DEVICE");
    if (argc < 4 || !workload_named(argv[1], &how->load))
        return false;
    how->name = argv[1];
    *devices = atoi(argv[2]);
    how->threads = atoi(argv[3]);
    how->budget = argc >= 5 ? atof(argv[4]) : 3;
    how->kind = job_kind();
    how->weighs = argc >= 6;
    if (how->weighs && !parse_shard(argv[5], &how->shard))
        return false;
    bool known = !device || how->kind == EK_CUDA || strcmp(device, "host") == 0;
    return known && *devices >= 1 && how->threads >= 1 && how->budget > 0;
}

int main(int argc, char **argv)
{
    setting how = {0};
    training job = {0};
    result r = {0};
    int devices;
    if (!parse(argc, argv, &how, &devices)) {
        char names[400];
        workload_names(names, sizeof(names));
        fprintf(stderr,
                "usage: [DEVICE=host|cuda] %s "
                "NET[-bf16|-tf32|-fast|-default][-adam][-clip][@BATCH[xLENGTH]] DEVICES THREADS "
                "[SECONDS [none|optimizer|parameters]]\n",
                argv[0]);
        fprintf(stderr, "NET is one of %s\n", names);
        return 2;
    }
    int rc = ek_dist_init_process_group();
    how.ranks = ek_dist_get_world_size(NULL);
    if (rc == 0)
        rc = job_devices(&how.devices, how.kind, devices, how.threads);
    const double start = job_resident_peak(how.ranks); /* begins anew */
    r.before = job_resident_peak(how.ranks);
    if (rc == 0)
        rc = job_open(&job, &how.load, &how.devices,
                      EK_OPTIONS(ek_data_parallel_options, .shard = how.shard));
    if (rc == 0)
        rc = measure(&job, &how, &r);
    int rank = ek_dist_get_rank(NULL);
    const double peak = fmax(r.making, r.stepping), added = peak - r.before;
    char memory[80] = "";
    if (how.weighs)
        snprintf(memory, sizeof memory, " %.1f %.1f", added / 1e6, (r.stepping - r.before) / 1e6);
    job_close(&job);
    if (job_exit(rc) != 0)
        return 1;
    if (rank == 0 && how.ranks == 1)
        printf("%s %dx%d %.6f %d %.6f %.6f %.1f %.1f\n", how.name, devices, how.threads, r.median,
               r.steps, r.fourth_loss, r.cpu, fmax(start, peak) / 1e6, added / 1e6);
    else if (rank == 0)
        printf("%s %dx%dx%d %.6f %d %.6f %.3f%s\n", how.name, how.ranks, devices, how.threads,
               r.median, r.steps, r.fourth_loss, r.exposed, memory);
    return 0;
}

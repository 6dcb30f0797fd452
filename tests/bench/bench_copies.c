/* bench_copies.c: bytes per second of broadcast and reduction between logical devices, beside those
 * of a plain copy on one.
 *
 *     bench_copies DEVICES MEGABYTES [host|cuda]
 *
 * A copy reads and writes each byte; a broadcast of N devices does that N - 1 times; a reduction
 * reads N and writes one. Devices are dealt out over the GPUs there are (EVENKEEL_CUDA_DEVICES says
 * otherwise). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/devices.h"
#include "evenkeel/evenkeel.h"

enum { WARMUP = 3, ROUNDS = 20 };

typedef struct copy_job {
    ek_device_list devices;
    ek_tensor *parts[EK_MAX_DEVICES]; /* one per device */
} copy_job;

typedef int action(const copy_job *job);

static int copy(const copy_job *job)
{
    return ek_clone(job->parts[0]) ? 0 : ek_error_status();
}

static int broadcast(const copy_job *job)
{
    ek_tensor *out[EK_MAX_DEVICES];
    return ek_broadcast(job->parts[0], &job->devices, out);
}

static int reduce(const copy_job *job)
{
    return ek_reduce(job->parts, job->devices.count) ? 0 : ek_error_status();
}

static int settle(const copy_job *job)
{
    for (int i = 0; i < job->devices.count; i++)
        if (ek_synchronize(job->devices.devices[i]) < 0)
            return ek_error_status();
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int repeat(const copy_job *job, action *act, int rounds)
{
    int rc = 0;
    for (int i = 0; i < rounds && rc >= 0; i++) {
        ek_scope scope = ek_scope_begin();
        rc = act(job);
        ek_scope_end(&scope);
    }
    return rc < 0 ? rc : settle(job);
}

/* Seconds of one, or negative. */
static double seconds_of(const copy_job *job, action *act)
{
    if (repeat(job, act, WARMUP) < 0)
        return -1;
    double begin = now();
    return repeat(job, act, ROUNDS) < 0 ? -1 : (now() - begin) / ROUNDS;
}

static int measure(const copy_job *job, double nbytes)
{
    double n = job->devices.count;
    const struct {
        const char *name;
        action *act;
        double passes; /* over nbytes, reading or writing */
    } rows[] = {{"copy", copy, 2},
                {"broadcast", broadcast, 2 * (n - 1)},
                {"reduce", reduce, n + 1}};
    double copy_rate = 0;

    printf("%.0f MB of f32 over %d %s\n%-10s %10s %10s %8s\n", nbytes / 1e6, job->devices.count,
           job->devices.devices[0].kind == EK_CUDA ? "CUDA devices" : "host devices", "", "ms",
           "GB/s", "of copy");
    for (int i = 0; i < 3; i++) {
        double seconds = seconds_of(job, rows[i].act);
        if (seconds < 0)
            return ek_error_status();
        double rate = rows[i].passes * nbytes / seconds;
        copy_rate = i == 0 ? rate : copy_rate;
        printf("%-10s %10.3f %10.1f %7.0f%%\n", rows[i].name, 1e3 * seconds, rate / 1e9,
               100 * rate / copy_rate);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int devices = argc >= 3 ? atoi(argv[1]) : 0;
    double megabytes = argc >= 3 ? atof(argv[2]) : 0;
    arg_choice choice = devices_choice();
    copy_job job = {0};

    if (argc > 3)
        choice.chosen = argv[3][0] == 'c';
    if (devices < 2 || megabytes <= 0) {
        fprintf(stderr, "usage: %s DEVICES MEGABYTES [host|cuda]; at least 2 devices\n", argv[0]);
        return 2;
    }
    job.devices = devices_open(devices_kind(&choice), devices);
    ek_scope scope = ek_scope_begin();
    for (int i = 0; i < job.devices.count; i++)
        job.parts[i] =
            ek_ones(EK_SHAPE((int64_t)(megabytes * 250000)), .device = job.devices.devices[i]);
    int rc = ek_error_status();
    if (rc == 0)
        rc = measure(&job, megabytes * 1e6);
    ek_scope_end(&scope);
    if (rc < 0 || ek_shutdown() < 0) {
        ek_print_error(stderr);
        return 1;
    }
    return 0;
}

/* bench_copies.c: bytes per second of broadcast and reduction between logical devices, beside those
 * of a plain copy on one: of one tensor, and of as many bytes in lists of tensors, as a network's
 * parameters go to its replicas and their gradients come back.
 *
 *     bench_copies DEVICES MEGABYTES [host|cuda]
 *
 * A copy reads and writes each byte; a broadcast of N devices does that N - 1 times; a reduction
 * reads N and writes one. What an implementation moves beyond that lowers its rate. Devices are
 * dealt out over the GPUs there are (EVENKEEL_CUDA_DEVICES says otherwise). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "args.h"
#include "evenkeel/evenkeel.h"

enum { WARMUP = 3, ROUNDS = 20, LIST = 64 };

typedef struct copy_job {
    ek_device_list devices;
    ek_tensor *parts[EK_MAX_DEVICES];        /* one per device */
    ek_tensor *lists[EK_MAX_DEVICES * LIST]; /* [device * LIST + i]: as many bytes together */
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
    return ek_reduce_add(job->parts, job->devices.count, ek_tensor_device(job->parts[0]))
               ? 0
               : ek_error_status();
}

static int broadcast_list(const copy_job *job)
{
    ek_tensor *out[EK_MAX_DEVICES * LIST];
    return ek_broadcast_coalesced(job->lists, LIST, &job->devices, 0, out);
}

static int reduce_list(const copy_job *job)
{
    ek_tensor *out[LIST];
    return ek_reduce_add_coalesced(job->lists, job->devices.count, LIST, job->devices.devices[0], 0,
                                   out);
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
                {"reduce", reduce, n + 1},
                {"broadcast of 64", broadcast_list, 2 * (n - 1)},
                {"reduce of 64", reduce_list, n + 1}};
    double copy_rate = 0;
    printf("%.0f MB of f32 over %d %s\n%-16s %10s %10s %8s\n", nbytes / 1e6, job->devices.count,
           job->devices.devices[0].kind == EK_CUDA ? "CUDA devices" : "host devices", "", "ms",
           "GB/s", "of copy");
    for (int i = 0; i < (int)(sizeof(rows) / sizeof(rows[0])); i++) {
        double seconds = seconds_of(job, rows[i].act);
        if (seconds < 0)
            return ek_error_status();
        double rate = rows[i].passes * nbytes / seconds;
        copy_rate = i == 0 ? rate : copy_rate;
        printf("%-16s %10.3f %10.1f %7.0f%%\n", rows[i].name, 1e3 * seconds, rate / 1e9,
               100 * rate / copy_rate);
    }
    return 0;
}

/* Random numbers: some GPUs move zeros faster. */
static void make_tensors(copy_job *job, int64_t count)
{
    ek_tensor *one = ek_randn(EK_SHAPE(count)), *piece = ek_randn(EK_SHAPE(count / LIST + 1));
    for (int d = 0; d < job->devices.count; d++) {
        ek_device device = job->devices.devices[d];
        job->parts[d] = ek_to_device(one, device);
        for (int i = 0; i < LIST; i++)
            job->lists[d * LIST + i] = ek_to_device(piece, device);
    }
}

int main(int argc, char **argv)
{
    int devices = argc >= 3 ? atoi(argv[1]) : 0;
    double megabytes = argc >= 3 ? atof(argv[2]) : 0;
    int kind = ek_default_device_kind();
    copy_job job = {0};
    if (argc > 3)
        kind = argv[3][0] == 'c' ? EK_CUDA : EK_HOST;
    if (devices < 2 || megabytes <= 0) {
        fprintf(stderr, "usage: %s DEVICES MEGABYTES [host|cuda]; at least 2 devices\n", argv[0]);
        return 2;
    }
    job.devices = devices_open(kind, devices);
    ek_scope scope = ek_scope_begin();
    make_tensors(&job, (int64_t)(megabytes * 250000));
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

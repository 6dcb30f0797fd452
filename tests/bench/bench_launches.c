/* bench_launches.c: what a steady training step launches on a GPU.
 *
 *     bench_launches [NET[-bf16|-tf32][@BATCH]...]
 *
 * prints a line per net (resnet18@2 resnet18-bf16@2 mlp@2 critic@2 without arguments): kernels of
 * our own, products of cuBLAS, copies, fills, and the sum. The emulator counts, without cuDNN:
 * there convolutions are kernels of our own. On a GPU a call of a library may launch several
 * kernels. */
#include <emulator.h>
#include <stdio.h>
#include <stdlib.h>

#include "job.h"

enum { WARMUP_STEPS = 3 };

static int count_step(const char *name, const ek_device_list *devices)
{
    workload load;
    training job = {0};
    ek_emulator_counters counters = {0};
    if (!workload_named(name, &load)) {
        fprintf(stderr, "usage: bench_launches [NET[-bf16|-tf32][@BATCH]...]\n");
        exit(2);
    }
    int rc = job_open(&job, &load, devices, EK_OPTIONS(ek_data_parallel_options));
    for (int i = 0; i < WARMUP_STEPS && rc >= 0; i++)
        rc = job_step(&job, NULL);
    if (rc >= 0)
        rc = job_settle(devices);
    ek_emulator_reset_counters();
    if (rc >= 0)
        rc = job_step(&job, NULL);
    if (rc >= 0)
        rc = job_settle(devices);
    ek_emulator_count(&counters);
    job_close(&job);
    if (rc >= 0)
        printf("%-18s %8d %8d %8d %8d %8d\n", name, (int)counters.kernels, (int)counters.products,
               (int)counters.copies, (int)counters.fills,
               (int)(counters.kernels + counters.products + counters.copies + counters.fills));
    fflush(stdout);
    return rc;
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"resnet18@2", "resnet18-bf16@2", "mlp@2", "critic@2"};
    int count = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    ek_device_list devices;
    int rc = job_devices(&devices, EK_CUDA, 1, 0);
    printf("%-18s %8s %8s %8s %8s %8s\n", "launches of a step", "kernels", "cuBLAS", "copies",
           "fills", "all");
    for (int i = 0; i < count && rc >= 0; i++)
        rc = count_step(argc > 1 ? argv[i + 1] : usual[i], &devices);
    return job_exit(rc);
}

/* bench_launches.c: what a steady training step launches on a GPU, and the memory that it moves.
 *
 *     [EK_EMULATOR_WATCH=1] bench_launches [NET[-bf16|-tf32][-clip][@BATCH[xLENGTH]]...]
 *
 * prints a line per net (see `usual` without arguments): kernels of our own, products of cuBLAS,
 * calls of cuDNN, copies, fills, and their sum. The emulator counts; with
 * EK_EMULATOR_LIBRARIES it has cuDNN or not. On a GPU a call of a library may launch several
 * kernels. Launches don't depend on the batch and the length: small ones do.
 *
 * With EK_EMULATOR_WATCH=1 come the megabytes that the step reads and writes, and a table of them
 * by family (kernels whose first argument has one type) after the number of operations. Each
 * operation counts a block of memory once, whatever caches keep from one operation to the next.
 * Bytes of parameters, gradients and optimizers don't depend on the batch, those of activations do.
 */
#include <emulator.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

enum { WARMUP_STEPS = 2, MOST_FAMILIES = 512, SHOWN = 16 };

static const char *const usual[] = {
    "gpt2-bf16-clip@1x32", "lstm512@1",      "lstm512-bf16@1", "resnet18@2",
    "resnet18-bf16@2",     "critic-layer@2", "critic@2",       "mlp@2"};

/* ---- families ---- */

typedef struct family {
    char name[60];
    uint64_t operations, read, written; /* bytes */
} family;

/* Writes the name of an operation, or the type of a kernel's first argument. */
static void family_name(const char *operation, char *name, size_t size)
{
    const char *from = strchr(operation, '{');
    int depth = 0;
    size_t used = 0;
    for (from = from ? from + 1 : operation; *from && used + 1 < size; from++) {
        depth += (*from == '<') - (*from == '>');
        if ((*from == ',' && depth == 0) || *from == '}')
            break;
        name[used++] = *from;
    }
    name[used] = '\0';
}

static void family_add(family *to, uint64_t operations, uint64_t read, uint64_t written)
{
    to->operations += operations;
    to->read += read;
    to->written += written;
}

/* Those that move most come first. */
static int family_order(const void *a, const void *b)
{
    const family *x = a, *y = b;
    return (x->read + x->written < y->read + y->written) -
           (x->read + x->written > y->read + y->written);
}

/* Fills the families of the step, and returns how many there are. */
static int family_list(family *families)
{
    static ek_emulator_traffic rows[MOST_FAMILIES];
    int count = 0;
    for (size_t i = 0, all = ek_emulator_watched(rows, MOST_FAMILIES); i < all; i++) {
        family one = {.operations = 0};
        int at = 0;
        family_name(rows[i].name, one.name, sizeof one.name);
        while (at < count && strcmp(families[at].name, one.name) != 0)
            at++;
        if (at == count)
            families[count++] = one;
        family_add(&families[at], rows[i].operations, rows[i].read, rows[i].written);
    }
    qsort(families, (size_t)count, sizeof *families, family_order);
    return count;
}

static void family_show(const family *one)
{
    if (one->read + one->written > 0)
        printf("    %8d %10.2f %10.2f  %s\n", (int)one->operations, 1e-6 * (double)one->read,
               1e-6 * (double)one->written, one->name);
}

/* ---- a net ---- */

static void count_show(const char *name)
{
    static family families[MOST_FAMILIES];
    family sum = {.operations = 0}, rest = {.name = "all others"};
    ek_emulator_counters counters = {0};
    int count = family_list(families);
    ek_emulator_count(&counters);
    uint64_t calls = counters.attentions + counters.networks;
    for (int i = 0; i < 5; i++)
        calls += counters.convolutions[i];
    for (int i = 0; i < count; i++) {
        const family *one = &families[i];
        family_add(&sum, one->operations, one->read, one->written);
        if (i >= SHOWN)
            family_add(&rest, one->operations, one->read, one->written);
    }
    printf("%-20s %8d %8d %8d %8d %8d %8d", name, (int)counters.kernels, (int)counters.products,
           (int)calls, (int)counters.copies, (int)counters.fills,
           (int)(counters.kernels + counters.products + calls + counters.copies + counters.fills));
    if (count > 0)
        printf(" %10.2f %10.2f", 1e-6 * (double)sum.read, 1e-6 * (double)sum.written);
    printf("\n");
    for (int i = 0; i < count && i < SHOWN; i++)
        family_show(&families[i]);
    family_show(&rest);
    fflush(stdout);
}

static int count_step(const char *name, const ek_device_list *devices)
{
    workload load;
    training job = {0};
    if (!workload_named(name, &load)) {
        fprintf(stderr, "usage: bench_launches [NET[-bf16|-tf32][-clip][@BATCH[xLENGTH]]...]\n");
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
    if (rc >= 0)
        count_show(name);
    job_close(&job);
    return rc;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    ek_device_list devices;
    setenv("EK_EMULATOR_MEMORY", "6G", 0);
    int rc = job_devices(&devices, EK_CUDA, 1, 0);
    printf("%-20s %8s %8s %8s %8s %8s %8s %10s %10s\n", "launches of a step", "kernels", "cuBLAS",
           "cuDNN", "copies", "fills", "all", "MB read", "written");
    for (int i = 0; i < count && rc >= 0; i++)
        rc = count_step(argc > 1 ? argv[i + 1] : usual[i], &devices);
    return job_exit(rc);
}

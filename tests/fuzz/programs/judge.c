/* judge.c: see judge.h. */
#include "judge.h"

#include <dirent.h>
#include <evenkeel/evenkeel.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

#include "layers.h"

/* ---- numbers ---- */

/* Rounding of the longest sum, which every step may multiply. */
static double tolerance(const program *p, const placed_net *net, int number)
{
    int batch = 1, widest = 1;
    for (int i = 0; i < p->step_count; i++)
        batch = p->steps[i].batch > batch ? p->steps[i].batch : batch;
    for (int i = 0; i < net->count; i++) {
        int before = sample_count(&net->layers[i].before),
            after = sample_count(&net->layers[i].after);
        widest = before > widest ? before : after > widest ? after : widest;
    }
    double epsilon = p->dtype == DTYPE_F64 ? 0x1p-53 * 0x1p16 : 0x1p-24 * 0x1p9;
    return epsilon * sqrt((double)batch * widest) * pow(4, number);
}

/* The first entries that differ: their index, or -1. */
static int first_difference(const program *p, const tape *a, const tape *b, double *distance)
{
    placed_net net;
    int count = a->count < b->count ? a->count : b->count;
    place_layers(p, &net);
    for (int i = 0; i < count; i++) {
        const tape_entry *x = &a->entries[i], *y = &b->entries[i];
        if (x->open || y->open)
            continue;
        *distance = tape_distance(x, y);
        if (p->judge == JUDGE_ITSELF ? !tape_equal(x, y)
                                     : !(*distance <= tolerance(p, &net, x->step)))
            return i;
    }
    return -1;
}

static int describe_difference(finding *f, const tape_entry *a, const tape_entry *b,
                               double distance)
{
    int worst = 0;
    double largest = -1;
    for (int i = 0; i < a->count && i < b->count; i++) {
        double apart = fabs(a->values[i] - b->values[i]);
        if (!(apart <= largest) && a->values[i] != b->values[i]) {
            worst = i;
            largest = apart;
        }
    }
    return found(f, FOUND_NUMBERS,
                 "step %d: %s differ by %.3g; number %d of %d is %.17g instead of %.17g (of %d)",
                 a->step, tape_kind_name(a->kind), distance, worst, a->count,
                 a->count ? a->values[worst] : NAN, b->count ? b->values[worst] : NAN, b->count);
}

/* Does rounding alone, on one device, make as much of a difference as early? */
static bool is_ill_conditioned(const program *p, const tape *reference, int entry, double distance)
{
    run_counts counts = {0};
    bool ill = false;
    for (int i = 0; i < 4 && !ill; i++) {
        tape numbers = {.count = 0};
        finding ignored = {.kind = FOUND_NOTHING};
        run_options options = {.one_device = true,
                               .perturbation = (p->dtype == DTYPE_F64 ? 1e-14 : 1e-6) * (1 << i)};
        double other;
        program_run(p, &options, &numbers, &ignored, &counts);
        int index = first_difference(p, &numbers, reference, &other);
        ill = index >= 0 && index <= entry && !(other < distance / 100);
        tape_clear(&numbers);
    }
    return ill;
}

/* Do both agree in f64? Small differences in f32 are rounding then: if all of a result cancels,
 * as the critic's gradient behind a batch normalisation does, one device may give exactly 0
 * whatever is perturbed. */
static bool is_rounding(const program *p, double distance)
{
    program wide = *p;
    run_counts counts = {0};
    finding ignored = {.kind = FOUND_NOTHING};
    run_options plain = {.one_device = true}, own = {.faults = true};
    tape reference = {.count = 0}, numbers = {.count = 0};
    double other;
    if (p->dtype != DTYPE_F32 || !(distance < 0.01))
        return false;
    wide.dtype = DTYPE_F64;
    bool agree = program_run(&wide, &plain, &reference, &ignored, &counts) == 0 &&
                 program_run(&wide, &own, &numbers, &ignored, &counts) == 0 &&
                 numbers.count == reference.count &&
                 first_difference(&wide, &numbers, &reference, &other) < 0;
    tape_clear(&numbers);
    tape_clear(&reference);
    return agree;
}

/* Training that runs away multiplies rounding without bound; what comes of it says nothing. Large
 * gradients are the first that is seen of it. Behind a loss that is no number, zeros that hide a
 * NaN may be any. */
static bool has_diverged(const program *p, const tape *reference, int entry)
{
    double limit = p->dtype == DTYPE_F64 ? 1e10 : 1e5;
    for (int i = 0; i <= entry && i < reference->count; i++)
        for (int k = 0; k < reference->entries[i].count; k++)
            if (!(fabs(reference->entries[i].values[k]) <= limit))
                return true;
    return false;
}

static int compare(const program *p, const tape *numbers, const tape *reference, finding *f)
{
    double distance;
    int entry = first_difference(p, numbers, reference, &distance);
    if (entry < 0 && numbers->count != reference->count)
        return found(f, FOUND_NUMBERS, "%d records instead of %d", numbers->count,
                     reference->count);
    if (entry < 0)
        return 0;
    if (p->judge == JUDGE_ONE_DEVICE &&
        (has_diverged(p, reference, entry) || is_ill_conditioned(p, reference, entry, distance) ||
         is_rounding(p, distance)))
        return found(f, FOUND_ILL_CONDITION, "ill-conditioned");
    return describe_difference(f, &numbers->entries[entry], &reference->entries[entry], distance);
}

static int run_and_compare(const program *p, finding *f, run_counts *counts)
{
    run_counts ignored = {0};
    tape reference = {.count = 0}, numbers = {.count = 0};
    run_options plain = {.one_device = p->judge == JUDGE_ONE_DEVICE}, own = {.faults = true};
    int rc = program_run(p, &plain, &reference, f, &ignored);
    if (rc == 0)
        rc = program_run(p, &own, &numbers, f, counts);
    if (rc == 0)
        rc = compare(p, &numbers, &reference, f);
    tape_clear(&numbers);
    tape_clear(&reference);
    return rc;
}

/* ---- what is left ---- */

static int entries_of(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static void *nothing(void *user)
{
    return user;
}

/* What stays: the first program's (OpenMP's threads), and a thread that a sanitizer starts with the
 * first that the process starts. */
static int look_for_remainders(finding *f)
{
    static int threads, descriptors;
    pthread_t thread;
    if (!threads && pthread_create(&thread, NULL, nothing, NULL) == 0)
        pthread_join(thread, NULL);
    int descriptors_now = entries_of("/proc/self/fd"), threads_now;
    /* A thread that was joined may be on its way out of the list. */
    for (int i = 0; (threads_now = entries_of("/proc/self/task")) > threads && threads && i < 500;
         i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (threads && threads_now > threads)
        return found(f, FOUND_REMAINDER, "%d threads are left", threads_now - threads);
    if (descriptors && descriptors_now > descriptors)
        return found(f, FOUND_REMAINDER, "%d descriptors are left", descriptors_now - descriptors);
    if (!threads) {
        threads = threads_now;
        descriptors = descriptors_now;
    }
    return 0;
}

static int close_down(finding *f)
{
    if (ek_shutdown() < 0) {
        int rc = found(f, FOUND_REMAINDER, "ek_shutdown: %s", ek_error_message());
        ek_error_clear();
        return rc;
    }
    return look_for_remainders(f);
}

int program_judge(const program *p, finding *f, run_counts *counts)
{
    char devices[20];
    snprintf(devices, sizeof devices, p->slow ? "%dx0@0.7" : "%d", p->devices);
    if (ek_host_devices_configure(devices) < 0)
        return found(f, FOUND_ERROR, "devices: %s", ek_error_message());
    ek_device_set_threads(ek_cpu(), 1);
    for (int i = 0; i < p->devices; i++)
        ek_device_set_threads(ek_host(i), 1);
    int rc = run_and_compare(p, f, counts);
    int closed = close_down(f);
    return rc < 0 ? rc : closed;
}

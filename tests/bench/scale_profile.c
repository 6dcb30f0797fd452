/* scale_profile.c: see scale_profile.h. */
#include "scale_profile.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "autograd/grad_hook.h"
#include "comm/exchange.h"
#include "core/object.h"
#include "nn/module_table.h"
#include "train/reducer.h"

enum {
    PROFILE_MOST_LEAVES = 1024,
    PROFILE_MOST_STEPS = 2000,
    PROFILE_LEAST_STEPS = 5,
    PROFILE_WARMUPS = 2,
    PROFILE_CALL_NBYTES = 64 /* that an agreement combines; reports have a bit per leaf more */
};

/* ---- buckets ---- */

/* Cuts leaves into buckets as the reducer does. Leaf i is ready after ready[i] seconds. */
static int profile_cut(sim_profile *profile, const double *ready, const size_t *nbytes, int count,
                       double cap_mb)
{
    static ek_bucket buckets[PROFILE_MOST_LEAVES + SIM_MOST_BUCKETS];
    double pieces = 0;
    for (int i = 0; i < count; i++)
        pieces += (double)nbytes[i] / EK_LEAF_PIECE;
    profile->bucket_count =
        pieces > SIM_MOST_BUCKETS
            ? (int)fmin(pieces, INT_MAX)
            : ek_reducer_cut(nbytes, 0, count, (size_t)(cap_mb * (1 << 20)), false, buckets);
    if (profile->bucket_count > SIM_MOST_BUCKETS)
        return args_complain("%d buckets; at most %d can be simulated: make them larger",
                             profile->bucket_count, SIM_MOST_BUCKETS);
    for (int b = 0; b < profile->bucket_count; b++) {
        sim_bucket *bucket = &profile->buckets[b];
        *bucket = (sim_bucket){0};
        for (int i = buckets[b].first; i < buckets[b].end; i++) {
            bucket->ready = fmax(bucket->ready, ready[i]);
            bucket->nbytes += (double)nbytes[i] / buckets[b].pieces;
        }
    }
    profile->descriptor_nbytes = PROFILE_CALL_NBYTES;
    profile->report_nbytes = PROFILE_CALL_NBYTES + (double)count / 8;
    return 0;
}

/* ---- measured ---- */

/* Notes when the leaves of a backward have their gradients. */
typedef struct profile_watch {
    ek_grad_hook hook;
    double began, ended;
    double arrived[PROFILE_MOST_LEAVES]; /* seconds after `began` */
} profile_watch;

static int profile_begin(ek_grad_hook *hook, const int *leaves, int count, bool create_graph,
                         bool meets)
{
    (void)leaves;
    (void)count;
    (void)create_graph;
    (void)meets;
    profile_watch *watch = (profile_watch *)hook;
    memset(watch->arrived, 0, sizeof watch->arrived);
    watch->began = job_now();
    return 0;
}

static int profile_arrived(ek_grad_hook *hook, int leaf, bool some)
{
    (void)some;
    profile_watch *watch = (profile_watch *)hook;
    watch->arrived[leaf] = job_now() - watch->began;
    return 0;
}

static int profile_finish(ek_grad_hook *hook, int status)
{
    (void)status;
    ((profile_watch *)hook)->ended = job_now();
    return 0;
}

static void profile_destroy(ek_object *object)
{
    (void)object;
}

/* What was measured: all steps' seconds, and the shortest of each phase, since what disturbs one
 * makes it longer. */
typedef struct profile_samples {
    double logarithm[PROFILE_MOST_STEPS];
    int count;
    double forward, backward, optimizer;
    double arrived[PROFILE_MOST_LEAVES]; /* of the shortest backward */
} profile_samples;

static int profile_step(training *job, profile_watch *watch, profile_samples *samples)
{
    double began = job_now();
    if (job_step(job, NULL) < 0)
        return -1;
    double ended = job_now(), backward = watch->ended - watch->began;
    bool first = samples->count == 0;
    samples->logarithm[samples->count++] = log(ended - began);
    samples->forward = fmin(first ? INFINITY : samples->forward, watch->began - began);
    samples->optimizer = fmin(first ? INFINITY : samples->optimizer, ended - watch->ended);
    if (!first && backward >= samples->backward)
        return 0;
    samples->backward = backward;
    memcpy(samples->arrived, watch->arrived, sizeof samples->arrived);
    return 0;
}

static int profile_summarise(sim_profile *profile, profile_samples *samples,
                             const ek_tensor_list *leaves, double cap_mb)
{
    static size_t nbytes[PROFILE_MOST_LEAVES];
    int count = samples->count;
    profile->forward = samples->forward;
    profile->backward = samples->backward;
    profile->optimizer = samples->optimizer;
    /* Half the distance of the quantiles that a deviation lies between, for which one long pause
     * is nothing. */
    job_median(samples->logarithm, count);
    profile->sigma =
        (samples->logarithm[count * 84 / 100] - samples->logarithm[count * 16 / 100]) / 2;
    for (int i = 0; i < leaves->count; i++)
        nbytes[i] = ek_comm_nbytes(leaves->tensors[i]);
    return profile_cut(profile, samples->arrived, nbytes, leaves->count, cap_mb);
}

static double profile_buffers(ek_module *model)
{
    ek_tensor_list list = {0};
    double nbytes = 0;
    if (ek_module_collect(model, false, true, &list) < 0)
        return 0;
    for (int i = 0; i < list.count; i++)
        nbytes += (double)ek_comm_nbytes(list.tensors[i]);
    ek_tensor_list_clear(&list);
    return nbytes;
}

/* The parameters, each with the watch as its hook or with none. */
static int profile_hook(const ek_tensor_list *leaves, profile_watch *watch)
{
    int rc = 0;
    if (leaves->count > PROFILE_MOST_LEAVES)
        return args_complain("%d parameters; at most %d can be measured", leaves->count,
                             PROFILE_MOST_LEAVES);
    for (int i = 0; i < leaves->count && rc >= 0; i++)
        rc = ek_leaf_set_grad_hook(leaves->tensors[i], watch ? &watch->hook : NULL, i);
    return rc;
}

static int profile_train(sim_profile *profile, training *job, double budget, double cap_mb)
{
    static profile_watch watch = {
        .hook = {.begin = profile_begin, .arrived = profile_arrived, .finish = profile_finish}};
    static profile_samples samples;
    ek_tensor_list leaves = {0};
    ek_object_init(&watch.hook.object, profile_destroy);
    int rc = ek_module_collect(job->model, true, false, &leaves);
    if (rc >= 0)
        rc = profile_hook(&leaves, &watch);
    for (int i = 0; i < PROFILE_WARMUPS && rc >= 0; i++)
        rc = job_step(job, NULL);
    double start = job_now();
    while (rc >= 0 && samples.count < PROFILE_MOST_STEPS &&
           (samples.count < PROFILE_LEAST_STEPS || job_now() - start < budget))
        rc = profile_step(job, &watch, &samples);
    if (rc >= 0)
        rc = profile_summarise(profile, &samples, &leaves, cap_mb);
    profile->buffer_nbytes = profile_buffers(job->model);
    profile_hook(&leaves, NULL);
    ek_tensor_list_clear(&leaves);
    return rc;
}

int profile_measure(sim_profile *profile, const workload *load, int threads, int copies,
                    double budget, double cap_mb)
{
    bool copy = false;
    fflush(stdout);
    for (int i = 1; i < copies && !copy; i++) {
        pid_t child = fork();
        if (child < 0)
            return args_complain("no process for copy %d can be had", i + 1);
        copy = child == 0;
    }
    training job = {0};
    ek_device_list devices;
    int rc = job_devices(&devices, EK_HOST, 1, threads);
    if (rc >= 0)
        rc = job_open(&job, load, &devices, EK_OPTIONS(ek_data_parallel_options));
    if (rc >= 0)
        rc = profile_train(profile, &job, budget, cap_mb);
    job_close(&job);
    if (copy)
        _exit(job_exit(rc));
    for (int status; wait(&status) > 0;)
        if (status != 0 && rc >= 0)
            rc = args_complain("a copy of the process failed");
    return rc;
}

/* ---- from the size of a model ---- */

/* The parameters of a model, with what each costs in backward. */
typedef struct profile_model {
    size_t nbytes[PROFILE_MOST_LEAVES];
    double flops[PROFILE_MOST_LEAVES];
    int count;
} profile_model;

/* A weight that `tokens` are multiplied by, and its bias; tokens 0: only looked up, or scaled by.
 */
static void profile_layer(profile_model *model, double weight, double bias, double tokens)
{
    double counts[] = {weight, bias};
    for (int i = 0; i < 2; i++)
        if (counts[i] > 0) {
            model->nbytes[model->count] = (size_t)counts[i] * sizeof(float);
            /* Two products, for the weight's gradient and the input's. */
            model->flops[model->count++] = i == 0 ? 4 * weight * tokens : 0;
        }
}

void profile_transformer(sim_profile *profile, double tokens, double flops, double cap_mb)
{
    static profile_model model;
    static double ready[PROFILE_MOST_LEAVES];
    const double blocks = 12, width = 768, words = 20000, context = 512;
    model.count = 0;
    profile_layer(&model, words * width, 0, 0);
    profile_layer(&model, context * width, 0, 0);
    for (int i = 0; i < blocks; i++) {
        profile_layer(&model, width, width, 0);
        profile_layer(&model, 3 * width * width, 3 * width, tokens);
        profile_layer(&model, width * width, width, tokens);
        profile_layer(&model, width, width, 0);
        profile_layer(&model, 4 * width * width, 4 * width, tokens);
        profile_layer(&model, 4 * width * width, width, tokens);
    }
    profile_layer(&model, width, width, 0);
    double seconds = 4 * words * width * tokens / flops; /* the output layer comes first */
    double parameters = 0;
    for (int i = model.count - 1; i >= 0; i--) {
        seconds += model.flops[i] / flops;
        ready[i] = seconds;
        parameters += (double)(model.nbytes[i] / sizeof(float));
    }
    /* Adam reads and writes seven numbers per parameter, and has a byte in the time of ten flops
     * (10 TFLOP/s beside 1 TB/s). */
    *profile = (sim_profile){.forward = seconds / 2,
                             .backward = seconds,
                             .optimizer = 7 * sizeof(float) * parameters * 10 / flops};
    profile_cut(profile, ready, model.nbytes, model.count, cap_mb);
}

void profile_speed_up(sim_profile *profile, double times)
{
    profile->forward /= times;
    profile->backward /= times;
    profile->optimizer /= times;
    for (int b = 0; b < profile->bucket_count; b++)
        profile->buckets[b].ready /= times;
}

/* ---- files ---- */

void profile_write(const sim_profile *profile, FILE *stream)
{
    fprintf(stream, "forward %.9g backward %.9g optimizer %.9g sigma %.4g\n", profile->forward,
            profile->backward, profile->optimizer, profile->sigma);
    fprintf(stream, "buffers %.0f descriptor %.0f report %.0f buckets %d\n", profile->buffer_nbytes,
            profile->descriptor_nbytes, profile->report_nbytes, profile->bucket_count);
    for (int b = 0; b < profile->bucket_count; b++)
        fprintf(stream, "%.9g %.0f\n", profile->buckets[b].ready, profile->buckets[b].nbytes);
}

int profile_read(sim_profile *profile, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return args_complain("%s cannot be opened", path);
    *profile = (sim_profile){0};
    bool ok =
        fscanf(file, "forward %lf backward %lf optimizer %lf sigma %lf", &profile->forward,
               &profile->backward, &profile->optimizer, &profile->sigma) == 4 &&
        fscanf(file, " buffers %lf descriptor %lf report %lf buckets %d", &profile->buffer_nbytes,
               &profile->descriptor_nbytes, &profile->report_nbytes, &profile->bucket_count) == 4 &&
        profile->bucket_count >= 1 && profile->bucket_count <= SIM_MOST_BUCKETS &&
        profile->forward >= 0 && profile->backward > 0 && profile->optimizer >= 0;
    for (int b = 0; ok && b < profile->bucket_count; b++) {
        sim_bucket *bucket = &profile->buckets[b];
        ok = fscanf(file, "%lf %lf", &bucket->ready, &bucket->nbytes) == 2 && bucket->ready >= 0 &&
             bucket->nbytes > 0;
    }
    fclose(file);
    return ok ? 0 : args_complain("%s is no profile that bench_scale --profile has written", path);
}

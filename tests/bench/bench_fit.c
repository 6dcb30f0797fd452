/* bench_fit.c: ek_fit beside an exhaustive search.
 *
 *     bench_fit [FIRST [LAST]]
 *
 * Cases 0 to 29 are five nets with two batches each, on two host devices of one thread whose
 * capacities are shares of what the plain training needs. In each case ek_fit chooses. Then all
 * combinations of checkpointed blocks, sharding, offloading, micro-batches and even or uneven cuts
 * run with the whole batch. ek_fit's choice and the fastest of these take steps in turn, and the
 * ratio of their fastest steps is printed. So are the errors of what ek_fit expected: of the peak
 * of the device that is worst, and of the fastest step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

#include "job.h"

/* ---- nets ---- */

typedef struct fit_net {
    const char *name;
    ek_module *(*make)(void);
    ek_module *(*criterion)(void);
    ek_optimizer *(*optimizer)(ek_module *model, void *user);
    void (*batch)(int64_t count, ek_value *input, ek_value *target);
    const char *blocks; /* paths of the blocks begin so */
    int block_count;
    bool parts; /* false: micro-batches change numbers */
    int64_t batches[2];
} fit_net;

enum { WIDTH = 64, WIDE = 384, CLASSES = 10, CONTEXT = 32, TOKENS = 64, CHANNELS = 12, SIDE = 16 };

static ek_module *fit_block(int64_t width, int layers)
{
    ek_module *block = ek_sequential_of(NULL, 0);
    for (int i = 0; i < layers; i++) {
        ek_module_list_append(block, ek_linear(width, width));
        ek_module_list_append(block, ek_tanh());
    }
    return block;
}

static ek_module *fit_make_deep(void)
{
    ek_module *net = ek_sequential_of(NULL, 0);
    for (int b = 0; b < 6; b++)
        ek_module_list_append(net, fit_block(WIDTH, 4));
    ek_module_list_append(net, ek_linear(WIDTH, CLASSES));
    return net;
}

static ek_module *fit_make_wide(void)
{
    ek_module *net = ek_sequential_of(NULL, 0);
    ek_module_list_append(net, ek_linear(WIDTH, WIDE));
    for (int b = 0; b < 4; b++)
        ek_module_list_append(net, fit_block(WIDE, 2));
    ek_module_list_append(net, ek_linear(WIDE, CLASSES));
    return net;
}

static ek_module *fit_make_conv(bool norm)
{
    ek_module *net = ek_sequential(ek_conv2d(1, CHANNELS, 3, .padding = 1));
    for (int b = 0; b < 4; b++) {
        ek_module *block = ek_sequential_of(NULL, 0);
        for (int i = 0; i < 2; i++) {
            ek_module_list_append(block, ek_conv2d(CHANNELS, CHANNELS, 3, .padding = 1));
            if (norm)
                ek_module_list_append(block, ek_batch_norm2d(CHANNELS));
            ek_module_list_append(block, ek_relu());
        }
        ek_module_list_append(net, block);
    }
    ek_module_list_append(net, ek_flatten(1, -1));
    ek_module_list_append(net, ek_linear(CHANNELS * SIDE * SIDE, CLASSES));
    return net;
}

static ek_module *fit_make_pictures(void)
{
    return fit_make_conv(false);
}

static ek_module *fit_make_normed(void)
{
    return fit_make_conv(true);
}

static ek_module *fit_make_gpt(void)
{
    return ek_gpt2(TOKENS, .context = CONTEXT, .width = 64, .layers = 4, .heads = 4);
}

static ek_module *fit_classes(void)
{
    return ek_cross_entropy_loss();
}

static ek_module *fit_tokens(void)
{
    return ek_token_cross_entropy_loss();
}

static ek_optimizer *fit_adam(ek_module *model, void *user)
{
    (void)user;
    return ek_adam(model, .lr = 1e-4);
}

static ek_optimizer *fit_sgd(ek_module *model, void *user)
{
    (void)user;
    return ek_sgd(model, .lr = 1e-3, .momentum = 0.9);
}

static void fit_vectors(int64_t count, ek_value *input, ek_value *target)
{
    *input = EK_VALUE(ek_randn(EK_SHAPE(count, WIDTH)));
    *target = EK_VALUE(ek_randint(0, CLASSES, EK_SHAPE(count)));
}

static void fit_pictures(int64_t count, ek_value *input, ek_value *target)
{
    *input = EK_VALUE(ek_randn(EK_SHAPE(count, 1, SIDE, SIDE)));
    *target = EK_VALUE(ek_randint(0, CLASSES, EK_SHAPE(count)));
}

static void fit_texts(int64_t count, ek_value *input, ek_value *target)
{
    *input = EK_VALUE(ek_randint(0, TOKENS, EK_SHAPE(count, CONTEXT)));
    *target = EK_VALUE(ek_randint(0, TOKENS, EK_SHAPE(count, CONTEXT)));
}

static const fit_net nets[] = {
    {"deep", fit_make_deep, fit_classes, fit_sgd, fit_vectors, "", 6, true, {512, 1500}},
    {"wide", fit_make_wide, fit_classes, fit_adam, fit_vectors, "", 5, true, {64, 500}},
    {"conv", fit_make_pictures, fit_classes, fit_sgd, fit_pictures, "", 5, true, {32, 90}},
    {"norm", fit_make_normed, fit_classes, fit_adam, fit_pictures, "", 5, false, {32, 90}},
    {"gpt", fit_make_gpt, fit_tokens, fit_adam, fit_texts, "h.", 4, true, {24, 64}},
};
/* Capacities: shares of the plain training's largest peak, for both devices. */
static const double shares[][2] = {{1.3, 1.3}, {0.6, 0.6}, {0.8, 0.4}};
enum { NETS = sizeof nets / sizeof *nets, SHARES = 3, CASES = NETS * 2 * SHARES, STEPS = 12 };

/* ---- one training ---- */

typedef struct fit_case {
    const fit_net *net;
    ek_device_list devices;
    ek_value input, target;
} fit_case;

typedef struct fit_job {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
} fit_job;

static int fit_open(const fit_case *c, const ek_fit_result *options, fit_job *job)
{
    *job = (fit_job){0};
    ek_manual_seed(1);
    job->model = ek_fit_model(options, c->net->make());
    job->criterion = ek_fit_criterion(options, c->net->criterion());
    job->optimizer = job->model ? c->net->optimizer(job->model, NULL) : NULL;
    for (int d = 0; d < c->devices.count; d++)
        ek_memory_reset_peak(c->devices.devices[d]);
    return ek_error_status();
}

static int fit_step(const fit_case *c, const ek_fit_result *options, const fit_job *job,
                    double *seconds)
{
    double loss, begin = job_now();
    ek_scope scope = ek_scope_begin();
    int rc = ek_train_step(&loss, .model = job->model, .criterion = job->criterion,
                           .optimizer = job->optimizer, .input = c->input, .target = c->target,
                           .micro_batches = options->micro_batches);
    ek_scope_end(&scope);
    *seconds = job_now() - begin;
    return rc;
}

static void fit_close(const fit_case *c, fit_job *job)
{
    ek_optimizer_free(job->optimizer);
    ek_module_free(job->model);
    ek_module_free(job->criterion);
    for (int d = 0; d < c->devices.count; d++)
        ek_memory_trim(c->devices.devices[d]);
}

static double fit_least(const double *seconds, int count)
{
    double least = seconds[0];
    for (int i = 1; i < count; i++)
        least = seconds[i] < least ? seconds[i] : least;
    return least;
}

/* Takes steps. Writes the fastest and the devices' peaks. Returns 0, or EK_E_OUT_OF_MEMORY without
 * an error pending. */
static int fit_measure(const fit_case *c, const ek_fit_result *options, int steps, double *least,
                       uint64_t *peaks)
{
    fit_job job;
    double seconds[STEPS + 1];
    int rc = fit_open(c, options, &job);
    for (int i = 0; i <= steps && rc == 0; i++)
        rc = fit_step(c, options, &job, &seconds[i]);
    for (int d = 0; d < c->devices.count; d++) {
        ek_memory_stats stats;
        ek_memory_get_stats(c->devices.devices[d], &stats);
        peaks[d] = stats.peak;
    }
    if (rc == EK_E_OUT_OF_MEMORY)
        ek_error_clear();
    else if (rc == 0)
        *least = fit_least(seconds + 1, steps);
    fit_close(c, &job);
    return rc;
}

/* ---- exhaustive search ---- */

static void fit_set_blocks(const fit_net *net, int count, ek_fit_result *options)
{
    int first = net->blocks[0] || net->make == fit_make_deep ? 0 : 1;
    options->checkpointed[0] = 0;
    options->checkpointed_count = 0;
    for (int b = first; b < net->block_count && b < first + count; b++)
        snprintf(options->checkpointed + strlen(options->checkpointed), 32, "%s%s%d",
                 options->checkpointed_count++ ? "," : "", net->blocks, b);
}

/* Writes the fastest training. Returns how many ran, or a negative status. */
static int fit_exhaust(const fit_case *c, int64_t batch, const double *share, ek_fit_result *best)
{
    static const int parts[] = {1, 2, 4, 8, 16}, blocks[] = {0, 2, 6};
    double fastest = 0, seconds = 0;
    uint64_t peaks[EK_MAX_DEVICES];
    int ran = 0;
    for (int k = 0; k < 3 * 3 * 2 * 2 * (c->net->parts ? 5 : 1); k++) {
        ek_fit_result options = {.wrapper = EK_DEFAULTS(ek_data_parallel_options),
                                 .micro_batches = parts[k / 36]};
        options.wrapper.device_ids = c->devices;
        options.wrapper.shard = (ek_shard_policy)(k % 3);
        options.wrapper.offload = (ek_offload_policy)(k / 3 % 2);
        bool uneven = k / 6 % 2;
        if ((uneven && share[0] == share[1]) ||
            (options.wrapper.offload && options.wrapper.shard == EK_SHARD_NONE))
            continue;
        fit_set_blocks(c->net, blocks[k / 12 % 3], &options);
        int64_t part = (batch + options.micro_batches - 1) / options.micro_batches;
        int64_t first = (int64_t)((double)part * (uneven ? share[0] / (share[0] + share[1]) : 0.5));
        options.wrapper.chunks[0] = first;
        options.wrapper.chunks[1] = part - first;
        int rc = fit_measure(c, &options, 3, &seconds, peaks);
        if (rc < 0 && rc != EK_E_OUT_OF_MEMORY)
            return rc;
        if (rc < 0)
            continue;
        if (ran++ == 0 || seconds < fastest) {
            fastest = seconds;
            *best = options;
        }
    }
    return ran;
}

/* ---- the judgement ---- */

typedef struct fit_verdict {
    int ran;        /* trainings of the exhaustive search that ran; 0: none, and ek_fit said so */
    bool failed;    /* ek_fit has found nothing, or what doesn't run */
    double seconds; /* the fastest step of ek_fit's choice */
    double ratio;   /* time of ek_fit's choice to that of the best */
    double peak_error, time_error;
} fit_verdict;

typedef struct fit_duel {
    const fit_case *c;
    const ek_fit_result *options[2];
} fit_duel;

/* The two trainings don't fit side by side: each pair opens both, one after the other. */
static int fit_side(void *user, int side, int pair, double *seconds)
{
    fit_duel *duel = user;
    uint64_t peaks[EK_MAX_DEVICES];
    (void)pair;
    return fit_measure(duel->c, duel->options[side], 6, seconds, peaks);
}

static void fit_describe(const ek_fit_result *options, char *text, size_t room)
{
    snprintf(text, room, "%d parts %d blocks %s%s %d:%d", options->micro_batches,
             options->checkpointed_count,
             options->wrapper.shard == EK_SHARD_NONE        ? "whole"
             : options->wrapper.shard == EK_SHARD_OPTIMIZER ? "state"
                                                            : "shards",
             options->wrapper.offload ? " cpu" : "", (int)options->wrapper.chunks[0],
             (int)options->wrapper.chunks[1]);
}

/* Compares what ek_fit expected with what its choice takes. */
static int fit_judge_expectation(const fit_case *c, const ek_fit_result *fit, fit_verdict *verdict)
{
    double seconds = 0;
    uint64_t peaks[EK_MAX_DEVICES];
    int rc = fit_measure(c, fit, STEPS, &seconds, peaks);
    if (rc == EK_E_OUT_OF_MEMORY)
        puts("What ek_fit has chosen ran out of memory");
    verdict->failed = rc < 0;
    if (rc < 0)
        return rc == EK_E_OUT_OF_MEMORY ? 0 : rc;
    for (int d = 0; d < c->devices.count; d++) {
        double error = (double)fit->expected.devices[d].peak / (double)peaks[d] - 1;
        if (fabs(error) > fabs(verdict->peak_error))
            verdict->peak_error = error;
    }
    verdict->seconds = seconds;
    return 0;
}

static int fit_judge(const fit_case *c, int64_t batch, const double *share, fit_verdict *verdict)
{
    static job_pairs pairs;
    ek_fit_result fit, best;
    char choice[60] = "doesn't fit", fastest[60] = "nothing runs";
    double begin = job_now();
    ek_module *module = c->net->make(), *criterion = c->net->criterion();
    int rc = ek_fit(&fit, .module = module, .criterion = criterion, .optimizer = c->net->optimizer,
                    .input = c->input, .target = c->target, .device_ids = c->devices, .headroom = 0,
                    .log = getenv("FIT_LOG") ? stdout : NULL);
    double took = job_now() - begin;
    ek_module_free(module);
    ek_module_free(criterion);
    if (rc == EK_E_OUT_OF_MEMORY) {
        puts(ek_error_message());
        ek_error_clear();
    } else if (rc < 0) {
        return rc;
    } else {
        fit_describe(&fit, choice, sizeof choice);
        int judged = fit_judge_expectation(c, &fit, verdict);
        if (judged < 0)
            return judged;
    }
    verdict->ran = fit_exhaust(c, batch, share, &best);
    if (verdict->ran > 0)
        fit_describe(&best, fastest, sizeof fastest);
    if (verdict->ran > 0 && rc == 0 && !verdict->failed) {
        fit_duel duel = {c, {&best, &fit}};
        int fought = job_compare(&pairs, fit_side, &duel, 0, 0.6);
        if (fought < 0)
            return fought;
        double least = fit_least(pairs.seconds[1], pairs.count);
        verdict->seconds = least < verdict->seconds ? least : verdict->seconds;
        verdict->time_error = fit.expected.step_seconds / verdict->seconds - 1;
        verdict->ratio = least / fit_least(pairs.seconds[0], pairs.count);
    } else if (verdict->ran > 0) {
        verdict->failed = true;
    }
    printf("%-5s %5d %.1f %.1f | %-34s | %-34s | %3d | %6.3f %6.1f%% %6.1f%% | %.1f s\n",
           c->net->name, (int)batch, share[0], share[1], choice, fastest, verdict->ran,
           verdict->ratio, 100 * verdict->peak_error, 100 * verdict->time_error, took);
    fflush(stdout);
    return verdict->ran < 0 ? verdict->ran : 0;
}

/* Sets the capacities to shares of what the plain training of the batch needs. */
static int fit_set_capacities(const fit_case *c, int64_t batch, const double *share)
{
    double seconds;
    uint64_t peaks[EK_MAX_DEVICES];
    ek_fit_result plain = {.wrapper = EK_DEFAULTS(ek_data_parallel_options), .micro_batches = 1};
    plain.wrapper.device_ids = c->devices;
    plain.wrapper.chunks[0] = (batch + 1) / 2;
    plain.wrapper.chunks[1] = batch / 2;
    for (int d = 0; d < c->devices.count; d++)
        ek_memory_set_capacity(c->devices.devices[d], 0);
    int rc = fit_measure(c, &plain, 2, &seconds, peaks);
    double most = (double)(peaks[0] > peaks[1] ? peaks[0] : peaks[1]);
    for (int d = 0; d < c->devices.count; d++)
        ek_memory_set_capacity(c->devices.devices[d], (uint64_t)(most * share[d]));
    return rc;
}

int main(int argc, char **argv)
{
    int first = argc > 1 ? atoi(argv[1]) : 0, last = argc > 2 ? atoi(argv[2]) : CASES - 1;
    int count = 0, runs = 0, near = 0, peaks = 0, times = 0;
    fit_case c = {0};
    if (first < 0 || last >= CASES) {
        fprintf(stderr, "usage: bench_fit [FIRST [LAST]], cases 0 to %d\n", CASES - 1);
        return 2;
    }
    int rc = job_devices(&c.devices, EK_HOST, 2, 1);
    printf("net   batch shares  | ek_fit                             | exhaustive search"
           "                  | ran |  ratio    peak    time | search\n");
    for (int i = first; i <= last && rc == 0; i++) {
        fit_verdict verdict = {0};
        c.net = &nets[i / (2 * SHARES)];
        const int64_t batch = c.net->batches[i / SHARES % 2];
        ek_scope scope = ek_scope_begin();
        ek_manual_seed(1);
        c.net->batch(batch, &c.input, &c.target);
        rc = fit_set_capacities(&c, batch, shares[i % SHARES]);
        if (rc == 0)
            rc = fit_judge(&c, batch, shares[i % SHARES], &verdict);
        ek_scope_end(&scope);
        count++;
        runs += !verdict.failed;
        near += !verdict.failed && verdict.ratio <= 1.1;
        peaks += !verdict.failed && fabs(verdict.peak_error) <= 0.05;
        times += !verdict.failed && fabs(verdict.time_error) <= 0.15;
    }
    printf("Of %d cases: runs %d, time within 10%% of the best %d, peak within 5%% %d, "
           "time within 15%% %d\n",
           count, runs, near, peaks, times);
    return job_exit(rc);
}

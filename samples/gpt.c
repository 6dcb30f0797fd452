/* gpt.c: trains a small GPT on the bytes of a text, compares it with a trigram model of the same
 * text on a part that neither has seen, and has it write.
 *
 * By default random numbers are Philox's: N devices then drop out what one does, and attention
 * needs no memory for its probabilities. With the Mersenne Twister they are PyTorch's. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "text.h"

/* ---- settings ---- */

#define FORTUNES "/usr/share/games/fortunes"

static const char *const random_names[] = {"twister", "philox", NULL}; /* as ek_random_engine */

enum { MOST = 1 << 20, BYTES = 256 };
#define OPTIONS(ROW)                                                                       \
    ROW(text, data, FORTUNES, "PATH",                                                      \
        "the text: a file, or a folder of files without a '.' in their names")             \
    JOB_OPTIONS(ROW, "12,10,10")                                                           \
    ROW(int, context, "128", 1, 65536, "bytes that the model sees")                        \
    ROW(int, width, "128", 1, 65536, "features of a byte")                                 \
    ROW(int, layers, "4", 1, 1000, "attention and MLP")                                    \
    ROW(int, heads, "4", 1, 65536, "of attention, which divide the width")                 \
    ROW(real, dropout, "0.05", 0, 1, "in training")                                        \
    ROW(int, batch, "16", 1, MOST, "windows of the text per step")                         \
    ROW(int, steps, "1500", 1, MOST, "of the whole run, to whose end the rate falls")      \
    ROW(int, stop, NULL, 1, MOST, "stop after so many, as if all were to follow")          \
    ROW(real, lr, "0.003", 0, 1, "learning rate of AdamW, falling by a cosine to a tenth") \
    ROW(int, warm_up, NULL, 1, MOST,                                                       \
        "steps in which it rises first; 100, or a tenth of a shorter run")                 \
    ROW(real, weight_decay, "0.01", 0, 1e6, "of AdamW")                                    \
    ROW(real, clip, "1", 0, 1e6, "the gradient's largest norm; 0: any")                    \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters")                     \
    ROW(switch, bf16, "train in bf16 under autocast")                                      \
    ROW(switch, fit, "choose by trial steps how the batch fits")                           \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, order and dropout")                \
    ROW(word, random, "philox", random_names, "KIND",                                      \
        "numbers for weights and dropout; twister: PyTorch's")                             \
    ROW(text, prompt, "\n", "TEXT", "what it goes on from when it writes")                 \
    ROW(int, letters, "400", 0, MOST, "bytes that it writes")                              \
    ROW(real, temperature, "0.8", 1e-3, 1e3, "below 1: likelier bytes")                    \
    ROW(int, top_k, "40", 1, BYTES, "one of so many likeliest bytes")                      \
    RUN_OPTIONS(ROW, "write a page and checkpoints there", "500",                          \
                "steps between those, and between tests")
args_declare(OPTIONS);

static const char about[] = "Trains a GPT on a text's bytes, tests it on a tenth of the text that "
                            "is held out, compares it\n"
                            "with a trigram model, and has it write:\n" JOB_ABOUT;

static int gpt_check(void)
{
    if (opt.width % opt.heads != 0)
        return args_complain("--width %" PRId64 " --heads %" PRId64
                             ": the width has to be a multiple of the heads",
                             opt.width, opt.heads);
    if (opt.bf16 && opt.dtype == EK_F64)
        return args_complain("--bf16 --dtype f64: products in bf16 are for parameters in f32");
    if (opt.fit && (opt.mode != MODE_BALANCED || world_size() > 1))
        return args_complain("--fit is for --mode balanced, in one process");
    if (opt.warm_up == 0)
        opt.warm_up = opt.steps < 1000 ? opt.steps / 10 + 1 : 100;
    if (opt.warm_up > opt.steps)
        return args_complain("--warm-up %" PRId64 ": there are %" PRId64 " steps", opt.warm_up,
                             opt.steps);
    if (!*opt.prompt)
        return args_complain("--prompt: at least a byte is needed");
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, opt.plan);
}

/* ---- what is trained ---- */

/* Three of each step. Two of each test, in nats per byte: the network's loss, and the trigram
 * model's, which is constant. */
enum { LOSSES, RATES, SECONDS, HELD_OUT, TRIGRAM, SERIES };
static const char *const series_names[SERIES] = {"losses", "rates", "step_seconds", "held-out loss",
                                                 "trigram model"};
enum { TEXTS = 3 }; /* texts that the network writes */

typedef struct gpt {
    train_job job;
    ek_generator *shuffle; /* draws the order of windows */
    text training_text, held_text;
    int64_t tested;   /* bytes of a test */
    double trigram;   /* the trigram model's nats per byte in the test */
    char *texts;      /* the network's last texts: TEXTS strings of `text_size` bytes; owned */
    size_t text_size; /* NUL included */
} gpt;

static ek_optimizer *gpt_optimizer(ek_module *model, void *user)
{
    (void)user;
    return ek_adamw(model, .lr = opt.lr, .weight_decay = opt.weight_decay);
}

/* Makes the network from the seed, and all that trains it. */
static int gpt_make(void *user)
{
    train_job *job = &((gpt *)user)->job;
    ek_generator_set_engine(NULL, (ek_random_engine)opt.random);
    ek_manual_seed((uint64_t)opt.seed);
    ek_module *network = ek_gpt2(BYTES, .context = opt.context, .width = opt.width,
                                 .layers = opt.layers, .heads = opt.heads, .dropout = opt.dropout);
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job->bf16 = opt.bf16;
    if (opt.fit) {
        ek_tensor *tokens = ek_zeros(EK_SHAPE(opt.batch, opt.context), EK_I64);
        job_wrap_fitting(job, network, ek_token_cross_entropy_loss(),
                         EK_OPTIONS(ek_fit_options, .optimizer = gpt_optimizer,
                                    .input = EK_VALUE(tokens), .target = EK_VALUE(tokens),
                                    .max_norm = opt.clip, .autocast = opt.bf16));
    } else {
        job_wrap(job, network, ek_token_cross_entropy_loss(), job->plan, opt.goal);
    }
    job->optimizer = gpt_optimizer(job->model, NULL);
    const int64_t falling = opt.steps > opt.warm_up ? opt.steps - opt.warm_up : 1;
    job->schedule = ek_warm_up_lr(job->optimizer, 0.01, opt.warm_up,
                                  ek_cosine_annealing_lr(job->optimizer, falling, opt.lr / 10));
    job->max_norm = opt.clip;
    return ek_error_status();
}

/* Takes a step on a batch of zeros: memory and time depend on sizes alone. */
static int gpt_try_batch(int64_t batch, void *user)
{
    ek_tensor *tokens = ek_zeros(EK_SHAPE(batch, opt.context), EK_I64);
    return job_step(&((gpt *)user)->job, EK_VALUE(tokens), EK_VALUE(tokens), NULL);
}

/* ---- opening and closing ---- */

enum { TESTED_AT_ONCE = 32, TRAINING_STRIDE = 16 };

/* Returns the text's windows, which begin `stride` bytes apart. */
static ek_dataset *gpt_windows(const text *of, int64_t stride)
{
    ek_scope scope = ek_scope_begin();
    ek_dataset *windows = ek_token_dataset(ek_from_data(of->bytes, EK_SHAPE(of->count), EK_U8),
                                           opt.context, .stride = stride);
    ek_scope_end(&scope);
    return windows;
}

/* Divides the text, and tests the trigram model on the bytes that will test the network. */
static int gpt_open_text(gpt *g)
{
    text all;
    int rc = text_read(opt.data, &all);
    if (rc < 0)
        return rc;
    rc = text_divide(&all, &g->training_text, &g->held_text);
    text_free(&all);
    const int64_t shorter =
        g->held_text.count < g->training_text.count ? g->held_text.count : g->training_text.count;
    if (rc == 0 && shorter <= opt.context)
        rc =
            ek_error(EK_E_SHAPE,
                     "%s: %" PRId64 " bytes for training and %" PRId64
                     " held out, one of each 10 pieces of %d; more than --context %" PRId64
                     " are needed of both",
                     opt.data, g->training_text.count, g->held_text.count, TEXT_PIECE, opt.context);
    if (rc < 0)
        return rc;
    g->tested = (g->held_text.count - 1) / opt.context * opt.context;
    return trigram_loss(&g->training_text, &g->held_text, g->tested, &g->trigram);
}

static int gpt_open(gpt *g, const ek_archive *from)
{
    train_job *job = &g->job;
    g->text_size = strlen(opt.prompt) + (size_t)opt.letters + 1;
    if (gpt_open_text(g) < 0)
        return ek_error_status();
    ek_dataset *windows = gpt_windows(&g->training_text, TRAINING_STRIDE);
    if (!windows)
        return ek_error_status();
    g->shuffle = ek_generator_new((uint64_t)opt.seed);
    job_begin(job, opt.mode, opt.device, opt.devices);
    job->loader =
        ek_data_loader(windows, .batch_size = opt.batch, .drop_last = true,
                       .sampler = shuffled_sampler(ek_dataset_length(windows), g->shuffle));
    job_tests(job, gpt_windows(&g->held_text, opt.context), .batch_size = TESTED_AT_ONCE);
    return job_prepare(job, opt.plan, from, opt.batch, gpt_make, gpt_try_batch, g);
}

static void gpt_close(gpt *g)
{
    job_free(&g->job);
    ek_generator_free(g->shuffle);
    text_free(&g->training_text);
    text_free(&g->held_text);
    free(g->texts);
}

/* ---- testing ---- */

static int gpt_test_batch(ek_module *network, const ek_batch *batch, void *user)
{
    ek_tensor *logits = ek_to_dtype(ek_apply(network, ek_value_tensor(batch->input)), EK_F64);
    ek_tensor *target = ek_value_tensor(batch->target);
    double loss = 0;
    ek_item(ek_f_token_cross_entropy(logits, target, .reduction = EK_SUM), &loss);
    *(double *)user += loss;
    return ek_error_status();
}

/* Returns the mean over the held-out bytes. The network sees them in windows, so that for the first
 * bytes of each window it knows less than the trigram model does. */
static double gpt_test(gpt *g)
{
    double sum = 0;
    loader_evaluate(g->job.tests, g->job.network, gpt_test_batch, &sum);
    return sum / (double)g->tested;
}

static double bits(double nats)
{
    return nats / log(2);
}

/* ---- writing ---- */

/* Writes g->texts, always from the same random numbers. 0 or a negative status. */
static int gpt_write(gpt *g)
{
    free(g->texts);
    g->texts = text_write(&(const text_writer){.network = g->job.network,
                                               .device = g->job.devices.devices[0],
                                               .context = opt.context,
                                               .prompt = opt.prompt,
                                               .letters = opt.letters,
                                               .top_k = opt.top_k,
                                               .temperature = opt.temperature,
                                               .random = (uint64_t)opt.seed + 2},
                          TEXTS);
    return ek_error_status();
}

/* Writes one of the texts, in HTML's tags. */
static void gpt_write_text(FILE *page, const char *written)
{
    fputs("<pre>", page);
    for (const char *c = written; *c; c++)
        if (*c == '<' || *c == '>' || *c == '&')
            fprintf(page, "&#%d;", *c);
        else
            fputc(*c, page);
    fputs("</pre>\n", page);
}

/* Writes gpt.html to --out: losses over steps, tests, and what the network writes. */
static void gpt_draw(void *of, run *r)
{
    gpt *g = of;
    gpt_write(g);
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Loss of batches, nats per byte", "step", &r->series[LOSSES], 1);
    page_curves(page, "Loss of held-out text, nats per byte", "test", &r->series[HELD_OUT], 2);
    page_curves(page, "Learning rate", "step", &r->series[RATES], 1);
    for (int i = 0; i < TEXTS; i++)
        gpt_write_text(page, g->texts + (size_t)i * g->text_size);
    run_page_end(r, &g->job, "gpt.html", "A text, byte by byte",
                 "%" PRId64 " parameters, context %" PRId64, ek_module_numel(g->job.network),
                 opt.context);
}

/* ---- results ---- */

static void gpt_print(const gpt *g, const run *r)
{
    const double held_out = series_last(&r->series[HELD_OUT]);
    for (int i = 0; i < TEXTS; i++)
        printf("\n---- text %d ----\n%s\n", i + 1, g->texts + (size_t)i * g->text_size);
    putchar('\n');
    job_print(&g->job);
    printf("Median step: %.0f ms\n", 1000 * series_median(&r->series[SECONDS]));
    printf("Of %" PRId64
           " held-out bytes: %.4f nats (%.3f bits) per byte; trigram model %.4f (%.3f)\n",
           g->tested, held_out, bits(held_out), g->trigram, bits(g->trigram));
}

static void gpt_json(const gpt *g, const run *r, bool tested, json_writer *json)
{
    const double held_out = series_last(&r->series[HELD_OUT]);
    json_write(json, "training_bytes %jd", g->training_text.count);
    json_network(json, "network", g->job.network);
    json_write(json, "median_step_seconds %g", series_median(&r->series[SECONDS]));
    json_series(json, "losses", &r->series[LOSSES]);
    json_series(json, "learning_rates", &r->series[RATES]);
    json_series(json, "held_out_losses", &r->series[HELD_OUT]);
    if (tested)
        json_write(json, "held_out { bytes %jd nats_per_byte %g bits_per_byte %g }", g->tested,
                   held_out, bits(held_out));
    json_write(json, "trigram { bytes %jd nats_per_byte %g bits_per_byte %g }", g->tested,
               g->trigram, bits(g->trigram));
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    gpt g = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel gpt 2",
             /* A run may be resumed in another mode and on other devices. */
             .deciding = "context width layers heads dropout batch steps lr warm-up weight-decay "
                         "clip dtype bf16 seed random",
             .written = "Page and checkpoint",
             .draw = gpt_draw,
             .of = &g};
    int64_t tested_at = -1; /* the step of this process's last test */
    if (!run_begin(&r, argc, argv, gpt_check))
        return run_end(&r);
    int rc = gpt_open(&g, r.from);
    if ((rc == EK_E_IO || rc == EK_E_FORMAT) && !g.training_text.bytes)
        run_hint(&r,
                 "--data %s must be a text, or a folder of texts; Debian's package fortunes puts "
                 "some in " FORTUNES,
                 opt.data);
    r.last = run_last(opt.steps, opt.stop);
    run_series(&r, series_names, SERIES);
    run_keep_job(&r, &g.job);
    run_keep_digest(&r, "training_text", g.training_text.bytes, (size_t)g.training_text.count,
                    "text", opt.data);
    run_keep_digest(&r, "held_text", g.held_text.bytes, (size_t)g.held_text.count, "text",
                    opt.data);

    while (run_next(&r)) {
        const double rate = ek_optimizer_lr(g.job.optimizer, 0);
        const double loss = job_train(&g.job, g.job.loader, NULL);
        run_add(&r, LOSSES, loss);
        run_add(&r, RATES, rate);
        run_add(&r, SECONDS, run_seconds(&r));
        ek_progress_step(r.progress, 1, "loss %.4f", loss);
        if (r.step % opt.every == 0) {
            const double held_out = gpt_test(&g);
            tested_at = r.step;
            run_add(&r, TRIGRAM, g.trigram);
            run_add(&r, HELD_OUT, held_out);
            ek_progress_print(r.progress,
                              "Step %" PRId64
                              ": held-out loss %.4f nats per byte (%.3f bits); trigram %.4f",
                              r.step, held_out, bits(held_out), g.trigram);
        }
    }

    if (run_judges(&r)) {
        if (tested_at != r.step) {
            tested_at = r.step;
            run_add(&r, TRIGRAM, g.trigram);
            run_add(&r, HELD_OUT, gpt_test(&g));
        }
        gpt_write(&g);
    }
    json_writer *json = run_json(&r, &g.job);
    if (json)
        gpt_json(&g, &r, tested_at >= 0, json);
    if (run_prints(&r))
        gpt_print(&g, &r);
    gpt_close(&g);
    return run_end(&r);
}

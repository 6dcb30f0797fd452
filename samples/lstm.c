/* lstm.c: reads words letter by letter and tells their language: recurrent networks on sequences of
 * unequal length, on one device or several.
 *
 * After each letter the network says which of five languages the word is of. Words of a batch are
 * padded to the longest. The network gets their lengths, and the loss ignores the targets beyond
 * them. So a batch has as many targets as letters, devices have different numbers of them, and yet
 * the loss is the mean over all letters, in all modes. */
#include <inttypes.h>
#include <stdlib.h>

#include "networks.h"
#include "run.h"
#include "words.h"

/* ---- settings ---- */

static const char *const cell_names[] = {"lstm", "gru", "rnn", NULL};
enum { ONE_CYCLE, CONSTANT };
static const char *const schedule_names[] = {"one-cycle", "none", NULL};

static struct lstm_options {
    int cell, mode, schedule, dtype, kind;
    const char *device_text; /* a number or a list; NULL: all there are */
    int64_t words, hidden, layers, batch, epochs, steps, seed, every;
    double dropout, lr, clip;
    const char *data;
    run_files files;
} opt;

enum { MOST = 1 << 20, EMBEDDED = 32 };
static const arg_spec lstm_args[] = {
    arg_word("cell", &opt.cell, "lstm", cell_names, "KIND", "of recurrent layers"),
    arg_int("hidden", &opt.hidden, "192", 1, 8192, "size of their state"),
    arg_int("layers", &opt.layers, "1", 1, 16, "how many"),
    arg_real("dropout", &opt.dropout, "0.2", 0, 1, "between and behind them"),
    arg_word("mode", &opt.mode, "balanced", mode_names, "MODE", "how devices are used"),
    arg_text("devices", &opt.device_text, NULL, "N", "devices; all there are unless given"),
    arg_device(&opt.kind),
    arg_int("words", &opt.words, "20000", 20, MOST, "of each language, a tenth of them for tests"),
    arg_int("epochs", &opt.epochs, "6", 1, MOST, "passes over the words"),
    arg_int("steps", &opt.steps, NULL, 1, MOST,
            "stop after so many, as if all epochs were to follow"),
    arg_int("batch", &opt.batch, "256", 1, MOST, "words per step"),
    arg_real("lr", &opt.lr, "0.005", 0, 1e6, "learning rate of Adam, the highest one"),
    arg_word("schedule", &opt.schedule, "one-cycle", schedule_names, "KIND", "of the rate"),
    arg_real("clip", &opt.clip, "1", 0, 1e6, "norm that the gradient has at most; 0: any"),
    arg_word("dtype", &opt.dtype, "f32", args_dtype_words, "TYPE", "of parameters"),
    arg_int("seed", &opt.seed, NULL, 0, ARG_MOST_SEED, "of weights, words, their order, dropout"),
    arg_text("data", &opt.data, "/usr/share/dict", "DIR", "where the languages' words are"),
    run_args(opt, "write a checkpoint and charts there after each epoch and at the end", NULL,
             "and each so many steps"),
    arg_end,
};

static const char about[] =
    "Trains a recurrent network to tell the language of words, letter by letter: English, French,\n"
    "German, Italian or Spanish. Prints its accuracy on words that it has not seen, beside that "
    "of\n"
    "counted sequences of letters (n-grams).\n\n";

static int lstm_check(void)
{
    return job_check_devices((train_mode)opt.mode, opt.kind, opt.device_text, NULL);
}

/* ---- the run ---- */

enum { LOSSES, SECONDS, TEST_LOSSES, ACCURACIES, SERIES }; /* two of each step, two of each epoch */
static const char *const series_names[SERIES] = {"losses", "step_seconds", "test_losses",
                                                 "test_accuracies"};

typedef struct lstm {
    run_state state; /* in steps */
    train_job job;
    word_list training, testing;
    ek_loader *loader, *test_loader;
    ek_generator *test_random; /* the test loader's: testing changes nothing in training */
    int64_t epoch_steps;
    series series[SERIES];
    double test_loss;                    /* mean over the letters of the words that were not seen */
    score tested;                        /* seen[WHOLE] is 0: not tested since the last step */
    score counted[NGRAM_MOST_ORDER + 1]; /* what n-grams of each order tell of the same words */
    int best_order;                      /* the one that tells most words; 0: not counted */
} lstm;

static void lstm_close(run_state *run)
{
    lstm *l = (lstm *)run;
    ek_loader_free(l->loader);
    ek_loader_free(l->test_loader);
    ek_generator_free(l->test_random);
    job_free(&l->job);
    series_free(l->series, SERIES);
    free(l->training.words);
    free(l->testing.words);
}

/* Makes the network from the seed, and all that trains it. */
static int lstm_make(void *user)
{
    lstm *l = user;
    train_job *job = &l->job;
    ek_manual_seed((uint64_t)opt.seed);
    ek_module *network = letter_network((letter_options){.cell = opt.cell,
                                                         .letters = NGRAM_SYMBOLS,
                                                         .embedded = EMBEDDED,
                                                         .hidden = opt.hidden,
                                                         .classes = LANGUAGES,
                                                         .layers = (int)opt.layers,
                                                         .dropout = opt.dropout});
    ek_module_to_dtype(network, (ek_dtype)opt.dtype);
    job_wrap(job, network, ek_cross_entropy_loss(.ignore_index = IGNORED), job->plan,
             EK_GOAL_MEMORY);
    job->max_norm = opt.clip;
    job->optimizer = ek_adam(job->model, .lr = opt.lr);
    if (opt.schedule == ONE_CYCLE)
        job->schedule = ek_one_cycle_lr(job->optimizer, opt.lr, opt.epochs * l->epoch_steps);
    return ek_error_status();
}

/* A step on words of the greatest length that hold nothing but marks. */
static int lstm_try_batch(int64_t batch, void *user)
{
    ek_tensor *letters = ek_zeros(EK_SHAPE(batch, MOST_LETTERS + 1), EK_I64);
    ek_tensor *lengths = ek_full(MOST_LETTERS + 1, EK_SHAPE(batch), EK_I64);
    return job_step(&((lstm *)user)->job, EK_LIST(letters, lengths), EK_VALUE(letters), NULL);
}

static ek_loader *lstm_loader(const word_list *list, ek_sampler *sampler, int64_t batch,
                              ek_generator *random, ek_device_list devices)
{
    return ek_data_loader(words_dataset(list), .sampler = sampler, .batch_size = batch,
                          .workers = 1, .generator = random, .collate = words_collate,
                          .device_ids = devices);
}

/* Batches of training come whole, so that all devices' parts have the same L and outputs can be
 * joined: on device 0 where the loss is, otherwise on cpu, from where they are cut. */
static int lstm_open(run_state *run, const ek_archive *from)
{
    enum { TESTED_AT_ONCE = 500 };
    lstm *l = (lstm *)run;
    job_begin(&l->job, opt.mode, opt.kind, opt.device_text);
    series_name(l->series, series_names, SERIES);
    int rc = words_open(opt.data, opt.words, (uint64_t)opt.seed, &l->training, &l->testing);
    run->unread = rc == EK_E_IO;
    if (rc < 0)
        return rc;
    l->epoch_steps = (l->training.count + opt.batch - 1) / opt.batch;
    *run = (run_state){.name = mode_names[opt.mode],
                       .last = run_last(opt.epochs * l->epoch_steps, opt.steps),
                       .batch = opt.batch,
                       .every = {l->epoch_steps, opt.every}};
    rc = job_prepare(&l->job, NULL, from, opt.batch, lstm_make, lstm_try_batch, l);
    if (rc < 0)
        return rc;
    const ek_device_list first = EK_DEVICES(l->job.devices.devices[0]), cpu = EK_DEVICES(ek_cpu());
    const bool there = opt.mode == MODE_SINGLE || opt.mode == MODE_CLASSIC;
    l->test_random = ek_generator_new((uint64_t)opt.seed);
    l->loader = lstm_loader(&l->training, ek_random_sampler(l->training.count), opt.batch, NULL,
                            there ? first : cpu);
    l->test_loader = lstm_loader(&l->testing, ek_sequential_sampler(l->testing.count),
                                 TESTED_AT_ONCE, l->test_random, first);
    return ek_error_status();
}

static void lstm_explain(void)
{
    args_complain("--data %s must hold american-english, french, ngerman, italian and spanish; "
                  "Debian's packages wamerican, wfrench, wngerman, witalian and wspanish put them "
                  "in /usr/share/dict",
                  opt.data);
}

static void lstm_list(run_state *run, const checkpoint *file)
{
    lstm *l = (lstm *)run;
    checkpoint_job(file, &l->job);
    checkpoint_part(file, random, "random");
    checkpoint_loader(file, "loader", l->loader);
    checkpoint_records(file, l->series, SERIES);
}

/* ---- testing ---- */

/* Words come in their order, each once. */
static int lstm_test_batch(ek_module *network, const ek_batch *batch, void *user)
{
    lstm *l = user;
    const ek_value inputs[] = {ek_value_at(batch->input, 0), ek_value_at(batch->input, 1)};
    ek_tensor *target = ek_value_tensor(batch->target), *logits;
    const int64_t longest = ek_tensor_size(target, 1);
    double loss = 0;
    logits = ek_value_tensor(ek_module_forward_of(network, inputs, 2, ek_value_none()));
    int rc = ek_item(ek_f_cross_entropy(logits, target, .reduction = EK_SUM), &loss);
    ek_tensor *told = ek_to_device(ek_argmax(logits, 1, false), ek_cpu());
    if (rc < 0 || !told)
        return ek_error_status();
    l->test_loss += loss;
    const int64_t *languages = ek_tensor_data(told);
    for (int64_t i = 0; i < batch->count; i++)
        score_word(&l->tested, &l->testing.words[batch->indices[i]], languages + i * longest);
    return 0;
}

static int lstm_test(lstm *l)
{
    int64_t letters = 0;
    l->tested = (score){0};
    l->test_loss = 0;
    int rc = loader_evaluate(l->test_loader, l->job.network, lstm_test_batch, l);
    for (int k = 0; k < PREFIXES; k++)
        letters += l->tested.seen[k];
    l->test_loss /= (double)letters;
    return rc;
}

/* ---- a step ---- */

/* One step; after the last one of an epoch also its test. */
static int lstm_step(run_state *run)
{
    lstm *l = (lstm *)run;
    const double begin = seconds_now();
    double loss = 0;
    ek_batch batch;
    int rc = loader_next(l->loader, &batch);
    if (rc == 0)
        rc = job_step(&l->job, batch.input, batch.target, &loss);
    if (rc == 0)
        rc = series_add(&l->series[LOSSES], loss);
    if (rc == 0)
        rc = series_add(&l->series[SECONDS], seconds_now() - begin);
    l->tested.seen[WHOLE] = 0;
    if (rc < 0 || ++run->step % l->epoch_steps != 0)
        return rc;
    rc = lstm_test(l);
    if (rc == 0)
        rc = series_add(&l->series[TEST_LOSSES], l->test_loss);
    return rc < 0 ? rc : series_add(&l->series[ACCURACIES], score_of(&l->tested, WHOLE));
}

/* Tests, unless an epoch has just ended, and counts what there is to compare with. */
static int lstm_finish(run_state *run)
{
    lstm *l = (lstm *)run;
    int rc = l->tested.seen[WHOLE] == 0 ? lstm_test(l) : 0;
    if (rc == 0)
        rc = score_ngrams(&l->training, &l->testing, l->counted);
    l->best_order = 1;
    for (int order = 2; order <= NGRAM_MOST_ORDER; order++)
        if (l->counted[order].right[WHOLE] > l->counted[l->best_order].right[WHOLE])
            l->best_order = order;
    return rc;
}

/* After an epoch a line that stays. */
static bool lstm_note(const run_state *run, char note[128])
{
    const lstm *l = (const lstm *)run;
    const int64_t epoch = run->step / l->epoch_steps;
    const bool ends = run->step % l->epoch_steps == 0;
    if (ends)
        snprintf(note, 128,
                 "Epoch %" PRId64 " of %" PRId64 ": test loss %.4f, %.2f %% of words are told",
                 epoch, opt.epochs, l->test_loss, 100 * score_of(&l->tested, WHOLE));
    else
        snprintf(note, 128, "epoch %" PRId64 ", loss %.4f", epoch + 1,
                 series_last(&l->series[LOSSES]));
    return ends;
}

/* ---- what a run writes and prints ---- */

static void lstm_write_charts(FILE *page, void *user)
{
    const lstm *l = user;
    page_curves(page, "Loss of training, mean over letters", "step", &l->series[LOSSES], 1);
    page_curves(page, "Loss on unseen words", "epoch", &l->series[TEST_LOSSES], 1);
    page_curves(page, "Share of unseen words whose language is told", "epoch",
                &l->series[ACCURACIES], 1);
}

/* Writes losses.html to --out. */
static int lstm_draw(run_state *run)
{
    lstm *l = (lstm *)run;
    char path[4096];
    return page_write(run_path(opt.files.out, "losses.html", path), "The language of words",
                      lstm_write_charts, l,
                      "%s of %" PRId64 " layers of %" PRId64 ", %s on %d devices, batch %" PRId64
                      ", seed %" PRId64 ", step %" PRId64,
                      cell_names[opt.cell], opt.layers, opt.hidden, mode_names[opt.mode],
                      l->job.devices.count, opt.batch, opt.seed, run->step);
}

static void lstm_json_score(json_writer *json, const score *s)
{
    json_write(json, "accuracy %g accuracy_by_letters [", score_of(s, WHOLE));
    for (int k = 1; k < PREFIXES; k++)
        json_write(json, "%g", score_of(s, k));
    json_write(json, "]");
}

static int lstm_results(const run_state *run, json_writer *json)
{
    const lstm *l = (const lstm *)run;
    job_json_settings(json, &l->job, lstm_args, "cell hidden layers dropout mode",
                      "words epochs batch lr schedule clip dtype seed");
    json_write(json, "} finished_steps %jd", run->step);
    int rc = job_json(json, &l->job);
    json_write(json, "median_step_seconds %g", series_median(&l->series[SECONDS]));
    if (l->best_order > 0) {
        json_write(json, "test { words %jd loss %g", l->tested.seen[WHOLE], l->test_loss);
        lstm_json_score(json, &l->tested);
        json_write(json, "} ngrams [");
        for (int order = 1; order <= NGRAM_MOST_ORDER; order++) {
            json_write(json, "{ order %jd", (int64_t)order);
            lstm_json_score(json, &l->counted[order]);
            json_write(json, "}");
        }
        json_write(json, "]");
    }
    json_records(json, l->series, SERIES);
    return rc;
}

static void lstm_print_score(const char *name, const score *s)
{
    printf("%-12s", name);
    for (int k = 1; k <= 8; k++)
        printf(" %6.2f", 100 * score_of(s, k));
    printf(" %12.2f\n", 100 * score_of(s, WHOLE));
}

static void lstm_print(const run_state *run)
{
    enum { TRIGRAMS = 3 };
    const lstm *l = (const lstm *)run;
    char name[32];
    job_print(&l->job);
    printf("Median step: %.1f ms\n\nOf %" PRId64
           " words that were not trained on, the language is told, in percent:\n%-12s",
           1000 * series_median(&l->series[SECONDS]), l->tested.seen[WHOLE], "letters read");
    for (int k = 1; k <= 8; k++)
        printf(" %6d", k);
    printf(" %12s\n", "whole words");
    lstm_print_score(cell_names[opt.cell], &l->tested);
    for (int order = TRIGRAMS; order <= NGRAM_MOST_ORDER; order++) {
        if (order != TRIGRAMS && order != l->best_order)
            continue;
        snprintf(name, sizeof name, "%d-grams", order);
        lstm_print_score(name, &l->counted[order]);
    }
}

/* ---- the program ---- */

static const run_kind lstm_kind = {
    .size = sizeof(lstm),
    .about = about,
    .args = lstm_args,
    .files = &opt.files,
    .format = "evenkeel lstm 1",
    /* A run may go on in another mode and on other devices. */
    .deciding = "seed dtype words cell hidden layers dropout batch epochs lr schedule clip",
    .check = lstm_check,
    .open = lstm_open,
    .explain = lstm_explain,
    .close = lstm_close,
    .take = lstm_step,
    .note = lstm_note,
    .draw = lstm_draw,
    .finish = lstm_finish,
    .list = lstm_list,
    .results = lstm_results,
    .print = lstm_print,
    .written = "Charts, checkpoint",
};

int main(int argc, char **argv)
{
    lstm l;
    return run_main(&lstm_kind, &l.state, argc, argv);
}

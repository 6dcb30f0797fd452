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

enum { MOST = 1 << 20, EMBEDDED = 32 };
#define OPTIONS(ROW)                                                                              \
    ROW(word, cell, "lstm", cell_names, "KIND", "of recurrent layers")                            \
    ROW(int, hidden, "192", 1, 8192, "size of their state")                                       \
    ROW(int, layers, "1", 1, 16, "how many")                                                      \
    ROW(real, dropout, "0.2", 0, 1, "between and behind them")                                    \
    ROW(word, mode, "balanced", mode_names, "MODE", "how devices are used")                       \
    ROW(text, devices, NULL, "N", "devices; all there are unless given")                          \
    ROW(device, device, "which kind of devices")                                                  \
    ROW(int, words, "20000", 20, MOST, "of each language, a tenth of them for tests")             \
    ROW(int, epochs, "6", 1, MOST, "passes over the words")                                       \
    ROW(int, steps, NULL, 1, MOST, "stop after so many, as if all epochs were to follow")         \
    ROW(int, batch, "256", 1, MOST, "words per step")                                             \
    ROW(real, lr, "0.005", 0, 1e6, "learning rate of Adam, the highest one")                      \
    ROW(word, schedule, "one-cycle", schedule_names, "KIND", "of the rate")                       \
    ROW(real, clip, "1", 0, 1e6, "norm that the gradient has at most; 0: any")                    \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters")                            \
    ROW(int, seed, NULL, 0, ARG_MOST_SEED, "of weights, words, their order, dropout")             \
    ROW(text, data, "/usr/share/dict", "DIR", "where the languages' words are")                   \
    RUN_OPTIONS(ROW, "write a checkpoint and charts there after each epoch and at the end", NULL, \
                "and each so many steps")
args_declare(OPTIONS);

static const char about[] =
    "Trains a recurrent network to tell the language of words, letter by letter: English, French,\n"
    "German, Italian or Spanish. Prints its accuracy on words that it has not seen, beside that "
    "of\n"
    "counted sequences of letters (n-grams).\n\n";

static int lstm_check(void)
{
    return job_check_devices((train_mode)opt.mode, opt.device, opt.devices, NULL);
}

/* ---- the run ---- */

enum { LOSSES, SECONDS, TEST_LOSSES, ACCURACIES, SERIES }; /* two of each step, two of each epoch */
static const char *const series_names[SERIES] = {"losses", "step_seconds", "test_losses",
                                                 "test_accuracies"};

typedef struct lstm {
    train_job job;
    word_list training, testing;
    int64_t epoch_steps;
} lstm;

/* The result of a test on words that were not trained on. */
typedef struct lstm_tested {
    lstm *of;
    double loss; /* mean over letters */
    score score; /* seen[WHOLE] is 0 if there was no test since the last step */
} lstm_tested;

static void lstm_close(lstm *l)
{
    job_free(&l->job);
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
                                                         .letters = SYMBOLS,
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

/* Takes a step on words of the greatest length, which are all marks. */
static int lstm_try_batch(int64_t batch, void *user)
{
    ek_tensor *letters = ek_zeros(EK_SHAPE(batch, MOST_LETTERS + 1), EK_I64);
    ek_tensor *lengths = ek_full(MOST_LETTERS + 1, EK_SHAPE(batch), EK_I64);
    return job_step(&((lstm *)user)->job, EK_LIST(letters, lengths), EK_VALUE(letters), NULL);
}

/* Batches of training come whole, so that all devices' parts have the same L and outputs can be
 * joined: on device 0 where the loss is, otherwise on cpu, from where they are cut. */
static int lstm_open(lstm *l, const ek_archive *from)
{
    enum { TESTED_AT_ONCE = 500 };
    train_job *job = &l->job;
    int rc = words_open(opt.data, opt.words, (uint64_t)opt.seed, &l->training, &l->testing);
    if (rc < 0)
        return rc;
    l->epoch_steps = (l->training.count + opt.batch - 1) / opt.batch;
    job_begin(job, opt.mode, opt.device, opt.devices);
    const bool gathered = opt.mode == MODE_SINGLE || opt.mode == MODE_CLASSIC;
    const ek_device_list whole = EK_DEVICES(gathered ? job->devices.devices[0] : ek_cpu());
    job->loader = ek_data_loader(words_dataset(&l->training), .batch_size = opt.batch,
                                 .sampler = ek_random_sampler(l->training.count), .workers = 1,
                                 .collate = words_collate, .device_ids = whole);
    job_tests(job, words_dataset(&l->testing), .batch_size = TESTED_AT_ONCE, .workers = 1,
              .collate = words_collate);
    return job_prepare(job, NULL, from, opt.batch, lstm_make, lstm_try_batch, l);
}

/* ---- testing ---- */

/* Scores each word of a batch. Words come in their order. */
static int lstm_test_batch(ek_module *network, const ek_batch *batch, void *user)
{
    lstm_tested *tested = user;
    const ek_value inputs[] = {ek_value_at(batch->input, 0), ek_value_at(batch->input, 1)};
    ek_tensor *target = ek_value_tensor(batch->target), *logits;
    const int64_t longest = ek_tensor_size(target, 1);
    double loss = 0;
    logits = ek_value_tensor(ek_module_forward_of(network, inputs, 2, ek_value_none()));
    int rc = ek_item(ek_f_cross_entropy(logits, target, .reduction = EK_SUM), &loss);
    ek_tensor *told = ek_to_device(ek_argmax(logits, 1, false), ek_cpu());
    if (rc < 0 || !told)
        return ek_error_status();
    tested->loss += loss;
    const int64_t *languages = ek_tensor_data(told);
    for (int64_t i = 0; i < batch->count; i++)
        score_word(&tested->score, &tested->of->testing.words[batch->indices[i]],
                   languages + i * longest);
    return 0;
}

static lstm_tested lstm_test(lstm *l)
{
    int64_t letters = 0;
    lstm_tested tested = {.of = l};
    loader_evaluate(l->job.tests, l->job.network, lstm_test_batch, &tested);
    for (int k = 0; k < PREFIXES; k++)
        letters += tested.score.seen[k];
    tested.loss /= (double)letters;
    return tested;
}

/* Returns the order of the n-grams that tell the language of most words. */
static int lstm_best_order(const score *counted)
{
    int best = 1;
    for (int order = 2; order <= NGRAM_MOST_ORDER; order++)
        if (counted[order].right[WHOLE] > counted[best].right[WHOLE])
            best = order;
    return best;
}

/* ---- what a run writes and prints ---- */

/* Writes losses.html to --out. */
static void lstm_write(void *of, run *r)
{
    const lstm *l = of;
    FILE *page = run_page(r);
    if (!page)
        return;
    page_curves(page, "Loss of training, mean over letters", "step", &r->series[LOSSES], 1);
    page_curves(page, "Loss on unseen words", "epoch", &r->series[TEST_LOSSES], 1);
    page_curves(page, "Share of unseen words whose language is told", "epoch",
                &r->series[ACCURACIES], 1);
    run_page_end(r, &l->job, "losses.html", "The language of words",
                 "%s of %" PRId64 " layers of %" PRId64, cell_names[opt.cell], opt.layers,
                 opt.hidden);
}

static void lstm_json_score(json_writer *json, const score *s)
{
    json_write(json, "accuracy %g accuracy_by_letters [", score_of(s, WHOLE));
    for (int k = 1; k < PREFIXES; k++)
        json_write(json, "%g", score_of(s, k));
    json_write(json, "]");
}

/* `counted` has the scores of the n-grams of each order on the words of the test. */
static void lstm_json(const lstm *l, const run *r, const lstm_tested *tested, const score *counted,
                      json_writer *json)
{
    json_network(json, "network", l->job.network);
    json_write(json, "median_step_seconds %g", series_median(&r->series[SECONDS]));
    if (r->step >= r->last) {
        json_write(json, "test { words %jd loss %g", tested->score.seen[WHOLE], tested->loss);
        lstm_json_score(json, &tested->score);
        json_write(json, "} ngrams [");
        for (int order = 1; order <= NGRAM_MOST_ORDER; order++) {
            json_write(json, "{ order %jd", (int64_t)order);
            lstm_json_score(json, &counted[order]);
            json_write(json, "}");
        }
        json_write(json, "]");
    }
    json_records(json, r->series, SERIES);
}

static void lstm_print_score(const char *name, const score *s)
{
    printf("%-12s", name);
    for (int k = 1; k <= 8; k++)
        printf(" %6.2f", 100 * score_of(s, k));
    printf(" %12.2f\n", 100 * score_of(s, WHOLE));
}

static void lstm_print(const lstm *l, const run *r, const lstm_tested *tested, const score *counted)
{
    enum { TRIGRAMS = 3 };
    char name[32];
    job_print(&l->job);
    printf("Median step: %.1f ms\n\nOf %" PRId64
           " words that were not trained on, the language is told, in percent:\n%-12s",
           1000 * series_median(&r->series[SECONDS]), tested->score.seen[WHOLE], "letters read");
    for (int k = 1; k <= 8; k++)
        printf(" %6d", k);
    printf(" %12s\n", "whole words");
    lstm_print_score(cell_names[opt.cell], &tested->score);
    for (int order = TRIGRAMS; order <= NGRAM_MOST_ORDER; order++) {
        if (order != TRIGRAMS && order != lstm_best_order(counted))
            continue;
        snprintf(name, sizeof name, "%d-grams", order);
        lstm_print_score(name, &counted[order]);
    }
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
    lstm l = {0};
    run r = {.about = about,
             .args = option_table,
             .format = "evenkeel lstm 2",
             /* A run may be resumed in another mode and on other devices. */
             .deciding =
                 "seed dtype words cell hidden layers dropout batch epochs lr schedule clip",
             .written = "Charts, checkpoint",
             .draw = lstm_write,
             .of = &l};
    lstm_tested tested = {0};
    score counted[NGRAM_MOST_ORDER + 1] = {{{0}, {0}}};
    if (!run_begin(&r, argc, argv, lstm_check))
        return run_end(&r);
    if (lstm_open(&l, r.from) == EK_E_IO)
        run_hint(&r,
                 "--data %s must hold american-english, french, ngerman, italian and spanish; "
                 "Debian's packages wamerican, wfrench, wngerman, witalian and wspanish put them "
                 "in /usr/share/dict",
                 opt.data);
    r.last = run_last(opt.epochs * l.epoch_steps, opt.steps);
    r.epoch = l.epoch_steps;
    run_series(&r, series_names, SERIES);
    run_keep_job(&r, &l.job);

    while (run_next(&r)) {
        const int64_t epoch = (r.step - 1) / l.epoch_steps + 1;
        const double loss = job_train(&l.job, l.job.loader, NULL);
        run_add(&r, LOSSES, loss);
        run_add(&r, SECONDS, run_seconds(&r));
        ek_progress_step(r.progress, 1, "epoch %" PRId64 ", loss %.4f", epoch, loss);
        tested.score.seen[WHOLE] = 0;
        if (r.step % l.epoch_steps == 0) {
            tested = lstm_test(&l);
            run_add(&r, TEST_LOSSES, tested.loss);
            run_add(&r, ACCURACIES, score_of(&tested.score, WHOLE));
            ek_progress_print(r.progress,
                              "Epoch %" PRId64 " of %" PRId64
                              ": test loss %.4f, %.2f %% of words are told",
                              epoch, opt.epochs, tested.loss, 100 * score_of(&tested.score, WHOLE));
        }
    }

    if (run_judges(&r)) {
        if (tested.score.seen[WHOLE] == 0)
            tested = lstm_test(&l);
        score_ngrams(&l.training, &l.testing, counted);
    }
    json_writer *json = run_json(&r, &l.job);
    if (json)
        lstm_json(&l, &r, &tested, counted, json);
    if (run_prints(&r))
        lstm_print(&l, &r, &tested, counted);
    lstm_close(&l);
    return run_end(&r);
}

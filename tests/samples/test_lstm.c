/* test_lstm.c: the parts of the sample that tells the language of words, and PyTorch's losses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int lstm_main(int argc, char **argv);
#define main lstm_main
#include "lstm.c"
#undef main
#include "ngram.h"
#include "program.h"

/* ---- words: as tests/golden/make_lstm.py makes them ---- */

enum { LISTED = 45, STEPS = 20 };

static char directory[32];

/* As any generator of small numbers: nothing of the library runs before Check forks. */
static unsigned draw(unsigned count)
{
    static uint32_t state = 1;
    state = 1664525 * state + 1013904223;
    return (state >> 16) % count;
}

static void write_words(void)
{
    char path[256];
    strcpy(directory, "/tmp/test_lstm_XXXXXX");
    ck_assert(mkdtemp(directory));
    for (int language = 0; language < LANGUAGES; language++) {
        snprintf(path, sizeof path, "%s/%s", directory, word_files[language]);
        FILE *file = fopen(path, "w");
        ck_assert(file);
        for (int i = 0; i < LISTED; i++) {
            for (unsigned letters = 3 + draw(8); letters > 0; letters--)
                fputc('a' + (int)draw(10 + 4 * (unsigned)language), file);
            fputc('\n', file);
        }
        ck_assert_int_eq(fclose(file), 0);
    }
}

static void remove_words(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

/* 180 words of training in 4 steps an epoch, the last of 30. */
static void make_small(void)
{
    char name[] = "lstm", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = test_kind();
    opt.mode = MODE_SINGLE;
    opt.data = directory;
    opt.dtype = EK_F64;
    opt.words = 40;
    opt.hidden = 8;
    opt.layers = 2;
    opt.dropout = 0;
    opt.batch = 50; /* does not divide by 3 and 4 */
    opt.epochs = 5;
    opt.clip = 0.1;
    opt.seed = 7;
}

static void close_run(lstm *l, run *r)
{
    lstm_close(l);
    series_free(r->series, SERIES);
    assert_ok(ek_shutdown());
}

static void train(lstm *l, run *r, int64_t steps)
{
    *l = (lstm){.epoch_steps = 0};
    *r = (run){.name = "test", .last = steps};
    assert_ok(lstm_open(l, NULL));
    run_series(r, series_names, SERIES);
    while (run_next(r))
        run_add(r, LOSSES, job_train(&l->job, l->job.loader, NULL));
    assert_ok(ek_error_status());
    ck_assert_int_eq(r->series[LOSSES].count, steps);
}

FIXTURE(write_words, remove_words)

/* ---- runs ---- */

GROUP(runs)

TEST_LOOP(losses_are_those_of_torch, 0, CELL_RNN + 1)
{
    char name[64];
    lstm l;
    run r;
    make_small();
    opt.cell = _i;
    train(&l, &r, STEPS);
    snprintf(name, sizeof name, "losses/%s", cell_names[_i]);
    assert_numbers(name, r.series[LOSSES].values, STEPS,
                   ek_tensor_data(golden("lstm.golden", name)), 1e-10);
    close_run(&l, &r);
}

static char *small_options(char text[256])
{
    snprintf(text, 256,
             "--device %s --data %s --words 40 --hidden 8 --layers 2 --batch 50 --epochs 2 --clip "
             "0.1 --seed 7 --dropout 0.3",
             program_device(), directory);
    return text;
}

TEST(what_cannot_be_is_refused)
{
    static const char *const refused[] = {"--cell gru", "--words 1000", "--data /nowhere"};
    char small[256];
    small_options(small);
    ck_assert_int_eq(program_run(lstm_main, "%s --steps 1 --out %s/half", small, directory), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(program_run(lstm_main, "%s --resume %s/half/checkpoint.safetensors %s",
                                     small, directory, refused[i]),
                         REFUSED);
}

/* ---- parts ---- */

GROUP(parts)

TEST(words_are_letters_only)
{
    word_list list = {0};
    char path[4096];
    make_small();
    snprintf(path, sizeof path, "%s/%s", directory, word_files[GERMAN]);
    FILE *file = fopen(path, "w");
    fputs(
        "Zebra\nab\nzebra\n\xc3\xa4hnlich\nit's\nabcdefghijklmnopqrstu\nabcdefghijklmnopqrst\nXyz",
        file);
    fclose(file);
    assert_ok(words_read(&list, directory, GERMAN));
    ck_assert_int_eq(list.count, 3); /* sorted, each once */
    static const uint8_t xyz[] = {0, 24, 25, 26, 0};
    ck_assert_int_eq(list.words[0].count, 20);
    ck_assert_int_eq(list.words[1].language, GERMAN);
    ck_assert_mem_eq(list.words[1].symbols, xyz, sizeof xyz);
    ck_assert_int_eq(list.words[2].symbols[1], 26);
    free(list.words);
}

/* Training and testing share no word, and have all that are wanted. */
TEST(words_are_dealt)
{
    word_list training, testing;
    make_small();
    assert_ok(words_open(directory, opt.words, (uint64_t)opt.seed, &training, &testing));
    ck_assert_int_eq(training.count, LANGUAGES * 36);
    ck_assert_int_eq(testing.count, LANGUAGES * 4);
    for (int64_t i = 0; i < testing.count; i++)
        for (int64_t k = 0; k < training.count; k++)
            ck_assert(
                testing.words[i].language != training.words[k].language ||
                memcmp(testing.words[i].symbols, training.words[k].symbols, MOST_LETTERS + 2) != 0);
    free(training.words);
    free(testing.words);
}

TEST(batches_are_padded)
{
    word words[] = {{.language = 1, .count = 3, .symbols = {0, 5, 6, 7}},
                    {.language = 4, .count = 1, .symbols = {0, 9}}};
    const word_list list = {.words = words, .count = 2};
    static const double letters[] = {5, 6, 7, 0, 9, 0, 0, 0},
                        targets[] = {1, 1, 1, 1, 4, 4, IGNORED, IGNORED};
    ek_dataset *set = words_dataset(&list);
    const ek_value samples[] = {ek_dataset_get(set, 0), ek_dataset_get(set, 1)};
    ek_value batch = words_collate(samples, 2, NULL), input = ek_value_at(batch, 0);
    for (int i = 0; i < 8; i++) {
        ck_assert(element(ek_value_tensor(ek_value_at(input, 0)), i) == letters[i]);
        ck_assert(element(ek_value_tensor(ek_value_at(batch, 1)), i) == targets[i]);
    }
    ck_assert(element(ek_value_tensor(ek_value_at(input, 1)), 0) == 4);
    ck_assert(element(ek_value_tensor(ek_value_at(input, 1)), 1) == 2);
    ek_dataset_free(set);
}

/* Of the word "a" alone. */
TEST(ngrams_are_interpolated)
{
    static const uint8_t a[] = {0, 1, 0};
    double first[NGRAM_MOST_ORDER + 1], second[NGRAM_MOST_ORDER + 1];
    ngram_table *table = ngram_new(SYMBOLS, NGRAM_MOST_ORDER);
    ngram_probabilities(table, a, 1, first);
    ck_assert(first[1] == 1.0 / 27); /* nothing is known */
    ck_assert_int_eq(ngram_add(table, a, 1, 3), 0);
    const double one = (1 + 2.0 / 27) / 4, two = (1 + one) / 2, three = (1 + two) / 2;
    ngram_probabilities(table, a, 1, first);
    ngram_probabilities(table, a, 2, second);
    ck_assert_double_le(fabs(first[1] - one) + fabs(second[1] - one), 1e-12);
    ck_assert_double_le(fabs(first[2] - two) + fabs(second[2] - two), 1e-12);
    ck_assert_double_le(fabs(first[3] - two) + fabs(second[3] - three), 1e-12);
    ck_assert(first[NGRAM_MOST_ORDER] == first[3] && second[NGRAM_MOST_ORDER] == second[3]);
    ngram_free(table);
}

/* Two words of three letters and one of four. */
TEST(scores_are_shares)
{
    static const int64_t told[3][5] = {{0, 1, 1, 1}, {1, 1, 0, 0}, {1, 0, 1, 1, 1}};
    score s = {0};
    for (int i = 0; i < 3; i++)
        score_word(&s, &(const word){.language = 1, .count = i == 2 ? 4 : 3}, told[i]);
    ck_assert(score_of(&s, 1) == 2.0 / 3 && score_of(&s, 2) == 2.0 / 3);
    ck_assert(score_of(&s, 3) == 2.0 / 3 && score_of(&s, 4) == 1);
    ck_assert(score_of(&s, WHOLE) == 2.0 / 3);
    ck_assert(isnan(score_of(&s, 5)));
}

/* Words of one batch or of another, each is scored as alone; the loss is the mean over letters. */
TEST(tests_score_each_word_once)
{
    lstm l;
    run r;
    score alone = {{0}, {0}};
    double sum = 0;
    int64_t letters = 0;
    make_small();
    train(&l, &r, 4);
    const lstm_tested tested = lstm_test(&l);
    ck_assert_int_eq(tested.score.seen[WHOLE], 20);
    ek_set_grad_enabled(false);
    ek_module_train(l.job.network, false);
    for (int64_t i = 0; i < l.testing.count; i++) {
        const word *w = &l.testing.words[i];
        int64_t symbols[MOST_LETTERS + 1], languages[MOST_LETTERS + 1];
        for (int k = 0; k <= w->count; k++)
            symbols[k] = w->symbols[k + 1];
        ek_tensor *x = ek_from_data(symbols, EK_SHAPE(1, w->count + 1), EK_I64),
                  *logits = ek_apply(l.job.network, ek_to_device(x, l.job.devices.devices[0])),
                  *target = ek_full(w->language, EK_SHAPE(1, w->count + 1), EK_I64,
                                    ek_tensor_device(logits));
        sum += element(ek_f_cross_entropy(logits, target, .reduction = EK_SUM), 0);
        letters += w->count + 1;
        for (int k = 0; k <= w->count; k++)
            languages[k] = (int64_t)element(ek_argmax(logits, 1, false), k);
        score_word(&alone, w, languages);
    }
    ck_assert_mem_eq(&alone, &tested.score, sizeof alone);
    ck_assert_double_le(fabs(tested.loss - sum / (double)letters), 1e-12);
    close_run(&l, &r);
}

/* Words of few letters more often than by chance; counted, too. */
TEST(the_network_learns)
{
    enum { LEARNING = 100 };
    lstm l;
    run r;
    score counted[NGRAM_MOST_ORDER + 1];
    make_small();
    opt.epochs = LEARNING / 4;
    opt.lr = 0.02;
    opt.clip = 1;
    train(&l, &r, LEARNING);
    const double *losses = r.series[LOSSES].values;
    ck_assert_double_lt(losses[LEARNING - 1], 0.8 * losses[0]);
    assert_ok(score_ngrams(&l.training, &l.testing, counted));
    ck_assert_int_ge(lstm_best_order(counted), 1);
    ck_assert_int_eq(counted[lstm_best_order(counted)].seen[WHOLE], 20);
    close_run(&l, &r);
}

/* test_gpt.c: the parts of the GPT sample, and PyTorch's losses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int gpt_main(int argc, char **argv);
#define main gpt_main
#include "gpt.c"
#undef main
#include "program.h"

/* ---- a text: 12 pieces, of which the tenth is held out; make_gpt.py has the same ---- */

static char directory[32], letters[64];

static void make_text(void)
{
    strcpy(directory, "/tmp/test_gpt_XXXXXX");
    ck_assert(mkdtemp(directory));
    snprintf(letters, sizeof letters, "%s/letters", directory);
    FILE *file = fopen(letters, "wb");
    ck_assert_ptr_nonnull(file);
    uint32_t state = 1;
    for (int i = 0; i < 12 * TEXT_PIECE; i++) {
        state = 1664525 * state + 1013904223;
        fputc('a' + (int)((state >> 16) % 3) * (i % 7) % 26, file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void remove_text(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

FIXTURE(make_text, remove_text)

/* The sample's defaults, smaller, in f64. */
static void make_small(void)
{
    char name[] = "gpt", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = test_kind();
    opt.data = letters;
    opt.context = 8;
    opt.width = 12;
    opt.layers = opt.heads = 2;
    opt.batch = 5; /* does not divide by 2 and 3 */
    opt.steps = 20;
    opt.warm_up = 4;
    opt.dropout = 0.2;
    opt.lr = 0.01;
    opt.seed = 3;
    opt.every = 1000;
    opt.letters = 10;
    opt.dtype = EK_F64;
    ck_assert_int_ge(gpt_check(), 0);
}

static void close_run(gpt *g, run *r)
{
    gpt_close(g);
    series_free(r->series, SERIES);
    assert_ok(ek_shutdown());
}

static void train(gpt *g, run *r, int64_t steps)
{
    *g = (gpt){.tested = 0};
    *r = (run){.name = "test", .last = steps};
    assert_ok(gpt_open(g, NULL));
    run_series(r, series_names, SERIES);
    while (run_next(r))
        run_add(r, LOSSES, job_train(&g->job, g->job.loader, NULL));
    assert_ok(ek_error_status());
}

/* ---- runs ---- */

GROUP(runs)

TEST(losses_are_pytorchs)
{
    gpt g;
    run r;
    make_small();
    opt.mode = MODE_SINGLE;
    opt.random = EK_RANDOM_TWISTER;
    opt.devices = "1";
    train(&g, &r, 20);
    assert_numbers("losses", r.series[LOSSES].values, 20,
                   ek_tensor_data(golden("gpt.golden", "losses")), 1e-10);
    close_run(&g, &r);
}

/* ---- parts ---- */

GROUP(parts)

/* By hand: of "abab", behind "a" comes "b" 2 times, behind "ab" "a" once, and "ab" ends it once. */
TEST(trigrams)
{
    uint8_t seen[] = "abab", held[] = "xaba";
    const text training = {seen, 4}, test = {held, 4};
    const double uniform = 1.0 / 256;
    /* Unigram: 4 bytes of 2 kinds, for "a" and "b" alike. */
    const double one = (2 + 2 * uniform) / (4 + 2);
    /* "a" behind "x", which is nowhere. */
    const double first = one;
    /* "b" behind "a": 2 of 2, one kind; "xa" is nowhere. */
    const double second = (2 + 1 * one) / (2 + 1);
    /* "a" behind "b": 1 of 1, one kind; behind "ab" likewise. */
    const double third = (1 + 1 * (1 + 1 * one) / (1 + 1)) / (1 + 1);
    double loss;
    assert_ok(trigram_loss(&training, &test, 3, &loss));
    const double wanted = -(log(first) + log(second) + log(third)) / 3;
    ck_assert_msg(fabs(loss - wanted) <= 1e-14, "%.17g, not %.17g", loss, wanted);
}

TEST(every_tenth_piece_is_held_out)
{
    text all, training, held;
    assert_ok(text_read(letters, &all));
    ck_assert_int_eq(all.count, 12 * TEXT_PIECE);
    assert_ok(text_divide(&all, &training, &held));
    ck_assert_int_eq(training.count, 11 * TEXT_PIECE);
    ck_assert_int_eq(held.count, TEXT_PIECE);
    ck_assert_mem_eq(held.bytes, all.bytes + 9 * TEXT_PIECE, TEXT_PIECE);
    ck_assert_mem_eq(training.bytes, all.bytes, 9 * TEXT_PIECE);
    ck_assert_mem_eq(training.bytes + 9 * TEXT_PIECE, all.bytes + 10 * TEXT_PIECE, 2 * TEXT_PIECE);
    text_free(&all);
    text_free(&training);
    text_free(&held);
}

/* Names with a '.', and folders, are passed over. */
TEST(a_folder_is_read_by_name)
{
    static const char *const names[] = {"b", "a", "a.dat", "letters"};
    char path[128], folder[64];
    text all;
    snprintf(folder, sizeof folder, "%s/c", directory);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        FILE *file = fopen(path, "wb");
        ck_assert(file && fputs(names[i], file) >= 0 && fclose(file) == 0);
    }
    assert_ok(text_read(directory, &all));
    ck_assert_int_eq(all.count, 9);
    ck_assert_mem_eq(all.bytes, "abletters", 9);
    text_free(&all);
    ck_assert_int_lt(text_read(folder, &all), 0);
    assert_error(EK_E_FORMAT, "no text");
}

/* The held-out loss is the mean over bytes, also of a last batch that is smaller. */
TEST(the_held_out_loss_is_a_mean_over_bytes)
{
    gpt g;
    run r;
    make_small();
    opt.mode = MODE_SINGLE;
    opt.devices = "1";
    opt.context = 100;
    train(&g, &r, 0);
    ck_assert_int_eq(g.tested, 4000);
    const double held_out = gpt_test(&g);
    double sum = 0;
    ek_module_train(g.job.network, false);
    ek_set_grad_enabled(false);
    for (int w = 0; w < 40; w++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *bytes =
            ek_to_dtype(ek_from_data(g.held_text.bytes + 100 * w, EK_SHAPE(101), EK_U8), EK_I64);
        bytes = ek_to_device(bytes, g.job.devices.devices[0]);
        ek_tensor *logits = ek_apply(g.job.network, ek_narrow(bytes, 0, 0, 100));
        double loss;
        assert_ok(ek_item(ek_f_cross_entropy(logits, ek_narrow(bytes, 0, 1, 100)), &loss));
        sum += loss / 40;
        ek_scope_end(&scope);
    }
    ek_set_grad_enabled(true);
    ck_assert_msg(fabs(held_out - sum) <= 1e-12 * sum, "%.17g, not %.17g", held_out, sum);
    close_run(&g, &r);
}

/* With top-k 1 each byte is the likeliest, seen through a window that moves on. */
TEST(it_writes_the_likeliest_bytes)
{
    gpt g;
    run r;
    make_small();
    opt.mode = MODE_SINGLE;
    opt.devices = "1";
    opt.top_k = 1;
    opt.prompt = "ab";
    train(&g, &r, 0);
    /* Embeddings of deviation 1, so that each byte and each position counts. */
    assert_ok(ek_init_normal(ek_module_tensor(g.job.network, "wte.weight"), 0, 1));
    assert_ok(ek_init_normal(ek_module_tensor(g.job.network, "wpe.weight"), 0, 1));
    assert_ok(gpt_write(&g));
    ck_assert_int_eq((int)g.text_size, 13);
    ek_module_train(g.job.network, false);
    ek_set_grad_enabled(false);
    char wanted[13] = "ab";
    for (int i = 2; i < 12; i++) {
        const int seen = i < 8 ? i : 8;
        double best;
        ek_scope scope = ek_scope_begin();
        ek_tensor *bytes =
            ek_to_dtype(ek_from_data(wanted + i - seen, EK_SHAPE(seen), EK_U8), EK_I64);
        ek_tensor *logits = ek_apply(g.job.network, ek_to_device(bytes, g.job.devices.devices[0]));
        ek_tensor *last = ek_select(logits, 0, seen - 1);
        assert_ok(ek_item(ek_to_dtype(ek_argmax(last, 0, false), EK_F64), &best));
        wanted[i] = (char)best;
        ek_scope_end(&scope);
    }
    ek_set_grad_enabled(true);
    for (int t = 0; t < TEXTS; t++)
        ck_assert_mem_eq(g.texts + (size_t)t * g.text_size, wanted, 12);
    close_run(&g, &r);
}

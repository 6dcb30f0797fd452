/* test_reid.c: the parts of the re-identification sample, PyTorch's losses, and figures by
 * hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int reid_main(int argc, char **argv);
#define main reid_main
#include "reid.c"
#undef main
#include "program.h"

enum { SEED = 7, STEPS = 20, BATCH = 10, SIDE = 8 };
#define GOLDEN "reid.golden"

/* The sample's defaults, smaller. */
static void make_small(void)
{
    char name[] = "reid", *argv[] = {name, NULL};
    ck_assert_int_eq(args_read(1, argv, "", option_table), 0);
    opt.device = EK_HOST;
    opt.seed = SEED;
    opt.dtype = EK_F64;
    opt.mode = MODE_SINGLE;
    opt.width = 4;
    opt.features = 8;
    opt.batch = BATCH;
    opt.group = 2;
    opt.identities = 6; /* four steps an epoch */
    opt.test_identities = 3;
    opt.epochs = 2;
    opt.margin = 5;
    opt.triplet = 0.7;
}

TEST(retrieval_is_that_by_hand)
{
    const sighting queries[] = {{0, 0}, {1, 0}, {3, 0}};
    const sighting gallery[] = {{0, 0}, {1, 1}, {0, 1}, {2, 0}, {0, 2}};
    /* The first finds junk, wrong, right, wrong, right: precisions 1/2 and 2/4. The second finds
     * the only right one first. Nothing is right for the third. */
    const double apart[] = {.1, .2, .3, .4, .5, 5, 1, 2, 3, 4, 1, 2, 3, 4, 5};
    const int64_t nearest[][RETRIEVAL_SHOWN] = {{1, 2, 3, 4, -1}, {1, 2, 3, 4, 0}};
    retrieval found;
    assert_ok(
        retrieval_judge(ek_from_data(apart, EK_SHAPE(3, 5), EK_F64), queries, gallery, &found));
    ck_assert_int_eq(found.queries, 2);
    ck_assert_double_eq(found.map, 0.75);
    ck_assert_double_eq(found.rank1, 0.5);
    ck_assert_double_eq(found.rank5, 1);
    ck_assert_mem_eq(found.nearest, nearest, sizeof nearest);
    ck_assert_int_eq(found.nearest[3][0], -1);
}

TEST(rank_five_ends_at_five)
{
    const sighting query = {0, 0}, gallery[] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {0, 1}};
    const double apart[] = {1, 2, 3, 4, 5, 6};
    retrieval found;
    assert_ok(
        retrieval_judge(ek_from_data(apart, EK_SHAPE(1, 6), EK_F64), &query, gallery, &found));
    ck_assert_double_eq(found.rank5, 0);
    ck_assert_double_eq_tol(found.map, 1.0 / 6, 1e-15);
}

/* Two identities of 8 views: queries are rows 0-3 and 8-11, the gallery all others. Of lengths no
 * notice is taken. Row 12, the first identity's by its features, is the second's: its query by
 * another camera finds three others of the first behind or before it. */
TEST(rows_are_queries_or_gallery)
{
    double rows[16][2] = {{0}};
    retrieval found;
    for (int i = 0; i < 16; i++)
        rows[i][i / 8] = i + 1;
    ck_assert_int_eq(retrieval_query_row(5, 8), 9);
    ck_assert_int_eq(retrieval_gallery_row(4, 8), 12);
    ck_assert_int_eq(retrieval_gallery_row(4, 12), 8);
    assert_ok(retrieval_of_features(ek_from_data(rows, EK_SHAPE(16, 2), EK_F64), 8, &found));
    ck_assert_int_eq(found.queries, 8);
    ck_assert_double_eq(found.map, 1);
    ck_assert_double_eq(found.rank1, 1);
    rows[12][0] = 1;
    rows[12][1] = 0;
    assert_ok(retrieval_of_features(ek_from_data(rows, EK_SHAPE(16, 2), EK_F64), 8, &found));
    ck_assert_double_lt(found.map, 1);
}

TEST(views_are_of_garments)
{
    ek_dataset *views = views_make(args_pictures(), false, 3, 8, 5);
    ek_dataset *again = views_make(args_pictures(), false, 3, 8, 5);
    ek_dataset *others = views_make(args_pictures(), false, 3, 8, 6);
    assert_made(views);
    assert_made(again);
    assert_made(others);
    ck_assert_int_eq(ek_dataset_length(views), 24);
    for (int64_t i = 0; i < 24; i++) {
        ek_value sample = ek_dataset_get(views, i), same = ek_dataset_get(again, i),
                 other = ek_dataset_get(others, i);
        ek_tensor *view = ek_value_tensor(ek_value_at(sample, 0));
        ck_assert(element(ek_value_tensor(ek_value_at(sample, 1)), 0) == (double)(i / 8));
        ck_assert_int_eq(ek_tensor_count(view), VIEW_SIDE * VIEW_SIDE);
        ck_assert_mem_eq(ek_tensor_data(view),
                         ek_tensor_data(ek_value_tensor(ek_value_at(same, 0))),
                         VIEW_SIDE * VIEW_SIDE);
        ck_assert_mem_ne(ek_tensor_data(view),
                         ek_tensor_data(ek_value_tensor(ek_value_at(other, 0))),
                         VIEW_SIDE * VIEW_SIDE);
        ck_assert_double_gt(element(ek_mean(ek_to_dtype(view, EK_F64)), 0), 10);
    }
    ek_dataset_free(views);
    ek_dataset_free(again);
    ek_dataset_free(others);
    ck_assert_ptr_null(views_make(args_pictures(), false, 10001, 8, 5));
    ck_assert_int_eq(ek_error_status(), EK_E_INVALID);
    ek_error_clear();
}

/* With identities of one picture, and a batch of one identity, too. */
TEST_LOOP(triplets_are_the_hardest, 0, 3)
{
    static const char *const names[] = {"hard", "same", "alone"};
    char name[4][64];
    static const char *const parts[] = {"features", "identities", "loss", "gradient"};
    for (int i = 0; i < 4; i++)
        snprintf(name[i], sizeof name[i], "%s/%s", names[_i], parts[i]);
    ek_tensor *features = ek_to_device(golden(GOLDEN, name[0]), ek_cpu());
    assert_ok(ek_tensor_set_requires_grad(features, true));
    ek_tensor *loss = f_batch_hard_triplet_loss(features, golden(GOLDEN, name[1]), 5);
    assert_close(loss, golden(GOLDEN, name[2]), 1e-12, 1e-12);
    assert_ok(ek_backward(loss));
    assert_close(ek_tensor_grad(features), golden(GOLDEN, name[3]), 1e-12, 1e-12);
}

/* P identities, K views of each side by side. */
TEST(batches_are_groups_of_identities)
{
    make_small();
    reid s = {.job.devices = EK_DEVICES(ek_cpu())};
    s.training = views_make(args_pictures(), true, opt.identities, opt.views, 1);
    assert_made(s.training);
    s.job.loader = reid_loader(&s);
    assert_made(s.job.loader);
    ek_batch batch;
    int batches = 0;
    while (ek_loader_next(s.job.loader, &batch) > 0) {
        ek_tensor *of = ek_value_tensor(batch.target);
        ck_assert_int_eq(batch.count, BATCH);
        ck_assert_int_eq(ek_tensor_dtype(ek_value_tensor(batch.input)), EK_F64);
        for (int i = 0; i < BATCH; i += 2)
            ck_assert(element(of, i) == element(of, i + 1));
        batches++;
    }
    ck_assert_int_eq(batches, 4);
    ck_assert_int_eq(reid_epoch_steps(), 4);
    reid_close(&s);
}

/* Losses of twenty steps. */
TEST(losses_are_those_of_pytorch)
{
    static const int64_t of_pictures[BATCH] = {0, 1, 1, 2, 0, 2, 3, 3, 4, 0};
    reid s = {.epoch_steps = STEPS / 2};
    double losses[STEPS], triplets[STEPS];
    make_small();
    job_begin(&s.job, opt.mode, EK_HOST, "1");
    assert_ok(reid_make(&s));
    /* What make_reid.py draws behind the network's parameters. */
    ek_tensor *pictures = ek_to_dtype(ek_randn(EK_SHAPE(BATCH, 1, SIDE, SIDE)), EK_F64);
    ek_tensor *identities = ek_from_data(of_pictures, EK_SHAPE(BATCH), EK_I64);
    for (int i = 0; i < STEPS; i++)
        assert_ok(
            reid_train(&s.job, EK_VALUE(pictures), EK_VALUE(identities), &losses[i], &triplets[i]));
    assert_numbers("losses", losses, STEPS, ek_tensor_data(golden(GOLDEN, "losses")), 1e-10);
    assert_numbers("triplets", triplets, STEPS, ek_tensor_data(golden(GOLDEN, "triplets")), 1e-10);
    reid_close(&s);
    assert_ok(ek_shutdown());
}

/* test_samplers.c: every sampler against PyTorch, or a reference in Python: 200 random cases each.
 */
#include "core/python_random.h"
#include "unit.h"

static const char file[] = "samplers.golden";

/* A golden table: a row of parameters per case, and what they give one after the other. */
typedef struct table {
    const int64_t *cases, *indices, *ends, *more;
    const double *weights; /* `more` if it is floating */
    int64_t rows, columns, used, left;
} table;

static const void *numbers(const char *sampler, const char *what, ek_dtype dtype, int64_t *count)
{
    char name[80];
    snprintf(name, sizeof name, "%s/%s", sampler, what);
    if (!golden_has(file, name))
        return NULL;
    ek_tensor *tensor = golden(file, name);
    if (ek_tensor_dtype(tensor) != dtype)
        return NULL;
    *count = ek_tensor_count(tensor);
    return ek_tensor_data(tensor);
}

static table open_table(const char *sampler, int64_t columns)
{
    table t = {.columns = columns};
    int64_t count = 0, unused;
    t.cases = numbers(sampler, "cases", EK_I64, &count);
    ck_assert_ptr_nonnull(t.cases);
    t.rows = count / columns;
    ck_assert_int_eq(t.rows, 200);
    t.indices = numbers(sampler, "indices", EK_I64, &t.left);
    t.ends = numbers(sampler, "ends", EK_I64, &unused);
    t.more = numbers(sampler, "more", EK_I64, &unused);
    t.weights = numbers(sampler, "more", EK_F64, &unused);
    return t;
}

/* The next `count` samples of the golden are `drawn`. */
static void assert_indices(table *t, int64_t row, const int64_t *drawn, int64_t count)
{
    ck_assert_msg(count <= t->left, "case %lld: more samples than there are", (long long)row);
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(drawn[i] == t->indices[i], "case %lld: sample %lld is %lld instead of %lld",
                      (long long)row, (long long)i, (long long)drawn[i], (long long)t->indices[i]);
    t->indices += count;
    t->left -= count;
}

/* A pass, one by one; *sampler's length is right. */
static void assert_pass(table *t, int64_t row, ek_sampler *sampler)
{
    int64_t length = ek_sampler_length(sampler), count = 0, index;
    int64_t *drawn = malloc((size_t)(length + 1) * sizeof *drawn);
    int rc;
    assert_ok((int)(length < 0 ? length : 0));
    ck_assert_ptr_nonnull(drawn);
    while ((rc = ek_sampler_next(sampler, &index)) > 0) {
        ck_assert_int_lt(count, length);
        drawn[count++] = index;
    }
    assert_ok(rc);
    ck_assert_int_eq(count, length);
    assert_indices(t, row, drawn, count);
    free(drawn);
}

/* All of a pass at once. */
static void assert_drawn(table *t, int64_t row, ek_sampler *sampler)
{
    ek_pass pass = {0};
    assert_ok(ek_sampler_draw(sampler, &pass));
    ck_assert_int_eq(pass.count, ek_sampler_length(sampler));
    ck_assert_int_eq(pass.batches, 0);
    assert_indices(t, row, pass.indices, pass.count);
    ek_pass_free(&pass);
    ck_assert_ptr_null(pass.indices);
}

static ek_generator *source(bool given, int64_t seed)
{
    ek_manual_seed((uint64_t)seed);
    return given ? ek_generator_new((uint64_t)seed) : NULL;
}

/* Two passes, in both ways, and what the generator draws afterwards. */
static void assert_random(table *t, int64_t row, ek_sampler *sampler, ek_generator *generator,
                          int64_t total, int64_t after)
{
    int64_t left = t->left;
    assert_made(sampler);
    assert_pass(t, row, sampler);
    assert_drawn(t, row, sampler);
    ck_assert_int_eq(left - t->left, total);
    ck_assert_int_eq(ek_random_u64(generator) & INT64_MAX, after);
    ek_sampler_free(sampler);
    ek_generator_free(generator);
}

TEST(random_samplers)
{
    table t = open_table("random", 7);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns;
        ek_generator *generator = source(c[3], c[4]);
        ek_sampler *sampler =
            ek_random_sampler(c[0], .replacement = c[1], .num_samples = c[2] ? c[2] : c[0],
                              .generator = generator);
        assert_random(&t, row, sampler, generator, c[5], c[6]);
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(subset_samplers)
{
    table t = open_table("subset", 5);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns;
        ek_generator *generator = source(c[1], c[2]);
        ek_sampler *sampler = ek_subset_random_sampler(t.more, c[0], generator);
        assert_random(&t, row, sampler, generator, c[3], c[4]);
        t.more += c[0];
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(weighted_samplers)
{
    table t = open_table("weighted", 6);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns;
        ek_generator *generator = source(c[2], c[3]);
        ek_sampler *sampler = ek_weighted_random_sampler(t.weights, c[0], c[1], generator);
        assert_random(&t, row, sampler, generator, c[4], c[5]);
        t.weights += c[0];
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(batch_samplers)
{
    table t = open_table("batch", 7);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns, *batch;
        ek_sampler *inner = c[3] ? ek_random_sampler(c[0]) : ek_sequential_sampler(c[0]);
        ek_sampler *sampler = ek_batch_sampler(inner, c[1], c[2]);
        int64_t end = 0, count;
        assert_made(sampler);
        ck_assert_int_eq(ek_sampler_length(sampler), c[6]);
        ek_manual_seed((uint64_t)c[4]);
        for (int64_t b = 0; b < c[6]; b++) {
            ck_assert_int_eq(ek_sampler_next_batch(sampler, &batch, &count), 1);
            assert_indices(&t, row, batch, count);
            end += count;
            ck_assert_int_eq(end, *t.ends++);
        }
        ck_assert_int_eq(end, c[5]);
        ck_assert_int_eq(ek_sampler_next_batch(sampler, &batch, &count), 0);
        ek_sampler_free(sampler);
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(distributed_samplers)
{
    table t = open_table("distributed", 8);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns;
        for (int rank = 0; rank < c[1]; rank++) {
            ek_sampler *sampler =
                ek_distributed_sampler(c[0], (int)c[1], rank, .shuffle = c[4] ? true : false,
                                       .seed = c[2], .drop_last = c[5],
                                       .padding = c[6] ? true : false, .contiguous = c[7]);
            assert_made(sampler);
            ck_assert_int_eq(ek_sampler_length(sampler), *t.ends++);
            assert_ok(ek_sampler_set_epoch(sampler, c[3]));
            assert_pass(&t, row, sampler);
            ek_sampler_free(sampler);
        }
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(inference_samplers)
{
    table t = open_table("inference", 3);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns;
        for (int rank = 0; rank < c[1]; rank++) {
            ek_sampler *sampler =
                ek_distributed_inference_sampler(c[0], (int)c[1], rank, c[2] ? true : false);
            assert_made(sampler);
            ck_assert_int_eq(ek_sampler_length(sampler), *t.ends++);
            assert_pass(&t, row, sampler);
            ek_sampler_free(sampler);
        }
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(identity_samplers)
{
    table t = open_table("identity", 4);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns, left = t.left;
        ek_sampler *sampler = ek_random_identity_sampler(t.more, c[0], c[1]);
        assert_made(sampler);
        ek_set_seed(c[2]);
        assert_pass(&t, row, sampler);
        assert_drawn(&t, row, sampler);
        ck_assert_int_eq(left - t.left, c[3]);
        ek_sampler_free(sampler);
        t.more += c[0];
    }
    ck_assert_int_eq(t.left, 0);
}

TEST(distributed_identity_samplers)
{
    table t = open_table("distributed_identity", 6);
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t *c = t.cases + row * t.columns, left = t.left;
        for (int rank = 0; rank < c[2]; rank++) {
            ek_sampler *sampler =
                ek_distributed_random_identity_sampler(t.more, c[0], c[1],
                                                       .num_replicas = (int)c[2], .rank = rank,
                                                       .seed = c[3]);
            assert_made(sampler);
            assert_ok(ek_sampler_set_epoch(sampler, c[4]));
            assert_pass(&t, row, sampler);
            ek_sampler_free(sampler);
        }
        ck_assert_int_eq(left - t.left, c[5]);
        t.more += c[0];
    }
    ck_assert_int_eq(t.left, 0);
}

/* ---- what holds for all of them ---- */

/* Each of `count` samples came once. */
static void assert_all_once(const int *seen, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(seen[i] == 1, "sample %lld came %d times", (long long)i, seen[i]);
}

/* For evaluation: with padding off, ranks cover the set, their lengths differ by one at most. */
TEST(evaluation_covers_everything_once)
{
    for (int64_t count = 0; count < 40; count++)
        for (int ranks = 1; ranks < 9; ranks++)
            for (int way = 0; way < 5; way++) {
                int seen[40] = {0};
                for (int rank = 0; rank < ranks; rank++) {
                    ek_sampler *sampler =
                        way == 4
                            ? ek_distributed_inference_sampler(count, ranks, rank, false)
                            : ek_distributed_sampler(count, ranks, rank, way & 1 ? true : false,
                                                     .padding = false, .contiguous = way > 1);
                    ek_pass pass = {0};
                    assert_made(sampler);
                    assert_ok(ek_sampler_draw(sampler, &pass));
                    ck_assert_int_eq(pass.count, ek_sampler_length(sampler));
                    ck_assert_int_eq(pass.count, count / ranks + (rank < count % ranks));
                    for (int64_t i = 0; i < pass.count; i++)
                        seen[pass.indices[i]]++;
                    ek_pass_free(&pass);
                    ek_sampler_free(sampler);
                }
                assert_all_once(seen, count);
            }
}

TEST(epochs)
{
    int64_t passes[5][8], index;
    ek_sampler *sampler = ek_distributed_sampler(8, .automatic_epochs = true);
    ek_sampler *batches = ek_batch_sampler(ek_distributed_sampler(8), 8, false);
    const int64_t *batch;
    assert_made(sampler);
    assert_made(batches);
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(ek_sampler_next(sampler, &passes[pass][i]), 1);
        ck_assert_int_eq(ek_sampler_next(sampler, &index), 0);
    }
    ck_assert(memcmp(passes[0], passes[1], sizeof passes[0]) != 0);
    ck_assert(memcmp(passes[1], passes[2], sizeof passes[0]) != 0);

    /* Batch samplers pass epochs on; without new ones passes are the same. */
    for (int epoch = 2; epoch >= 0; epoch--) {
        assert_ok(ek_sampler_set_epoch(batches, epoch));
        for (int again = 0; again < 2; again++) {
            ck_assert_int_eq(ek_sampler_next_batch(batches, &batch, &index), 1);
            ck_assert_int_eq(index, 8);
            ck_assert_mem_eq(batch, passes[epoch], sizeof passes[0]);
            ck_assert_int_eq(ek_sampler_next_batch(batches, &batch, &index), 0);
        }
    }

    /* A new epoch is for the next pass. Any number is an epoch. */
    assert_ok(ek_sampler_set_epoch(sampler, INT64_MAX));
    ck_assert_int_eq(ek_sampler_next(sampler, &index), 1);
    assert_ok(ek_sampler_set_epoch(sampler, 1));
    while (ek_sampler_next(sampler, &index) > 0)
        ;
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(ek_sampler_next(sampler, &index), 1);
        ck_assert_int_eq(index, passes[1][i]);
    }
    ek_sampler_free(sampler);
    ek_sampler_free(batches);
}

/* As torch.utils.data.DataLoader(range(10), shuffle=True) after torch.manual_seed(0): it draws a
 * base seed first. */
TEST(shuffled_loader)
{
    static const int64_t expected[10] = {6, 7, 1, 4, 2, 0, 9, 8, 3, 5};
    ek_sampler *sampler = ek_random_sampler(10);
    int64_t index;
    assert_made(sampler);
    ek_manual_seed(0);
    ck_assert_int_eq((int64_t)(ek_random_u64(NULL) & INT64_MAX), 900450186894289455);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(ek_sampler_next(sampler, &index), 1);
        ck_assert_int_eq(index, expected[i]);
    }
    ek_sampler_free(sampler);
}

/* More than 32 bits: each number then takes two draws. */
TEST(very_large_sets)
{
    const int64_t count = (int64_t)1 << 40;
    ek_generator *mine = ek_generator_new(3), *same = ek_generator_new(3);
    ek_sampler *sampler =
        ek_random_sampler(count - 1, .replacement = true, .num_samples = 50, .generator = mine);
    int64_t index;
    assert_made(sampler);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(ek_sampler_next(sampler, &index), 1);
        ck_assert_int_eq(index, (int64_t)(ek_random_u64(same) % (uint64_t)(count - 1)));
    }
    ek_sampler_free(sampler);
    sampler = ek_distributed_sampler(count + 1, 4, 3, .contiguous = true, .shuffle = false);
    assert_made(sampler);
    ck_assert_int_eq(ek_sampler_length(sampler), count / 4 + 1);
    ek_sampler_free(sampler);
    sampler = ek_sequential_sampler(INT64_MAX);
    assert_made(sampler);
    ck_assert_int_lt(ek_sampler_next(sampler, &index), 0);
    assert_error(EK_E_NO_MEMORY, "");
    ek_sampler_free(sampler);
    ek_generator_free(mine);
    ek_generator_free(same);
}

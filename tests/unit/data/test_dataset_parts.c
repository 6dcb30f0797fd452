/* test_dataset_parts.c: subsets, data sets one after another, random splits. */
#include "dataset_setup.h"

/* Every sample, by itself and all in one batch. */
static void assert_holds_at(ek_dataset *dataset, const int64_t *wanted, int64_t count, int line)
{
    assert_tensor_at(dataset, __FILE__, line);
    ck_assert_int_eq(ek_dataset_length(dataset), count);
    if (count == 0)
        return;
    int64_t *all = malloc((size_t)count * sizeof *all), *got = malloc((size_t)count * sizeof *got);
    for (int64_t i = 0; i < count; i++) {
        ek_value sample = ek_dataset_get(dataset, i);
        if (sample.kind != EK_VALUE_INT || sample.as.integer != wanted[i])
            ck_abort_msg("line %d: sample %lld is %lld, wanted %lld", line, (long long)i,
                         (long long)sample.as.integer, (long long)wanted[i]);
        all[i] = i;
    }
    ek_tensor *batch = ek_value_tensor(ek_dataset_get_batch(dataset, all, count, ek_cpu()));
    assert_ok(ek_to_data(batch, got, (size_t)count * sizeof *got));
    ck_assert_mem_eq(got, wanted, (size_t)count * sizeof *got);
    free(all);
    free(got);
}
#define assert_holds(dataset, count, ...) \
    assert_holds_at((dataset), (int64_t[]){__VA_ARGS__}, (count), __LINE__)

static void assert_batch(ek_dataset *dataset, const int64_t *samples, const int64_t *wanted,
                         int64_t count, ek_device device)
{
    ek_tensor *batch = ek_value_tensor(ek_dataset_get_batch(dataset, samples, count, device));
    assert_made(batch);
    ck_assert(ek_device_equal(ek_tensor_device(batch), device));
    int64_t got[100];
    assert_ok(ek_to_data(batch, got, (size_t)count * sizeof *got));
    ck_assert_mem_eq(got, wanted, (size_t)count * sizeof *got);
}

/* ---- subsets ---- */

TEST(subsets)
{
    int64_t indices[] = {9, 0, 9, 4};
    ek_dataset *subset = ek_subset(single(100, 10), indices, 4);
    memset(indices, 0, sizeof indices); /* copied */
    assert_holds(subset, 4, 109, 100, 109, 104);
    ek_dataset *again = ek_subset(subset, (int64_t[]){3, 0}, 2);
    assert_holds(again, 2, 104, 109);
    ek_dataset_free(again);
    ek_dataset *empty = ek_subset(single(0, 3), NULL, 0);
    assert_holds(empty, 0, 0);
    ek_dataset_free(empty);
}

TEST(subsets_pass_batches_on)
{
    ek_dataset *subset = ek_subset(batched(10, 10), (int64_t[]){7, 8, 9}, 3);
    assert_batch(subset, (int64_t[]){2, 0, 2, 1}, (int64_t[]){19, 17, 19, 18}, 4, ek_host(0));
    ck_assert_int_eq(atomic_load(&numbers_batches), 1);
    ek_dataset_free(subset);
}

TEST(subset_errors)
{
    assert_refused(ek_subset(single(0, 3), (int64_t[]){2, 3}, 2), EK_E_INVALID,
                   "subset: index 1 is 3; single has 3 samples");
    assert_refused(ek_subset(single(0, 3), (int64_t[]){-1}, 1), EK_E_INVALID,
                   "subset: index 0 is -1");
    assert_refused(ek_subset(single(0, 3), NULL, 2), EK_E_INVALID, "subset: the indices are NULL");
    assert_refused(ek_subset(single(0, 3), (int64_t[]){0}, -1), EK_E_INVALID,
                   "subset: the number of samples is negative");
    assert_refused(ek_subset(single(0, -3), (int64_t[]){0}, 1), EK_E_INVALID,
                   "single: its length is -3");
    assert_refused(ek_subset(NULL, (int64_t[]){0}, 1), EK_E_INVALID,
                   "subset: the data set is NULL");
    ck_assert_int_eq(atomic_load(&alive), 0);
    ek_dataset *bad = single(0, 5);
    ((numbers *)bad)->bad = 2;
    ek_dataset *subset = ek_subset(bad, (int64_t[]){0, 2}, 2);
    assert_refused(ek_dataset_get(subset, 1), EK_E_IO,
                   "subset: sample 1: single: sample 2: torn out");
    assert_refused(ek_dataset_get_batch(subset, (int64_t[]){0, 1}, 2, ek_cpu()), EK_E_IO,
                   "subset: sample 1: single: sample 2: torn out");
    ek_dataset_free(subset);
}

/* ---- one after another ---- */

TEST(concats)
{
    ek_dataset *all = ek_concat_dataset(single(0, 0), single(10, 2), single(20, 0), batched(30, 3),
                                        single(40, 0), single(50, 1), single(60, 0));
    assert_holds(all, 6, 10, 11, 30, 31, 32, 50);
    ck_assert_int_eq(ek_dataset_get(all, -1).as.integer, 50);
    ek_dataset_free(all);
    ek_dataset *none = ek_concat_dataset(single(0, 0), single(0, 0));
    assert_holds(none, 0, 0);
    ek_dataset_free(none);
    ek_dataset *twice = single(5, 2);
    ek_dataset *both = ek_concat_dataset(ek_dataset_keep(twice), twice);
    assert_holds(both, 4, 5, 6, 5, 6);
    ek_dataset_free(both);
}

/* A batch within one data set is asked of it at once, others sample by sample. */
TEST(concat_batches)
{
    ek_dataset *all = ek_concat_dataset(batched(10, 3), batched(20, 3), batched(30, 3));
    assert_batch(all, (int64_t[]){5, 3, 4, 5}, (int64_t[]){22, 20, 21, 22}, 4, ek_host(0));
    assert_batch(all, (int64_t[]){0, 2}, (int64_t[]){10, 12}, 2, ek_cpu());
    assert_batch(all, (int64_t[]){8, 6}, (int64_t[]){32, 30}, 2, ek_cpu());
    ck_assert_int_eq(atomic_load(&numbers_batches), 3);
    assert_batch(all, (int64_t[]){8, 0, 3, 2, 5}, (int64_t[]){32, 10, 20, 12, 22}, 5, ek_host(0));
    assert_batch(all, (int64_t[]){3, 2}, (int64_t[]){20, 12}, 2, ek_cpu());
    assert_batch(all, (int64_t[]){5, 6}, (int64_t[]){22, 30}, 2, ek_cpu());
    ck_assert_int_eq(atomic_load(&numbers_batches), 3);
    ek_dataset_free(all);
}

TEST(concat_errors)
{
    assert_refused(ek_concat_dataset_of(NULL, 1), EK_E_INVALID,
                   "concat_dataset: the data sets are NULL");
    assert_refused(ek_concat_dataset_of((ek_dataset *[]){NULL}, 0), EK_E_INVALID,
                   "concat_dataset: no data set");
    assert_refused(ek_concat_dataset(single(0, 1), NULL, single(0, 1)), EK_E_INVALID,
                   "concat_dataset: the data set is NULL");
    assert_refused(ek_concat_dataset(single(0, 1), single(0, -2), single(0, 1)), EK_E_INVALID,
                   "single: its length is -2");
    assert_refused(ek_concat_dataset(single(0, INT64_MAX), single(0, 1)), EK_E_INVALID,
                   "concat_dataset: the lengths add up to more than");
    ck_assert_int_eq(atomic_load(&alive), 0);
    ek_dataset *bad = single(0, 5);
    ((numbers *)bad)->bad = 2;
    ek_dataset *all = ek_concat_dataset(single(0, 3), bad);
    assert_refused(ek_dataset_get(all, 5), EK_E_IO,
                   "concat_dataset: sample 5: single: sample 2: torn out");
    assert_refused(ek_dataset_get_batch(all, (int64_t[]){0, 5}, 2, ek_cpu()), EK_E_IO,
                   "concat_dataset: sample 5: single: sample 2: torn out");
    assert_refused(ek_dataset_get_batch(all, (int64_t[]){4, 5}, 2, ek_cpu()), EK_E_IO,
                   "concat_dataset: sample 5: single: sample 2: torn out");
    ek_dataset_free(all);
}

/* Samples of different data sets that do not fit together are named as the whole counts them. */
TEST(concat_differences)
{
    ek_tensor *narrow = ek_empty(EK_SHAPE(2, 3)), *wide = ek_empty(EK_SHAPE(2, 4));
    ek_dataset *all = ek_concat_dataset(ek_tensor_dataset(narrow), ek_tensor_dataset(wide));
    assert_refused(ek_dataset_get_batch(all, (int64_t[]){1, 3}, 2, ek_cpu()), EK_E_SHAPE,
                   "concat_dataset: collate: sample 3 is f32[4] on cpu, sample 1 is f32[3]");
    ek_dataset_free(all);
}

/* ---- random splits ---- */

static const char file[] = "random_split.golden";

static ek_tensor *of_case(int number, const char *what)
{
    char name[40];
    snprintf(name, sizeof name, "%d/%s", number, what);
    return golden_has(file, name) ? golden(file, name) : NULL;
}

static void assert_part(ek_dataset *part, ek_tensor *wanted)
{
    assert_made(wanted);
    assert_holds_at(part, ek_tensor_data(wanted), ek_tensor_count(wanted), __LINE__);
    ek_dataset_free(part);
}

TEST(splits)
{
    int cases = 0;
    for (ek_tensor *count; (count = of_case(cases, "count")); cases++) {
        ek_tensor *sizes = of_case(cases, "sizes");
        int parts = (int)ek_tensor_count(sizes);
        ek_dataset *made[16], *dataset = single(0, (int64_t)element(count, 0));
        ek_generator *generator = ek_generator_new(40 + (uint64_t)cases);
        if (ek_tensor_dtype(sizes) == EK_I64)
            assert_ok(ek_random_split(dataset, ek_tensor_data(sizes), parts, generator, made));
        else
            assert_ok(
                ek_random_split_fractions(dataset, ek_tensor_data(sizes), parts, generator, made));
        for (int i = 0; i < parts; i++) {
            char name[16];
            snprintf(name, sizeof name, "%d", i);
            assert_part(made[i], of_case(cases, name));
        }
        ck_assert(element(of_case(cases, "next"), 0) == ek_random_u32(generator) % 1000);
        ek_generator_free(generator);
    }
    ck_assert_int_eq(cases, 11);
}

TEST(split_by_the_default_generator)
{
    ek_dataset *parts[2];
    ek_manual_seed(7);
    assert_ok(ek_random_split(single(0, 12), (int64_t[]){5, 7}, 2, NULL, parts));
    assert_part(parts[0], golden(file, "default/0"));
    assert_part(parts[1], golden(file, "default/1"));
}

/* PyTorch refuses these, whose sum is 1.0000000000000002 in doubles. */
TEST(fractions_rounded_up)
{
    const double fractions[] = {0.2, 0.4, 0.3, 0.1};
    const int64_t lengths[] = {8, 16, 12, 4};
    ek_dataset *parts[4];
    assert_ok(ek_random_split_fractions(single(0, 40), fractions, 4, NULL, parts));
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(ek_dataset_length(parts[i]), lengths[i]);
        ek_dataset_free(parts[i]);
    }
}

static ek_dataset *const unmade = (ek_dataset *)&alive;

static void assert_not_split(int rc, ek_dataset **parts, int count, int status, const char *part)
{
    ck_assert_int_eq(rc, status);
    assert_error(status, part);
    for (int i = 0; i < count; i++) {
        ck_assert_ptr_null(parts[i]);
        parts[i] = unmade;
    }
    ck_assert_int_eq(atomic_load(&alive), 0);
}

TEST(split_errors)
{
    ek_dataset *p[3] = {unmade, unmade, unmade};
    ek_generator *g = NULL;
    ek_manual_seed(1);
    uint32_t first = ek_random_u32(NULL);
    ek_manual_seed(1);
    assert_not_split(ek_random_split(NULL, (int64_t[]){1, 2}, 2, g, p), p, 2, EK_E_INVALID,
                     "random_split: the data set is NULL");
    assert_not_split(ek_random_split(single(0, 3), NULL, 2, g, p), p, 2, EK_E_INVALID,
                     "random_split: the lengths are NULL");
    assert_not_split(ek_random_split(single(0, 3), (int64_t[]){3}, 1, g, NULL), NULL, 0,
                     EK_E_INVALID, "random_split: the parts are NULL");
    assert_not_split(ek_random_split(single(0, 3), (int64_t[]){3}, 0, g, p), NULL, 0, EK_E_INVALID,
                     "random_split: 0 parts");
    assert_not_split(ek_random_split(single(0, 3), (int64_t[]){3}, -1, g, p), NULL, 0, EK_E_INVALID,
                     "random_split: -1 parts");
    assert_not_split(ek_random_split(single(0, 3), (int64_t[]){1, 1}, 2, g, p), p, 2, EK_E_INVALID,
                     "random_split: the lengths add up to 2; the data set has 3 samples");
    assert_not_split(ek_random_split(single(0, 3), (int64_t[]){4, -1}, 2, g, p), p, 2, EK_E_INVALID,
                     "random_split: length 1 is -1");
    assert_not_split(ek_random_split(single(0, 3), (int64_t[]){INT64_MAX, INT64_MAX, 5}, 3, g, p),
                     p, 3, EK_E_INVALID, "random_split: the lengths add up to");
    assert_not_split(ek_random_split(single(0, -1), (int64_t[]){0}, 1, g, p), p, 1, EK_E_INVALID,
                     "single: its length is -1");
    assert_not_split(ek_random_split_fractions(single(0, INT64_MAX), (double[]){1, 1, 1}, 3, g, p),
                     p, 3, EK_E_INVALID, "random_split: the fractions add up to 3 instead of 1");
    assert_not_split(ek_random_split_fractions(NULL, (double[]){1}, 1, g, p), p, 1, EK_E_INVALID,
                     "random_split: the data set is NULL");
    assert_not_split(ek_random_split_fractions(single(0, 3), NULL, 2, g, p), p, 2, EK_E_INVALID,
                     "random_split: the fractions are NULL");
    assert_not_split(ek_random_split_fractions(single(0, 3), (double[]){.5, .4}, 2, g, p), p, 2,
                     EK_E_INVALID, "random_split: the fractions add up to 0.9 instead of 1");
    assert_not_split(ek_random_split_fractions(single(0, 3), (double[]){.5, .6}, 2, g, p), p, 2,
                     EK_E_INVALID, "random_split: the fractions add up to 1.1 instead of 1");
    assert_not_split(ek_random_split_fractions(single(0, 3), (double[]){1.5, -.5}, 2, g, p), p, 2,
                     EK_E_INVALID, "random_split: fraction 0 is 1.5");
    assert_not_split(ek_random_split_fractions(single(0, 3), (double[]){1, 0.0 / 0.0}, 2, g, p), p,
                     2, EK_E_INVALID, "random_split: fraction 1 is");
    assert_not_split(ek_random_split_fractions(single(0, -1), (double[]){1}, 1, g, p), p, 1,
                     EK_E_INVALID, "single: its length is -1");
    ck_assert_uint_eq(ek_random_u32(NULL), first); /* nothing was drawn */
}

/* A set that shrinks after it was first asked: the second part fails, and the first is taken back.
 */
static int64_t shrinking_length(ek_dataset *dataset)
{
    return ((numbers *)dataset)->count--;
}

TEST(split_fails_midway)
{
    ek_dataset_type type = single_type;
    type.length = shrinking_length;
    ek_dataset *parts[4];
    const int64_t lengths[] = {1, 1, 1, 7};
    ek_dataset *dataset = make(&type, 0, 10);
    assert_not_split(ek_random_split(dataset, lengths, 4, NULL, parts), parts, 4, EK_E_INVALID,
                     "subset: index");
}

/* ---- threads ---- */

enum { ROUNDS = 50 };

static void *reads(void *user)
{
    ek_dataset *dataset = user;
    for (int64_t i = 0; i < ROUNDS; i++) {
        ek_scope scope = ek_scope_begin();
        const int64_t order[] = {i % 6, (i + 1) % 6};
        const ek_value batch = ek_dataset_get_batch(dataset, order, 2, ek_cpu());
        const int64_t *got = batch.kind == EK_VALUE_TENSOR ? ek_tensor_data(batch.as.tensor) : NULL;
        for (int k = 0; k < 2; k++)
            if (!got || got[k] != ek_dataset_get(dataset, order[k]).as.integer)
                return "wrong batch";
        ek_scope_end(&scope);
    }
    ek_dataset_free(dataset);
    return NULL;
}

TEST(threads_read_parts)
{
    ek_dataset *parts[2];
    assert_ok(ek_random_split(ek_concat_dataset(single(0, 5), batched(10, 5)), (int64_t[]){6, 4}, 2,
                              NULL, parts));
    ek_dataset_free(parts[1]);
    read_by_threads(parts[0], reads);
}

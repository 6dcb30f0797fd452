/* test_partition.c: the tutorial's partitioner, against Python. */
#include "dataset_setup.h"

static void assert_part(ek_dataset *part, const int64_t *expected, int64_t count)
{
    assert_made(part);
    for (int64_t i = 0; i < count; i++) {
        ek_value sample = ek_dataset_get(part, i);
        ck_assert_int_eq(sample.kind, EK_VALUE_INT);
        ck_assert_int_eq(sample.as.integer, expected[i]);
    }
}

/* ---- tests ---- */

/* Numbers of the tutorial. */
TEST(published_parts)
{
    static const int64_t ten[3][7] = {{2, 8, 3, 5, 6, 4, 9}, {0, 1}, {7}}, sizes[3] = {7, 2, 1},
                         of_29[3] = {20, 5, 2}, first[5] = {33712, 36159, 45528, 25849, 53734};
    const double sevenths[7] = {1 / 7., 1 / 7., 1 / 7., 1 / 7., 1 / 7., 1 / 7., 1 / 7.};
    for (int part = 0; part < 3; part++) {
        ek_dataset *dataset = ek_partition(part, single(0, 10));
        ck_assert_int_eq(ek_dataset_length(dataset), sizes[part]);
        assert_part(dataset, ten[part], sizes[part]);
        ek_dataset_free(dataset);
        dataset = ek_partition(part, single(0, 29));
        ck_assert_int_eq(ek_dataset_length(dataset), of_29[part]);
        ek_dataset_free(dataset);
    }
    for (int part = 0; part < 7; part++) {
        ek_dataset *dataset = ek_partition(part, single(0, 60000), sevenths, 7);
        ck_assert_int_eq(ek_dataset_length(dataset), 8571); /* 3 are dropped */
        assert_part(dataset, first, part == 0 ? 5 : 0);
        ek_dataset_free(dataset);
    }
    ck_assert_int_eq(atomic_load(&alive), 0);
}

TEST(random_parts)
{
    enum { COLUMNS = 3 };
    ek_tensor *cases = golden("samplers.golden", "partition/cases");
    const int64_t *c = ek_tensor_data(cases);
    const int64_t *expected = ek_tensor_data(golden("samplers.golden", "partition/indices"));
    const int64_t *ends = ek_tensor_data(golden("samplers.golden", "partition/ends"));
    const double *sizes = ek_tensor_data(golden("samplers.golden", "partition/more"));
    ck_assert_int_eq(ek_tensor_size(cases, 1), COLUMNS);
    for (int64_t row = 0; row < ek_tensor_size(cases, 0); row++, c += COLUMNS) {
        ek_dataset *all = single(0, c[0]);
        for (int part = 0; part < c[2]; part++) {
            ek_dataset *dataset =
                ek_partition(part, ek_dataset_keep(all), sizes, (int)c[2], .seed = c[1]);
            ck_assert_int_eq(ek_dataset_length(dataset), *ends);
            assert_part(dataset, expected, *ends);
            expected += *ends++;
            ek_dataset_free(dataset);
        }
        ek_dataset_free(all);
        sizes += c[2];
    }
}

/* All parts, and what is dropped, are the set. */
TEST(rounded_fractions)
{
    static const double tenths[10] = {.1, .1, .1, .1, .1, .1, .1, .1, .1, .1},
                        over[3] = {1 / 3., 1 / 3., 1 / 3. + 4e-16};
    for (int64_t length = 0; length < 200; length += 7) {
        int64_t ten = 0, three = 0;
        for (int part = 0; part < 10; part++) {
            ek_dataset *dataset = ek_partition(part, single(0, length), tenths, 10);
            ten += ek_dataset_length(dataset);
            ek_dataset_free(dataset);
        }
        for (int part = 0; part < 3; part++) {
            ek_dataset *dataset = ek_partition(part, single(0, length), over, 3);
            three += ek_dataset_length(dataset);
            ek_dataset_free(dataset);
        }
        ck_assert_int_eq(ten, length / 10 * 10);
        ck_assert(three <= length && three >= length - 2);
    }
}

TEST(wrong_arguments)
{
    const double sizes[] = {.5, .5, .1}, odd[] = {-.5, strtod("nan", NULL), 2};
    const struct {
        int part;
        const double *sizes;
        int count;
        const char *text;
    } wrong[] = {
        {-1, NULL, 0, "part -1; parts are 0 to 2"},
        {3, NULL, 0, "part 3"},
        {2, sizes, 2, "part 2; parts are 0 to 1"},
        {0, sizes, 3, "add up to 1.1"},
        {0, odd, 1, "fraction 0 is -0.5"},
        {0, odd + 1, 1, "fraction 0 is"},
        {0, odd + 2, 1, "fraction 0 is 2"},
        {0, sizes, 0, "0 sizes"},
        {0, sizes, -1, "-1 sizes"},
        {0, NULL, 2, "2 sizes at NULL"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_refused(ek_partition(wrong[i].part, single(0, 9), wrong[i].sizes, wrong[i].count),
                       EK_E_INVALID, wrong[i].text);
        ck_assert_int_eq(atomic_load(&alive), 0); /* it was taken over */
    }
    assert_refused(ek_partition(0, NULL), EK_E_INVALID, "NULL");
    ek_error(EK_E_USER, "earlier");
    assert_refused(ek_partition(0, NULL), EK_E_USER, "earlier");
    assert_refused(ek_partition(0, single(0, -1)), EK_E_INVALID, "");
}

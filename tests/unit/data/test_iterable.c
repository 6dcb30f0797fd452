/* test_iterable.c: data sets without a length: iterators, files, shuffling. */
#include "counter.h"
#include "files.h"
#include "loader_setup.h"

static void set_up(void)
{
    setup_devices();
    make_directory();
}

static void tear_down(void)
{
    empty_directory();
    all_is_given_back();
}

FIXTURE(set_up, tear_down)

/* ---- iterators ---- */

TEST(iterators)
{
    ek_dataset *sets[] = {counter_new(7), counter_new(8),
                          ek_tensor_dataset(tensor_of((double[]){0, 1, 2, 3, 4, 5, 6},
                                                      EK_SHAPE(7, 1), EK_I64, ek_cpu()),
                                            tensor_of((double[]){0, 1, 2, 3, 4, 5, 6}, EK_SHAPE(7),
                                                      EK_I64, ek_cpu()))};
    for (int s = 0; s < 3; s++) {
        ek_iterator *iterator = ek_iterate(sets[s], 0);
        ek_value sample;
        assert_made(iterator);
        ck_assert_int_eq(ek_iterator_next(iterator, &sample), 1);
        ck_assert_int_eq(number_at(sample, 0), 0);
        ck_assert_int_eq(ek_iterator_skip(iterator, 0), 0);
        ck_assert_int_eq(ek_iterator_skip(iterator, 4), 4);
        ck_assert_int_eq(ek_iterator_next(iterator, &sample), 1);
        ck_assert_int_eq(number_at(sample, 0), 5);
        int64_t left = s == 1 ? 2 : 1;
        ck_assert_int_eq(ek_iterator_skip(iterator, 9), left);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(ek_iterator_next(iterator, &sample), 0);
            ck_assert_int_eq(sample.kind, EK_VALUE_NONE);
        }
        ck_assert_int_eq(ek_iterator_skip(iterator, 1), 0);
        ck_assert_int_eq(ek_iterator_skip(iterator, -1), EK_E_INVALID);
        assert_error(EK_E_INVALID, "iterator_skip: -1 samples");
        ek_iterator_free(iterator);
    }
    ck_assert_int_eq(open_cursors, 0);
}

TEST(iterators_fail)
{
    ek_dataset *set = counter_new(3);
    ek_value sample;
    ((counter *)set)->bad = 1;
    ck_assert_int_eq(ek_dataset_length(set), EK_E_INVALID);
    assert_error(EK_E_INVALID, "counter has no length, and no samples by index");
    ck_assert_int_eq(ek_dataset_get(set, 0).kind, EK_VALUE_ERROR);
    assert_error(EK_E_INVALID, "counter has no length");
    ek_iterator *iterator = ek_iterate(set, 0);
    ck_assert_int_eq(ek_iterator_next(iterator, &sample), 1);
    ck_assert_int_eq(ek_iterator_next(iterator, &sample), EK_E_IO);
    assert_error(EK_E_IO, "counter: sample 1: line 1 is bad");
    ck_assert_int_eq(ek_iterator_next(iterator, &sample), 1);
    ck_assert_int_eq(number_at(sample, 0), 2);
    ek_iterator_free(iterator);
    ck_assert_ptr_null(ek_iterate(NULL, 0));
    assert_error(EK_E_INVALID, "iterate: the data set");
    static const ek_dataset_type bare = {.name = "bare",
                                         .size = sizeof(ek_dataset),
                                         .next = counter_next};
    ck_assert_ptr_null(ek_dataset_new(&bare));
    assert_error(EK_E_INVALID, "the type has no open");
}

/* ---- files ---- */

/* Lines of many lengths, among them empty ones and one that is longer than what is read at once. */
TEST(lines_of_text)
{
    enum { LONG = 200000 };
    static char text[LONG + 100];
    static const char *const ends[] = {"\n", "\r\n", ""};
    for (int e = 0; e < 3; e++) {
        int at = sprintf(text, "first\n\nthird, \r\n");
        memset(text + at, 'x', LONG);
        at += LONG;
        at += sprintf(text + at, "\nlast%s", ends[e]);
        const char *path =
            e == 1 ? write_gzip("text.gz", text, (size_t)at) : write_file("text", text, (size_t)at);
        ek_dataset *set = ek_text_lines(path);
        static const int lengths[] = {5, 0, 7, LONG, 4};
        for (int first = 0; first < 6; first++) {
            ek_iterator *iterator = ek_iterate(ek_dataset_keep(set), 0);
            ek_value line;
            ck_assert_int_eq(ek_iterator_skip(iterator, first), first < 5 ? first : 5);
            for (int i = first; i < 5; i++) {
                ck_assert_int_eq(ek_iterator_next(iterator, &line), 1);
                ck_assert_int_eq(ek_tensor_dtype(line.as.tensor), EK_U8);
                ck_assert_int_eq(ek_tensor_count(line.as.tensor), lengths[i]);
                if (i == 4)
                    ck_assert_mem_eq(ek_tensor_data(line.as.tensor), "last", 4);
            }
            ck_assert_int_eq(ek_iterator_next(iterator, &line), 0);
            ek_iterator_free(iterator);
        }
        ek_dataset_free(set);
    }
    write_file("text", "", 0);
    ek_iterator *iterator = ek_iterate(ek_text_lines(path_of("text")), 0);
    ek_value line;
    ck_assert_int_eq(ek_iterator_next(iterator, &line), 0);
    ek_iterator_free(iterator);
    write_file("text", "a\rb\r\r\n\r\nc\r", 10); /* "\r" alone ends no line */
    iterator = ek_iterate(ek_text_lines(path_of("text")), 0);
    static const char *const whole[] = {"a\rb\r", "", "c\r"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ek_iterator_next(iterator, &line), 1);
        ck_assert_int_eq(ek_tensor_count(line.as.tensor), strlen(whole[i]));
        ck_assert_mem_eq(ek_tensor_data(line.as.tensor), whole[i], strlen(whole[i]));
    }
    ck_assert_int_eq(ek_iterator_next(iterator, &line), 0);
    ek_iterator_free(iterator);
    /* As long as it may be, and longer by one: within what is read at once, and beyond it. */
    for (int e = 0; e < 4; e++) {
        const int length = e < 2 ? 9 : LONG - 1;
        memset(text, 'x', LONG);
        text[length] = e % 2 ? 'x' : '\n';
        iterator = ek_iterate(ek_text_lines(write_gzip("long.gz", text, (size_t)length + 1),
                                            .max_line = length),
                              0);
        ck_assert_int_eq(ek_iterator_next(iterator, &line), e % 2 ? EK_E_FORMAT : 1);
        if (e % 2)
            assert_error(EK_E_FORMAT, e < 2 ? "long.gz: a line of more than 9 bytes; .max_line"
                                            : "a line of more than 199999 bytes");
        ek_iterator_free(iterator);
    }
    ck_assert_ptr_null(ek_text_lines(path_of("text"), .max_line = -1));
    assert_error(EK_E_INVALID, "text_lines: max_line is -1");
    ck_assert_ptr_null(ek_text_lines(NULL));
    assert_error(EK_E_INVALID, "text_lines: the path");
    ck_assert_ptr_null(ek_iterate(ek_text_lines("/nowhere/at/all"), 0));
    assert_error(EK_E_IO, "text_lines: cannot open /nowhere/at/all");
}

/* The same windows as the mapped file's. */
TEST(token_streams)
{
    uint16_t tokens[100];
    for (int i = 0; i < 100; i++)
        tokens[i] = (uint16_t)(600 * i);
    for (int count = 8; count < 100; count += 7) {
        char path[100];
        strcpy(path, write_file("tokens", tokens, (size_t)count * 2));
        ek_dataset *mapped = ek_token_dataset(.path = path, .length = 7);
        for (int zipped = 0; zipped < 2; zipped++) {
            const char *name = zipped ? write_gzip("t.gz", tokens, (size_t)count * 2) : path;
            ek_iterator *iterator = ek_iterate(ek_token_stream(name, 7), 0);
            assert_made(iterator);
            for (int64_t i = ek_iterator_skip(iterator, 2); i < ek_dataset_length(mapped); i++) {
                ek_value sample, same = ek_dataset_get(mapped, i);
                ck_assert_int_eq(ek_iterator_next(iterator, &sample), 1);
                for (int k = 0; k < 2; k++)
                    assert_close(ek_value_at(sample, k).as.tensor, ek_value_at(same, k).as.tensor,
                                 0, 0);
            }
            ek_value sample;
            ck_assert_int_eq(ek_iterator_next(iterator, &sample), 0);
            ek_iterator_free(iterator);
        }
        ek_dataset_free(mapped);
    }
    ek_value sample;
    ek_iterator *iterator =
        ek_iterate(ek_token_stream(write_file("tokens", tokens, 33), 8, .type = "i16"), 0);
    ck_assert_int_eq(ek_iterator_next(iterator, &sample), 1);
    ck_assert_int_eq(ek_iterator_next(iterator, &sample), EK_E_FORMAT);
    assert_error(EK_E_FORMAT, "ends within a token of 2 bytes");
    ek_iterator_free(iterator);
    ck_assert_ptr_null(ek_token_stream(NULL, 3));
    assert_error(EK_E_INVALID, "token_stream: the path");
    ck_assert_ptr_null(ek_token_stream("x", 0));
    assert_error(EK_E_INVALID, "token_stream: length 0; lengths lie in [1, 576460752303423487]");
    ck_assert_ptr_null(ek_token_stream("x", INT64_MAX));
    assert_error(EK_E_INVALID, "token_stream: length 9223372036854775807; lengths lie in [1, ");
    ck_assert_ptr_null(ek_token_stream("x", 3, .type = "f32"));
    assert_error(EK_E_INVALID, "token_stream: the type \"f32\"");
}

/* ---- shuffling ---- */

/* Reads a pass of at most 64 samples; returns how many, and each once. */
static int64_t shuffled_pass(ek_dataset *set, int64_t epoch, int64_t *order)
{
    ek_iterator *iterator = ek_iterate(ek_dataset_keep(set), epoch);
    int64_t seen = 0, count = 0;
    ek_value sample;
    int rc;
    assert_made(iterator);
    while ((rc = ek_iterator_next(iterator, &sample)) > 0) {
        int64_t number = number_at(sample, 0);
        ck_assert_int_eq(seen >> number & 1, 0);
        seen |= INT64_C(1) << number;
        order[count++] = number;
    }
    assert_ok(rc);
    ek_iterator_free(iterator);
    return count;
}

TEST(shuffled_orders)
{
    int64_t a[64], b[64];
    for (int buffer = 1; buffer <= 60; buffer += 7) {
        ek_dataset *set = ek_shuffled(counter_new(50), buffer, .seed = 3);
        ck_assert_int_eq(shuffled_pass(set, 0, a), 50);
        ck_assert_int_eq(shuffled_pass(set, 0, b), 50);
        ck_assert_mem_eq(a, b, sizeof *a * 50);
        for (int i = 0; i < 50; i++)
            ck_assert_int_lt(a[i], i + buffer + 1); /* nothing comes before it is read */
        shuffled_pass(set, 1, b);
        ck_assert_int_eq(memcmp(a, b, sizeof *a * 50) == 0, buffer == 1);
        ek_dataset_free(set);
        set = ek_shuffled(counter_new(50), buffer, .seed = 4);
        shuffled_pass(set, 0, b);
        ck_assert_int_eq(memcmp(a, b, sizeof *a * 50) == 0, buffer == 1);
        ek_dataset_free(set);
    }
    ck_assert_ptr_null(ek_shuffled(counter_new(3), -1));
    assert_error(EK_E_INVALID, "shuffled: a buffer of -1 samples");
    ck_assert_ptr_null(ek_shuffled(NULL));
    assert_error(EK_E_INVALID, "shuffled: the data set");
}

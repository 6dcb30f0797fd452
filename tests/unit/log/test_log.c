/* test_log.c: logs: what is written, what a resumed run keeps, errors, ranks. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/world.h"
#include "log_reader.h"

static char runs[64];

static void remove_log(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
    log_free_files();
    ek_world.rank = 0;
}

static void make_runs(void)
{
    make_directory();
    snprintf(runs, sizeof runs, "%s/runs/a", directory);
}

FIXTURE(make_runs, remove_log)

static const char *log_text(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", runs, name);
    return (const char *)log_read(path).bytes;
}

/* Checks the file's lines without their wall times, which must be of today. */
static void assert_lines(const char *name, const char *wanted)
{
    const char *key = strstr(name, ".csv") ? "," : "\"wall_time\":", *at = log_text(name);
    char text[4096] = "", *end;
    while (*at) {
        const char *time = strstr(at, key);
        time = time ? time + strlen(key) : at;
        if (*time >= '0' && *time <= '9' && time < at + strcspn(at, "\n")) {
            ck_assert(strtod(time, &end) > 1.7e9);
            strncat(text, at, (size_t)(time - at));
            at = end;
        }
        const size_t rest = strcspn(at, "\n") + 1;
        strncat(text, at, rest);
        at += rest;
    }
    ck_assert_str_eq(text, wanted);
}

/* Returns event number `which` of the log's first file; the version has number 0. */
static log_bytes event_of(int which)
{
    log_bytes file = log_read(log_events_path(runs, 0)), data;
    size_t at = 0;
    for (int i = 0; i <= which; i++)
        ck_assert(log_record(&file, &at, &data));
    return data;
}

static float scalar_of(log_bytes event)
{
    const uint32_t bits = (uint32_t)LOG_AT(event, 5, 1, 2).number;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TEST(scalars_are_in_all_files)
{
    ek_run_log *log = ek_log_open(runs);
    assert_made(log);
    assert_ok(ek_log_scalar(log, "loss/train", 1, 0.1));
    assert_ok(ek_log_scalar(log, "a,\"b\" \xc3\xa9", INT64_MAX, NAN));
    assert_ok(ek_log_scalar(log, "low", -3, -INFINITY));
    assert_ok(ek_log_close(log));
    assert_lines("scalars.csv", "step,wall_time,tag,value\n"
                                "1,,loss/train,0.10000000000000001\n"
                                "9223372036854775807,,\"a,\"\"b\"\" \xc3\xa9\",nan\n"
                                "-3,,low,-inf\n");
    assert_lines(
        "log.jsonl",
        "{\"step\":1,\"wall_time\":,\"tag\":\"loss/train\",\"value\":0.10000000000000001}\n"
        "{\"step\":9223372036854775807,\"wall_time\":,\"tag\":\"a,\\\"b\\\" \xc3\xa9\","
        "\"value\":null}\n"
        "{\"step\":-3,\"wall_time\":,\"tag\":\"low\",\"value\":null}\n");
    ck_assert_mem_eq(LOG_AT(event_of(0), 3).data.bytes, "brain.Event:2", 13);
    ck_assert_uint_eq(LOG_AT(event_of(1), 2).number, 1);
    ck_assert_double_gt(log_double(LOG_AT(event_of(1), 1)), 1.7e9);
    ck_assert_mem_eq(LOG_AT(event_of(1), 5, 1, 1).data.bytes, "loss/train", 10);
    ck_assert(scalar_of(event_of(1)) == 0.1f);
    ck_assert_uint_eq(LOG_AT(event_of(2), 2).number, INT64_MAX);
    ck_assert(isnan(scalar_of(event_of(2))));
    ck_assert_int_eq((int64_t)LOG_AT(event_of(3), 2).number, -3);
    ck_assert(isinf(scalar_of(event_of(3))));
}

TEST(texts)
{
    ek_run_log *log = ek_log_open(runs);
    assert_ok(ek_log_text(log, "settings", 2, "| lr |\n|---|\n| \"0.1\" |"));
    assert_refused(ek_log_text(log, "settings", 2, "\xff"), EK_E_INVALID, "not UTF-8");
    assert_refused(ek_log_close(log), EK_E_INVALID, "not UTF-8");
    assert_lines("log.jsonl", "{\"step\":2,\"wall_time\":,\"tag\":\"settings\",\"text\":"
                              "\"| lr |\\n|---|\\n| \\\"0.1\\\" |\"}\n");
    assert_lines("scalars.csv", "step,wall_time,tag,value\n");
    const log_bytes value = LOG_AT(event_of(1), 5, 1).data;
    ck_assert_mem_eq(LOG_AT(value, 9, 1, 1).data.bytes, "text", 4);
    ck_assert_uint_eq(LOG_AT(value, 8, 1).number, 7);
    ck_assert_mem_eq(LOG_AT(value, 8, 8).data.bytes, "| lr |\n|---|\n| \"0.1\" |", 22);
}

/* Two grey pictures become one of three channels, with borders. */
TEST(pictures)
{
    ek_run_log *log = ek_log_open(runs);
    float values[2 * 3 * 4];
    for (int i = 0; i < 24; i++)
        values[i] = (float)i / 24;
    ek_tensor *pictures = ek_from_data(values, EK_SHAPE(2, 1, 3, 4));
    assert_ok(ek_log_image(log, "made/100%", 12, pictures));
    assert_ok(ek_log_close(log));
    assert_lines("log.jsonl", "{\"step\":12,\"wall_time\":,\"tag\":\"made/100%\",\"picture\":"
                              "\"pictures/made%2F100%25-000012.png\"}\n");
    const log_bytes image = LOG_AT(event_of(1), 5, 1, 4).data;
    ck_assert_uint_eq(LOG_AT(image, 1).number, 7);
    ck_assert_uint_eq(LOG_AT(image, 2).number, 14);
    ck_assert_uint_eq(LOG_AT(image, 3).number, 3);
    const log_bytes png = LOG_AT(image, 4).data;
    ek_tensor *read = ek_decode_image(png.bytes, png.nbytes, 0, "event");
    char path[128];
    snprintf(path, sizeof path, "%s/pictures/made%%2F100%%25-000012.png", runs);
    assert_close(ek_read_image(path, 0), read, 0, 0);
    assert_ok(ek_save_image(path, pictures));
    assert_close(ek_read_image(path, 0), read, 0, 0);
}

/* Counts the elements of each bucket anew. */
TEST_LOOP(histograms, 0, 3)
{
    static const ek_dtype dtypes[] = {EK_F32, EK_I64, EK_BF16};
    double values[200], min = INFINITY, max = -INFINITY, sum = 0;
    for (int i = 0; i < 200; i++) {
        values[i] = i % 7 == 0 ? 0 : (i - 90) * (_i == 1 ? 1 : 0.125);
        min = fmin(min, values[i]);
        max = fmax(max, values[i]);
        sum += values[i];
    }
    ek_run_log *log = ek_log_open(runs);
    ek_tensor *x = tensor_of(values, EK_SHAPE(2, 100), dtypes[_i], ek_cpu());
    assert_ok(ek_log_histogram(log, "weight", 5, x));
    assert_ok(ek_log_close(log));
    const log_bytes histogram = LOG_AT(event_of(1), 5, 1, 5).data;
    ck_assert_double_eq(log_double(LOG_AT(histogram, 1)), min);
    ck_assert_double_eq(log_double(LOG_AT(histogram, 2)), max);
    ck_assert_double_eq(log_double(LOG_AT(histogram, 3)), 200);
    ck_assert_double_eq(log_double(LOG_AT(histogram, 4)), sum);
    const log_bytes limits = LOG_AT(histogram, 6).data, counts = LOG_AT(histogram, 7).data;
    ck_assert_uint_eq(limits.nbytes, counts.nbytes);
    double low = -INFINITY, all = 0;
    for (size_t at = 0; at < limits.nbytes; at += 8) {
        double limit, count, wanted = 0;
        memcpy(&limit, limits.bytes + at, 8);
        memcpy(&count, counts.bytes + at, 8);
        for (int i = 0; i < 200; i++)
            wanted += values[i] >= low && values[i] < limit;
        ck_assert_double_eq(count, wanted);
        ck_assert(low == -INFINITY || count == 0 || limit - low < 0.11 * fabs(limit) + 1e-12 ||
                  limit - low < 0.11 * fabs(low) + 1e-12);
        low = limit;
        all += count;
    }
    ck_assert_double_eq(all, 200);
    ck_assert_ptr_nonnull(strstr(log_text("log.jsonl"), "\"histogram\":{\"count\":200,\"min\":"));
}

TEST(histograms_of_odd_tensors)
{
    const float values[] = {NAN, INFINITY, 3e38f, -INFINITY, -3e38f};
    ek_run_log *log = ek_log_open(runs);
    assert_ok(ek_log_histogram(log, "x", 1, ek_from_data(values, EK_SHAPE(5))));
    assert_ok(ek_log_histogram(log, "none", 1, ek_from_data(values, EK_SHAPE(0))));
    assert_ok(ek_log_close(log));
    const log_bytes histogram = LOG_AT(event_of(1), 5, 1, 5).data;
    ck_assert_double_eq(log_double(LOG_AT(histogram, 3)), 2);
    ck_assert_double_eq(log_double(LOG_AT(histogram, 2)), 3e38f);
    ck_assert_double_eq(log_double(LOG_AT(event_of(2), 5, 1, 5, 3)), 0);
}

/* ---- resuming ---- */

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", runs, name);
    FILE *file = fopen(path, "a");
    fputs(text, file);
    fclose(file);
}

TEST(a_resumed_run_removes_later_rows_and_a_row_that_was_cut_off)
{
    ek_run_log *log = ek_log_open(runs);
    for (int step = 1; step <= 5; step++)
        assert_ok(ek_log_scalar(log, step % 2 ? "odd" : "even", step, step));
    assert_ok(ek_log_scalar(log, "late", 3, 3));
    assert_ok(ek_log_close(log));
    put("scalars.csv", "6,17");
    put("log.jsonl", "{\"step\":6,\"wall");
    log = ek_log_open(runs, .resume_step = 3);
    assert_made(log);
    assert_ok(ek_log_scalar(log, "odd", 4, 44));
    assert_ok(ek_log_close(log));
    assert_lines("scalars.csv", "step,wall_time,tag,value\n1,,odd,1\n2,,even,2\n3,,odd,3\n"
                                "3,,late,3\n4,,odd,44\n");
    ck_assert_ptr_null(strstr(log_text("log.jsonl"), "\"step\":5"));
    ck_assert_ptr_nonnull(strstr(log_text("log.jsonl"), "\"value\":44}\n"));
    log_bytes file = log_read(log_events_path(runs, 1)), event;
    size_t at = 0;
    ck_assert(log_record(&file, &at, &event) && log_record(&file, &at, &event));
    ck_assert_uint_eq(LOG_AT(event, 2).number, 4);
    ck_assert_uint_eq(LOG_AT(event, 7, 1).number, 1);
}

TEST(without_a_step_rows_are_added)
{
    for (int step = 1; step <= 2; step++) {
        ek_run_log *log = ek_log_open(runs);
        assert_ok(ek_log_scalar(log, "x", 7, step));
        assert_ok(ek_log_close(log));
        put("scalars.csv", step == 1 ? "7," : "");
    }
    assert_lines("scalars.csv", "step,wall_time,tag,value\n7,,x,1\n7,,x,2\n");
    ek_run_log *log = ek_log_open(runs, .resume_step = -1);
    assert_ok(ek_log_close(log));
    assert_lines("scalars.csv", "step,wall_time,tag,value\n");
    assert_lines("log.jsonl", "");
}

/* ---- errors and ranks ---- */

TEST(tags_are_checked)
{
    static const char *const tags[] = {"", "a\nb", "\xff", "\x7f", NULL};
    char wide[202] = "";
    memset(wide, 'x', 201);
    ek_run_log *log = ek_log_open(runs);
    for (int i = 0; i < 4; i++)
        assert_refused(ek_log_scalar(log, tags[i], 1, 1), EK_E_INVALID, "1 to 200 bytes");
    assert_refused(ek_log_scalar(log, wide, 1, 1), EK_E_INVALID, "1 to 200 bytes");
    assert_refused(ek_log_scalar(log, NULL, 1, 1), EK_E_INVALID, "the tag is NULL");
    assert_ok(ek_log_scalar(log, wide + 1, 1, 1));
    assert_refused(ek_log_text(log, "x", 1, NULL), EK_E_INVALID, "the text is NULL");
    assert_refused(ek_log_image(log, "x", 1, NULL), EK_E_INVALID, "is NULL");
    assert_refused(ek_log_histogram(log, "x", 1, NULL), EK_E_INVALID, "is NULL");
    assert_refused(ek_log_close(log), EK_E_INVALID, "1 to 200 bytes");
}

TEST(directories_that_cannot_be_written)
{
    write_file("plain", "", 0);
    assert_refused(ek_log_open(path_of("plain/runs")), EK_E_IO, "cannot make");
    assert_refused(ek_log_open(path_of("plain")), EK_E_IO, "Not a directory");
    assert_refused(ek_log_open(""), EK_E_IO, "cannot make");
    assert_refused(ek_log_open(NULL), EK_E_INVALID, "the directory is NULL");
}

/* A limit in the middle of a record is a disk that is full; then there is room again. Check writes
 * files itself, so that nothing is asserted within the limit. */
TEST(what_was_written_in_part_is_removed)
{
    const struct rlimit limit = {100, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    ek_run_log *log = ek_log_open(runs);
    assert_ok(ek_log_scalar(log, "x", 1, 1));
    setrlimit(RLIMIT_FSIZE, &limit);
    int rc = ek_log_scalar(log, "x", 2, 2);
    setrlimit(RLIMIT_FSIZE, &none);
    ck_assert_int_eq(rc, EK_E_IO);
    assert_error(EK_E_IO, "log_scalar: cannot write");
    assert_ok(ek_log_scalar(log, "x", 3, 3));
    assert_refused(ek_log_close(log), EK_E_IO, "log_scalar: cannot write");
    ck_assert_ptr_null(strstr(log_text("log.jsonl"), "\"step\":2"));
    ck_assert_ptr_nonnull(strstr(log_text("log.jsonl"), "}\n{\"step\":3"));
    ck_assert_uint_eq(LOG_AT(event_of(2), 2).number, 3);
}

TEST(a_log_that_is_null_is_ignored)
{
    assert_ok(ek_log_scalar(NULL, "x", 1, 1));
    assert_ok(ek_log_text(NULL, "x", 1, "x"));
    assert_ok(ek_log_image(NULL, "x", 1, NULL));
    assert_ok(ek_log_histogram(NULL, "x", 1, NULL));
    assert_ok(ek_log_close(NULL));
    ek_error(EK_E_USER, "earlier");
    ck_assert_int_eq(ek_log_scalar(NULL, "x", 1, 1), EK_E_USER);
    ek_error_clear();
}

TEST(one_rank_writes)
{
    ek_world.rank = 1;
    ek_run_log *log = ek_log_open(runs);
    assert_made(log);
    assert_ok(ek_log_scalar(log, "x", 1, 1));
    assert_ok(ek_log_close(log));
    ck_assert_int_eq(files_in_directory(), 0);
    log = ek_log_open(runs, .rank = 1, .csv = false, .tensorboard = false);
    assert_ok(ek_log_scalar(log, "x", 1, 1));
    assert_ok(ek_log_close(log));
    assert_lines("log.jsonl", "{\"step\":1,\"wall_time\":,\"tag\":\"x\",\"value\":1}\n");
    ck_assert_int_eq(access(runs, F_OK), 0);
    log = ek_log_open(path_of("own"), .rank = -1);
    assert_ok(ek_log_close(log));
    ck_assert_int_eq(access(path_of("own/scalars.csv"), F_OK), 0);
}

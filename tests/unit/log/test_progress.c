/* test_progress.c: the line of progress, in files and on a terminal, by a clock that the test sets.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/world.h"
#include "unit.h"

WRAPS(clock_gettime)
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

static int64_t milliseconds; /* the time */

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    *time = (struct timespec){1000 + milliseconds / 1000, milliseconds % 1000 * 1000000};
    return 0;
}

static char *text; /* what was written */
static size_t nbytes;
static FILE *stream;
static int terminal = -1; /* its other side */

static void begin(void)
{
    stream = open_memstream(&text, &nbytes);
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C", 1);
}

static void end(void)
{
    fclose(stream);
    free(text);
    if (terminal >= 0)
        close(terminal);
    terminal = -1;
    ek_world.rank = 0;
}

FIXTURE(begin, end)

/* Takes steps of as many milliseconds. */
static void step(ek_progress *progress, int count, int each)
{
    for (int i = 0; i < count; i++) {
        milliseconds += each;
        ek_progress_step(progress, 1, "loss %.1f", (double)milliseconds / 1000);
    }
}

/* ---- files ---- */

TEST(a_file_gets_the_first_line_and_the_last)
{
    milliseconds = 0;
    ek_progress *progress =
        ek_progress_begin(4, .name = "train", .unit = "samples", .per_step = 64, .stream = stream);
    step(progress, 4, 1000);
    ek_progress_end(progress);
    fflush(stream);
    ck_assert_str_eq(text, "train     step 1 of 4, 64 samples/s, 0:03 left, loss 1.0\n"
                           "train     step 4 of 4, 64 samples/s, in 0:04, loss 4.0\n");
}

TEST(a_file_gets_a_line_every_ten_seconds)
{
    milliseconds = 0;
    ek_progress *progress = ek_progress_begin(10000, .stream = stream, .done = 5000);
    step(progress, 23, 1000);
    ek_progress_print(progress, "Test: %d", 7);
    ek_progress_end(progress);
    fflush(stream);
    ck_assert_str_eq(text, "step 5001 of 10000, 1.00 steps/s, 1:23:19 left, loss 1.0\n"
                           "step 5011 of 10000, 1.00 steps/s, 1:23:09 left, loss 11.0\n"
                           "step 5021 of 10000, 1.00 steps/s, 1:22:59 left, loss 21.0\n"
                           "Test: 7\n"
                           "step 5023 of 10000, 1.00 steps/s, 1:22:57 left, loss 23.0\n");
}

/* An hour of slow steps counts little when steps have been fast for two minutes. */
TEST(the_rate_follows_the_last_half_minute)
{
    milliseconds = 0;
    ek_progress *progress = ek_progress_begin(.stream = stream);
    step(progress, 360, 10000);
    fflush(stream);
    size_t before = nbytes;
    step(progress, 1190, 100);
    ek_progress_step(progress, 10, NULL); /* the text stays */
    step(progress, 1, 1000);
    fflush(stream);
    const char *last = strstr(text + before, "step 1561, ");
    ck_assert_msg(last, "%s", text + before);
    ck_assert_double_eq_tol(strtod(last + strlen("step 1561, "), NULL), 10, 1);
    ck_assert_ptr_nonnull(strstr(last, ", in 1:02:00, loss 3720.0\n"));
    ek_progress_end(progress);
    milliseconds = 0; /* Check measures the test by this clock */
}

TEST(what_shows_nothing)
{
    ek_progress *progress = ek_progress_begin(4, .stream = NULL);
    step(progress, 4, 1000);
    ek_progress_print(progress, "line %d", 1);
    ek_progress_end(progress);
    ek_progress_end(ek_progress_begin(4, .stream = stream)); /* no step */
    ek_world.rank = 1;
    progress = ek_progress_begin(4, .stream = stream);
    step(progress, 4, 1000);
    ek_progress_print(progress, "line %d", 1);
    ek_progress_end(progress);
    ek_progress_step(NULL, 1, NULL);
    ek_progress_print(NULL, "line %d", 1);
    ek_progress_end(NULL);
    fflush(stream);
    ck_assert_uint_eq(nbytes, 0);
}

TEST(a_failed_step_does_not_count)
{
    milliseconds = 0;
    ek_progress *progress = ek_progress_begin(4, .stream = stream);
    step(progress, 2, 1000);
    ek_error(EK_E_USER, "failed");
    step(progress, 1, 1000);
    ek_progress_print(progress, "line %d", 1);
    ek_progress_end(progress);
    ek_error_clear();
    fflush(stream);
    ck_assert_str_eq(text, "step 1 of 4, 1.00 steps/s, 0:03 left, loss 1.0\n"
                           "step 2 of 4, 1.00 steps/s, 0:02 left, loss 2.0\n");
}

/* ---- terminals ---- */

/* Makes `stream` a terminal with so many columns. */
static void make_terminal(unsigned short columns)
{
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    fclose(stream);
    terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    ck_assert_int_ge(terminal, 0);
    ck_assert(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    stream = fopen(ptsname(terminal), "r+");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_eq(ioctl(terminal, TIOCSWINSZ, &size), 0);
}

/* Returns what the terminal has been sent since the last call. */
static const char *sent(void)
{
    static char bytes[1 << 16];
    size_t used = 0;
    for (ssize_t got; (got = read(terminal, bytes + used, sizeof bytes - 1 - used)) > 0;)
        used += (size_t)got;
    bytes[used] = '\0';
    return bytes;
}

TEST(a_terminal_gets_a_bar)
{
    make_terminal(120);
    milliseconds = 0;
    ek_progress *progress = ek_progress_begin(10, .name = "train", .stream = stream);
    step(progress, 1, 1000);
    ck_assert_str_eq(sent(), "\rtrain [###...........................] 1/10, 1.00 "
                             "steps/s, 0:09 left, loss 1.0\033[K");
    ek_progress_print(progress, "above\n");
    ck_assert_str_eq(sent(), "\rabove \033[K\r\n\rtrain [###...........................] 1/"
                             "10, 1.00 steps/s, 0:09 left, loss 1.0\033[K");
    step(progress, 9, 1000);
    ek_progress_end(progress);
    ck_assert_str_eq(strrchr(strstr(sent(), "10/10"), ','), ", loss 10.0\033[K\r\n");
}

TEST(a_bar_is_drawn_ten_times_a_second)
{
    make_terminal(100);
    milliseconds = 0;
    ek_progress *progress = ek_progress_begin(1000, .stream = stream);
    step(progress, 999, 1);
    int drawn = 0;
    for (const char *at = sent(); (at = strchr(at, '\r')); at++)
        drawn++;
    ck_assert_int_eq(drawn, 10); /* after 1, 101, ..., 901 milliseconds */
    ek_progress_end(progress);
    ck_assert_ptr_nonnull(strstr(sent(), "999/1000"));
}

/* In columns: characters of several bytes count once. */
static int width_of(const char *line)
{
    int width = 0;
    for (; *line && *line != '\033'; line++)
        width += (*line & 0xc0) != 0x80;
    return width;
}

TEST_LOOP(lines_fit_the_terminal, 1, 120)
{
    make_terminal((unsigned short)_i);
    milliseconds = 0;
    setenv("LC_ALL", "de_DE.UTF-8", 1);
    ek_progress *progress =
        ek_progress_begin(10, .name = "\xc3\xa4\xc3\xb6\xc3\xbc", .stream = stream);
    step(progress, 5, 1000);
    const char *last = strrchr(sent(), '\r') + 1;
    ck_assert_int_le(width_of(last), _i - 1);
    ck_assert(_i < 70 || width_of(last) > 60);
    ck_assert(_i < 70 || strstr(last, "\xe2\x96\x88"));
    ek_progress_end(progress);
}

TEST(dumb_terminals_get_lines)
{
    make_terminal(100);
    setenv("TERM", "dumb", 1);
    milliseconds = 0;
    ek_progress *progress = ek_progress_begin(2, .stream = stream);
    step(progress, 2, 1000);
    ek_progress_end(progress);
    ck_assert_str_eq(sent(), "step 1 of 2, 1.00 steps/s, 0:01 left, loss 1.0\r\n"
                             "step 2 of 2, 1.00 steps/s, in 0:02, loss 2.0\r\n");
}

/* The report's page: well-formed, whole in itself, small, and honest where nothing is known. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/device.h"
#include "core/trace.h"
#include "report/html.h"
#include "unit.h"

static char directory[64], path[128];

static void setup(void)
{
    assert_ok(test_devices_configure("2x512M"));
    strcpy(directory, "/tmp/evenkeel-html-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/page.html", directory);
}

static void teardown(void)
{
    unlink(path);
    rmdir(directory);
}

/* ---- reading a page ---- */

/* The caller frees. */
static char *read_file(const char *from)
{
    FILE *stream = fopen(from, "rb");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_eq(fseek(stream, 0, SEEK_END), 0);
    long nbytes = ftell(stream);
    rewind(stream);
    char *text = malloc((size_t)nbytes + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(fread(text, 1, (size_t)nbytes, stream), (size_t)nbytes);
    text[nbytes] = '\0';
    fclose(stream);
    return text;
}

/* Elements that have no end. */
static bool is_void(const char *name)
{
    return strcmp(name, "meta") == 0 || strcmp(name, "!doctype") == 0;
}

/* Past the tag that begins at `text`; its name, and where its attributes' quotes are closed. */
static const char *read_tag(const char *text, char name[32], bool *empty)
{
    const char *c = text + 1;
    size_t length = 0;
    bool quoted = false;
    while (*c && *c != ' ' && *c != '>' && (*c != '/' || c == text + 1)) {
        ck_assert_uint_lt(length, 31);
        name[length++] = *c++;
    }
    name[length] = '\0';
    for (; *c && (quoted || *c != '>'); c++) {
        if (*c == '"')
            quoted = !quoted;
        if (*c == '<')
            ck_abort_msg("a tag within the tag %s", name);
    }
    if (*c != '>')
        ck_abort_msg("the tag %s has no end: %.60s", name, text);
    *empty = c[-1] == '/';
    return c + 1;
}

/* Every element ends, in the order in which they began; every & begins an entity. */
static void assert_well_formed(const char *page)
{
    enum { DEEPEST = 32 };
    char names[DEEPEST][32], name[32];
    int depth = 0;
    bool empty;
    for (const char *c = page; *c;) {
        if (*c == '&' && strncmp(c, "&lt;", 4) != 0 && strncmp(c, "&gt;", 4) != 0 &&
            strncmp(c, "&amp;", 5) != 0 && strncmp(c, "&quot;", 6) != 0 &&
            strncmp(c, "&#39;", 5) != 0 && strncmp(c, "&nbsp;", 6) != 0)
            ck_abort_msg("no entity: %.40s", c);
        if (*c == '>' && !(depth > 0 && strcmp(names[depth - 1], "style") == 0))
            ck_abort_msg("a stray >: %.40s", c - 20);
        if (*c != '<') {
            c++;
            continue;
        }
        const char *begin = c;
        c = read_tag(c, name, &empty);
        if (is_void(name) || empty)
            continue;
        if (name[0] != '/') {
            ck_assert_int_lt(depth, DEEPEST);
            strcpy(names[depth++], name);
        } else if (depth == 0 || strcmp(names[--depth], name + 1) != 0) {
            ck_abort_msg("<%s> does not end <%s>: %.60s", name, names[depth], begin);
        }
    }
    ck_assert_int_eq(depth, 0);
}

static void assert_lacks(const char *page, const char *part)
{
    const char *found = strstr(page, part);
    if (found)
        ck_abort_msg("\"%s\" in: %.80s", part, found);
}

static void assert_has(const char *page, const char *part)
{
    if (!strstr(page, part))
        ck_abort_msg("no \"%s\"", part);
}

/* Nothing that a browser would fetch or run; no number that isn't one. */
static void assert_whole(const char *page)
{
    assert_well_formed(page);
    static const char *const parts[] = {"http",   "src=", "href=", "@import", "url(",
                                        "script", "nan%", "nan,",  ",nan",    "inf%",
                                        "inf,",   ",inf", ">nan",  ">-nan",   ">inf"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_lacks(page, parts[i]);
}

/* Written, read and checked; the caller frees. */
static char *page_of(ek_report *const *reports, int count, const ek_report_page *page)
{
    assert_ok(ek_report_html_with(path, reports, count, page));
    char *text = read_file(path);
    assert_whole(text);
    return text;
}

/* ---- reports ---- */

/* Two devices with something to show: the first fuller, by activations. */
static ek_report *trained(const char *name, int steps)
{
    ek_report *report =
        ek_report_start(.name = name, .device_ids = EK_DEVICES(ek_host(0), ek_host(1)));
    assert_made(report);
    for (int s = 0; s < steps; s++) {
        void *held[2];
        for (int d = 0; d < 2; d++) {
            ek_dev *dev = ek_dev_get(ek_host(d));
            ek_span outer, inner;
            ek_span_begin(&outer, EK_SPAN_COMPUTE, "forward of", "conv2d", dev);
            assert_ok(
                ek_dev_alloc(dev, d == 0 ? 3 << 20 : 1 << 20, EK_MEMORY_ACTIVATION, &held[d]));
            ek_span_begin(&inner, EK_SPAN_COMMUNICATE, "reduce", NULL, dev);
            ek_span_end(&inner);
            ek_span_end(&outer);
        }
        for (int d = 0; d < 2; d++)
            ek_dev_free(ek_dev_get(ek_host(d)), held[d], d == 0 ? 3 << 20 : 1 << 20,
                        EK_MEMORY_ACTIVATION);
        assert_ok(ek_report_step(report));
    }
    assert_ok(ek_report_stop(report));
    return report;
}

/* ---- tests ---- */

START_TEST(says_what_is_full)
{
    ek_report *report = trained("balanced", 3);
    ek_report_set_largest_batch(report, 4096);
    char *page = page_of(&report, 1, NULL);
    assert_has(page, "<title>Memory and time of training</title>");
    assert_has(page, "<b>host:0</b> is the fullest: <b>3.00\302\240MiB</b>");
    assert_has(page, "of its 512\302\240MiB");
    assert_has(page, "is <b>activation</b>");
    assert_has(page, "during <b>forward of conv2d</b>");
    assert_has(page, "<dd>1.50</dd>");
    assert_has(page, "<dd>4096</dd>");
    assert_has(page, "<h2>Memory over time</h2>");
    assert_has(page, "<h2>The last step</h2>");
    assert_has(page, "class=\"k0 d0\"");
    assert_has(page, "class=\"k1 d1\"");
    free(page);
    ek_report_free(report);
}
END_TEST

/* Equal shares on unequal devices: the smaller one will be the first to refuse. */
START_TEST(says_who_is_nearest_to_its_capacity)
{
    assert_ok(test_devices_configure("512M,4M"));
    ek_report *report = trained("classic", 1);
    char *page = page_of(&report, 1, NULL);
    assert_has(page, "<b>host:0</b> is the fullest");
    assert_has(page, "<b>host:1</b> is nearest to its capacity: 25\302\240% of 4.00\302\240MiB.");
    free(page);
    ek_report_free(report);
}
END_TEST

START_TEST(reports_stand_side_by_side)
{
    ek_report *reports[] = {trained("classic way", 2), trained("sharded way", 2)};
    ek_report_set_largest_batch(reports[1], 77);
    char *page = page_of(reports, 2, NULL);
    assert_has(page, "<h2>classic way</h2>");
    assert_has(page, "<h2>sharded way</h2>");
    assert_has(page, "<h2>Imbalance</h2>");
    assert_has(page, "<h2>Largest batch</h2>");
    assert_has(page, "<span>not known</span>");
    assert_has(page, "one vertical scale");
    free(page);
    for (int r = 0; r < 2; r++)
        ek_report_free(reports[r]);
}
END_TEST

static void write_more(FILE *page, void *user)
{
    fprintf(page, "<p>%s%.1f</p>\n", (const char *)user, 2.5);
}

START_TEST(texts_are_escaped)
{
    ek_report *report = trained("<b>&\"'\x01", 1);
    char more[] = "more:";
    const ek_report_page options = {.title = "<script>",
                                    .subtitle = "a < b & c",
                                    .more = write_more,
                                    .user = more};
    assert_ok(ek_report_html_with(path, &report, 1, &options));
    char *page = read_file(path);
    assert_well_formed(page);
    assert_lacks(page, "<script");
    assert_lacks(page, "\x01");
    assert_has(page, "<h1>&lt;script&gt;</h1>");
    assert_has(page, "a &lt; b &amp; c");
    assert_has(page, "<h2>&lt;b&gt;&amp;&quot;&#39; </h2>");
    assert_has(page, "<p>more:2.5</p>");
    ck_assert(strstr(page, "<h2>The numbers</h2>") < strstr(page, "more:2.5"));
    free(page);
    ek_report_free(report);
}
END_TEST

START_TEST(nothing_is_said_in_words)
{
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(1)));
    assert_made(report);
    assert_ok(ek_report_stop(report));
    char *page = page_of(&report, 1, NULL);
    assert_has(page, "held no memory");
    assert_has(page, "No step has been finished");
    assert_has(page, "Nothing is known of what a step did");
    assert_lacks(page, "<svg");
    free(page);
    ek_report_free(report);
    page = page_of(NULL, 0, NULL);
    assert_has(page, "No way of training was reported.");
    free(page);
}
END_TEST

START_TEST(steps_without_spans)
{
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0)));
    assert_made(report);
    assert_ok(ek_report_step(report));
    assert_ok(ek_report_stop(report));
    ek_report *reports[] = {report, trained("other", 1)};
    char *page = page_of(reports, 2, NULL);
    assert_has(page, "Nothing is known of what its last step did");
    free(page);
    ek_report_free(reports[0]);
    ek_report_free(reports[1]);
}
END_TEST

/* Many spans of many sizes, nested, and memory that never stands still. */
START_TEST(pages_stay_small)
{
    enum { SPANS = 30000 };
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0), ek_host(1)));
    assert_made(report);
    for (int i = 0; i < SPANS; i++) {
        ek_dev *dev = ek_dev_get(ek_host(i / 7 % 2));
        ek_span spans[9];
        void *held;
        int depth = 1 + i % 9;
        for (int s = 0; s < depth; s++)
            ek_span_begin(&spans[s], (ek_span_kind)(i % EK_SPAN_KINDS), "backward of",
                          i % 2 ? "conv2d" : "cross_entropy_loss", dev);
        size_t nbytes = (size_t)1 << (10 + i % 10);
        assert_ok(ek_dev_alloc(dev, nbytes, EK_MEMORY_WORKSPACE, &held));
        ek_dev_free(dev, held, nbytes, EK_MEMORY_WORKSPACE);
        for (int s = depth - 1; s >= 0; s--)
            ek_span_end(&spans[s]);
    }
    assert_ok(ek_report_step(report));
    assert_ok(ek_report_stop(report));
    char *page = page_of(&report, 1, NULL);
    ck_assert_uint_lt(strlen(page), 1000000);
    assert_has(page, "are drawn with their neighbours");
    assert_has(page, "nested too deeply");
    free(page);
    ek_report_free(report);
}
END_TEST

/* No span is lost, boxes of a row lie one behind the other, in their lanes' order. */
START_TEST(layout_keeps_every_span)
{
    enum { SPANS = 20000 };
    ek_report_span *spans = calloc(SPANS, sizeof *spans);
    ck_assert_ptr_nonnull(spans);
    for (int i = 0; i < SPANS; i++) {
        double begin = (double)(i / 4) / (SPANS / 4);
        spans[i] = (ek_report_span){.device = i % 2,
                                    .thread = i % 4,
                                    .kind = (ek_span_kind)(i % 3),
                                    .begin = begin,
                                    .end = begin + 1e-5 * (i % 16)};
        strcpy(spans[i].label, "relu");
    }
    spans[7].begin = NAN;
    spans[8].end = -1;
    ek_html_run run = {.spans = spans, .span_count = SPANS, .span_seconds = 1};
    ek_html_layout layout;
    assert_ok(ek_html_lay_out(&run, 1, &layout));
    ck_assert_int_eq(layout.lane_count, 4);
    ck_assert(!layout.lanes[0].alone);
    ck_assert_int_le(layout.box_count, 3000);
    int count = 0, merged = 0;
    for (int b = 0; b < layout.box_count; b++) {
        const ek_html_box *box = &layout.boxes[b];
        count += box->spans;
        merged += box->spans > 1 ? box->spans : 0;
        ck_assert(box->end >= box->begin);
        if (b > 0 && box->lane == box[-1].lane)
            ck_assert(box->begin >= box[-1].begin);
        else if (b > 0)
            ck_assert_int_eq(box->lane, box[-1].lane + 1);
    }
    ck_assert_int_eq(count, SPANS - 2);
    ck_assert_int_eq(merged, layout.merged);
    ek_html_layout_free(&layout);
    free(spans);
}
END_TEST

START_TEST(sums_are_less_what_lies_within)
{
    ek_report_span spans[] = {{0, 0, 0, EK_SPAN_COMPUTE, 0, 10, "outer"},
                              {0, 0, 1, EK_SPAN_COMMUNICATE, 1, 4, "inner"},
                              {0, 0, 1, EK_SPAN_COMMUNICATE, 5, 6, "inner"},
                              {1, 1, 0, EK_SPAN_COMPUTE, 2, 3, "outer"}};
    ek_html_run run = {.spans = spans, .span_count = 4, .span_seconds = 10};
    ek_html_sum *sums;
    int count;
    assert_ok(ek_html_sums(&run, &sums, &count));
    ck_assert_int_eq(count, 2);
    ck_assert_str_eq(sums[0].label, "outer");
    ck_assert_int_eq(sums[0].count, 2);
    ck_assert(fabs(sums[0].seconds - 7) <= 1e-12);
    ck_assert_int_eq(sums[1].count, 2);
    ck_assert(fabs(sums[1].seconds - 4) <= 1e-12);
    free(sums);
}
END_TEST

/* What consists of others is a frame; what has small ones in it is not. */
START_TEST(operations_that_consist_of_others_are_frames)
{
    ek_report_span spans[] = {{0, 0, 0, EK_SPAN_COMPUTE, 0, 10, "backward"},
                              {0, 0, 1, EK_SPAN_WAIT, 1, 9, "waiting for gradients"},
                              {0, 0, 0, EK_SPAN_COMPUTE, 20, 30, "forward"},
                              {0, 0, 1, EK_SPAN_WAIT, 21, 23, "waiting"}};
    ek_html_run run = {.spans = spans, .span_count = 4, .span_seconds = 30};
    ek_html_layout layout;
    assert_ok(ek_html_lay_out(&run, 30, &layout));
    ck_assert_int_eq(layout.box_count, 4);
    for (int b = 0; b < 4; b++)
        ck_assert_int_eq(layout.boxes[b].frame, strcmp(layout.boxes[b].label, "backward") == 0);
    ek_html_layout_free(&layout);
}
END_TEST

/* What is no number reaches no page. */
START_TEST(charts_leave_out_what_is_no_number)
{
    const double values[] = {NAN, 1, INFINITY, 2, -INFINITY}, one[] = {3}, none[] = {NAN};
    const ek_page_series series[] = {{"a", values, 5, NULL}, {"b", one, 1, NULL}};
    const ek_page_series nothing = {"c", none, 1, NULL}, empty = {"d", NULL, 0, NULL};
    const ek_page_bar bars[] = {{"a", "x", NAN}, {"b", "y", INFINITY}, {"c", "z", -1}};
    const ek_page_part parts[] = {{"p", "c0", "1", NAN}, {"q", "c1", "2", INFINITY}};
    FILE *stream = fopen(path, "w");
    ck_assert_ptr_nonnull(stream);
    ek_page_begin(stream, "t");
    ek_page_lines(stream, "l", "step", series, 2);
    ek_page_lines(stream, "m", "step", &nothing, 1);
    ek_page_lines(stream, "n", "step", &empty, 1);
    ek_page_bars(stream, "b", NULL, bars, 3);
    ek_page_parts(stream, NAN, parts, 2);
    ek_page_end(stream);
    ck_assert_int_eq(fclose(stream), 0);
    char *page = read_file(path);
    assert_whole(page);
    free(page);
}
END_TEST

START_TEST(numbers_are_for_people)
{
    char text[32];
    const struct {
        double value;
        const char *bytes, *seconds;
    } cases[] = {{NAN, "0\302\240B", "0\302\240s"},
                 {-1, "0\302\240B", "0\302\240s"},
                 {0, "0\302\240B", "0\302\240s"},
                 {0.0125, "0\302\240B", "12.5\302\240ms"},
                 {0.9996, "1\302\240B", "1.00\302\240s"},
                 {1023, "1023\302\240B", "17.1\302\240min"},
                 {1023.9 * 1024 * 1024, "1.00\302\240GiB", "298232\302\240h"},
                 {312.4 * 1048576, "312\302\240MiB", "90993\302\240h"},
                 {1e300, NULL, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!cases[i].bytes) {
            ck_assert_uint_lt(strlen(ek_page_bytes(cases[i].value, text)), 32);
            ck_assert_uint_lt(strlen(ek_page_seconds(cases[i].value, text)), 32);
            continue;
        }
        ck_assert_str_eq(ek_page_bytes(cases[i].value, text), cases[i].bytes);
        ck_assert_str_eq(ek_page_seconds(cases[i].value, text), cases[i].seconds);
    }
}
END_TEST

/* Where the machine has a locale with decimal commas: they stay out of the page, and in force
 * behind it. */
START_TEST(decimal_commas_stay_out)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    char before[16], after[16];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]))
            break;
    snprintf(before, sizeof before, "%.1f", 2.5);
    ek_report *report = trained("balanced", 2);
    char more[] = "more:";
    char *page = page_of(&report, 1, &(const ek_report_page){.more = write_more, .user = more});
    assert_has(page, "<p>more:2.5</p>");
    assert_has(page, "<dd>1.50</dd>");
    snprintf(after, sizeof after, "%.1f", 2.5);
    ck_assert_str_eq(before, after);
    free(page);
    ek_report_free(report);
}
END_TEST

START_TEST(errors_leave_the_old_file)
{
    ek_report *report = trained("balanced", 1), *missing[] = {report, NULL};
    FILE *old = fopen(path, "w");
    ck_assert_ptr_nonnull(old);
    fputs("old", old);
    ck_assert_int_eq(fclose(old), 0);

    ck_assert_int_eq(ek_report_html(path, missing, 2), EK_E_INVALID);
    assert_error(EK_E_INVALID, "report 1 of 2 is NULL");
    ck_assert_int_eq(ek_report_html(path, NULL, 1), EK_E_INVALID);
    assert_error(EK_E_INVALID, "1 reports, but no list of them");
    ck_assert_int_eq(ek_report_html(path, &report, -1), EK_E_INVALID);
    assert_error(EK_E_INVALID, "-1 reports");
    ck_assert_int_eq(ek_report_html(NULL, &report, 1), EK_E_INVALID);
    assert_error(EK_E_INVALID, "there is no path");
    ck_assert_int_eq(ek_report_html("", &report, 1), EK_E_INVALID);
    assert_error(EK_E_INVALID, "there is no path");
    char *text = read_file(path);
    ck_assert_str_eq(text, "old");
    free(text);

    ck_assert_int_eq(ek_report_html(directory, &report, 1), EK_E_IO);
    assert_error(EK_E_IO, directory);
    ck_assert_int_eq(ek_report_html("/nowhere/at/all/page.html", &report, 1), EK_E_IO);
    assert_error(EK_E_IO, "/nowhere/at/all/page.html");
    ck_assert_int_eq(ek_report_html("/dev/full", &report, 1), EK_E_IO);
    assert_error(EK_E_IO, "/dev/full");
    ek_report_free(report);
}
END_TEST

Suite *suite(void)
{
    Suite *suite = suite_create("html");
    TCase *tests = tcase_create("html");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, says_what_is_full);
    tcase_add_test(tests, says_who_is_nearest_to_its_capacity);
    tcase_add_test(tests, reports_stand_side_by_side);
    tcase_add_test(tests, texts_are_escaped);
    tcase_add_test(tests, nothing_is_said_in_words);
    tcase_add_test(tests, steps_without_spans);
    tcase_add_test(tests, pages_stay_small);
    tcase_add_test(tests, layout_keeps_every_span);
    tcase_add_test(tests, sums_are_less_what_lies_within);
    tcase_add_test(tests, operations_that_consist_of_others_are_frames);
    tcase_add_test(tests, charts_leave_out_what_is_no_number);
    tcase_add_test(tests, numbers_are_for_people);
    tcase_add_test(tests, decimal_commas_stay_out);
    tcase_add_test(tests, errors_leave_the_old_file);
    suite_add_tcase(suite, tests);
    return suite;
}

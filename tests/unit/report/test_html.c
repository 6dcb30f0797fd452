/* The report's page as it is written: well-formed, complete without other files, with every number
 * of the JSON; rewritten while a run goes on; and what its script draws. */
#include <locale.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/device.h"
#include "core/trace.h"
#include "json_tree.h"
#include "report/report.h"

static char directory[64], path[128], json_path[128];

static void setup(void)
{
    assert_ok(test_devices_configure("2x512M"));
    strcpy(directory, "/tmp/evenkeel-html-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/page.html", directory);
    snprintf(json_path, sizeof json_path, "%s/report.json", directory);
}

static void teardown(void)
{
    unlink(path);
    unlink(json_path);
    ck_assert_int_eq(rmdir(directory), 0);
}

FIXTURE(setup, teardown)

/* ---- reading a page ---- */

/* Returns a file's text, which the caller frees. */
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

/* Tells whether an element has no end tag. */
static bool is_void(const char *name)
{
    return strcmp(name, "meta") == 0 || strcmp(name, "!doctype") == 0 || strcmp(name, "!--") == 0;
}

static bool is_raw(const char *name)
{
    return strcmp(name, "style") == 0 || strcmp(name, "script") == 0;
}

/* Reads the tag or comment at `text` and its name. Returns the text after the tag. */
static const char *read_tag(const char *text, char name[32])
{
    const char *c = text + 1;
    size_t length = 0;
    bool quoted = false;
    if (strncmp(text, "<!--", 4) == 0) {
        strcpy(name, "!--");
        c = strstr(text, "-->");
        ck_assert_ptr_nonnull(c);
        return c + 3;
    }
    while (*c && *c != ' ' && *c != '>') {
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
    return c + 1;
}

static const char *read_raw(const char *text, const char *name)
{
    char end[40];
    snprintf(end, sizeof end, "</%s>", name);
    const char *found = strstr(text, end);
    if (!found)
        ck_abort_msg("no %s: %.60s", end, text);
    return found;
}

/* Checks that all elements are closed in their order and that every & begins an entity. */
static void assert_well_formed(const char *page)
{
    enum { DEEPEST = 32 };
    char names[DEEPEST][32], name[32];
    int depth = 0;
    for (const char *c = page; *c;) {
        if (*c == '&' && strncmp(c, "&#", 2) != 0)
            ck_abort_msg("no entity: %.40s", c);
        if (*c == '>')
            ck_abort_msg("a stray >: %.40s", c - 20);
        if (*c != '<') {
            c++;
            continue;
        }
        const char *begin = c;
        c = read_tag(c, name);
        if (is_void(name))
            continue;
        if (name[0] != '/') {
            ck_assert_int_lt(depth, DEEPEST);
            strcpy(names[depth++], name);
            if (is_raw(name))
                c = read_raw(c, name);
        } else if (depth == 0 || strcmp(names[--depth], name + 1) != 0) {
            ck_abort_msg("<%s> does not end <%s>: %.60s", name, names[depth], begin);
        }
    }
    ck_assert_int_eq(depth, 0);
}

static int count_of(const char *page, const char *part)
{
    int count = 0;
    for (const char *c = page; (c = strstr(c, part)); c += strlen(part))
        count++;
    return count;
}

static void assert_has(const char *page, const char *part)
{
    if (!strstr(page, part))
        ck_abort_msg("no \"%s\"", part);
}

/* Checks that a browser would fetch nothing, that all marks were replaced, and that there are two
 * script elements, for data and code, and one for each chart. */
static void assert_whole(const char *page, int charts)
{
    static const char *const parts[] = {"http",   "src=",    "href=\"h",   "@import",  "url(",
                                        "fetch(", "{{title", "{{subtitle", "{{report", ":nan"};
    assert_well_formed(page);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count_of(page, parts[i]) != 0)
            ck_abort_msg("\"%s\" in: %.80s", parts[i], strstr(page, parts[i]));
    ck_assert_int_eq(count_of(page, "<script"), 2 + charts);
    ck_assert_int_eq(count_of(page, "</script"), 2 + charts);
}

/* Writes a page, reads and checks it. Returns its text, which the caller frees. */
static char *page_of(ek_report *const *reports, int count, const ek_report_page *page)
{
    assert_ok(ek_report_html_page(path, reports, count, page));
    char *text = read_file(path);
    assert_whole(text, 0);
    return text;
}

/* Returns the JSON of a page as a tree. */
static const json_node *json_of(const char *page, json_tree *tree)
{
    const char *begin = strstr(page, "id=\"data\">");
    ck_assert_ptr_nonnull(begin);
    begin += strlen("id=\"data\">");
    FILE *stream = fopen(json_path, "w");
    ck_assert_ptr_nonnull(stream);
    fwrite(begin, 1, (size_t)(read_raw(begin, "script") - begin), stream);
    ck_assert_int_eq(fclose(stream), 0);
    return json_load(tree, json_path);
}

/* ---- reports ---- */

/* Returns a report of two devices. The first has more activations. */
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

/* Sets an expectation, which the page's script draws, too. */
static void expect_something(ek_report *report)
{
    const ek_expectation e = {.batch = 64,
                              .step_seconds = 1e-3,
                              .device_count = 1,
                              .devices = {{ek_host(0), 4 << 20, {[EK_MEMORY_GATHERED] = 4 << 20}}},
                              .means_count = 1,
                              .means = {{.name = "</script>", .saved = 1 << 20, .seconds = 1e-4}}};
    assert_ok(ek_report_expect(report, &e));
}

/* ---- tests ---- */

/* The page holds every number of the JSON file to the last digit. */
TEST(page_has_every_number_of_the_json)
{
    ek_report *reports[] = {trained("classic way", 3), trained("sharded way", 2)};
    ek_report_set_largest_batch(reports[1], 77);
    expect_something(reports[0]);
    char *page = page_of(reports, 2, NULL);
    json_tree held, file;
    json_of(page, &held);
    assert_ok(ek_report_json(json_path, reports, 2));
    json_load(&file, json_path);
    ck_assert_int_eq(held.count, file.count);
    ck_assert_int_gt(held.count, 200);
    for (int i = 0; i < held.count; i++) {
        const json_node *a = &held.nodes[i], *b = &file.nodes[i];
        ck_assert_int_eq(a->value.kind, b->value.kind);
        ck_assert_int_eq(a->span, b->span);
        ck_assert_pstr_eq(a->key, b->key);
        if (a->value.kind == EK_JSON_STRING)
            ck_assert_str_eq(a->value.text, b->value.text);
        if (a->value.kind == EK_JSON_INTEGER || a->value.kind == EK_JSON_REAL)
            ck_assert(strtod(a->value.text, NULL) == strtod(b->value.text, NULL));
    }
    ck_assert_int_eq(count_of(page, "Memory and time of training"), 2);
    json_free(&held);
    json_free(&file);
    free(page);
    for (int r = 0; r < 2; r++)
        ek_report_free(reports[r]);
}

static void write_more(FILE *page, void *user)
{
    fprintf(page, "<p>%s%.1f</p>\n", (const char *)user, 2.5);
}

/* Names that would end the script, begin another, or open a comment in it. */
TEST(texts_break_out_of_nothing)
{
    const char *hostile = "</script><script>alert(1)</script><!--<script>&\"'";
    ek_report *report = trained(hostile, 1);
    char more[] = "more:";
    char *page = page_of(&report, 1,
                         &(const ek_report_page){.title = "<script>{{more}}",
                                                 .subtitle = "a < b & 'c'\x01",
                                                 .more = write_more,
                                                 .user = more});
    assert_has(page, "<h1>&#60;script&#62;{{more}}</h1>");
    assert_has(page, "<p class=\"faint\">a &#60; b &#38; &#39;c&#39; </p>");
    assert_has(page, "<main>\n<div id=\"report\"></div>\n<p>more:2.5</p>\n</main>");
    json_tree tree;
    const json_node *root = json_of(page, &tree);
    ck_assert_str_eq(json_text_at(json_item(json_at(root, "reports"), 0), "name"), hostile);
    json_free(&tree);
    free(page);
    ek_report_free(report);
}

TEST(no_report_is_a_page_too)
{
    char *page = page_of(NULL, 0, NULL);
    json_tree tree;
    ck_assert_int_eq(json_count(json_at(json_of(page, &tree), "reports")), 0);
    json_free(&tree);
    free(page);
}

/* If the machine has a locale with decimal commas, the page has none, and the locale is in force
 * again after the page was written. */
TEST(decimal_commas_stay_out)
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
    json_tree tree;
    const json_node *root = json_of(page, &tree);
    ck_assert(json_number_at(json_item(json_at(root, "reports"), 0), "imbalance") == 1.5);
    json_free(&tree);
    snprintf(after, sizeof after, "%.1f", 2.5);
    ck_assert_str_eq(before, after);
    free(page);
    ek_report_free(report);
}

TEST(errors_leave_the_old_file)
{
    ek_report *report = trained("balanced", 1), *missing[] = {report, NULL};
    FILE *old = fopen(path, "w");
    ck_assert_ptr_nonnull(old);
    fputs("old", old);
    ck_assert_int_eq(fclose(old), 0);

    assert_refused(ek_report_html(path, missing, 2), EK_E_INVALID, "report 1 of 2 is NULL");
    assert_refused(ek_report_html(path, NULL, 1), EK_E_INVALID, "1 reports, but no list of them");
    assert_refused(ek_report_html(path, &report, -1), EK_E_INVALID, "-1 reports");
    assert_refused(ek_report_html(NULL, &report, 1), EK_E_INVALID, "there is no path");
    assert_refused(ek_report_html("", &report, 1), EK_E_INVALID, "there is no path");
    char *text = read_file(path);
    ck_assert_str_eq(text, "old");
    free(text);

    assert_refused(ek_report_html(directory, &report, 1), EK_E_IO, directory);
    assert_refused(ek_report_html("/nowhere/at/all/page.html", &report, 1), EK_E_IO,
                   "/nowhere/at/all/page.html");
    assert_refused(ek_report_html("/dev/full", &report, 1), EK_E_IO, "/dev/full");
    ek_report_free(report);
}

/* ---- while a run goes on ---- */

/* Returns the page's text, or NULL if the page was not written since the last call. */
static char *rewritten(void)
{
    char *page = access(path, F_OK) == 0 ? read_file(path) : NULL;
    if (page)
        assert_whole(page, 0);
    unlink(path);
    return page;
}

static void assert_rewritten(int64_t steps, bool live)
{
    char *page = rewritten();
    ck_assert_ptr_nonnull(page);
    json_tree tree;
    const json_node *report = json_item(json_at(json_of(page, &tree), "reports"), 0);
    ck_assert(json_number_at(report, "steps") == (double)steps);
    ck_assert_int_eq(count_of(page, "data-every=\"\""), !live);
    ck_assert_int_eq(count_of(page, "data-written=\"\""), 0);
    assert_has(page, "<h1>running</h1>");
    json_free(&tree);
    free(page);
}

/* A step that is not due leaves the page alone. Writing belongs to no step. */
TEST(live_page_is_rewritten_in_steps_and_at_the_end)
{
    char title[] = "running";
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0)));
    assert_ok(ek_report_live(report, path, &(ek_report_page){.title = title, .every = 1e-9}));
    title[0] = 'x'; /* the report has a copy */
    assert_rewritten(0, true);
    for (int step = 1; step < 4; step++) {
        assert_ok(ek_report_step(report));
        assert_rewritten(step, true);
    }
    strcpy(title, "running");
    assert_ok(ek_report_live(report, path, &(ek_report_page){.title = title, .every = 1e9}));
    assert_rewritten(3, true);
    assert_ok(ek_report_step(report));
    ck_assert_ptr_null(rewritten());
    assert_ok(ek_report_stop(report));
    assert_rewritten(4, false);
    assert_ok(ek_report_stop(report));
    ck_assert_ptr_null(rewritten());
    assert_refused(ek_report_live(report, path, NULL), EK_E_STATE, "stopped");
    ek_report_free(report);
}

/* A run that fails leaves its page, and the error stays. */
TEST(live_page_of_a_failed_run_is_written)
{
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0)));
    assert_ok(ek_report_live(report, path, &(ek_report_page){.title = "running"}));
    assert_rewritten(0, true);
    ck_assert_int_eq(ek_error(EK_E_USER, "the run fails"), EK_E_USER);
    ek_report_free(report);
    ck_assert_int_eq(ek_error_status(), EK_E_USER);
    ek_error_clear();
    assert_rewritten(0, false);
}

static void use_memory(FILE *page, void *user)
{
    void *held;
    ek_dev *dev = ek_dev_get(ek_host(0));
    assert_ok(ek_dev_alloc(dev, 4096, EK_MEMORY_WORKSPACE, &held));
    ek_dev_free(dev, held, 4096, EK_MEMORY_WORKSPACE);
}

TEST(writing_belongs_to_no_step)
{
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0)));
    assert_ok(ek_report_live(report, path, &(ek_report_page){.every = 1e-9, .more = use_memory}));
    for (int step = 0; step < 3; step++) {
        ek_memory_sample samples[64];
        assert_ok(ek_report_step(report));
        const int count = ek_report_step_memory(report, 0, samples, 64);
        ck_assert_int_gt(count, 0);
        for (int i = 0; i < count; i++)
            ck_assert_uint_eq(samples[i].in_use, 0);
    }
    ek_report_free(report);
}

TEST(live_page_that_cannot_be_written_is_an_error_of_the_step)
{
    ek_report *report = ek_report_start(.device_ids = EK_DEVICES(ek_host(0)));
    const ek_report_page page = {.title = "running", .every = 1e-9};
    assert_refused(ek_report_live(report, directory, &page), EK_E_IO, directory);
    assert_refused(ek_report_step(report), EK_E_IO, directory);
    ck_assert_int_eq(ek_report_step_count(report), 1);
    assert_ok(ek_report_live(report, path, &page));
    assert_ok(ek_report_step(report));
    assert_rewritten(2, true);
    ek_report_free(report);
    assert_rewritten(2, false);
}

/* ---- the script ---- */

static bool node_is_here(void)
{
    if (system("command -v node >/dev/null") == 0)
        return true;
    fprintf(stderr, "skipped: node, which runs the page's script, is not here\n");
    return false;
}

/* Returns a report of many nested spans of many sizes, in which memory changes all the time. */
static ek_report *restless(void)
{
    enum { SPANS = 3000 };
    ek_report *report =
        ek_report_start(.name = "restless", .device_ids = EK_DEVICES(ek_host(0), ek_host(1)));
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
    return report;
}

/* Runs page.js, which prints what is wrong. */
static void run_script(ek_report *report)
{
    char command[512];
    expect_something(report);
    assert_ok(ek_report_scalar(report, "</script>", 1, 0.5));
    free(page_of(&report, 1, NULL));
    snprintf(command, sizeof command, "node '%s/../unit/report/page.js' '%s'", EK_GOLDEN_DIR, path);
    int status = system(command);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ek_report_free(report);
}

TEST_LOOP(script_draws_the_page, 0, node_is_here() ? 2 : 0)
{
    run_script(_i == 0 ? trained("balanced", 3) : restless());
}

/* What is read and written is the same to the byte in every locale: decimal commas, groups of
 * digits and a dotless i are the program's, not the files'. */
#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/device_spec.h"
#include "unit.h"

NAMES_DEVICES

static const char *const locales[] = {"de_DE", "tr_TR"};
enum { LOCALES = sizeof locales / sizeof *locales };

static char folder[64];
static pid_t owner;

static void remove_folder(void)
{
    char command[128];
    if (getpid() != owner) /* a process that Check forked ends, too */
        return;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        fprintf(stderr, "%s is left\n", folder);
}

/* Makes the locales in a folder of their own. Each takes seconds, so that all tests share them. */
static void make_locales(void)
{
    char command[256];
    strcpy(folder, "/tmp/evenkeel-locale-XXXXXX");
    if (!mkdtemp(folder))
        exit(EXIT_FAILURE);
    owner = getpid();
    atexit(remove_folder);
    for (int i = 0; i < LOCALES; i++) {
        snprintf(command, sizeof command, "localedef -i %s -f UTF-8 '%s/%s.UTF-8' >'%s/log' 2>&1",
                 locales[i], folder, locales[i], folder);
        if (system(command) != 0) {
            fprintf(stderr, "failed: %s\n", command);
            exit(EXIT_FAILURE);
        }
    }
}

static void begin(int number)
{
    char name[32], text[8];
    setenv("LOCPATH", folder, 1);
    snprintf(name, sizeof name, "%s.UTF-8", locales[number]);
    ck_assert_ptr_nonnull(setlocale(LC_ALL, name));
    snprintf(text, sizeof text, "%.1f", 1.5);
    ck_assert_str_eq(text, "1,5"); /* it is there */
    setlocale(LC_ALL, "C");
}

static void in_locale(int number)
{
    char name[32];
    snprintf(name, sizeof name, "%s.UTF-8", locales[number]);
    ck_assert_ptr_nonnull(setlocale(LC_ALL, name));
}

/* Skipped where the system has no sources of locales. */
static void skip_without_locales(void)
{
    if (access("/usr/share/i18n/locales/tr_TR", R_OK) != 0 ||
        system("command -v localedef >/dev/null") != 0) {
        fprintf(stderr, "skipped: localedef and the sources of locales are not here\n");
        exit(77);
    }
    make_locales();
}

BEFORE_ALL(skip_without_locales)

TEST_LOOP(lists_of_devices, 0, LOCALES)
{
    static const char *const good[] = {"2x512MiB,2x256mib@0.5", "8000000,4000000", "1.5G@.25",
                                       "1e6,2E6b@1", "4"};
    static const char *const bad[] = {"1,5G@0,5", "512M@0,5", "1.5\xC4\xB1", "1\xC4\xB0"};
    begin(_i);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ek_device_spec here = {0}, there = {0};
        assert_ok(ek_device_spec_parse(good[i], &here));
        in_locale(_i);
        assert_ok(ek_device_spec_parse(good[i], &there));
        setlocale(LC_ALL, "C");
        ck_assert_int_eq(here.count, there.count);
        for (int d = 0; d < here.count; d++) {
            ck_assert_uint_eq(here.devices[d].capacity, there.devices[d].capacity);
            ck_assert(here.devices[d].speed == there.devices[d].speed);
        }
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ek_device_spec spec;
        in_locale(_i);
        ck_assert_msg(ek_device_spec_parse(bad[i], &spec) == EK_E_INVALID, "\"%s\"", bad[i]);
        setlocale(LC_ALL, "C");
        ek_error_clear();
    }
    uint64_t nbytes = 0;
    in_locale(_i);
    ck_assert_int_eq(ek_parse_bytes("1,5G", &nbytes), EK_E_INVALID);
    ek_error_clear();
    assert_ok(ek_parse_bytes("1.5GIB", &nbytes));
    ck_assert_uint_eq(nbytes, UINT64_C(3) << 29);
    assert_ok(ek_host_devices_configure("8000000,4000000"));
    ck_assert_int_eq(ek_device_count(EK_HOST), 2);
    setlocale(LC_ALL, "C");
}

/* ---- files ---- */

static ek_report *report;
static ek_archive *archive;
static char logged[4096];

static void note_line(ek_log_level level, const char *line, void *user)
{
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", line);
}

static int write_table(const char *path)
{
    FILE *stream = fopen(path, "w");
    ck_assert_ptr_nonnull(stream);
    int rc = ek_report_table(report, stream);
    fclose(stream);
    return rc;
}

static int write_json(const char *path)
{
    return ek_report_json(path, &report, 1);
}

static int write_html(const char *path)
{
    return ek_report_html(path, &report, 1);
}

static int write_trace(const char *path)
{
    return ek_report_trace(path, report);
}

static int write_archive(const char *path)
{
    return ek_archive_save(archive, path);
}

static int write_tensor(const char *path)
{
    double values[4] = {0.5, -1e-7, NAN, 1234567.5};
    FILE *stream = fopen(path, "w");
    ck_assert_ptr_nonnull(stream);
    int rc = ek_tensor_print(tensor_of(values, EK_SHAPE(2, 2), EK_F64, ek_cpu()), stream);
    fclose(stream);
    return rc;
}

static int write_module(const char *path)
{
    FILE *stream = fopen(path, "w");
    ck_assert_ptr_nonnull(stream);
    ek_module *module = ek_sequential(ek_dropout(0.25), ek_leaky_relu(0.125), ek_batch_norm2d(3),
                                      ek_local_response_norm(2), ek_constant_pad2d(1, 0.5));
    assert_made(module);
    int rc = ek_module_print(module, stream);
    ek_module_free(module);
    fclose(stream);
    return rc;
}

static int write_sentences(const char *path)
{
    FILE *stream = fopen(path, "w");
    ck_assert_ptr_nonnull(stream);
    ck_assert_ptr_null(ek_sgd(NULL, .lr = -0.5));
    fprintf(stream, "%s\n", ek_error_message());
    ek_error_clear();
    ck_assert_ptr_null(ek_f_dropout(ek_ones(EK_SHAPE(2)), 1.25, true));
    fprintf(stream, "%s\n", ek_error_message());
    ek_error_clear();
    ck_assert_ptr_null(ek_gaussian_blur(3, 3, .sigma = {-0.5, 1}));
    fprintf(stream, "%s\n", ek_error_message());
    ek_error_clear();
    setenv("EVENKEEL_DIST_TIMEOUT", "0,5", 1);
    ck_assert_int_eq(ek_dist_init_process_group(), EK_E_INVALID);
    fprintf(stream, "%s\n", ek_error_message());
    ek_error_clear();
    setenv("EVENKEEL_DIST_TIMEOUT", "0.5", 1);
    assert_ok(ek_dist_init_process_group());
    assert_ok(ek_dist_destroy_process_group(NULL));
    fclose(stream);
    return 0;
}

static int (*const writers[])(const char *path) = {write_table,  write_json,     write_html,
                                                   write_trace,  write_archive,  write_tensor,
                                                   write_module, write_sentences};
enum { WRITERS = sizeof writers / sizeof *writers };

static char *contents(const char *path, size_t *length)
{
    FILE *stream = fopen(path, "rb");
    ck_assert_ptr_nonnull(stream);
    fseek(stream, 0, SEEK_END);
    *length = (size_t)ftell(stream);
    rewind(stream);
    char *text = calloc(*length + 1, 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(fread(text, 1, *length, stream), *length);
    fclose(stream);
    return text;
}

/* A run whose plan is measured, so that lines are logged. */
static void make_run(void)
{
    assert_ok(ek_host_devices_configure("24M,24M@0.5"));
    report = ek_report_start(.name = "I\xC4\xB1", .device_ids = ek_devices(EK_HOST, 2));
    ek_module *model = ek_data_parallel_model(ek_linear(40, 40), .split = EK_SPLIT_AUTO);
    ek_module *loss = ek_data_parallel_criterion(ek_mse_loss());
    ek_optimizer *optimizer = ek_adam(model);
    for (int i = 0; i < 8; i++) {
        ek_scope step = ek_scope_begin();
        ek_tensor *x = ek_randn(EK_SHAPE(200, 40));
        assert_ok(ek_train_step(NULL, .model = model, .criterion = loss, .optimizer = optimizer,
                                .input = EK_VALUE(x), .target = EK_VALUE(x)));
        assert_ok(ek_report_step(report));
        ek_scope_end(&step);
    }
    assert_ok(ek_report_stop(report));
    archive = ek_archive_new();
    assert_ok(ek_archive_put_module(archive, "model", model));
    assert_ok(ek_archive_put_optimizer(archive, "optimizer", optimizer, model));
    assert_ok(ek_archive_put_plan(archive, "plan", model));
    assert_ok(ek_archive_put(archive, "number", ek_value_of_float(0.1)));
    ek_optimizer_free(optimizer);
    ek_module_free(loss);
    ek_module_free(model);
}

TEST_LOOP(files_and_sentences, 0, LOCALES)
{
    begin(_i);
    ek_set_log(note_line, NULL);
    in_locale(_i);
    make_run();
    ck_assert_msg(strchr(logged, '.') != NULL, "no number was logged: %s", logged);
    /* Lists have a space behind their commas. */
    for (char *comma = strchr(logged, ','); comma; comma = strchr(comma + 1, ','))
        ck_assert_msg(!(comma[1] >= '0' && comma[1] <= '9'), "%s", comma - 10);
    for (int w = 0; w < WRITERS; w++) {
        char here[128], there[128];
        snprintf(here, sizeof here, "%s/here", folder);
        snprintf(there, sizeof there, "%s/there", folder);
        setlocale(LC_ALL, "C");
        assert_ok(writers[w](here));
        in_locale(_i);
        assert_ok(writers[w](there));
        setlocale(LC_ALL, "C");
        size_t lengths[2];
        char *texts[2] = {contents(here, &lengths[0]), contents(there, &lengths[1])};
        ck_assert_uint_gt(lengths[0], 20);
        ck_assert_msg(lengths[0] == lengths[1] && memcmp(texts[0], texts[1], lengths[0]) == 0,
                      "writer %d:\n%.2000s\nin %s:\n%.2000s", w, texts[0], locales[_i], texts[1]);
        free(texts[0]);
        free(texts[1]);
    }
    /* Read in one locale what was written in another. */
    char path[128];
    double number;
    snprintf(path, sizeof path, "%s/archive", folder);
    assert_ok(ek_archive_save(archive, path));
    in_locale(_i);
    ek_archive *read = ek_archive_open(path);
    assert_made(read);
    assert_ok(ek_archive_get_float(read, "number", &number));
    ck_assert(number == 0.1);
    setlocale(LC_ALL, "C");
    ek_archive_free(read);
    ek_archive_free(archive);
    ek_report_free(report);
}

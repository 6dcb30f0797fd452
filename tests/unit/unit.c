/* unit.c: main of every Check program and its register of tests, comparisons, golden files. */
#include "unit.h"

#include <errno.h>
#include <unistd.h>

/* Programs of the folders below ops have none of these. */
#pragma weak ek_autocast_end
#pragma weak ek_set_grad_enabled

/* Seconds for one test, unless it says otherwise or the caller does: for slow and busy machines,
 * where Check's own 4 are soon over. ctest has limits for whole programs. */
static const char patience[] = "120";

/* An allocation that is too large fails under sanitizers as it does elsewhere. Options of the
 * environment come on top. */
#define SANITIZER_OPTIONS(function)                                    \
    __attribute__((visibility("default"))) const char *function(void); \
    const char *function(void)                                         \
    {                                                                  \
        return "allocator_may_return_null=1";                          \
    }
SANITIZER_OPTIONS(__asan_default_options)
SANITIZER_OPTIONS(__tsan_default_options)

/* ---- tests ---- */

/* In the order of their registration. */
static unit_test *tests, **tests_end = &tests;
static SFun before_all, setup_now, teardown_now;
static const char *group_now;
static bool own_processes;

void unit_add(unit_test *test, int first, int end)
{
    test->first = first;
    test->end = end;
    test->setup = setup_now;
    test->teardown = teardown_now;
    test->group = group_now;
    *tests_end = test;
    tests_end = &test->next;
}

void unit_fixture(SFun setup, SFun teardown)
{
    setup_now = setup;
    teardown_now = teardown;
}

void unit_group(const char *name)
{
    group_now = name;
}

void unit_before_all(SFun function)
{
    before_all = function;
}

void unit_own_processes(void)
{
    own_processes = true;
}

/* ---- what a test leaves behind, if others run after it in the same process ---- */

/* What the program was started with. */
static struct {
    char **environment;
    char *devices[2]; /* lists of the devices of each kind; NULL: there are none */
} initial;

static const ek_device_kind listed[] = {EK_HOST, EK_CUDA};

static void *allocated(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

/* "4", or "0,1,2,3" for GPUs. */
static char *list_of(ek_device_kind kind)
{
    const char *given = getenv(kind == EK_HOST ? "EVENKEEL_HOST_DEVICES" : "EVENKEEL_CUDA_DEVICES");
    if (given && *given)
        return allocated(strdup(given));
    const int count = ek_device_count(kind);
    if (count <= 0)
        return NULL;
    char text[1024];
    size_t used = (size_t)snprintf(text, sizeof text, "%d", kind == EK_HOST ? count : 0);
    for (int i = 1; i < count && kind != EK_HOST && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, ",%d", i);
    return allocated(strdup(text));
}

static void note_initial(void)
{
    size_t count = 0;
    while (environ[count])
        count++;
    initial.environment = allocated(calloc(count + 1, sizeof *initial.environment));
    for (size_t i = 0; i < count; i++)
        initial.environment[i] = allocated(strdup(environ[i]));
    for (int i = 0; i < 2; i++)
        initial.devices[i] = list_of(listed[i]);
    ek_error_clear();
    (void)ek_shutdown();
}

/* The entry of a list like environ that names the same variable as `entry`; NULL if none does. */
static const char *entry_like(char *const *list, const char *entry)
{
    const size_t length = strcspn(entry, "=") + 1;
    for (; *list; list++)
        if (strncmp(*list, entry, length) == 0)
            return *list;
    return NULL;
}

static void restore_environment(void)
{
    for (size_t i = 0; environ[i];) {
        const char *entry = environ[i];
        char *name = allocated(strndup(entry, strcspn(entry, "=")));
        /* The entries behind one that is removed move up. Some names can't be removed. */
        const bool removed =
            !entry_like(initial.environment, entry) && unsetenv(name) == 0 && environ[i] != entry;
        free(name);
        i += !removed;
    }
    for (char **at = initial.environment; *at; at++) {
        const char *now = entry_like(environ, *at);
        char *name = allocated(strndup(*at, strcspn(*at, "=")));
        if (*name && strchr(*at, '=') && (!now || strcmp(now, *at) != 0))
            ck_assert_int_eq(setenv(name, strchr(*at, '=') + 1, 1), 0);
        free(name);
    }
}

/* Ends the test's scopes, and fails if the test still holds memory of a device. */
static void shut_down(void)
{
    if (getenv("EVENKEEL_TEST_COUNT")) {
        puts("a test has ended");
        fflush(stdout);
    }
    assert_ok(ek_shutdown());
}

/* Tests compare GPUs with the host more closely than TF32 allows. */
static void set_precision(void)
{
    ek_allow_tf32_convolution(false);
}

/* Puts back what the test set, and shuts down. */
static void restore(void)
{
    restore_environment();
    ek_allow_tf32(false);
    ek_allow_fast_convolution(false);
    ek_benchmark_convolution(false);
    ek_use_deterministic_algorithms(false);
    (void)ek_memory_set_category(EK_MEMORY_ACTIVATION);
    if (ek_autocast_end)
        ek_autocast_end(&(ek_autocast){0});
    if (ek_set_grad_enabled)
        (void)ek_set_grad_enabled(true);
    if (ek_generator_engine(NULL) != EK_RANDOM_TWISTER)
        assert_ok(ek_generator_set_engine(NULL, EK_RANDOM_TWISTER));
    ek_manual_seed(67280421310721u); /* that of a process that has seeded nothing */
    ek_set_log(NULL, NULL);
    ek_error_clear();
    shut_down(); /* with the devices go their capacities */
    if (initial.devices[0])
        assert_ok(ek_host_devices_configure(initial.devices[0]));
    if (initial.devices[1])
        assert_ok(ek_cuda_devices_configure(initial.devices[1]));
}

/* ---- the program ---- */

/* Each test is a case of its own, so that CK_RUN_CASE can choose it. */
static Suite *registered_suite(bool forked)
{
    Suite *all = suite_create(program_invocation_short_name);
    for (const unit_test *test = tests; test; test = test->next) {
        TCase *one = tcase_create(test->test.name);
        tcase_add_checked_fixture(one, set_precision, forked ? shut_down : restore);
        tcase_add_checked_fixture(one, test->setup, test->teardown);
        if (test->group)
            tcase_set_tags(one, test->group);
        tcase_add_loop_test(one, &test->test, test->first, test->end);
        suite_add_tcase(all, one);
    }
    return all;
}

int main(void)
{
    setenv("CK_DEFAULT_TIMEOUT", patience, 0);
    if (before_all)
        before_all();
    SRunner *runner = srunner_create(NULL);
    if (own_processes)
        srunner_set_fork_status(runner, CK_FORK);
    const bool forked = srunner_fork_status(runner) == CK_FORK;
    if (!forked)
        note_initial();
    srunner_add_suite(runner, registered_suite(forked));
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- errors ---- */

void assert_ok_at(int status, const char *file, int line)
{
    if (status < 0)
        ck_abort_msg("%s:%d: status %d: %s", file, line, status, ek_error_message());
}

void assert_tensor_at(const void *pointer, const char *file, int line)
{
    if (!pointer)
        ck_abort_msg("%s:%d: NULL: %s", file, line, ek_error_message());
}

/* "linear: linear: ..." or "linear: linear has ...": says one thing twice. */
static bool repeats_itself(const char *sentence)
{
    for (const char *colon = strstr(sentence, ": "); colon; colon = strstr(colon + 2, ": ")) {
        const char *next = colon + 2, *start = colon;
        while (start > sentence && (start < sentence + 2 || strncmp(start - 2, ": ", 2) != 0))
            start--;
        size_t length = (size_t)(colon - start);
        if (length > 0 && strncmp(start, next, length) == 0 &&
            (next[length] == ':' || next[length] == ' '))
            return true;
    }
    return false;
}

void assert_error_at(int status, const char *part, const char *file, int line)
{
    part = device_text(part);
    if (repeats_itself(ek_error_message()))
        ck_abort_msg("%s:%d: \"%s\" repeats itself", file, line, ek_error_message());
    if (ek_error_status() != status || !strstr(ek_error_message(), part))
        ck_abort_msg("%s:%d: wanted %s with \"%s\", got %s with \"%s\"", file, line,
                     ek_status_name(status), part, ek_status_name(ek_error_status()),
                     ek_error_message());
    ek_error_clear();
}

bool gives_error(ek_value result, int status)
{
    return result.kind == EK_VALUE_ERROR;
}

bool gives_status(int64_t result, int status)
{
    return result == status;
}

bool gives_null(const void *result, int status)
{
    return !result;
}

void assert_refused_at(bool refused, int status, const char *part, const char *file, int line)
{
    if (!refused)
        ck_abort_msg("%s:%d: not refused with %s and \"%s\"", file, line, ek_status_name(status),
                     device_text(part));
    assert_error_at(status, part, file, line);
}

/* ---- elements ---- */

double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    double value = exponent == 31  ? mantissa ? (double)NAN : (double)INFINITY
                   : exponent == 0 ? ldexp(mantissa, -24)
                                   : ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -value : value;
}

static double read_element(const unsigned char *rows, int64_t i, ek_dtype dtype)
{
    switch (dtype) {
    case EK_F32: {
        float value;
        memcpy(&value, rows + 4 * i, sizeof value);
        return value;
    }
    case EK_F64: {
        double value;
        memcpy(&value, rows + 8 * i, sizeof value);
        return value;
    }
    case EK_BF16: {
        uint16_t high;
        memcpy(&high, rows + 2 * i, sizeof high);
        uint32_t bits = (uint32_t)high << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    case EK_I64: {
        int64_t value;
        memcpy(&value, rows + 8 * i, sizeof value);
        return (double)value;
    }
    case EK_I32: {
        int32_t value;
        memcpy(&value, rows + 4 * i, sizeof value);
        return value;
    }
    case EK_F16: {
        uint16_t half;
        memcpy(&half, rows + 2 * i, sizeof half);
        return f16_value(half);
    }
    case EK_U8:
    case EK_BOOL:
        break;
    }
    return rows[i];
}

/* Rounds to nearest even, by arithmetic; the library's conversion works on bits. */
uint16_t f16_bits(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isnan(value))
        return 0x7e00;
    if (magnitude >= 65520)
        return sign | 0x7c00;
    int exponent = magnitude < 0x1p-14 ? -14 : ilogb(magnitude);
    long units = lrint(ldexp(magnitude, 10 - exponent));
    return (uint16_t)(sign | (((exponent + 14) << 10) + units));
}

static void write_element(unsigned char *rows, int64_t i, ek_dtype dtype, double value)
{
    switch (dtype) {
    case EK_F32: {
        float narrow = (float)value;
        memcpy(rows + 4 * i, &narrow, sizeof narrow);
        return;
    }
    case EK_F64:
        memcpy(rows + 8 * i, &value, sizeof value);
        return;
    case EK_BF16: {
        float narrow = (float)value;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        bits += 0x7FFF + ((bits >> 16) & 1);
        uint16_t high = (uint16_t)(bits >> 16);
        memcpy(rows + 2 * i, &high, sizeof high);
        return;
    }
    case EK_I64: {
        int64_t whole = (int64_t)value;
        memcpy(rows + 8 * i, &whole, sizeof whole);
        return;
    }
    case EK_I32: {
        int32_t whole = (int32_t)value;
        memcpy(rows + 4 * i, &whole, sizeof whole);
        return;
    }
    case EK_F16: {
        uint16_t half = f16_bits(value);
        memcpy(rows + 2 * i, &half, sizeof half);
        return;
    }
    case EK_BOOL:
        rows[i] = value != 0;
        return;
    case EK_U8:
        rows[i] = (unsigned char)value;
    }
}

/* All elements in row-major order; the caller frees. */
static unsigned char *rows_of(const ek_tensor *tensor)
{
    size_t nbytes = (size_t)ek_tensor_count(tensor) * ek_dtype_size(ek_tensor_dtype(tensor));
    unsigned char *rows = malloc(nbytes ? nbytes : 1);
    ck_assert_ptr_nonnull(rows);
    assert_ok(ek_to_data(tensor, rows, nbytes));
    return rows;
}

double element(const ek_tensor *tensor, int64_t i)
{
    assert_made(tensor);
    ck_assert_int_lt(i, ek_tensor_count(tensor));
    unsigned char *rows = rows_of(tensor);
    double value = read_element(rows, i, ek_tensor_dtype(tensor));
    free(rows);
    return value;
}

ek_tensor *tensor_of(const double *values, ek_shape shape, ek_dtype dtype, ek_device device)
{
    int64_t count = ek_shape_count(&shape);
    unsigned char *rows = malloc((size_t)count * ek_dtype_size(dtype) + 1);
    ck_assert_ptr_nonnull(rows);
    for (int64_t i = 0; i < count; i++)
        write_element(rows, i, dtype, values[i]);
    ek_tensor *tensor = ek_from_data(rows, shape, .dtype = dtype, .device = device);
    free(rows);
    assert_made(tensor);
    return tensor;
}

/* ---- comparisons ---- */

static void assert_comparable(const ek_tensor *a, const ek_tensor *b, const char *file, int line)
{
    assert_tensor_at(a, file, line);
    assert_tensor_at(b, file, line);
    ek_shape shape_a = ek_tensor_shape(a), shape_b = ek_tensor_shape(b);
    char text_a[160], text_b[160];
    if (!ek_shape_equal(&shape_a, &shape_b))
        ck_abort_msg("%s:%d: shape %s, wanted %s", file, line, ek_shape_text(&shape_a, text_a),
                     ek_shape_text(&shape_b, text_b));
    if (ek_tensor_dtype(a) != ek_tensor_dtype(b))
        ck_abort_msg("%s:%d: %s, wanted %s", file, line, ek_dtype_name(ek_tensor_dtype(a)),
                     ek_dtype_name(ek_tensor_dtype(b)));
}

void assert_close_at(const ek_tensor *a, const ek_tensor *b, double relative, double absolute,
                     const char *file, int line)
{
    assert_comparable(a, b, file, line);
    unsigned char *rows_a = rows_of(a), *rows_b = rows_of(b);
    ek_dtype dtype = ek_tensor_dtype(a);
    for (int64_t i = 0; i < ek_tensor_count(a); i++) {
        double x = read_element(rows_a, i, dtype), y = read_element(rows_b, i, dtype);
        if (!(fabs(x - y) <= absolute + relative * fabs(y)))
            ck_abort_msg("%s:%d: element %lld is %.17g, wanted %.17g (off by %.3g)", file, line,
                         (long long)i, x, y, x - y);
    }
    free(rows_a);
    free(rows_b);
}

void assert_close_norm_at(const ek_tensor *a, const ek_tensor *b, double relative, const char *file,
                          int line)
{
    assert_comparable(a, b, file, line);
    unsigned char *rows_a = rows_of(a), *rows_b = rows_of(b);
    ek_dtype dtype = ek_tensor_dtype(a);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < ek_tensor_count(a); i++) {
        double x = read_element(rows_a, i, dtype), y = read_element(rows_b, i, dtype);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    free(rows_a);
    free(rows_b);
    if (!(sqrt(difference) <= relative * sqrt(norm)))
        ck_abort_msg("%s:%d: |a - b| is %.3g, |b| is %.3g: ratio %.3g, wanted at most %.3g", file,
                     line, sqrt(difference), sqrt(norm), sqrt(difference / norm), relative);
}

void assert_on_at(const ek_tensor *tensor, ek_device device, const char *file, int line)
{
    char text[16], wanted[16];
    assert_tensor_at(tensor, file, line);
    ek_device found = ek_tensor_device(tensor);
    if (found.kind != device.kind || found.index != device.index)
        ck_abort_msg("%s:%d: on %s, wanted %s", file, line, ek_device_name(found, text),
                     ek_device_name(device, wanted));
}

/* ---- goldens ---- */

typedef struct header {
    uint32_t dtype, ndim;
    int64_t dims[EK_MAX_DIMS];
} header;

/* The golden file that was opened last, whole. Tests read many tensors of one file. */
typedef struct golden_file {
    char name[64];
    char *data;
    size_t nbytes, at;
} golden_file;

/* Returns the next nbytes of the file. */
static const char *golden_read(golden_file *file, size_t nbytes)
{
    if (nbytes > file->nbytes - file->at)
        ck_abort_msg("golden file %s ends too early", file->name);
    file->at += nbytes;
    return file->data + file->at - nbytes;
}

/* Returns the file, at the header of its first tensor. */
static golden_file *golden_open(const char *name)
{
    static golden_file opened;
    if (strcmp(opened.name, name) != 0) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", EK_GOLDEN_DIR, name);
        free(opened.data);
        opened = (golden_file){.nbytes = 0};
        FILE *stream = fopen(path, "rb");
        if (!stream || fseek(stream, 0, SEEK_END) != 0)
            ck_abort_msg("golden file %s cannot be opened", path);
        opened.nbytes = (size_t)ftell(stream);
        rewind(stream);
        opened.data = malloc(opened.nbytes + 1);
        if (!opened.data || fread(opened.data, 1, opened.nbytes, stream) != opened.nbytes)
            ck_abort_msg("golden file %s cannot be read", path);
        fclose(stream);
        snprintf(opened.name, sizeof opened.name, "%s", name);
    }
    opened.at = 0;
    if (memcmp(golden_read(&opened, 8), "EKGOLD01", 8) != 0)
        ck_abort_msg("golden file %s has another magic", name);
    return &opened;
}

/* Returns the data of the tensor `name`, and fills its header; NULL if there is none. */
static const char *golden_find(const char *name_of_file, const char *name, header *found)
{
    golden_file *file = golden_open(name_of_file);
    while (file->at < file->nbytes) {
        uint32_t length;
        memcpy(&length, golden_read(file, sizeof length), sizeof length);
        const char *entry = golden_read(file, length);
        *found = (header){0};
        memcpy(&found->dtype, golden_read(file, sizeof found->dtype), sizeof found->dtype);
        memcpy(&found->ndim, golden_read(file, sizeof found->ndim), sizeof found->ndim);
        if (found->ndim > EK_MAX_DIMS)
            ck_abort_msg("golden file %s: %.*s has %u dimensions", file->name, (int)length, entry,
                         found->ndim);
        size_t nbytes = ek_dtype_size((ek_dtype)found->dtype);
        for (uint32_t i = 0; i < found->ndim; i++) {
            memcpy(&found->dims[i], golden_read(file, sizeof found->dims[i]),
                   sizeof found->dims[i]);
            nbytes *= (size_t)found->dims[i];
        }
        const char *data = golden_read(file, nbytes);
        if (strlen(name) == length && memcmp(entry, name, length) == 0)
            return data;
    }
    return NULL;
}

bool golden_has(const char *file, const char *name)
{
    header found;
    return golden_find(file, name, &found) != NULL;
}

ek_tensor *golden(const char *file, const char *name)
{
    header found;
    const char *data = golden_find(file, name, &found);
    if (!data)
        ck_abort_msg("golden file %s has no tensor %s", file, name);
    ek_shape shape = {.ndim = (int)found.ndim};
    memcpy(shape.dims, found.dims, sizeof shape.dims);
    size_t nbytes = (size_t)ek_shape_count(&shape) * ek_dtype_size((ek_dtype)found.dtype);
    void *aligned = malloc(nbytes ? nbytes : 1);
    ck_assert_ptr_nonnull(aligned);
    memcpy(aligned, data, nbytes);
    ek_tensor *tensor = ek_from_data(aligned, shape, .dtype = (ek_dtype)found.dtype);
    free(aligned);
    assert_made(tensor);
    return tensor;
}

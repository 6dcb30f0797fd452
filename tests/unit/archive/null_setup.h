/* null_setup.h: calls of public functions with NULL for one operand each. None may crash or hang:
 * each runs in a separate process. CALL(f(OR_NULL(a), OR_NULL(b), 1)) makes two calls: f(NULL, b,
 * 1) and f(a, NULL, 1). */
#ifndef EK_TESTS_NULL_SETUP_H
#define EK_TESTS_NULL_SETUP_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

/* How many calls a table has at least. */
#ifndef NULL_CALLS
#define NULL_CALLS 100
#endif

/* NULL, of which the compiler does not know. */
static void *volatile nothing;
#define NOTHING nothing

static int null_operand;  /* which of a call's operands in OR_NULL is NULL */
static int operand_count; /* of a call: how many operands in OR_NULL were evaluated */

static inline bool null_here(void)
{
    return operand_count++ == null_operand;
}

#ifndef OR_NULL
#define OR_NULL(...) (null_here() ? NULL : (__VA_ARGS__))
#endif

/* Whether a call that has ended did well. */
#ifndef NULL_ENDED_WELL
#define NULL_ENDED_WELL(call) true
#endif

/* ---- operands; what they leave behind ends with the process ---- */

static struct {
    ek_tensor *tensors[16];
    ek_value values[16];
    ek_module *modules[16];
    ek_dataset *datasets[16];
    int64_t numbers[16];
    double reals[16];
    char text[256];
    const int64_t *indices;
    uint64_t nbytes;
    ek_device device;
    ek_memory_stats memory;
    ek_scope scope;
    ek_data_parallel_stats parallel;
    ek_pass pass;
    ek_batch batch;
    ek_worker_info worker;
    ek_loader_stats loader;
    ek_device_report report;
    ek_rank_report rank;
    ek_memory_sample samples[8];
    ek_error_record error;
    ek_args args;
    ek_value_entry entries[2];
    ek_transform *transforms[2];
    ek_report *reports[2];
    ek_device_list devices;
} room;

static const int64_t numbers[] = {1, 1, 1};
static const double reals[] = {0.5, 0.5, 0.5};
static const char *const names[] = {"x", "y"};
static const ek_device some_devices[] = {{EK_HOST, 0}, {EK_HOST, 1}};
static const ek_shape a_shape = {.ndim = 2, .dims = {2, 2}};

__attribute__((unused)) static ek_tensor *a_tensor(void)
{
    return ek_ones(EK_SHAPE(2, 2));
}

__attribute__((unused)) static ek_tensor *const *tensors(void)
{
    room.tensors[8] = a_tensor();
    room.tensors[9] = a_tensor();
    return room.tensors + 8;
}

__attribute__((unused)) static const ek_value *values(void)
{
    room.values[8] = EK_VALUE(a_tensor());
    room.values[9] = EK_VALUE(a_tensor());
    return room.values + 8;
}

__attribute__((unused)) static const ek_value_entry *entries(void)
{
    room.entries[0] = (ek_value_entry){"x", EK_VALUE(a_tensor())};
    room.entries[1] = (ek_value_entry){"y", EK_VALUE(a_tensor())};
    return room.entries;
}

__attribute__((unused)) static const ek_args *args(void)
{
    room.args = (ek_args){.inputs = values(), .count = 1};
    return &room.args;
}

__attribute__((unused)) static const ek_device_list *devices(void)
{
    room.devices = ek_devices(EK_HOST, 2);
    return &room.devices;
}

__attribute__((unused)) static ek_module *a_module(void)
{
    return ek_linear(2, 2);
}

__attribute__((unused)) static ek_module *const *modules(void)
{
    room.modules[8] = a_module();
    room.modules[9] = a_module();
    return room.modules + 8;
}

__attribute__((unused)) static ek_generator *a_generator(void)
{
    return ek_generator_new(1);
}

__attribute__((unused)) static ek_optimizer *an_optimizer(void)
{
    return ek_sgd(a_module(), .lr = 0.1);
}

__attribute__((unused)) static ek_schedule *a_schedule(void)
{
    return ek_step_lr(an_optimizer(), 1, 0.5);
}

__attribute__((unused)) static ek_grad_scaler *a_scaler(void)
{
    return ek_grad_scaler_new();
}

__attribute__((unused)) static ek_ema *an_ema(void)
{
    return ek_ema_new(a_module());
}

__attribute__((unused)) static ek_dataset *a_dataset(void)
{
    return ek_tensor_dataset(a_tensor());
}

__attribute__((unused)) static ek_dataset *const *datasets(void)
{
    room.datasets[8] = a_dataset();
    room.datasets[9] = a_dataset();
    return room.datasets + 8;
}

__attribute__((unused)) static ek_sampler *a_sampler(void)
{
    return ek_sequential_sampler(4);
}

__attribute__((unused)) static ek_loader *a_loader(void)
{
    return ek_data_loader(a_dataset(), .batch_size = 1);
}

__attribute__((unused)) static ek_archive *an_archive(void)
{
    ek_archive *archive = ek_archive_new();
    ek_archive_put(archive, "y", ek_value_of_int(1));
    return archive;
}

__attribute__((unused)) static ek_report *a_report(void)
{
    return ek_report_start(.name = "x");
}

/* Without files. */
__attribute__((unused)) static ek_run_log *a_log(void)
{
    return ek_log_open("x", .csv = false, .jsonl = false, .tensorboard = false);
}

__attribute__((unused)) static ek_progress *a_progress(void)
{
    return ek_progress_begin(2, .stream = stdout);
}

__attribute__((unused)) static ek_report *const *reports(void)
{
    room.reports[0] = a_report();
    ek_report_stop(room.reports[0]);
    room.reports[1] = a_report();
    return room.reports;
}

__attribute__((unused)) static ek_transform *const *transforms(void)
{
    room.transforms[0] = ek_to_float();
    room.transforms[1] = ek_to_float();
    return room.transforms;
}

__attribute__((unused)) static int visit(const char *path, ek_tensor *tensor, void *user)
{
    return 0;
}

__attribute__((unused)) static int forward(ek_function_call *call, ek_tensor *const *inputs,
                                           ek_tensor **outputs)
{
    ek_function_save(call, NOTHING, 1);
    ek_error_clear();
    outputs[0] = ek_neg(inputs[0]);
    return 0;
}

static const ek_function a_function __attribute__((unused)) = {.name = "x", .forward = forward};

/* ---- the table ---- */

typedef struct null_call {
    const char *text;
    void (*call)(void);
} null_call;

static null_call calls[1000];
static int call_count;

static inline void add_call(const char *text, void (*call)(void))
{
    if (call_count == sizeof calls / sizeof *calls) {
        fprintf(stderr, "no room for %s: make `calls` larger\n", text);
        exit(EXIT_FAILURE);
    }
    calls[call_count++] = (null_call){text, call};
}

/* A row; the call's result is dropped. */
#define CALL(...) CALL_OF(__LINE__, __VA_ARGS__)

/* A row that is told apart from others by a name instead of its line. */
#define CALL_OF(name, ...)                                                    \
    static void NULL_NAME(call_, name)(void)                                  \
    {                                                                         \
        (void)(__VA_ARGS__);                                                  \
    }                                                                         \
    __attribute__((constructor)) static void NULL_NAME(add_call_, name)(void) \
    {                                                                         \
        add_call(#__VA_ARGS__, NULL_NAME(call_, name));                       \
    }                                                                         \
    struct null_call
#define NULL_JOIN(a, b) a##b
#define NULL_NAME(name, line) NULL_JOIN(name, line)

/* A call that ended makes its child's exit status this plus the number of operands in OR_NULL.
 * Sanitizers end processes with lower ones. */
#define NULL_ENDED 100

/* Runs a call in a child. Returns the number of the call's operands in OR_NULL, or a negative
 * number if the child crashed. */
static int null_run(const null_call *entry)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(60);
        if (!freopen("/dev/null", "w", stdout))
            abort();
        ek_host_devices_configure("2");
        entry->call();
        _exit(NULL_ENDED_WELL(entry->text) ? NULL_ENDED + operand_count : NULL_ENDED - 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) - NULL_ENDED : -1;
}

TEST(null_operands_crash_nothing)
{
    char failed[4096] = "";
    size_t used = 0;
    int made = 0;
    for (int i = 0; i < call_count; i++) {
        int operands = 1;
        for (null_operand = 0; null_operand < operands; null_operand++, made++) {
            int evaluated = null_run(&calls[i]);
            operands = evaluated > operands ? evaluated : operands;
            if (evaluated < 0 && used < sizeof failed)
                used +=
                    (size_t)snprintf(failed + used, sizeof failed - used, "\n  %s", calls[i].text);
        }
    }
    fputs(failed, stderr);
    ck_assert_msg(!used, "these crash, or end badly:%s", failed);
    ck_assert_int_ge(made, NULL_CALLS);
}

#endif

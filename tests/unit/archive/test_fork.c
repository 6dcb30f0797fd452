/* Children of a process that computes: nothing in them waits for threads that they don't have. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

NAMES_DEVICES

/* What the parent made. */
static struct {
    ek_module *model, *loss;
    ek_optimizer *optimizer;
    ek_dataset *dataset;
    ek_loader *loader;
    ek_batch batch;
    ek_tensor *tensor;
    ek_report *report;
    ek_archive *archive;
} parent;

static void make_everything(void)
{
    assert_ok(ek_host_devices_configure("2"));
    ek_device_set_threads(ek_cpu(), 2);
    ek_device_set_threads(ek_host(0), 2);
    parent.report = ek_report_start(.name = "of the parent");
    parent.model = ek_data_parallel_model(ek_linear(4, 4));
    parent.loss = ek_data_parallel_criterion(ek_mse_loss());
    parent.optimizer = ek_adam(parent.model);
    parent.dataset = ek_tensor_dataset(ek_ones(EK_SHAPE(400, 4)), ek_ones(EK_SHAPE(400, 4)));
    parent.loader = ek_data_loader(parent.dataset, .batch_size = 4, .workers = 2);
    ck_assert_int_eq(ek_loader_next(parent.loader, &parent.batch), 1);
    /* Teams of the calling thread and on a worker. */
    parent.tensor = ek_keep(ek_f_relu(ek_ones(EK_SHAPE(300000))));
    assert_made(ek_sum(ek_to_device(parent.tensor, ek_host(0))));
    double loss;
    assert_ok(ek_train_step(&loss, .model = parent.model, .criterion = parent.loss,
                            .optimizer = parent.optimizer, .input = parent.batch.input,
                            .target = parent.batch.target));
    ek_report_step(parent.report);
    parent.archive = ek_archive_new();
    ek_archive_put_module(parent.archive, "model", parent.model);
    ck_assert_int_eq(ek_error_status(), 0);
}

static void free_everything(void)
{
    ek_archive_free(parent.archive);
    ek_report_free(parent.report);
    ek_loader_free(parent.loader);
    ek_optimizer_free(parent.optimizer);
    ek_module_free(parent.loss);
    ek_module_free(parent.model);
    ek_release(parent.tensor);
    ek_scope root = ek_scope_begin();
    root.mark = 0;
    ek_scope_end(&root);
}

/* Runs `body` in a child; it returns the exit status. */
static void in_child(int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        alarm(20);
        _exit(body());
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(!WIFSIGNALED(status), "the child %s (signal %d)",
                  WTERMSIG(status) == SIGALRM ? "waits for ever" : "died", WTERMSIG(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

#define CHILD(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "in the child, line %d: %s\n", __LINE__, #condition); \
            return 1;                                                             \
        }                                                                         \
    } while (0)

static bool refused(void)
{
    bool well = ek_error_status() == EK_E_STATE &&
                strstr(ek_error_message(), "forked after its parent had begun to use devices");
    if (!well)
        ek_print_error(stderr);
    ek_error_clear();
    return well;
}

#define REFUSED(call)     \
    do {                  \
        (void)(call);     \
        CHILD(refused()); \
    } while (0)

static int calls_that_compute(void)
{
    double loss;
    ek_memory_stats stats;
    ek_batch batch;
    float data[4] = {0};
    REFUSED(ek_ones(EK_SHAPE(3)));
    REFUSED(ek_from_data(data, EK_SHAPE(4)));
    REFUSED(ek_randn(EK_SHAPE(3)));
    REFUSED(ek_add(parent.tensor, parent.tensor));
    REFUSED(ek_add_(parent.tensor, parent.tensor));
    REFUSED(ek_uniform_(parent.tensor, 0, 1, NULL));
    REFUSED(ek_to_device(parent.tensor, ek_host(1)));
    REFUSED(ek_sum(parent.tensor));
    REFUSED(ek_linear(3, 3));
    REFUSED(ek_forward(parent.model, parent.tensor));
    REFUSED(ek_data_parallel_model(ek_relu()));
    REFUSED(ek_step(parent.optimizer));
    REFUSED(ek_clip_grad_norm(parent.optimizer, 1, NULL));
    REFUSED(ek_train_step(&loss, .model = parent.model, .criterion = parent.loss,
                          .optimizer = parent.optimizer, .input = parent.batch.input,
                          .target = parent.batch.target));
    REFUSED(ek_loader_next(parent.loader, &batch));
    REFUSED(ek_loader_reset(parent.loader));
    REFUSED(ek_loader_state(parent.loader));
    REFUSED(ek_dataset_get_batch(parent.dataset, (const int64_t[]){0}, 1, ek_cpu()));
    REFUSED(ek_devices(EK_HOST, 0));
    REFUSED(ek_device_count(EK_HOST));
    REFUSED(ek_host_devices_configure("3"));
    REFUSED(ek_device_set_threads(ek_host(0), 1));
    REFUSED(ek_synchronize(ek_host(0)));
    REFUSED(ek_memory_get_stats(ek_host(0), &stats));
    REFUSED(ek_memory_trim(ek_host(0)));
    REFUSED(ek_report_start(.name = "of the child"));
    REFUSED(ek_report_step(parent.report));
    REFUSED(ek_report_stop(parent.report));
    REFUSED(ek_report_table(parent.report, stdout));
    return 0;
}

static int calls_that_read(void)
{
    float *data = malloc(300000 * sizeof *data);
    ek_loader_stats stats;
    int64_t permutation[5];
    CHILD(data);
    CHILD(ek_to_data(parent.tensor, data, 300000 * sizeof *data) == 0 && data[299999] == 1);
    free(data);
    CHILD(ek_tensor_count(parent.tensor) == 300000);
    CHILD(ek_loader_get_stats(parent.loader, &stats) == 0);
    CHILD(ek_randperm(5, permutation, NULL) == 0); /* the default generator is nobody's */
    ek_manual_seed(3);
    ek_set_log(NULL, NULL);
    CHILD(ek_plan_check("1,2", 2) == 0);
    CHILD(ek_error_status() == 0);
    return 0;
}

/* What other threads held is lost to a child: no leak of the library's. */
static int leaks_are_expected;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return leaks_are_expected;
}

static int an_end_in_order(void)
{
    leaks_are_expected = 1;
    free_everything();
    CHILD(ek_error_status() == 0);
    CHILD(ek_shutdown() == 0);
    CHILD(ek_shutdown() == 0);
    REFUSED(ek_ones(EK_SHAPE(3)));
    exit(0); /* and handlers of exit */
}

static int a_child_of_its_own(void)
{
    pid_t grandchild = fork();
    if (grandchild == 0)
        _exit(calls_that_compute());
    int status;
    CHILD(waitpid(grandchild, &status, 0) == grandchild && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int (*const bodies[])(void) = {calls_that_compute, calls_that_read, an_end_in_order,
                                      a_child_of_its_own};
enum { BODIES = sizeof bodies / sizeof *bodies };

TEST_LOOP(children_of_a_process_that_has_computed, 0, BODIES)
{
    make_everything();
    in_child(bodies[_i]);
    /* The parent goes on. */
    assert_made(ek_forward(parent.model, ek_ones(EK_SHAPE(6, 4))).as.list);
    ck_assert_int_eq(ek_loader_next(parent.loader, &parent.batch), 1);
    free_everything();
}

/* ---- while others work ---- */

static atomic_bool over;

static void *train(void *user)
{
    while (!atomic_load(&over)) {
        ek_scope step = ek_scope_begin();
        ek_tensor *x = ek_randn(EK_SHAPE(64, 4));
        ek_train_step(user, .model = parent.model, .criterion = parent.loss,
                      .optimizer = parent.optimizer, .input = EK_VALUE(x), .target = EK_VALUE(x));
        ek_report_step(parent.report);
        ek_scope_end(&step);
    }
    return ek_error_status() ? user : NULL;
}

static void ignore(ek_log_level level, const char *line, void *user)
{
}

static void *log_and_draw(void *user)
{
    while (!atomic_load(&over)) {
        ek_scope step = ek_scope_begin();
        ek_set_log(ignore, NULL);
        ek_uniform_(ek_empty(EK_SHAPE(50000)), 0, 1, NULL);
        ek_scope_end(&step);
    }
    return ek_error_status() ? user : NULL;
}

TEST(children_of_a_process_that_computes)
{
    pthread_t threads[2];
    double loss;
    void *failed[2];
    make_everything();
    ck_assert_int_eq(pthread_create(&threads[0], NULL, train, &loss), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, log_and_draw, &loss), 0);
    for (int i = 0; i < 24; i++)
        in_child(bodies[i % BODIES]);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &failed[i]);
        ck_assert_ptr_null(failed[i]);
    }
    free_everything();
}

/* ---- before the first use ---- */

static int a_first_use(void)
{
    CHILD(ek_device_count(EK_HOST) == 3);
    ek_module *model = ek_data_parallel_model(ek_linear(4, 4));
    CHILD(model && ek_forward(model, ek_ones(EK_SHAPE(6, 4))).kind == EK_VALUE_LIST);
    ek_module_free(model);
    ek_scope root = ek_scope_begin();
    root.mark = 0;
    ek_scope_end(&root);
    CHILD(ek_shutdown() == 0);
    return 0;
}

TEST(children_from_before_the_first_use)
{
    assert_ok(ek_host_devices_configure("3"));
    ek_manual_seed(1);
    in_child(a_first_use);
    in_child(a_first_use);
}

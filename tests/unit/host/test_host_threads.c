/* If the system refuses threads, a device computes with those that it can have. This program's
 * pthread_create stands before the system's. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

#include "core/thread.h"
#include "host/parallel.h"
#include "host_cases.h"

/* ---- threads with a limit ---- */

static atomic_int limit = 1000, living;

typedef struct start {
    void *(*function)(void *);
    void *user;
} start;

static void one_less(void *unused)
{
    atomic_fetch_sub(&living, 1);
}

static void *run(void *user)
{
    start s = *(start *)user;
    free(user);
    void *result;
    pthread_cleanup_push(one_less, NULL);
    result = s.function(s.user);
    pthread_cleanup_pop(1);
    return result;
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*function)(void *), void *user)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&next, &symbol, sizeof next);
    if (atomic_fetch_add(&living, 1) >= atomic_load(&limit)) {
        atomic_fetch_sub(&living, 1);
        return EAGAIN;
    }
    start *s = malloc(sizeof *s);
    *s = (start){function, user};
    int rc = next(thread, attributes, run, s);
    if (rc != 0) {
        free(s);
        atomic_fetch_sub(&living, 1);
    }
    return rc;
}

/* ---- loops ---- */

enum { COUNT = 100 };

typedef struct visits {
    atomic_int seen[COUNT], parts;
} visits;

static void visit(void *context, int64_t begin, int64_t end)
{
    visits *v = context;
    atomic_fetch_add(&v->parts, 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&v->seen[i], 1);
}

static int parts_of_a_loop(ek_dev *dev)
{
    visits v = {.parts = 0};
    ek_parallel_for(dev, COUNT, 1, visit, &v);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(v.seen[i], 1);
    return v.parts;
}

static char logged[512];

static void note(ek_log_level level, const char *line, void *user)
{
    snprintf(logged, sizeof logged, "%s", line);
}

TEST_LOOP(a_team_of_what_can_be_had, 0, 5)
{
    static const int limits[] = {0, 1, 2, 3, 50};
    ek_dev *dev = case_device(4);
    ek_set_log(note, NULL);
    atomic_store(&limit, atomic_load(&living) + limits[_i]);
    int wanted = limits[_i] < 3 ? 1 + limits[_i] : 4;
    ck_assert_int_eq(parts_of_a_loop(dev), wanted);
    ck_assert_int_eq(ek_parallel_threads(dev), wanted);
    if (wanted < 4)
        ck_assert_ptr_nonnull(strstr(logged, "instead of 4: the system has no more threads"));
    else
        ck_assert_str_eq(logged, "");
    ck_assert_int_eq(parts_of_a_loop(dev), wanted);
}

/* A team that is there needs no thread more. */
TEST(a_team_stays)
{
    ek_dev *dev = case_device(3);
    int parts = parts_of_a_loop(dev);
    ck_assert_int_eq(parts, 3);
    atomic_store(&limit, 0);
    ck_assert_int_eq(parts_of_a_loop(dev), parts);
    dev = case_device(6); /* a larger one can't be had */
    ck_assert_int_eq(parts_of_a_loop(dev), parts);
    atomic_store(&limit, 1000);
    dev = case_device(2);
    ck_assert_int_eq(parts_of_a_loop(dev), 2);
}

/* oneDNN starts none by itself. */
TEST(convolutions_without_threads)
{
    ek_dev *dev = case_device(4);
    ek_conv_params params = {
        .dims = 2, .stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 1};
    ek_tensor *y[2];
    ek_tensor *x = case_tensor(dev, EK_F32, 4, (const int64_t[]){2, 16, 24, 24}, CASE_LAST);
    ek_tensor *w = case_tensor(dev, EK_F32, 4, (const int64_t[]){16, 16, 3, 3}, CASE_LAST);
    case_fill(x, 1);
    case_fill(w, 2);
    atomic_store(&limit, 0);
    for (int i = 0; i < 2; i++) {
        y[i] = case_tensor(dev, EK_F32, 4, (const int64_t[]){2, 16, 24, 24}, CASE_LAST);
        assert_ok(dev->backend->kernels->conv_forward(dev, y[i], x, w, NULL, &params));
    }
    case_same(y[0], y[1], "runs");
    ck_assert(case_get(y[0], 100) != 0);
}

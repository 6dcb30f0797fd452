/* test_loader_workers.c: threads of loaders: errors, ends at any time, what data sets see in them.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"
#include "data/loader.h"
#include "loader_setup.h"

FIXTURE(setup_devices, all_is_given_back)

/* ---- threads that cannot be had ----
 *
 * Instead of the C library's; clang's sanitizers bring their own into the program. */

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define THREADS_CAN_ALWAYS_BE_HAD
#endif
#endif

#ifndef THREADS_CAN_ALWAYS_BE_HAD
static atomic_int threads_left = -1; /* negative: any number */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument)
{
    static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!create)
        *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    if (threads_left == 0)
        return EAGAIN;
    if (threads_left > 0)
        threads_left--;
    return create(thread, attributes, start, argument);
}

TEST(threads_that_cannot_be_had_are_an_error)
{
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(6)->dataset, .workers = 3);
    for (int had = 0; had < 3; had++) {
        threads_left = had;
        char part[64];
        snprintf(part, sizeof part, "loader: no thread for worker %d of 3 can be had", had);
        assert_refused(ek_loader_next(loader, &batch), EK_E_NO_MEMORY, part);
    }
    threads_left = 1;
    ek_loader *never = ek_data_loader(&noisy_new(6)->dataset, .workers = 3);
    ck_assert_int_eq(ek_loader_next(never, &batch), EK_E_NO_MEMORY);
    ek_error_clear();
    ek_loader_free(never); /* with one thread had, two not */
    threads_left = -1;     /* nothing is lost */
    static record seen;
    ck_assert_int_eq(record_pass(&seen, loader), 6);
    ek_loader_free(loader);
}
#endif

/* ---- memory that cannot be had ---- */

#ifndef EK_SANITIZED /* sanitizers need more address space than any limit */
enum { MANY = 256, AHEAD = 16 };

/* The process may have `nbytes` more than now. Returns the limit before. */
static struct rlimit limit_memory(size_t nbytes)
{
    struct rlimit before, limit;
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + nbytes;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    return before;
}

TEST(memory_that_cannot_be_had_is_an_error)
{
    size_t slots = (size_t)MANY * AHEAD * sizeof(ek_loader_slot), spare = 200 << 10;
    const size_t some[] = {spare, slots + spare, slots + MANY * sizeof(ek_loader_maker) + spare};
    for (int i = 0; i < 3; i++) {
        ek_dataset *dataset = &noisy_new(6)->dataset;
        struct rlimit before = limit_memory(some[i]);
        ek_loader *loader = ek_data_loader(dataset, .workers = MANY, .prefetch = AHEAD);
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
        ck_assert_ptr_null(loader);
        assert_error(EK_E_NO_MEMORY, "no memory left");
    }
}
#endif

/* ---- errors ---- */

TEST_LOOP(an_error_names_batch_worker_and_sample, 0, 4)
{
    static record seen;
    char part[128];
    ek_batch batch;
    noisy *set = noisy_new(30);
    set->bad = 17;
    ek_loader *loader =
        ek_data_loader(&set->dataset, .batch_size = 5, .workers = _i, .seeding = EK_SEED_WORKER);
    for (int pass = 0; pass < 2; pass++) {
        for (int b = 0; b < 3; b++)
            ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), EK_E_IO);
        ck_assert_int_eq(batch.data.kind, EK_VALUE_NONE);
        snprintf(part, sizeof part,
                 _i ? "loader: batch 3 (worker %d): noisy: sample 17: no such row"
                    : "loader: batch 3: noisy: sample 17: no such row",
                 _i ? 3 % _i : 0);
        assert_error(EK_E_IO, part);
        /* It goes on with the one after it. */
        memset(&seen, 0, sizeof seen);
        ck_assert_int_eq(record_pass(&seen, loader), 2);
        ck_assert_int_eq(seen.indices[0], 20);
        ck_assert_int_eq(seen.numbers[0], 4);
    }
    ek_loader_free(loader);
}

typedef struct wrong_sampler {
    ek_sampler sampler;
    int64_t wrong;
    bool fails;
} wrong_sampler;

static int64_t wrong_length(ek_sampler *sampler)
{
    return 4;
}

static int wrong_draw(ek_sampler *sampler, ek_pass *pass)
{
    const wrong_sampler *self = (wrong_sampler *)sampler;
    ek_empty(EK_SHAPE(100)); /* what is left in the scope */
    if (self->fails)
        return ek_error(EK_E_USER, "no order");
    for (int64_t i = 0; i < 4; i++)
        if (ek_pass_add(pass, i == 2 ? self->wrong : i) < 0)
            return ek_error_status();
    return 0;
}

static const ek_sampler_type wrong_type = {.name = "wrong",
                                           .size = sizeof(wrong_sampler),
                                           .length = wrong_length,
                                           .draw = wrong_draw};

TEST_LOOP(a_sample_that_is_not_there_is_the_samplers_error, 0, 2)
{
    ek_batch batch;
    wrong_sampler *sampler = (wrong_sampler *)ek_sampler_new(&wrong_type);
    ek_loader *loader =
        ek_data_loader(&noisy_new(12)->dataset, .sampler = &sampler->sampler, .workers = _i);
    static const int64_t wrong[] = {12, -1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 4; i++) {
        char part[96];
        snprintf(part, sizeof part, "sampler \"wrong\" gave sample %lld of a data set of 12",
                 (long long)wrong[i]);
        sampler->wrong = wrong[i];
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        assert_refused(ek_loader_next(loader, &batch), EK_E_INVALID, part);
        ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    }
    /* An order that cannot be drawn begins no pass. */
    sampler->fails = true;
    assert_refused(ek_loader_next(loader, &batch), EK_E_USER, "no order");
    sampler->fails = false;
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    ck_assert_int_eq(batch.number, 0);
    ek_loader_free(loader);
}

/* ---- starting ---- */

typedef struct starts {
    atomic_int calls, bad;
    atomic_uint_fast64_t seeds;
} starts;

static int start_worker(int worker, void *user)
{
    starts *self = user;
    char name[16], wanted[16];
    ek_worker_info info = {0};
    atomic_fetch_add(&self->calls, 1);
    ck_assert(ek_loader_worker(&info));
    ck_assert_int_eq(info.worker, worker);
    ck_assert_int_eq(info.workers, 3);
    atomic_fetch_add(&self->seeds, info.seed - (uint64_t)worker);
    pthread_getname_np(pthread_self(), name, sizeof name);
    snprintf(wanted, sizeof wanted, "ek-loader-%d", worker);
    ck_assert_str_eq(name, wanted);
    ek_random_u64(NULL);
    ek_empty(EK_SHAPE(100));
    return worker == self->bad ? ek_error(EK_E_USER, "cannot start") : 0;
}

TEST(workers_start_once)
{
    static record with, without;
    starts seen = {.bad = -1};
    ek_generator *generator = ek_generator_new(1);
    uint64_t base = ek_random_u64(generator) % ((uint64_t)1 << 63);
    ek_generator_seed(generator, 1);
    for (int seeding = 0; seeding < 2; seeding++) {
        memset(&with, 0, sizeof with);
        memset(&without, 0, sizeof without);
        for (int starting = 0; starting < 2; starting++) {
            ek_manual_seed(1);
            ek_loader *loader = ek_data_loader(&noisy_new(10)->dataset, .workers = 3,
                                               .seeding = (ek_seeding)seeding,
                                               .worker_start = starting ? start_worker : NULL,
                                               .worker_user = &seen);
            record_pass(starting ? &with : &without, loader);
            record_pass(starting ? &with : &without, loader);
            ek_loader_free(loader);
        }
        ck_assert_int_eq(seen.calls, 3 * (seeding + 1));
        ck_assert(seen.seeds == (uint64_t)(seeding + 1) * 3 * base);
        assert_same(&with, &without); /* what starting drew is no batch's */
    }
    ek_generator_free(generator);
    ek_worker_info untouched = {.worker = 7};
    ck_assert(!ek_loader_worker(&untouched));
    ck_assert_int_eq(untouched.worker, 7);
}

TEST(a_worker_that_cannot_start_fails_all_batches)
{
    starts seen = {.bad = 1};
    ek_batch batch;
    char part[96];
    ek_loader *loader = ek_data_loader(&noisy_new(5)->dataset, .workers = 3,
                                       .worker_start = start_worker, .worker_user = &seen);
    for (int b = 0; b < 5; b++) {
        snprintf(part, sizeof part, "loader: batch %d (worker 1): worker_start: cannot start", b);
        assert_refused(ek_loader_next(loader, &batch), EK_E_USER, part);
    }
    ck_assert_int_eq(ek_loader_next(loader, &batch), 0);
    ck_assert_int_eq(seen.calls, 3);
    ek_loader_free(loader);
}

/* ---- what a data set sees ---- */

static pthread_t caller;
static atomic_int inline_samples, fresh_samples, worker_samples;

static void look_around(int64_t index)
{
    ek_thread *self = ek_thread_self();
    ek_worker_info info;
    atomic_fetch_add(&inline_samples, pthread_equal(pthread_self(), caller) != 0);
    atomic_fetch_add(&fresh_samples, self->modes.flags == 0 &&
                                         self->modes.category == EK_MEMORY_ACTIVATION &&
                                         self->error.status == 0);
    atomic_fetch_add(&worker_samples, ek_loader_worker(&info));
    self->modes.flags = EK_MODE_NO_GRAD; /* what it leaves is undone */
    ek_memory_set_category(EK_MEMORY_WORKSPACE);
}

TEST_LOOP(samples_are_read_in_fresh_modes, 0, 3)
{
    static record seen;
    noisy *set = noisy_new(8);
    set->before = look_around;
    caller = pthread_self();
    inline_samples = fresh_samples = worker_samples = 0;
    ek_loader *loader = ek_data_loader(&set->dataset, .workers = _i);
    ek_thread_self()->modes.flags = EK_MODE_AUTOCAST;
    ek_memory_set_category(EK_MEMORY_GRADIENT);
    record_pass(&seen, loader);
    ck_assert_uint_eq(ek_thread_self()->modes.flags, EK_MODE_AUTOCAST);
    ck_assert_int_eq(ek_memory_set_category(EK_MEMORY_ACTIVATION), EK_MEMORY_GRADIENT);
    ck_assert_int_eq(fresh_samples, 8);
    ck_assert_int_eq(inline_samples, _i ? 0 : 8);
    ck_assert_int_eq(worker_samples, _i ? 8 : 0);
    ek_loader_free(loader);
}

/* ---- ends at any time ---- */

enum { LONG = 10000 };
static atomic_int samples_read;

/* Samples that take a while, as pictures do. */
static void take_time(int64_t index)
{
    struct timespec time = {.tv_nsec = 1000000};
    nanosleep(&time, NULL);
}

/* A batch of one sample, then one of LONG. */
static int uneven_draw(ek_sampler *sampler, ek_pass *pass)
{
    for (int64_t i = 0; i <= LONG; i++) {
        if (ek_pass_add(pass, i % 10) < 0)
            return ek_error_status();
        if ((i == 0 || i == LONG) && ek_pass_end_batch(pass) < 0)
            return ek_error_status();
    }
    return 0;
}

static int64_t uneven_length(ek_sampler *sampler)
{
    return 2;
}

static const ek_sampler_type uneven_type = {.name = "uneven",
                                            .size = sizeof(ek_sampler),
                                            .length = uneven_length,
                                            .draw = uneven_draw,
                                            .makes_batches = true};

static ek_value collate_none(const ek_value *samples, int64_t count, void *user)
{
    return ek_value_none();
}

/* Of samples one by one, behind a subset, and for a function of the user's. */
TEST_LOOP(ends_wait_for_a_sample_not_for_a_batch, 0, 3)
{
    static const int64_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    ek_batch batch;
    noisy *set = noisy_new(10);
    set->before = take_time;
    set->read = &samples_read;
    ek_dataset *dataset = _i == 1 ? ek_subset(&set->dataset, all, 10) : &set->dataset;
    ek_loader *loader = ek_data_loader(dataset, .batch_sampler = ek_sampler_new(&uneven_type),
                                       .workers = 1, .collate = _i == 2 ? collate_none : NULL);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    while (samples_read < 5)
        take_time(0);
    assert_ok(ek_loader_reset(loader)); /* the thread stays */
    ck_assert_int_lt(samples_read, LONG / 2);
    int before = samples_read;
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    while (samples_read < before + 5)
        take_time(0);
    ek_loader_free(loader);
    ck_assert_int_lt(samples_read, LONG / 2);
}

TEST_LOOP(a_pass_that_is_left_begins_anew, 0, 4)
{
    static record whole, again;
    ek_batch batch;
    for (int first = 0; first < 9; first++) {
        ek_generator *generator = ek_generator_new(4), *other = ek_generator_new(4);
        ek_loader *loader = ek_data_loader(&noisy_new(16)->dataset, .batch_size = 2,
                                           .shuffle = true, .workers = _i, .generator = generator);
        ek_loader *reference = ek_data_loader(&noisy_new(16)->dataset, .batch_size = 2,
                                              .shuffle = true, .generator = other);
        memset(&whole, 0, sizeof whole);
        memset(&again, 0, sizeof again);
        for (int b = 0; b < first; b++)
            ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
        assert_ok(ek_loader_reset(loader));
        assert_ok(ek_loader_reset(loader));
        record_pass(&again, loader);
        if (first)
            record_pass(&(record){0}, reference);
        record_pass(&whole, reference);
        assert_same(&whole, &again);
        ek_loader_free(loader);
        ek_loader_free(reference);
        ek_generator_free(generator);
        ek_generator_free(other);
    }
}

/* Threads that nobody waits for do nothing. */
TEST(waiting_costs_nothing)
{
    struct timespec while_idle = {.tv_nsec = 200000000}, began, ended;
    ek_batch batch;
    ek_loader *loader = ek_data_loader(&noisy_new(100)->dataset, .workers = 8);
    ck_assert_int_eq(ek_loader_next(loader, &batch), 1);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* all is made that may be */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
    nanosleep(&while_idle, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
    int64_t spent = (ended.tv_sec - began.tv_sec) * 1000000000 + ended.tv_nsec - began.tv_nsec;
    ck_assert_int_lt(spent, 20000000);
    ek_loader_free(loader);
}

/* ---- several at a time ---- */

typedef struct use {
    ek_dataset *dataset;
    uint64_t seed;
    record seen;
} use;

static void *use_loader(void *user)
{
    use *self = user;
    ek_generator *generator = ek_generator_new(self->seed);
    ek_loader *loader = ek_data_loader(ek_dataset_keep(self->dataset), .batch_size = 3,
                                       .workers = 2, .shuffle = true, .generator = generator);
    record_pass(&self->seen, loader);
    record_pass(&self->seen, loader);
    ek_loader_free(loader);
    ek_generator_free(generator);
    return NULL;
}

TEST(loaders_of_several_threads_share_a_data_set)
{
    static use uses[4];
    pthread_t threads[4];
    noisy *set = noisy_new(50);
    for (int i = 0; i < 4; i++) {
        uses[i] = (use){.dataset = &set->dataset, .seed = (uint64_t)i / 2};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_loader, &uses[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_same(&uses[0].seen, &uses[1].seen);
    assert_same(&uses[2].seen, &uses[3].seen);
    ck_assert(memcmp(uses[0].seen.indices, uses[2].seen.indices, 50) != 0);
    ek_dataset_free(&set->dataset);
}

/* ---- anything, in any order ---- */

static int random_sizes(int64_t batch, int64_t *sizes, void *user)
{
    if (batch % 5 == 0)
        return ek_error(EK_E_USER, "no sizes");
    sizes[batch % 3] = batch;
    return 0;
}

static ek_loader *random_loader(ek_generator *choice, noisy **set)
{
    *set = noisy_new(40);
    if (ek_random_u32(choice) % 4 == 0)
        (*set)->bad = ek_random_u32(choice) % 40;
    ek_loader_options options = EK_OPTIONS(ek_loader_options, .dataset = &(*set)->dataset,
                                           .shuffle = ek_random_u32(choice) % 2,
                                           .batch_size = 1 + ek_random_u32(choice) % 7,
                                           .drop_last = ek_random_u32(choice) % 2,
                                           .workers = (int)(ek_random_u32(choice) % 5),
                                           .prefetch = 1 + (int)(ek_random_u32(choice) % 3),
                                           .seeding = (ek_seeding)(ek_random_u32(choice) % 2));
    if (ek_random_u32(choice) % 2)
        options.device_ids = ek_devices(EK_HOST, 3);
    if (options.device_ids.count && ek_random_u32(choice) % 2)
        options.sizes = random_sizes;
    return ek_data_loader_with(options);
}

/* What cannot be is said by the fixture: a ledger that is not at zero, a hang, a sanitizer. */
static void use_at_random(ek_generator *choice, ek_loader *loader, const noisy *set)
{
    ek_value state = ek_value_none();
    ek_loader_stats stats;
    ek_batch batch;
    for (int step = (int)(ek_random_u32(choice) % 60); step > 0; step--) {
        switch (ek_random_u32(choice) % 12) {
        case 0:
            assert_ok(ek_loader_reset(loader));
            break;
        case 1:
            state = ek_loader_state(loader);
            break;
        case 2:
            if (state.kind == EK_VALUE_DICT)
                assert_ok(ek_loader_load_state(loader, state));
            break;
        default: {
            int rc = ek_loader_next(loader, &batch);
            if (rc < 0) {
                ck_assert_msg(ek_error_status() == EK_E_USER || set->bad >= 0, "%s",
                              ek_error_message());
                ek_error_clear();
            }
        }
        }
    }
    assert_ok(ek_loader_get_stats(loader, &stats));
}

TEST_LOOP(anything_in_any_order_leaves_nothing, 0, 4)
{
    ek_generator *choice = ek_generator_new((uint64_t)_i);
    for (int round = 0; round < (test_is_short() ? 10 : 60); round++) {
        noisy *set;
        ek_scope scope = ek_scope_begin();
        ek_loader *loader = random_loader(choice, &set);
        assert_made(loader);
        use_at_random(choice, loader, set);
        ek_loader_free(loader);
        ek_scope_end(&scope);
    }
    ek_generator_free(choice);
    for (int i = 0; i < 4; i++) {
        ek_memory_stats stats;
        assert_ok(ek_memory_get_stats(i < 3 ? ek_host(i) : ek_cpu(), &stats));
        ck_assert_uint_eq(stats.in_use, 0);
    }
}

/* test_archive_parts.c: archives in parts, written beside the program, over ranks that are threads.
 */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kit/files.h"
#include "kit/ranks.h"
#include "train/saving.h"

NAMES_DEVICES

enum { RANKS = 3, WIDTH = 50 };

FIXTURE(make_directory, empty_directory)
OWN_PROCESSES /* children of a process with threads could not use the library */

    /* A training whose parameters and mean are `value`. */
    typedef struct training {
    ek_module *net;
    ek_optimizer *optimizer;
} training;

static const char *const paths[] = {"0.weight", "0.bias",         "1.weight",
                                    "2.weight", "1.running_mean", "2.bias"};
enum { PATHS = sizeof paths / sizeof *paths };

static training training_of(double value)
{
    training t = {ek_sequential(ek_linear(WIDTH, WIDTH), ek_batch_norm1d(WIDTH),
                                ek_linear(WIDTH, 1)),
                  NULL};
    t.optimizer = ek_adam(t.net, .lr = 0.1);
    ek_scope scope = ek_scope_begin();
    ek_minimize(t.optimizer, ek_sum(ek_apply(t.net, ek_rand(EK_SHAPE(4, WIDTH))))); /* has states */
    ek_scope_end(&scope);
    bool enabled = ek_set_grad_enabled(false);
    for (int i = 0; i < PATHS; i++)
        ek_fill_(ek_module_tensor(t.net, paths[i]), value);
    ek_set_grad_enabled(enabled);
    return t;
}

static void training_free(training *t)
{
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->net);
}

static int put(ek_archive *archive, const training *t, int rank, double value)
{
    ek_archive_put_text(archive, "note", "parts");
    ek_archive_put(archive, "rank", ek_value_of_int(rank));
    ek_archive_put(archive, "value", ek_value_of_float(value));
    return ek_archive_put_training(archive, "",
                                   (ek_training_state){.model = t->net, .optimizer = t->optimizer});
}

static const char *set_path(char path[96], const char *ending)
{
    snprintf(path, 96, "%s/run.safetensors%s", directory, ending);
    return path;
}

/* Saves; *work is NULL if the save has ended. Returns the status. */
static int save(ek_process_group *world, double value, int root, ek_dist_work **work)
{
    char path[96];
    training t = training_of(value);
    ek_archive *archive = ek_archive_new();
    int rc = put(archive, &t, world->rank, value);
    if (rc == 0)
        rc = ek_dist_archive_save(archive, set_path(path, ""), root, .group = world, .parts = true,
                                  .work = work);
    ek_archive_free(archive); /* the copy needs neither the archive nor the training */
    training_free(&t);
    return rc;
}

/* Loads a set and checks that it is whole. Returns its value, or NaN. */
static double load(void)
{
    char path[96];
    training t = training_of(-1);
    double value = NAN, found = 0;
    ek_archive *archive = ek_archive_open(set_path(path, ""));
    ek_scope scope = ek_scope_begin();
    if (archive && ek_archive_get_float(archive, "value", &value) == 0 &&
        ek_archive_load_training(archive, "",
                                 (ek_training_state){.model = t.net, .optimizer = t.optimizer}) ==
            0) {
        for (int i = 0; i < PATHS; i++)
            for (int end = 0; end < 2; end++) {
                ek_tensor *tensor = ek_module_tensor(t.net, paths[i]);
                found = element(tensor, end ? ek_count(tensor) - 1 : 0);
                value = found == value ? value : NAN;
            }
    }
    ek_scope_end(&scope);
    ek_archive_free(archive);
    training_free(&t);
    return value;
}

/* Without and with .work; the root is another rank each time. */
RANKS_LOOP(each_rank_writes_a_part_and_any_number_reads, RANKS, 0, 4)
{
    const int i = *(const int *)user, root = i % RANKS;
    int64_t rank = -1;
    char path[96];
    for (int save_number = 1; save_number < 4; save_number++) { /* names of both kinds */
        ek_dist_work *work = NULL;
        RANKS_OK(save(world, save_number, root, i % 2 ? &work : NULL));
        LOOP_CHECK(!work == !(i % 2));
        RANKS_OK(ranks_work(world) ? -1 : 0); /* calls go on beside the save */
        RANKS_OK(ek_dist_wait(work));
        RANKS_OK(ek_dist_barrier(.group = world));
        LOOP_CHECK(load() == save_number);
        ek_archive *archive = ek_dist_archive_open(set_path(path, ".index.json"), root, world);
        RANKS_OK(ek_archive_get_int(archive, "rank", &rank));
        LOOP_CHECK(strcmp(ek_archive_get_text(archive, "note"), "parts") == 0);
        ek_archive_free(archive);
        LOOP_CHECK(rank == root);
        RANKS_OK(ek_dist_barrier(.group = world));
        LOOP_CHECK(files_in_directory() == RANKS + 1); /* older parts are gone */
        RANKS_OK(ek_dist_barrier(.group = world));
    }
    return NULL;
}

RANKS_TEST(parts_have_about_as_many_bytes, RANKS, 4)
{
    int64_t least = INT64_MAX, most = 0;
    RANKS_OK(save(world, 1, 0, NULL));
    for (int r = 0; r < RANKS; r++) {
        char name[96];
        snprintf(name, sizeof name, "%s/run-%05d-of-%05d.safetensors", directory, r + 1, RANKS);
        ek_safetensors *file = ek_safetensors_open(name);
        RANKS_OK(ek_safetensors_count(file));
        int64_t nbytes = 0;
        for (int i = 0; i < ek_safetensors_count(file); i++) {
            ek_tensor *tensor = ek_safetensors_read(file, ek_safetensors_name(file, i));
            nbytes += ek_count(tensor) * (int64_t)ek_dtype_size(ek_tensor_dtype(tensor));
        }
        ek_safetensors_close(file);
        least = nbytes < least ? nbytes : least;
        most = nbytes > most ? nbytes : most;
    }
    LOOP_CHECK(least > 0 && most - least <= 16 * WIDTH); /* WIDTH^2 numbers are in each */
    return NULL;
}

/* Ranks' saves overlap: the second begins when the first has ended. */
RANKS_TEST(a_second_save_waits_for_the_first, RANKS, 5)
{
    ek_dist_work *works[2];
    for (int i = 0; i < 2; i++)
        RANKS_OK(save(world, i + 1, i, &works[i]));
    LOOP_CHECK(ek_dist_is_completed(works[0]));
    RANKS_OK(ek_dist_wait(works[1]));
    RANKS_OK(ek_dist_wait(works[0]));
    RANKS_OK(ek_dist_barrier(.group = world));
    LOOP_CHECK(load() == 2);
    return NULL;
}

/* A failure of the job between a save and its wait leaves the save alone. */
RANKS_TEST(failures_of_other_calls_do_not_stop_a_save, RANKS, 6)
{
    ek_dist_work *work;
    RANKS_OK(save(world, 7, 1, &work));
    int rc = world->rank == 1 ? ek_dist_send(NULL, 0, .group = world) : 0;
    rc = rc < 0 ? rc : ek_dist_barrier(.group = world);
    LOOP_CHECK(rc < 0);
    ek_error_clear();
    RANKS_OK(ek_dist_wait(work));
    RANKS_OK(ek_dist_barrier(.group = world));
    LOOP_CHECK(load() == 7);
    return NULL;
}

static ek_dist_work *late[RANKS];

static const char *save_late(ek_process_group *world, void *user)
{
    (void)user;
    RANKS_OK(save(world, 5, 0, &late[world->rank]));
    return NULL;
}

TEST(the_end_of_the_world_waits_for_saves)
{
    ranks_check(RANKS, 12, save_late, NULL);
    for (int r = 0; r < RANKS; r++)
        assert_ok(ek_dist_wait(late[r]));
    ck_assert(load() == 5);
}

/* The index may list the part of a rank that loses the world before the root's answer comes. */
RANKS_TEST(a_rank_without_an_answer_keeps_its_part, RANKS, 11)
{
    ek_communication *communication = world->communication;
    char path[96];
    if (world->rank == 1) {
        ek_saving *saving = ek_calloc(1, sizeof *saving);
        saving->group = world;
        saving->in_parts = true;
        saving->path = ek_strdup(set_path(path, ""));
        saving->file = ek_set_part_path(path, (ek_set_parts){.count = RANKS}, 1);
        saving->content = (ek_bytes){ek_strdup("part"), 4};
        ek_dist_work *work = ek_saving_new_work(saving);
        pthread_mutex_lock(&communication->lock);
        communication->failure.error = (ek_error_record){.status = EK_E_BACKEND, .message = "gone"};
        communication->broken = true;
        pthread_mutex_unlock(&communication->lock);
        ek_saving_start(saving);
        RANKS_EXPECT(ek_dist_wait(work), EK_E_BACKEND, "gone");
        pthread_mutex_lock(&communication->lock);
        communication->failure.error = (ek_error_record){.status = 0};
        communication->broken = false;
        pthread_mutex_unlock(&communication->lock);
        LOOP_CHECK(files_in_directory() == 1);
    }
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}

/* A directory in the place of a rank's part stands for a disk that is full. */
RANKS_TEST(the_error_of_a_rank_is_told_to_all_and_the_older_set_stays, RANKS, 7)
{
    char path[128];
    RANKS_OK(save(world, 1, 0, NULL));
    snprintf(path, sizeof path, "%s/run.1-00002-of-00003.safetensors", directory);
    if (world->rank == 1)
        LOOP_CHECK(mkdir(path, 0700) == 0);
    RANKS_OK(ek_dist_barrier(.group = world));
    for (int async = 0; async < 2; async++) {
        ek_dist_work *work = NULL;
        int rc = save(world, 2, 0, async ? &work : NULL);
        rc = work ? ek_dist_wait(work) : rc;
        if (world->rank == 1)
            RANKS_EXPECT(rc, EK_E_IO, "run.1-00002-of-00003.safetensors");
        else
            RANKS_EXPECT(rc, EK_E_ABORTED, "rank 1 on ");
        RANKS_OK(ek_dist_barrier(.group = world));
        LOOP_CHECK(load() == 1);
        LOOP_CHECK(files_in_directory() == RANKS + 2); /* nothing of the failed save is left */
        RANKS_OK(ek_dist_barrier(.group = world));
    }
    if (world->rank == 1)
        LOOP_CHECK(rmdir(path) == 0);
    RANKS_OK(save(world, 3, 0, NULL));
    RANKS_OK(ek_dist_barrier(.group = world));
    LOOP_CHECK(load() == 3);
    return NULL;
}

RANKS_TEST(archives_that_differ_are_refused, RANKS, 8)
{
    char path[96];
    ek_archive *archive = ek_archive_new();
    training t = training_of(1);
    if (world->rank < 2)
        RANKS_OK(put(archive, &t, 0, 1));
    RANKS_EXPECT(ek_dist_archive_save(archive, set_path(path, ""), 0, world, .parts = true),
                 EK_E_STATE, "tensors that are divided over ranks, that of rank 2 0; each rank");
    int rc = ek_dist_archive_save(archive, "/tmp/x.pth", 0, .group = world, .parts = true);
    LOOP_CHECK(rc < 0 && strstr(ek_error_message(), "would be a file of torch.save"));
    ek_error_clear();
    ek_archive_free(archive);
    training_free(&t);
    return NULL;
}

/* One file, which a thread of rank 1 writes. */
RANKS_TEST(a_single_file_is_written_beside_the_program, RANKS, 9)
{
    char path[96];
    int64_t rank = -1;
    ek_dist_work *work;
    ek_archive *archive = ek_archive_new();
    RANKS_OK(ek_archive_put(archive, "rank", ek_value_of_int(world->rank)));
    RANKS_OK(ek_dist_archive_save(world->rank == 1 ? archive : NULL,
                                  world->rank == 1 ? set_path(path, "") : NULL, 1, world,
                                  .work = &work));
    ek_archive_free(archive);
    RANKS_OK(ek_dist_wait(work));
    archive = ek_archive_open(set_path(path, ""));
    RANKS_OK(ek_archive_get_int(archive, "rank", &rank));
    ek_archive_free(archive);
    LOOP_CHECK(rank == 1 && files_in_directory() == 1);
    return NULL;
}

/* ---- Hugging Face's layout ---- */

static void fill_from(ek_module *net, const char *name, double first)
{
    ek_tensor *tensor = ek_module_tensor(net, name);
    float values[8];
    for (int i = 0; i < ek_count(tensor); i++)
        values[i] = (float)(first + i);
    ek_set_data(tensor, values, (size_t)ek_count(tensor) * sizeof *values);
}

static bool is_golden(const char *name)
{
    static char bytes[2][1 << 12];
    char path[512];
    snprintf(path, sizeof path, EK_GOLDEN_DIR "/set/%s", name);
    size_t nbytes = read_file(path, bytes[0], sizeof bytes[0]);
    return nbytes > 0 && read_file(path_of(name), bytes[1], sizeof bytes[1]) == nbytes &&
           memcmp(bytes[0], bytes[1], nbytes) == 0;
}

/* The files that tests/golden/make_set.py reads by Python's safetensors. */
RANKS_TEST(sets_are_those_that_python_reads, 2, 10)
{
    char path[96];
    ek_archive *archive = ek_archive_new();
    ek_module *net = ek_sequential(ek_linear(3, 2), ek_linear(2, 1));
    fill_from(net, "0.weight", 0);
    fill_from(net, "0.bias", 10);
    fill_from(net, "1.weight", 20);
    fill_from(net, "1.bias", 30);
    strcpy(world->communication->hosts[0], "h1");
    strcpy(world->communication->hosts[1], "h2");
    ek_archive_put_module(archive, "", net);
    ek_archive_put(archive, "step", ek_value_of_int(5));
    ek_archive_put_text(archive, "note", "text");
    RANKS_OK(ek_dist_archive_save(archive, set_path(path, ""), 0, world, .parts = true));
    ek_archive_free(archive);
    ek_module_free(net);
    if (world->rank == 0) {
        LOOP_CHECK(is_golden("run-00001-of-00002.safetensors"));
        LOOP_CHECK(is_golden("run-00002-of-00002.safetensors"));
        LOOP_CHECK(is_golden("run.safetensors.index.json"));
    }
    return NULL;
}

/* ---- kills ---- */

static const char *save_for_ever(ek_process_group *world, void *user)
{
    (void)user;
    for (int i = 1;; i++) {
        ek_dist_work *work = NULL;
        ek_scope scope = ek_scope_begin();
        RANKS_OK(save(world, i, i % RANKS, i % 2 ? &work : NULL));
        RANKS_OK(ek_dist_wait(work));
        ek_scope_end(&scope);
    }
}

/* Whoever is killed at any moment leaves a whole set, the older one or the new one. */
TEST(a_job_that_is_killed_leaves_a_whole_set)
{
    double last = 0;
    for (int kill_number = 0; kill_number < 30; kill_number++) {
        pid_t job = fork();
        if (job == 0) {
            ranks_check(RANKS, 0, save_for_ever, NULL);
            _exit(1);
        }
        const long wait = (kill_number < 5 ? 300000000L : 20000000L) + kill_number * 7919993L;
        nanosleep(&(struct timespec){0, wait}, NULL);
        kill(job, SIGKILL);
        ck_assert_int_eq(waitpid(job, NULL, 0), job);
        pid_t reader = fork();
        if (reader == 0) {
            double value = load();
            ek_shutdown();
            _exit(value > 0 ? 0 : access(path_of("run.safetensors.index.json"), F_OK) == 0);
        }
        int status = -1;
        ck_assert_int_eq(waitpid(reader, &status, 0), reader);
        ck_assert_int_eq(status, 0);
        last += access(path_of("run.safetensors.index.json"), F_OK) == 0;
    }
    ck_assert(last > 0); /* there were sets */
}

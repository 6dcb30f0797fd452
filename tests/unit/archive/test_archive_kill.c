/* test_archive_kill.c: whoever is killed while saving leaves one of the two states, whole.
 *
 * The test's own process never uses the library: threads don't outlive a fork. One child saves
 * until it is killed, another one looks. */
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "archive_setup.h"

/* Where the disk is not waited for, if there is such a place: who is killed need not fear for the
 * power. */
static void make_fast_directory(void)
{
    static char fast[] = "/dev/shm/evenkeel-archive-XXXXXX";
    if (mkdtemp(fast)) {
        snprintf(directory, sizeof directory, "%s", fast);
        snprintf(file_path, sizeof file_path, "%s/file", directory);
    } else {
        make_directory();
    }
}

FIXTURE(make_fast_directory, remove_directory)
OWN_PROCESSES /* children of a process with threads could not use the library */

    /* A state: tensors "0", "1", ... of `size` numbers, all of which are `value` and its number. */
    typedef struct states {
    int tensors;
    int64_t size;
} states;

static const states small = {40, 16}, large = {4, 1 << 18};

static int put_state(ek_archive *a, const states *of, int value)
{
    float *data = malloc((size_t)of->size * sizeof *data);
    int rc = data ? ek_archive_put(a, "value", ek_value_of_int(value)) : -1;
    for (int t = 0; t < of->tensors && rc == 0; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensors.%d", t);
        for (int64_t i = 0; i < of->size; i++)
            data[i] = (float)(100 * value + t);
        rc = ek_archive_put(a, name, EK_VALUE(ek_from_data(data, EK_SHAPE(of->size))));
    }
    free(data);
    return rc;
}

static int save_state(const states *of, int value)
{
    ek_scope scope = ek_scope_begin();
    ek_archive *a = ek_archive_new();
    int rc = put_state(a, of, value);
    if (rc == 0)
        rc = ek_archive_save(a, file_path);
    ek_archive_free(a);
    ek_scope_end(&scope);
    return rc;
}

/* The value of a file that is whole; -1 if it is not. */
static int whole_value(const states *of)
{
    int64_t value = -1;
    ek_archive *a = ek_archive_open(file_path);
    if (ek_archive_get_int(a, "value", &value) < 0)
        return -1;
    for (int t = 0; t < of->tensors; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensors.%d", t);
        const ek_tensor *tensor = ek_archive_tensor(a, name, NULL);
        if (!tensor || ek_tensor_count(tensor) != of->size)
            return -1;
        const float *data = ek_tensor_data(tensor);
        for (int64_t i = 0; i < of->size; i++)
            if (data[i] != (float)(100 * value + t))
                return -1;
    }
    ek_archive_free(a);
    return (int)value;
}

/* Until it is killed; tells `ready` when the first state is saved. */
static void save_for_ever(const states *of, int ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (save_state(of, 1) < 0 || write(ready, "r", 1) != 1)
        _exit(1);
    for (int i = 0;; i++)
        if (save_state(of, 2 - i % 2) < 0)
            _exit(1);
}

static pid_t start(const states *of)
{
    int ends[2];
    char letter;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        save_for_ever(of, ends[1]);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &letter, 1), 1);
    close(ends[0]);
    return child;
}

static int look(const states *of)
{
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int value = whole_value(of);
        _exit(value < 0 ? 99 : value);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Kills while the next few files are saved, however long this machine takes for one; returns how
 * often the second state was there. */
static int kill_often(const states *of, int rounds)
{
    unsigned state = 12345;
    int second = 0;
    for (int i = 0; i < rounds; i++) {
        int status;
        int64_t begun = now_ns();
        pid_t child = start(of);
        int64_t first_save = now_ns() - begun;
        int64_t wait = (int64_t)(4 * (double)first_save * (next_random(&state) % 1000) / 1000);
        struct timespec moment = {wait / 1000000000, wait % 1000000000};
        nanosleep(&moment, NULL);
        kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFSIGNALED(status), "saving failed");
        int value = look(of);
        ck_assert_msg(value == 1 || value == 2, "round %d: the file is not whole", i);
        second += value == 2;
    }
    return second;
}

TEST_LOOP(killed_savers_leave_a_whole_file, 0, 2)
{
    int rounds = test_is_short() ? 5 : _i ? 50 : 150;
    int second = kill_often(_i ? &large : &small, rounds);
    if (!test_is_short())
        ck_assert_msg(second > 0 && second < rounds, "the second state %d of %d times", second,
                      rounds);
    /* Renaming is a moment among many where much is written; small files are about to be renamed
     * in a good part of the time. */
    int litter = files_in_directory() - 1;
    ck_assert_msg(_i == 0 || litter <= 5, "%d temporary files are left", litter);
    DIR *list = opendir(directory);
    for (struct dirent *entry; (entry = readdir(list));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", directory, entry->d_name);
        if (strncmp(entry->d_name, ".evenkeel-", 10) == 0)
            unlink(name);
    }
    closedir(list);
}

/* ---- systems that cannot do all ---- */

/* From now on this process gets `error` from the system call. */
static void forbid(int call, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

/* 0: links are forbidden. 1: /proc cannot be seen, so that the file has a name from the start. An
 * old file's permissions stay. */
static void save_restricted(int which)
{
#ifdef SYS_access
    enum { ASKS_FOR_A_FILE = SYS_access };
#else /* newer architectures have one call for both of the C library's functions */
    enum { ASKS_FOR_A_FILE = SYS_faccessat };
#endif
    if (which == 1)
        forbid(ASKS_FOR_A_FILE, ENOENT);
    else
        forbid(SYS_linkat, EPERM);
    if (save_state(&large, 1) < 0 || whole_value(&large) != 1)
        _exit(1);
    struct stat about;
    if (chmod(file_path, 0604) != 0 || save_state(&small, 2) < 0 || whole_value(&small) != 2 ||
        stat(file_path, &about) != 0 || (about.st_mode & 07777) != 0604)
        _exit(2);
    _exit(0);
}

TEST_LOOP(restricted_systems_can_save, 0, 2)
{
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        save_restricted(_i);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) != 77) /* filters are not to be had everywhere */
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert_int_le(files_in_directory(), 1);
}

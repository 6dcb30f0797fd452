/* spawn.c: ek_spawn, which starts this program again by mpirun. The new processes run up to the
 * same call.
 *
 * A mark in the environment tells the new processes which call of ek_spawn has started them, and
 * the folder for their messages. A message is a file: "began.<rank>" if a rank has reached the
 * call; "cause", the error of a rank that failed alone; "consequence", the error of a rank that
 * failed because of another rank; "ended", the exit status of the first process that did not end
 * well. The shell that each process runs under outlives the process and writes "ended". Files are
 * made exclusively, so that the first message of a name stays. */
#include "evenkeel/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/thread.h"
#include "evenkeel/dist.h"
#include "launch/launcher.h"

/* The environment variable that is the mark. Its value is "<number of the call>:<folder>". */
#define SPAWN_MARK "EVENKEEL_SPAWN"

enum { SPAWN_FOLDER = 256, SPAWN_PATH = SPAWN_FOLDER + 32, SPAWN_TEXT = 1200 };
enum { SPAWN_SIGNALLED = 128 }; /* a shell reports signal n as status 128 + n */

static const double spawn_grace = 3; /* seconds that other ranks have to end after one has failed */

static int spawn_calls; /* calls of ek_spawn so far; by one thread at a time */

/* ---- words between the processes ---- */

static const char *spawn_path(const char *folder, const char *name, char path[SPAWN_PATH])
{
    snprintf(path, SPAWN_PATH, "%s/%s", folder, name);
    return path;
}

/* Writes a message in one piece. If a message of this name exists, that message stays. */
static void spawn_leave_word(const char *folder, const char *name, const char *text)
{
    char path[SPAWN_PATH];
    int file = ek_open(spawn_path(folder, name, path), O_WRONLY | O_CREAT | O_EXCL);
    if (file < 0)
        return;
    ssize_t written = write(file, text, strlen(text));
    (void)written; /* an empty file, as on a full disk, counts as no message */
    close(file);
}

static bool spawn_read_word(const char *folder, const char *name, char text[SPAWN_TEXT])
{
    char path[SPAWN_PATH];
    int file = ek_open(spawn_path(folder, name, path), O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, text, SPAWN_TEXT - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static bool spawn_has_word(const char *folder, const char *name)
{
    char path[SPAWN_PATH];
    return access(spawn_path(folder, name, path), F_OK) == 0;
}

static const char *spawn_began(int rank, char name[32])
{
    snprintf(name, 32, "began.%d", rank);
    return name;
}

/* ---- a new process ---- */

typedef struct spawn_mark {
    int call; /* 0: this process was not spawned */
    char folder[SPAWN_FOLDER];
    bool running; /* this process has begun to run the function that it was spawned for */
} spawn_mark;

static spawn_mark spawn_self;

/* Reads the mark before main. The process then ends with the shell that it runs under, and
 * processes that it starts have no mark. */
__attribute__((constructor)) static void spawn_read_mark(void)
{
    const char *text = getenv(SPAWN_MARK);
    char *folder;
    if (!text)
        return;
    long call = strtol(text, &folder, 10);
    if (call > 0 && call < 1 << 30 && *folder == ':' && strlen(folder) <= SPAWN_FOLDER) {
        spawn_self.call = (int)call;
        snprintf(spawn_self.folder, sizeof spawn_self.folder, "%s", folder + 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    unsetenv(SPAWN_MARK);
}

_Noreturn static void spawn_fail(int rank)
{
    char text[SPAWN_TEXT];
    snprintf(text, sizeof text, "%d %d %s", rank, ek_error_status(), ek_error_message());
    spawn_leave_word(spawn_self.folder, ek_dist_error_rank() < 0 ? "cause" : "consequence", text);
    ek_dist_raise();
    exit(EXIT_FAILURE);
}

/* Runs the function as the rank that the launcher gave this process, and ends the process. */
_Noreturn static void spawn_run(const ek_spawn_options *options)
{
    char name[32];
    ek_launched launched;
    spawn_self.running = true;
    if (ek_launcher_find(&launched) < 0)
        spawn_fail(0);
    spawn_leave_word(spawn_self.folder, spawn_began(launched.rank, name), "");
    if (ek_error_outcome(options->function(launched.rank, options->user)) < 0 || ek_shutdown() < 0)
        spawn_fail(launched.rank);
    exit(EXIT_SUCCESS);
}

/* ---- starting ---- */

struct ek_spawned {
    pid_t pid; /* of mpirun */
    int nprocs;
    char folder[SPAWN_FOLDER];
    uint64_t failed_at; /* ek_clock_ns() when a failed rank was first seen; 0: none was seen */
    int signalled;      /* the last signal that mpirun was sent */
};

/* The arguments of a command. `text` has the characters of this program's own arguments. */
typedef struct spawn_command {
    char **arguments;
    char *text;
} spawn_command;

/* Returns this program's arguments, each with a zero byte at its end, in memory that the caller
 * frees. NULL with an error. */
static char *spawn_read_arguments(size_t *nbytes)
{
    static const char path[] = "/proc/self/cmdline";
    FILE *stream = fopen(path, "re");
    char *text = NULL;
    size_t length = 0, room = 0;
    if (!stream) {
        ek_file_fail("spawn", "open", path);
        return NULL;
    }
    do {
        char *more = ek_realloc(text, room += 4096);
        if (!more) {
            free(text);
            fclose(stream);
            return NULL;
        }
        text = more;
        length += fread(text + length, 1, room - length - 1, stream);
    } while (length == room - 1);
    fclose(stream);
    text[length] = '\0';
    *nbytes = length;
    return text;
}

/* Each process runs under this shell, which writes the message "ended" if the process fails. If the
 * process that called ek_spawn ($caller is its id) has ended by then, the shell removes the folder.
 * HUP, INT and TERM don't end the shell, which waits for the process. */
static const char spawn_shell[] =
    "trap : HUP INT TERM\n"
    "folder=$1 caller=$2; shift 2\n"
    "exec 3>&2 2>/dev/null # the shell itself is silent\n"
    "(exec \"$@\" 2>&3 3>&-)\n"
    "status=$?\n"
    "[ $status = 0 ] || (set -C; echo \"${OMPI_COMM_WORLD_RANK-$PMI_RANK} $status\" "
    ">\"$folder/ended\")\n"
    "[ -e /proc/$caller ] && ! grep -q '^State:.Z' /proc/$caller/status || rm -rf \"$folder\"\n"
    "exit $status\n";

/* Makes the command: mpirun -n N sh -c ... folder caller program argument... */
static int spawn_command_make(spawn_command *command, char *mpirun, char count[16], char *program,
                              char *folder, char caller[16])
{
    static char n[] = "-n", sh[] = "/bin/sh", c[] = "-c", name[] = "sh";
    char *begin[] = {mpirun, n,      count,  sh,     c, (char *)(uintptr_t)spawn_shell,
                     name,   folder, caller, program};
    enum { BEGIN = sizeof begin / sizeof begin[0] };
    size_t nbytes = 0, given = 0;
    command->text = spawn_read_arguments(&nbytes);
    if (!command->text)
        return ek_error_pending();
    for (size_t i = 0; i < nbytes; i++)
        given += command->text[i] == '\0';
    command->arguments = ek_calloc(BEGIN + given + 1, sizeof *command->arguments);
    if (!command->arguments)
        return ek_error_pending();
    memcpy(command->arguments, begin, sizeof begin);
    char *at = command->text + strlen(command->text) + 1; /* after the program's name */
    for (size_t i = BEGIN; at < command->text + nbytes; at += strlen(at) + 1)
        command->arguments[i++] = at;
    return 0;
}

/* Executes the command in the child of a fork. The child of a process with threads may only make
 * system calls. */
_Noreturn static void spawn_execute(const spawn_command *command, char *const *environment,
                                    pid_t parent, bool daemon)
{
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    if (daemon) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(EXIT_FAILURE);
    }
    execve(command->arguments[0], command->arguments, environment);
    _exit(127);
}

static int spawn_execute_in_child(ek_spawned *spawned, bool daemon)
{
    char mpirun[EK_MPIRUN_PATH], program[EK_MPIRUN_PATH], mark[SPAWN_PATH + 32], count[16],
        caller[16];
    spawn_command command = {0};
    char **environment = NULL;
    EK_TRY(ek_mpirun_find(spawned->nprocs, mpirun));
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return ek_file_fail("spawn", "read", "/proc/self/exe");
    program[length] = '\0';
    snprintf(count, sizeof count, "%d", spawned->nprocs);
    snprintf(caller, sizeof caller, "%ld", (long)getpid());
    snprintf(mark, sizeof mark, SPAWN_MARK "=%d:%s", spawn_calls, spawned->folder);
    int rc = spawn_command_make(&command, mpirun, count, program, spawned->folder, caller);
    if (rc >= 0 && !(environment = ek_mpirun_environment(mark)))
        rc = ek_error_pending();
    if (rc >= 0) {
        const pid_t self = getpid();
        fflush(NULL);
        spawned->pid = fork();
        if (spawned->pid == 0)
            spawn_execute(&command, environment, self, daemon);
        if (spawned->pid < 0)
            rc = EK_FAIL(EK_E_BACKEND, "spawn: no new process can be made: %s", strerror(errno));
    }
    free(environment);
    free(command.arguments);
    free(command.text);
    return rc;
}

static void spawn_free(ek_spawned *spawned)
{
    static const char *const words[] = {"cause", "consequence", "ended"};
    char path[SPAWN_PATH], name[32];
    for (int i = 0; i < 3; i++)
        unlink(spawn_path(spawned->folder, words[i], path));
    for (int r = 0; r < spawned->nprocs; r++)
        unlink(spawn_path(spawned->folder, spawn_began(r, name), path));
    rmdir(spawned->folder);
    free(spawned);
}

static ek_spawned *spawn_start(int nprocs, bool daemon)
{
    ek_spawned *spawned = ek_calloc(1, sizeof *spawned);
    if (!spawned)
        return NULL;
    const char *parent = secure_getenv("TMPDIR");
    if (!parent || !*parent || strlen(parent) > SPAWN_FOLDER - 32)
        parent = "/tmp";
    spawned->nprocs = nprocs;
    snprintf(spawned->folder, sizeof spawned->folder, "%s/evenkeel-spawn-XXXXXX", parent);
    if (!mkdtemp(spawned->folder)) {
        ek_file_fail("spawn", "make", spawned->folder);
        free(spawned);
        return NULL;
    }
    if (spawn_execute_in_child(spawned, daemon) >= 0)
        return spawned;
    spawn_free(spawned);
    return NULL;
}

/* ---- waiting ---- */

/* Fails with the rank, status and sentence in the message `name` ("cause" or "consequence").
 * Returns 0 if there is no message of this name, or if it lacks a rank or a negative status. */
static int spawn_fail_of_word(const char *folder, const char *name)
{
    char text[SPAWN_TEXT];
    int rank, status, length = 0;
    if (!spawn_read_word(folder, name, text) ||
        sscanf(text, "%d %d %n", &rank, &status, &length) < 2 || status >= 0)
        return 0;
    return EK_FAIL(status, "rank %d: %s", rank, text + length);
}

/* Returns the outcome of processes that have ended. `status` is mpirun's, from waitpid. */
static int spawn_outcome(const ek_spawned *spawned, int status)
{
    char text[SPAWN_TEXT], name[32];
    int rank = -1, code = 0;
    if (spawn_read_word(spawned->folder, "ended", text))
        sscanf(text, "%d %d", &rank, &code);
    if (code > SPAWN_SIGNALLED)
        return EK_FAIL(EK_E_ABORTED, "spawn: rank %d was ended by signal %d", rank,
                       code - SPAWN_SIGNALLED);
    EK_TRY(spawn_fail_of_word(spawned->folder, "cause"));
    EK_TRY(spawn_fail_of_word(spawned->folder, "consequence"));
    if (code)
        return EK_FAIL(EK_E_ABORTED, "spawn: rank %d ended with status %d", rank, code);
    if (WIFSIGNALED(status))
        return EK_FAIL(EK_E_ABORTED, "spawn: mpirun was ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status))
        return EK_FAIL(EK_E_BACKEND, "spawn: mpirun ended with status %d", WEXITSTATUS(status));
    for (int r = 0; r < spawned->nprocs; r++)
        if (!spawn_has_word(spawned->folder, spawn_began(r, name)))
            return EK_FAIL(EK_E_STATE,
                           "spawn: main ended on rank %d before it came to this call of ek_spawn; "
                           "it has to take the same way in every process",
                           r);
    return 0;
}

/* Returns 1 and mpirun's *status if mpirun has ended, else 0. If a process has failed, but mpirun
 * does not end, sends mpirun SIGTERM after spawn_grace seconds, and SIGKILL after twice as long. */
static int spawn_poll(ek_spawned *spawned, int *status)
{
    *status = 0;
    pid_t ended = waitpid(spawned->pid, status, WNOHANG);
    /* ECHILD: other code of the program has taken the status. */
    if (ended == spawned->pid || (ended < 0 && errno == ECHILD))
        return 1;
    if (!spawned->failed_at && spawn_has_word(spawned->folder, "ended"))
        spawned->failed_at = ek_clock_ns();
    if (!spawned->failed_at)
        return 0;
    double since = (double)(ek_clock_ns() - spawned->failed_at) * 1e-9;
    int wanted = since > 2 * spawn_grace ? SIGKILL : since > spawn_grace ? SIGTERM : 0;
    if (wanted != spawned->signalled) {
        kill(spawned->pid, wanted);
        spawned->signalled = wanted;
    }
    return 0;
}

int ek_spawn_join(ek_spawned *spawned, double seconds)
{
    const uint64_t begin = ek_clock_ns();
    int status;
    if (!spawned)
        return 1;
    EK_TRY(ek_fork_check());
    for (long nap = 1000000; !spawn_poll(spawned, &status);) {
        if (seconds >= 0 && (double)(ek_clock_ns() - begin) * 1e-9 >= seconds)
            return 0;
        nanosleep(&(struct timespec){0, nap}, NULL);
        nap = nap < 16000000 ? 2 * nap : nap;
    }
    int rc = spawn_outcome(spawned, status);
    spawn_free(spawned);
    return rc < 0 ? rc : 1;
}

/* ---- the call ---- */

static int spawn_count(const ek_spawn_options *options)
{
    int count = options->nprocs;
    if (count == EK_UNSET)
        EK_TRY(count = ek_device_count(ek_default_device_kind()));
    if (count < 1 || count > 1 << 20)
        return EK_FAIL(EK_E_INVALID, "spawn: %d processes; at least one is needed", count);
    return count;
}

/* Runs the function in this process. A world that the function has joined ends afterwards, as it
 * would end with a spawned process. */
static int spawn_call_here(const ek_spawn_options *options)
{
    bool joined = ek_dist_is_initialized();
    spawn_self.running = true;
    int rc = ek_error_outcome(options->function(0, options->user));
    spawn_self.running = false;
    int left = joined ? 0 : ek_dist_destroy_process_group(NULL);
    return rc < 0 ? rc : left;
}

/* Returns EK_E_STATE if a launcher, and not ek_spawn, has started this process as one of several.
 */
static int spawn_check_launcher(void)
{
    ek_launched launched;
    if (spawn_self.call)
        return 0;
    EK_TRY(ek_launcher_find(&launched));
    if (!launched.several)
        return 0;
    return EK_FAIL(
        EK_E_STATE,
        "spawn: a launcher has started this process as rank %d of several (%s); start the "
        "program once, without a launcher: ek_spawn starts the ranks",
        launched.rank, launched.rank_variable);
}

int ek_spawn_with(ek_spawn_options options)
{
    EK_TRY(ek_fork_check());
    EK_TRY(ek_check_pointer("spawn", "function", (const void *)(uintptr_t)options.function));
    if (!options.join && !options.result)
        return EK_FAIL(EK_E_INVALID, "spawn: result is NULL; without .join it takes what "
                                     "ek_spawn_join needs");
    if (options.result)
        *options.result = NULL;
    if (spawn_self.running)
        return EK_FAIL(EK_E_STATE, "spawn: a spawned function cannot spawn");
    EK_TRY(spawn_check_launcher());
    spawn_calls++;
    if (spawn_self.call == spawn_calls)
        spawn_run(&options);
    if (spawn_self.call > spawn_calls) /* the spawning process has made this call already */
        return 0;
    int count = spawn_count(&options);
    if (count <= 1)
        return count < 0 ? count : spawn_call_here(&options);
    ek_spawned *spawned = spawn_start(count, options.join || options.daemon);
    if (!spawned)
        return ek_error_pending();
    if (!options.join) {
        *options.result = spawned;
        return 0;
    }
    int rc = ek_spawn_join(spawned, -1);
    return rc < 0 ? rc : 0;
}

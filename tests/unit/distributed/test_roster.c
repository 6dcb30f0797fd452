/* Which processes of a job have come, as one of them sees it: this test is the launcher of copies
 * of itself, which a variable tells what to be. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launcher.h"
#include "unit.h"

enum { MOST = 16 };
static const char *const rank_variable = "EK_TEST_RANK", *const role_variable = "EK_TEST_ROLE";

/* Before main. */
__attribute__((constructor)) static void play_role(void)
{
    const char *role = getenv("EK_TEST_ROLE");
    int size = 0, local_size = 0;
    if (!role)
        return;
    if (strcmp(role, "stay") != 0)
        prctl(PR_SET_NAME, EK_COMMUNICATION_THREAD);
    if (sscanf(role, "describe %d %d", &size, &local_size) == 2) {
        ek_launched launched = {.several = true,
                                .size = size,
                                .local_size = local_size,
                                .rank_variable = rank_variable};
        char text[800];
        bool ended = ek_roster_describe(&launched, text, sizeof text);
        printf("%s", text);
        fflush(stdout);
        _exit(ended);
    }
    putchar('.');
    fflush(stdout);
    pause();
    _exit(0);
}

static char *nodes; /* a further variable of the job's processes, which names machines */

/* Starts a process of the job; its output comes from *out. */
static pid_t start(int rank, const char *role, int *out)
{
    char rank_setting[64], role_setting[64],
        *environment[] = {rank_setting, role_setting, nodes, NULL};
    char *arguments[] = {(char[]){"rank"}, NULL};
    int ends[2];
    snprintf(rank_setting, sizeof rank_setting, "%s=%d", rank_variable, rank);
    snprintf(role_setting, sizeof role_setting, "%s=%s", role_variable, role);
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (strcmp(role, "shell") == 0)
            execve("/bin/sh",
                   (char *[]){(char[]){"sh"}, (char[]){"-c"}, (char[]){"echo; exec sleep 100"},
                              NULL},
                   environment);
        else
            execve("/proc/self/exe", arguments, environment);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    close(ends[1]);
    *out = ends[0];
    return pid;
}

/* A job of `size` ranks, `local_size` of them here. Rank 0 says who has not come, and whether one
 * of them has ended. */
typedef struct job {
    const char *roles[MOST]; /* of rank 1 on: "come", "stay", "stop"; NULL: it has ended */
    int size, local_size;
} job;

static bool describe(const job *j, pid_t *pids, char *text, size_t room)
{
    char role[64], dot;
    int out;
    for (int r = 1; r < MOST; r++) {
        pids[r] = 0;
        if (!j->roles[r - 1])
            continue;
        bool stops = strcmp(j->roles[r - 1], "stop") == 0;
        pids[r] = start(r, stops ? "come" : j->roles[r - 1], &out);
        ck_assert_int_eq(read(out, &dot, 1), 1);
        close(out);
        if (stops) {
            kill(pids[r], SIGSTOP);
            ck_assert_int_eq(waitpid(pids[r], NULL, WUNTRACED), pids[r]);
        }
    }
    snprintf(role, sizeof role, "describe %d %d", j->size, j->local_size);
    pids[0] = start(0, role, &out);
    size_t length = 0;
    for (ssize_t got; (got = read(out, text + length, room - 1 - length)) > 0;)
        length += (size_t)got;
    text[length] = '\0';
    close(out);
    int status;
    ck_assert_int_eq(waitpid(pids[0], &status, 0), pids[0]);
    ck_assert(WIFEXITED(status));
    for (int r = 1; r < MOST; r++)
        if (pids[r]) {
            kill(pids[r], SIGKILL);
            waitpid(pids[r], NULL, 0);
        }
    return WEXITSTATUS(status);
}

/* The sentence begins with the text, in which @ stands for the machine, and # for the process of
 * rank 1. */
static void expect(job j, const char *wanted)
{
    char text[800], sentence[800] = "", host[64] = "";
    pid_t pids[MOST];
    bool ended = describe(&j, pids, text, sizeof text);
    gethostname(host, sizeof host - 1);
    for (size_t at = 0; *wanted; wanted++, at = strlen(sentence)) {
        if (*wanted == '@')
            snprintf(sentence + at, sizeof sentence - at, "%s", host);
        else if (*wanted == '#')
            snprintf(sentence + at, sizeof sentence - at, "%d", (int)pids[1]);
        else
            snprintf(sentence + at, sizeof sentence - at, "%c", *wanted);
    }
    ck_assert_str_eq(text, sentence);
    ck_assert_int_eq(ended, strstr(sentence, "ended") != NULL);
}

TEST(who_has_not_come_is_named)
{
    expect((job){{"stay", "come"}, 3, 3}, "rank 1 on @ has not called it (process #)");
    expect((job){{"stop"}, 3, 3}, "rank 1 on @ is stopped (process #); rank 2 on @ has ended");
    expect((job){{"shell"}, 2, 2}, "rank 1 on @ has not called it (process #, sleep)");
    expect((job){{"stay", "come"}, 5, 3}, "rank 1 on @ has not called it (process #)");
}

TEST(what_cannot_be_seen_is_counted)
{
    expect((job){{"come"}, 2, 2}, "all ranks have called it, but MPI does not connect them");
    expect((job){{"come"}, 6, 2}, "ranks 0, 1 on @ have called it; look at ranks 2-5 on the other "
                                  "machines, and at the network between them");
    expect((job){{0}, 2, 1}, "rank 0 on @ has called it; look at rank 1 on the other machines, and "
                             "at the network between them");
    nodes = (char[]){"OMPI_MCA_orte_node_regex=h[1:1-3],g[2:08]@0(3)"};
    expect((job){{[3] = "come"}, 6, 2},
           "ranks 0, 4 on @ have called it; look at ranks 1-3, 5 on the "
           "other machines of h[1-3],g[08], and at the network between "
           "them");
    nodes = NULL;
    expect((job){{"come"}, 5, 3}, "1 of the 3 processes on @ have ended");
    expect((job){{0}, 0, 0}, "not all processes of the job have called it");
}

TEST(many_are_counted)
{
    expect(
        (job){{0}, 11, 11},
        "rank 1 on @ has ended; rank 2 on @ has ended; rank 3 on @ has ended; rank 4 on @ has "
        "ended; rank 5 on @ has ended; rank 6 on @ has ended; rank 7 on @ has ended; rank 8 on @ "
        "has ended; and 2 more");
}

/* roster.c: finds in /proc which processes of the job have come. */
#include "launch/launcher.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

enum {
    ROSTER_ENVIRONMENT = 1 << 18, /* bytes of a process's environment that are read */
    ROSTER_ANCESTORS = 64,
    ROSTER_NAMED = 8 /* how many ranks are named */
};

/* What /proc shows of a rank. Helpers of the rank's process, such as a shell, have the same
 * environment. Of the processes with a rank, one that has come is preferred, then one that runs
 * this program. */
typedef struct roster_rank {
    int pid; /* 0: no process was seen */
    bool alike, has_come, is_stopped;
} roster_rank;

typedef struct roster {
    const ek_launched *launched;
    char *environment; /* room for the environment of a process */
    char program[512]; /* the program of this process */
    int launcher;      /* the process id of the launcher */
    roster_rank *ranks;
} roster;

/* ---- one process ---- */

/* Reads /proc/<pid>/<name> and appends a zero byte. Returns the length, or 0 if the file cannot be
 * read. */
static size_t roster_read(int pid, const char *name, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%.40s", pid, name);
    FILE *stream = fopen(path, "re");
    size_t length = stream ? fread(text, 1, room - 1, stream) : 0;
    if (stream)
        fclose(stream);
    text[length] = '\0';
    return length;
}

/* Returns the rank that the launcher has given the process, or -1. */
static int roster_rank_of(const roster *self, int pid)
{
    const char *name = self->launched->rank_variable;
    size_t length = roster_read(pid, "environ", self->environment, ROSTER_ENVIRONMENT);
    for (const char *at = self->environment; at < self->environment + length; at += strlen(at) + 1)
        if (strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == '=')
            return (int)strtol(at + strlen(name) + 1, NULL, 10);
    return -1;
}

/* Returns the process's parent and the letter of its state, or 0 if the process has ended. */
static int roster_parent(int pid, char *state)
{
    char text[512];
    int parent = 0;
    roster_read(pid, "stat", text, sizeof text);
    const char *after = strrchr(text, ')'); /* the program's name before ')' may contain anything */
    return after && sscanf(after, ") %c %d", state, &parent) == 2 ? parent : 0;
}

/* Returns the first ancestor that has no rank, or 0. */
static int roster_launcher(const roster *self, int pid)
{
    char state;
    for (int i = 0; i < ROSTER_ANCESTORS && pid > 1; i++) {
        pid = roster_parent(pid, &state);
        if (pid > 1 && roster_rank_of(self, pid) < 0)
            return pid;
    }
    return 0;
}

static bool roster_runs(int pid, char program[512])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t length = readlink(path, program, 511);
    program[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static int roster_is_number(const struct dirent *entry)
{
    return isdigit((unsigned char)entry->d_name[0]);
}

/* Lists the entries of a folder that are numbers. Returns how many there are; 0 if the folder
 * cannot be read. */
static int roster_numbers(const char *folder, int **numbers)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, roster_is_number, NULL);
    *numbers = count > 0 ? calloc((size_t)count, sizeof **numbers) : NULL;
    for (int i = 0; i < count; i++) {
        if (*numbers)
            (*numbers)[i] = (int)strtol(entries[i]->d_name, NULL, 10);
        free(entries[i]);
    }
    free(entries);
    return *numbers ? count : 0;
}

static bool roster_has_thread(int pid)
{
    char path[64], name[64];
    int *threads;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    int count = roster_numbers(path, &threads);
    bool found = false;
    for (int i = 0; i < count && !found; i++) {
        snprintf(path, sizeof path, "task/%d/comm", threads[i]);
        roster_read(pid, path, name, sizeof name);
        name[strcspn(name, "\n")] = '\0';
        found = strcmp(name, EK_COMMUNICATION_THREAD) == 0;
    }
    free(threads);
    return found;
}

/* ---- all ---- */

static void roster_note(const roster *self, int pid)
{
    int number = roster_rank_of(self, pid);
    if (number < 0 || number >= self->launched->size ||
        roster_launcher(self, pid) != self->launcher)
        return;
    char program[512], state = 'Z';
    roster_parent(pid, &state);
    roster_rank seen = {.pid = pid,
                        .alike = roster_runs(pid, program) && strcmp(program, self->program) == 0,
                        .has_come = roster_has_thread(pid),
                        .is_stopped = state == 'T' || state == 't'};
    roster_rank *known = &self->ranks[number];
    if (!known->pid || seen.has_come > known->has_come ||
        (seen.has_come == known->has_come && seen.alike > known->alike))
        *known = seen;
}

/* Appends a rank and `what`, which says why the rank is missing, unless ROSTER_NAMED ranks are
 * named already. *said counts the ranks. */
static void roster_say(const roster *self, int number, const char *what, int *said, char *text,
                       size_t room)
{
    char host[64] = "", program[32] = "", process[64] = "";
    const roster_rank *rank = &self->ranks[number];
    size_t at = strlen(text);
    if ((*said)++ >= ROSTER_NAMED)
        return;
    gethostname(host, sizeof host - 1);
    if (rank->pid && !rank->alike) {
        roster_read(rank->pid, "comm", program, sizeof program);
        program[strcspn(program, "\n")] = '\0';
    }
    if (rank->pid)
        snprintf(process, sizeof process, " (process %d%s%s)", rank->pid, *program ? ", " : "",
                 program);
    snprintf(text + at, room - at, "%srank %d on %s %s%s", *said > 1 ? "; " : "", number, host,
             what, process);
}

/* Writes the missing ranks, and begins with what is certain. Returns how many ranks are missing. If
 * a rank's process runs another program, the process may be a helper such as a shell. If a rank has
 * no process, its process may have given up before this rank did. */
static int roster_say_missing(const roster *self, char *text, size_t room)
{
    const ek_launched *launched = self->launched;
    bool whole = launched->local_size == launched->size; /* all ranks are on this machine */
    int said = 0;
    for (int pass = 0; pass < 3; pass++)
        for (int r = 0; r < launched->size; r++) {
            const roster_rank *rank = &self->ranks[r];
            if (!rank->pid ? pass < 2 || !whole : rank->alike ? pass > 0 : pass != 1)
                continue;
            if (!rank->pid)
                roster_say(self, r, "has ended", &said, text, room);
            else if (rank->is_stopped)
                roster_say(self, r, "is stopped", &said, text, room);
            else if (!rank->has_come)
                roster_say(self, r, "has not called it", &said, text, room);
        }
    size_t at = strlen(text);
    if (said > ROSTER_NAMED)
        snprintf(text + at, room - at, "; and %d more", said - ROSTER_NAMED);
    return said;
}

static int roster_count(const roster *self)
{
    int seen = 0;
    for (int r = 0; r < self->launched->size; r++)
        seen += self->ranks[r].pid > 0;
    return seen;
}

/* Appends "rank 3" or "ranks 0, 2-5": the ranks that /proc shows, or if not `shown`, the other
 * ranks. */
static void roster_say_ranks(const roster *self, bool shown, char *text, size_t room)
{
    char list[200] = "";
    int size = self->launched->size, count = 0;
    size_t at = 0;
    for (int r = 0, end; r < size; r = end) {
        for (end = r + 1; end < size && !self->ranks[end].pid == !self->ranks[r].pid;)
            end++;
        if (!self->ranks[r].pid == shown)
            continue;
        if (at > sizeof list - 32) {
            snprintf(list + at, sizeof list - at, ", ..");
            break;
        }
        at += (size_t)snprintf(list + at, sizeof list - at, count > 0 ? ", %d" : "%d", r);
        if (end - r > 1)
            at += (size_t)snprintf(list + at, sizeof list - at, end - r > 2 ? "-%d" : ", %d",
                                   end - 1);
        count += end - r;
    }
    at = strlen(text);
    snprintf(text + at, room - at, count == 1 ? "rank %s" : "ranks %s", list);
}

/* Appends the job's machines, such as " of h[1-3]", if the launcher tells them. Open MPI writes
 * "h[1:1-3]@0(3)", with the digits of a number before ":" and counts of processors after "@". */
static void roster_say_machines(char *text, size_t room)
{
    const char *from = getenv("OMPI_MCA_orte_node_regex");
    if (!from || !*from)
        from = getenv("SLURM_STEP_NODELIST");
    size_t at = strlen(text);
    if (!from || !*from || at + 100 > room) /* 100: room for the sentence's end */
        return;
    at += (size_t)snprintf(text + at, room - at, " of ");
    for (; *from && *from != '@' && at < room - 100; from++) {
        text[at++] = *from;
        size_t digits = *from == '[' ? strspn(from + 1, "0123456789") : 0;
        if (digits > 0 && from[1 + digits] == ':')
            from += digits + 1;
    }
    text[at] = '\0';
}

/* Writes which processes have come or ended. Called if no missing rank can be named. */
static void roster_say_others(const roster *self, char *text, size_t room)
{
    const ek_launched *launched = self->launched;
    char host[64] = "";
    int seen = roster_count(self);
    gethostname(host, sizeof host - 1);
    if (seen == launched->size) {
        snprintf(text, room, "all ranks have called it, but MPI does not connect them");
    } else if (seen < launched->local_size) {
        snprintf(text, room, "%d of the %d processes on %s have ended", launched->local_size - seen,
                 launched->local_size, host);
    } else {
        roster_say_ranks(self, true, text, room);
        size_t at = strlen(text);
        snprintf(text + at, room - at, " on %s %s called it; look at ", host,
                 seen == 1 ? "has" : "have");
        roster_say_ranks(self, false, text, room);
        at = strlen(text);
        snprintf(text + at, room - at, " on the other machines");
        roster_say_machines(text, room);
        at = strlen(text);
        snprintf(text + at, room - at, ", and at the network between them");
    }
}

bool ek_roster_describe(const ek_launched *launched, char *text, size_t room)
{
    size_t ranks = launched->size > 0 ? (size_t)launched->size : 0;
    roster self = {.launched = launched,
                   .environment = malloc(ROSTER_ENVIRONMENT),
                   .ranks = calloc(ranks + 1, sizeof *self.ranks)};
    int *processes = NULL;
    bool ended = false;
    text[0] = '\0';
    if (self.environment && self.ranks && launched->rank_variable && ranks > 0) {
        roster_runs(getpid(), self.program);
        self.launcher = roster_launcher(&self, getpid());
        int count = self.launcher > 0 ? roster_numbers("/proc", &processes) : 0;
        for (int i = 0; i < count; i++)
            roster_note(&self, processes[i]);
        /* If /proc shows this process, it shows the other ranks of this machine too. */
        bool shown = self.ranks[launched->rank].pid;
        ended = shown && roster_count(&self) < launched->local_size;
        if (shown && roster_say_missing(&self, text, room) == 0)
            roster_say_others(&self, text, room);
    }
    if (!text[0])
        snprintf(text, room, "not all processes of the job have called it");
    free(processes);
    free(self.environment);
    free(self.ranks);
    return ended;
}

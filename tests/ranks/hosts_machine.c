/* hosts_machine.c: runs commands on a machine of the script `hosts`, as sshd and ssh do.
 *
 *     machine serve FOLDER               the machine's first process: listens in FOLDER
 *     machine at FOLDER COMMAND...       runs a command on the machine that listens there
 *
 * The client sends five files: its standard files, and the kernel's texts of its arguments and of
 * its environment. Then it sends one byte for each signal that it gets. The machine replies with
 * the command's wait status. If the client goes first, the command gets SIGTERM. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 5, ARGUMENTS = 3, ENVIRONMENT = 4, COMMAND = 3 /* the client's argument */ };

static int machine_connection; /* of a client */

/* In FOLDER, which is the working directory: a whole path may be too long for an address. */
static const struct sockaddr_un machine_address = {.sun_family = AF_UNIX, .sun_path = "socket"};

/* Sends or receives the files, with a byte that carries them. */
static bool machine_transfer(int connection, int files[FILES], bool sends)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FILES * sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(FILES * sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (sends) {
        memcpy(CMSG_DATA(&control.header), files, FILES * sizeof(int));
        return sendmsg(connection, &message, MSG_NOSIGNAL) == 1;
    }
    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1 ||
        message.msg_controllen < CMSG_LEN(FILES * sizeof(int)))
        return false;
    memcpy(files, CMSG_DATA(&control.header), FILES * sizeof(int));
    return true;
}

/* ---- the machine ---- */

/* Returns the strings of a file in which each ends with a zero byte, from number `first`. */
static char **machine_strings(int file, int first)
{
    size_t length = 0, count = 0;
    char *text = NULL;
    for (ssize_t got = 1; got > 0; length += got > 0 ? (size_t)got : 0) {
        if (!(text = realloc(text, length + 65536)))
            _exit(127);
        got = read(file, text + length, 65536);
    }
    char **strings = calloc(length + 1, sizeof *strings);
    for (char *at = text; strings && at < text + length; at += strlen(at) + 1)
        if (first-- <= 0)
            strings[count++] = at;
    return strings;
}

static _Noreturn void machine_execute(const int files[FILES])
{
    setsid();
    for (int i = 0; i < 3; i++)
        dup2(files[i], i);
    environ = machine_strings(files[ENVIRONMENT], 0);
    char **arguments = machine_strings(files[ARGUMENTS], COMMAND);
    if (environ && arguments && arguments[0])
        execvp(arguments[0], arguments);
    dprintf(2, "hosts: the command: %s\n", strerror(errno));
    _exit(127);
}

/* The command leads a process group. One more process passes the client's signals on to it. */
static void machine_session(int connection)
{
    int files[FILES], status = 0;
    if (!machine_transfer(connection, files, false))
        return;
    pid_t command = fork();
    if (command == 0)
        machine_execute(files);
    pid_t listener = command < 0 ? -1 : fork();
    if (listener == 0) {
        for (char number; read(connection, &number, 1) == 1;)
            kill(-command, number);
        kill(-command, SIGTERM);
        _exit(0);
    }
    if (listener < 0 || waitpid(command, &status, 0) < 0)
        return;
    kill(listener, SIGKILL);
    send(connection, &status, sizeof status, MSG_NOSIGNAL);
}

static int machine_serve(void)
{
    int socket_here = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    signal(SIGCHLD, SIG_IGN); /* orphans leave no zombies */
    if (bind(socket_here, (const struct sockaddr *)&machine_address, sizeof machine_address) < 0 ||
        listen(socket_here, 64) < 0)
        return -1;
    for (;;) {
        int connection = accept4(socket_here, NULL, NULL, SOCK_CLOEXEC);
        if (connection >= 0 && fork() == 0) {
            signal(SIGCHLD, SIG_DFL);
            machine_session(connection);
            _exit(0);
        }
        close(connection);
    }
}

/* ---- the client ---- */

static void machine_pass_on(int number)
{
    char byte = (char)number;
    int before = errno;
    send(machine_connection, &byte, 1, MSG_NOSIGNAL);
    errno = before;
}

/* Returns the command's exit status, 128 plus a signal's number, or 255 if the machine ends. */
static int machine_at(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    int files[FILES] = {0, 1, 2, open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC),
                        open("/proc/self/environ", O_RDONLY | O_CLOEXEC)};
    int status = 0;
    ssize_t got;
    machine_connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(machine_connection, (const struct sockaddr *)&machine_address,
                sizeof machine_address) < 0 ||
        !machine_transfer(machine_connection, files, true))
        return fprintf(stderr, "hosts: the machine is gone\n"), 255;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &(struct sigaction){.sa_handler = machine_pass_on}, NULL);
    do
        got = recv(machine_connection, &status, sizeof status, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof status)
        return 255;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    bool serves = argc == 3 && strcmp(argv[1], "serve") == 0;
    if (!serves && (argc < 4 || strcmp(argv[1], "at") != 0))
        return fprintf(stderr, "usage: machine serve FOLDER | machine at FOLDER COMMAND...\n"), 2;
    if (chdir(argv[2]) < 0 || (serves && machine_serve() < 0)) {
        perror(argv[2]);
        return 1;
    }
    return machine_at();
}

/* watch.c: what hangs, or crashes, says at which point and where. */
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
#define WATCH_SANITIZED
#endif

enum { WATCH_SECONDS = 60 };

static struct {
    pthread_t watched;
    atomic_long number; /* of points begun */
    atomic_bool busy;
    char where[200];
    void *stack[INJECT_DEPTH]; /* of the thread that hangs */
    atomic_int depth;
} watch;

void fault_watch(const char *where)
{
    snprintf(watch.where, sizeof watch.where, "%s", where);
    watch.busy = *where != '\0';
    watch.number++;
}

static void watch_report(const char *what)
{
    const inject_result *fault = inject_last();
    fflush(stdout);
    printf("ANOMALY %s: %s\n", *watch.where ? watch.where : "between points", what);
    if (fault->function) {
        printf("    %s failed at\n", fault->function);
        inject_print_stack(fault->stack, fault->depth);
    }
    fflush(stdout);
}

static void watch_note_stack(int signal)
{
    watch.depth = backtrace(watch.stack, INJECT_DEPTH);
}

static void *watch_run(void *unused)
{
    for (;;) {
        long number = watch.number;
        for (int i = 0; i < WATCH_SECONDS && watch.number == number; i++)
            sleep(1);
        if (watch.number != number || !watch.busy)
            continue;
        watch_report("hangs");
        pthread_kill(watch.watched, SIGUSR1);
        sleep(1);
        printf("    the main thread waits at\n");
        inject_print_stack(watch.stack, watch.depth);
        fault_folder_remove();
        _exit(1);
    }
    return NULL;
}

static void watch_died(void)
{
    watch_report("ends the process");
    fault_folder_remove();
}

#ifndef WATCH_SANITIZED
static void watch_crashed(int number)
{
    signal(number, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
    alarm(10); /* a broken heap may not let the report be made */
    watch_died();
    raise(number);
}
#endif

void fault_watch_start(void)
{
    pthread_t thread;
    void *first[1];
    backtrace(first, 1); /* loads what it needs now, not in a handler */
    watch.watched = pthread_self();
    signal(SIGUSR1, watch_note_stack);
    signal(SIGPIPE, SIG_IGN);
#ifdef WATCH_SANITIZED
    __sanitizer_set_death_callback(watch_died);
#else
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++)
        signal(deadly[i], watch_crashed);
#endif
    if (pthread_create(&thread, NULL, watch_run, NULL) == 0)
        pthread_detach(thread);
}

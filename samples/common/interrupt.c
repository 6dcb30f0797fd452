#include "common/interrupt.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t stopped;

/* Two signals may come to two threads at a time: one of them is the second all the same. */
static void stop(int signal_number)
{
    static atomic_int caught;
    if (!stopped)
        stopped = signal_number;
    if (atomic_exchange(&caught, 1) == 0)
        return;
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* when this function has returned */
}

const volatile sig_atomic_t *interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask); /* of two at a time one is the second */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &stopped;
}

int interrupt_status(void)
{
    return 128 + (stopped ? (int)stopped : SIGINT);
}

/* Quoted where a shell would read it otherwise. */
static void print_word(const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+";

    putchar(' ');
    if (*word && strspn(word, plain) == strlen(word)) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, stdout);
    putchar('\'');
}

void interrupt_explain(int64_t step, const char *checkpoint, int argc, char **argv)
{
    if (!checkpoint) {
        printf("Stopped after step %" PRId64 ". Nothing was kept: --out DIR writes checkpoints\n",
               step);
        return;
    }
    printf("Stopped after step %" PRId64 ". To go on:\n   ", step);
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--resume") == 0)
            i++; /* and its value */
        else if (strncmp(argv[i], "--resume=", 9) != 0)
            print_word(argv[i]);
    }
    fputs(" --resume", stdout);
    print_word(checkpoint);
    putchar('\n');
}

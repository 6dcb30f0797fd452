#include "common/interrupt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t stopped;

static void stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
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

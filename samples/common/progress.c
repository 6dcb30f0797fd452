#include "common/progress.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BAR = 24, PLAIN_LINES = 5 };

double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

progress_bar progress_begin(const char *name, int total, int per_step)
{
    return (progress_bar){name, total, per_step, isatty(STDOUT_FILENO), seconds_now(), 0, 0};
}

static int columns(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void progress_show(progress_bar *progress, int done, const char *note)
{
    double now = seconds_now(), elapsed = now - progress->start;
    double rate = elapsed > 0 ? (done - progress->first) / elapsed : 0;
    int left = rate > 0 ? (int)((progress->total - done) / rate + 0.5) : 0;
    int full = progress->total > 0 ? done * BAR / progress->total : BAR;
    int every = progress->total / PLAIN_LINES > 0 ? progress->total / PLAIN_LINES : 1;
    char line[256], bar[BAR + 1] = "";

    if (!progress->terminal) {
        if (done % every == 0 || done == progress->total) {
            printf("%-9s step %d of %d, %.0f samples/s, %d:%02d left, %s\n", progress->name, done,
                   progress->total, rate * progress->per_step, left / 60, left % 60, note);
            fflush(stdout);
        }
        return;
    }
    if (now - progress->redrawn < 0.1 && done < progress->total)
        return;
    progress->redrawn = now;
    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '.';
    snprintf(line, sizeof(line), "%-9s [%s] %d/%d  %.0f samples/s  %d:%02d left  %s",
             progress->name, bar, done, progress->total, rate * progress->per_step, left / 60,
             left % 60, note);
    printf("\r\033[K%.*s", columns() - 1, line);
    fflush(stdout);
}

void progress_end(progress_bar *progress)
{
    if (progress->terminal) {
        printf("\r\033[K");
        fflush(stdout);
    }
}

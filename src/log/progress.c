/* progress.c: a line of progress: a bar on a terminal, lines in a file. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/locale.h"
#include "core/world.h"
#include "evenkeel/log.h"

enum { BAR_LEAST = 6, BAR_MOST = 30, LINE_ROOM = 1024 };

/* How long the rate remembers, and the time between two lines: in seconds. */
static const double memory = 30, between_bars = 0.1, between_lines = 10;

struct ek_progress {
    FILE *stream; /* NULL: nothing is shown */
    char name[64], unit[32], note[256];
    double per_step;
    int64_t total, done;
    int64_t shown;         /* `done` in the last line that was shown; -1: none */
    bool terminal, utf8;   /* the stream is a terminal; the terminal shows UTF-8 */
    double began, last;    /* when the line began, and when the last step ended: seconds */
    double drawn;          /* when the last line was shown */
    double steps, seconds; /* steps, and the time that they took, fading with age */
};

static double progress_now(void)
{
    return 1e-9 * (double)ek_clock_ns();
}

/* ---- the terminal ---- */

/* A terminal shows UTF-8 if the environment's locale says so. The program's locale does not count.
 */
static bool progress_has_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *locale = NULL, *codeset;
    for (int i = 0; i < 3 && !(locale && *locale); i++)
        locale = getenv(names[i]);
    codeset = locale ? strchr(locale, '.') : NULL;
    return codeset && (ek_same_letters(codeset, ".UTF-8") || ek_same_letters(codeset, ".utf8"));
}

static bool progress_has_terminal(FILE *stream)
{
    const char *kind = getenv("TERM");
    return isatty(fileno(stream)) && kind && *kind && strcmp(kind, "dumb") != 0;
}

static int progress_columns(const ek_progress *p)
{
    struct winsize size = {0};
    const char *columns = getenv("COLUMNS");
    if (ioctl(fileno(p->stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const long number = columns ? strtol(columns, NULL, 10) : 0;
    return number > 0 && number < LINE_ROOM ? (int)number : 80;
}

/* Returns how many columns the text takes, each character one, and how many bytes the first `most`
 * columns take. */
static int progress_width(const char *text, int most, size_t *nbytes)
{
    int columns = 0;
    *nbytes = 0;
    for (size_t i = 0; text[i]; i++) {
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
        if (columns <= most)
            *nbytes = i + 1;
    }
    return columns;
}

/* ---- the line ---- */

/* A text that grows. Text beyond the room is cut off. */
typedef struct line {
    char text[LINE_ROOM];
    size_t used;
} line;

static void EK_PRINTF(2, 3) line_put(line *to, const char *format, ...)
{
    const size_t room = sizeof to->text - to->used;
    va_list values;
    va_start(values, format);
    const size_t length = ek_format_list(to->text + to->used, room, format, values);
    va_end(values);
    to->used += length < room ? length : room - 1;
}

/* Adds "1:08", or "2:00:00" from an hour on. */
static void line_put_time(line *to, double seconds)
{
    const int64_t whole = seconds < 1e9 ? (int64_t)(seconds + 0.5) : 1000000000;
    if (whole >= 3600)
        line_put(to, "%" PRId64 ":%02" PRId64, whole / 3600, whole / 60 % 60);
    else
        line_put(to, "%" PRId64, whole / 60);
    line_put(to, ":%02" PRId64, whole % 60);
}

/* Adds "step 24 of 96, 44 samples/s, 1:08 left, loss 0.4479", on a terminal with "24/96". */
static void line_put_state(line *to, const ek_progress *p)
{
    const double rate = p->seconds > 0 ? p->steps / p->seconds : 0, units = rate * p->per_step;
    if (p->total > 0)
        line_put(to, p->terminal ? "%" PRId64 "/%" PRId64 : "step %" PRId64 " of %" PRId64, p->done,
                 p->total);
    else
        line_put(to, "step %" PRId64, p->done);
    if (rate > 0)
        line_put(to, ", %.*f %s/s", units < 10 ? 2 : 0, units, p->unit);
    const bool ends = rate > 0 && p->done < p->total;
    line_put(to, ends ? ", " : ", in ");
    line_put_time(to, ends ? (double)(p->total - p->done) / rate : p->last - p->began);
    line_put(to, "%s%s%s", ends ? " left" : "", p->note[0] ? ", " : "", p->note);
}

static void line_put_bar(line *to, const ek_progress *p, int columns)
{
    const int full = (int)(fmin(1, (double)p->done / (double)p->total) * columns);
    const char *const *signs = p->utf8 ? (const char *const[]){"", "█", "░", " "}
                                       : (const char *const[]){"[", "#", ".", "] "};
    line_put(to, "%s", signs[0]);
    for (int i = 0; i < columns; i++)
        line_put(to, "%s", signs[i < full ? 1 : 2]);
    line_put(to, "%s", signs[3]);
}

static void progress_show(ek_progress *p)
{
    line state = {.used = 0}, whole = {.used = 0};
    size_t nbytes;
    line_put_state(&state, p);
    if (p->terminal) {
        const int columns = progress_columns(p) - 1; /* a full line would begin a new one */
        const int room = columns - progress_width(p->name, 0, &nbytes) -
                         progress_width(state.text, 0, &nbytes) - 4;
        line_put(&whole, "%s%s", p->name, p->name[0] ? " " : "");
        if (p->total > 0 && room >= BAR_LEAST)
            line_put_bar(&whole, p, room < BAR_MOST ? room : BAR_MOST);
        line_put(&whole, "%s", state.text);
        progress_width(whole.text, columns, &nbytes);
        fprintf(p->stream, "\r%.*s\033[K", (int)nbytes, whole.text);
    } else {
        fprintf(p->stream, p->name[0] ? "%-9s %s\n" : "%s%s\n", p->name, state.text);
    }
    fflush(p->stream);
    p->drawn = progress_now();
    p->shown = p->done;
}

/* Formats a text for one line: control characters become spaces. */
static void progress_format(char *text, size_t room, const char *format, va_list values)
{
    ek_format_list(text, room, format, values);
    for (; *text; text++)
        if ((unsigned char)*text < ' ')
            *text = ' ';
}

/* ---- the calls ---- */

ek_progress *ek_progress_begin_with(ek_progress_options options)
{
    ek_progress *p = ek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (ek_progress){.stream = ek_world.rank == 0 ? options.stream : NULL,
                       .per_step = options.per_step,
                       .total = options.total,
                       .done = options.done,
                       .shown = -1,
                       .utf8 = progress_has_utf8(),
                       .began = progress_now()};
    p->last = p->began;
    p->terminal = p->stream && progress_has_terminal(p->stream);
    snprintf(p->name, sizeof p->name, "%s", options.name ? options.name : "");
    snprintf(p->unit, sizeof p->unit, "%s", options.unit ? options.unit : "");
    return p;
}

void ek_progress_step(ek_progress *p, int64_t n, const char *format, ...)
{
    if (!p || !p->stream || ek_error_status() < 0)
        return;
    const double now = progress_now(), passed = now - p->last, fading = exp(-passed / memory);
    p->steps = p->steps * fading + (double)n;
    p->seconds = p->seconds * fading + passed;
    p->last = now;
    p->done += n;
    if (format) {
        va_list values;
        va_start(values, format);
        progress_format(p->note, sizeof p->note, format, values);
        va_end(values);
    }
    const bool ends = p->total > 0 && p->done >= p->total; /* ek_progress_end shows that */
    if (!ends && (p->shown < 0 || now - p->drawn >= (p->terminal ? between_bars : between_lines)))
        progress_show(p);
}

void ek_progress_print(ek_progress *p, const char *format, ...)
{
    char text[LINE_ROOM];
    va_list values;
    if (!p || !p->stream || !format || ek_error_status() < 0)
        return;
    va_start(values, format);
    progress_format(text, sizeof text, format, values);
    va_end(values);
    fprintf(p->stream, p->terminal ? "\r%s\033[K\n" : "%s\n", text);
    if (p->terminal && p->shown >= 0)
        progress_show(p);
    fflush(p->stream);
}

void ek_progress_end(ek_progress *p)
{
    if (p && p->stream && p->last > p->began && p->shown != p->done)
        progress_show(p);
    if (p && p->stream && p->terminal && p->shown >= 0)
        fputs("\n", p->stream);
    free(p);
}

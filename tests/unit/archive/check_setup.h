/* check_setup.h: mistakes with lifetimes, and what EVENKEEL_CHECK says of them. */
#ifndef EK_TESTS_CHECK_SETUP_H
#define EK_TESTS_CHECK_SETUP_H

#include "core/check.h"
#include "unit.h"

/* ---- what the library says ---- */

static char said[4096]; /* log lines */

static inline void note_line(ek_log_level level, const char *line, void *user)
{
    if (level == EK_LOG_WARNING && strlen(said) + strlen(line) + 2 < sizeof said)
        strcat(strcat(said, line), "\n");
}

static inline void check_with(const char *checks)
{
    setenv("EVENKEEL_CHECK", checks, 1);
    ek_checks_read();
    ek_set_log(note_line, NULL);
    ck_assert_int_eq(ek_host_devices_configure("2"), 0);
}

static inline const char *sentences(void)
{
    if (ek_error_status())
        note_line(EK_LOG_WARNING, ek_error_message(), NULL);
    ek_error_clear();
    return said;
}

/* ---- mistakes ---- */

/* The line of a mistake's release or scope. */
static int line;
#define HERE (line = __LINE__)

static inline ek_tensor *a_tensor(void)
{
    return ek_ones(EK_SHAPE(2, 2));
}

/* A mistake, and what the library says: @ stands for `file` and the noted line. */
typedef struct check_mistake {
    void (*make)(void);
    const char *sentence;
} check_mistake;

static inline void assert_named(const check_mistake *mistake, const char *file)
{
    char sentence[300] = "";
    check_with("1");
    mistake->make();
    const char *place = strchr(mistake->sentence, '@');
    if (place)
        snprintf(sentence, sizeof sentence, "%.*s%s:%d%s", (int)(place - mistake->sentence),
                 mistake->sentence, file, line, place + 1);
    else
        snprintf(sentence, sizeof sentence, "%s", mistake->sentence);
    ck_assert_msg(strstr(sentences(), sentence), "\"%s\" is not in:\n%s", sentence, said);
}

#endif

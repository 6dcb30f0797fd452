/* status.c: the pending error of each thread, log lines, and allocation with an error. */
#include "evenkeel/status.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/locale.h"
#include "core/thread.h"

const char *ek_status_name(int status)
{
    switch (status) {
    case EK_OK:
        return "EK_OK";
#define EK_STATUS_CASE(name, value, text) \
    case value:                           \
        return "EK_" #name;
        EK_STATUS_MAP(EK_STATUS_CASE)
#undef EK_STATUS_CASE
    }
    return "EK_E_UNKNOWN";
}

const char *ek_status_message(int status)
{
    switch (status) {
    case EK_OK:
        return "success";
#define EK_STATUS_CASE(name, value, text) \
    case value:                           \
        return text;
        EK_STATUS_MAP(EK_STATUS_CASE)
#undef EK_STATUS_CASE
    }
    return "unknown status";
}

int ek_error_status(void)
{
    return ek_thread_self()->error.status;
}

const char *ek_error_message(void)
{
    ek_thread *thread = ek_thread_self();
    const ek_error_record *error = &thread->error;
    thread->checks.error_is_read = true;
    return error->status ? error->message : "";
}

int ek_error_pending(void)
{
    int status = ek_error_status();
    return status < 0 ? status : EK_FAIL(EK_E_STATE, "an operation failed without saying why");
}

int ek_error_refused(const char *what)
{
    ek_error_record *error = &ek_thread_self()->error;
    if (!strstr(error->message, " was refused, because this error was"))
        ek_error_remark(0, "%.48s was refused, because this error was not cleared", what);
    return error->status;
}

int ek_error_set_in(int status, const char *what, const char *path, const char *file, int line,
                    const char *format, ...)
{
    char text[700];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return ek_error_set(status, file, line, "%s: %.500s: %s", what, path, text);
}

int ek_check_pointer(const char *what, const char *operand, const void *pointer)
{
    return pointer ? 0 : EK_FAIL(EK_E_INVALID, "%s: %s is NULL", what, operand);
}

int ek_check_given(const char *what, const char *operand, const void *pointer)
{
    if (pointer)
        return 0;
    int status = ek_error_status();
    return status < 0 ? status : ek_check_pointer(what, operand, pointer);
}

int ek_error_outcome(int rc)
{
    int status = ek_error_status();
    if (status < 0 || rc >= 0)
        return status;
    return EK_FAIL(rc, "it failed with %s without saying why", ek_status_name(rc));
}

void ek_error_clear(void)
{
    ek_thread_self()->error.status = 0;
}

int ek_error_take(ek_error_record *record)
{
    ek_error_record nowhere;
    record = record ? record : &nowhere;
    ek_error_record *error = &ek_thread_self()->error;
    *record = *error;
    if (!error->status)
        record->message[0] = '\0';
    error->status = 0;
    return record->status;
}

int ek_error_raise(const ek_error_record *record)
{
    if (!record)
        return 0;
    ek_error_record *error = &ek_thread_self()->error;
    if (record->status && !error->status)
        *error = *record;
    return record->status;
}

void ek_print_error(FILE *stream)
{
    ek_error_record record;
    if (stream && ek_error_take(&record))
        fprintf(stream, "evenkeel: %s\n", record.message);
}

int ek_error_set(int status, const char *file, int line, const char *format, ...)
{
    ek_error_record *error = &ek_thread_self()->error;
    if (error->status)
        return status;
    va_list arguments;
    va_start(arguments, format);
    size_t used = ek_format_list(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    if (used < sizeof error->message) {
        const char *base = file ? strrchr(file, '/') : "/?";
        snprintf(error->message + used, sizeof error->message - used, " [%s:%d]",
                 base ? base + 1 : file, line);
    }
    error->status = status ? status : EK_E_STATE;
    ek_thread_self()->checks.error_is_read = false;
    error->told = false;
    error->origin = 0;
    return error->status;
}

/* Returns true if the sentence begins with the prefix and ':' or ' ' follows, as after "linear" in
 * "linear: ..." or "linear takes ...". */
static bool error_begins_with(const char *sentence, const char *prefix, size_t length)
{
    return strncmp(sentence, prefix, length) == 0 &&
           (sentence[length] == ':' || sentence[length] == ' ');
}

void ek_error_prefix(int before, const char *format, ...)
{
    ek_error_record *error = &ek_thread_self()->error;
    if (before < 0 || !error->status)
        return;
    char prefix[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    size_t used = ek_format_list(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    if (used >= sizeof prefix)
        used = sizeof prefix - 1;
    if (error_begins_with(error->message, prefix, used))
        return;
    ek_error_record old = *error;
    memcpy(error->message, prefix, used + 1);
    size_t room = sizeof error->message - used;
    snprintf(error->message + used, room, ": %.*s", (int)room, old.message);
}

void ek_error_remark(int before, const char *format, ...)
{
    ek_error_record *error = &ek_thread_self()->error;
    if (before < 0 || !error->status)
        return;
    const size_t used = strlen(error->message), room = sizeof error->message - used;
    char remark[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    ek_format_list(remark, sizeof remark, format, arguments);
    va_end(arguments);
    if (strlen(remark) + 2 < room)
        snprintf(error->message + used, room, "; %s", remark);
}

/* ---- log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static ek_log_function *log_function;
static void *log_user;

/* Removes the log function in a forked child if another thread was inside it at the fork, because
 * the function's locks may stay locked for ever. log_lock is not held over forks, because the log
 * function itself may fork. */
static void log_in_child(void)
{
    if (pthread_mutex_trylock(&log_lock) == 0) {
        pthread_mutex_unlock(&log_lock);
        return;
    }
    pthread_mutex_init(&log_lock, NULL);
    log_function = NULL;
}

__attribute__((constructor)) static void log_watch_forks(void)
{
    pthread_atfork(NULL, NULL, log_in_child);
}

void ek_set_log(ek_log_function *function, void *user)
{
    pthread_mutex_lock(&log_lock);
    log_function = function;
    log_user = user;
    pthread_mutex_unlock(&log_lock);
}

bool ek_log_line(ek_log_level level, const char *format, ...)
{
    pthread_mutex_lock(&log_lock);
    const bool is_set = log_function != NULL;
    if (is_set) {
        char line[1024];
        va_list arguments;
        va_start(arguments, format);
        ek_format_list(line, sizeof line, format, arguments);
        va_end(arguments);
        log_function(level, line, log_user);
    }
    pthread_mutex_unlock(&log_lock);
    return is_set;
}

/* ---- memory ---- */

void *ek_calloc_at(size_t count, size_t size, const char *file, int line)
{
    void *pointer = calloc(count ? count : 1, size ? size : 1);
    if (!pointer)
        ek_error_set(EK_E_NO_MEMORY, file, line,
                     "the process has no memory left for %zu x %zu bytes", count, size);
    return pointer;
}

void *ek_realloc_at(void *pointer, size_t nbytes, const char *file, int line)
{
    void *grown = realloc(pointer, nbytes ? nbytes : 1);
    if (!grown)
        ek_error_set(EK_E_NO_MEMORY, file, line, "the process has no memory left for %zu bytes",
                     nbytes);
    return grown;
}

int ek_grow_at(void *array, size_t item_nbytes, int *room, int count, const char *file, int line)
{
    void *items;
    if (count <= *room)
        return 0;
    int larger = *room > INT_MAX / 2 ? INT_MAX : 2 * *room;
    if (larger < count)
        larger = count < 8 ? 8 : count;
    memcpy(&items, array, sizeof items);
    items = ek_realloc_at(items, (size_t)larger * item_nbytes, file, line);
    if (!items)
        return EK_E_NO_MEMORY;
    memcpy(array, &items, sizeof items);
    *room = larger;
    return 0;
}

char *ek_strdup_at(const char *text, const char *file, int line)
{
    size_t nbytes = strlen(text) + 1;
    char *copy = ek_calloc_at(1, nbytes, file, line);
    if (copy)
        memcpy(copy, text, nbytes);
    return copy;
}

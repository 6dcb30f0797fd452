/* device_spec.c: parsing byte sizes and lists of host devices. */
#include "core/device_spec.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/locale.h"
#include "core/thread.h"
#include "core/world.h"

const char *ek_spec_skip_space(const char *at)
{
    while (ek_is_space(*at))
        at++;
    return at;
}

/* Reads a number that begins with a digit or a decimal point; NAN if there is none. */
static double spec_read_number(const char *at, char **end)
{
    if (!ek_is_digit(*at) && *at != '.')
        return NAN;
    locale_t before = ek_locale_begin();
    double number = strtod(at, end);
    ek_locale_end(before);
    return *end == at ? NAN : number;
}

bool ek_spec_size(const char **at, uint64_t *nbytes)
{
    char *end;
    double number = spec_read_number(*at, &end);
    if (!(number >= 0) || !isfinite(number))
        return false;
    int shift = 0;
    switch (ek_lower(*end)) {
    case 't':
        shift = 40;
        break;
    case 'g':
        shift = 30;
        break;
    case 'm':
        shift = 20;
        break;
    case 'k':
        shift = 10;
        break;
    }
    if (shift) {
        end++;
        if (ek_lower(*end) == 'i')
            end++;
    }
    if (ek_lower(*end) == 'b')
        end++;
    number = ldexp(number, shift);
    if (number >= 9.2e18)
        return false;
    *nbytes = (uint64_t)number;
    *at = end;
    return true;
}

int ek_parse_bytes(const char *text, uint64_t *nbytes)
{
    EK_TRY(ek_check_pointer("parse_bytes", "where to put the number", nbytes));
    const char *at = text ? ek_spec_skip_space(text) : "";
    uint64_t value;
    if (!ek_spec_size(&at, &value) || *ek_spec_skip_space(at))
        return EK_FAIL(EK_E_INVALID,
                       "\"%s\" is not a number of bytes; write for example 4096, 512M or 1.5G",
                       text ? text : "");
    *nbytes = value;
    return 0;
}

long ek_spec_repeat(const char **at)
{
    if (!ek_is_digit(**at))
        return 1;
    char *end;
    long number = strtol(*at, &end, 10);
    const char *behind = ek_spec_skip_space(end);
    if (*behind != 'x' && *behind != 'X')
        return 1;
    *at = ek_spec_skip_space(behind + 1);
    return number;
}

int ek_spec_fault(const char *text, const char *at, const char *wanted, const char *grammar)
{
    return EK_FAIL(EK_E_INVALID,
                   "device list \"%s\": %s wanted at position %d (\"%.20s\"); write %s", text,
                   wanted, (int)(at - text) + 1, at, grammar);
}

int ek_spec_check_count(const char *text, const char *at, long count, int before)
{
    if (count < 1 || count > EK_MAX_DEVICES - before)
        return EK_FAIL(
            EK_E_INVALID,
            "device list \"%s\": %ld devices after %d at position %d; between 1 and %d in all are "
            "possible",
            text, count, before, (int)(at - text) + 1, EK_MAX_DEVICES);
    return 0;
}

static int spec_fault(const char *text, const char *at, const char *wanted)
{
    return ek_spec_fault(text, at, wanted,
                         "a count such as 4, or a list of [count x] capacity [@speed] such as "
                         "2x512M,2x256M@0.5");
}

static int spec_append(const char *text, const char *at, ek_device_spec *spec, long count,
                       uint64_t capacity, double speed)
{
    EK_TRY(ek_spec_check_count(text, at, count, spec->count));
    for (long i = 0; i < count; i++) {
        spec->devices[spec->count].capacity = capacity;
        spec->devices[spec->count].speed = speed;
        spec->count++;
    }
    return 0;
}

int ek_device_spec_parse(const char *text, ek_device_spec *spec)
{
    ek_device_spec result = {0};
    const char *at = ek_spec_skip_space(text);
    char *end;
    if (!ek_is_digit(*at))
        return spec_fault(text, at, "a count or a capacity");
    long count = strtol(at, &end, 10);
    if (!*ek_spec_skip_space(end)) { /* the text is a count alone */
        EK_TRY(spec_append(text, at, &result, count, 0, 1.0));
        *spec = result;
        return 0;
    }
    for (;;) {
        const char *item = at = ek_spec_skip_space(at);
        count = ek_spec_repeat(&at);
        uint64_t capacity;
        if (!ek_spec_size(&at, &capacity))
            return spec_fault(text, at, "a capacity");
        double speed = 1.0;
        at = ek_spec_skip_space(at);
        if (*at == '@') {
            at = ek_spec_skip_space(at + 1);
            speed = spec_read_number(at, &end);
            if (!(speed >= EK_LEAST_SPEED && speed <= 1))
                return spec_fault(text, at, "a speed from 0.001 to 1");
            at = ek_spec_skip_space(end);
        }
        EK_TRY(spec_append(text, item, &result, count, capacity, speed));
        if (!*at)
            break;
        if (*at != ',')
            return spec_fault(text, at, "a comma");
        at++;
    }
    *spec = result;
    return 0;
}

/* ---- the configuration of host devices ---- */

static pthread_mutex_t spec_lock = PTHREAD_MUTEX_INITIALIZER;
EK_FORK_SAFE(spec_lock);
static ek_device_spec spec_now; /* guarded by spec_lock, as are the two variables below */
static bool spec_known;
static int spec_ranks; /* the number of this machine's ranks for which spec_now was made; 0: any,
                          because the user gave spec_now */

/* Fills in one host device per two cores. */
static void spec_default(ek_device_spec *spec)
{
    int count = ek_world_cores() / 2;
    *spec = (ek_device_spec){.count = count < 1                ? 1
                                      : count > EK_MAX_DEVICES ? EK_MAX_DEVICES
                                                               : count};
    for (int i = 0; i < spec->count; i++)
        spec->devices[i].speed = 1.0;
}

/* Fills `spec` from EVENKEEL_HOST_DEVICES, else with the default. *ranks becomes the number of this
 * machine's ranks on which the answer depends; 0 if it depends on none. */
static int spec_from_environment(ek_device_spec *spec, int *ranks)
{
    const int before = ek_error_status();
    const char *text = getenv("EVENKEEL_HOST_DEVICES");
    *ranks = 0;
    if (text && *text) {
        if (ek_device_spec_parse(text, spec) < 0) {
            ek_error_prefix(before, "EVENKEEL_HOST_DEVICES");
            return ek_error_pending();
        }
        return 0;
    }
    *ranks = ek_world.local_size;
    spec_default(spec);
    return 0;
}

int ek_host_spec(ek_device_spec *spec)
{
    int rc = 0;
    pthread_mutex_lock(&spec_lock);
    if (!spec_known || (spec_ranks && spec_ranks != ek_world.local_size)) {
        rc = spec_from_environment(&spec_now, &spec_ranks);
        spec_known = rc == 0;
    }
    if (rc == 0)
        *spec = spec_now;
    pthread_mutex_unlock(&spec_lock);
    return rc;
}

void ek_host_spec_set(const ek_device_spec *spec)
{
    pthread_mutex_lock(&spec_lock);
    spec_now = *spec;
    spec_known = true;
    spec_ranks = 0;
    pthread_mutex_unlock(&spec_lock);
}

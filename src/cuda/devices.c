/* devices.c: EVENKEEL_CUDA_DEVICES. Calls nothing of CUDA. */
#include "cuda/devices.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/device_spec.h"
#include "core/locale.h"
#include "core/thread.h"

static int spec_fault(const char *text, const char *at, const char *wanted)
{
    return ek_spec_fault(text, at, wanted,
                         "a list of [count x] number [: capacity] such as 0,1 or 4x0:8G");
}

static int spec_append(const char *text, const char *at, ek_cuda_spec *spec, long count, long gpu,
                       uint64_t capacity)
{
    EK_TRY(ek_spec_check_count(text, at, count, spec->count));
    for (long i = 0; i < count; i++) {
        spec->devices[spec->count].physical = (int)gpu;
        spec->devices[spec->count].capacity = capacity;
        spec->count++;
    }
    return 0;
}

/* Parses one item ("4x0:8G"), and moves *at past the item. */
static int spec_parse_item(const char *text, const char **at, int gpus, ek_cuda_spec *spec)
{
    const char *item = *at;
    uint64_t capacity = 0;
    char *end;
    long count = ek_spec_repeat(at);
    if (!ek_is_digit(**at))
        return spec_fault(text, *at, "the number of a GPU");
    const char *number = *at;
    long gpu = strtol(number, &end, 10);
    *at = ek_spec_skip_space(end);
    if (**at == ':') {
        *at = ek_spec_skip_space(*at + 1);
        if (!ek_spec_size(at, &capacity))
            return spec_fault(text, *at, "a capacity");
        *at = ek_spec_skip_space(*at);
    }
    if (**at && **at != ',')
        return spec_fault(text, *at, "a comma");
    if (gpu >= gpus)
        return EK_FAIL(EK_E_DEVICE,
                       "device list \"%s\": there is no GPU %.*s (position %d); the CUDA runtime "
                       "finds %d, counted from 0",
                       text, (int)(end - number < 20 ? end - number : 20), number,
                       (int)(number - text) + 1, gpus);
    return spec_append(text, item, spec, count, gpu, capacity);
}

int ek_cuda_spec_parse(const char *text, int gpus, ek_cuda_spec *spec)
{
    ek_cuda_spec result = {0};
    const char *at = ek_spec_skip_space(text);
    for (;; at = ek_spec_skip_space(at + 1)) {
        EK_TRY(spec_parse_item(text, &at, gpus, &result));
        if (!*at)
            break;
    }
    *spec = result;
    return 0;
}

/* ---- the process's devices ---- */

static pthread_mutex_t spec_lock = PTHREAD_MUTEX_INITIALIZER;
EK_FORK_SAFE(spec_lock);
static ek_cuda_spec spec_now;
static bool spec_known;

static int spec_from_environment(int gpus, ek_cuda_spec *spec)
{
    const char *text = getenv("EVENKEEL_CUDA_DEVICES");
    if (text && *text) {
        const int before = ek_error_status();
        int rc = ek_cuda_spec_parse(text, gpus, spec);
        if (rc < 0)
            ek_error_prefix(before, "EVENKEEL_CUDA_DEVICES");
        return rc;
    }
    *spec = (ek_cuda_spec){.count = gpus < EK_MAX_DEVICES ? gpus : EK_MAX_DEVICES};
    for (int i = 0; i < spec->count; i++)
        spec->devices[i].physical = i;
    return 0;
}

int ek_cuda_spec_now(int gpus, ek_cuda_spec *spec)
{
    int rc = 0;
    pthread_mutex_lock(&spec_lock);
    if (!spec_known) {
        rc = spec_from_environment(gpus, &spec_now);
        spec_known = rc == 0;
    }
    if (rc == 0)
        *spec = spec_now;
    pthread_mutex_unlock(&spec_lock);
    return rc;
}

void ek_cuda_spec_set(const ek_cuda_spec *spec)
{
    pthread_mutex_lock(&spec_lock);
    spec_now = *spec;
    spec_known = true;
    pthread_mutex_unlock(&spec_lock);
}

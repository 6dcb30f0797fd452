#include "common/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/status.h"

static const char *const words[] = {"host", "cuda", NULL};
enum { HOST, CUDA };

arg_choice devices_choice(void)
{
    return (arg_choice){words, ek_default_device_kind() == EK_CUDA ? CUDA : HOST};
}

ek_device_kind devices_kind(const arg_choice *choice)
{
    return choice->chosen == CUDA ? EK_CUDA : EK_HOST;
}

static int configure_host(int count)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", count);
    return ek_host_devices_configure(text);
}

/* Four on one GPU are "0,0,0,0", on two "0,1,0,1". */
static int configure_cuda(int count)
{
    static int gpus;
    char text[8 * EK_MAX_DEVICES] = "";

    if (!gpus)
        gpus = ek_device_count(EK_CUDA);
    if (gpus <= 0)
        return gpus;
    for (int i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d", i ? "," : "", i % gpus);
    return ek_cuda_devices_configure(text);
}

ek_device_list devices_open(ek_device_kind kind, int count)
{
    const ek_device_list none = {.count = -1};
    const char *given = getenv(kind == EK_CUDA ? "EVENKEEL_CUDA_DEVICES" : "EVENKEEL_HOST_DEVICES");
    int rc = 0;

    if (!(given && *given) && count > 0)
        rc = kind == EK_CUDA ? configure_cuda(count) : configure_host(count);
    if (rc < 0)
        return none;
    return ek_devices(kind, count);
}

int devices_text_count(const char *text)
{
    if (!*text || strspn(text, "0123456789") != strlen(text))
        return 0;
    long count = strtol(text, NULL, 10);
    return count >= 1 && count <= EK_MAX_DEVICES ? (int)count : -1;
}

ek_device_list devices_open_text(ek_device_kind kind, const char *text)
{
    const ek_device_list none = {.count = -1};
    int count = devices_text_count(text);

    if (count > 0)
        return devices_open(kind, count);
    int rc = kind == EK_CUDA ? ek_cuda_devices_configure(text) : ek_host_devices_configure(text);
    return rc < 0 ? none : ek_devices(kind, 0);
}

/* devices.c: see devices.h. */
#include "devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "evenkeel/status.h"

ek_device_kind test_kind(void)
{
#ifdef EK_TESTS_NAME_DEVICES
    const char *kind = NULL;
#else
    const char *kind = getenv("EVENKEEL_TEST_DEVICES");
#endif
    return kind && strcmp(kind, "cuda") == 0 ? EK_CUDA : EK_HOST;
}

ek_device test_device(int index)
{
    return (ek_device){test_kind(), index};
}

ek_device test_home(void)
{
    return test_kind() == EK_HOST ? ek_cpu() : test_device(0);
}

bool test_is_short(void)
{
    const char *given = getenv("EVENKEEL_TEST_SHORT");
    return given && *given;
}

double test_rounding(void)
{
    return test_kind() == EK_HOST ? 0 : 1e-6;
}

/* Appends "index[:capacity]" for each device of one item "[count x] capacity [@speed]". */
static void append_item(char *out, size_t room, const char *item, int gpus, int *made)
{
    int count = 1, length = 0;
    if (sscanf(item, "%d x%n", &count, &length) == 1 && length > 0)
        item += length;
    else
        count = 1;
    int capacity = (int)strcspn(item, "@");
    for (int i = 0; i < count; i++, (*made)++) {
        size_t used = strlen(out);
        snprintf(out + used, room - used, "%s%d:%.*s", used ? "," : "", *made % gpus, capacity,
                 item);
    }
}

int test_devices_configure(const char *specification)
{
    if (test_kind() == EK_HOST)
        return ek_host_devices_configure(specification);
    const char *given = getenv("EVENKEEL_TEST_GPUS");
    int gpus = given ? atoi(given) : 1, made = 0;
    char text[256], list[2048] = "";
    if (strspn(specification, "0123456789") == strlen(specification))
        snprintf(text, sizeof text, "%sx0", specification);
    else
        snprintf(text, sizeof text, "%s", specification);
    char *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
        append_item(list, sizeof list, item, gpus, &made);
    return ek_cuda_devices_configure(list);
}

int settled(int status)
{
    int count = test_kind() == EK_CUDA ? ek_device_count(EK_CUDA) : 0;
    for (int i = 0; i < count && status >= 0; i++)
        if (ek_synchronize(test_device(i)) < 0)
            status = ek_error_status();
    return status;
}

struct ek_tensor *settled_tensor(struct ek_tensor *tensor)
{
    return settled(0) < 0 ? NULL : tensor;
}

const char *device_text(const char *text)
{
    static _Thread_local char translated[512];
    if (test_kind() == EK_HOST)
        return text;
    translated[0] = '\0';
    const char *from = text;
    for (const char *at; (at = strstr(from, "host:")) != NULL; from = at + 5) {
        size_t used = strlen(translated);
        snprintf(translated + used, sizeof translated - used, "%.*scuda:", (int)(at - from), from);
    }
    size_t used = strlen(translated);
    snprintf(translated + used, sizeof translated - used, "%s", from);
    return translated;
}

void skip_without_gpu(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(ek_device_count(EK_CUDA) > 0 ? 0 : 77);
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        exit(EXIT_FAILURE);
    if (WEXITSTATUS(status) != 0)
        exit(WEXITSTATUS(status));
}

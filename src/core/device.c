/* device.c: the registry of devices. A device is opened when it is first used. */
#include "core/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cells.h"
#include "core/device_spec.h"
#include "core/lane.h"
#include "core/thread.h"
#include "core/worker.h"
#include "evenkeel/scope.h"

enum { KINDS = 3 };
static const char *const kind_names[KINDS] = {"cpu", "host", "cuda"};

/* registry_lock guards opening and closing of devices. Reading the entry of an open device takes no
 * lock. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(ek_dev *) registry[KINDS][EK_MAX_DEVICES];

static const ek_backend *device_backend(ek_device_kind kind)
{
    for (const ek_backend *const *backend = ek_backend_table; *backend; backend++)
        if ((*backend)->kind == kind)
            return *backend;
    return NULL;
}

int ek_dev_hardware(ek_device device)
{
    const ek_backend *backend = device_backend(device.kind);
    return backend && backend->hardware_number ? backend->hardware_number(device.index) : -1;
}

int ek_device_count(ek_device_kind kind)
{
    EK_TRY(ek_fork_check());
    const ek_backend *backend = device_backend(kind);
    return backend ? backend->device_count() : 0;
}

ek_device_kind ek_default_device_kind(void)
{
    return ek_device_count(EK_CUDA) > 0 ? EK_CUDA : EK_HOST;
}

char *ek_device_name(ek_device device, char text[16])
{
    if (!text)
        return NULL;
    unsigned kind = (unsigned)device.kind;
    if (device.kind == EK_CPU)
        snprintf(text, 16, "cpu");
    else
        snprintf(text, 16, "%s:%d", kind < KINDS ? kind_names[kind] : "?", device.index);
    return text;
}

int ek_device_parse(const char *text, ek_device *device)
{
    EK_TRY(ek_check_pointer("device_parse", "where to put the device", device));
    if (text && strcmp(text, "cpu") == 0) {
        *device = ek_cpu();
        return 0;
    }
    for (int kind = EK_HOST; text && kind < KINDS; kind++) {
        size_t length = strlen(kind_names[kind]);
        if (strncmp(text, kind_names[kind], length) == 0 && text[length] == ':') {
            char *end;
            long index = strtol(text + length + 1, &end, 10);
            if (end != text + length + 1 && !*end && index >= 0 && index < EK_MAX_DEVICES) {
                *device = (ek_device){(ek_device_kind)kind, (int)index};
                return 0;
            }
        }
    }
    return EK_FAIL(EK_E_DEVICE, "\"%s\" is no device; write cpu, host:0 or cuda:0",
                   text ? text : "");
}

static ek_dev *open_device(const ek_backend *backend, ek_device device)
{
    ek_dev *dev = ek_checks_validate() < 0 ? NULL : ek_calloc(1, sizeof *dev);
    if (!dev)
        return NULL;
    dev->id = device;
    dev->backend = backend;
    dev->threads = 1;
    dev->speed = 1.0;
    ek_device_name(device, dev->name);
    if (ek_allocator_open(dev) < 0) {
        free(dev);
        return NULL;
    }
    if (backend->device_open && backend->device_open(dev) < 0) {
        ek_allocator_close(dev);
        free(dev);
        return NULL;
    }
    if (ek_lane_open(dev) < 0) {
        if (backend->device_close)
            backend->device_close(dev);
        ek_allocator_close(dev);
        free(dev);
        return NULL;
    }
    return dev;
}

/* Returns the end of a sentence that says how to get more devices. */
static const char *device_hint(ek_device_kind kind, const ek_backend *backend)
{
    if (kind == EK_HOST)
        return " (EVENKEEL_HOST_DEVICES or ek_host_devices_configure gives more)";
    if (kind != EK_CUDA)
        return "";
    return backend ? " (on a GPU, EVENKEEL_CUDA_DEVICES or ek_cuda_devices_configure gives more)"
                   : " (this build has no CUDA backend)";
}

/* Returns the reason why the backend has no devices; NULL if it has some, or if no reason is
 * known. */
static const char *device_why_none(const ek_backend *backend)
{
    return backend && backend->why_none ? backend->why_none() : NULL;
}

ek_dev *ek_dev_get(ek_device device)
{
    if (ek_fork_check() < 0)
        return NULL;
    unsigned kind = (unsigned)device.kind;
    if (kind < KINDS && device.index >= 0 && device.index < EK_MAX_DEVICES) {
        ek_dev *dev = atomic_load_explicit(&registry[kind][device.index], memory_order_acquire);
        if (dev)
            return dev;
    }
    char name[16];
    ek_device_name(device, name);
    const ek_backend *backend = kind < KINDS ? device_backend(device.kind) : NULL;
    int count = backend ? backend->device_count() : 0;
    if (count < 0)
        return NULL;
    if (!backend || device.index < 0 || device.index >= count) {
        const char *why = device_why_none(backend);
        return EK_FAIL_NULL(EK_E_DEVICE,
                            "there is no device %s; this process has %d of this kind%s%s", name,
                            count, why ? ": " : device_hint(device.kind, backend), why ? why : "");
    }
    ek_fork_arm();
    pthread_mutex_lock(&registry_lock);
    ek_dev *dev = atomic_load(&registry[kind][device.index]);
    if (!dev) {
        dev = open_device(backend, device);
        atomic_store_explicit(&registry[kind][device.index], dev, memory_order_release);
    }
    pthread_mutex_unlock(&registry_lock);
    return dev;
}

/* Waits for the device's work and makes the device give its workspaces back. An error of the work
 * is only logged, because the device is closed in any case. */
static void device_quiesce(ek_dev *dev)
{
    ek_error_record before, late;
    ek_error_take(&before);
    ek_dev_synchronize(dev);
    if (ek_error_take(&late))
        ek_log_line(EK_LOG_WARNING, "closing %s: %s", dev->name, late.message);
    ek_error_raise(&before);
    if (dev->backend->device_idle)
        dev->backend->device_idle(dev);
}

static int device_check_idle(ek_dev *dev)
{
    device_quiesce(dev);
    ek_memory_stats stats;
    ek_ledger_read(dev, &stats);
    uint64_t in_use = stats.in_use;
    return in_use ? EK_FAIL(EK_E_STATE, "%s still has %llu bytes in use", dev->name,
                            (unsigned long long)in_use)
                  : 0;
}

/* Closes all open devices of a kind. A device that still holds memory stays open, and an error
 * names it. registry_lock is held. */
static int device_close_kind(int kind)
{
    int rc = 0;
    for (int i = 0; i < EK_MAX_DEVICES; i++) {
        ek_dev *dev = atomic_load(&registry[kind][i]);
        if (!dev)
            continue;
        int idle = device_check_idle(dev);
        ek_dev_trim(dev);
        if (idle < 0) {
            rc = idle;
            continue;
        }
        atomic_store(&registry[kind][i], NULL);
        ek_lane_close(dev);
        if (dev->backend->device_close)
            dev->backend->device_close(dev);
        ek_allocator_close(dev);
        free(dev);
    }
    return rc;
}

/* Fails on a worker, because a worker cannot wait for its own end. */
static int device_check_not_worker(const char *what)
{
    EK_TRY(ek_fork_check());
    const ek_dev *dev = ek_thread_self()->own_device;
    return dev ? EK_FAIL(EK_E_STATE,
                         "%s was called on the worker of %s; call it outside of modules", what,
                         dev->name)
               : 0;
}

static int device_configure_host(const char *specification, bool keep)
{
    ek_device_spec spec;
    EK_TRY(ek_device_spec_parse(specification, &spec));
    if (keep)
        ek_host_spec_set(&spec);
    return 0;
}

/* Closes the devices of a kind and replaces them by `configure`. If one of the devices holds
 * memory, none is closed. */
static int device_configure_devices(ek_device_kind kind, const char *specification,
                                    int (*configure)(const char *specification, bool keep))
{
    EK_TRY(configure(specification, false));
    ek_workers_join();
    pthread_mutex_lock(&registry_lock);
    int rc = 0;
    for (int i = 0; i < EK_MAX_DEVICES && rc == 0; i++) {
        ek_dev *dev = atomic_load(&registry[kind][i]);
        rc = dev ? device_check_idle(dev) : 0;
    }
    if (rc == 0) {
        device_close_kind(kind);
        rc = configure(specification, true);
    }
    pthread_mutex_unlock(&registry_lock);
    return rc;
}

int ek_host_devices_configure(const char *specification)
{
    EK_TRY(device_check_not_worker("ek_host_devices_configure"));
    if (!specification)
        return EK_FAIL(EK_E_INVALID, "the list of host devices is NULL; write for example \"4\"");
    return device_configure_devices(EK_HOST, specification, device_configure_host);
}

int ek_cuda_devices_configure(const char *specification)
{
    EK_TRY(device_check_not_worker("ek_cuda_devices_configure"));
    if (!specification)
        return EK_FAIL(EK_E_INVALID, "the list of CUDA devices is NULL; write for example \"0,1\"");
    const ek_backend *backend = device_backend(EK_CUDA);
    if (!backend || !backend->configure)
        return EK_FAIL(EK_E_DEVICE,
                       "there can be no CUDA devices \"%.100s\": this build has no CUDA backend",
                       specification);
    return device_configure_devices(EK_CUDA, specification, backend->configure);
}

int ek_synchronize(ek_device device)
{
    ek_dev *dev = ek_dev_get(device);
    return dev ? ek_dev_synchronize(dev) : ek_error_pending();
}

static int (*device_leave)(void); /* set by one constructor, constant afterwards */

void ek_at_shutdown(int (*leave)(void))
{
    device_leave = leave;
}

int ek_shutdown(void)
{
    if (ek_forked())
        return 0; /* a child has no threads to join */
    EK_TRY(device_check_not_worker("ek_shutdown"));
    const ek_releaser outer = ek_release_set(ek_release_take_place("ek_shutdown"));
    int rc = device_leave ? device_leave() : 0;
    ek_thread_clear();
    ek_workers_join();
    pthread_mutex_lock(&registry_lock);
    for (int kind = 0; kind < KINDS; kind++) {
        int closed = device_close_kind(kind);
        rc = rc < 0 ? rc : closed;
    }
    pthread_mutex_unlock(&registry_lock);
    ek_release_set(outer);
    return rc;
}

/* ---- lists ---- */

static const ek_device_list no_list = {.count = -1};

ek_device_list ek_device_list_of(const ek_device *devices, int count)
{
    ek_device_list list = {0};
    if (count < 0 || count > EK_MAX_DEVICES || (count && !devices)) {
        EK_FAIL(EK_E_INVALID, "a list of %d devices%s; at most %d are possible", count,
                devices ? "" : ", which are NULL", EK_MAX_DEVICES);
        return no_list;
    }
    list.count = count;
    for (int i = 0; i < count; i++)
        list.devices[i] = devices[i];
    return list;
}

ek_device_list ek_devices(ek_device_kind kind, int count)
{
    ek_device_list list = {0};
    int available = ek_device_count(kind);
    if (available < 0)
        return no_list;
    if (count < 0 || count > available || available == 0) {
        const char *name = (unsigned)kind < KINDS ? kind_names[kind] : "unknown";
        const ek_backend *backend = device_backend(kind);
        const char *why = device_why_none(backend);
        char hint[120];
        snprintf(hint, sizeof hint, "%s", device_hint(kind, backend));
        if (kind == EK_HOST && count > 0 && count <= EK_MAX_DEVICES)
            snprintf(hint, sizeof hint,
                     " (EVENKEEL_HOST_DEVICES=%d or ek_host_devices_configure(\"%d\") gives them)",
                     count, count);
        if (count)
            EK_FAIL(EK_E_DEVICE, "%d %s devices wanted, but there are %d%s%s", count, name,
                    available, why ? ": " : hint, why ? why : "");
        else
            EK_FAIL(EK_E_DEVICE, "all %s devices wanted, but there is none%s%s", name,
                    why ? ": " : hint, why ? why : "");
        return no_list;
    }
    list.count = count ? count : available;
    for (int i = 0; i < list.count; i++)
        list.devices[i] = (ek_device){kind, i};
    return list;
}

int ek_device_list_check(const char *what, const ek_device_list *list)
{
    if (list->count < 0)
        return ek_error_status()
                   ? ek_error_pending()
                   : EK_FAIL(EK_E_INVALID, "%s: the list of devices could not be made", what);
    if (list->count > EK_MAX_DEVICES)
        return EK_FAIL(EK_E_INVALID, "%s: a list of %d devices; at most %d are possible", what,
                       list->count, EK_MAX_DEVICES);
    return 0;
}

/* ---- threads ---- */

int ek_device_set_threads(ek_device device, int count)
{
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_error_pending();
    if (!dev->backend->host_memory)
        return EK_FAIL(EK_E_DEVICE, "%s does not compute with threads of the CPU", dev->name);
    if (count < 1 || count > 1024)
        return EK_FAIL(EK_E_INVALID, "%d threads for %s; between 1 and 1024 are possible", count,
                       dev->name);
    dev->threads = count;
    return 0;
}

int ek_device_threads(ek_device device)
{
    ek_dev *dev = ek_dev_get(device);
    return dev ? dev->threads : ek_error_pending();
}

/* ---- memory ---- */

int ek_memory_get_stats(ek_device device, ek_memory_stats *stats)
{
    EK_TRY(ek_check_pointer("memory_get_stats", "where to put the statistics", stats));
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_error_pending();
    ek_ledger_measure(dev);
    ek_ledger_read(dev, stats);
    return 0;
}

int ek_memory_get_holders(ek_device device, ek_memory_holder *holders, int room)
{
    if (room > 0)
        EK_TRY(ek_check_pointer("memory_get_holders", "where to put the holders", holders));
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_error_pending();
    ek_holders all = {0};
    ek_ledger_hold(dev);
    ek_ledger_add_holders(dev, UINT64_MAX, &all);
    ek_ledger_release(dev);
    int count = ek_holders_largest(&all, holders, room > 0 ? room : 0);
    if (all.lost)
        count = EK_FAIL(EK_E_NO_MEMORY, "memory_get_holders: the process has no memory for them");
    ek_holders_clear(&all);
    return count;
}

int ek_memory_reset_peak(ek_device device)
{
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_error_pending();
    ek_ledger_reset_peak(dev);
    return 0;
}

int ek_memory_set_capacity(ek_device device, uint64_t nbytes)
{
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_error_pending();
    if (device.kind == EK_CPU && nbytes)
        return EK_FAIL(EK_E_DEVICE, "cpu is plain memory and has no capacity; set it on host:0 "
                                    "or another accelerator");
    uint64_t in_use;
    return ek_ledger_set_capacity(dev, nbytes, &in_use)
               ? 0
               : EK_FAIL(EK_E_STATE, "%s has %llu bytes in use; its capacity cannot become %llu",
                         dev->name, (unsigned long long)in_use, (unsigned long long)nbytes);
}

int ek_memory_trim(ek_device device)
{
    ek_dev *dev = ek_dev_get(device);
    if (!dev)
        return ek_error_pending();
    ek_dev_trim(dev);
    ek_cells_clear();
    return 0;
}

int ek_dev_zero(ek_dev *dev, void *data, size_t nbytes)
{
    EK_TRY(ek_fork_check());
    if (nbytes == 0)
        return 0;
    if (dev->backend->zero)
        return dev->backend->zero(dev, data, nbytes);
    if (dev->backend->host_memory) {
        memset(data, 0, nbytes);
        return 0;
    }
    ek_dev *plain = ek_dev_get(ek_cpu());
    void *zeros = ek_calloc(1, nbytes);
    int rc = plain && zeros ? ek_dev_copy(dev, data, plain, zeros, nbytes) : ek_error_pending();
    free(zeros);
    return rc;
}

/* ledger.c: counts the memory that a device has in use and from the system (device.h,
 * allocator.h). */
#include <string.h>

#include "core/allocator.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/locale.h"
#include "core/path.h"
#include "core/trace.h"

/* ---- sentences ---- */

enum { MOST_PATH = 80 }; /* bytes of a path in a sentence */

const char *ek_ledger_amount_text(uint64_t nbytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double number = (double)nbytes;
    int unit = 0;
    while (number >= 1024 && unit < 4) {
        number /= 1024;
        unit++;
    }
    ek_format(text, 32, unit ? "%.2f %s" : "%.0f %s", number, units[unit]);
    return text;
}

/* Writes the three largest holders to `text`, beginning with a semicolon; nothing if no module
 * holds memory. */
static void ledger_holders_text(const ek_shortage *lack, char text[360])
{
    enum { TOLD = 3 };
    char amount[32];
    size_t used = 0;
    bool modules = false;
    for (int i = 0; i < lack->count; i++)
        modules = modules || lack->holders[i].path[0];
    text[0] = '\0';
    for (int i = 0; i < lack->count && i < TOLD && modules && used < 360; i++) {
        const ek_memory_holder *holder = &lack->holders[i];
        const char *path = holder->path[0] ? ek_path_end(holder->path, MOST_PATH) : "no module";
        used += (size_t)snprintf(text + used, 360 - used, "%s%s (%s) %s",
                                 i ? ", " : "; largest holders: ", path,
                                 ek_memory_category_name(holder->category),
                                 ek_ledger_amount_text(holder->nbytes, amount));
    }
}

int ek_ledger_out_of_memory(const ek_dev *dev, const ek_shortage *lack)
{
    const ek_memory_stats *stats = &lack->stats;
    char breakdown[320] = "";
    char text[4][32];
    size_t used = 0;
    for (int i = 0; i < EK_MEMORY_CATEGORIES && used < sizeof breakdown; i++) {
        if (stats->now[i])
            used += (size_t)snprintf(breakdown + used, sizeof breakdown - used, "%s%s %s",
                                     used ? ", " : "", ek_memory_category_name(i),
                                     ek_ledger_amount_text(stats->now[i], text[0]));
    }
    char gaps[96] = "";
    if (stats->reserved > stats->in_use)
        ek_format(gaps, sizeof gaps, ", %s free between them (%s together at most)",
                  ek_ledger_amount_text(stats->reserved - stats->in_use, text[0]),
                  ek_ledger_amount_text(stats->largest_free, text[1]));
    /* Also tells the lack in bytes, because rounded amounts can look as if there were room. */
    char missing[64] = "", holders[360];
    const uint64_t room = stats->capacity > stats->in_use ? stats->capacity - stats->in_use : 0;
    if (stats->capacity && lack->nbytes > room)
        snprintf(missing, sizeof missing, ": %llu bytes lack",
                 (unsigned long long)(lack->nbytes - room));
    ledger_holders_text(lack, holders);
    return EK_FAIL(
        EK_E_OUT_OF_MEMORY,
        "%s is out of memory: %s requested for %s%s%s, %s in use%s%s%s%s, capacity %s%s%s%s",
        dev->name, ek_ledger_amount_text(lack->nbytes, text[0]),
        ek_memory_category_name(lack->category), lack->path[0] ? " of " : "",
        ek_path_end(lack->path, MOST_PATH), ek_ledger_amount_text(stats->in_use, text[1]),
        used ? " (" : "", breakdown, used ? ")" : "", gaps,
        stats->capacity ? ek_ledger_amount_text(stats->capacity, text[2]) : "that of the machine",
        stats->capacity && lack->exhausted ? ", of which the system has no more left" : "", missing,
        holders);
}

/* ---- counting ---- */

void ek_ledger_add(ek_dev *dev, size_t counted, ek_memory_category category)
{
    struct ek_allocator *a = dev->allocator;
    ek_memory_stats *stats = &a->stats;
    stats->in_use += counted;
    stats->now[category] += counted;
    if (stats->in_use > stats->peak) {
        stats->peak = stats->in_use;
        memcpy(stats->at_peak, stats->now, sizeof stats->now);
    }
    for (ek_memory_watch *watch = a->watches; watch; watch = watch->next)
        if (stats->in_use > watch->peak)
            watch->peak = stats->in_use;
    ek_trace_memory(dev, stats, NULL);
}

void ek_ledger_subtract(ek_dev *dev, size_t counted, ek_memory_category category)
{
    ek_memory_stats *stats = &dev->allocator->stats;
    stats->in_use -= counted;
    stats->now[category] -= counted;
}

void ek_ledger_reserve(ek_dev *dev, uint64_t nbytes)
{
    ek_memory_stats *stats = &dev->allocator->stats;
    stats->reserved += nbytes;
    if (stats->reserved > stats->reserved_peak)
        stats->reserved_peak = stats->reserved;
}

void ek_dev_count_foreign(ek_dev *dev, size_t nbytes, ek_memory_category category, bool begins)
{
    struct ek_allocator *a = dev->allocator;
    size_t counted = ek_ledger_counted(nbytes);
    if (ek_forked())
        return;
    pthread_mutex_lock(&a->lock);
    if (begins) {
        ek_ledger_reserve(dev, counted);
        ek_ledger_add(dev, counted, category);
    } else {
        a->stats.reserved -= counted;
        ek_ledger_subtract(dev, counted, category);
        ek_trace_memory(dev, &a->stats, NULL);
    }
    pthread_mutex_unlock(&a->lock);
}

void ek_dev_assign(ek_dev *dev, const void *pointer, size_t nbytes, ek_memory_category from,
                   ek_memory_category to, const char *path)
{
    struct ek_allocator *a = dev->allocator;
    if (ek_forked())
        return;
    size_t counted = ek_ledger_counted(nbytes);
    pthread_mutex_lock(&a->lock);
    ek_block *block = pointer ? ek_segments_find(&a->segments, pointer) : NULL;
    const ek_held left = block ? block->held : (ek_held){.nbytes = 0};
    if (block)
        block->held = (ek_held){path, counted, a->stats.allocations + 1, to};
    a->stats.now[from] -= counted;
    a->stats.now[to] += counted;
    ek_trace_memory(dev, &a->stats, block ? &left : NULL);
    pthread_mutex_unlock(&a->lock);
}

/* ---- holders ---- */

void ek_ledger_add_holders(const ek_dev *dev, uint64_t until, ek_holders *holders)
{
    if (!ek_forked()) /* a thread of the parent may have been changing the segments */
        ek_segments_add_holders(&dev->allocator->segments, until, holders);
}

void ek_ledger_note_shortage(ek_dev *dev, ek_shortage *lack)
{
    ek_holders holders = {0};
    lack->stats = dev->allocator->stats;
    lack->stats.largest_free = ek_ledger_largest_free(dev);
    ek_ledger_add_holders(dev, UINT64_MAX, &holders);
    lack->count = ek_holders_largest(&holders, lack->holders, EK_MEMORY_HOLDERS);
    ek_holders_clear(&holders);
    ek_trace_shortage(dev, lack);
}

/* ---- watches ---- */

void ek_memory_watch_begin(ek_dev *dev, ek_memory_watch *watch)
{
    if (ek_forked()) {
        *watch = (ek_memory_watch){0};
        return;
    }
    struct ek_allocator *a = dev->allocator;
    pthread_mutex_lock(&a->lock);
    *watch = (ek_memory_watch){.dev = dev, .peak = a->stats.in_use, .next = a->watches};
    a->watches = watch;
    pthread_mutex_unlock(&a->lock);
}

uint64_t ek_memory_watch_restart(ek_memory_watch *watch)
{
    ek_dev *dev = watch->dev;
    if (!dev || ek_forked())
        return watch->peak;
    pthread_mutex_lock(&dev->allocator->lock);
    uint64_t peak = watch->peak;
    watch->peak = dev->allocator->stats.in_use;
    pthread_mutex_unlock(&dev->allocator->lock);
    return peak;
}

void ek_memory_watch_end(ek_memory_watch *watch)
{
    ek_dev *dev = watch->dev;
    if (!dev || ek_forked())
        return;
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_watch **at = &dev->allocator->watches;
    while (*at != watch)
        at = &(*at)->next;
    *at = watch->next;
    watch->dev = NULL;
    pthread_mutex_unlock(&dev->allocator->lock);
}

/* ---- reading and resetting ---- */

void ek_dev_restore_peak(ek_dev *dev, const ek_memory_stats *before)
{
    if (ek_forked())
        return;
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_stats *stats = &dev->allocator->stats;
    stats->peak = before->peak;
    memcpy(stats->at_peak, before->at_peak, sizeof stats->at_peak);
    if (stats->in_use > stats->peak) {
        stats->peak = stats->in_use;
        memcpy(stats->at_peak, stats->now, sizeof stats->now);
    }
    stats->reserved_peak =
        before->reserved_peak > stats->reserved ? before->reserved_peak : stats->reserved;
    pthread_mutex_unlock(&dev->allocator->lock);
}

void ek_ledger_read(ek_dev *dev, ek_memory_stats *stats)
{
    *stats = *ek_ledger_hold(dev);
    ek_ledger_release(dev);
}

const ek_memory_stats *ek_ledger_hold(ek_dev *dev)
{
    struct ek_allocator *a = dev->allocator;
    ek_lock(&a->lock);
    if (!ek_forked())
        a->stats.largest_free = ek_segments_largest(&a->segments);
    return &a->stats;
}

uint64_t ek_ledger_largest_free(const ek_dev *dev)
{
    return ek_segments_largest(&dev->allocator->segments);
}

void ek_ledger_count_system(ek_dev *dev, uint64_t nbytes)
{
    pthread_mutex_lock(&dev->allocator->lock);
    dev->allocator->stats.system = nbytes;
    pthread_mutex_unlock(&dev->allocator->lock);
}

void ek_ledger_measure(ek_dev *dev)
{
    if (dev->backend->memory_measure && !ek_forked())
        dev->backend->memory_measure(dev);
}

void ek_ledger_release(ek_dev *dev)
{
    ek_unlock(&dev->allocator->lock);
}

void ek_ledger_reset_peak(ek_dev *dev)
{
    pthread_mutex_lock(&dev->allocator->lock);
    ek_memory_stats *stats = &dev->allocator->stats;
    stats->peak = stats->in_use;
    stats->reserved_peak = stats->reserved;
    memcpy(stats->at_peak, stats->now, sizeof stats->now);
    pthread_mutex_unlock(&dev->allocator->lock);
}

const char *ek_memory_category_name(ek_memory_category category)
{
    switch (category) {
#define EK_MEMORY_CASE(name, text) \
    case EK_MEMORY_##name:         \
        return text;
        EK_MEMORY_MAP(EK_MEMORY_CASE)
#undef EK_MEMORY_CASE
    case EK_MEMORY_CATEGORIES:
        break;
    }
    return "unknown";
}

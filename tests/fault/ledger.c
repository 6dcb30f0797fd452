/* ledger.c: a hash table of live blocks, and how a stack is printed.
 *
 * It finds leaks in every build, also of blocks that something still points to. */
#include "ledger.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inject.h"

void *__real_calloc(size_t count, size_t nbytes);
void __real_free(void *block);

enum { LEDGER_DEPTH = 24 };

typedef struct ledger_entry {
    uintptr_t key; /* ledger_key; 0: free */
    void **stack;  /* LEDGER_DEPTH addresses, or NULL */
} ledger_entry;

static struct {
    pthread_mutex_t lock;
    ledger_entry *entries;
    size_t room, count;
    bool remember;
} ledger = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* No pointer: a leak checker that sees one takes the block for used. */
static uintptr_t ledger_key(const void *block)
{
    return ~(uintptr_t)block;
}

/* Where the block is, or the free place where it would be. Linear probing. */
static size_t ledger_find(const ledger_entry *entries, size_t room, uintptr_t key)
{
    size_t place = (size_t)((key >> 4) * 0x9e3779b97f4a7c15u) & (room - 1);
    while (entries[place].key && entries[place].key != key)
        place = (place + 1) & (room - 1);
    return place;
}

static void ledger_grow(void)
{
    size_t room = ledger.room ? 2 * ledger.room : 1u << 14;
    ledger_entry *entries = __real_calloc(room, sizeof *entries);
    if (!entries)
        abort();
    for (size_t i = 0; i < ledger.room; i++)
        if (ledger.entries[i].key)
            entries[ledger_find(entries, room, ledger.entries[i].key)] = ledger.entries[i];
    __real_free(ledger.entries);
    ledger.entries = entries;
    ledger.room = room;
}

void *ledger_add(void *block)
{
    if (!block)
        return NULL;
    void *stack[LEDGER_DEPTH] = {0};
    if (ledger.remember)
        backtrace(stack, LEDGER_DEPTH);
    pthread_mutex_lock(&ledger.lock);
    if (2 * ledger.count >= ledger.room)
        ledger_grow();
    const uintptr_t key = ledger_key(block);
    ledger_entry *entry = &ledger.entries[ledger_find(ledger.entries, ledger.room, key)];
    entry->key = key;
    if (ledger.remember && (entry->stack = __real_calloc(LEDGER_DEPTH, sizeof *stack)))
        memcpy(entry->stack, stack, sizeof stack);
    ledger.count++;
    pthread_mutex_unlock(&ledger.lock);
    return block;
}

/* Closes the gap: what was pushed past it by others moves up. */
static void ledger_close(size_t gap)
{
    size_t mask = ledger.room - 1;
    ledger.entries[gap] = (ledger_entry){0};
    for (size_t i = (gap + 1) & mask; ledger.entries[i].key; i = (i + 1) & mask) {
        ledger_entry entry = ledger.entries[i];
        ledger.entries[i] = (ledger_entry){0};
        ledger.entries[ledger_find(ledger.entries, ledger.room, entry.key)] = entry;
    }
}

bool ledger_remove(const void *block)
{
    if (!block)
        return false;
    pthread_mutex_lock(&ledger.lock);
    size_t place = ledger.room ? ledger_find(ledger.entries, ledger.room, ledger_key(block)) : 0;
    bool known = ledger.room && ledger.entries[place].key;
    if (known) {
        __real_free(ledger.entries[place].stack);
        ledger_close(place);
        ledger.count--;
    }
    pthread_mutex_unlock(&ledger.lock);
    return known;
}

long inject_live(void)
{
    pthread_mutex_lock(&ledger.lock);
    long count = (long)ledger.count;
    pthread_mutex_unlock(&ledger.lock);
    return count;
}

void inject_remember_stacks(bool on)
{
    pthread_mutex_lock(&ledger.lock);
    for (size_t i = 0; on && i < ledger.room; i++) {
        __real_free(ledger.entries[i].stack);
        ledger.entries[i].stack = NULL;
    }
    ledger.remember = on;
    pthread_mutex_unlock(&ledger.lock);
}

void inject_print_live(int most)
{
    for (size_t i = 0; i < ledger.room && most > 0; i++) {
        if (!ledger.entries[i].stack)
            continue;
        printf("    a block still allocated came from\n");
        inject_print_stack(ledger.entries[i].stack, LEDGER_DEPTH);
        most--;
    }
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEDGER_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(LEDGER_SANITIZED)
int __lsan_do_recoverable_leak_check(void);
bool inject_sanitizer_leaks(void)
{
    return __lsan_do_recoverable_leak_check() != 0;
}
#else
bool inject_sanitizer_leaks(void)
{
    return false;
}
#endif

/* ---- stacks ---- */

/* addr2line reads the debug information; without it addresses remain. Nothing is allocated here: a
 * process that ends may have a broken heap. */
void inject_print_stack(void *const *stack, int depth)
{
    static char command[2 * INJECT_DEPTH * 20 + 200], addresses[INJECT_DEPTH * 20];
    Dl_info self, info;
    size_t length = 0;
    if (!dladdr((void *)(uintptr_t)inject_print_stack, &self))
        return;
    addresses[0] = '\0';
    for (int i = 0; i < depth && stack[i]; i++)
        if (dladdr(stack[i], &info) && info.dli_fbase == self.dli_fbase) {
            size_t offset = (size_t)((char *)stack[i] - (char *)info.dli_fbase) - 1;
            length +=
                (size_t)snprintf(addresses + length, sizeof addresses - length, " %#zx", offset);
        }
    snprintf(command, sizeof command,
             "(addr2line -pfe /proc/%ld/exe%s 2>/dev/null || echo%s) | sed 's/^/      /'",
             (long)getpid(), addresses, addresses);
    fflush(stdout);
    if (*addresses && system(command) != 0)
        printf("      %s\n", addresses);
    fflush(stdout);
}

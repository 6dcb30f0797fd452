/* window.c: see window.h. A part is an anonymous file (memfd_create), which the other ranks open by
 * its name in /proc and map. The file has no name on a disk, so that nothing is left of it, however
 * the processes end. */
#include "train/window.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "evenkeel/tensor.h"
#include "group/same.h"
#include "group/sum_schedule.h"

enum { WINDOW_HEADER = 4096 }; /* bytes before the memory, which is aligned to a page */

/* The first bytes of a part. */
typedef struct window_header {
    _Atomic uint64_t counts[EK_WINDOW_COUNTERS];
    uint64_t mark; /* tells the file from another file of this name */
} window_header;

/* What a rank tells the others about its part. */
typedef struct window_offer {
    int64_t made; /* 0: the rank cannot share memory, or does not want to */
    int64_t pid, file, nbytes;
    uint64_t mark;
} window_offer;
enum { WINDOW_OFFER = sizeof(window_offer) / sizeof(int64_t) };

static window_header *window_header_of(const ek_window *window, int rank)
{
    return (window_header *)(void *)window->parts[rank - window->first];
}

char *ek_window_memory(const ek_window *window, int rank)
{
    return window->parts[rank - window->first] + WINDOW_HEADER;
}

void ek_window_set(ek_window *window, int counter, uint64_t count)
{
    atomic_store(&window_header_of(window, window->rank)->counts[counter], count);
}

uint64_t ek_window_count(const ek_window *window, int rank, int counter)
{
    return atomic_load_explicit(&window_header_of(window, rank)->counts[counter],
                                memory_order_acquire);
}

bool ek_window_has(const ek_window *window, int counter, uint64_t count)
{
    for (int r = window->first; r < window->first + window->size; r++)
        if (ek_window_count(window, r, counter) < count)
            return false;
    return true;
}

static void window_destroy(ek_object *object)
{
    ek_window *window = (ek_window *)object;
    for (int r = 0; r < window->size; r++)
        if (window->parts[r])
            munmap(window->parts[r], window->nbytes);
    free(window);
}

static ek_window *window_new(const ek_process_group *group, size_t nbytes)
{
    const int block = ek_sum_block(group), first = group->rank / block * block;
    const int size = group->size - first < block ? group->size - first : block;
    ek_window *window = ek_calloc(1, sizeof *window + (size_t)size * sizeof(char *));
    if (!window)
        return NULL;
    ek_object_init(&window->object, window_destroy);
    window->rank = group->rank;
    window->first = first;
    window->size = size;
    window->nbytes = WINDOW_HEADER + nbytes;
    return window;
}

static bool window_map(ek_window *window, int rank, int file)
{
    void *memory =
        mmap(NULL, window->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    window->parts[rank - window->first] = memory == MAP_FAILED ? NULL : memory;
    return memory != MAP_FAILED;
}

/* Tells whether a file may have so many bytes. Writing a longer file would raise a signal. */
static bool window_is_within_limit(size_t nbytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
           (limit.rlim_cur == RLIM_INFINITY || nbytes <= limit.rlim_cur);
}

/* Makes this rank's part, whose file descriptor *file gets (-1: no file). Reserves the pages,
 * because on a machine without free memory, touching pages that are not reserved would end the
 * process. */
static window_offer window_make(ek_window *window, int *file)
{
    window_offer none = {0};
    *file = window_is_within_limit(window->nbytes) ? memfd_create("evenkeel", MFD_CLOEXEC) : -1;
    if (*file < 0 || posix_fallocate(*file, 0, (off_t)window->nbytes) != 0 ||
        !window_map(window, window->rank, *file))
        return none;
    window_header *header = window_header_of(window, window->rank);
    header->mark = ek_clock_ns() ^ (uint64_t)(uintptr_t)header;
    return (window_offer){.made = 1,
                          .pid = getpid(),
                          .file = *file,
                          .nbytes = (int64_t)window->nbytes,
                          .mark = header->mark};
}

/* Maps another rank's part. In another container the part's name may be that of any other file. */
static bool window_take(ek_window *window, int rank, const window_offer *offer)
{
    char name[64];
    struct stat status;
    snprintf(name, sizeof name, "/proc/%lld/fd/%lld", (long long)offer->pid,
             (long long)offer->file);
    if (stat(name, &status) < 0 || !S_ISREG(status.st_mode) ||
        status.st_size != (off_t)window->nbytes)
        return false;
    int file = open(name, O_RDWR | O_CLOEXEC);
    bool taken = file >= 0 && window_map(window, rank, file) &&
                 window_header_of(window, rank)->mark == offer->mark;
    if (file >= 0)
        close(file);
    return taken;
}

static bool window_is_allowed(void)
{
    const char *text = getenv("EVENKEEL_DIST_SHARED_MEMORY");
    return !text || strcmp(text, "0") != 0;
}

/* Maps the parts of the block's other ranks. Returns 1 if all ranks could, 0 if not, or a negative
 * status. */
static int window_complete(ek_window *window, ek_process_group *group, const int64_t *offers)
{
    uint8_t taken = 1;
    const int64_t *list = offers;
    for (int r = 0; r < group->size; r++, list = ek_group_next_list(list)) {
        const window_offer *offer = (const window_offer *)(const void *)(list + 1);
        taken &= offer->made == 1 && offer->nbytes == (int64_t)window->nbytes;
    }
    if (!taken) /* all ranks return here alike */
        return 0;
    list = offers;
    for (int r = 0; r < window->first + window->size && taken; r++, list = ek_group_next_list(list))
        taken &= r < window->first || r == group->rank ||
                 window_take(window, r, (const window_offer *)(const void *)(list + 1));
    ek_tensor *all = ek_from_data(&taken, EK_SHAPE(1), EK_U8, .device = ek_cpu());
    int rc = all ? ek_dist_all_reduce(all, .op = EK_DIST_MIN, .group = group) : ek_error_pending();
    return rc < 0 ? rc : *(uint8_t *)ek_tensor_address(all);
}

int ek_window_open(ek_process_group *group, size_t nbytes, bool wanted, ek_window **window)
{
    *window = NULL;
    if (ek_sum_block(group) == 1)
        return 0;
    int file = -1;
    window_offer mine = {0};
    ek_window *made = window_new(group, nbytes);
    if (made && wanted && window_is_allowed())
        mine = window_make(made, &file);
    ek_error_clear(); /* without shared memory, messages are used */
    ek_scope scope = ek_scope_begin();
    const int64_t *offers =
        ek_group_lists((const int64_t *)(const void *)&mine, WINDOW_OFFER, group);
    int rc = offers ? 0 : ek_error_pending();
    if (rc >= 0 && made)
        rc = window_complete(made, group, offers);
    ek_scope_end(&scope);
    if (file >= 0)
        close(file);
    if (rc > 0)
        *window = made;
    else
        ek_object_release(made);
    return rc < 0 ? rc : 0;
}

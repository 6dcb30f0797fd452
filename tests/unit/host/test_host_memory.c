/* test_host_memory.c: the host's blocks and the pages that they lie on. */
#include <unistd.h>

#include "host_cases.h"

enum { HUGE_PAGE = 2 << 20, LARGE = 2 * HUGE_PAGE + 5000, SMALL = HUGE_PAGE - 64 };

/* True if the system was asked for huge pages at the address. */
static bool asked_for_huge_pages(const void *address)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    ck_assert_ptr_nonnull(file);
    char line[4096];
    bool here = false, asked = false;
    while (fgets(line, sizeof line, file)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            here = (uintptr_t)address >= begin && (uintptr_t)address < end;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            asked = strstr(line, " hg") != NULL;
    }
    fclose(file);
    return asked;
}

/* Sanitized builds do not ask. Systems without huge pages forget that they were asked. */
static bool has_huge_pages(void)
{
#ifdef EK_SANITIZED
    return false;
#else
    return access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
#endif
}

/* As the device's allocator asks the host for segments. */
static void *from_system(ek_dev *dev, size_t nbytes)
{
    void *pointer;
    assert_ok(dev->backend->memory_alloc(dev, nbytes, &pointer));
    ck_assert_uint_eq((uintptr_t)pointer % 64, 0);
    memset(pointer, 1, nbytes);
    return pointer;
}

TEST(large_blocks_ask_for_huge_pages)
{
    ek_dev *dev = case_device(1);
    char *large = from_system(dev, LARGE), *small = from_system(dev, SMALL);
    if (has_huge_pages()) {
        const char *end = large + 2 * HUGE_PAGE;
        ck_assert_uint_eq((uintptr_t)large % HUGE_PAGE, 0);
        ck_assert(asked_for_huge_pages(large));
        ck_assert(asked_for_huge_pages(end - 1));
        ck_assert(!asked_for_huge_pages(end));
        ck_assert(!asked_for_huge_pages(small));
    }
    dev->backend->memory_free(dev, large, LARGE);
    dev->backend->memory_free(dev, small, SMALL);
}

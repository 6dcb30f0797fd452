/* test_host_memory.c: the host's blocks and the pages that they lie on. */
#include <stdio.h>
#include <string.h>
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

TEST(large_blocks_ask_for_huge_pages)
{
    ek_dev *dev = case_device(1);
    void *large, *small;
    assert_ok(ek_dev_alloc(dev, LARGE, EK_MEMORY_ACTIVATION, &large));
    assert_ok(ek_dev_alloc(dev, SMALL, EK_MEMORY_ACTIVATION, &small));
    ck_assert_uint_eq((uintptr_t)large % 64, 0);
    ck_assert_uint_eq((uintptr_t)small % 64, 0);
    memset(large, 1, LARGE);
    memset(small, 1, SMALL);
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(dev->id, &stats));
    ck_assert_uint_eq(stats.now[EK_MEMORY_ACTIVATION], (LARGE + 63) / 64 * 64 + SMALL);
    if (has_huge_pages()) {
        const char *end = (const char *)large + 2 * HUGE_PAGE;
        ck_assert_uint_eq((uintptr_t)large % HUGE_PAGE, 0);
        ck_assert(asked_for_huge_pages(large));
        ck_assert(asked_for_huge_pages(end - 1));
        ck_assert(!asked_for_huge_pages(end));
        ck_assert(!asked_for_huge_pages(small));
    }
    ek_dev_free(dev, large, LARGE, EK_MEMORY_ACTIVATION);
    ek_dev_free(dev, small, SMALL, EK_MEMORY_ACTIVATION);
}

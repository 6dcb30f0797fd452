/* map.c: files that the library maps lie at the end of a mapping, before a page without access: who
 * reads on behind a file is killed, also where no sanitizer watches. To be linked with
 * -Wl,--wrap=ek_file_map,--wrap=ek_file_unmap. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/file.h"
#include "fuzz.h"

int __real_ek_file_map(const char *what, const char *path, ek_mapped *mapped);
void __real_ek_file_unmap(ek_mapped *mapped);
int __wrap_ek_file_map(const char *what, const char *path, ek_mapped *mapped);
void __wrap_ek_file_unmap(ek_mapped *mapped);

/* The size of the whole pages that hold so many bytes. */
static size_t map_pages(size_t nbytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (nbytes + page - 1) / page * page;
}

int __wrap_ek_file_map(const char *what, const char *path, ek_mapped *mapped)
{
    ek_mapped file = {NULL, 0};
    int status = __real_ek_file_map(what, path, &file);
    *mapped = file;
    if (status < 0 || file.nbytes == 0)
        return status;
    size_t pages = map_pages(file.nbytes);
    unsigned char *at = mmap(NULL, pages + map_pages(1), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fuzz_require(at != MAP_FAILED && mprotect(at + pages, map_pages(1), PROT_NONE) == 0,
                 "a page without access can be made");
    memcpy(at + pages - file.nbytes, file.bytes, file.nbytes);
    *mapped = (ek_mapped){at + pages - file.nbytes, file.nbytes};
    __real_ek_file_unmap(&file);
    return status;
}

void __wrap_ek_file_unmap(ek_mapped *mapped)
{
    size_t pages = map_pages(mapped->nbytes);
    if (!mapped->bytes)
        return;
    fuzz_require(munmap((unsigned char *)(uintptr_t)mapped->bytes + mapped->nbytes - pages,
                        pages + map_pages(1)) == 0,
                 "the mapping ends where it began");
    *mapped = (ek_mapped){NULL, 0};
}

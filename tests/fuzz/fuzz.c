/* fuzz.c: see fuzz.h. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "evenkeel/device.h"
#include "evenkeel/status.h"

static char path[40];

void fuzz_require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s (pending: %s)\n", what, ek_error_message());
    abort();
}

const char *fuzz_file(const uint8_t *data, size_t nbytes)
{
    static int file = -1;
    if (file < 0) {
        file = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    /* In this order the file keeps its memory. */
    fuzz_require(file >= 0 && pwrite(file, data, nbytes, 0) == (ssize_t)nbytes &&
                     ftruncate(file, (off_t)nbytes) == 0,
                 "a file in memory can be made");
    return path;
}

const uint8_t *fuzz_unzipped(const uint8_t *data, size_t nbytes, size_t *unzipped_nbytes)
{
    static uint8_t unzipped[1 << 25]; /* a thousand times what is fuzzed: zlib's best */
    int code;
    *unzipped_nbytes = nbytes;
    if (nbytes < 2 || data[0] != 0x1f || data[1] != 0x8b)
        return data;
    gzFile file = gzopen(path, "rb");
    fuzz_require(file != NULL, "the file in memory can be opened");
    int got = gzread(file, unzipped, sizeof unzipped);
    gzerror(file, &code);
    gzclose(file);
    fuzz_require(got < (int)sizeof unzipped, "there is room for what is unzipped");
    *unzipped_nbytes = got < 0 ? 0 : (size_t)got;
    return got < 0 || code != Z_OK ? NULL : unzipped;
}

void fuzz_require_refused(int other)
{
    int status = ek_error_status();
    fuzz_require(status == EK_E_FORMAT || (other && status == other),
                 "a refused file is EK_E_FORMAT, or what else the format has");
    fuzz_require(strstr(ek_error_message(), path) != NULL, "the sentence names the file");
    ek_error_clear();
}

void fuzz_require_clean(void)
{
    ek_memory_stats stats;
    fuzz_require(ek_error_status() == 0, "no error is pending");
    fuzz_require(ek_memory_get_stats(ek_cpu(), &stats) == 0 && stats.in_use == 0,
                 "the ledger of cpu is at zero");
}

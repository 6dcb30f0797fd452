/* fuzz.h: what the fuzz targets share. A target defines LLVMFuzzerTestOneInput and fuzz_format. */
#ifndef EK_TESTS_FUZZ_H
#define EK_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

typedef struct fuzz_word {
    const char *bytes;
    size_t nbytes;
} fuzz_word;
#define FUZZ_WORD(text)          \
    {                            \
        (text), sizeof(text) - 1 \
    }

/* What mutate.c has to know of a format. */
typedef struct fuzz_format {
    const fuzz_word *words; /* that mean something in it */
    size_t word_count;
    void (*mend)(uint8_t *bytes, size_t *nbytes); /* makes lengths fit, or mutations would hardly
                                                     get further; cuts, but does not extend */
    bool gzip;                                    /* files may be zipped */
} fuzz_format;

extern const fuzz_format fuzz_this_format;

/* Says what does not hold, and aborts. */
void fuzz_require(bool holds, const char *what);

/* The path of a file in memory with these bytes; the next call gives it others. */
const char *fuzz_file(const uint8_t *data, size_t nbytes);

/* What zlib makes of the latest file: the same bytes, or unzipped ones. NULL if it is damaged or
 * ends too early. Until the next call. */
const uint8_t *fuzz_unzipped(const uint8_t *data, size_t nbytes, size_t *unzipped_nbytes);

/* The pending error, which is cleared, is one of a refused file: EK_E_FORMAT or `other`, with a
 * sentence. */
void fuzz_require_refused(int other);

/* No error is pending, and nothing is left on cpu. */
void fuzz_require_clean(void);

#endif

/* fuzz_idx.c: any bytes as an IDX file: exactly the valid ones are read, with the file's elements.
 * For libFuzzer, from the top of the tree:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc \
 *         tests/fuzz/fuzz_idx.c tests/fuzz/fuzz.c tests/unit/plain_backend.c src/core/?*.c \
 *         src/data/{arrays,stream,element}.c -lz -lpthread -lm -o fuzz
 *     ./fuzz tests/fuzz/corpus/idx */
#include "fuzz.h"

#include <string.h>

#include "evenkeel/data.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"

static uint64_t size_at(const uint8_t *bytes)
{
    return (uint64_t)bytes[0] << 24 | (uint64_t)bytes[1] << 16 | (uint64_t)bytes[2] << 8 | bytes[3];
}

/* The sizes' product, where the sizes that are not 0 multiply to less than 2^59. */
static bool count_of(const uint8_t *bytes, int ndim, uint64_t *count)
{
    __uint128_t most = 1;
    *count = 1;
    for (int i = 0; i < ndim; i++) {
        uint64_t size = size_at(bytes + 4 * i);
        most *= size ? size : 1;
        if (most >> 59)
            return false;
        *count *= size;
    }
    return true;
}

static bool is_valid(const uint8_t *bytes, size_t nbytes)
{
    uint64_t count;
    if (nbytes < 4 || bytes[0] || bytes[1] || bytes[2] != 8 || bytes[3] < 1 || bytes[3] > 8)
        return false;
    size_t header = 4 + 4 * (size_t)bytes[3];
    return nbytes >= header && count_of(bytes + 4, bytes[3], &count) && nbytes - header == count;
}

static void require_same(const ek_tensor *tensor, const uint8_t *bytes)
{
    ek_shape shape = ek_tensor_shape(tensor);
    fuzz_require(shape.ndim == bytes[3] && ek_tensor_dtype(tensor) == EK_U8, "ndim and dtype");
    for (int i = 0; i < shape.ndim; i++)
        fuzz_require((uint64_t)shape.dims[i] == size_at(bytes + 4 + 4 * i), "the shape");
    size_t count = (size_t)ek_tensor_count(tensor);
    fuzz_require(!count || !memcmp(ek_tensor_data(tensor), bytes + 4 + 4 * shape.ndim, count),
                 "the elements are the file's");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = ek_read_idx(fuzz_file(data, nbytes));
    size_t plain_nbytes;
    const uint8_t *plain = fuzz_unzipped(data, nbytes, &plain_nbytes);
    bool valid = plain && is_valid(plain, plain_nbytes);
    fuzz_require((tensor != NULL) == valid, "what is valid is read, and nothing else");
    if (tensor)
        require_same(tensor, plain);
    else
        fuzz_require_refused(0);
    ek_scope_end(&scope);
    fuzz_require_clean();
    return 0;
}

/* ---- for mutations ---- */

static const fuzz_word words[] = {FUZZ_WORD("\0\0\10\1"),   FUZZ_WORD("\0\0\10\3"),
                                  FUZZ_WORD("\0\0\0\0"),    FUZZ_WORD("\0\0\0\1"),
                                  FUZZ_WORD("\0\0\0\2"),    FUZZ_WORD("\377\377\377\377"),
                                  FUZZ_WORD("\200\0\0\0"),  FUZZ_WORD("\177\377\377\377"),
                                  FUZZ_WORD("\0\1\0\0"),    FUZZ_WORD("\0\0\10\10"),
                                  FUZZ_WORD("\37\213\10\0")};

/* Makes the first size what the others and the elements leave. */
static void mend(uint8_t *bytes, size_t *nbytes)
{
    uint64_t others;
    if (*nbytes < 8 || bytes[3] < 1 || bytes[3] > 8)
        return;
    size_t header = 4 + 4 * (size_t)bytes[3];
    if (*nbytes < header || !count_of(bytes + 8, bytes[3] - 1, &others) || others == 0)
        return;
    uint64_t first = (*nbytes - header) / others;
    if (first * others != *nbytes - header)
        *nbytes = header + (size_t)(first * others);
    for (int i = 0; i < 4; i++)
        bytes[4 + i] = (uint8_t)(first >> 8 * (3 - i));
}

const fuzz_format fuzz_this_format = {words, sizeof words / sizeof *words, mend, true};

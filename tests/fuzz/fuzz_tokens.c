/* fuzz_tokens.c: any bytes as a file of tokens, mapped and streamed: refused, or read as the file's
 * numbers. For libFuzzer, from the top of the tree:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc -Ibalance \
 *         -Wl,--wrap=ek_file_map,--wrap=ek_file_unmap tests/fuzz/fuzz_tokens.c tests/fuzz/fuzz.c \
 *         tests/fuzz/map.c tests/unit/plain_backend.c src/core/?*.c src/data/?*.c src/plan/?*.c \
 *         -lz -lpng -lturbojpeg -lpthread -lm -o fuzz
 *     ./fuzz tests/fuzz/corpus/idx */
#include "fuzz.h"

#include <string.h>

#include "evenkeel/dataset.h"
#include "evenkeel/iterable.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"

/* A type by the file's size, so that the sizes of all types are met. */
static const struct {
    const char *name;
    size_t nbytes;
    bool is_signed;
} types[] = {{"u8", 1, false},  {"i8", 1, true},  {"u16", 2, false}, {"i16", 2, true},
             {"u32", 4, false}, {"i32", 4, true}, {"i64", 8, true}};
enum { TYPES = sizeof types / sizeof *types, LENGTH = 3, STRIDE = 2 };

static int64_t token_at(const uint8_t *bytes, size_t type, size_t index)
{
    const size_t size = types[type].nbytes;
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)bytes[index * size + i] << 8 * i;
    if (types[type].is_signed && bytes[index * size + size - 1] & 0x80)
        value |= size < 8 ? UINT64_MAX << 8 * size : 0;
    return (int64_t)value;
}

/* Inputs begin at `first`, targets one later. */
static void require_sample(ek_value sample, const uint8_t *bytes, size_t type, size_t first)
{
    for (int part = 0; part < 2; part++) {
        ek_tensor *tensor = ek_value_tensor(ek_value_at(sample, part));
        fuzz_require(tensor && ek_tensor_count(tensor) == LENGTH, "a sample has its length");
        const int64_t *tokens = ek_tensor_data(tensor);
        for (size_t i = 0; i < LENGTH; i++)
            fuzz_require(tokens[i] == token_at(bytes, type, first + (size_t)part + i),
                         "tokens are the file's");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const size_t type = nbytes / 8 % TYPES, count = nbytes / types[type].nbytes;
    const char *path = fuzz_file(data, nbytes);
    ek_scope scope = ek_scope_begin();
    ek_dataset *set = ek_token_dataset(.path = path, .length = LENGTH, .stride = STRIDE,
                                       .type = types[type].name);
    bool whole = nbytes % types[type].nbytes == 0;
    fuzz_require((set != NULL) == (whole && count > LENGTH), "whole tokens are read, if enough");
    if (set) {
        int64_t samples = ek_dataset_length(set);
        fuzz_require(samples == (int64_t)(count - 1 - LENGTH) / STRIDE + 1,
                     "the number of samples");
        for (int64_t i = 0; i < samples; i++)
            require_sample(ek_dataset_get(set, i), data, type, (size_t)i * STRIDE);
        ek_dataset_free(set);
    } else {
        fuzz_require_refused(EK_E_SHAPE);
    }
    ek_scope_end(&scope);
    fuzz_require_clean();
    return 0;
}

/* ---- for mutations ---- */

static const fuzz_word words[] = {FUZZ_WORD("\xff\xff"), FUZZ_WORD("\0\x80"), FUZZ_WORD("12345678"),
                                  FUZZ_WORD("\0\0\0\x80")};

/* Whole numbers of 8 bytes. */
static void mend(uint8_t *bytes, size_t *nbytes)
{
    (void)bytes;
    *nbytes -= *nbytes % 8;
}

const fuzz_format fuzz_this_format = {words, sizeof words / sizeof *words, mend, false};

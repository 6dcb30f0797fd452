/* fuzz_cifar.c: any bytes as a file of CIFAR-10 and of CIFAR-100: exactly the valid ones are read,
 * with the file's labels and pixels. For libFuzzer, from the top of the tree:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc -Ibalance \
 *         tests/fuzz/fuzz_cifar.c tests/fuzz/fuzz.c tests/unit/plain_backend.c src/core/?*.c \
 *         src/data/?*.c src/plan/?*.c -lz -lpng -lturbojpeg -lpthread -lm -o fuzz
 *     ./fuzz -max_len=8192 tests/fuzz/corpus/cifar */
#include "fuzz.h"

#include <string.h>

#include "evenkeel/data.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"

enum { PIXELS = 3 * 32 * 32 };

static bool is_valid(const uint8_t *bytes, size_t nbytes, int classes)
{
    size_t labels = classes == 10 ? 1 : 2, size = labels + PIXELS;
    if (nbytes == 0 || nbytes % size != 0)
        return false;
    for (size_t at = 0; at < nbytes; at += size)
        if (bytes[at + labels - 1] >= classes || (labels == 2 && bytes[at] >= 20))
            return false;
    return true;
}

static void require_same(const ek_tensor *pictures, const ek_tensor *labels, const uint8_t *bytes,
                         size_t nbytes, int classes)
{
    int64_t columns = classes == 10 ? 1 : 2, count = (int64_t)nbytes / (columns + PIXELS);
    ek_shape wanted = EK_SHAPE(count, 3, 32, 32), shape = ek_tensor_shape(pictures);
    const int64_t *label = ek_tensor_data(labels);
    const uint8_t *pixels = ek_tensor_data(pictures);
    fuzz_require(ek_shape_equal(&shape, &wanted), "the shape of the pictures");
    wanted = columns == 1 ? EK_SHAPE(count) : EK_SHAPE(count, 2);
    shape = ek_tensor_shape(labels);
    fuzz_require(ek_shape_equal(&shape, &wanted), "the shape of the labels");
    fuzz_require(ek_tensor_dtype(pictures) == EK_U8 && ek_tensor_dtype(labels) == EK_I64, "dtypes");
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < columns; k++)
            fuzz_require(*label++ == *bytes++, "labels are the file's");
        fuzz_require(memcmp(pixels + i * PIXELS, bytes, PIXELS) == 0, "pixels are the file's");
        bytes += PIXELS;
    }
}

static void read_as(const char *path, const uint8_t *plain, size_t nbytes, int classes)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *pictures, *labels;
    int status = ek_read_cifar(path, classes, &pictures, &labels);
    bool valid = plain && is_valid(plain, nbytes, classes);
    fuzz_require((status == 0) == valid && !pictures == !valid && !labels == !valid,
                 "what is valid is read, and nothing else");
    if (valid)
        require_same(pictures, labels, plain, nbytes, classes);
    else
        fuzz_require_refused(0);
    ek_scope_end(&scope);
    fuzz_require_clean();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const char *path = fuzz_file(data, nbytes);
    size_t plain_nbytes;
    const uint8_t *plain = fuzz_unzipped(data, nbytes, &plain_nbytes);
    read_as(path, plain, plain_nbytes, 10);
    read_as(path, plain, plain_nbytes, 100);
    return 0;
}

/* ---- for mutations ---- */

static const fuzz_word words[] = {FUZZ_WORD("\0"),         FUZZ_WORD("\11"), FUZZ_WORD("\12"),
                                  FUZZ_WORD("\23\143"),    FUZZ_WORD("\24"), FUZZ_WORD("\144"),
                                  FUZZ_WORD("\37\213\10"), FUZZ_WORD("\377")};

/* Whole records: which of both depends on the first label. */
static void mend(uint8_t *bytes, size_t *nbytes)
{
    size_t size = *nbytes > 0 && bytes[0] & 1 ? PIXELS + 1 : PIXELS + 2;
    if (*nbytes > size)
        *nbytes -= *nbytes % size;
}

const fuzz_format fuzz_this_format = {words, sizeof words / sizeof *words, mend, true};

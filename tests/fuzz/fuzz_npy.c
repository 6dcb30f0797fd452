/* fuzz_npy.c: any bytes as an .npy file: refused, or read as what its header says with the file's
 * elements, each in its place. For libFuzzer, from the top of the tree:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc \
 *         tests/fuzz/fuzz_npy.c tests/fuzz/fuzz.c tests/unit/plain_backend.c src/core/?*.c \
 *         src/data/{arrays,stream,element}.c -lz -lpthread -lm -o fuzz
 *     ./fuzz tests/fuzz/corpus/npy */
#include "fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evenkeel/data.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"

/* Where the header begins; *length is its length. */
static const uint8_t *header_of(const uint8_t *bytes, size_t *length)
{
    *length = bytes[8] | (size_t)bytes[9] << 8;
    return bytes[6] == 1 ? bytes + 10 : bytes + 12;
}

/* The header has this text. */
static bool has(const uint8_t *header, size_t length, const char *text)
{
    return memmem(header, length, text, strlen(text)) != NULL;
}

/* The numbers between shape's parentheses are the sizes. */
static void require_shape(const ek_shape *shape, const uint8_t *header, size_t length)
{
    const uint8_t *end = header + length, *at = memmem(header, length, "shape", 5);
    int ndim = 0;
    fuzz_require(at != NULL, "there is a shape");
    for (; at < end && *at != ')'; at++)
        if (*at >= '0' && *at <= '9') {
            int64_t size = 0;
            for (; at < end && *at >= '0' && *at <= '9'; at++)
                size = 10 * size + (*at - '0');
            fuzz_require(ndim < shape->ndim && shape->dims[ndim++] == size, "each size");
            at--;
        }
    fuzz_require(ndim == shape->ndim, "the number of dimensions");
}

/* A type of the format. */
typedef struct type {
    const char *name;
    ek_dtype dtype; /* that it becomes */
    size_t size;    /* in the file */
    bool is_signed;
} type;

static const type *type_of(const uint8_t *header, size_t length)
{
    static const type types[] = {{"<f4", EK_F32, 4, true},  {"<f8", EK_F64, 8, true},
                                 {"<i8", EK_I64, 8, true},  {"<f2", EK_F16, 2, true},
                                 {"<i2", EK_I64, 2, true},  {"<i4", EK_I32, 4, true},
                                 {"<u2", EK_I64, 2, false}, {"<u4", EK_I64, 4, false},
                                 {"i1", EK_I64, 1, true},   {"u1", EK_U8, 1, false},
                                 {"b1", EK_BOOL, 1, false}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (has(header, length, types[i].name))
            return &types[i];
    fuzz_require(false, "the dtype");
    return NULL;
}

static int64_t integer_of(const type *t, const uint8_t *bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < t->size; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    if (t->is_signed && bytes[t->size - 1] & 0x80)
        value |= UINT64_MAX << (8 * t->size) % 64;
    return (int64_t)value;
}

static bool same_element(const type *t, const uint8_t *bytes, const uint8_t *element)
{
    int64_t integer = 0;
    if (t->size == ek_dtype_size(t->dtype))
        return memcmp(bytes, element, t->size) == 0;
    memcpy(&integer, element, sizeof integer);
    return integer == integer_of(t, bytes);
}

/* Element i in row-major order lies at place_of(i) in Fortran's. */
static size_t place_of(const ek_shape *shape, size_t i)
{
    size_t place = 0;
    for (int k = shape->ndim - 1; k >= 0; k--) {
        size_t step = 1;
        for (int j = 0; j < k; j++)
            step *= (size_t)shape->dims[j];
        place += i % (size_t)shape->dims[k] * step;
        i /= (size_t)shape->dims[k];
    }
    return place;
}

static void require_same(const ek_tensor *tensor, const uint8_t *bytes, size_t nbytes)
{
    size_t length, size = ek_dtype_size(ek_tensor_dtype(tensor)),
                   count = (size_t)ek_tensor_count(tensor);
    const uint8_t *header = header_of(bytes, &length), *elements = header + length;
    const uint8_t *data = ek_tensor_data(tensor);
    ek_shape shape = ek_tensor_shape(tensor);
    bool fortran = has(header, length, "True");
    const type *t = type_of(header, length);
    fuzz_require(ek_tensor_dtype(tensor) == t->dtype, "the dtype");
    fuzz_require(elements + count * t->size == bytes + nbytes, "the elements are what follows");
    require_shape(&shape, header, length);
    for (size_t i = 0; i < count; i++) {
        size_t place = fortran ? place_of(&shape, i) : i;
        fuzz_require(same_element(t, elements + place * t->size, data + i * size),
                     "elements are the file's");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *tensor = ek_read_npy(fuzz_file(data, nbytes));
    if (tensor) {
        size_t plain_nbytes;
        const uint8_t *plain = fuzz_unzipped(data, nbytes, &plain_nbytes);
        fuzz_require(plain != NULL, "no damaged file is read");
        require_same(tensor, plain, plain_nbytes);
    } else {
        fuzz_require_refused(EK_E_DTYPE);
    }
    ek_scope_end(&scope);
    fuzz_require_clean();
    return 0;
}

/* ---- for mutations ---- */

static const fuzz_word words[] = {FUZZ_WORD("\x93NUMPY\1\0"),
                                  FUZZ_WORD("\x93NUMPY\2\0"),
                                  FUZZ_WORD("{"),
                                  FUZZ_WORD("}"),
                                  FUZZ_WORD("("),
                                  FUZZ_WORD(")"),
                                  FUZZ_WORD(","),
                                  FUZZ_WORD(":"),
                                  FUZZ_WORD("'"),
                                  FUZZ_WORD("\""),
                                  FUZZ_WORD("\\"),
                                  FUZZ_WORD("\n"),
                                  FUZZ_WORD("0"),
                                  FUZZ_WORD("-1"),
                                  FUZZ_WORD("2L"),
                                  FUZZ_WORD("9223372036854775807"),
                                  FUZZ_WORD("18446744073709551616"),
                                  FUZZ_WORD("'descr': "),
                                  FUZZ_WORD("'fortran_order': "),
                                  FUZZ_WORD("'shape': "),
                                  FUZZ_WORD("True"),
                                  FUZZ_WORD("False"),
                                  FUZZ_WORD("(2, 3), "),
                                  FUZZ_WORD("(6,), "),
                                  FUZZ_WORD("(), "),
                                  FUZZ_WORD("'<f4', "),
                                  FUZZ_WORD("'<f8', "),
                                  FUZZ_WORD("'<i8', "),
                                  FUZZ_WORD("'|u1', "),
                                  FUZZ_WORD("'<f2', "),
                                  FUZZ_WORD("'<i2', "),
                                  FUZZ_WORD("'<u4', "),
                                  FUZZ_WORD("'|i1', "),
                                  FUZZ_WORD("'|b1', "),
                                  FUZZ_WORD("'>f4', "),
                                  FUZZ_WORD("'|O', "),
                                  FUZZ_WORD("[('x', '<f4')]")};

/* Makes the length that of the first line. */
static void mend(uint8_t *bytes, size_t *nbytes)
{
    if (*nbytes < 13)
        return;
    size_t start = bytes[6] == 1 ? 10 : 12;
    const uint8_t *end = memchr(bytes + start, '\n', *nbytes - start);
    size_t length = end ? (size_t)(end - bytes) + 1 - start : *nbytes - start;
    bytes[8] = (uint8_t)length;
    bytes[9] = (uint8_t)(length >> 8);
    if (start == 12)
        bytes[10] = bytes[11] = 0;
}

const fuzz_format fuzz_this_format = {words, sizeof words / sizeof *words, mend, true};

/* fuzz_safetensors.c: any bytes as a safetensors file: opened or refused, and read without leaving
 * the file. For libFuzzer, from the top of the tree:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc \
 *         tests/fuzz/fuzz_safetensors.c tests/unit/plain_backend.c src/core/?*.c \
 *         src/data/safetensors*.c -ljansson -lpthread -lm -o fuzz
 *     ./fuzz tests/fuzz/corpus/safetensors */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "evenkeel/data.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s (pending: %s)\n", what, ek_error_message());
    abort();
}

/* A file in memory with these bytes; its name stays the same. */
static const char *file_of(const uint8_t *data, size_t nbytes)
{
    static int file = -1;
    static char path[40];
    if (file < 0) {
        file = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    require(file >= 0 && ftruncate(file, (off_t)nbytes) == 0 &&
                pwrite(file, data, nbytes, 0) == (ssize_t)nbytes,
            "a file in memory can be made");
    return path;
}

/* Bytes behind the header. */
static size_t elements_of(const uint8_t *data, size_t nbytes)
{
    uint64_t length = 0;
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)data[i] << 8 * i;
    return nbytes - 8 - (size_t)length;
}

/* Every tensor is found by its name; no two share a byte of the `nbytes` behind the header. */
static void read_all(const ek_safetensors *file, size_t nbytes)
{
    size_t total = 0;
    for (int i = 0; i < ek_safetensors_count(file); i++) {
        ek_scope scope = ek_scope_begin();
        const char *name = ek_safetensors_name(file, i);
        require(name != NULL, "every tensor has a name");
        ek_tensor *tensor = ek_safetensors_read(file, name);
        int status = ek_error_status();
        require(tensor ? status == 0 : status == EK_E_DTYPE || status == EK_E_SHAPE,
                "a listed tensor is read, or its dtype or shape refused");
        if (tensor)
            total += (size_t)ek_tensor_count(tensor) * ek_dtype_size(ek_tensor_dtype(tensor));
        ek_error_clear();
        ek_scope_end(&scope);
    }
    require(total <= nbytes, "no byte is read twice, none that is not there");
    ek_safetensors_metadata(file, "format");
    require(ek_error_status() == 0, "metadata that is not there is no error");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    ek_safetensors *file = ek_safetensors_open(file_of(data, nbytes));
    if (file)
        read_all(file, elements_of(data, nbytes));
    else
        require(ek_error_status() == EK_E_FORMAT && *ek_error_message(),
                "a refused file is EK_E_FORMAT");
    ek_error_clear();
    ek_safetensors_close(file);
    return 0;
}

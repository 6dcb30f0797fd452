/* fuzz_safetensors.c: any bytes as a safetensors file: opened or refused, and read without leaving
 * the file. What can be opened is loaded, too
 * (loads.h). For libFuzzer, from the top of the tree, with a build in $build that has
 * -DEVENKEEL_SANITIZE=fuzzer-no-link,address,undefined and clang:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc \
 *         -Wl,--wrap=ek_file_map,--wrap=ek_file_unmap
 * tests/fuzz/{fuzz_safetensors,fuzz,map,loads}.c \
 *         $build/libevenkeel_local.a $(sed -n 's/^Libs.private: //p' $build/evenkeel.pc) -lstdc++ \
 *         -o fuzz
 *     ./fuzz tests/fuzz/corpus/safetensors */
#include "fuzz.h"

#include <string.h>

#include "evenkeel/data.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"
#include "loads.h"

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
        fuzz_require(name != NULL, "every tensor has a name");
        ek_tensor *tensor = ek_safetensors_read(file, name);
        int status = ek_error_status();
        fuzz_require(tensor ? status == 0 : status == EK_E_DTYPE || status == EK_E_SHAPE,
                     "a listed tensor is read, or its dtype or shape refused");
        if (tensor)
            total += (size_t)ek_tensor_count(tensor); /* of a byte or more in the file */
        ek_error_clear();
        ek_scope_end(&scope);
    }
    fuzz_require(total <= nbytes, "no byte is read twice, none that is not there");
    ek_safetensors_metadata(file, "format");
    fuzz_require(ek_error_status() == 0, "metadata that is not there is no error");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const char *path = fuzz_file(data, nbytes);
    ek_safetensors *file = ek_safetensors_open(path);
    if (file) {
        read_all(file, elements_of(data, nbytes));
        fuzz_load_all(file, path);
    } else {
        fuzz_require_refused(0);
    }
    ek_safetensors_close(file);
    fuzz_require_clean();
    return 0;
}

/* ---- for mutations ---- */

static const fuzz_word words[] = {FUZZ_WORD("0"),
                                  FUZZ_WORD("-1"),
                                  FUZZ_WORD("9223372036854775807"),
                                  FUZZ_WORD("4611686018427387904"),
                                  FUZZ_WORD("1e9"),
                                  FUZZ_WORD("["),
                                  FUZZ_WORD("]"),
                                  FUZZ_WORD("{"),
                                  FUZZ_WORD("}"),
                                  FUZZ_WORD(","),
                                  FUZZ_WORD("\""),
                                  FUZZ_WORD(":"),
                                  FUZZ_WORD("\\u0000"),
                                  FUZZ_WORD("\\ud800"),
                                  FUZZ_WORD("\xff"),
                                  FUZZ_WORD("[]"),
                                  FUZZ_WORD("{}"),
                                  FUZZ_WORD("null"),
                                  FUZZ_WORD("F4"),
                                  FUZZ_WORD("I64"),
                                  FUZZ_WORD("F16"),
                                  FUZZ_WORD("I8"),
                                  FUZZ_WORD("F8_E4M3"),
                                  FUZZ_WORD("BOOL"),
                                  FUZZ_WORD("__metadata__"),
                                  FUZZ_WORD("\"shape\":[0]"),
                                  FUZZ_WORD(" ")};

/* Makes the length at the start that of the braces. */
static void mend(uint8_t *bytes, size_t *nbytes)
{
    size_t length = *nbytes;
    while (length > 8 && bytes[length - 1] != '}')
        length--;
    if (length <= 8)
        return;
    length -= 8;
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
}

const fuzz_format fuzz_this_format = {words, sizeof words / sizeof *words, mend, false};

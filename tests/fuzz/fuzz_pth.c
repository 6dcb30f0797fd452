/* fuzz_pth.c: any bytes as a file of torch.save: opened or refused, and read without leaving the
 * file. What can be opened is loaded, too
 * (loads.h). For libFuzzer, from the top of the tree, with a build in $build that has
 * -DEVENKEEL_SANITIZE=fuzzer-no-link,address,undefined and clang:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Isrc \
 *         -Wl,--wrap=ek_file_map,--wrap=ek_file_unmap tests/fuzz/{fuzz_pth,fuzz,map,loads}.c \
 *         $build/libevenkeel_local.a $(sed -n 's/^Libs.private: //p' $build/evenkeel.pc) -lstdc++ \
 *         -o fuzz
 *     ./fuzz tests/golden/pth */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "data/safetensors.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"
#include "loads.h"

/* Every element of every tensor lies in the file or is a number that the file keeps. Tensors may
 * share elements, but what is read is bounded by the file. */
enum { FREE = (1 << 22) + (1 << 18) }; /* bytes that any file may have so, and of numbers */

static void read_all(const ek_safetensors *file, size_t nbytes)
{
    size_t total = 0;
    for (int i = 0; i < ek_safetensors_count(file); i++) {
        ek_array_view view = {.count = 0};
        const char *name = ek_safetensors_name(file, i);
        fuzz_require(name != NULL, "every tensor has a name");
        int status = ek_safetensors_view(file, name, &view);
        fuzz_require(status == 0 || status == EK_E_DTYPE || status == EK_E_SHAPE ||
                         status == EK_E_FORMAT,
                     "a listed tensor is read, or its dtype or shape refused, or that it is large");
        ek_error_clear();
        if (status < 0)
            continue;
        total += view.nbytes;
        fuzz_require(total <= 2 * EK_SAFETENSORS_SHARE * nbytes + FREE,
                     "no file has very large tensors");
        void *elements = malloc(view.count * ek_dtype_size(view.dtype) + 1);
        fuzz_require(elements != NULL, "there is memory for the elements");
        ek_array_copy(&view, elements);
        free(elements);
    }
    ek_safetensors_metadata(file, "name");
    fuzz_require(ek_error_status() == 0, "metadata that is not there is no error");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const char *path = fuzz_file(data, nbytes);
    ek_safetensors *file = ek_tensor_file_open(path, NULL, NULL);
    if (file) {
        read_all(file, nbytes);
        fuzz_load_all(file, path);
    } else {
        fuzz_require_refused(0);
    }
    ek_safetensors_close(file);
    fuzz_require_clean();
    return 0;
}

/* ---- for mutations: operations of pickles, and what zip archives have in 16 and 32 bits ---- */

static const fuzz_word words[] = {
    FUZZ_WORD("\x80\x02"),
    FUZZ_WORD("."),
    FUZZ_WORD("("),
    FUZZ_WORD("0"),
    FUZZ_WORD("1"),
    FUZZ_WORD("2"),
    FUZZ_WORD("N"),
    FUZZ_WORD("K\x03"),
    FUZZ_WORD("J\xff\xff\xff\xff"),
    FUZZ_WORD("M\xff\x7f"),
    FUZZ_WORD("\x8a\x08"),
    FUZZ_WORD("\x8a\x01\x80"),
    FUZZ_WORD("G"),
    FUZZ_WORD("U\x01w"),
    FUZZ_WORD("X\x01\x00\x00\x00w"),
    FUZZ_WORD("]"),
    FUZZ_WORD(")"),
    FUZZ_WORD("}"),
    FUZZ_WORD("\x85"),
    FUZZ_WORD("\x86"),
    FUZZ_WORD("\x87"),
    FUZZ_WORD("t"),
    FUZZ_WORD("l"),
    FUZZ_WORD("d"),
    FUZZ_WORD("a"),
    FUZZ_WORD("e"),
    FUZZ_WORD("s"),
    FUZZ_WORD("u"),
    FUZZ_WORD("R"),
    FUZZ_WORD("\x81"),
    FUZZ_WORD("\x92"),
    FUZZ_WORD("\x93"),
    FUZZ_WORD("\x94"),
    FUZZ_WORD("b"),
    FUZZ_WORD("Q"),
    FUZZ_WORD("q\x00"),
    FUZZ_WORD("h\x00"),
    FUZZ_WORD("h\x01"),
    FUZZ_WORD("j\x02\x00\x00\x00"),
    FUZZ_WORD("ctorch\nFloatStorage\n"),
    FUZZ_WORD("ctorch\nBoolStorage\n"),
    FUZZ_WORD("ctorch._utils\n_rebuild_tensor_v2\n"),
    FUZZ_WORD("ctorch._utils\n_rebuild_tensor_v3\n"),
    FUZZ_WORD("ctorch._utils\n_rebuild_parameter\n"),
    FUZZ_WORD("ctorch\nSize\n"),
    FUZZ_WORD("ccollections\nOrderedDict\n"),
    FUZZ_WORD("\xff\xff\xff\xff"),
    FUZZ_WORD("\x00\x00\x00\x00"),
    FUZZ_WORD("PK\x01\x02"),
    FUZZ_WORD("PK\x06\x06"),
    FUZZ_WORD("PK\x06\x07"),
    FUZZ_WORD("_parameters"),
    FUZZ_WORD("data/0"),
};

/* Makes the offset of a zip archive's directory, at the end of the file, that of its first entry.
 */
static void mend(uint8_t *bytes, size_t *nbytes)
{
    enum { END = 22, OFFSET = 16 };
    for (size_t at = 0; *nbytes >= END && at < *nbytes - END; at++) {
        if (memcmp(bytes + at, "PK\x01\x02", 4) != 0)
            continue;
        for (int i = 0; i < 4; i++)
            bytes[*nbytes - END + OFFSET + i] = (uint8_t)(at >> 8 * i);
        return;
    }
}

const fuzz_format fuzz_this_format = {words, sizeof words / sizeof *words, mend, false};

/* mutate.c: main of the fuzz targets where libFuzzer does not bring one: runs the files of a
 * directory, then a number of mutations of them that is the same every time.
 *
 *     fuzz_safetensors <directory> <mutations> [<seed>] */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zlib.h>

#include "fuzz.h"

enum { MAX_FILES = 256, MAX_BYTES = 8192, MAX_MEMORY = 1 << 29 };

typedef struct sample {
    size_t nbytes;
    uint8_t bytes[MAX_BYTES];
} sample;

static sample *samples;
static size_t sample_count;

static uint64_t state = 1;

/* xorshift64*: [0, below). */
static size_t draw(size_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)(state * UINT64_C(0x2545F4914F6CDD1D) >> 33) % below;
}

/* ---- the corpus ---- */

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void read_sample(const char *directory, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *stream = fopen(path, "rb");
    if (!stream) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    sample *s = &samples[sample_count++];
    s->nbytes = fread(s->bytes, 1, MAX_BYTES, stream);
    fclose(stream);
}

static void read_samples(const char *directory)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, is_visible, alphasort);
    if (count < 1 || count > MAX_FILES || !(samples = calloc((size_t)count, sizeof *samples))) {
        fprintf(stderr, "%s: %d files; 1 to %d are read\n", directory, count, MAX_FILES);
        exit(EXIT_FAILURE);
    }
    for (int i = 0; i < count; i++) {
        read_sample(directory, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

/* ---- mutations ---- */

static void insert(sample *s, size_t at, const uint8_t *bytes, size_t nbytes)
{
    if (nbytes > MAX_BYTES - s->nbytes)
        nbytes = MAX_BYTES - s->nbytes;
    memmove(s->bytes + at + nbytes, s->bytes + at, s->nbytes - at);
    memcpy(s->bytes + at, bytes, nbytes);
    s->nbytes += nbytes;
}

static void insert_piece(sample *s, size_t at)
{
    const sample *from = &samples[draw(sample_count)];
    if (from->nbytes == 0)
        return;
    size_t begin = draw(from->nbytes), longest = from->nbytes - begin;
    insert(s, at, from->bytes + begin, 1 + draw(longest < 64 ? longest : 64));
}

static void insert_word(sample *s, size_t at)
{
    const fuzz_word *word = &fuzz_this_format.words[draw(fuzz_this_format.word_count)];
    insert(s, at, (const uint8_t *)word->bytes, word->nbytes);
}

static void replace_by_word(sample *s, size_t at)
{
    const fuzz_word *word = &fuzz_this_format.words[draw(fuzz_this_format.word_count)];
    size_t room = s->nbytes - at;
    memcpy(s->bytes + at, word->bytes, word->nbytes < room ? word->nbytes : room);
}

static void erase(sample *s, size_t at)
{
    size_t longest = s->nbytes - at;
    size_t nbytes = longest ? 1 + draw(longest < 16 ? longest : 16) : 0;
    memmove(s->bytes + at, s->bytes + at + nbytes, longest - nbytes);
    s->nbytes -= nbytes;
}

static void mutate(sample *s)
{
    size_t at = draw(s->nbytes + 1);
    switch (draw(6)) {
    case 0:
        insert_piece(s, at);
        return;
    case 1:
        insert_word(s, at);
        return;
    case 2:
        erase(s, at);
        return;
    case 3:
        replace_by_word(s, at);
        return;
    case 4:
        if (at < s->nbytes)
            s->bytes[at] = (uint8_t)draw(256);
        return;
    default:
        if (at < s->nbytes) /* a digit becomes another */
            s->bytes[at] ^= (uint8_t)(1u << draw(3));
    }
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

/* The same in a gzip stream, as one block that is not compressed (RFC 1951, 1952): mutations of a
 * stream itself hardly get past its checksum. */
static void zip(sample *s)
{
    enum { BEFORE = 15, AFTER = 8 };
    static const uint8_t start[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1};
    uint32_t nbytes = (uint32_t)s->nbytes;
    if (s->nbytes > MAX_BYTES - BEFORE - AFTER)
        return;
    uint32_t sum = (uint32_t)crc32(0, s->bytes, nbytes);
    memmove(s->bytes + BEFORE, s->bytes, nbytes);
    memcpy(s->bytes, start, sizeof start);
    put_u32(s->bytes + sizeof start, nbytes | ~nbytes << 16);
    put_u32(s->bytes + BEFORE + nbytes, sum);
    put_u32(s->bytes + BEFORE + nbytes + 4, nbytes);
    s->nbytes += BEFORE + AFTER;
}

/* A copy of exactly this size, so that a sanitizer sees what is read behind it. */
static void run(const sample *s)
{
    uint8_t *copy = malloc(s->nbytes ? s->nbytes : 1);
    if (!copy)
        exit(EXIT_FAILURE);
    memcpy(copy, s->bytes, s->nbytes);
    LLVMFuzzerTestOneInput(copy, s->nbytes);
    free(copy);
}

/* Sizes that a file only claims are not to be allocated. (AddressSanitizer's own memory is beyond
 * any limit.) */
static void limit_memory(void)
{
#ifndef EK_SANITIZED
    struct rlimit limit = {MAX_MEMORY, MAX_MEMORY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) {
        perror("setrlimit");
        exit(EXIT_FAILURE);
    }
#endif
}

int main(int argc, char **argv)
{
    static sample mutated;
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: %s <directory> <mutations> [<seed>]\n", argv[0]);
        return EXIT_FAILURE;
    }
    if (argc == 4)
        state = strtoull(argv[3], NULL, 10) * 2 + 1; /* never 0 */
    read_samples(argv[1]);
    limit_memory();
    for (size_t i = 0; i < sample_count; i++)
        run(&samples[i]);
    long mutations = atol(argv[2]);
    for (long i = 0; i < mutations; i++) {
        mutated = samples[draw(sample_count)];
        for (size_t k = 1 + draw(4); k > 0; k--)
            mutate(&mutated);
        if (draw(4) > 0)
            fuzz_this_format.mend(mutated.bytes, &mutated.nbytes);
        if (fuzz_this_format.gzip && draw(8) == 0)
            zip(&mutated);
        run(&mutated);
    }
    free(samples);
    printf("%zu files and %ld mutations\n", sample_count, mutations);
    return EXIT_SUCCESS;
}

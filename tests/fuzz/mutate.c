/* mutate.c: main of the fuzz targets where libFuzzer does not bring one: runs the files of a
 * directory, then a number of mutations of them that is the same every time.
 *
 *     fuzz_safetensors <directory> <mutations> */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

enum { MAX_FILES = 256, MAX_BYTES = 4096 };

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
    static const char *const words[] = {"0",
                                        "-1",
                                        "9223372036854775807",
                                        "4611686018427387904",
                                        "1e9",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        ",",
                                        "\"",
                                        ":",
                                        "\\u0000",
                                        "\\ud800",
                                        "\xff",
                                        "[]",
                                        "{}",
                                        "null",
                                        "F4",
                                        "I64",
                                        "BOOL",
                                        "__metadata__",
                                        "\"shape\":[0]",
                                        " "};
    const char *word = words[draw(sizeof words / sizeof *words)];
    insert(s, at, (const uint8_t *)word, strlen(word));
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
    switch (draw(5)) {
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
        if (at < s->nbytes)
            s->bytes[at] = (uint8_t)draw(256);
        return;
    default:
        if (at < s->nbytes) /* a digit becomes another */
            s->bytes[at] ^= (uint8_t)(1u << draw(3));
    }
}

/* Makes the length at the start that of the braces, or the mutations would hardly get further. */
static void mend_length(sample *s)
{
    size_t length = s->nbytes;
    while (length > 8 && s->bytes[length - 1] != '}')
        length--;
    if (length <= 8)
        return;
    length -= 8;
    for (int i = 0; i < 8; i++)
        s->bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
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

int main(int argc, char **argv)
{
    static sample mutated;
    if (argc != 3) {
        fprintf(stderr, "usage: %s <directory> <mutations>\n", argv[0]);
        return EXIT_FAILURE;
    }
    read_samples(argv[1]);
    for (size_t i = 0; i < sample_count; i++)
        run(&samples[i]);
    long mutations = atol(argv[2]);
    for (long i = 0; i < mutations; i++) {
        mutated = samples[draw(sample_count)];
        for (size_t k = 1 + draw(4); k > 0; k--)
            mutate(&mutated);
        if (draw(4) > 0)
            mend_length(&mutated);
        run(&mutated);
    }
    free(samples);
    printf("%zu files and %ld mutations\n", sample_count, mutations);
    return EXIT_SUCCESS;
}

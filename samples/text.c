/* text.c: reading and dividing texts; the trigram model; writing. */
#include "text.h"
#include "ngram.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading ---- */

/* Adds a file's bytes. */
static int text_add_file(text *all, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    int rc = 0;
    size_t got = 1;
    while (rc == 0 && got > 0) {
        enum { PART = 1 << 16 };
        uint8_t *more = realloc(all->bytes, (size_t)all->count + PART);
        if (!more) {
            rc = ek_error(EK_E_NO_MEMORY, "no memory for %s", path);
        } else {
            all->bytes = more;
            got = fread(all->bytes + all->count, 1, PART, file);
            all->count += (int64_t)got;
        }
    }
    if (rc == 0 && ferror(file))
        rc = ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    fclose(file);
    return rc;
}

static int text_is_wanted(const struct dirent *entry)
{
    return !strchr(entry->d_name, '.');
}

/* In the order of bytes, whatever the locale is. */
static int text_order(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int text_read(const char *path, text *all)
{
    struct dirent **entries;
    struct stat status;
    *all = (text){NULL, 0};
    /* Before it is opened: of a pipe the end may never come. */
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return ek_error(EK_E_FORMAT, "%s: it is neither a file nor a folder", path);
    int rc = 0, count = scandir(path, &entries, text_is_wanted, text_order);
    if (count < 0 && errno != ENOTDIR)
        return ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    if (count < 0)
        rc = text_add_file(all, path);
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (rc == 0 && stat(name, &status) == 0 && S_ISREG(status.st_mode))
            rc = text_add_file(all, name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    if (rc == 0 && all->count == 0)
        rc = ek_error(EK_E_FORMAT, "%s: there is no text in it", path);
    if (rc < 0)
        text_free(all);
    return rc;
}

int text_divide(const text *all, text *training, text *held)
{
    *training = (text){malloc((size_t)all->count + 1), 0};
    *held = (text){malloc((size_t)all->count + 1), 0};
    if (!training->bytes || !held->bytes) {
        text_free(training);
        text_free(held);
        return ek_error(EK_E_NO_MEMORY, "no memory for %lld bytes", (long long)all->count);
    }
    for (int64_t i = 0; i < all->count; i += TEXT_PIECE) {
        const int64_t length = all->count - i < TEXT_PIECE ? all->count - i : TEXT_PIECE;
        text *part = i / TEXT_PIECE % 10 == 9 ? held : training;
        memcpy(part->bytes + part->count, all->bytes + i, (size_t)length);
        part->count += length;
    }
    return 0;
}

void text_free(text *of)
{
    free(of->bytes);
    *of = (text){NULL, 0};
}

/* ---- a model of three bytes ---- */

int trigram_loss(const text *training, const text *held, int64_t count, double *loss)
{
    enum { BYTES = 256, ORDER = 3 };
    double p[ORDER + 1];
    ngram_table *table = ngram_new(BYTES, ORDER);
    const bool counted = table && ngram_add(table, training->bytes, 0, training->count) == 0;
    *loss = 0;
    for (int64_t i = 1; counted && i <= count; i++) {
        ngram_probabilities(table, held->bytes, i, p);
        *loss -= log(p[ORDER]) / (double)count;
    }
    ngram_free(table);
    return counted ? 0 : ek_error(EK_E_NO_MEMORY, "no memory for the counts of trigrams");
}

/* ---- writing ---- */

/* The next byte (count, 1) of each of the texts (count, length), on cpu. */
static ek_tensor *writer_next(const text_writer *how, ek_tensor *texts, ek_generator *random)
{
    const int64_t length = ek_tensor_size(texts, 1);
    const int64_t seen = length < how->context ? length : how->context;
    ek_tensor *likeliest, *logits, *chosen;
    texts = ek_narrow(texts, 1, length - seen, seen);
    logits = ek_apply(how->network, ek_to_device(texts, how->device));
    logits = logits ? ek_to_device(ek_select(logits, 1, seen - 1), ek_cpu()) : NULL;
    logits = ek_topk(ek_to_dtype(logits, EK_F64), how->top_k, 1, true, &likeliest);
    if (!logits)
        return NULL;
    chosen = ek_multinomial(ek_f_softmax(ek_mul_scalar(logits, 1 / how->temperature), 1), 1, false,
                            random);
    return chosen ? ek_gather_dim(likeliest, 1, chosen) : NULL;
}

/* Prompts and letters, u8 (count, length); NULL on an error. */
static ek_tensor *writer_texts(const text_writer *how, int count, ek_generator *random)
{
    const int64_t length = (int64_t)strlen(how->prompt);
    ek_tensor *texts = ek_to_dtype(ek_from_data(how->prompt, EK_SHAPE(1, length), EK_U8), EK_I64);
    texts = texts ? ek_repeat(texts, EK_SHAPE(count, 1)) : NULL;
    for (int64_t i = 0; texts && i < how->letters; i++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *both[] = {texts, writer_next(how, texts, random)};
        texts = ek_scope_return(&scope, both[1] ? ek_cat(both, 2, 1) : NULL);
    }
    return texts ? ek_to_dtype(texts, EK_U8) : NULL;
}

char *text_write(const text_writer *how, int count)
{
    const size_t size = strlen(how->prompt) + (size_t)how->letters + 1;
    const bool had_gradients = ek_set_grad_enabled(false);
    ek_generator *random = ek_generator_new(how->random);
    ek_scope scope = ek_scope_begin();
    ek_module_train(how->network, false);
    ek_tensor *texts = writer_texts(how, count, random);
    ek_module_train(how->network, true);
    char *written = calloc((size_t)count, size);
    for (int i = 0; texts && written && i < count; i++)
        ek_to_data(ek_select(texts, 0, i), written + (size_t)i * size, size - 1);
    ek_scope_end(&scope);
    ek_generator_free(random);
    ek_set_grad_enabled(had_gradients);
    if (!written)
        ek_error(EK_E_NO_MEMORY, "no memory for %d texts", count);
    for (size_t i = 0; written && i < (size_t)count * size; i++)
        if ((unsigned char)written[i] < ' ' && !strchr("\n\t", written[i]) && (i + 1) % size != 0)
            written[i] = '?';
    return written;
}

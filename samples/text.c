/* text.c: reading and dividing texts; the trigram model. */
#include "text.h"
#include "ngram.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <evenkeel/evenkeel.h>

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

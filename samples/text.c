/* text.c: reading and dividing texts; the trigram model. */
#include "text.h"

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

enum { BYTES = 256, ORDERS = 3 };

/* What follows each context of `order` bytes. */
typedef struct context_counts {
    uint32_t *pairs;  /* of a context and the byte after it; owned */
    uint32_t *totals; /* of a context; owned */
    uint32_t *kinds;  /* different bytes after it; owned */
} context_counts;

/* A number for the `order` bytes before position i; before the text are zeros. */
static size_t trigram_context(const text *of, int64_t i, int order)
{
    size_t context = 0;
    for (int64_t j = i - order; j < i; j++)
        context = context * BYTES + (j >= 0 ? of->bytes[j] : 0);
    return context;
}

static bool trigram_count(context_counts counts[ORDERS], const text *training)
{
    size_t contexts = 1;
    for (int order = 0; order < ORDERS; order++, contexts *= BYTES) {
        context_counts *c = &counts[order];
        c->pairs = calloc(contexts * BYTES, sizeof *c->pairs);
        c->totals = calloc(contexts, sizeof *c->totals);
        c->kinds = calloc(contexts, sizeof *c->kinds);
        if (!c->pairs || !c->totals || !c->kinds)
            return false;
        for (int64_t i = order; i < training->count; i++) {
            const size_t context = trigram_context(training, i, order);
            c->totals[context]++;
            c->kinds[context] += c->pairs[context * BYTES + training->bytes[i]]++ == 0;
        }
    }
    return true;
}

static double trigram_probability(const context_counts counts[ORDERS], const text *of, int64_t i)
{
    double p = 1.0 / BYTES;
    for (int order = 0; order < ORDERS; order++) {
        const context_counts *c = &counts[order];
        const size_t context = trigram_context(of, i, order);
        const double total = c->totals[context], kinds = c->kinds[context];
        if (total > 0)
            p = (c->pairs[context * BYTES + of->bytes[i]] + kinds * p) / (total + kinds);
    }
    return p;
}

int trigram_loss(const text *training, const text *held, int64_t count, double *loss)
{
    context_counts counts[ORDERS] = {{NULL, NULL, NULL}};
    const bool counted = trigram_count(counts, training);
    *loss = 0;
    for (int64_t i = 1; counted && i <= count; i++)
        *loss -= log(trigram_probability(counts, held, i)) / (double)count;
    for (int order = 0; order < ORDERS; order++) {
        free(counts[order].pairs);
        free(counts[order].totals);
        free(counts[order].kinds);
    }
    return counted ? 0 : ek_error(EK_E_NO_MEMORY, "no memory for the counts of trigrams");
}

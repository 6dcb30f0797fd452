/* words.c: see words.h. */
#include "words.h"
#include "ngram.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

const char *const word_files[LANGUAGES] = {"american-english", "french", "ngerman", "italian",
                                           "spanish"};
/* Adds the word of a line, in small letters, if all its letters are from A to Z: letters with
 * accents would tell too much. */
static int words_add_line(word_list *list, const char *line, int language)
{
    word w = {.language = (uint8_t)language};
    for (; *line && *line != '\n'; line++) {
        const int letter = *line | 32; /* the small letter, in ASCII */
        if (letter < 'a' || letter > 'z' || w.count == MOST_LETTERS)
            return 0;
        w.symbols[++w.count] = (uint8_t)(letter - 'a' + 1);
    }
    if (w.count < LEAST_LETTERS)
        return 0;
    if (list->count == list->room) {
        const int64_t room = list->room ? 2 * list->room : 4096;
        word *words = realloc(list->words, (size_t)room * sizeof *words);
        if (!words)
            return ek_error(EK_E_NO_MEMORY, "no memory for %lld words", (long long)room);
        list->words = words;
        list->room = room;
    }
    list->words[list->count++] = w;
    return 0;
}

static int words_compare(const void *a, const void *b)
{
    return memcmp(((const word *)a)->symbols, ((const word *)b)->symbols, MOST_LETTERS + 2);
}

int words_read(word_list *list, const char *directory, int language)
{
    char path[4096], line[256];
    int rc = 0;
    snprintf(path, sizeof path, "%s/%s", directory, word_files[language]);
    FILE *file = fopen(path, "r");
    if (!file)
        return ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    while (rc == 0 && fgets(line, sizeof line, file))
        rc = words_add_line(list, line, language);
    if (rc == 0 && ferror(file))
        rc = ek_error(EK_E_IO, "%s: %s", path, strerror(errno));
    fclose(file);
    if (rc < 0 || list->count == 0)
        return rc;
    qsort(list->words, (size_t)list->count, sizeof *list->words, words_compare);
    int64_t kept = 1;
    for (int64_t i = 1; i < list->count; i++)
        if (words_compare(&list->words[i], &list->words[kept - 1]) != 0)
            list->words[kept++] = list->words[i];
    list->count = kept;
    return 0;
}

/* Copies `wanted` words, chosen at random, to training and testing: every tenth to testing. */
static int words_deal(const word_list *from, int64_t wanted, ek_generator *random,
                      word_list *training, word_list *testing)
{
    int64_t *order = malloc((size_t)from->count * sizeof *order);
    int rc = order ? ek_randperm(from->count, order, random)
                   : ek_error(EK_E_NO_MEMORY, "no memory for %lld words", (long long)from->count);
    for (int64_t i = 0; rc == 0 && i < wanted; i++) {
        word_list *to = i % 10 == 9 ? testing : training;
        to->words[to->count++] = from->words[order[i]];
    }
    free(order);
    return rc;
}

int words_open(const char *directory, int64_t wanted, uint64_t seed, word_list *training,
               word_list *testing)
{
    const size_t room = LANGUAGES * (size_t)wanted;
    ek_generator *random = ek_generator_new(seed);
    *training = (word_list){.words = malloc(room * sizeof(word))};
    *testing = (word_list){.words = malloc(room * sizeof(word))};
    int rc = training->words && testing->words && random
                 ? 0
                 : ek_error(EK_E_NO_MEMORY, "no memory for %zu words", room);
    for (int language = 0; language < LANGUAGES && rc == 0; language++) {
        word_list all = {0};
        rc = words_read(&all, directory, language);
        if (rc == 0 && all.count < wanted)
            rc = ek_error(EK_E_INVALID,
                          "%s/%s has %lld words of %d to %d letters from a to z; --words %lld are "
                          "wanted",
                          directory, word_files[language], (long long)all.count, LEAST_LETTERS,
                          MOST_LETTERS, (long long)wanted);
        if (rc == 0)
            rc = words_deal(&all, wanted, random, training, testing);
        free(all.words);
    }
    ek_generator_free(random);
    return rc;
}

/* ---- a data set of them, and batches of unequal lengths ---- */

/* A sample is a word's bytes. */
ek_dataset *words_dataset(const word_list *list)
{
    ek_scope scope = ek_scope_begin();
    ek_dataset *set = ek_tensor_dataset(
        ek_from_data(list->words, EK_SHAPE(list->count, (int64_t)sizeof(word)), EK_U8));
    ek_scope_end(&scope);
    return set;
}

ek_value words_collate(const ek_value *samples, int64_t count, void *user)
{
    enum { LANGUAGE = offsetof(word, language), COUNT = offsetof(word, count) };
    enum { FIRST_LETTER = offsetof(word, symbols) + 1 };
    (void)user;
    ek_tensor *bytes = ek_to_dtype(ek_value_tensor(ek_collate(samples, count, ek_cpu())), EK_I64);
    ek_tensor *lengths = ek_add_scalar(ek_select(bytes, 1, COUNT), 1); /* the mark included */
    double longest;
    if (ek_item(ek_amax(lengths, EK_DIMS(0)), &longest) < 0)
        return ek_value_error();
    ek_tensor *letters = ek_narrow(bytes, 1, FIRST_LETTER, (int64_t)longest);
    ek_tensor *places = ek_reshape(ek_arange((int64_t)longest, EK_I64, ek_cpu()), EK_SHAPE(1, -1));
    ek_tensor *targets =
        ek_where(ek_lt(places, ek_unsqueeze(lengths, 1)), ek_narrow(bytes, 1, LANGUAGE, 1),
                 ek_full(IGNORED, EK_SHAPE(1, 1), EK_I64));
    return EK_LIST(EK_LIST(ek_contiguous(letters, EK_CONTIGUOUS), lengths), targets);
}

/* ---- scores ---- */

double score_of(const score *s, int letters)
{
    return s->seen[letters] > 0 ? (double)s->right[letters] / (double)s->seen[letters] : NAN;
}

void score_word(score *s, const word *w, const int64_t *languages)
{
    for (int k = 0; k <= w->count; k++) {
        const int at = k == w->count ? WHOLE : k + 1;
        s->seen[at]++;
        s->right[at] += languages[k] == w->language;
    }
}

static void score_word_by_ngrams(score *by_order, ngram_table *const *tables, const word *w)
{
    double bits[LANGUAGES][NGRAM_MOST_ORDER + 1] = {{0}};
    int64_t languages[NGRAM_MOST_ORDER + 1][MOST_LETTERS + 1] = {{0}};
    for (int k = 0; k <= w->count; k++) {
        for (int i = 0; i < LANGUAGES; i++) {
            double p[NGRAM_MOST_ORDER + 1];
            ngram_probabilities(tables[i], w->symbols, k + 1, p);
            for (int order = 1; order <= NGRAM_MOST_ORDER; order++)
                bits[i][order] -= log2(p[order]);
        }
        for (int order = 1; order <= NGRAM_MOST_ORDER; order++) {
            int64_t *least = &languages[order][k];
            for (int i = 1; i < LANGUAGES; i++)
                *least = bits[i][order] < bits[*least][order] ? i : *least;
        }
    }
    for (int order = 1; order <= NGRAM_MOST_ORDER; order++)
        score_word(&by_order[order], w, languages[order]);
}

int score_ngrams(const word_list *training, const word_list *testing,
                 score by_order[NGRAM_MOST_ORDER + 1])
{
    ngram_table *tables[LANGUAGES] = {NULL};
    int rc = 0;
    for (int i = 0; i < LANGUAGES; i++)
        rc = (tables[i] = ngram_new(SYMBOLS, NGRAM_MOST_ORDER)) ? rc : -1;
    for (int64_t i = 0; i < training->count && rc == 0; i++) {
        const word *w = &training->words[i];
        rc = ngram_add(tables[w->language], w->symbols, 1, w->count + 2);
    }
    memset(by_order, 0, (NGRAM_MOST_ORDER + 1) * sizeof *by_order);
    for (int64_t i = 0; i < testing->count && rc == 0; i++)
        score_word_by_ngrams(by_order, tables, &testing->words[i]);
    for (int i = 0; i < LANGUAGES; i++)
        ngram_free(tables[i]);
    return rc < 0 ? ek_error(EK_E_NO_MEMORY, "no memory for counts of letters") : 0;
}

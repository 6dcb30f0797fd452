/* words.h: the words of five languages, letter by letter, as a data set, and scores of how well a
 * network, and counts of letters (ngram.h), tell the language. */
#ifndef SAMPLES_WORDS_H
#define SAMPLES_WORDS_H

#include <evenkeel/evenkeel.h>

/* ---- words ---- */

enum { ENGLISH, FRENCH, GERMAN, ITALIAN, SPANISH, LANGUAGES };
extern const char *const word_files[LANGUAGES]; /* file names in /usr/share/dict */

/* Shorter and longer words are left out. */
enum { LEAST_LETTERS = 3, MOST_LETTERS = 20, MARK = 0, SYMBOLS = 27, IGNORED = -100 };

/* Letters are 1 to 26, between two marks. */
typedef struct word {
    uint8_t language, count; /* letters without marks */
    uint8_t symbols[MOST_LETTERS + 2];
} word;

typedef struct word_list {
    word *words; /* owned */
    int64_t count, room;
} word_list;

/* Adds all words of a language, sorted, each once. 0 or a negative status: EK_E_IO. */
int words_read(word_list *list, const char *directory, int language);
/* Reads the words of all languages, and chooses and orders `wanted` of each by the seed. Every
 * tenth is for testing. Free both lists' words anyway. 0 or a negative status: EK_E_IO, or
 * EK_E_INVALID if a language has fewer words. */
int words_open(const char *directory, int64_t wanted, uint64_t seed, word_list *training,
               word_list *testing);

/* Returns a data set of copies of the list's words. NULL on an error. */
ek_dataset *words_dataset(const word_list *list);
/* Collates words of unequal lengths. The inputs are letters (N, L), each word's with a mark at its
 * end, padded with marks, and lengths (N) with that mark. The targets (N, L) are the language, once
 * per letter and mark, padded with IGNORED. */
ek_value words_collate(const ek_value *samples, int64_t count, void *user);

/* ---- scores ---- */

/* How often the language was told: [k] after k letters, of words that have as many; [WHOLE] after
 * the word's end. */
enum { WHOLE = 0, PREFIXES = MOST_LETTERS + 1 };
typedef struct score {
    int64_t seen[PREFIXES], right[PREFIXES];
} score;

/* Returns the share of words whose language was told after so many letters; NaN of no words. */
double score_of(const score *s, int letters);
/* Counts the languages told of one word: languages[k] after k + 1 letters, languages[letters] after
 * the word's end. */
void score_word(score *s, const word *w, const int64_t *languages);
enum { NGRAM_MOST_ORDER = 7 };
/* Counts the n-grams of the training words, and scores the testing words. The n-grams of an order
 * tell the language whose counts need the fewest bits for the letters read. 0 or EK_E_NO_MEMORY. */
int score_ngrams(const word_list *training, const word_list *testing,
                 score by_order[NGRAM_MOST_ORDER + 1]);

#endif

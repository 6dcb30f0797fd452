/* words.h: the words of five languages, letter by letter, as a data set, and how well their
 * language is told: by a network, and by counts of letters (ngram.h). */
#ifndef SAMPLES_WORDS_H
#define SAMPLES_WORDS_H

#include <evenkeel/evenkeel.h>

/* ---- words ---- */

enum { ENGLISH, FRENCH, GERMAN, ITALIAN, SPANISH, LANGUAGES };
extern const char *const word_files[LANGUAGES]; /* their names in a folder as /usr/share/dict */

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

/* Adds all words of a language, each once, sorted. 0 or a negative status: EK_E_IO. */
int words_read(word_list *list, const char *directory, int language);
/* The words of all languages, `wanted` of each, chosen and put in order by the seed: every tenth is
 * for testing. Free both lists' words anyway. 0 or a negative status: EK_E_IO, and EK_E_INVALID if
 * there are fewer. */
int words_open(const char *directory, int64_t wanted, uint64_t seed, word_list *training,
               word_list *testing);

/* A data set of words, which are borrowed: (letters and the mark behind them, as many times the
 * language). NULL on an error. */
ek_dataset *words_dataset(const word_list *list);
/* Samples of lengths L_i, as a batch: the inputs are letters (N, L), padded with marks, and lengths
 * (N); the targets (N, L) are padded with what the loss ignores. */
ek_value words_collate(const ek_value *samples, int64_t count, void *user);

/* ---- scores ---- */

/* How often the language was told: after 1, 2, ... letters of words that have as many, and [WHOLE]
 * when the word had ended. */
enum { WHOLE = 0, PREFIXES = MOST_LETTERS + 1 };
typedef struct score {
    int64_t seen[PREFIXES], right[PREFIXES];
} score;

/* The share of words whose language was told after so many letters; NaN of none. */
double score_of(const score *s, int letters);
/* Counts what was told of one word: languages[k] after k + 1 letters, languages[letters] at its
 * end. */
void score_word(score *s, const word *w, const int64_t *languages);
enum { NGRAM_MOST_ORDER = 7 };
/* Counts the words of training, and scores those of testing by them: with n-grams of each order the
 * language whose counts need the fewest bits for what was read. 0 or EK_E_NO_MEMORY. */
int score_ngrams(const word_list *training, const word_list *testing,
                 score by_order[NGRAM_MOST_ORDER + 1]);

#endif

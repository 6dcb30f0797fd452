/* ngram.h: the letters of words by their predecessors' counts: what a network has to be better
 * than.
 *
 * p(letter | h) for the h = 0, 1, 2, ... letters before it, by interpolation (Witten and Bell
 * 1991): a context that was seen n times, with t different letters behind it, says (count + t q) /
 * (n + t), where q is the probability by the context that is one letter shorter, or 1 / symbols. */
#ifndef SAMPLES_NGRAM_H
#define SAMPLES_NGRAM_H

#include <stdint.h>

/* Symbols are 0, the mark before and behind each word, and 1 to NGRAM_SYMBOLS - 1. Order n looks at
 * n - 1 letters before. */
enum { NGRAM_SYMBOLS = 27, NGRAM_MOST_ORDER = 7 };

typedef struct ngram_table ngram_table;
/* Empty; NULL without memory. */
ngram_table *ngram_new(void);
void ngram_free(ngram_table *table);
/* Counts a word: symbols[0], the mark, to symbols[count - 1], the mark again. 0, or -1 without
 * memory. */
int ngram_add(ngram_table *table, const uint8_t *symbols, int count);
/* Adds the bits of symbols[at] behind those before it, by each order, to bits[order]. `at` is not
 * 0.
 */
void ngram_bits(const ngram_table *table, const uint8_t *symbols, int at,
                double bits[NGRAM_MOST_ORDER + 1]);

#endif

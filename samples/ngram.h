/* ngram.h: probabilities of symbols by counts of n-grams, which a network should surpass.
 *
 * p(symbol | h) for the h = 0, 1, 2, ... symbols before it, by interpolation (Witten and Bell
 * 1991): a context that was seen n times, with t different symbols behind it, says (count + t q) /
 * (n + t), where q is the probability by the context that is one symbol shorter, or 1 / symbols. */
#ifndef SAMPLES_NGRAM_H
#define SAMPLES_NGRAM_H

#include <stdint.h>

typedef struct ngram_table ngram_table;
/* An empty table of symbols 0 to `symbols` - 1. Order n looks at n - 1 symbols before, and n is at
 * most `most_order`. NULL without memory. */
ngram_table *ngram_new(int symbols, int most_order);
void ngram_free(ngram_table *table);
/* Counts text[first] to text[count - 1], each behind what precedes it in `text`. 0, or -1 without
 * memory. */
int ngram_add(ngram_table *table, const uint8_t *text, int64_t first, int64_t count);
/* Writes the probability of text[at], behind what precedes it, by each order n to p[n]. */
void ngram_probabilities(const ngram_table *table, const uint8_t *text, int64_t at, double *p);

#endif

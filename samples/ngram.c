/* ngram.c: counts of symbols after contexts, in a tree that reads contexts backwards. */
#include "ngram.h"

#include <stdlib.h>
#include <string.h>

/* A node is a context. Its numbers are: how many symbols followed, how many different ones, how
 * often each of them, and for each symbol the node of the context that it makes longer (0: none).
 */
enum { TOTAL, TYPES, COUNTS };

struct ngram_table {
    int symbols, most_order;
    int32_t *numbers; /* the nodes' numbers; the first node is the empty context */
    int32_t count, room;
};

static int32_t *ngram_node(const ngram_table *table, int32_t node)
{
    return table->numbers + (size_t)node * (size_t)(COUNTS + 2 * table->symbols);
}

/* The number of a new node, -1 without memory. Nodes may move. */
static int32_t ngram_node_new(ngram_table *table)
{
    const size_t nbytes = (size_t)(COUNTS + 2 * table->symbols) * sizeof(int32_t);
    if (table->count == table->room) {
        const int32_t room = table->room ? 2 * table->room : 256;
        int32_t *numbers = realloc(table->numbers, (size_t)room * nbytes);
        if (!numbers)
            return -1;
        table->numbers = numbers;
        table->room = room;
    }
    memset(ngram_node(table, table->count), 0, nbytes);
    return table->count++;
}

ngram_table *ngram_new(int symbols, int most_order)
{
    ngram_table *table = calloc(1, sizeof *table);
    if (table) {
        table->symbols = symbols;
        table->most_order = most_order;
        if (ngram_node_new(table) == 0)
            return table;
    }
    free(table);
    return NULL;
}

void ngram_free(ngram_table *table)
{
    if (table)
        free(table->numbers);
    free(table);
}

int ngram_add(ngram_table *table, const uint8_t *text, int64_t first, int64_t count)
{
    for (int64_t i = first; i < count; i++) {
        int32_t at = 0;
        for (int64_t before = i - 1;; before--) {
            int32_t *node = ngram_node(table, at);
            node[TYPES] += node[COUNTS + text[i]]++ == 0;
            node[TOTAL]++;
            if (before < 0 || i - before == table->most_order)
                break;
            const int link = COUNTS + table->symbols + text[before];
            if (node[link] == 0) {
                const int32_t longer = ngram_node_new(table);
                if (longer < 0)
                    return -1;
                ngram_node(table, at)[link] = longer;
            }
            at = ngram_node(table, at)[link];
        }
    }
    return 0;
}

void ngram_probabilities(const ngram_table *table, const uint8_t *text, int64_t at, double *p)
{
    const int32_t *node = table->numbers;
    p[0] = 1.0 / table->symbols;
    for (int order = 1; order <= table->most_order; order++) {
        const int64_t before = at - order;
        p[order] = p[order - 1];
        if (node && node[TOTAL] > 0)
            p[order] = (node[COUNTS + text[at]] + node[TYPES] * p[order - 1]) /
                       (node[TOTAL] + node[TYPES]);
        const int32_t longer =
            node && before >= 0 ? node[COUNTS + table->symbols + text[before]] : 0;
        node = longer > 0 ? ngram_node(table, longer) : NULL;
    }
}

/* ngram.c: counts of letters after contexts, in a tree that reads contexts backwards. */
#include "ngram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A context: what followed it, and the contexts that are one letter longer. */
typedef struct ngram_node {
    int32_t count[NGRAM_SYMBOLS], longer[NGRAM_SYMBOLS]; /* longer: a node's number; 0: none */
    int32_t total, types;                                /* letters behind it; different ones */
} ngram_node;

struct ngram_table {
    ngram_node *nodes; /* the first is the empty context */
    int32_t count, room;
};

/* The number of a new node, -1 without memory. Nodes may move. */
static int32_t ngram_node_new(ngram_table *table)
{
    if (table->count == table->room) {
        const int32_t room = table->room ? 2 * table->room : 1024;
        ngram_node *nodes = realloc(table->nodes, (size_t)room * sizeof *nodes);
        if (!nodes)
            return -1;
        table->nodes = nodes;
        table->room = room;
    }
    memset(&table->nodes[table->count], 0, sizeof(ngram_node));
    return table->count++;
}

ngram_table *ngram_new(void)
{
    ngram_table *table = calloc(1, sizeof *table);
    if (table && ngram_node_new(table) == 0)
        return table;
    free(table);
    return NULL;
}

void ngram_free(ngram_table *table)
{
    if (table)
        free(table->nodes);
    free(table);
}

int ngram_add(ngram_table *table, const uint8_t *symbols, int count)
{
    for (int i = 1; i < count; i++) {
        int32_t at = 0;
        for (int before = i - 1;; before--) {
            ngram_node *node = &table->nodes[at];
            node->types += node->count[symbols[i]]++ == 0;
            node->total++;
            if (before < 0 || i - before == NGRAM_MOST_ORDER)
                break;
            int32_t longer = node->longer[symbols[before]];
            if (longer == 0) {
                longer = ngram_node_new(table);
                if (longer < 0)
                    return -1;
                table->nodes[at].longer[symbols[before]] = longer;
            }
            at = longer;
        }
    }
    return 0;
}

void ngram_bits(const ngram_table *table, const uint8_t *symbols, int at,
                double bits[NGRAM_MOST_ORDER + 1])
{
    const ngram_node *node = table->nodes;
    double p = 1.0 / NGRAM_SYMBOLS;
    for (int order = 1; order <= NGRAM_MOST_ORDER; order++) {
        const int before = at - order;
        if (node && node->total > 0)
            p = (node->count[symbols[at]] + node->types * p) / (node->total + node->types);
        bits[order] -= log2(p);
        const int32_t longer = node && before >= 0 ? node->longer[symbols[before]] : 0;
        node = longer > 0 ? &table->nodes[longer] : NULL;
    }
}

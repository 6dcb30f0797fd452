/* order.h: the order in which a data set is gone through: endless passes, each shuffled anew. */
#ifndef COMMON_ORDER_H
#define COMMON_ORDER_H

#include <evenkeel/random.h>

typedef struct sample_order {
    ek_generator *generator;
    int64_t *order;
    int64_t count, next;
} sample_order;

/* The same seed gives the same order. Close it, also after an error. */
int order_open(sample_order *order, int64_t count, int64_t seed);
void order_close(sample_order *order);

/* The next at most `batch` samples of this pass, NULL on an error; *taken says how many. */
const int64_t *order_take(sample_order *order, int64_t batch, int64_t *taken);

#endif

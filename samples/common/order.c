#include "common/order.h"

#include <evenkeel/status.h>
#include <stdlib.h>

int order_open(sample_order *order, int64_t count, int64_t seed)
{
    *order = (sample_order){ek_generator_new((uint64_t)seed),
                            malloc((size_t)count * sizeof(*order->order)), count, count};
    if (!order->generator || !order->order)
        return ek_error(EK_E_NO_MEMORY, "no memory for the order of %lld samples",
                        (long long)count);
    return 0;
}

void order_close(sample_order *order)
{
    ek_generator_free(order->generator);
    free(order->order);
    *order = (sample_order){0};
}

const int64_t *order_take(sample_order *order, int64_t batch, int64_t *taken)
{
    if (order->next == order->count) {
        if (ek_randperm(order->count, order->order, order->generator) < 0)
            return NULL;
        order->next = 0;
    }
    const int64_t *first = order->order + order->next;
    *taken = batch < order->count - order->next ? batch : order->count - order->next;
    order->next += *taken;
    return first;
}

/* evaluate.h: how well the network knows pictures that it was not trained on. */
#ifndef CLASSIFY_EVALUATE_H
#define CLASSIFY_EVALUATE_H

#include <evenkeel/evenkeel.h>

typedef struct evaluation {
    int64_t count; /* pictures */
    double loss;   /* mean cross entropy */
    double accuracy;
} evaluation;

/* One pass of the loader, whose batches lie on the network's device, in evaluation mode and without
 * gradients. The network is in training mode afterwards. Returns 0 or a negative status. */
int evaluate(ek_module *network, ek_loader *loader, evaluation *result);

#endif

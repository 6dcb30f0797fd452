/* network.h: a small residual network for pictures (He et al. 2016). */
#ifndef CLASSIFY_NETWORK_H
#define CLASSIFY_NETWORK_H

#include <evenkeel/evenkeel.h>

typedef struct resnet_options {
    const char *keywords;
    int channels, classes;
    int width;  /* channels of the first stage; each further one has twice those of the last */
    int blocks; /* in each of the three stages */
    bool apart; /* batch normalisation on each device alone, not over the whole batch */
} resnet_options;

/* A 3 x 3 convolution, three stages of basic blocks (the second and third halve height and width),
 * global average pooling, a linear layer: (N, channels, H, W) to logits (N, classes). A user's own
 * modules. */
ek_module *resnet_with(resnet_options options);
#define resnet(...) resnet_with(EK_OPTIONS(resnet_options, __VA_ARGS__))

#endif

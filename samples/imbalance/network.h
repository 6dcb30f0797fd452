/* network.h: the segmentation network and its criterion, as a user would write them. */
#ifndef IMBALANCE_NETWORK_H
#define IMBALANCE_NETWORK_H

#include <evenkeel/evenkeel.h>

enum { CLASSES = 11, IGNORED = 255 };

/* A strided encoder of 3 x 3 convolutions, batch normalisation and ReLU, and a 1 x 1 classifier:
 * (N, 1, H, W) to logits (N, CLASSES, H / 8, W / 8). width 32 gives about half a million
 * parameters. */
ek_module *segmentation_network(int width);

/* Upsamples the logits to the target's size (bilinear, align_corners) and takes cross entropy.
 * ek_loss(criterion, logits, target): target (N, H, W) of i64 or u8. */
typedef struct criterion_ce_options {
    const char *keywords;
    int64_t ignore_index; /* default -100 */
    bool per_pixel;       /* losses (N, H, W) instead of their mean */
} criterion_ce_options;
ek_module *criterion_ce_with(criterion_ce_options options);
#define criterion_ce(...) criterion_ce_with(EK_OPTIONS(criterion_ce_options, __VA_ARGS__))

#endif

/* layers.h: what the layers of a program become at their places in its net. */
#ifndef EK_TESTS_FUZZ_LAYERS_H
#define EK_TESTS_FUZZ_LAYERS_H

#include <evenkeel/nn.h>

#include "program.h"

/* A sample's shape: features, and `rank` dimensions of them. */
typedef struct sample_shape {
    int rank, features, sizes[3];
} sample_shape;

/* A layer at its place: numbers that fit what comes in. */
typedef struct placed_layer {
    int kind, variant, wrap;
    bool frozen;
    sample_shape before, after;
    int kernel, stride, padding, dilation, groups, output_padding;
    bool bias, affine;
} placed_layer;

/* The last one is the head: a linear layer, or a convolution by 1 for a dense output. */
typedef struct placed_net {
    int count;
    placed_layer layers[MAX_LAYERS + 3];
    sample_shape out;
} placed_net;

void place_layers(const program *p, placed_net *net);

/* Features times positions. */
int sample_count(const sample_shape *s);
/* N, features, and the sizes. */
ek_shape batch_shape(const sample_shape *s, int samples);

/* The layer as a module; NULL with an error. */
ek_module *make_layer(const placed_layer *l);
/* The same as a line of C. Returns `text`. */
char *write_layer(const placed_layer *l, char text[200]);

#endif

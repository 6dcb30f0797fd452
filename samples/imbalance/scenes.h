/* scenes.h: pictures of Fashion-MNIST, scattered over a dark ground, with a label per pixel. */
#ifndef IMBALANCE_SCENES_H
#define IMBALANCE_SCENES_H

#include <evenkeel/evenkeel.h>

enum { THRESHOLD = 64 };

typedef struct scene_set {
    int64_t count;
    int size;        /* height and width in pixels */
    uint8_t *images; /* count x size x size, brightness */
    uint8_t *labels; /* the same: 0 ground, 1..10 the pictures' classes, 255 within a pixel of a
                        border */
} scene_set;

/* Makes `count` scenes from <directory>/<set>-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz],
 * set "train" or "t10k": 4 to 6 pictures each, later ones over earlier ones where they are brighter
 * than THRESHOLD. The same seed gives the same scenes. Returns 0 or a negative status with the
 * sentence set. */
int scenes_make(scene_set *scenes, const char *directory, const char *set, int64_t count, int size,
                uint64_t seed);
void scenes_free(scene_set *scenes);

/* The scenes order[0..count-1] as tensors on cpu: images f32 (count, 1, size, size) in [0, 1],
 * labels i64 (count, size, size). Indices wrap around at the number of scenes. */
int scenes_batch(const scene_set *scenes, const int64_t *order, int64_t count, ek_tensor **images,
                 ek_tensor **labels);

#endif

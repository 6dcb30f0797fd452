/* scenes.h: a task of segmentation: scenes of Fashion-MNIST's pictures, with a label per pixel
 * (scenes.c), and how well a network labels them (iou.c). */
#ifndef SAMPLES_SCENES_H
#define SAMPLES_SCENES_H

#include "networks.h"
#include "run.h"

/* ---- scenes ---- */

enum { PICTURE = 28, THRESHOLD = 64 }; /* height and width; brightness */

/* A data set: samples are f32 (1, size, size) brightness in [0, 1] and i64 (size, size) labels. The
 * memory is the process's, and outlives ek_shutdown. */
typedef struct scene_set {
    ek_dataset dataset;
    int64_t count, size; /* height and width in pixels */
    uint8_t *images;     /* count x size x size, brightness; owned */
    uint8_t *labels;     /* count x size x size; owned; 0 ground, 1..10 the pictures' classes,
                            SCENE_IGNORED within a pixel of a border */
} scene_set;

typedef enum scene_ground {
    SCENE_DARK,     /* 0: pixels brighter than THRESHOLD are of pictures, all others are ground */
    SCENE_CLUTTERED /* blotches, bars and discs as bright as pictures, and noise over everything */
} scene_ground;

/* Makes `count` scenes of the pictures for training or of those for testing: 4 to 6 pictures each,
 * later ones over earlier ones if they are brighter than THRESHOLD. The same seed gives the same
 * scenes. NULL on an error. */
ek_dataset *scenes_make(const char *directory, bool train, scene_ground ground, int64_t count,
                        int64_t size, uint64_t seed);

/* A label's name and colour. The last is SCENE_IGNORED's. */
typedef struct scene_label {
    const char *name;
    uint8_t colour[3];
} scene_label;
extern const scene_label scene_labels[SCENE_CLASSES + 1];
/* Returns labels (N, H, W) of i64 on cpu as u8 pictures (N, 3, H, W). */
ek_tensor *scenes_colour(ek_tensor *labels);

/* ---- intersection over union ---- */

/* Pixels by label and by prediction. Pixels with the label SCENE_IGNORED do not count. */
typedef struct confusion_matrix {
    int64_t counts[SCENE_CLASSES][SCENE_CLASSES]; /* [label][prediction] */
} confusion_matrix;

/* Adds pixels: two i64 tensors of one shape, on one device. Returns 0 or a negative status. */
int confusion_add(confusion_matrix *sums, ek_tensor *labels, ek_tensor *predicted);
/* Returns the part of all pixels that is labelled right; 0 if there are no pixels. */
double confusion_accuracy(const confusion_matrix *sums);
/* Returns the number of pixels with the class as label and as prediction, over the number of pixels
 * with the class as label or prediction. NaN if there are none. */
double confusion_iou(const confusion_matrix *sums, int class);
/* Returns the mean over the classes that have pixels. */
double confusion_mean_iou(const confusion_matrix *sums);

/* Counts the pixels of all scenes, by the labels of a network. All ranks call this: each takes its
 * share of the scenes, and gets the sums of all ranks. The network is called in evaluation mode on
 * `device`, with inputs of its dtype. All ranks get rank 0's buffers and keep them. Logits that are
 * smaller than the scenes are upsampled. Returns 0 or a negative status. */
int confusion_of(ek_module *network, ek_device device, ek_dtype dtype, ek_dataset *scenes,
                 confusion_matrix *sums);
/* Adds the pixels of all scenes, by the best prediction from a pixel's brightness alone: the label
 * that is most frequent among the pixels of `known` scenes with that brightness. */
void confusion_of_brightness(ek_dataset *known, ek_dataset *scenes, confusion_matrix *sums);

#endif

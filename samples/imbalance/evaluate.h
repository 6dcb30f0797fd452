/* evaluate.h: how well the network labels pixels. */
#ifndef IMBALANCE_EVALUATE_H
#define IMBALANCE_EVALUATE_H

#include "imbalance/scenes.h"

/* Over all pixels of all scenes that are not ignored: the part that is labelled right, and the mean
 * over classes of intersection over union (classes that neither occur nor are predicted left out).
 * The network is called as it is, in evaluation mode, on `device`. */
int evaluate(ek_module *network, ek_device device, const scene_set *scenes, double *pixel_accuracy,
             double *mean_iou);

#endif

#include "imbalance/evaluate.h"

#include <stdlib.h>

#include "imbalance/network.h"

enum { AT_ONCE = 16 }; /* scenes: few, so that a capacity which fits training fits this */

typedef int64_t confusion_matrix[CLASSES][CLASSES]; /* [label][prediction] */

static int count_batch(ek_module *network, ek_device device, const scene_set *scenes, int64_t first,
                       int64_t count, int64_t *predicted, confusion_matrix confusion)
{
    int64_t order[AT_ONCE], pixels = (int64_t)scenes->size * scenes->size;
    ek_tensor *images, *labels;

    for (int64_t i = 0; i < count; i++)
        order[i] = first + i;
    int rc = scenes_batch(scenes, order, count, &images, &labels);
    if (rc < 0)
        return rc;
    ek_tensor *logits = ek_apply(network, ek_to_device(images, device));
    logits = ek_f_upsample(logits, scenes->size, scenes->size, EK_BILINEAR, true);
    rc = ek_to_data(ek_argmax(logits, 1, false), predicted,
                    (size_t)(count * pixels) * sizeof(*predicted));
    const uint8_t *expected = scenes->labels + first * pixels;
    for (int64_t i = 0; rc == 0 && i < count * pixels; i++)
        if (expected[i] != IGNORED)
            confusion[expected[i]][predicted[i]]++;
    return rc;
}

static void score(confusion_matrix confusion, double *pixel_accuracy, double *mean_iou)
{
    double right = 0, all = 0, iou = 0;
    int classes = 0;

    for (int c = 0; c < CLASSES; c++) {
        int64_t of_label = 0, of_prediction = 0;
        for (int other = 0; other < CLASSES; other++) {
            of_label += confusion[c][other];
            of_prediction += confusion[other][c];
        }
        right += (double)confusion[c][c];
        all += (double)of_label;
        int64_t in_either = of_label + of_prediction - confusion[c][c];
        if (in_either > 0) {
            iou += (double)confusion[c][c] / (double)in_either;
            classes++;
        }
    }
    *pixel_accuracy = all > 0 ? right / all : 0;
    *mean_iou = classes > 0 ? iou / classes : 0;
}

int evaluate(ek_module *network, ek_device device, const scene_set *scenes, double *pixel_accuracy,
             double *mean_iou)
{
    confusion_matrix confusion = {{0}};
    bool had_gradients = ek_set_grad_enabled(false);
    int64_t *predicted =
        malloc((size_t)AT_ONCE * (size_t)scenes->size * (size_t)scenes->size * sizeof(*predicted));
    int rc = predicted ? 0 : ek_error(EK_E_NO_MEMORY, "no memory for the predictions");

    ek_module_train(network, false);
    for (int64_t first = 0; rc == 0 && first < scenes->count; first += AT_ONCE) {
        ek_scope scope = ek_scope_begin();
        int64_t left = scenes->count - first;
        rc = count_batch(network, device, scenes, first, left < AT_ONCE ? left : AT_ONCE, predicted,
                         confusion);
        ek_scope_end(&scope);
    }
    ek_module_train(network, true);
    ek_set_grad_enabled(had_gradients);
    free(predicted);
    if (rc == 0)
        score(confusion, pixel_accuracy, mean_iou);
    return rc;
}

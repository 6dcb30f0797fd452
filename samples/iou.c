/* iou.c: confusion matrices, and what they say: see scenes.h. */
#include <math.h>

#include "scenes.h"

enum { PAIRS = SCENE_CLASSES * SCENE_CLASSES };

/* Each pixel becomes one number, label * SCENE_CLASSES + prediction. The number of an ignored label
 * is beyond all pairs, and is clamped to PAIRS. */
int confusion_add(confusion_matrix *sums, ek_tensor *labels, ek_tensor *predicted)
{
    int64_t found[PAIRS + 1], *counts = &sums->counts[0][0];
    ek_scope scope = ek_scope_begin();
    ek_tensor *pairs = ek_add(ek_mul_scalar(labels, SCENE_CLASSES), predicted);
    pairs = ek_reshape(ek_clamp(pairs, 0, PAIRS), EK_SHAPE(-1));
    int rc = ek_to_data(ek_bincount(pairs, NULL, PAIRS + 1), found, sizeof found);
    ek_scope_end(&scope);
    for (int i = 0; i < PAIRS && rc == 0; i++)
        counts[i] += found[i];
    return rc;
}

double confusion_accuracy(const confusion_matrix *sums)
{
    double right = 0, all = 0;
    for (int label = 0; label < SCENE_CLASSES; label++) {
        right += (double)sums->counts[label][label];
        for (int found = 0; found < SCENE_CLASSES; found++)
            all += (double)sums->counts[label][found];
    }
    return all > 0 ? right / all : 0;
}

double confusion_iou(const confusion_matrix *sums, int class)
{
    const int64_t both = sums->counts[class][class];
    int64_t either = -both;
    for (int other = 0; other < SCENE_CLASSES; other++)
        either += sums->counts[class][other] + sums->counts[other][class];
    return either > 0 ? (double)both / (double)either : NAN;
}

double confusion_mean_iou(const confusion_matrix *sums)
{
    double sum = 0;
    int classes = 0;
    for (int class = 0; class < SCENE_CLASSES; class ++) {
        const double iou = confusion_iou(sums, class);
        sum += isnan(iou) ? 0 : iou;
        classes += !isnan(iou);
    }
    return classes > 0 ? sum / classes : 0;
}

/* ---- a network's ---- */

enum { AT_ONCE = 16 }; /* scenes: few, so that a capacity which fits training fits this */

typedef struct evaluation {
    ek_device device;
    ek_dtype dtype;
    confusion_matrix sums;
} evaluation;

static int evaluate_batch(ek_module *network, const ek_batch *batch, void *user)
{
    evaluation *self = user;
    ek_tensor *labels = ek_value_tensor(batch->target);
    ek_tensor *images = ek_to_device(ek_value_tensor(batch->input), self->device);
    ek_tensor *logits = ek_apply(network, ek_to_dtype(images, self->dtype));
    if (!logits)
        return ek_error_status();
    const int64_t height = ek_tensor_size(labels, 1), width = ek_tensor_size(labels, 2);
    if (ek_tensor_size(logits, 2) != height || ek_tensor_size(logits, 3) != width)
        logits = ek_f_upsample(logits, height, width, EK_BILINEAR, true);
    return confusion_add(&self->sums, labels, ek_to_device(ek_argmax(logits, 1, false), ek_cpu()));
}

/* Running statistics of normalisation that is not synchronised differ between ranks. */
static int evaluate_send_buffer(const char *path, ek_tensor *buffer, void *user)
{
    (void)path, (void)user;
    return ek_dist_broadcast(buffer, 0);
}

int confusion_of(ek_module *network, ek_device device, ek_dtype dtype, ek_dataset *scenes,
                 confusion_matrix *sums)
{
    evaluation own = {.device = device, .dtype = dtype};
    int rc = world_size() > 1 ? ek_module_buffers(network, evaluate_send_buffer, NULL) : 0;
    if (rc < 0)
        return rc;
    ek_loader *loader =
        ek_data_loader(ek_dataset_keep(scenes), .batch_size = AT_ONCE, .empty_batches = false,
                       .sampler = ek_distributed_sampler(ek_dataset_length(scenes),
                                                         .shuffle = false, .padding = false));
    rc = loader ? loader_evaluate(loader, network, evaluate_batch, &own) : ek_error_status();
    ek_loader_free(loader);
    ek_dist_raise(); /* the other ranks wait for this rank's sums */
    if (rc < 0)
        return rc;
    ek_scope scope = ek_scope_begin();
    ek_tensor *all = ek_from_data(own.sums.counts, EK_SHAPE(PAIRS), EK_I64);
    if (world_size() > 1)
        rc = ek_dist_all_reduce(all); /* exact: sums of integers */
    if (rc == 0)
        rc = ek_to_data(all, sums->counts, sizeof sums->counts);
    ek_scope_end(&scope);
    return rc;
}

/* ---- brightness alone ---- */

void confusion_of_brightness(ek_dataset *known, ek_dataset *scenes, confusion_matrix *sums)
{
    enum { LEVELS = 256 };
    const scene_set *from = (const scene_set *)known, *of = (const scene_set *)scenes;
    int64_t counts[LEVELS][SCENE_CLASSES] = {{0}};
    int best[LEVELS] = {0};
    for (int64_t p = 0; p < from->count * from->size * from->size; p++)
        if (from->labels[p] != SCENE_IGNORED)
            counts[from->images[p]][from->labels[p]]++;
    for (int level = 0; level < LEVELS; level++)
        for (int class = 1; class < SCENE_CLASSES; class ++)
            if (counts[level][class] > counts[level][best[level]])
                best[level] = class;
    for (int64_t p = 0; p < of->count * of->size * of->size; p++)
        if (of->labels[p] != SCENE_IGNORED)
            sums->counts[of->labels[p]][best[of->images[p]]]++;
}

/* segmentation.h: the article's segmentation in small, for tests: an encoder with a 1 x 1
 * classifier, and a user's criterion that upsamples the logits to the target's size and computes
 * cross entropy. */
#ifndef EK_TESTS_KIT_SEGMENTATION_H
#define EK_TESTS_KIT_SEGMENTATION_H

#include "kit/models.h"

enum { CLASSES = 11, IGNORED = 255, PIXELS = 16 };

typedef enum train_mode { SINGLE, CLASSIC, BALANCED, MODES } train_mode;

typedef struct criterion {
    ek_module module;
    ek_reduction reduction;
} criterion;

static ek_value criterion_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *logits = ek_arg_tensor(args, 0), *target = ek_arg_tensor(args, 1);
    if (!logits || !target)
        return ek_value_error();
    logits = ek_f_upsample(logits, ek_tensor_size(target, 1), ek_tensor_size(target, 2),
                           EK_BILINEAR, true);
    return ek_value_of_tensor(ek_f_cross_entropy(.input = logits, .target = target,
                                                 .ignore_index = IGNORED,
                                                 .reduction = ((criterion *)module)->reduction));
}

static ek_tensor *criterion_denominator(ek_module *module, const ek_args *args)
{
    ek_tensor *logits = ek_arg_tensor(args, 0), *target = ek_arg_tensor(args, 1);
    return logits && target ? ek_target_weight(target, NULL, IGNORED, ek_tensor_dtype(logits))
                            : NULL;
}

MODULE_TYPE_WITH(criterion, criterion, .denominator = criterion_denominator)

static inline ek_module *make_criterion(ek_reduction reduction)
{
    ek_module *module = ek_module_new(&criterion_type);
    if (module)
        ((criterion *)module)->reduction = reduction;
    return module;
}

static inline ek_module *make_net(bool batch_norm, ek_dtype dtype)
{
    ek_manual_seed(7);
    ek_module *net;
    if (batch_norm)
        net = ek_sequential(ek_conv2d(1, 8, 3, .stride = 2, .padding = 1), ek_batch_norm2d(8),
                            ek_relu(), ek_conv2d(8, 16, 3, .stride = 2, .padding = 1),
                            ek_batch_norm2d(16), ek_relu(), ek_conv2d(16, CLASSES, 1));
    else
        net = ek_sequential(ek_conv2d(1, 8, 3, .stride = 2, .padding = 1), ek_relu(),
                            ek_conv2d(8, 16, 3, .stride = 2, .padding = 1), ek_relu(),
                            ek_conv2d(16, CLASSES, 1));
    assert_made(net);
    assert_ok(ek_module_to_dtype(net, dtype));
    return net;
}

/* Model, loss and optimizer of a mode over the first `count` devices, or one for SINGLE. */
typedef struct trainer {
    ek_module *model, *loss;
    ek_optimizer *optimizer;
} trainer;

static inline trainer make_trainer(train_mode mode, ek_module *net, int count,
                                   ek_loss_reduction reduction)
{
    trainer t;
    ek_device_list devices = ek_devices(test_kind(), mode == SINGLE ? 1 : count);
    ek_module *loss = make_criterion(EK_MEAN);
    if (mode == BALANCED) {
        t.model = ek_data_parallel_model(net, .device_ids = devices);
        t.loss = ek_data_parallel_criterion(loss, .device_ids = devices, .reduction = reduction);
    } else {
        t.model = ek_data_parallel(net, .device_ids = devices);
        t.loss = loss;
    }
    assert_made(t.model);
    assert_made(t.loss);
    t.optimizer = ek_sgd(t.model, .lr = 0.05, .momentum = 0.9);
    assert_made(t.optimizer);
    return t;
}

static inline void free_trainer(trainer *t)
{
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->model);
    ek_module_free(t->loss);
}

/* Runs one training step. Returns a negative status on failure. */
static inline int train_step(const trainer *t, ek_tensor *images, ek_tensor *target,
                             double *loss_value)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *loss = ek_loss(t->loss, ek_forward(t->model, images), target);
    int rc = ek_minimize(t->optimizer, loss, .value = loss_value);
    ek_scope_end(&scope);
    return rc;
}

/* Which pixels are ignored. */
typedef enum ignored_pixels { NONE_IGNORED, UNEVENLY_IGNORED, FIRST_DEVICE_IGNORED } ignored_pixels;

/* Makes images (n, 1, PIXELS, PIXELS) and targets (n, PIXELS, PIXELS), kept: release both. The
 * first `first` samples are those of the first device. */
static inline void make_batch(int64_t n, int64_t first, ignored_pixels ignoring, ek_dtype dtype,
                              uint64_t seed, ek_tensor **images, ek_tensor **target)
{
    ek_manual_seed(seed);
    *images = ek_keep(ek_randn(EK_SHAPE(n, 1, PIXELS, PIXELS), .dtype = dtype));
    *target = ek_keep(ek_randint(0, CLASSES, EK_SHAPE(n, PIXELS, PIXELS)));
    assert_made(*images);
    assert_made(*target);
    int64_t *pixel = ek_tensor_data(*target);
    for (int64_t i = 0; i < n * PIXELS * PIXELS; i++) {
        int64_t sample = i / (PIXELS * PIXELS);
        if ((ignoring == UNEVENLY_IGNORED && i % (2 + 3 * sample) == 0) ||
            (ignoring == FIRST_DEVICE_IGNORED && sample < first))
            pixel[i] = IGNORED;
    }
    ek_tensor_touch(*target);
}

#endif

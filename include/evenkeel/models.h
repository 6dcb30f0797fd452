/* models.h: networks whose weights are published, with the names, shapes and initial values of
 * torchvision, so that files of its weights load as they are (ek_archive_open,
 * ek_archive_load_module). Each constructor returns a module, owned by the caller, or NULL with an
 * error. */
#ifndef EVENKEEL_MODELS_H
#define EVENKEEL_MODELS_H

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_resnet_options {
    const char *keywords;
    int64_t classes;         /* default 1000; EK_ZERO: no layer `fc`, the output is the features */
    int64_t channels;        /* the pictures' channels; default 3 */
    int64_t groups;          /* groups of bottlenecks' 3 x 3 convolutions; default 1; ResNeXt: 32 */
    int64_t width_per_group; /* default 64; ResNeXt: 4 or 8; wide: 128 */
    int last_stride;         /* default 2; 1 keeps the last stage at the size of the one before */
    bool zero_init_residual; /* the last norm of each block begins with weight 0 */
} ek_resnet_options;
/* Residual networks (He et al. 2016), as torchvision.models has them: strides lie in the 3 x 3
 * convolutions. (N, channels, H, W) to (N, classes) or to features (N, 512), from 50 layers on
 * (N, 2048). Groups and widths are for bottlenecks, which begin at 50 layers. */
EK_API ek_module *ek_resnet18_with(ek_resnet_options options);
EK_API ek_module *ek_resnet34_with(ek_resnet_options options);
EK_API ek_module *ek_resnet50_with(ek_resnet_options options);
EK_API ek_module *ek_resnet101_with(ek_resnet_options options);
EK_API ek_module *ek_resnet152_with(ek_resnet_options options);
/* ek_resnet18(10), ek_resnet50(.classes = 0, .last_stride = 1) */
#define EK_RESNET_OPTIONS(...) EK_OPTIONS_1(ek_resnet_options, classes, __VA_ARGS__)
#define ek_resnet18(...) ek_resnet18_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet34(...) ek_resnet34_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet50(...) ek_resnet50_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet101(...) ek_resnet101_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet152(...) ek_resnet152_with(EK_RESNET_OPTIONS(__VA_ARGS__))

EK_END_DECLARATIONS
#endif

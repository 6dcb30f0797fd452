/** @file
 * models.h: networks whose weights are published, with the names, shapes and initial values of
 * their publishers (torchvision, OpenAI), so that files of their weights load as they are
 * (ek_archive_open, ek_archive_load_module). Each constructor returns a module, owned by the
 * caller, or NULL with an error. */
#ifndef EVENKEEL_MODELS_H
#define EVENKEEL_MODELS_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_resnet_options {
    const char *keywords;
    int64_t classes;  /**< default 1000; EK_ZERO: no layer `fc`, the output is the features */
    int64_t channels; /**< the pictures' channels; default 3 */
    int64_t groups;   /**< groups of bottlenecks' 3 x 3 convolutions; default 1; ResNeXt: 32 */
    int64_t width_per_group; /**< default 64; ResNeXt: 4 or 8; wide: 128 */
    int last_stride;         /**< default 2; 1 keeps the last stage at the size of the one before */
    bool zero_init_residual; /**< the last norm of each block begins with weight 0 */
} ek_resnet_options;
EK_API ek_module *ek_resnet18_with(ek_resnet_options options);
EK_API ek_module *ek_resnet34_with(ek_resnet_options options);
EK_API ek_module *ek_resnet50_with(ek_resnet_options options);
EK_API ek_module *ek_resnet101_with(ek_resnet_options options);
EK_API ek_module *ek_resnet152_with(ek_resnet_options options);
/** ek_resnet18(10), ek_resnet50(.classes = 0, .last_stride = 1) */
#define EK_RESNET_OPTIONS(...) EK_OPTIONS_1(ek_resnet_options, classes, __VA_ARGS__)
/** Residual networks (He et al. 2016), as torchvision.models has them: strides lie in the 3 x 3
 * convolutions. (N, channels, H, W) to (N, classes) or to features (N, 512), from 50 layers on
 * (N, 2048). Groups and widths are for bottlenecks, which begin at 50 layers. */
#define ek_resnet18(...) ek_resnet18_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet34(...) ek_resnet34_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet50(...) ek_resnet50_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet101(...) ek_resnet101_with(EK_RESNET_OPTIONS(__VA_ARGS__))
#define ek_resnet152(...) ek_resnet152_with(EK_RESNET_OPTIONS(__VA_ARGS__))

typedef struct ek_gpt2_options {
    const char *keywords;
    int64_t vocabulary;    /**< tokens; default 50257 */
    int64_t context;       /**< the most tokens of a text; default 1024 */
    int64_t width;         /**< features of a token, a multiple of `heads`; default 768 */
    int64_t layers, heads; /**< default 12 and 12 */
    int64_t inner;         /**< features within the MLPs; default 4 * width */
    double dropout; /**< in training, of embeddings, of attention's probabilities, and of what
                       each layer adds; default 0.1 */
    double layer_norm_eps; /**< default 1e-5 */
} ek_gpt2_options;
EK_API ek_module *ek_gpt2_with(ek_gpt2_options options);
/** ek_gpt2(), ek_gpt2(256, .context = 128, .width = 64, .layers = 4, .heads = 4) */
/** GPT-2 (Radford et al. 2019), with the names and shapes of its published checkpoints. Tokens
 * (N, L) or (L), i64, L at most `context`, to the next tokens' logits (N, L, vocabulary) or
 * (L, vocabulary). The defaults are the smallest published model, of 124,439,808 parameters; the
 * others have .width = 1024, 1280 and 1600, .layers = 24, 36 and 48, .heads = 16, 20 and 25. The
 * output's matrix is `wte.weight`. Matrices begin with normal numbers of deviation 0.02, those of
 * both c_proj of a layer with 0.02 / sqrt(2 layers).
 *
 * A published file loads by ek_archive_load_module(file, "", net, .strict = EK_OFF): causal masks,
 * which old files have beside the weights as `attn.bias`, are then left out. In files of models
 * with a head, all names begin with "transformer", which is to be given as the name instead. */
#define ek_gpt2(...) ek_gpt2_with(EK_OPTIONS_1(ek_gpt2_options, vocabulary, __VA_ARGS__))

EK_END_DECLARATIONS
#endif

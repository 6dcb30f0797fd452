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
    int begin;                   /**< no option, see base.h */
    int64_t classes EK_IS(1000); /**< 0: no layer `fc`; the output are the features */
    int64_t channels EK_IS(3);   /**< the pictures' channels */
    int last_stride EK_IS(2);    /**< 1: the last stage keeps the image size of the stage before */
    bool zero_init_residual;     /**< the last norm of each block has initial weight 0 */
} ek_resnet_options;
#define EK_DEFAULTS_ek_resnet_options \
    EK_DEFAULT(classes, 1000), EK_DEFAULT(channels, 3), EK_DEFAULT(last_stride, 2)
EK_API ek_module *ek_resnet18_with(ek_resnet_options options);
EK_API ek_module *ek_resnet34_with(ek_resnet_options options);
/** ek_resnet18(10), ek_resnet34(.classes = 0, .last_stride = 1): residual networks (He et al.
 * 2016), as torchvision.models has them: strides lie in the 3 x 3 convolutions. (N, channels, H, W)
 * to (N, classes) or to features (N, 512), from 50 layers on (N, 2048). */
#define ek_resnet18(...) EK_CALL_1(ek_resnet18_with, ek_resnet_options, classes, __VA_ARGS__)
#define ek_resnet34(...) EK_CALL_1(ek_resnet34_with, ek_resnet_options, classes, __VA_ARGS__)

typedef struct ek_bottleneck_resnet_options {
    int begin;                   /**< no option, see base.h */
    int64_t classes EK_IS(1000); /**< as ek_resnet_options, and the next */
    int64_t channels EK_IS(3);
    int64_t groups EK_IS(1);           /**< of the 3 x 3 convolutions; ResNeXt: 32 */
    int64_t width_per_group EK_IS(64); /**< ResNeXt: 4 or 8; wide: 128 */
    int last_stride EK_IS(2);          /**< as ek_resnet_options, and the next */
    bool zero_init_residual;
} ek_bottleneck_resnet_options;
#define EK_DEFAULTS_ek_bottleneck_resnet_options                               \
    EK_DEFAULT(classes, 1000), EK_DEFAULT(channels, 3), EK_DEFAULT(groups, 1), \
        EK_DEFAULT(width_per_group, 64), EK_DEFAULT(last_stride, 2)
EK_API ek_module *ek_resnet50_with(ek_bottleneck_resnet_options options);
EK_API ek_module *ek_resnet101_with(ek_bottleneck_resnet_options options);
EK_API ek_module *ek_resnet152_with(ek_bottleneck_resnet_options options);
/** ResNets of 50 and more layers, whose blocks have a bottleneck. */
#define ek_resnet50(...) \
    EK_CALL_1(ek_resnet50_with, ek_bottleneck_resnet_options, classes, __VA_ARGS__)
#define ek_resnet101(...) \
    EK_CALL_1(ek_resnet101_with, ek_bottleneck_resnet_options, classes, __VA_ARGS__)
#define ek_resnet152(...) \
    EK_CALL_1(ek_resnet152_with, ek_bottleneck_resnet_options, classes, __VA_ARGS__)

typedef struct ek_gpt2_options {
    int begin;                       /**< no option, see base.h */
    int64_t vocabulary EK_IS(50257); /**< tokens */
    int64_t context EK_IS(1024);     /**< the most tokens of a text */
    int64_t width EK_IS(768);        /**< features of a token, a multiple of `heads` */
    int64_t layers EK_IS(12);
    int64_t heads EK_IS(12);
    int64_t inner;             /**< features within the MLPs; 0: 4 * width */
    double dropout EK_IS(0.1); /**< in training, of embeddings, of attention's probabilities, and of
                                  what each layer adds */
    double layer_norm_eps EK_IS(1e-5);
    bool head EK_IS(true); /**< false: the output are the features after `ln_f`, (..., width) */
} ek_gpt2_options;
#define EK_DEFAULTS_ek_gpt2_options                                                   \
    EK_DEFAULT(vocabulary, 50257), EK_DEFAULT(context, 1024), EK_DEFAULT(width, 768), \
        EK_DEFAULT(layers, 12), EK_DEFAULT(heads, 12), EK_DEFAULT(dropout, 0.1),      \
        EK_DEFAULT(layer_norm_eps, 1e-5), EK_DEFAULT(head, true)
EK_API ek_module *ek_gpt2_with(ek_gpt2_options options);
/** ek_gpt2(), ek_gpt2(256, .context = 128, .width = 64, .layers = 4, .heads = 4) */
/** GPT-2 (Radford et al. 2019), with the names and shapes of its published checkpoints. Tokens
 * (N, L) or (L), i64, L at most `context`, to the next tokens' logits (N, L, vocabulary) or
 * (L, vocabulary). The defaults are the smallest published model, of 124,439,808 parameters; the
 * others have .width = 1024, 1280 and 1600, .layers = 24, 36 and 48, .heads = 16, 20 and 25. The
 * output's matrix is `wte.weight`. Matrices begin with normal numbers of deviation 0.02, those of
 * both c_proj of a layer with 0.02 / sqrt(2 layers).
 *
 * A published file loads by ek_archive_load_module(file, "", net, .strict = false): causal masks,
 * which old files have beside the weights as `attn.bias`, are then left out. In files of models
 * with a head, all names begin with "transformer": pass "transformer" in place of "".
 *
 * Another head is a layer after a network without one. This one has the names of files with a head,
 * and its matrix is tied to that of the embedding; without the last line it is a matrix of its own:
 *
 *     ek_module *net = ek_sequential_named({"transformer", ek_gpt2(.head = false)},
 *                                          {"lm_head", ek_linear(768, 50257, .bias = false)});
 *     ek_module_set_tensor(net, "lm_head.weight", ek_module_tensor(net, "transformer.wte.weight"));
 */
#define ek_gpt2(...) EK_CALL_1(ek_gpt2_with, ek_gpt2_options, vocabulary, __VA_ARGS__)

EK_END_DECLARATIONS
#endif

/** @file
 * init.h: initialisation in place, with numbers of the default generator, as torch.nn.init. */
#ifndef EVENKEEL_INIT_H
#define EVENKEEL_INIT_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** Uniform numbers from [low, high), normal numbers, or one number. */
EK_API int ek_init_uniform(ek_tensor *tensor, double low, double high);
EK_API int ek_init_normal(ek_tensor *tensor, double mean, double std);
EK_API int ek_init_constant(ek_tensor *tensor, double value);
/** Normal numbers from [low, high] (PyTorch's defaults: 0, 1, -2, 2). */
EK_API int ek_init_trunc_normal(ek_tensor *tensor, double mean, double std, double low,
                                double high);

typedef enum ek_nonlinearity {
    EK_GAIN_LEAKY_RELU, /**< its parameter is the negative slope */
    EK_GAIN_RELU,
    EK_GAIN_LINEAR, /**< also sigmoid and convolutions */
    EK_GAIN_TANH,
    EK_GAIN_SELU
} ek_nonlinearity;
/** The factor by which weights before this function are scaled. */
EK_API double ek_init_calculate_gain(ek_nonlinearity nonlinearity, double parameter);

typedef enum ek_fan_mode { EK_FAN_IN, EK_FAN_OUT } ek_fan_mode;
/** Fan in is the size of dimension 1 times the sizes of the kernel's dimensions (2 and up); fan out
 * is the size of dimension 0 times the kernel's. */
typedef struct ek_init_kaiming_options {
    int begin; /**< no option, see base.h */
    ek_tensor *tensor;
    double a; /**< the rectifier's negative slope */
    ek_fan_mode mode;
    ek_nonlinearity nonlinearity;
} ek_init_kaiming_options;
#define EK_DEFAULTS_ek_init_kaiming_options EK_NO_DEFAULTS
EK_API int ek_init_kaiming_uniform_with(ek_init_kaiming_options options);
EK_API int ek_init_kaiming_normal_with(ek_init_kaiming_options options);
/** ek_init_kaiming_normal(weight, .mode = EK_FAN_OUT, .nonlinearity = EK_GAIN_RELU) */
#define ek_init_kaiming_uniform(...) \
    EK_CALL_2(ek_init_kaiming_uniform_with, ek_init_kaiming_options, tensor, a, __VA_ARGS__)
#define ek_init_kaiming_normal(...) \
    EK_CALL_2(ek_init_kaiming_normal_with, ek_init_kaiming_options, tensor, a, __VA_ARGS__)
/** Numbers of deviation gain sqrt(2 / (fan in + fan out)) (Glorot and Bengio 2010). */
EK_API int ek_init_xavier_uniform(ek_tensor *tensor, double gain);
EK_API int ek_init_xavier_normal(ek_tensor *tensor, double gain);

/** A (semi-)orthogonal matrix times gain; dimensions after the first count as one. */
EK_API int ek_init_orthogonal(ek_tensor *tensor, double gain);
/** ek_init_eye: the identity matrix (2 dimensions). ek_init_dirac: weights of a convolution (3 to 5
 * dimensions) whose output repeats its input channels, within each of `groups` groups. */
EK_API int ek_init_eye(ek_tensor *tensor);
EK_API int ek_init_dirac(ek_tensor *tensor, int64_t groups);
/** Fills a matrix with normal numbers; the fraction `sparsity` (0 to 1) of each column is zero. */
EK_API int ek_init_sparse(ek_tensor *tensor, double sparsity, double std);

EK_END_DECLARATIONS
#endif

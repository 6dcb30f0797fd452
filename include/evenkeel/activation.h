/** @file
 * activation.h: activation functions and dropout. The rules of ops.h hold. */
#ifndef EVENKEEL_ACTIVATION_H
#define EVENKEEL_ACTIVATION_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** max(x, 0). Down to ek_f_prelu, functions work element by element. */
EK_API ek_tensor *ek_f_relu(ek_tensor *x);
EK_API ek_tensor *ek_f_leaky_relu(ek_tensor *x, double negative_slope);
typedef enum ek_gelu_approximate { EK_GELU_NONE = 0, EK_GELU_TANH = 1 } ek_gelu_approximate;
EK_API ek_tensor *ek_f_gelu(ek_tensor *x, ek_gelu_approximate approximate); /**< x Phi(x) */
EK_API ek_tensor *ek_f_sigmoid(ek_tensor *x);
EK_API ek_tensor *ek_f_tanh(ek_tensor *x);
EK_API ek_tensor *ek_f_silu(ek_tensor *x);               /**< x sigmoid(x) */
EK_API ek_tensor *ek_f_mish(ek_tensor *x);               /**< x tanh(softplus(x)) */
EK_API ek_tensor *ek_f_elu(ek_tensor *x, double alpha);  /**< below 0: alpha (exp(x) - 1) */
EK_API ek_tensor *ek_f_celu(ek_tensor *x, double alpha); /**< below 0: alpha (exp(x / alpha) - 1) */
EK_API ek_tensor *ek_f_selu(ek_tensor *x);               /**< 1.0507 elu(x, 1.67326) */
EK_API ek_tensor *ek_f_relu6(ek_tensor *x);              /**< x clamped to [0, 6] */
/** x clamped to [low, high]; the gradient is 0 at low and at high. */
EK_API ek_tensor *ek_f_hardtanh(ek_tensor *x, double low, double high);
EK_API ek_tensor *ek_f_hardsigmoid(ek_tensor *x);               /**< relu6(x + 3) / 6 */
EK_API ek_tensor *ek_f_hardswish(ek_tensor *x);                 /**< x relu6(x + 3) / 6 */
EK_API ek_tensor *ek_f_hardshrink(ek_tensor *x, double lambda); /**< x, but 0 if |x| <= lambda */
EK_API ek_tensor *ek_f_softshrink(ek_tensor *x, double lambda); /**< x moved by lambda towards 0 */
EK_API ek_tensor *ek_f_tanhshrink(ek_tensor *x);                /**< x - tanh(x) */
EK_API ek_tensor *ek_f_softsign(ek_tensor *x);                  /**< x / (1 + |x|) */
EK_API ek_tensor *ek_f_log_sigmoid(ek_tensor *x);               /**< log(sigmoid(x)), stable */
/** x > threshold ? x : value */
EK_API ek_tensor *ek_f_threshold(ek_tensor *x, double threshold, double value);
/** x > 0 ? x : weight x. `weight` has one element, or one per channel (x's dimension 1). */
EK_API ek_tensor *ek_f_prelu(ek_tensor *x, ek_tensor *weight);
/** The first half along `dim` times the sigmoid of the second. */
EK_API ek_tensor *ek_f_glu(ek_tensor *x, int dim);

typedef struct ek_softplus_options {
    int begin; /**< no option, see base.h */
    ek_tensor *x;
    double beta EK_IS(1);
    double threshold EK_IS(20);
} ek_softplus_options;
#define EK_DEFAULTS_ek_softplus_options EK_DEFAULT(beta, 1), EK_DEFAULT(threshold, 20)
EK_API ek_tensor *ek_f_softplus_with(ek_softplus_options options);
/** ek_f_softplus(x, .beta = 2): log(1 + exp(beta x)) / beta, stable; x if beta x > threshold. */
#define ek_f_softplus(...) EK_CALL_1(ek_f_softplus_with, ek_softplus_options, x, __VA_ARGS__)

/** x > 0 ? x : slope x. If training, each element that isn't positive has a separate slope, uniform
 * from lower to upper, from the default generator. A Mersenne Twister draws on the CPU, as PyTorch
 * does, and the host waits for x; Philox draws on x's device. If not training, the slope is
 * (lower + upper) / 2. */
EK_API ek_tensor *ek_f_rrelu(ek_tensor *x, double lower, double upper, bool training);

EK_API ek_tensor *ek_ndtr(ek_tensor *x); /**< Phi(x), the normal distribution function */
/** exp(x) / sum(exp(x)) along `dim`, its logarithm, and softmax(-x). */
EK_API ek_tensor *ek_f_softmax(ek_tensor *x, int dim);
EK_API ek_tensor *ek_f_log_softmax(ek_tensor *x, int dim);
EK_API ek_tensor *ek_f_softmin(ek_tensor *x, int dim); /**< softmax(-x) */
/** If training, zeroes elements with probability p and scales the others by 1 / (1 - p); else
 * returns x itself. The default generator draws the mask in row-major order. A Mersenne Twister
 * draws on the CPU: an element of any dtype is kept if its f64 uniform number is below 1 - p, as in
 * PyTorch on the CPU (PyTorch with MKL draws from MKL's generator instead). With Philox (random.h)
 * the device draws the mask, and draws it again in backward: the graph keeps neither mask nor x. */
EK_API ek_tensor *ek_f_dropout(ek_tensor *x, double p, bool training);

EK_END_DECLARATIONS
#endif

/* recurrent.h: the arithmetic of a step of recurrent networks, once, in the common subset of C11
 * and C++17 that gcc, clang and nvcc compile: ek_lstm_f32, ek_lstm_gradient_f32, ek_gru_f32,
 * ek_gru_gradient_f32, ek_rnn_gradient_f32, and the same functions for f64. */
#ifndef EK_KERNELS_RECURRENT_H
#define EK_KERNELS_RECURRENT_H

#include "kernels/formulas.h"

/* Returns the sigmoid of x, in f32 not less than e^-88. */
EK_FORMULA float ek_gate_f32(float x)
{
    return 1 / (1 + ek_exp_normal_f32(-x));
}
EK_FORMULA double ek_gate_f64(double x)
{
    return ek_unary_SIGMOID_f64(x, 0, 0);
}

/* The forward computes the gates from their sums, and c = f before + i g and h = o tanh(c). The
 * gradient computes the gradients of the sums and of `before` from dh and dc; dc doesn't include
 * the part that reaches c through h. */
#define EK_DEFINE_LSTM(type, suffix)                                                             \
    EK_FORMULA void ek_lstm_##suffix(type in_i, type in_f, type in_g, type in_o, type before,    \
                                     type *i, type *f, type *g, type *o, type *c, type *h)       \
    {                                                                                            \
        type of_i = ek_gate_##suffix(in_i);                                                      \
        type of_f = ek_gate_##suffix(in_f);                                                      \
        type of_g = ek_unary_TANH_##suffix(in_g, 0, 0);                                          \
        type of_o = ek_gate_##suffix(in_o);                                                      \
        type after = of_f * before + of_i * of_g;                                                \
        *i = of_i, *f = of_f, *g = of_g, *o = of_o, *c = after;                                  \
        *h = of_o * ek_unary_TANH_##suffix(after, 0, 0);                                         \
    }                                                                                            \
    EK_FORMULA void ek_lstm_gradient_##suffix(type dh, type dc, type i, type f, type g, type o,  \
                                              type before, type c, type *di, type *df, type *dg, \
                                              type *d_o, type *dbefore)                          \
    {                                                                                            \
        type t = ek_unary_TANH_##suffix(c, 0, 0), all = dc + dh * o * (1 - t * t);               \
        *di = all * g * (1 - i) * i;                                                             \
        *df = all * before * (1 - f) * f;                                                        \
        *dg = all * i * (1 - g * g);                                                             \
        *d_o = dh * t * (1 - o) * o;                                                             \
        *dbefore = all * f;                                                                      \
    }
EK_DEFINE_LSTM(float, f32)
EK_DEFINE_LSTM(double, f64)

/* Computes the gradient of the sum whose tanh or ReLU is h. */
#define EK_DEFINE_RNN(type, suffix)                                     \
    EK_FORMULA type ek_rnn_gradient_##suffix(type dh, type h, int relu) \
    {                                                                   \
        return relu ? ek_binary_RELU_GRADIENT_##suffix(dh, h, 0)        \
                    : ek_binary_TANH_GRADIENT_##suffix(dh, h, 0);       \
    }
EK_DEFINE_RNN(float, f32)
EK_DEFINE_RNN(double, f64)

/* The forward computes the gates r and z from their sums, n = tanh(x_n + r product_n), and
 * h = (1 - z) n + z before. The gradient computes the gradients of the sums, of product_n and of
 * `before` from dh. */
#define EK_DEFINE_GRU(type, suffix)                                                              \
    EK_FORMULA void ek_gru_##suffix(type in_r, type in_z, type x_n, type product_n, type before, \
                                    type *r, type *z, type *n, type *h)                          \
    {                                                                                            \
        type of_r = ek_gate_##suffix(in_r);                                                      \
        type of_z = ek_gate_##suffix(in_z);                                                      \
        type of_n = ek_unary_TANH_##suffix(x_n + of_r * product_n, 0, 0);                        \
        *r = of_r, *z = of_z, *n = of_n;                                                         \
        *h = (before - of_n) * of_z + of_n;                                                      \
    }                                                                                            \
    EK_FORMULA void ek_gru_gradient_##suffix(type dh, type r, type z, type n, type product_n,    \
                                             type before, type *dr, type *dz, type *dn,          \
                                             type *dproduct_n, type *dbefore)                    \
    {                                                                                            \
        type through = dh * z, of_n = (dh - through) * (1 - n * n);                              \
        *dr = of_n * product_n * (1 - r) * r;                                                    \
        *dz = dh * (before - n) * (1 - z) * z;                                                   \
        *dn = of_n;                                                                              \
        *dproduct_n = of_n * r;                                                                  \
        *dbefore = through;                                                                      \
    }
EK_DEFINE_GRU(float, f32)
EK_DEFINE_GRU(double, f64)

#endif

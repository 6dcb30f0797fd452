/* cuda.h: the kernels of the CUDA backend, one function per slot of kernels/kernels.h, where each
 * one's contract stands. */
#ifndef EK_CUDA_CUDA_H
#define EK_CUDA_CUDA_H

#include "kernels/kernels.h"

extern const ek_kernels ek_cuda_kernels;

int ek_cuda_fill(ek_dev *dev, ek_tensor *out, double value);
int ek_cuda_copy(ek_dev *dev, ek_tensor *out, const ek_tensor *x);

int ek_cuda_unary(ek_dev *dev, ek_unary op, ek_tensor *out, const ek_tensor *x, double a, double b);
int ek_cuda_binary(ek_dev *dev, ek_binary op, ek_tensor *out, const ek_tensor *x,
                   const ek_tensor *y, double a);
int ek_cuda_compare(ek_dev *dev, ek_compare op, ek_tensor *out, const ek_tensor *x,
                    const ek_tensor *y);
int ek_cuda_where(ek_dev *dev, ek_tensor *out, const ek_tensor *condition, const ek_tensor *x,
                  const ek_tensor *y);

int ek_cuda_add_n(ek_dev *dev, ek_tensor *out, const ek_tensor *const *inputs, int count);

int ek_cuda_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *out, const ek_tensor *x);
int ek_cuda_arg_reduce(ek_dev *dev, ek_reduce_kind kind, ek_tensor *index, const ek_tensor *x,
                       int dim);

int ek_cuda_index_select(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                         const ek_tensor *index);
int ek_cuda_index_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                      const ek_tensor *index);
int ek_cuda_gather(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                   const ek_tensor *index);
int ek_cuda_scatter_add(ek_dev *dev, ek_tensor *out, const ek_tensor *x, int dim,
                        const ek_tensor *index);

int ek_cuda_matmul(ek_dev *dev, ek_tensor *out, const ek_tensor *x, const ek_tensor *y,
                   const ek_tensor *bias, bool accumulate);

int ek_cuda_conv_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                         const ek_tensor *bias, const ek_conv_params *params);
int ek_cuda_conv_input_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *w,
                                const ek_conv_params *params);
int ek_cuda_conv_weight_gradient(ek_dev *dev, ek_tensor *dw, ek_tensor *dbias, const ek_tensor *x,
                                 const ek_tensor *dy, const ek_conv_params *params);

int ek_cuda_max_pool_forward(ek_dev *dev, ek_tensor *y, ek_tensor *index, const ek_tensor *x,
                             const ek_pool_params *params);
int ek_cuda_max_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_tensor *index);
int ek_cuda_max_pool_gather(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *index);
int ek_cuda_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x,
                             const ek_pool_params *params);
int ek_cuda_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy,
                              const ek_pool_params *params);
int ek_cuda_adaptive_avg_pool_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x);
int ek_cuda_adaptive_avg_pool_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy);

int ek_cuda_upsample_forward(ek_dev *dev, ek_tensor *y, const ek_tensor *x, bool bilinear,
                             bool align_corners);
int ek_cuda_upsample_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, bool bilinear,
                              bool align_corners);

int ek_cuda_batch_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x);
int ek_cuda_batch_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias, bool relu);
int ek_cuda_batch_norm_reduce(ek_dev *dev, ek_tensor *sum_dy, ek_tensor *sum_dy_xhat,
                              const ek_tensor *dy, const ek_tensor *x, const ek_tensor *mean,
                              const ek_tensor *invstd, const ek_tensor *y_relu);
int ek_cuda_batch_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum_dy,
                                const ek_tensor *sum_dy_xhat, double count,
                                const ek_tensor *y_relu);

int ek_cuda_group_norm_statistics(ek_dev *dev, ek_tensor *mean, ek_tensor *var, const ek_tensor *x);
int ek_cuda_group_norm_apply(ek_dev *dev, ek_tensor *y, const ek_tensor *x, const ek_tensor *mean,
                             const ek_tensor *invstd, const ek_tensor *weight,
                             const ek_tensor *bias);
int ek_cuda_group_norm_reduce(ek_dev *dev, ek_tensor *sum, ek_tensor *sum_xhat, ek_tensor *dweight,
                              ek_tensor *dbias, const ek_tensor *dy, const ek_tensor *x,
                              const ek_tensor *mean, const ek_tensor *invstd,
                              const ek_tensor *weight);
int ek_cuda_group_norm_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *x,
                                const ek_tensor *mean, const ek_tensor *invstd,
                                const ek_tensor *weight, const ek_tensor *sum,
                                const ek_tensor *sum_xhat);

int ek_cuda_softmax(ek_dev *dev, ek_tensor *y, const ek_tensor *x, int dim, bool logarithm);
int ek_cuda_softmax_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *dy, const ek_tensor *y,
                             int dim, bool logarithm);

int ek_cuda_cross_entropy_forward(ek_dev *dev, ek_tensor *loss, ek_tensor *lse, const ek_tensor *x,
                                  const ek_tensor *target, const ek_tensor *weight,
                                  const ek_cross_entropy_params *params);
int ek_cuda_cross_entropy_gradient(ek_dev *dev, ek_tensor *dx, const ek_tensor *gradient,
                                   const ek_tensor *lse, const ek_tensor *x,
                                   const ek_tensor *target, const ek_tensor *weight,
                                   const ek_cross_entropy_params *params);
int ek_cuda_target_weight(ek_dev *dev, ek_tensor *out, const ek_tensor *target,
                          const ek_tensor *weight, int64_t ignore_index);

int ek_cuda_sgd_step(ek_dev *dev, ek_tensor *parameter, const ek_tensor *gradient,
                     ek_tensor *momentum_buffer, const ek_sgd_params *params);
int ek_cuda_adam_step(ek_dev *dev, ek_tensor *parameter, const ek_tensor *gradient,
                      ek_tensor *exp_avg, ek_tensor *exp_avg_sq, ek_tensor *max_exp_avg_sq,
                      const ek_adam_params *params);
int ek_cuda_sgd_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                          ek_tensor *const *gradients, ek_tensor *const *momentum_buffers,
                          const ek_sgd_params *params);
int ek_cuda_adam_step_list(ek_dev *dev, int count, ek_tensor *const *parameters,
                           ek_tensor *const *gradients, ek_tensor *const *exp_avgs,
                           ek_tensor *const *exp_avg_sqs, ek_tensor *const *max_exp_avg_sqs,
                           const ek_adam_params *params);

#endif
